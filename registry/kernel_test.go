package registry

import (
	"errors"
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/tensor"
)

// A launcher written for another op's record is refused: by its own type, or by what the description says of it.
func TestRecordOfAKernel(t *testing.T) {
	r, op := mm(t, Options{})
	s := kernel(t, "typed", nil)
	_, err := RegisterTypedKernelIn(r, s, func(*Queue, *probeArgs) Status { return 0 })
	require.ErrorIs(t, err, ErrSignature)
	wrong := s
	wrong.Record = reflect.TypeFor[probeArgs]()
	_, err = r.RegisterKernel(wrong, ranMM("typed"))
	require.ErrorIs(t, err, ErrSignature)
	_, err = RegisterTypedKernelIn(r, wrong, func(*Queue, *mmArgs) Status { return 0 })
	require.ErrorIs(t, err, ErrSignature, "Record and launcher disagree")
	require.Empty(t, r.ListKernels("", ""))

	k, err := RegisterTypedKernelIn(r, s, func(_ *Queue, a *mmArgs) Status { a.Ran = "typed"; return 0 })
	require.NoError(t, err)
	require.Equal(t, reflect.TypeFor[mmArgs](), k.Spec().Record)
	require.Equal(t, "usable", r.Explain(op, cpu0).Chain[0].State)
}

// A description's self-test runs before the first call, and Explain says where there is none.
func TestSelfTestOfADescription(t *testing.T) {
	r, op := mm(t, Options{})
	register(t, r, kernel(t, "untested", nil))
	register(t, r, kernel(t, "wrong", func(s *KernelSpec) {
		s.Priority, s.SelfTest = BandSpecialized.Plus(0), func(*Queue) error { return errors.New("a wrong bit") }
	}))
	var a mmArgs
	require.NoError(t, r.NewQueue(nil).Launch(op, unsafe.Pointer(&a)))
	e := r.Explain(op, cpu0)
	require.Equal(t, "untested", e.Chain[0].Kernel)
	require.Contains(t, e.String(), "usable (no self-test)")
	require.Equal(t, "quarantined", e.Dropped[0].State)
	require.Contains(t, e.Dropped[0].Detail, "a wrong bit")
}

// A family or mode that no op has is named as the field that is wrong, with the operators that look like it.
func TestUnknownFamilyAndMode(t *testing.T) {
	r, _ := mm(t, Options{})
	for field, change := range map[string]func(*KernelSpec){
		"family": func(s *KernelSpec) { s.Family = "gem" },
		"mode":   func(s *KernelSpec) { s.Mode = "something_else" },
	} {
		_, err := r.RegisterKernel(kernel(t, "x", change), ranMM("x"))
		var e *SpecError
		require.ErrorAs(t, err, &e)
		require.Equal(t, field, e.Field)
		require.ErrorIs(t, err, ErrUnknownOp)
		require.ErrorContains(t, err, "nearest: gemm.mm")
	}
}

// "reference" is what the oracle's kernels are called by.
func TestReferenceIsReserved(t *testing.T) {
	r, _ := mm(t, Options{})
	_, err := r.RegisterKernel(kernel(t, "x", func(s *KernelSpec) { s.Solution = "reference" }), ranMM("x"))
	require.ErrorIs(t, err, ErrReserved)
	require.ErrorContains(t, err, "solution")
	_, err = r.RegisterKernel(kernel(t, "x", func(s *KernelSpec) { s.Solution, s.Tier, s.Priority = "reference", Reference, ReferencePriority }), ranMM("x"))
	require.NoError(t, err)
}

// A refusal for the domain says which operand or trait; the event of a head that may be passed over says that it may be.
func TestDomainRefusalSaysWhy(t *testing.T) {
	rec := &recorder{}
	r, op := mm(t, Options{Observer: rec})
	register(t, r, kernel(t, "wide", func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": AtLeast(32)} }))
	a := mmArgs{M: 1, A: tensor.Must(tensor.FromSlice([]float32{1}, tensor.F32)), B: tensor.Must(tensor.FromSlice([]float32{1}, tensor.F32))}
	q := r.NewQueue(nil)
	err := q.Launch(op, unsafe.Pointer(&a))
	require.ErrorIs(t, err, ErrDeclined)
	require.ErrorContains(t, err, "wide: domain (m: wants at least 32, got 1)")
	a.B.DType = tensor.F16
	require.ErrorContains(t, q.Launch(op, unsafe.Pointer(&a)), "(b: wants f32, got f16; m: wants")
	var selected []string
	for _, e := range rec.take() {
		if e.Kind == EventSelected {
			selected = append(selected, e.Detail)
		}
	}
	require.Equal(t, []string{"1 registered, 1 usable, the head takes only calls in its declared domain"}, selected)
}

// What ran instead of a required kernel is in the error.
func TestIdleSaysWhatRan(t *testing.T) {
	r, op := abc(t, Options{})
	launched(t, r.NewQueue(nil), op)
	require.ErrorContains(t, r.RequireExecuted(cpu0, "b"), "b has executed nothing; a_probe ran instead")
}

// What stands twice in a variable is told.
func TestRepeatedInVariables(t *testing.T) {
	o, w := OptionsFromEnv(func(name string) (string, bool) {
		v, ok := map[string]string{"OPMUX_DISABLE": "a,b,a", "OPMUX_FORCE": "relu=a;relu=b"}[name]
		return v, ok
	})
	require.Equal(t, []string{"a", "b"}, o.Disable)
	require.Equal(t, "b", o.Force["relu"])
	require.Equal(t, []Warning{{"OPMUX_DISABLE", `stands there twice: "a"`}, {"OPMUX_FORCE", `an op stands there twice, the last target counts: "relu"`}}, w)
}
