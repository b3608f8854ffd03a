package opfile

import "github.com/opmux/opmux/ops"

// quantKinds is for quantization, selection and movement of rows, speculative decoding.
var quantKinds = kindTable{
	"TopK":      {"X K -> Values Indices", []route{{ops.OpTopK, topK}}},
	"CumSum":    {"x axis -> y", []route{{ops.OpCumsum, cumSum}}},
	"Gather":    {"data indices -> output", []route{{ops.OpGather, gather}}},
	"ScatterND": {"data indices updates -> output", []route{{ops.OpScatter, scatterND}}},

	"top_k": {"", []route{{ops.OpTopK, ggmlTopK}}},

	"rule greedy_rejection_sample": {"", []route{{ops.OpGreedyRejectionSample, ruleRejection}}},
	"rule nan_guard":               {"", []route{{ops.OpClip, ruleNaNGuard}}},
}
