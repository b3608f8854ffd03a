package simd

import (
	"math"
	"unsafe"
)

// portableVec is the reference of all Vec kernels.
var portableVec = Vec{
	Dot: dot, SumSquares: sumSquares, Max: maxOf, ArgMax: argMax,
	Exp: exp, ExpSum: expSum, SumExp: sumExp, SiluMul: siluMul, RMSNorm: rmsNorm,
	Add: add, Mul: mul, AddScalar: addScalar, MulScalar: mulScalar, DivScalar: divScalar, Relu: relu,
	WidenF16: widenF16, NarrowF16: narrowF16, WidenBF16: widenBF16, NarrowBF16: narrowBF16,
	RotateHalves: rotateHalves, RotatePairs: rotatePairs,
	AttentionF32: portableAttention(F32), AttentionF16: portableAttention(F16), AttentionBF16: portableAttention(BF16),
}

func dot(a, b []float32) (s float32) {
	b = b[:len(a)]
	for i, v := range a {
		s += float32(v * b[i])
	}
	return s
}

func sumSquares(x []float32) (s float64) {
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	return s
}

func maxOf(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func argMax(x []float32) int {
	if len(x) == 0 {
		return -1
	}
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}

func exp(dst, x []float32) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] = exp1(v)
	}
}

func exp1(x float32) float32 { return float32(math.Exp(float64(x))) }

func expSum(dst, x []float32, shift float32) (s float64) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] = exp1(v - shift)
		s += float64(dst[i])
	}
	return s
}

func sumExp(x []float32, shift float32) (s float64) {
	for _, v := range x {
		s += float64(exp1(v - shift))
	}
	return s
}

func siluMul(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i, v := range gate {
		dst[i] = v / (1 + exp1(-v)) * up[i]
	}
}

func rmsNorm(dst, x, w []float32, eps float32, gemma bool) {
	x, w = x[:len(dst)], w[:len(dst)]
	inv, bias := rmsScale(sumSquares(x), len(x), eps, gemma)
	normalize(dst, x, w, inv, bias)
}

// rmsScale returns the factor of a row and what is added to its weights. A
// negative zero changes no weight at all; a positive one would turn -0 into +0.
func rmsScale(sum float64, n int, eps float32, gemma bool) (inv, bias float32) {
	bias = float32(math.Copysign(0, -1))
	if gemma {
		bias = 1
	}
	mean := float32(sum) / float32(n)
	return 1 / float32(math.Sqrt(float64(mean+eps))), bias
}

func normalize(dst, x, w []float32, inv, bias float32) {
	for i, v := range x {
		dst[i] = float32(v*inv) * (w[i] + bias)
	}
}

func add(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i, v := range a {
		dst[i] = v + b[i]
	}
}

func mul(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i, v := range a {
		dst[i] = v * b[i]
	}
}

func addScalar(dst, x []float32, s float32) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] = v + s
	}
}

func mulScalar(dst, x []float32, s float32) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] = v * s
	}
}

func divScalar(dst, x []float32, s float32) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] = v / s
	}
}

func relu(dst, x []float32) {
	x = x[:len(dst)]
	for i, v := range x {
		if v > 0 {
			dst[i] = v
		} else {
			dst[i] = 0
		}
	}
}

func rotateHalves(x, cos, sin []float32) {
	h := len(cos)
	lo, hi, sin := x[:h], x[h:2*h], sin[:h]
	for i, c := range cos {
		a, b, s := lo[i], hi[i], sin[i]
		lo[i] = float32(a*c) - float32(b*s)
		hi[i] = float32(a*s) + float32(b*c)
	}
}

func rotatePairs(x, cos, sin []float32) {
	x, sin = x[:2*len(cos)], sin[:len(cos)]
	for i, c := range cos {
		a, b, s := x[2*i], x[2*i+1], sin[i]
		x[2*i] = float32(a*c) - float32(b*s)
		x[2*i+1] = float32(a*s) + float32(b*c)
	}
}

// piece is the number of elements of a cache row that the portable loops widen
// at a time.
const piece = 128

// wide fills buf with the elements of row j of a cache that begin with e, and
// returns what it filled.
func (r Rows) wide(f Format, buf *[piece]float32, j, e int) []float32 {
	dst := buf[:min(piece, r.D-e)]
	size := 2
	if f == F32 {
		size = 4
	}
	src := unsafe.Add(r.Data, (j*r.Stride+e)*size)
	switch f {
	case F32:
		copy(dst, unsafe.Slice((*float32)(src), len(dst)))
	case F16:
		widenF16(dst, unsafe.Slice((*uint16)(src), len(dst)))
	case BF16:
		widenBF16(dst, unsafe.Slice((*uint16)(src), len(dst)))
	}
	return dst
}

func portableAttention(f Format) Attention {
	return Attention{
		Scores: func(dst []float32, ldd int, q []float32, ldq, queries int, k Rows) {
			if queries == 0 || k.N == 0 {
				return
			}
			dst, q = dst[:(queries-1)*ldd+k.N], q[:(queries-1)*ldq+k.D]
			var buf [piece]float32
			for j := range k.N {
				for g := range queries {
					dst[g*ldd+j] = 0
				}
				for e := 0; e < k.D; e += piece {
					key := k.wide(f, &buf, j, e)
					for g := range queries {
						s := dst[g*ldd+j]
						for i, x := range q[g*ldq+e:][:len(key)] {
							s += float32(x * key[i])
						}
						dst[g*ldd+j] = s
					}
				}
			}
		},
		Mix: func(out []float32, ldo int, p []float32, ldp, queries int, v Rows) {
			if queries == 0 || v.N == 0 || v.D == 0 {
				return
			}
			out, p = out[:(queries-1)*ldo+v.D], p[:(queries-1)*ldp+v.N]
			var buf [piece]float32
			for j := range v.N {
				for e := 0; e < v.D; e += piece {
					value := v.wide(f, &buf, j, e)
					for g := range queries {
						w, sum := p[g*ldp+j], out[g*ldo+e:][:len(value)]
						for i, x := range value {
							sum[i] = fma32(w, x, sum[i])
						}
					}
				}
			}
		},
	}
}
