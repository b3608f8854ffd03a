package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// gpu describes a device elsewhere.
func gpu(vendor string, major, minor int32, features ...string) *device.Platform {
	kind := tensor.CUDA
	if vendor == device.AMD {
		kind = tensor.ROCm
	}
	return &device.Platform{Vendor: vendor, Kind: kind, Name: fmt.Sprint(vendor, " ", major, ".", minor), Arch: device.Arch{Vendor: vendor, Major: major, Minor: minor},
		Count: 1, Features: features}
}

// planned is a description for devices elsewhere, without code.
func planned(t testing.TB, name string, change func(*KernelSpec)) KernelSpec {
	return kernel(t, name, func(s *KernelSpec) {
		s.Kinds = []tensor.Kind{tensor.CUDA, tensor.ROCm}
		s.Unavailable = "not in this build"
		if change != nil {
			change(s)
		}
	})
}

func describe(t testing.TB, r *Registry, s KernelSpec) *Kernel {
	k, err := r.RegisterKernel(s, nil)
	require.NoError(t, err)
	return k
}

func ints(m, k int64) map[string]TraitValue {
	return map[string]TraitValue{"m": IntTrait(m), "k": IntTrait(k)}
}

func winner(t testing.TB, r *Registry, req Request) string {
	s, err := r.Select(req)
	require.NoError(t, err)
	return s.Kernel()
}

// W1: everything that an answer depends on is in the cache's key: the vendor of an architecture of equal number, a
// feature, what a live device reports, and every field of the request.
func TestW01CacheKey(t *testing.T) {
	r, _ := mm(t, Options{})
	for _, vendor := range []string{device.NVIDIA, device.AMD} {
		describe(t, r, planned(t, vendor+"_mm", func(s *KernelSpec) { s.Requires.Vendors = []string{vendor} }))
	}
	describe(t, r, planned(t, "links", func(s *KernelSpec) {
		s.Requires.Features = []string{"comms:nvlink"}
		s.Priority = BandSpecialized.Plus(0)
	}))
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1)}
	for range 2 {
		for p, want := range map[*device.Platform]string{gpu(device.NVIDIA, 12, 5): "nvidia_mm", gpu(device.AMD, 12, 5): "amd_mm",
			gpu(device.NVIDIA, 12, 5, "comms:nvlink"): "links"} {
			req.Platform = p
			require.Equal(t, want, winner(t, r, req))
		}
	}

	register(t, r, kernel(t, "here", func(s *KernelSpec) { s.Requires.Features = []string{"isa:x"} }))
	req.Platform = nil
	require.Equal(t, "here", winner(t, r, req), "an unprobed device refuses nothing")
	require.NoError(t, r.SetDeviceProviderCaps(cpu0, device.ProviderCaps{State: device.Probed, Platform: &device.Platform{Vendor: "cpu", Kind: tensor.CPU, Name: "c", Count: 1}}))
	_, err := r.Select(req)
	require.ErrorIs(t, err, ErrNoKernel)

	base := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1)}
	key := func(req Request) selectionKey {
		q, err := r.resolve(&req)
		require.NoError(t, err)
		return q.key()
	}
	variants := map[string]func(*Request){
		"Operator":  func(q *Request) { q.Operator = "gemm.mm" },
		"Signature": func(q *Request) { q.Signature = sig(t, "a=f16, b=f32") },
		"Traits":    func(q *Request) { q.Traits = ints(1, 2) },
		"Each":      func(q *Request) { q.Each = map[string][]TraitValue{"layout": {StringTrait("kn")}} },
		"Device":    func(q *Request) { q.Device = cuda0 },
		"Platform":  func(q *Request) { q.Platform = gpu(device.NVIDIA, 9, 0) },
		"Features":  func(q *Request) { q.Features = []string{"paged"} },
		"Objective": func(q *Request) { q.Objective = ObjectiveLatency },
		"Solution":  func(q *Request) { q.Solution = "s" },
		"Override":  func(q *Request) { q.Override = "here" },
		"Strict":    func(q *Request) { q.Strict = true },
	}
	require.Equal(t, key(base), key(base))
	for i := range reflect.TypeFor[Request]().NumField() {
		f := reflect.TypeFor[Request]().Field(i)
		if !f.IsExported() {
			require.Equal(t, "scope", f.Name, "answers in a scope are not kept")
			continue
		}
		change := variants[f.Name]
		require.NotNil(t, change, "no variant of %s", f.Name)
		q := base
		change(&q)
		require.NotEqual(t, key(base), key(q), f.Name)
	}
}

// W2: an override of a request is still checked; what it violates is in the error, and force: is the unchecked form.
func TestW02RequestOverrideChecked(t *testing.T) {
	r, _ := mm(t, Options{})
	_, err := r.Define(Descriptor{Name: "other", Family: "gemm", Mode: "other", Roles: []string{"a", "b"}})
	require.NoError(t, err)
	register(t, r, kernel(t, "plain", nil))
	register(t, r, kernel(t, "foreign", func(s *KernelSpec) { s.Mode = "other" }))
	register(t, r, kernel(t, "narrow", func(s *KernelSpec) {
		s.Requires.Features = []string{"isa:x"}
		s.Constraints = map[string]Constraint{"m": AtLeast(8)}
		s.Signatures = []tensor.FormatSignature{sig(t, "a=bf16, b=bf16")}
	}))
	require.NoError(t, r.SetDeviceProviderCaps(cpu0, device.ProviderCaps{State: device.Probed, Platform: &device.Platform{Vendor: "cpu", Kind: tensor.CPU, Name: "c", Count: 1}}))
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1), Override: "kernel:narrow"}
	_, err = r.Select(req)
	require.ErrorIs(t, err, ErrOverride)
	var e *OverrideError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "call", e.From)
	for _, text := range []string{"capability feature: wants isa:x", "format: wants a=", "trait m: wants at least 8, got 1"} {
		require.ErrorContains(t, err, text)
	}
	req.Override = "foreign"
	_, err = r.Select(req)
	require.ErrorIs(t, err, ErrOverride)
	require.ErrorContains(t, err, "names no kernel of mm")
	req.Override = "force:narrow"
	require.Equal(t, "narrow", winner(t, r, req))
	_, err = r.DisableOpProvider("narrow", true)
	require.NoError(t, err)
	_, err = r.Select(req)
	require.ErrorContains(t, err, "disabled", "what is disabled is not there to be forced")
	req.Override = "a b"
	_, err = r.Select(req)
	require.ErrorIs(t, err, ErrRequest)
	req.Override = "plain"
	require.Equal(t, "plain", winner(t, r, req))
}

// W3: the caller's own override beats options and context, and a pinned kernel is beaten by nothing: it runs or the launch
// fails. Weights of another kernel's layout are refused before.
func TestW03PinnedKernel(t *testing.T) {
	r, op := mm(t, Options{Override: map[string]string{"gemm.mm": "second"}})
	for i, name := range []string{"first", "second", "third"} {
		register(t, r, kernel(t, name, func(s *KernelSpec) {
			s.Priority = BandPerformant.Plus(uint8(3 - i))
			s.Layouts = []string{name + "-layout"}
		}))
	}
	q := r.NewQueue(nil)
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1)}
	require.Equal(t, "second", winner(t, r, req), "the variable")
	x, err := ParseTarget("third")
	require.NoError(t, err)
	scoped := q.With(WithOverride(t.Context(), op, x))
	s, err := scoped.Select(req)
	require.NoError(t, err)
	require.Equal(t, "third", s.Kernel(), "the context beats the variable")
	req.Override = "first"
	s, err = scoped.Select(req)
	require.NoError(t, err)
	require.Equal(t, "first", s.Kernel(), "the call beats both")

	p, err := r.Plan(req)
	require.NoError(t, err)
	better := register(t, r, kernel(t, "better", func(s *KernelSpec) { s.Priority = BandSpecialized.Plus(0) }))
	f32 := tensor.Must(tensor.New(nil, tensor.F32, 32))
	a := &mmArgs{A: f32, B: f32, M: 1, K: 1}
	require.NoError(t, p.Launch(scoped, unsafe.Pointer(a)))
	require.Equal(t, "first", a.Ran, "neither a scope nor a better kernel takes a pinned one's place")
	require.NoError(t, p.CheckLayout("first-layout"))
	require.ErrorIs(t, p.CheckLayout("second-layout"), ErrWeights)
	restore, err := r.Disable("first")
	require.NoError(t, err)
	err = p.Launch(q, unsafe.Pointer(a))
	require.ErrorIs(t, err, ErrDisabled)
	require.ErrorContains(t, err, "first: disabled")
	restore()
	require.NoError(t, p.Launch(q, unsafe.Pointer(a)))
	require.NoError(t, better.Close())
	require.NoError(t, r.Unregister("first"))
	require.ErrorIs(t, p.Launch(q, unsafe.Pointer(a)), ErrNoKernel)
}

// W4: a misspelt trait is an error on both sides, and a restricted trait that a request leaves open refuses the kernel.
func TestW04TraitsHaveASchema(t *testing.T) {
	r, _ := mm(t, Options{})
	_, err := r.RegisterKernel(kernel(t, "x", func(s *KernelSpec) { s.Constraints = map[string]Constraint{"kk": AtLeast(1)} }), ranMM("x"))
	require.ErrorIs(t, err, ErrSpec)
	require.ErrorIs(t, err, ErrUnknownName)
	require.ErrorContains(t, err, "constraints.kk")
	require.ErrorContains(t, err, "nearest: k")
	register(t, r, kernel(t, "restricts", func(s *KernelSpec) {
		s.Constraints = map[string]Constraint{"k": MultipleOf(8), "layout": OneOf(StringTrait("nk"))}
	}))
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: map[string]TraitValue{"m": IntTrait(1)}}
	_, err = r.Select(req)
	var e *NoKernelError
	require.ErrorAs(t, err, &e)
	require.Equal(t, []Why{{Kind: WhyTrait, Name: "k", Want: "a multiple of 8", Have: "unspecified"}}, e.Decision().Choices[0].Why, "layout has a default")
	req.Traits["k"] = AnyTrait()
	_, err = r.Select(req)
	require.ErrorContains(t, err, "trait k: wants a multiple of 8, got any")
	for name, v := range map[string]TraitValue{"kk": IntTrait(8), "k": BoolTrait(true), "layout": IntTrait(1)} {
		bad := req
		bad.Traits = map[string]TraitValue{"m": IntTrait(1), name: v}
		_, err = r.Select(bad)
		require.ErrorIs(t, err, ErrRequest, name)
		var re *RequestError
		require.ErrorAs(t, err, &re)
		require.Equal(t, "traits."+name, re.Field)
	}
	_, err = r.Select(Request{Operator: "mm", Signature: req.Signature})
	require.ErrorContains(t, err, "traits.m: is required")
	req.Traits["k"] = IntTrait(16)
	require.Equal(t, "restricts", winner(t, r, req))
	require.NotEqual(t, IntTrait(1), BoolTrait(true), "true is not 1")
}

// W5: a request may ask for several values of a trait; the kernel must take all of them, and the answer is kept.
func TestW05SeveralValues(t *testing.T) {
	r, _ := mm(t, Options{})
	register(t, r, kernel(t, "some", func(s *KernelSpec) {
		s.Priority = BandSpecialized.Plus(0)
		s.Constraints = map[string]Constraint{"k": OneOfInts(64, 128)}
	}))
	register(t, r, kernel(t, "all", nil))
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: map[string]TraitValue{"m": IntTrait(1)}}
	for want, values := range map[string][]TraitValue{"some": {IntTrait(64), IntTrait(128)}, "all": {IntTrait(64), IntTrait(96)}} {
		req.Each = map[string][]TraitValue{"k": values}
		for range 2 {
			require.Equal(t, want, winner(t, r, req))
		}
	}
	require.Equal(t, CacheStats{Hits: 2, Misses: 2, Size: 2}, r.CacheStats())
	for field, bad := range map[string]Request{
		"each.k":      {Operator: "mm", Traits: ints(1, 1), Each: map[string][]TraitValue{"k": {IntTrait(1)}}},
		"each.layout": {Operator: "mm", Traits: ints(1, 1), Each: map[string][]TraitValue{"layout": {}}},
	} {
		_, err := r.Select(bad)
		var e *RequestError
		require.ErrorAs(t, err, &e)
		require.Equal(t, field, e.Field)
	}
}

// W6: the order of registration never matters; a tie is told when it arises, is an error for strict requests, and a kernel
// that must be asked for does not win by accident.
func TestW06OrderIsTotal(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e"}
	spec := func(name string) KernelSpec {
		return kernel(t, name, func(s *KernelSpec) {
			if name >= "d" {
				s.Constraints = map[string]Constraint{"k": AtLeast(1)}
			}
		})
	}
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1)}
	var digest string
	for seed := range uint64(20) {
		r, _ := mm(t, Options{})
		rnd := rand.New(rand.NewPCG(seed, 1))
		for _, i := range rnd.Perm(len(names)) {
			register(t, r, spec(names[i]))
		}
		require.Equal(t, "d", winner(t, r, req), "more specific, then by name")
		if digest == "" {
			digest = r.Digest()
		}
		require.Equal(t, digest, r.Digest())
		require.NoError(t, r.Unregister("d"))
		require.NotEqual(t, digest, r.Digest())
		register(t, r, spec("d"))
		require.Equal(t, "d", winner(t, r, req), "registering anew does not demote")
		require.Equal(t, digest, r.Digest())
		d := r.Decide(req)
		require.Equal(t, []string{"e"}, d.Ties)
	}

	o := &recorder{}
	r, op := mm(t, Options{Observer: o})
	require.NoError(t, r.Seal())
	register(t, r, spec("b"))
	register(t, r, spec("d"))
	require.Empty(t, o.take(), "unlike in specificity")
	register(t, r, spec("a"))
	events := o.take()
	require.Len(t, events, 1)
	require.Equal(t, [3]any{EventTie, "a", "b"}, [3]any{events[0].Kind, events[0].From, events[0].To})
	require.Equal(t, []Tie{{"mm", tensor.CPU, "a", "b"}}, r.Ties())
	require.NoError(t, r.Unregister("d"))
	req.Strict = true
	_, err := r.Select(req)
	require.ErrorIs(t, err, ErrAmbiguous)
	require.ErrorContains(t, err, "between a and b")
	req.Strict = false
	require.Equal(t, "a", winner(t, r, req))

	register(t, r, kernel(t, "asked", func(s *KernelSpec) {
		s.NotAuto = true
		s.Priority = BandSpecialized.Plus(0)
	}))
	require.Equal(t, "a", winner(t, r, req))
	f32 := tensor.Must(tensor.New(nil, tensor.F32, 32))
	a := &mmArgs{A: f32, B: f32, M: 1, K: 1}
	q := r.NewQueue(nil)
	require.NoError(t, q.Launch(op, unsafe.Pointer(a)))
	require.Equal(t, "a", a.Ran)
	req.Solution = "asked"
	require.Equal(t, "asked", winner(t, r, req))
	s, err := r.Select(req)
	require.NoError(t, err)
	require.NoError(t, s.Launch(q, unsafe.Pointer(a)))
	require.Equal(t, "asked", a.Ran)

	register(t, r, kernel(t, "needs_b", func(s *KernelSpec) {
		s.Priority = BandSpecialized.Plus(1)
		s.Required = []string{"b"}
	}))
	a = &mmArgs{A: f32, M: 1, K: 1}
	require.NoError(t, q.Launch(op, unsafe.Pointer(a)))
	require.Equal(t, "a", a.Ran, "a call without the operand that a kernel requires passes it over")
}

// W8: an objective does what it says: determinism, batch invariance and debug leave kernels out, the others rank.
func TestW08ObjectivesCount(t *testing.T) {
	r, _ := mm(t, Options{})
	for i, k := range []struct {
		name string
		tag  Tag
		det  Determinism
		p    Traits
	}{{"fastest", "", "", Traits{Nondeterministic: true}}, {"low", TagLatency, "", Traits{}}, {"wide", TagThroughput, RunToRun, Traits{}},
		{"rows", TagPortability, BatchInvariant, Traits{}}, {"exact", "", "", Traits{BitExact: true}}} {
		register(t, r, kernel(t, k.name, func(s *KernelSpec) {
			s.Priority = []Priority{BandSpecialized.Plus(3), BandSpecialized.Plus(0), BandPerformant.Plus(3), BandPerformant.Plus(2), BandPortable.Plus(0)}[i]
			s.Determinism, s.Promises = k.det, k.p
			if k.tag != "" {
				s.Tags = []Tag{k.tag}
			}
			s.Requires.Vendors = []string{"cpu"}
		}))
	}
	op, ok := r.Lookup("mm")
	require.True(t, ok)
	_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "odd", Priority: -41, Fn: ranMM("odd"), Traits: Traits{Nondeterministic: true, BitExact: true}})
	require.NoError(t, err)
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1)}
	for o, want := range map[Objective][]string{
		ObjectiveDefault:        {"fastest", "low", "wide", "rows", "exact", "odd_mm"},
		ObjectiveLatency:        {"low", "fastest", "wide", "rows", "exact", "odd_mm"},
		ObjectiveThroughput:     {"wide", "fastest", "low", "rows", "exact", "odd_mm"},
		ObjectivePortability:    {"rows", "odd_mm", "fastest", "low", "wide", "exact"},
		ObjectiveDeterminism:    {"wide", "rows", "exact"},
		ObjectiveBatchInvariant: {"rows"},
		ObjectiveDebug:          {"exact", "wide", "rows"},
	} {
		req.Objective = o
		var got []string
		for _, c := range r.Decide(req).Choices {
			if c.Verdict != "rejected" {
				got = append(got, c.Kernel)
			}
		}
		require.Equal(t, want, got, o)
		text, err := o.MarshalText()
		require.NoError(t, err)
		back, err := ParseObjective(string(text))
		require.NoError(t, err)
		require.Equal(t, o, back)
	}
	_, err = r.RegisterKernel(kernel(t, "x", func(s *KernelSpec) { s.Tags = []Tag{"fast"} }), ranMM("x"))
	require.ErrorContains(t, err, `tags: "fast" is not one of`)
	_, err = ParseObjective("fast")
	require.ErrorIs(t, err, ErrArgument)
}

// W9: oracles stand in a ranked list under their names, move the generation, and do no harm when they fail.
func TestW09Oracles(t *testing.T) {
	o := &recorder{}
	r, _ := mm(t, Options{Observer: o})
	for _, name := range []string{"a", "b", "c"} {
		register(t, r, kernel(t, name, func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": AtLeast(int64(name[0] - 'a'))} }))
	}
	likes := func(kernel string) func(*KernelSpec, *device.Platform, TraitView) int {
		return func(s *KernelSpec, _ *device.Platform, _ TraitView) int {
			if s.Name == kernel {
				return 12
			}
			return 10
		}
	}
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(9, 1)}
	require.Equal(t, "a", winner(t, r, req))
	before := r.Digest()
	removeB, err := r.RegisterOracle(Oracle{Name: "rules", Rank: 1, Adjust: likes("b")})
	require.NoError(t, err)
	require.Equal(t, "b", winner(t, r, req), "an answer kept from before is not used")
	require.NotEqual(t, before, r.Digest())
	_, err = r.RegisterOracle(Oracle{Name: "rules", Rank: 7, Adjust: likes("c")})
	require.ErrorIs(t, err, ErrDuplicate)
	removeC, err := r.RegisterOracle(Oracle{Name: "measured", Rank: 7, Adjust: func(s *KernelSpec, p *device.Platform, v TraitView) int {
		require.NotNil(t, p)
		if s.Name == "b" && v.Int("m", 0) > 10 {
			return 0
		}
		return likes("c")(s, p, v)
	}})
	require.NoError(t, err)
	require.Equal(t, []string{"measured", "rules"}, r.Oracles())
	d := r.Decide(req)
	require.Equal(t, "b", d.Winner, "both like one: the objective, the priority and the specificity are equal, the name decides")
	require.Equal(t, [2]string{"rules", "measured"}, [2]string{d.Choices[0].Oracle, d.Choices[1].Oracle})
	require.Equal(t, 12, d.Choices[0].Score.Oracle)
	require.Equal(t, "b", winner(t, r, req))
	req.Traits = ints(11, 1)
	require.Equal(t, "c", winner(t, r, req), "the stronger one speaks against b there, within an interval of the kernels")
	removeC()
	require.Equal(t, "b", winner(t, r, req))
	removeB()
	removeB()
	require.Equal(t, "a", winner(t, r, req))
	require.Equal(t, before, r.Digest())

	o.take()
	for name, adjust := range map[string]func(*KernelSpec, *device.Platform, TraitView) int{
		"answered 20": func(*KernelSpec, *device.Platform, TraitView) int { return 20 },
		"answered -1": func(*KernelSpec, *device.Platform, TraitView) int { return -1 },
		"panicked":    func(*KernelSpec, *device.Platform, TraitView) int { panic("no") },
	} {
		remove, err := r.RegisterOracle(Oracle{Name: "bad", Adjust: adjust})
		require.NoError(t, err)
		for range 2 {
			r.ClearCache()
			require.Equal(t, "a", winner(t, r, req))
		}
		var told []Event
		for _, e := range o.take() {
			if e.Kind == EventOracle {
				told = append(told, e)
			}
		}
		require.Len(t, told, 3, "once for each kernel")
		require.Contains(t, told[0].Detail, name)
		remove()
	}
	for _, bad := range []Oracle{{Name: "x"}, {Name: "a b", Adjust: likes("a")}} {
		_, err := r.RegisterOracle(bad)
		require.Error(t, err)
	}
}

// W10: a miss is kept like an answer, and its text is made when somebody reads it.
func TestW10MissesAreKept(t *testing.T) {
	r, _ := mm(t, Options{})
	var asked atomic.Int64
	register(t, r, kernel(t, "never", func(s *KernelSpec) {
		s.Predicates = []Predicate{{"never", func(TraitView) bool { asked.Add(1); return false }}}
	}))
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1)}
	_, err := r.Select(req)
	require.ErrorIs(t, err, ErrNoKernel)
	require.EqualValues(t, 1, asked.Load())
	for range 5 {
		_, err = r.Select(req)
		require.ErrorIs(t, err, ErrNoKernel)
	}
	require.EqualValues(t, 1, asked.Load(), "kept")
	require.Equal(t, CacheStats{Hits: 5, Misses: 1, Size: 1}, r.CacheStats())
	require.ErrorContains(t, err, "trait never: does not hold")
	require.EqualValues(t, 2, asked.Load(), "the text asks again")
	for range 5 {
		ok, d := r.Supports(req)
		require.False(t, ok)
		require.Equal(t, "never", d.Choices[0].Why[0].Name)
	}
	require.EqualValues(t, 3, asked.Load(), "a probe's record is made once")
	h, err := r.Prepare(req)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() { _, err = h.Select() }))
	require.ErrorIs(t, err, ErrNoKernel)
	require.EqualValues(t, 3, asked.Load())
	register(t, r, kernel(t, "now", nil))
	require.Equal(t, "now", winner(t, r, req), "a registration ends a miss")
}

// W11: the number of kept answers depends on the kernels, not on the traffic, and has a bound where nothing is known.
func TestW11CacheIsBounded(t *testing.T) {
	r, _ := mm(t, Options{})
	register(t, r, kernel(t, "small", func(s *KernelSpec) {
		s.Priority = BandSpecialized.Plus(0)
		s.Constraints = map[string]Constraint{"m": AtMost(16)}
	}))
	register(t, r, kernel(t, "eights", func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": MultipleOf(8)} }))
	register(t, r, kernel(t, "any", nil))
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32")}
	for m := range int64(3000) {
		req.Traits = ints(m, 1)
		want := "any"
		if m <= 16 {
			want = "small"
		} else if m%8 == 0 {
			want = "eights"
		}
		require.Equal(t, want, winner(t, r, req))
	}
	require.LessOrEqual(t, r.CacheStats().Size, 2*8)
	d := r.Decide(req)
	require.Equal(t, "2999", d.Traits["m"], "a kept answer speaks of the values asked for")
	require.True(t, d.Kept)
	s, err := r.Select(req)
	require.NoError(t, err)
	require.Equal(t, "2999", s.Decision().Traits["m"])

	register(t, r, kernel(t, "odd", func(s *KernelSpec) {
		s.Priority = BandSpecialized.Plus(1)
		s.Predicates = []Predicate{{"odd", func(v TraitView) bool { return v.Int("m", 0)%2 == 1 }}}
	}))
	h, err := r.Prepare(Request{Operator: "mm", Signature: req.Signature, Traits: map[string]TraitValue{"k": IntTrait(1)}}, "m")
	require.NoError(t, err)
	for m := range int64(maxSelections + 500) {
		s, err := h.Select(m)
		require.NoError(t, err)
		require.Equal(t, m%2 == 1, s.Kernel() == "odd")
		require.LessOrEqual(t, len(*h.cur.Load().kept.Load()), maxSelections)
	}
	require.LessOrEqual(t, r.CacheStats().Size, maxSelections)
	_, err = r.RegisterOracle(Oracle{Name: "o", Adjust: func(*KernelSpec, *device.Platform, TraitView) int { return 10 },
		Starts: func(Op, string) []int64 { return []int64{5} }})
	require.NoError(t, err)
	require.NoError(t, r.Unregister("odd"))
	for m := range int64(100) {
		req.Traits = ints(m, 1)
		winner(t, r, req)
	}
	require.LessOrEqual(t, r.CacheStats().Size, 3*8, "an oracle that says where it changes its mind costs intervals, not values")
}

// W12: descriptions and records leave nothing out, and every list has one order.
func TestW12ListingsAreWholeAndSorted(t *testing.T) {
	r, _ := mm(t, Options{})
	full := KernelSpec{Name: "full", Family: "gemm", Mode: "mm", Solution: "sol", Kinds: []tensor.Kind{tensor.CUDA, tensor.ROCm}, Priority: BandSpecialized.Plus(1),
		Tier: Vendor, Promises: Traits{BatchInvariant: true}, Doc: "the-doc", Source: "the-source",
		Spec: Spec{Requires: device.Requirement{Vendors: []string{device.NVIDIA}, MaxArch: "9.0"}, Signatures: []tensor.FormatSignature{sig(t, "a=f16, b=q4_0")},
			Features: []string{"paged", "fused"}, Constraints: map[string]Constraint{"k": MultipleOf(64)}, Predicates: []Predicate{{"the-predicate", func(TraitView) bool { return true }}},
			Tags: []Tag{TagLatency}, Props: map[string]string{"fused_bias": "yes"}, Thresholds: map[string][]int64{"m": {17, 32}}, Determinism: BatchInvariant,
			Required: []string{"b"}, Layouts: []string{"tiles"}, NotAuto: true, Origin: "plugin:p", AnyBand: true, Version: "v1.2", Unavailable: "the-cause", Weights: tiles{}}}
	describe(t, r, full)
	register(t, r, kernel(t, "b", nil))
	register(t, r, kernel(t, "a", nil))
	k, err := r.DescribeKernel("full")
	require.NoError(t, err)
	text := k.String()
	for _, want := range []string{"full", "gemm.mm", "sol", "cuda, rocm", "SPECIALIZED+1 (50)", "vendor", "the-doc", "the-source", device.NVIDIA, "<= 9.0", "a=dense[storage=f16], b=ggml[storage=q4_0]", "fused, paged",
		"k a multiple of 64", "the-predicate", "latency", "fused_bias = yes", "m 17 32", "batch-invariant", "required:     b", "layouts:      tiles", "automatic:    false",
		"plugin:p v1.2", "the-cause", "weights:      tiles", "batch_invariant"} {
		require.Contains(t, text, want)
	}
	j, err := json.Marshal(k)
	require.NoError(t, err)
	for _, typ := range []reflect.Type{reflect.TypeFor[KernelSpec](), reflect.TypeFor[Spec]()} {
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name == "" || name == "-" { // the embedded Spec; Weights, of which preprocessor is the name
				continue
			}
			require.Contains(t, string(j), `"`+name+`":`)
		}
	}
	require.Equal(t, []string{"gemm.mm"}, r.ListOperators())
	require.Equal(t, []string{"a", "b", "full"}, r.ListKernels("", ""))
	require.Empty(t, r.ListKernels("gemm", "bmm"))
	solutions, err := r.ListSolutions("mm")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "sol"}, solutions)
	require.NoError(t, r.Unregister("a"))
	require.NoError(t, r.Unregister("b"))
	require.NoError(t, r.Unregister("full"))
	require.Empty(t, r.ListOperators(), "an operator without kernels is none")

	describe(t, r, full)
	d := r.Decide(Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1), Features: []string{"split"}, Platform: gpu(device.AMD, 9, 5),
		Solution: "other", Objective: ObjectiveDeterminism, Override: "!sol"})
	var kinds []string
	for _, w := range d.Choices[0].Why {
		kinds = append(kinds, w.Kind)
		require.NotContains(t, w.String(), "unknown")
	}
	require.Equal(t, []string{WhyCapability, WhyFormat, WhyFeature, WhyTrait, WhySolution, WhyOverride, WhyPolicy}, slices.Compact(kinds))
	again := r.Decide(Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1), Platform: gpu(device.NVIDIA, 10, 0)})
	require.Contains(t, again.String(), "max-arch")
}

// tiles is a weight preprocessor in name.
type tiles struct{}

func (tiles) ID() string                         { return "tiles" }
func (tiles) Check(any) error                    { return nil }
func (tiles) Apply(*Pinned, any) (string, error) { return "tiles", nil }

// W13: a prepared request costs nothing on the heap, hit or miss, whatever its dynamic values.
func TestW13HandleDoesNotAllocate(t *testing.T) {
	r, _ := mm(t, Options{})
	register(t, r, kernel(t, "some", func(s *KernelSpec) {
		s.Constraints = map[string]Constraint{"m": {AllOf: []Constraint{AtLeast(4), MultipleOf(4)}}, "k": AtMost(64)}
	}))
	h, err := r.Prepare(Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32")}, "m", "k")
	require.NoError(t, err)
	found := 0
	for m := range int64(16) {
		for _, k := range []int64{1, 64, 65} {
			_, err := h.Select(m, k)
			require.Equal(t, m >= 4 && m%4 == 0 && k <= 64, err == nil)
			require.Zero(t, testing.AllocsPerRun(20, func() {
				if _, err := h.Select(m, k); err == nil {
					found++
				}
			}))
		}
	}
	require.NotZero(t, found)
	require.Equal(t, []string{"m", "k"}, h.Dynamic())
	for _, dynamic := range [][]string{{"layout"}, {"mm"}, {"m", "m"}, {"m", "k", "m", "k", "m"}} {
		_, err := r.Prepare(Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32")}, dynamic...)
		require.ErrorIs(t, err, ErrRequest, dynamic)
	}
}

// W18: a priority is a band and an offset that stays in it, and a band belongs to an origin.
func TestW18PrioritiesStayInTheirBand(t *testing.T) {
	for b, want := range map[Band]int32{BandPortable: -40, BandPerformant: 0, BandSpecialized: 40, BandPlugin: 80} {
		for offset := range uint8(4) {
			p := b.Plus(offset)
			require.Equal(t, want+10*int32(offset), p.Int32())
			require.Equal(t, p, PriorityOf(p.Int32()))
			text, err := p.MarshalText()
			require.NoError(t, err)
			var back Priority
			require.NoError(t, back.UnmarshalText(text))
			require.Equal(t, p, back)
		}
	}
	require.EqualValues(t, -1000, ReferencePriority.Int32())
	require.EqualValues(t, 20, Priority{}.Int32(), "the default is PERFORMANT+2")
	for n := int32(-2000); n < 300; n++ {
		p := PriorityOf(n)
		require.NoError(t, p.validate(), n)
		require.True(t, p.Int32() <= n || p == BandPortable.Plus(0) || p == ReferencePriority, n)
	}
	for _, text := range []string{"", "FAST", "PLUGIN+4", "REFERENCE+1", "PORTABLE+", "PORTABLE+10", "portable"} {
		require.ErrorIs(t, (&Priority{}).UnmarshalText([]byte(text)), ErrArgument, text)
	}
	r, _ := mm(t, Options{})
	for _, bad := range []Priority{BandPortable.Plus(4), Band(5).Plus(0), Band(20).Plus(0), BandReference.Plus(1)} {
		_, err := r.RegisterKernel(kernel(t, "x", func(s *KernelSpec) { s.Priority = bad }), ranMM("x"))
		require.ErrorIs(t, err, ErrSpec, bad)
		require.ErrorContains(t, err, "priority")
	}
	_, err := r.RegisterKernel(kernel(t, "x", func(s *KernelSpec) { s.Priority, s.Origin = BandPlugin.Plus(0), "builtin" }), ranMM("x"))
	require.ErrorContains(t, err, "belongs to plugins")
	require.Empty(t, r.ListKernels("", ""))
}

// W19: every field of a description is checked; a refusal names the field and registers nothing, and what the caller does
// to its own copy later does not matter.
func TestW19RegistrationIsChecked(t *testing.T) {
	r, _ := mm(t, Options{})
	fn := ranMM("x")
	for field, change := range map[string]func(*KernelSpec){
		"name":                  func(s *KernelSpec) { s.Name = "a b" },
		"family":                func(s *KernelSpec) { s.Family = "" },
		"mode":                  func(s *KernelSpec) { s.Mode = "" },
		"solution":              func(s *KernelSpec) { s.Solution = "" },
		"kinds":                 func(s *KernelSpec) { s.Kinds = nil },
		"kinds: ":               func(s *KernelSpec) { s.Kinds = []tensor.Kind{tensor.CPU, tensor.CPU} },
		"signatures":            func(s *KernelSpec) { s.Signatures = nil },
		"signatures[0]":         func(s *KernelSpec) { s.Signatures = []tensor.FormatSignature{sig(t, "a=f32")} },
		"signatures[0]: is no":  func(s *KernelSpec) { s.Signatures = []tensor.FormatSignature{{}} },
		"priority":              func(s *KernelSpec) { s.Priority = Priority{Band: 3, Offset: 1} },
		"tier":                  func(s *KernelSpec) { s.Tier = Reference },
		"requires":              func(s *KernelSpec) { s.Requires.Vendors = []string{"acme"} },
		"features":              func(s *KernelSpec) { s.Features = []string{"No Spaces"} },
		"constraints.k":         func(s *KernelSpec) { s.Constraints = map[string]Constraint{"k": OneOf(StringTrait("64"))} },
		"constraints.layout":    func(s *KernelSpec) { s.Constraints = map[string]Constraint{"layout": AtLeast(1)} },
		"constraints.m":         func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": Range(2, 1)} },
		"constraints.m: one_of": func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": {OneOf: []TraitValue{}}} },
		"constraints.m: any_of": func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": {AnyOf: []Constraint{}}} },
		"constraints.m: nested": func(s *KernelSpec) {
			c := AtLeast(1)
			for range 20 {
				c = Constraint{Not: new(c)}
			}
			s.Constraints = map[string]Constraint{"m": c}
		},
		"constraints.nothing":      func(s *KernelSpec) { s.Constraints = map[string]Constraint{"nothing": {}} },
		"predicates":               func(s *KernelSpec) { s.Predicates = []Predicate{{Name: "p"}} },
		"tags":                     func(s *KernelSpec) { s.Tags = []Tag{"made_up"} },
		"thresholds.layout":        func(s *KernelSpec) { s.Thresholds = map[string][]int64{"layout": {1}} },
		"determinism: is promised": func(s *KernelSpec) { s.Determinism, s.Promises.Nondeterministic = RunToRun, true },
		"determinism":              func(s *KernelSpec) { s.Determinism = "mostly" },
		"required":                 func(s *KernelSpec) { s.Required = []string{"c"} },
		"origin":                   func(s *KernelSpec) { s.Origin = "elsewhere" },
	} {
		_, err := r.RegisterKernel(kernel(t, "x", change), fn)
		require.ErrorIs(t, err, ErrSpec, field)
		var e *SpecError
		require.ErrorAs(t, err, &e)
		want, _, _ := strings.Cut(field, ": ")
		require.Equal(t, want, e.Field)
		require.ErrorContains(t, err, strings.TrimSuffix(field, " "))
	}
	_, err := r.RegisterKernel(kernel(t, "x", nil), nil)
	require.ErrorIs(t, err, ErrNil)
	_, err = r.RegisterKernel(kernel(t, "x", func(s *KernelSpec) { s.Mode = "nn" }), fn)
	require.ErrorIs(t, err, ErrUnknownOp)
	require.ErrorContains(t, err, "nearest")
	_, err = RegisterTypedKernelIn(r, kernel(t, "x", nil), func(*Queue, *probeArgs) Status { return 0 })
	require.ErrorIs(t, err, ErrSignature, "a launcher of another op")
	_, err = RegisterTypedKernelIn[mmArgs](r, kernel(t, "x", nil), nil)
	require.ErrorIs(t, err, ErrNil)
	require.Empty(t, r.ListKernels("", ""), "nothing of all that was registered")
	typed, err := RegisterTypedKernelIn(r, kernel(t, "typed", nil), func(*Queue, *mmArgs) Status { return 0 })
	require.NoError(t, err)
	require.NoError(t, typed.Close())

	s := kernel(t, "", func(s *KernelSpec) {
		s.Constraints = map[string]Constraint{"k": OneOfInts(64)}
		s.Props = map[string]string{"p": "1"}
		s.Kinds = []tensor.Kind{tensor.CPU, tensor.XPU}
		s.Solution = "sol"
	})
	k := register(t, r, s)
	require.Equal(t, "sol_gemm_mm", k.Spec().Name)
	_, err = r.RegisterKernel(s, fn)
	require.ErrorIs(t, err, ErrDuplicate)
	s.Constraints["k"].OneOf[0] = IntTrait(1)
	s.Signatures[0], s.Props["p"] = sig(t, "a=f16, b=f16"), "2"
	require.Equal(t, OneOfInts(64), k.Spec().Constraints["k"])
	require.Equal(t, "1", k.Spec().Props["p"])
	k.Spec().Props["p"] = "3"
	sel, err := r.Select(Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 64)})
	require.NoError(t, err)
	sel.Props()["p"] = "4"
	require.Equal(t, "1", sel.Spec().Props["p"])
}

// W20: selections, handles and records go on undisturbed while kernels, oracles, capabilities and the cache change. Run it
// under the race detector.
func TestW20SelectionWhileTheTableChanges(t *testing.T) {
	r, _ := mm(t, Options{Observer: &recorder{}})
	register(t, r, kernel(t, "base", func(s *KernelSpec) { s.Priority = BandPortable.Plus(0) }))
	f32 := sig(t, "a=f32, b=f32")
	h, err := r.Prepare(Request{Operator: "mm", Signature: f32, Traits: map[string]TraitValue{"k": IntTrait(64)}}, "m")
	require.NoError(t, err)
	var stop atomic.Bool
	var readers, writers sync.WaitGroup
	fail := func(err error) {
		if err != nil {
			t.Error(err)
			stop.Store(true)
		}
	}
	for w := range 2 {
		writers.Go(func() {
			for i := 0; i < 60 && !stop.Load(); i++ {
				name := fmt.Sprintf("w%d_%d", w, i%3)
				k, err := r.RegisterKernel(kernel(t, name, func(s *KernelSpec) {
					s.Constraints = map[string]Constraint{"m": AtLeast(int64(8 * w))}
				}), ranMM(name))
				fail(err)
				if err != nil {
					return
				}
				remove, err := r.RegisterOracle(Oracle{Name: name, Adjust: func(*KernelSpec, *device.Platform, TraitView) int { return 10 + i%2 }})
				fail(err)
				fail(r.SetDeviceProviderCaps(cpu0, probed(int32(i))))
				_, err = r.DisableOpProvider(name, i%2 == 0)
				fail(err)
				r.ClearCache()
				_ = r.Digest()
				remove()
				fail(k.Close())
			}
		})
	}
	q := r.NewQueue(nil)
	for range 4 {
		readers.Go(func() {
			f := tensor.Must(tensor.New(nil, tensor.F32, 32))
			for m := int64(0); !stop.Load(); m = (m + 1) % 20 {
				s, err := h.Select(m)
				fail(err)
				if err != nil {
					return
				}
				_ = s.Decision().String()
				if strings.HasPrefix(s.Kernel(), "w1") && m < 8 {
					t.Errorf("%s for m=%d", s.Kernel(), m)
				}
				a := &mmArgs{A: f, B: f, M: m, K: 64}
				fail(s.Launch(r.NewQueue(nil), unsafe.Pointer(a)))
				s, err = q.Select(Request{Operator: "gemm.mm", Signature: f32, Traits: ints(m, 64)})
				fail(err)
				_, d := r.Supports(Request{Operator: "gemm.mm", Signature: f32, Traits: ints(m, 1)})
				if d.Winner == "" || s.Kernel() == "" {
					t.Error("no winner")
				}
				r.ListKernels("", "")
				Diff(r.Snapshot(), r.Snapshot())
				r.Ties()
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	require.Equal(t, []string{"base"}, r.ListKernels("", ""))
}

// W21: descriptions for every vendor exist in every process, so a plan for a machine elsewhere needs none of its parts.
func TestW21PlansNeedNoDevice(t *testing.T) {
	r, _ := mm(t, Options{})
	describe(t, r, planned(t, "hopper", func(s *KernelSpec) {
		s.Requires = device.Requirement{Vendors: []string{device.NVIDIA}, MinArch: "9.0", MaxArch: "9.0"}
		s.Priority = BandSpecialized.Plus(0)
	}))
	describe(t, r, planned(t, "portable", func(s *KernelSpec) { s.Priority = BandPortable.Plus(0) }))
	req := Request{Operator: "gemm.mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1)}
	for p, want := range map[*device.Platform]string{gpu(device.NVIDIA, 9, 0): "hopper", gpu(device.NVIDIA, 10, 0): "portable", gpu(device.AMD, 9, 5): "portable"} {
		req.Platform = p
		d := r.Decide(req)
		require.Equal(t, want, d.Winner, "%v", d)
		require.True(t, d.Planned)
		s, err := r.Select(req)
		require.NoError(t, err)
		require.ErrorIs(t, s.Launch(r.NewQueue(nil), unsafe.Pointer(&mmArgs{})), ErrPlan)
		p.Arch.Major = 1 // the caller's own copy
		d.Kept = true
		require.Equal(t, d, s.Decision(), "an answer keeps the machine that it was asked for")
	}
}

// W29: an error of selection carries the record: every kernel with its reasons as data.
func TestW29ErrorsCarryTheRecord(t *testing.T) {
	r, _ := mm(t, Options{})
	register(t, r, kernel(t, "k", func(s *KernelSpec) { s.Constraints = map[string]Constraint{"m": AtLeast(8)} }))
	describe(t, r, kernel(t, "absent", func(s *KernelSpec) { s.Unavailable = "needs a part" }))
	for m := range int64(3) { // one kept miss, three texts
		_, err := r.Select(Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(m, 1)})
		require.ErrorIs(t, err, ErrNoKernel)
		var e *NoKernelError
		require.ErrorAs(t, err, &e)
		require.Contains(t, e.Decision().Choices[1].Why, Why{Kind: WhyTrait, Name: "m", Want: "at least 8", Have: fmt.Sprint(m)})
		require.Equal(t, []Why{{Kind: WhyUnavailable, Text: "needs a part"}}, e.Decision().Choices[0].Why)
		require.ErrorContains(t, err, fmt.Sprintf("got %d", m))
		j, err := json.Marshal(e.Decision())
		require.NoError(t, err)
		require.Contains(t, string(j), `"kind":"trait","name":"m","want":"at least 8"`)
	}
	require.Equal(t, 1, r.CacheStats().Size)
	_, err := r.Select(Request{Operator: "gemm.mn"})
	var u *UnknownOperatorError
	require.ErrorAs(t, err, &u)
	require.Contains(t, u.Near, "gemm.mm")
	require.ErrorIs(t, err, ErrUnknownOp)
	for _, condition := range []error{ErrNoKernel, ErrOverride, ErrRequest, ErrAmbiguous} {
		require.False(t, errors.Is(err, condition))
	}
	_, err = r.SelectFirst(Request{Operator: "nothing"}, Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1)})
	require.ErrorIs(t, err, ErrNoKernel, "the last one's")
	s, err := r.SelectFirst(Request{Operator: "nothing"}, Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(8, 1)})
	require.NoError(t, err)
	require.Equal(t, "k", s.Kernel())
}
