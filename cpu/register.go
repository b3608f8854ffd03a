package cpu

import (
	"errors"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

func init() {
	if err := Register(registry.Default()); err != nil {
		panic(err) // two registrations of one kernel: a programming error
	}
}

// Register adds the kernels of every tier that was compiled in to r. The default registry has them once this package is
// imported. A tier that the CPU lacks stays out of the chains, and Explain says which feature is missing.
func Register(r *registry.Registry) error {
	reg := registrar{r: r}
	for _, t := range tiers() {
		reg.fast(t)
	}
	reg.reference()
	return reg.err
}

// registrar registers kernels until one is refused.
type registrar struct {
	r   *registry.Registry
	err error
}

// add registers f as t's kernel of op o.
func add[R any](g *registrar, t *tier, o *ops.Op[R], f func(t *tier, q *registry.Queue, a *R) registry.Status, traits registry.Traits) {
	_, err := ops.Register(g.r, o, tensor.CPU, ops.Provider[R]{
		OpProvider: registry.OpProvider{Name: t.name, Priority: t.priority, Tier: t.tier, Supports: t.supports, Traits: traits, Doc: t.doc},
		Fn:         func(q *registry.Queue, a *R) registry.Status { return f(t, q, a) },
	})
	g.err = errors.Join(g.err, err)
}

// fast registers the drivers over one simd.Set. What they do not have, the reference does.
func (g *registrar) fast(t *tier) {
	rows := registry.Traits{BatchInvariant: true}
	exact := registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.Matmul, matmul, rows)
	add(g, t, ops.MatmulBT, matmulBT, rows)
	add(g, t, ops.MatmulBTQuant, matmulBTQuant, rows)
	add(g, t, ops.RMSNorm, rmsNorm, rows)
	add(g, t, ops.SiluAndMul, siluAndMul, rows)
	add(g, t, ops.Relu, relu, exact)
	add(g, t, ops.Add, addRows, exact)
	add(g, t, ops.MulScalar, mulScalar, exact)
	add(g, t, ops.QKVSplit, qkvSplit, exact)
	add(g, t, ops.Softmax, softmax, rows)
	add(g, t, ops.Embedding, embedding, exact)
	add(g, t, ops.RopeNeox, ropeNeox, exact)
	add(g, t, ops.RopeCosSinCache, ropeCosSinCache, exact)
	add(g, t, ops.RopeFromCache, ropeFromCache, exact)
	add(g, t, ops.Attention, attention, rows)
	add(g, t, ops.PagedAttention, pagedAttention, rows)
	add(g, t, ops.ReshapeAndCache, reshapeAndCache, exact)
	add(g, t, ops.ApplyTemperature, applyTemperature, exact)
	add(g, t, ops.GreedyArgmax, greedyArgmax, exact)
	add(g, t, ops.ApplyTopKTopP, applyTopKTopP, rows)
	add(g, t, ops.ComputeProbs, computeProbs, rows)
	add(g, t, ops.ComputeLogprobs, computeLogprobs, rows)
	add(g, t, ops.RandomSample, randomSample, exact)
	add(g, t, ops.ApplyMinP, applyMinP, rows)
}

// reference registers the oracle.
func (g *registrar) reference() {
	t, exact := reference, registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.Matmul, refMatmul, exact)
	add(g, t, ops.MatmulBT, refMatmulBT, exact)
	add(g, t, ops.MatmulBTQuant, refMatmulBTQuant, exact)
	add(g, t, ops.RMSNorm, refRMSNorm, exact)
	add(g, t, ops.SiluAndMul, refSiluAndMul, exact)
	add(g, t, ops.Relu, refRelu, exact)
	add(g, t, ops.Add, refAdd, exact)
	add(g, t, ops.MulScalar, refMulScalar, exact)
	add(g, t, ops.QKVSplit, qkvSplit, exact)
	add(g, t, ops.Softmax, refSoftmax, exact)
	add(g, t, ops.Embedding, refEmbedding, exact)
	add(g, t, ops.RopeNeox, ropeNeox, exact)
	add(g, t, ops.RopeCosSinCache, ropeCosSinCache, exact)
	add(g, t, ops.RopeFromCache, ropeFromCache, exact)
	add(g, t, ops.Attention, refAttention, exact)
	add(g, t, ops.PagedAttention, refPagedAttention, exact)
	add(g, t, ops.ReshapeAndCache, reshapeAndCache, exact)
	add(g, t, ops.ApplyTemperature, refApplyTemperature, exact)
	add(g, t, ops.GreedyArgmax, refGreedyArgmax, exact)
	add(g, t, ops.ApplyTopKTopP, refApplyTopKTopP, exact)
	add(g, t, ops.ComputeProbs, refComputeProbs, exact)
	add(g, t, ops.ComputeLogprobs, refComputeLogprobs, exact)
	add(g, t, ops.RandomSample, refRandomSample, exact)
	add(g, t, ops.ApplyPenalties, refApplyPenalties, exact)
	add(g, t, ops.ApplyMinP, refApplyMinP, exact)
	add(g, t, ops.ApplyLogitBias, refApplyLogitBias, exact)
	add(g, t, ops.ApplyTokenMask, refApplyTokenMask, exact)
	add(g, t, ops.ApplyAllowedTokenIDs, refApplyAllowedTokenIDs, exact)
}
