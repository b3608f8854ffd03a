package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// quantReference registers the oracle's kernels of quantization, selection and movement of rows, speculative decoding.
func (g *registrar) quantReference() {
	t, exact := reference, registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.TopK, refTopK, exact, nil)
	add(g, t, ops.Gather, refGather, exact, nil)
	add(g, t, ops.Scatter, refScatter, exact, nil)
	add(g, t, ops.Cumsum, refCumsum, exact, nil)
	add(g, t, ops.GreedyRejectionSample, refGreedyRejectionSample, exact, nil)
	add(g, t, ops.Quantize, refQuantize, exact, nil)
	add(g, t, ops.Dequantize, refDequantize, exact, nil)
	add(g, t, ops.DynamicQuantize, refDynamicQuantize, registry.Traits{BitExact: true}, nil)
	add(g, t, ops.DequantNVFP4, refDequantNVFP4, exact, nil)
}

// scales finds the scale and the zero point of an element of x, [outer, axis, inner].
type scales struct {
	scale, zero        *tensor.Tensor
	axis, inner, block int // block 0: of the axis, or of the tensor
}

func scalesOf(x, scale, zero *tensor.Tensor, axis, block int32) scales {
	s := scales{scale: scale, zero: zero, axis: int(x.Shape[axis]), inner: 1, block: int(block)}
	for _, d := range x.Dims()[axis+1:] {
		s.inner *= int(d)
	}
	return s
}

// at returns scale and zero point of element e.
func (s *scales) at(e int) (scale float32, zero int64) {
	i := 0
	switch c := e / s.inner; {
	case s.block > 0:
		i = c/s.block*s.inner + e%s.inner // blocks divide the axis
	case s.scale.Shape[0] > 1:
		i = c % s.axis
	}
	if s.zero.Present() {
		var z [1]int64
		loadWhole(z[:], s.zero, i)
		zero = z[0]
	}
	return elems[float32](s.scale, i, 1)[0], zero
}

// nearest rounds v to a whole number, ties to even, adds zero and holds the sum between two ends. NaN counts as 0.
func nearest(v float32, zero, low, high int64) int64 {
	r := math.RoundToEven(float64(v))
	switch {
	case r != r:
		r = 0
	case r > math.MaxInt32:
		r = math.MaxUint32 // beyond every range, whatever the zero point
	case r < math.MinInt32:
		r = -math.MaxUint32
	}
	return clip(int64(r)+zero, low, high)
}

func refQuantize(t *tier, q *registry.Queue, a *ops.QuantizeArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	if err := j.layout(0, (4+8)*flat); err != nil {
		return a.Fail(err)
	}
	j.each((int(a.X.Numel())+flat-1)/flat, 8*flat, func(j *job, lo, hi, worker int) {
		a := (*ops.QuantizeArgs)(j.args)
		local := own[byte](j, worker)
		buf, whole, wide := cast[float32](local[:4*flat]), cast[int64](local[4*flat:]), cast[float64](local[4*flat:])
		s := scalesOf(&a.X, &a.Scale, &a.ZeroPoint, a.Axis, a.BlockSize)
		low, high := int64(a.Low), int64(a.High)
		if low == 0 && high == 0 && isWhole(a.Out.DType) {
			low, high = wholeRange(a.Out.DType)
		}
		eachFlat(&a.X, lo, hi, func(off, n int) {
			v := plainHalves.load(buf, &a.X, off, n)
			if !isWhole(a.Out.DType) {
				for e, x := range v {
					scale, _ := s.at(off + e)
					wide[e] = float64(x / scale)
				}
				storeWide(&a.Out, off, wide[:n], true, 0)
				return
			}
			for e, x := range v {
				scale, zero := s.at(off + e)
				whole[e] = nearest(x/scale, zero, low, high)
			}
			storeWhole(&a.Out, off, whole[:n])
		})
	})
	return 0
}

func refDequantize(t *tier, q *registry.Queue, a *ops.DequantizeArgs) registry.Status {
	return mapFlat(t, q, unsafe.Pointer(a), &a.Header, &a.Out, func(j *job, lo, hi, worker int) {
		a := (*ops.DequantizeArgs)(j.args)
		local := own[byte](j, worker)
		buf, whole, wide := cast[float32](local[:4*flat]), cast[int64](local[4*flat:][:8*flat]), cast[float64](local[4*flat:][:8*flat])
		s := scalesOf(&a.Out, &a.Scale, &a.ZeroPoint, a.Axis, a.BlockSize)
		eachFlat(&a.Out, lo, hi, func(off, n int) {
			out := target(buf, &a.Out, off, n)
			if isWhole(a.X.DType) {
				loadWhole(whole[:n], &a.X, off)
				for e, x := range whole[:n] {
					scale, zero := s.at(off + e)
					out[e] = float32(x-zero) * scale
				}
			} else {
				loadWide(wide[:n], &a.X, off)
				for e, x := range wide[:n] {
					scale, _ := s.at(off + e)
					out[e] = float32(x) * scale
				}
			}
			plainHalves.store(&a.Out, off, out)
		})
	})
}

func refDynamicQuantize(t *tier, q *registry.Queue, a *ops.DynamicQuantizeArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, k := int(a.X.Shape[0]), int(a.X.Shape[1])
	if err := j.layout(0, (4+8)*k); err != nil {
		return a.Fail(err)
	}
	if a.Granularity == ops.PerTensor {
		var low, high float32
		for i := range rows {
			low, high = span32(plainHalves.load(own[float32](j, 0), &a.X, i*int(a.X.Stride[0]), k), low, high)
		}
		dynamicScale(a, 0, low, high)
	}
	j.each(rows, float64(8*k), func(j *job, lo, hi, worker int) {
		a := (*ops.DynamicQuantizeArgs)(j.args)
		k, local := int(a.X.Shape[1]), own[byte](j, worker)
		codes := cast[int64](local[:8*k])
		from, to := wholeRange(a.Out.DType)
		for i := lo; i < hi; i++ {
			v := plainHalves.load(cast[float32](local[8*k:]), &a.X, i*int(a.X.Stride[0]), k)
			at := 0
			if a.Granularity == ops.PerToken {
				at = i
				low, high := span32(v, 0, 0)
				dynamicScale(a, i, low, high)
			}
			scale, zero := elems[float32](&a.Scale, at, 1)[0], int64(0)
			if a.ZeroPoint.Present() {
				zero = int64(elems[uint8](&a.ZeroPoint, at, 1)[0])
			}
			for e, x := range v {
				codes[e] = nearest(x/scale, zero, from, to)
			}
			storeWhole(&a.Out, i*k, codes)
		}
	})
	return 0
}

// span32 widens [low,high] to the elements of v, NaN left out.
func span32(v []float32, low, high float32) (float32, float32) {
	for _, x := range v {
		if x < low {
			low = x
		}
		if x > high {
			high = x
		}
	}
	return low, high
}

// dynamicScale writes scale and zero point i for elements in [low,high], 0 among them.
func dynamicScale(a *ops.DynamicQuantizeArgs, i int, low, high float32) {
	var s float32
	if a.Out.DType == tensor.I8 {
		s = max(-low, high) / 127
	} else {
		s = (high - low) / 255
	}
	if s == 0 {
		s = 1
	}
	elems[float32](&a.Scale, i, 1)[0] = s
	if a.ZeroPoint.Present() {
		elems[uint8](&a.ZeroPoint, i, 1)[0] = uint8(nearest(-low/s, 0, 0, math.MaxUint8))
	}
}

func refDequantNVFP4(t *tier, q *registry.Queue, a *ops.DequantNVFP4Args) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, k := int(a.Out.Shape[0]), int(a.Out.Shape[1])
	if err := j.layout(0, 4*k); err != nil {
		return a.Fail(err)
	}
	j.each(rows, float64(3*k), func(j *job, lo, hi, worker int) {
		a := (*ops.DequantNVFP4Args)(j.args)
		k := int(a.Out.Shape[1])
		scales := elems[byte](&a.Scale, 0, int(a.Scale.Numel()))
		for i := lo; i < hi; i++ {
			out := target(own[float32](j, worker), &a.Out, i*k, k)
			packed := elems[byte](&a.X, i*k/2, k/2)
			for g := range k / ops.FP4Group {
				at := i*k/ops.FP4Group + g
				if a.ScaleLayout == ops.ScaleSwizzled {
					at = tensor.SwizzleOffset(i, g, int(a.Scale.Shape[1]))
				}
				decodeSmall(out[g*ops.FP4Group:][:ops.FP4Group], tensor.F4E2M1x2, packed[g*ops.FP4Group/2:], tensor.DecodeE4M3FN(scales[at])*orOne(a.GlobalScale))
			}
			plainHalves.store(&a.Out, i*k, out)
		}
	})
	return 0
}
