package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

var scaleLayouts = [numScaleLayouts]string{"linear", "swizzled"}

// String returns "linear" or "swizzled".
func (l ScaleLayout) String() string { return nameOf(l, scaleLayouts[:]) }

// MarshalText is String. ErrAttr.
func (l ScaleLayout) MarshalText() ([]byte, error) {
	return nameText("scale layout", l, scaleLayouts[:])
}

// UnmarshalText reads a name. ErrAttr.
func (l *ScaleLayout) UnmarshalText(b []byte) error {
	return parseName("scale layout", b, l, scaleLayouts[:])
}

// FP4Group is how many elements of a row share an fp8 scale in nvfp4.
const FP4Group = 16

// ScaledFP4QuantArgs is the record of ScaledFP4Quant: nvfp4 of activations. With m the largest magnitude of 16 neighbours in a
// row (NaN left out) and gs the global scale, the group's scale byte is fp8(clamp(gs·(m·(1/6)), -448, 448)), and an element is
// fp4(x·r) with r = 1/(fp8 value·(1/gs)); 1/gs is 0 for gs = 0, r is 0 where the scale is 0. A NaN element becomes +6. Padding
// bytes of swizzled scales are 0.
type ScaledFP4QuantArgs struct {
	registry.Header
	OutPacked           tensor.Tensor `op:"out" shape:"M,W" dtype:"fp4"`  // W = K/2 bytes, the even element in the low nibble
	OutScale            tensor.Tensor `op:"out" shape:"S,G" dtype:"byte"` // [M,K/16], or as scale_layout says
	X                   tensor.Tensor `op:"in" shape:"M,K" dtype:"float"` // K a multiple of 16
	InputGlobalScaleInv float32       // gs, finite: maps the tensor's range into fp8's, normally 448·6/amax
	ScaleLayout         ScaleLayout   // ScaleLinear or ScaleSwizzled
}

// QuantFP8StaticArgs is the record of QuantFP8Static: out = fp8(x·(1/input_scale)), to the nearest code, ties to even,
// saturating at 448. NaN becomes 0x7f.
type QuantFP8StaticArgs struct {
	registry.Header
	Out        tensor.Tensor `op:"out" shape:"M,K" dtype:"byte"` // fp8 e4m3fn
	X          tensor.Tensor `op:"in" shape:"M,K" dtype:"float"`
	InputScale float32       // > 0, finite
}

// SwizzleBlockscaleArgs is the record of SwizzleBlockscale: byte (r,c) of in goes to tensor.SwizzleOffset(r, c, Q); all other
// bytes of out are 0.
type SwizzleBlockscaleArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"P,Q" dtype:"byte"` // P = R rounded up to 128s, Q = C rounded up to 4s
	In  tensor.Tensor `op:"in" shape:"R,C" dtype:"byte"`
}

// Quantization with scales that are given, or that lie in fp8 beside the codes.
var (
	ScaledFP4Quant = define(OpScaledFP4Quant, "scaled_fp4_quant", "quant", "fp4_dynamic_group",
		"rows as nvfp4: fp4 pairs and an fp8 scale for each 16 elements",
		func(a *ScaledFP4QuantArgs) *OpError {
			return checkFP4(&a.OutPacked, &a.OutScale, "x", a.X.Shape[0], a.X.Shape[1], a.InputGlobalScaleInv, a.ScaleLayout)
		})
	QuantFP8Static = define(OpQuantFP8Static, "quant_fp8_static", "quant", "fp8_static_tensor",
		"x as fp8, with one scale that is given",
		func(a *QuantFP8StaticArgs) *OpError { return positive("input_scale", a.InputScale) })
	SwizzleBlockscale = define(OpSwizzleBlockscale, "swizzle_blockscale", "quant", "scale_swizzle",
		"a scale matrix padded and permuted into tiles of 128 by 4",
		func(a *SwizzleBlockscaleArgs) *OpError {
			if p, q := ScaleExtents(ScaleSwizzled, a.In.Shape[0], a.In.Shape[1]); a.Out.Shape[0] != p || a.Out.Shape[1] != q {
				return bad(ErrShape, "out", "shape %v, want [%d %d] for the %v of in", a.Out.Dims(), p, q, a.In.Dims())
			}
			return nil
		})
)

// checkFP4 checks the outputs and attributes of nvfp4 quantization of [m,k], which operand in gives.
func checkFP4(packed, scale *tensor.Tensor, in string, m, k int64, gs float32, layout ScaleLayout) *OpError {
	if k%FP4Group != 0 {
		return bad(ErrShape, in, "rows of %d are not whole groups of %d", k, FP4Group)
	}
	if layout >= numScaleLayouts {
		return bad(ErrAttr, "scale_layout", "%d is not known", layout)
	}
	if packed.Shape[1] != k/2 {
		return bad(ErrShape, "out_packed", "rows of %d bytes for %d elements", packed.Shape[1], k)
	}
	if r, c := ScaleExtents(layout, m, k/FP4Group); scale.Shape[0] != r || scale.Shape[1] != c {
		return bad(ErrShape, "out_scale", "shape %v, want [%d %d]", scale.Dims(), r, c)
	}
	return finite("input_global_scale_inv", gs)
}
