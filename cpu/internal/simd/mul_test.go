package simd

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/guard"
)

var allFormats = []Format{Q4_0, Q8_0, F32, F16, BF16}

// fileRows makes rows of k elements as a file holds them.
func fileRows(r *rand.Rand, f Format, rows, k int) []byte {
	b := make([]byte, rows*f.RowSize(k))
	if !f.Quantized() {
		weights(r, f, b, false)
		return b
	}
	for i := range b {
		b[i] = byte(r.Uint32())
		if f == Q4_0 && i%18 == 1 || f == Q8_0 && i%34 == 1 {
			b[i] = b[i]&0x80 | 0x2c
		}
	}
	return b
}

func TestPanels(t *testing.T) {
	require.Equal(t, []int{0, 1, 1, 2}, []int{Panels(0), Panels(1), Panels(16), Panels(17)})
	for _, f := range allFormats {
		for _, k := range []int{32, 64, 96} {
			for _, rows := range []int{1, 5, 16} {
				r := rand.New(rand.NewPCG(uint64(k), uint64(rows)))
				src := fileRows(r, f, rows, k)
				panel := make([]byte, f.PanelSize(k))
				for i := range panel {
					panel[i] = 0xaa
				}
				f.PackPanel(panel, src, rows, k)
				values, row := make([]float32, k), make([]byte, f.RowSize(k))
				for lane := range Lanes {
					f.Row(values, panel, lane, k)
					if lane >= rows {
						require.Equal(t, make([]float32, k), values, "a row of the padding")
						continue
					}
					f.UnpackRow(row, panel, lane, k)
					require.Equal(t, src[lane*len(row):][:len(row)], row)
					sameBits(t, fileValues(f, row, k), values, f.String())
				}
			}
		}
	}
}

// fileValues is what the bytes of a row in a file mean: GGUF's own rule.
func fileValues(f Format, row []byte, k int) []float32 {
	out := make([]float32, k)
	for i := range out {
		switch f {
		case Q4_0:
			b := row[i/32*18:]
			out[i] = scale(b, 0) * (float32(b[2+i%16]>>(i%32/16*4)&15) - 8)
		case Q8_0:
			b := row[i/32*34:]
			out[i] = scale(b, 0) * float32(int8(b[2+i%32]))
		default:
			out[i] = f.element(row, i)
		}
	}
	return out
}

// TestMulQ holds the driver against the reference kernel for single rows and
// panels, for shapes with every kind of edge and for every share of the panels.
func TestMulQ(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, f := range []Format{Q4_0, Q8_0} {
			for i, dim := range [][3]int{{1, 1, 32}, {1, 40, 32 * 300}, {2, 17, 64}, {3, 16, 96}, {7, 50, 32 * 33}, {12, 5, 32}, {13, 33, 64}, {23, 16, 32 * 70}, {131, 20, 96}} {
				t.Run(fmt.Sprint(f, dim), func(t *testing.T) {
					m, n, k := dim[0], dim[1], dim[2]
					r := rand.New(rand.NewPCG(uint64(i), 4))
					ldx, ldc := k+i, n+i%3
					x := guard.Slice[float32](t, (m-1)*ldx+k, guard.End)
					oddFloats(r, x, i%2 == 1)
					w := guard.Slice[byte](t, Panels(n)*f.PanelSize(k), guard.End)
					weights(r, f, w, false)
					xq := guard.Slice[byte](t, QuantizedSize(m, k), guard.End)
					half := m / 2
					s.QuantizeRows(f, xq, x, ldx, half, m, k)
					s.QuantizeRows(f, xq, x, ldx, 0, half, k)

					want := make([]float32, (m-1)*ldc+n)
					poisoned(want)
					c := guard.Slice[float32](t, len(want), guard.End)
					copy(c, want)
					for row := range m {
						for p := range Panels(n) {
							cols := min(Lanes, n-p*Lanes)
							out := want[row*ldc+p*Lanes:][:cols]
							clear(out)
							portable.tiles[f][0].run(k/block, &w[p*f.PanelSize(k)], 0, &xq[row*QuantizedStride(k)], 0, &out[0], 0, cols, 0)
						}
					}
					for p := range Panels(n) { // two shares, the second in two parts
						s.MulQ(f, c, ldc, xq, w, m, n, k, p, p+1)
					}
					sameBits(t, want, c, "panel by panel")
					poisoned(c)
					s.MulQ(f, c, ldc, xq, w, m, n, k, 0, Panels(n))
					sameBits(t, want, c, "all panels")
					poisoned(c)
					for row := range m {
						s.MulQ(f, c[row*ldc:], ldc, xq[row*QuantizedStride(k):], w, 1, n, k, 0, Panels(n))
					}
					sameBits(t, want, c, "row by row")
					unpoisoned(t, c, ldc, n)
				})
			}
		}
	})
}

func TestMulF(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, f := range []Format{F32, F16, BF16} {
			for i, dim := range [][3]int{{1, 1, 1}, {1, 150, 4200}, {2, 64, 31}, {3, 80, 129}, {5, 65, 600}, {6, 128, 7}, {13, 33, 64}, {509, 17, 3}, {11, 16, 1100}} {
				t.Run(fmt.Sprint(f, dim), func(t *testing.T) {
					m, n, k := dim[0], dim[1], dim[2]
					r := rand.New(rand.NewPCG(uint64(i), 5))
					ldx, ldc := k+i, n+i%3
					x := guard.Slice[float32](t, (m-1)*ldx+k, guard.End)
					oddFloats(r, x, false)
					w := guard.Slice[byte](t, Panels(n)*f.PanelSize(k), guard.End)
					weights(r, f, w, i%2 == 1)

					want := make([]float32, (m-1)*ldc+n)
					poisoned(want)
					c := guard.Slice[float32](t, len(want), guard.End)
					copy(c, want)
					for row := range m {
						for p := range Panels(n) {
							cols := min(Lanes, n-p*Lanes)
							out := want[row*ldc+p*Lanes:][:cols]
							clear(out)
							portable.tiles[f][0].run(k, &w[p*f.PanelSize(k)], 0, (*byte)(unsafe.Pointer(&x[row*ldx])), 0, &out[0], 0, cols, 0)
						}
					}
					s.MulF(f, c, ldc, x, ldx, w, m, n, k, 0, Panels(n))
					sameBits(t, want, c, "all panels")
					poisoned(c)
					for p := range Panels(n) {
						s.MulF(f, c, ldc, x, ldx, w, m, n, k, p, p+1)
					}
					sameBits(t, want, c, "panel by panel")
					poisoned(c)
					for row := range m {
						s.MulF(f, c[row*ldc:], ldc, x[row*ldx:], ldx, w, 1, n, k, 0, Panels(n))
					}
					sameBits(t, want, c, "row by row")
					unpoisoned(t, c, ldc, n)
				})
			}
		}
	})
}

// Without elements along k a product is zero; without rows or panels nothing is
// touched.
func TestEmptyProducts(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		c := []float32{1, 2, 3}
		s.QuantizeRows(Q4_0, nil, nil, 0, 0, 2, 0)
		s.MulQ(Q4_0, c, 3, nil, nil, 0, 3, 0, 0, 1)
		s.MulF(F32, c, 3, nil, 0, nil, 1, 3, 0, 1, 1)
		require.Equal(t, []float32{1, 2, 3}, c)
		s.MulQ(Q8_0, c, 3, make([]byte, QuantizedSize(1, 0)), nil, 1, 2, 0, 0, 1)
		require.Equal(t, []float32{0, 0, 3}, c)
		s.MulF(F16, c, 3, nil, 0, nil, 1, 3, 0, 0, 5)
		require.Equal(t, []float32{0, 0, 0}, c)
	})
}

// Operands that are too short must end in a panic of Go's own, before any
// kernel runs.
func TestShortOperands(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		const m, n, k = 2, 20, 64
		xq, w, c := make([]byte, QuantizedSize(m, k)), make([]byte, 2*Q4_0.PanelSize(k)), make([]float32, m*n)
		s.MulQ(Q4_0, c, n, xq, w, m, n, k, 0, 2)
		require.Panics(t, func() { s.MulQ(Q4_0, c[1:], n, xq, w, m, n, k, 0, 2) })
		require.Panics(t, func() { s.MulQ(Q4_0, c, n, xq[:len(xq)-1], w, m, n, k, 0, 2) })
		require.Panics(t, func() { s.MulQ(Q4_0, c, n, xq, w[:len(w)-1], m, n, k, 0, 2) })
		require.Panics(t, func() { s.MulQ(Q4_0, c, n, xq, w, m, n, k-1, 0, 2) })
		require.Panics(t, func() { s.MulQ(F32, c, n, xq, w, m, n, k, 0, 2) })
		x, wf := make([]float32, m*k), make([]byte, 2*F32.PanelSize(k))
		s.MulF(F32, c, n, x, k, wf, m, n, k, 0, 2)
		require.Panics(t, func() { s.MulF(F32, c, n, x[1:], k, wf, m, n, k, 0, 2) })
		require.Panics(t, func() { s.MulF(F32, c[:len(c)-1], n, x, k, wf, m, n, k, 0, 2) })
		require.Panics(t, func() { s.MulF(F32, c, n, x, k, wf[:len(wf)-1], m, n, k, 0, 2) })
		require.Panics(t, func() { s.MulF(Q8_0, c, n, x, k, wf, m, n, k, 0, 2) })
		require.Panics(t, func() { s.QuantizeRows(Q4_0, xq[1:], x, k, 0, m, k) })
		require.Panics(t, func() { s.QuantizeRows(Q4_0, xq, x[1:], k, 0, m, k) })
	})
}

// A block with a NaN or an infinity poisons the products of its row, and of no
// other row.
func TestQuantizedNaN(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			const m, n, k = 3, 16, 64
			r := rand.New(rand.NewPCG(6, 6))
			x, w, c := make([]float32, m*k), make([]byte, Q8_0.PanelSize(k)), make([]float32, m*n)
			oddFloats(r, x, false)
			weights(r, Q8_0, w, false)
			x[k+40] = float32(bad)
			xq := make([]byte, QuantizedSize(m, k))
			s.QuantizeRows(Q8_0, xq, x, k, 0, m, k)
			s.MulQ(Q8_0, c, n, xq, w, m, n, k, 0, 1)
			for i, v := range c {
				require.Equal(t, i/n == 1, v != v, "element %d is %v", i, v)
			}
		}
	})
}

// The products against arithmetic in float64 that knows nothing of panels.
func TestMulAgainstFloat64(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, f := range allFormats {
			const m, n, k = 5, 70, 320
			r := rand.New(rand.NewPCG(7, uint64(f)))
			src := fileRows(r, f, n, k)
			w := make([]byte, Panels(n)*f.PanelSize(k))
			for p := range Panels(n) {
				rows := min(Lanes, n-p*Lanes)
				f.PackPanel(w[p*f.PanelSize(k):], src[p*Lanes*f.RowSize(k):], rows, k)
			}
			x, c := make([]float32, m*k), make([]float32, m*n)
			oddFloats(r, x, false)
			tolerance := 1e-6
			if f.Quantized() {
				tolerance = 6e-3
				xq := make([]byte, QuantizedSize(m, k))
				s.QuantizeRows(f, xq, x, k, 0, m, k)
				s.MulQ(f, c, n, xq, w, m, n, k, 0, Panels(n))
			} else {
				s.MulF(f, c, n, x, k, w, m, n, k, 0, Panels(n))
			}
			for i := range m {
				for j := range n {
					want, norm := product(x[i*k:][:k], fileValues(f, src[j*f.RowSize(k):], k))
					require.InDelta(t, want, c[i*n+j], tolerance*norm, "%s [%d, %d]", f, i, j)
				}
			}
		}
	})
}

// product is x·w and |x||w|.
func product(x, w []float32) (sum, norm float64) {
	var xx, ww float64
	for i := range x {
		a, b := float64(x[i]), float64(w[i])
		sum, xx, ww = sum+a*b, xx+a*a, ww+b*b
	}
	return sum, math.Sqrt(xx * ww)
}

// conformance opens a file of the conformance data.
func conformance(t *testing.T, name string) []byte {
	dir := os.Getenv("OPMUX_CONFORMANCE")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared", "conformance")
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Skipf("no conformance data (set OPMUX_CONFORMANCE): %v", err)
	}
	return b
}

// ggml's own products: its weights, unpacked by it, times float activations.
func TestConformance(t *testing.T) {
	for _, name := range []string{"q4_0_a_k512_n8", "q4_0_b_k256_n12", "q8_0_a_k512_n8", "q8_0_b_k256_n12", "f16_a_k512_n8", "f16_b_k256_n12", "bf16_a_k512_n8", "bf16_b_k256_n12"} {
		var file struct {
			Type      string `json:"ggml_type"`
			N, K      int
			Quantized []byte
			Values    []byte `json:"dequantized_f32"`
			Matmul    []struct {
				M int
				X []byte `json:"x_f32"`
				Y []byte `json:"y_dequant_f64"`
			}
		}
		require.NoError(t, json.Unmarshal(conformance(t, "ggml/"+name+".json"), &file))
		f := map[string]Format{"q4_0": Q4_0, "q8_0": Q8_0, "f16": F16, "bf16": BF16}[file.Type]
		n, k := file.N, file.K
		panel := make([]byte, f.PanelSize(k))
		f.PackPanel(panel, file.Quantized, n, k)
		values := floats(file.Values)
		for lane := range n {
			row := make([]float32, k)
			f.Row(row, panel, lane, k)
			sameBits(t, values[lane*k:][:k], row, name)
		}
		require.NotEmpty(t, file.Matmul)
		eachTier(t, func(t *testing.T, s *Set) {
			for _, mm := range file.Matmul {
				m, x := mm.M, floats(mm.X)
				want := unsafe.Slice((*float64)(unsafe.Pointer(&mm.Y[0])), len(mm.Y)/8)
				c := make([]float32, m*n)
				tolerance := 1e-6
				if f.Quantized() {
					tolerance = 6e-3
					xq := make([]byte, QuantizedSize(m, k))
					s.QuantizeRows(f, xq, x, k, 0, m, k)
					s.MulQ(f, c, n, xq, panel, m, n, k, 0, 1)
				} else {
					s.MulF(f, c, n, x, k, panel, m, n, k, 0, 1)
				}
				for i := range c {
					_, norm := product(x[i/n*k:][:k], values[i%n*k:][:k])
					require.InDelta(t, want[i], c[i], tolerance*norm+1e-30, "%s m=%d element %d", name, m, i)
				}
			}
		})
	}
}

func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4)
}

// fma32 against exact arithmetic, with many cases half way between two numbers.
func TestFMA32(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for i := range 300000 {
		x, y, z := math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32())
		if i%3 > 0 { // short numbers: ties are common
			x = float32(math.Ldexp(float64(r.IntN(1<<13)-1<<12), r.IntN(8)-i%2*70))
			y = float32(math.Ldexp(float64(r.IntN(1<<13)-1<<12), r.IntN(8)-i%2*70))
			z = float32(math.Ldexp(float64(r.IntN(1<<25)-1<<24), r.IntN(60)-30-i%2*120))
		}
		got := fma32(x, y, z)
		if math.IsNaN(float64(x*y+z)) || math.IsInf(float64(x), 0) || math.IsInf(float64(y), 0) || math.IsInf(float64(z), 0) {
			sameBits(t, []float32{float32(float64(x)*float64(y) + float64(z))}, []float32{got}, fmt.Sprint(x, y, z))
			continue
		}
		exact := new(big.Float).SetPrec(2000).Mul(wide(x), wide(y))
		exact.Add(exact, wide(z))
		want, _ := exact.Float32()
		if want == 0 && got == 0 {
			continue // big.Float has another rule for the sign of a sum that is zero
		}
		sameBits(t, []float32{want}, []float32{got}, fmt.Sprint(x, y, z))
	}
}

func wide(x float32) *big.Float { return new(big.Float).SetPrec(2000).SetFloat64(float64(x)) }
