package simd

import (
	"fmt"
	"unsafe"
)

// tile multiplies rows rows of activations with one panel of weights, or with
// two neighbours that are size bytes apart, over n steps along k: blocks of 32
// for a quantised format, single elements for another. Rows of activations are
// ldx bytes apart, rows of C ldc elements:
//
//	C[rows][cols] += X·Wᵀ
//
// cols is 1 to 16 with one panel and 32 with two; of C nothing else is read or
// written. With each step the tile prefetches the weights that are ahead bytes
// further on (a tile of 12 rows, of a quantised block only the first third).
//
// For each element, for each step in order, a tile does one of
//
//	c = fma(float32(d · scale), float32(Σ q·w), c)
//	c = fma(x, float32(w), c)
//
// where the integer sum is exact: the bits depend neither on the tile nor on
// where k is split.
type tile struct {
	rows, panels int
	run          func(n int, w *byte, size int, x *byte, ldx int, c *float32, ldc, cols, ahead int)
}

// cut says how a product is cut up, so that a tile's weights and activations
// stay in the first level cache, those of a chunk of rows in the second, and a
// call of a kernel takes at most some tens of microseconds.
type cut struct {
	step   int  // elements of k in a step of a tile
	bytes  int  // of a step in a row of activations
	rows   int  // of activations in a chunk
	deep   int  // steps that a chunk takes over all panels before the next steps
	run    int  // steps that a chunk takes over a panel before the next steps
	stream int  // the same where one tile takes all rows: nothing is used twice
	share  bool // the tiles of a chunk share the prefetching of the next run
}

var (
	quantCut = cut{step: block, bytes: xBlock, rows: 120, deep: 1 << 20, run: 16, stream: 256, share: true}
	floatCut = cut{step: 1, bytes: 4, rows: 240, deep: 1024, run: 256, stream: 2048}
)

// streamAhead is how many bytes ahead weights that stream are prefetched. Half a
// page was measured best: from a page on, a tenth of the bandwidth is lost.
const streamAhead = 2048

// MulQ multiplies quantised activations with quantised weights:
//
//	C[i][j] = Σ X[i][·]·W[j][·]   for all i < m, and j in the panels [p0, p1)
//
// that is for 16·p0 <= j < min(16·p1, n). Row i of C begins at c[i*ldc]; xq
// holds m rows of [Set.QuantizeRows] for the same f; w holds the panels of the
// whole weight [n, k]. k is a multiple of 32. Other columns of C are neither
// read nor written: goroutines may share the panels out among them. It panics
// where an operand is too short.
//
// An element of C has the same bits in every tier and for every m, p0 and p1.
func (s *Set) MulQ(f Format, c []float32, ldc int, xq, w []byte, m, n, k, p0, p1 int) {
	f.mustBeQuantized(k)
	stride := QuantizedStride(k)
	need("xq", len(xq), m*stride)
	if s.wide != nil {
		rows := s.wide(f, c, ldc, xq, w, m, n, k, p0, p1)
		if rows >= m {
			return
		}
		m, c, xq = m-rows, c[rows*ldc:], xq[rows*stride:]
	}
	s.mul(&quantCut, f, c, ldc, unsafe.SliceData(xq), stride, w, m, n, k, p0, p1)
}

// MulF multiplies float32 activations with weights of a format that is not
// quantised:
//
//	C[i][j] = Σ X[i][·]·W[j][·]   for all i < m, and j in the panels [p0, p1)
//
// that is for 16·p0 <= j < min(16·p1, n). Row i of C begins at c[i*ldc], row i
// of X at x[i*ldx]; w holds the panels of the whole weight [n, k]. Other columns
// of C are neither read nor written: goroutines may share the panels out among
// them. It panics where an operand is too short. Where m is large, an ldx that
// is a multiple of 1024 makes rows compete for the same sets of the cache.
//
// An element of C has the same bits in every tier and for every m, p0 and p1:
// one fused multiply-add for each k in order, starting from zero.
func (s *Set) MulF(f Format, c []float32, ldc int, x []float32, ldx int, w []byte, m, n, k, p0, p1 int) {
	if f.Quantized() {
		panic(fmt.Sprintf("simd: %s is quantised", f))
	}
	if m > 0 {
		need("x", len(x), (m-1)*ldx+k)
	}
	s.mul(&floatCut, f, c, ldc, (*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*ldx, w, m, n, k, p0, p1)
}

// mul is the driver of both. ldx is in bytes.
func (s *Set) mul(cut *cut, f Format, c []float32, ldc int, x *byte, ldx int, w []byte, m, n, k, p0, p1 int) {
	p1 = min(p1, Panels(n))
	if m <= 0 || p0 >= p1 {
		return
	}
	j0, j1 := p0*Lanes, min(p1*Lanes, n)
	size, stepSize := f.PanelSize(k), f.PanelSize(cut.step)
	need("c", len(c), (m-1)*ldc+j1)
	need("w", len(w), p1*size)
	for i := range m {
		clear(c[i*ldc+j0 : i*ldc+j1])
	}
	touches(c[j0:], ldc, j1-j0, x, ldx, k/cut.step*cut.bytes, w[p0*size:p1*size], m)

	tiles := s.tiles[f]
	most, deep, run, dist, third := tiles[0].panels, cut.deep, cut.run, streamAhead, 0
	if t := tileOf(tiles, m); t != nil {
		most, deep, run = t.panels, k, cut.stream
	} else if cut.share {
		dist, third = run*stepSize, (stepSize+191)/192*64 // of a step, in whole cache lines
	}
	steps := k / cut.step
	for r0 := 0; r0 < m; r0 += cut.rows {
		r1 := min(m, r0+cut.rows)
		for k0 := 0; k0 < steps; k0 += deep {
			k1 := min(steps, k0+deep)
			for p := p0; p < p1; {
				panels := most
				if p*Lanes+panels*Lanes > j1 {
					panels = 1
				}
				cols := min(panels*Lanes, n-p*Lanes)
				for kk := k0; kk < k1; kk += run {
					wp := &w[p*size+kk*stepSize]
					for r, part := r0, 0; r < r1; {
						t := tileWithin(tiles, panels, r1-r)
						xp := (*byte)(unsafe.Add(unsafe.Pointer(x), r*ldx+kk*cut.bytes))
						t.run(min(run, k1-kk), wp, size, xp, ldx, &c[r*ldc+p*Lanes], ldc, cols, dist+part)
						r += t.rows
						if part += third; part >= stepSize {
							part = 0
						}
					}
				}
				p += panels
			}
		}
	}
}

// tileOf is the tile, with two panels if there is one, of exactly that many
// rows; nil if there is none.
func tileOf(tiles []tile, rows int) *tile {
	for i := range tiles {
		if tiles[i].rows == rows {
			return &tiles[i]
		}
	}
	return nil
}

// tileWithin is the largest tile of that many panels and of at most rows rows.
// Every tier has tiles of one row, with one panel and with as many as any tile
// that comes first for its rows.
func tileWithin(tiles []tile, panels, rows int) *tile {
	for i := range tiles {
		if t := &tiles[i]; t.panels == panels && t.rows <= rows {
			return t
		}
	}
	panic("simd: a tier without a kernel for one row")
}

// need panics where an operand is too short, before a kernel could read beyond.
func need(operand string, have, want int) {
	if have < want {
		panic(fmt.Sprintf("simd: %s has %d elements where %d are needed", operand, have, want))
	}
}
