package cpu

import (
	"unsafe"

	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Rough rates of the gemm kernels, for the size of chunks: bytes of weights and multiply-adds in a nanosecond.
const (
	streamRate = 12
	mulRate    = 150
)

// panelCost estimates the nanoseconds of one panel of 16 rows against m rows of activations.
func panelCost(w *weight, m int) float64 {
	return max(float64(simd.Lanes*w.row)/streamRate, float64(m)*float64(w.k)*simd.Lanes/mulRate)
}

// matmulBTQuant multiplies Q4_0 and Q8_0 weights. In the Lane16 layout they are read as they are; plain rows are
// interleaved a panel at a time, for each call anew.
func matmulBTQuant(t *tier, q *registry.Queue, a *ops.MatmulBTQuantArgs) registry.Status {
	f, ok := lanes(a.B.DType)
	if !ok {
		return registry.Decline(registry.ReasonDType)
	}
	if a.Out.Shape[0] < t.minRows {
		return registry.Decline(registry.ReasonThreshold)
	}
	w, _ := weightOf(&a.B)
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	m := int(a.Out.Shape[0])
	// All see the packed activations. A worker has a row of activations, then a panel and a tile of the output.
	local := 4*w.k + 64
	if !w.lane16 {
		local = max(local, simd.Lanes*w.row+64)
	}
	if !direct(&w, &a.Out) {
		local += tileBytes(m)
	}
	if err := j.layout(simd.QuantizedSize(m, w.k), local); err != nil {
		return a.Fail(err)
	}
	j.n[0] = int(f)
	j.each(m, float64(w.k)/4, quantizeRows)
	j.panels(&w, m, mulPanels)
	return 0
}

// Products of many rows, and those whose outputs are not f32, pass through a tile of scratch memory: the rows of an
// output are far apart, often by a multiple of 4096 bytes, and what is added up there would compete for a few sets of the
// cache.
const (
	tilePanels  = 32                         // panels of a tile
	tileTall    = 256                        // rows
	tileRowSize = tilePanels*simd.Lanes + 16 // from one row to the next: an odd number of cache lines
)

// direct reports whether a product writes its output without a tile.
func direct(w *weight, out *tensor.Tensor) bool {
	return w.lane16 && out.DType == tensor.F32 && out.Shape[0] < manyRows
}

// tileBytes is the scratch memory of a tile for m rows.
func tileBytes(m int) int { return 4*min(m, tileTall)*tileRowSize + 64 }

// panels runs f over the panels of w, an even number at a time: kernels take them in pairs. With many rows of activations
// a chunk has as many panels as stay in the second level cache while all rows pass over them.
func (j *job) panels(w *weight, m int, f part) {
	pairs := (simd.Panels(w.n) + 1) / 2
	if m < manyRows {
		j.each(pairs, 2*panelCost(w, m), f)
		return
	}
	const cached = 1 << 20
	j.chunks(pairs, max(1, min(cached/max(2*simd.Lanes*w.row, 1), pairs/(4*j.pool.Threads()))), f)
}

// quantizeRows packs rows of activations.
func quantizeRows(j *job, lo, hi, worker int) {
	a := (*ops.MatmulBTQuantArgs)(j.args)
	f, k, stride := simd.Format(j.n[0]), int(a.A.Shape[1]), rowStride(&a.A)
	xq := j.scratch[:j.shared]
	if k == 0 {
		return
	}
	if a.A.DType == tensor.F32 {
		j.tier.set.QuantizeRows(f, xq, elems[float32](&a.A, 0, (hi-1)*stride+k), stride, lo, hi, k)
		return
	}
	buf := own[float32](j, worker)
	for i := lo; i < hi; i++ {
		x := j.tier.load(buf, &a.A, i*stride, k)
		j.tier.set.QuantizeRows(f, xq[i*simd.QuantizedStride(k):], x, k, 0, 1, k)
	}
}

// mulPanels multiplies pairs lo to hi of the weight's panels with all rows.
func mulPanels(j *job, lo, hi, worker int) {
	a := (*ops.MatmulBTQuantArgs)(j.args)
	f, xq, local := simd.Format(j.n[0]), j.scratch[:j.shared], own[byte](j, worker)
	w, _ := weightOf(&a.B)
	m := int(a.Out.Shape[0])
	lo, hi = 2*lo, min(2*hi, simd.Panels(w.n))
	if direct(&w, &a.Out) {
		j.tier.set.MulQ(f, elems[float32](&a.Out, 0, m*w.n), w.n, xq, w.data, m, w.n, w.k, lo, hi)
		return
	}
	size, step := simd.Lanes*w.row, tilePanels
	var panel []byte
	if !w.lane16 { // interleaved for this call, one at a time
		step, panel, local = 1, local[:size], local[(size+63)&^63:]
	}
	tile := cast[float32](local)
	for p := lo; p < hi; p += step {
		c0, c1 := p*simd.Lanes, min(min(p+step, hi)*simd.Lanes, w.n)
		part := panel
		if w.lane16 {
			part = w.data[p*size:]
		} else {
			f.PackPanel(panel, w.data[c0*w.row:c1*w.row], c1-c0, w.k)
		}
		for r := 0; r < m; r += tileTall {
			rows := min(tileTall, m-r)
			j.tier.set.MulQ(f, tile, tileRowSize, xq[r*simd.QuantizedStride(w.k):], part, rows, c1-c0, w.k, 0, step)
			j.tier.storeTile(&a.Out, r, c0, tile, rows, c1-c0)
		}
	}
}

// storeTile writes the upper left corner of a tile, rows by cols, to out from row r and column c on.
func (t *tier) storeTile(out *tensor.Tensor, r, c int, tile []float32, rows, cols int) {
	n := int(out.Shape[1])
	for i := range rows {
		t.store(out, (r+i)*n+c, tile[i*tileRowSize:][:cols])
	}
}

// matmulBT multiplies f32, f16 and bf16 weights. Lane16 weights go through the panel kernels; plain rows are taken four
// activations at a time by the kernels that attention has for the rows of a cache.
func matmulBT(t *tier, q *registry.Queue, a *ops.MatmulBTArgs) registry.Status {
	w, ok := weightOf(&a.B)
	if !ok {
		return registry.Decline(registry.ReasonLayout)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	m := int(a.Out.Shape[0])
	if err := j.layout(wideBytes(&a.A), tileBytes(m)); err != nil {
		return a.Fail(err)
	}
	j.widen(&a.A)
	j.panels(&w, m, mulRows)
	return 0
}

// mulRows multiplies pairs lo to hi of the weight's panels, or as many plain rows, with all rows of activations.
func mulRows(j *job, lo, hi, worker int) {
	a := (*ops.MatmulBTArgs)(j.args)
	w, _ := weightOf(&a.B)
	m, x := int(a.Out.Shape[0]), j.wideOf(&a.A)
	f, _ := lanes(w.dtype)
	lo, hi = 2*lo, min(2*hi, simd.Panels(w.n))
	if direct(&w, &a.Out) {
		j.tier.set.MulF(f, elems[float32](&a.Out, 0, m*w.n), w.n, x.data, x.stride, w.data, m, w.n, w.k, lo, hi)
		return
	}
	tile := own[float32](j, worker)
	for p := lo; p < hi; p += tilePanels {
		c0, c1 := p*simd.Lanes, min(min(p+tilePanels, hi)*simd.Lanes, w.n)
		for r := 0; r < m; r += tileTall {
			rows := min(tileTall, m-r)
			switch {
			case w.k == 0:
				clear(tile[:rows*tileRowSize])
			case w.lane16:
				j.tier.set.MulF(f, tile, tileRowSize, x.data[r*x.stride:], x.stride, w.data[c0*w.row:], rows, c1-c0, w.k, 0, tilePanels)
			default:
				plain := simd.Rows{Data: unsafe.Pointer(&w.data[c0*w.row]), Stride: w.k, N: c1 - c0, D: w.k}
				j.tier.products(w.dtype).Scores(tile, tileRowSize, x.data[r*x.stride:], x.stride, rows, plain)
			}
			j.tier.storeTile(&a.Out, r, c0, tile, rows, c1-c0)
		}
	}
}

// products returns the kernels for rows of a dtype.
func (t *tier) products(d tensor.DType) *simd.Attention {
	switch d {
	case tensor.F16:
		return &t.set.AttentionF16
	case tensor.BF16:
		return &t.set.AttentionBF16
	}
	return &t.set.AttentionF32
}

// matmulColumns is how many columns of a plain product one chunk computes.
const matmulColumns = 256

// matmul adds up rows of b, weighted with the elements of a.
func matmul(t *tier, q *registry.Queue, a *ops.MatmulArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	m, n, k := int(a.Out.Shape[0]), int(a.Out.Shape[1]), int(a.A.Shape[1])
	if err := j.layout(wideBytes(&a.A), 4*matmulRows*matmulColumns); err != nil {
		return a.Fail(err)
	}
	j.widen(&a.A)
	blocks := (n + matmulColumns - 1) / matmulColumns
	j.n[0] = blocks
	j.each((m+matmulRows-1)/matmulRows*blocks, float64(min(m, matmulRows)*k*matmulColumns)/30, func(j *job, lo, hi, worker int) {
		a := (*ops.MatmulArgs)(j.args)
		m, n, k := int(a.Out.Shape[0]), int(a.Out.Shape[1]), int(a.A.Shape[1])
		x := j.wideOf(&a.A)
		for it := lo; it < hi; it++ {
			c0, i0 := it%j.n[0]*matmulColumns, it/j.n[0]*matmulRows
			cols, rows := min(matmulColumns, n-c0), min(matmulRows, m-i0)
			c, ldc := own[float32](j, worker), cols
			if a.Out.DType == tensor.F32 {
				c, ldc = elems[float32](&a.Out, i0*n+c0, (rows-1)*n+cols), n
			}
			for i := range rows {
				clear(c[i*ldc:][:cols])
			}
			if k > 0 {
				b := simd.Rows{Data: unsafe.Add(a.B.Host, c0*a.B.DType.Size()), Stride: n, N: k, D: cols}
				j.tier.products(a.B.DType).Mix(c, ldc, x.data[i0*x.stride:], x.stride, rows, b)
			}
			if a.Out.DType != tensor.F32 {
				for i := range rows {
					j.tier.store(&a.Out, (i0+i)*n+c0, c[i*ldc:][:cols])
				}
			}
		}
	})
	return 0
}

// matmulRows is how many rows of a plain product one chunk computes.
const matmulRows = 64
