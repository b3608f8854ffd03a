package tensor_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/tensor"
)

// searched are the types whose packers search for scales.
var searched = []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.IQ4_NL, tensor.MXFP4}

// squares returns the sum of squared differences and the sum of squares of x.
func squares(x, y []float32) (e, n float64) {
	for i := range x {
		d := float64(x[i]) - float64(y[i])
		e, n = e+d*d, n+float64(x[i])*float64(x[i])
	}
	return e, n
}

func repack(t testing.TB, d tensor.DType, x []float32) []float32 {
	rb, err := d.RowBytes(int64(len(x)))
	require.NoError(t, err)
	b, y := make([]byte, rb), make([]float32, len(x))
	require.NoError(t, tensor.Quantize(b, d, x))
	require.NoError(t, tensor.Decode(y, d, b))
	return y
}

// requireNoWorse holds rows that we packed against those that ggml packed: no row may lose 5 % more (constant rows, which
// come out to 1e-6, may), and all together must lose less.
func requireNoWorse(t *testing.T, d tensor.DType, f ggmlFile, packed []byte) {
	x, theirs, ours := floats(f.Weights), floats(f.Dequantized), make([]float32, f.N*f.K)
	require.NoError(t, tensor.Decode(ours, d, packed))
	var sumOurs, sumTheirs float64
	for r := range f.N {
		row := x[r*f.K:][:f.K]
		e, n := squares(row, ours[r*f.K:][:f.K])
		g, _ := squares(row, theirs[r*f.K:][:f.K])
		require.LessOrEqual(t, e, max(1.05*g, 1e-6*n), "%v row %d", d, r)
		if n > 0 {
			sumOurs, sumTheirs = sumOurs+e/n, sumTheirs+g/n
		}
	}
	require.Less(t, sumOurs, sumTheirs, d.String())
}

// naive is what packing by minimum and maximum alone leaves of x: sub-blocks span their range, scales are rounded as the
// format stores them.
func naive(d tensor.DType, x []float32) []float32 {
	y := make([]float32, len(x))
	round16 := func(v float64) float64 { return float64(tensor.DecodeF16(tensor.EncodeF16(float32(v)))) }
	switch d {
	case tensor.Q4_K, tensor.Q5_K:
		top := map[tensor.DType]float64{tensor.Q4_K: 15, tensor.Q5_K: 31}[d]
		var scale, low [8]float64
		var d, dmin float64
		for j := range 8 {
			lo, hi := 0.0, math.Inf(-1)
			for _, v := range x[32*j:][:32] {
				lo, hi = min(lo, float64(v)), max(hi, float64(v))
			}
			scale[j], low[j] = (hi-lo)/top, -lo
			d, dmin = max(d, scale[j]/63), max(dmin, -lo/63)
		}
		d, dmin = round16(d), round16(dmin)
		for i, v := range x {
			s, m := d*math.Round(scale[i/32]/d), dmin*math.Round(low[i/32]/dmin)
			y[i] = float32(s*max(0, min(math.Round((float64(v)+m)/s), top)) - m)
		}
	case tensor.Q6_K:
		var scale [16]float64
		unit := 0.0
		for j := range scale {
			for _, v := range x[16*j:][:16] {
				if math.Abs(float64(v)) > 32*math.Abs(scale[j]) {
					scale[j] = float64(v) / -32
				}
			}
			if math.Abs(scale[j]) > 128*math.Abs(unit) {
				unit = scale[j] / -128
			}
		}
		unit = round16(unit)
		for i, v := range x {
			s := unit * min(math.Round(scale[i/16]/unit), 127)
			y[i] = float32(s * max(-32, min(math.Round(float64(v)/s), 31)))
		}
	default:
		levels := []float64{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
		if d == tensor.MXFP4 {
			levels = []float64{-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6}
		}
		for i := 0; i < len(x); i += 32 {
			top := 0.0
			for _, v := range x[i:][:32] {
				if math.Abs(float64(v)) > math.Abs(top) {
					top = float64(v)
				}
			}
			s := round16(top / levels[0])
			if d == tensor.MXFP4 {
				s = math.Exp2(math.Floor(math.Log2(math.Abs(top))) - 2)
			}
			for j, v := range x[i:][:32] {
				best := math.Inf(1)
				for _, l := range levels {
					if e := math.Abs(s*l - float64(v)); e < best {
						best, y[i+j] = e, float32(s*l)
					}
				}
			}
		}
	}
	return y
}

// The search must beat spanning the range, on normal rows, on rows with outliers (Student's t, 3 degrees of freedom) and on
// rows far from the middle.
func TestQuantizeSearches(t *testing.T) {
	for name, draw := range map[string]func(rng *rand.Rand) float64{
		"normal": (*rand.Rand).NormFloat64,
		"heavy tails": func(rng *rand.Rand) float64 {
			a, b, c := rng.NormFloat64(), rng.NormFloat64(), rng.NormFloat64()
			return rng.NormFloat64() / math.Sqrt((a*a+b*b+c*c)/3)
		},
		"skewed": func(rng *rand.Rand) float64 { return -rng.ExpFloat64() },
	} {
		rng := rand.New(rand.NewPCG(9, 10))
		for _, d := range searched {
			var ours, byRange, all float64
			for range 100 {
				x := make([]float32, 256)
				for i := range x {
					x[i] = float32(draw(rng))
				}
				e, n := squares(x, repack(t, d, x))
				r, _ := squares(x, naive(d, x))
				ours, byRange, all = ours+e, byRange+r, all+n
			}
			t.Logf("%s %v: error %.3g of the squares, by range %.3g", name, d, ours/all, byRange/all)
			require.Less(t, ours, byRange, "%s %v", name, d)
		}
	}
}

// Packing what was unpacked loses little of what packing lost before.
func TestQuantizeKeepsWhatFits(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, d := range searched {
		require.Equal(t, make([]float32, 256), abs(repack(t, d, make([]float32, 256))), "%v of zeros", d)
		x := make([]float32, 256)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		once := repack(t, d, x)
		twice := repack(t, d, once)
		lost, _ := squares(x, once)
		again, _ := squares(once, twice)
		require.Less(t, again, lost/10, "%v packed twice", d)
	}
}

func abs(x []float32) []float32 {
	for i := range x {
		x[i] = float32(math.Abs(float64(x[i])))
	}
	return x
}

// A value that is not finite costs the elements that share its scale, and no others.
func TestQuantizeNotFinite(t *testing.T) {
	shares := map[tensor.DType]int{tensor.Q4_K: 32, tensor.Q5_K: 32, tensor.Q6_K: 16, tensor.IQ4_NL: 32, tensor.MXFP4: 32}
	inf := float32(math.Inf(1))
	for _, d := range searched {
		for _, bad := range []float32{inf, -inf, float32(math.NaN())} {
			for _, count := range []int{1, shares[d]} {
				x := ramp(256)
				for i := range count {
					x[64+i] = bad
				}
				y := repack(t, d, x)
				require.Equal(t, make([]float32, shares[d]), abs(y[64:][:shares[d]]), "%v of %v", d, bad)
				clear(x[64:][:shares[d]])
				e, n := squares(x, y)
				require.Less(t, e, n/20, "%v of %v", d, bad)
			}
		}
	}
}

// FuzzQuantize packs any floats: never a panic, the same bytes again; finite values stay finite, and where scales are
// searched for, no row comes out worse than as zeros.
func FuzzQuantize(f *testing.F) {
	for i, v := range []float32{1, math.MaxFloat32, math.SmallestNonzeroFloat32, float32(math.NaN()), 65504 * 8} {
		var row []byte
		for j := range 256 {
			row = binary.LittleEndian.AppendUint32(row, math.Float32bits(v*float32(j%(5+i)-2)))
		}
		f.Add(row)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		x := make([]float32, 256)
		finite := true
		for i := range min(len(x), len(src)/4) {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
			finite = finite && x[i]-x[i] == 0
		}
		for _, d := range searched {
			y := repack(t, d, x)
			requireBits(t, y, repack(t, d, x))
			for i, v := range y {
				require.Zero(t, v-v, "%v[%d] is %v", d, i, v)
			}
			if finite {
				e, n := squares(x, y)
				require.LessOrEqual(t, e, n*1.00001, d.String())
			}
		}
	})
}
