package registry

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
)

// catalogue holds the ops of the process, filled by package inits through Describe.
var catalogue = struct {
	sync.RWMutex
	opSet
	count int
}{opSet: opSet{names: map[string]Op{}}}

// opSet is a list of descriptors by id and by name.
type opSet struct {
	byID  []*Descriptor // by Op, nil in holes
	names map[string]Op // names and aliases

	index *operatorIndex // nil in the process-wide table, which grows
}

func (s *opSet) add(d *Descriptor) error {
	for _, n := range append([]string{d.Name}, d.Aliases...) {
		if err := checkName("op", n); err != nil {
			return err
		}
		if old, ok := s.names[n]; ok && old != d.Op {
			return fmt.Errorf("registry: op name %q belongs to %s: %w", n, s.byID[old].Name, ErrDuplicate)
		}
	}
	if int(d.Op) < len(s.byID) && s.byID[d.Op] != nil {
		return fmt.Errorf("registry: op id %d belongs to %s: %w", d.Op, s.byID[d.Op].Name, ErrDuplicate)
	}
	if d.Record != nil {
		if d.Record.Kind() != reflect.Struct || d.Record.NumField() == 0 || d.Record.Field(0).Type != reflect.TypeFor[Header]() {
			return fmt.Errorf("registry: op %s: record %v does not start with a registry.Header: %w", d.Name, d.Record, ErrSignature)
		}
	}
	if err := (&Schema{Roles: d.Roles, Traits: d.Traits}).validate(); err != nil {
		return fmt.Errorf("registry: op %s: %w", d.Name, err)
	}
	for len(s.byID) <= int(d.Op) {
		s.byID = append(s.byID, nil)
	}
	s.byID[d.Op] = d
	for _, n := range append([]string{d.Name}, d.Aliases...) {
		s.names[n] = d.Op
	}
	return nil
}

// Describe adds an op to the process-wide table that every Registry knows. It is for package inits: ids must be below
// FirstDefined, and a duplicate id or name, or a record that does not start with a Header, panics.
func Describe(d Descriptor) {
	if d.Op >= FirstDefined {
		panic(fmt.Sprintf("registry: Describe(%s): id %d is not below %d", d.Name, d.Op, FirstDefined))
	}
	catalogue.Lock()
	defer catalogue.Unlock()
	if err := catalogue.add(&d); err != nil {
		panic(err)
	}
	catalogue.count++
}

// Descriptors returns the ops given to Describe, by id.
func Descriptors() []Descriptor {
	catalogue.RLock()
	defer catalogue.RUnlock()
	var out []Descriptor
	for _, d := range catalogue.byID {
		if d != nil {
			out = append(out, d.filled())
		}
	}
	return out
}

// Lookup finds an op of the process-wide table by name, alias, family.mode or an operator that it alone belongs to.
func Lookup(name string) (Op, bool) {
	catalogue.RLock()
	defer catalogue.RUnlock()
	return catalogue.one(name)
}

// String returns the name given to Describe, or "op(n)".
func (op Op) String() string {
	catalogue.RLock()
	defer catalogue.RUnlock()
	if d := catalogue.desc(op); d != nil {
		return d.Name
	}
	return "op(" + strconv.Itoa(int(op)) + ")"
}

func (s *opSet) desc(op Op) *Descriptor {
	if int(op) < len(s.byID) {
		return s.byID[op]
	}
	return nil
}

// clone returns a copy that can grow; published snapshots keep s.
func (s *opSet) clone() *opSet {
	return &opSet{byID: slices.Clone(s.byID), names: maps.Clone(s.names), index: &operatorIndex{}}
}

// checkName admits 1 to 128 letters, digits and . _ - +
func checkName(what, s string) error {
	if s == "" || len(s) > 128 {
		return fmt.Errorf("registry: %s name of %d bytes, want 1 to 128: %w", what, len(s), ErrName)
	}
	for i, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-', c == '+':
		default:
			return fmt.Errorf("registry: %s name %q: byte %d is not a letter, a digit or one of . _ - +: %w", what, s, i, ErrName)
		}
	}
	return nil
}
