package opfile

import "github.com/opmux/opmux/ops"

// moeKinds is for mixtures of experts.
var moeKinds = kindTable{
	"moe_router_topk":    {"", []route{{ops.OpMoERouterTopK, vllmRouter(routerTopK)}, {ops.OpMoESoftmaxTopK, vllmRouter(softmaxTopK)}}},
	"moe_block":          {"", []route{{ops.OpMoEGroupedGemm, vllmMoEBlock}}},
	"moe_add_bias":       {"", []route{{ops.OpMoEAddBias, ggmlAddBias}}},
	"moe_grouped_matmul": {"", []route{{ops.OpMoEGroupedGemm, ggmlGroupedMatmul}}},
}
