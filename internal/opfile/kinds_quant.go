package opfile

import "github.com/opmux/opmux/ops"

// quantKinds is for quantization, selection and movement of rows, speculative decoding.
var quantKinds = kindTable{
	"TopK":          {"X K -> Values Indices", []route{{ops.OpTopK, topK}}},
	"CumSum":        {"x axis -> y", []route{{ops.OpCumsum, cumSum}}},
	"Gather":        {"data indices -> output", []route{{ops.OpGather, gather}}},
	"ScatterND":     {"data indices updates -> output", []route{{ops.OpScatter, scatterND}}},
	"TensorScatter": {"past_cache update write_indices -> present_cache", []route{{ops.OpScatter, tensorScatter}}},

	"QuantizeLinear":        {"x y_scale y_zero_point -> y", []route{{ops.OpQuantize, quantizeLinear}}},
	"DequantizeLinear":      {"x x_scale x_zero_point -> y", []route{{ops.OpDequantize, dequantizeLinear}}},
	"DynamicQuantizeLinear": {"x -> y y_scale y_zero_point", []route{{ops.OpDynamicQuantize, dynamicQuantizeLinear}}},

	"top_k": {"", []route{{ops.OpTopK, ggmlTopK}}},

	"rule greedy_rejection_sample": {"", []route{{ops.OpGreedyRejectionSample, ruleRejection}}},
	"rule nan_guard":               {"", []route{{ops.OpClip, ruleNaNGuard}}},
}
