package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// The elementary functions of the reference: f64, rounded once.
func exp32(x float32) float32  { return float32(math.Exp(float64(x))) }
func log32(x float32) float32  { return float32(math.Log(float64(x))) }
func tanh32(x float32) float32 { return float32(math.Tanh(float64(x))) }

func refRMSNorm(t *tier, q *registry.Queue, a *ops.RMSNormArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, h := int(a.X.Shape[0]), int(a.X.Shape[1])
	if err := j.layout(4*h, 2*4*h); err != nil {
		return a.Fail(err)
	}
	normWeight(common[float32](j)[:h], &a.Weight, a.Gemma)
	j.each(rows, float64(4*h), func(j *job, lo, hi, worker int) {
		a := (*ops.RMSNormArgs)(j.args)
		h := int(a.X.Shape[1])
		w, buf := common[float32](j)[:h], own[float32](j, worker)
		for i := lo; i < hi; i++ {
			v := plainHalves.load(buf, &a.X, i*h, h)
			if a.Residual.Present() {
				v = addResidual(buf, v, &a.Residual, i*h)
			}
			out := target(buf[h:], &a.Out, i*h, h)
			rmsRow(out, v, w, a.Eps)
			plainHalves.store(&a.Out, i*h, out)
		}
	})
	return 0
}

// normWeight reads the weight of a norm into w: ones if it is absent, 1 + weight for gemma.
func normWeight(w []float32, weight *tensor.Tensor, gemma bool) {
	for e := range w {
		w[e] = 1
		if weight.Present() {
			w[e] = one(weight, e)
		}
		if gemma {
			w[e]++
		}
	}
}

// addResidual adds the row v to the elements of r from off on, in place, and returns the sum as it was rounded to r's
// dtype. buf has room for two rows; v may be its first one.
func addResidual(buf, v []float32, r *tensor.Tensor, off int) []float32 {
	h := len(v)
	sum := buf[:h]
	for e, y := range plainHalves.load(buf[h:], r, off, h) {
		sum[e] = v[e] + y
	}
	plainHalves.store(r, off, sum)
	return plainHalves.load(buf, r, off, h)
}

// rmsRow writes the row v, divided by its root mean square and multiplied by w, to out, which may be v.
func rmsRow(out, v, w []float32, eps float32) {
	inv := inverseRMS(v, eps)
	for e, x := range v {
		out[e] = float32(x*inv) * w[e]
	}
}

// inverseRMS returns 1/sqrt(mean(v²) + eps).
func inverseRMS(v []float32, eps float32) float32 {
	var s float32
	for _, x := range v {
		s += float32(x * x)
	}
	return 1 / float32(math.Sqrt(float64(float32(s/float32(len(v)))+eps)))
}

func refSiluAndMul(t *tier, q *registry.Queue, a *ops.SiluAndMulArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, d := int(a.Out.Shape[0]), int(a.Out.Shape[1])
	if err := j.layout(0, 3*4*d); err != nil {
		return a.Fail(err)
	}
	j.each(rows, float64(20*d), func(j *job, lo, hi, worker int) {
		a := (*ops.SiluAndMulArgs)(j.args)
		d, buf := int(a.Out.Shape[1]), own[float32](j, worker)
		alpha := a.Alpha
		if alpha == 0 {
			alpha = 1
		}
		for i := lo; i < hi; i++ {
			gate, up := gateAndUp(&plainHalves, &a.X, &a.Up, i, d, buf)
			out := target(buf[2*d:], &a.Out, i*d, d)
			if a.Limit > 0 || a.PlusOne {
				limitedSiluMulRow(out, gate, up, alpha, a.Limit, a.PlusOne)
			} else {
				siluMulRow(out, gate, up, alpha)
			}
			plainHalves.store(&a.Out, i*d, out)
		}
	})
	return 0
}

// siluMulRow writes silu(alpha, gate)·up to out, which may be either.
func siluMulRow(out, gate, up []float32, alpha float32) {
	for e, g := range gate {
		out[e] = silu(g, alpha) * up[e]
	}
}

// silu is x·sigmoid(alpha·x), as a quotient.
func silu(x, alpha float32) float32 { return x / (1 + exp32(-float32(alpha*x))) }

// limitedSiluMulRow is siluMulRow of a gate of at most limit and an up between -limit and limit, or up + 1.
func limitedSiluMulRow(out, gate, up []float32, alpha, limit float32, plusOne bool) {
	for e, g := range gate {
		u := up[e]
		if limit > 0 {
			if g > limit {
				g = limit
			}
			u = clip(u, -limit, limit)
		}
		if plusOne {
			u++
		}
		out[e] = silu(g, alpha) * u
	}
}

// clip returns v between two bounds; NaN stays.
func clip[T int64 | float32](v, low, high T) T {
	if v < low {
		v = low
	}
	if v > high {
		v = high
	}
	return v
}

// gateAndUp loads the two factors of row i of d elements: the halves of x's row, or x's and up's. buf has room for two rows.
func gateAndUp(h *halves, x, up *tensor.Tensor, i, d int, buf []float32) (gate, other []float32) {
	if up.Present() {
		return h.load(buf, x, i*d, d), h.load(buf[d:], up, i*d, d)
	}
	return h.load(buf, x, 2*i*d, d), h.load(buf[d:], x, (2*i+1)*d, d)
}

// flat is how many elements of a flat tensor are worked on at a time.
const flat = 1024

// mapFlat runs f over a flat output in pieces of flat elements; of each worker there is scratch for three pieces of 8 bytes an
// element.
func mapFlat(t *tier, q *registry.Queue, args unsafe.Pointer, h *registry.Header, out *tensor.Tensor, f part) registry.Status {
	j := begin(q, t, args)
	defer j.end()
	if err := j.layout(0, 3*8*flat); err != nil {
		return h.Fail(err)
	}
	j.each((int(out.Numel())+flat-1)/flat, 2*flat, f)
	return 0
}

// eachFlat calls f for the pieces lo to hi of a flat tensor.
func eachFlat(out *tensor.Tensor, lo, hi int, f func(off, n int)) {
	total := int(out.Numel())
	for p := lo; p < hi; p++ {
		f(p*flat, min(flat, total-p*flat))
	}
}

// qkvSplit is the kernel of every tier.
func qkvSplit(t *tier, q *registry.Queue, a *ops.QKVSplitArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	j.each(int(a.QKV.Shape[0]), float64(a.QKV.Shape[1])/8, func(j *job, lo, hi, _ int) {
		a := (*ops.QKVSplitArgs)(j.args)
		t, size := int(a.QKV.Shape[0]), a.QKV.DType.Size()
		from := unsafe.Slice((*byte)(a.QKV.Host), int(a.QKV.Numel())*size)[lo*int(a.QKV.Shape[1])*size:]
		outs := [...]*tensor.Tensor{&a.QOut, &a.KOut, &a.VOut}
		for i := lo; i < hi; i++ {
			for _, o := range outs {
				n := int(o.Numel()) / t * size
				if n > 0 {
					copy(unsafe.Slice((*byte)(unsafe.Add(o.Host, i*n)), n), from)
				}
				from = from[n:]
			}
		}
	})
	return 0
}

func refEmbedding(t *tier, q *registry.Queue, a *ops.EmbeddingArgs) registry.Status {
	if s, ok := checkEmbedding(a); !ok {
		return s
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	return lookUp(j, a, func(j *job, lo, hi, worker int) {
		a := (*ops.EmbeddingArgs)(j.args)
		w, _ := weightOf(&a.Table)
		local := own[byte](j, worker)
		for i := lo; i < hi; i++ {
			v := w.floats(cast[float32](local[:4*w.k]), local[4*w.k:], int(index(&a.IDs, i)))
			plainHalves.store(&a.Out, i*w.k, v)
		}
	})
}

// checkEmbedding declines tables that nothing here reads and finds ids out of range, before anything is written.
func checkEmbedding(a *ops.EmbeddingArgs) (s registry.Status, ok bool) {
	if _, ok := weightOf(&a.Table); !ok {
		return registry.Decline(registry.ReasonLayout), false
	}
	for i := range int(a.IDs.Shape[0]) {
		if id := index(&a.IDs, i); id < 0 || id >= a.Table.Shape[0] {
			return a.Fail(badValue("embedding", "ids", "id %d at %d is outside [0,%d)", id, i, a.Table.Shape[0])), false
		}
	}
	return 0, true
}

// lookUp runs f over the rows with scratch for a row as f32 and its bytes.
func lookUp(j *job, a *ops.EmbeddingArgs, f part) registry.Status {
	if err := j.layout(0, 2*4*int(a.Table.Shape[1])); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.IDs.Shape[0]), float64(a.Table.Shape[1])*2, f)
	return 0
}

func refSoftmax(t *tier, q *registry.Queue, a *ops.SoftmaxArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, n := int(a.X.Shape[0]*a.X.Shape[1]), int(a.X.Shape[2])
	if err := j.layout(0, 2*4*n); err != nil {
		return a.Fail(err)
	}
	j.each(rows, float64(15*n), func(j *job, lo, hi, worker int) {
		a := (*ops.SoftmaxArgs)(j.args)
		t, n := int(a.X.Shape[1]), int(a.X.Shape[2])
		buf := own[float32](j, worker)
		for r := lo; r < hi; r++ {
			s := scaledRow(&plainHalves, a, r, buf)
			m := float32(math.Inf(-1))
			for _, v := range s {
				m = greater(m, v)
			}
			if a.Sinks.Present() {
				m = greater(m, one(&a.Sinks, r/t))
			}
			var sum float32
			out := target(buf[n:], &a.Out, r*n, n)
			for e, v := range s {
				out[e] = exp32(v - m)
				sum += out[e]
			}
			if a.Sinks.Present() {
				sum += exp32(one(&a.Sinks, r/t) - m)
			}
			for e := range out {
				out[e] /= sum
			}
			plainHalves.store(&a.Out, r*n, out)
		}
	})
	return 0
}

// greater returns the larger one; a NaN in v is not.
func greater(m, v float32) float32 {
	if v > m {
		return v
	}
	return m
}

// scaledRow returns row r of x, scaled and masked, in the first n elements of buf, which has room for two rows.
func scaledRow(h *halves, a *ops.SoftmaxArgs, r int, buf []float32) []float32 {
	t, n := int(a.X.Shape[1]), int(a.X.Shape[2])
	s := buf[:n]
	for e, v := range h.load(s, &a.X, r*n, n) {
		s[e] = v * a.Scale
	}
	if a.Mask.Present() {
		slope := alibi(a.MaxBias, r/t, int(a.X.Shape[0]))
		for e, v := range h.load(buf[n:], &a.Mask, r%t*n, n) {
			s[e] += float32(slope * v)
		}
	}
	return s
}

// alibi returns the slope of head h of heads.
func alibi(maxBias float32, h, heads int) float32 {
	if maxBias == 0 {
		return 1
	}
	n := 1
	for 2*n <= heads {
		n *= 2
	}
	if h < n {
		return float32(math.Exp2(-float64(maxBias) * float64(h+1) / float64(n)))
	}
	return float32(math.Exp2(-float64(maxBias) * float64(2*(h-n)+1) / float64(2*n)))
}
