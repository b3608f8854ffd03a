package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// SiluAndMulArgs is the record of SiluAndMul: out = g·sigmoid(alpha·g)·u, computed as (g / (1 + exp(-alpha·g)))·u. The gate
// g is the first half of each row of x and u the second; with Up present g is x itself and u is up.
type SiluAndMulArgs struct {
	registry.Header
	Out   tensor.Tensor `op:"out" shape:"T,D" dtype:"outfloat"`
	X     tensor.Tensor `op:"in" shape:"T,W" dtype:"float"` // W is 2·D, or D with Up
	Up    tensor.Tensor `op:"in,opt" shape:"T,D" dtype:"float"`
	Alpha float32       // finite; 0 means 1
}

// ReluArgs is the record of Relu: out = x where x > 0, else +0 (also for NaN and -0). Out may be x.
type ReluArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X   tensor.Tensor `op:"in" shape:"any" dtype:"float"`
}

// AddArgs is the record of Add: out = a + b. B has a's shape, or is a row [D] added to every row of an a of rank >= 2
// whose last extent is D. Out may be a.
type AddArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"like a" dtype:"outfloat"`
	A   tensor.Tensor `op:"in" shape:"any" dtype:"float"` // rank >= 1
	B   tensor.Tensor `op:"in" shape:"any" dtype:"float"`
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

// Elementwise ops, the split of a merged projection, and softmax with mask and sinks.
var (
	SiluAndMul = define(OpSiluAndMul, "silu_and_mul", "elementwise", "silu_mul_packed",
		"silu of the gate times the other half of the row, or times a second tensor",
		func(a *SiluAndMulArgs) *OpError {
			width, d := a.X.Shape[1], a.Out.Shape[1]
			if !a.Up.Present() {
				if width%2 != 0 {
					return bad(ErrShape, "x", "odd inner extent %d", width)
				}
				width /= 2
			}
			if width != d {
				return bad(ErrShape, "x", "inner extent %d does not fit the %d of out", a.X.Shape[1], d)
			}
			return finite("alpha", a.Alpha)
		})
	Relu = define[ReluArgs](OpRelu, "relu", "elementwise", "relu", "x where x > 0, else +0", nil)
	Add  = define(OpAdd, "add", "elementwise", "add", "a + b, b of a's shape or one row for all",
		func(a *AddArgs) *OpError {
			if a.B.Rank == a.A.Rank {
				if a.B.Shape != a.A.Shape {
					return bad(ErrShape, "b", "shape %v is not the %v of a", a.B.Dims(), a.A.Dims())
				}
			} else if a.B.Rank != 1 {
				return bad(ErrRank, "b", "rank %d is neither 1 nor the %d of a", a.B.Rank, a.A.Rank)
			} else if a.B.Shape[0] != a.A.Last() {
				return bad(ErrShape, "b", "a row of %d for rows of %d", a.B.Shape[0], a.A.Last())
			}
			return nil
		})
	MulScalar = define[MulScalarArgs](OpMulScalar, "mul_scalar", "elementwise", "mul_scalar", "x times a number", nil)
	QKVSplit  = define(OpQKVSplit, "qkv_split", "elementwise", "split_qkv",
		"a merged projection cut into three dense tensors", checkQKVSplit)
	Softmax = define(OpSoftmax, "softmax", "attention", "masked_softmax",
		"softmax of scaled logits with an additive mask, ALiBi slopes and sinks",
		func(a *SoftmaxArgs) *OpError {
			if a.MaxBias > 0 && !a.Mask.Present() {
				return bad(ErrAttr, "max_bias", "%v needs a mask", a.MaxBias)
			}
			return first(positive("scale", a.Scale), notNegative("max_bias", a.MaxBias))
		})
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
