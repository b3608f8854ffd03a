package simd

import (
	"math"
	"unsafe"
)

// Vec is the part of a tier that works on rows of floats: vectors, reductions,
// conversions, rotations and the two halves of attention.
//
// The length of dst, where there is one, is the length of the call; any length
// is legal, zero included, and so is any alignment. A kernel reads and writes
// nothing outside the elements it is given; it panics, before it has touched
// anything, when another slice has not the elements the call needs. dst may be
// the same slice as an input and must not overlap one in any other way.
//
// Add, Mul, AddScalar, MulScalar, DivScalar, Relu, the conversions, the
// rotations, Max (the sign of a zero aside), ArgMax and the Mix of attention give
// the same bits in every tier, a NaN's payload aside. The others round in an order of the tier's
// own: fixed, the same for every alignment, and for a row independent of what
// other rows the call holds.
type Vec struct {
	// Dot returns Σ a[i]·b[i].
	Dot func(a, b []float32) float32
	// SumSquares returns Σ x[i]². Rounding errors do not grow with the length:
	// float32 sums of at most 4096 elements are added in float64.
	SumSquares func(x []float32) float64
	// Max returns the largest element that is no NaN, -Inf if there is none.
	Max func(x []float32) float32
	// ArgMax returns the lowest index of the largest element, with the rule of
	// a scan that starts at index 0 and moves on `x[i] > best`: a NaN is never
	// moved to, and never moved away from when it stands at index 0. It returns
	// -1 if x is empty.
	ArgMax func(x []float32) int

	// Exp sets dst[i] = e^x[i] within 1 ulp: NaN stays NaN, -Inf gives 0,
	// overflow gives +Inf, and subnormal results are kept.
	Exp func(dst, x []float32)
	// ExpSum sets dst[i] = e^(x[i]-shift), the difference rounded to float32, the
	// power within 1 ulp as in Exp, and returns Σ dst[i], summed like
	// SumSquares.
	ExpSum func(dst, x []float32, shift float32) float64
	// SumExp returns what ExpSum returns and stores nothing.
	SumExp func(x []float32, shift float32) float64
	// SiluMul sets dst[i] = gate[i]/(1+e^-gate[i])·up[i], within 4 ulp. A
	// quotient: a large negative gate gives a zero, -Inf gives NaN.
	SiluMul func(dst, gate, up []float32)
	// RMSNorm sets dst[i] = (x[i]·inv)·w[i] with inv = 1/sqrt(Σx²/n + eps), and
	// w[i]+1 in the place of w[i] when gemma.
	RMSNorm func(dst, x, w []float32, eps float32, gemma bool)

	// Add sets dst[i] = a[i] + b[i].
	Add func(dst, a, b []float32)
	// Mul sets dst[i] = a[i]·b[i].
	Mul func(dst, a, b []float32)
	// AddScalar sets dst[i] = x[i] + s.
	AddScalar func(dst, x []float32, s float32)
	// MulScalar sets dst[i] = x[i]·s.
	MulScalar func(dst, x []float32, s float32)
	// DivScalar sets dst[i] = x[i]/s.
	DivScalar func(dst, x []float32, s float32)
	// Relu sets dst[i] to x[i] where that is above zero and to +0 elsewhere, NaN
	// included.
	Relu func(dst, x []float32)

	// WidenF16 sets dst[i] to the value of the IEEE binary16 src[i]. It is exact;
	// a NaN comes out quiet.
	WidenF16 func(dst []float32, src []uint16)
	// NarrowF16 rounds to IEEE binary16, to nearest, ties to even; overflow gives
	// an infinity, subnormal results are kept, a NaN comes out quiet.
	NarrowF16 func(dst []uint16, src []float32)
	// WidenBF16 sets dst[i] to the value of the bfloat16 src[i], exactly.
	WidenBF16 func(dst []float32, src []uint16)
	// NarrowBF16 rounds to bfloat16 under the rules of NarrowF16.
	NarrowBF16 func(dst []uint16, src []float32)

	// RotateHalves turns the pairs (x[i], x[i+h]), i < h = len(cos), in place:
	//
	//	x[i], x[i+h] = x[i]·cos[i] - x[i+h]·sin[i], x[i]·sin[i] + x[i+h]·cos[i]
	//
	// with every product and the sum rounded. Elements from 2h on stay.
	RotateHalves func(x, cos, sin []float32)
	// RotatePairs is RotateHalves for the pairs (x[2i], x[2i+1]).
	RotatePairs func(x, cos, sin []float32)

	// The attention kernels by the cache's element type.
	AttentionF32, AttentionF16, AttentionBF16 Attention
}

// Softmax sets dst[i] = e^(x[i]-m)/Σe with m the largest x[i]. A masked element,
// -Inf, gives exactly 0; NaN anywhere, or nothing above -Inf, gives NaN
// everywhere.
func (v *Vec) Softmax(dst, x []float32) {
	x = x[:len(dst)]
	sum := v.ExpSum(dst, x, v.Max(x))
	v.DivScalar(dst, dst, float32(sum))
}

// LogSoftmax sets dst[i] = x[i] - (m + ln Σe^(x[i]-m)), under the rules of Softmax.
func (v *Vec) LogSoftmax(dst, x []float32) {
	x = x[:len(dst)]
	m := v.Max(x)
	v.AddScalar(dst, x, -float32(float64(m)+math.Log(v.SumExp(x, m))))
}

// Attention is the two products of attention over rows of a key or value cache,
// for several queries that share the cache's head, so that a row is read from
// memory once for all of them. What comes out for a query does not depend on
// how many others the call holds, nor on how the rows are split over calls.
type Attention struct {
	// Scores sets dst[g·ldd+j] = Σ_e q[g·ldq+e]·k[j][e] for every query
	// 0 <= g < queries and every row j of k.
	Scores func(dst []float32, ldd int, q []float32, ldq, queries int, k Rows)
	// Mix adds Σ_j p[g·ldp+j]·v[j][e] to out[g·ldo+e] for every query
	// 0 <= g < queries and 0 <= e < v.D, one fused multiply-add for each j in
	// ascending order. A weight of zero does not hide an infinity or a NaN in
	// its row.
	Mix func(out []float32, ldo int, p []float32, ldp, queries int, v Rows)
}

// Rows are rows of a cache that lie at one distance from each other.
type Rows struct {
	// Data is the first element of row 0: a float32, or the 16 bits of an f16 or
	// bf16, as the kernel's place in Vec says.
	Data unsafe.Pointer
	// Stride is the distance from one row to the next, N the number of rows and
	// D their length, all but N in elements.
	Stride, N, D int
	// Ahead is the distance, in elements and of any sign, between each row and
	// the memory that is prefetched while it is worked on: that to the next page
	// of a paged cache. Zero stands for a few times Stride.
	Ahead int
}

// chunk is the most elements that one assembly call sees: short calls keep the
// goroutine preemptible, and float32 sums short.
const chunk = 4096
