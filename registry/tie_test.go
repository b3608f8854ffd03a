package registry

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// A tie is told for pairs that some request lies in, and for no others.
func TestTies(t *testing.T) {
	f32, f16 := sig(t, "a=f32, b=f32"), sig(t, "a=f16, b=f16")
	base := func(*KernelSpec) {}
	for name, c := range map[string]struct {
		a, b func(*KernelSpec)
		tie  bool
	}{
		"alike":             {base, base, true},
		"priority":          {base, func(s *KernelSpec) { s.Priority = BandSpecialized.Plus(0) }, false},
		"kind":              {base, func(s *KernelSpec) { s.Kinds = []tensor.Kind{tensor.XPU} }, false},
		"origin":            {base, func(s *KernelSpec) { s.Origin, s.AnyBand = "plugin:p", true }, false},
		"asked for by name": {base, func(s *KernelSpec) { s.NotAuto = true }, false},
		"signatures":        {base, func(s *KernelSpec) { s.Signatures[0] = f16 }, false},
		"one signature":     {base, func(s *KernelSpec) { s.Signatures = []tensor.FormatSignature{f16, f32} }, true},
		"specificity":       {base, func(s *KernelSpec) { s.Constraints = map[string]Constraint{"k": AtLeast(1)} }, false},
		"other traits": {func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": AtLeast(1)} },
			func(s *KernelSpec) { s.Constraints = map[string]Constraint{"k": AtMost(1)} }, true},
		"touching": {func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": AtMost(32)} },
			func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": AtLeast(32)} }, true},
		"apart": {func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": AtMost(31)} },
			func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": AtLeast(32)} }, false},
		"common multiple": {func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": MultipleOf(6)} },
			func(s *KernelSpec) {
				s.Constraints = map[string]Constraint{"m": {AllOf: []Constraint{MultipleOf(4), Range(1, 12)}}}
			}, true},
		"no common multiple": {func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": MultipleOf(6)} },
			func(s *KernelSpec) {
				s.Constraints = map[string]Constraint{"m": {AllOf: []Constraint{MultipleOf(4), Range(1, 11)}}}
			}, false},
		"words": {func(s *KernelSpec) { s.Constraints = map[string]Constraint{"layout": OneOf(StringTrait("nk"))} },
			func(s *KernelSpec) {
				s.Constraints = map[string]Constraint{"layout": {Not: &Constraint{OneOf: []TraitValue{StringTrait("nk")}}}}
			}, false},
		"vendors": {func(s *KernelSpec) { s.Requires.Vendors = []string{device.NVIDIA} },
			func(s *KernelSpec) { s.Requires.Vendors = []string{device.AMD} }, false},
		"architectures": {func(s *KernelSpec) {
			s.Requires = device.Requirement{Vendors: []string{device.NVIDIA}, MaxArch: "9.0"}
		},
			func(s *KernelSpec) {
				s.Requires = device.Requirement{Vendors: []string{device.NVIDIA}, MinArch: "10.0"}
			}, false},
		"one architecture": {func(s *KernelSpec) {
			s.Requires = device.Requirement{Vendors: []string{device.NVIDIA}, MaxArch: "10.0"}
		},
			func(s *KernelSpec) {
				s.Requires = device.Requirement{Vendors: []string{device.NVIDIA}, MinArch: "10.0"}
			}, true},
		"a feature with and without": {func(s *KernelSpec) { s.Requires.Features = []string{"isa:x"} },
			func(s *KernelSpec) { s.Requires.Forbidden = []string{"isa:x"} }, false},
	} {
		o := &recorder{}
		r, _ := mm(t, Options{Observer: o})
		for i, change := range []func(*KernelSpec){c.a, c.b} {
			register(t, r, kernel(t, fmt.Sprint("k", i), change))
		}
		var told int
		for _, e := range o.take() {
			told += b2i(e.Kind == EventTie)
		}
		require.Equal(t, b2i(c.tie), told, name)
		require.Len(t, r.Ties(), b2i(c.tie), name)
		if c.tie {
			require.Equal(t, "mm on cpu: only its name puts k0 before k1", r.Ties()[0].String())
			require.NoError(t, r.Unregister("k0"))
			require.Empty(t, r.Ties())
			register(t, r, kernel(t, "k0", c.a))
			for _, e := range o.take() {
				require.NotEqual(t, EventTie, e.Kind, "told once")
			}
		}
	}
}

// The search for a common value finds one whenever the constraints have one near their boundaries.
func TestShare(t *testing.T) {
	m := &selModel{rnd: rand.New(rand.NewPCG(3, 3))}
	def := &TraitDef{Name: "m", Type: TraitInt}
	shared := 0
	for range 3000 {
		a, fa := m.rule(0)
		b, fb := m.rule(0)
		want := false
		for v := int64(-130); v < 200 && !want; v++ {
			want = fa(v) && fb(v)
		}
		left := tieWork
		require.Equal(t, want, share(&restriction{def: def, con: &a}, &restriction{def: def, con: &b}, &left), "%v and %v", a, b)
		shared += b2i(want)
	}
	require.Greater(t, shared, 100)
	require.Less(t, shared, 2900)
}

// The digest moves with everything that decides selections, and with nothing else.
func TestDigest(t *testing.T) {
	build := func(o Options, change func(r *Registry)) string {
		r, _ := mm(t, o)
		register(t, r, kernel(t, "a", nil))
		register(t, r, kernel(t, "b", func(s *KernelSpec) { s.Constraints = map[string]Constraint{"k": AtLeast(1)} }))
		if change != nil {
			change(r)
		}
		d := r.Digest()
		require.Equal(t, d, r.Digest())
		require.Equal(t, d, r.Decide(Request{Operator: "mm"}).Table)
		return d
	}
	base := build(Options{}, nil)
	require.Equal(t, base, build(Options{}, nil))
	require.Equal(t, base, build(Options{}, func(r *Registry) {
		require.NoError(t, r.SetDeviceProviderCaps(cpu0, probed(3)))
		_, err := r.Select(Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1)})
		require.NoError(t, err)
		_, err = r.Define(Descriptor{Name: "unused"})
		require.NoError(t, err)
	}), "neither the device, nor use, nor an op without kernels")
	seen := map[string]string{base: "nothing"}
	for name, d := range map[string]string{
		"override": build(Options{Override: map[string]string{"mm": "a"}}, nil),
		"force":    build(Options{Force: map[string]string{"mm": "a"}}, nil),
		"strict":   build(Options{Strict: true}, nil),
		"disabled": build(Options{Disable: []string{"a"}}, nil),
		"oracle": build(Options{}, func(r *Registry) {
			_, err := r.RegisterOracle(Oracle{Name: "o", Adjust: func(*KernelSpec, *device.Platform, TraitView) int { return 10 }})
			require.NoError(t, err)
		}),
		"rule": build(Options{}, func(r *Registry) {
			require.NoError(t, r.SetConfig(loaded(t, `{"version": 1, "rules": [{"match": {"op": "mm"}, "use": "a"}]}`)))
		}),
		"objective": build(Options{}, func(r *Registry) {
			require.NoError(t, r.SetConfig(loaded(t, `{"version": 1, "defaults": {"objective": "latency"}}`)))
		}),
		"kernel":      build(Options{}, func(r *Registry) { register(t, r, kernel(t, "c", nil)) }),
		"unavailable": build(Options{}, func(r *Registry) { describe(t, r, kernel(t, "c", func(s *KernelSpec) { s.Unavailable = "x" })) }),
		"priority": build(Options{}, func(r *Registry) {
			require.NoError(t, r.Unregister("a"))
			register(t, r, kernel(t, "a", func(s *KernelSpec) { s.Priority = BandPortable.Plus(1) }))
		}),
		"constraint": build(Options{}, func(r *Registry) {
			require.NoError(t, r.Unregister("b"))
			register(t, r, kernel(t, "b", func(s *KernelSpec) { s.Constraints = map[string]Constraint{"k": AtLeast(2)} }))
		}),
	} {
		require.NotContains(t, seen, d, "%s and %s", name, seen[d])
		seen[d] = name
	}

	r, op := mm(t, Options{})
	register(t, r, kernel(t, "a", nil))
	_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "wrong", Priority: 50, Fn: ranMM("wrong"), SelfTest: func(*Queue) error { return errBroken }})
	require.NoError(t, err)
	before, f32 := r.Digest(), tensor.Must(tensor.New(nil, tensor.F32, 32))
	a := &mmArgs{A: f32, B: f32}
	require.NoError(t, r.NewQueue(nil).Launch(op, unsafe.Pointer(a)))
	require.Equal(t, "a", a.Ran)
	require.NotEqual(t, before, r.Digest(), "a kernel in quarantine is not what other hosts choose")
}

// The search for ties stays within its work, whatever a file describes: many kernels alike, or long lists that share no
// value.
func TestTiesOfManyKernels(t *testing.T) {
	file := func(kernels int, constraint func(i int) string) io.Reader {
		var b strings.Builder
		b.WriteString(`{"version": 1, "operators": [{"name": "a.b", "roles": ["x"], "traits": [{"name": "n", "type": "int"}]}], "kernels": [`)
		for i := range kernels {
			fmt.Fprintf(&b, `%s{"name": "k%04d", "family": "a", "mode": "b", "solution": "s", "kinds": ["cuda"], "signatures": [{"x": "f32"}],
				"unavailable": "x", "constraints": {"n": %s}}`, []string{"", ","}[min(i, 1)], i, constraint(i))
		}
		b.WriteString("]}")
		return strings.NewReader(b.String())
	}
	rec := &recorder{}
	r := New(Options{Observer: rec})
	_, err := r.LoadSpecs(file(500, func(int) string { return `{"at_least": 1}` }), "file:alike")
	require.NoError(t, err)
	require.Len(t, r.Ties(), tieWork/tieCost)
	events := rec.take()
	require.Len(t, events, tieWork/tieCost+1, "and that there may be more")
	require.Contains(t, events[len(events)-1].Detail, "not every tie")

	r = New(Options{Observer: rec})
	_, err = r.LoadSpecs(file(2, func(i int) string {
		return `{"multiple_of": 4093, "one_of": [` + strings.TrimSuffix(strings.Repeat(fmt.Sprint(i, ","), 3000), ",") + `]}`
	}), "file:long")
	require.NoError(t, err)
	require.Len(t, rec.take(), 1)
	require.Empty(t, r.Ties())
}
