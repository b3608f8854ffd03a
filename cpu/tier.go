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
