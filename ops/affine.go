package ops

import (
	"math"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// QuantizeArgs is the record of Quantize: with the scale s and the zero point z that an element of x falls under, out is
// x/s rounded to the nearest whole number, ties to even, plus z, held in the range; for float formats the code nearest to x/s,
// saturating. NaN becomes z, or what the format makes of it. A scale of shape [1] is for the tensor, [C] for the C slices along
// Axis; with BlockSize it has x's shape but for Axis, along which it has one for each BlockSize neighbours.
type QuantizeArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"any" dtype:"i8 u8 i16 i32 f8_e4m3fn f8_e5m2 f4_e2m1x2"` // x's shape; of pairs half its last extent
	X         tensor.Tensor `op:"in" shape:"any" dtype:"float"`
	Scale     tensor.Tensor `op:"in" shape:"any" dtype:"f32"`
	ZeroPoint tensor.Tensor `op:"in,opt" shape:"like scale" dtype:"like out"` // only for whole numbers; absent: 0
	Axis      int32         // 0 to x's rank - 1
	BlockSize int32         // >= 0, divides the extent of the axis; 0 means no blocks
	Low       int32         // least number, of whole ones; with high 0, too: the range of the dtype
	High      int32         // largest number, >= low
}

// DequantizeArgs is the record of Dequantize: out = (x - z)·s, the difference exact, with scales and zero points as those of
// Quantize.
type DequantizeArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"any" dtype:"float"` // x's shape; of pairs twice its last extent
	X         tensor.Tensor `op:"in" shape:"any" dtype:"i8 u8 i16 i32 f8_e4m3fn f8_e5m2 f4_e2m1x2"`
	Scale     tensor.Tensor `op:"in" shape:"any" dtype:"f32"`
	ZeroPoint tensor.Tensor `op:"in,opt" shape:"like scale" dtype:"like x"` // only for whole numbers; absent: 0
	Axis      int32         // 0 to out's rank - 1
	BlockSize int32         // >= 0, divides the extent of the axis; 0 means no blocks
}

// DynamicQuantizeArgs is the record of DynamicQuantize: Quantize with scales from the data, one for the tensor or for each row.
// To i8 s = m/127, m the largest magnitude. To u8 s = (b-a)/255 with a the smallest element or 0 and b the largest or 0, and the
// zero point is -a/s rounded to the nearest, ties to even, in [0,255]. Where s would be 0 it is 1. NaN counts in neither.
type DynamicQuantizeArgs struct {
	registry.Header
	Out         tensor.Tensor `op:"out" shape:"M,K" dtype:"i8 u8"`
	Scale       tensor.Tensor `op:"out" shape:"S" dtype:"f32"`          // S is 1, or M per token
	ZeroPoint   tensor.Tensor `op:"out,opt" shape:"S" dtype:"like out"` // present for u8, absent for i8
	X           tensor.Tensor `op:"in" shape:"M,K" dtype:"float" layout:"rows"`
	Granularity Granularity   // PerTensor or PerToken
}

// DequantNVFP4Args is the record of DequantNVFP4: out = fp4·(fp8 scale of its 16 neighbours·global_scale).
type DequantNVFP4Args struct {
	registry.Header
	Out         tensor.Tensor `op:"out" shape:"M,K" dtype:"float"`
	X           tensor.Tensor `op:"in" shape:"M,W" dtype:"fp4"`  // W is K/2, the even element in the low nibble
	Scale       tensor.Tensor `op:"in" shape:"S,G" dtype:"byte"` // fp8 e4m3fn; [M,K/16], or as scale_layout says
	GlobalScale float32       // finite; 0 means 1
	ScaleLayout ScaleLayout   // ScaleLinear or ScaleSwizzled
}

// Quantization by scale and zero point, and back.
var (
	Quantize = define(OpQuantize, "quantize", "quantization", "affine", "floats as codes, by scales and zero points that are given",
		func(a *QuantizeArgs) *OpError {
			low, high := wholeRange(a.Out.DType)
			switch {
			case a.Low == 0 && a.High == 0:
			case low == high:
				return bad(ErrAttr, "low", "a range of %v", a.Out.DType)
			case a.Low > a.High || int64(a.Low) < low || int64(a.High) > high:
				return bad(ErrAttr, "low", "[%d,%d] is no range of %v", a.Low, a.High, a.Out.DType)
			}
			return checkAffine("out", &a.Out, "x", &a.X, &a.Scale, &a.ZeroPoint, a.Axis, a.BlockSize)
		})
	Dequantize = define(OpDequantize, "dequantize", "quantization", "affine_decode", "codes as floats, by scales and zero points",
		func(a *DequantizeArgs) *OpError {
			return checkAffine("x", &a.X, "out", &a.Out, &a.Scale, &a.ZeroPoint, a.Axis, a.BlockSize)
		})
	DynamicQuantize = define(OpDynamicQuantize, "dynamic_quantize", "quantization", "affine_dynamic", "floats as bytes, by scales from the data",
		func(a *DynamicQuantizeArgs) *OpError {
			s := int64(1)
			switch a.Granularity {
			case PerTensor:
			case PerToken:
				s = a.X.Shape[0]
			default:
				return bad(ErrAttr, "granularity", "%d is neither the tensor nor a token", a.Granularity)
			}
			switch {
			case a.Scale.Shape[0] != s:
				return bad(ErrShape, "scale", "%d scales, want %d", a.Scale.Shape[0], s)
			case a.Out.DType == tensor.U8 && !a.ZeroPoint.Present():
				return bad(ErrAttr, "zero_point", "absent beside u8")
			case a.Out.DType == tensor.I8 && a.ZeroPoint.Present():
				return bad(ErrAttr, "zero_point", "present beside i8")
			}
			return nil
		})
	DequantNVFP4 = define(OpDequantNVFP4, "dequant_nvfp4", "quantization", "nvfp4_decode", "rows of nvfp4 as floats",
		func(a *DequantNVFP4Args) *OpError {
			m, k := a.Out.Shape[0], a.Out.Shape[1]
			switch {
			case k%FP4Group != 0:
				return bad(ErrShape, "out", "rows of %d are not whole groups of %d", k, FP4Group)
			case a.ScaleLayout >= numScaleLayouts:
				return bad(ErrAttr, "scale_layout", "%d is not known", a.ScaleLayout)
			case a.X.Shape[1] != k/2:
				return bad(ErrShape, "x", "rows of %d bytes for %d elements", a.X.Shape[1], k)
			}
			if r, c := ScaleExtents(a.ScaleLayout, m, k/FP4Group); a.Scale.Shape[0] != r || a.Scale.Shape[1] != c {
				return bad(ErrShape, "scale", "shape %v, want [%d %d]", a.Scale.Dims(), r, c)
			}
			return finite("global_scale", a.GlobalScale)
		})
)

// wholeRange returns the ends of a dtype of whole numbers of up to 32 bits, 0 and 0 for others.
func wholeRange(t tensor.DType) (low, high int64) {
	switch t {
	case tensor.I8:
		return math.MinInt8, math.MaxInt8
	case tensor.U8:
		return 0, math.MaxUint8
	case tensor.I16:
		return math.MinInt16, math.MaxInt16
	case tensor.I32:
		return math.MinInt32, math.MaxInt32
	}
	return 0, 0
}

// checkAffine checks codes against the floats that they stand for, and the scales against both.
func checkAffine(codesName string, codes *tensor.Tensor, name string, x, scale, zero *tensor.Tensor, axis, block int32) *OpError {
	last := int(x.Rank) - 1
	if codes.Rank != x.Rank {
		return bad(ErrRank, codesName, "rank is %d, that of %s is %d", codes.Rank, name, x.Rank)
	}
	for d, n := range codes.Dims() {
		if d == last && codes.DType == tensor.F4E2M1x2 {
			n *= 2
		}
		if n != x.Shape[d] {
			return bad(ErrShape, codesName, "shape %v for %v of %s", codes.Dims(), x.Dims(), name)
		}
	}
	if axis < 0 || int(axis) > last {
		return bad(ErrAttr, "axis", "%d of rank %d", axis, x.Rank)
	}
	if low, high := wholeRange(codes.DType); zero.Present() && low == high {
		return bad(ErrDType, "zero_point", "beside %v", codes.DType)
	}
	n := x.Shape[axis]
	switch {
	case block < 0:
		return bad(ErrAttr, "block_size", "%d is negative", block)
	case block == 0:
		if scale.Rank != 1 {
			return bad(ErrRank, "scale", "rank is %d, want 1", scale.Rank)
		}
		if scale.Shape[0] != 1 && scale.Shape[0] != n {
			return bad(ErrShape, "scale", "%d scales, want 1 or %d", scale.Shape[0], n)
		}
		return nil
	case n%int64(block) != 0:
		return bad(ErrShape, name, "extent %d is not whole blocks of %d", n, block)
	case scale.Rank != x.Rank:
		return bad(ErrRank, "scale", "rank is %d, that of %s is %d", scale.Rank, name, x.Rank)
	}
	for d, n := range x.Dims() {
		if d == int(axis) {
			n /= int64(block)
		}
		if scale.Shape[d] != n {
			return bad(ErrShape, "scale", "shape %v for %v in blocks of %d", scale.Dims(), x.Dims(), block)
		}
	}
	return nil
}
