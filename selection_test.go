package opmux_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// A kernel whose code is absent is there to be explained, and its neighbours run.
func TestW22AbsentCode(t *testing.T) {
	r, q := linked(t)
	before := chain(r, ops.OpRelu, q.Device())
	_, err := r.RegisterKernel(registry.KernelSpec{Family: "elementwise", Mode: "relu", Solution: "vendor", Kinds: []tensor.Kind{tensor.CPU},
		Priority: registry.BandSpecialized.Plus(3), Spec: registry.Spec{Unavailable: "libvendor.so.1 was not found",
			Signatures: []tensor.FormatSignature{tensor.Sig(map[string]tensor.Format{"x": tensor.Dense(tensor.F32)})}}}, nil)
	require.NoError(t, err)
	require.Equal(t, before, chain(r, ops.OpRelu, q.Device()))
	dropped := r.Explain(ops.OpRelu, q.Device()).Dropped
	require.Contains(t, dropped[0].Detail, "libvendor.so.1")

	d := r.Decide(registry.Request{Operator: "elementwise.relu", Signature: tensor.Sig(map[string]tensor.Format{"x": tensor.Dense(tensor.F32)})})
	require.Equal(t, before[0], d.Winner)
	for _, k := range d.Choices {
		if k.Provider == "vendor" {
			require.Equal(t, registry.WhyUnavailable, k.Why[0].Kind)
			require.Contains(t, k.Why[0].Text, "libvendor.so.1")
		}
	}
	require.True(t, has(d, "vendor"))
	y := make([]float32, 2)
	require.NoError(t, ops.Relu.Call(q, ops.ReluArgs{Out: host(y, 2), X: host([]float32{-1, 2}, 2)}))
	require.Equal(t, []float32{0, 2}, y)
}

// Every op of the catalogue has kernels once the backend is registered, and the oracle is the last of them.
func TestW23EveryOpHasKernels(t *testing.T) {
	r, q := linked(t)
	families := map[string]bool{}
	for _, d := range registry.Descriptors() {
		names := chain(r, d.Op, q.Device())
		require.NotEmpty(t, names, d.Name)
		require.Equal(t, "reference_"+d.Name, names[len(names)-1])
		families[d.Family] = true
	}
	for _, f := range []string{"attention", "elementwise", "gemm", "kv_cache", "norm", "rope_embedding", "sampling"} {
		require.True(t, families[f], "%s: have %v", f, families)
	}
}

// What a caller must know of a kernel it declares, and so does a kernel that nobody here has heard of.
func TestW25Properties(t *testing.T) {
	r, machines := described(t, specs(t)), platforms(t)
	bf16 := tensor.Sig(map[string]tensor.Format{"a": tensor.Dense(tensor.BF16), "b": tensor.Dense(tensor.BF16)})
	req := registry.Request{Operator: "gemm.mm", Signature: bf16, Platform: machines["h100"], Traits: traits{"m": 1, "n": 128, "k": 128}.values()}
	s, err := r.Select(req)
	require.NoError(t, err)
	require.Equal(t, "true", s.Props()["fused_bias"])
	_, err = r.RegisterKernel(registry.KernelSpec{Name: "newcomer", Family: "gemm", Mode: "mm", Solution: "other", Kinds: []tensor.Kind{tensor.CUDA},
		Priority: registry.BandPlugin.Plus(0), Spec: registry.Spec{Origin: "plugin:other", Unavailable: "a test", Signatures: []tensor.FormatSignature{bf16},
			Props: map[string]string{"fused_bias": "false", "quantize_activations": "mxfp8"}}}, nil)
	require.NoError(t, err)
	s, err = r.Select(req)
	require.NoError(t, err)
	require.Equal(t, "newcomer", s.Kernel())
	require.Equal(t, map[string]string{"fused_bias": "false", "quantize_activations": "mxfp8"}, s.Props())
}

// The op says how its weight lies; a square one is not ambiguous.
func TestW26SquareWeights(t *testing.T) {
	_, q := linked(t)
	x, w := []float32{1, 2}, []float32{1, 2, 3, 4}
	y, yt := make([]float32, 2), make([]float32, 2)
	require.NoError(t, ops.Matmul.Call(q, ops.MatmulArgs{Out: host(y, 1, 2), A: host(x, 1, 2), B: host(w, 2, 2)}))
	require.NoError(t, ops.MatmulBT.Call(q, ops.MatmulBTArgs{Out: host(yt, 1, 2), A: host(x, 1, 2), B: host(w, 2, 2)}))
	require.Equal(t, []float32{7, 10}, y)
	require.Equal(t, []float32{5, 11}, yt)
}

// Weights that were prepared for one kernel are refused by every other, and so are plain ones.
func TestW27WeightLayouts(t *testing.T) {
	r, machines := described(t, specs(t)), platforms(t)
	plan := func(routing string) *registry.Pinned {
		p, err := r.Plan(registry.Request{Operator: "moe.apply", Platform: machines["b200"], Signature: tensor.Sig(map[string]tensor.Format{"x": tensor.Dense(tensor.BF16)}),
			Traits: traits{"weight_dtype": "nvfp4", "routing_mode": routing, "activation": "swiglu", "ispp": 2048}.values()})
		require.NoError(t, err)
		return p
	}
	a, b := plan("kernel_routing"), plan("precomputed_topk")
	require.NotEqual(t, a.Kernel(), b.Kernel())
	for _, p := range []*registry.Pinned{a, b} {
		require.NoError(t, p.CheckLayout(p.Spec().Layouts[0]))
		require.ErrorIs(t, p.CheckLayout(""), registry.ErrWeights)
	}
	require.ErrorIs(t, a.CheckLayout(b.Spec().Layouts[0]), registry.ErrWeights)
}

// A file of descriptions is taken whole or not at all.
func TestW46WholeOrNotAtAll(t *testing.T) {
	r := registry.New(registry.Options{})
	text := string(specs(t)["quantization"])
	broken := strings.Replace(text, `"name": "triton_quantize_mxfp4"`, `"name": "triton quantize"`, 1)
	require.NotEqual(t, text, broken)
	_, err := r.LoadSpecs(strings.NewReader(broken), "file:broken.json")
	require.ErrorIs(t, err, registry.ErrSpec)
	require.Contains(t, err.Error(), "broken.json:")
	_, err = r.Covered("quantization.fp8")
	require.ErrorIs(t, err, registry.ErrUnknownOp)
	_, err = r.LoadSpecs(bytes.NewReader([]byte(text)), "file:whole.json")
	require.NoError(t, err)
	kernels, err := r.LoadSpecs(bytes.NewReader([]byte(text)), "file:again.json")
	require.ErrorIs(t, err, registry.ErrDuplicate)
	require.Empty(t, kernels)
}
