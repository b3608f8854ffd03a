package registry

import (
	"context"
	"errors"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

func mmRequest(t testing.TB, m, k int64) Request {
	return Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: map[string]TraitValue{"m": IntTrait(m), "k": IntTrait(k)}}
}

// Warming runs the self-tests of what a request selects; a kernel that fails leaves the selection to the next one.
func TestWarmRequests(t *testing.T) {
	r, op := mm(t, Options{})
	_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "wrong", Priority: 50, Fn: ranMM("wrong"),
		SelfTest: func(*Queue) error { return errors.New("1 is not 2") }})
	require.NoError(t, err)
	register(t, r, kernel(t, "right", nil))
	q := r.NewQueue(nil)
	w, err := q.Warm(context.Background(), WarmResolve, mmRequest(t, 1, 1))
	require.NoError(t, err)
	require.NoError(t, w[0].Err)
	require.Equal(t, "wrong_mm", w[0].Selection.Kernel(), "resolving tests nothing")
	w, err = q.Warm(context.Background(), WarmLoad, mmRequest(t, 1, 1), Request{Operator: "nothing"})
	require.NoError(t, err)
	require.ErrorIs(t, w[0].Err, ErrSelfTest)
	require.Equal(t, "right", w[0].Selection.Kernel())
	require.ErrorIs(t, w[1].Err, ErrUnknownOp)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = q.Warm(ctx, WarmLoad, mmRequest(t, 1, 1))
	require.ErrorIs(t, err, context.Canceled)
}

// An override is checked: what the kernel cannot do is an error that says so, unless it is forced. Precedence runs from
// the options' force over the call and the context down to the options' override.
func TestOverrideOfRequest(t *testing.T) {
	r, _ := mm(t, Options{Override: map[string]string{"gemm.mm": "solution:low"}})
	register(t, r, kernel(t, "high", func(s *KernelSpec) { s.Priority = BandSpecialized.Plus(1) }))
	register(t, r, kernel(t, "low", nil))
	register(t, r, kernel(t, "half", func(s *KernelSpec) {
		s.Signatures = append(s.Signatures[:0], sig(t, "a=f16, b=f16"))
	}))
	register(t, r, kernel(t, "asked", func(s *KernelSpec) { s.NotAuto, s.Priority = true, BandSpecialized.Plus(3) }))
	req := mmRequest(t, 1, 1)
	winner := func(q *Queue, override string) string {
		t.Helper()
		req.Override = override
		s, err := q.Select(req)
		require.NoError(t, err)
		require.Equal(t, s.Kernel(), s.Decision().Winner)
		return s.Kernel()
	}
	q := r.NewQueue(nil)
	require.Equal(t, "low", winner(q, ""), "the options' override")
	high := q.With(WithOverride(context.Background(), mustLookup(t, r, "mm"), Target{Name: "high"}))
	require.Equal(t, "high", winner(high, ""), "the context is stronger")
	require.Equal(t, "asked", winner(high, "kernel:asked"), "the call is stronger, and asks by name")
	require.Equal(t, "low", winner(q, "!high"), "excluded, and the kernel that has to be asked for does not step in")
	require.Equal(t, "half", winner(q, "force:half"))

	req.Override = "half"
	_, err := r.Select(req)
	require.ErrorIs(t, err, ErrOverride)
	require.ErrorContains(t, err, "half: format: wants a=dense[storage=f16]")
	require.ErrorContains(t, err, "from call")
	d := r.Decide(req)
	require.Empty(t, d.Winner)
	require.Equal(t, "half", d.Override)
	req.Override = "nobody"
	_, err = r.Select(req)
	require.ErrorIs(t, err, ErrOverride)
	require.ErrorContains(t, err, "names no kernel of mm")
	req.Override = "a b"
	_, err = r.Select(req)
	require.ErrorIs(t, err, ErrRequest)

	a := &mmArgs{}
	s, err := q.Select(Request{Operator: "mm", Signature: req.Signature, Traits: req.Traits, Override: "asked"})
	require.NoError(t, err)
	require.NoError(t, s.Launch(q, unsafe.Pointer(a)))
	require.Equal(t, "asked", a.Ran)
}

func mustLookup(t testing.TB, r *Registry, name string) Op {
	op, ok := r.Lookup(name)
	require.True(t, ok)
	return op
}

// TestHeads tests what first calls reach and no more.
func TestHeadsAreTested(t *testing.T) {
	r, op := mm(t, Options{})
	tested := map[string]int{}
	for _, k := range []struct {
		name string
		band Priority
		from int64
		err  error
	}{{"large", BandSpecialized.Plus(3), 32, nil}, {"wrong", BandSpecialized.Plus(2), 0, errors.New("no")},
		{"right", BandSpecialized.Plus(1), 0, nil}, {"later", BandSpecialized.Plus(0), 0, nil}} {
		s := kernel(t, k.name, func(s *KernelSpec) {
			s.Priority = k.band
			if k.from > 0 {
				s.Constraints = map[string]Constraint{"m": AtLeast(k.from)}
			}
			s.SelfTest = func(*Queue) error { tested[k.name]++; return k.err }
		})
		register(t, r, s)
	}
	q := r.NewQueue(nil)
	q.TestHeads(op, Op(1<<30))
	q.TestHeads(op)
	require.Equal(t, map[string]int{"large": 1, "wrong": 1, "right": 1}, tested)
	a := &mmArgs{A: tensor.Must(tensor.New(nil, tensor.F32, 1)), B: tensor.Must(tensor.New(nil, tensor.F32, 1))}
	require.NoError(t, q.Launch(op, unsafe.Pointer(a)))
	require.Equal(t, "right", a.Ran)
}
