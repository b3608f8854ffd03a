package simd

import (
	"fmt"
	"unsafe"
)

// Quantised activations. A row of k elements becomes k/32 blocks of 40 bytes:
// 32 × int8 q, then d as float32, then the int32 −bias·Σq, where bias (8 for
// Q4_0, 128 for Q8_0) is what the weights' unsigned quants are too large by: a
// kernel starts its integer sum from that word and so multiplies unsigned
// weights as if they were signed. With a the largest magnitude of the block,
//
//	d = a / 127
//	q = round(x · (127 / a)), halves to even
//
// in float32. A block with a < 2⁻¹¹⁸ is all zeros; a block that holds a NaN or
// an infinity has q = 0 and d = NaN, so that every product with it is NaN.
//
// Rows are [QuantizedStride] bytes apart. A row does not depend on the rows
// beside it, on the tier, or on the number of rows that a product takes at once.
const xBlock = int(unsafe.Sizeof(xblock{})) // 40

// QuantizedStride is the distance in bytes between quantised rows of k
// elements: an odd number of cache lines, so that rows do not compete for the
// same sets of the cache.
func QuantizedStride(k int) int {
	const line = 64
	return ((k/block*xBlock+line-1)/line | 1) * line
}

// QuantizedSize is the number of bytes of m quantised rows of k elements.
func QuantizedSize(m, k int) int { return m * QuantizedStride(k) }

// bias of the unsigned quants of a quantised format.
func (f Format) bias() int32 {
	if f == Q4_0 {
		return 8
	}
	return 128
}

// QuantizeRows quantises rows m0 to m1 (exclusive) of x, which are ldx elements
// apart and of which the first k are used, for a product with weights of format
// f. k is a multiple of 32. It writes the same rows of dst, which has
// [QuantizedSize] bytes for all rows, and nothing else: goroutines may share
// the rows out among them.
func (s *Set) QuantizeRows(f Format, dst []byte, x []float32, ldx, m0, m1, k int) {
	if k%block != 0 || !f.Quantized() {
		panic(fmt.Sprintf("simd: k = %d is not a multiple of %d, or format %d is not quantised", k, block, f))
	}
	if k == 0 || m0 >= m1 {
		return
	}
	stride := QuantizedStride(k)
	need("x", len(x), (m1-1)*ldx+k)
	need("dst", len(dst), m1*stride)
	for m := m0; m < m1; m++ {
		s.quantize(k/block, &x[m*ldx], &dst[m*stride], f.bias())
	}
}

// need panics where an operand is too short, before a kernel could read beyond.
func need(operand string, have, want int) {
	if have < want {
		panic(fmt.Sprintf("simd: %s has %d elements where %d are needed", operand, have, want))
	}
}

// quantize makes nb blocks of one row.
type quantize func(nb int, x *float32, dst *byte, bias int32)

// qtile multiplies the first nb blocks of a panel with rows rows of quantised
// activations that are ldx bytes apart: C[rows][cols] += X·Wᵀ, where rows of C
// are ldc elements apart, cols is 1 to 16, and of C nothing else is read or
// written. For each element, for each block in order,
//
//	c = fma(float32(d · scale), float32(Σ q·w), c)
//
// whose integer sum is exact: the bits depend neither on the tile nor on where
// k is split. With each block of weights the tile prefetches the block that is
// ahead bytes further on, a tile of 12 rows only the first third of it.
type qtile struct {
	rows int
	run  func(nb int, w, x *byte, ldx int, c *float32, ldc, cols, ahead int)
}

// How a product is cut. A tile's weights and activations stay in the first
// level cache, those of a chunk of rows in the second; one call of a kernel is
// at most a few tens of microseconds. The weights that the rows take next are
// fetched meanwhile.
const (
	qRows   = 120  // rows of activations that pass over a panel before the next panel
	qBlocks = 16   // blocks of a panel that all those rows take before the next blocks
	qStream = 256  // the same where one tile takes all rows, so that weights stream
	qAhead  = 2048 // how far weights that stream are prefetched
)

// MulQ multiplies quantised activations with quantised weights:
//
//	C[i][j] = Σ X[i][·]·W[j][·]   for all i < m, and j in the panels [p0, p1)
//
// that is for 16·p0 <= j < min(16·p1, n). Row i of C begins at c[i*ldc]; xq
// holds m rows of [Set.QuantizeRows] for the same f; w holds the panels of the
// whole weight [n, k]. k is a multiple of 32. Other columns of C are neither
// read nor written: goroutines may share the panels out among them.
//
// An element of C has the same bits in every tier and for every m, p0 and p1.
func (s *Set) MulQ(f Format, c []float32, ldc int, xq, w []byte, m, n, k, p0, p1 int) {
	if k%block != 0 || !f.Quantized() {
		panic(fmt.Sprintf("simd: k = %d is not a multiple of %d, or format %d is not quantised", k, block, f))
	}
	p1 = min(p1, Panels(n))
	if m <= 0 || p0 >= p1 {
		return
	}
	j0, j1 := p0*Lanes, min(p1*Lanes, n)
	stride, size, bs := QuantizedStride(k), f.PanelSize(k), f.blockSize()
	need("c", len(c), (m-1)*ldc+j1)
	need("xq", len(xq), m*stride)
	need("w", len(w), p1*size)
	for i := range m {
		clear(c[i*ldc+j0 : i*ldc+j1])
	}
	if k == 0 {
		return
	}
	nb, step, ahead := k/block, qBlocks, qBlocks*bs
	if s.qtileFor(f, m).rows == m {
		step, ahead = qStream, qAhead
	}
	third := (bs + 191) / 192 * 64 // of a block, in whole cache lines
	for r0 := 0; r0 < m; r0 += qRows {
		r1 := min(m, r0+qRows)
		for p := p0; p < p1; p++ {
			cols := min(Lanes, n-p*Lanes)
			for b := 0; b < nb; b += step {
				run := min(step, nb-b)
				wp := &w[p*size+b*bs]
				for r, part := r0, 0; r < r1; part = (part + third) % (3 * third) {
					t := s.qtileFor(f, r1-r)
					t.run(run, wp, &xq[r*stride+b*xBlock], stride, &c[r*ldc+p*Lanes], ldc, cols, ahead+part)
					r += t.rows
				}
			}
		}
	}
}

// qtileFor is the largest tile of at most rows rows; every tier has one of one.
func (s *Set) qtileFor(f Format, rows int) *qtile {
	tiles := s.qtiles[f]
	for i := range tiles {
		if tiles[i].rows <= rows {
			return &tiles[i]
		}
	}
	panic("simd: a tier without a kernel for one row")
}

// xblock is a block of a quantised row.
type xblock struct {
	q   [block]int8
	d   float32
	sum int32 // -bias·Σq
}

// xblocks views nb blocks of a quantised row.
func xblocks(x *byte, nb int) []xblock {
	return unsafe.Slice((*xblock)(unsafe.Pointer(x)), nb)
}
