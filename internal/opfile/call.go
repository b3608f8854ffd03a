package opfile

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

var (
	tensorType = reflect.TypeFor[tensor.Tensor]()
	headerType = reflect.TypeFor[registry.Header]()
)

// describes reports whether the file is a call of d's record: all operands have the record's names. misfit is the first
// that has not.
func describes(d *registry.Descriptor, f *File) (misfit string, ok bool) {
	known := map[string]bool{}
	for _, o := range d.Operands {
		known[o.Name] = true
	}
	for _, list := range [][]Tensor{f.Inputs, f.Outputs} {
		for _, t := range list {
			if !known[t.Name] {
				return t.Name, false
			}
		}
	}
	return "", true
}

// callRecord runs a file that is a call of d's record: operands and attributes become the fields of the same name. Every
// output stands among the file's outputs with its dtype and shape; data there is the expectation.
func callRecord(d *registry.Descriptor) func(*run) {
	return func(r *run) {
		rec := reflect.New(d.Record)
		for _, o := range d.Operands {
			x := rec.Elem().FieldByIndex(fieldAt(d.Record, o)).Addr().Interface().(*tensor.Tensor)
			switch want := r.f.expected(o.Name); {
			case r.has(o.Name) && o.Role == registry.Out:
				r.fail(ErrFormat, o.Name, "is an output of %s", d.Name)
			case r.has(o.Name) && o.Role == registry.InOut:
				*x = r.copyOf(r.in(o.Name))
			case r.has(o.Name):
				*x = r.in(o.Name)
			case want != nil && o.Role == registry.Out && want.wide:
				r.fail(ErrNoOp, o.Name, "operand dtype %s", want.DType)
			case want != nil && o.Role == registry.Out:
				*x = r.alloc(want.Data.DType, want.Data.Dims()...)
			case !o.Optional && o.Role == registry.Out:
				r.fail(ErrFormat, o.Name, "list it among the outputs with its dtype and shape")
			case !o.Optional:
				r.fail(ErrFormat, o.Name, "input is missing")
			}
		}
		setFields(r, rec.Elem(), r.attrs)
		r.check(r.unread())
		r.check(ops.Launch(r.Queue, d.Op, rec.UnsafePointer()))
		for _, o := range d.Operands {
			if x := rec.Elem().FieldByIndex(fieldAt(d.Record, o)).Interface().(tensor.Tensor); o.Role != registry.In && x.Present() {
				r.put(o.Name, x, x.DType)
			}
		}
	}
}

// fieldAt finds an operand's field.
func fieldAt(record reflect.Type, o registry.Operand) []int {
	for f := range record.Fields() {
		if f.Type == tensorType && f.Offset == o.Offset {
			return f.Index
		}
	}
	panic(fmt.Sprintf("opfile: %v has no operand at %d", record, o.Offset)) // descriptors are made from records
}

// setFields gives a record's attributes, and those of structs inside it, their values.
func setFields(r *run, rec reflect.Value, a *attrs) {
	for f, v := range rec.Fields() {
		name := ops.FieldName(f.Name)
		switch {
		case !f.IsExported() || f.Type == tensorType || f.Type == headerType || f.Name == "_":
			continue
		case f.Type.Kind() == reflect.Struct:
			setFields(r, v, a.object(name))
			continue
		}
		if value, ok := a.take(name); ok {
			if err := setField(v, value); err != nil {
				r.fail(ErrFormat, a.where, "%s: %v", name, err)
			}
		}
	}
}

func setField(v reflect.Value, value any) error {
	if s, ok := v.Addr().Interface().(*ops.RopeScaling); ok {
		return setScaling(s, value)
	}
	if name, ok := value.(string); ok {
		if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
			return u.UnmarshalText([]byte(name))
		}
	}
	switch k := v.Kind(); k {
	case reflect.Bool:
		b, err := toBool(value)
		v.SetBool(b)
		return err
	case reflect.Float32, reflect.Float64:
		f, err := toFloat(value)
		if err == nil && k == reflect.Float32 && math.Abs(f) > math.MaxFloat32 && !math.IsInf(f, 0) {
			err = fmt.Errorf("%v is out of range", value)
		}
		v.SetFloat(f)
		return err
	case reflect.Int32, reflect.Int64:
		n, err := toInt(value)
		if err == nil && v.OverflowInt(n) {
			err = fmt.Errorf("%v is out of range", value)
		}
		v.SetInt(n)
		return err
	case reflect.Uint8:
		n, err := toInt(value)
		if err == nil && (n < 0 || n > math.MaxUint8) {
			err = fmt.Errorf("%v is out of range", value)
		}
		v.SetUint(uint64(n))
		return err
	case reflect.Array:
		list, ok := value.([]any)
		if ok && v.Type().Elem().Kind() == reflect.Struct && len(list) <= v.Len() { // read as JSON; it need not be full
			text, err := json.Marshal(list)
			if err == nil {
				err = json.Unmarshal(text, v.Addr().Interface())
			}
			return err
		}
		if !ok || len(list) != v.Len() {
			return fmt.Errorf("want an array of %d", v.Len())
		}
		for i, e := range list {
			if err := setField(v.Index(i), e); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("attributes of type %v cannot stand in a file", v.Type())
}

// setScaling reads a rule's name or number.
func setScaling(s *ops.RopeScaling, value any) error {
	if n, ok := value.(json.Number); ok {
		i, err := toInt(n)
		*s = ops.RopeScaling(i)
		if err == nil && (i < 0 || i > math.MaxUint8) {
			err = fmt.Errorf("%v is out of range", value)
		}
		return err
	}
	for *s = 0; s.Valid(); *s++ {
		if s.String() == value {
			return nil
		}
	}
	return fmt.Errorf("%v is no scaling", value)
}
