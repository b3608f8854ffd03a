package opmux_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/internal/evidence"
	"github.com/opmux/opmux/internal/opfile"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// With -evidence the run writes what each provider did; the README's status table is generated from that.
var (
	evidenceDir = flag.String("evidence", "", "folder for the evidence records of TestConformance")
	evidenceHow = flag.String("how", "", "how the machine of the records was had, if not natively")
)

// leastRun is how many files of a folder must run at least when the folder is the project's own.
var leastRun = map[string]int{"dtypes": 10, "ggml": 54, "ggml_ops": 116, "gguf": 1, "onnx": 245, "semantics": 52, "vllm": 28}

// without lists expected outputs that nothing here computes, by type: their files run for the others. f16
// and bf16 overflow to infinity only.
var without = map[string]string{"encode f16": "code_saturating", "encode bf16": "code_saturating"}

// demanded are the operators of ONNX all of whose files pass.
var demanded = []string{"Attention", "FlexAttention", "RMSNormalization", "LayerNormalization", "GroupNormalization", "LpNormalization", "RotaryEmbedding",
	"LinearAttention", "CausalConvWithState", "MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast",
	"Softmax", "LogSoftmax", "TopK", "ArgMax", "CumSum", "Gather", "ScatterND", "TensorScatter", "Gelu", "SwiGLU", "Sigmoid", "Tanh", "Softplus", "HardSwish", "Add",
	"Mul", "Clip"}

// lacking are the files of those that cannot, by type and why: dtypes that tensors lack, and the sum of magnitudes.
var lacking = []string{"Add (operand dtype u16)", "Mul (operand dtype u32)", "Mul (operand dtype u64)",
	"LpNormalization (norm of order 1)", "Cast (operand dtype f8e4m3fnuz)", "Cast (a cast to type 18)", "Cast (a cast to type 20)", "Cast (a cast to type 21)",
	"Cast (a cast to type 22)", "Cast (a cast to type 25)", "Cast (a cast to type 26)"}

// TestConformance runs every file of OPMUX_CONFORMANCE, or of ../shared/conformance, that an op serves, on each CPU
// implementation and by each route.
func TestConformance(t *testing.T) {
	root, own := os.Getenv("OPMUX_CONFORMANCE"), false
	if root == "" {
		root, own = filepath.Join("..", "shared", "conformance"), true
	}
	if _, err := os.Stat(root); err != nil {
		t.Skipf("no conformance data: set OPMUX_CONFORMANCE to its folder (%v)", err)
	}
	c := newConformance(t)
	run, total, passed := map[string]int{}, 0, 0
	without := map[string]int{} // files that no op serves, by type
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, isJSON := strings.CutSuffix(path, ".json")
		if err != nil || d.IsDir() || !isJSON {
			return err
		}
		name, err = filepath.Rel(root, name)
		var unserved string
		ok := t.Run(filepath.ToSlash(name), func(t *testing.T) { unserved = c.file(t, path) })
		switch {
		case unserved != "" && ok:
			without[unserved]++
			return err
		case ok:
			passed++
		}
		total++
		run[filepath.ToSlash(filepath.Dir(name))]++
		return err
	})
	require.NoError(t, err)
	c.manyRows(t)
	unserved, list := 0, []string{}
	for _, name := range slices.Sorted(maps.Keys(without)) {
		unserved += without[name]
		list = append(list, fmt.Sprintf("%s %d", name, without[name]))
	}
	fmt.Printf("conformance: %d run, %d passed, %d without an op\n", total, passed, unserved)
	fmt.Printf("types without an op: %s\n", strings.Join(list, ", "))
	require.Equal(t, total, passed)
	if *evidenceDir != "" {
		run := "go test . -run TestConformance -evidence " + *evidenceDir
		require.NoError(t, evidence.Write(*evidenceDir, evidence.Collect(c.queue.Registry(), run, *evidenceHow)))
	}
	if own {
		for folder, least := range leastRun {
			require.GreaterOrEqual(t, run[folder], least, "files of %s that ran", folder)
		}
		for name, n := range without {
			if operator, _, _ := strings.Cut(name, " "); slices.Contains(demanded, operator) {
				require.Contains(t, lacking, name, "%d files of %s", n, operator)
			}
		}
		executed := map[string]uint64{}
		for _, op := range c.queue.Registry().Snapshot().Ops {
			for _, s := range op.Chain {
				executed[s.Provider] += s.Counts.Executed
			}
		}
		for provider := range c.each {
			require.NotZero(t, executed[provider], "launches on %s", provider)
		}
	}
}

// conformance runs files on each implementation.
type conformance struct {
	dev   *cpu.Device
	queue *registry.Queue
	each  map[string]*registry.Queue // by provider: views in which only it and what it lacks run
}

func newConformance(t *testing.T) *conformance {
	r := registry.New(registry.Options{})
	require.NoError(t, cpu.Register(r))
	dev, err := cpu.Open(cpu.Options{Threads: 2, Registry: r})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	dq, err := dev.NewQueue()
	require.NoError(t, err)
	c := &conformance{dev: dev, queue: r.NewQueue(dq), each: map[string]*registry.Queue{}}
	t.Cleanup(func() { require.NoError(t, c.queue.Close()) })
	providers := map[string]bool{}
	for _, d := range registry.Descriptors() {
		for _, s := range r.Explain(d.Op, dev.ID()).Chain {
			providers[s.Provider] = true
		}
	}
	require.Contains(t, providers, "reference")
	for name := range providers {
		others := maps.Clone(providers)
		delete(others, name)
		delete(others, "reference")
		c.each[name] = c.queue.With(registry.WithDisabled(context.Background(), slices.Sorted(maps.Keys(others))...))
	}
	return c
}

// file runs one file. It returns its type, and why, if no op serves it.
func (c *conformance) file(t *testing.T, name string) (unserved string) {
	if filepath.Base(filepath.Dir(name)) == "gguf" {
		modelFile(t, name)
		return ""
	}
	f, err := opfile.Open(name)
	if errors.Is(err, opfile.ErrNoOp) {
		t.Log(err)
		return "unknown form"
	}
	require.NoError(t, err)
	if len(f.Routes()) == 0 {
		t.Logf("no op for type %q", f.Type)
		return f.Type
	}
	compared := map[string]bool{without[f.Type]: true}
	for _, provider := range slices.Sorted(maps.Keys(c.each)) {
		q := c.each[provider]
		for _, packer := range []device.WeightPacker{nil, c.dev} {
			for i, op := range f.Routes() {
				out, err := opfile.Runner{Queue: q, Packer: packer}.Run(f, i)
				switch {
				case errors.Is(err, opfile.ErrNoOp):
					t.Log(err)
					text := err.Error() // operand file: name: why (kind)
					why, _, _ := strings.Cut(text[strings.LastIndex(text, ": ")+2:], " (")
					return fmt.Sprintf("%s (%s)", f.Type, why)
				case errors.Is(err, opfile.ErrRoute) && i > 0:
					continue
				}
				where := fmt.Sprintf("%v on %s, weights packed: %v", op, provider, packer != nil)
				require.NoError(t, err, where)
				worst, err := f.Compare(out)
				require.NoError(t, err, where)
				t.Logf("%s: %v", where, worst)
				for _, o := range out {
					compared[o.Name] = true
				}
			}
		}
	}
	for _, want := range f.Outputs {
		require.True(t, compared[want.Name], "no route gives the output %s", want.Name)
	}
	return ""
}

// modelFile holds what package gguf reads of a model file against what its writer's reader sees, and every tensor's bytes.
func modelFile(t *testing.T, name string) {
	var want struct {
		File       string
		Version    int
		Alignment  int64
		DataOffset int64 `json:"data_offset"`
		KV         []struct{ Key, Type string }
		Tensors    []struct {
			Name, Type    string
			NE            []int64 // innermost first
			Offset, Bytes int64
			FNV           string `json:"fnv1a64"`
		}
	}
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &want))
	f, err := gguf.Open(filepath.Join(filepath.Dir(name), want.File))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.Equal(t, want.Version, f.Version())
	require.Equal(t, want.Alignment, f.Alignment())
	require.Len(t, f.Keys(), len(want.KV))
	for _, kv := range want.KV {
		v, ok := f.Value(kv.Key)
		require.True(t, ok, kv.Key)
		require.Equal(t, kv.Type, v.Type().String(), kv.Key)
	}
	require.Len(t, f.Tensors(), len(want.Tensors))
	for i, w := range want.Tensors {
		slices.Reverse(w.NE)
		require.Equal(t, gguf.TensorInfo{Name: w.Name, DType: f.Tensors()[i].DType, Shape: w.NE, Offset: want.DataOffset + w.Offset, Size: w.Bytes}, f.Tensors()[i])
		require.Equal(t, w.Type, f.Tensors()[i].DType.String())
		b, err := f.Bytes(w.Name)
		require.NoError(t, err)
		h := fnv.New64a()
		h.Write(b)
		require.Equal(t, w.FNV, fmt.Sprintf("%016x", h.Sum64()), w.Name)
	}
}

// manyRows multiplies more rows of activations than any file has, so that kernels for long prompts run too, and holds each
// provider against the sums in float64.
func (c *conformance) manyRows(t *testing.T) {
	const m, n, k = 50, 48, 128
	x, w := make([]float32, m*k), make([]float32, n*k)
	rng := rand.New(rand.NewPCG(1, 1))
	for _, v := range [][]float32{x, w} {
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
	}
	for _, dt := range []tensor.DType{tensor.Q4_0, tensor.Q8_0} {
		size, err := dt.RowBytes(n * k)
		require.NoError(t, err)
		packed, decoded := make([]byte, size), make([]float32, n*k)
		require.NoError(t, tensor.Quantize(packed, dt, w))
		require.NoError(t, tensor.Decode(decoded, dt, packed))
		for provider, q := range c.each {
			y := make([]float32, m*n)
			require.NoError(t, ops.MatmulBTQuant.Call(q, ops.MatmulBTQuantArgs{Out: tensor.Must(tensor.FromSlice(y, tensor.F32, m, n)),
				A: tensor.Must(tensor.FromSlice(x, tensor.F32, m, k)), B: tensor.Must(tensor.FromSlice(packed, dt, n, k))}))
			var off, all float64
			for i := range y {
				sum := 0.0
				for e := range k {
					sum += float64(x[i/n*k+e]) * float64(decoded[i%n*k+e])
				}
				off, all = off+(float64(y[i])-sum)*(float64(y[i])-sum), all+sum*sum
			}
			require.Less(t, off/all, 5e-4, "%v on %s", dt, provider)
		}
	}
}
