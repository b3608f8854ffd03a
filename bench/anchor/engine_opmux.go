package main

import (
	"context"
	"strings"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// opmux is the registry's choice, or the kernel that the variant names, on weights packed as a model's are.
type opmux struct {
	op      registry.Op
	q       *registry.Queue
	weights []tensor.Tensor
	turn    rotation
	inputs  []float32
	out     []float32
	args    ops.MatmulBTArgs
	n, k    int
	before  map[string]uint64 // executed launches when the shape was set
}

func openOpmux(j *job) (engine, error) {
	mem, err := newMemory(j.Threads)
	if err != nil {
		return nil, err
	}
	dq, err := mem.NewQueue()
	if err != nil {
		return nil, err
	}
	e := &opmux{op: ops.OpMatmulBT, q: registry.Default().NewQueue(dq), turn: rotation{n: j.Copies}, n: j.N, k: j.K}
	if j.Format.IsBlock() {
		e.op = ops.OpMatmulBTQuant
	}
	if j.Variant != "" {
		e.q = e.q.With(registry.WithKernel(context.Background(), e.op, j.Variant))
	}
	data, err := mem.file(j.Weights)
	if err != nil {
		return nil, err
	}
	x, err := tensor.FromSlice(data, tensor.U8, int64(len(data)))
	if err != nil {
		return nil, err
	}
	if x, err = tensor.New(x.Host, j.Format, int64(j.N), int64(j.K)); err != nil {
		return nil, err
	}
	for range j.Copies {
		w, _, err := mem.PackWeight([]tensor.Tensor{x}, nil)
		if err != nil {
			return nil, err
		}
		e.weights = append(e.weights, w)
	}
	inputs, err := mem.file(j.Inputs)
	if err != nil {
		return nil, err
	}
	e.inputs = floatsOf(inputs)
	e.out, err = mem.floats(j.MaxM * j.N)
	return e, err
}

func (e *opmux) shape(m int) error {
	a, err := tensor.FromSlice(e.inputs[:m*e.k], tensor.F32, int64(m), int64(e.k))
	if err != nil {
		return err
	}
	out, err := tensor.FromSlice(e.out[:m*e.n], tensor.F32, int64(m), int64(e.n))
	if err != nil {
		return err
	}
	e.args = ops.MatmulBTArgs{Out: out, A: a}
	e.before = map[string]uint64{}
	for _, s := range e.steps() {
		e.before[s.Kernel] = s.Counts.Executed
	}
	return nil
}

func (e *opmux) run(calls int) error {
	for range calls {
		e.args.B = e.weights[e.turn.next()]
		if err := ops.MatmulBT.Launch(e.q, &e.args); err != nil {
			return err
		}
	}
	return nil
}

func (e *opmux) output() ([]float32, error) { return tensor.Slice[float32](&e.args.Out), nil }

// steps returns the kernels of the op, those that are not used too.
func (e *opmux) steps() []registry.Step {
	x := registry.Default().Explain(e.op, e.q.Device())
	return append(x.Chain, x.Dropped...)
}

// ran names the kernels that executed since the shape was set.
func (e *opmux) ran() (r ran) {
	if e.before == nil {
		return ran{}
	}
	var names []string
	for _, s := range e.steps() {
		if n := s.Counts.Executed - e.before[s.Kernel]; n > 0 {
			names = append(names, s.Kernel)
			r.Provider, r.Tier, r.Executed = s.Provider, s.Tier, r.Executed+n
		}
	}
	r.Kernel = strings.Join(names, "+")
	if l := e.weights[0].Layout; l != tensor.Strided {
		r.Layout = l.String()
	}
	return r
}
