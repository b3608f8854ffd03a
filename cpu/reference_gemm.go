package cpu

import (
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// refColumns is how many columns of a dense product are summed side by side.
const refColumns = 256

// refMatmul is the reference of matmul: for each output a sum over k in ascending order.
func refMatmul(t *tier, q *registry.Queue, a *ops.MatmulArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	if err := j.layout(0, 2*4*refColumns); err != nil {
		return a.Fail(err)
	}
	m, n, k := int(a.Out.Shape[0]), int(a.Out.Shape[1]), int(a.A.Shape[1])
	j.n[0] = (n + refColumns - 1) / refColumns
	j.each(m*j.n[0], float64(k*refColumns), func(j *job, lo, hi, worker int) {
		a := (*ops.MatmulArgs)(j.args)
		n, k := int(a.Out.Shape[1]), int(a.A.Shape[1])
		buf := own[float32](j, worker)
		for it := lo; it < hi; it++ {
			i, c0 := it/j.n[0], it%j.n[0]*refColumns
			cols := min(refColumns, n-c0)
			sum := buf[:cols]
			clear(sum)
			for e := range k {
				x := one(&a.A, i*k+e)
				for c, y := range plainHalves.load(buf[refColumns:], &a.B, e*n+c0, cols) {
					sum[c] += float32(x * y)
				}
			}
			plainHalves.store(&a.Out, i*n+c0, sum)
		}
	})
	return 0
}

// refMatmulBT is the reference of matmul_bt.
func refMatmulBT(t *tier, q *registry.Queue, a *ops.MatmulBTArgs) registry.Status {
	if _, ok := weightOf(&a.B); !ok {
		return registry.Decline(registry.ReasonLayout)
	}
	return refDots(t, q, unsafe.Pointer(a), &a.Header, &a.A)
}

// refDots computes out = a·bᵀ with f32 activations and the weight's rows decoded to f32: matmul_bt, and matmul_bt_quant for
// weights without a dot product of their own. Its record has the layout of MatmulBTArgs.
func refDots(t *tier, q *registry.Queue, args unsafe.Pointer, h *registry.Header, x *tensor.Tensor) registry.Status {
	a := (*ops.MatmulBTArgs)(args)
	j := begin(q, t, args)
	defer j.end()
	m, n, k := int(x.Shape[0]), int(a.Out.Shape[1]), int(x.Shape[1])
	// All see the activations. A worker has 4 rows of the weight as f32, and room for their
	// bytes, which are never more.
	if err := j.layout(wideBytes(x), 2*4*4*k); err != nil {
		return h.Fail(err)
	}
	j.widen(x)
	j.each((n+3)/4, float64(m+4)*float64(4*k), func(j *job, lo, hi, worker int) {
		a := (*ops.MatmulBTArgs)(j.args)
		w, _ := weightOf(&a.B)
		x := j.wideOf(&a.A)
		local := own[byte](j, worker)
		rows, raw := cast[float32](local[:16*w.k]), local[16*w.k:]
		var row [4][]float32
		for b := lo; b < hi; b++ {
			for r := range row { // behind the last row the last one again: its sums are dropped
				row[r] = w.floats(rows[r*w.k:], raw[r*4*w.k:], min(4*b+r, w.n-1))
			}
			for i := range int(a.Out.Shape[0]) {
				s := dot4(x.row(i, w.k), &row)
				for r := range min(4, w.n-4*b) {
					put(&a.Out, i*w.n+4*b+r, s[r])
				}
			}
		}
	})
	return 0
}

// dot4 returns four sequential sums of products.
func dot4(x []float32, w *[4][]float32) [4]float32 {
	w0, w1, w2, w3 := w[0][:len(x)], w[1][:len(x)], w[2][:len(x)], w[3][:len(x)]
	var s0, s1, s2, s3 float32
	for i, v := range x {
		s0 += float32(v * w0[i])
		s1 += float32(v * w1[i])
		s2 += float32(v * w2[i])
		s3 += float32(v * w3[i])
	}
	return [4]float32{s0, s1, s2, s3}
}

// gemmReference registers the oracle's kernels of products.
func (g *registrar) gemmReference() {}
