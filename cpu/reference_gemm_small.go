package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Products of small number formats: rows of both operands are decoded to f32 and multiplied term by term.

// decoded is such a product out[i,n] = end(Σ_k a[i,k]·b[n,k]). Its functions get the call's record.
type decoded struct {
	rowA, rowB func(args unsafe.Pointer, row []float32, i int)
	end        func(args unsafe.Pointer, sum float32) float32
	out        func(args unsafe.Pointer) *tensor.Tensor

	decode, multiply part
}

// newDecoded compiles the parts once, so that launches allocate nothing.
func newDecoded(p decoded) *decoded {
	p.decode = func(j *job, lo, hi, _ int) {
		k := j.n[0]
		for i := lo; i < hi; i++ {
			p.rowA(j.args, common[float32](j)[i*k:][:k], i)
		}
	}
	p.multiply = func(j *job, lo, hi, worker int) {
		k, out, rows := j.n[0], p.out(j.args), own[float32](j, worker)
		m, n := int(out.Shape[0]), int(out.Shape[1])
		var row [4][]float32
		for b := lo; b < hi; b++ {
			for r := range row { // behind the last row the last one again: its sums are dropped
				row[r] = rows[r*k:][:k]
				p.rowB(j.args, row[r], min(4*b+r, n-1))
			}
			for i := range m {
				s := dot4(common[float32](j)[i*k:][:k], &row)
				for r := range min(4, n-4*b) {
					put(out, i*n+4*b+r, p.end(j.args, s[r]))
				}
			}
		}
	}
	return &p
}

func (p *decoded) run(t *tier, q *registry.Queue, args unsafe.Pointer, h *registry.Header, k int64) registry.Status {
	j := begin(q, t, args)
	defer j.end()
	out := p.out(args)
	m, n := int(out.Shape[0]), int(out.Shape[1])
	if m > 0 && int64(math.MaxInt)/4/int64(m) < k {
		return h.Fail(tooLarge(m, k))
	}
	if err := j.layout(4*m*int(k), 4*4*int(k)); err != nil {
		return h.Fail(err)
	}
	j.n[0] = int(k)
	j.each(m, float64(4*k), p.decode)
	j.each((n+3)/4, float64(m+8)*float64(4*k), p.multiply)
	return 0
}

// fp4Row decodes k codes with a scale for each 16: code·scale(g).
func fp4Row(row []float32, codes []byte, scale func(g int) float32) {
	for g := range len(row) / 16 {
		decodeSmall(row[16*g:][:16], tensor.F4E2M1x2, codes[8*g:], scale(g))
	}
}

// linearScale reads the fp8 scales of a row.
func linearScale(x *tensor.Tensor, i int) func(g int) float32 {
	scales := elems[byte](x, i*int(x.Shape[1]), int(x.Shape[1]))
	return func(g int) float32 { return tensor.DecodeE4M3FN(scales[g]) }
}

// swizzledScale reads the fp8 scales of a row of a swizzled matrix.
func swizzledScale(x *tensor.Tensor, i int) func(g int) float32 {
	cols := int(x.Shape[1])
	scales := elems[byte](x, 0, int(x.Shape[0])*cols)
	return func(g int) float32 { return tensor.DecodeE4M3FN(scales[tensor.SwizzleOffset(i, g, cols)]) }
}

// codes returns the bytes of row i of packed codes.
func codes(x *tensor.Tensor, i int) []byte {
	n := int(x.Shape[1])
	return elems[byte](x, i*n, n)
}

func roundBF16(v float32) float32 { return tensor.DecodeBF16(tensor.EncodeBF16(v)) }

var nvfp4Product = newDecoded(decoded{
	rowA: func(args unsafe.Pointer, row []float32, i int) {
		a := (*ops.MatmulNVFP4Args)(args)
		copy(row, plainHalves.load(row, &a.Act, i*len(row), len(row)))
	},
	rowB: func(args unsafe.Pointer, row []float32, i int) {
		a := (*ops.MatmulNVFP4Args)(args)
		nvfp4Row(row, codes(&a.WeightPacked, i), codes(&a.WeightScale, i), a.WeightScale2)
	},
	end: func(_ unsafe.Pointer, sum float32) float32 { return sum },
	out: func(args unsafe.Pointer) *tensor.Tensor { return &(*ops.MatmulNVFP4Args)(args).Out },
})

// nvfp4Row decodes a row of an NVFP4 weight; each element is rounded to bf16.
func nvfp4Row(row []float32, packed, scales []byte, scale2 float32) {
	for g := range len(row) / 16 {
		w := row[16*g:][:16]
		decodeSmall(w, tensor.F4E2M1x2, packed[8*g:], tensor.DecodeE4M3FN(scales[g])*scale2)
		for e, v := range w {
			w[e] = roundBF16(v)
		}
	}
}

func refMatmulNVFP4(t *tier, q *registry.Queue, a *ops.MatmulNVFP4Args) registry.Status {
	return nvfp4Product.run(t, q, unsafe.Pointer(a), &a.Header, a.Act.Shape[1])
}

var fp4Product = newDecoded(decoded{
	rowA: func(args unsafe.Pointer, row []float32, i int) {
		a := (*ops.MatmulNVFP4FP4Args)(args)
		fp4Row(row, codes(&a.APacked, i), linearScale(&a.AScale, i))
	},
	rowB: func(args unsafe.Pointer, row []float32, i int) {
		a := (*ops.MatmulNVFP4FP4Args)(args)
		fp4Row(row, codes(&a.BPacked, i), linearScale(&a.BScale, i))
	},
	end: func(args unsafe.Pointer, sum float32) float32 { return (*ops.MatmulNVFP4FP4Args)(args).Alpha * sum },
	out: func(args unsafe.Pointer) *tensor.Tensor { return &(*ops.MatmulNVFP4FP4Args)(args).Out },
})

func refMatmulNVFP4FP4(t *tier, q *registry.Queue, a *ops.MatmulNVFP4FP4Args) registry.Status {
	return fp4Product.run(t, q, unsafe.Pointer(a), &a.Header, 2*a.APacked.Shape[1])
}

var swizzledProduct = newDecoded(decoded{
	rowA: func(args unsafe.Pointer, row []float32, i int) {
		a := (*ops.MatmulNVFP4SwizzledArgs)(args)
		fp4Row(row, codes(&a.APacked, i), swizzledScale(&a.ASfSw, i))
	},
	rowB: func(args unsafe.Pointer, row []float32, i int) {
		a := (*ops.MatmulNVFP4SwizzledArgs)(args)
		fp4Row(row, codes(&a.BPacked, i), swizzledScale(&a.BSfSw, i))
	},
	end: func(args unsafe.Pointer, sum float32) float32 {
		a := (*ops.MatmulNVFP4SwizzledArgs)(args)
		alpha := a.HostAlpha
		if a.Alpha.Present() {
			alpha = elems[float32](&a.Alpha, 0, 1)[0]
		}
		return roundBF16(alpha * sum)
	},
	out: func(args unsafe.Pointer) *tensor.Tensor { return &(*ops.MatmulNVFP4SwizzledArgs)(args).Out },
})

func refMatmulNVFP4Swizzled(t *tier, q *registry.Queue, a *ops.MatmulNVFP4SwizzledArgs) registry.Status {
	return swizzledProduct.run(t, q, unsafe.Pointer(a), &a.Header, 2*a.APacked.Shape[1])
}

var fp8Product = newDecoded(decoded{
	rowA: func(args unsafe.Pointer, row []float32, i int) {
		a := (*ops.MatmulFP8Args)(args)
		fp8Row(row, &a.AFp8, &a.AScale, i, i, int(a.BlockK))
	},
	rowB: func(args unsafe.Pointer, row []float32, i int) {
		a := (*ops.MatmulFP8Args)(args)
		fp8Row(row, &a.BFp8, &a.BScale, i, i/max(int(a.BlockN), 1), int(a.BlockK))
	},
	end: func(args unsafe.Pointer, sum float32) float32 {
		a := (*ops.MatmulFP8Args)(args)
		if a.Alpha != 0 {
			sum *= a.Alpha
		}
		if a.BF16Epilogue {
			sum = roundBF16(sum)
		}
		return sum
	},
	out: func(args unsafe.Pointer) *tensor.Tensor { return &(*ops.MatmulFP8Args)(args).Out },
})

// fp8Row decodes row i of x; scales stand in row r of scale, one for block neighbours, or are one number.
func fp8Row(row []float32, x, scale *tensor.Tensor, i, r, block int) {
	t := tensor.F8E4M3FN
	if x.DType == tensor.F8E5M2 {
		t = x.DType
	}
	from := codes(x, i)
	if !scale.Present() || scale.Rank == 1 {
		s := float32(1)
		if scale.Present() {
			s = scaleAt(scale, 0)
		}
		decodeSmall(row, t, from, s)
		return
	}
	if block == 0 {
		block = max(len(row), 1)
	}
	for at := 0; at < len(row); at += block {
		decodeSmall(row[at:min(at+block, len(row))], t, from[at:], scaleAt(scale, r*int(scale.Shape[1])+at/block))
	}
}

// scaleAt reads a scale that is a number or a power of two.
func scaleAt(x *tensor.Tensor, i int) float32 {
	if x.DType == tensor.F8E8M0 {
		return tensor.DecodeE8M0(elems[byte](x, i, 1)[0])
	}
	return elems[float32](x, i, 1)[0]
}

func refMatmulFP8(t *tier, q *registry.Queue, a *ops.MatmulFP8Args) registry.Status {
	return fp8Product.run(t, q, unsafe.Pointer(a), &a.Header, a.AFp8.Shape[1])
}

func refMatmulInt8(t *tier, q *registry.Queue, a *ops.MatmulInt8Args) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	if err := j.layout(0, 4*refColumns); err != nil {
		return a.Fail(err)
	}
	m, n, k := int(a.Out.Shape[0]), int(a.Out.Shape[1]), int(a.A.Shape[1])
	j.n[0] = m
	j.each(m*((n+refColumns-1)/refColumns), float64(refColumns*(k+4)), func(j *job, lo, hi, worker int) {
		a := (*ops.MatmulInt8Args)(j.args)
		sums := own[int32](j, worker)
		for it := lo; it < hi; it++ {
			i, c0 := it%j.n[0], it/j.n[0]*refColumns
			s := sums[:min(refColumns, int(a.Out.Shape[1])-c0)]
			int8Sums(a, s, i, c0)
			int8End(a, s, i, c0)
		}
	})
	return 0
}

// int8Sums adds up row i of a times the columns from c0 on of b, both less their zero points.
func int8Sums(a *ops.MatmulInt8Args, sums []int32, i, c0 int) {
	clear(sums)
	k := int(a.A.Shape[1])
	zero := int8Zero(&a.AZeroPoint, i)
	for e := range k {
		x := byteValue(&a.A, i*int(a.A.Stride[0])+e) - zero
		row, step := e*int(a.B.Stride[0]), int(a.B.Stride[1])
		if a.B.DType == tensor.I8 {
			addInts[int8](sums, x, &a.B, row+c0*step, step)
		} else {
			addInts[uint8](sums, x, &a.B, row+c0*step, step)
		}
	}
	if !a.BZeroPoint.Present() {
		return
	}
	var total int32 // Σ (a - za); each column takes it times its own zero point
	for e := range k {
		total += byteValue(&a.A, i*int(a.A.Stride[0])+e) - zero
	}
	for c := range sums {
		sums[c] -= total * int8Zero(&a.BZeroPoint, c0+c)
	}
}

func addInts[T int8 | uint8](sums []int32, x int32, b *tensor.Tensor, off, step int) {
	y := elems[T](b, off, (len(sums)-1)*step+1)
	for c := range sums {
		sums[c] += x * int32(y[c*step])
	}
}

// byteValue reads an element of an 8-bit tensor.
func byteValue(x *tensor.Tensor, i int) int32 {
	b := elems[byte](x, i, 1)[0]
	if x.DType == tensor.I8 {
		return int32(int8(b))
	}
	return int32(b)
}

// int8Zero is the zero point of row or column i, 0 if there is none.
func int8Zero(x *tensor.Tensor, i int) int32 {
	if !x.Present() {
		return 0
	}
	return byteValue(x, min(i, int(x.Shape[0])-1))
}

// int8End stores the sums as out wants them.
func int8End(a *ops.MatmulInt8Args, sums []int32, i, c0 int) {
	at := i*int(a.Out.Shape[1]) + c0
	if a.Out.DType == tensor.I32 {
		copy(elems[int32](&a.Out, at, len(sums)), sums)
		return
	}
	rowScale := elems[float32](&a.AScale, min(i, int(a.AScale.Shape[0])-1), 1)[0]
	for c, s := range sums {
		scale := rowScale * elems[float32](&a.BScale, min(c0+c, int(a.BScale.Shape[0])-1), 1)[0]
		v := float32(s) * scale
		if !a.YScale.Present() {
			put(&a.Out, at+c, v)
			continue
		}
		v /= elems[float32](&a.YScale, 0, 1)[0]
		putRounded(&a.Out, at+c, v, int8Zero(&a.YZeroPoint, 0))
	}
}

// putRounded stores round(v) + zero in an 8-bit tensor: ties to even, saturating; NaN is zero.
func putRounded(x *tensor.Tensor, i int, v float32, zero int32) {
	low, high := 0.0, 255.0
	if x.DType == tensor.I8 {
		low, high = -128, 127
	}
	r := math.RoundToEven(float64(v)) + float64(zero)
	if v != v {
		r = float64(zero)
	}
	elems[byte](x, i, 1)[0] = byte(int32(min(max(r, low), high)))
}
