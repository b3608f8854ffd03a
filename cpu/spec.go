package cpu

import (
	"slices"

	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// domain is what kernels of an op declare beyond their tier's own needs. Calls outside go to the next kernel without a
// launch. The reference, which has no simd.Set, takes every call.
type domain struct {
	computes   func(s tensor.FormatSignature) bool // nil: every signature of the op
	traits     map[string]registry.Constraint
	thresholds func(t *tier) map[string][]int64 // where the path through the kernel changes; nil: nowhere
}

// lanesOf are traits whose rows go through vectors of up to 16 elements, with a tail.
func lanesOf(traits ...string) func(t *tier) map[string][]int64 {
	return func(*tier) map[string][]int64 {
		m := map[string][]int64{}
		for _, name := range traits {
			m[name] = []int64{simd.Lanes}
		}
		return m
	}
}

// flatPieces is for ops that run over a flat output: vectors, pieces, and more than one of them, which is work for threads.
func flatPieces(*tier) map[string][]int64 {
	return map[string][]int64{"elements": {simd.Lanes, flat, 2 * flat}}
}

// off is the constraint of kernels that lack what an attribute switches on.
var off = registry.OneOf(registry.BoolTrait(false))

// domains are by op; ops that are missing take every call and have one path.
var domains = map[registry.Op]domain{
	ops.OpMatmulBTQuant: {
		computes: func(s tensor.FormatSignature) bool {
			_, ok := lanes(s.DType("b"))
			return ok
		},
		thresholds: func(t *tier) map[string][]int64 {
			return map[string][]int64{"m": t.rowThresholds(simd.Q4_0, simd.Q8_0), "n": {simd.Lanes, 2 * simd.Lanes}}
		},
	},
	ops.OpMatmulBT: {thresholds: func(t *tier) map[string][]int64 {
		return map[string][]int64{"m": t.rowThresholds(simd.F32, simd.F16, simd.BF16), "n": {simd.Lanes, 2 * simd.Lanes}}
	}},
	ops.OpMatmul: {thresholds: func(*tier) map[string][]int64 {
		return map[string][]int64{"m": {manyRows, matmulRows}, "n": {simd.Lanes, matmulColumns}}
	}},
	ops.OpPagedAttention: {
		computes:   func(s tensor.FormatSignature) bool { return s.DType("k_cache").IsFloat() },
		thresholds: func(*tier) map[string][]int64 { return map[string][]int64{"tq": {tileMost}, "d": {simd.Lanes}} },
	},
	ops.OpAttention: {traits: map[string]registry.Constraint{"top_left": off, "has_scores": off}, thresholds: func(*tier) map[string][]int64 {
		return map[string][]int64{"tq": {tileMost}, "tk": {splitKeys}, "d": {simd.Lanes}}
	}},
	ops.OpSiluAndMul: {
		traits:     map[string]registry.Constraint{"alpha": off, "limit": off, "plus_one": off},
		thresholds: lanesOf("d"),
	},
	ops.OpGreedyArgmax: {
		traits:     map[string]registry.Constraint{"last": registry.OneOf(registry.BoolTrait(false))},
		thresholds: lanesOf("v"),
	},
	ops.OpRMSNorm: {thresholds: lanesOf("h")},
	ops.OpRelu:    {thresholds: flatPieces},
	ops.OpAdd: {
		computes:   func(s tensor.FormatSignature) bool { return s.DType("a").IsFloat() && s.DType("b").IsFloat() },
		thresholds: flatPieces,
	},
	ops.OpMulScalar:        {thresholds: flatPieces},
	ops.OpSoftmax:          {thresholds: lanesOf("n")},
	ops.OpApplyTemperature: {thresholds: lanesOf("v")},
	ops.OpComputeProbs:     {thresholds: lanesOf("v")},
	ops.OpComputeLogprobs:  {thresholds: lanesOf("v")},
	ops.OpApplyMinP:        {thresholds: lanesOf("v")},
	ops.OpApplyTopKTopP:    {thresholds: lanesOf("v")},
	ops.OpRopeFromCache:    {thresholds: lanesOf("d")},
}

// rowThresholds are the numbers of rows at which products with weights change their path: the tiles of the kernels, where
// memory stops to be the bound, and the blocks of an output.
func (t *tier) rowThresholds(formats ...simd.Format) (list []int64) {
	list = append(list, manyRows, tileTall)
	for _, f := range formats {
		for _, r := range t.set.TileRows(f) {
			list = append(list, int64(r))
		}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	if t.minRows > 0 {
		list = slices.DeleteFunc(list, func(r int64) bool { return r < t.minRows })
	}
	return list
}

// described is what registration needs of an op.
type described interface {
	ID() registry.Op
	Descriptor() registry.Descriptor
	Signatures() []tensor.FormatSignature
}

// specOf describes t's kernel of op o.
func specOf(t *tier, o described, traits registry.Traits) *registry.Spec {
	s := &registry.Spec{Determinism: registry.RunToRun, Tags: []registry.Tag{registry.TagDeterminism}}
	if traits.BatchInvariant {
		s.Determinism = registry.BatchInvariant
	}
	if t.assembly {
		s.Tags = append(s.Tags, registry.TagLatency, registry.TagThroughput)
		s.Requires = device.Requirement{Vendors: []string{device.CPUVendor}, Features: isaFeatures(t.features)}
	} else {
		s.Tags = append(s.Tags, registry.TagPortability)
	}
	d := domains[o.ID()]
	if t.set == nil {
		s.Tags = append(s.Tags, "reference")
		d = domain{}
	}
	if d.computes != nil {
		s.Signatures = slices.DeleteFunc(o.Signatures(), func(sig tensor.FormatSignature) bool { return !d.computes(sig) })
	}
	s.Constraints = d.traits
	if d.thresholds != nil {
		s.Thresholds = d.thresholds(t)
	}
	if o.ID() == ops.OpMatmulBTQuant && t.minRows > 0 {
		s.Constraints = map[string]registry.Constraint{"m": registry.AtLeast(t.minRows)}
	}
	return s
}
