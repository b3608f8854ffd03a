package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// T1-T13 and C1-C12 are the seam's conformance cases; T11 and T14-T17 need real kernels and stand in registry_test.go at
// the top of the module.

// T1: same three providers, two registration orders: same winner, same full order.
func TestT1(t *testing.T) {
	want := []string{"high", "mid", "low"}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		r, op := probe(t, Options{})
		for _, i := range order {
			add(t, r, op, tensor.CPU, OpProvider{Name: want[i], Priority: int32(30 - 10*i)})
		}
		require.Equal(t, want, names(r, op, cpu0))
		require.Equal(t, "high", launch(t, r.NewQueue(nil), op))
	}
}

// T2: equal priority: smaller name first.
func TestT2(t *testing.T) {
	r, op := probe(t, Options{})
	for _, n := range []string{"b", "a", "c"} {
		add(t, r, op, tensor.CPU, OpProvider{Name: n, Priority: 5})
	}
	require.Equal(t, []string{"a", "b", "c"}, names(r, op, cpu0))
}

// T3: duplicate name: count 1, first function; the second call returns a duplicate error that says where the first is.
func TestT3(t *testing.T) {
	r, op := probe(t, Options{})
	first := add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 1})
	_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "a", Priority: 99, Fn: ran("second")})
	require.ErrorIs(t, err, ErrDuplicate)
	var dup *DuplicateError
	require.ErrorAs(t, err, &dup)
	require.Equal(t, first.Source(), dup.Source)
	require.Contains(t, dup.Source, "probe_test.go:")
	require.Equal(t, 1, r.OpProviderCount(op, cpu0))
	require.Equal(t, "a", launch(t, r.NewQueue(nil), op))

	native(t, r, op, tensor.CPU)
	_, err = r.RegisterOp(op, tensor.CPU, ran("again"))
	require.ErrorIs(t, err, ErrDuplicate)
}

// T4: predicate false at priority 100, native at 0: native chosen, last selected native.
func TestT4(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.XPU, OpProvider{Name: "vendor", Priority: 100, Supports: func(device.ProviderCaps) Verdict { return No("never") }})
	native(t, r, op, tensor.XPU)
	_, err := r.GetOp(op, xpu0)
	require.NoError(t, err)
	require.Equal(t, NativeProviderName, r.GetOpProviderStats(op, xpu0).LastSelected)
	e := r.Explain(op, xpu0)
	require.Equal(t, "unsupported", e.Dropped[0].State)
	require.Equal(t, "never", e.Dropped[0].Detail)
}

// T5: predicate needs major >= 9: unprobed: native; publish 9.0: vendor; publish default: native again.
func TestT5(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.XPU, OpProvider{Name: "vendor", Priority: 100, Supports: func(c device.ProviderCaps) Verdict {
		if !c.Valid || c.ComputeMajor < 9 {
			return No("needs 9.0")
		}
		return Yes
	}})
	native(t, r, op, tensor.XPU)
	selected := func() string {
		_, err := r.GetOp(op, xpu0)
		require.NoError(t, err)
		return r.GetOpProviderStats(op, xpu0).LastSelected
	}
	require.Equal(t, NativeProviderName, selected())
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, probed(9)))
	require.Equal(t, "vendor", selected())
	require.True(t, r.GetDeviceProviderCaps(xpu0).Valid)
	require.Equal(t, xpu0, r.GetDeviceProviderCaps(xpu0).Device)
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, device.ProviderCaps{}))
	require.Equal(t, NativeProviderName, selected())
	require.False(t, r.GetDeviceProviderCaps(xpu0).Valid)
}

// T6: chain 10 / 5 / 0, forward from each: 5, then 0, then error; declines 3.
func TestT6(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.XPU, OpProvider{Name: "ten", Priority: 10})
	add(t, r, op, tensor.XPU, OpProvider{Name: "five", Priority: 5})
	native(t, r, op, tensor.XPU)
	q := queueOn(t, r, devicetest.Options{ID: xpu0})
	for from, want := range map[string]string{"ten": "five", "five": NativeProviderName, "ten_probe": "five"} {
		fn, err := r.GetOpFallback(op, xpu0, from)
		require.NoError(t, err)
		var a probeArgs
		require.Equal(t, OK, fn(q, unsafe.Pointer(&a)).Code())
		require.Equal(t, want, a.Ran)
	}
	_, err := r.GetOpFallback(op, xpu0, NativeProviderName)
	require.ErrorIs(t, err, ErrDeclined)
	require.EqualValues(t, 4, r.GetOpProviderStats(op, xpu0).Declines)
}

// T7: five lookups, counting on: selections 5, last selected the vendor.
func TestT7(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.XPU, OpProvider{Name: "vendor", Priority: 100})
	native(t, r, op, tensor.XPU)
	lookups := func(n int) {
		for range n {
			_, err := r.GetOp(op, xpu0)
			require.NoError(t, err)
		}
	}
	lookups(3)
	require.Zero(t, r.GetOpProviderStats(op, xpu0).Selections)
	r.EnableOpProviderCallStats(true)
	lookups(5)
	require.Equal(t, OpProviderStats{LastSelected: "vendor", Selections: 5}, r.GetOpProviderStats(op, xpu0))
	r.EnableOpProviderCallStats(false)
	lookups(4)
	require.EqualValues(t, 5, r.GetOpProviderStats(op, xpu0).Selections)
	r.ResetOpProviderStats(op, xpu0)
	require.Equal(t, OpProviderStats{}, r.GetOpProviderStats(op, xpu0))
}

// T8: disable and enable at run time: native, then vendor again; the query agrees.
func TestT8(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "vendor", Priority: 100})
	native(t, r, op, tensor.CPU)
	q := r.NewQueue(nil)
	require.Equal(t, "vendor", launch(t, q, op))
	retained, err := r.GetOp(op, cpu0)
	require.NoError(t, err)
	bound, err := q.Bind(op)
	require.NoError(t, err)
	for _, name := range []string{"vendor", "vendor_probe", "vendor@probe", "vendor@cpu", "vendor@cpu:0@probe"} {
		matched, err := r.DisableOpProvider(name, true)
		require.NoError(t, err)
		require.True(t, matched)
		require.True(t, r.OpProviderDisabled(name))
		require.Equal(t, NativeProviderName, launch(t, q, op), name)
		var a probeArgs
		require.Equal(t, OK, retained(q, unsafe.Pointer(&a)).Code())
		require.Equal(t, NativeProviderName, a.Ran, "a retained entry follows")
		require.NoError(t, bound.Launch(unsafe.Pointer(&a)))
		require.Equal(t, NativeProviderName, a.Ran, "a bound handle follows")
		require.Equal(t, 2, r.OpProviderCount(op, cpu0), "disabled ones are listed")
		_, err = r.DisableOpProvider(name, false)
		require.NoError(t, err)
		require.False(t, r.OpProviderDisabled(name))
		require.Equal(t, "vendor", launch(t, q, op), name)
	}
}

// T9: native registration: count 1, name and presence right.
func TestT9(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.XPU)
	require.Equal(t, []string{NativeProviderName}, names(r, op, xpu0))
	require.True(t, r.OpRegistered(op, xpu0))
	require.Equal(t, "", r.OpProviderNameAt(op, xpu0, 1))
	require.Equal(t, "", r.OpProviderNameAt(op, xpu0, -1))
}

// T10: operation nobody has: presence false, lookup error, presence still false.
func TestT10(t *testing.T) {
	r, op := probe(t, Options{})
	require.False(t, r.OpRegistered(op, xpu0))
	_, err := r.GetOp(op, xpu0)
	require.ErrorIs(t, err, ErrNoKernel)
	require.False(t, r.OpRegistered(op, xpu0))
}

// T12: discrete fake device: not eligible, eager 0, count 0, lookup error.
func TestT12(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.CPU)
	queueOn(t, r, devicetest.Options{ID: xpu0})
	require.False(t, r.ReferenceTierEligible(xpu0))
	require.Zero(t, r.RegisterReferenceTier(xpu0))
	require.Zero(t, r.OpProviderCount(op, xpu0))
	_, err := r.GetOp(op, xpu0)
	require.ErrorIs(t, err, ErrNoKernel)
	require.ErrorContains(t, err, "the host cannot read")
}

// T13: the CPU is never eligible.
func TestT13(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.CPU)
	require.NoError(t, r.SetDeviceProviderCaps(cpu0, unified()))
	require.False(t, r.ReferenceTierEligible(cpu0))
	require.Zero(t, r.RegisterReferenceTier(cpu0))
	require.False(t, r.ReferenceTierEligible(tensor.Device{Kind: 99}))
	require.False(t, r.ReferenceTierEligible(tensor.Device{Kind: tensor.XPU, Index: -1}))
}

// queueOn opens a fake device, publishes its record and returns a queue on it.
func queueOn(t testing.TB, r *Registry, o devicetest.Options) *Queue {
	d := devicetest.Open(o)
	require.NoError(t, r.SetDeviceProviderCaps(o.ID, d.Caps()))
	dq, err := d.NewQueue()
	require.NoError(t, err)
	q := r.NewQueue(dq)
	t.Cleanup(func() { require.NoError(t, q.Close()) })
	return q
}

// C1: null and empty arguments, bad ids: typed errors.
func TestC1(t *testing.T) {
	r, op := probe(t, Options{})
	reg := func(op Op, k tensor.Kind, p OpProvider) error {
		_, err := r.RegisterOpProvider(op, k, p)
		return err
	}
	ok := OpProvider{Name: "n", Fn: ran("n")}
	with := func(f func(*OpProvider)) OpProvider { p := ok; f(&p); return p }
	for _, c := range []struct {
		err  error
		want error
	}{
		{reg(9999, tensor.CPU, ok), ErrUnknownOp},
		{reg(op, 77, ok), ErrUnknownDevice},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Fn = nil })), ErrNil},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Name = "" })), ErrName},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Name = strings.Repeat("x", 129) })), ErrName},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Name = "a b" })), ErrName},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Name = "a@b" })), ErrName},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Kernel = "\x00" })), ErrName},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Name = NativeProviderName })), ErrReserved},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Name = ReferenceProviderName; p.Priority = 50 })), ErrReserved},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Kernel = ReferenceProviderName })), ErrReserved},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Priority = -2000 })), ErrReserved},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Tier = Reference })), ErrReserved},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Tier = Borrowed })), ErrReserved},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Record = typeOf[struct{ Header }]() })), ErrSignature},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Accept = &Accept{Operands: map[string]AcceptOperand{"y": {}}} })), ErrArgument},
		{reg(op, tensor.CPU, with(func(p *OpProvider) { p.Accept = &Accept{Operands: map[string]AcceptOperand{"x": {Align: 3}}} })), ErrArgument},
	} {
		require.ErrorIs(t, c.err, c.want)
	}
	require.Zero(t, r.OpProviderCount(op, cpu0), "nothing was registered")
	_, err := RegisterTypedOpIn(r, op, tensor.CPU, func(*Queue, *struct{ Header }) Status { return 0 })
	require.ErrorIs(t, err, ErrSignature)
	require.ErrorContains(t, err, "probeArgs")

	add(t, r, op, tensor.CPU, OpProvider{Name: "n"})
	_, err = r.GetOp(9999, cpu0)
	require.ErrorIs(t, err, ErrUnknownOp)
	_, err = r.GetOp(3, cpu0)
	require.ErrorIs(t, err, ErrUnknownOp)
	for _, dev := range []tensor.Device{{Kind: 99}, {Index: -1}, {Index: 1 << 20}, xpu1, {Kind: 7, Index: 0}} {
		_, err = r.GetOp(op, dev)
		require.ErrorIs(t, err, ErrUnknownDevice, "%v", dev)
		require.Equal(t, OpProviderStats{}, r.GetOpProviderStats(op, dev))
		require.NotEmpty(t, r.Explain(op, dev).Error)
	}
	require.ErrorIs(t, r.SetDeviceProviderCaps(tensor.Device{Kind: 99}, device.ProviderCaps{}), ErrUnknownDevice)
	_, err = r.GetOpFallback(op, cpu0, "")
	require.ErrorIs(t, err, ErrNil)
	_, err = r.GetOpFallback(op, cpu0, "nn")
	require.ErrorIs(t, err, ErrUnknownName)
	require.ErrorContains(t, err, `nearest: n`)
	_, err = r.Below(op, cpu0, "nobody")
	require.ErrorIs(t, err, ErrUnknownName)
	require.Zero(t, r.GetOpProviderStats(op, cpu0).Declines, "a floor that is not found counts nothing")

	q := r.NewQueue(nil)
	require.ErrorIs(t, q.Launch(op, nil), ErrNil)
	require.ErrorIs(t, q.Launch(9999, unsafe.Pointer(&probeArgs{})), ErrUnknownOp)
	fn, err := r.GetOp(op, cpu0)
	require.NoError(t, err)
	var a probeArgs
	require.Equal(t, Failed, fn(nil, unsafe.Pointer(&a)).Code())
	require.ErrorIs(t, a.Err, ErrArgument)
	require.Equal(t, Failed, fn(New(Options{}).NewQueue(nil), unsafe.Pointer(&a)).Code(), "a queue of another registry")
	require.Equal(t, Failed, fn(q, nil).Code())
	_, err = r.DisableOpProvider("", true)
	require.ErrorIs(t, err, ErrName)
	_, err = r.Disable("nn")
	require.ErrorIs(t, err, ErrUnknownName)
	_, err = r.Define(Descriptor{Name: "probe"})
	require.ErrorIs(t, err, ErrDuplicate)
	_, err = r.Define(Descriptor{Name: "p q"})
	require.ErrorIs(t, err, ErrName)
	_, err = r.Define(Descriptor{Name: "bad", Record: typeOf[struct{ X int }]()})
	require.ErrorIs(t, err, ErrSignature)
	_, err = q.Bind(9999)
	require.ErrorIs(t, err, ErrUnknownOp)
}

// C2: a fifth provider in a slot is accepted.
func TestC2(t *testing.T) {
	r, op := probe(t, Options{})
	var want []string
	for i := range 40 {
		add(t, r, op, tensor.CPU, OpProvider{Name: fmt.Sprint("p", 10+i), Priority: int32(-i)})
		want = append(want, fmt.Sprint("p", 10+i))
	}
	require.Equal(t, want, names(r, op, cpu0))
}

// C3: forward with a disabled floor: the chain continues below it.
func TestC3(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "top", Priority: 20})
	add(t, r, op, tensor.CPU, OpProvider{Name: "mid", Priority: 10})
	native(t, r, op, tensor.CPU)
	_, err := r.Disable("mid")
	require.NoError(t, err)
	q := r.NewQueue(nil)
	fn, err := r.GetOpFallback(op, cpu0, "mid")
	require.NoError(t, err)
	var a probeArgs
	require.Equal(t, OK, fn(q, unsafe.Pointer(&a)).Code())
	require.Equal(t, NativeProviderName, a.Ran)
	fn, err = r.GetOpFallback(op, cpu0, "top")
	require.NoError(t, err)
	require.Equal(t, OK, fn(q, unsafe.Pointer(&a)).Code())
	require.Equal(t, NativeProviderName, a.Ran)
}

// C4: a lookup failing five times: one prebuilt error, a counter of failures of 5, no rescans.
func TestC4(t *testing.T) {
	r, op := probe(t, Options{})
	var asked atomic.Int32
	add(t, r, op, tensor.CPU, OpProvider{Name: "p", Supports: func(device.ProviderCaps) Verdict { asked.Add(1); return No("no") }})
	var first error
	for i := range 5 {
		_, err := r.GetOp(op, cpu0)
		require.ErrorIs(t, err, ErrNoKernel)
		if i == 0 {
			first = err
		}
		require.Same(t, first, err)
	}
	require.EqualValues(t, 1, asked.Load())
	require.EqualValues(t, 5, r.GetOpProviderStats(op, cpu0).Fallbacks)
	var np *NoProviderError
	require.ErrorAs(t, first, &np)
	require.Equal(t, []Candidate{{Kernel: "p_probe", Provider: "p", Tier: "native", Why: DropUnsupported, Detail: "no"}}, np.Candidates)
	require.NotErrorIs(t, first, ErrDisabled)
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = r.GetOp(op, cpu0) }))
	q := r.NewQueue(nil)
	require.Same(t, first, q.Launch(op, unsafe.Pointer(&probeArgs{})))
}

// C5: ten disabled names are all honoured; a name of 200 bytes is an error.
func TestC5(t *testing.T) {
	r, op := probe(t, Options{})
	var disabled []string
	for i := range 10 {
		n := fmt.Sprintf("p%d-%s", i, strings.Repeat("x", 100))
		add(t, r, op, tensor.CPU, OpProvider{Name: n, Priority: int32(10 - i)})
		disabled = append(disabled, n)
	}
	native(t, r, op, tensor.CPU)
	for _, n := range disabled {
		_, err := r.DisableOpProvider(n, true)
		require.NoError(t, err)
	}
	require.Len(t, r.Explain(op, cpu0).Chain, 1)
	require.Equal(t, NativeProviderName, launch(t, r.NewQueue(nil), op))
	_, err := r.DisableOpProvider(strings.Repeat("y", 200), true)
	require.ErrorIs(t, err, ErrName)
}

// C6: disable while a resolution is in progress: after the return no new lookup yields the disabled provider.
func TestC6(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.CPU)
	require.NoError(t, r.Seal())
	entered, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "slow", Priority: 9, Fn: ran("slow"),
			Supports: func(device.ProviderCaps) Verdict { close(entered); <-leave; return Yes }})
		done <- err
	}()
	<-entered
	_, err := r.DisableOpProvider("slow", true) // returns although the predicate still thinks
	require.NoError(t, err)
	q := r.NewQueue(nil)
	require.Equal(t, NativeProviderName, launch(t, q, op))
	close(leave)
	require.NoError(t, <-done)
	for range 10 {
		require.Equal(t, NativeProviderName, launch(t, q, op))
	}
	require.Equal(t, "disabled", r.Explain(op, cpu0).Dropped[0].State)
	_, err = r.DisableOpProvider("slow", false)
	require.NoError(t, err)
	require.Equal(t, "slow", launch(t, q, op), "the verdict was kept")
}

// recorder is an observer that keeps what it hears.
type recorder struct {
	mu sync.Mutex
	ev []Event
}

func (o *recorder) Observe(e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ev = append(o.ev, e)
}

// kinds returns the kinds heard since the last call, without caps and registration news.
func (o *recorder) take() (out []Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out, o.ev = o.ev, nil
	return out
}

// C7: the first resolution fails, a provider appears later: an event for the new selection.
func TestC7(t *testing.T) {
	var rec recorder
	r, op := probe(t, Options{Observer: &rec})
	for range 3 {
		_, err := r.GetOp(op, cpu0)
		require.Error(t, err)
	}
	ev := rec.take()
	require.Len(t, ev, 1)
	require.Equal(t, EventNoProvider, ev[0].Kind)
	add(t, r, op, tensor.CPU, OpProvider{Name: "late"})
	q := r.NewQueue(nil)
	launch(t, q, op)
	launch(t, q, op)
	ev = rec.take()
	require.Len(t, ev, 1)
	require.Equal(t, EventSelected, ev[0].Kind)
	require.Equal(t, "late", ev[0].Provider)
	add(t, r, op, tensor.CPU, OpProvider{Name: "later", Priority: 1})
	launch(t, q, op)
	ev = rec.take()
	require.Len(t, ev, 1)
	require.Equal(t, EventChanged, ev[0].Kind)
	require.Equal(t, "later", ev[0].Provider)
	require.Contains(t, ev[0].Detail, "was late")
}

// C8: the CPU kernel improves after the tier is there: the tier follows.
func TestC8(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.CPU)
	q := queueOn(t, r, devicetest.Options{ID: xpu0, Unified: true})
	require.Equal(t, NativeProviderName, launch(t, q, op))
	add(t, r, op, tensor.CPU, OpProvider{Name: "better", Priority: 10})
	require.Equal(t, "better", launch(t, q, op))
	require.EqualValues(t, 2, r.GetReferenceTierHits())
	_, err := r.Disable("better@cpu")
	require.NoError(t, err)
	require.Equal(t, NativeProviderName, launch(t, q, op))
}

// C9: disable native on the device only: the scoped form leaves the CPU alone, the tier serves the call.
func TestC9(t *testing.T) {
	r, op := probe(t, Options{})
	for _, k := range []tensor.Kind{tensor.CPU, tensor.XPU} {
		_, err := r.RegisterOp(op, k, ran(k.String()))
		require.NoError(t, err)
	}
	q := queueOn(t, r, devicetest.Options{ID: xpu0, Unified: true})
	require.Equal(t, "xpu", launch(t, q, op))
	require.Zero(t, q.Native().(*devicetest.Queue).Syncs())
	restore, err := r.Disable(NativeProviderName + "@xpu:0")
	require.NoError(t, err)
	require.True(t, r.OpRegistered(op, cpu0))
	require.False(t, r.OpRegistered(op, xpu0))
	require.Equal(t, "cpu", launch(t, r.NewQueue(nil), op))
	require.Equal(t, "cpu", launch(t, q, op))
	require.Equal(t, 1, q.Native().(*devicetest.Queue).Syncs(), "the queue is synchronised before a borrowed kernel")
	require.Equal(t, ReferenceProviderName, r.OpProviderNameAt(op, xpu0, 0))
	require.EqualValues(t, 1, r.GetReferenceTierHits())
	restore()
	require.Equal(t, "xpu", launch(t, q, op))
}

// C10: a predicate that calls back into the registry: no deadlock, no recursion, an error.
func TestC10(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.XPU)
	var asked atomic.Int32
	var inner [5]error
	add(t, r, op, tensor.XPU, OpProvider{Name: "nosy", Priority: 5, Supports: func(device.ProviderCaps) Verdict {
		asked.Add(1)
		_, inner[0] = r.GetOp(op, xpu0)
		_, inner[1] = r.RegisterOpProvider(op, tensor.XPU, OpProvider{Name: "more", Fn: ran("more")})
		_, inner[2] = r.Disable(NativeProviderName)
		inner[3] = r.SetDeviceProviderCaps(xpu0, probed(1))
		inner[4] = r.Seal()
		return Yes
	}})
	require.NoError(t, r.Seal())
	require.EqualValues(t, 1, asked.Load())
	for _, err := range inner {
		require.ErrorIs(t, err, ErrBusy)
	}
	require.Equal(t, []string{"nosy", NativeProviderName}, names(r, op, xpu0))

	require.NoError(t, r.SetDeviceProviderCaps(xpu0, probed(2)))
	require.EqualValues(t, 2, asked.Load())
	require.NoError(t, inner[0], "a reader sees the snapshot before")
	require.ErrorIs(t, inner[1], ErrBusy)
	require.Equal(t, int32(2), r.GetDeviceProviderCaps(xpu0).ComputeMajor)

	other, op2 := probe(t, Options{}) // another registry is not busy
	require.NoError(t, other.Seal())
	add(t, r, op, tensor.XPU, OpProvider{Name: "friend", Supports: func(device.ProviderCaps) Verdict {
		_, err := other.RegisterOpProvider(op2, tensor.XPU, OpProvider{Name: "x", Fn: ran("x")})
		require.NoError(t, err)
		return Yes
	}})
	require.Equal(t, 1, other.OpProviderCount(op2, xpu0))
}

// A predicate that panics gives a verdict; one that keeps changing the state under another mutator cannot keep that one
// from publishing.
func TestPredicates(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.XPU)
	add(t, r, op, tensor.XPU, OpProvider{Name: "bad", Priority: 5, Supports: func(device.ProviderCaps) Verdict { panic("boom") }})
	require.Equal(t, NativeProviderName, launch(t, queueOn(t, r, devicetest.Options{ID: xpu0}), op))
	require.Equal(t, "predicate panicked: boom", r.Explain(op, xpu0).Dropped[0].Detail)

	// Each question is answered only after the caps moved again: the rounds run out, then the lock decides.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var major atomic.Int32
	kick := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-kick:
				r.mu.Lock() // moves the version and leaves the publication to the mutator that waits
				at := r.state.caps[xpu0]
				at.version++
				at.caps.ComputeMajor = major.Add(1)
				r.state.caps[xpu0] = at
				r.mu.Unlock()
			case <-stop:
				return
			}
		}
	})
	asked := 0
	add(t, r, op, tensor.XPU, OpProvider{Name: "moving", Priority: 9, Supports: func(device.ProviderCaps) Verdict {
		if asked++; asked < rounds {
			kick <- struct{}{}
			for major.Load() < int32(asked) {
				time.Sleep(time.Millisecond)
			}
		}
		return Yes
	}})
	require.LessOrEqual(t, asked, rounds+1)
	require.Equal(t, "moving_probe", r.Explain(op, xpu0).Chain[0].Kernel)
	close(stop)
	wg.Wait()
}

// library is a fake foreign library that knows whether it is open.
type library struct {
	refs     atomic.Int32
	released chan struct{}
}

func (l *library) Acquire() error { l.refs.Add(1); return nil }
func (l *library) Release() error {
	if l.refs.Add(-1) == 0 {
		close(l.released)
	}
	return nil
}

// C12: a provider is withdrawn while calls run: the library stays open until the last of them has returned.
func TestC12(t *testing.T) {
	r, op := probe(t, Options{})
	native(t, r, op, tensor.CPU)
	lib := &library{released: make(chan struct{})}
	const callers = 4
	in, out := make(chan struct{}, callers), make(chan struct{})
	g := add(t, r, op, tensor.CPU, OpProvider{Name: "lib", Priority: 9, Library: lib, Fn: func(_ *Queue, a unsafe.Pointer) Status {
		in <- struct{}{}
		<-out
		if lib.refs.Load() == 0 {
			return Failure(1)
		}
		(*probeArgs)(a).Ran = "lib"
		return 0
	}})
	require.EqualValues(t, 1, lib.refs.Load())
	retained, err := r.GetOp(op, cpu0)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range callers {
		q := r.NewQueue(nil)
		wg.Go(func() {
			var a probeArgs
			if st := retained(q, unsafe.Pointer(&a)); st != 0 || a.Ran != "lib" {
				t.Errorf("status %v, ran %q", st, a.Ran)
			}
		})
	}
	for range callers {
		<-in
	}
	before := r.cur.Load().chain(op, cpu0)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, g.CloseContext(ctx), context.DeadlineExceeded)
	require.Equal(t, NativeProviderName, launch(t, r.NewQueue(nil), op), "withdrawn for new calls")
	require.Equal(t, []string{NativeProviderName}, names(r, op, cpu0))
	var late probeArgs
	require.NoError(t, before.launch(r.NewQueue(nil), unsafe.Pointer(&late)))
	require.Equal(t, NativeProviderName, late.Ran, "a call that still walks the old snapshot does not enter the library")

	closed := make(chan error)
	go func() { closed <- g.Close() }()
	for range callers {
		require.EqualValues(t, 1, lib.refs.Load(), "open while a call runs")
		out <- struct{}{}
	}
	require.NoError(t, <-closed)
	wg.Wait()
	<-lib.released
	require.NoError(t, g.Close(), "closing twice is harmless")
	require.Zero(t, lib.refs.Load())

	add(t, r, op, tensor.CPU, OpProvider{Name: "lib", Priority: 9})
	require.Equal(t, "lib", launch(t, r.NewQueue(nil), op), "the name is free again")
	_, err = r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "broken", Fn: ran("x"), Library: brokenLibrary{}})
	require.ErrorIs(t, err, errBroken)
}

var errBroken = errors.New("broken")

type brokenLibrary struct{}

func (brokenLibrary) Acquire() error { return errBroken }
func (brokenLibrary) Release() error { return nil }
