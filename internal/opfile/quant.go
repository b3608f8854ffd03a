package opfile

import (
	"slices"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Quantization by scale and zero point.

// smallRanges are the ranges of whole numbers that tensors lack.
var smallRanges = map[string][2]int32{"i2": {-2, 1}, "i4": {-8, 7}, "u2": {0, 3}, "u4": {0, 15}, "u16": {0, 65535}}

// quantized are ONNX's numbers for the types of codes that need no zero point to tell them.
var quantized = map[int64]string{2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 17: "f8e4m3fn", 19: "f8e5m2", 21: "u4", 22: "i4", 25: "u2", 26: "i2"}

// scaleOf reads a scale of x: one number, one for each slice of an axis, or one for each block along it.
func (r *run) scaleOf(key string, x *tensor.Tensor) (scale tensor.Tensor, axis, block int32) {
	scale = r.f32(key)
	if scale.Numel() == 1 {
		scale = r.view(scale, 1)
	}
	axis, block = r.attrs.int32("axis", 1), r.attrs.int32("block_size", 0)
	if scale.Rank == 1 && scale.Shape[0] == 1 {
		return scale, 0, 0
	}
	return scale, int32(r.axis("axis", int64(axis), x)), block
}

// zeroOf reads the zero point that goes with a scale; absent if the file has none. In a float format it must be 0 and says
// nothing.
func (r *run) zeroOf(key string, scale *tensor.Tensor, t tensor.DType) (zero tensor.Tensor) {
	if !r.has(key) {
		return zero
	}
	zero = r.view(r.held(key), scale.Dims()...)
	if isWhole(t) {
		return zero
	}
	for i := range int(zero.Numel()) {
		if at(&zero, i) != 0 {
			r.fail(ErrNoOp, key, "a zero point of %v in a float format", at(&zero, i))
		}
	}
	return tensor.Tensor{}
}

func quantizeLinear(r *run) {
	x := r.float("x")
	word, ok := quantized[r.attrs.int("output_dtype", 2)]
	if !ok {
		r.fail(ErrNoOp, "output_dtype", "codes of type %d", r.attrs.int("output_dtype", 2))
	}
	if z := r.find("y_zero_point"); z != nil {
		word = z.DType
	}
	a := ops.QuantizeArgs{X: x, Low: smallRanges[word][0], High: smallRanges[word][1]}
	dt := parseDType(word)
	if dt == tensor.None {
		dt = wideDTypes[word]
	}
	if dt == tensor.None || word == "f4e2m1" {
		r.fail(ErrNoOp, r.f.Name, "codes of %s", word)
	}
	if !r.attrs.bool("saturate", true) && !isWhole(dt) {
		r.fail(ErrNoOp, "saturate", "codes beyond the largest number")
	}
	if p := r.attrs.int("precision", 0); p != 0 && p != 1 {
		r.fail(ErrNoOp, "precision", "division in type %d", p)
	}
	if x.Rank == 0 {
		a.X = r.view(x, 1)
	}
	a.Scale, a.Axis, a.BlockSize = r.scaleOf("y_scale", &a.X)
	a.ZeroPoint = r.zeroOf("y_zero_point", &a.Scale, dt)
	a.Out = r.alloc(dt, a.X.Dims()...)
	r.check(ops.Quantize.Call(r.Queue, a))
	r.put("y", r.view(a.Out, x.Dims()...), dt)
}

func dequantizeLinear(r *run) {
	x := r.held("x")
	shape, n := slices.Clone(x.Dims()), x.Numel()
	pairs := r.find("x").DType == "f4e2m1"
	if pairs { // one code an element: pack two of them a byte, the last one beside a zero
		packed := r.alloc(tensor.F4E2M1x2, (n+1)/2)
		bytes := tensor.Slice[uint8](&packed)
		for i, c := range tensor.Slice[uint8](&x) {
			bytes[i/2] |= c & 15 << (i % 2 * 4)
		}
		x = packed
	} else if x.Rank == 0 {
		x = r.view(x, 1)
	}
	scaleType := r.float("x_scale").DType
	a := ops.DequantizeArgs{X: x}
	a.Scale, a.Axis, a.BlockSize = r.scaleOf("x_scale", &x)
	if pairs && a.Scale.Numel() != 1 {
		r.fail(ErrNoOp, "x_scale", "several scales of packed codes")
	}
	a.ZeroPoint = r.zeroOf("x_zero_point", &a.Scale, x.DType)
	if a.Out = r.alloc(scaleType, x.Dims()...); pairs {
		a.Out = r.alloc(scaleType, 2*x.Numel())
	}
	r.check(ops.Dequantize.Call(r.Queue, a))
	out := a.Out
	if pairs {
		cut, err := out.Slice(0, 0, n)
		r.fits(err)
		out = cut
	}
	r.put("y", r.view(out, shape...), scaleType)
}

func dynamicQuantizeLinear(r *run) {
	x := r.float("x")
	a := ops.DynamicQuantizeArgs{X: r.view(x, 1, x.Numel()), Scale: r.alloc(tensor.F32, 1), ZeroPoint: r.alloc(tensor.U8, 1)}
	a.Out = r.alloc(tensor.U8, a.X.Dims()...)
	r.check(ops.DynamicQuantize.Call(r.Queue, a))
	r.put("y", r.view(a.Out, x.Dims()...), tensor.U8)
	r.put("y_scale", r.view(a.Scale), tensor.F32)
	r.put("y_zero_point", r.view(a.ZeroPoint), tensor.U8)
}
