package ops

import (
	"math"

	"github.com/opmux/opmux/tensor"
)

// unaryTests are the calls that all ops on single elements of one operand judge alike.
func unaryTests[R any](of func(*R) (out, x *tensor.Tensor)) []any {
	return []any{
		no("other shape", ErrShape, "out", func(a *R) { out, _ := of(a); *out = ten(f32, 3, 2) }),
		no("other rank", ErrRank, "out", func(a *R) { out, _ := of(a); *out = ten(f32, 6) }),
		no("f16 output", ErrDType, "out", func(a *R) { out, _ := of(a); *out = ten(f16, 2, 3) }),
		no("i64 input", ErrDType, "x", func(a *R) { _, x := of(a); *x = ten(tensor.F64, 2, 3) }),
		no("padded rows", ErrLayout, "x", func(a *R) { _, x := of(a); *x = columnsOf(f32, 2, 3, 5) }),
		ok("f16 to bf16", func(a *R) { out, x := of(a); *out, *x = ten(bf16, 2, 3), ten(f16, 2, 3) }),
		ok("rank 5", func(a *R) { out, x := of(a); *out, *x = ten(f32, 1, 2, 1, 3, 1), ten(f32, 1, 2, 1, 3, 1) }),
		ok("no elements", func(a *R) { out, x := of(a); *out, *x = ten(f32, 0, 3), ten(f32, 0, 3) }),
		ok("in place", func(a *R) { out, x := of(a); *out = *x }),
	}
}

// factorTests are the calls that add and mul judge alike.
func factorTests[R any](of func(*R) (out, a, b *tensor.Tensor)) []any {
	all := func(r *R, t tensor.DType) {
		out, a, b := of(r)
		*out, *a, *b = ten(t, 2, 3), ten(t, 2, 3), ten(t, 2, 3)
	}
	b := func(x tensor.Tensor) func(*R) {
		return func(r *R) { _, _, b := of(r); *b = x }
	}
	return []any{
		no("whole b of a float a", ErrDType, "b", b(ten(i32, 2, 3))),
		no("two widths", ErrDType, "b", func(r *R) { all(r, i32); _, _, b := of(r); *b = ten(i64, 2, 3) }),
		no("float out of whole numbers", ErrDType, "out", func(r *R) { all(r, i32); out, _, _ := of(r); *out = ten(f32, 2, 3) }),
		no("whole out of floats", ErrDType, "out", func(r *R) { out, _, _ := of(r); *out = ten(i32, 2, 3) }),
		no("two elements", ErrShape, "b", b(ten(f32, 2))),
		no("a column", ErrShape, "b", b(ten(f32, 2, 1))),
		no("one element of rank 3", ErrRank, "b", b(ten(f32, 1, 1, 1))),
		ok("one element", b(ten(f32, 1))),
		ok("a row", b(ten(bf16, 3))),
		ok("i8", func(r *R) { all(r, i8) }),
		ok("u8", func(r *R) { all(r, u8) }),
		ok("i16", func(r *R) { all(r, tensor.I16) }),
		ok("i64 and one element", func(r *R) { all(r, i64); _, _, b := of(r); *b = ten(i64, 1) }),
	}
}

// elementwiseCases has a valid record and what is rejected for norms, activations and other work on single elements.
func elementwiseCases() []opCase {
	return []opCase{
		caseOf(RMSNormGated, RMSNormGatedArgs{Out: ten(f32, 3, 8), X: ten(f32, 3, 8), Gate: ten(f32, 3, 8), Weight: ten(f32, 8), Eps: 1e-6},
			no("rank 4", ErrRank, "out", func(a *RMSNormGatedArgs) { a.Out = ten(f32, 1, 1, 3, 8) }),
			no("rank 1", ErrRank, "out", func(a *RMSNormGatedArgs) { a.Out = ten(f32, 8) }),
			no("x differs", ErrShape, "x", func(a *RMSNormGatedArgs) { a.X = ten(f32, 2, 8) }),
			no("gate differs", ErrShape, "gate", func(a *RMSNormGatedArgs) { a.Gate = ten(f32, 3, 7) }),
			no("weight differs", ErrShape, "weight", func(a *RMSNormGatedArgs) { a.Weight = ten(f32, 7) }),
			no("gate overlaps", ErrLayout, "gate", func(a *RMSNormGatedArgs) { a.Gate.Stride[0] = 7 }),
			no("gate not packed inside", ErrLayout, "gate", func(a *RMSNormGatedArgs) {
				a.Out, a.X, a.Gate = ten(f32, 3, 2, 8), ten(f32, 3, 2, 8), ten(f32, 3, 2, 9)
				a.Gate.Shape[2] = 8
			}),
			no("padded x", ErrLayout, "x", func(a *RMSNormGatedArgs) { a.X = columnsOf(f32, 3, 8, 9) }),
			no("f16 out", ErrDType, "out", func(a *RMSNormGatedArgs) { a.Out = ten(f16, 3, 8) }),
			no("negative eps", ErrAttr, "eps", func(a *RMSNormGatedArgs) { a.Eps = -1 }),
			no("NaN eps", ErrAttr, "eps", func(a *RMSNormGatedArgs) { a.Eps = nan }),
			ok("padded gate", func(a *RMSNormGatedArgs) { a.Gate = columnsOf(bf16, 3, 8, 20) }),
			ok("heads", func(a *RMSNormGatedArgs) {
				a.Out, a.X, a.Gate = ten(bf16, 3, 2, 8), ten(f16, 3, 2, 8), ten(f32, 3, 2, 8)
				a.Gate.Stride[0] = 16
			}),
			ok("no rows", func(a *RMSNormGatedArgs) { a.Out, a.X, a.Gate = ten(f32, 0, 8), ten(f32, 0, 8), ten(f32, 0, 8) }),
			ok("eps 0", func(a *RMSNormGatedArgs) { a.Eps = 0 }),
		),
		caseOf(LayerNorm, LayerNormArgs{Out: ten(f32, 3, 8), X: ten(f32, 3, 8), Weight: ten(f32, 8), Bias: ten(f32, 8), Eps: 1e-5},
			no("no elements a row", ErrShape, "x", func(a *LayerNormArgs) {
				a.Out, a.X, a.Weight, a.Bias = ten(f32, 3, 0), ten(f32, 3, 0), ten(f32, 0), ten(f32, 0)
			}),
			no("weight differs", ErrShape, "weight", func(a *LayerNormArgs) { a.Weight, a.Bias = ten(f32, 7), ten(f32, 7) }),
			no("bias differs", ErrShape, "bias", func(a *LayerNormArgs) { a.Bias = ten(f32, 7) }),
			no("only a bias, differs", ErrShape, "bias", func(a *LayerNormArgs) { a.Weight, a.Bias = tensor.Tensor{}, ten(f32, 7) }),
			no("means of other rows", ErrShape, "mean", func(a *LayerNormArgs) { a.Mean = ten(f32, 2) }),
			no("deviations of other rows", ErrShape, "inv_std_dev", func(a *LayerNormArgs) { a.InvStdDev = ten(f32, 4) }),
			no("bf16 means", ErrDType, "mean", func(a *LayerNormArgs) { a.Mean = ten(bf16, 3) }),
			no("padded x", ErrLayout, "x", func(a *LayerNormArgs) { a.X = columnsOf(f32, 3, 8, 9) }),
			no("negative eps", ErrAttr, "eps", func(a *LayerNormArgs) { a.Eps = -1e-9 }),
			no("infinite eps", ErrAttr, "eps", func(a *LayerNormArgs) { a.Eps = inf }),
			ok("neither weight nor bias", func(a *LayerNormArgs) { a.Weight, a.Bias = tensor.Tensor{}, tensor.Tensor{} }),
			ok("moments in other shapes", func(a *LayerNormArgs) { a.Mean, a.InvStdDev = ten(f32, 3), ten(f32, 3, 1) }),
			ok("rank 1", func(a *LayerNormArgs) { a.Out, a.X = ten(bf16, 8), ten(f16, 8) }),
			ok("rank 4", func(a *LayerNormArgs) { a.Out, a.X = ten(f32, 1, 2, 3, 8), ten(f32, 1, 2, 3, 8) }),
			ok("no rows", func(a *LayerNormArgs) { a.Out, a.X = ten(f32, 0, 8), ten(f32, 0, 8) }),
		),
		caseOf(L2Norm, L2NormArgs{Out: ten(f32, 3, 8), X: ten(f32, 3, 8), Eps: 1e-6},
			no("rank 1", ErrRank, "out", func(a *L2NormArgs) { a.Out, a.X = ten(f32, 8), ten(f32, 8) }),
			no("rank 4", ErrRank, "out", func(a *L2NormArgs) { a.Out, a.X = ten(f32, 1, 1, 3, 8), ten(f32, 1, 1, 3, 8) }),
			no("x differs", ErrShape, "x", func(a *L2NormArgs) { a.X = ten(f32, 3, 7) }),
			no("negative eps", ErrAttr, "eps", func(a *L2NormArgs) { a.Eps = -1 }),
			no("NaN eps", ErrAttr, "eps", func(a *L2NormArgs) { a.Eps = nan }),
			ok("heads", func(a *L2NormArgs) { a.Out, a.X = ten(bf16, 3, 2, 8), ten(f16, 3, 2, 8) }),
			ok("least length", func(a *L2NormArgs) { a.Clamp = true }),
		),
		caseOf(GroupNorm, GroupNormArgs{Out: ten(f32, 2, 6, 5), X: ten(f32, 2, 6, 5), Weight: ten(f32, 6), Bias: ten(f32, 6), Eps: 1e-5, NumGroups: 3},
			no("rank 1", ErrRank, "x", func(a *GroupNormArgs) { a.Out, a.X = ten(f32, 6), ten(f32, 6) }),
			no("no groups", ErrAttr, "num_groups", func(a *GroupNormArgs) { a.NumGroups = 0 }),
			no("groups of parts", ErrAttr, "num_groups", func(a *GroupNormArgs) { a.NumGroups = 4 }),
			no("weight differs", ErrShape, "weight", func(a *GroupNormArgs) { a.Weight, a.Bias = ten(f32, 5), ten(f32, 5) }),
			no("bias of groups", ErrShape, "bias", func(a *GroupNormArgs) { a.Bias = ten(f32, 3) }),
			no("negative eps", ErrAttr, "eps", func(a *GroupNormArgs) { a.Eps = -1 }),
			ok("channels alone", func(a *GroupNormArgs) { a.Out, a.X = ten(f32, 2, 6), ten(f32, 2, 6) }),
			ok("no weight", func(a *GroupNormArgs) { a.Weight = tensor.Tensor{} }),
			ok("no samples", func(a *GroupNormArgs) { a.Out, a.X = ten(f32, 0, 6, 5), ten(f32, 0, 6, 5) }),
		),
		caseOf(GeluAndMul, GeluAndMulArgs{Out: ten(f32, 2, 4), X: ten(f32, 2, 8)},
			no("odd inner extent", ErrShape, "x", func(a *GeluAndMulArgs) { a.X = ten(f32, 2, 7) }),
			no("rank 3", ErrRank, "x", func(a *GeluAndMulArgs) { a.X = ten(f32, 1, 2, 8) }),
			no("other width", ErrShape, "x", func(a *GeluAndMulArgs) { a.X = ten(f32, 2, 6) }),
			no("up and both halves", ErrShape, "x", func(a *GeluAndMulArgs) { a.Up = ten(f32, 2, 4) }),
			no("f16 out", ErrDType, "out", func(a *GeluAndMulArgs) { a.Out = ten(f16, 2, 4) }),
			ok("up", func(a *GeluAndMulArgs) { a.X, a.Up = ten(f16, 2, 4), ten(bf16, 2, 4) }),
			ok("erf", func(a *GeluAndMulArgs) { a.Erf = true }),
		),
		caseOf(MoESiluMul, MoESiluMulArgs{Out: ten(f32, 2, 4), Gate: ten(f32, 2, 4), Up: ten(f32, 2, 4)},
			no("fewer gates", ErrShape, "gate", func(a *MoESiluMulArgs) { a.Gate = ten(f32, 7) }),
			no("more ups", ErrShape, "up", func(a *MoESiluMulArgs) { a.Up = ten(f32, 3, 3) }),
			no("f16 out", ErrDType, "out", func(a *MoESiluMulArgs) { a.Out = ten(f16, 2, 4) }),
			no("padded gate", ErrLayout, "gate", func(a *MoESiluMulArgs) { a.Gate = columnsOf(f32, 2, 4, 5) }),
			ok("other shapes", func(a *MoESiluMulArgs) { a.Out, a.Gate, a.Up = ten(bf16, 8), ten(f16, 2, 2, 2), ten(bf16, 4, 2) }),
			ok("no elements", func(a *MoESiluMulArgs) { a.Out, a.Gate, a.Up = ten(f32, 0), ten(f32, 0, 5), ten(f32, 2, 0) }),
		),
		caseOf(SigmoidGateBF16, SigmoidGateBF16Args{Out: ten(bf16, 2, 4), Attn: ten(f32, 2, 4), Gate: ten(f32, 2, 4)},
			no("f32 out", ErrDType, "out", func(a *SigmoidGateBF16Args) { a.Out = ten(f32, 2, 4) }),
			no("rounded gate", ErrDType, "gate", func(a *SigmoidGateBF16Args) { a.Gate = ten(bf16, 2, 4) }),
			no("f16 attn", ErrDType, "attn", func(a *SigmoidGateBF16Args) { a.Attn = ten(f16, 2, 4) }),
			no("fewer gates", ErrShape, "gate", func(a *SigmoidGateBF16Args) { a.Gate = ten(f32, 7) }),
			no("more attn", ErrShape, "attn", func(a *SigmoidGateBF16Args) { a.Attn = ten(f32, 9) }),
			ok("other shapes", func(a *SigmoidGateBF16Args) { a.Out, a.Attn, a.Gate = ten(bf16, 8), ten(bf16, 2, 2, 2), ten(f32, 4, 2) }),
		),
		caseOf(SoftCap, SoftCapArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 3), Cap: 30}, append(
			unaryTests(func(a *SoftCapArgs) (out, x *tensor.Tensor) { return &a.Out, &a.X }),
			no("no cap", ErrAttr, "cap", func(a *SoftCapArgs) { a.Cap = 0 }),
			no("negative cap", ErrAttr, "cap", func(a *SoftCapArgs) { a.Cap = -1 }),
			no("NaN cap", ErrAttr, "cap", func(a *SoftCapArgs) { a.Cap = math.NaN() }),
			no("cap beyond f32", ErrAttr, "cap", func(a *SoftCapArgs) { a.Cap = 1e300 }),
			no("cap below f32", ErrAttr, "cap", func(a *SoftCapArgs) { a.Cap = 1e-300 }))...),
		caseOf(MulColVecF32, MulColVecF32Args{X: ten(f32, 2, 3), Col: ten(f32, 3)},
			no("other columns", ErrShape, "col", func(a *MulColVecF32Args) { a.Col = ten(f32, 2) }),
			no("bf16", ErrDType, "x", func(a *MulColVecF32Args) { a.X = ten(bf16, 2, 3) }),
			no("bf16 col", ErrDType, "col", func(a *MulColVecF32Args) { a.Col = ten(bf16, 3) }),
			no("rows overlap", ErrLayout, "x", func(a *MulColVecF32Args) { a.X.Stride[0] = 2 }),
			ok("columns of a wider matrix", func(a *MulColVecF32Args) { a.X = columnsOf(f32, 2, 3, 7) }),
			ok("no rows", func(a *MulColVecF32Args) { a.X = ten(f32, 0, 3) }),
		),
		caseOf(CastBF16, CastBF16Args{Out: ten(bf16, 2, 3), In: ten(f32, 2, 3)},
			no("f16 in", ErrDType, "in", func(a *CastBF16Args) { a.In = ten(f16, 2, 3) }),
			no("f16 out", ErrDType, "out", func(a *CastBF16Args) { a.Out = ten(f16, 2, 3) }),
			no("more in", ErrShape, "in", func(a *CastBF16Args) { a.In = ten(f32, 2, 4) }),
			no("rows overlap", ErrLayout, "in", func(a *CastBF16Args) { a.In.Stride[0] = 2 }),
			no("padded out", ErrLayout, "out", func(a *CastBF16Args) { a.Out = columnsOf(bf16, 2, 3, 4) }),
			ok("other shape, padded", func(a *CastBF16Args) { a.Out, a.In = ten(bf16, 6), columnsOf(f32, 2, 3, 7) }),
			ok("nothing", func(a *CastBF16Args) { a.Out, a.In = ten(bf16, 0), ten(f32, 0, 3) }),
		),
		caseOf(CastF32, CastF32Args{Out: ten(f32, 2, 3), In: ten(bf16, 2, 3)},
			no("f32 in", ErrDType, "in", func(a *CastF32Args) { a.In = ten(f32, 2, 3) }),
			no("fewer in", ErrShape, "in", func(a *CastF32Args) { a.In = ten(bf16, 5) }),
			ok("rank 3, padded", func(a *CastF32Args) { a.Out, a.In = ten(f32, 12), ten(bf16, 3, 2, 2); a.In.Stride[0] = 4 }),
		),
		caseOf(Cast, CastArgs{Out: ten(i8, 2, 3), In: ten(f32, 2, 3)},
			no("blocks", ErrDType, "out", func(a *CastArgs) { a.Out = ten(tensor.Q8_0, 32) }),
			no("more in", ErrShape, "in", func(a *CastArgs) { a.In = ten(f32, 7) }),
			no("pairs counted as elements", ErrShape, "in", func(a *CastArgs) { a.Out = ten(tensor.F4E2M1x2, 6) }),
			no("unknown rounding", ErrAttr, "round_mode", func(a *CastArgs) { a.RoundMode = 3 }),
			no("rows overlap", ErrLayout, "in", func(a *CastArgs) { a.In.Stride[0] = 2 }),
			ok("pairs", func(a *CastArgs) { a.Out = ten(tensor.F4E2M1x2, 3) }),
			ok("from pairs", func(a *CastArgs) { a.In = ten(tensor.F4E2M1x2, 3) }),
			ok("f64", func(a *CastArgs) { a.Out, a.In = ten(tensor.F64, 6), ten(i64, 2, 3) }),
			ok("scales", func(a *CastArgs) { a.Out, a.Saturate, a.RoundMode = ten(tensor.F8E8M0, 6), true, tensor.RoundUp }),
		),
		caseOf(AttnGateSplit, AttnGateSplitArgs{QOut: ten(f32, 2, 3, 4), GateOut: ten(f32, 2, 3, 4), Qgate: ten(bf16, 2, 24)},
			no("half a row", ErrShape, "qgate", func(a *AttnGateSplitArgs) { a.Qgate = ten(bf16, 2, 12) }),
			no("other gates", ErrShape, "gate_out", func(a *AttnGateSplitArgs) { a.GateOut = ten(f32, 2, 2, 4) }),
			no("bf16 out", ErrDType, "q_out", func(a *AttnGateSplitArgs) { a.QOut = ten(bf16, 2, 3, 4) }),
			no("f16 in", ErrDType, "qgate", func(a *AttnGateSplitArgs) { a.Qgate = ten(f16, 2, 24) }),
			no("padded in", ErrLayout, "qgate", func(a *AttnGateSplitArgs) { a.Qgate = columnsOf(f32, 2, 24, 25) }),
			ok("no heads", func(a *AttnGateSplitArgs) {
				a.QOut, a.GateOut, a.Qgate = ten(f32, 2, 0, 4), ten(f32, 2, 0, 4), ten(f32, 2, 0)
			}),
		),
		caseOf(Gelu, GeluArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 3)}, unaryTests(func(a *GeluArgs) (out, x *tensor.Tensor) { return &a.Out, &a.X })...),
		caseOf(Swish, SwishArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 3)}, append(
			unaryTests(func(a *SwishArgs) (out, x *tensor.Tensor) { return &a.Out, &a.X }),
			no("NaN alpha", ErrAttr, "alpha", func(a *SwishArgs) { a.Alpha = nan }),
			ok("negative alpha", func(a *SwishArgs) { a.Alpha = -1 }))...),
		caseOf(Sigmoid, SigmoidArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 3)}, unaryTests(func(a *SigmoidArgs) (out, x *tensor.Tensor) { return &a.Out, &a.X })...),
		caseOf(Tanh, TanhArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 3)}, unaryTests(func(a *TanhArgs) (out, x *tensor.Tensor) { return &a.Out, &a.X })...),
		caseOf(HardSwish, HardSwishArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 3)}, unaryTests(func(a *HardSwishArgs) (out, x *tensor.Tensor) { return &a.Out, &a.X })...),
		caseOf(Softplus, SoftplusArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 3)}, append(
			unaryTests(func(a *SoftplusArgs) (out, x *tensor.Tensor) { return &a.Out, &a.X }),
			no("negative threshold", ErrAttr, "threshold", func(a *SoftplusArgs) { a.Threshold = -1 }),
			ok("threshold", func(a *SoftplusArgs) { a.Threshold = 20 }))...),
		caseOf(Mul, MulArgs{Out: ten(f32, 2, 3), A: ten(f32, 2, 3), B: ten(f32, 2, 3)},
			factorTests(func(a *MulArgs) (out, x, y *tensor.Tensor) { return &a.Out, &a.A, &a.B })...),
		caseOf(Clip, ClipArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 3), Min: ten(f32, 1), Max: ten(f32, 1)},
			no("whole out of floats", ErrDType, "out", func(a *ClipArgs) { a.Out = ten(i8, 2, 3) }),
			no("float out of whole numbers", ErrDType, "out", func(a *ClipArgs) { a.X, a.Min, a.Max = ten(i8, 2, 3), ten(i8, 1), ten(i8, 1) }),
			no("bound of another dtype", ErrDType, "min", func(a *ClipArgs) { a.Min = ten(f16, 1) }),
			no("bounds of columns", ErrShape, "max", func(a *ClipArgs) { a.Max = ten(f32, 3) }),
			no("other shape", ErrShape, "out", func(a *ClipArgs) { a.Out = ten(f32, 3, 2) }),
			ok("no bound", func(a *ClipArgs) { a.Min, a.Max = tensor.Tensor{}, tensor.Tensor{} }),
			ok("i64", func(a *ClipArgs) { a.Out, a.X, a.Min, a.Max = ten(i64, 6), ten(i64, 6), ten(i64, 1), tensor.Tensor{} }),
		),
		caseOf(LogSoftmax, LogSoftmaxArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 3)},
			no("rank 3", ErrRank, "out", func(a *LogSoftmaxArgs) { a.Out, a.X = ten(f32, 1, 2, 3), ten(f32, 1, 2, 3) }),
			no("other shape", ErrShape, "x", func(a *LogSoftmaxArgs) { a.X = ten(f32, 2, 4) }),
			no("f16 out", ErrDType, "out", func(a *LogSoftmaxArgs) { a.Out = ten(f16, 2, 3) }),
			no("NaN scale", ErrAttr, "scale", func(a *LogSoftmaxArgs) { a.Scale = nan }),
			ok("negative scale", func(a *LogSoftmaxArgs) { a.Scale = -2 }),
			ok("bf16", func(a *LogSoftmaxArgs) { a.Out, a.X = ten(bf16, 2, 3), ten(f16, 2, 3) }),
		),
	}
}
