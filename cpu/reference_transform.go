package cpu

import (
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// transformReference registers the oracle's kernels of rotations of rows and of the probe.
func (g *registrar) transformReference() {
	t := reference
	add(g, t, ops.HadamardTransform, refHadamardTransform, registry.Traits{BatchInvariant: true, BitExact: true}, nil)
	exact := registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.QuantMX, refQuantMX, exact, nil)
	add(g, t, ops.DequantMX, refDequantMX, exact, nil)
	add(g, t, ops.QuantFP8Dynamic, refQuantFP8Dynamic, registry.Traits{BitExact: true}, nil)
	add(g, t, ops.DropinProbe, refDropinProbe, registry.Traits{BitExact: true}, nil)
}

func refHadamardTransform(t *tier, q *registry.Queue, a *ops.HadamardTransformArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, n := int(a.X.Shape[0]), int(a.X.Shape[1])
	if err := j.layout(0, 2*4*n); err != nil {
		return a.Fail(err)
	}
	j.each(rows, float64(10*n), func(j *job, lo, hi, worker int) {
		a := (*ops.HadamardTransformArgs)(j.args)
		n, buf := int(a.X.Shape[1]), own[float32](j, worker)
		scale := a.Scale
		if scale == 0 {
			scale = 1
		}
		for i := lo; i < hi; i++ {
			v := buf[:n]
			copy(v, plainHalves.load(buf[n:], &a.X, i*int(a.X.Stride[0]), n))
			hadamard(v)
			for e := range v {
				v[e] *= scale
			}
			plainHalves.store(&a.Out, i*n, v)
		}
	})
	return 0
}

// hadamard replaces a row by its sums and differences, pairs one apart first, then two, four and so on.
func hadamard(v []float32) {
	for half := 1; half < len(v); half *= 2 {
		for at := 0; at < len(v); at += 2 * half {
			low, high := v[at:at+half], v[at+half:at+2*half]
			for e, x := range low {
				y := high[e]
				low[e], high[e] = x+y, x-y
			}
		}
	}
}

func refDropinProbe(t *tier, q *registry.Queue, a *ops.DropinProbeArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	words := elems[int32](&a.Workspace, 0, int(a.Workspace.Shape[0]))
	clear(words)
	words[0] = int32(uint32(a.ScalarType)) ^ int32(a.Layout)
	j.each(int(a.In.Shape[0]), float64(2*a.In.Shape[1]), func(j *job, lo, hi, _ int) {
		a := (*ops.DropinProbeArgs)(j.args)
		scalar := a.Scalar
		if a.ResidentScalar.Present() {
			scalar = elems[float32](&a.ResidentScalar, 0, 1)[0]
		}
		at := func(x *tensor.Tensor, i, c int) *float32 {
			return &elems[float32](x, i*int(x.Stride[0])+c*int(x.Stride[1]), 1)[0]
		}
		for i := lo; i < hi; i++ {
			for c := range int(a.In.Shape[1]) {
				*at(&a.Out, i, c) = *at(&a.In, i, c) + scalar
			}
		}
	})
	return 0
}
