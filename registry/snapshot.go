package registry

import (
	"maps"
	"slices"

	"github.com/opmux/opmux/tensor"
)

// table is one immutable snapshot. The chains' announcement flags are the only words in it that change.
type table struct {
	gen        uint64
	devs       []devTable // by deviceNumber
	ops        *opSet
	caps       map[tensor.Device]capsAt
	opts       Options
	choices    *choices
	oracles    []Oracle
	quarantine *quarantine
	disabled   map[string]bool // texts of the entries in force
	entries    []entry         // in force
	warnings   []Warning
}

type devTable struct {
	ops []*chain // by Op, nil in holes
}

// deviceNumber is the position of a valid device in table.devs.
func deviceNumber(d tensor.Device) int { return int(d.Kind) + tensor.NumKinds*int(d.Index) }

// chain returns the chain of op on dev, or nil.
func (t *table) chain(op Op, dev tensor.Device) *chain {
	if !dev.Kind.Valid() {
		return nil
	}
	return t.at(deviceNumber(dev), op)
}

// at returns the chain of op on the device of that number, or nil.
func (t *table) at(dn int, op Op) *chain {
	if uint(dn) < uint(len(t.devs)) {
		if ops := t.devs[dn].ops; int(op) < len(ops) {
			return ops[op]
		}
	}
	return nil
}

// disabledBy returns the entry that disables g on dev, "" if none does.
func (t *table) disabledBy(g *Registration, dev tensor.Device) string {
	for i := range t.entries {
		if t.entries[i].covers(t.ops, g, dev, false) {
			return t.entries[i].text
		}
	}
	return ""
}

// publish compiles the dirty chains into a new table and stores it; r.mu is held.
func (r *Registry) publish() {
	s, old := &r.state, r.cur.Load()
	t := &table{gen: r.want, ops: s.ops, caps: maps.Clone(s.caps), opts: s.opts, choices: s.choices, quarantine: s.quarantine, oracles: s.oracles,
		disabled: map[string]bool{}, warnings: slices.Clone(s.warnings)}
	if s.choices.config != nil && s.choices.config.strict {
		t.opts.Strict = true
	}
	for _, set := range s.disabled {
		for _, e := range set.entries {
			t.disabled[e.text] = true
			t.entries = append(t.entries, e)
		}
	}
	if s.dirtyAll {
		for dev := range s.caps {
			s.touchDevice(dev)
		}
	}
	t.devs = append(t.devs, old.devs...)
	fresh := map[int]bool{}
	for ref := range s.dirty {
		dn := deviceNumber(ref.dev)
		for len(t.devs) <= dn {
			t.devs = append(t.devs, devTable{})
		}
		if !fresh[dn] {
			fresh[dn] = true
			ops := make([]*chain, len(s.ops.byID))
			copy(ops, t.devs[dn].ops)
			t.devs[dn].ops = ops
		}
		t.devs[dn].ops[ref.op] = s.compile(ref)
	}
	clear(s.dirty)
	s.dirtyAll = false
	r.published = r.want
	r.cur.Store(t)
}
