package registry

import (
	"fmt"
	"slices"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Tie is a pair of kernels of which only the name decides for some requests: they have equal priority, specificity and
// origin, and calls exist that both take. An objective or an oracle may still tell them apart.
type Tie struct {
	Op      string      `json:"op"`
	Kind    tensor.Kind `json:"kind"`
	Kernel  string      `json:"kernel"` // which wins
	Against string      `json:"against"`
}

// String prints the tie in words.
func (t Tie) String() string {
	return fmt.Sprintf("%s on %v: only its name puts %s before %s", t.Op, t.Kind, t.Kernel, t.Against)
}

// tieWork bounds what one call or change spends on looking for ties, in comparisons of a constraint with a value:
// descriptions may come from a file, and every kernel has to be compared with every other. A tie that is told costs
// tieCost of it.
const (
	tieWork = 1 << 26
	tieCost = 1 << 16
)

// Ties lists the ties of the registered kernels, by op, kind and name, at most 1024. Each is also told once, when it
// arises, as an EventTie. Kernels without a Spec are not looked at: the seam orders equal priorities by name, as
// documented.
func (r *Registry) Ties() (out []Tie) {
	left := tieWork
	r.eachOp(func(t *table, op Op, d *Descriptor) {
		var before []*Registration
		for g := range t.registered(op) {
			for _, o := range before {
				if o.ties(g, &left) {
					out = append(out, Tie{d.Name, g.kind, o.p.Kernel, g.p.Kernel})
				}
			}
			before = append(before, g)
		}
	})
	return out
}

// tellTies tells of the ties that the registration of g makes, within what is left of the change's work; r.mu is held.
func (s *state) tellTies(g *Registration) {
	if s.tieWork <= 0 {
		return // told already
	}
	defer func() {
		if s.tieWork <= 0 {
			s.events = append(s.events, Event{Kind: EventTie, Op: g.op, OpName: s.ops.desc(g.op).Name, Device: tensor.Device{Kind: g.kind},
				Detail: "so many kernels at once that not every tie was looked for"})
		}
	}()
	for _, o := range s.regs[slotKey{g.op, g.kind}] {
		if o == g || !o.ties(g, &s.tieWork) {
			continue
		}
		a, b := o, g
		if g.compare(o) < 0 {
			a, b = g, o
		}
		key := [4]string{a.kind.String(), s.ops.desc(g.op).Name, a.p.Kernel, b.p.Kernel}
		if s.tied[key] {
			continue
		}
		if s.tied == nil {
			s.tied = map[[4]string]bool{}
		}
		s.tied[key] = true
		s.events = append(s.events, Event{Kind: EventTie, Op: g.op, OpName: key[1], Device: tensor.Device{Kind: g.kind},
			Kernel: a.p.Kernel, Provider: a.p.Name, From: a.p.Kernel, To: b.p.Kernel, Detail: "only the name decides"})
	}
}

// ties reports whether only names order g and o for some request. It takes what it costs from left and finds nothing when
// nothing is left.
func (g *Registration) ties(o *Registration, left *int) bool {
	a, b := g.p.Spec, o.p.Spec
	if *left <= 0 || a == nil || b == nil || g.kind != o.kind || g.p.Priority != o.p.Priority || a.NotAuto || b.NotAuto || g.originRank() != o.originRank() ||
		g.domain.weight != o.domain.weight || !meets(&a.Requires, &b.Requires) || !g.domain.meets(o.domain, left) {
		return false
	}
	*left -= tieCost
	return true
}

// meets reports whether some device may satisfy both. Bounds of versions and sizes are always satisfied by a device that
// is large and new enough, unless one excludes what the other needs.
func meets(a, b *device.Requirement) bool {
	shared := func(x, y []string) bool {
		return slices.ContainsFunc(x, func(s string) bool { return slices.Contains(y, s) })
	}
	if len(a.Vendors) > 0 && len(b.Vendors) > 0 && !shared(a.Vendors, b.Vendors) || shared(a.Features, b.Forbidden) || shared(b.Features, a.Forbidden) {
		return false
	}
	return !above(a.MinArch, b.MaxArch) && !above(b.MinArch, a.MaxArch)
}

// above reports whether the version lo is certainly greater than hi.
func above(lo, hi string) bool {
	if lo == "" || hi == "" {
		return false
	}
	var x, y [2]int
	fmt.Sscanf(lo, "%d.%d", &x[0], &x[1])
	fmt.Sscanf(hi, "%d.%d", &y[0], &y[1])
	return slices.Compare(x[:], y[:]) > 0
}

// meets reports whether some request lies in both domains.
func (dom *domain) meets(o *domain, left *int) bool {
	if dom.sigs != nil && o.sigs != nil {
		both := false
		for s := range dom.sigs {
			if *left--; o.sigs[s] {
				both = true
				break
			}
		}
		if !both {
			return false
		}
	}
	for i := range dom.traits {
		for j := range o.traits {
			a, b := &dom.traits[i], &o.traits[j]
			if a.at == b.at && !share(a, b, left) {
				return false
			}
		}
	}
	return *left > 0
}

// share reports whether some value satisfies both restrictions of one trait.
func share(a, b *restriction, left *int) bool {
	cost := a.con.size() + b.con.size()
	for v := range samples(a.def.Type, a.con, b.con) {
		if *left -= cost; *left <= 0 {
			return false
		}
		if a.con.Admits(v) && b.con.Admits(v) {
			return true
		}
	}
	return false
}

// samples yields values of which at least one satisfies both constraints if any value does, but for remarkably large
// divisors. The order is always the same.
func samples(t TraitType, cons ...*Constraint) func(yield func(TraitValue) bool) {
	return func(yield func(TraitValue) bool) {
		var values []TraitValue
		starts, period := []int64{0}, int64(1)
		for _, c := range cons {
			c.listed(func(v TraitValue) { values = append(values, v) })
			c.boundaries(func(n int64) { starts = append(starts, n) }, func(n int64) {
				if n <= maxModulus {
					period = min(period/gcd(period, n)*n, maxModulus)
				}
			})
		}
		switch t {
		case TraitBool:
			values = append(values, BoolTrait(false), BoolTrait(true))
		case TraitDType:
			for d := tensor.None; d < 64; d++ { // dtypes are bits of a word elsewhere, too
				if d.Valid() {
					values = append(values, DTypeTrait(d))
				}
			}
		case TraitString:
			values = append(values, StringTrait("some other word"))
		}
		for _, v := range values {
			if !yield(v) {
				return
			}
		}
		if t != TraitInt {
			return
		}
		for _, s := range starts {
			for i := range period + 1 {
				if s+i >= s && !yield(IntTrait(s+i)) || s-i <= s && !yield(IntTrait(s-i)) {
					return
				}
			}
		}
	}
}

// listed calls f for every value that c names.
func (c *Constraint) listed(f func(TraitValue)) {
	for _, v := range c.OneOf {
		f(v)
	}
	for _, list := range [][]Constraint{c.AllOf, c.AnyOf} {
		for i := range list {
			list[i].listed(f)
		}
	}
	if c.Not != nil {
		c.Not.listed(f)
	}
}
