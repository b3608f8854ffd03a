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
	f, _ := lanes(a.B.DType)
	w, _ := weightOf(&a.B)
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	m := int(a.Out.Shape[0])
	// All see the packed activations. A worker has a row of activations, then a panel and a tile of the output.
	local := 4*w.k + 64
	if !w.lane16 {
		local = max(local, simd.Lanes*w.row+64)
	}
	if err := j.layout(simd.QuantizedSize(m, w.k), local+tileBytes(m)); err != nil {
		return a.Fail(err)
	}
	j.n[nFormat] = int(f)
	j.each(m, float64(w.k)/4, quantizeRows)
	j.blocks(&w, &a.Out, mulQuant)
	return 0
}

// Products of many rows, and those whose outputs are not f32, pass through a tile of scratch memory: the rows of an
// output are far apart, often by a multiple of 4096 bytes, and what is added up there would compete for a few sets of the
// cache.
const (
	tilePanels  = 64                         // panels of a tile at most
	tileTall    = 128                        // rows
	tileRowSize = tilePanels*simd.Lanes + 16 // from one row to the next: an odd number of cache lines
)

// tileBytes is the scratch memory of a tile for m rows.
func tileBytes(m int) int { return 4*min(m, tileTall)*tileRowSize + 64 }

// direct reports whether a product writes its output without a tile.
func direct(w *weight, out *tensor.Tensor) bool {
	return w.lane16 && out.DType == tensor.F32 && out.Shape[0] < manyRows
}

// Places in job.n.
const (
	nFormat = iota
	nTall   // rows of a block
	nPanels // panels of a block
)

// blocks runs f over the blocks of an output: nTall rows by nPanels panels of the weight, an even number, since kernels
// take panels in pairs. Blocks of the same panels are neighbours.
func (j *job) blocks(w *weight, out *tensor.Tensor, f part) {
	m, panels := int(out.Shape[0]), simd.Panels(w.n)
	tall, wide := min(m, tileTall), 2
	if !w.lane16 {
		tall = m // a panel that is interleaved for this call serves all rows
	}
	down := (m + tall - 1) / tall
	if m >= manyRows {
		// What a block does once for its rows is worth many panels, as long as all threads have something to do.
		wide = min(max(panels*down/(2*j.pool.Threads())&^1, 2), tilePanels)
	}
	j.n[nTall], j.n[nPanels] = tall, wide
	j.each(down*((panels+wide-1)/wide), float64(wide)*panelCost(w, tall), f)
}

// block returns rows r0 <= r < r1 and panels p0 <= p < p1 of block i.
func (j *job) block(w *weight, m, i int) (r0, r1, p0, p1 int) {
	tall, wide := j.n[nTall], j.n[nPanels]
	down := (m + tall - 1) / tall
	r0, p0 = i%down*tall, i/down*wide
	return r0, min(r0+tall, m), p0, min(p0+wide, simd.Panels(w.n))
}

// quantizeRows packs rows of activations.
func quantizeRows(j *job, lo, hi, worker int) {
	a := (*ops.MatmulBTQuantArgs)(j.args)
	f, k, stride := simd.Format(j.n[nFormat]), int(a.A.Shape[1]), rowStride(&a.A)
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

// mulQuant computes blocks lo to hi of a quantised product.
func mulQuant(j *job, lo, hi, worker int) {
	a := (*ops.MatmulBTQuantArgs)(j.args)
	f, set, xq, local := simd.Format(j.n[nFormat]), j.tier.set, j.scratch[:j.shared], own[byte](j, worker)
	w, _ := weightOf(&a.B)
	m, size := int(a.Out.Shape[0]), simd.Lanes*w.row
	if direct(&w, &a.Out) { // every block has all rows, so that neighbours make one product
		_, _, p0, _ := j.block(&w, m, lo)
		_, _, _, p1 := j.block(&w, m, hi-1)
		set.MulQ(f, elems[float32](&a.Out, 0, m*w.n), w.n, xq, w.data, m, w.n, w.k, p0, p1)
		return
	}
	var panel []byte
	step := tilePanels
	if !w.lane16 {
		step, panel, local = 1, local[:size], local[(size+63)&^63:]
	}
	tile := cast[float32](local)
	for i := lo; i < hi; i++ {
		r0, r1, p0, p1 := j.block(&w, m, i)
		for p := p0; p < p1; p += step {
			c, part := p*simd.Lanes, panel
			cols := min(min(p+step, p1)*simd.Lanes, w.n) - c
			if w.lane16 {
				part = w.data[p*size:]
			} else {
				f.PackPanel(panel, w.data[c*w.row:][:cols*w.row], cols, w.k)
			}
			for r := r0; r < r1; r += tileTall {
				rows := min(tileTall, r1-r)
				set.MulQ(f, tile, tileRowSize, xq[r*simd.QuantizedStride(w.k):], part, rows, cols, w.k, 0, step)
				j.tier.storeTile(&a.Out, r, c, tile, rows, cols)
			}
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
	j.blocks(&w, &a.Out, mulFloat)
	return 0
}

// mulFloat computes blocks lo to hi of a product with f32, f16 or bf16 weights.
func mulFloat(j *job, lo, hi, worker int) {
	a := (*ops.MatmulBTArgs)(j.args)
	w, _ := weightOf(&a.B)
	m, x, set := int(a.Out.Shape[0]), j.wideOf(&a.A), j.tier.set
	f, _ := lanes(w.dtype)
	if direct(&w, &a.Out) {
		_, _, p0, _ := j.block(&w, m, lo)
		_, _, _, p1 := j.block(&w, m, hi-1)
		set.MulF(f, elems[float32](&a.Out, 0, m*w.n), w.n, x.data, x.stride, w.data, m, w.n, w.k, p0, p1)
		return
	}
	tile := own[float32](j, worker)
	for i := lo; i < hi; i++ {
		r0, r1, p0, p1 := j.block(&w, m, i)
		c := p0 * simd.Lanes
		cols := min(p1*simd.Lanes, w.n) - c
		for r := r0; r < r1; r += tileTall {
			rows := min(tileTall, r1-r)
			switch {
			case w.k == 0:
				clear(tile[:rows*tileRowSize])
			case w.lane16:
				set.MulF(f, tile, tileRowSize, x.data[r*x.stride:], x.stride, w.data[c*w.row:], rows, cols, w.k, 0, tilePanels)
			default:
				plain := simd.Rows{Data: unsafe.Pointer(&w.data[c*w.row]), Stride: w.k, N: cols, D: w.k}
				j.tier.products(w.dtype).Scores(tile, tileRowSize, x.data[r*x.stride:], x.stride, rows, plain)
			}
			j.tier.storeTile(&a.Out, r, c, tile, rows, cols)
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
