package registry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Target names kernels in an override or a rule. The zero value names none.
type Target struct {
	Name    string
	By      string // "kernel", "solution" (the provider), or "": a kernel of that name, else a solution
	Exclude bool   // everything but these
	Force   bool   // also where the device lacks what the kernel requires, or the kernel is quarantined
}

// ParseTarget reads "kernel:NAME", "solution:NAME", a bare NAME (a kernel, else a solution), "!NAME", "kernel:!NAME" or
// "solution:!NAME" for everything but these, and "force:NAME" ("force:kernel:NAME", "force:solution:NAME"), which skips
// the check of what the kernel requires. ErrName.
func ParseTarget(s string) (Target, error) {
	t, rest := Target{}, s
	rest, t.Force = strings.CutPrefix(rest, "force:")
	if by, name, ok := strings.Cut(rest, ":"); ok {
		if by != "kernel" && by != "solution" {
			return Target{}, fmt.Errorf("registry: target %q: %q is not kernel, solution or force: %w", clip(s), clip(by), ErrName)
		}
		t.By, rest = by, name
	}
	if rest, t.Exclude = strings.CutPrefix(rest, "!"); t.Exclude && t.Force {
		return Target{}, fmt.Errorf("registry: target %q forces an exclusion: %w", clip(s), ErrName)
	}
	t.Name = rest
	if err := checkName("kernel or solution", t.Name); err != nil {
		return Target{}, fmt.Errorf("registry: target %q: %w", clip(s), err)
	}
	return t, nil
}

// String prints the target as ParseTarget reads it, "" for none.
func (t Target) String() string {
	s := t.Name
	if t.Exclude {
		s = "!" + s
	}
	if t.By != "" {
		s = t.By + ":" + s
	}
	if t.Force {
		s = "force:" + s
	}
	return s
}

// MarshalText is String.
func (t Target) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is ParseTarget; an empty text is no target.
func (t *Target) UnmarshalText(b []byte) (err error) {
	*t = Target{}
	if len(b) > 0 {
		*t, err = ParseTarget(string(b))
	}
	return err
}

// IsZero reports whether t names nothing.
func (t Target) IsZero() bool { return t.Name == "" }

// Matches reports whether t is about a kernel of that name and solution; Exclude and Force do not matter.
func (t Target) Matches(kernel, solution string) bool {
	return t.Name != "" && (t.By != "solution" && t.Name == kernel || t.By != "kernel" && t.Name == solution)
}

// narrow returns t as a kernel's name if it is a bare word and one of list has that name.
func (t Target) narrow(list []*Registration) Target {
	if t.By == "" && slices.ContainsFunc(list, func(g *Registration) bool { return g.p.Kernel == t.Name }) {
		t.By = "kernel"
	}
	return t
}

// Places that overrides come from, strongest first; a self-test overrides them all. A rule of a configuration says its
// file and line after fromConfig.
const (
	fromForce    = "OPMUX_FORCE"
	fromTest     = "self-test"
	fromCall     = "call"
	fromContext  = "context"
	fromOverride = "OPMUX_OVERRIDE"
	fromConfig   = "config "
)

// named is an option's target for the ops of a name.
type named struct {
	op     string
	target Target
}

// choices are the overrides of a registry's options and configuration. It is replaced, never changed: snapshots share it.
type choices struct {
	force, override []named // by op name
	config          *bound  // nil: none

	unknown map[Target]*UnknownNameError // those of force and override that nothing registered is called by, on no kind of device
}

// noticeUnknown brings choices.unknown up to date, and marks every chain if that changed.
func (s *state) noticeUnknown() {
	if s.choices == nil {
		return
	}
	unknown := map[Target]*UnknownNameError{}
	for _, n := range slices.Concat(s.choices.force, s.choices.override) {
		if t := n.target; !t.Exclude && t.Name != ReferenceProviderName && unknown[t] == nil {
			err := s.choices.unknown[t]
			if s.registered(t) {
				continue
			}
			if err == nil {
				errors.As(s.unknown(entry{text: t.String(), name: t.Name}, t.By), &err)
			}
			unknown[t] = err
		}
	}
	if !maps.Equal(unknown, s.choices.unknown) {
		next := *s.choices
		next.unknown = unknown
		s.choices, s.dirtyAll = &next, true
	}
}

// registered reports whether t names a kernel of some op on some kind of device.
func (s *state) registered(t Target) bool {
	for _, list := range s.regs {
		if slices.ContainsFunc(list, func(g *Registration) bool { return t.Matches(g.p.Kernel, g.p.Name) }) {
			return true
		}
	}
	return false
}

// namedTargets parses an option's map, by name. What is malformed is reported to bad and left out.
func namedTargets(m map[string]string, bad func(op string, err error)) (out []named) {
	for _, op := range slices.Sorted(maps.Keys(m)) {
		t, err := ParseTarget(m[op])
		if err != nil {
			bad(op, err)
			continue
		}
		out = append(out, named{op, t})
	}
	return out
}

// closest returns the target for op of the entry whose name is closest to it: its own name, then an alias or family.mode,
// then an operator.
func closest(list []named, ops *opSet, op Op, operator string) (t Target) {
	best := 0
	for _, n := range list {
		m := ops.means(n.op, op)
		if m == 0 && n.op == operator && operator != "" {
			m = 1
		}
		if m > best {
			best, t = m, n.target
		}
	}
	return t
}

// means reports how name stands for op: 3 as its name, 2 as an alias or family.mode, 1 as an operator that the op
// belongs to, 0 not at all.
func (s *opSet) means(name string, op Op) int {
	d := s.desc(op)
	if d == nil {
		return 0
	}
	if d.Name == name {
		return 3
	}
	if other, ok := s.names[name]; ok {
		return 2 * b2i(other == op)
	}
	if d.isMode(name) {
		return 2
	}
	for _, o := range d.schema().Operators {
		if o.Name == name {
			return 1
		}
	}
	return 0
}

// isMode reports whether name is d's family.mode.
func (d *Descriptor) isMode(name string) bool {
	f := len(d.Family)
	return f > 0 && d.Mode != "" && len(name) == f+1+len(d.Mode) && name[:f] == d.Family && name[f] == '.' && name[f+1:] == d.Mode
}

// named lists the ops that name stands for: one for a name, an alias or family.mode, perhaps several for an operator.
func (s *opSet) named(name string) (out []Op) {
	if op, ok := s.names[name]; ok {
		return []Op{op}
	}
	for op := range s.byID {
		if s.means(name, Op(op)) > 0 {
			out = append(out, Op(op))
		}
	}
	return out
}

// one finds the op that name stands for, if it is exactly one.
func (s *opSet) one(name string) (Op, bool) {
	if l := s.named(name); len(l) == 1 {
		return l[0], true
	}
	return 0, false
}

// choiceRequest is what an override may depend on.
type choiceRequest struct {
	op       Op
	p        *device.Platform                // nil: unknown
	operator string                          // by which the request named the op
	sig      tensor.FormatSignature          // zero: unknown
	trait    func(string) (TraitValue, bool) // nil: unknown
	call     string                          // the request's own override
	scope    choice                          // the context's
	kind     tensor.Kind                     // of the device
	all      []*Registration                 // of the op for that kind
}

// here reports whether the options or the configuration can mean devices of this kind: what they say of kernels that such
// devices do not have was meant for others.
func (c *choiceRequest) here(t Target) bool {
	if t.Name == ReferenceProviderName {
		return c.kind != tensor.CPU
	}
	return slices.ContainsFunc(c.all, func(g *Registration) bool { return t.Matches(g.p.Kernel, g.p.Name) })
}

// choice is the override in force for a request: the strongest place that says something decides. Exclusions of the
// configuration add to it, but not for kernels that a stronger place names.
type choice struct {
	target      Target
	from        string
	only        bool              // nothing but the target
	unknown     *UnknownNameError // nothing at all is called like the target: no call of the op is served
	err         error
	exclude     []Target
	excludeFrom []string
	objective   Objective // of a rule; ObjectiveDefault where none has one
}

// choose asks OPMUX_FORCE, the call, the context, OPMUX_OVERRIDE and the configuration, in this order.
func (s *choices) choose(ops *opSet, c choiceRequest) (out choice) {
	if c.scope.from == fromTest {
		return c.scope
	}
	if s == nil {
		s = &choices{}
	}
	option := func(list []named, from string, only bool) {
		t := closest(list, ops, c.op, c.operator)
		if unknown := s.unknown[t]; out.from == "" && !t.IsZero() && (unknown != nil || c.here(t)) {
			out = choice{target: t, from: from, only: only, unknown: unknown}.settled()
		}
	}
	option(s.force, fromForce, true)
	if out.from == "" && c.call != "" {
		t, err := ParseTarget(c.call)
		if err != nil {
			return choice{err: fmt.Errorf("override of the %s: %w", fromCall, err)}
		}
		out = choice{target: t, from: fromCall}.settled()
	}
	if out.from == "" {
		out = c.scope
	}
	option(s.override, fromOverride, false)
	s.config.apply(&c, &out)
	return out
}

// settled moves a target that excludes to where the exclusions are.
func (c choice) settled() choice {
	if c.target.Exclude {
		c.exclude, c.excludeFrom = append(slices.Clip(c.exclude), c.target), append(slices.Clip(c.excludeFrom), c.from)
		c.target, c.only = Target{}, false
	}
	return c
}

// over returns a scope's choice with the configuration's exclusions, which stand in the choice that it replaces.
func (c choice) over(old choice) choice {
	for i, from := range old.excludeFrom {
		if strings.HasPrefix(from, fromConfig) {
			c.exclude, c.excludeFrom = append(slices.Clip(c.exclude), old.exclude[i]), append(slices.Clip(c.excludeFrom), from)
		}
	}
	return c
}

// excluded returns the place that takes a kernel out, "" for none.
func (c *choice) excluded(kernel, solution string) string {
	for i, t := range c.exclude {
		named := c.target.Matches(kernel, solution) && !strings.HasPrefix(c.from, fromConfig)
		if t.Matches(kernel, solution) && !named {
			return c.excludeFrom[i]
		}
	}
	return ""
}

// String says who wants what, "" for no choice.
func (c *choice) String() string {
	var parts []string
	switch {
	case c.unknown != nil:
		parts = append(parts, c.from+" wants "+strings.TrimPrefix(c.unknown.Error(), "registry: "))
	case !c.target.IsZero():
		parts = append(parts, c.from+" wants "+c.target.String())
	}
	for i, t := range c.exclude {
		t.Exclude = false
		parts = append(parts, c.excludeFrom[i]+" excludes "+t.String())
	}
	return strings.Join(parts, "; ")
}

func (c *choice) isZero() bool { return c.target.IsZero() && len(c.exclude) == 0 }

// override returns the choice for every call of op on dev.
func (s *state) override(op Op, dev tensor.Device) choice {
	c := choiceRequest{op: op, kind: dev.Kind, all: s.regs[slotKey{op, dev.Kind}]}
	if s.choices != nil && s.choices.config != nil {
		c.p, _ = s.caps[dev].platform()
	}
	return s.choices.choose(s.ops, c)
}

// overridden returns c as ch makes it: the target's kernels first, or alone; also benched ones that wait to be asked for,
// and all benched ones with Force; nothing that
// is excluded. Where the target is registered but no kernel of it usable, the chain is empty, so that the choice is never
// silently ignored; so where nothing at all is called like it.
func (c *chain) overridden(ch choice) *chain {
	n := &chain{slot: c.slot, all: c.all, floors: c.floors, refWhy: c.refWhy, fallOn: c.fallOn, entry: c.entry, base: c, choice: ch}
	t, here := ch.target.narrow(c.all), ch.from == fromContext || ch.from == fromTest
	wanted := func(s *step) bool {
		if s.k.borrowed {
			return t.Matches(ReferenceProviderName, ReferenceProviderName) || here && t.Matches(s.g.p.Kernel, s.g.p.Name)
		}
		return t.Matches(s.g.p.Kernel, s.g.p.Name)
	}
	known := here || t.Name != ReferenceProviderName // whether a device borrows is for its policy to say
	var first, rest []*step
	for i := range c.steps {
		s := &c.steps[i]
		from := ch.excluded(s.g.p.Kernel, s.g.p.Name)
		switch {
		case from != "":
			n.dropped = append(n.dropped, drop{g: s.g, why: DropOverridden, detail: "excluded by " + from})
		case wanted(s):
			first = append(first, s)
		default:
			rest = append(rest, s)
		}
	}
	called := map[*Registration]bool{}
	for i := range c.bench {
		if s := &c.bench[i]; wanted(s) && (t.Force || s.guard&guardExplicit != 0 && ch.excluded(s.g.p.Kernel, s.g.p.Name) == "") {
			first = append(first, s)
			called[s.g] = true
		}
	}
	slices.SortStableFunc(first, func(a, b *step) int {
		return cmp.Or(cmp.Compare(b2i(a.k.borrowed), b2i(b.k.borrowed)), a.g.compare(b.g))
	})
	for _, d := range c.dropped {
		if !called[d.g] {
			n.dropped = append(n.dropped, d)
		}
	}
	if !t.IsZero() && (len(first) > 0 || known) && (len(first) == 0 || ch.only) {
		for _, s := range rest {
			n.dropped = append(n.dropped, drop{g: s.g, why: DropOverridden, detail: fmt.Sprintf("%s wants %s", ch.from, ch.target)})
		}
		rest = nil
	}
	kept := append(first, rest...)
	n.steps = make([]step, len(kept))
	for i, s := range kept {
		n.steps[i].copy(s)
		n.steps[i].guard &^= guardExplicit
	}
	n.finish()
	return n
}
