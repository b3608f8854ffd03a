package recipe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/recipe"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

const (
	f32, f16, bf16 = tensor.F32, tensor.F16, tensor.BF16
	u8, i32        = tensor.U8, tensor.I32
)

// queue returns a queue on the CPU with every kernel, and a view of it on which the reference runs everything.
func queue(tb testing.TB) (best, reference *registry.Queue) {
	r := registry.New(registry.Options{})
	require.NoError(tb, cpu.Register(r))
	dev, err := cpu.Open(cpu.Options{Registry: r, Threads: 2})
	require.NoError(tb, err)
	dq, err := dev.NewQueue()
	require.NoError(tb, err)
	best = r.NewQueue(dq)
	tb.Cleanup(func() {
		require.NoError(tb, errors.Join(best.Close(), dq.Close(), dev.Close()))
	})
	ctx := context.Background()
	for _, d := range registry.Descriptors() {
		ctx = registry.WithKernel(ctx, d.Op, "reference")
	}
	return best, best.With(ctx)
}

var rng = rand.New(rand.NewPCG(3, 4))

// raw returns a contiguous tensor whose bytes are all 0xff.
func raw(t tensor.DType, shape ...int64) tensor.Tensor {
	x := tensor.Must(tensor.New(nil, t, shape...))
	n, err := x.Bytes()
	if err != nil {
		panic(err)
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1)))), n)
	for i := range b {
		b[i] = 0xff
	}
	x.Host = unsafe.Pointer(unsafe.SliceData(b))
	return x
}

// random returns a tensor of normal numbers.
func random(t tensor.DType, shape ...int64) tensor.Tensor {
	x := raw(t, shape...)
	v := make([]float32, x.Numel())
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	switch t {
	case f32:
		copy(tensor.Slice[float32](&x), v)
	case f16:
		tensor.F32ToF16(tensor.Slice[uint16](&x), v)
	case bf16:
		tensor.F32ToBF16(tensor.Slice[uint16](&x), v)
	}
	return x
}

func content(x tensor.Tensor) []byte { return tensor.Slice[byte](&x) }

// clone returns operands with memory of their own. Views of one buffer stay views of one buffer.
func clone(list []tensor.Tensor) []tensor.Tensor {
	out, at := make([]tensor.Tensor, len(list)), map[unsafe.Pointer]unsafe.Pointer{}
	for i, x := range list {
		out[i] = x
		if !x.Present() || x.Numel() == 0 {
			continue
		}
		if at[x.Host] == nil {
			y := raw(x.DType, x.Dims()...)
			copy(content(y), content(x))
			at[x.Host] = y.Host
		}
		out[i].Host = at[x.Host]
	}
	return out
}

func get(tb testing.TB, name string) *recipe.Prepared {
	p, ok := recipe.Catalogue().Get(name)
	require.True(tb, ok, name)
	return p
}

// withGemma returns the recipe with the flag of its norm set or not.
func withGemma(tb testing.TB, name string, gemma bool) *recipe.Prepared {
	r := get(tb, name).Recipe()
	r.Steps = append([]recipe.Step(nil), r.Steps...)
	for i := range r.Steps {
		if r.Steps[i].Op == recipe.RMSNorm {
			r.Steps[i].Gemma = gemma
		}
	}
	p, err := recipe.Prepare(r)
	require.NoError(tb, err)
	return p
}

var widths = []int64{1, 7, 8, 127, 128, 129, 512, 1024, 2048}

// TestPromisedEquality: composite, interpreter, the unfused ops and the fast op give the same bits, for the output and for the
// residual. All of them run on the reference.
func TestPromisedEquality(t *testing.T) {
	_, q := queue(t)
	const rows = 3
	for _, h := range widths {
		for _, act := range []tensor.DType{f32, bf16} {
			for _, res := range []tensor.DType{f32, bf16, tensor.None} {
				for _, gemma := range []bool{false, true} {
					name := fmt.Sprintf("H=%d %v residual %v gemma %v", h, act, res, gemma)
					residual := tensor.Tensor{}
					if res != tensor.None {
						residual = random(res, rows, h)
					}
					start := []tensor.Tensor{random(act, rows, h), random(act, h), residual, raw(act, rows, h)}

					// The ops one by one: a sum, as the residual stores it, then the norm of what is stored.
					want := clone(start)
					in := want[0]
					if res != tensor.None {
						in = want[2]
						require.NoError(t, ops.Add.Call(q, ops.AddArgs{Out: in, A: in, B: want[0]}))
					}
					require.NoError(t, ops.RMSNorm.Call(q, ops.RMSNormArgs{Out: want[3], X: in, Weight: want[1], Eps: 1e-6, Gemma: gemma}))

					p := withGemma(t, "fused_add_rms_norm", gemma)
					for _, tier := range []recipe.Tier{recipe.Composite, recipe.Interpreter} {
						got := clone(start)
						require.NoError(t, p.RunTier(q, tier, got, recipe.Params{}), name)
						require.Equal(t, content(want[3]), content(got[3]), "%s %v", name, tier)
						require.Equal(t, content(want[2]), content(got[2]), "%s %v: residual", name, tier)
						require.Equal(t, content(start[0]), content(got[0]), "x is only read")
					}

					// The same with codes at the end.
					tmp, codes := raw(bf16, rows, h), raw(u8, rows, h)
					require.NoError(t, ops.RMSNorm.Call(q, ops.RMSNormArgs{Out: tmp, X: in, Weight: want[1], Eps: 1e-6, Gemma: gemma}))
					require.NoError(t, ops.QuantFP8Static.Call(q, ops.QuantFP8StaticArgs{Out: codes, X: tmp, InputScale: 0.01}))
					p = withGemma(t, "rms_norm_quant_fp8", gemma)
					for _, tier := range []recipe.Tier{recipe.Composite, recipe.Fast} {
						got := clone(append(start[:3:3], raw(bf16, rows, h), raw(u8, rows, h)))
						require.NoError(t, p.RunTier(q, tier, got, recipe.Params{QuantScale: 0.01}), name)
						require.Equal(t, content(codes), content(got[4]), "%s %v", name, tier)
						require.Equal(t, content(tmp), content(got[3]), "%s %v", name, tier)
						require.Equal(t, content(want[2]), content(got[2]), "%s %v: residual", name, tier)
					}
				}
			}
		}
	}
}

// operands returns those of a call of a recipe of the catalogue, and the slots of its outputs.
func operands(name string, act tensor.DType) (list []tensor.Tensor, outs []int, params recipe.Params) {
	const m, k, tokens, hq, hk, d, rotary = 5, 96, 3, 4, 2, 16, 12
	params = recipe.Params{Eps: 1e-5, QuantScale: 0.05}
	switch name {
	case "fused_add_rms_norm", "fused_add_rms_norm_std":
		return []tensor.Tensor{random(act, m, k), random(act, k), random(bf16, m, k), raw(act, m, k)}, []int{2, 3}, params
	case "rms_norm_quant_fp8":
		return []tensor.Tensor{random(act, m, k), random(act, k), random(bf16, m, k), raw(bf16, m, k), raw(u8, m, k)}, []int{2, 3, 4}, params
	case "rms_norm_gated_quant_fp8":
		return []tensor.Tensor{random(act, m, k), random(act, m, k), random(act, k), raw(bf16, m, k), raw(u8, m, k)}, []int{4}, params
	case "silu_mul_fp4_quant":
		params.QuantScale = 300
		return []tensor.Tensor{random(act, m, k), random(act, m, k), raw(bf16, m, k), raw(u8, m, k/2), raw(u8, m, k/16)}, []int{3, 4}, params
	case "silu_mul_quant_fp8":
		return []tensor.Tensor{random(act, m, k), random(act, m, k), raw(bf16, m, k), raw(u8, m, k)}, []int{2, 3}, params
	case "sigmoid_gate_fp4_quant":
		params.QuantScale, params.ScaleLayout = 300, ops.ScaleSwizzled
		return []tensor.Tensor{random(act, m, k), random(f32, m, k), raw(bf16, m, k), raw(u8, m, k/2), raw(u8, 128, 8)}, []int{3, 4}, params
	case "attn_qk_norm_rope_gate":
		return []tensor.Tensor{random(act, tokens, hq*2*d), random(act, tokens, hk*d), random(f32, d), random(f32, d), random(f32, tokens, rotary),
			raw(act, tokens, hq, d), raw(act, tokens, hk, d), raw(act, tokens, hq, d)}, []int{5, 6, 7}, params
	case "attn_qk_norm_rope":
		q, key, pos := random(act, tokens, hq, d), random(act, tokens, hk, d), raw(i32, tokens)
		copy(tensor.Slice[int32](&pos), []int32{4, 0, 9})
		rows := func(x tensor.Tensor) tensor.Tensor { return tensor.Must(x.View(x.Numel()/d, d)) }
		return []tensor.Tensor{rows(q), random(act, d), rows(key), random(act, d), q, key, random(act, 10, rotary), pos}, []int{0, 2}, params
	}
	panic(name)
}

// TestEveryRecipe: each recipe of the catalogue does what its ops do one by one, and its fast op does the same.
func TestEveryRecipe(t *testing.T) {
	best, q := queue(t)
	byHand := map[string]func(x []tensor.Tensor, p recipe.Params) error{
		"fused_add_rms_norm": func(x []tensor.Tensor, p recipe.Params) error {
			return ops.RMSNorm.Call(q, ops.RMSNormArgs{Out: x[3], X: x[0], Weight: x[1], Residual: x[2], Eps: p.Eps, Gemma: true})
		},
		"fused_add_rms_norm_std": func(x []tensor.Tensor, p recipe.Params) error {
			return ops.RMSNorm.Call(q, ops.RMSNormArgs{Out: x[3], X: x[0], Weight: x[1], Residual: x[2], Eps: p.Eps})
		},
		"rms_norm_quant_fp8": func(x []tensor.Tensor, p recipe.Params) error {
			return errors.Join(ops.RMSNorm.Call(q, ops.RMSNormArgs{Out: x[3], X: x[0], Weight: x[1], Residual: x[2], Eps: p.Eps, Gemma: true}),
				ops.QuantFP8Static.Call(q, ops.QuantFP8StaticArgs{Out: x[4], X: x[3], InputScale: p.QuantScale}))
		},
		"rms_norm_gated_quant_fp8": func(x []tensor.Tensor, p recipe.Params) error {
			return errors.Join(ops.RMSNormGated.Call(q, ops.RMSNormGatedArgs{Out: x[3], X: x[0], Gate: x[1], Weight: x[2], Eps: p.Eps}),
				ops.QuantFP8Static.Call(q, ops.QuantFP8StaticArgs{Out: x[4], X: x[3], InputScale: p.QuantScale}))
		},
		"silu_mul_fp4_quant": func(x []tensor.Tensor, p recipe.Params) error {
			return errors.Join(ops.MoESiluMul.Call(q, ops.MoESiluMulArgs{Out: x[2], Gate: x[0], Up: x[1]}),
				ops.ScaledFP4Quant.Call(q, ops.ScaledFP4QuantArgs{OutPacked: x[3], OutScale: x[4], X: x[2], InputGlobalScaleInv: p.QuantScale, ScaleLayout: p.ScaleLayout}))
		},
		"silu_mul_quant_fp8": func(x []tensor.Tensor, p recipe.Params) error {
			return errors.Join(ops.MoESiluMul.Call(q, ops.MoESiluMulArgs{Out: x[2], Gate: x[0], Up: x[1]}),
				ops.QuantFP8Static.Call(q, ops.QuantFP8StaticArgs{Out: x[3], X: x[2], InputScale: p.QuantScale}))
		},
		"sigmoid_gate_fp4_quant": func(x []tensor.Tensor, p recipe.Params) error {
			return errors.Join(ops.SigmoidGateBF16.Call(q, ops.SigmoidGateBF16Args{Out: x[2], Attn: x[0], Gate: x[1]}),
				ops.ScaledFP4Quant.Call(q, ops.ScaledFP4QuantArgs{OutPacked: x[3], OutScale: x[4], X: x[2], InputGlobalScaleInv: p.QuantScale, ScaleLayout: p.ScaleLayout}))
		},
		"attn_qk_norm_rope_gate": func(x []tensor.Tensor, p recipe.Params) error {
			return ops.AttnQKNormRopeGate.Call(q, ops.AttnQKNormRopeGateArgs{Qgate: x[0], KF: x[1], QNorm: x[2], KNorm: x[3], CosSin: x[4], QOut: x[5], KOut: x[6], GateOut: x[7],
				Eps: p.Eps, RotaryDim: 12, Gemma: true})
		},
		"attn_qk_norm_rope": func(x []tensor.Tensor, p recipe.Params) error {
			return errors.Join(ops.RMSNorm.Call(q, ops.RMSNormArgs{Out: x[0], X: x[0], Weight: x[1], Eps: p.Eps}),
				ops.RMSNorm.Call(q, ops.RMSNormArgs{Out: x[2], X: x[2], Weight: x[3], Eps: p.Eps}),
				ops.RopeFromCache.Call(q, ops.RopeFromCacheArgs{QStates: x[4], KStates: x[5], CosSinCache: x[6], Positions: x[7], RotaryDim: 12}))
		},
	}
	require.Len(t, recipe.Catalogue().Names(), 9)
	for _, name := range recipe.Catalogue().Names() {
		p := get(t, name)
		for _, act := range []tensor.DType{f32, bf16, f16} {
			if act == f16 && strings.Contains("fused_add_rms_norm fused_add_rms_norm_std attn_qk_norm_rope_gate attn_qk_norm_rope sigmoid_gate_fp4_quant", name) {
				continue // outputs, or inputs, that f16 is not for
			}
			start, outs, params := operands(name, act)
			want := clone(start)
			require.NoError(t, byHand[name](want, params), name)
			same := func(got []tensor.Tensor, how string) {
				for _, o := range outs {
					require.Equal(t, content(want[o]), content(got[o]), "%s %v %s: slot %d", name, act, how, o)
				}
			}
			got := clone(start)
			require.NoError(t, p.RunTier(q, recipe.Composite, got, params), name)
			same(got, "composite")
			got = clone(start)
			require.NoError(t, p.Run(q, got, params), name)
			same(got, "run")
			if p.Recipe().Fast != 0 {
				got = clone(start)
				require.NoError(t, p.RunTier(q, recipe.Fast, got, params), name)
				same(got, "fast")
			} else {
				require.ErrorIs(t, p.RunTier(q, recipe.Fast, got, params), recipe.ErrTier)
			}
			got = clone(start)
			require.NoError(t, p.Run(best, got, params), name)
			for _, o := range outs {
				near(t, want[o], got[o], name)
			}
		}
	}
}

// near holds what the best kernels computed against the reference: floats by the catalogue's class of their dtype, codes, which
// may fall to the other side of a rounding, by their number.
func near(t *testing.T, want, got tensor.Tensor, name string) {
	if want.DType == u8 {
		moved := 0
		for i, b := range content(want) {
			if content(got)[i] != b {
				moved++
			}
		}
		require.LessOrEqual(t, moved, 1+len(content(want))/50, name)
		return
	}
	tol := map[tensor.DType][2]float64{f32: {1e-5, 1e-5}, bf16: {4e-3, 8e-3}}[want.DType]
	v, w := make([]float32, want.Numel()), make([]float32, want.Numel())
	require.NoError(t, tensor.Decode(v, want.DType, content(want)))
	require.NoError(t, tensor.Decode(w, got.DType, content(got)))
	for i := range v {
		require.InDelta(t, v[i], w[i], tol[0]+tol[1]*math.Abs(float64(v[i])), name)
	}
}

// TestNilResidual: without a residual nothing is added, in every tier.
func TestNilResidual(t *testing.T) {
	_, q := queue(t)
	start, _, params := operands("rms_norm_quant_fp8", bf16)
	start[2] = tensor.Tensor{}
	want := clone(start)
	require.NoError(t, ops.RMSNorm.Call(q, ops.RMSNormArgs{Out: want[3], X: want[0], Weight: want[1], Eps: params.Eps, Gemma: true}))
	require.NoError(t, ops.QuantFP8Static.Call(q, ops.QuantFP8StaticArgs{Out: want[4], X: want[3], InputScale: params.QuantScale}))
	for _, tier := range []recipe.Tier{recipe.Composite, recipe.Fast} {
		got := clone(start)
		require.NoError(t, get(t, "rms_norm_quant_fp8").RunTier(q, tier, got, params))
		require.Equal(t, content(want[4]), content(got[4]), tier)
	}
	for _, tier := range []recipe.Tier{recipe.Composite, recipe.Interpreter} {
		got := clone(start[:4])
		require.NoError(t, get(t, "fused_add_rms_norm").RunTier(q, tier, got, params))
		require.Equal(t, content(want[3]), content(got[3]), tier)
	}

	// What stood for the residual is overwritten: such a recipe needs one.
	p, err := recipe.Prepare(recipe.Recipe{Name: "needs_it", Operands: rows, Steps: []recipe.Step{add, norm(2, 3), {Op: recipe.Add, In: [3]uint8{3, 2}, Out: 3}}})
	require.NoError(t, err)
	got := clone(start[:4])
	require.NoError(t, p.RunTier(q, recipe.Interpreter, got, params), "x still stands for it")
	p, err = recipe.Prepare(recipe.Recipe{Name: "twice", Operands: rows, Steps: []recipe.Step{add, norm(2, 3), {Op: recipe.Add, In: [3]uint8{3, 2}, Out: 2},
		{Op: recipe.Silu, In: [3]uint8{3}, Out: 3}, norm(2, 3)}})
	require.NoError(t, err)
	require.ErrorIs(t, p.RunTier(q, recipe.Interpreter, got, params), recipe.ErrTier, "slot 3 stood for it, and silu wrote there")
	got[2] = random(bf16, 5, 96)
	require.NoError(t, p.RunTier(q, recipe.Interpreter, got, params))
}

var (
	rows = []recipe.Slot{{Kind: recipe.Row, Name: "x"}, {Kind: recipe.Weight, Name: "weight"}, {Kind: recipe.Residual, Name: "residual"}, {Kind: recipe.Row, Name: "out"}}
	add  = recipe.Step{Op: recipe.Add, In: [3]uint8{0, 2}, Out: 2}
)

func norm(in, out uint8) recipe.Step {
	return recipe.Step{Op: recipe.RMSNorm, In: [3]uint8{in, 1}, Out: out, Reduce: recipe.MeanSquare}
}

// TestLadder: which way is taken on devices with various kernels.
func TestLadder(t *testing.T) {
	metal := tensor.Device{Kind: tensor.Metal}
	type kernels map[registry.Op]registry.Tier
	rms, fp8, fused, chain := ops.OpRMSNorm, ops.OpQuantFP8Static, ops.OpRMSNormQuantFP8, ops.OpFusedChain
	native, ref := registry.Native, registry.Reference
	for _, c := range []struct {
		name     string
		recipe   string
		metal    bool // a device that borrows the CPU's kernels
		has      kernels
		lent     kernels // those of the CPU
		on       bool
		unbound  bool // the intermediate
		want     recipe.Tier
		whyFast  string
		whyInner string
	}{
		{"native fast op", "rms_norm_quant_fp8", false, kernels{fused: native, rms: native, fp8: native}, nil, false, false, recipe.Fast, "a kernel of its own", "not row-wise"},
		{"only the reference, everywhere", "rms_norm_quant_fp8", false, kernels{fused: ref, rms: ref, fp8: ref}, nil, false, false, recipe.Fast, "nothing faster", ""},
		{"a faster norm", "rms_norm_quant_fp8", false, kernels{fused: ref, rms: native, fp8: ref}, nil, false, false, recipe.Composite, "the composite has a faster rms_norm", "row-wise"},
		{"a faster norm, no intermediate", "rms_norm_quant_fp8", false, kernels{fused: ref, rms: native, fp8: ref}, nil, false, true, recipe.Fast, "nothing faster", ""},
		{"a faster norm, no quantizer", "rms_norm_quant_fp8", false, kernels{fused: ref, rms: native}, nil, false, false, recipe.Fast, "nothing faster", ""},
		{"no fast kernel", "rms_norm_quant_fp8", false, kernels{rms: ref, fp8: ref}, nil, true, false, recipe.Composite, "no kernel", "quant_fp8 is not row-wise"},
		{"borrowed fast op", "rms_norm_quant_fp8", true, kernels{rms: native}, kernels{fused: native, fp8: ref}, false, false, recipe.Composite, "only one of the CPU", ""},
		{"native on a device that borrows", "rms_norm_quant_fp8", true, kernels{fused: native}, kernels{rms: native, fp8: ref}, false, false, recipe.Fast, "a kernel of its own", ""},
		{"row-wise, off", "fused_add_rms_norm", false, kernels{rms: ref, chain: ref}, nil, false, false, recipe.Composite, "names none", "not switched on"},
		{"row-wise, on", "fused_add_rms_norm", false, kernels{rms: native, chain: ref}, nil, true, false, recipe.Interpreter, "names none", "it is switched on"},
		{"row-wise, on, no interpreter", "fused_add_rms_norm", false, kernels{rms: native}, nil, true, false, recipe.Composite, "names none", "no kernel"},
	} {
		r := registry.New(registry.Options{Reference: registry.ReferenceAllow})
		register := func(kind tensor.Kind, list kernels) {
			for op, tier := range list {
				priority := map[registry.Tier]int32{ref: registry.ReferenceTierPriority}[tier]
				_, err := r.RegisterOpProvider(op, kind, registry.OpProvider{Name: "some", Tier: tier, Priority: priority, Fn: func(*registry.Queue, unsafe.Pointer) registry.Status { return 0 }})
				require.NoError(t, err)
			}
		}
		dev := tensor.Device{}
		if c.metal {
			dev = metal
			register(tensor.Metal, c.has)
			register(tensor.CPU, c.lent)
			require.NoError(t, r.SetDeviceProviderCaps(metal, device.ProviderCaps{State: device.Probed, Memory: device.Memory{HostReadsDeviceAlloc: true}}))
		} else {
			register(tensor.CPU, c.has)
		}
		q := r.NewQueue(fake{dev: dev})
		x, _, params := operands(c.recipe, bf16)
		for i := range x {
			x[i].Device = dev
		}
		if c.unbound {
			x[3] = tensor.Tensor{}
		}
		params.Interpreter = c.on
		p := get(t, c.recipe)
		choice, err := p.Plan(q, x, params)
		require.NoError(t, err)
		require.Equal(t, c.want, choice.Tier, "%s\n%v", c.name, choice)
		require.Contains(t, choice.Ways[0].Why, c.whyFast, c.name)
		require.Contains(t, choice.Ways[1].Why, c.whyInner, c.name)
		for _, w := range choice.Ways {
			require.Equal(t, w.Tier == c.want, w.Chosen, c.name)
			require.NotEmpty(t, w.Why, c.name)
		}
		require.NoError(t, p.Run(q, x, params), c.name)
		ran := map[string]bool{}
		for _, e := range r.Snapshot().Ops {
			for _, s := range e.Chain {
				if s.Counts.Executed > 0 && e.Device == dev.String() {
					ran[e.Op] = true
				}
			}
		}
		for _, u := range choice.Ways[recipe.Fast-c.want].Ops {
			require.True(t, ran[u.Op], "%s: %s was announced, %v ran", c.name, u.Op, ran)
		}
		require.Len(t, ran, len(choice.Ways[recipe.Fast-c.want].Ops), c.name)
		require.NoError(t, q.Close())
	}
}

// fake is a device queue of a device that does not exist.
type fake struct {
	device.Queue
	dev tensor.Device
}

func (f fake) Device() tensor.Device      { return f.dev }
func (f fake) Capturing() bool            { return false }
func (f fake) Sync(context.Context) error { return nil }

// TestChoiceText: the choice is one readable text, and JSON.
func TestChoiceText(t *testing.T) {
	_, q := queue(t)
	x, _, params := operands("rms_norm_quant_fp8", f32)
	c, err := get(t, "rms_norm_quant_fp8").Plan(q, x, params)
	require.NoError(t, err)
	require.Equal(t, `rms_norm_quant_fp8 on cpu:0: fast
  * fast: the reference has it in one pass, and the composite has nothing faster; rms_norm_quant_fp8 (reference_rms_norm_quant_fp8)
  - interpreter: step 2: quant_fp8 is not row-wise
  - composite: not asked; rms_norm (reference_rms_norm), quant_fp8_static (reference_quant_fp8_static)
`, c.String())
	b, err := json.Marshal(c)
	require.NoError(t, err)
	require.Contains(t, string(b), `"tier":"fast"`)
	x[3] = random(f32, 5, 96)
	c, err = get(t, "rms_norm_quant_fp8").Plan(q, x, params)
	require.NoError(t, err)
	require.Equal(t, recipe.Composite, c.Tier)
	require.Contains(t, c.Ways[0].Why, "intermediate is not bf16")
	x, _, params = operands("silu_mul_fp4_quant", f32)
	x[1] = random(bf16, 5, 96)
	require.NoError(t, get(t, "silu_mul_fp4_quant").Run(q, x, params), "the composite takes two dtypes")
	require.ErrorIs(t, get(t, "silu_mul_fp4_quant").RunTier(q, recipe.Fast, x, params), ops.ErrDType)
}

// TestRunErrors: a call that some step rejects has run none.
func TestRunErrors(t *testing.T) {
	_, q := queue(t)
	p := get(t, "rms_norm_quant_fp8")
	start, _, params := operands("rms_norm_quant_fp8", f32)
	for _, c := range []struct {
		name   string
		change func(x []tensor.Tensor, p *recipe.Params) []tensor.Tensor
		want   error
	}{
		{"one too few", func(x []tensor.Tensor, _ *recipe.Params) []tensor.Tensor { return x[:4] }, recipe.ErrOperands},
		{"one too many", func(x []tensor.Tensor, _ *recipe.Params) []tensor.Tensor { return append(x, tensor.Tensor{}) }, recipe.ErrOperands},
		{"no intermediate", func(x []tensor.Tensor, _ *recipe.Params) []tensor.Tensor { x[3] = tensor.Tensor{}; return x }, recipe.ErrOperands},
		{"no codes", func(x []tensor.Tensor, _ *recipe.Params) []tensor.Tensor { x[4] = tensor.Tensor{}; return x }, recipe.ErrOperands},
		{"codes of another shape", func(x []tensor.Tensor, _ *recipe.Params) []tensor.Tensor { x[4] = raw(u8, 5, 97); return x }, ops.ErrShape},
		{"negative scale", func(x []tensor.Tensor, p *recipe.Params) []tensor.Tensor { p.QuantScale = -1; return x }, ops.ErrAttr},
		{"NaN eps", func(x []tensor.Tensor, p *recipe.Params) []tensor.Tensor { p.Eps = float32(math.NaN()); return x }, ops.ErrAttr},
		{"another device", func(x []tensor.Tensor, _ *recipe.Params) []tensor.Tensor { x[4].Device.Index = 1; return x }, ops.ErrDevice},
	} {
		x, params := clone(start), params
		residual := x[2]
		err := p.RunTier(q, recipe.Composite, c.change(x, &params), params)
		require.ErrorIs(t, err, c.want, c.name)
		require.Contains(t, err.Error(), "recipe rms_norm_quant_fp8", c.name)
		require.Equal(t, content(start[2]), content(residual), "%s: the residual is as before", c.name)
	}
	x := clone(start)
	x[2], x[1] = tensor.Tensor{}, random(f32, 95)
	require.ErrorContains(t, p.RunTier(q, recipe.Composite, x, params), "composite: step 1: rms_norm: weight", "the number is the recipe's, though the add is gone")
	x = clone(start)
	none := q.With(registry.WithKernel(context.Background(), ops.OpQuantFP8Static, "nobody"))
	require.ErrorIs(t, p.RunTier(none, recipe.Composite, x, params), registry.ErrNoKernel)
	require.Equal(t, content(start[2]), content(x[2]))
	require.ErrorIs(t, p.Run(nil, x, params), registry.ErrNil)
	require.ErrorIs(t, p.RunTier(q, 3, x, params), recipe.ErrTier)
	require.ErrorIs(t, p.RunTier(q, recipe.Interpreter, x, params), recipe.ErrTier)
	_, err := p.Plan(q, nil, params)
	require.ErrorIs(t, err, recipe.ErrOperands)

	inner, err := recipe.Prepare(recipe.Recipe{Name: "gate", Operands: rows, Steps: []recipe.Step{{Op: recipe.Silu, Out: 3}, {Op: recipe.Mul, In: [3]uint8{3, 1}, Out: 3}}})
	require.NoError(t, err)
	x = []tensor.Tensor{random(f32, 2, 8), random(f32, 8), {}, raw(f32, 2, 8)}
	require.ErrorIs(t, inner.Run(q, x, recipe.Params{}), recipe.ErrTier, "no ops of their own")
	require.NoError(t, inner.Run(q, x, recipe.Params{Interpreter: true}))
	empty := []tensor.Tensor{raw(f32, 0, 8), random(f32, 8), {}, raw(f32, 0, 8)}
	require.NoError(t, inner.Run(q, empty, recipe.Params{Interpreter: true}))
}

// TestConcurrentRuns: one prepared recipe serves many queues at once.
func TestConcurrentRuns(t *testing.T) {
	p := get(t, "fused_add_rms_norm")
	start, _, params := operands("fused_add_rms_norm", bf16)
	_, q := queue(t)
	want := clone(start)
	require.NoError(t, p.Run(q, want, params))
	var wg sync.WaitGroup
	for range 4 {
		_, q := queue(t)
		wg.Go(func() {
			for range 50 {
				got := clone(start)
				if err := p.Run(q, got, params); err != nil || !bytes.Equal(content(want[3]), content(got[3])) {
					t.Error("differs", err)
				}
			}
		})
	}
	wg.Wait()
}
