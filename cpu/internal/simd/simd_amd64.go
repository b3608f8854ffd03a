//go:build !noasm && !purego

package simd

import "golang.org/x/sys/cpu"

func archSets() []*Set { return []*Set{avx512vnni, avx2} }

var avx512vnni = &Set{
	Name: "avx512vnni",
	missing: func() string {
		x := &cpu.X86
		return firstMissing(append(avx2Features(),
			feature{"AVX512F", x.HasAVX512F}, feature{"AVX512BW", x.HasAVX512BW},
			feature{"AVX512DQ", x.HasAVX512DQ}, feature{"AVX512VL", x.HasAVX512VL},
			feature{"AVX512VNNI", x.HasAVX512VNNI}))
	},
}

var avx2 = &Set{
	Name:    "avx2",
	missing: func() string { return firstMissing(avx2Features()) },
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
