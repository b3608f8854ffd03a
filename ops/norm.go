package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// RMSNormArgs is the record of RMSNorm: out = x / sqrt(mean(x²) + eps) · weight for each row. With a residual, x becomes
// x + residual first, is stored into residual (rounded to its dtype) and goes on as stored. An absent weight is all ones.
// Out may be x when there is no residual and the dtypes are equal.
type RMSNormArgs struct {
	registry.Header
	Out      tensor.Tensor `op:"out" shape:"T,H" dtype:"outfloat"`
	X        tensor.Tensor `op:"in" shape:"T,H" dtype:"float"`
	Weight   tensor.Tensor `op:"in,opt" shape:"H" dtype:"float"`
	Residual tensor.Tensor `op:"inout,opt" shape:"T,H" dtype:"outfloat"`
	Eps      float32       // >= 0, finite; added to the mean
	Gemma    bool          // multiply by 1 + weight (needs a weight)
}

// RMSNorm normalizes rows by their root mean square.
var RMSNorm = define(OpRMSNorm, "rms_norm", "norm", "rms",
	"rows divided by their root mean square and multiplied by a weight, after adding a residual if there is one",
	func(a *RMSNormArgs) *OpError {
		if a.Gemma && !a.Weight.Present() {
			return bad(ErrAttr, "gemma", "1 + weight needs a weight")
		}
		return notNegative("eps", a.Eps)
	})

// RMSNormGatedArgs is the record of RMSNormGated: out = x / sqrt(mean(x²) + eps) · weight · act(gate) for each row of the
// last dimension, act being silu or the sigmoid. The norm stands before the gate and spans the row.
type RMSNormGatedArgs struct {
	registry.Header
	Out         tensor.Tensor `op:"out" shape:"T,D|T,Hv,D" dtype:"outfloat"`
	X           tensor.Tensor `op:"in" shape:"like out" dtype:"float"`
	Gate        tensor.Tensor `op:"in" shape:"like out" dtype:"float" layout:"inner-rows"`
	Weight      tensor.Tensor `op:"in" shape:"D" dtype:"float"`
	Eps         float32       // >= 0, finite; added to the mean
	SigmoidGate bool          // act is the sigmoid, not silu
}

// LayerNormArgs is the record of LayerNorm: out = (x - mean) / sqrt(variance + eps) · weight + bias for each row of the last
// dimension, the variance being that of the population. An absent weight is all ones, an absent bias zeros.
type LayerNormArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X         tensor.Tensor `op:"in" shape:"any" dtype:"float"` // rank >= 1; the last extent is above 0
	Weight    tensor.Tensor `op:"in,opt" shape:"D" dtype:"float"`
	Bias      tensor.Tensor `op:"in,opt" shape:"D" dtype:"float"`
	Mean      tensor.Tensor `op:"out,opt" shape:"any" dtype:"f32"` // an element for each row, in any shape
	InvStdDev tensor.Tensor `op:"out,opt" shape:"any" dtype:"f32"` // 1 / sqrt(variance + eps), likewise
	Eps       float32       // >= 0, finite; added to the variance
}

// L2NormArgs is the record of L2Norm: out = x / sqrt(sum(x²) + eps) for each row of the last dimension, or with Clamp
// x / max(sqrt(sum(x²)), eps).
type L2NormArgs struct {
	registry.Header
	Out   tensor.Tensor `op:"out" shape:"T,D|T,H,D" dtype:"outfloat"`
	X     tensor.Tensor `op:"in" shape:"like out" dtype:"float"`
	Eps   float32       // >= 0, finite
	Clamp bool          // eps is the least length to divide by, as ggml has it, and not added to the square
}

// GroupNormArgs is the record of GroupNorm: the C channels of each sample are cut into NumGroups groups of neighbours, and
// every group is normalized as a row of LayerNorm. Then channel c is multiplied by weight[c] and bias[c] is added.
type GroupNormArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X         tensor.Tensor `op:"in" shape:"any" dtype:"float"` // [samples, C, ...], rank >= 2
	Weight    tensor.Tensor `op:"in,opt" shape:"C" dtype:"float"`
	Bias      tensor.Tensor `op:"in,opt" shape:"C" dtype:"float"`
	Eps       float32       // >= 0, finite; added to the variance
	NumGroups int32         // >= 1, divides C
}

// Norms of rows.
var (
	RMSNormGated = define(OpRMSNormGated, "rms_norm_gated", "norm", "rms_gated",
		"rows divided by their root mean square, multiplied by a weight and by silu or sigmoid of a gate",
		func(a *RMSNormGatedArgs) *OpError { return notNegative("eps", a.Eps) })
	LayerNorm = define(OpLayerNorm, "layer_norm", "norm", "layer",
		"rows less their mean, divided by their standard deviation", checkLayerNorm)
	L2Norm = define(OpL2Norm, "l2_norm", "norm", "l2", "rows divided by their Euclidean length",
		func(a *L2NormArgs) *OpError { return notNegative("eps", a.Eps) })
	GroupNorm = define(OpGroupNorm, "group_norm", "norm", "group",
		"groups of channels less their mean, divided by their standard deviation", checkGroupNorm)
)

func checkLayerNorm(a *LayerNormArgs) *OpError {
	d := a.X.Last()
	if d == 0 {
		return bad(ErrShape, "x", "rows of no elements")
	}
	for i, x := range [...]*tensor.Tensor{&a.Mean, &a.InvStdDev} {
		if x.Present() && x.Numel() != a.X.Numel()/d {
			return bad(ErrShape, [...]string{"mean", "inv_std_dev"}[i], "%d elements for %d rows", x.Numel(), a.X.Numel()/d)
		}
	}
	return first(vectors(&a.Weight, &a.Bias, d), notNegative("eps", a.Eps))
}

func checkGroupNorm(a *GroupNormArgs) *OpError {
	if a.X.Rank < 2 {
		return bad(ErrRank, "x", "rank is %d, want samples and channels", a.X.Rank)
	}
	c := a.X.Shape[1]
	if a.NumGroups < 1 || c%int64(a.NumGroups) != 0 {
		return bad(ErrAttr, "num_groups", "%d does not divide %d channels", a.NumGroups, c)
	}
	return first(vectors(&a.Weight, &a.Bias, c), notNegative("eps", a.Eps))
}

// vectors wants n elements of a norm's weight and bias, where they are present.
func vectors(weight, bias *tensor.Tensor, n int64) *OpError {
	for i, x := range [...]*tensor.Tensor{weight, bias} {
		if x.Present() && x.Shape[0] != n {
			return bad(ErrShape, [...]string{"weight", "bias"}[i], "%d elements, want %d", x.Shape[0], n)
		}
	}
	return nil
}
