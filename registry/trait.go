package registry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// TraitType is the type of a trait's values.
type TraitType uint8

// Types of traits.
const (
	TraitBool TraitType = iota + 1
	TraitInt
	TraitString
	TraitDType
	traitAny // of AnyTrait
)

var traitTypes = [...]string{"", "bool", "int", "string", "dtype", "any"}

// String returns the lower-case name.
func (t TraitType) String() string { return traitTypes[min(int(t), len(traitTypes)-1)] }

// MarshalText is String.
func (t TraitType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads a name. ErrArgument.
func (t *TraitType) UnmarshalText(b []byte) error {
	for i, n := range traitTypes[1:traitAny] {
		if n == string(b) {
			*t = TraitType(i + 1)
			return nil
		}
	}
	return fmt.Errorf("registry: trait type %q is not bool, int, string or dtype: %w", clip(string(b)), ErrArgument)
}

// TraitValue is one typed value of a trait. Values of different types are never equal: true is not 1. The zero value is
// no value. TraitValues can be compared and be keys.
type TraitValue struct {
	typ TraitType
	n   int64
	s   string
}

// BoolTrait, IntTrait, StringTrait and DTypeTrait make values.
func BoolTrait(b bool) TraitValue { return TraitValue{typ: TraitBool, n: int64(b2i(b))} }

// IntTrait makes a whole number.
func IntTrait(n int64) TraitValue { return TraitValue{typ: TraitInt, n: n} }

// StringTrait makes a word.
func StringTrait(s string) TraitValue { return TraitValue{typ: TraitString, s: s} }

// DTypeTrait makes a dtype.
func DTypeTrait(t tensor.DType) TraitValue { return TraitValue{typ: TraitDType, n: int64(t)} }

// AnyTrait stands in a request for every value: only kernels that do not restrict the trait qualify.
func AnyTrait() TraitValue { return TraitValue{typ: traitAny} }

// Type returns the value's type, 0 for no value.
func (v TraitValue) Type() TraitType { return v.typ }

// IsZero reports whether v is no value.
func (v TraitValue) IsZero() bool { return v.typ == 0 }

// Int returns the number of an int trait, 0 or 1 of a bool, and false for other types.
func (v TraitValue) Int() (int64, bool) { return v.n, v.typ == TraitInt || v.typ == TraitBool }

// Bool reports whether v is the bool true.
func (v TraitValue) Bool() bool { return v.typ == TraitBool && v.n != 0 }

// DType returns the dtype of a dtype trait.
func (v TraitValue) DType() (tensor.DType, bool) { return tensor.DType(v.n), v.typ == TraitDType }

// String prints the value as ParseTrait reads it.
func (v TraitValue) String() string {
	switch v.typ {
	case TraitBool:
		return strconv.FormatBool(v.n != 0)
	case TraitInt:
		return strconv.FormatInt(v.n, 10)
	case TraitString:
		return v.s
	case TraitDType:
		return tensor.DType(v.n).String()
	case traitAny:
		return "any"
	}
	return ""
}

// Compare orders values: by type, then by value.
func (v TraitValue) Compare(o TraitValue) int {
	return cmp.Or(cmp.Compare(v.typ, o.typ), cmp.Compare(v.n, o.n), cmp.Compare(v.s, o.s))
}

// ParseTrait reads a value of type t: true or false, a whole number, a word, or the name of a dtype. ErrArgument.
func ParseTrait(t TraitType, s string) (TraitValue, error) {
	switch t {
	case TraitBool:
		if s == "true" || s == "false" {
			return BoolTrait(s == "true"), nil
		}
	case TraitInt:
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return IntTrait(n), nil
		}
	case TraitString:
		return StringTrait(s), nil
	case TraitDType:
		if d, err := tensor.ParseDType(s); err == nil {
			return DTypeTrait(d), nil
		}
	}
	return TraitValue{}, fmt.Errorf("registry: trait value %q is no %v: %w", clip(s), t, ErrArgument)
}

// MarshalJSON writes a bool, a number or a string; a dtype as {"dtype": name}.
func (v TraitValue) MarshalJSON() ([]byte, error) {
	switch v.typ {
	case TraitBool:
		return json.Marshal(v.n != 0)
	case TraitInt:
		return json.Marshal(v.n)
	case TraitString:
		return json.Marshal(v.s)
	case TraitDType:
		return json.Marshal(map[string]string{"dtype": v.String()})
	case traitAny:
		return []byte(`{"any":true}`), nil
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads what MarshalJSON writes. ErrArgument.
func (v *TraitValue) UnmarshalJSON(b []byte) error {
	*v = TraitValue{}
	var d struct {
		DType *string `json:"dtype"`
		Any   bool    `json:"any"`
	}
	var (
		flag bool
		n    int64
		s    string
		err  error
	)
	switch {
	case string(b) == "null":
	case json.Unmarshal(b, &flag) == nil:
		*v = BoolTrait(flag)
	case json.Unmarshal(b, &n) == nil:
		*v = IntTrait(n)
	case json.Unmarshal(b, &s) == nil:
		*v = StringTrait(s)
	case json.Unmarshal(b, &d) == nil && d.DType != nil:
		*v, err = ParseTrait(TraitDType, *d.DType)
	case d.Any:
		*v = AnyTrait()
	default:
		err = fmt.Errorf("registry: trait value %s is no bool, whole number, string or {\"dtype\": name}: %w", clip(string(b)), ErrArgument)
	}
	return err
}

// TraitDef is one entry of an operator's schema: a named property of a call that kernels may restrict.
type TraitDef struct {
	Name     string     `json:"name"`
	Aliases  []string   `json:"aliases,omitempty"`
	Type     TraitType  `json:"type"`
	Unit     string     `json:"unit,omitempty"`
	Doc      string     `json:"doc,omitempty"`
	Required bool       `json:"required,omitempty"` // a request must supply it
	Default  TraitValue `json:"default,omitzero"`   // stands for it in a request that does not
	Dynamic  bool       `json:"dynamic,omitempty"`  // changes from call to call (tokens, batch); others are constants of a model
	// Derive reads the value from a call's record without allocating; false if this call has none. Nil where only a
	// request can say.
	Derive func(args unsafe.Pointer) (TraitValue, bool) `json:"-"`
}

// OperatorAlias is another name under which requests find an op: the operator (family.mode) of a wider vocabulary, of
// which the op serves the signatures that Formats admits.
type OperatorAlias struct {
	Name    string              `json:"name"`              // "gemm.mm"
	Roles   map[string]string   `json:"roles"`             // role of the operator: operand of the op
	Formats map[string][]string `json:"formats,omitempty"` // role: names of the formats that belong to this op; roles left out admit any
}
