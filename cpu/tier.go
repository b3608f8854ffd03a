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
	quantOnly                 bool      // the tier has only the quantised products
	minRows                   int64     // quantised products of fewer rows are for the tier below
	features                  uint64    // bits that a CPU must have

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

// levels are the fast tiers by the name of their simd.Set: where they stand and what a CPU must have.
var levels = map[string]struct {
	priority  int32
	features  uint64
	quantOnly bool // only the quantised products differ from the tier below
	doc       string
}{
	"amx":        {40, avx512 | FeatureAMXTile | FeatureAMXInt8, true, "assembly for AMX tiles of bytes"},
	"avx512vnni": {30, avx512, false, "assembly for AVX-512 with VNNI"},
	"avxvnni":    {20, avx2 | FeatureAVXVNNI, true, "assembly for AVX2 with VNNI"},
	"avx2":       {10, avx2, false, "assembly for AVX2 with FMA"},
	"portable":   {0, 0, false, "the drivers of the assembly tiers over plain Go loops"},
}

const (
	avx2   = FeatureAVX2 | FeatureFMA | FeatureF16C | FeatureBMI2
	avx512 = avx2 | FeatureAVX512F | FeatureAVX512BW | FeatureAVX512DQ | FeatureAVX512VL | FeatureAVX512VNNI
)

// tiers returns the fast tiers that were compiled in, best first.
func tiers() (list []*tier) {
	for _, s := range simd.All() {
		l, ok := levels[s.Name]
		if !ok {
			continue
		}
		list = append(list, &tier{
			halves:       halves{s.WidenF16, s.WidenBF16, s.NarrowF16, s.NarrowBF16},
			rotateHalves: s.RotateHalves, rotatePairs: s.RotatePairs, set: s,
			assembly: s.Name != "portable", quantOnly: l.quantOnly, minRows: int64(s.MinRows()), name: s.Name, doc: l.doc, priority: l.priority, features: l.features,
			supports: func(device.ProviderCaps) registry.Verdict { // beyond what the kernels' specs require
				if lacks := s.Missing(); lacks != "" {
					return registry.No("the CPU lacks " + lacks)
				}
				return registry.Yes
			},
		})
	}
	return list
}
