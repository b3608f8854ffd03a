package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/guard"
	"github.com/opmux/opmux/tensor"
)

// vecLengths are all tails of both register widths, with and without whole
// registers and unrolled steps before them, and the ends of a chunk.
func vecLengths() []int {
	lengths := []int{127, 128, 129, 200, chunk - 1, chunk, chunk + 1, 2*chunk + 77}
	for n := range 67 {
		lengths = append(lengths, n)
	}
	return lengths
}

// rowKernel is a kernel that makes one row of others, what it should make of
// them, and how far it may be off: a number of float32 steps.
type rowKernel struct {
	name   string
	kernel func(v *Vec, dst, a, b []float32, s float32)
	want   func(dst, a, b []float32, s float32)
	steps  int
}

var rowKernels = []rowKernel{
	{"Add", func(v *Vec, dst, a, b []float32, _ float32) { v.Add(dst, a, b) },
		func(dst, a, b []float32, _ float32) { each(dst, func(i int) float32 { return a[i] + b[i] }) }, 0},
	{"Mul", func(v *Vec, dst, a, b []float32, _ float32) { v.Mul(dst, a, b) },
		func(dst, a, b []float32, _ float32) { each(dst, func(i int) float32 { return a[i] * b[i] }) }, 0},
	{"AddScalar", func(v *Vec, dst, a, _ []float32, s float32) { v.AddScalar(dst, a, s) },
		func(dst, a, _ []float32, s float32) { each(dst, func(i int) float32 { return a[i] + s }) }, 0},
	{"MulScalar", func(v *Vec, dst, a, _ []float32, s float32) { v.MulScalar(dst, a, s) },
		func(dst, a, _ []float32, s float32) { each(dst, func(i int) float32 { return a[i] * s }) }, 0},
	{"DivScalar", func(v *Vec, dst, a, _ []float32, s float32) { v.DivScalar(dst, a, s) },
		func(dst, a, _ []float32, s float32) { each(dst, func(i int) float32 { return a[i] / s }) }, 0},
	{"Relu", func(v *Vec, dst, a, _ []float32, _ float32) { v.Relu(dst, a) },
		func(dst, a, _ []float32, _ float32) {
			each(dst, func(i int) float32 {
				if a[i] > 0 {
					return a[i]
				}
				return 0
			})
		}, 0},
	{"Exp", func(v *Vec, dst, a, _ []float32, _ float32) { v.Exp(dst, a) },
		func(dst, a, _ []float32, _ float32) {
			each(dst, func(i int) float32 { return float32(math.Exp(float64(a[i]))) })
		}, 1},
	{"ExpSum", func(v *Vec, dst, a, _ []float32, s float32) { v.ExpSum(dst, a, s) },
		func(dst, a, _ []float32, s float32) {
			each(dst, func(i int) float32 { return float32(math.Exp(float64(a[i] - s))) })
		}, 1},
	{"SiluMul", func(v *Vec, dst, a, b []float32, _ float32) { v.SiluMul(dst, a, b) },
		func(dst, a, b []float32, _ float32) {
			each(dst, func(i int) float32 {
				// The power must overflow where float32 does: there a zero comes out.
				power := float32(math.Exp(-float64(a[i])))
				return float32(float64(a[i])/(1+float64(power))) * b[i]
			})
		}, 4},
}

func each(dst []float32, f func(i int) float32) {
	for i := range dst {
		dst[i] = f(i)
	}
}

// within says that got is at most steps float32 numbers away from want; all NaN
// are one, and zero steps means the same bits.
func within(t *testing.T, want, got []float32, steps int, msg string) {
	t.Helper()
	if steps == 0 {
		sameBits(t, want, got, msg)
		return
	}
	for i := range want {
		if want[i] != want[i] && got[i] != got[i] {
			continue
		}
		far := order(want[i]) - order(got[i])
		require.False(t, max(far, -far) > int64(steps) || want[i] != want[i] || got[i] != got[i],
			"%s: element %d: want %v, got %v", msg, i, want[i], got[i])
	}
}

// order numbers the float32s from -Inf to +Inf; both zeros are 0.
func order(v float32) int64 {
	b := int64(math.Float32bits(v))
	if b >= 1<<31 {
		return 1<<31 - b
	}
	return b
}

// place copies x to guarded memory.
func place[T any](t testing.TB, x []T, edge guard.Edge) []T {
	y := guard.Slice[T](t, len(x), edge)
	copy(y, x)
	return y
}

func checkRow(t *testing.T, s *Set, k rowKernel, n int, edge guard.Edge, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	wild := seed%2 == 0
	a, b, want := make([]float32, n), make([]float32, n), make([]float32, n)
	oddFloats(r, a, wild)
	oddFloats(r, b, wild)
	if seed%3 == 0 {
		for i := range a {
			a[i] *= 60
		}
	}
	arg := float32(r.NormFloat64())
	k.want(want, a, b, arg)
	msg := fmt.Sprintf("%s n=%d %s seed=%d", k.name, n, edge, seed)

	ga, gb, dst := place(t, a, edge), place(t, b, edge), guard.Slice[float32](t, n, edge)
	poisoned(dst)
	k.kernel(&s.Vec, dst, ga, gb, arg)
	within(t, want, dst, k.steps, msg)
	sameBits(t, a, ga, msg+": a was written")
	sameBits(t, b, gb, msg+": b was written")

	again := slices.Clone(dst)
	k.kernel(&s.Vec, ga, ga, gb, arg)
	sameBits(t, again, ga, msg+" in place of a")
	copy(ga, a)
	k.kernel(&s.Vec, gb, ga, gb, arg)
	sameBits(t, again, gb, msg+" in place of b")
}

func TestRows(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, k := range rowKernels {
			t.Run(k.name, func(t *testing.T) {
				for _, n := range vecLengths() {
					for i, edge := range guard.Edges {
						checkRow(t, s, k, n, edge, uint64(n+i))
					}
				}
			})
		}
	})
}

// TestPower walks over the range in which e^x is neither 0 nor infinite, and a
// little beyond.
func TestPower(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		inf := float32(math.Inf(1))
		x := []float32{0, float32(math.Copysign(0, -1)), inf, -inf, float32(math.NaN()), 1e-45, -1e-45, 1e38, -1e38,
			88.72283, 88.72284, 88.9, 89, 90, -87.33654, -87.33655, -103.27893, -103.97208, -103.97209, -104, -104.1, -110}
		for b := uint32(0); b < math.Float32bits(105); b += 4099 {
			x = append(x, math.Float32frombits(b), -math.Float32frombits(b))
		}
		want, got := make([]float32, len(x)), make([]float32, len(x))
		s.Exp(got, x)
		for i, v := range x {
			want[i] = float32(math.Exp(float64(v)))
		}
		within(t, want, got, 1, "Exp")
		require.Equal(t, []float32{1, 1, inf, 0}, got[:4])

		// A sigmoid linear unit at the ends of its range.
		gate := []float32{inf, -inf, float32(math.NaN()), -1e30, -200, 200, 0}
		ones := []float32{1, 1, 1, 1, 1, 1, 1}
		s.SiluMul(gate, gate, ones)
		zero := float32(math.Copysign(0, -1))
		sameBits(t, []float32{inf, float32(math.NaN()), float32(math.NaN()), zero, zero, 200, 0}, gate, "SiluMul")
	})
}

func TestSums(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, n := range append(vecLengths(), 150_000) {
			for i, edge := range guard.Edges {
				checkSums(t, s, n, edge, uint64(n+i))
			}
		}
	})
}

// checkSums compares with float64. The bound of an error is the rounding of the
// sums, relative to the sum of the magnitudes.
func checkSums(t *testing.T, s *Set, n int, edge guard.Edge, seed uint64) {
	const bound = 2e-6
	r := rand.New(rand.NewPCG(seed, 3))
	a, b := guard.Slice[float32](t, n, edge), guard.Slice[float32](t, n, edge)
	oddFloats(r, a, false)
	oddFloats(r, b, false)
	var dot, size, squares, powers float64
	top := maxOf(a)
	for i := range a {
		dot += float64(a[i]) * float64(b[i])
		size += math.Abs(float64(a[i]) * float64(b[i]))
		squares += float64(a[i]) * float64(a[i])
		powers += math.Exp(float64(a[i] - top))
	}
	require.InDelta(t, dot, s.Dot(a, b), bound*size, "Dot n=%d", n)
	require.InDelta(t, squares, s.SumSquares(a), bound*squares, "SumSquares n=%d", n)
	e := guard.Slice[float32](t, n, edge)
	sum := s.ExpSum(e, a, top)
	require.InDelta(t, powers, sum, bound*powers, "ExpSum n=%d", n)
	require.Equal(t, sum, s.SumExp(a, top), "SumExp n=%d", n)
}

func TestSumsCarryNaNAndInf(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, n := range []int{1, 7, 40, 5000} {
			for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
				x, ones := make([]float32, n), make([]float32, n)
				for i := range ones {
					ones[i] = 1
				}
				x[n/2] = bad
				require.Equal(t, fmt.Sprint(bad), fmt.Sprint(s.Dot(x, ones)))
				require.Equal(t, fmt.Sprint(bad), fmt.Sprint(s.SumSquares(x)))
				require.Equal(t, fmt.Sprint(bad), fmt.Sprint(s.SumExp(x, 0)))
			}
			masked := make([]float32, n)
			each(masked, func(int) float32 { return float32(math.Inf(-1)) })
			require.Zero(t, s.SumExp(masked, 3))
			require.True(t, math.IsNaN(s.SumExp(masked, masked[0])), "a row that is masked altogether")
		}
	})
}

func TestSoftmax(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	eachTier(t, func(t *testing.T, s *Set) {
		for _, n := range []int{1, 5, 33, 1000, 150_000} {
			x, p, lp := make([]float32, n), make([]float32, n), make([]float32, n)
			oddFloats(rand.New(rand.NewPCG(uint64(n), 10)), x, false)
			x[n/2] = 20
			if n > 1 {
				x[0] = -inf
			}
			s.Softmax(p, x)
			s.LogSoftmax(lp, x)
			var sum float64
			for _, v := range x {
				sum += math.Exp(float64(v) - 20)
			}
			for i, v := range x {
				want := float64(v) - 20 - math.Log(sum)
				if !(math.Abs(math.Exp(want)-float64(p[i])) <= 1e-6 && (v == -inf && lp[i] == -inf || math.Abs(want-float64(lp[i])) <= 1e-5)) {
					require.Failf(t, "off", "n=%d element %d: want %v, got %v and its log %v", n, i, math.Exp(want), p[i], lp[i])
				}
			}
			if n > 1 {
				require.Zero(t, p[0])
			}
			for _, bad := range []float32{nan, inf} {
				x[n-1] = bad
				s.Softmax(p, x)
				s.LogSoftmax(lp, x)
				require.True(t, p[n-1] != p[n-1] && lp[n-1] != lp[n-1], "%v", bad)
			}
			each(x, func(int) float32 { return -inf })
			s.Softmax(p, x)
			s.LogSoftmax(lp, x)
			require.True(t, p[0] != p[0] && lp[0] != lp[0], "a row that is masked altogether")
		}
	})
}

func TestMax(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, n := range vecLengths() {
			for i, edge := range guard.Edges {
				checkMax(t, s, n, edge, uint64(2*n+i))
			}
		}
		nan, inf := float32(math.NaN()), float32(math.Inf(1))
		for _, c := range []struct {
			x   []float32
			max float32
			arg int
		}{
			{nil, -inf, -1},
			{[]float32{-inf, -inf}, -inf, 0},
			{[]float32{nan, 3, 4}, 4, 0},
			{[]float32{1, nan, 4, nan, 4}, 4, 2},
			{[]float32{-inf, nan, -inf, inf, inf}, inf, 3},
			{[]float32{float32(math.Copysign(0, -1)), 0}, 0, 0},
			{[]float32{nan, nan}, -inf, 0},
		} {
			require.Equal(t, c.arg, s.ArgMax(c.x), "%v", c.x)
			require.True(t, c.max == s.Max(c.x), "%v: %v", c.x, s.Max(c.x))
		}
		ties := make([]float32, 2*chunk+5)
		for _, first := range []int{3, 15, 16, chunk - 1, chunk, chunk + 33, 2*chunk + 4} {
			clear(ties)
			ties[first], ties[len(ties)-1] = 1, 1
			require.Equal(t, first, s.ArgMax(ties))
		}
	})
}

func checkMax(t *testing.T, s *Set, n int, edge guard.Edge, seed uint64) {
	x := guard.Slice[float32](t, n, edge)
	oddFloats(rand.New(rand.NewPCG(seed, 4)), x, seed%4 > 1)
	require.True(t, maxOf(x) == s.Max(x), "n=%d seed=%d", n, seed)
	require.Equal(t, argMax(x), s.ArgMax(x), "n=%d seed=%d", n, seed)
}

func TestRMSNorm(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, n := range vecLengths() {
			for i, edge := range guard.Edges {
				checkRMSNorm(t, s, n, edge, uint64(n+i))
			}
		}
		// A zero row stays zero, without an epsilon it is 0·Inf.
		x := make([]float32, 5)
		s.RMSNorm(x, x, []float32{1, 2, 3, 4, 5}, 1e-6, false)
		require.Equal(t, make([]float32, 5), x)
		s.RMSNorm(x, x, []float32{1, 2, 3, 4, 5}, 0, true)
		require.True(t, x[0] != x[0] && x[4] != x[4])
	})
}

func checkRMSNorm(t *testing.T, s *Set, n int, edge guard.Edge, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 5))
	x, w, dst := guard.Slice[float32](t, n, edge), guard.Slice[float32](t, n, edge), guard.Slice[float32](t, n, edge)
	oddFloats(r, x, false)
	oddFloats(r, w, false)
	gemma := seed%2 == 0
	s.RMSNorm(dst, x, w, 1e-5, gemma)
	var sum float64
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	for i, got := range dst {
		weight := w[i]
		if gemma {
			weight++
		}
		want := float64(x[i]) / math.Sqrt(sum/float64(n)+float64(float32(1e-5))) * float64(weight)
		require.InDelta(t, want, got, 2e-6*math.Abs(want), "n=%d seed=%d element %d", n, seed, i)
	}
	again := slices.Clone(dst)
	s.RMSNorm(x, x, w, 1e-5, gemma)
	sameBits(t, again, x, "in place")
}

func TestRotations(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for h := range 70 {
			for i, edge := range guard.Edges {
				checkRotations(t, s, h, edge, uint64(2*h+i))
			}
		}
	})
}

func checkRotations(t *testing.T, s *Set, h int, edge guard.Edge, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 6))
	const rest = 3 // elements that are not turned
	x, cos, sin := make([]float32, 2*h+rest), guard.Slice[float32](t, h, edge), guard.Slice[float32](t, h, edge)
	for _, f := range [][]float32{x, cos, sin} {
		oddFloats(r, f, seed%4 > 1)
	}
	halves, pairs := slices.Clone(x), slices.Clone(x)
	for i := range h {
		turn := func(x []float32, i, j int, c, s float32) {
			x[i], x[j] = float32(x[i]*c)-float32(x[j]*s), float32(x[i]*s)+float32(x[j]*c)
		}
		turn(halves, i, h+i, cos[i], sin[i])
		turn(pairs, 2*i, 2*i+1, cos[i], sin[i])
	}
	got := place(t, x, edge)
	s.RotateHalves(got, cos, sin)
	sameBits(t, halves, got, fmt.Sprintf("halves h=%d seed=%d", h, seed))
	copy(got, x)
	s.RotatePairs(got, cos, sin)
	sameBits(t, pairs, got, fmt.Sprintf("pairs h=%d seed=%d", h, seed))
}

// conversion is a small float: its kernels, and the codec of package tensor,
// which shares no code with them.
type conversion struct {
	name   string
	widen  func(*Vec) func([]float32, []uint16)
	narrow func(*Vec) func([]uint16, []float32)
	decode func(uint16) float32
	encode func(float32) uint16
}

var conversions = []conversion{
	{"f16", func(v *Vec) func([]float32, []uint16) { return v.WidenF16 },
		func(v *Vec) func([]uint16, []float32) { return v.NarrowF16 }, tensor.DecodeF16, tensor.EncodeF16},
	{"bf16", func(v *Vec) func([]float32, []uint16) { return v.WidenBF16 },
		func(v *Vec) func([]uint16, []float32) { return v.NarrowBF16 }, tensor.DecodeBF16, tensor.EncodeBF16},
}

func TestConversionsOfEveryCode(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, c := range conversions {
			codes, want := make([]uint16, 1<<16), make([]float32, 1<<16)
			for i := range codes {
				codes[i], want[i] = uint16(i), c.decode(uint16(i))
			}
			got := make([]float32, len(codes))
			c.widen(&s.Vec)(got, codes)
			sameBits(t, want, got, c.name)

			// Each code's value, the point half way to the next, and what lies about them.
			var x []float32
			for i, v := range want {
				half := v
				if next := want[(i+1)&0xffff]; !math.IsInf(float64(v)+float64(next), 0) && v == v && next == next {
					half = float32((float64(v) + float64(next)) / 2)
				}
				for d := uint32(0); d < 3; d++ {
					x = append(x, math.Float32frombits(math.Float32bits(v)+d-1), math.Float32frombits(math.Float32bits(half)+d-1))
				}
			}
			for b := uint64(0); b < 1<<32; b += 65521 {
				x = append(x, math.Float32frombits(uint32(b)))
			}
			checkNarrow(t, s, c, x, slices.Clone(x))
		}
		// ops.md, B.1.
		x := []float32{-65519.996, 65520, 0x1p-25, 0x1.000002p-25, math.Float32frombits(0x387fe000), 5.3, 1.00390625}
		f16, bf16 := make([]uint16, len(x)), make([]uint16, len(x))
		s.NarrowF16(f16, x)
		s.NarrowBF16(bf16, x)
		require.Equal(t, []uint16{0xfbff, 0x7c00, 0, 1, 0x0400, 0x454d, 0x3c04}, f16)
		require.Equal(t, []uint16{0xc780, 0x4780, 0x3300, 0x3300, 0x3880, 0x40aa, 0x3f80}, bf16)
	})
}

func checkNarrow(t *testing.T, s *Set, c conversion, x, source []float32) {
	got := make([]uint16, len(x))
	c.narrow(&s.Vec)(got, source)
	for i, v := range x {
		if want := c.encode(v); want != got[i] {
			require.Failf(t, "wrong code", "%s of %v (%08x): want %04x, got %04x", c.name, v, math.Float32bits(v), want, got[i])
		}
	}
}

func TestConversionTails(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, n := range vecLengths() {
			for i, edge := range guard.Edges {
				for _, c := range conversions {
					checkConversion(t, s, c, n, edge, uint64(n+i))
				}
			}
		}
	})
}

func checkConversion(t *testing.T, s *Set, c conversion, n int, edge guard.Edge, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	x, codes := guard.Slice[float32](t, n, edge), guard.Slice[uint16](t, n, edge)
	oddFloats(r, x, true)
	c.narrow(&s.Vec)(codes, x)
	want := make([]float32, n)
	for i, v := range x {
		require.Equal(t, c.encode(v), codes[i], "%s n=%d seed=%d element %d of %v", c.name, n, seed, i, v)
		want[i] = c.decode(codes[i])
	}
	c.widen(&s.Vec)(x, codes)
	sameBits(t, want, x, c.name)
}

func TestShortSlicesPanic(t *testing.T) {
	long, short := make([]float32, 9), make([]float32, 8)
	codes := make([]uint16, 8)
	eachTier(t, func(t *testing.T, s *Set) {
		for name, f := range map[string]func(){
			"Dot": func() { s.Dot(long, short) }, "Add": func() { s.Add(long, long, short) }, "Exp": func() { s.Exp(long, short) },
			"ExpSum": func() { s.ExpSum(long, short, 0) }, "SiluMul": func() { s.SiluMul(long, short, long) },
			"RMSNorm": func() { s.RMSNorm(long, long, short, 0, false) }, "MulScalar": func() { s.MulScalar(long, short, 2) },
			"WidenF16": func() { s.WidenF16(long, codes) }, "NarrowBF16": func() { s.NarrowBF16(codes[:8:8], short[:7:7]) },
			"RotateHalves": func() { s.RotateHalves(long, short[:5], short[:5]) }, "RotatePairs": func() { s.RotatePairs(long, short[:4], short[:3:3]) },
		} {
			require.Panics(t, f, name)
		}
	})
	require.Equal(t, make([]float32, 9), long)
}

func TestVecAllocatesNothing(t *testing.T) {
	x, y, w := make([]float32, 5000), make([]float32, 5000), make([]float32, 5000)
	codes := make([]uint16, 5000)
	eachTier(t, func(t *testing.T, s *Set) {
		require.Zero(t, testing.AllocsPerRun(5, func() {
			s.Dot(x, y)
			s.SumSquares(x)
			s.Max(x)
			s.ArgMax(x)
			s.ExpSum(y, x, 1)
			s.SumExp(x, 1)
			s.Softmax(y, x)
			s.LogSoftmax(y, x)
			s.SiluMul(y, x, w)
			s.RMSNorm(y, x, w, 1e-5, true)
			s.Add(y, x, w)
			s.AddScalar(y, x, 2)
			s.Relu(y, x)
			s.NarrowF16(codes, x)
			s.WidenBF16(y, codes)
			s.RotateHalves(y, x[:100], w[:100])
			s.RotatePairs(y, x[:100], w[:100])
			for _, a := range attentions {
				a.of(&s.Vec).Scores(y, 16, x, 64, 3, rowsOf(codes, 70, 16, 64))
				a.of(&s.Vec).Mix(y, 64, x, 16, 3, rowsOf(codes, 70, 16, 64))
			}
		}))
	})
}

// FuzzVec runs every kernel but those of attention with a length and a seed.
func FuzzVec(f *testing.F) {
	for _, n := range []uint16{0, 1, 15, 16, 17, 63, 64, 65, 1000, chunk, chunk + 1} {
		f.Add(n, uint64(n))
	}
	f.Fuzz(func(t *testing.T, n uint16, seed uint64) {
		n %= 2*chunk + 100
		edge := guard.Edges[seed%uint64(len(guard.Edges))]
		for _, s := range All() {
			if s.Missing() != "" {
				continue
			}
			for _, k := range rowKernels {
				checkRow(t, s, k, int(n), edge, seed)
			}
			for _, c := range conversions {
				checkConversion(t, s, c, int(n), edge, seed)
			}
			checkSums(t, s, int(n), edge, seed)
			checkMax(t, s, int(n), edge, seed)
			checkRMSNorm(t, s, int(n), edge, seed)
			checkRotations(t, s, int(n)%300, edge, seed)
		}
	})
}
