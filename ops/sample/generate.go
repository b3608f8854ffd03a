package sample

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// maxBytes bounds the memory of one operand.
const maxBytes = 1 << 32

// generator makes one record.
type generator struct {
	*Args
	recipe *recipe
	key    stream
}

func (g *generator) make() error {
	for name := range g.c.operands() {
		if !slices.ContainsFunc(g.desc.Operands, func(o registry.Operand) bool { return o.Name == name }) {
			return fmt.Errorf("no operand %q", name)
		}
	}
	symbols := Symbols(g.desc)
	g.shape = maps.Clone(g.recipe.shape)
	if g.shape == nil {
		g.shape = Shape{}
	}
	for _, s := range symbols {
		if _, ok := g.shape[s]; !ok && !slices.Contains(g.recipe.derived, s) {
			g.shape[s] = defaultExtent
		}
	}
	for s, n := range g.c.Shape {
		if !slices.Contains(symbols, s) {
			return fmt.Errorf("no symbol %q, it has %s", s, strings.Join(symbols, " "))
		}
		g.shape[s] = n
	}
	if g.recipe.derive != nil {
		if err := g.recipe.derive(g); err != nil {
			return err
		}
	}
	record := g.Record()
	for _, o := range g.desc.Operands {
		x := (*tensor.Tensor)(unsafe.Add(record, o.Offset))
		g.areas = append(g.areas, area{op: o, x: x})
		if !o.Optional || g.has(o.Name) {
			t, err := g.dtype(&o)
			if err != nil {
				return fmt.Errorf("operand %s: %w", o.Name, err)
			}
			x.DType, x.Layout, x.Device = t, g.c.Layouts[o.Name], g.c.Device
		}
	}
	for i := range g.areas {
		if err := g.place(&g.areas[i]); err != nil {
			return fmt.Errorf("operand %s: %w", g.areas[i].op.Name, err)
		}
	}
	if err := g.attributes(); err != nil {
		return err
	}
	for i := range g.areas {
		if err := g.fill(&g.areas[i]); err != nil {
			return fmt.Errorf("operand %s: %w", g.areas[i].op.Name, err)
		}
	}
	if g.c.InPlace {
		if err := g.inPlace(); err != nil {
			return err
		}
	}
	for i := range g.areas {
		if m := g.areas[i].mem; m != nil && m.orig == nil {
			m.orig = slices.Clone(m.now)
		}
	}
	if g.desc.Validate != nil {
		return g.desc.Validate(record, g.c.Device)
	}
	return nil
}

// defaultExtent is the extent of a symbol that neither case nor recipe gives; a multiple of most block lengths.
const defaultExtent = 64

// operands returns the names of operands that the case gives.
func (c *Case) operands() map[string]bool {
	set := map[string]bool{}
	for _, m := range []any{c.Types, c.Layouts, c.Forms, c.Values, c.Want} {
		for _, k := range reflect.ValueOf(m).MapKeys() {
			set[k.String()] = true
		}
	}
	for _, n := range c.With {
		set[n] = true
	}
	return set
}

// has reports whether an optional operand is present.
func (g *generator) has(operand string) bool {
	if t, ok := g.c.Types[operand]; ok {
		return t != tensor.None
	}
	_, ok := g.c.Values[operand]
	return ok || slices.Contains(g.c.With, operand)
}

// dtype returns the dtype of an operand: the case's, that of the operand that it follows, or the first of its class.
func (g *generator) dtype(o *registry.Operand) (tensor.DType, error) {
	if t := g.c.Types[o.Name]; t != tensor.None {
		return t, nil
	}
	if name, ok := strings.CutPrefix(o.DType, "like "); ok {
		for i := range g.desc.Operands {
			if m := &g.desc.Operands[i]; m.Name == name && m.DType != o.DType {
				return g.dtype(m)
			}
		}
		return tensor.None, fmt.Errorf("dtype %q", o.DType)
	}
	list, err := DTypes(o)
	if err != nil {
		return tensor.None, err
	}
	return list[0], nil
}

// DTypes returns the dtypes that an operand admits, the most usual first; nil for one that follows another operand.
func DTypes(o *registry.Operand) (list []tensor.DType, err error) {
	if strings.HasPrefix(o.DType, "like ") {
		return nil, nil
	}
	if list, err = ops.ParseDTypes(o.DType); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("dtype %q", o.DType)
	}
	return list, nil
}

// dims returns the extents of an operand.
func (g *generator) dims(o *registry.Operand) ([]int64, error) {
	text := g.recipe.shapeText(o)
	if name, ok := strings.CutPrefix(text, "like "); ok {
		for i := range g.desc.Operands {
			if m := &g.desc.Operands[i]; m.Name == name && m.Shape != o.Shape {
				return g.dims(m)
			}
		}
		return nil, fmt.Errorf("shape %q", text)
	}
	forms, err := parseShape(text)
	if err != nil {
		return nil, err
	}
	i := g.c.Forms[o.Name]
	if i < 0 || i >= len(forms) {
		return nil, fmt.Errorf("form %d of %q", i, text)
	}
	return g.shape.dims(forms[i])
}

// place gives an operand that is present its extents, strides and memory.
func (g *generator) place(r *area) error {
	if !r.x.Present() {
		return nil
	}
	dims, err := g.dims(&r.op)
	if err != nil {
		return err
	}
	x, err := tensor.New(nil, r.x.DType, dims...)
	if err != nil {
		return err
	}
	if r.x.Layout == tensor.Lane16 && (x.Rank != 2 || !slices.Contains(lane16Types, x.DType)) {
		return fmt.Errorf("%v is no weight of a type that the lane16 layout is for", &x)
	}
	x.Layout, x.Device = r.x.Layout, r.x.Device
	size, unit := int64(0), int64(max(x.DType.Size(), 1))
	if x.Layout == tensor.Strided && !x.DType.IsBlock() {
		last := int64(-1) // the last element
		if x.Numel() > 0 {
			last = 0
		}
		for d, s := range strides(r.op.Layout, dims, g.c.Strided) {
			x.Stride[d] = s
			if last >= 0 {
				if s > 0 && dims[d]-1 > maxBytes/s {
					return fmt.Errorf("%v is larger than %d bytes", dims, int64(maxBytes))
				}
				last += (dims[d] - 1) * s
			}
		}
		size = (last + 1) * unit
	} else if size, err = x.Bytes(); err != nil {
		return err
	}
	if size < 0 || size > maxBytes {
		return fmt.Errorf("%v is larger than %d bytes", dims, int64(maxBytes))
	}
	lead := fence + int64(max(g.c.Offset, 0))*unit
	m := &block{now: memory(int(lead + size + fence))}
	x.Host = unsafe.Pointer(&m.now[lead])
	*r.x, r.mem = x, m
	return nil
}

// attributes sets the fields of the record that are no operands.
func (g *generator) attributes() error {
	all := map[string]any{}
	if g.recipe.attrs != nil {
		all = g.recipe.attrs(g)
	}
	maps.Copy(all, g.c.Attrs)
	used := map[string]bool{}
	if err := setAttributes(g.rec.Elem(), all, used); err != nil {
		return err
	}
	for name := range all {
		if !used[name] {
			return fmt.Errorf("no attribute %q", name)
		}
	}
	return nil
}

var (
	headerType = reflect.TypeFor[registry.Header]()
	tensorType = reflect.TypeFor[tensor.Tensor]()
)

// setAttributes sets the fields of a struct, and of structs in it, whose names stand in all.
func setAttributes(v reflect.Value, all map[string]any, used map[string]bool) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Type == headerType || f.Type == tensorType || f.Name == "_" {
			continue
		}
		if f.Type.Kind() == reflect.Struct {
			if err := setAttributes(v.Field(i), all, used); err != nil {
				return err
			}
			continue
		}
		name := ops.FieldName(f.Name)
		value, ok := all[name]
		if !ok {
			continue
		}
		used[name] = true
		if err := setAttribute(v.Field(i), reflect.ValueOf(value)); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return nil
}

// setAttribute stores a value in a field: numbers that it can hold exactly (floats are rounded), bools, lists of
// numbers in arrays, and what has a form in JSON in arrays of structs, which it may not fill.
func setAttribute(f, v reflect.Value) error {
	if v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	wrong := func() error { return fmt.Errorf("%v is no %v", v, f.Type()) }
	if !v.IsValid() {
		return errors.New("no value")
	}
	switch {
	case f.Kind() == reflect.Array && f.Type().Elem().Kind() == reflect.Struct:
		if v.Kind() != reflect.Slice || v.Len() > f.Len() {
			return wrong()
		}
		text, err := json.Marshal(v.Interface()) // a case that was read from a file has maps here
		if err == nil {
			err = json.Unmarshal(text, f.Addr().Interface())
		}
		return err
	case f.Kind() == reflect.Array && (v.Kind() == reflect.Slice || v.Kind() == reflect.Array):
		if v.Len() != f.Len() {
			return wrong()
		}
		for i := range v.Len() {
			if err := setAttribute(f.Index(i), v.Index(i)); err != nil {
				return err
			}
		}
	case f.Kind() == reflect.Bool && v.Kind() == reflect.Bool:
		f.SetBool(v.Bool())
	case f.CanFloat() && v.CanFloat():
		f.SetFloat(v.Float())
	case f.CanFloat() && v.CanInt():
		f.SetFloat(float64(v.Int()))
	case f.CanInt() || f.CanUint():
		var n int64
		switch {
		case v.CanInt():
			n = v.Int()
		case v.CanUint():
			n = int64(v.Uint())
		case v.CanFloat() && v.Float() == math.Trunc(v.Float()) && math.Abs(v.Float()) <= 1<<53:
			n = int64(v.Float())
		default:
			return wrong()
		}
		if f.CanInt() && f.OverflowInt(n) || f.CanUint() && (n < 0 || f.OverflowUint(uint64(n))) {
			return wrong()
		}
		if f.CanInt() {
			f.SetInt(n)
		} else {
			f.SetUint(uint64(n))
		}
	default:
		return wrong()
	}
	return nil
}

// inPlace puts every output that may share an input's memory there.
func (g *generator) inPlace() error {
	found := false
	for out, in := range g.recipe.alias {
		var o, i *area
		for j := range g.areas {
			switch g.areas[j].op.Name {
			case out:
				o = &g.areas[j]
			case in:
				i = &g.areas[j]
			}
		}
		if o.x.DType == i.x.DType && o.x.Shape == i.x.Shape && o.x.Stride == i.x.Stride {
			*o.x, o.mem, found = *i.x, i.mem, true
		}
	}
	if !found {
		return errors.New("no output may share memory with an input here")
	}
	return nil
}
