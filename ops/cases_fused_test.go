package ops

import "github.com/opmux/opmux/tensor"

// fusedCases has a valid record and what is rejected for fused chains.
func fusedCases() []opCase {
	step := func(i int, change func(s *FusedStep)) func(a *FusedChainArgs) {
		return func(a *FusedChainArgs) { change(&a.Steps[i]) }
	}
	return []opCase{
		caseOf(FusedChain, FusedChainArgs{Out: ten(f32, 2, 8), X: ten(bf16, 2, 8), Weight: ten(f16, 8), Residual: ten(bf16, 2, 8), NumSteps: 2, Eps: 1e-6,
			Steps: [MaxFusedSteps]FusedStep{{Op: FusedAdd, In: [3]uint8{0, 2}, Out: 2},
				{Op: FusedRMSNorm, In: [3]uint8{2, 1}, Out: 3, Reduce: ReduceMeanSquare, Gemma: true}}},
			no("no steps", ErrAttr, "num_steps", func(a *FusedChainArgs) { a.NumSteps = 0 }),
			no("negative steps", ErrAttr, "num_steps", func(a *FusedChainArgs) { a.NumSteps = -1 }),
			no("nine steps", ErrAttr, "num_steps", func(a *FusedChainArgs) { a.NumSteps = 9 }),
			no("step that is none", ErrAttr, "steps", func(a *FusedChainArgs) { a.NumSteps = 3 }),
			no("unknown opcode", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Op = numFusedOps })),
			no("opcode 255", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Op = 255 })),
			no("silu_mul", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Op = FusedSiluMul })),
			no("sigmoid_gate", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Op = FusedSigmoidGate })),
			no("rms_norm_gated", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Op = FusedRMSNormGated })),
			no("rope", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Op = FusedRope })),
			no("quant_fp8", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Op = FusedQuantFP8 })),
			no("quant_fp4", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Op = FusedQuantFP4 })),
			no("attn_qk_norm_rope_gate", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Op = FusedAttnQKNormRopeGate })),
			no("writes x", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Out = 0 })),
			no("writes the weight", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Out = 1 })),
			no("writes slot 4", ErrAttr, "steps", step(1, func(s *FusedStep) { s.Out = 4 })),
			no("reads slot 4", ErrAttr, "steps", step(0, func(s *FusedStep) { s.In[1] = 4 })),
			no("reads slot 255", ErrAttr, "steps", step(1, func(s *FusedStep) { s.In[0] = NoSlot })),
			no("reads out before it is written", ErrAttr, "steps", step(0, func(s *FusedStep) { s.In[0] = 3 })),
			no("norm without mean_square", ErrAttr, "steps", step(1, func(s *FusedStep) { s.Reduce = ReduceNone })),
			no("unknown reduction", ErrAttr, "steps", step(1, func(s *FusedStep) { s.Reduce = numFusedReduces })),
			no("sum with a reduction", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Reduce = ReduceMeanSquare })),
			no("sum with gemma", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Gemma = true })),
			no("norm with a gate", ErrAttr, "steps", step(1, func(s *FusedStep) { s.SigmoidGate = true })),
			no("two outputs", ErrAttr, "steps", step(0, func(s *FusedStep) { s.Out2 = 3 })),
			no("out is not written", ErrAttr, "steps", func(a *FusedChainArgs) { a.NumSteps = 1 }),
			no("reads an absent residual", ErrAttr, "steps", func(a *FusedChainArgs) { a.Residual, a.Steps[0].Out = tensor.Tensor{}, 3 }),
			no("writes an absent residual", ErrAttr, "steps", func(a *FusedChainArgs) { a.Residual, a.Steps[0].In[1] = tensor.Tensor{}, 1 }),
			no("negative eps", ErrAttr, "eps", func(a *FusedChainArgs) { a.Eps = -1e-6 }),
			no("NaN eps", ErrAttr, "eps", func(a *FusedChainArgs) { a.Eps = nan }),
			no("absent weight", ErrDType, "weight", func(a *FusedChainArgs) { a.Weight = tensor.Tensor{} }),
			no("weight of other width", ErrShape, "weight", func(a *FusedChainArgs) { a.Weight = ten(f32, 7) }),
			no("f16 residual", ErrDType, "residual", func(a *FusedChainArgs) { a.Residual = ten(f16, 2, 8) }),
			no("f16 out", ErrDType, "out", func(a *FusedChainArgs) { a.Out = ten(f16, 2, 8) }),
			no("rows of x", ErrShape, "x", func(a *FusedChainArgs) { a.X = ten(f32, 3, 8) }),
			ok("no residual", func(a *FusedChainArgs) {
				a.Residual, a.NumSteps = tensor.Tensor{}, 1
				a.Steps[0] = FusedStep{Op: FusedMul, In: [3]uint8{0, 1}, Out: 3}
			}),
			ok("out read after it is written", func(a *FusedChainArgs) {
				a.Steps[2] = FusedStep{Op: FusedSilu, In: [3]uint8{3}, Out: 3}
				a.NumSteps = 3
			}),
			ok("steps beyond the last are not read", step(7, func(s *FusedStep) { s.Op = 99 })),
			ok("residual unread", func(a *FusedChainArgs) { a.Steps[0], a.NumSteps = FusedStep{Op: FusedSigmoid, Out: 3}, 1 }),
		),
		caseOf(AttnQKNormRopeGate, AttnQKNormRopeGateArgs{QOut: ten(bf16, 3, 4, 8), KOut: ten(bf16, 3, 2, 8), GateOut: ten(f32, 3, 4, 8), Qgate: ten(f16, 3, 64),
			KF: ten(f16, 3, 16), QNorm: ten(f32, 8), KNorm: ten(f32, 8), CosSin: ten(f32, 3, 6), RotaryDim: 6, Eps: 1e-6},
			no("k_out dtype", ErrDType, "k_out", func(a *AttnQKNormRopeGateArgs) { a.KOut = ten(f32, 3, 2, 8) }),
			no("bf16 gate of an f32 q", ErrDType, "gate_out", func(a *AttnQKNormRopeGateArgs) {
				a.QOut, a.KOut, a.GateOut = ten(f32, 3, 4, 8), ten(f32, 3, 2, 8), ten(bf16, 3, 4, 8)
			}),
			no("kf dtype", ErrDType, "kf", func(a *AttnQKNormRopeGateArgs) { a.KF = ten(f32, 3, 16) }),
			no("bf16 norm", ErrDType, "q_norm", func(a *AttnQKNormRopeGateArgs) { a.QNorm = ten(bf16, 8) }),
			no("width of qgate", ErrShape, "qgate", func(a *AttnQKNormRopeGateArgs) { a.Qgate = ten(f16, 3, 32) }),
			no("width of kf", ErrShape, "kf", func(a *AttnQKNormRopeGateArgs) { a.KF = ten(f16, 3, 17) }),
			no("rows of kf", ErrShape, "kf", func(a *AttnQKNormRopeGateArgs) { a.KF = ten(f16, 2, 16) }),
			no("gate heads", ErrShape, "gate_out", func(a *AttnQKNormRopeGateArgs) { a.GateOut = ten(f32, 3, 2, 8) }),
			no("head sizes", ErrShape, "k_out", func(a *AttnQKNormRopeGateArgs) { a.KOut = ten(bf16, 3, 2, 6) }),
			no("width of cos_sin", ErrShape, "cos_sin", func(a *AttnQKNormRopeGateArgs) { a.CosSin = ten(f32, 3, 8) }),
			no("rows of cos_sin", ErrShape, "cos_sin", func(a *AttnQKNormRopeGateArgs) { a.CosSin = ten(f32, 2, 6) }),
			no("rotary_dim 0", ErrAttr, "rotary_dim", func(a *AttnQKNormRopeGateArgs) { a.RotaryDim = 0 }),
			no("rotary_dim odd", ErrAttr, "rotary_dim", func(a *AttnQKNormRopeGateArgs) { a.RotaryDim = 5 }),
			no("rotary_dim above D", ErrAttr, "rotary_dim", func(a *AttnQKNormRopeGateArgs) { a.RotaryDim, a.CosSin = 10, ten(f32, 3, 10) }),
			no("NaN eps", ErrAttr, "eps", func(a *AttnQKNormRopeGateArgs) { a.Eps = nan }),
			no("negative eps", ErrAttr, "eps", func(a *AttnQKNormRopeGateArgs) { a.Eps = -1 }),
			no("overlapping rows", ErrLayout, "qgate", func(a *AttnQKNormRopeGateArgs) { a.Qgate.Stride[0] = 63 }),
			ok("bf16 gate", func(a *AttnQKNormRopeGateArgs) { a.GateOut = ten(bf16, 3, 4, 8) }),
			ok("parts of one projection", func(a *AttnQKNormRopeGateArgs) {
				all := ten(f16, 3, 96)
				a.Qgate, a.KF = tensor.Must(all.Slice(1, 0, 64)), tensor.Must(all.Slice(1, 64, 80))
			}),
			ok("all of the head", func(a *AttnQKNormRopeGateArgs) { a.RotaryDim, a.CosSin, a.Gemma = 8, ten(f32, 3, 8), true }),
		),
	}
}
