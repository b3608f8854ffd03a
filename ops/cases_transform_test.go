package ops

// transformCases has a valid record and what is rejected for rotations of rows and the probe.
func transformCases() []opCase {
	return []opCase{
		caseOf(HadamardTransform, HadamardTransformArgs{Out: ten(f32, 3, 8), X: ten(f16, 3, 8)},
			no("12 elements", ErrShape, "x", func(a *HadamardTransformArgs) { a.Out, a.X = ten(f32, 3, 12), ten(f32, 3, 12) }),
			no("no elements", ErrShape, "x", func(a *HadamardTransformArgs) { a.Out, a.X = ten(f32, 3, 0), ten(f32, 3, 0) }),
			no("other shape", ErrShape, "x", func(a *HadamardTransformArgs) { a.X = ten(f32, 3, 4) }),
			no("rank", ErrRank, "out", func(a *HadamardTransformArgs) { a.Out = ten(f32, 24) }),
			no("integers", ErrDType, "x", func(a *HadamardTransformArgs) { a.X = ten(i32, 3, 8) }),
			no("nan", ErrAttr, "scale", func(a *HadamardTransformArgs) { a.Scale = nan }),
			no("inf", ErrAttr, "scale", func(a *HadamardTransformArgs) { a.Scale = inf }),
			ok("one element", func(a *HadamardTransformArgs) { a.Out, a.X = ten(f32, 3, 1), ten(f32, 3, 1) }),
			ok("no rows", func(a *HadamardTransformArgs) { a.Out, a.X = ten(f32, 0, 4), ten(f32, 0, 4) }),
			ok("columns", func(a *HadamardTransformArgs) { a.X = columnsOf(bf16, 3, 8, 11) }),
			ok("negative scale", func(a *HadamardTransformArgs) { a.Scale = -1 }),
		),
		caseOf(DropinProbe, DropinProbeArgs{Out: ten(f32, 2, 3), In: ten(f32, 2, 3), Workspace: ten(i32, 4), ScalarType: SemanticTypeF32, Scalar: 2, ScalarSlot: 1},
			no("no rows", ErrShape, "out", func(a *DropinProbeArgs) { a.Out, a.In = ten(f32, 0, 3), ten(f32, 0, 3) }),
			no("no words", ErrShape, "workspace", func(a *DropinProbeArgs) { a.Workspace = ten(i32, 0) }),
			no("other shape", ErrShape, "in", func(a *DropinProbeArgs) { a.In = ten(f32, 2, 4) }),
			no("bf16", ErrDType, "in", func(a *DropinProbeArgs) { a.In = ten(bf16, 2, 3) }),
			no("type of f16", ErrAttr, "scalar_type", func(a *DropinProbeArgs) { a.ScalarType, _ = SemanticType(f16) }),
			no("packed", ErrAttr, "layout", func(a *DropinProbeArgs) { a.Layout = ProbePackedFP4 }),
			no("one slot", ErrAttr, "workspace_slot", func(a *DropinProbeArgs) { a.ScalarSlot = 0 }),
			no("negative slot", ErrAttr, "scalar_slot", func(a *DropinProbeArgs) { a.ScalarSlot = -1 }),
			no("two scalars", ErrAttr, "scalar", func(a *DropinProbeArgs) { a.ResidentScalar = ten(f32, 1) }),
			ok("resident scalar", func(a *DropinProbeArgs) { a.Scalar, a.ResidentScalar = 0, ten(f32, 1) }),
			ok("transposed", func(a *DropinProbeArgs) {
				a.In = ten(f32, 3, 2)
				a.In.Shape, a.In.Stride = a.Out.Shape, [8]int64{1, 2}
			}),
		),
	}
}
