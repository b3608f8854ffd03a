package registry

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/opmux/opmux/device"
)

// neutral is what an oracle answers that has nothing to say.
const neutral = 10

// Oracle weighs kernels by what their descriptions do not say: measurements, rules of a machine. Its word stands above
// objective and priority. Of several the strongest that is not neutral decides.
type Oracle struct {
	Name string // unique in a registry
	Rank int    // higher is stronger; equal ranks by name
	// Adjust answers 0 (last) to 19 (first), 10 for "nothing to say". It must be pure, quick and safe for concurrent
	// use, and must not change spec. A panic or an answer outside the range counts as 10 and is told once a kernel.
	Adjust func(spec *KernelSpec, p *device.Platform, traits TraitView) int
	// Starts lists, for an int trait of an op, the first values of the intervals within which Adjust answers alike, so
	// that answers can be kept by interval. Nil: Adjust may tell every value from every other.
	Starts func(op Op, trait string) []int64

	told *sync.Map // wrongKernel: kernels that it went wrong for
}

// wrongKernel names a kernel whether or not it is still registered.
type wrongKernel struct {
	op     Op
	kernel string
}

// RegisterOracle adds an oracle; selections made before are not kept. Errors: ErrName, ErrNil (Adjust), ErrDuplicate.
func (r *Registry) RegisterOracle(o Oracle) (remove func(), err error) {
	if err := checkName("oracle", o.Name); err != nil {
		return func() {}, err
	}
	if o.Adjust == nil {
		return func() {}, fmt.Errorf("registry: oracle %s: Adjust: %w", o.Name, ErrNil)
	}
	o.told = &sync.Map{}
	named := func(x Oracle) bool { return x.Name == o.Name }
	err = r.mutate(func(s *state) error {
		if slices.ContainsFunc(s.oracles, named) {
			return fmt.Errorf("registry: oracle %s: %w", o.Name, ErrDuplicate)
		}
		s.oracles = append(slices.Clone(s.oracles), o)
		sort.SliceStable(s.oracles, func(i, j int) bool {
			a, b := &s.oracles[i], &s.oracles[j]
			return cmp.Or(cmp.Compare(b.Rank, a.Rank), strings.Compare(a.Name, b.Name)) < 0
		})
		s.dirtyAll = true // chains keep which values of traits are alike
		return nil
	})
	if err != nil {
		return func() {}, err
	}
	return func() {
		_ = r.mutate(func(s *state) error {
			i := slices.IndexFunc(s.oracles, func(x Oracle) bool { return x.told == o.told })
			if i < 0 {
				return errUnchanged
			}
			s.oracles = slices.Delete(slices.Clone(s.oracles), i, i+1)
			s.dirtyAll = true
			return nil
		})
	}, nil
}

// Oracles names the registered oracles, strongest first.
func (r *Registry) Oracles() (names []string) {
	if t, err := r.snapshot(); err == nil {
		for _, o := range t.oracles {
			names = append(names, o.Name)
		}
	}
	return names
}

// oracle asks the oracles about a kernel, and returns the answer and whose it is.
func (t *table) oracle(g *Registration, p *device.Platform, v TraitView) (score int, by string) {
	for i := range t.oracles {
		if n := t.oracles[i].ask(g, p, v); n != neutral {
			return n, t.oracles[i].Name
		}
	}
	return neutral, ""
}

func (o *Oracle) ask(g *Registration, p *device.Platform, v TraitView) (n int) {
	wrong := func(text string) {
		n = neutral
		if _, known := o.told.LoadOrStore(wrongKernel{g.op, g.p.Kernel}, true); !known {
			v.q.tell(Event{Kind: EventOracle, Op: g.op, OpName: v.q.d.Name, Device: v.q.c.slot.dev, Kernel: g.p.Kernel,
				Provider: g.p.Name, Detail: "oracle " + o.Name + " " + text})
		}
	}
	defer func() {
		if e := recover(); e != nil {
			wrong(fmt.Sprintf("panicked: %v", e))
		}
	}()
	if n = o.Adjust(g.described(), p, v); n < 0 || n > 19 {
		wrong(fmt.Sprintf("answered %d, not 0 to 19", n))
	}
	return n
}

// starts asks for the intervals of an op's trait; false if every value has to be looked at.
func (o *Oracle) starts(op Op, def *TraitDef) (list []int64, ok bool) {
	if def.Type != TraitInt {
		return nil, true
	}
	if o.Starts == nil {
		return nil, false
	}
	defer func() {
		if recover() != nil {
			list, ok = nil, false
		}
	}()
	return o.Starts(op, def.Name), true
}
