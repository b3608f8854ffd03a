// Package sample makes argument records for any op from its descriptor, and says how two results may differ.
//
// A [Case] names an op, extents, dtypes, attributes and a way to fill operands; [New] turns it into memory and a record.
// Values depend on op, operand, index and seed alone, never on the order in which they are made. Every operand lies
// between guard words, gaps of strided views included, and what a kernel must write is poisoned, so that [Args.CheckGuards]
// and [Args.InputsUntouched] tell whether a kernel kept to its operands. [Corpus] lists cases of an op, [Compare] holds one
// result against another within a [Tolerance].
//
// Self-tests, verify, bench, tune and the op test kit take their calls from here.
package sample

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// ErrCase is a case that does not fit its op: an unknown op, operand, attribute or symbol, or a record that the op's
// validator rejects.
var ErrCase = errors.New("case does not fit the op")

// Shape gives extents by the shape symbols of an op's operands ("M", "Tq"), and by the further ones of its recipe where
// the descriptor leaves a shape open (Symbols lists both).
type Shape map[string]int64

// String lists the extents by symbol: "K=64 M=5".
func (s Shape) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, s[name]))
	}
	return strings.Join(parts, " ")
}

// Fill says what values operands get that hold data. Operands with a meaning of their own (ids, lengths, masks,
// temperatures) always get legal ones.
type Fill uint8

// Ways to fill. Weights of block dtypes take Normal, Zero, Equal and Ties; the other ways leave them Normal.
const (
	Normal   Fill = iota // about a standard normal distribution, |v| < 3.5
	Zero                 // +0 and -0
	Equal                // all elements of a row alike
	Ties                 // few distinct values, so that many are equal
	Denormal             // subnormal numbers, zeros and the smallest normal ones of the dtype
	Huge                 // the largest finite magnitudes of the dtype among normal values
	NegInf               // -inf at a quarter of the places and in all of the second row (the only one if there is one)
	NaN                  // NaN and infinities among normal values
	numFills
)

var fillNames = [numFills]string{"normal", "zero", "equal", "ties", "denormal", "huge", "-inf", "nan"}

// String returns the lower-case name.
func (f Fill) String() string { return fillNames[min(f, numFills-1)] }

// MarshalText is String.
func (f Fill) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads a name. ErrCase.
func (f *Fill) UnmarshalText(b []byte) error {
	for i, n := range fillNames {
		if n == string(b) {
			*f = Fill(i)
			return nil
		}
	}
	return fmt.Errorf("sample: fill %.40q is not known: %w", b, ErrCase)
}

// Case is one call, as data. The zero values of all fields but Op are the op's plain call in f32.
type Case struct {
	Op      registry.Op              `json:"op"`
	Name    string                   `json:"name,omitempty"`
	Shape   Shape                    `json:"shape,omitempty"`   // defaults of the op's recipe stand for what is missing
	Types   map[string]tensor.DType  `json:"types,omitempty"`   // by operand; optional operands are present if they stand here, in With or in Values
	With    []string                 `json:"with,omitempty"`    // optional operands to be present with their usual dtype
	Layouts map[string]tensor.Layout `json:"layouts,omitempty"` // by operand
	Forms   map[string]int           `json:"forms,omitempty"`   // by operand: which of the alternatives "A|B" of its shape
	Attrs   map[string]any           `json:"attrs,omitempty"`   // by the attribute's snake-case name
	Fill    Fill                     `json:"fill,omitempty"`
	Seed    uint64                   `json:"seed,omitempty"`
	Strided bool                     `json:"strided,omitempty"`  // gaps wherever the op's layout rule admits strides
	Offset  int                      `json:"offset,omitempty"`   // elements (bytes for blocks) by which operands start behind a 64-byte boundary
	InPlace bool                     `json:"in_place,omitempty"` // outputs share the memory of the input that they may
	// Values gives operands their elements, in row-major order; Want does so for what outputs must be.
	Values map[string][]float64 `json:"-"`
	Want   map[string][]float64 `json:"-"`
	// Invalid marks a call whose data are bad: every kernel must answer with ops.ErrValue and write nothing.
	Invalid bool          `json:"invalid,omitempty"`
	Device  tensor.Device `json:"device,omitzero"` // must see host memory
}

// Args is a record with memory behind its operands.
type Args struct {
	desc  registry.Descriptor
	c     Case
	shape Shape
	rec   reflect.Value // pointer to the record
	areas []area
}

// area is the memory of one operand.
type area struct {
	op  registry.Operand
	x   *tensor.Tensor // in the record
	mem *block         // nil for an absent operand; an output in place has its input's
}

// block is memory with guard bytes at both ends, and what it held when the record was made.
type block struct{ now, orig []byte }

const (
	fence  = 64   // guard bytes on either side of an operand
	poison = 0xff // of guards, gaps and outputs: NaN in every float, -1 in every integer
)

// New makes the record of c, with an op of the process-wide catalogue. Errors wrap ErrCase; those of the op's validator
// are *ops.OpError beside it.
func New(c Case) (*Args, error) {
	d, ok := describe(c.Op)
	if !ok {
		return nil, fmt.Errorf("sample: op %d is not in the catalogue: %w", c.Op, ErrCase)
	}
	return Of(d, c)
}

// describe finds an op of the catalogue.
func describe(op registry.Op) (registry.Descriptor, bool) {
	for _, d := range registry.Descriptors() {
		if d.Op == op {
			return d, true
		}
	}
	return registry.Descriptor{}, false
}

// Of is New for any descriptor, also of an op that a registry defined for itself.
func Of(d registry.Descriptor, c Case) (*Args, error) {
	c.Op = d.Op
	a := &Args{desc: d, c: c, rec: reflect.New(d.Record)}
	g := &generator{Args: a, recipe: recipeOf(d.Name), key: textKey(d.Name, c.Seed)}
	if err := g.make(); err != nil {
		return nil, fmt.Errorf("sample: %s %s: %w: %w", d.Name, c.Name, ErrCase, err)
	}
	return a, nil
}

// Record returns the record, to be passed to a launch. It is valid as long as a is reachable.
func (a *Args) Record() unsafe.Pointer { return a.rec.UnsafePointer() }

// Case returns what a was made from.
func (a *Args) Case() Case { return a.c }

// Shape returns the extents of all symbols, defaults and derived ones included. It is not to be changed.
func (a *Args) Shape() Shape { return a.shape }

// Descriptor returns the op's descriptor.
func (a *Args) Descriptor() registry.Descriptor { return a.desc }

// Tensor returns an operand of the record, absent ones too, or nil if the op has none of that name.
func (a *Args) Tensor(operand string) *tensor.Tensor {
	for i := range a.areas {
		if a.areas[i].op.Name == operand {
			return a.areas[i].x
		}
	}
	return nil
}

// Clone returns a record of its own with the same operands, as they stand.
func (a *Args) Clone() *Args {
	b := &Args{desc: a.desc, c: a.c, shape: a.shape, rec: reflect.New(a.desc.Record), areas: make([]area, len(a.areas))}
	b.rec.Elem().Set(a.rec.Elem())
	copies := map[*block]*block{nil: nil}
	for i := range a.areas {
		r := &a.areas[i]
		m, ok := copies[r.mem]
		if !ok {
			m = &block{memory(len(r.mem.now)), r.mem.orig}
			copy(m.now, r.mem.now)
			copies[r.mem] = m
		}
		b.areas[i] = area{r.op, (*tensor.Tensor)(unsafe.Add(b.Record(), r.op.Offset)), m}
		if m != nil {
			b.areas[i].x.Host = unsafe.Pointer(&m.now[r.start()])
		}
	}
	return b
}

// Reset puts every operand back to what New gave it, guards included.
func (a *Args) Reset() {
	for i := range a.areas {
		if m := a.areas[i].mem; m != nil {
			copy(m.now, m.orig)
		}
	}
}

// CheckGuards returns an error that names the first operand around which, or in whose gaps, a byte was written.
func (a *Args) CheckGuards() error {
	for i := range a.areas {
		r := &a.areas[i]
		if r.mem == nil || bytes.Equal(r.mem.now, r.mem.orig) {
			continue
		}
		seen := bytes.Clone(r.mem.now)
		r.elements(func(from, to int) { copy(seen[from:to], r.mem.orig[from:to]) })
		if err := a.changed(r, seen, "outside of its elements"); err != nil {
			return err
		}
	}
	return nil
}

// InputsUntouched returns an error that names the first operand that a kernel may not write but did.
func (a *Args) InputsUntouched() error {
	return a.untouched(func(r *area) bool { return r.op.Role == registry.In && !a.overwritten(r) })
}

// Untouched returns an error that names the first operand of any role that has changed, as none may after a declined or
// an invalid call.
func (a *Args) Untouched() error {
	return a.untouched(func(*area) bool { return true })
}

func (a *Args) untouched(which func(r *area) bool) error {
	for i := range a.areas {
		if r := &a.areas[i]; r.mem != nil && which(r) {
			if err := a.changed(r, r.mem.now, "of an operand that must keep its bytes"); err != nil {
				return err
			}
		}
	}
	return nil
}

// changed names the first byte at which seen, r's memory, is not what it was.
func (a *Args) changed(r *area, seen []byte, where string) error {
	if bytes.Equal(seen, r.mem.orig) {
		return nil
	}
	for at := range seen {
		if seen[at] != r.mem.orig[at] {
			return fmt.Errorf("sample: %s %s: operand %s: byte %d from its start was written, %s",
				a.desc.Name, a.c.Name, r.op.Name, at-r.start(), where)
		}
	}
	return nil
}

// overwritten reports whether an output lies in r's memory.
func (a *Args) overwritten(r *area) bool {
	for i := range a.areas {
		if o := &a.areas[i]; o.mem == r.mem && o.op.Role != registry.In {
			return true
		}
	}
	return false
}

// Bytes returns how many bytes of operands a kernel has to read and to write at least once, by the width in which they
// are stored, gaps not counted.
func (a *Args) Bytes() (read, written int64) {
	for i := range a.areas {
		r := &a.areas[i]
		var n int64
		r.elements(func(from, to int) { n += int64(to - from) })
		if r.op.Role != registry.Out {
			read += n
		}
		if r.op.Role != registry.In {
			written += n
		}
	}
	return read, written
}

// start is where the operand's first element lies in its memory.
func (r *area) start() int { return int(uintptr(r.x.Host) - uintptr(unsafe.Pointer(&r.mem.now[0]))) }

// elements calls run for the bytes [from,to) of the memory that hold elements of the operand, in row-major order.
func (r *area) elements(run func(from, to int)) {
	if r.mem == nil {
		return
	}
	base := r.start()
	if n, err := r.x.Bytes(); err == nil {
		run(base, base+int(n))
		return
	}
	size, inner := r.x.DType.Size(), 1
	if r.x.InnerPacked(int(r.x.Rank) - 1) {
		inner = int(r.x.Last())
	}
	at := newWalk(r.x)
	for i := 0; i < int(r.x.Numel()); i += inner {
		from := base + int(at.offset(i))*size
		run(from, from+inner*size)
	}
}

// walk gives the place of elements of a strided tensor.
type walk struct {
	x          *tensor.Tensor
	contiguous bool
}

func newWalk(x *tensor.Tensor) walk { return walk{x, x.Contiguous()} }

// offset returns how many elements behind the first the i-th one (row-major) lies.
func (w walk) offset(i int) int64 {
	if w.contiguous {
		return int64(i)
	}
	n, at := int64(i), int64(0)
	for d := int(w.x.Rank) - 1; d >= 0; d-- {
		e := w.x.Shape[d]
		at += n % e * w.x.Stride[d]
		n /= e
	}
	return at
}

// coordinates returns the index of element i of x in each dimension.
func coordinates(x *tensor.Tensor, i int) []int64 {
	c, n := make([]int64, x.Rank), int64(i)
	for d := int(x.Rank) - 1; d >= 0; d-- {
		c[d] = n % x.Shape[d]
		n /= x.Shape[d]
	}
	return c
}

// memory returns n poisoned bytes whose first is aligned to 64.
func memory(n int) []byte {
	b := make([]byte, n+63)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) % 64)
	b = b[skip : skip+n : skip+n]
	for i := range min(n, 64) {
		b[i] = poison
	}
	for i := 64; i < n; i *= 2 {
		copy(b[i:], b[:i])
	}
	return b
}

// Values returns all elements of x in row-major order, decoded. Lane16 weights are unpacked.
func Values(x *tensor.Tensor) ([]float64, error) {
	n := int(x.Numel())
	out := make([]float64, n)
	if n == 0 {
		return out, nil
	}
	k := int(x.Last())
	if x.Layout == tensor.Lane16 || x.DType.IsBlock() {
		row, err := x.DType.RowBytes(int64(k))
		if err != nil {
			return nil, err
		}
		data := unsafe.Slice((*byte)(x.Host), n/k*int(row))
		if x.Layout == tensor.Lane16 {
			data = unpackLane16(x)
		}
		v := make([]float32, k)
		for r := range n / k {
			if err := tensor.Decode(v, x.DType, data[r*int(row):][:row]); err != nil {
				return nil, err
			}
			for i := range v {
				out[r*k+i] = float64(v[i])
			}
		}
		return out, nil
	}
	w := newWalk(x)
	for i := range out {
		out[i] = load(x, w.offset(i))
	}
	return out, nil
}

// Rows returns how many rows of the call do not depend on each other, 0 if the op or the call has none such: rows of an
// attention call do when a query's position counts.
func (a *Args) Rows() int64 {
	rc := recipeOf(a.desc.Name)
	for _, attr := range []string{"causal", "windowed"} {
		if on, _ := a.c.Attrs[attr].(bool); on && rc.alone == nil {
			return 0
		}
	}
	if rc.batch == "" || len(a.c.Forms) > 0 || a.c.InPlace {
		return 0
	}
	return a.shape[rc.batch]
}

// Row returns a copy of the call, with operands as they stand, narrowed to one of its Rows. Its operands keep to the
// memory of all rows.
func (a *Args) Row(row int64) (*Args, error) {
	b, rc := a.Clone(), recipeOf(a.desc.Name)
	if rc.alone != nil {
		return b, rc.alone(b, row)
	}
	for i := range b.areas {
		o := &b.areas[i].op
		if name, ok := strings.CutPrefix(o.Shape, "like "); ok {
			for j := range b.areas {
				if b.areas[j].op.Name == name {
					o = &b.areas[j].op
				}
			}
		}
		form, _, _ := strings.Cut(rc.shapeText(o), "|")
		if first, _, _ := strings.Cut(form, ","); first == rc.batch {
			if err := b.narrow(b.areas[i].op.Name, 0, row, row+1); err != nil {
				return nil, err
			}
		}
	}
	return b, nil
}

// Empty reports whether no output has an element, so that a launch reaches no kernel.
func (a *Args) Empty() bool {
	for _, r := range a.outputs() {
		if r.x.Numel() > 0 {
			return false
		}
	}
	return true
}

// SameBits reports whether both, of one case, hold the same bytes in every operand, guards included.
func (a *Args) SameBits(b *Args) bool {
	for i := range a.areas {
		if m := a.areas[i].mem; m != nil && !bytes.Equal(m.now, b.areas[i].mem.now) {
			return false
		}
	}
	return true
}

// narrow cuts a dimension of an operand that is present.
func (a *Args) narrow(operand string, dim int, from, to int64) error {
	x := a.Tensor(operand)
	if !x.Present() {
		return nil
	}
	v, err := x.Slice(dim, from, to)
	if err == nil {
		*x = v
	}
	return err
}
