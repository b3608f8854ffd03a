package cpu

import (
	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
)

// tier is a set of kernels under one provider name: the reference's, or those over a simd.Set.
type tier struct {
	halves
	rotateHalves, rotatePairs func(x, cos, sin []float32)
	set                       *simd.Set // nil for the reference
	assembly                  bool      // the set is more than Go loops

	name     string
	doc      string
	priority int32
	tier     registry.Tier
	supports func(device.ProviderCaps) registry.Verdict
}

// reference is the oracle.
var reference = &tier{
	halves: plainHalves, rotateHalves: rotateHalves, rotatePairs: rotatePairs,
	name: "reference", priority: registry.ReferenceTierPriority, tier: registry.Reference,
	doc: "portable Go, the catalogue's formulas to the bit",
}

// levels are the fast tiers by the name of their simd.Set: what a CPU must have, and where they stand.
var levels = map[string]struct {
	priority int32
	features uint64
	doc      string
}{
	"avx512vnni": {30, avx2 | FeatureAVX512F | FeatureAVX512BW | FeatureAVX512DQ | FeatureAVX512VL | FeatureAVX512VNNI, "assembly for AVX-512 with VNNI"},
	"avx2":       {10, avx2, "assembly for AVX2 with FMA"},
	"portable":   {0, 0, "the drivers of the assembly tiers over plain Go loops"},
}

const avx2 = FeatureAVX2 | FeatureFMA | FeatureF16C | FeatureBMI2

// tiers returns the fast tiers that were compiled in, best first.
func tiers() (list []*tier) {
	for _, s := range simd.All() {
		l := levels[s.Name]
		list = append(list, &tier{
			halves:       halves{s.WidenF16, s.WidenBF16, s.NarrowF16, s.NarrowBF16},
			rotateHalves: s.RotateHalves, rotatePairs: s.RotatePairs, set: s,
			assembly: s.Name != "portable", name: s.Name, doc: l.doc, priority: l.priority,
			supports: func(c device.ProviderCaps) registry.Verdict {
				if lacks := l.features &^ c.Features; c.Valid && lacks != 0 {
					return registry.No("the CPU lacks " + FeatureNames(lacks))
				}
				if lacks := s.Missing(); lacks != "" {
					return registry.No("the CPU lacks " + lacks)
				}
				return registry.Yes
			},
		})
	}
	return list
}
