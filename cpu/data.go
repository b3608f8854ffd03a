package cpu

import (
	"unsafe"

	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/tensor"
)

// halves converts rows of the 16-bit floats.
type halves struct {
	widenF16, widenBF16   func(dst []float32, src []uint16)
	narrowF16, narrowBF16 func(dst []uint16, src []float32)
}

// plainHalves are the reference's conversions. The tiers' give the same bits, NaN payloads aside.
var plainHalves = halves{tensor.F16ToF32, tensor.BF16ToF32, tensor.F32ToF16, tensor.F32ToBF16}

// elems returns n elements of x, in memory order from element off on. T has the size of x's elements.
func elems[T any](x *tensor.Tensor, off, n int) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Add(x.Host, off*int(unsafe.Sizeof(t)))), n)
}

// load returns n elements of a float tensor from element off on as f32: the memory itself of an f32 tensor, else buf,
// which has room for them.
func (h *halves) load(buf []float32, x *tensor.Tensor, off, n int) []float32 {
	switch x.DType {
	case tensor.F32:
		return elems[float32](x, off, n)
	case tensor.F16:
		h.widenF16(buf[:n], elems[uint16](x, off, n))
	case tensor.BF16:
		h.widenBF16(buf[:n], elems[uint16](x, off, n))
	}
	return buf[:n]
}

// target returns where to compute n elements of x from element off on: the memory itself of an f32 tensor, else buf.
// store puts them in place.
func target(buf []float32, x *tensor.Tensor, off, n int) []float32 {
	if x.DType == tensor.F32 {
		return elems[float32](x, off, n)
	}
	return buf[:n]
}

// store rounds what stands in v to the elements of x from off on; nothing to do if v is that memory.
func (h *halves) store(x *tensor.Tensor, off int, v []float32) {
	if len(v) == 0 {
		return
	}
	switch x.DType {
	case tensor.F32:
		if to := elems[float32](x, off, len(v)); &to[0] != &v[0] {
			copy(to, v)
		}
	case tensor.F16:
		h.narrowF16(elems[uint16](x, off, len(v)), v)
	case tensor.BF16:
		h.narrowBF16(elems[uint16](x, off, len(v)), v)
	}
}

// one reads a single element of a float tensor.
func one(x *tensor.Tensor, off int) float32 {
	switch x.DType {
	case tensor.F16:
		return tensor.DecodeF16(elems[uint16](x, off, 1)[0])
	case tensor.BF16:
		return tensor.DecodeBF16(elems[uint16](x, off, 1)[0])
	}
	return elems[float32](x, off, 1)[0]
}

// put rounds v to a single element of a float tensor.
func put(x *tensor.Tensor, off int, v float32) {
	switch x.DType {
	case tensor.F16:
		elems[uint16](x, off, 1)[0] = tensor.EncodeF16(v)
	case tensor.BF16:
		elems[uint16](x, off, 1)[0] = tensor.EncodeBF16(v)
	default:
		elems[float32](x, off, 1)[0] = v
	}
}

// index reads element i of a contiguous i32 or i64 tensor.
func index(x *tensor.Tensor, i int) int64 {
	if x.DType == tensor.I32 {
		return int64(elems[int32](x, i, 1)[0])
	}
	return elems[int64](x, i, 1)[0]
}

// lanes maps the dtypes that the Lane16 layout exists for to their format.
func lanes(t tensor.DType) (f simd.Format, ok bool) {
	switch t {
	case tensor.Q4_0:
		return simd.Q4_0, true
	case tensor.Q8_0:
		return simd.Q8_0, true
	case tensor.F32:
		return simd.F32, true
	case tensor.F16:
		return simd.F16, true
	case tensor.BF16:
		return simd.BF16, true
	}
	return 0, false
}

// weight is a matrix [n, k] of weights in either layout.
type weight struct {
	dtype  tensor.DType
	lane16 bool
	format simd.Format // if lane16
	n, k   int
	row    int    // bytes of one row in the plain layout
	data   []byte // all of it
}

// weightOf returns x as weights; ok is false where no kernel of this package reads the layout.
func weightOf(x *tensor.Tensor) (w weight, ok bool) {
	row, err := x.DType.RowBytes(x.Shape[1])
	if err != nil {
		return w, false
	}
	w = weight{dtype: x.DType, lane16: x.Layout == tensor.Lane16, n: int(x.Shape[0]), k: int(x.Shape[1]), row: int(row)}
	rows := w.n
	if w.lane16 {
		if w.format, ok = lanes(x.DType); !ok {
			return w, false
		}
		rows = simd.Panels(w.n) * simd.Lanes
	}
	w.data = unsafe.Slice((*byte)(x.Host), rows*w.row)
	return w, true
}

// panel returns the panel that holds row i of a Lane16 weight, and the row's place in it.
func (w *weight) panel(i int) (panel []byte, lane int) {
	size := simd.Lanes * w.row
	return w.data[i/simd.Lanes*size:][:size], i % simd.Lanes
}

// bytes returns the bytes of row i as files hold them; buf has room for them.
func (w *weight) bytes(buf []byte, i int) []byte {
	if !w.lane16 {
		return w.data[i*w.row:][:w.row]
	}
	panel, lane := w.panel(i)
	w.format.UnpackRow(buf[:w.row], panel, lane, w.k)
	return buf[:w.row]
}

// floats returns row i as f32: the memory itself where it is plain f32, else dst, which has room for it. buf has room
// for the row's bytes. A row of a block dtype is decoded.
func (w *weight) floats(dst []float32, buf []byte, i int) []float32 {
	dst = dst[:w.k]
	if w.k == 0 {
		return dst
	}
	b := w.bytes(buf, i)
	if w.dtype == tensor.F32 && uintptr(unsafe.Pointer(&b[0]))%4 == 0 {
		return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), w.k)
	}
	if err := tensor.Decode(dst, w.dtype, b); err != nil {
		panic(err) // sizes were checked by the validator, decoders by accepts
	}
	return dst
}
