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
		caseOf(ScaledFP4Quant, ScaledFP4QuantArgs{OutPacked: ten(u8, 3, 16), OutScale: ten(tensor.F8E4M3FN, 3, 2), X: ten(bf16, 3, 32), InputGlobalScaleInv: 100},
			append(fp4Tests(func(a *ScaledFP4QuantArgs) fp4Parts {
				return fp4Parts{&a.OutPacked, &a.OutScale, &a.X, &a.InputGlobalScaleInv, &a.ScaleLayout, 1, "x"}
			}),
				ok("f16", func(a *ScaledFP4QuantArgs) { a.X = ten(f16, 3, 32) }),
				no("rows of x", ErrShape, "x", func(a *ScaledFP4QuantArgs) { a.X = ten(f32, 4, 32) }))...),
		caseOf(QuantFP8Static, QuantFP8StaticArgs{Out: ten(tensor.F8E4M3FN, 3, 8), X: ten(f16, 3, 8), InputScale: 0.5},
			no("scale 0", ErrAttr, "input_scale", func(a *QuantFP8StaticArgs) { a.InputScale = 0 }),
			no("negative scale", ErrAttr, "input_scale", func(a *QuantFP8StaticArgs) { a.InputScale = -1 }),
			no("NaN scale", ErrAttr, "input_scale", func(a *QuantFP8StaticArgs) { a.InputScale = nan }),
			no("infinite scale", ErrAttr, "input_scale", func(a *QuantFP8StaticArgs) { a.InputScale = inf }),
			no("e5m2", ErrDType, "out", func(a *QuantFP8StaticArgs) { a.Out = ten(tensor.F8E5M2, 3, 8) }),
			no("other shape", ErrShape, "x", func(a *QuantFP8StaticArgs) { a.X = ten(f32, 3, 9) }),
			ok("bytes", func(a *QuantFP8StaticArgs) { a.Out = ten(i8, 3, 8) }),
		),
		caseOf(SwizzleBlockscale, SwizzleBlockscaleArgs{Out: ten(u8, 256, 8), In: ten(tensor.F8E4M3FN, 129, 5)},
			no("rows not padded", ErrShape, "out", func(a *SwizzleBlockscaleArgs) { a.Out = ten(u8, 129, 8) }),
			no("columns not padded", ErrShape, "out", func(a *SwizzleBlockscaleArgs) { a.Out = ten(u8, 256, 5) }),
			no("floats", ErrDType, "in", func(a *SwizzleBlockscaleArgs) { a.In = ten(f32, 129, 5) }),
			ok("nothing", func(a *SwizzleBlockscaleArgs) { a.In, a.Out = ten(u8, 0, 5), ten(u8, 0, 8) }),
		),
		caseOf(RMSNormQuantFP8, RMSNormQuantFP8Args{OutFP8: ten(tensor.F8E4M3FN, 2, 8), OutBF16: ten(bf16, 2, 8), X: ten(f16, 2, 8), Weight: ten(f32, 8), Residual: ten(bf16, 2, 8),
			InputScale: 0.5, Eps: 1e-6},
			no("scale 0", ErrAttr, "input_scale", func(a *RMSNormQuantFP8Args) { a.InputScale = 0 }),
			no("NaN scale", ErrAttr, "input_scale", func(a *RMSNormQuantFP8Args) { a.InputScale = nan }),
			no("negative eps", ErrAttr, "eps", func(a *RMSNormQuantFP8Args) { a.Eps = -1 }),
			no("f32 norm", ErrDType, "out_bf16", func(a *RMSNormQuantFP8Args) { a.OutBF16 = ten(f32, 2, 8) }),
			no("f16 residual", ErrDType, "residual", func(a *RMSNormQuantFP8Args) { a.Residual = ten(f16, 2, 8) }),
			no("f32 codes", ErrDType, "out_fp8", func(a *RMSNormQuantFP8Args) { a.OutFP8 = ten(f32, 2, 8) }),
			no("absent weight", ErrDType, "weight", func(a *RMSNormQuantFP8Args) { a.Weight = tensor.Tensor{} }),
			no("weight of other width", ErrShape, "weight", func(a *RMSNormQuantFP8Args) { a.Weight = ten(f32, 7) }),
			no("residual of other rows", ErrShape, "residual", func(a *RMSNormQuantFP8Args) { a.Residual = ten(f32, 3, 8) }),
			ok("plain", func(a *RMSNormQuantFP8Args) {
				a.OutBF16, a.Residual, a.OutFP8 = tensor.Tensor{}, tensor.Tensor{}, ten(u8, 2, 8)
			}),
		),
		caseOf(RMSNormGatedQuantFP8, RMSNormGatedQuantFP8Args{OutFP8: ten(tensor.F8E4M3FN, 2, 3, 8), X: ten(bf16, 2, 3, 8), Gate: ten(bf16, 2, 3, 8), Weight: ten(bf16, 8),
			InputScale: 0.5, Eps: 1e-6},
			no("scale 0", ErrAttr, "input_scale", func(a *RMSNormGatedQuantFP8Args) { a.InputScale = 0 }),
			no("NaN eps", ErrAttr, "eps", func(a *RMSNormGatedQuantFP8Args) { a.Eps = nan }),
			no("rank 1", ErrRank, "out_fp8", func(a *RMSNormGatedQuantFP8Args) { a.OutFP8 = ten(u8, 8) }),
			no("rank 4", ErrRank, "out_fp8", func(a *RMSNormGatedQuantFP8Args) { a.OutFP8 = ten(u8, 1, 2, 3, 8) }),
			no("rank of x", ErrRank, "x", func(a *RMSNormGatedQuantFP8Args) { a.X = ten(bf16, 6, 8) }),
			no("shape of gate", ErrShape, "gate", func(a *RMSNormGatedQuantFP8Args) { a.Gate = ten(bf16, 2, 3, 9) }),
			no("gate dtype", ErrDType, "gate", func(a *RMSNormGatedQuantFP8Args) { a.Gate = ten(f32, 2, 3, 8) }),
			no("weight dtype", ErrDType, "weight", func(a *RMSNormGatedQuantFP8Args) { a.Weight = ten(f32, 8) }),
			no("weight of other width", ErrShape, "weight", func(a *RMSNormGatedQuantFP8Args) { a.Weight = ten(bf16, 7) }),
			no("gate heads not packed", ErrLayout, "gate", func(a *RMSNormGatedQuantFP8Args) { a.Gate.Stride[1] = 9; a.Gate.Stride[0] = 40 }),
			no("gate rows overlap", ErrLayout, "gate", func(a *RMSNormGatedQuantFP8Args) { a.Gate.Stride[0] = 23 }),
			no("padded x", ErrLayout, "x", func(a *RMSNormGatedQuantFP8Args) { a.X.Stride[0] = 30 }),
			ok("padded gate", func(a *RMSNormGatedQuantFP8Args) {
				x := ten(bf16, 2, 5, 8)
				a.Gate = tensor.Must(x.Slice(1, 1, 4))
			}),
			ok("rank 2", func(a *RMSNormGatedQuantFP8Args) {
				a.OutFP8, a.X, a.Gate = ten(i8, 2, 8), ten(bf16, 2, 8), columnsOf(bf16, 2, 8, 12)
			}),
		),
		caseOf(SiluMulFP4Quant, SiluMulFP4QuantArgs{OutPacked: ten(u8, 3, 16), OutScale: ten(u8, 3, 2), Gate: ten(f16, 3, 32), Up: ten(f16, 3, 32), InputGlobalScaleInv: 100},
			no("up dtype", ErrDType, "up", func(a *SiluMulFP4QuantArgs) { a.Up = ten(f32, 3, 32) }),
			no("up shape", ErrShape, "up", func(a *SiluMulFP4QuantArgs) { a.Up = ten(f16, 3, 16) }),
			no("part of a group", ErrShape, "gate", func(a *SiluMulFP4QuantArgs) {
				a.Gate, a.Up, a.OutPacked = ten(f16, 3, 24), ten(f16, 3, 24), ten(u8, 3, 12)
			}),
			no("packed width", ErrShape, "out_packed", func(a *SiluMulFP4QuantArgs) { a.OutPacked = ten(u8, 3, 32) }),
			no("scale extents", ErrShape, "out_scale", func(a *SiluMulFP4QuantArgs) { a.OutScale = ten(u8, 3, 3) }),
			no("layout", ErrAttr, "scale_layout", func(a *SiluMulFP4QuantArgs) { a.ScaleLayout = numScaleLayouts }),
			no("NaN scale", ErrAttr, "input_global_scale_inv", func(a *SiluMulFP4QuantArgs) { a.InputGlobalScaleInv = nan }),
		),
		caseOf(SiluAndMulFP4Quant, SiluAndMulFP4QuantArgs{OutPacked: ten(u8, 3, 16), OutScale: ten(u8, 3, 2), GateUp: ten(bf16, 3, 64), InputGlobalScaleInv: 100},
			append(fp4Tests(func(a *SiluAndMulFP4QuantArgs) fp4Parts {
				return fp4Parts{&a.OutPacked, &a.OutScale, &a.GateUp, &a.InputGlobalScaleInv, &a.ScaleLayout, 2, "gate_up"}
			}),
				no("odd inner extent", ErrShape, "gate_up", func(a *SiluAndMulFP4QuantArgs) { a.GateUp = ten(bf16, 3, 65) }),
				no("f16", ErrDType, "gate_up", func(a *SiluAndMulFP4QuantArgs) { a.GateUp = ten(f16, 3, 64) }))...),
		caseOf(SigmoidGateFP4Quant, SigmoidGateFP4QuantArgs{OutPacked: ten(u8, 3, 16), OutScale: ten(u8, 3, 2), Attn: ten(bf16, 3, 32), Gate: ten(f32, 3, 32), InputGlobalScaleInv: 100},
			no("bf16 gate", ErrDType, "gate", func(a *SigmoidGateFP4QuantArgs) { a.Gate = ten(bf16, 3, 32) }),
			no("f16 attn", ErrDType, "attn", func(a *SigmoidGateFP4QuantArgs) { a.Attn = ten(f16, 3, 32) }),
			no("gate shape", ErrShape, "gate", func(a *SigmoidGateFP4QuantArgs) { a.Gate = ten(f32, 2, 32) }),
			no("part of a group", ErrShape, "attn", func(a *SigmoidGateFP4QuantArgs) {
				a.Attn, a.Gate, a.OutPacked = ten(f32, 3, 24), ten(f32, 3, 24), ten(u8, 3, 12)
			}),
			no("scale extents", ErrShape, "out_scale", func(a *SigmoidGateFP4QuantArgs) { a.OutScale = ten(u8, 128, 4) }),
			no("layout", ErrAttr, "scale_layout", func(a *SigmoidGateFP4QuantArgs) { a.ScaleLayout = 255 }),
		),
	}
}

// fp4Parts are the operands and attributes that all ops with an nvfp4 output have.
type fp4Parts struct {
	packed, scale, in *tensor.Tensor
	gs                *float32
	layout            *ScaleLayout
	width             int64  // elements of in for each that is quantized
	name              string // of in
}

// fp4Tests are the calls that ops with an nvfp4 output of 3 rows of 32 judge alike.
func fp4Tests[R any](of func(*R) fp4Parts) []any {
	set := func(change func(p fp4Parts)) func(*R) { return func(a *R) { change(of(a)) } }
	var zero R
	name := of(&zero).name
	return []any{
		no("part of a group", ErrShape, name, set(func(p fp4Parts) { *p.in, *p.packed = ten(f32, 3, 24*p.width), ten(u8, 3, 12) })),
		no("packed width", ErrShape, "out_packed", set(func(p fp4Parts) { *p.packed = ten(u8, 3, 32) })),
		no("packed floats", ErrDType, "out_packed", set(func(p fp4Parts) { *p.packed = ten(f32, 3, 16) })),
		no("packed fp8", ErrDType, "out_packed", set(func(p fp4Parts) { *p.packed = ten(tensor.F8E4M3FN, 3, 16) })),
		no("scale columns", ErrShape, "out_scale", set(func(p fp4Parts) { *p.scale = ten(u8, 3, 4) })),
		no("swizzled extents of linear scales", ErrShape, "out_scale", set(func(p fp4Parts) { *p.scale = ten(u8, 128, 4) })),
		no("linear extents of swizzled scales", ErrShape, "out_scale", set(func(p fp4Parts) { *p.layout = ScaleSwizzled })),
		no("float scales", ErrDType, "out_scale", set(func(p fp4Parts) { *p.scale = ten(f32, 3, 2) })),
		no("unknown layout", ErrAttr, "scale_layout", set(func(p fp4Parts) { *p.layout = numScaleLayouts })),
		no("NaN scale", ErrAttr, "input_global_scale_inv", set(func(p fp4Parts) { *p.gs = nan })),
		no("infinite scale", ErrAttr, "input_global_scale_inv", set(func(p fp4Parts) { *p.gs = inf })),
		ok("scale 0", set(func(p fp4Parts) { *p.gs = 0 })),
		ok("swizzled", set(func(p fp4Parts) { *p.layout, *p.scale = ScaleSwizzled, ten(tensor.F8E4M3FN, 128, 4) })),
		ok("typed pairs", set(func(p fp4Parts) { *p.packed = ten(tensor.F4E2M1x2, 3, 16) })),
		ok("no rows", set(func(p fp4Parts) { *p.packed, *p.scale, *p.in = ten(u8, 0, 16), ten(u8, 0, 2), ten(f32, 0, 32*p.width) })),
		ok("no rows, swizzled", set(func(p fp4Parts) {
			*p.layout, *p.packed, *p.scale, *p.in = ScaleSwizzled, ten(u8, 0, 16), ten(u8, 0, 4), ten(f32, 0, 32*p.width)
		})),
	}
}
