package registry

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"x":                {Name: "x"},
		"kernel:x":         {Name: "x", By: "kernel"},
		"solution:x":       {Name: "x", By: "solution"},
		"!x":               {Name: "x", Exclude: true},
		"kernel:!x":        {Name: "x", By: "kernel", Exclude: true},
		"solution:!x":      {Name: "x", By: "solution", Exclude: true},
		"force:x":          {Name: "x", Force: true},
		"force:kernel:x":   {Name: "x", By: "kernel", Force: true},
		"force:solution:x": {Name: "x", By: "solution", Force: true},
	} {
		got, err := ParseTarget(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
		require.Equal(t, text, got.String())
		b, err := json.Marshal(got)
		require.NoError(t, err)
		var back Target
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, got, back)
	}
	for _, bad := range []string{"", "!", "kernel:", "force:", "force:!x", "provider:x", "!kernel:x", "a b", "solution:kernel:x", "force:force:x", strings.Repeat("n", 200)} {
		_, err := ParseTarget(bad)
		require.ErrorIs(t, err, ErrName, bad)
	}
	x := Target{Name: "x"}
	require.True(t, x.Matches("x", "s"))
	require.True(t, x.Matches("k", "x"))
	require.False(t, x.Matches("k", "s"))
	require.False(t, Target{Name: "x", By: "kernel"}.Matches("k", "x"))
	require.False(t, Target{Name: "x", By: "solution"}.Matches("x", "s"))
	require.False(t, Target{}.Matches("", ""))
	require.Empty(t, Target{}.String())
	require.True(t, Target{}.IsZero())
	var none Target
	require.NoError(t, none.UnmarshalText(nil))
	require.True(t, none.IsZero())
}

// abc is a registry with kernels a, b (which refuses a probed device) and vt-native, best first.
func abc(t *testing.T, o Options) (*Registry, Op) {
	r := New(o)
	op, err := r.Define(Descriptor{Name: "probe", Family: "fam_x", Mode: "mode", Record: typeOf[probeArgs](),
		Operators: []OperatorAlias{{Name: "wide.op"}}, Roles: []string{}})
	require.NoError(t, err)
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3})
	add(t, r, op, tensor.CPU, OpProvider{Name: "b", Priority: 2, Supports: func(c device.ProviderCaps) Verdict { return Verdict{OK: !c.Valid, Reason: "probed"} }})
	native(t, r, op, tensor.CPU)
	return r, op
}

func providers(e Explanation) (out []string) {
	for _, s := range e.Chain {
		out = append(out, s.Provider)
	}
	return out
}

// Every form of a target in the options, and every way to name the op.
func TestOverrideTargets(t *testing.T) {
	for target, want := range map[string][]string{
		"b":                  {"b", "a", NativeProviderName},
		"kernel:b_probe":     {"b", "a", NativeProviderName},
		"solution:b":         {"b", "a", NativeProviderName},
		"kernel:b":           nil, // no such kernel
		"!a":                 {"b", NativeProviderName},
		"kernel:!b_probe":    {"a", NativeProviderName},
		"solution:!a":        {"b", NativeProviderName},
		"force:b":            {"b", "a", NativeProviderName},
		"solution:vt-native": {NativeProviderName, "a", "b"},
	} {
		for _, name := range []string{"probe", "fam_x.mode", "wide.op"} {
			r, op := abc(t, Options{Override: map[string]string{name: target}})
			switch {
			case target == "kernel:b":
				require.Equal(t, `OPMUX_OVERRIDE wants "kernel:b": b is the name of a solution, not of a kernel`, r.Explain(op, cpu0).Override)
			case !strings.Contains(target, "!"):
				require.Contains(t, r.Explain(op, cpu0).String(), "  override: OPMUX_OVERRIDE wants "+target)
			default:
				require.Contains(t, r.Explain(op, cpu0).Override, "OPMUX_OVERRIDE excludes ")
			}
			require.Equal(t, want, providers(r.Explain(op, cpu0)), "%s=%s", name, target)
		}
	}
	r, op := abc(t, Options{Override: map[string]string{"wide.op": "a", "probe": "b", "fam_x.mode": "vt-native"}})
	require.Equal(t, "b", providers(r.Explain(op, cpu0))[0], "the op's own name is closest")

	r, op = probe(t, Options{Override: map[string]string{"probe": "twin"}})
	add(t, r, op, tensor.CPU, OpProvider{Name: "twin", Kernel: "other", Priority: 9})
	add(t, r, op, tensor.CPU, OpProvider{Name: "x", Kernel: "twin", Priority: 1})
	require.Equal(t, "x", launched(t, r.NewQueue(nil), op), "a bare word is a kernel first")
}

// W2: an override is checked. What the device cannot run leaves the chain empty with the reason, unless it is forced;
// nothing resolves across ops.
func TestW02OverrideChecked(t *testing.T) {
	for _, o := range []Options{{Override: map[string]string{"probe": "b"}}, {Force: map[string]string{"probe": "kernel:b_probe"}}} {
		r, op := abc(t, o)
		require.NoError(t, r.SetDeviceProviderCaps(cpu0, probed(1)))
		err := r.NewQueue(nil).Launch(op, unsafe.Pointer(&probeArgs{}))
		require.ErrorIs(t, err, ErrNoKernel)
		require.ErrorContains(t, err, "b_probe: unsupported (probed)")
		require.ErrorContains(t, err, "a_probe: overridden (OPMUX_")
	}
	r, op := abc(t, Options{Override: map[string]string{"probe": "force:b"}})
	require.NoError(t, r.SetDeviceProviderCaps(cpu0, probed(1)))
	require.Equal(t, "b", launched(t, r.NewQueue(nil), op), "forced")
	require.Equal(t, []string{"b", "a", NativeProviderName}, providers(r.Explain(op, cpu0)))
	_, err := r.Disable("b")
	require.NoError(t, err)
	require.ErrorContains(t, r.NewQueue(nil).Launch(op, unsafe.Pointer(&probeArgs{})), "b_probe: disabled", "what is disabled stays out")

	r, op = abc(t, Options{})
	require.NoError(t, r.SetDeviceProviderCaps(cpu0, probed(1)))
	q := r.NewQueue(nil)
	other := define(t, r, "other")
	add(t, r, other, tensor.CPU, OpProvider{Name: "z"})
	for _, target := range []string{"b", "z", "z_other"} {
		x, err := ParseTarget(target)
		require.NoError(t, err)
		err = q.With(WithOverride(context.Background(), op, x)).Launch(op, unsafe.Pointer(&probeArgs{}))
		require.ErrorIs(t, err, ErrNoKernel, target)
		require.ErrorContains(t, err, "context wants "+target)
	}
	require.Equal(t, "b", launched(t, q.With(WithKernel(context.Background(), op, "force:b")), op))
}

// An option that names a kernel of another op is told.
func TestOverrideOfAnotherOp(t *testing.T) {
	r, op := abc(t, Options{Override: map[string]string{"probe": "z"}})
	add(t, r, define(t, r, "other"), tensor.CPU, OpProvider{Name: "z"})
	require.Equal(t, "a", launched(t, r.NewQueue(nil), op))
	require.Equal(t, []Warning{{"override", `probe: "z": z has no kernel for probe; it has for other`}}, r.Snapshot().Warnings)
}

// W3: OPMUX_FORCE beats the context, the context OPMUX_OVERRIDE; a queue's scope is its own.
func TestW03OverridePrecedence(t *testing.T) {
	r, op := abc(t, Options{Override: map[string]string{"probe": "b"}})
	q := r.NewQueue(nil)
	a, not := Target{Name: "a"}, Target{Name: "b", Exclude: true}
	require.Equal(t, "b", launched(t, q, op))
	v := q.With(WithOverride(context.Background(), op, a))
	require.Equal(t, "a", launched(t, v, op))
	require.Equal(t, "a", launched(t, q.With(WithOverride(context.Background(), op, not)), op))
	require.Equal(t, NativeProviderName, launched(t, q.With(WithKernel(WithOverride(context.Background(), op, a), op, "vt-native")), op), "the inner scope counts")
	b, err := v.Bind(op)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", NativeProviderName}, providers(b.Explain()), "in the chain's own order, not the variable's")
	require.Equal(t, "b", launched(t, q, op), "the queue itself is as before")

	r, op = abc(t, Options{Force: map[string]string{"probe": "b"}, Override: map[string]string{"probe": "a"}})
	q = r.NewQueue(nil)
	require.Equal(t, []string{"b"}, providers(r.Explain(op, cpu0)))
	require.Equal(t, "b", launched(t, q.With(WithOverride(context.Background(), op, a)), op))
	require.Equal(t, "b", launched(t, q.With(WithKernel(context.Background(), op, "a")), op))
}

// A forced solution of several kernels is self-tested kernel by kernel, each alone.
func TestSelfTestUnderForce(t *testing.T) {
	r, op := probe(t, Options{Force: map[string]string{"probe": "solution:s"}})
	for i, k := range []string{"one", "two"} {
		add(t, r, op, tensor.CPU, OpProvider{Name: "s", Kernel: k, Priority: int32(5 - i), Fn: ran(k), SelfTest: func(q *Queue) error {
			require.Equal(t, k, launched(t, q, op))
			return nil
		}})
	}
	require.NoError(t, r.Warm(context.Background(), devicetest.Open(devicetest.Options{})))
	require.Equal(t, "usable", r.Explain(op, cpu0).Chain[1].State)
}

// An override of the options that names another device's kernel leaves a device alone; vt-cpu-ref heads a chain with the
// borrowed kernel.
func TestOverrideOfAnotherDevice(t *testing.T) {
	for target, want := range map[string][]string{
		"own":        {"own", ReferenceProviderName, ReferenceProviderName},
		"slow":       {"own", ReferenceProviderName, ReferenceProviderName},
		"vt-cpu-ref": {ReferenceProviderName, ReferenceProviderName, "own"},
		"nobody":     nil, // an error on every device
	} {
		r, op := probe(t, Options{Override: map[string]string{"probe": target}})
		add(t, r, op, tensor.CPU, OpProvider{Name: "fast", Priority: 5})
		add(t, r, op, tensor.CPU, OpProvider{Name: "slow", Priority: 1})
		add(t, r, op, tensor.XPU, OpProvider{Name: "own"})
		require.NoError(t, r.SetDeviceProviderCaps(xpu0, unified()))
		e := r.Explain(op, xpu0)
		require.Equal(t, want, providers(e), target)
		if target == "slow" {
			require.Equal(t, "slow_probe", e.Chain[1].Kernel, "the borrowed kernels follow the CPU's chain")
		}
	}
	r, op := probe(t, Options{Force: map[string]string{"probe": "own"}})
	add(t, r, op, tensor.CPU, OpProvider{Name: "fast", Priority: 5})
	add(t, r, op, tensor.XPU, OpProvider{Name: "own"})
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, unified()))
	require.Equal(t, []string{"own"}, providers(r.Explain(op, xpu0)), "the only kernel")
}

// W14: family and mode are joined by a dot inside the value, so an underscore in either is not ambiguous; every way to
// name an op is good wherever one is named.
func TestW14OpNames(t *testing.T) {
	r := New(Options{Explain: []string{"attn.res_fwd"}, FallbackOnFailure: []string{"attn_res.fwd"}})
	ids := map[string]Op{}
	for _, d := range []Descriptor{{Name: "one", Family: "attn_res", Mode: "fwd"}, {Name: "two", Family: "attn", Mode: "res_fwd"}} {
		d.Record = typeOf[probeArgs]()
		op, err := r.Define(d)
		require.NoError(t, err)
		ids[d.Name] = op
		add(t, r, op, tensor.CPU, OpProvider{Name: "k"})
	}
	for name, want := range map[string]string{"one": "one", "attn_res.fwd": "one", "attn.res_fwd": "two"} {
		op, ok := r.Lookup(name)
		require.True(t, ok)
		require.Equal(t, ids[want], op)
	}
	_, ok := r.Lookup("attn_res_fwd")
	require.False(t, ok)
	restore, err := r.Disable("k@attn_res.fwd")
	require.NoError(t, err)
	require.Empty(t, r.Explain(ids["one"], cpu0).Chain)
	require.Len(t, r.Explain(ids["two"], cpu0).Chain, 1)
	restore()
	require.Empty(t, r.Snapshot().Warnings)

	wide := New(Options{})
	for n, roles := range map[string]map[string]string{"x": {}, "y": {"a": "a"}} {
		_, err := wide.Define(Descriptor{Name: n, Record: typeOf[probeArgs](), Operators: []OperatorAlias{{Name: "wide.op", Roles: roles}}, Roles: slices.Collect(maps.Keys(roles))})
		require.NoError(t, err)
	}
	_, ok = wide.Lookup("wide.op")
	require.False(t, ok, "an operator of two ops is no op")
}

func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"x", "kernel:x", "solution:!x", "force:kernel:x", "!", ":", "force:!x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if x, err := ParseTarget(s); err == nil && x.String() != s {
			t.Fatalf("%q reads as %q", s, x)
		}
	})
}

// What a strong place says of kernels that a kind of device does not have leaves the word to the weaker ones there.
func TestOverridesOfOtherKindsOfDevices(t *testing.T) {
	config, err := LoadConfig(strings.NewReader(`{"version": 1, "rules": [
		{"match": {"op": "mm"}, "use": "gpu"}, {"match": {"op": "mm"}, "use": "three"}]}`), "c.json")
	require.NoError(t, err)
	for _, target := range []string{"gpu", "force:gpu", "!gpu", ReferenceProviderName} {
		for _, o := range []Options{{Force: map[string]string{"mm": target}}, {Override: map[string]string{"gemm.mm": target}}} {
			r, op := mm(t, o)
			for i, name := range []string{"three", "two", "one"} {
				register(t, r, kernel(t, name, func(s *KernelSpec) { s.Priority = BandPerformant.Plus(uint8(i)) }))
			}
			register(t, r, kernel(t, "gpu", func(s *KernelSpec) { s.Kinds = []tensor.Kind{tensor.CUDA} }))
			q, a := r.NewQueue(nil), &mmArgs{}
			req := Request{Operator: "mm", Traits: ints(1, 1)}
			for _, want := range []string{"one", "three"} {
				require.NoError(t, q.Launch(op, unsafe.Pointer(a)))
				require.Equal(t, want, a.Ran, "%+v", o)
				require.Equal(t, want, winner(t, r, req))
				require.NoError(t, q.With(WithKernel(context.Background(), op, "two")).Launch(op, unsafe.Pointer(a)))
				require.Equal(t, "two", a.Ran, "%+v", o)
				two := req
				two.Override = "two"
				require.Equal(t, "two", winner(t, r, two))
				require.NoError(t, r.SetConfig(config))
			}
		}
	}
}

// A scope with WithKernel holds for selections as for launches: nothing else runs.
func TestSelectionsOfOneKernel(t *testing.T) {
	r, op := mm(t, Options{})
	register(t, r, kernel(t, "other", nil))
	_, err := r.RegisterKernel(kernel(t, "picky", nil), func(*Queue, unsafe.Pointer) Status { return Decline(ReasonShape) })
	require.NoError(t, err)
	q := r.NewQueue(nil)
	alone, first := q.With(WithKernel(context.Background(), op, "picky")), q.With(WithOverride(context.Background(), op, Target{Name: "picky"}))
	for q, want := range map[*Queue]error{alone: ErrDeclined, first: nil} {
		s, err := q.Select(Request{Operator: "mm", Traits: ints(1, 1)})
		require.NoError(t, err)
		require.Equal(t, "picky", s.Kernel())
		require.ErrorIs(t, s.Launch(q, unsafe.Pointer(&mmArgs{})), want)
		require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&mmArgs{})), want)
	}
	_, err = q.With(WithKernel(context.Background(), op, "no such name")).Select(Request{Operator: "mm", Traits: ints(1, 1)})
	require.ErrorIs(t, err, ErrOverride)
}

// A kernel that runs only where it is asked for heads no chain, is not what makes an op supported, and counts nothing
// until it is asked for; it is usable all the same.
func TestKernelsThatAreAskedFor(t *testing.T) {
	r, op := mm(t, Options{})
	tests := 0
	_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "p", Kernel: "asked", Priority: 40, Fn: ranMM("asked"), Spec: &Spec{NotAuto: true},
		SelfTest: func(q *Queue) error {
			tests++
			return q.Launch(op, unsafe.Pointer(&mmArgs{}))
		}})
	require.NoError(t, err)
	q, a := r.NewQueue(nil), &mmArgs{}
	require.False(t, r.OpRegistered(op, cpu0))
	require.ErrorIs(t, q.Launch(op, unsafe.Pointer(a)), ErrNoKernel)
	_, err = r.GetOp(op, cpu0)
	require.ErrorContains(t, err, "asked: waiting (runs only where it is asked for by name)")
	require.Equal(t, 1, r.OpProviderCount(op, cpu0))
	require.NoError(t, r.Require(cpu0, "asked"))

	register(t, r, kernel(t, "low", func(s *KernelSpec) { s.Priority = BandPortable.Plus(0) }))
	b, err := q.Bind(op)
	require.NoError(t, err)
	require.NoError(t, b.Launch(unsafe.Pointer(a)))
	require.Equal(t, "low", a.Ran)
	require.Equal(t, "low", b.Provider())
	require.Equal(t, "low", r.GetOpProviderStats(op, cpu0).LastSelected)
	require.Zero(t, tests)
	e := r.Explain(op, cpu0)
	require.Len(t, e.Chain, 1)
	require.Equal(t, append(e.Chain, e.Dropped...), e.Runnable())
	require.Empty(t, r.Explain(op, cpu0).Dropped[0].Counts)
	below, err := r.GetOpFallback(op, cpu0, "asked")
	require.NoError(t, err)
	require.Equal(t, OK, below(q, unsafe.Pointer(a)).Code())
	require.Equal(t, "low", a.Ran)

	launch := func(q *Queue) {
		a.Ran = ""
		require.NoError(t, q.Launch(op, unsafe.Pointer(a)))
		require.Equal(t, "asked", a.Ran)
		require.Equal(t, 1, tests)
	}
	launch(q.With(WithKernel(context.Background(), op, "asked")))
	launch(q.With(WithOverride(context.Background(), op, Target{Name: "p", By: "solution"})))
	fn, err := r.GetImpl("asked")
	require.NoError(t, err)
	require.Equal(t, OK, fn(q, unsafe.Pointer(a)).Code())
	require.Equal(t, "asked", a.Ran)
	plan, err := r.Plan(Request{Operator: "mm", Traits: ints(1, 1), Solution: "p"})
	require.NoError(t, err)
	a.Ran = ""
	require.NoError(t, plan.Launch(q, unsafe.Pointer(a)))
	require.Equal(t, "asked", a.Ran)
	require.NoError(t, r.SetConfig(loaded(t, `{"version": 1, "rules": [{"match": {"op": "mm"}, "use": "asked"}]}`)))
	launch(q)
	require.NoError(t, r.Require(cpu0, "asked", "low"))
	require.NoError(t, r.SetConfig(loaded(t, `{"version": 1, "rules": [{"match": {"op": "mm"}, "use": "low"}]}`)))
	require.NoError(t, r.Require(cpu0, "asked", "low"))
	require.NoError(t, plan.Launch(q, unsafe.Pointer(a)), "no rule replaces a pinned kernel")
	require.NoError(t, r.Unregister("asked"))
	require.ErrorIs(t, plan.Launch(q, unsafe.Pointer(a)), ErrNoKernel)
}
