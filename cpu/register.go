package cpu

import (
	"errors"
	"reflect"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

func init() { registry.Builtin("cpu", Register) }

// Register adds the kernels of every tier that was compiled in to r. The default registry has them once this package is
// imported. A tier that the CPU lacks stays out of the chains, and Explain says which feature is missing.
func Register(r *registry.Registry) error {
	reg := registrar{r: r}
	for _, t := range tiers() {
		reg.fast(t)
	}
	reg.reference()
	reg.gemmReference()
	reg.elementwiseReference()
	reg.mlaReference()
	reg.linearReference()
	reg.moeReference()
	reg.quantReference()
	reg.transformReference()
	reg.fusedReference()
	return reg.err
}

// registrar registers kernels until one is refused.
type registrar struct {
	r   *registry.Registry
	err error
}

// add registers f as t's kernel of op o, whose record P points to: the registry refuses others. test may be nil.
//
// Type parameters here are pointers, of which all instances share one body; those of ops.Op have one for each record.
func add[P any](g *registrar, t *tier, o described, f kernel[P], traits registry.Traits, test func(q *registry.Queue) error) {
	fn := func(q *registry.Queue, args unsafe.Pointer) registry.Status {
		return f(t, q, *(*P)(unsafe.Pointer(&args)))
	}
	g.put(t, o, fn, reflect.TypeOf(*new(P)).Elem(), traits, test)
}

func (g *registrar) put(t *tier, o described, fn registry.Launcher, record reflect.Type, traits registry.Traits, test func(q *registry.Queue) error) {
	_, err := g.r.RegisterOpProvider(o.ID(), tensor.CPU, registry.OpProvider{Name: t.name, Priority: t.priority, Tier: t.tier, Supports: t.supports,
		Traits: traits, Doc: t.doc, SelfTest: test, Spec: specOf(t, o, traits), Fn: fn, Record: record})
	g.err = errors.Join(g.err, err)
}

// tested registers f with a self-test against the reference's kernel, if the tier is assembly.
func tested[P any](g *registrar, t *tier, o described, f, ref kernel[P], traits registry.Traits) {
	var test func(q *registry.Queue) error
	if t.assembly {
		test = selfTest(o, ref, traits.BitExact, specOf(t, o, traits).Thresholds)
	}
	add(g, t, o, f, traits, test)
}

// fast registers the drivers over one simd.Set. What they do not have, the reference does.
func (g *registrar) fast(t *tier) {
	rows := registry.Traits{BatchInvariant: true}
	exact := registry.Traits{BatchInvariant: true, BitExact: true}
	tested(g, t, ops.MatmulBTQuant, matmulBTQuant, refMatmulBTQuant, rows)
	if t.quantOnly {
		return
	}
	tested(g, t, ops.Matmul, matmul, refMatmul, rows)
	tested(g, t, ops.MatmulBT, matmulBT, refMatmulBT, rows)
	tested(g, t, ops.RMSNorm, rmsNorm, refRMSNorm, rows)
	tested(g, t, ops.SiluAndMul, siluAndMul, refSiluAndMul, rows)
	tested(g, t, ops.Relu, relu, refRelu, exact)
	tested(g, t, ops.Add, addRows, refAdd, exact)
	tested(g, t, ops.MulScalar, mulScalar, refMulScalar, exact)
	add(g, t, ops.QKVSplit, qkvSplit, exact, nil)
	tested(g, t, ops.Softmax, softmax, refSoftmax, rows)
	add(g, t, ops.Embedding, embedding, exact, nil)
	add(g, t, ops.RopeNeox, ropeNeox, exact, nil)
	add(g, t, ops.RopeCosSinCache, ropeCosSinCache, exact, nil)
	tested(g, t, ops.RopeFromCache, ropeFromCache, ropeFromCache, exact)
	tested(g, t, ops.Attention, attention, refAttention, rows)
	tested(g, t, ops.PagedAttention, pagedAttention, refPagedAttention, rows)
	add(g, t, ops.ReshapeAndCache, reshapeAndCache, exact, nil)
	tested(g, t, ops.ApplyTemperature, applyTemperature, refApplyTemperature, exact)
	tested(g, t, ops.GreedyArgmax, greedyArgmax, refGreedyArgmax, exact)
	add(g, t, ops.ApplyTopKTopP, applyTopKTopP, rows, nil)
	tested(g, t, ops.ComputeProbs, computeProbs, refComputeProbs, rows)
	tested(g, t, ops.ComputeLogprobs, computeLogprobs, refComputeLogprobs, rows)
	add(g, t, ops.RandomSample, randomSample, registry.Traits{BitExact: true}, nil)
	tested(g, t, ops.ApplyMinP, applyMinP, refApplyMinP, rows)
}

// reference registers the oracle.
func (g *registrar) reference() {
	t, exact := reference, registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.Matmul, refMatmul, exact, nil)
	add(g, t, ops.MatmulBT, refMatmulBT, exact, nil)
	add(g, t, ops.MatmulBTQuant, refMatmulBTQuant, exact, nil)
	add(g, t, ops.RMSNorm, refRMSNorm, exact, nil)
	add(g, t, ops.SiluAndMul, refSiluAndMul, exact, nil)
	add(g, t, ops.Relu, refRelu, exact, nil)
	add(g, t, ops.Add, refAdd, exact, nil)
	add(g, t, ops.MulScalar, refMulScalar, exact, nil)
	add(g, t, ops.QKVSplit, qkvSplit, exact, nil)
	add(g, t, ops.Softmax, refSoftmax, exact, nil)
	add(g, t, ops.Embedding, refEmbedding, exact, nil)
	add(g, t, ops.RopeNeox, ropeNeox, exact, nil)
	add(g, t, ops.RopeCosSinCache, ropeCosSinCache, exact, nil)
	add(g, t, ops.RopeFromCache, ropeFromCache, exact, nil)
	add(g, t, ops.Attention, refAttention, exact, nil)
	add(g, t, ops.PagedAttention, refPagedAttention, exact, nil)
	add(g, t, ops.ReshapeAndCache, reshapeAndCache, exact, nil)
	add(g, t, ops.ApplyTemperature, refApplyTemperature, exact, nil)
	add(g, t, ops.GreedyArgmax, refGreedyArgmax, exact, nil)
	add(g, t, ops.ApplyTopKTopP, refApplyTopKTopP, exact, nil)
	add(g, t, ops.ComputeProbs, refComputeProbs, exact, nil)
	add(g, t, ops.ComputeLogprobs, refComputeLogprobs, exact, nil)
	add(g, t, ops.RandomSample, refRandomSample, registry.Traits{BitExact: true}, nil)
	add(g, t, ops.ApplyPenalties, refApplyPenalties, exact, nil)
	add(g, t, ops.ApplyMinP, refApplyMinP, exact, nil)
	add(g, t, ops.ApplyLogitBias, refApplyLogitBias, exact, nil)
	add(g, t, ops.ApplyTokenMask, refApplyTokenMask, exact, nil)
	add(g, t, ops.ApplyAllowedTokenIDs, refApplyAllowedTokenIDs, exact, nil)
}
