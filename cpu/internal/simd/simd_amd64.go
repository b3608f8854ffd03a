//go:build !noasm && !purego

package simd

import "golang.org/x/sys/cpu"

func archSets() []*Set { return []*Set{amx, avx512vnni, avxvnni, avx2} }

var avx512vnni = &Set{
	Name: "avx512vnni",
	missing: func() string {
		x := &cpu.X86
		return firstMissing(append(avx2Features(),
			feature{"AVX512F", x.HasAVX512F}, feature{"AVX512BW", x.HasAVX512BW},
			feature{"AVX512DQ", x.HasAVX512DQ}, feature{"AVX512VL", x.HasAVX512VL},
			feature{"AVX512VNNI", x.HasAVX512VNNI}))
	},
	Vec: vec512.vec(),

	quantize: quantizeAVX512,
	tiles: [formats][]tile{
		Q4_0: {
			{12, 1, mulQ4x12x16AVX512},
			{8, 1, mulQ4x8x16AVX512},
			{4, 2, mulQ4x4x32AVX512}, {4, 1, mulQ4x4x16AVX512},
			{3, 2, mulQ4x3x32AVX512}, {3, 1, mulQ4x3x16AVX512},
			{2, 2, mulQ4x2x32AVX512}, {2, 1, mulQ4x2x16AVX512},
			{1, 2, mulQ4x1x32AVX512}, {1, 1, mulQ4x1x16AVX512},
		},
		Q8_0: {
			{12, 1, mulQ8x12x16AVX512},
			{8, 1, mulQ8x8x16AVX512},
			{4, 2, mulQ8x4x32AVX512}, {4, 1, mulQ8x4x16AVX512},
			{3, 2, mulQ8x3x32AVX512}, {3, 1, mulQ8x3x16AVX512},
			{2, 2, mulQ8x2x32AVX512}, {2, 1, mulQ8x2x16AVX512},
			{1, 2, mulQ8x1x32AVX512}, {1, 1, mulQ8x1x16AVX512},
		},
		F32: {
			{12, 2, mulF32x12x32AVX512}, {12, 1, mulF32x12x16AVX512},
			{8, 2, mulF32x8x32AVX512}, {8, 1, mulF32x8x16AVX512},
			{4, 2, mulF32x4x32AVX512}, {4, 1, mulF32x4x16AVX512},
			{3, 2, mulF32x3x32AVX512}, {3, 1, mulF32x3x16AVX512},
			{2, 2, mulF32x2x32AVX512}, {2, 1, mulF32x2x16AVX512},
			{1, 2, mulF32x1x32AVX512}, {1, 1, mulF32x1x16AVX512},
		},
		F16: {
			{12, 2, mulF16x12x32AVX512}, {12, 1, mulF16x12x16AVX512},
			{8, 2, mulF16x8x32AVX512}, {8, 1, mulF16x8x16AVX512},
			{4, 2, mulF16x4x32AVX512}, {4, 1, mulF16x4x16AVX512},
			{3, 2, mulF16x3x32AVX512}, {3, 1, mulF16x3x16AVX512},
			{2, 2, mulF16x2x32AVX512}, {2, 1, mulF16x2x16AVX512},
			{1, 2, mulF16x1x32AVX512}, {1, 1, mulF16x1x16AVX512},
		},
		BF16: {
			{12, 2, mulBF16x12x32AVX512}, {12, 1, mulBF16x12x16AVX512},
			{8, 2, mulBF16x8x32AVX512}, {8, 1, mulBF16x8x16AVX512},
			{4, 2, mulBF16x4x32AVX512}, {4, 1, mulBF16x4x16AVX512},
			{3, 2, mulBF16x3x32AVX512}, {3, 1, mulBF16x3x16AVX512},
			{2, 2, mulBF16x2x32AVX512}, {2, 1, mulBF16x2x16AVX512},
			{1, 2, mulBF16x1x32AVX512}, {1, 1, mulBF16x1x16AVX512},
		},
	},

	peak:      peaks{int8: peakInt8AVX512, f32: peakF32AVX512, int8Ops: 128, f32Ops: 32},
	readBytes: readBytesAVX512,
}

// avxvnni is avx2 with another instruction for quantised weights.
var avxvnni = &Set{
	Name: "avxvnni",
	missing: func() string {
		return firstMissing(append(avx2Features(), feature{"AVXVNNI", cpu.X86.HasAVXVNNI}))
	},
	Vec: vec256.vec(),

	quantize: quantizeAVX2,
	tiles: [formats][]tile{
		Q4_0: {
			{4, 1, mulQ4x4x16AVXVNNI}, {3, 1, mulQ4x3x16AVXVNNI},
			{2, 2, mulQ4x2x32AVXVNNI}, {2, 1, mulQ4x2x16AVXVNNI},
			{1, 2, mulQ4x1x32AVXVNNI}, {1, 1, mulQ4x1x16AVXVNNI},
		},
		Q8_0: {
			{4, 1, mulQ8x4x16AVXVNNI}, {3, 1, mulQ8x3x16AVXVNNI},
			{2, 2, mulQ8x2x32AVXVNNI}, {2, 1, mulQ8x2x16AVXVNNI},
			{1, 2, mulQ8x1x32AVXVNNI}, {1, 1, mulQ8x1x16AVXVNNI},
		},
		F32: avx2.tiles[F32], F16: avx2.tiles[F16], BF16: avx2.tiles[BF16],
	},

	peak:      peaks{int8: peakInt8AVXVNNI, f32: peakF32AVX2, int8Ops: 64, f32Ops: 16},
	readBytes: readBytesAVX2,
}

var avx2 = &Set{
	Name:    "avx2",
	missing: func() string { return firstMissing(avx2Features()) },
	Vec:     vec256.vec(),

	quantize: quantizeAVX2,
	tiles: [formats][]tile{
		Q4_0: {
			{4, 1, mulQ4x4x16AVX2}, {3, 1, mulQ4x3x16AVX2},
			{2, 2, mulQ4x2x32AVX2}, {2, 1, mulQ4x2x16AVX2},
			{1, 2, mulQ4x1x32AVX2}, {1, 1, mulQ4x1x16AVX2},
		},
		Q8_0: {
			{4, 1, mulQ8x4x16AVX2}, {3, 1, mulQ8x3x16AVX2},
			{2, 2, mulQ8x2x32AVX2}, {2, 1, mulQ8x2x16AVX2},
			{1, 2, mulQ8x1x32AVX2}, {1, 1, mulQ8x1x16AVX2},
		},
		F32: {
			{6, 1, mulF32x6x16AVX2},
			{4, 1, mulF32x4x16AVX2},
			{3, 2, mulF32x3x32AVX2}, {3, 1, mulF32x3x16AVX2},
			{2, 2, mulF32x2x32AVX2}, {2, 1, mulF32x2x16AVX2},
			{1, 2, mulF32x1x32AVX2}, {1, 1, mulF32x1x16AVX2},
		},
		F16: {
			{6, 1, mulF16x6x16AVX2},
			{4, 1, mulF16x4x16AVX2},
			{3, 2, mulF16x3x32AVX2}, {3, 1, mulF16x3x16AVX2},
			{2, 2, mulF16x2x32AVX2}, {2, 1, mulF16x2x16AVX2},
			{1, 2, mulF16x1x32AVX2}, {1, 1, mulF16x1x16AVX2},
		},
		BF16: {
			{6, 1, mulBF16x6x16AVX2},
			{4, 1, mulBF16x4x16AVX2},
			{3, 2, mulBF16x3x32AVX2}, {3, 1, mulBF16x3x16AVX2},
			{2, 2, mulBF16x2x32AVX2}, {2, 1, mulBF16x2x16AVX2},
			{1, 2, mulBF16x1x32AVX2}, {1, 1, mulBF16x1x16AVX2},
		},
	},

	peak:      peaks{int8: peakInt8AVX2, f32: peakF32AVX2, int8Ops: 64, f32Ops: 16},
	readBytes: readBytesAVX2,
}

type feature struct {
	name string
	has  bool
}

func avx2Features() []feature {
	x := &cpu.X86
	return []feature{{"AVX2", x.HasAVX2}, {"FMA", x.HasFMA}, {"F16C", x.HasF16C}, {"BMI2", x.HasBMI2}}
}

func firstMissing(fs []feature) string {
	for _, f := range fs {
		if !f.has {
			return f.name
		}
	}
	return ""
}
