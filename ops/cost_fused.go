package ops

// fusedCosts is for fused chains.
var fusedCosts = costTable{
	OpFusedChain: cost(func(t *tally, a *FusedChainArgs) {
		var read, written [numChainSlots]bool
		work := 0
		for _, s := range a.Steps[:a.NumSteps] {
			work += chainWork[s.Op] + count(s.Gemma)
			for _, in := range s.In[:s.Op.Inputs()] {
				read[in] = read[in] || !written[in] // what a step has written is at hand
			}
			written[s.Out] = true
		}
		t.each(&a.X, work)
		for slot, name := range [...]string{ChainX: "x", ChainWeight: "weight", ChainResidual: "residual"} {
			if !read[slot] {
				t.read(name, 0)
			}
			if !written[slot] {
				t.written(name, 0)
			}
		}
	}),
	OpAttnQKNormRopeGate: cost(func(t *tally, a *AttnQKNormRopeGateArgs) {
		t.FLOPs = (elements(&a.QOut)+elements(&a.KOut))*float64(normWork+count(a.Gemma)) +
			float64(a.RotaryDim)/2*float64(a.QOut.Shape[0])*rotationWork*heads(&a.QOut, &a.KOut)
	}),
	OpScaledFP4Quant:    cost(func(t *tally, a *ScaledFP4QuantArgs) { t.each(&a.X, scaleWork) }),
	OpQuantFP8Static:    cost(func(t *tally, a *QuantFP8StaticArgs) { t.each(&a.X, 1) }),
	OpSwizzleBlockscale: moved,
	OpRMSNormQuantFP8: cost(func(t *tally, a *RMSNormQuantFP8Args) {
		t.each(&a.X, normWork+1+count(a.Residual.Present())+count(a.Gemma))
	}),
	OpRMSNormGatedQuantFP8: cost(func(t *tally, a *RMSNormGatedQuantFP8Args) { t.each(&a.X, normWork+1+5) }),
	OpSiluMulFP4Quant:      cost(func(t *tally, a *SiluMulFP4QuantArgs) { t.each(&a.Gate, 5+scaleWork) }),
	OpSiluAndMulFP4Quant: cost(func(t *tally, a *SiluAndMulFP4QuantArgs) {
		t.FLOPs = elements(&a.GateUp) / 2 * (5 + scaleWork)
	}),
	OpSigmoidGateFP4Quant: cost(func(t *tally, a *SigmoidGateFP4QuantArgs) { t.each(&a.Attn, 5+scaleWork) }),
}

// normWork is that of an element of a norm: square, add, scale, the weight.
const normWork = 4

// chainWork is that of an element in a step.
var chainWork = [numFusedOps]int{FusedAdd: 1, FusedMul: 1, FusedSilu: 5, FusedSigmoid: 4, FusedRMSNorm: normWork}

// fusedSymbols is for the same ops.
var fusedSymbols = symbolTable{
	"attn_qk_norm_rope_gate V":    {"elements", false, nil},
	"scaled_fp4_quant S":          {"rows", true, nil},
	"silu_mul_fp4_quant S":        {"rows", true, nil},
	"silu_and_mul_fp4_quant S":    {"rows", true, nil},
	"silu_and_mul_fp4_quant V":    {"elements", false, nil},
	"sigmoid_gate_fp4_quant S":    {"rows", true, nil},
	"rms_norm_gated_quant_fp8 D":  {"elements", false, []string{"value_head_dim"}},
	"rms_norm_gated_quant_fp8 Hv": {"heads", false, []string{"num_v_heads"}},
	"swizzle_blockscale R":        {"rows", true, nil},
	"swizzle_blockscale P":        {"rows", true, nil},
}
