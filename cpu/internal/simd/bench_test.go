package simd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/offheap"
)

// versus times work against a bound, turn by turn, because the machine's speed
// changes while it is measured. It reports the rate of work and its ratio to
// that of the bound, for both the rate that one turn in ten reaches: the others
// are disturbed. Each function returns how much it has done.
func versus(b *testing.B, unit string, work, bound func() float64) {
	clock := newClock(b)
	var rates [2][]float64
	for b.Loop() {
		for i, f := range []func() float64{work, bound} {
			t0 := clock()
			done := f()
			rates[i] = append(rates[i], done/(clock()-t0).Seconds()/1e9)
		}
	}
	for _, r := range rates {
		slices.Sort(r)
	}
	top := len(rates[0]) * 9 / 10
	b.ReportMetric(rates[0][top], unit)
	b.ReportMetric(100*rates[0][top]/rates[1][top], "%bound")
	b.ReportMetric(0, "ns/op")
}

func eachTierB(b *testing.B, f func(b *testing.B, s *Set)) {
	for _, s := range All() {
		if s.Missing() == "" && s.peak.int8 != nil {
			b.Run(s.Name, func(b *testing.B) { f(b, s) })
		}
	}
}

// BenchmarkTiles measures the tiles on operands in the first level cache
// against the peak rate of the tier's multiplication.
func BenchmarkTiles(b *testing.B) {
	eachTierB(b, func(b *testing.B, s *Set) {
		int8Peak := func() float64 { return float64(s.PeakInt8(5000)) }
		f32Peak := func() float64 { return float64(s.PeakF32(5000)) }
		r := rand.New(rand.NewPCG(1, 1))
		for _, f := range allFormats {
			k, xsize, peak := floatCut.run, 4*floatCut.run, f32Peak
			n := k
			if f.Quantized() {
				k = 512
				n, xsize, peak = k/block, QuantizedStride(k), int8Peak
			}
			size := f.PanelSize(k)
			w := make([]byte, 2*size)
			weights(r, f, w, false)
			for _, t := range s.tiles[f] {
				b.Run(fmt.Sprintf("%s/%dx%d", f, t.rows, t.panels*Lanes), func(b *testing.B) {
					x, c := make([]byte, t.rows*xsize), make([]float32, t.rows*t.panels*Lanes)
					for m := range t.rows {
						if f.Quantized() {
							xrow(r, x[m*xsize:], f, n, false)
						}
					}
					versus(b, "GOP/s", func() float64 {
						const calls = 100
						for range calls {
							t.run(n, &w[0], size, &x[0], xsize, &c[0], t.panels*Lanes, t.panels*Lanes, 0)
						}
						return 2 * calls * float64(k*Lanes*t.rows*t.panels)
					}, peak)
				})
			}
		}
	})
}

// BenchmarkMul measures whole products with a weight of 4096 × 4096. Weights
// come from memory, not from a cache: products with few rows are set against
// the rate at which memory can be read, the others against the peak of the
// arithmetic.
func BenchmarkMul(b *testing.B) {
	const n, k, total = 4096, 4096, 600 << 20
	mem, err := offheap.Alloc(total)
	require.NoError(b, err)
	defer mem.Free()
	r := rand.New(rand.NewPCG(1, 1))
	eachTierB(b, func(b *testing.B, s *Set) {
		for _, f := range []Format{Q4_0, Q8_0, F32, F16, BF16} {
			size := Panels(n) * f.PanelSize(k)
			first := mem.Bytes()[:size]
			weights(r, f, first, false)
			copies := total / size
			for i := range copies {
				copy(mem.Bytes()[i*size:], first)
			}
			at := 0
			next := func() []byte { at++; return mem.Bytes()[at%copies*size:][:size] }
			for _, m := range []int{1, 2, 3, 4, 8, 32, 512} {
				b.Run(fmt.Sprintf("%s/M=%d", f, m), func(b *testing.B) {
					x, c := make([]float32, m*(k+16)), make([]float32, m*n)
					oddFloats(r, x, false)
					xq := make([]byte, QuantizedSize(m, k))
					mul := func() float64 {
						if w := next(); f.Quantized() {
							s.QuantizeRows(f, xq, x, k+16, 0, m, k)
							s.MulQ(f, c, n, xq, w, m, n, k, 0, Panels(n))
						} else {
							s.MulF(f, c, n, x, k+16, w, m, n, k, 0, Panels(n))
						}
						return 2 * float64(m) * n * k
					}
					switch {
					case m < 8:
						versus(b, "GB/s", func() float64 { mul(); return float64(size) }, func() float64 { s.ReadBytes(next()); return float64(size) })
					case f.Quantized():
						versus(b, "GOP/s", mul, func() float64 { return float64(s.PeakInt8(5000)) })
					default:
						versus(b, "GFLOP/s", mul, func() float64 { return float64(s.PeakF32(5000)) })
					}
				})
			}
		}
	})
}

// BenchmarkPanels measures what loading a model and looking up a row cost.
func BenchmarkPanels(b *testing.B) {
	const k = 4096
	r := rand.New(rand.NewPCG(1, 1))
	for _, f := range allFormats {
		src, panel, row := make([]byte, Lanes*f.RowSize(k)), make([]byte, f.PanelSize(k)), make([]float32, k)
		weights(r, f, panel, false)
		b.Run("Pack/"+f.String(), func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				f.PackPanel(panel, src, Lanes, k)
			}
		})
		b.Run("Row/"+f.String(), func(b *testing.B) {
			b.SetBytes(4 * k)
			for b.Loop() {
				f.Row(row, panel, 5, k)
			}
		})
	}
}

// BenchmarkQuantizeRows measures the quantisation of activations in bytes read.
func BenchmarkQuantizeRows(b *testing.B) {
	const m, k = 12, 4096
	for _, s := range All() {
		if s.Missing() != "" {
			continue
		}
		b.Run(s.Name, func(b *testing.B) {
			x, xq := make([]float32, m*k), make([]byte, QuantizedSize(m, k))
			oddFloats(rand.New(rand.NewPCG(1, 1)), x, false)
			b.SetBytes(4 * m * k)
			for b.Loop() {
				s.QuantizeRows(Q4_0, xq, x, k, 0, m, k)
			}
		})
	}
}
