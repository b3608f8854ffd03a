package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// SiluAndMulArgs is the record of SiluAndMul: out = g·sigmoid(alpha·g)·u, computed as (g / (1 + exp(-alpha·g)))·u. The gate
// g is the first half of each row of x and u the second; with Up present g is x itself and u is up. With a limit g is
// min(g, limit) and u lies between -limit and limit; with PlusOne u + 1 stands for u.
type SiluAndMulArgs struct {
	registry.Header
	Out     tensor.Tensor `op:"out" shape:"T,D" dtype:"outfloat"`
	X       tensor.Tensor `op:"in" shape:"T,W" dtype:"float"` // W is 2·D, or D with Up
	Up      tensor.Tensor `op:"in,opt" shape:"T,D" dtype:"float"`
	Alpha   float32       // finite; 0 means 1
	Limit   float32       // >= 0, finite; 0 means none
	PlusOne bool          // multiply by u + 1
}

// ReluArgs is the record of Relu: out = x where x > 0, else +0 (also for NaN and -0). Out may be x.
type ReluArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X   tensor.Tensor `op:"in" shape:"any" dtype:"float"`
}

// AddArgs is the record of Add: out = a + b. B has a's shape, or is a row [D] added to every row of an a whose last extent
// is D, or one element [1]. Whole numbers wrap around; then all three have one dtype. Out may be a.
type AddArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"like a" dtype:"outfloat int"`
	A   tensor.Tensor `op:"in" shape:"any" dtype:"float int"` // rank >= 1
	B   tensor.Tensor `op:"in" shape:"any" dtype:"float int"`
}

// MulArgs is the record of Mul: out = a·b, with operands as those of Add.
type MulArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"like a" dtype:"outfloat int"`
	A   tensor.Tensor `op:"in" shape:"any" dtype:"float int"` // rank >= 1
	B   tensor.Tensor `op:"in" shape:"any" dtype:"float int"`
}

// ClipArgs is the record of Clip: out = x, but min where x < min, and then max where that is > max. NaN stays, or is 0 before
// the bounds are looked at. Out may be x.
type ClipArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat int"` // x's dtype if that is one of whole numbers
	X         tensor.Tensor `op:"in" shape:"any" dtype:"float int"`
	Min       tensor.Tensor `op:"in,opt" shape:"1" dtype:"like x"`
	Max       tensor.Tensor `op:"in,opt" shape:"1" dtype:"like x"`
	NanToZero bool          // NaN counts as 0
}

// MulColVecF32Args is the record of MulColVecF32: x[m,n] = x[m,n]·col[n], in place.
type MulColVecF32Args struct {
	registry.Header
	X   tensor.Tensor `op:"inout" shape:"M,N" dtype:"f32" layout:"rows"`
	Col tensor.Tensor `op:"in" shape:"N" dtype:"f32"`
}

// CastBF16Args is the record of CastBF16: f32 to bf16, to the nearest, ties to even; NaN becomes quiet. Rows of in, which may
// be padded, follow each other in out.
type CastBF16Args struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"any" dtype:"bf16"` // as many elements as in
	In  tensor.Tensor `op:"in" shape:"any" dtype:"f32" layout:"inner-rows"`
}

// CastF32Args is the record of CastF32: bf16 to f32. Rows of in, which may be padded, follow each other in out.
type CastF32Args struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"any" dtype:"f32"` // as many elements as in
	In  tensor.Tensor `op:"in" shape:"any" dtype:"bf16" layout:"inner-rows"`
}

// CastArgs is the record of Cast: the elements of in in the dtype of out. To a float type values are rounded once, to the
// nearest, ties to even; what is beyond its largest number becomes infinite, or NaN where the type has no infinity, or with
// Saturate, for types of 8 bits, the largest number of its sign. f4_e2m1x2 always saturates. To whole numbers floats are cut
// off towards zero, NaN gives 0 and what is out of range the nearest end; whole numbers keep their low bits.
type CastArgs struct {
	registry.Header
	Out       tensor.Tensor   `op:"out" shape:"any" dtype:"element"` // as many elements as in; extents of f4_e2m1x2 count pairs
	In        tensor.Tensor   `op:"in" shape:"any" dtype:"element" layout:"inner-rows"`
	Saturate  bool            // overflow of f8_e4m3fn, f8_e5m2 and f8_e8m0 gives the largest number
	RoundMode tensor.Rounding // of f8_e8m0: 0 nearest, 1 up, 2 down
}

// AttnGateSplitArgs is the record of AttnGateSplit: row t of qgate is [q | gate] for each head.
type AttnGateSplitArgs struct {
	registry.Header
	QOut    tensor.Tensor `op:"out" shape:"T,Hq,D" dtype:"f32"`
	GateOut tensor.Tensor `op:"out" shape:"T,Hq,D" dtype:"f32"`
	Qgate   tensor.Tensor `op:"in" shape:"T,W" dtype:"f32 bf16"` // W = Hq·2·D
}

// MulScalarArgs is the record of MulScalar: out = x·float32(scalar). Out may be x when the dtypes are equal.
type MulScalarArgs struct {
	registry.Header
	Out    tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X      tensor.Tensor `op:"in" shape:"any" dtype:"float"`
	Scalar float64       // any value, NaN and infinities too
}

// QKVSplitArgs is the record of QKVSplit: row t of qkv is [q | k | v]; the widths are the outputs' element counts over T.
type QKVSplitArgs struct {
	registry.Header
	QOut tensor.Tensor `op:"out" shape:"any" dtype:"like qkv"`
	KOut tensor.Tensor `op:"out" shape:"any" dtype:"like qkv"`
	VOut tensor.Tensor `op:"out" shape:"any" dtype:"like qkv"`
	QKV  tensor.Tensor `op:"in" shape:"T,W" dtype:"outfloat"` // T > 0
}

// SoftmaxArgs is the record of Softmax: out = softmax(x·scale + slope(h)·mask) over the last dimension, with sinks[h] as one
// more logit of head h whose probability is dropped. slope(h) is 1, or with MaxBias > 0 ALiBi's: with n the largest power
// of two <= H it is 2^(-MaxBias·(h+1)/n) for h < n and 2^(-MaxBias·(2·(h-n)+1)/(2·n)) above. A row of -inf gives NaN.
type SoftmaxArgs struct {
	registry.Header
	Out     tensor.Tensor `op:"out" shape:"H,T,N" dtype:"outfloat"`
	X       tensor.Tensor `op:"in" shape:"H,T,N" dtype:"float"`
	Mask    tensor.Tensor `op:"in,opt" shape:"T,N" dtype:"float"` // added to the logits
	Sinks   tensor.Tensor `op:"in,opt" shape:"H" dtype:"f32"`
	Scale   float32       // > 0, finite
	MaxBias float32       // >= 0, finite; > 0 needs a mask
}

// LogSoftmaxArgs is the record of LogSoftmax: out = log(softmax(x·scale)) for each row. A row of -inf gives NaN. Out may be x
// when the dtypes are equal.
type LogSoftmaxArgs struct {
	registry.Header
	Out   tensor.Tensor `op:"out" shape:"T,N" dtype:"outfloat"`
	X     tensor.Tensor `op:"in" shape:"T,N" dtype:"float"`
	Scale float32       // finite; 0 means 1
}

// Elementwise ops, the split of a merged projection, and softmax with mask and sinks.
var (
	SiluAndMul = define(OpSiluAndMul, "silu_and_mul", "elementwise", "silu_mul_packed",
		"silu of the gate times the other half of the row, or times a second tensor",
		func(a *SiluAndMulArgs) *OpError {
			return first(halves(&a.X, a.Up.Present(), a.Out.Shape[1]), finite("alpha", a.Alpha), notNegative("limit", a.Limit))
		})
	Relu = define[ReluArgs](OpRelu, "relu", "elementwise", "relu", "x where x > 0, else +0", nil)
	Add  = define(OpAdd, "add", "elementwise", "add", "a + b, b of a's shape, one row for all, or one element",
		func(a *AddArgs) *OpError { return factors(&a.Out, &a.A, &a.B) })
	Mul = define(OpMul, "mul", "elementwise", "mul", "a times b, b of a's shape, one row for all, or one element",
		func(a *MulArgs) *OpError { return factors(&a.Out, &a.A, &a.B) })
	Clip = define(OpClip, "clip", "elementwise", "clip", "values between two bounds, each of which may be absent",
		func(a *ClipArgs) *OpError { return sameWhole("out", &a.Out, &a.X) })
	MulScalar    = define[MulScalarArgs](OpMulScalar, "mul_scalar", "elementwise", "mul_scalar", "x times a number", nil)
	MulColVecF32 = define[MulColVecF32Args](OpMulColVecF32, "mul_col_vec_f32", "elementwise", "mul_col_vec", "every column times a number of its own", nil)
	CastBF16     = define(OpCastBF16, "cast_bf16", "elementwise", "cast_f32_bf16", "f32 to bf16",
		func(a *CastBF16Args) *OpError { return sameCount("in", &a.In, &a.Out) })
	CastF32 = define(OpCastF32, "cast_f32", "elementwise", "cast_bf16_f32", "bf16 to f32",
		func(a *CastF32Args) *OpError { return sameCount("in", &a.In, &a.Out) })
	Cast          = define(OpCast, "cast", "elementwise", "cast", "any dtype of single elements to any other", checkCast)
	AttnGateSplit = define(OpAttnGateSplit, "attn_gate_split", "elementwise", "split_q_gate",
		"a projection of heads [q | gate] cut into two dense tensors",
		func(a *AttnGateSplitArgs) *OpError {
			if w := 2 * a.QOut.Shape[1] * a.QOut.Shape[2]; a.Qgate.Shape[1] != w {
				return bad(ErrShape, "qgate", "rows of %d, want %d heads of twice %d", a.Qgate.Shape[1], a.QOut.Shape[1], a.QOut.Shape[2])
			}
			return nil
		})
	QKVSplit = define(OpQKVSplit, "qkv_split", "elementwise", "split_qkv",
		"a merged projection cut into three dense tensors", checkQKVSplit)
	Softmax = define(OpSoftmax, "softmax", "attention", "masked_softmax",
		"softmax of scaled logits with an additive mask, ALiBi slopes and sinks",
		func(a *SoftmaxArgs) *OpError {
			if a.MaxBias > 0 && !a.Mask.Present() {
				return bad(ErrAttr, "max_bias", "%v needs a mask", a.MaxBias)
			}
			return first(positive("scale", a.Scale), notNegative("max_bias", a.MaxBias))
		})
	LogSoftmax = define(OpLogSoftmax, "log_softmax", "attention", "log_softmax", "the logarithm of the softmax of scaled rows",
		func(a *LogSoftmaxArgs) *OpError { return finite("scale", a.Scale) })
)

func checkQKVSplit(a *QKVSplitArgs) *OpError {
	t := a.QKV.Shape[0]
	if t == 0 {
		return bad(ErrShape, "qkv", "no rows")
	}
	var width int64
	for i, o := range [...]*tensor.Tensor{&a.QOut, &a.KOut, &a.VOut} {
		n := o.Numel()
		if n%t != 0 {
			return bad(ErrShape, [...]string{"q_out", "k_out", "v_out"}[i], "%d elements are not whole rows of %d tokens", n, t)
		}
		width += n / t
	}
	if width != a.QKV.Shape[1] {
		return bad(ErrShape, "qkv", "inner extent %d, the outputs hold %d a row", a.QKV.Shape[1], width)
	}
	return nil
}

// factors checks the operands of a sum or product: b repeats over a, whole numbers do not mix.
func factors(out, a, b *tensor.Tensor) *OpError {
	switch {
	case b.Rank == 1 && b.Shape[0] == 1:
	case b.Rank == a.Rank:
		if b.Shape != a.Shape {
			return bad(ErrShape, "b", "shape %v is not the %v of a", b.Dims(), a.Dims())
		}
	case b.Rank != 1:
		return bad(ErrRank, "b", "rank %d is neither 1 nor the %d of a", b.Rank, a.Rank)
	case b.Shape[0] != a.Last():
		return bad(ErrShape, "b", "a row of %d for rows of %d", b.Shape[0], a.Last())
	}
	return first(sameWhole("b", b, a), sameWhole("out", out, a))
}

// sameWhole wants x to have a's dtype if one of the two is of whole numbers.
func sameWhole(name string, x, a *tensor.Tensor) *OpError {
	if x.DType != a.DType && !(x.DType.IsFloat() && a.DType.IsFloat()) {
		return bad(ErrDType, name, "%v beside %v", x.DType, a.DType)
	}
	return nil
}

func checkCast(a *CastArgs) *OpError {
	if a.RoundMode > tensor.RoundDown {
		return bad(ErrAttr, "round_mode", "%d is not known", a.RoundMode)
	}
	in, out := a.In.Numel(), a.Out.Numel()
	if a.In.DType == tensor.F4E2M1x2 {
		in *= 2
	}
	if a.Out.DType == tensor.F4E2M1x2 {
		out *= 2
	}
	if in != out {
		return bad(ErrShape, "in", "%d elements, out has %d", in, out)
	}
	return nil
}
