package simd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/offheap"
)

// beside times a tier's kernel and the portable loop turn by turn and reports
// the kernel's rate, in giga units of work per second, and how many times that
// is the loop's: for both the rate that one turn in ten reaches, the others are
// disturbed. work is what one call does; repeat is how many calls make one turn
// of the kernel.
func beside(b *testing.B, unit string, work float64, repeat int, kernel, portable func()) {
	var rates [2][]float64
	for b.Loop() {
		for i, f := range []func(){kernel, portable} {
			calls := max(repeat>>(3*i), 1)
			t0 := time.Now()
			for range calls {
				f()
			}
			rates[i] = append(rates[i], work*float64(calls)/time.Since(t0).Seconds()/1e9)
		}
	}
	for _, r := range rates {
		slices.Sort(r)
	}
	top := len(rates[0]) * 9 / 10
	b.ReportMetric(rates[0][top], unit)
	b.ReportMetric(rates[0][top]/rates[1][top], "x-portable")
	b.ReportMetric(0, "ns/op")
}

func eachVec(b *testing.B, f func(b *testing.B, v *Vec)) {
	for _, s := range All() {
		if s.Missing() == "" && s != portable {
			b.Run(s.Name, func(b *testing.B) { f(b, &s.Vec) })
		}
	}
}

// BenchmarkRows measures the kernels on rows that lie in the second level cache;
// the rate counts the bytes that are read and written.
func BenchmarkRows(b *testing.B) {
	const n = 16384
	r := rand.New(rand.NewPCG(1, 1))
	x, y, w, cos := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n/2)
	codes := make([]uint16, n)
	oddFloats(r, x, false)
	oddFloats(r, w, false)
	oddFloats(r, cos, false)
	narrowF16(codes, x)
	for _, k := range []struct {
		name  string
		bytes int // for each element
		run   func(v *Vec)
	}{
		{"Dot", 8, func(v *Vec) { v.Dot(x, w) }},
		{"SumSquares", 4, func(v *Vec) { v.SumSquares(x) }},
		{"Max", 4, func(v *Vec) { v.Max(x) }},
		{"ArgMax", 4, func(v *Vec) { v.ArgMax(x) }},
		{"Exp", 8, func(v *Vec) { v.Exp(y, x) }},
		{"ExpSum", 8, func(v *Vec) { v.ExpSum(y, x, 1) }},
		{"SumExp", 4, func(v *Vec) { v.SumExp(x, 1) }},
		{"SiluMul", 12, func(v *Vec) { v.SiluMul(y, x, w) }},
		{"RMSNorm", 12, func(v *Vec) { v.RMSNorm(y, x, w, 1e-5, false) }},
		{"Add", 12, func(v *Vec) { v.Add(y, x, w) }},
		{"MulScalar", 8, func(v *Vec) { v.MulScalar(y, x, 3) }},
		{"DivScalar", 8, func(v *Vec) { v.DivScalar(y, x, 3) }},
		{"Relu", 8, func(v *Vec) { v.Relu(y, x) }},
		{"WidenF16", 6, func(v *Vec) { v.WidenF16(y, codes) }},
		{"NarrowF16", 6, func(v *Vec) { v.NarrowF16(codes, x) }},
		{"WidenBF16", 6, func(v *Vec) { v.WidenBF16(y, codes) }},
		{"NarrowBF16", 6, func(v *Vec) { v.NarrowBF16(codes, x) }},
		{"RotateHalves", 12, func(v *Vec) { v.RotateHalves(y, cos, cos) }},
		{"RotatePairs", 12, func(v *Vec) { v.RotatePairs(y, cos, cos) }},
	} {
		b.Run(k.name, func(b *testing.B) {
			eachVec(b, func(b *testing.B, v *Vec) {
				clear(y) // the rotations would drift
				beside(b, "GB/s", float64(n*k.bytes), 8, func() { k.run(v) }, func() { k.run(&portable.Vec) })
			})
		})
	}
}

// BenchmarkSampling measures one row of a large vocabulary.
func BenchmarkSampling(b *testing.B) {
	const n = 151936
	x, y := make([]float32, n), make([]float32, n)
	oddFloats(rand.New(rand.NewPCG(1, 1)), x, false)
	eachVec(b, func(b *testing.B, v *Vec) {
		b.Run("Softmax", func(b *testing.B) {
			beside(b, "Gelements/s", n, 1, func() { v.Softmax(y, x) }, func() { portable.Softmax(y, x) })
		})
		b.Run("ArgMax", func(b *testing.B) {
			beside(b, "Gelements/s", n, 1, func() { v.ArgMax(x) }, func() { portable.ArgMax(x) })
		})
	})
}

// BenchmarkAttention measures the two products: on rows in the first level
// cache for 1 to 8 queries, and on the cache of a long context, in memory, for 4
// queries of each of 8 heads, against the rate at which memory can be read.
func BenchmarkAttention(b *testing.B) {
	const heads, long = 8, 16384
	r := rand.New(rand.NewPCG(1, 1))
	q, out := make([]float32, 8*128), make([]float32, 8*128)
	scores := make([]float32, 8*64)
	oddFloats(r, q, false)
	oddFloats(r, scores, false)
	for _, a := range attentions {
		for _, d := range []int{64, 128} {
			cache := make([]byte, 64*d*a.size)
			fillCache(cache)
			rows := rowsOf(cache, d, 64, d)
			for _, n := range []int{1, 2, 4, 8} {
				flops := float64(2 * n * 64 * d)
				b.Run(fmt.Sprintf("Scores/%v/d=%d/queries=%d", a.format, d, n), func(b *testing.B) {
					eachVec(b, func(b *testing.B, v *Vec) {
						run := func(v *Vec) func() { return func() { a.of(v).Scores(scores, 64, q, d, n, rows) } }
						beside(b, "GFLOP/s", flops, 64, run(v), run(&portable.Vec))
					})
				})
				b.Run(fmt.Sprintf("Mix/%v/d=%d/queries=%d", a.format, d, n), func(b *testing.B) {
					eachVec(b, func(b *testing.B, v *Vec) {
						clear(out)
						run := func(v *Vec) func() { return func() { a.of(v).Mix(out, d, scores, 64, n, rows) } }
						beside(b, "GFLOP/s", flops, 64, run(v), run(&portable.Vec))
					})
				})
			}
		}
	}
	const d = 128
	for _, a := range attentions {
		mem, err := offheap.Alloc(int64(long * heads * d * a.size))
		require.NoError(b, err)
		defer mem.Free()
		fillCache(mem.Bytes())
		all := make([]float32, 4*long)
		oddFloats(r, all, false)
		// page is the number of rows after which the next head is taken; all is
		// one head after the other.
		for _, page := range []int{16, 64, long} {
			kernels := map[string]func(v *Vec, j int, rows Rows){
				"Scores": func(v *Vec, j int, rows Rows) { a.of(v).Scores(all[j:], long, q, d, 4, rows) },
				"Mix":    func(v *Vec, j int, rows Rows) { a.of(v).Mix(out, d, all[j:], long, 4, rows) },
			}
			for _, name := range []string{"Scores", "Mix"} {
				b.Run(fmt.Sprintf("%s/%v/memory/page=%d", name, a.format, page), func(b *testing.B) {
					eachVec(b, func(b *testing.B, v *Vec) {
						run := func() {
							for j := 0; j < long; j += page {
								for head := range heads {
									at := (j*heads + head) * d * a.size
									kernels[name](v, j, rowsOf(mem.Bytes()[at:], heads*d, page, d))
								}
							}
						}
						size := float64(len(mem.Bytes()))
						versus(b, "GB/s", func() float64 { run(); return size }, func() float64 { All()[0].ReadBytes(mem.Bytes()); return size })
					})
				})
			}
		}
	}
}

// fillCache gives a cache bits that mean numbers of ordinary magnitude in each of
// the formats: subnormal ones are slow.
func fillCache(cache []byte) {
	for i := range cache {
		cache[i] = 0x3c ^ byte(i*i)&3
	}
}
