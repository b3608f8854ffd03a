package gguf

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
)

// Value is one metadata value, a view of the file. The zero Value is what an absent key gives: no getter accepts it.
type Value struct {
	typ, elem Type
	n         int    // elements of an array, 1 for other values
	raw       []byte // of strings without the length, of string arrays with every length
}

// Type returns the type of the value.
func (v Value) Type() Type { return v.typ }

// Elem returns the type of the elements of an array.
func (v Value) Elem() Type { return v.elem }

// Len returns the number of elements of an array, and 1 for other values.
func (v Value) Len() int { return v.n }

// Int returns the value of any integer type, if it fits.
func (v Value) Int() (int64, bool) {
	if len(v.raw) == 0 || !v.typ.integer() {
		return 0, false
	}
	b := v.bits()
	switch v.typ {
	case Int8, Int16, Int32, Int64:
		unused := 64 - 8*len(v.raw)
		return int64(b<<unused) >> unused, true
	}
	return int64(b), b <= math.MaxInt64
}

// Uint returns the value of any integer type, if it is not negative.
func (v Value) Uint() (uint64, bool) {
	if v.typ == Uint64 {
		return v.bits(), true
	}
	i, ok := v.Int()
	return uint64(i), ok && i >= 0
}

// Float returns the value of type f32 or f64.
func (v Value) Float() (float64, bool) {
	switch v.typ {
	case Float32:
		return float64(math.Float32frombits(uint32(v.bits()))), true
	case Float64:
		return math.Float64frombits(v.bits()), true
	}
	return 0, false
}

// Bool returns the value of type bool.
func (v Value) Bool() (value, ok bool) { return v.typ == Bool && v.raw[0] == 1, v.typ == Bool }

// Str returns a copy of a string. It need not be UTF-8.
func (v Value) Str() (string, bool) {
	if v.typ != String {
		return "", false
	}
	return string(v.raw), true
}

// All walks the elements of an array; other values have none.
func (v Value) All() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.typ != Array {
			return
		}
		rest := v.raw
		for range v.n {
			n := typeSizes[v.elem]
			if v.elem == String {
				n = int(binary.LittleEndian.Uint64(rest))
				rest = rest[8:]
			}
			if !yield(Value{typ: v.elem, n: 1, raw: rest[:n:n]}) {
				return
			}
			rest = rest[n:]
		}
	}
}

// Strings returns copies of the elements of an array of strings, in two allocations whatever their number.
func (v Value) Strings() ([]string, bool) {
	if v.typ != Array || v.elem != String {
		return nil, false
	}
	list, text := make([]string, 0, v.n), string(v.raw)
	for range v.n {
		n := binary.LittleEndian.Uint64(v.raw[len(v.raw)-len(text):])
		list, text = append(list, text[8:8+n]), text[8+n:]
	}
	return list, true
}

// Ints returns the elements of an array of any integer type, if all of them fit.
func (v Value) Ints() ([]int64, bool) { return list(v, Type.integer, Value.Int) }

// Floats returns the elements of an array of f32 or f64 as f64.
func (v Value) Floats() ([]float64, bool) { return list(v, Type.float, Value.Float) }

// Bools returns the elements of an array of bool.
func (v Value) Bools() ([]bool, bool) { return list(v, Type.bool, Value.Bool) }

func list[T any](v Value, is func(Type) bool, get func(Value) (T, bool)) ([]T, bool) {
	if v.typ != Array || !is(v.elem) {
		return nil, false
	}
	all := make([]T, 0, v.n)
	for e := range v.All() {
		x, ok := get(e)
		if !ok {
			return nil, false
		}
		all = append(all, x)
	}
	return all, true
}

// bits returns a scalar's bytes as a number, not sign-extended.
func (v Value) bits() (b uint64) {
	for i, x := range v.raw {
		b |= uint64(x) << (8 * i)
	}
	return b
}

// String returns the value as text for listings; long strings and arrays are cut.
func (v Value) String() string {
	const shown = 4
	switch v.typ {
	case String:
		return quote(v.raw)
	case Array:
		var b strings.Builder
		fmt.Fprintf(&b, "%d %v [", v.n, v.elem)
		i := 0
		for e := range v.All() {
			if i > 0 {
				b.WriteByte(' ')
			}
			if i == shown {
				b.WriteString("…")
				break
			}
			b.WriteString(e.String())
			i++
		}
		return b.String() + "]"
	}
	if x, ok := v.Int(); ok {
		return strconv.FormatInt(x, 10)
	}
	if x, ok := v.Uint(); ok {
		return strconv.FormatUint(x, 10)
	}
	if x, ok := v.Float(); ok {
		return strconv.FormatFloat(x, 'g', -1, 8*len(v.raw))
	}
	if x, ok := v.Bool(); ok {
		return strconv.FormatBool(x)
	}
	return ""
}

// Keys returns the metadata keys in file order.
func (f *File) Keys() []string {
	keys := make([]string, len(f.keys))
	for i, e := range f.keys {
		keys[i] = e.key
	}
	return keys
}

// Value returns the metadata value of a key.
func (f *File) Value(key string) (Value, bool) {
	i, ok := f.byKey[key]
	if !ok {
		return Value{}, false
	}
	return f.keys[i].value, true
}

// The getters below give false for an absent key as for a value of another type; Value tells the two apart.

// String returns a metadata string.
func (f *File) String(key string) (string, bool) { return get(f, key, Value.Str) }

// Uint returns a metadata value of any integer type, if it is not negative.
func (f *File) Uint(key string) (uint64, bool) { return get(f, key, Value.Uint) }

// Int returns a metadata value of any integer type, if it fits.
func (f *File) Int(key string) (int64, bool) { return get(f, key, Value.Int) }

// Float returns a metadata value of type f32 or f64.
func (f *File) Float(key string) (float64, bool) { return get(f, key, Value.Float) }

// Bool returns a metadata value of type bool.
func (f *File) Bool(key string) (value, ok bool) { return get(f, key, Value.Bool) }

// Strings returns a metadata array of strings.
func (f *File) Strings(key string) ([]string, bool) { return get(f, key, Value.Strings) }

// Ints returns a metadata array of integers, if all of them fit.
func (f *File) Ints(key string) ([]int64, bool) { return get(f, key, Value.Ints) }

// Floats returns a metadata array of f32 or f64.
func (f *File) Floats(key string) ([]float64, bool) { return get(f, key, Value.Floats) }

func get[T any](f *File, key string, from func(Value) (T, bool)) (x T, ok bool) {
	if v, found := f.Value(key); found {
		return from(v)
	}
	return x, false
}
