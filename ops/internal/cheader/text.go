package cheader

import (
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Text returns the text of csrc/include/opmux.h: the C form of every record of package ops.
func Text() ([]byte, error) {
	var descs []registry.Descriptor
	for _, d := range registry.Descriptors() {
		if d.Op < registry.FirstDefined {
			descs = append(descs, d)
		}
	}
	return header(ops.ABIVersion, descs, []Enum{
		enum("OPMUX_CODE", "Outcomes of a launch.", []string{"ok", "declined", "failed", "grow"}),
		enum("OPMUX_REASON", "Reasons of a decline.", names[registry.Reason](uint64(registry.NumReasons))),
		{Prefix: "OPMUX_CALL", Doc: "Flags of a call (opmux_call.flags).", Names: []string{"strict", "deterministic"},
			Values: []uint64{uint64(registry.FlagStrict), uint64(registry.FlagDeterministic)}},
		{Prefix: "OPMUX_ACCESS", Doc: "What the kernel does with an operand (opmux_tensor.flags).", Names: []string{"read", "write"}, Values: []uint64{1, 2}},
		enum("OPMUX_KIND", "Kinds of device.", names[tensor.Kind](uint64(tensor.NumKinds))),
		dtypeEnum(),
		enum("OPMUX_LAYOUT", "Layouts of a tensor's bytes.", []string{tensor.Strided.String(), tensor.Lane16.String()}),
		enum("OPMUX_ROPE", "Rules of rope scaling (opmux_rope_params.scaling).", ropeScalings()),
		fusedOps(),
		enum("OPMUX_REDUCE", "Reductions of a step (opmux_fused_step.reduce).", []string{ops.ReduceNone.String(), ops.ReduceMeanSquare.String()}),
	})
}

// names returns the texts of the values 0 .. n-1 of an enumeration.
func names[T interface {
	~uint8
	String() string
}](n uint64) (s []string) {
	for i := range n {
		s = append(s, T(i).String())
	}
	return s
}

func enum(prefix, doc string, names []string) Enum {
	e := Enum{Prefix: prefix, Doc: doc, Names: names}
	for i := range names {
		e.Values = append(e.Values, uint64(i))
	}
	return e
}

func dtypeEnum() Enum {
	e := Enum{Prefix: "OPMUX_DTYPE", Doc: "Storage types."}
	for t := range tensor.DType(64) {
		if t.Valid() {
			e.Names, e.Values = append(e.Names, t.String()), append(e.Values, uint64(t))
		}
	}
	return e
}

func ropeScalings() (s []string) {
	for r := ops.RopeScaling(0); r.Valid(); r++ {
		s = append(s, r.String())
	}
	return s
}

func fusedOps() Enum {
	e := Enum{Prefix: "OPMUX_FUSED", Doc: "What a step of a fused chain computes (opmux_fused_step.op)."}
	for f := ops.FusedNothing + 1; f.Valid(); f++ {
		e.Names, e.Values = append(e.Names, f.String()), append(e.Values, uint64(f))
	}
	return e
}
