package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/guard"
)

// attentions lists the attention kernels by storage type: what narrows a row of
// float32s to it and what reads one element back.
var attentions = []struct {
	format Format
	of     func(*Vec) *Attention
	size   int
}{
	{F32, func(v *Vec) *Attention { return &v.AttentionF32 }, 4},
	{F16, func(v *Vec) *Attention { return &v.AttentionF16 }, 2},
	{BF16, func(v *Vec) *Attention { return &v.AttentionBF16 }, 2},
}

func rowsOf[T any](x []T, stride, n, d int) Rows {
	return Rows{Data: unsafe.Pointer(unsafe.SliceData(x)), Stride: stride, N: n, D: d}
}

// attentionCase is one call: the sizes and where the operands lie.
type attentionCase struct {
	queries, rows, d int
	wild             bool
	edge             guard.Edge
	seed             uint64
}

func (c attentionCase) String() string {
	return fmt.Sprintf("%d queries, %d rows of %d, wild %v, %s, seed %d", c.queries, c.rows, c.d, c.wild, c.edge, c.seed)
}

// cache makes rows of the format in guarded memory, and the same as float32.
func (c attentionCase) cache(t testing.TB, r *rand.Rand, format Format) (Rows, [][]float32) {
	stride := c.d + r.IntN(5)
	n := (c.rows-1)*stride + c.d
	if c.rows == 0 {
		n = 0
	}
	x := make([]float32, n)
	oddFloats(r, x, c.wild)
	var rows Rows
	if format == F32 {
		rows = rowsOf(place(t, x, c.edge), stride, c.rows, c.d)
	} else {
		codes := guard.Slice[uint16](t, n, c.edge)
		if format == F16 {
			narrowF16(codes, x)
			widenF16(x, codes)
		} else {
			narrowBF16(codes, x)
			widenBF16(x, codes)
		}
		rows = rowsOf(codes, stride, c.rows, c.d)
	}
	wide := make([][]float32, c.rows)
	for j := range wide {
		wide[j] = x[j*stride:][:c.d]
	}
	return rows, wide
}

// strided makes guarded rows of width elements, stride apart; poison between them.
func strided(t testing.TB, rows, width, stride int, edge guard.Edge) []float32 {
	if rows == 0 {
		return nil
	}
	x := guard.Slice[float32](t, (rows-1)*stride+width, edge)
	poisoned(x)
	return x
}

func checkScores(t *testing.T, s *Set, k *Attention, format Format, c attentionCase) {
	r := rand.New(rand.NewPCG(c.seed, 8))
	keys, wide := c.cache(t, r, format)
	ldq, ldd := c.d+r.IntN(3), c.rows+r.IntN(3)
	q, dst := strided(t, c.queries, c.d, ldq, c.edge), strided(t, c.queries, c.rows, ldd, c.edge)
	for g := range c.queries {
		oddFloats(r, q[g*ldq:][:c.d], c.wild)
	}
	k.Scores(dst, ldd, q, ldq, c.queries, keys)
	if c.queries > 0 && c.rows > 0 {
		unpoisoned(t, dst, ldd, c.rows)
	}
	for g := range c.queries {
		for j, key := range wide {
			var want, size float64
			for e, x := range q[g*ldq:][:c.d] {
				want += float64(x) * float64(key[e])
				size += math.Abs(float64(x) * float64(key[e]))
			}
			got := float64(dst[g*ldd+j])
			near := math.Abs(want-got) <= 1e-6*size+1e-44*float64(c.d)
			if math.IsNaN(want) {
				near = math.IsNaN(got)
			}
			if !near && size <= math.MaxFloat32 { // beyond, float32 may overflow on the way
				require.Failf(t, "off", "%v: query %d, row %d: want %v, got %v", c, g, j, want, got)
			}
		}
	}
	// One query and one row at a time, and the rows in two parts, give the same bits.
	alone, parts := make([]float32, c.rows), slices.Clone(dst)
	cut := c.rows / 3
	for g := range c.queries {
		for j := range c.rows {
			k.Scores(alone[j:], 1, q[g*ldq:], ldq, 1, keys.from(j, 1, format))
		}
		sameBits(t, dst[g*ldd:][:c.rows], alone, fmt.Sprintf("%v: query %d alone", c, g))
	}
	if c.queries > 0 && c.rows > 0 {
		k.Scores(parts, ldd, q, ldq, c.queries, keys.from(0, cut, format))
		k.Scores(parts[cut:], ldd, q, ldq, c.queries, keys.from(cut, c.rows-cut, format))
		sameBits(t, dst, parts, fmt.Sprintf("%v: in two parts", c))
	}
}

// from returns n rows from row j on.
func (r Rows) from(j, n int, f Format) Rows {
	size := 2
	if f == F32 {
		size = 4
	}
	r.Data, r.N = unsafe.Add(r.Data, j*r.Stride*size), n
	return r
}

func checkMix(t *testing.T, s *Set, k *Attention, format Format, c attentionCase) {
	r := rand.New(rand.NewPCG(c.seed, 9))
	values, wide := c.cache(t, r, format)
	ldp, ldo := c.rows+r.IntN(3), c.d+r.IntN(3)
	p, out := strided(t, c.queries, c.rows, ldp, c.edge), strided(t, c.queries, c.d, ldo, c.edge)
	for g := range c.queries {
		oddFloats(r, p[g*ldp:][:c.rows], c.wild)
		oddFloats(r, out[g*ldo:][:c.d], c.wild)
	}
	want, parts := slices.Clone(out), slices.Clone(out)
	for g := range c.queries {
		for j, v := range wide {
			for e := range v {
				want[g*ldo+e] = fma32(p[g*ldp+j], v[e], want[g*ldo+e])
			}
		}
	}
	k.Mix(out, ldo, p, ldp, c.queries, values)
	sameBits(t, want, out, c.String())
	if c.queries > 0 && c.d > 0 {
		unpoisoned(t, out, ldo, c.d)
	}
	if c.queries > 0 && c.rows > 0 {
		cut := c.rows / 3
		k.Mix(parts, ldo, p, ldp, c.queries, values.from(0, cut, format))
		k.Mix(parts, ldo, p[cut:], ldp, c.queries, values.from(cut, c.rows-cut, format))
		sameBits(t, out, parts, fmt.Sprintf("%v: in two parts", c))
	}
}

func TestAttention(t *testing.T) {
	widths := []int{0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 47, 63, 64, 65, 80, 96, 100, 127, 128, 129, 192, 256}
	eachTier(t, func(t *testing.T, s *Set) {
		for _, a := range attentions {
			t.Run(fmt.Sprint(a.format), func(t *testing.T) {
				c := attentionCase{}
				for _, c.d = range widths {
					for _, c.queries = range []int{0, 1, 2, 3, 4, 7} {
						for _, c.rows = range []int{0, 1, 2, 3, 4, 5, 8, 19} {
							c.seed++
							c.wild, c.edge = c.seed%3 == 0, guard.Edges[c.seed%2]
							checkScores(t, s, a.of(&s.Vec), a.format, c)
							checkMix(t, s, a.of(&s.Vec), a.format, c)
						}
					}
				}
				// More rows than stay hot.
				c = attentionCase{queries: 5, rows: 200, d: 128, edge: guard.End}
				checkScores(t, s, a.of(&s.Vec), a.format, c)
				checkMix(t, s, a.of(&s.Vec), a.format, c)
			})
		}
	})
}

func TestAttentionRefusesShortSlices(t *testing.T) {
	x := make([]float32, 64)
	eachTier(t, func(t *testing.T, s *Set) {
		rows := rowsOf(x, 4, 4, 4)
		for _, f := range []func(){
			func() { s.AttentionF32.Scores(x[:7:7], 4, x, 4, 2, rows) },
			func() { s.AttentionF32.Scores(x, 4, x[:7:7], 4, 2, rows) },
			func() { s.AttentionF32.Mix(x[:7:7], 4, x, 4, 2, rows) },
			func() { s.AttentionF32.Mix(x, 4, x[:7:7], 4, 2, rows) },
		} {
			require.Panics(t, f)
		}
	})
}

// FuzzAttention runs both products with any sizes.
func FuzzAttention(f *testing.F) {
	f.Add(uint8(1), uint8(1), uint16(64), uint64(1))
	f.Add(uint8(4), uint8(16), uint16(128), uint64(2))
	f.Add(uint8(7), uint8(33), uint16(97), uint64(3))
	f.Fuzz(func(t *testing.T, queries, rows uint8, d uint16, seed uint64) {
		c := attentionCase{int(queries % 10), int(rows % 70), int(d % 300), seed%3 == 0, guard.Edges[seed%2], seed}
		for _, s := range All() {
			if s.Missing() != "" {
				continue
			}
			for _, a := range attentions {
				checkScores(t, s, a.of(&s.Vec), a.format, c)
				checkMix(t, s, a.of(&s.Vec), a.format, c)
			}
		}
	})
}
