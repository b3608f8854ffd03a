package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Scoring says how a router turns logits into scores.
type Scoring uint8

// Scorings.
const (
	ScoreSoftmax Scoring = iota // over all experts
	ScoreSigmoid                // of each expert
	numScorings
)

// WeightLayout says how the quantized weights of experts lie.
type WeightLayout uint8

// Layouts of NVFP4 weights.
const (
	WeightLinear WeightLayout = iota // rows of pairs, rows of scales
	WeightMarlin                     // words and scales interleaved for Marlin kernels, see MarlinWeight and MarlinScales
	numWeightLayouts
)

// MoERouterTopKArgs is the record of MoERouterTopK: K experts for each token and their weights. Ungrouped, the experts of the
// largest scores in falling order, of equal ones the lower index first. Grouped (num_expert_group > 0): scores plus bias rank the
// groups, by the sum of their two best with a bias and by their best without; the experts are the best of the topk_group best
// groups, their weights the scores without bias. Weights are divided by their sum, then multiplied by the factor.
type MoERouterTopKArgs struct {
	registry.Header
	Weights              tensor.Tensor `op:"out" shape:"T,K" dtype:"f32"` // K of 1 to E
	Indices              tensor.Tensor `op:"out" shape:"T,K" dtype:"i32"`
	Logits               tensor.Tensor `op:"in" shape:"T,E" dtype:"float"`
	EScoreCorrectionBias tensor.Tensor `op:"in,opt" shape:"E" dtype:"f32"` // grouped only
	RoutedScalingFactor  float32       // finite; 0 means 1, else grouped only
	NumExpertGroup       int32         // a divisor of E; 0 is ungrouped
	TopkGroup            int32         // groups kept, 1 to num_expert_group; 0 ungrouped
	ScoringFunc          Scoring       // ScoreSigmoid is grouped only
	NoRenormalize        bool          // weights stay as scores
}

// MoESoftmaxTopKArgs is the record of MoESoftmaxTopK: the ungrouped router over softmax scores.
type MoESoftmaxTopKArgs struct {
	registry.Header
	Weights       tensor.Tensor `op:"out" shape:"T,K" dtype:"f32"` // K of 1 to E
	Indices       tensor.Tensor `op:"out" shape:"T,K" dtype:"i32"`
	RouterLogits  tensor.Tensor `op:"in" shape:"T,E" dtype:"float"`
	NoRenormalize bool          // weights stay as scores
}

// MoESigmoidTopKArgs is the record of MoESigmoidTopK: K experts by sigmoid(logit) + bias; weights are the scores without bias,
// divided by their sum, then multiplied by the factor.
type MoESigmoidTopKArgs struct {
	registry.Header
	Weights             tensor.Tensor `op:"out" shape:"T,K" dtype:"f32"` // K of 1 to E
	Indices             tensor.Tensor `op:"out" shape:"T,K" dtype:"i32"`
	RouterLogits        tensor.Tensor `op:"in" shape:"T,E" dtype:"float"`
	Bias                tensor.Tensor `op:"in,opt" shape:"E" dtype:"f32"`
	RoutedScalingFactor float32       // finite; 0 means 1
	NoRenormalize       bool          // weights stay as scores
}

// MoECombineArgs is the record of MoECombine: out = Σ_j weights[t,j]·expert_out[t,j] in slot order, plus shared.
type MoECombineArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"T,H" dtype:"outfloat"`
	ExpertOut tensor.Tensor `op:"in" shape:"T,K,H" dtype:"float"`
	Weights   tensor.Tensor `op:"in" shape:"T,K" dtype:"f32"`
	Shared    tensor.Tensor `op:"in,opt" shape:"T,H" dtype:"float"`
}

// MoECombineGateArgs is the record of MoECombineGate: MoECombine with shared = bf16(sigmoid(gl)·sd).
type MoECombineGateArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"T,H" dtype:"outfloat"`
	ExpertOut tensor.Tensor `op:"in" shape:"T,K,H" dtype:"float"`
	Weights   tensor.Tensor `op:"in" shape:"T,K" dtype:"f32"`
	Sd        tensor.Tensor `op:"in" shape:"T,H" dtype:"f32"` // output of the shared expert
	Gl        tensor.Tensor `op:"in" shape:"any" dtype:"f32"` // T logits of its gate
}

// SharedExpertGateArgs is the record of SharedExpertGate: out = bf16(sigmoid(gl)·sd).
type SharedExpertGateArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"T,H" dtype:"bf16"`
	Sd  tensor.Tensor `op:"in" shape:"any" dtype:"f32"` // T·H elements
	Gl  tensor.Tensor `op:"in" shape:"any" dtype:"f32"` // T elements
}

// MoEAddBiasArgs is the record of MoEAddBias: out[t,j] = x[t,j] + bias[ids[t,j]].
type MoEAddBiasArgs struct {
	registry.Header
	Out  tensor.Tensor `op:"out" shape:"T,K,H" dtype:"outfloat"`
	X    tensor.Tensor `op:"in" shape:"T,K,H" dtype:"float"`
	Bias tensor.Tensor `op:"in" shape:"E,H" dtype:"float"`
	IDs  tensor.Tensor `op:"in" shape:"T,K" dtype:"i32"`
}

// MoEGroupedGemmArgs is the record of MoEGroupedGemm: out[p] = act[r]·weights[e]ᵀ for P pairs of token and expert, e =
// expert_ids[p] and r = row_map[p], or p without a map. Weights lie as in MatmulBT, of any float or ggml block dtype.
type MoEGroupedGemmArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"P,N" dtype:"outfloat"`
	Act       tensor.Tensor `op:"in" shape:"R,K" dtype:"float"`
	ExpertIDs tensor.Tensor `op:"in" shape:"any" dtype:"i32"`     // P elements
	RowMap    tensor.Tensor `op:"in,opt" shape:"any" dtype:"i32"` // P elements
	Weights   tensor.Tensor `op:"in" shape:"E,N,K" dtype:"float block"`
}

// MoEGroupedGemmBF16Args is the record of MoEGroupedGemmBF16: out[p] = act[r]·W[e], W of the orientation [K,N]. Weights are one
// tensor, or the addresses of E buffers on the queue's device (ExpertTable makes them of tensors); an address of 0 is legal for
// an expert that no pair selects.
type MoEGroupedGemmBF16Args struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"P,N" dtype:"outfloat"`
	Act       tensor.Tensor `op:"in" shape:"R,K" dtype:"bf16"`
	ExpertIDs tensor.Tensor `op:"in" shape:"any" dtype:"i32"`                         // P elements
	RowMap    tensor.Tensor `op:"in,opt" shape:"any" dtype:"i32"`                     // P elements
	Weights   tensor.Tensor `op:"in" shape:"E,K,N|E" dtype:"bf16 i64" layout:"pages"` // bf16 [E,K,N], or i64 addresses [E]
}

// MoEGroupedGemmNVFP4Args is the record of MoEGroupedGemmNVFP4: row p is row row_map[p], or p, of MatmulNVFP4 with the weight of
// expert expert_ids[p]. Weights and scales are tensors or addresses as in MoEGroupedGemmBF16.
type MoEGroupedGemmNVFP4Args struct {
	registry.Header
	Out          tensor.Tensor `op:"out" shape:"P,N" dtype:"outfloat"`
	Act          tensor.Tensor `op:"in" shape:"R,K" dtype:"float"`                          // K a multiple of 16
	ExpertIDs    tensor.Tensor `op:"in" shape:"any" dtype:"i32"`                            // P elements
	RowMap       tensor.Tensor `op:"in,opt" shape:"any" dtype:"i32"`                        // P elements
	Packed       tensor.Tensor `op:"in" shape:"E,A,B|E" dtype:"fp4 i32 i64" layout:"pages"` // [E,N,K/2] bytes; Marlin [E,K/16,2·N] i32 words; i64 addresses
	Scales       tensor.Tensor `op:"in" shape:"E,C,D|E" dtype:"byte i64" layout:"pages"`    // [E,N,K/16]; Marlin [E,K/16,N]; i64 addresses
	Scale2s      tensor.Tensor `op:"in" shape:"E" dtype:"f32"`                              // of each expert's weight, multiplied; Marlin: processed
	WeightLayout WeightLayout  // WeightLinear or WeightMarlin, which wants N a multiple of 64
}

// MoEAlignBlockSizeArgs is the record of MoEAlignBlockSize: the pairs of each expert one after the other, ascending, filled up to
// whole blocks with the number of pairs; the expert of each block; and the length of the list. Behind it the list holds the
// number of pairs, the experts 0. Pairs of an expert outside of [0,num_experts) are left out.
type MoEAlignBlockSizeArgs struct {
	registry.Header
	SortedTokenIDs      tensor.Tensor `op:"out" shape:"L" dtype:"i32"` // MoEAlignLength
	ExpertIDs           tensor.Tensor `op:"out" shape:"G" dtype:"i32"` // L over block_size, rounded up
	NumTokensPastPadded tensor.Tensor `op:"out" shape:"1" dtype:"i32"`
	TopkIDs             tensor.Tensor `op:"in" shape:"any" dtype:"i32"`
	NumExperts          int32         // > 0
	BlockSize           int32         // > 0
}

// Mixtures of experts: routing, the experts' products, and their sum.
var (
	MoERouterTopK = define(OpMoERouterTopK, "moe_router_topk", "moe", "router",
		"experts of each token and their weights, from logits", checkRouter)
	MoESoftmaxTopK = define(OpMoESoftmaxTopK, "moe_softmax_topk", "moe", "softmax_topk",
		"experts of the largest softmax scores",
		func(a *MoESoftmaxTopKArgs) *OpError { return topK(&a.Weights, &a.RouterLogits) })
	MoESigmoidTopK = define(OpMoESigmoidTopK, "moe_sigmoid_topk", "moe", "sigmoid_bias_topk",
		"experts of the largest sigmoid scores, a bias added for the choice",
		func(a *MoESigmoidTopKArgs) *OpError {
			return first(topK(&a.Weights, &a.RouterLogits), finite("routed_scaling_factor", a.RoutedScalingFactor))
		})
	MoECombine = define[MoECombineArgs](OpMoECombine, "moe_combine", "moe", "combine",
		"the weighted sum of the experts' outputs, and of a shared one", nil)
	MoECombineGate = define(OpMoECombineGate, "moe_combine_gate", "moe", "combine_shared_gate",
		"the weighted sum of the experts' outputs, and of a shared one behind its gate",
		func(a *MoECombineGateArgs) *OpError { return elementsOf("gl", &a.Gl, a.Out.Shape[0]) })
	SharedExpertGate = define(OpSharedExpertGate, "shared_expert_gate", "moe", "shared_gate",
		"the shared expert's output times the sigmoid of its gate",
		func(a *SharedExpertGateArgs) *OpError {
			return first(elementsOf("sd", &a.Sd, a.Out.Numel()), elementsOf("gl", &a.Gl, a.Out.Shape[0]))
		})
	MoEAddBias = define[MoEAddBiasArgs](OpMoEAddBias, "moe_add_bias", "moe", "add_bias",
		"rows plus the bias of the expert that each is for", nil)
	MoEGroupedGemm = define(OpMoEGroupedGemm, "moe_grouped_gemm", "moe", "grouped_gemm",
		"products of token rows with the weights of their experts, of any float or ggml block dtype",
		func(a *MoEGroupedGemmArgs) *OpError { return pairs(&a.Out, &a.Act, &a.ExpertIDs, &a.RowMap) })
	MoEGroupedGemmBF16 = define(OpMoEGroupedGemmBF16, "moe_grouped_gemm_bf16", "moe", "grouped_gemm_bf16",
		"products of token rows with bf16 weights [K,N] of their experts",
		func(a *MoEGroupedGemmBF16Args) *OpError {
			return first(pairs(&a.Out, &a.Act, &a.ExpertIDs, &a.RowMap), addressed("weights", &a.Weights))
		})
	MoEGroupedGemmNVFP4 = define(OpMoEGroupedGemmNVFP4, "moe_grouped_gemm_nvfp4", "moe", "grouped_gemm_w4a16",
		"products of token rows with NVFP4 weights of their experts, in rows or in Marlin's layout",
		checkGroupedNVFP4, "moe_grouped_gemm_nvfp4_marlin")
	MoEAlignBlockSize = define(OpMoEAlignBlockSize, "moe_align_block_size", "moe", "align_block_size",
		"pairs sorted by expert and filled up to whole blocks",
		func(a *MoEAlignBlockSizeArgs) *OpError {
			if a.NumExperts <= 0 {
				return bad(ErrAttr, "num_experts", "%d is not positive", a.NumExperts)
			}
			if a.BlockSize <= 0 {
				return bad(ErrAttr, "block_size", "%d is not positive", a.BlockSize)
			}
			n := MoEAlignLength(a.TopkIDs.Numel(), int64(a.NumExperts), int64(a.BlockSize))
			if a.SortedTokenIDs.Shape[0] != n {
				return bad(ErrShape, "sorted_token_ids", "%d places, want %d", a.SortedTokenIDs.Shape[0], n)
			}
			if g := (n + int64(a.BlockSize) - 1) / int64(a.BlockSize); a.ExpertIDs.Shape[0] != g {
				return bad(ErrShape, "expert_ids", "%d blocks, want %d", a.ExpertIDs.Shape[0], g)
			}
			return nil
		})
)

// MoEAlignLength returns how many places MoEAlignBlockSize needs for pairs of token and expert.
func MoEAlignLength(pairs, experts, block int64) int64 {
	n := pairs + experts*(block-1)
	if pairs < experts {
		n = min(n, pairs*block)
	}
	return n
}

// topK wants one to all of the experts.
func topK(weights, logits *tensor.Tensor) *OpError {
	if k, e := weights.Shape[1], logits.Shape[1]; k < 1 || k > e {
		return bad(ErrShape, "weights", "%d of %d experts", k, e)
	}
	return nil
}

func checkRouter(a *MoERouterTopKArgs) *OpError {
	if err := first(topK(&a.Weights, &a.Logits), finite("routed_scaling_factor", a.RoutedScalingFactor)); err != nil {
		return err
	}
	e, g := a.Logits.Shape[1], int64(a.NumExpertGroup)
	switch {
	case a.ScoringFunc >= numScorings:
		return bad(ErrAttr, "scoring_func", "%d is none", a.ScoringFunc)
	case g < 0:
		return bad(ErrAttr, "num_expert_group", "%d is negative", g)
	case g == 0 && a.TopkGroup != 0:
		return bad(ErrAttr, "topk_group", "%d without groups", a.TopkGroup)
	case g == 0 && a.ScoringFunc != ScoreSoftmax:
		return bad(ErrAttr, "scoring_func", "sigmoid without groups")
	case g == 0 && a.RoutedScalingFactor != 0 && a.RoutedScalingFactor != 1:
		return bad(ErrAttr, "routed_scaling_factor", "%v without groups", a.RoutedScalingFactor)
	case g == 0 && a.EScoreCorrectionBias.Present():
		return bad(ErrAttr, "e_score_correction_bias", "without groups")
	case g == 0:
		return nil
	case e%g != 0:
		return bad(ErrAttr, "num_expert_group", "%d experts are not %d equal groups", e, g)
	case a.TopkGroup < 1 || int64(a.TopkGroup) > g:
		return bad(ErrAttr, "topk_group", "%d of %d groups", a.TopkGroup, g)
	case a.Weights.Shape[1] > int64(a.TopkGroup)*(e/g):
		return bad(ErrShape, "weights", "%d experts of %d groups of %d", a.Weights.Shape[1], a.TopkGroup, e/g)
	}
	return nil
}

// elementsOf wants a number of elements.
func elementsOf(operand string, x *tensor.Tensor, n int64) *OpError {
	if got := x.Numel(); got != n {
		return bad(ErrShape, operand, "%d elements, want %d", got, n)
	}
	return nil
}

// pairs checks the pairs of a grouped product.
func pairs(out, act, ids, rowMap *tensor.Tensor) *OpError {
	p := out.Shape[0]
	if err := elementsOf("expert_ids", ids, p); err != nil {
		return err
	}
	if rowMap.Present() {
		return elementsOf("row_map", rowMap, p)
	}
	if act.Shape[0] < p {
		return bad(ErrShape, "act", "%d rows for %d pairs without a map", act.Shape[0], p)
	}
	return nil
}

// addressed wants addresses to be a list, and weights not.
func addressed(operand string, x *tensor.Tensor) *OpError {
	if (x.DType == tensor.I64) != (x.Rank == 1) {
		return bad(ErrDType, operand, "%v of rank %d: addresses are i64 of rank 1", x.DType, x.Rank)
	}
	return nil
}

func checkGroupedNVFP4(a *MoEGroupedGemmNVFP4Args) *OpError {
	n, k := a.Out.Shape[1], a.Act.Shape[1]
	marlin := a.WeightLayout == WeightMarlin
	switch {
	case a.WeightLayout >= numWeightLayouts:
		return bad(ErrAttr, "weight_layout", "%d is none", a.WeightLayout)
	case k%16 != 0:
		return bad(ErrShape, "act", "rows of %d elements are no multiple of 16", k)
	case marlin && n%64 != 0:
		return bad(ErrShape, "out", "%d columns are no multiple of 64", n)
	case a.Packed.DType != tensor.I64 && marlin != (a.Packed.DType == tensor.I32):
		return bad(ErrDType, "packed", "%v in this layout of weights", a.Packed.DType)
	}
	if err := first(pairs(&a.Out, &a.Act, &a.ExpertIDs, &a.RowMap), addressed("packed", &a.Packed), addressed("scales", &a.Scales)); err != nil {
		return err
	}
	packed, scales := [2]int64{n, k / 2}, [2]int64{n, k / 16}
	if marlin {
		packed, scales = [2]int64{k / 16, 2 * n}, [2]int64{k / 16, n}
	}
	for _, x := range [...]struct {
		operand string
		t       *tensor.Tensor
		want    [2]int64
	}{{"packed", &a.Packed, packed}, {"scales", &a.Scales, scales}} {
		if x.t.Rank == 3 && (x.t.Shape[1] != x.want[0] || x.t.Shape[2] != x.want[1]) {
			return bad(ErrShape, x.operand, "experts of %v, want %v", x.t.Dims()[1:], x.want)
		}
	}
	return nil
}
