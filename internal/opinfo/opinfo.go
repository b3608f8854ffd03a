// Package opinfo says what stands in the argument record of an op, for listings: the command's and docs/ops.md.
package opinfo

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Attribute is a field of a record that is no tensor.
type Attribute struct {
	Name  string   `json:"name"`            // "scaling.factor" for a field of a struct
	Type  string   `json:"type"`            // of the C header: "bool", "i32", "f32[4]", "word"
	Words []string `json:"words,omitempty"` // the values of a word, by number
	Path  []string `json:"-"`               // names of the record's type and of its fields, as they stand in the source
}

// Attributes lists those of a record in order.
func Attributes(record reflect.Type) []Attribute { return attributes(record, "", nil) }

var (
	headerType = reflect.TypeFor[registry.Header]()
	tensorType = reflect.TypeFor[tensor.Tensor]()
)

func attributes(t reflect.Type, prefix string, path []string) (list []Attribute) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type == headerType || f.Type == tensorType || !f.IsExported() {
			continue
		}
		at := append(path[:len(path):len(path)], t.Name(), f.Name)
		name := prefix + ops.FieldName(f.Name)
		switch {
		case f.Type.Kind() == reflect.Struct && f.Anonymous:
			list = append(list, attributes(f.Type, prefix, at)...)
		case f.Type.Kind() == reflect.Struct:
			list = append(list, attributes(f.Type, name+".", at)...)
		case f.Type.Kind() == reflect.Array && f.Type.Elem().Kind() == reflect.Struct:
			list = append(list, attributes(f.Type.Elem(), fmt.Sprintf("%s[%d].", name, f.Type.Len()), at)...)
		default:
			a := Attribute{Name: name, Path: at}
			a.Type, a.Words = typeOf(f.Type)
			list = append(list, a)
		}
	}
	return list
}

// typeOf names a field's type.
func typeOf(t reflect.Type) (name string, words []string) {
	if t.Kind() == reflect.Array {
		name, words = typeOf(t.Elem())
		return name + "[" + strconv.Itoa(t.Len()) + "]", words
	}
	if words = wordsOf(t); words != nil {
		return "word", words
	}
	name = t.Kind().String()
	for long, short := range map[string]string{"uint": "u", "int": "i", "float": "f"} {
		if rest, ok := strings.CutPrefix(name, long); ok {
			return short + rest, nil
		}
	}
	return name, nil
}

// wordsOf lists the names of the values of a type that has such: text for 0, 1 and so on up to the first without.
func wordsOf(t reflect.Type) (words []string) {
	if t.Kind() != reflect.Uint8 || !t.Implements(reflect.TypeFor[fmt.Stringer]()) {
		return nil
	}
	text := func(n uint64) string {
		v := reflect.New(t).Elem()
		v.SetUint(n)
		return v.Interface().(fmt.Stringer).String()
	}
	for n := uint64(0); n < 64; n++ {
		s := text(n)
		if number := strconv.FormatUint(n, 10); s == number || s == text(255) || strings.Contains(s, "("+number) {
			break
		}
		words = append(words, s)
	}
	return words
}
