package cpu

import (
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
)

// quantReference registers the oracle's kernels of quantization, selection and movement of rows, speculative decoding.
func (g *registrar) quantReference() {
	t, exact := reference, registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.TopK, refTopK, exact, nil)
	add(g, t, ops.Gather, refGather, exact, nil)
	add(g, t, ops.Scatter, refScatter, exact, nil)
	add(g, t, ops.Cumsum, refCumsum, exact, nil)
	add(g, t, ops.GreedyRejectionSample, refGreedyRejectionSample, exact, nil)
}
