package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// Strict mode in its three scopes stops a borrowed kernel before it runs, and nothing else.
func TestStrict(t *testing.T) {
	borrows := func(o Options) (*Registry, Op, *Queue) {
		r, op := probe(t, o)
		native(t, r, op, tensor.CPU)
		return r, op, queueOn(t, r, devicetest.Options{ID: xpu0, Unified: true})
	}
	strict := func(r *Registry, err error) {
		t.Helper()
		require.ErrorIs(t, err, ErrStrict)
		require.ErrorContains(t, err, "vt-native_probe")
		require.Zero(t, r.GetReferenceTierHits())
	}
	r, op, q := borrows(Options{Strict: true})
	strict(r, q.Launch(op, unsafe.Pointer(&probeArgs{})))
	require.NoError(t, r.NewQueue(nil).Launch(op, unsafe.Pointer(&probeArgs{})), "the CPU itself is no fallback")

	r, op, q = borrows(Options{})
	view := q.With(WithStrict(context.Background(), true))
	strict(r, view.Launch(op, unsafe.Pointer(&probeArgs{})))
	strict(r, q.Launch(op, unsafe.Pointer(&probeArgs{Header: Header{Flags: FlagStrict}})))
	require.NoError(t, view.With(context.Background()).Launch(op, unsafe.Pointer(&probeArgs{})), "scopes come from the context alone")
	require.EqualValues(t, 1, r.GetReferenceTierHits())

	add(t, r, op, tensor.XPU, OpProvider{Name: "own", Fn: declines(ReasonShape)})
	require.ErrorIs(t, view.Launch(op, unsafe.Pointer(&probeArgs{})), ErrStrict, "also behind a kernel that declined")
}

// The tier is computed from the CPU's present chain, obeys the policy, warns once, counts each launch, and needs every
// operand where the CPU can see it.
func TestReferenceTier(t *testing.T) {
	var rec recorder
	r, op := probe(t, Options{Observer: &rec})
	other := define(t, r, "other")
	add(t, r, op, tensor.CPU, OpProvider{Name: "fast", Priority: 5, Fn: func(_ *Queue, a unsafe.Pointer) Status {
		if (*probeArgs)(a).X.Present() {
			return Decline(ReasonLayout)
		}
		return ran("fast")(nil, a)
	}})
	native(t, r, op, tensor.CPU)
	native(t, r, other, tensor.CPU)
	native(t, r, other, tensor.XPU)
	d := devicetest.Open(devicetest.Options{ID: xpu0, Unified: true})
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, d.Caps()))
	dq, err := d.NewQueue()
	require.NoError(t, err)
	q := r.NewQueue(dq)
	require.True(t, r.ReferenceTierEligible(xpu0))

	warned := func() (n int) {
		for _, e := range rec.take() {
			if e.Kind == EventReference {
				require.Equal(t, slog.LevelWarn, levelOf(e))
				n++
			}
		}
		return n
	}
	require.Equal(t, "fast", launched(t, q, op))
	require.Equal(t, "fast", launched(t, q, op))
	require.Equal(t, 1, warned())
	buf, err := d.Alloc(64)
	require.NoError(t, err)
	a := probeArgs{X: tensor.Must(buf.Tensor(0, tensor.F32, 4))}
	require.NoError(t, q.Launch(op, unsafe.Pointer(&a)))
	require.Equal(t, NativeProviderName, a.Ran, "a CPU kernel that declines leaves the call to the next CPU kernel")
	a.X.Host = nil
	require.ErrorContains(t, q.Launch(op, unsafe.Pointer(&a)), "device-state")
	require.EqualValues(t, 3, r.GetReferenceTierHits())
	require.Equal(t, []string{ReferenceProviderName}, names(r, op, xpu0))
	require.False(t, r.OpRegistered(op, xpu0))
	e := r.Explain(op, xpu0)
	require.Equal(t, "borrowed", e.Chain[0].Tier)
	require.Equal(t, ReferenceTierPriority, e.Chain[0].Priority)
	require.Equal(t, "fast_probe", e.Chain[0].Kernel)
	require.EqualValues(t, 3, e.Borrowed)
	require.Equal(t, 1, e.BorrowingSlots)
	require.Zero(t, counts(t, r, op, cpu0, "fast_probe").Executed, "the CPU's own counters are another matter")

	require.Equal(t, 1, r.RegisterReferenceTier(xpu0), "one op lacks a native kernel")
	require.Zero(t, r.RegisterReferenceTier(xpu0))
	require.Equal(t, []string{NativeProviderName}, names(r, other, xpu0), "a native chain does not list the borrowed kernel")
	require.Equal(t, "borrowed", r.Explain(other, xpu0).Chain[1].Tier, "but Explain does")
	r.ResetOpProviderStats(op, xpu0)
	launched(t, q, op)
	require.Zero(t, warned(), "policy allow is silent")

	require.NoError(t, r.SetReferencePolicy(xpu0, ReferenceOff))
	require.ErrorContains(t, q.Launch(op, unsafe.Pointer(&probeArgs{})), "policy off")
	require.NoError(t, r.SetReferencePolicy(xpu0, ReferenceDefault))
	require.Equal(t, "fast", launched(t, q, op))
	require.ErrorIs(t, r.SetReferencePolicy(tensor.Device{Kind: 88}, ReferenceOff), ErrUnknownDevice)
	_, err = r.Disable(ReferenceProviderName)
	require.NoError(t, err)
	require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&probeArgs{})), ErrNoKernel)

	off, op := probe(t, Options{Reference: ReferenceOff})
	native(t, off, op, tensor.CPU)
	require.ErrorIs(t, queueOn(t, off, devicetest.Options{ID: xpu0, Unified: true}).Launch(op, unsafe.Pointer(&probeArgs{})), ErrNoKernel)
	require.Equal(t, 1, off.RegisterReferenceTier(xpu0), "an explicit call beats the option")

	broken, op := probe(t, Options{})
	native(t, broken, op, tensor.CPU)
	q = queueOn(t, broken, devicetest.Options{ID: xpu0, Unified: true})
	lost := errors.New("device lost")
	q.Native().(*devicetest.Queue).SyncErr = lost
	require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&probeArgs{})), lost)
	require.Zero(t, broken.GetReferenceTierHits())
}

func levelOf(e Event) slog.Level {
	h := &levelHandler{}
	LogObserver(slog.New(h)).Observe(e)
	return h.level
}

type levelHandler struct {
	slog.Handler
	level slog.Level
}

func (h *levelHandler) Enabled(context.Context, slog.Level) bool      { return true }
func (h *levelHandler) Handle(_ context.Context, r slog.Record) error { h.level = r.Level; return nil }

// A forwarding CPU kernel is attributed on a borrowed launch as on its own device.
func TestBorrowedForward(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3, Fn: func(q *Queue, a unsafe.Pointer) Status {
		fn, err := r.GetOpFallback(op, cpu0, "a")
		if err != nil {
			return (*probeArgs)(a).Fail(err)
		}
		return fn(q, a)
	}})
	native(t, r, op, tensor.CPU)
	q := queueOn(t, r, devicetest.Options{ID: xpu0, Unified: true})
	require.Equal(t, NativeProviderName, launched(t, q, op))
	require.Equal(t, Counts{Declined: map[string]uint64{"forwarded": 1}}, counts(t, r, op, xpu0, "a_probe"))
	require.EqualValues(t, 1, counts(t, r, op, cpu0, "vt-native_probe").Executed)
	require.EqualValues(t, 1, r.GetReferenceTierHits(), "the launch was the tier's all the same")
}

func TestScopes(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3})
	add(t, r, op, tensor.CPU, OpProvider{Name: "b", Priority: 2})
	native(t, r, op, tensor.CPU)
	q := r.NewQueue(nil)
	ctx := WithDisabled(context.Background(), "a", "bad entry", "nobody")
	v := q.With(ctx)
	require.Equal(t, "b", launched(t, v, op))
	require.Equal(t, "b", launch(t, v, op), "GetOp's entry follows the queue's scope")
	require.Equal(t, "a", launched(t, q, op))
	w := q.With(WithDisabled(ctx, "b@probe@cpu"))
	require.Equal(t, NativeProviderName, launched(t, w, op))
	require.Equal(t, "b", launched(t, v, op), "contexts do not leak into each other")
	bound, err := w.Bind(op)
	require.NoError(t, err)
	require.Equal(t, "vt-native_probe", bound.Provider())
	require.Equal(t, "disabled", bound.Explain().Dropped[0].State)
	require.Same(t, w, bound.Queue())

	only := q.With(WithKernel(context.Background(), op, "b_probe"))
	require.Equal(t, "b", launched(t, only, op))
	restore, err := r.Disable("b")
	require.NoError(t, err)
	err = only.Launch(op, unsafe.Pointer(&probeArgs{}))
	require.ErrorIs(t, err, ErrNoKernel)
	require.ErrorIs(t, err, ErrDisabled)
	restore()
	require.Equal(t, "b", launched(t, only, op), "a scope follows the snapshots")
	err = q.With(WithKernel(context.Background(), op, "nobody")).Launch(op, unsafe.Pointer(&probeArgs{}))
	require.ErrorContains(t, err, "context wants nobody")
}

// Disable sets nest in any order.
func TestDisableNests(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3})
	add(t, r, op, tensor.CPU, OpProvider{Name: "b", Priority: 2})
	native(t, r, op, tensor.CPU)
	q := r.NewQueue(nil)
	one, err := r.Disable("a")
	require.NoError(t, err)
	two, err := r.Disable("a", "b")
	require.NoError(t, err)
	require.Equal(t, NativeProviderName, launched(t, q, op))
	one()
	one()
	require.Equal(t, NativeProviderName, launched(t, q, op))
	two()
	require.Equal(t, "a", launched(t, q, op))
	undo, err := r.Disable("a", "b_prob")
	require.ErrorIs(t, err, ErrUnknownName)
	require.ErrorContains(t, err, "nearest: b_probe")
	undo()
	require.Equal(t, "a", launched(t, q, op), "all or nothing")
	_, err = r.Disable("a@noop@cuda")
	require.ErrorIs(t, err, ErrUnknownName)

	matched, err := r.DisableOpProvider("later", true)
	require.NoError(t, err)
	require.False(t, matched)
	add(t, r, op, tensor.CPU, OpProvider{Name: "later", Priority: 9})
	require.Equal(t, "a", launched(t, q, op), "a name may be disabled before it is registered")
}

func TestOverrideAndForce(t *testing.T) {
	chain := func(o Options) ([]string, *Registry, Op) {
		r := New(o)
		op := define(t, r, "probe", "fam.mode")
		add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3})
		add(t, r, op, tensor.CPU, OpProvider{Name: "b", Priority: 2, Supports: func(c device.ProviderCaps) Verdict {
			if c.Valid {
				return No("probed")
			}
			return Yes
		}})
		native(t, r, op, tensor.CPU)
		var out []string
		for _, s := range r.Explain(op, cpu0).Chain {
			out = append(out, s.Provider)
		}
		return out, r, op
	}
	got, _, _ := chain(Options{Override: map[string]string{"fam.mode": "b_probe"}})
	require.Equal(t, []string{"b", "a", NativeProviderName}, got)
	_, r, op := chain(Options{Override: map[string]string{"probe": "b"}})
	q := r.NewQueue(nil)
	for from, want := range map[string]string{"b": "a", "a": NativeProviderName} {
		fn, err := r.GetOpFallback(op, cpu0, from)
		require.NoError(t, err)
		var a probeArgs
		require.Equal(t, OK, fn(q, unsafe.Pointer(&a)).Code())
		require.Equal(t, want, a.Ran, "forwarding follows the chain as overridden")
	}
	got, r, op = chain(Options{Force: map[string]string{"probe": "b"}, Override: map[string]string{"probe": "a"}})
	require.Equal(t, []string{"b"}, got)
	require.Equal(t, "overridden", r.Explain(op, cpu0).Dropped[0].State)
	require.NoError(t, r.SetDeviceProviderCaps(cpu0, probed(1)))
	_, err := r.GetOp(op, cpu0)
	require.ErrorIs(t, err, ErrNoKernel, "a forced kernel that cannot run is an error, not a silent choice")
	got, r, _ = chain(Options{Force: map[string]string{"prob": "bb"}, Override: map[string]string{"prob": "a"}, Disable: []string{"aa", "bad name"},
		Explain: []string{"prebe"}, FallbackOnFailure: []string{"prbe"}})
	require.Len(t, got, 3, "unknown names change nothing")
	var text []string
	for _, w := range r.Snapshot().Warnings {
		text = append(text, w.String())
	}
	all := strings.Join(text, "\n")
	for _, s := range []string{`force: "prob": unknown name; nearest: probe`, `override: "prob": unknown name; nearest: probe`, `disable: "aa": unknown name; nearest: a`,
		"bad name", `explain: "prebe"`, `fallback on failure: "prbe"`} {
		require.Contains(t, all, s)
	}
}

// Self-tests run before a kernel's first launch, once for each device; a failing one is quarantined with its evidence
// and the chain goes on.
func TestSelfTest(t *testing.T) {
	var rec recorder
	r, op := probe(t, Options{Observer: &rec})
	var tests, badTests atomic.Int32
	good := OpProvider{Name: "good", Priority: 3}
	good.SelfTest = func(q *Queue) error {
		tests.Add(1)
		var a probeArgs
		if err := q.Launch(op, unsafe.Pointer(&a)); err != nil {
			return err
		}
		if a.Ran != "good" {
			return errors.New("another kernel ran: " + a.Ran)
		}
		return nil
	}
	add(t, r, op, tensor.XPU, good)
	add(t, r, op, tensor.XPU, OpProvider{Name: "bad", Priority: 9, SelfTest: func(*Queue) error { badTests.Add(1); return errors.New("want 4, got 5") }})
	add(t, r, op, tensor.XPU, OpProvider{Name: "worse", Priority: 8, SelfTest: func(*Queue) error { panic("boom") }})
	require.Equal(t, "usable, not yet self-tested", r.Explain(op, xpu0).Chain[0].State)
	q := queueOn(t, r, devicetest.Options{ID: xpu0})
	q.Native().(*devicetest.Queue).SetCapturing(true)
	require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&probeArgs{})), ErrDeclined, "nothing is tested while capturing")
	require.Zero(t, badTests.Load())
	q.Native().(*devicetest.Queue).SetCapturing(false)
	for range 3 {
		require.Equal(t, "good", launched(t, q, op))
	}
	require.EqualValues(t, 1, tests.Load())
	require.EqualValues(t, 1, badTests.Load())
	require.EqualValues(t, 3, counts(t, r, op, xpu0, "good_probe").Executed, "the test's own launches are not counted")
	e := r.Explain(op, xpu0)
	require.Len(t, e.Chain, 1)
	require.Equal(t, "quarantined", e.Dropped[0].State)
	require.Contains(t, e.Dropped[0].Detail, "want 4, got 5")
	require.Contains(t, e.Dropped[1].Detail, "panic: boom")
	quarantined := 0
	for _, e := range rec.take() {
		if e.Kind == EventQuarantined {
			quarantined++
		}
	}
	require.Equal(t, 2, quarantined)

	d := devicetest.Open(devicetest.Options{ID: xpu1})
	require.NoError(t, r.SetDeviceProviderCaps(xpu1, d.Caps()))
	err := r.Warm(context.Background(), d)
	require.ErrorIs(t, err, ErrSelfTest)
	require.ErrorContains(t, err, "want 4, got 5")
	require.EqualValues(t, 2, tests.Load(), "another instance, another verdict")
	require.Len(t, r.Explain(op, xpu1).Chain, 1)
	require.NoError(t, r.Warm(context.Background(), d), "nothing is left to test")
	add(t, r, op, tensor.XPU, OpProvider{Name: "more", SelfTest: func(*Queue) error { return nil }})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, r.Warm(ctx, d), context.Canceled)
}

// A borrowed kernel is tested on a CPU view.
func TestSelfTestBorrowed(t *testing.T) {
	r, op := probe(t, Options{})
	var on []tensor.Device
	add(t, r, op, tensor.CPU, OpProvider{Name: "k", SelfTest: func(q *Queue) error {
		on = append(on, q.Device())
		return q.Launch(op, unsafe.Pointer(&probeArgs{}))
	}})
	q := queueOn(t, r, devicetest.Options{ID: xpu0, Unified: true})
	require.Equal(t, "k", launched(t, q, op))
	require.Equal(t, "k", launched(t, r.NewQueue(nil), op))
	require.Equal(t, []tensor.Device{cpu0}, on)
}

func TestExplain(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.XPU, OpProvider{Name: "a", Priority: 3, Tier: Vendor, Traits: Traits{BitExact: true}, Fn: declines(ReasonDType)})
	native(t, r, op, tensor.XPU)
	add(t, r, op, tensor.XPU, OpProvider{Name: "never", Priority: 8, Supports: func(device.ProviderCaps) Verdict { return No("needs sm_90") }})
	caps := probed(7)
	caps.Arch, caps.Err = "fake7", errors.New("half a library")
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, caps))
	q := r.NewQueue(&fakeQueue{dev: xpu0})
	launched(t, q, op)
	text := r.Explain(op, xpu0).String()
	for _, s := range []string{"probe on xpu:0 (probed fake7, snapshot ",
		"  1. a_probe  provider a, tier vendor, priority 3, usable (no self-test); executed 0, failed 0, declined{dtype} 1; registered at github.com/opmux/opmux/registry/probe_test.go:",
		"  2. vt-native_probe  provider vt-native, tier native, priority 0, usable (no self-test); executed 1",
		"  -  never_probe  provider never, tier native, priority 8, unsupported (needs sm_90); executed 0"} {
		require.Contains(t, text, s)
	}
	_, err := r.GetOp(op, cuda0)
	require.Error(t, err)
	snap := r.Snapshot()
	raw, err := json.Marshal(snap)
	require.NoError(t, err)
	var back struct {
		Generation uint64
		Ops        []struct {
			Op, Device string
			Caps       struct{ State, Error string }
			Chain      []struct {
				Kernel string
				Counts Counts
			}
			Dropped []struct{ State, Detail string }
			Stats   struct {
				Fallbacks int
			}
		}
	}
	require.NoError(t, json.Unmarshal(raw, &back))
	require.Len(t, back.Ops, 2, "ops and devices with something to tell")
	byDevice := map[string]int{back.Ops[0].Device: 0, back.Ops[1].Device: 1}
	x := back.Ops[byDevice["xpu:0"]]
	require.Equal(t, "half a library", x.Caps.Error)
	require.Equal(t, Counts{Executed: 1}, x.Chain[1].Counts)
	require.Equal(t, "needs sm_90", x.Dropped[0].Detail)
	require.Equal(t, 1, back.Ops[byDevice["cuda:0"]].Stats.Fallbacks)
}

// OPMUX_EXPLAIN prints the chain of a listed op once for each device; statistics log to the given logger.
func TestExplainAtFirstLaunch(t *testing.T) {
	var out, log bytes.Buffer
	r := New(Options{Explain: []string{"fam.mode"}, ExplainTo: &out, Stats: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	op := define(t, r, "probe", "fam.mode")
	other := define(t, r, "other")
	native(t, r, op, tensor.CPU)
	native(t, r, other, tensor.CPU)
	q := r.NewQueue(nil)
	for range 3 {
		launched(t, q, op)
		launched(t, q, other)
	}
	require.Equal(t, 1, strings.Count(out.String(), "probe on cpu:0"))
	require.NotContains(t, out.String(), "other")
	require.Equal(t, 1, strings.Count(log.String(), "opmux: selected\" op=probe device=cpu:0 kernel=vt-native_probe provider=vt-native priority=0"))
	require.EqualValues(t, 3, r.GetOpProviderStats(op, cpu0).Selections)
}

func TestEvents(t *testing.T) {
	var rec recorder
	r, op := probe(t, Options{})
	r.SetObserver(&rec)
	_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "x y", Fn: ran("x")})
	require.Error(t, err)
	require.NoError(t, r.Seal())
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, probed(3)))
	gen := r.Snapshot().Generation
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, probed(3)), "an equal record is no news")
	require.Equal(t, gen, r.Snapshot().Generation)
	ev := rec.take()
	require.Len(t, ev, 2)
	require.Equal(t, EventRefused, ev[0].Kind)
	require.Contains(t, ev[0].Detail, "is not a letter")
	require.Equal(t, EventCaps, ev[1].Kind)
	r.SetObserver(nil)
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, probed(4)))
	require.Empty(t, rec.take())
	require.Equal(t, "registration refused", EventRefused.String())
}

func TestTyped(t *testing.T) {
	r, op := probe(t, Options{})
	_, err := RegisterTypedOpIn(r, op, tensor.CPU, func(_ *Queue, a *probeArgs) Status { a.Ran = "typed"; return 0 })
	require.NoError(t, err)
	fn, err := GetTypedOpIn[probeArgs](r, op, cpu0)
	require.NoError(t, err)
	var a probeArgs
	require.Equal(t, OK, fn(r.NewQueue(nil), &a).Code())
	require.Equal(t, "typed", a.Ran)
	_, err = GetTypedOpIn[struct{ Header }](r, op, cpu0)
	require.ErrorIs(t, err, ErrSignature)
	_, err = GetTypedOpIn[probeArgs](r, op, cuda0)
	require.ErrorIs(t, err, ErrNoKernel)
	require.Nil(t, Erase[probeArgs](nil))
}
