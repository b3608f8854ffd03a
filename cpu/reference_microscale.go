package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// largestCode is the largest number of a small float format, and its exponent.
func largestCode(t tensor.DType) (largest float32, exponent int) {
	switch t {
	case tensor.F8E5M2:
		return 57344, 15
	case tensor.F4E2M1x2:
		return 6, 2
	}
	return 448, 8
}

// magnitude returns the largest magnitude in v, NaN left out.
func magnitude(v []float32) (m float32) {
	for _, x := range v {
		m = greater(m, abs32(x))
	}
	return m
}

func abs32(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

// encodeSmall stores v·1/scale as codes of t, one byte an element, or half a byte in fp4. It divides.
func encodeSmall(to []byte, t tensor.DType, v []float32, scale float32) {
	switch t {
	case tensor.F8E4M3FN:
		for i, x := range v {
			to[i] = tensor.EncodeE4M3FN(x/scale, true)
		}
	case tensor.F8E5M2:
		for i, x := range v {
			to[i] = tensor.EncodeE5M2(x/scale, true)
		}
	case tensor.F4E2M1x2:
		for i := range to[:len(v)/2] {
			to[i] = tensor.EncodeE2M1Quant(v[2*i]/scale) | tensor.EncodeE2M1Quant(v[2*i+1]/scale)<<4
		}
	}
}

// decodeSmall is encodeSmall's inverse: code·scale.
func decodeSmall(v []float32, t tensor.DType, from []byte, scale float32) {
	switch t {
	case tensor.F8E4M3FN:
		for i := range v {
			v[i] = tensor.DecodeE4M3FN(from[i]) * scale
		}
	case tensor.F8E5M2:
		for i := range v {
			v[i] = tensor.DecodeE5M2(from[i]) * scale
		}
	case tensor.F4E2M1x2:
		for i := range v {
			v[i] = tensor.DecodeE2M1(from[i/2]>>(i%2*4)) * scale
		}
	}
}

// mxScale returns the scale code of a block whose largest magnitude is m.
func mxScale(m float32, t tensor.DType, r ops.ScaleRounding) uint8 {
	largest, exponent := largestCode(t)
	if r == ops.ScaleCeil {
		return tensor.EncodeE8M0(m/largest, tensor.RoundUp, true)
	}
	return uint8(max(int(tensor.EncodeE8M0(m, tensor.RoundDown, true))-exponent, 0))
}

// width returns the bytes of n elements of a small float format.
func width(t tensor.DType, n int) int {
	if t == tensor.F4E2M1x2 {
		return n / 2
	}
	return n
}

func refQuantMX(t *tier, q *registry.Queue, a *ops.QuantMXArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, k := int(a.X.Shape[0]), int(a.X.Shape[1])
	if err := j.layout(0, 4*k); err != nil {
		return a.Fail(err)
	}
	j.each(rows, float64(6*k), func(j *job, lo, hi, worker int) {
		a := (*ops.QuantMXArgs)(j.args)
		k, g, w := int(a.X.Shape[1]), int(a.Scale.Shape[1]), int(a.Out.Shape[1])
		for i := lo; i < hi; i++ {
			v := plainHalves.load(own[float32](j, worker), &a.X, i*int(a.X.Stride[0]), k)
			out, scale := elems[byte](&a.Out, i*w, w), elems[byte](&a.Scale, i*g, g)
			for b := range scale {
				x := v[b*ops.MXBlock:][:ops.MXBlock]
				scale[b] = mxScale(magnitude(x), a.Out.DType, a.Rounding)
				encodeSmall(out[width(a.Out.DType, b*ops.MXBlock):], a.Out.DType, x, tensor.DecodeE8M0(scale[b]))
			}
		}
	})
	return 0
}

func refDequantMX(t *tier, q *registry.Queue, a *ops.DequantMXArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, k := int(a.Out.Shape[0]), int(a.Out.Shape[1])
	if err := j.layout(0, 4*k); err != nil {
		return a.Fail(err)
	}
	j.each(rows, float64(4*k), func(j *job, lo, hi, worker int) {
		a := (*ops.DequantMXArgs)(j.args)
		k, g, w := int(a.Out.Shape[1]), int(a.Scale.Shape[1]), int(a.X.Shape[1])
		for i := lo; i < hi; i++ {
			v := target(own[float32](j, worker), &a.Out, i*k, k)
			from, scale := elems[byte](&a.X, i*w, w), elems[byte](&a.Scale, i*g, g)
			for b := range scale {
				decodeSmall(v[b*ops.MXBlock:][:ops.MXBlock], a.X.DType, from[width(a.X.DType, b*ops.MXBlock):], tensor.DecodeE8M0(scale[b]))
			}
			plainHalves.store(&a.Out, i*k, v)
		}
	})
	return 0
}

// leastScale is the smallest scale that fp8 quantization chooses, so that nothing is divided by zero.
const leastScale = 1e-10

// fp8Scale returns the factor for elements whose largest magnitude is m, and its code if the scales are e8m0.
func fp8Scale(m float32, t, scale tensor.DType) (s float32, code uint8) {
	largest, _ := largestCode(t)
	if s = max(m/largest, leastScale); scale == tensor.F8E8M0 {
		code = tensor.EncodeE8M0(s, tensor.RoundUp, true)
		s = tensor.DecodeE8M0(code)
	}
	return s, code
}

func refQuantFP8Dynamic(t *tier, q *registry.Queue, a *ops.QuantFP8DynamicArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, k := int(a.X.Shape[0]), int(a.X.Shape[1])
	if err := j.layout(4*max(rows, 1), 4*k); err != nil {
		return a.Fail(err)
	}
	if a.Granularity == ops.PerTensor { // the largest of each row first; a maximum has no order
		j.each(rows, float64(k), func(j *job, lo, hi, worker int) {
			a := (*ops.QuantFP8DynamicArgs)(j.args)
			for i := lo; i < hi; i++ {
				v := plainHalves.load(own[float32](j, worker), &a.X, i*int(a.X.Stride[0]), int(a.X.Shape[1]))
				common[float32](j)[i] = magnitude(v)
			}
		})
		s, code := fp8Scale(magnitude(common[float32](j)[:rows]), a.Out.DType, a.Scale.DType)
		putScale(&a.Scale, 0, s, code)
		common[float32](j)[0] = s
	}
	j.each(rows, float64(6*k), func(j *job, lo, hi, worker int) {
		a := (*ops.QuantFP8DynamicArgs)(j.args)
		k := int(a.X.Shape[1])
		for i := lo; i < hi; i++ {
			v := plainHalves.load(own[float32](j, worker), &a.X, i*int(a.X.Stride[0]), k)
			out := elems[byte](&a.Out, i*k, k)
			if a.Granularity == ops.PerTensor {
				encodeSmall(out, a.Out.DType, v, common[float32](j)[0])
				continue
			}
			groups := int(a.Scale.Shape[1])
			for b := range groups {
				n := k / groups
				s, code := fp8Scale(magnitude(v[b*n:][:n]), a.Out.DType, a.Scale.DType)
				putScale(&a.Scale, i*groups+b, s, code)
				encodeSmall(out[b*n:], a.Out.DType, v[b*n:][:n], s)
			}
		}
	})
	return 0
}

// putScale stores a factor, or its code.
func putScale(x *tensor.Tensor, i int, s float32, code uint8) {
	if x.DType == tensor.F32 {
		elems[float32](x, i, 1)[0] = s
	} else {
		elems[byte](x, i, 1)[0] = code
	}
}
