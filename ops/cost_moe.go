package ops

// moeCosts is for mixtures of experts.
var moeCosts = costTable{
	OpMoERouterTopK:  cost(func(t *tally, a *MoERouterTopKArgs) { t.each(&a.Logits, softmaxWork+int(a.Weights.Shape[1])) }),
	OpMoESoftmaxTopK: cost(func(t *tally, a *MoESoftmaxTopKArgs) { t.each(&a.RouterLogits, softmaxWork+int(a.Weights.Shape[1])) }),
	OpMoESigmoidTopK: cost(func(t *tally, a *MoESigmoidTopKArgs) { t.each(&a.RouterLogits, siluWork+int(a.Weights.Shape[1])) }),
	OpMoECombine: cost(func(t *tally, a *MoECombineArgs) {
		t.each(&a.Out, 2*int(a.Weights.Shape[1])+count(a.Shared.Present()))
	}),
	OpMoECombineGate: cost(func(t *tally, a *MoECombineGateArgs) {
		t.FLOPs = elements(&a.Out)*float64(2*a.Weights.Shape[1]+2) + siluWork*elements(&a.Gl)
	}),
	OpSharedExpertGate: cost(func(t *tally, a *SharedExpertGateArgs) { t.FLOPs = elements(&a.Out) + siluWork*elements(&a.Gl) }),
	OpMoEAddBias: cost(func(t *tally, a *MoEAddBiasArgs) {
		t.each(&a.X, 1)
		t.read("bias", int64(len(distinct(t, &a.IDs, a.Bias.Shape[0])))*rowBytes(&a.Bias))
	}),
	OpMoEGroupedGemm: cost(func(t *tally, a *MoEGroupedGemmArgs) {
		t.FLOPs = 2 * elements(&a.Out) * float64(a.Act.Shape[1])
		t.read("weights", int64(len(distinct(t, &a.ExpertIDs, a.Weights.Shape[0])))*rowBytesOf(&a.Weights))
		if a.Weights.DType.IsBlock() {
			t.Unit = UnitInt8
		}
	}),
	OpMoEGroupedGemmBF16: cost(func(t *tally, a *MoEGroupedGemmBF16Args) {
		k := a.Act.Shape[1]
		t.FLOPs = 2 * elements(&a.Out) * float64(k)
		t.read("weights", int64(len(distinct(t, &a.ExpertIDs, a.Weights.Shape[0])))*k*a.Out.Shape[1]*2)
	}),
	OpMoEGroupedGemmNVFP4: cost(func(t *tally, a *MoEGroupedGemmNVFP4Args) {
		k := a.Act.Shape[1]
		t.FLOPs = 2 * elements(&a.Out) * float64(k)
		experts := int64(len(distinct(t, &a.ExpertIDs, a.Packed.Shape[0])))
		t.read("packed", experts*k*a.Out.Shape[1]/2)
		t.read("scales", experts*k*a.Out.Shape[1]/16)
	}),
	OpMoEAlignBlockSize: cost(func(t *tally, a *MoEAlignBlockSizeArgs) { t.each(&a.TopkIDs, 2) }),
}

// moeSymbols is for the same ops.
var moeSymbols = symbolTable{
	"E":                        {"experts", false, []string{"experts"}},
	"P":                        {"pairs", true, nil},
	"moe_router_topk K":        {"experts", false, []string{"topk"}},
	"moe_softmax_topk K":       {"experts", false, []string{"topk"}},
	"moe_sigmoid_topk K":       {"experts", false, []string{"topk"}},
	"moe_combine K":            {"experts", false, []string{"topk"}},
	"moe_combine_gate K":       {"experts", false, []string{"topk"}},
	"moe_add_bias K":           {"experts", false, []string{"topk"}},
	"moe_grouped_gemm R":       {"tokens", true, []string{"num_tokens"}},
	"moe_grouped_gemm N":       {"elements", false, nil},
	"moe_grouped_gemm_bf16 R":  {"tokens", true, []string{"num_tokens"}},
	"moe_grouped_gemm_bf16 N":  {"elements", false, nil},
	"moe_grouped_gemm_nvfp4 R": {"tokens", true, []string{"num_tokens"}},
	"moe_grouped_gemm_nvfp4 N": {"elements", false, nil},
	"moe_align_block_size L":   {"places", true, nil},
	"moe_align_block_size G":   {"blocks", true, nil},
}
