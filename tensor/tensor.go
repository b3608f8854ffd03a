// Package tensor holds the nouns that every other package speaks of: device identities, dtypes and ggml block formats,
// layouts, and Tensor, a view of memory that somebody else owns. It allocates nothing and computes nothing but
// conversions between number formats.
package tensor

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unsafe"
)

// MaxRank is the largest rank of a Tensor.
const MaxRank = 8

// Tensor is a non-owning view. The zero value is an absent operand (DType None).
//
// CPU memory is addressed by Host alone. Other memory is addressed by Buffer and Offset, and by DevAddr where the device
// has addresses; Host may then point at the same bytes where the CPU can see them, and is nil otherwise. A device
// address is never an unsafe.Pointer.
//
// The field order is the C ABI's (opmux_tensor): change nothing here without regenerating csrc/include/opmux.h.
type Tensor struct {
	Host    unsafe.Pointer // first element, CPU-visible memory
	Buffer  uint64         // handle of the device buffer, 0 on the CPU
	Offset  int64          // bytes from the start of Buffer
	DevAddr uint64         // device address of the first element, 0 if the device has none
	Shape   [MaxRank]int64 // extents, outermost first; 0 beyond Rank
	Stride  [MaxRank]int64 // steps in elements; 0 beyond Rank; without meaning for block dtypes and for layouts but Strided
	Device  Device
	DType   DType
	Layout  Layout
	Rank    uint8
	_       [5]byte
}

// New returns a contiguous CPU tensor over memory at p, which must hold at least Bytes bytes. Extents must be >= 0
// (ErrShape) and at most MaxRank in number (ErrRank); a block dtype needs whole blocks in the last extent. p may be nil.
func New(p unsafe.Pointer, t DType, shape ...int64) (Tensor, error) {
	x := Tensor{Host: p, DType: t}
	if !t.Valid() || t == None {
		return Tensor{}, fmt.Errorf("tensor: new %v: %w", t, ErrDType)
	}
	if err := x.setShape(shape); err != nil {
		return Tensor{}, err
	}
	return x, nil
}

func (x *Tensor) setShape(shape []int64) error {
	if len(shape) > MaxRank {
		return fmt.Errorf("tensor: rank %d is over %d: %w", len(shape), MaxRank, ErrRank)
	}
	x.Shape, x.Stride, x.Rank = [MaxRank]int64{}, [MaxRank]int64{}, uint8(len(shape))
	copy(x.Shape[:], shape)
	step := int64(1)
	for d := len(shape) - 1; d >= 0; d-- {
		if shape[d] < 0 {
			return fmt.Errorf("tensor: shape %v: negative extent: %w", joinInts(shape), ErrShape)
		}
		x.Stride[d] = step
		if n := max(shape[d], 1); step > math.MaxInt64/n {
			return fmt.Errorf("tensor: shape %v: %w", joinInts(shape), ErrOverflow)
		}
		step *= max(shape[d], 1)
	}
	if _, err := x.Bytes(); err != nil {
		return err
	}
	return nil
}

// Elem is a Go type that one element type stores; f16, bf16 and fp8 travel as their bit patterns (uint16, uint8).
type Elem interface {
	~float32 | ~float64 | ~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~int64
}

// FromSlice returns a contiguous CPU tensor over s: rank 1 without a shape, else of that shape, whose Bytes must not
// pass the bytes of s (ErrShape). t says what the bytes mean; its element size need not be that of E, so a []byte can
// hold blocks. The caller keeps s alive while the tensor is used.
func FromSlice[E Elem](s []E, t DType, shape ...int64) (Tensor, error) {
	var e E
	size := int64(len(s)) * int64(unsafe.Sizeof(e))
	if len(shape) == 0 {
		el, b := t.Block()
		if b == 0 {
			return Tensor{}, fmt.Errorf("tensor: slice as %v: %w", t, ErrDType)
		}
		shape = []int64{size / int64(b) * int64(el)}
	}
	x, err := New(unsafe.Pointer(unsafe.SliceData(s)), t, shape...)
	if err != nil {
		return Tensor{}, err
	}
	if n, _ := x.Bytes(); n > size {
		return Tensor{}, fmt.Errorf("tensor: %v needs %d bytes, the slice has %d: %w", x.String(), n, size, ErrShape)
	}
	return x, nil
}

// Must returns x and panics if err is not nil. It is for tests and for shapes known to be right.
func Must(x Tensor, err error) Tensor {
	if err != nil {
		panic(err)
	}
	return x
}

// Slice returns the CPU memory of a contiguous tensor as a Go slice of n = Bytes/size(E) elements, or nil if the tensor
// has no Host memory or is not contiguous.
func Slice[E Elem](x *Tensor) []E {
	n, err := x.Bytes()
	if err != nil || x.Host == nil {
		return nil
	}
	var e E
	return unsafe.Slice((*E)(x.Host), n/int64(unsafe.Sizeof(e)))
}

// Present reports whether x is an operand at all (its DType is not None).
func (x *Tensor) Present() bool { return x.DType != None }

// Dims returns the extents of x as a slice of its own Shape array.
func (x *Tensor) Dims() []int64 { return x.Shape[:x.Rank] }

// Last returns the innermost extent, 1 for rank 0.
func (x *Tensor) Last() int64 {
	if x.Rank == 0 {
		return 1
	}
	return x.Shape[x.Rank-1]
}

// Numel returns the number of elements: 1 for rank 0, -1 if it does not fit in int64 or an extent is negative.
func (x *Tensor) Numel() int64 {
	n := int64(1)
	for _, d := range x.Dims() {
		if d < 0 {
			return -1
		}
		if d == 0 {
			n = 0
		}
	}
	for _, d := range x.Dims() {
		if n > 0 && n > math.MaxInt64/d {
			return -1
		}
		n *= d
	}
	return n
}

// Contiguous reports whether x is packed row-major. Strides of extents 0 and 1 do not matter (PyTorch's rule). A block
// dtype in the Strided layout is always packed; any other layout is not contiguous.
func (x *Tensor) Contiguous() bool {
	if x.Layout != Strided {
		return false
	}
	return x.DType.IsBlock() || x.packedFrom(0)
}

// packedFrom reports whether dimensions d.. are packed row-major among themselves.
func (x *Tensor) packedFrom(d int) bool {
	step := int64(1)
	for i := int(x.Rank) - 1; i >= d; i-- {
		if x.Shape[i] > 1 && x.Stride[i] != step {
			return false
		}
		step *= max(x.Shape[i], 1)
	}
	return true
}

// InnerPacked reports whether dimensions d.. are packed row-major among themselves (the strides of outer ones are free).
func (x *Tensor) InnerPacked(d int) bool {
	return x.Layout == Strided && !x.DType.IsBlock() && x.packedFrom(d)
}

// Bytes returns the size of a contiguous tensor, or of a Lane16 weight with its padding rows. Other views have no size
// of their own: ErrLayout.
func (x *Tensor) Bytes() (int64, error) {
	rows, k := int64(1), x.Last()
	for _, d := range x.Dims()[:max(int(x.Rank)-1, 0)] {
		if d < 0 || d > 0 && rows > math.MaxInt64/d {
			return 0, fmt.Errorf("tensor: %v: %w", x.String(), ErrOverflow)
		}
		rows *= d
	}
	switch {
	case x.Layout == Lane16 && rows > math.MaxInt64-15:
		return 0, fmt.Errorf("tensor: %v: %w", x.String(), ErrOverflow)
	case x.Layout == Lane16:
		rows = (rows + 15) &^ 15
	case !x.Contiguous():
		return 0, fmt.Errorf("tensor: bytes of %v: not contiguous: %w", x.String(), ErrLayout)
	}
	rb, err := x.DType.RowBytes(k)
	if err != nil {
		return 0, err
	}
	if rb > 0 && rows > math.MaxInt64/rb {
		return 0, fmt.Errorf("tensor: %v: %w", x.String(), ErrOverflow)
	}
	return rows * rb, nil
}

// View returns x with another shape of equal element count. x must be contiguous (ErrLayout); for a block dtype the
// last extent must stay.
func (x Tensor) View(shape ...int64) (Tensor, error) {
	if !x.Contiguous() {
		return Tensor{}, fmt.Errorf("tensor: view of %v: not contiguous: %w", x.String(), ErrLayout)
	}
	n, last := x.Numel(), x.Last()
	v := x
	if err := v.setShape(shape); err != nil {
		return Tensor{}, err
	}
	if v.Numel() != n || x.DType.IsBlock() && v.Last() != last {
		return Tensor{}, fmt.Errorf("tensor: view of %v as %v: %w", x.String(), joinInts(shape), ErrShape)
	}
	return v, nil
}

// Slice returns the part start <= i < stop of dimension dim; strides are kept, and an empty part starts where x does.
// Bounds: 0 <= start <= stop <= extent (ErrRange). Block dtypes and layouts but Strided cannot be cut (ErrLayout).
func (x Tensor) Slice(dim int, start, stop int64) (Tensor, error) {
	if x.Layout != Strided || x.DType.IsBlock() {
		return Tensor{}, fmt.Errorf("tensor: slice of %v: %w", x.String(), ErrLayout)
	}
	if dim < 0 || dim >= int(x.Rank) || start < 0 || start > stop || stop > x.Shape[dim] {
		return Tensor{}, fmt.Errorf("tensor: slice [%d:%d] in dimension %d of %v: %w", start, stop, dim, x.String(), ErrRange)
	}
	x.Shape[dim] = stop - start
	if x.Numel() != 0 { // an empty view may start behind the memory, where no Go pointer may point
		x.advance(start * x.Stride[dim])
	}
	return x, nil
}

// At returns the rank-0 view of the element at idx, one index for each dimension, each inside its extent (ErrRange).
func (x Tensor) At(idx ...int64) (Tensor, error) {
	if x.Layout != Strided || x.DType.IsBlock() {
		return Tensor{}, fmt.Errorf("tensor: element of %v: %w", x.String(), ErrLayout)
	}
	if len(idx) != int(x.Rank) {
		return Tensor{}, fmt.Errorf("tensor: %d indices into %v: %w", len(idx), x.String(), ErrRank)
	}
	at := int64(0)
	for d, i := range idx {
		if i < 0 || i >= x.Shape[d] {
			return Tensor{}, fmt.Errorf("tensor: index %v into %v: %w", joinInts(idx), x.String(), ErrRange)
		}
		at += i * x.Stride[d]
	}
	x.advance(at)
	x.Shape, x.Stride, x.Rank = [MaxRank]int64{}, [MaxRank]int64{}, 0
	return x, nil
}

// advance moves the start of x by n elements.
func (x *Tensor) advance(n int64) {
	b := n * int64(x.DType.Size())
	if x.Host != nil {
		x.Host = unsafe.Add(x.Host, b)
	}
	x.Offset += b
	if x.DevAddr != 0 {
		x.DevAddr += uint64(b)
	}
}

// String returns dtype, shape and what is unusual about x: "f32[2,3] stride [6,1] on cuda:0".
func (x *Tensor) String() string {
	var b strings.Builder
	b.WriteString(x.DType.String())
	b.WriteString(joinInts(x.Dims()))
	if x.Layout != Strided {
		fmt.Fprintf(&b, " %v", x.Layout)
	} else if !x.Contiguous() {
		b.WriteString(" stride " + joinInts(x.Stride[:x.Rank]))
	}
	if x.Device != (Device{}) {
		fmt.Fprintf(&b, " on %v", x.Device)
	}
	return b.String()
}

// joinInts formats without fmt, so that neither a tensor nor a caller's extents escape to the heap for an error's sake.
func joinInts(v []int64) string {
	b := []byte{'['}
	for i, n := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(append(b, ']'))
}
