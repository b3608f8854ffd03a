package cpu

import (
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// A dense product is summed in blocks of refRows by refColumns outputs, refDepth terms at a time, so that what is read of b
// (and widened) serves several rows while it is in the cache. No sum's order depends on the block.
const (
	refRows    = 8
	refColumns = 256
	refDepth   = 4
)

// dense is a product out = a·b of one batch: places and strides in elements. Columns lie side by side.
type dense struct {
	out, a, b          *tensor.Tensor
	outAt, aAt, bAt    int // of the batch's first element
	outRow, aRow, bRow int
	k                  int
}

// block computes the rows lo to hi, at most refRows, of the columns from c0 on; each sum runs over k in ascending order. buf
// has room for refRows+refDepth rows of refColumns.
func (p *dense) block(buf []float32, lo, hi, c0, cols int) {
	sums, rows := buf[:refRows*refColumns], buf[refRows*refColumns:]
	clear(sums)
	var y [refDepth][]float32
	e := 0
	for ; e+refDepth <= p.k; e += refDepth {
		for d := range y {
			y[d] = plainHalves.load(rows[d*refColumns:], p.b, p.bAt+(e+d)*p.bRow+c0, cols)
		}
		for i := lo; i < hi; i++ {
			at := p.aAt + i*p.aRow + e
			x := [refDepth]float32{one(p.a, at), one(p.a, at+1), one(p.a, at+2), one(p.a, at+3)}
			addTerms(sums[(i-lo)*refColumns:][:cols], &x, &y)
		}
	}
	for ; e < p.k; e++ {
		b := plainHalves.load(rows, p.b, p.bAt+e*p.bRow+c0, cols)
		for i := lo; i < hi; i++ {
			x, sum := one(p.a, p.aAt+i*p.aRow+e), sums[(i-lo)*refColumns:][:cols]
			for c, v := range b {
				sum[c] += float32(x * v)
			}
		}
	}
	for i := lo; i < hi; i++ {
		plainHalves.store(p.out, p.outAt+i*p.outRow+c0, sums[(i-lo)*refColumns:][:cols])
	}
}

// refMatmul is the reference of matmul.
func refMatmul(t *tier, q *registry.Queue, a *ops.MatmulArgs) registry.Status {
	return multiplyDense(t, q, unsafe.Pointer(a), &a.Header, 1, &a.Out, func(j *job, lo, hi, worker int) {
		a := (*ops.MatmulArgs)(j.args)
		n, k := int(a.Out.Shape[1]), int(a.A.Shape[1])
		j.eachBlock(lo, hi, worker, int(a.Out.Shape[0]), n, func(int) dense {
			return dense{out: &a.Out, a: &a.A, b: &a.B, outRow: n, aRow: k, bRow: n, k: k}
		})
	})
}

func refBatchedMatmul(t *tier, q *registry.Queue, a *ops.BatchedMatmulArgs) registry.Status {
	return multiplyDense(t, q, unsafe.Pointer(a), &a.Header, int(a.Out.Shape[0]), &a.Out, func(j *job, lo, hi, worker int) {
		a := (*ops.BatchedMatmulArgs)(j.args)
		j.eachBlock(lo, hi, worker, int(a.Out.Shape[1]), int(a.Out.Shape[2]), func(g int) dense {
			return dense{out: &a.Out, a: &a.A, b: &a.B, outAt: g * int(a.Out.Stride[0]), aAt: g * int(a.A.Stride[0]), bAt: g * int(a.B.Stride[0]),
				outRow: int(a.Out.Stride[1]), aRow: int(a.A.Stride[1]), bRow: int(a.B.Stride[1]), k: int(a.A.Shape[2])}
		})
	})
}

// multiplyDense runs f over the blocks of g products whose outputs are the last two dimensions of out.
func multiplyDense(t *tier, q *registry.Queue, args unsafe.Pointer, h *registry.Header, g int, out *tensor.Tensor, f part) registry.Status {
	j := begin(q, t, args)
	defer j.end()
	if err := j.layout(0, 4*refColumns*(refRows+refDepth)); err != nil {
		return h.Fail(err)
	}
	m, n := int(out.Shape[out.Rank-2]), int(out.Shape[out.Rank-1])
	j.n[0] = (m + refRows - 1) / refRows
	j.n[1] = (n + refColumns - 1) / refColumns
	j.each(g*j.n[0]*j.n[1], float64(refRows*refColumns*64), f)
	return 0
}

// eachBlock computes blocks of products of m rows and n columns, row blocks of the same columns one after the other.
func (j *job) eachBlock(lo, hi, worker, m, n int, product func(g int) dense) {
	buf := own[float32](j, worker)
	for it := lo; it < hi; it++ {
		p := product(it / (j.n[0] * j.n[1]))
		i0, c0 := it%j.n[0]*refRows, it/j.n[0]%j.n[1]*refColumns
		p.block(buf, i0, min(i0+refRows, m), c0, min(refColumns, n-c0))
	}
}

// addTerms adds refDepth products to each sum, one after the other.
func addTerms(sum []float32, x *[refDepth]float32, y *[refDepth][]float32) {
	x0, x1, x2, x3 := x[0], x[1], x[2], x[3]
	y0, y1, y2, y3 := y[0][:len(sum)], y[1][:len(sum)], y[2][:len(sum)], y[3][:len(sum)]
	for c, s := range sum {
		s += float32(x0 * y0[c])
		s += float32(x1 * y1[c])
		s += float32(x2 * y2[c])
		s += float32(x3 * y3[c])
		sum[c] = s
	}
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
func (g *registrar) gemmReference() {
	t, exact := reference, registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.BatchedMatmul, refBatchedMatmul, exact, nil)
	add(g, t, ops.MatmulNVFP4, refMatmulNVFP4, exact, nil)
	add(g, t, ops.MatmulNVFP4FP4, refMatmulNVFP4FP4, exact, nil)
	add(g, t, ops.MatmulNVFP4Swizzled, refMatmulNVFP4Swizzled, registry.Traits{BitExact: true}, nil)
	add(g, t, ops.MatmulFP8, refMatmulFP8, exact, nil)
	add(g, t, ops.MatmulInt8, refMatmulInt8, exact, nil)
}
