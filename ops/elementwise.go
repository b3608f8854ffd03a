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
