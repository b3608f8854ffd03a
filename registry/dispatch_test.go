package registry

import (
	"context"
	"errors"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// A decline leaves the call to the next kernel, is counted with its reason, and allocates nothing.
func TestDecline(t *testing.T) {
	var rec recorder
	r, op := probe(t, Options{Observer: &rec})
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3, Fn: declines(ReasonShape)})
	add(t, r, op, tensor.CPU, OpProvider{Name: "b", Priority: 2, Fn: declines(ReasonStride)})
	native(t, r, op, tensor.CPU)
	q := r.NewQueue(nil)
	require.Equal(t, NativeProviderName, launched(t, q, op))
	require.Equal(t, NativeProviderName, launched(t, q, op))
	require.Equal(t, NativeProviderName, launch(t, q, op))
	require.Equal(t, Counts{Declined: map[string]uint64{"shape": 3}}, counts(t, r, op, cpu0, "a_probe"))
	require.Equal(t, Counts{Declined: map[string]uint64{"stride": 3}}, counts(t, r, op, cpu0, "b_probe"))
	require.Equal(t, Counts{Executed: 3}, counts(t, r, op, cpu0, "vt-native_probe"))
	require.EqualValues(t, 6, r.GetOpProviderStats(op, cpu0).Declines)

	var hops []string
	for _, e := range rec.take() {
		if e.Kind == EventFallback {
			hops = append(hops, e.From+">"+e.To+":"+e.Reason.String())
		}
	}
	require.Equal(t, []string{"a_probe>b_probe:shape", "b_probe>vt-native_probe:stride"}, hops, "each once")
	add(t, r, op, tensor.CPU, OpProvider{Name: "z", Priority: -1})
	launched(t, q, op)
	require.Empty(t, rec.take(), "a new snapshot repeats nothing")
	r.ResetOpProviderStats(op, cpu0)
	require.Zero(t, r.GetOpProviderStats(op, cpu0).Declines)
	launched(t, q, op)
	require.Len(t, rec.take(), 3, "after a reset: the selection and both fallbacks")
	require.EqualValues(t, 5, counts(t, r, op, cpu0, "vt-native_probe").Executed, "the counters are monotone")
}

func TestAllocs(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3, Fn: declines(ReasonShape)})
	add(t, r, op, tensor.CPU, OpProvider{Name: "acc", Priority: 2, Accept: &Accept{Operands: map[string]AcceptOperand{"x": {DTypes: []tensor.DType{tensor.F16}}}}})
	native(t, r, op, tensor.CPU)
	q := r.NewQueue(nil)
	bound, err := q.Bind(op)
	require.NoError(t, err)
	below, err := r.Below(op, cpu0, "a")
	require.NoError(t, err)
	scoped := q.With(WithDisabled(context.Background(), "a"))
	a := &probeArgs{X: tensor.Must(tensor.FromSlice(make([]float32, 4), tensor.F32))}
	p := unsafe.Pointer(a)
	for name, f := range map[string]func(){
		"launch":   func() { _ = q.Launch(op, p) },
		"bound":    func() { _ = bound.Launch(p) },
		"getop":    func() { fn, _ := r.GetOp(op, cpu0); fn(q, p) },
		"fallback": func() { fn, _ := r.GetOpFallback(op, cpu0, "a_probe"); fn(q, p) },
		"below":    func() { below.Launch(q, p); below.NoteDecline(ReasonShape) },
		"note":     func() { r.NoteOpDecline(op, cpu0) },
		"scoped":   func() { _ = scoped.Launch(op, p) },
	} {
		require.Zero(t, testing.AllocsPerRun(200, f), name)
		require.Equal(t, name != "note", a.Ran == NativeProviderName, name)
		a.Ran = ""
	}
}

// The end of the chain is an error that lists every kernel with its reason; the record's status says so too.
func TestDeclinedError(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3, Fn: declines(ReasonShape)})
	add(t, r, op, tensor.CPU, OpProvider{Name: "b", Priority: 2, Fn: declines(200)})
	q := r.NewQueue(nil)
	var a probeArgs
	err := q.Launch(op, unsafe.Pointer(&a))
	require.ErrorIs(t, err, ErrDeclined)
	var de *DeclinedError
	require.ErrorAs(t, err, &de)
	require.Equal(t, []Refusal{{Kernel: "a_probe", Reason: ReasonShape}, {Kernel: "b_probe", Reason: ReasonOther}}, de.Refusals)
	require.Equal(t, Declined, a.Status.Code())
	require.Equal(t, "registry: probe on cpu:0: every kernel declined: a_probe: shape, b_probe: other", err.Error())
}

// A failure ends the walk with the kernel's cause, unless nothing was enqueued and the op's policy goes on.
func TestFailure(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		policy []string
		clean  bool
		ran    string
	}{{nil, true, ""}, {[]string{"probe"}, false, ""}, {[]string{"probe"}, true, NativeProviderName}} {
		r, op := probe(t, Options{FallbackOnFailure: c.policy})
		add(t, r, op, tensor.CPU, OpProvider{Name: "bad", Priority: 3, Fn: func(_ *Queue, a unsafe.Pointer) Status {
			if c.clean {
				return (*probeArgs)(a).Fail(cause)
			}
			return (*probeArgs)(a).FailDirty(cause)
		}})
		native(t, r, op, tensor.CPU)
		var a probeArgs
		err := r.NewQueue(nil).Launch(op, unsafe.Pointer(&a))
		require.Equal(t, c.ran, a.Ran)
		if c.ran == "" {
			require.ErrorIs(t, err, ErrFailed)
			require.ErrorIs(t, err, cause)
			var le *LaunchError
			require.ErrorAs(t, err, &le)
			require.Equal(t, "bad_probe", le.Kernel)
		} else {
			require.NoError(t, err)
			require.NoError(t, a.Err)
		}
		require.Equal(t, Counts{Failed: 1}, counts(t, r, op, cpu0, "bad_probe"))
	}
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "odd", Fn: func(*Queue, unsafe.Pointer) Status { return 77 }})
	require.ErrorIs(t, r.NewQueue(nil).Launch(op, unsafe.Pointer(&probeArgs{})), ErrFailed, "any other code is a failure")
}

// Grow reserves and retries once; what cannot be had, or is asked for again, is a decline.
func TestGrow(t *testing.T) {
	r, op := probe(t, Options{})
	calls := 0
	add(t, r, op, tensor.XPU, OpProvider{Name: "grow", Priority: 1, Fn: func(q *Queue, a unsafe.Pointer) Status {
		calls++
		if calls%2 == 1 {
			return NeedWorkspace(1 << 12)
		}
		w, err := q.Reserve(1<<12, 64)
		if err != nil || uintptr(w.Host)%64 != 0 {
			return Failure(1)
		}
		return ran("grow")(q, a)
	}})
	native(t, r, op, tensor.XPU)
	q := queueOn(t, r, devicetest.Options{ID: xpu0, ReserveLimit: 1 << 12})
	require.Equal(t, "grow", launched(t, q, op))
	require.Equal(t, 2, calls)
	require.Equal(t, Counts{Executed: 1}, counts(t, r, op, xpu0, "grow_probe"))

	for name, need := range map[string]int64{"toomuch": 1 << 20, "again": 64, "nonsense": -1} {
		g := add(t, r, op, tensor.XPU, OpProvider{Name: name, Priority: 9, Fn: func(*Queue, unsafe.Pointer) Status { return NeedWorkspace(need) }})
		require.Equal(t, "grow", launched(t, q, op))
		require.Equal(t, Counts{Declined: map[string]uint64{"workspace": 1}}, counts(t, r, op, xpu0, g.Kernel()), name)
		require.NoError(t, g.Close())
	}
}

// A launcher that forwards by itself is not what ran: declined{forwarded} for it, executed for the kernel below, and no
// decline in the total beyond the one that GetOpFallback counts.
func TestForward(t *testing.T) {
	r, op := probe(t, Options{})
	self := func(name string) Launcher {
		return func(q *Queue, a unsafe.Pointer) Status {
			fn, err := r.GetOpFallback(op, q.Device(), name)
			if err != nil {
				return (*probeArgs)(a).Fail(err)
			}
			return fn(q, a)
		}
	}
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3, Fn: self("a")})
	add(t, r, op, tensor.CPU, OpProvider{Name: "b", Priority: 2, Fn: self("b_probe")})
	nat := native(t, r, op, tensor.CPU)
	q := r.NewQueue(nil)
	require.Equal(t, NativeProviderName, launched(t, q, op))
	require.Equal(t, NativeProviderName, launch(t, q, op))
	forwarded := Counts{Declined: map[string]uint64{"forwarded": 2}}
	require.Equal(t, forwarded, counts(t, r, op, cpu0, "a_probe"))
	require.Equal(t, forwarded, counts(t, r, op, cpu0, "b_probe"))
	require.Equal(t, Counts{Executed: 2}, counts(t, r, op, cpu0, nat.Kernel()))
	require.EqualValues(t, 4, r.GetOpProviderStats(op, cpu0).Declines)

	require.NoError(t, nat.Close())
	var a probeArgs
	require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&a)), ErrDeclined, "the cause of the failure is the fallback's error")
}

// The cheap form: a handle below, kept across calls, with one note a call; nested launches of the same op do not confuse
// the attribution.
func TestBelow(t *testing.T) {
	r, op := probe(t, Options{})
	var below *Below
	nested := false
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3, Fn: func(q *Queue, a unsafe.Pointer) Status {
		if nested { // a call of the same op inside that is forwarded, while this one is not
			nested = false
			if err := q.Launch(op, unsafe.Pointer(&probeArgs{})); err != nil {
				return (*probeArgs)(a).Fail(err)
			}
			return ran("a")(q, a)
		}
		below.NoteDecline(ReasonLayout)
		return below.Launch(q, a)
	}})
	native(t, r, op, tensor.CPU)
	var err error
	below, err = r.Below(op, cpu0, "a")
	require.NoError(t, err)
	q := r.NewQueue(nil)
	for range 3 {
		require.Equal(t, NativeProviderName, launched(t, q, op))
	}
	require.Equal(t, Counts{Declined: map[string]uint64{"layout": 3, "forwarded": 3}}, counts(t, r, op, cpu0, "a_probe"))
	require.EqualValues(t, 3, r.GetOpProviderStats(op, cpu0).Declines)
	nested = true
	require.Equal(t, "a", launched(t, q, op))
	require.Equal(t, Counts{Executed: 1, Declined: map[string]uint64{"layout": 4, "forwarded": 4}}, counts(t, r, op, cpu0, "a_probe"))
	r.NoteOpDecline(op, cpu0)
	require.EqualValues(t, 5, r.GetOpProviderStats(op, cpu0).Declines)
}

func TestAccept(t *testing.T) {
	r, op := probe(t, Options{})
	f32, f16 := tensor.F32, tensor.F16
	for name, o := range map[string]AcceptOperand{
		"dtype": {DTypes: []tensor.DType{f16}}, "layout": {Layouts: []tensor.Layout{tensor.Lane16}}, "stride": {Contiguous: true},
		"align": {Align: 64}, "mod": {LastMod: 3}, "max": {MaxElements: 7},
	} {
		add(t, r, op, tensor.CPU, OpProvider{Name: name, Priority: 5, Accept: &Accept{Operands: map[string]AcceptOperand{"x": o}}})
	}
	add(t, r, op, tensor.CPU, OpProvider{Name: "types", Priority: 5, Accept: &Accept{Types: []map[string]tensor.DType{{"x": f16}, {"x": tensor.BF16}}}})
	add(t, r, op, tensor.CPU, OpProvider{Name: "yes", Accept: &Accept{Types: []map[string]tensor.DType{{"x": f16}, {"x": f32}},
		Operands: map[string]AcceptOperand{"x": {DTypes: []tensor.DType{f32}, Layouts: []tensor.Layout{tensor.Strided}, Align: 4, LastMod: 2, MaxElements: 8}}}})
	mem := make([]float32, 64)
	x := tensor.Must(tensor.FromSlice(mem, f32, 4, 4))
	x = tensor.Must(x.Slice(1, 1, 3))
	q := r.NewQueue(nil)
	a := probeArgs{X: x}
	require.NoError(t, q.Launch(op, unsafe.Pointer(&a)))
	require.Equal(t, "yes", a.Ran)
	for name, reason := range map[string]string{"dtype": "dtype", "layout": "layout", "stride": "stride", "align": "alignment", "mod": "shape", "max": "shape", "types": "dtype"} {
		require.Equal(t, map[string]uint64{reason: 1}, counts(t, r, op, cpu0, name+"_probe").Declined, name)
	}
	a = probeArgs{}
	require.NoError(t, q.Launch(op, unsafe.Pointer(&a)))
	require.Equal(t, "align", a.Ran, "an absent operand meets every condition")
}

// Capture: a kernel of a device that can capture takes part only if it says so; a borrowed one never does.
func TestCapture(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.CPU)
	add(t, r, op, tensor.XPU, OpProvider{Name: "plain", Priority: 2})
	safe := add(t, r, op, tensor.XPU, OpProvider{Name: "safe", Priority: 1, Traits: Traits{CaptureSafe: true}})
	q := queueOn(t, r, devicetest.Options{ID: xpu0, Unified: true})
	require.Equal(t, "plain", launched(t, q, op))
	q.Native().(*devicetest.Queue).SetCapturing(true)
	require.Equal(t, "safe", launched(t, q, op))
	require.NoError(t, safe.Close())
	var a probeArgs
	err := q.Launch(op, unsafe.Pointer(&a))
	require.ErrorIs(t, err, ErrDeclined)
	require.ErrorContains(t, err, "plain_probe: capture, vt-native_probe: capture")
	require.Zero(t, q.Native().(*devicetest.Queue).Syncs())
	require.Zero(t, r.GetReferenceTierHits())
}

// The debugging mode tells of a kernel that declines after it has written an output.
func TestCheckDeclines(t *testing.T) {
	for _, check := range []bool{false, true} {
		r := New(Options{CheckDeclines: check})
		op, err := r.Define(Descriptor{Name: "probe", Operands: []Operand{{Name: "x", Role: Out, Offset: unsafe.Offsetof(probeArgs{}.X)}}})
		require.NoError(t, err)
		add(t, r, op, tensor.CPU, OpProvider{Name: "clean", Priority: 2, Fn: declines(ReasonShape)})
		add(t, r, op, tensor.CPU, OpProvider{Name: "dirty", Priority: 1, Fn: func(_ *Queue, a unsafe.Pointer) Status {
			tensor.Slice[float32](&(*probeArgs)(a).X)[1] = 7
			return Decline(ReasonShape)
		}})
		native(t, r, op, tensor.CPU)
		a := probeArgs{X: tensor.Must(tensor.FromSlice(make([]float32, 4), tensor.F32))}
		err = r.NewQueue(nil).Launch(op, unsafe.Pointer(&a))
		if check {
			require.ErrorIs(t, err, ErrDirtyDecline)
			require.ErrorContains(t, err, "dirty_probe, output x")
		} else {
			require.NoError(t, err)
		}
	}
}

func TestDeterministic(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "fast", Priority: 2, Traits: Traits{Nondeterministic: true}})
	native(t, r, op, tensor.CPU)
	q := r.NewQueue(nil)
	require.Equal(t, "fast", launched(t, q, op))
	a := probeArgs{Header: Header{Flags: FlagDeterministic}}
	require.NoError(t, q.Launch(op, unsafe.Pointer(&a)))
	require.Equal(t, NativeProviderName, a.Ran)
}

// Counters are exact when quiet, whatever queues come and go.
func TestQueueCounters(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.CPU)
	n := func() uint64 { return counts(t, r, op, cpu0, "vt-native_probe").Executed }
	q := r.NewQueue(nil)
	view := q.With(WithStrict(context.Background(), true))
	launched(t, q, op)
	launched(t, view, op)
	require.EqualValues(t, 2, n(), "a view counts with its queue")
	other := r.NewQueue(nil)
	launched(t, other, op)
	require.EqualValues(t, 3, n())
	require.NoError(t, q.Close())
	require.NoError(t, q.Close())
	require.NoError(t, view.Close())
	require.EqualValues(t, 3, n(), "closing folds once")
	require.NoError(t, other.Close())
	require.EqualValues(t, 3, n())
	require.Zero(t, unsafe.Sizeof(cell{})%128)
}

// A queue on a device nobody published gets a row of its own, with the kind's providers and counters of its own.
func TestDeviceInstances(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.XPU)
	q0, q1 := queueOn(t, r, devicetest.Options{ID: xpu0}), queueOn(t, r, devicetest.Options{ID: xpu1})
	launched(t, q0, op)
	launched(t, q1, op)
	launched(t, q1, op)
	require.EqualValues(t, 1, counts(t, r, op, xpu0, "vt-native_probe").Executed)
	require.EqualValues(t, 2, counts(t, r, op, xpu1, "vt-native_probe").Executed)
	require.Contains(t, r.Devices(), xpu1)
	fn, err := r.GetOp(op, xpu0)
	require.NoError(t, err)
	var a probeArgs
	require.Equal(t, Failed, fn(q1, unsafe.Pointer(&a)).Code())
	require.ErrorIs(t, a.Err, ErrArgument, "an entry runs on its own device's queues")
	out := r.NewQueue(&fakeQueue{dev: tensor.Device{Kind: tensor.XPU, Index: maxIndex + 1}})
	require.ErrorIs(t, out.Launch(op, unsafe.Pointer(&a)), ErrUnknownDevice)
}

type fakeQueue struct {
	dev tensor.Device
	devicetest.Queue
}

func (q *fakeQueue) Device() tensor.Device { return q.dev }
