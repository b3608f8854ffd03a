package registry

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Constraint restricts the values of one trait. Every part that is set must hold; the zero Constraint admits every value.
type Constraint struct {
	OneOf      []TraitValue `json:"one_of,omitempty"`
	Range      *Interval    `json:"range,omitempty"`
	MultipleOf int64        `json:"multiple_of,omitempty"`
	AtLeast    *int64       `json:"at_least,omitempty"`
	AtMost     *int64       `json:"at_most,omitempty"`
	AllOf      []Constraint `json:"all_of,omitempty"`
	AnyOf      []Constraint `json:"any_of,omitempty"`
	Not        *Constraint  `json:"not,omitempty"`
}

// Interval is a range of numbers; both ends belong to it.
type Interval [2]int64

// UnmarshalJSON reads two numbers, no fewer and no more. ErrArgument.
func (r *Interval) UnmarshalJSON(b []byte) error {
	var list []int64
	if err := json.Unmarshal(b, &list); err != nil || len(list) != len(r) {
		return fmt.Errorf("registry: range %s is not [lowest, highest]: %w", clip(string(b)), ErrArgument)
	}
	copy(r[:], list)
	return nil
}

// OneOf admits the listed values.
func OneOf(v ...TraitValue) Constraint { return Constraint{OneOf: v} }

// OneOfInts admits the listed numbers.
func OneOfInts(n ...int64) Constraint {
	var c Constraint
	for _, v := range n {
		c.OneOf = append(c.OneOf, IntTrait(v))
	}
	return c
}

// Range admits lo to hi.
func Range(lo, hi int64) Constraint { return Constraint{Range: &Interval{lo, hi}} }

// MultipleOf admits the multiples of n.
func MultipleOf(n int64) Constraint { return Constraint{MultipleOf: n} }

// AtLeast admits n and above.
func AtLeast(n int64) Constraint { return Constraint{AtLeast: &n} }

// AtMost admits n and below.
func AtMost(n int64) Constraint { return Constraint{AtMost: &n} }

// These bound constraints, which may come from files: how deep they nest, and how much they list.
const (
	maxConstraintDepth = 8
	maxConstraintSize  = 1 << 13
)

// validate checks that every value has the trait's type and that the parts make sense. The error says which part.
func (c *Constraint) validate(t TraitType, depth int) error {
	if depth > maxConstraintDepth {
		return fmt.Errorf("nested more than %d deep", maxConstraintDepth)
	}
	if c.Range != nil || c.MultipleOf != 0 || c.AtLeast != nil || c.AtMost != nil {
		switch {
		case t != TraitInt:
			return fmt.Errorf("range, multiple_of, at_least and at_most need an int trait, not %v", t)
		case c.Range != nil && c.Range[0] > c.Range[1]:
			return fmt.Errorf("range [%d,%d] is empty", c.Range[0], c.Range[1])
		case c.MultipleOf < 0:
			return fmt.Errorf("multiple_of %d", c.MultipleOf)
		}
	}
	if c.OneOf != nil && len(c.OneOf) == 0 {
		return fmt.Errorf("one_of lists no value")
	}
	for _, v := range c.OneOf {
		if v.typ != t {
			return fmt.Errorf("one_of value %q is %v, the trait is %v", v, v.typ, t)
		}
	}
	if c.AnyOf != nil && len(c.AnyOf) == 0 {
		return fmt.Errorf("any_of lists no constraint")
	}
	for _, list := range [][]Constraint{c.AllOf, c.AnyOf} {
		for i := range list {
			if err := list[i].validate(t, depth+1); err != nil {
				return err
			}
		}
	}
	if c.Not != nil {
		return c.Not.validate(t, depth+1)
	}
	return nil
}

// trivial reports whether c admits every value.
func (c *Constraint) trivial() bool {
	return c.OneOf == nil && c.Range == nil && c.MultipleOf <= 1 && c.AtLeast == nil && c.AtMost == nil &&
		len(c.AllOf) == 0 && len(c.AnyOf) == 0 && c.Not == nil
}

// Admits reports whether v satisfies c. A value that stands for all (AnyTrait) satisfies only the zero Constraint, no
// value none.
func (c *Constraint) Admits(v TraitValue) bool {
	if c.trivial() {
		return true
	}
	if v.typ == 0 || v.typ == traitAny {
		return false
	}
	switch {
	case c.OneOf != nil && !slices.Contains(c.OneOf, v),
		c.Range != nil && (v.n < c.Range[0] || v.n > c.Range[1]),
		c.MultipleOf > 1 && v.n%c.MultipleOf != 0,
		c.AtLeast != nil && v.n < *c.AtLeast,
		c.AtMost != nil && v.n > *c.AtMost,
		c.Not != nil && c.Not.Admits(v):
		return false
	}
	for i := range c.AllOf {
		if !c.AllOf[i].Admits(v) {
			return false
		}
	}
	for i := range c.AnyOf {
		if c.AnyOf[i].Admits(v) {
			return true
		}
	}
	return len(c.AnyOf) == 0
}

// size is the number of values and parts that c compares with.
func (c *Constraint) size() int {
	n := 1 + len(c.OneOf)
	for _, list := range [][]Constraint{c.AllOf, c.AnyOf} {
		for i := range list {
			n += list[i].size()
		}
	}
	if c.Not != nil {
		n += c.Not.size()
	}
	return n
}

// boundaries calls start with the first number of every interval that c tells apart, and modulus with every divisor that
// it asks about: between two starts, numbers of equal remainders have equal answers.
func (c *Constraint) boundaries(start, modulus func(int64)) {
	after := func(n int64) {
		if n != 1<<63-1 {
			start(n + 1)
		}
	}
	for _, v := range c.OneOf {
		if v.typ == TraitInt {
			start(v.n)
			after(v.n)
		}
	}
	if c.Range != nil {
		start(c.Range[0])
		after(c.Range[1])
	}
	if c.AtLeast != nil {
		start(*c.AtLeast)
	}
	if c.AtMost != nil {
		after(*c.AtMost)
	}
	if c.MultipleOf > 1 {
		modulus(c.MultipleOf)
	}
	for i := range c.AllOf {
		c.AllOf[i].boundaries(start, modulus)
	}
	for i := range c.AnyOf {
		c.AnyOf[i].boundaries(start, modulus)
	}
	if c.Not != nil {
		c.Not.boundaries(start, modulus)
	}
}

// clone is a deep copy.
func (c Constraint) clone() Constraint {
	c.OneOf = slices.Clone(c.OneOf)
	for _, p := range []**int64{&c.AtLeast, &c.AtMost} {
		if *p != nil {
			n := **p
			*p = &n
		}
	}
	if c.Range != nil {
		r := *c.Range
		c.Range = &r
	}
	c.AllOf, c.AnyOf = cloneAll(c.AllOf), cloneAll(c.AnyOf)
	if c.Not != nil {
		n := c.Not.clone()
		c.Not = &n
	}
	return c
}

func cloneAll(list []Constraint) []Constraint {
	list = slices.Clone(list)
	for i := range list {
		list[i] = list[i].clone()
	}
	return list
}

// String prints c in words: "one of 64, 128", "at least 32", "a multiple of 16".
func (c Constraint) String() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if c.OneOf != nil {
		var v []string
		for _, x := range c.OneOf {
			v = append(v, x.String())
		}
		if len(v) == 1 {
			add("%s", v[0])
		} else {
			add("one of %s", strings.Join(v, ", "))
		}
	}
	if c.Range != nil {
		add("%d to %d", c.Range[0], c.Range[1])
	}
	if c.AtLeast != nil {
		add("at least %d", *c.AtLeast)
	}
	if c.AtMost != nil {
		add("at most %d", *c.AtMost)
	}
	if c.MultipleOf > 1 {
		add("a multiple of %s", strconv.FormatInt(c.MultipleOf, 10))
	}
	for _, s := range c.AllOf {
		add("(%v)", s)
	}
	if len(c.AnyOf) > 0 {
		var v []string
		for _, s := range c.AnyOf {
			v = append(v, s.String())
		}
		add("(%s)", strings.Join(v, " or "))
	}
	if c.Not != nil {
		add("not (%v)", *c.Not)
	}
	if len(parts) == 0 {
		return "any"
	}
	return strings.Join(parts, " and ")
}
