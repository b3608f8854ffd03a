package opfile

import (
	"encoding/json"
	"fmt"
	"slices"
)

// attrs reads the attributes of a file. A wrong type stops the run; an attribute that nothing has read when the run ends
// is an error too, so that none is silently ignored.
type attrs struct {
	where string
	m     map[string]any
	used  map[string]bool
	inner []*attrs
}

func newAttrs(where string, m map[string]any) *attrs {
	return &attrs{where: where, m: m, used: map[string]bool{}}
}

// take returns the value of key. null is absent.
func (a *attrs) take(key string) (any, bool) {
	a.used[key] = true
	v := a.m[key]
	return v, v != nil
}

// note marks attributes that only tell where the file comes from.
func (a *attrs) note(keys ...string) {
	for _, k := range keys {
		a.used[k] = true
	}
}

// unread returns an error that names the attributes that were not read.
func (a *attrs) unread() error {
	for _, in := range a.inner {
		if err := in.unread(); err != nil {
			return err
		}
	}
	var left []string
	for k, v := range a.m {
		if v != nil && !a.used[k] {
			left = append(left, k)
		}
	}
	slices.Sort(left)
	if left != nil {
		return errorf(ErrFormat, a.where, "not known here: %q", left)
	}
	return nil
}

func (a *attrs) bad(key string, v any, want string) {
	panic(stop{errorf(ErrFormat, a.where, "%s is %v, want %s", key, v, want)})
}

func (a *attrs) float(key string, def float64) float64 {
	v, ok := a.take(key)
	if !ok {
		return def
	}
	f, err := toFloat(v)
	if err != nil {
		a.bad(key, v, "a number")
	}
	return f
}

func (a *attrs) int(key string, def int64) int64 {
	v, ok := a.take(key)
	if !ok {
		return def
	}
	n, err := toInt(v)
	if err != nil {
		a.bad(key, v, "a whole number")
	}
	return n
}

// int32 is int for attributes of that width.
func (a *attrs) int32(key string, def int64) int32 {
	n := a.int(key, def)
	if int64(int32(n)) != n {
		a.bad(key, n, "32 bits")
	}
	return int32(n)
}

// bool reads true, false, 1 or 0.
func (a *attrs) bool(key string, def bool) bool {
	v, ok := a.take(key)
	if !ok {
		return def
	}
	b, err := toBool(v)
	if err != nil {
		a.bad(key, v, "true or false")
	}
	return b
}

func (a *attrs) text(key, def string) string {
	v, ok := a.take(key)
	if !ok {
		return def
	}
	s, ok := v.(string)
	if !ok {
		a.bad(key, v, "a text")
	}
	return s
}

// list returns an array, nil if it is absent.
func (a *attrs) list(key string) []any {
	v, ok := a.take(key)
	if !ok {
		return nil
	}
	l, ok := v.([]any)
	if !ok {
		a.bad(key, v, "an array")
	}
	return l
}

// floats returns an array of numbers, nil if it is absent.
func (a *attrs) floats(key string) (out []float64) {
	for _, v := range a.list(key) {
		f, err := toFloat(v)
		if err != nil {
			a.bad(key, v, "a number")
		}
		out = append(out, f)
	}
	return out
}

// rows returns an array of arrays of whole numbers; a flat one is the only row.
func (a *attrs) rows(key string) (out [][]int64) {
	list := a.list(key)
	if len(list) > 0 {
		if _, nested := list[0].([]any); !nested {
			list = []any{list}
		}
	}
	for _, v := range list {
		row, ok := v.([]any)
		if !ok {
			a.bad(key, v, "an array")
		}
		ids := []int64{}
		for _, v := range row {
			n, err := toInt(v)
			if err != nil {
				a.bad(key, v, "a whole number")
			}
			ids = append(ids, n)
		}
		out = append(out, ids)
	}
	return out
}

// object returns nested attributes, empty if they are absent.
func (a *attrs) object(key string) *attrs {
	v, ok := a.take(key)
	m, isMap := v.(map[string]any)
	if ok && !isMap {
		a.bad(key, v, "an object")
	}
	in := newAttrs(a.where+" "+key, m)
	a.inner = append(a.inner, in)
	return in
}

func toFloat(v any) (float64, error) {
	switch v := v.(type) {
	case json.Number:
		return parseFloat(string(v))
	case string:
		return parseFloat(v)
	}
	return 0, fmt.Errorf("%v is not a number", v)
}

func toInt(v any) (int64, error) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, fmt.Errorf("%v is not a whole number", v)
	}
	if i, err := n.Int64(); err == nil {
		return i, nil
	}
	f, err := n.Float64() // 1.0
	if err != nil || f != float64(int64(f)) || f < -1<<53 || f > 1<<53 {
		return 0, fmt.Errorf("%v is not a whole number", n)
	}
	return int64(f), nil
}

func toBool(v any) (bool, error) {
	switch v := v.(type) {
	case bool:
		return v, nil
	case json.Number:
		if n, err := toInt(v); err == nil && (n == 0 || n == 1) {
			return n == 1, nil
		}
	}
	return false, fmt.Errorf("%v is neither true nor false", v)
}
