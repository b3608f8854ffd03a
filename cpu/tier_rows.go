package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

func rmsNorm(t *tier, q *registry.Queue, a *ops.RMSNormArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	h := int(a.X.Shape[1])
	if err := j.layout(4*h, 2*4*h); err != nil {
		return a.Fail(err)
	}
	w := common[float32](j)[:h]
	if a.Weight.DType != tensor.F32 {
		if a.Weight.Present() {
			t.load(w, &a.Weight, 0, h)
		} else {
			for e := range w {
				w[e] = 1
			}
		}
	}
	j.each(int(a.X.Shape[0]), float64(h)/4, func(j *job, lo, hi, worker int) {
		a := (*ops.RMSNormArgs)(j.args)
		h, t := int(a.X.Shape[1]), j.tier
		w, buf := common[float32](j)[:h], own[float32](j, worker)
		if a.Weight.DType == tensor.F32 {
			w = elems[float32](&a.Weight, 0, h)
		}
		for i := lo; i < hi; i++ {
			v := t.load(buf, &a.X, i*h, h)
			if r := &a.Residual; r.Present() {
				sum := target(buf, r, i*h, h)
				t.set.Add(sum, v, t.load(buf[h:], r, i*h, h))
				t.store(r, i*h, sum)
				v = t.load(buf, r, i*h, h) // goes on as it was rounded
			}
			out := target(buf[h:], &a.Out, i*h, h)
			t.set.RMSNorm(out, v, w, a.Eps, a.Gemma)
			t.store(&a.Out, i*h, out)
		}
	})
	return 0
}

func siluAndMul(t *tier, q *registry.Queue, a *ops.SiluAndMulArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	d := int(a.Out.Shape[1])
	if err := j.layout(0, 3*4*d); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.Out.Shape[0]), float64(d)/2, func(j *job, lo, hi, worker int) {
		a := (*ops.SiluAndMulArgs)(j.args)
		d, buf := int(a.Out.Shape[1]), own[float32](j, worker)
		for i := lo; i < hi; i++ {
			gate, up := gateAndUp(&j.tier.halves, &a.X, &a.Up, i, d, buf)
			out := target(buf[2*d:], &a.Out, i*d, d)
			j.tier.set.SiluMul(out, gate, up)
			j.tier.store(&a.Out, i*d, out)
		}
	})
	return 0
}

func relu(t *tier, q *registry.Queue, a *ops.ReluArgs) registry.Status {
	return mapFlat(t, q, unsafe.Pointer(a), &a.Header, &a.Out, func(j *job, lo, hi, worker int) {
		a, buf := (*ops.ReluArgs)(j.args), own[float32](j, worker)
		eachFlat(&a.Out, lo, hi, func(off, n int) {
			out := target(buf, &a.Out, off, n)
			j.tier.set.Relu(out, j.tier.load(buf[flat:], &a.X, off, n))
			j.tier.store(&a.Out, off, out)
		})
	})
}

func mulScalar(t *tier, q *registry.Queue, a *ops.MulScalarArgs) registry.Status {
	return mapFlat(t, q, unsafe.Pointer(a), &a.Header, &a.Out, func(j *job, lo, hi, worker int) {
		a, buf := (*ops.MulScalarArgs)(j.args), own[float32](j, worker)
		eachFlat(&a.Out, lo, hi, func(off, n int) {
			out := target(buf, &a.Out, off, n)
			j.tier.set.MulScalar(out, j.tier.load(buf[flat:], &a.X, off, n), float32(a.Scalar))
			j.tier.store(&a.Out, off, out)
		})
	})
}

func addRows(t *tier, q *registry.Queue, a *ops.AddArgs) registry.Status {
	return mapFlat(t, q, unsafe.Pointer(a), &a.Header, &a.Out, func(j *job, lo, hi, worker int) {
		a, buf := (*ops.AddArgs)(j.args), own[float32](j, worker)
		eachFlat(&a.Out, lo, hi, func(off, n int) {
			out, x := target(buf, &a.Out, off, n), j.tier.load(buf[flat:], &a.A, off, n)
			if a.B.Shape == a.A.Shape {
				j.tier.set.Add(out, x, j.tier.load(buf[2*flat:], &a.B, off, n))
			} else { // one row for all
				for d, e := int(a.B.Shape[0]), 0; e < n; {
					at := (off + e) % d
					run := min(d-at, n-e)
					j.tier.set.Add(out[e:e+run], x[e:e+run], j.tier.load(buf[2*flat:], &a.B, at, run))
					e += run
				}
			}
			j.tier.store(&a.Out, off, out)
		})
	})
}

func softmax(t *tier, q *registry.Queue, a *ops.SoftmaxArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	n := int(a.X.Shape[2])
	if err := j.layout(0, 2*4*n); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.X.Shape[0]*a.X.Shape[1]), float64(n), func(j *job, lo, hi, worker int) {
		a := (*ops.SoftmaxArgs)(j.args)
		t, n, set := int(a.X.Shape[1]), int(a.X.Shape[2]), j.tier.set
		buf := own[float32](j, worker)
		for r := lo; r < hi; r++ {
			s := buf[:n]
			set.MulScalar(s, j.tier.load(s, &a.X, r*n, n), a.Scale)
			if a.Mask.Present() {
				mask := j.tier.load(buf[n:], &a.Mask, r%t*n, n)
				if slope := alibi(a.MaxBias, r/t, int(a.X.Shape[0])); slope != 1 {
					set.MulScalar(buf[n:2*n], mask, slope)
					mask = buf[n : 2*n]
				}
				set.Add(s, s, mask)
			}
			m := set.Max(s)
			if a.Sinks.Present() {
				m = greater(m, one(&a.Sinks, r/t))
			}
			out := target(buf[n:], &a.Out, r*n, n)
			sum := set.ExpSum(out, s, m)
			if a.Sinks.Present() {
				sum += float64(exp32(one(&a.Sinks, r/t) - m))
			}
			set.DivScalar(out, out, float32(sum))
			j.tier.store(&a.Out, r*n, out)
		}
	})
	return 0
}

func embedding(t *tier, q *registry.Queue, a *ops.EmbeddingArgs) registry.Status {
	if s, ok := checkEmbedding(a); !ok {
		return s
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	return lookUp(j, a, func(j *job, lo, hi, worker int) {
		a := (*ops.EmbeddingArgs)(j.args)
		w, _ := weightOf(&a.Table)
		local := own[byte](j, worker)
		buf := cast[float32](local[:4*w.k])
		for i := lo; i < hi; i++ {
			id := int(index(&a.IDs, i))
			v := buf
			switch {
			case w.lane16:
				panel, lane := w.panel(id)
				w.format.Row(v, panel, lane, w.k)
			case w.dtype.IsFloat():
				v = j.tier.load(buf, &a.Table, id*w.k, w.k)
			default:
				v = w.floats(buf, nil, id)
			}
			j.tier.store(&a.Out, i*w.k, v)
		}
	})
}

func applyTemperature(t *tier, q *registry.Queue, a *ops.ApplyTemperatureArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 0.2, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.ApplyTemperatureArgs)(j.args)
		for i := lo; i < hi; i++ {
			x := row[float32](&a.Logits, i)
			j.tier.set.DivScalar(x, x, temperature(a, i))
		}
	})
}

func greedyArgmax(t *tier, q *registry.Queue, a *ops.GreedyArgmaxArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 0.1, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.GreedyArgmaxArgs)(j.args)
		for i := lo; i < hi; i++ {
			elems[int64](&a.TokenIDs, i, 1)[0] = int64(j.tier.set.ArgMax(row[float32](&a.Logits, i)))
		}
	})
}

// top is the largest logit of a row for a softmax: the reference starts its scan at the first one, so a NaN there makes
// the whole row NaN.
func (t *tier) top(x []float32) float32 {
	if len(x) > 0 && x[0] != x[0] {
		return x[0]
	}
	return t.set.Max(x)
}

func computeProbs(t *tier, q *registry.Queue, a *ops.ComputeProbsArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 1, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.ComputeProbsArgs)(j.args)
		for i := lo; i < hi; i++ {
			x, p := row[float32](&a.Logits, i), row[float32](&a.Probs, i)
			sum := j.tier.set.ExpSum(p, x, j.tier.top(x))
			j.tier.set.DivScalar(p, p, float32(sum))
		}
	})
}

func computeLogprobs(t *tier, q *registry.Queue, a *ops.ComputeLogprobsArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 1, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.ComputeLogprobsArgs)(j.args)
		for i := lo; i < hi; i++ {
			x, p := row[float32](&a.Logits, i), row[float32](&a.Logprobs, i)
			m := j.tier.top(x)
			lse := m + float32(math.Log(j.tier.set.SumExp(x, m)))
			j.tier.set.AddScalar(p, x, -lse)
		}
	})
}

func applyMinP(t *tier, q *registry.Queue, a *ops.ApplyMinPArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 2, 4*int(a.Logits.Shape[1]), func(j *job, lo, hi, worker int) {
		a := (*ops.ApplyMinPArgs)(j.args)
		set := j.tier.set
		for i := lo; i < hi; i++ {
			minP := elems[float32](&a.MinP, i, 1)[0]
			if minP <= 0 {
				continue
			}
			x := row[float32](&a.Logits, i)
			p := own[float32](j, worker)[:len(x)]
			sum := set.ExpSum(p, x, j.tier.top(x))
			set.DivScalar(p, p, float32(sum))
			maskBelow(x, p, minP*set.Max(p))
		}
	})
}

// maskBelow hides the logits whose probability is below th.
func maskBelow(x, p []float32, th float32) {
	p = p[:len(x)]
	for e, v := range p {
		if v < th {
			x[e] = negInf
		}
	}
}
