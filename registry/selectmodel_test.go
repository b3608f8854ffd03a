package registry

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// TestSelectModel compares selections in random tables with a naive model: a flat list, filtered and sorted anew for each
// request by code of its own. The cache, cold and warm, the record, handles, launches and the seam must all agree with it.
func TestSelectModel(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		m := newSelectModel(t, seed)
		for range 40 {
			m.change()
			for range 6 {
				m.ask()
			}
		}
	}
}

// selKernel is a kernel of the model. Its constraints are functions here and Constraints in the registry.
type selKernel struct {
	name, solution string
	kind           tensor.Kind
	prio           int32
	weight         int
	origin         int
	sigs           []int // of selModel.sigs
	holds          map[string]func(TraitValue) bool
	vendor         string
	features       []string
	tags           []Tag
	determinism    Determinism
	exact          bool
	notAuto        bool
	takes          bool
	pred           func(m, k int64) bool
	disabled       bool
	reg            *Kernel
}

type selModel struct {
	t       *testing.T
	rnd     *rand.Rand
	r       *Registry
	op      Op
	q       *Queue
	sigs    []tensor.FormatSignature
	kernels []*selKernel
	next    int
	handle  map[int]*Handle
	hreq    map[int]Request
	preds   bool
}

func newSelectModel(t *testing.T, seed uint64) *selModel {
	r, op := mm(t, Options{})
	m := &selModel{t: t, rnd: rand.New(rand.NewPCG(seed, 3)), r: r, op: op, q: r.NewQueue(nil), handle: map[int]*Handle{}, hreq: map[int]Request{},
		sigs: []tensor.FormatSignature{sig(t, "a=f32, b=f32"), sig(t, "a=bf16, b=q4_0"), sig(t, "a=bf16, b=bf16")}, preds: seed%4 == 0}
	return m
}

// rule makes a random constraint of int numbers and the same as a function.
func (m *selModel) rule(depth int) (Constraint, func(int64) bool) {
	n := int64(m.rnd.IntN(40))
	switch m.rnd.IntN(8 - 3*min(depth, 1)) {
	case 0:
		return AtLeast(n), func(v int64) bool { return v >= n }
	case 1:
		return AtMost(n), func(v int64) bool { return v <= n }
	case 2:
		d := int64(1 + m.rnd.IntN(6))
		return MultipleOf(d), func(v int64) bool { return v%d == 0 }
	case 3:
		return Range(n, n+7), func(v int64) bool { return n <= v && v <= n+7 }
	case 4:
		return OneOfInts(n, n+3), func(v int64) bool { return v == n || v == n+3 }
	case 5:
		a, fa := m.rule(depth + 1)
		b, fb := m.rule(depth + 1)
		return Constraint{AllOf: []Constraint{a, b}}, func(v int64) bool { return fa(v) && fb(v) }
	case 6:
		a, fa := m.rule(depth + 1)
		b, fb := m.rule(depth + 1)
		return Constraint{AnyOf: []Constraint{a, b}}, func(v int64) bool { return fa(v) || fb(v) }
	}
	a, fa := m.rule(depth + 1)
	return Constraint{Not: &a}, func(v int64) bool { return !fa(v) }
}

func (m *selModel) change() {
	switch m.rnd.IntN(6) {
	case 0, 1, 2:
		m.register()
	case 3:
		if len(m.kernels) > 0 {
			i := m.rnd.IntN(len(m.kernels))
			require.NoError(m.t, m.kernels[i].reg.Close())
			m.kernels = slices.Delete(m.kernels, i, i+1)
		}
	case 4:
		if len(m.kernels) > 0 {
			k := pick(m.rnd, m.kernels)
			k.disabled = !k.disabled
			_, err := m.r.DisableOpProvider(k.name, k.disabled)
			require.NoError(m.t, err)
		}
	}
}

func (m *selModel) register() {
	m.next++
	k := &selKernel{name: fmt.Sprintf("k%03d", m.rnd.IntN(1000)), solution: fmt.Sprint("s", m.rnd.IntN(3)), kind: pick(m.rnd, []tensor.Kind{tensor.CPU, tensor.CPU, tensor.CUDA}),
		holds: map[string]func(TraitValue) bool{}, notAuto: m.rnd.IntN(8) == 0, takes: m.rnd.IntN(4) > 0, exact: m.rnd.IntN(3) == 0}
	if slices.ContainsFunc(m.kernels, func(o *selKernel) bool { return o.name == k.name }) {
		return
	}
	s := kernel(m.t, k.name, func(s *KernelSpec) {
		s.Solution, s.Kinds, s.NotAuto, s.Signatures, s.Promises.BitExact = k.solution, []tensor.Kind{k.kind}, k.notAuto, nil, k.exact
		s.Priority = pick(m.rnd, []Band{BandPortable, BandPerformant}).Plus(uint8(m.rnd.IntN(2)))
		if m.rnd.IntN(2) == 0 {
			s.Origin, s.AnyBand, k.origin = "plugin:p", true, 2
		}
		for i := range m.sigs {
			if m.rnd.IntN(2) == 0 || i == 2 && k.sigs == nil {
				k.sigs = append(k.sigs, i)
				s.Signatures = append(s.Signatures, m.sigs[i])
			}
		}
		k.weight = 1
		s.Constraints = map[string]Constraint{}
		for _, trait := range []string{"m", "k"} {
			if m.rnd.IntN(2) == 0 {
				c, f := m.rule(0)
				s.Constraints[trait] = c
				k.holds[trait] = func(v TraitValue) bool { n, ok := v.Int(); return ok && f(n) }
				if !c.trivial() {
					k.weight++
				} else {
					delete(k.holds, trait)
				}
			}
		}
		if m.rnd.IntN(3) == 0 {
			word := pick(m.rnd, []string{"nk", "kn"})
			s.Constraints["layout"] = OneOf(StringTrait(word))
			k.holds["layout"] = func(v TraitValue) bool { return v == StringTrait(word) }
			k.weight++
		}
		if m.rnd.IntN(3) == 0 {
			k.vendor = pick(m.rnd, []string{"cpu", "nvidia", "amd"})
			s.Requires.Vendors = []string{k.vendor}
			k.weight++
		}
		if m.rnd.IntN(3) == 0 {
			k.features = []string{"paged"}
			s.Features = k.features
			k.weight++
		}
		if m.rnd.IntN(3) == 0 {
			k.tags = []Tag{pick(m.rnd, tags[:3])}
			s.Tags = k.tags
		}
		if m.rnd.IntN(3) == 0 {
			k.determinism = pick(m.rnd, []Determinism{RunToRun, BatchInvariant})
			s.Determinism = k.determinism
		}
		if m.preds && m.rnd.IntN(4) == 0 {
			k.pred = func(m, k int64) bool { return (m+k)%3 != 0 }
			s.Predicates = []Predicate{{"sum", func(v TraitView) bool { return k.pred(v.Int("m", 0), v.Int("k", 0)) }}}
			k.weight++
		}
	})
	k.prio = s.Priority.Int32()
	fn := ranMM(k.name)
	if !k.takes {
		fn = declines(ReasonShape)
	}
	var err error
	k.reg, err = m.r.RegisterKernel(s, fn)
	require.NoError(m.t, err)
	m.kernels = append(m.kernels, k)
	if k.disabled, _ = m.r.OpProviderDisabled(k.name), true; k.disabled { // an entry of an earlier kernel of that name
		require.True(m.t, m.r.OpProviderDisabled(k.name))
	}
}

var selObjectives = []Objective{ObjectiveDefault, ObjectiveDefault, ObjectiveLatency, ObjectivePortability, ObjectiveDeterminism, ObjectiveBatchInvariant, ObjectiveDebug}

// request makes a random request; half of them are plans.
func (m *selModel) request() Request {
	req := Request{Operator: pick(m.rnd, []string{"mm", "gemm.mm"}), Signature: pick(m.rnd, m.sigs), Objective: pick(m.rnd, selObjectives),
		Traits: map[string]TraitValue{"m": IntTrait(int64(m.rnd.IntN(60) - 5)), "k": IntTrait(int64(m.rnd.IntN(50)))}}
	if m.rnd.IntN(3) == 0 {
		req.Traits["layout"] = StringTrait(pick(m.rnd, []string{"nk", "kn", "other"}))
	}
	if m.rnd.IntN(8) == 0 {
		req.Traits["k"] = AnyTrait()
	}
	if m.rnd.IntN(6) == 0 {
		delete(req.Traits, "k")
		if m.rnd.IntN(2) == 0 {
			req.Each = map[string][]TraitValue{"k": {IntTrait(int64(m.rnd.IntN(50))), IntTrait(int64(m.rnd.IntN(50)))}}
		}
	}
	if m.rnd.IntN(4) == 0 {
		req.Features = []string{"paged"}
	}
	if m.rnd.IntN(5) == 0 {
		req.Solution = fmt.Sprint("s", m.rnd.IntN(3))
	}
	if m.rnd.IntN(2) == 0 {
		req.Platform = pick(m.rnd, []*device.Platform{
			{Vendor: device.NVIDIA, Kind: tensor.CUDA, Name: "N", Arch: device.Arch{Vendor: device.NVIDIA, Major: 9}, Count: 1},
			{Vendor: "cpu", Kind: tensor.CPU, Name: "C", Count: 1}})
	}
	return req
}

// eligible lists what the model says can serve req, best first.
func (m *selModel) eligible(req Request) (out []*selKernel) {
	value := func(name string) TraitValue {
		if v, ok := req.Traits[name]; ok {
			return v
		}
		if name == "layout" {
			return StringTrait("nk")
		}
		return TraitValue{}
	}
	kind := tensor.CPU
	if req.Platform != nil {
		kind = req.Platform.Kind
	}
	favours := func(k *selKernel) bool {
		switch req.Objective {
		case ObjectiveLatency:
			return slices.Contains(k.tags, TagLatency)
		case ObjectivePortability:
			return slices.Contains(k.tags, TagPortability) || k.vendor == ""
		case ObjectiveDebug:
			return k.exact
		}
		return false
	}
next:
	for _, k := range m.kernels {
		if k.kind != kind || k.disabled || req.Platform != nil && k.vendor != "" && k.vendor != req.Platform.Vendor {
			continue
		}
		if !slices.ContainsFunc(k.sigs, func(i int) bool { return m.sigs[i] == req.Signature }) || k.notAuto && req.Solution != k.solution || req.Solution != "" && req.Solution != k.solution {
			continue
		}
		if len(req.Features) > 0 && k.features == nil {
			continue
		}
		for trait, holds := range k.holds {
			each := []TraitValue{value(trait)}
			if req.Each[trait] != nil {
				each = req.Each[trait]
			}
			for _, v := range each {
				if v == AnyTrait() || !holds(v) {
					continue next
				}
			}
		}
		if k.pred != nil {
			n, _ := value("m").Int()
			kk := value("k")
			if kk.Type() != TraitInt {
				kk = IntTrait(0)
			}
			kv, _ := kk.Int()
			if !k.pred(n, kv) {
				continue
			}
		}
		switch req.Objective {
		case ObjectiveDeterminism, ObjectiveDebug:
			if k.determinism == "" && !k.exact {
				continue
			}
		case ObjectiveBatchInvariant:
			if k.determinism != BatchInvariant {
				continue
			}
		}
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b *selKernel) int {
		return cmp.Or(b2i(favours(b))-b2i(favours(a)), cmp.Compare(b.prio, a.prio), b.weight-a.weight, b.origin-a.origin, strings.Compare(a.name, b.name))
	})
	return out
}

func (m *selModel) ask() {
	req := m.request()
	want := m.eligible(req)
	check := func(s *Selection, err error) {
		if len(want) == 0 {
			require.ErrorIs(m.t, err, ErrNoKernel)
			return
		}
		require.NoError(m.t, err)
		require.Equal(m.t, want[0].name, s.Kernel())
	}
	if m.rnd.IntN(2) == 0 { // may be kept from before
		check(m.r.Select(req))
	}
	if m.rnd.IntN(4) == 0 {
		m.r.ClearCache()
	}
	d := m.r.Decide(req)
	var names, got []string
	for _, k := range want {
		names = append(names, k.name)
	}
	for _, c := range d.Choices {
		if c.Verdict != "rejected" {
			got = append(got, c.Kernel)
			require.Empty(m.t, c.Why)
		} else {
			require.NotEmpty(m.t, c.Why, c.Kernel)
		}
	}
	require.Equal(m.t, names, got, "%v", d)
	s, err := m.r.Select(req)
	check(s, err)
	ok, _ := m.r.Supports(req)
	require.Equal(m.t, len(want) > 0, ok)
	m.askHandle()
	if s == nil || req.Platform != nil {
		return
	}
	if k, ok := req.Traits["k"]; !ok || k == AnyTrait() || len(req.Traits) == 3 {
		return // a record could not show what was asked
	}
	m.launch(req, s, want)
}

// launch runs a call of the request on the selection and through the seam.
func (m *selModel) launch(req Request, s *Selection, want []*selKernel) {
	a := &mmArgs{A: tensor.Must(tensor.New(nil, req.Signature.DType("a"), 32)), B: tensor.Must(tensor.New(nil, req.Signature.DType("b"), 32))}
	a.M, _ = req.Traits["m"].Int()
	a.K, _ = req.Traits["k"].Int()
	runs := func(list []*selKernel) string {
		for _, k := range list {
			if k.takes {
				return k.name
			}
		}
		return ""
	}
	err := s.Launch(m.q, unsafe.Pointer(a))
	require.Equal(m.t, runs(want), a.Ran, err)
	require.Equal(m.t, a.Ran == "", err != nil, err)

	// The seam knows formats and derived traits, neither wishes nor predicates, and orders by priority and name.
	plain := Request{Operator: "mm", Signature: req.Signature, Traits: map[string]TraitValue{"m": req.Traits["m"], "k": req.Traits["k"]}}
	var chain []*selKernel
	for _, k := range m.kernels {
		bare := *k
		bare.pred, bare.holds = nil, map[string]func(TraitValue) bool{}
		for _, trait := range []string{"m", "k"} {
			if f := k.holds[trait]; f != nil {
				bare.holds[trait] = f
			}
		}
		one := selModel{sigs: m.sigs, kernels: []*selKernel{&bare}}
		if len(one.eligible(plain)) > 0 {
			chain = append(chain, k)
		}
	}
	slices.SortFunc(chain, func(a, b *selKernel) int {
		return cmp.Or(cmp.Compare(b.prio, a.prio), strings.Compare(a.name, b.name))
	})
	a.Ran = ""
	err = m.q.Launch(m.op, unsafe.Pointer(a))
	require.Equal(m.t, runs(chain), a.Ran, err)
	require.Equal(m.t, a.Ran == "", err != nil)
}

// askHandle compares handles that live through all changes.
func (m *selModel) askHandle() {
	i := m.rnd.IntN(4)
	if m.handle[i] == nil {
		req := m.request()
		delete(req.Traits, "m")
		if k, ok := req.Traits["k"]; req.Each != nil || ok && k == AnyTrait() || i < 2 {
			req.Each = nil
			delete(req.Traits, "k")
		}
		dynamic := []string{"m"}
		if _, ok := req.Traits["k"]; !ok {
			dynamic = append(dynamic, "k")
		}
		h, err := m.r.Prepare(req, dynamic...)
		require.NoError(m.t, err)
		m.handle[i], m.hreq[i] = h, req
	}
	h, req := m.handle[i], m.hreq[i]
	values := []int64{int64(m.rnd.IntN(60) - 5), int64(m.rnd.IntN(50))}[:len(h.Dynamic())]
	full := req
	full.Traits = map[string]TraitValue{}
	for k, v := range req.Traits {
		full.Traits[k] = v
	}
	values = values[:len(values)-b2i(m.rnd.IntN(4) == 0)] // what is missing is 0
	for j, n := range h.Dynamic() {
		full.Traits[n] = IntTrait(0)
		if j < len(values) {
			full.Traits[n] = IntTrait(values[j])
		}
	}
	want := m.eligible(full)
	s, err := h.Select(values...)
	if len(want) == 0 {
		require.ErrorIs(m.t, err, ErrNoKernel)
		return
	}
	require.NoError(m.t, err)
	require.Equal(m.t, want[0].name, s.Kernel(), "%v of %v", values, h.Dynamic())
}

// Between two starts, and with equal remainders, a constraint has one answer: what the kept answers rest on.
func TestRegionsAreExact(t *testing.T) {
	m := &selModel{rnd: rand.New(rand.NewPCG(7, 7))}
	for range 3000 {
		a, fa := m.rule(0)
		b, fb := m.rule(0)
		reg := &regions{starts: make([][]int64, 1), moduli: make([]int64, 1)}
		for _, c := range []*Constraint{&a, &b} {
			reg.add(&Registration{p: OpProvider{Spec: &Spec{}}, domain: &domain{traits: []restriction{{at: 0, con: c}}}})
		}
		slices.Sort(reg.starts[0])
		if reg.exact {
			continue
		}
		answers := map[int64][2]bool{}
		for v := int64(-130); v < 200; v++ {
			got := [2]bool{a.Admits(IntTrait(v)), b.Admits(IntTrait(v))}
			require.Equal(t, [2]bool{fa(v), fb(v)}, got, "%v and %v at %d", a, b, v)
			class := reg.of(0, v)
			if have, ok := answers[class]; ok {
				require.Equal(t, have, got, "%v and %v at %d", a, b, v)
			}
			answers[class] = got
		}
	}
}
