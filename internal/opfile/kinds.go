package opfile

import (
	"maps"

	"github.com/opmux/opmux/ops"
)

// kind is what serves a type of file. args names an ONNX operator's arguments and results by slot.
type kind struct {
	args   string
	routes []route
}

// kinds lists the types that adapters know, besides the ops' own names. The words of ONNX are capitalized, those of vLLM and
// ggml are not; rules of sampling and rope have the prefix "rule".
var kinds = union(basicKinds, gemmKinds, elementwiseKinds, mlaKinds, linearKinds, moeKinds, quantKinds, fusedKinds)

// kindTable has kinds by type of file.
type kindTable = map[string]kind

func union(tables ...kindTable) kindTable {
	all := kindTable{}
	for _, t := range tables {
		maps.Copy(all, t)
	}
	return all
}

var basicKinds = kindTable{
	"MatMul":           {"A B -> Y", []route{{ops.OpMatmul, matMul(productNN)}, {ops.OpMatmulBT, matMul(productNT)}}},
	"RMSNormalization": {"X scale -> Y", []route{{ops.OpRMSNorm, rmsNormalization}}},
	"RotaryEmbedding":  {"X cos_cache sin_cache position_ids -> Y", []route{{ops.OpRopeFromCache, rotaryEmbedding}}},
	"ArgMax":           {"data -> reduced", []route{{ops.OpGreedyArgmax, argMax}}},
	"Softmax": {"input -> output", []route{{ops.OpSoftmax, overAxis(softmaxRows)},
		{ops.OpComputeProbs, overAxis(probsRows)}}},
	"LogSoftmax": {"input -> output", []route{{ops.OpLogSoftmax, overAxis(logSoftmaxRows)},
		{ops.OpComputeLogprobs, overAxis(logprobsRows)}}},
	"SwiGLU": {"A B -> Y", []route{{ops.OpSiluAndMul, swiGLU}}},
	"Add":    {"A B -> C", []route{{ops.OpAdd, ofTwo(sum)}}},

	"rmsnorm":           {"", []route{{ops.OpRMSNorm, vllmRMSNorm}}},
	"silu_and_mul":      {"", []route{{ops.OpSiluAndMul, vllmSiluAndMul}}},
	"long_context_rope": {"", []route{{ops.OpRopeFromCache, longContextRope}}},
	"dense_attention":   {"", []route{{ops.OpAttention, denseAttention}}},
	"rope":              {"", []route{{ops.OpRopeNeox, ropeFile(inline)}, {ops.OpRopeFromCache, ropeFile(tabled)}}},
	"rope_multi":        {"", []route{{ops.OpRopeFromCache, multiRope(rowOfEach)}, {ops.OpRopeFromCache, multiRope(ownSections)}}},
	"attention": {"", []route{{ops.OpAttention, attention}, {ops.OpAttention, unmaskedAttention},
		{ops.OpPagedAttention, pagedAttention}}},
	"rms_norm": {"", []route{{ops.OpRMSNorm, ggmlRMSNorm}}},
	"soft_max": {"", []route{{ops.OpSoftmax, ggmlSoftMax}}},
	"swiglu":   {"", []route{{ops.OpSiluAndMul, ggmlSwiGLU}}},
	"silu":     {"", []route{{ops.OpSwish, single("x", "y", swish)}, {ops.OpSiluAndMul, ggmlSilu}}},
	"argmax":   {"", []route{{ops.OpGreedyArgmax, ggmlArgmax}}},
	"relu":     {"", []route{{ops.OpRelu, ggmlRelu}}},
	"set_rows": {"", []route{{ops.OpReshapeAndCache, ggmlSetRows}}},

	"rule top_k":         {"", []route{{ops.OpApplyTopKTopP, ruleFilter("top_k")}}},
	"rule top_p":         {"", []route{{ops.OpApplyTopKTopP, ruleFilter("top_p")}}},
	"rule min_p":         {"", []route{{ops.OpApplyMinP, ruleFilter("min_p")}}},
	"rule sampler_chain": {"", []route{{ops.OpApplyTopKTopP, ruleChain}}},
	"rule temperature":   {"", []route{{ops.OpApplyTemperature, ruleTemperature}}},
	"rule penalties":     {"", []route{{ops.OpApplyPenalties, rulePenalties}}},
	"rule logit_bias":    {"", []route{{ops.OpApplyLogitBias, ruleLogitBias}}},
	"rule token_mask": {"", []route{{ops.OpApplyAllowedTokenIDs, ruleDenseMask},
		{ops.OpApplyTokenMask, ruleSparseMask}}},
	"rule rope_inv_freq":         {"", []route{{ops.OpRopeCosSinCache, ruleRope}}},
	"rule rope_attention_factor": {"", []route{{ops.OpRopeCosSinCache, ruleRope}}},
}
