package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

func refCast(t *tier, q *registry.Queue, a *ops.CastArgs) registry.Status {
	return castFlat(t, q, unsafe.Pointer(a), &a.Header, &a.Out, func(j *job, lo, hi, worker int) {
		a := (*ops.CastArgs)(j.args)
		castPart(j, &a.Out, &a.In, lo, hi, worker, a.Saturate, a.RoundMode)
	})
}

func refCastBF16(t *tier, q *registry.Queue, a *ops.CastBF16Args) registry.Status {
	return castFlat(t, q, unsafe.Pointer(a), &a.Header, &a.Out, func(j *job, lo, hi, worker int) {
		a := (*ops.CastBF16Args)(j.args)
		castPart(j, &a.Out, &a.In, lo, hi, worker, false, 0)
	})
}

func refCastF32(t *tier, q *registry.Queue, a *ops.CastF32Args) registry.Status {
	return castFlat(t, q, unsafe.Pointer(a), &a.Header, &a.Out, func(j *job, lo, hi, worker int) {
		a := (*ops.CastF32Args)(j.args)
		castPart(j, &a.Out, &a.In, lo, hi, worker, false, 0)
	})
}

// castFlat is mapFlat of casts, whose outputs may hold two elements a byte.
func castFlat(t *tier, q *registry.Queue, args unsafe.Pointer, h *registry.Header, out *tensor.Tensor, f part) registry.Status {
	j := begin(q, t, args)
	defer j.end()
	if err := j.layout(0, 8*flat); err != nil {
		return h.Fail(err)
	}
	j.each((elementsOf(out)+flat-1)/flat, 4*flat, f)
	return 0
}

// elementsOf counts the values of x; of pairs there are two an extent.
func elementsOf(x *tensor.Tensor) int {
	if x.DType == tensor.F4E2M1x2 {
		return 2 * int(x.Numel())
	}
	return int(x.Numel())
}

// castPart converts the pieces lo to hi. Rows of in may be padded.
func castPart(j *job, out, in *tensor.Tensor, lo, hi, worker int, saturate bool, round tensor.Rounding) {
	total := elementsOf(out)
	row := elementsOf(in) / int(in.Shape[0])
	stride := int(in.Stride[0])
	if in.DType == tensor.F4E2M1x2 {
		stride *= 2
	}
	for p := lo; p < hi; p++ {
		end := min((p+1)*flat, total)
		for at := p * flat; at < end; {
			n := min(row-at%row, end-at)
			from := at/row*stride + at%row
			if isWhole(in.DType) && isWhole(out.DType) {
				v := own[int64](j, worker)[:n]
				loadWhole(v, in, from)
				storeWhole(out, at, v)
			} else {
				v := own[float64](j, worker)[:n]
				loadWide(v, in, from)
				storeWide(out, at, v, saturate, round)
			}
			at += n
		}
	}
}

// isWhole reports whether t holds whole numbers.
func isWhole(t tensor.DType) bool {
	return t == tensor.I8 || t == tensor.U8 || t == tensor.I16 || t == tensor.I32 || t == tensor.I64
}

// loadWhole reads whole numbers of x from element off on.
func loadWhole(dst []int64, x *tensor.Tensor, off int) {
	switch x.DType {
	case tensor.I8:
		widen(dst, elems[int8](x, off, len(dst)))
	case tensor.U8:
		widen(dst, elems[uint8](x, off, len(dst)))
	case tensor.I16:
		widen(dst, elems[int16](x, off, len(dst)))
	case tensor.I32:
		widen(dst, elems[int32](x, off, len(dst)))
	case tensor.I64:
		copy(dst, elems[int64](x, off, len(dst)))
	}
}

// storeWhole writes the low bits of v to the elements of x from off on.
func storeWhole(x *tensor.Tensor, off int, v []int64) {
	switch x.DType {
	case tensor.I8:
		widen(elems[int8](x, off, len(v)), v)
	case tensor.U8:
		widen(elems[uint8](x, off, len(v)), v)
	case tensor.I16:
		widen(elems[int16](x, off, len(v)), v)
	case tensor.I32:
		widen(elems[int32](x, off, len(v)), v)
	case tensor.I64:
		copy(elems[int64](x, off, len(v)), v)
	}
}

type whole interface {
	int8 | uint8 | int16 | int32 | int64
}

func widen[D, S whole](dst []D, src []S) {
	for i, v := range src {
		dst[i] = D(v)
	}
}

// loadWide reads elements of any dtype from element off on (of pairs: value off) as float64. A whole number that has more
// bits than that is rounded to the odd neighbour, so that what is rounded again later is rounded as if once.
func loadWide(dst []float64, x *tensor.Tensor, off int) {
	n := len(dst)
	switch x.DType {
	case tensor.F32:
		for i, v := range elems[float32](x, off, n) {
			dst[i] = float64(v)
		}
	case tensor.F64:
		copy(dst, elems[float64](x, off, n))
	case tensor.F16:
		for i, v := range elems[uint16](x, off, n) {
			dst[i] = float64(tensor.DecodeF16(v))
		}
	case tensor.BF16:
		for i, v := range elems[uint16](x, off, n) {
			dst[i] = float64(tensor.DecodeBF16(v))
		}
	case tensor.F8E4M3FN:
		for i, v := range elems[uint8](x, off, n) {
			dst[i] = float64(tensor.DecodeE4M3FN(v))
		}
	case tensor.F8E5M2:
		for i, v := range elems[uint8](x, off, n) {
			dst[i] = float64(tensor.DecodeE5M2(v))
		}
	case tensor.F8E8M0:
		for i, v := range elems[uint8](x, off, n) {
			dst[i] = float64(tensor.DecodeE8M0(v))
		}
	case tensor.F4E2M1x2:
		for i := range dst {
			at := off + i
			dst[i] = float64(tensor.DecodeE2M1(elems[uint8](x, at/2, 1)[0] >> (at % 2 * 4)))
		}
	default:
		var v [1]int64
		for i := range dst {
			loadWhole(v[:], x, off+i)
			dst[i] = wideInt(v[0])
		}
	}
}

// wideInt is v as a float64, rounded to the odd neighbour if it has too many bits.
func wideInt(v int64) float64 {
	const low = 1<<11 - 1 // what the 53 bits of a float64 cannot hold of 64
	if v >= -1<<53 && v <= 1<<53 {
		return float64(v)
	}
	if v&low != 0 {
		v = v&^low | (low + 1)
	}
	return float64(v)
}

// storeWide rounds values to elements of x from off on, each once.
func storeWide(x *tensor.Tensor, off int, src []float64, saturate bool, round tensor.Rounding) {
	n := len(src)
	switch x.DType {
	case tensor.F32:
		for i, v := range src {
			elems[float32](x, off, n)[i] = float32(v)
		}
	case tensor.F64:
		copy(elems[float64](x, off, n), src)
	case tensor.F16:
		for i, v := range src {
			elems[uint16](x, off, n)[i] = tensor.EncodeF16(odd32(v))
		}
	case tensor.BF16:
		for i, v := range src {
			elems[uint16](x, off, n)[i] = tensor.EncodeBF16(odd32(v))
		}
	case tensor.F8E4M3FN:
		for i, v := range src {
			elems[uint8](x, off, n)[i] = tensor.EncodeE4M3FN(odd32(v), saturate)
		}
	case tensor.F8E5M2:
		for i, v := range src {
			elems[uint8](x, off, n)[i] = tensor.EncodeE5M2(odd32(v), saturate)
		}
	case tensor.F8E8M0:
		for i, v := range src {
			elems[uint8](x, off, n)[i] = tensor.EncodeE8M0(odd32(v), round, saturate)
		}
	case tensor.F4E2M1x2:
		for i, v := range src {
			c, at := tensor.EncodeE2M1(odd32(v)), off+i
			b := &elems[uint8](x, at/2, 1)[0]
			if at%2 == 0 {
				*b = c
			} else {
				*b = *b&15 | c<<4
			}
		}
	default:
		low, high := wholeRange(x.DType)
		var w [1]int64
		for i, v := range src {
			switch {
			case v != v:
				w[0] = 0
			case v <= float64(low):
				w[0] = low
			case v >= float64(high):
				w[0] = high
			default:
				w[0] = int64(v)
			}
			storeWhole(x, off+i, w[:])
		}
	}
}

// wholeRange returns the least and the largest number of a dtype of whole ones.
func wholeRange(t tensor.DType) (low, high int64) {
	if t == tensor.U8 {
		return 0, math.MaxUint8
	}
	bits := 8 * t.Size()
	return -1 << (bits - 1), 1<<(bits-1) - 1
}

// odd32 is v as a float32, rounded to the odd neighbour if it lies between two: another rounding, to fewer bits, then gives
// what rounding v would have given.
func odd32(v float64) float32 {
	f := float32(v)
	if float64(f) == v || v != v {
		return f
	}
	b := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(v) {
		b-- // cut off instead
	}
	return math.Float32frombits(b | 1)
}
