package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// MXBlock is how many elements of a row share a scale in the microscaling formats (OCP Microscaling Formats 1.0).
const MXBlock = 32

// ScaleRounding says which power of two a power-of-two scale is.
type ScaleRounding uint8

// Rules for the scale of a block whose largest magnitude is m, in a format whose largest number is M with exponent e.
const (
	ScaleFloor ScaleRounding = iota // 2^(floor(log2 m) - e), OCP's: m may lie above M scaled and saturate
	ScaleCeil                       // the smallest power of two not below m/M: nothing saturates
	numScaleRoundings
)

// Granularity says which elements share a scale.
type Granularity uint8

// Granularities of QuantFP8Dynamic.
const (
	PerTensor Granularity = iota // all of them
	PerToken                     // a row
	PerGroup                     // group_size neighbours in a row
	numGranularities
)

// QuantMXArgs is the record of QuantMX: each 32 neighbours in a row share one power of two, chosen by Rounding from their
// largest magnitude; an element is x/scale rounded to the nearest code, ties to even, saturating. The dtype of out says the
// format: f8_e4m3fn and f8_e5m2 are mxfp8, f4_e2m1x2 is mxfp4. NaN takes no part in the largest magnitude; a NaN becomes
// the format's NaN, +6 in fp4. A block of zeros has scale code 0. The largest scale is 2^127.
type QuantMXArgs struct {
	registry.Header
	Out      tensor.Tensor `op:"out" shape:"M,W" dtype:"f8_e4m3fn f8_e5m2 f4_e2m1x2"` // W is K, or K/2 bytes of fp4 pairs
	Scale    tensor.Tensor `op:"out" shape:"M,G" dtype:"f8_e8m0 u8"`                  // G is K/32
	X        tensor.Tensor `op:"in" shape:"M,K" dtype:"float" layout:"rows"`          // K a multiple of 32
	Rounding ScaleRounding // ScaleFloor or ScaleCeil
}

// DequantMXArgs is the record of DequantMX: out = element·scale, one rounding on store. A scale code of 255 gives NaN.
type DequantMXArgs struct {
	registry.Header
	Out   tensor.Tensor `op:"out" shape:"M,K" dtype:"float"`                      // K a multiple of 32
	X     tensor.Tensor `op:"in" shape:"M,W" dtype:"f8_e4m3fn f8_e5m2 f4_e2m1x2"` // W is K, or K/2 bytes of fp4 pairs
	Scale tensor.Tensor `op:"in" shape:"M,G" dtype:"f8_e8m0 u8"`                  // G is K/32
}

// QuantFP8DynamicArgs is the record of QuantFP8Dynamic: the elements that share a scale get s = max(largest magnitude / M,
// 1e-10), M the largest number of out's format; with an e8m0 scale s is the smallest power of two not below that. An
// element is x/s rounded to the nearest code, ties to even, saturating. NaN takes no part in the largest magnitude and
// becomes the format's NaN. What is stored is the factor that gives x back: x ≈ out·scale.
type QuantFP8DynamicArgs struct {
	registry.Header
	Out         tensor.Tensor `op:"out" shape:"M,K" dtype:"f8_e4m3fn f8_e5m2"`
	Scale       tensor.Tensor `op:"out" shape:"S|M,G" dtype:"f32 f8_e8m0"` // [1] per tensor, [M,1] per token, [M,K/group_size] per group
	X           tensor.Tensor `op:"in" shape:"M,K" dtype:"float" layout:"rows"`
	GroupSize   int32         // > 0 and a divisor of K per group, else 0
	Granularity Granularity   // PerTensor, PerToken or PerGroup
}

// Quantization to formats that share power-of-two scales, and to fp8 with scales from the data.
var (
	QuantMX = define(OpQuantMX, "quant_mx", "quantization", "mx",
		"rows as mxfp8 or mxfp4: a power of two for each 32 elements",
		func(a *QuantMXArgs) *OpError {
			if a.Rounding >= numScaleRoundings {
				return bad(ErrAttr, "rounding", "%d is no rule", a.Rounding)
			}
			return microscaled("out", &a.Out, &a.Scale, a.X.Shape[1])
		})
	DequantMX = define(OpDequantMX, "dequant_mx", "quantization", "mx_decode",
		"rows of mxfp8 or mxfp4 as floats",
		func(a *DequantMXArgs) *OpError { return microscaled("x", &a.X, &a.Scale, a.Out.Shape[1]) })
	QuantFP8Dynamic = define(OpQuantFP8Dynamic, "quant_fp8_dynamic", "quantization", "fp8_with_scale",
		"rows as fp8 with scales from the data, one for the tensor, a row or a group",
		func(a *QuantFP8DynamicArgs) *OpError {
			if a.Granularity >= numGranularities {
				return bad(ErrAttr, "granularity", "%d is none", a.Granularity)
			}
			m, k := a.X.Shape[0], a.X.Shape[1]
			groups := int64(1)
			switch {
			case a.Granularity != PerGroup && a.GroupSize != 0:
				return bad(ErrAttr, "group_size", "%d without groups", a.GroupSize)
			case a.Granularity == PerGroup && a.GroupSize <= 0:
				return bad(ErrAttr, "group_size", "%d is not positive", a.GroupSize)
			case a.Granularity == PerGroup:
				if k%int64(a.GroupSize) != 0 {
					return bad(ErrShape, "x", "rows of %d are not whole groups of %d", k, a.GroupSize)
				}
				groups = k / int64(a.GroupSize)
			}
			switch {
			case a.Granularity == PerTensor && (a.Scale.Rank != 1 || a.Scale.Shape[0] != 1):
				return bad(ErrShape, "scale", "shape %v, one for the tensor is [1]", a.Scale.Dims())
			case a.Granularity != PerTensor && (a.Scale.Rank != 2 || a.Scale.Shape[1] != groups):
				return bad(ErrShape, "scale", "shape %v, want [%d,%d]", a.Scale.Dims(), m, groups)
			}
			return nil
		})
)

// microscaled checks the extents of codes and scales of rows of k elements.
func microscaled(name string, codes, scale *tensor.Tensor, k int64) *OpError {
	width := k
	if codes.DType == tensor.F4E2M1x2 {
		width /= 2
	}
	switch {
	case k%MXBlock != 0:
		return bad(ErrShape, name, "rows of %d elements are not whole blocks of %d", k, MXBlock)
	case codes.Shape[1] != width:
		return bad(ErrShape, name, "%d bytes a row for %d elements of %v", codes.Shape[1], k, codes.DType)
	case scale.Shape[1] != k/MXBlock:
		return bad(ErrShape, "scale", "%d scales a row for %d elements", scale.Shape[1], k)
	}
	return nil
}
