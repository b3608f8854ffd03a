package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/opmux/opmux/tensor"
)

// operatorRef is an op that a name of the vocabulary family.mode covers.
type operatorRef struct {
	op    Op
	alias *OperatorAlias // nil: the op's own family.mode
}

// operatorIndex is filled at the first look into it.
type operatorIndex struct {
	once sync.Once
	refs map[string][]operatorRef

	mu     sync.Mutex
	prints map[Op][]byte // of schemas
}

// operators maps every family.mode, of descriptors and of their aliases, to the ops that it covers, by id.
func (s *opSet) operators() map[string][]operatorRef {
	if s.index == nil {
		return s.indexed()
	}
	s.index.once.Do(func() { s.index.refs = s.indexed() })
	return s.index.refs
}

func (s *opSet) indexed() map[string][]operatorRef {
	byOperator := map[string][]operatorRef{}
	for id, d := range s.byID {
		if d == nil {
			continue
		}
		if d.Family != "" {
			own := d.Family + "." + d.Mode
			byOperator[own] = append(byOperator[own], operatorRef{op: Op(id)})
		}
		list := d.schema().Operators
		for i := range list {
			byOperator[list[i].Name] = append(byOperator[list[i].Name], operatorRef{Op(id), &list[i]})
		}
	}
	return byOperator
}

// covered lists the ops that a name covers: one op by its own name or alias, or those of an operator.
func (s *opSet) covered(name string) []operatorRef {
	if op, ok := s.names[name]; ok {
		return []operatorRef{{op: op}}
	}
	return s.operators()[name]
}

// covering lists the ops that a name covers, in a table that has them. *UnknownOperatorError.
func (r *Registry) covering(name string) (*table, []operatorRef, error) {
	t, err := r.snapshot()
	if err != nil {
		return nil, nil, err
	}
	refs := t.ops.covered(name)
	if len(refs) == 0 {
		if t, err = r.caughtUp(); err != nil {
			return nil, nil, err
		}
		if refs = t.ops.covered(name); len(refs) == 0 {
			return nil, nil, &UnknownOperatorError{Name: name, Near: near(name, t.ops.operatorNames())}
		}
	}
	return t, refs, nil
}

// resolve finds the op that serves (name, sig), and sig with the op's own roles. Errors: ErrUnknownOp with near names,
// ErrNoKernel where the operator has no op for the signature, ErrAmbiguous where it has two.
func (s *opSet) resolve(name string, sig tensor.FormatSignature) (Op, tensor.FormatSignature, error) {
	refs := s.covered(name)
	if len(refs) == 0 {
		return 0, sig, &UnknownOperatorError{Name: name, Near: near(name, s.operatorNames())}
	}
	if len(refs) == 1 && sig.IsZero() {
		return refs[0].op, sig, nil
	}
	var (
		found  []Op
		as     tensor.FormatSignature
		reject []string
	)
	for _, ref := range refs {
		got, why := ref.admits(s.byID[ref.op], sig)
		if why != "" {
			reject = append(reject, s.byID[ref.op].Name+": "+why)
			continue
		}
		if !slices.Contains(found, ref.op) {
			found, as = append(found, ref.op), got
		}
	}
	switch {
	case len(found) == 1:
		return found[0], as, nil
	case len(found) > 1:
		var names []string
		for _, op := range found {
			names = append(names, s.byID[op].Name)
		}
		return 0, sig, fmt.Errorf("registry: %s with signature %v is %s: %w", name, sig, strings.Join(names, " and "), ErrAmbiguous)
	}
	return 0, sig, fmt.Errorf("registry: %s has no op for signature %v (%s): %w", name, sig, strings.Join(reject, "; "), ErrNoKernel)
}

// admits returns sig in the roles of the ref's op, or why the op does not serve it.
func (ref operatorRef) admits(d *Descriptor, sig tensor.FormatSignature) (tensor.FormatSignature, string) {
	roles := d.schema().Roles
	renamed := map[string]tensor.Format{}
	for _, role := range sig.Roles() {
		f, _ := sig.Format(role)
		to := role
		if ref.alias != nil {
			var ok bool
			if to, ok = ref.alias.Roles[role]; !ok {
				return sig, fmt.Sprintf("role %q is not one of %v", role, slices.Sorted(maps.Keys(ref.alias.Roles)))
			}
			if want := ref.alias.Formats[role]; want != nil && !slices.Contains(want, string(f.Name)) {
				return sig, fmt.Sprintf("%s is %s, not %s", role, f.Name, strings.Join(want, " or "))
			}
		}
		renamed[to] = f
	}
	if roles != nil && !slices.Equal(slices.Sorted(maps.Keys(renamed)), roles) {
		want := roles
		if ref.alias != nil {
			want = slices.Sorted(maps.Keys(ref.alias.Roles))
		}
		return sig, fmt.Sprintf("roles %v, want %v", sig.Roles(), want)
	}
	if ref.alias == nil {
		return sig, ""
	}
	return tensor.Sig(renamed), ""
}

// unambiguous refuses an op that serves an operator for signatures that another op serves, too. What is an op's own name
// is never ambiguous.
func (s *opSet) unambiguous(d *Descriptor) error {
	if d.Family == "" && d.Operators == nil && d.LoadSchema == nil {
		return nil
	}
	for name, refs := range s.operators() {
		if _, own := s.names[name]; own {
			continue
		}
		for i := range refs {
			for j := range refs {
				if a, b := &refs[i], &refs[j]; a.op == d.Op && b.op != d.Op && s.overlap(a, b) {
					return fmt.Errorf("registry: op %s: %s is %s for the same formats already: %w", d.Name, name, s.byID[b.op].Name, ErrAmbiguous)
				}
			}
		}
	}
	return nil
}

// overlap reports whether some signature means both.
func (s *opSet) overlap(a, b *operatorRef) bool {
	roles := func(r *operatorRef) []string {
		if r.alias != nil {
			return append([]string{}, slices.Sorted(maps.Keys(r.alias.Roles))...)
		}
		return s.byID[r.op].schema().Roles
	}
	x, y := roles(a), roles(b)
	if x != nil && y != nil && !slices.Equal(x, y) {
		return false
	}
	if a.alias == nil || b.alias == nil {
		return true
	}
	for role, formats := range a.alias.Formats {
		other, ok := b.alias.Formats[role]
		if ok && !slices.ContainsFunc(formats, func(f string) bool { return slices.Contains(other, f) }) {
			return false
		}
	}
	return true
}

// operatorNames lists every name under which a request can find an op.
func (s *opSet) operatorNames() []string {
	return slices.Concat(slices.Sorted(maps.Keys(s.names)), slices.Sorted(maps.Keys(s.operators())))
}

// UnknownOperatorError says that no op has a name. It is ErrUnknownOp.
type UnknownOperatorError struct {
	Name string
	Near []string // known names that look like it
}

// Error names the operator and the nearest known ones.
func (e *UnknownOperatorError) Error() string {
	s := fmt.Sprintf("registry: %q: %v", clip(e.Name), ErrUnknownOp)
	if len(e.Near) > 0 {
		s += "; nearest: " + strings.Join(e.Near, ", ")
	}
	return s
}

// Unwrap returns ErrUnknownOp.
func (e *UnknownOperatorError) Unwrap() error { return ErrUnknownOp }
