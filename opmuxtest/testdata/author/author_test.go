package author

import (
	"testing"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/opmuxtest"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// f32 says that a kernel takes f32 operands only, in their plain layout.
func f32(operands ...string) *registry.Accept {
	a := &registry.Accept{Operands: map[string]registry.AcceptOperand{}}
	for _, o := range operands {
		a.Operands[o] = registry.AcceptOperand{DTypes: []tensor.DType{tensor.F32}, Layouts: []tensor.Layout{tensor.Strided}}
	}
	return a
}

// on says that a kernel is for these dtypes of the op's roles.
func on(types map[string]tensor.DType) *registry.Spec {
	formats := map[string]tensor.Format{}
	for role, t := range types {
		formats[role] = tensor.Dense(t)
	}
	return &registry.Spec{Signatures: []tensor.FormatSignature{tensor.Sig(formats)}}
}

// kernel registers one kernel with a fault, or none, and tests it.
func kernel(t *testing.T, op, fault string, traits registry.Traits, options ...opmuxtest.Option) {
	reset()
	r := registry.New(registry.Options{})
	if err := cpu.Register(r); err != nil {
		t.Fatal(err)
	}
	p := registry.OpProvider{Name: "mine", Priority: 60, Traits: traits}
	id, err := ops.OpMatmulBT, error(nil)
	switch op {
	case "matmul_bt":
		p.Spec, p.Accept = on(map[string]tensor.DType{"a": tensor.F32, "b": tensor.F32}), f32("out", "a", "b")
		_, err = ops.Register(r, ops.MatmulBT, tensor.CPU, ops.Provider[ops.MatmulBTArgs]{OpProvider: p, Fn: product(fault)})
	case "rms_norm":
		id, p.Spec = ops.OpRMSNorm, on(map[string]tensor.DType{"x": tensor.F32})
		p.Accept = f32("out", "x", "weight", "residual")
		_, err = ops.Register(r, ops.RMSNorm, tensor.CPU, ops.Provider[ops.RMSNormArgs]{OpProvider: p, Fn: norm(fault)})
	case "embedding":
		id, p.Spec, p.Accept = ops.OpEmbedding, on(map[string]tensor.DType{"table": tensor.F32}), f32("out", "table")
		p.Accept.Operands["ids"] = registry.AcceptOperand{DTypes: []tensor.DType{tensor.I32}}
		_, err = ops.Register(r, ops.Embedding, tensor.CPU, ops.Provider[ops.EmbeddingArgs]{OpProvider: p, Fn: lookup(fault)})
	case "double":
		var d registry.Descriptor
		if d, err = ops.DescriptorOf[DoubleArgs]("double", "elementwise", "double", "twice x", nil); err != nil {
			t.Fatal(err)
		}
		if id, err = r.Define(d); err != nil {
			t.Fatal(err)
		}
		ref := registry.OpProvider{Name: "truth", Tier: registry.Reference, Priority: registry.ReferenceTierPriority, Record: d.Record, Fn: registry.Erase(double(""))}
		if _, err = r.RegisterOpProvider(id, tensor.CPU, ref); err != nil {
			t.Fatal(err)
		}
		p.Record, p.Fn = d.Record, registry.Erase(double(fault))
		_, err = r.RegisterOpProvider(id, tensor.CPU, p)
	}
	if err != nil {
		t.Fatal(err)
	}
	opmuxtest.TestKernel(t, r, id, "mine_"+op, options...)
}

var rows = registry.Traits{BatchInvariant: true}

func TestRight(t *testing.T) {
	for _, op := range []string{"matmul_bt", "rms_norm", "embedding", "double"} {
		t.Run(op, func(t *testing.T) { kernel(t, op, "", rows, opmuxtest.NoAllocations()) })
	}
}

func TestFault(t *testing.T) {
	for _, fault := range []string{"wrong element in the tail", "NaN counts as nothing", "reads rows as if packed", "empty sums are not written",
		"writes behind the end", "writes an input", "leaves the last element", "declines after writing", "declines what it declared",
		"declines everything", "other bits each time", "other bits on another queue", "other bits in a batch", "panics",
		"shares a sum between goroutines", "keeps the weight by its address"} {
		t.Run(fault, func(t *testing.T) { kernel(t, "matmul_bt", fault, rows) })
	}
	t.Run("allocates", func(t *testing.T) { kernel(t, "matmul_bt", "allocates", rows, opmuxtest.NoAllocations()) })
	t.Run("is not bit exact", func(t *testing.T) { kernel(t, "matmul_bt", "", registry.Traits{BitExact: true}) })
	t.Run("ignores an attribute", func(t *testing.T) { kernel(t, "rms_norm", "ignores an attribute", rows) })
	t.Run("clears its output first", func(t *testing.T) { kernel(t, "rms_norm", "clears its output first", rows) })
	t.Run("bad values are no error", func(t *testing.T) { kernel(t, "embedding", "bad values are no error", rows) })
	t.Run("writes before it finds a bad value", func(t *testing.T) {
		kernel(t, "embedding", "writes before it finds a bad value", rows)
	})
	t.Run("one bit of an own op", func(t *testing.T) { kernel(t, "double", "one bit of an own op", rows) })
}
