package recipe

import (
	"slices"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// fast is an op that does all steps of a recipe.
type fast struct {
	kinds  []Kind // of the operands
	steps  []Step // without the flags that a recipe may set
	needs  []int  // slots that must be bound
	tmp    int    // slot of the bf16 intermediate, which need not be
	like   []int  // slots that must have one dtype
	record func(r *Recipe) call
}

// fasts are the ops that a recipe may name as its fast op.
var fasts = map[registry.Op]fast{
	ops.OpRMSNormQuantFP8: {
		kinds: []Kind{Row, Weight, Residual, Row, Aux},
		steps: []Step{{Op: Add, In: [3]uint8{0, 2}, Out: 2}, {Op: RMSNorm, In: [3]uint8{2, 1}, Out: 3, Reduce: MeanSquare}, {Op: QuantFP8, In: [3]uint8{3}, Out: 4}},
		needs: []int{0, 1, 4}, tmp: 3,
		record: func(r *Recipe) call {
			gemma := r.Steps[1].Gemma
			return callOf(ops.OpRMSNormQuantFP8, func(a *ops.RMSNormQuantFP8Args, b *binding) {
				*a = ops.RMSNormQuantFP8Args{X: b.t[0], Weight: b.t[1], Residual: b.t[2], OutBF16: b.t[3], OutFP8: b.t[4], Eps: b.p.Eps, InputScale: b.p.QuantScale, Gemma: gemma}
			})
		}},
	ops.OpRMSNormGatedQuantFP8: {
		kinds: []Kind{Row, Row, Weight, Row, Aux},
		steps: []Step{{Op: RMSNormGated, In: [3]uint8{0, 1, 2}, Out: 3}, {Op: QuantFP8, In: [3]uint8{3}, Out: 4}},
		needs: []int{0, 1, 2, 4}, tmp: 3, like: []int{0, 1, 2},
		record: func(r *Recipe) call {
			sigmoid := r.Steps[0].SigmoidGate
			return callOf(ops.OpRMSNormGatedQuantFP8, func(a *ops.RMSNormGatedQuantFP8Args, b *binding) {
				*a = ops.RMSNormGatedQuantFP8Args{X: b.t[0], Gate: b.t[1], Weight: b.t[2], OutFP8: b.t[4], Eps: b.p.Eps, InputScale: b.p.QuantScale, SigmoidGate: sigmoid}
			})
		}},
	ops.OpSiluMulFP4Quant: {
		kinds: []Kind{Row, Row, Row, Aux, Aux},
		steps: []Step{{Op: SiluMul, In: [3]uint8{0, 1}, Out: 2}, {Op: QuantFP4, In: [3]uint8{2}, Out: 3, Out2: 4}},
		needs: []int{0, 1, 3, 4}, tmp: 2, like: []int{0, 1},
		record: func(*Recipe) call {
			return callOf(ops.OpSiluMulFP4Quant, func(a *ops.SiluMulFP4QuantArgs, b *binding) {
				*a = ops.SiluMulFP4QuantArgs{Gate: b.t[0], Up: b.t[1], OutPacked: b.t[3], OutScale: b.t[4], InputGlobalScaleInv: b.p.QuantScale, ScaleLayout: b.p.ScaleLayout}
			})
		}},
	ops.OpSigmoidGateFP4Quant: {
		kinds: []Kind{Row, Row, Row, Aux, Aux},
		steps: []Step{{Op: SigmoidGate, In: [3]uint8{0, 1}, Out: 2}, {Op: QuantFP4, In: [3]uint8{2}, Out: 3, Out2: 4}},
		needs: []int{0, 1, 3, 4}, tmp: 2,
		record: func(*Recipe) call {
			return callOf(ops.OpSigmoidGateFP4Quant, func(a *ops.SigmoidGateFP4QuantArgs, b *binding) {
				*a = ops.SigmoidGateFP4QuantArgs{Attn: b.t[0], Gate: b.t[1], OutPacked: b.t[3], OutScale: b.t[4], InputGlobalScaleInv: b.p.QuantScale, ScaleLayout: b.p.ScaleLayout}
			})
		}},
}

// stands reports whether f does what r's steps say.
func (f *fast) stands(r *Recipe) bool {
	kinds := slices.EqualFunc(f.kinds, r.Operands, func(k Kind, s Slot) bool { return k == s.Kind })
	return kinds && slices.EqualFunc(f.steps, r.Steps, func(a, b Step) bool {
		b.Gemma, b.SigmoidGate = false, false
		return a == b
	})
}

// refuses says which operands f would not take, or would not take as the composite does; "" for none.
func (f *fast) refuses(operands []tensor.Tensor) string {
	if t := operands[f.tmp].DType; t != tensor.None && t != tensor.BF16 {
		return "the intermediate is not bf16, which it rounds to"
	}
	for _, slot := range f.like {
		if operands[slot].DType != operands[f.like[0]].DType {
			return "inputs have several dtypes"
		}
	}
	return ""
}
