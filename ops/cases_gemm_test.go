package ops

import "github.com/opmux/opmux/tensor"

// gemmCases has a valid record and what is rejected for products.
func gemmCases() []opCase {
	e4m3, e8m0, pairs := tensor.F8E4M3FN, tensor.F8E8M0, tensor.F4E2M1x2
	return []opCase{
		caseOf(BatchedMatmul, BatchedMatmulArgs{Out: ten(f32, 2, 3, 5), A: ten(bf16, 2, 3, 4), B: ten(bf16, 2, 4, 5)},
			no("dtypes differ", ErrDType, "b", func(a *BatchedMatmulArgs) { a.B = ten(f32, 2, 4, 5) }),
			no("f16 out", ErrDType, "out", func(a *BatchedMatmulArgs) { a.Out = ten(f16, 2, 3, 5) }),
			no("batches differ", ErrShape, "b", func(a *BatchedMatmulArgs) { a.B = ten(bf16, 3, 4, 5) }),
			no("inner extents differ", ErrShape, "b", func(a *BatchedMatmulArgs) { a.B = ten(bf16, 2, 3, 5) }),
			no("output differs", ErrShape, "a", func(a *BatchedMatmulArgs) { a.Out = ten(f32, 2, 4, 5) }),
			no("rank", ErrRank, "a", func(a *BatchedMatmulArgs) { a.A = ten(bf16, 6, 4) }),
			no("inner stride", ErrLayout, "a", func(a *BatchedMatmulArgs) { a.A.Stride[2] = 2 }),
			no("rows overlap", ErrLayout, "out", func(a *BatchedMatmulArgs) { a.Out.Stride[1] = 4 }),
			no("rows of b overlap", ErrLayout, "b", func(a *BatchedMatmulArgs) { a.B.Stride[1] = 1 }),
			ok("batch inside", func(a *BatchedMatmulArgs) {
				a.A = ten(bf16, 3, 2, 4)
				a.A.Shape, a.A.Stride = [8]int64{2, 3, 4}, [8]int64{4, 8, 1}
			}),
			ok("nothing to sum", func(a *BatchedMatmulArgs) { a.A, a.B = ten(f32, 2, 3, 0), ten(f32, 2, 0, 5) }),
		),
		caseOf(MatmulNVFP4, MatmulNVFP4Args{Out: ten(f32, 3, 5), Act: ten(f16, 3, 32), WeightPacked: ten(pairs, 5, 16), WeightScale: ten(e4m3, 5, 2), WeightScale2: 0.5},
			no("24 elements", ErrShape, "weight_packed", func(a *MatmulNVFP4Args) { a.Act, a.WeightPacked = ten(f32, 3, 24), ten(u8, 5, 12) }),
			no("bytes", ErrShape, "weight_packed", func(a *MatmulNVFP4Args) { a.WeightPacked = ten(u8, 5, 32) }),
			no("scales", ErrShape, "weight_scale", func(a *MatmulNVFP4Args) { a.WeightScale = ten(u8, 5, 1) }),
			no("rows of scales", ErrShape, "weight_scale", func(a *MatmulNVFP4Args) { a.WeightScale = ten(u8, 4, 2) }),
			no("f32 scales", ErrDType, "weight_scale", func(a *MatmulNVFP4Args) { a.WeightScale = ten(f32, 5, 2) }),
			no("scale 2 not set", ErrAttr, "weight_scale2", func(a *MatmulNVFP4Args) { a.WeightScale2 = 0 }),
			no("scale 2 nan", ErrAttr, "weight_scale2", func(a *MatmulNVFP4Args) { a.WeightScale2 = nan }),
			ok("raw bytes", func(a *MatmulNVFP4Args) { a.WeightPacked, a.WeightScale = ten(i8, 5, 16), ten(i8, 5, 2) }),
		),
		caseOf(MatmulNVFP4FP4, MatmulNVFP4FP4Args{Out: ten(bf16, 3, 5), APacked: ten(pairs, 3, 16), AScale: ten(e4m3, 3, 2), BPacked: ten(u8, 5, 16), BScale: ten(i8, 5, 2), Alpha: 0.25},
			no("24 elements", ErrShape, "a_packed", func(a *MatmulNVFP4FP4Args) { a.APacked, a.BPacked = ten(u8, 3, 12), ten(u8, 5, 12) }),
			no("bytes of b", ErrShape, "b_packed", func(a *MatmulNVFP4FP4Args) { a.BPacked = ten(u8, 5, 8) }),
			no("scales", ErrShape, "a_scale", func(a *MatmulNVFP4FP4Args) { a.AScale, a.BScale = ten(u8, 3, 1), ten(u8, 5, 1) }),
			no("floats", ErrDType, "b_packed", func(a *MatmulNVFP4FP4Args) { a.BPacked = ten(f16, 5, 16) }),
			no("alpha", ErrAttr, "alpha", func(a *MatmulNVFP4FP4Args) { a.Alpha = inf }),
			ok("no rows", func(a *MatmulNVFP4FP4Args) {
				a.Out, a.APacked, a.AScale = ten(f32, 0, 5), ten(u8, 0, 16), ten(u8, 0, 2)
			}),
		),
		caseOf(MatmulNVFP4Swizzled, MatmulNVFP4SwizzledArgs{Out: ten(bf16, 3, 32), APacked: ten(pairs, 3, 16), ASfSw: ten(e4m3, 128, 4), BPacked: ten(u8, 32, 16), BSfSw: ten(i8, 128, 4), HostAlpha: 0.25},
			no("16 elements", ErrShape, "a_packed", func(a *MatmulNVFP4SwizzledArgs) { a.APacked, a.BPacked = ten(u8, 3, 8), ten(u8, 32, 8) }),
			no("16 columns", ErrShape, "out", func(a *MatmulNVFP4SwizzledArgs) { a.Out, a.BPacked = ten(f32, 3, 16), ten(u8, 16, 16) }),
			no("linear scales", ErrShape, "a_sf_sw", func(a *MatmulNVFP4SwizzledArgs) { a.ASfSw = ten(u8, 3, 4) }),
			no("scales of b", ErrShape, "b_sf_sw", func(a *MatmulNVFP4SwizzledArgs) { a.BSfSw = ten(u8, 256, 4) }),
			no("two factors", ErrAttr, "host_alpha", func(a *MatmulNVFP4SwizzledArgs) { a.Alpha = ten(f32, 1) }),
			no("no factor", ErrAttr, "host_alpha", func(a *MatmulNVFP4SwizzledArgs) { a.HostAlpha = 0 }),
			no("factors", ErrShape, "alpha", func(a *MatmulNVFP4SwizzledArgs) { a.HostAlpha, a.Alpha = 0, ten(f32, 2) }),
			no("factor of rank 2", ErrRank, "alpha", func(a *MatmulNVFP4SwizzledArgs) { a.HostAlpha, a.Alpha = 0, ten(f32, 1, 1) }),
			no("bf16 factor", ErrDType, "alpha", func(a *MatmulNVFP4SwizzledArgs) { a.HostAlpha, a.Alpha = 0, ten(bf16, 1) }),
			ok("resident factor", func(a *MatmulNVFP4SwizzledArgs) { a.HostAlpha, a.Alpha = 0, ten(f32, 1) }),
		),
		caseOf(MatmulFP8, MatmulFP8Args{Out: ten(f32, 3, 32), AFp8: ten(e4m3, 3, 48), BFp8: ten(u8, 32, 48), Alpha: 0.5},
			no("24 elements", ErrShape, "a_fp8", func(a *MatmulFP8Args) { a.AFp8, a.BFp8 = ten(u8, 3, 24), ten(u8, 32, 24) }),
			no("24 columns", ErrShape, "out", func(a *MatmulFP8Args) { a.Out, a.BFp8 = ten(f32, 3, 24), ten(u8, 24, 48) }),
			no("inner extents differ", ErrShape, "b_fp8", func(a *MatmulFP8Args) { a.BFp8 = ten(u8, 32, 32) }),
			no("floats", ErrDType, "a_fp8", func(a *MatmulFP8Args) { a.AFp8 = ten(f32, 3, 48) }),
			no("alpha", ErrAttr, "alpha", func(a *MatmulFP8Args) { a.Alpha = nan }),
			no("block_n", ErrAttr, "block_n", func(a *MatmulFP8Args) { a.BlockN = -1 }),
			no("block_k", ErrAttr, "block_k", func(a *MatmulFP8Args) { a.BlockK = -1 }),
			no("rows of scales", ErrShape, "a_scale", func(a *MatmulFP8Args) { a.AScale = ten(f32, 2, 1) }),
			no("tiles", ErrShape, "b_scale", func(a *MatmulFP8Args) { a.BScale, a.BlockN, a.BlockK = ten(f32, 4, 2), 16, 32 }),
			no("some scales", ErrShape, "a_scale", func(a *MatmulFP8Args) { a.AScale = ten(f32, 3) }),
			ok("rows and channels", func(a *MatmulFP8Args) { a.AScale, a.BScale = ten(f32, 3, 1), ten(f32, 32, 1) }),
			ok("tiles with a partial one", func(a *MatmulFP8Args) {
				a.AScale, a.BScale, a.BlockN, a.BlockK = ten(e8m0, 3, 2), ten(f32, 4, 2), 10, 32
			}),
			ok("one for all", func(a *MatmulFP8Args) { a.AScale, a.BScale, a.Alpha = ten(f32, 1), ten(e8m0, 1), 0 }),
			ok("e5m2", func(a *MatmulFP8Args) { a.AFp8, a.BF16Epilogue = ten(tensor.F8E5M2, 3, 48), true }),
		),
		caseOf(MatmulInt8, MatmulInt8Args{Out: ten(i32, 3, 5), A: ten(u8, 3, 4), B: ten(i8, 4, 5)},
			no("inner extents differ", ErrShape, "b", func(a *MatmulInt8Args) { a.B = ten(i8, 3, 5) }),
			no("floats", ErrDType, "a", func(a *MatmulInt8Args) { a.A = ten(f32, 3, 4) }),
			no("zero point of another type", ErrDType, "a_zero_point", func(a *MatmulInt8Args) { a.AZeroPoint = ten(i8, 1) }),
			no("two zero points", ErrShape, "a_zero_point", func(a *MatmulInt8Args) { a.AZeroPoint = ten(u8, 2) }),
			no("four zero points", ErrShape, "b_zero_point", func(a *MatmulInt8Args) { a.BZeroPoint = ten(i8, 4) }),
			no("scaled sums", ErrAttr, "a_scale", func(a *MatmulInt8Args) { a.AScale = ten(f32, 1) }),
			no("float without scale", ErrAttr, "b_scale", func(a *MatmulInt8Args) { a.Out, a.AScale = ten(f32, 3, 5), ten(f32, 1) }),
			no("float with y_scale", ErrAttr, "y_scale", func(a *MatmulInt8Args) {
				a.Out, a.AScale, a.BScale, a.YScale = ten(f32, 3, 5), ten(f32, 1), ten(f32, 1), ten(f32, 1)
			}),
			no("8 bits without y_scale", ErrAttr, "y_scale", func(a *MatmulInt8Args) { a.Out, a.AScale, a.BScale = ten(i8, 3, 5), ten(f32, 1), ten(f32, 1) }),
			no("scales", ErrShape, "b_scale", func(a *MatmulInt8Args) { a.Out, a.AScale, a.BScale = ten(f32, 3, 5), ten(f32, 1), ten(f32, 3) }),
			ok("rows and columns", func(a *MatmulInt8Args) {
				a.Out, a.AScale, a.BScale, a.AZeroPoint, a.BZeroPoint = ten(bf16, 3, 5), ten(f32, 3), ten(f32, 5), ten(u8, 3), ten(i8, 5)
			}),
			ok("8 bits", func(a *MatmulInt8Args) {
				a.Out, a.AScale, a.BScale, a.YScale, a.YZeroPoint = ten(u8, 3, 5), ten(f32, 1), ten(f32, 1), ten(f32, 1), ten(u8, 1)
			}),
			ok("transposed weight", func(a *MatmulInt8Args) { a.B.Stride = [8]int64{1, 4} }),
		),
	}
}
