package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

func refRMSNormGated(t *tier, q *registry.Queue, a *ops.RMSNormGatedArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	d := int(a.X.Last())
	if err := j.layout(4*d, 3*4*d); err != nil {
		return a.Fail(err)
	}
	normWeight(common[float32](j)[:d], &a.Weight, false)
	j.each(int(a.X.Numel())/d, float64(25*d), func(j *job, lo, hi, worker int) {
		a := (*ops.RMSNormGatedArgs)(j.args)
		d := int(a.X.Last())
		w, buf := common[float32](j)[:d], own[float32](j, worker)
		for i := lo; i < hi; i++ {
			gate := plainHalves.load(buf, &a.Gate, gateRow(&a.Gate, i), d)
			v := plainHalves.load(buf[d:], &a.X, i*d, d)
			out := target(buf[2*d:], &a.Out, i*d, d)
			gatedRow(out, v, w, gate, a.Eps, a.SigmoidGate)
			plainHalves.store(&a.Out, i*d, out)
		}
	})
	return 0
}

// gateRow returns where row i of a gate, whose dimensions behind the first are packed, begins.
func gateRow(gate *tensor.Tensor, i int) int {
	if gate.Rank == 2 {
		return i * int(gate.Stride[0])
	}
	heads := int(gate.Shape[1])
	return i/heads*int(gate.Stride[0]) + i%heads*int(gate.Shape[2])
}

// gatedRow writes the row v, divided by its root mean square, multiplied by w and by silu of the gate or its sigmoid, to
// out, which may be v.
func gatedRow(out, v, w, gate []float32, eps float32, sigmoidGate bool) {
	inv := inverseRMS(v, eps)
	for e, x := range v {
		act := silu(gate[e], 1)
		if sigmoidGate {
			act = sigmoid(gate[e])
		}
		out[e] = float32(x*inv) * w[e] * act
	}
}

func refLayerNorm(t *tier, q *registry.Queue, a *ops.LayerNormArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	d := int(a.X.Last())
	if err := j.layout(2*4*d, 2*4*d); err != nil {
		return a.Fail(err)
	}
	loadAffine(common[float32](j), &a.Weight, &a.Bias, d)
	j.each(int(a.X.Numel())/d, float64(6*d), func(j *job, lo, hi, worker int) {
		a := (*ops.LayerNormArgs)(j.args)
		d := int(a.X.Last())
		w, buf := common[float32](j), own[float32](j, worker)
		for i := lo; i < hi; i++ {
			v := plainHalves.load(buf, &a.X, i*d, d)
			mean, inv := moments(v, a.Eps)
			out := target(buf[d:], &a.Out, i*d, d)
			for e, x := range v {
				out[e] = (x - mean) * inv
			}
			if a.Weight.Present() {
				for e := range out {
					out[e] *= w[e]
				}
			}
			if a.Bias.Present() {
				for e := range out {
					out[e] += w[d+e]
				}
			}
			plainHalves.store(&a.Out, i*d, out)
			if a.Mean.Present() {
				put(&a.Mean, i, mean)
			}
			if a.InvStdDev.Present() {
				put(&a.InvStdDev, i, inv)
			}
		}
	})
	return 0
}

// loadAffine reads the weight and the bias of a norm, n elements each, where they are present, to w.
func loadAffine(w []float32, weight, bias *tensor.Tensor, n int) {
	for i, x := range [...]*tensor.Tensor{weight, bias} {
		if x.Present() && n > 0 {
			copy(w[i*n:], plainHalves.load(w[i*n:], x, 0, n))
		}
	}
}

// moments returns a row's mean and 1/sqrt(variance + eps), in two passes.
func moments(v []float32, eps float32) (mean, inv float32) {
	n := float32(len(v))
	for _, x := range v {
		mean += x
	}
	mean /= n
	var s float32
	for _, x := range v {
		s += float32((x - mean) * (x - mean))
	}
	return mean, 1 / float32(math.Sqrt(float64(float32(s/n)+eps)))
}

func refL2Norm(t *tier, q *registry.Queue, a *ops.L2NormArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	d := int(a.X.Last())
	if err := j.layout(0, 2*4*d); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.X.Numel())/d, float64(4*d), func(j *job, lo, hi, worker int) {
		a := (*ops.L2NormArgs)(j.args)
		d, buf := int(a.X.Last()), own[float32](j, worker)
		for i := lo; i < hi; i++ {
			v, out := plainHalves.load(buf, &a.X, i*d, d), target(buf[d:], &a.Out, i*d, d)
			l2Row(out, v, a.Eps, a.Clamp)
			plainHalves.store(&a.Out, i*d, out)
		}
	})
	return 0
}

// l2Row writes the row v, divided by its length, to out, which may be v. eps is added to the square of the length, or with
// clamp the least length.
func l2Row(out, v []float32, eps float32, clamp bool) {
	var s float32
	for _, x := range v {
		s += float32(x * x)
	}
	var length float32
	if clamp {
		length = greater(eps, float32(math.Sqrt(float64(s))))
		if s != s {
			length = s
		}
	} else {
		length = float32(math.Sqrt(float64(s + eps)))
	}
	inv := 1 / length
	for e, x := range v {
		out[e] = x * inv
	}
}

func refGroupNorm(t *tier, q *registry.Queue, a *ops.GroupNormArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	groups, n := int(a.NumGroups), int(a.X.Numel()) // n > 0
	size := n / (int(a.X.Shape[0]) * groups)
	if err := j.layout(2*4*int(a.X.Shape[1]), 2*4*size); err != nil {
		return a.Fail(err)
	}
	loadAffine(common[float32](j), &a.Weight, &a.Bias, int(a.X.Shape[1]))
	j.each(n/size, float64(6*size), func(j *job, lo, hi, worker int) {
		a := (*ops.GroupNormArgs)(j.args)
		channels, groups := int(a.X.Shape[1]), int(a.NumGroups)
		spatial := int(a.X.Numel()) / int(a.X.Shape[0]) / channels
		size := channels / groups * spatial
		w, buf := common[float32](j), own[float32](j, worker)
		for i := lo; i < hi; i++ {
			v := plainHalves.load(buf, &a.X, i*size, size)
			mean, inv := moments(v, a.Eps)
			out := target(buf[size:], &a.Out, i*size, size)
			for e, x := range v {
				c := i%groups*(channels/groups) + e/spatial
				y := (x - mean) * inv
				if a.Weight.Present() {
					y *= w[c]
				}
				if a.Bias.Present() {
					y = float32(y) + w[channels+c]
				}
				out[e] = y
			}
			plainHalves.store(&a.Out, i*size, out)
		}
	})
	return 0
}
