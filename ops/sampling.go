package ops

import (
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// ApplyTemperatureArgs is the record of ApplyTemperature: row i is divided by temp[i]; unless AllRandom a temperature below
// 1e-5 counts as 1.
type ApplyTemperatureArgs struct {
	registry.Header
	Logits    tensor.Tensor `op:"inout" shape:"N,V" dtype:"f32"`
	Temp      tensor.Tensor `op:"in" shape:"N" dtype:"f32"`
	AllRandom bool
}

// GreedyArgmaxArgs is the record of GreedyArgmax: the index of the largest logit of each row, the lowest of equal ones, or
// the highest when Last.
type GreedyArgmaxArgs struct {
	registry.Header
	TokenIDs tensor.Tensor `op:"out" shape:"N" dtype:"i64"`
	Logits   tensor.Tensor `op:"in" shape:"N,V" dtype:"f32"` // V > 0 when N > 0
	Last     bool
}

// ApplyTopKTopPArgs is the record of ApplyTopKTopP: all but the k largest logits of a row (ties stay), then all but the
// fewest whose probabilities reach p, become -inf. k < 1 or >= V changes nothing. Without k and p nothing is launched.
type ApplyTopKTopPArgs struct {
	registry.Header
	Logits tensor.Tensor `op:"inout" shape:"N,V" dtype:"f32"`
	K      tensor.Tensor `op:"in,opt" shape:"N" dtype:"i32"`
	P      tensor.Tensor `op:"in,opt" shape:"N" dtype:"f32"`
}

// ComputeProbsArgs is the record of ComputeProbs: probs = softmax of each row.
type ComputeProbsArgs struct {
	registry.Header
	Probs  tensor.Tensor `op:"out" shape:"N,V" dtype:"f32"`
	Logits tensor.Tensor `op:"in" shape:"N,V" dtype:"f32"`
}

// ComputeLogprobsArgs is the record of ComputeLogprobs: logprobs = log(softmax) of each row.
type ComputeLogprobsArgs struct {
	registry.Header
	Logprobs tensor.Tensor `op:"out" shape:"N,V" dtype:"f32"`
	Logits   tensor.Tensor `op:"in" shape:"N,V" dtype:"f32"`
}

// RandomSampleArgs is the record of RandomSample: the column of the largest probs/q of each row, q drawn from Exp(1) by the
// row's seed (64 bits, the sign is one of them), the row and the column.
type RandomSampleArgs struct {
	registry.Header
	TokenIDs tensor.Tensor `op:"out" shape:"N" dtype:"i64"`
	Probs    tensor.Tensor `op:"in" shape:"N,V" dtype:"f32"` // V > 0 when N > 0
	Seeds    tensor.Tensor `op:"in" shape:"N" dtype:"i64"`
}

// ApplyPenaltiesArgs is the record of ApplyPenalties: a logit whose token is in a mask is divided by the repetition penalty
// when > 0, else multiplied; then count·frequency and mask·presence of the output are subtracted. Masks hold 0 or 1.
type ApplyPenaltiesArgs struct {
	registry.Header
	Logits              tensor.Tensor `op:"inout" shape:"N,V" dtype:"f32"`
	PromptMask          tensor.Tensor `op:"in" shape:"N,V" dtype:"mask"`
	OutputBinCounts     tensor.Tensor `op:"in" shape:"N,V" dtype:"i32"`
	OutputMask          tensor.Tensor `op:"in" shape:"N,V" dtype:"mask"`
	FrequencyPenalties  tensor.Tensor `op:"in" shape:"N" dtype:"f32"`
	PresencePenalties   tensor.Tensor `op:"in" shape:"N" dtype:"f32"`
	RepetitionPenalties tensor.Tensor `op:"in" shape:"N" dtype:"f32"`
}

// ApplyMinPArgs is the record of ApplyMinP: logits whose probability is below min_p times the row's largest become -inf.
type ApplyMinPArgs struct {
	registry.Header
	Logits tensor.Tensor `op:"inout" shape:"N,V" dtype:"f32"`
	MinP   tensor.Tensor `op:"in" shape:"N" dtype:"f32"`
}

// ApplyLogitBiasArgs is the record of ApplyLogitBias: logits[rows[e], cols[e]] += biases[e] for e = 0, 1, .. in order. An
// index outside the logits is an ErrValue.
type ApplyLogitBiasArgs struct {
	registry.Header
	Logits tensor.Tensor `op:"inout" shape:"N,V" dtype:"f32"`
	Rows   tensor.Tensor `op:"in" shape:"M" dtype:"i32"`
	Cols   tensor.Tensor `op:"in" shape:"M" dtype:"i32"`
	Biases tensor.Tensor `op:"in" shape:"M" dtype:"f32"`
}

// ApplyTokenMaskArgs is the record of ApplyTokenMask: logits[rows[e], cols[e]] = -inf. An index outside the logits is an
// ErrValue.
type ApplyTokenMaskArgs struct {
	registry.Header
	Logits tensor.Tensor `op:"inout" shape:"N,V" dtype:"f32"`
	Rows   tensor.Tensor `op:"in" shape:"M" dtype:"i32"`
	Cols   tensor.Tensor `op:"in" shape:"M" dtype:"i32"`
}

// ApplyAllowedTokenIDsArgs is the record of ApplyAllowedTokenIDs: logits become -inf where the mask is NOT zero (a nonzero
// entry excludes its token).
type ApplyAllowedTokenIDsArgs struct {
	registry.Header
	Logits tensor.Tensor `op:"inout" shape:"N,V" dtype:"f32"`
	Mask   tensor.Tensor `op:"in" shape:"N,V" dtype:"mask"`
}

// The steps of sampling, in the order in which a sampler runs them.
var (
	ApplyAllowedTokenIDs = define[ApplyAllowedTokenIDsArgs](OpApplyAllowedTokenIDs, "apply_allowed_token_ids", "sampling", "token_mask_dense",
		"-inf where a dense mask excludes the token", nil)
	ApplyTokenMask = define[ApplyTokenMaskArgs](OpApplyTokenMask, "apply_token_mask", "sampling", "token_mask_sparse",
		"-inf at listed places", nil)
	ApplyLogitBias = define[ApplyLogitBiasArgs](OpApplyLogitBias, "apply_logit_bias", "sampling", "logit_bias",
		"biases added at listed places", nil)
	ApplyPenalties = define[ApplyPenaltiesArgs](OpApplyPenalties, "apply_penalties", "sampling", "penalties",
		"repetition, frequency and presence penalties", nil)
	GreedyArgmax = define(OpGreedyArgmax, "greedy_argmax", "sampling", "argmax", "index of the largest logit of each row",
		func(a *GreedyArgmaxArgs) *OpError { return columns("logits", a.Logits.Shape) })
	ApplyTemperature = define[ApplyTemperatureArgs](OpApplyTemperature, "apply_temperature", "sampling", "temperature",
		"rows divided by their temperature", nil)
	ApplyMinP = define[ApplyMinPArgs](OpApplyMinP, "apply_min_p", "sampling", "min_p",
		"-inf where the probability is far below the row's largest", nil)
	ApplyTopKTopP = defineTopKTopP()
	ComputeProbs  = define[ComputeProbsArgs](OpComputeProbs, "compute_probs", "sampling", "softmax",
		"softmax of each row", nil)
	ComputeLogprobs = define[ComputeLogprobsArgs](OpComputeLogprobs, "compute_logprobs", "sampling", "log_softmax",
		"logarithm of the softmax of each row", nil)
	RandomSample = define(OpRandomSample, "random_sample", "sampling", "exponential_race",
		"one column of each row, drawn with its probability",
		func(a *RandomSampleArgs) *OpError { return columns("probs", a.Probs.Shape) })
)

func defineTopKTopP() *Op[ApplyTopKTopPArgs] {
	o := define[ApplyTopKTopPArgs](OpApplyTopKTopP, "apply_top_k_top_p", "sampling", "top_k_top_p",
		"-inf for all but the likeliest tokens", nil)
	o.noop = func(args unsafe.Pointer) bool {
		a := (*ApplyTopKTopPArgs)(args)
		return !a.K.Present() && !a.P.Present()
	}
	return o
}

// columns wants rows to choose from.
func columns(name string, shape [tensor.MaxRank]int64) *OpError {
	if shape[0] > 0 && shape[1] == 0 {
		return bad(ErrShape, name, "rows without columns")
	}
	return nil
}
