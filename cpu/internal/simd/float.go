package simd

import "unsafe"

// ftile multiplies k columns of rows rows of activations, ldx elements apart,
// with one panel or with two neighbours, which are size bytes apart:
// C[rows][cols] += X·Wᵀ, rows of C being ldc elements apart. With one panel cols
// is 1 to 16, with two it is 32 and not looked at; of C nothing else is read
// or written. ahead is the distance in bytes, in each panel, at which weights
// are prefetched. For each element, for each k in order,
//
//	c = fma(x[k], float32(w[k]), c)
//
// so that the bits depend neither on the tile nor on where k is split.
type ftile struct {
	rows, panels int
	run          func(k int, w *byte, size int, x *float32, ldx int, c *float32, ldc, cols, ahead int)
}

// How a product is cut: see qRows and its neighbours.
const (
	fRows   = 240  // rows of activations whose fDeep columns stay in the second level cache
	fDeep   = 1024 // columns of those
	fK      = 256  // columns of two panels that stay in the first level cache
	fStream = 2048 // columns of a call where one tile takes all rows, so that weights stream
	fAhead  = 2048 // how far weights that stream are prefetched
)

// MulF multiplies float32 activations with weights of a format that is not
// quantised:
//
//	C[i][j] = Σ X[i][·]·W[j][·]   for all i < m, and j in the panels [p0, p1)
//
// that is for 16·p0 <= j < min(16·p1, n). Row i of C begins at c[i*ldc], row i
// of X at x[i*ldx]; w holds the panels of the whole weight [n, k]. Other columns
// of C are neither read nor written: goroutines may share the panels out among
// them. Where m is large, an ldx that is a multiple of 1024 makes rows compete
// for the same sets of the cache.
//
// An element of C has the same bits in every tier and for every m, p0 and p1:
// one fused multiply-add for each k in order, starting from zero.
func (s *Set) MulF(f Format, c []float32, ldc int, x []float32, ldx int, w []byte, m, n, k, p0, p1 int) {
	if f.Quantized() || f >= formats {
		panic("simd: MulF takes formats that are not quantised")
	}
	p1 = min(p1, Panels(n))
	if m <= 0 || p0 >= p1 {
		return
	}
	j0, j1 := p0*Lanes, min(p1*Lanes, n)
	size, es := f.PanelSize(k), f.PanelSize(1)
	need("c", len(c), (m-1)*ldc+j1)
	need("x", len(x), (m-1)*ldx+k)
	need("w", len(w), p1*size)
	for i := range m {
		clear(c[i*ldc+j0 : i*ldc+j1])
	}
	if k == 0 {
		return
	}

	deep, step := fDeep, fK
	if s.ftileFor(f, 1, m).rows == m {
		deep, step = k, fStream
	}
	for r0 := 0; r0 < m; r0 += fRows {
		r1 := min(m, r0+fRows)
		for k0 := 0; k0 < k; k0 += deep {
			k1 := min(k, k0+deep)
			for p := p0; p < p1; {
				panels := s.ftiles[f][0].panels
				if panels*Lanes > j1-p*Lanes {
					panels = 1
				}
				cols := min(panels*Lanes, n-p*Lanes)
				for kk := k0; kk < k1; kk += step {
					run := min(step, k1-kk)
					wp := &w[p*size+kk*es]
					for r := r0; r < r1; {
						t := s.ftileFor(f, panels, r1-r)
						t.run(run, wp, size, &x[r*ldx+kk], ldx, &c[r*ldc+p*Lanes], ldc, cols, fAhead)
						r += t.rows
					}
				}
				p += panels
			}
		}
	}
}

// ftileFor is the largest tile of that many panels and of at most rows rows.
func (s *Set) ftileFor(f Format, panels, rows int) *ftile {
	tiles := s.ftiles[f]
	for i := range tiles {
		if t := &tiles[i]; t.panels == panels && t.rows <= rows {
			return t
		}
	}
	panic("simd: a tier without a kernel for one row")
}

// mulF32Ref, mulF16Ref and mulBF16Ref are the references of the kernels for
// weights that are not quantised, for one row and one panel.

func mulF32Ref(k int, w *byte, _ int, x *float32, _ int, c *float32, _, cols, _ int) {
	mulFRef(func(i int) float32 { return *(*float32)(unsafe.Add(unsafe.Pointer(w), 4*i)) }, k, x, c, cols)
}

func mulF16Ref(k int, w *byte, _ int, x *float32, _ int, c *float32, _, cols, _ int) {
	mulFRef(func(i int) float32 { return f16ToF32(*(*uint16)(unsafe.Add(unsafe.Pointer(w), 2*i))) }, k, x, c, cols)
}

func mulBF16Ref(k int, w *byte, _ int, x *float32, _ int, c *float32, _, cols, _ int) {
	mulFRef(func(i int) float32 { return bf16ToF32(*(*uint16)(unsafe.Add(unsafe.Pointer(w), 2*i))) }, k, x, c, cols)
}

func mulFRef(weight func(i int) float32, k int, x, c *float32, cols int) {
	out := unsafe.Slice(c, cols)
	for i, v := range unsafe.Slice(x, k) {
		for l := range out {
			out[l] = fma32(v, weight(i*Lanes+l), out[l])
		}
	}
}
