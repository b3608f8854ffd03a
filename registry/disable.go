package registry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opmux/opmux/tensor"
)

// entry is one parsed item of a disable list: a kernel or provider name, for one op or all, on one device, kind or all.
type entry struct {
	text   string
	name   string
	op     string // name, alias, family.mode or operator, "" for all
	hasDev bool
	dev    tensor.Device
	exact  bool // dev names one instance, not a kind
}

// nameSet is a group of entries that comes and goes together.
type nameSet struct {
	entries []entry
	manual  bool // DisableOpProvider's and the options' own
}

// parseEntry reads "name", "name@op", "name@device" or both qualifiers in any order.
func parseEntry(text string) (entry, error) {
	parts := strings.Split(text, "@")
	e := entry{text: text, name: parts[0]}
	if err := checkName("kernel or provider", e.name); err != nil {
		if op, kernel, ok := strings.Cut(text, "="); ok && checkName("op", op) == nil && checkName("kernel", kernel) == nil {
			return entry{}, fmt.Errorf("registry: %q: a kernel of one op is written %s@%s here: %w", clip(text), kernel, op, ErrName)
		}
		return entry{}, err
	}
	for _, q := range parts[1:] {
		if d, err := tensor.ParseDevice(q); err == nil && !e.hasDev {
			e.hasDev, e.dev, e.exact = true, d, strings.Contains(q, ":")
		} else if e.op == "" && checkName("op", q) == nil {
			e.op = q
		} else {
			return entry{}, fmt.Errorf("registry: %q: qualifier %q is neither an op nor a device: %w", text, q, ErrName)
		}
	}
	return e, nil
}

// names reports whether e is about g at all, on some device.
func (e *entry) names(ops *opSet, g *Registration) bool {
	return g.is(e.name) && e.about(ops, g.op) && (!e.hasDev || e.dev.Kind == g.kind)
}

func (e *entry) about(ops *opSet, op Op) bool {
	return e.op == "" || ops.means(e.op, op) > 0
}

func (e *entry) on(dev tensor.Device) bool {
	return !e.hasDev || e.dev.Kind == dev.Kind && (!e.exact || e.dev.Index == dev.Index)
}

// covers reports whether e disables g on dev. A borrowed kernel goes with the CPU's, by its own names, and with
// ReferenceProviderName on dev.
func (e *entry) covers(ops *opSet, g *Registration, dev tensor.Device, borrowed bool) bool {
	if !e.about(ops, g.op) {
		return false
	}
	if borrowed {
		return e.name == ReferenceProviderName && e.on(dev) || g.is(e.name) && e.on(tensor.Device{})
	}
	return g.is(e.name) && e.on(dev)
}

// disabledBy returns the entry that disables g on dev, "" if none does.
func (s *state) disabledBy(g *Registration, dev tensor.Device, borrowed bool) string {
	for _, set := range s.disabled {
		for i := range set.entries {
			if set.entries[i].covers(s.ops, g, dev, borrowed) {
				return set.entries[i].text
			}
		}
	}
	return ""
}

// touchNamed marks the chains that the entries are about.
func (s *state) touchNamed(entries []entry) {
	for i := range entries {
		e := &entries[i]
		for k, list := range s.regs {
			if slices.ContainsFunc(list, func(g *Registration) bool {
				return e.name == ReferenceProviderName && k.kind == tensor.CPU || e.names(s.ops, g)
			}) {
				s.touchKind(k.op, k.kind)
			}
		}
	}
}

// unmatched lists the entries that match no registration.
func (s *state) unmatched(entries []entry) (out []entry) {
next:
	for _, e := range entries {
		if e.name == ReferenceProviderName {
			continue
		}
		for _, list := range s.regs {
			for _, g := range list {
				if e.names(s.ops, g) {
					continue next
				}
			}
		}
		out = append(out, e)
	}
	return out
}

// unknown says what of an entry is not registered: the op, the name, or the two together. by is "kernel" or "solution"
// where the name stands for one of these only. Nil if it names something.
func (s *state) unknown(e entry, by string) error {
	t := Target{Name: e.name, By: by}
	err := &UnknownNameError{Name: e.text}
	if e.op != "" && len(s.ops.named(e.op)) == 0 {
		err.Part, err.Near = fmt.Sprintf("no op is called %q", clip(e.op)), near(e.op, s.ops.operatorNames())
		return err
	}
	var ops, kinds []string
	for k, list := range s.regs {
		if !slices.ContainsFunc(list, func(g *Registration) bool { return t.Matches(g.p.Kernel, g.p.Name) }) {
			continue
		}
		about := e.about(s.ops, k.op)
		if about && (!e.hasDev || e.dev.Kind == k.kind) {
			return nil
		}
		if ops = append(ops, s.ops.desc(k.op).Name); about {
			kinds = append(kinds, k.kind.String())
		}
	}
	some := func(list []string) string {
		slices.Sort(list)
		if list = slices.Compact(list); len(list) > 4 {
			list = append(list[:4:4], "...")
		}
		return strings.Join(list, ", ")
	}
	switch {
	case len(kinds) > 0:
		err.Part = fmt.Sprintf("%s has no kernel for %v; it has for %s", e.name, e.dev.Kind, some(kinds))
	case len(ops) > 0:
		err.Part = fmt.Sprintf("%s has no kernel for %s; it has for %s", e.name, e.op, some(ops))
	case by != "" && s.registered(Target{Name: e.name}):
		err.Part = fmt.Sprintf("%s is the name of a %s, not of a %s", e.name, map[string]string{"kernel": "solution", "solution": "kernel"}[by], by)
	default:
		err.Near = s.nearest(e.name)
		if strings.Contains(e.text, "@") {
			err.Part = fmt.Sprintf("no kernel or provider is called %q", clip(e.name))
		}
	}
	return err
}

// Disable takes kernels out of every chain until restore is called: entries are a kernel's or a provider's name, alone
// or as name@op, name@device ("name@cuda", "name@cuda:1") or with both qualifiers. It returns after the new chains are
// published. An entry that matches nothing registered is an error (*UnknownNameError with the nearest names) and then
// nothing is disabled. restore undoes exactly this call, whatever happened in between; calling it twice is harmless.
func (r *Registry) Disable(entries ...string) (restore func(), err error) {
	set := &nameSet{}
	for _, text := range entries {
		e, err := parseEntry(text)
		if err != nil {
			return func() {}, err
		}
		set.entries = append(set.entries, e)
	}
	err = r.mutate(func(s *state) error {
		for _, e := range s.unmatched(set.entries) {
			return s.unknown(e, "")
		}
		s.disabled = append(slices.Clone(s.disabled), set)
		s.touchNamed(set.entries)
		return nil
	})
	if err != nil {
		return func() {}, err
	}
	return func() {
		_ = r.mutate(func(s *state) error {
			if i := slices.Index(s.disabled, set); i >= 0 {
				s.disabled = slices.Delete(slices.Clone(s.disabled), i, i+1)
				s.touchNamed(set.entries)
			}
			return nil
		})
	}, nil
}

// DisableOpProvider disables or enables a kernel or provider by exact name, for all ops and devices; scoped entries as
// in Disable are accepted. It reports whether the name matches a registration; an unmatched name is kept and takes
// effect on a later registration. ErrName for a malformed name. Enabling also removes such an entry that came from the
// options.
func (r *Registry) DisableOpProvider(name string, disabled bool) (matched bool, err error) {
	e, err := parseEntry(name)
	if err != nil {
		return false, err
	}
	err = r.mutate(func(s *state) error {
		s.seal()
		matched = len(s.unmatched([]entry{e})) == 0
		set := s.manualSet()
		i := slices.IndexFunc(set.entries, func(o entry) bool { return o.text == e.text })
		switch {
		case disabled && i < 0:
			set.entries = append(slices.Clone(set.entries), e)
		case !disabled && i >= 0:
			set.entries = slices.Delete(slices.Clone(set.entries), i, i+1)
		default:
			return nil
		}
		s.touchNamed([]entry{e})
		return nil
	})
	return matched, err
}

// manualSet is the set that DisableOpProvider and the options share.
func (s *state) manualSet() *nameSet {
	for _, set := range s.disabled {
		if set.manual {
			return set
		}
	}
	set := &nameSet{manual: true}
	s.disabled = append(slices.Clone(s.disabled), set)
	return set
}

// OpProviderDisabled reports whether DisableOpProvider, Disable or the options disable exactly this entry at present.
func (r *Registry) OpProviderDisabled(name string) bool {
	t, err := r.snapshot()
	return err == nil && t.disabled[name]
}
