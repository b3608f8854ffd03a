//go:build !noasm && !purego

package simd

import (
	"math"
	"unsafe"
)

// vecAssembly is what one level of instructions supplies for a Vec: functions
// on pointers that check nothing, want at least one element or row, and stay
// short because nothing can interrupt them.
type vecAssembly struct {
	dot                             func(n int, a, b *float32) float32
	sumSquares, maxOf               func(n int, x *float32) float32
	indexOf                         func(n int, x *float32, value float32) int
	exp, relu                       func(n int, dst, x *float32)
	expSum                          func(n int, dst, x *float32, shift float32) float32
	sumExp                          func(n int, x *float32, shift float32) float32
	siluMul, add, mul               func(n int, dst, a, b *float32)
	normalize                       func(n int, dst, x, w *float32, inv, bias float32)
	addScalar, mulScalar, divScalar func(n int, dst, x *float32, s float32)
	widenF16, widenBF16             func(n int, dst *float32, src *uint16)
	narrowF16, narrowBF16           func(n int, dst *uint16, src *float32)
	rotateHalves                    func(n int, x, y, cos, sin *float32)
	rotatePairs                     func(n int, x, cos, sin *float32)
	f32, f16, bf16                  attentionAssembly
}

// attentionAssembly holds kernels for 4, 2 and 1 queries, nil where a level has
// too few registers.
type attentionAssembly struct {
	scores, mix attentionTiles
}

type attentionTiles [3]attentionTile

type attentionTile func(rows, d int, dst *float32, ldd int, src *float32, lds int, cache *byte, ldc, ahead int)

var vec512 = vecAssembly{
	dot: dotAVX512, sumSquares: sumSquaresAVX512, maxOf: maxOfAVX512, indexOf: indexOfAVX512,
	exp: expAVX512, expSum: expSumAVX512, sumExp: sumExpAVX512, siluMul: siluMulAVX512, normalize: normalizeAVX512,
	add: addAVX512, mul: mulAVX512, addScalar: addScalarAVX512, mulScalar: mulScalarAVX512, divScalar: divScalarAVX512, relu: reluAVX512,
	widenF16: widenF16AVX512, narrowF16: narrowF16AVX512, widenBF16: widenBF16AVX512, narrowBF16: narrowBF16AVX512,
	rotateHalves: rotateHalvesAVX512, rotatePairs: rotatePairsAVX512,
	f32: attentionAssembly{
		scores: attentionTiles{scores4F32AVX512, scores2F32AVX512, scores1F32AVX512},
		mix:    attentionTiles{mix4F32AVX512, mix2F32AVX512, mix1F32AVX512},
	},
	f16: attentionAssembly{
		scores: attentionTiles{scores4F16AVX512, scores2F16AVX512, scores1F16AVX512},
		mix:    attentionTiles{mix4F16AVX512, mix2F16AVX512, mix1F16AVX512},
	},
	bf16: attentionAssembly{
		scores: attentionTiles{scores4BF16AVX512, scores2BF16AVX512, scores1BF16AVX512},
		mix:    attentionTiles{mix4BF16AVX512, mix2BF16AVX512, mix1BF16AVX512},
	},
}

var vec256 = vecAssembly{
	dot: dotAVX2, sumSquares: sumSquaresAVX2, maxOf: maxOfAVX2, indexOf: indexOfAVX2,
	exp: expAVX2, expSum: expSumAVX2, sumExp: sumExpAVX2, siluMul: siluMulAVX2, normalize: normalizeAVX2,
	add: addAVX2, mul: mulAVX2, addScalar: addScalarAVX2, mulScalar: mulScalarAVX2, divScalar: divScalarAVX2, relu: reluAVX2,
	widenF16: widenF16AVX2, narrowF16: narrowF16AVX2, widenBF16: widenBF16AVX2, narrowBF16: narrowBF16AVX2,
	rotateHalves: rotateHalvesAVX2, rotatePairs: rotatePairsAVX2,
	f32: attentionAssembly{
		scores: attentionTiles{1: scores2F32AVX2, 2: scores1F32AVX2},
		mix:    attentionTiles{1: mix2F32AVX2, 2: mix1F32AVX2},
	},
	f16: attentionAssembly{
		scores: attentionTiles{1: scores2F16AVX2, 2: scores1F16AVX2},
		mix:    attentionTiles{1: mix2F16AVX2, 2: mix1F16AVX2},
	},
	bf16: attentionAssembly{
		scores: attentionTiles{1: scores2BF16AVX2, 2: scores1BF16AVX2},
		mix:    attentionTiles{1: mix2BF16AVX2, 2: mix1BF16AVX2},
	},
}

// vec wraps the assembly: slices in, lengths checked, long rows cut into chunks.
func (a *vecAssembly) vec() Vec {
	sumSquares := total(a.sumSquares)
	normalize := func(dst, x, w []float32, inv, bias float32) {
		x, w = x[:len(dst)], w[:len(dst)]
		for i := 0; i < len(dst); i += chunk {
			a.normalize(min(chunk, len(dst)-i), &dst[i], &x[i], &w[i], inv, bias)
		}
	}
	return Vec{
		Dot: func(x, y []float32) float32 {
			y = y[:len(x)]
			var s float64
			for i := 0; i < len(x); i += chunk {
				s += float64(a.dot(min(chunk, len(x)-i), &x[i], &y[i]))
			}
			return float32(s)
		},
		SumSquares: sumSquares,
		Max: func(x []float32) float32 {
			top, _ := a.top(x)
			return top
		},
		ArgMax: func(x []float32) int {
			if len(x) == 0 || x[0] != x[0] {
				return min(len(x), 1) - 1
			}
			top, i := a.top(x)
			return i + a.indexOf(min(chunk, len(x)-i), &x[i], top)
		},
		Exp: unaryOp(a.exp),
		ExpSum: func(dst, x []float32, shift float32) (s float64) {
			x = x[:len(dst)]
			for i := 0; i < len(dst); i += chunk {
				s += float64(a.expSum(min(chunk, len(dst)-i), &dst[i], &x[i], shift))
			}
			return s
		},
		SumExp: func(x []float32, shift float32) (s float64) {
			for i := 0; i < len(x); i += chunk {
				s += float64(a.sumExp(min(chunk, len(x)-i), &x[i], shift))
			}
			return s
		},
		SiluMul: binaryOp(a.siluMul),
		RMSNorm: func(dst, x, w []float32, eps float32, gemma bool) {
			inv, bias := rmsScale(sumSquares(x[:len(dst)]), len(dst), eps, gemma)
			normalize(dst, x, w, inv, bias)
		},
		Add: binaryOp(a.add), Mul: binaryOp(a.mul),
		AddScalar: scalarOp(a.addScalar), MulScalar: scalarOp(a.mulScalar), DivScalar: scalarOp(a.divScalar),
		Relu:     unaryOp(a.relu),
		WidenF16: unaryOp(a.widenF16), NarrowF16: unaryOp(a.narrowF16),
		WidenBF16: unaryOp(a.widenBF16), NarrowBF16: unaryOp(a.narrowBF16),
		RotateHalves: func(x, cos, sin []float32) {
			h := len(cos)
			lo, hi, sin := x[:h], x[h:2*h], sin[:h]
			for i := 0; i < h; i += chunk {
				a.rotateHalves(min(chunk, h-i), &lo[i], &hi[i], &cos[i], &sin[i])
			}
		},
		RotatePairs: func(x, cos, sin []float32) {
			x, sin = x[:2*len(cos)], sin[:len(cos)]
			for i := 0; i < len(cos); i += chunk {
				a.rotatePairs(min(chunk, len(cos)-i), &x[2*i], &cos[i], &sin[i])
			}
		},
		AttentionF32:  a.f32.attention(4),
		AttentionF16:  a.f16.attention(2),
		AttentionBF16: a.bf16.attention(2),
	}
}

// top returns the largest element that is no NaN and where the first chunk that
// holds it begins.
func (a *vecAssembly) top(x []float32) (top float32, at int) {
	top = float32(math.Inf(-1))
	for i := 0; i < len(x); i += chunk {
		if m := a.maxOf(min(chunk, len(x)-i), &x[i]); m > top {
			top, at = m, i
		}
	}
	return top, at
}

func total(f func(n int, x *float32) float32) func(x []float32) float64 {
	return func(x []float32) (s float64) {
		for i := 0; i < len(x); i += chunk {
			s += float64(f(min(chunk, len(x)-i), &x[i]))
		}
		return s
	}
}

func unaryOp[D, S any](f func(n int, dst *D, x *S)) func(dst []D, x []S) {
	return func(dst []D, x []S) {
		x = x[:len(dst)]
		for i := 0; i < len(dst); i += chunk {
			f(min(chunk, len(dst)-i), &dst[i], &x[i])
		}
	}
}

func binaryOp(f func(n int, dst, a, b *float32)) func(dst, a, b []float32) {
	return func(dst, a, b []float32) {
		a, b = a[:len(dst)], b[:len(dst)]
		for i := 0; i < len(dst); i += chunk {
			f(min(chunk, len(dst)-i), &dst[i], &a[i], &b[i])
		}
	}
}

func scalarOp(f func(n int, dst, x *float32, s float32)) func(dst, x []float32, s float32) {
	return func(dst, x []float32, s float32) {
		x = x[:len(dst)]
		for i := 0; i < len(dst); i += chunk {
			f(min(chunk, len(dst)-i), &dst[i], &x[i], s)
		}
	}
}

// hot is the number of bytes of cache rows that all queries pass over before
// the next rows are read: they stay in the first-level cache.
const hot = 24 << 10

// ahead is the number of bytes of rows between the row at work and the one that
// is prefetched, if the caller names no distance.
const ahead = 3 << 10

func (a *attentionAssembly) attention(size int) Attention {
	return Attention{
		Scores: func(dst []float32, ldd int, q []float32, ldq, queries int, k Rows) {
			if queries == 0 || k.N == 0 {
				return
			}
			dst, q = dst[:(queries-1)*ldd+k.N], q[:(queries-1)*ldq+k.D]
			if k.D == 0 {
				for g := range queries {
					clear(dst[g*ldd:][:k.N])
				}
				return
			}
			a.scores.over(size, dst, ldd, 1, q, ldq, 0, queries, k)
		},
		Mix: func(out []float32, ldo int, p []float32, ldp, queries int, v Rows) {
			if queries == 0 || v.N == 0 || v.D == 0 {
				return
			}
			out, p = out[:(queries-1)*ldo+v.D], p[:(queries-1)*ldp+v.N]
			a.mix.over(size, out, ldo, 0, p, ldp, 1, queries, v)
		},
	}
}

// over calls tiles until all queries have passed over all rows, a hot block of
// rows after the other. dstRow and srcRow are the steps of dst and src from one
// row to the next.
func (t *attentionTiles) over(size int, dst []float32, ldd, dstRow int, src []float32, lds, srcRow, queries int, r Rows) {
	block := max(hot/(r.D*size)&^3, 4)
	distance := r.Ahead * size
	if distance == 0 {
		distance = (ahead/(r.D*size) + 1) * r.Stride * size
	}
	for j := 0; j < r.N; j += block {
		rows := min(block, r.N-j)
		cache := (*byte)(unsafe.Add(r.Data, j*r.Stride*size))
		g := 0
		for i, tile := range t {
			for n := 4 >> i; tile != nil && g+n <= queries; g += n {
				tile(rows, r.D, &dst[g*ldd+j*dstRow], ldd, &src[g*lds+j*srcRow], lds, cache, r.Stride, distance)
			}
		}
	}
}
