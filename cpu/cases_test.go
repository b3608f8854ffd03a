package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

var (
	floatTypes = []tensor.DType{tensor.F32, tensor.F16, tensor.BF16}
	outTypes   = []tensor.DType{tensor.F32, tensor.BF16}
	blockTypes = []tensor.DType{tensor.Q4_0, tensor.Q4_1, tensor.Q5_0, tensor.Q5_1, tensor.Q8_0, tensor.Q2_K, tensor.Q3_K, tensor.Q4_K,
		tensor.Q5_K, tensor.Q6_K, tensor.Q8_K, tensor.IQ4_NL}
	fastTiers = []string{"amx", "avx512vnni", "avxvnni", "avx2", "portable"}
)

// outTol is the tolerance of an op with f32 sums and outputs of type t.
func outTol(t tensor.DType) tolerance {
	if t == tensor.F32 {
		return f32Sums
	}
	return bf16Out
}

// implCases lists calls of every op: odd shapes and tails, empty extents, every admitted dtype, strides, values at the edges.
func implCases() (cases []implCase) {
	cases = append(cases, gemmCases()...)
	cases = append(cases, rowCases()...)
	cases = append(cases, ropeCases()...)
	cases = append(cases, attentionCases()...)
	return append(cases, samplingCases()...)
}

func gemmCases() (c []implCase) {
	type mnk struct{ m, n, k int64 }
	for _, out := range outTypes {
		for _, a := range floatTypes {
			for _, b := range floatTypes {
				for _, s := range []mnk{{1, 1, 1}, {3, 17, 5}, {2, 300, 33}, {70, 65, 16}, {2, 3, 0}} {
					name := fmt.Sprintf("%v=%v·%v/%v", out, a, b, s)
					c = append(c, implOf(ops.Matmul, name, outTol(out), func(f *fixture) *ops.MatmulArgs {
						return &ops.MatmulArgs{Out: f.raw(out, s.m, s.n), A: f.in(a, s.m, s.k), B: f.in(b, s.k, s.n)}
					}))
				}
				for _, s := range []mnk{{1, 1, 1}, {1, 70, 37}, {5, 33, 64}, {13, 130, 100}, {2, 3, 0}} {
					for _, packed := range []bool{false, true} {
						name := fmt.Sprintf("%v=%v·%v/%v/lane16=%v", out, a, b, s, packed)
						c = append(c, implOf(ops.MatmulBT, name, outTol(out), func(f *fixture) *ops.MatmulBTArgs {
							r := &ops.MatmulBTArgs{Out: f.raw(out, s.m, s.n), A: f.columns(a, s.m, 2, s.k), B: f.in(b, s.n, s.k)}
							if packed {
								r.B = f.lane16(r.B)
							}
							return r
						}))
					}
				}
			}
		}
	}
	for _, b := range blockTypes {
		_, packs := lanes(b)
		for _, out := range outTypes {
			for _, a := range floatTypes {
				for _, s := range []mnk{{1, 16, 256}, {1, 37, 768}, {7, 50, 512}, {2, 3, 0}} {
					for _, packed := range []bool{false, true} {
						if packed && !packs {
							continue
						}
						name := fmt.Sprintf("%v=%v·%v/%v/lane16=%v", out, a, b, s, packed)
						cs := implOf(ops.MatmulBTQuant, name, quants, func(f *fixture) *ops.MatmulBTQuantArgs {
							r := &ops.MatmulBTQuantArgs{Out: f.raw(out, s.m, s.n), A: f.columns(a, s.m, 0, s.k), B: f.in(b, s.n, s.k)}
							if packed {
								r.B = f.lane16(r.B)
							}
							return r
						})
						if !packs {
							cs.may = fastTiers
						}
						c = append(c, cs)
					}
				}
			}
		}
	}
	// Many rows, so that tiles of every height are used, and columns across several chunks.
	for _, m := range []int64{2, 11, 25, 130} {
		c = append(c, implOf(ops.MatmulBTQuant, fmt.Sprintf("tall/%d", m), quants, func(f *fixture) *ops.MatmulBTQuantArgs {
			return &ops.MatmulBTQuantArgs{Out: f.raw(tensor.F32, m, 250), A: f.in(tensor.F32, m, 96), B: f.lane16(f.in(tensor.Q4_0, 250, 96))}
		}))
	}
	return c
}

func rowCases() (c []implCase) {
	for _, x := range floatTypes {
		for _, out := range outTypes {
			for _, s := range [][2]int64{{1, 1}, {3, 64}, {5, 333}} {
				for _, w := range floatTypes {
					for _, res := range []tensor.DType{tensor.None, tensor.F32, tensor.BF16} {
						tol := outTol(out)
						if res == tensor.BF16 {
							tol = bf16Out
						}
						c = append(c, implOf(ops.RMSNorm, fmt.Sprintf("%v=%v·%v+%v/%v", out, x, w, res, s), tol, func(f *fixture) *ops.RMSNormArgs {
							r := &ops.RMSNormArgs{Out: f.raw(out, s[0], s[1]), X: f.in(x, s[0], s[1]), Weight: f.in(w, s[1]), Eps: 1e-5, Gemma: w == tensor.BF16}
							if res != tensor.None {
								r.Residual = f.in(res, s[0], s[1])
							}
							return r
						}))
					}
				}
				c = append(c, implOf(ops.SiluAndMul, fmt.Sprintf("%v=%v/%v", out, x, s), outTol(out), func(f *fixture) *ops.SiluAndMulArgs {
					return &ops.SiluAndMulArgs{Out: f.raw(out, s[0], s[1]), X: f.in(x, s[0], 2*s[1])}
				}), implOf(ops.SiluAndMul, fmt.Sprintf("up/%v=%v/%v", out, x, s), outTol(out), func(f *fixture) *ops.SiluAndMulArgs {
					return &ops.SiluAndMulArgs{Out: f.raw(out, s[0], s[1]), X: f.in(x, s[0], s[1]), Up: f.in(out, s[0], s[1])}
				}), implOf(ops.Add, fmt.Sprintf("row/%v=%v/%v", out, x, s), bits, func(f *fixture) *ops.AddArgs {
					return &ops.AddArgs{Out: f.raw(out, s[0], s[1]), A: f.in(x, s[0], s[1]), B: f.in(tensor.F16, s[1])}
				}), implOf(ops.QKVSplit, fmt.Sprintf("%v/%v", out, s), bits, func(f *fixture) *ops.QKVSplitArgs {
					return &ops.QKVSplitArgs{QOut: f.raw(out, s[0], 2, s[1]), KOut: f.raw(out, s[0]*s[1]), VOut: f.raw(out, s[0], 0), QKV: f.in(out, s[0], 3*s[1])}
				}))
			}
			for _, n := range []int64{1, 1000, 5000} {
				c = append(c, implOf(ops.Add, fmt.Sprintf("%v=%v/%d", out, x, n), bits, func(f *fixture) *ops.AddArgs {
					return &ops.AddArgs{Out: f.raw(out, n), A: f.in(x, n), B: f.in(tensor.BF16, n)}
				}), implOf(ops.Relu, fmt.Sprintf("%v=%v/%d", out, x, n), bits, func(f *fixture) *ops.ReluArgs {
					return &ops.ReluArgs{Out: f.raw(out, n), X: f.in(x, n)}
				}), implOf(ops.MulScalar, fmt.Sprintf("%v=%v/%d", out, x, n), bits, func(f *fixture) *ops.MulScalarArgs {
					return &ops.MulScalarArgs{Out: f.raw(out, n), X: f.in(x, n), Scalar: 1.0 / 3}
				}))
			}
			for _, bias := range []float32{0, 8} {
				c = append(c, implOf(ops.Softmax, fmt.Sprintf("%v=%v/bias=%v", out, x, bias), outTol(out), func(f *fixture) *ops.SoftmaxArgs {
					return &ops.SoftmaxArgs{Out: f.raw(out, 3, 2, 45), X: f.in(x, 3, 2, 45), Mask: f.in(x, 2, 45), Sinks: f.f32(1, -2, 3), Scale: 0.5, MaxBias: bias}
				}))
			}
		}
		for _, t := range append([]tensor.DType{x}, blockTypes...) {
			for _, packed := range []bool{false, true} {
				if _, ok := lanes(t); packed && !ok {
					continue
				}
				c = append(c, implOf(ops.Embedding, fmt.Sprintf("%v/%v/lane16=%v", x, t, packed), bits, func(f *fixture) *ops.EmbeddingArgs {
					r := &ops.EmbeddingArgs{Out: f.raw(tensor.F32, 4, 256), Table: f.in(t, 19, 256), IDs: f.ints(tensor.I64, 0, 18, 7, 7)}
					if packed {
						r.Table = f.lane16(r.Table)
					}
					return r
				}))
			}
		}
	}
	odd := []float32{0, float32(math.Copysign(0, -1)), 1, -1, inf, negInf, nan, 1e-40, -1e-40, 3e38, -3e38, 88, -88, -104, 200}
	silu := implOf(ops.SiluAndMul, "odd", f32Sums, func(f *fixture) *ops.SiluAndMulArgs {
		x := f.f32(append(append([]float32{}, odd...), odd...)...)
		return &ops.SiluAndMulArgs{Out: f.raw(tensor.F32, 1, int64(len(odd))), X: f.as(x, 1, 2*int64(len(odd)))}
	})
	alpha := implOf(ops.SiluAndMul, "alpha", f32Sums, func(f *fixture) *ops.SiluAndMulArgs {
		return &ops.SiluAndMulArgs{Out: f.raw(tensor.F32, 2, 5), X: f.in(tensor.F32, 2, 10), Alpha: 1.702}
	})
	alpha.may = fastTiers
	return append(c, silu, alpha,
		implOf(ops.Relu, "odd", bits, func(f *fixture) *ops.ReluArgs {
			x := f.f32(odd...)
			return &ops.ReluArgs{Out: x, X: x}
		}),
		implOf(ops.Add, "in place", bits, func(f *fixture) *ops.AddArgs {
			x := f.in(tensor.F32, 7, 9)
			return &ops.AddArgs{Out: x, A: x, B: f.in(tensor.F32, 9)}
		}),
		implOf(ops.MulScalar, "in place", bits, func(f *fixture) *ops.MulScalarArgs {
			x := f.f32(odd...)
			return &ops.MulScalarArgs{Out: x, X: x, Scalar: -2}
		}),
		implOf(ops.RMSNorm, "in place", f32Sums, func(f *fixture) *ops.RMSNormArgs {
			x := f.in(tensor.F32, 3, 50)
			return &ops.RMSNormArgs{Out: x, X: x, Eps: 1e-6}
		}),
		implOf(ops.RMSNorm, "zero row", f32Sums, func(f *fixture) *ops.RMSNormArgs {
			return &ops.RMSNormArgs{Out: f.raw(tensor.F32, 1, 4), X: f.as(f.f32(0, 0, 0, 0), 1, 4)}
		}),
		implOf(ops.RMSNorm, "NaN and Inf", f32Sums, func(f *fixture) *ops.RMSNormArgs {
			return &ops.RMSNormArgs{Out: f.raw(tensor.F32, 2, 2), X: f.as(f.f32(nan, 1, inf, 1), 2, 2), Eps: 1e-6}
		}),
		implOf(ops.RMSNorm, "no rows", f32Sums, func(f *fixture) *ops.RMSNormArgs {
			return &ops.RMSNormArgs{Out: f.raw(tensor.F32, 0, 4), X: f.raw(tensor.F32, 0, 4)}
		}),
		implOf(ops.Embedding, "id out of range", bits, func(f *fixture) *ops.EmbeddingArgs {
			return &ops.EmbeddingArgs{Out: f.raw(tensor.F32, 2, 8), Table: f.in(tensor.F32, 3, 8), IDs: f.ints(tensor.I32, 1, 3)}
		}),
		implOf(ops.Softmax, "masked row", f32Sums, func(f *fixture) *ops.SoftmaxArgs {
			return &ops.SoftmaxArgs{Out: f.raw(tensor.F32, 1, 2, 3), X: f.as(f.f32(1, 2, negInf, negInf, negInf, negInf), 1, 2, 3), Scale: 1}
		}))
}

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// as gives a contiguous tensor another shape.
func (f *fixture) as(x tensor.Tensor, shape ...int64) tensor.Tensor {
	return tensor.Must(x.View(shape...))
}

// heads returns a [T,H,D] view of random values: heads d apart of wide, tokens of one more head than there are.
func (f *fixture) heads(t tensor.DType, tokens, n, d, wide int64) tensor.Tensor {
	x := f.in(t, tokens, n+1, wide)
	v := x
	var err error
	for dim, to := range []int64{tokens, n, d} {
		v, err = v.Slice(dim, 0, to)
	}
	if err != nil {
		f.tb.Fatal(err)
	}
	return v
}

func ropeCases() (c []implCase) {
	scalings := map[string]ops.RopeParams{
		"plain":    {RotaryDim: 16},
		"linear":   {RotaryDim: 16, Scaling: ops.RopeLinear, Factor: 4},
		"llama3":   {RotaryDim: 16, Scaling: ops.RopeLlama3, Base: 500000, Factor: 8, LowFreq: 1, HighFreq: 4, OrigContext: 8192},
		"yarn":     {RotaryDim: 16, Scaling: ops.RopeYarn, Factor: 4, OrigContext: 512, AttnScale: 1.2},
		"ntk":      {RotaryDim: 16, Scaling: ops.RopeDynamicNTK, Factor: 2, OrigContext: 128, SeqLen: 300},
		"longrope": {RotaryDim: 16, Scaling: ops.RopeLongRope, OrigContext: 128, SeqLen: 300},
	}
	for _, t := range outTypes {
		for name, p := range scalings {
			for _, interleaved := range []bool{false, true} {
				c = append(c, implOf(ops.RopeNeox, fmt.Sprintf("%v/%s/interleaved=%v", t, name, interleaved), bits, func(f *fixture) *ops.RopeNeoxArgs {
					r := &ops.RopeNeoxArgs{QStates: f.in(t, 3, 4, 20), KStates: f.in(t, 3, 2, 20), Positions: f.ints(tensor.I64, 0, -5, 131071), Rope: p, Interleaved: interleaved}
					if p.Scaling == ops.RopeLongRope {
						r.FreqFactors, r.LongFactors = f.f32(1, 1, 1, 2, 2, 3, 3, 4), f.f32(2, 2, 2, 3, 3, 5, 5, 9)
					}
					return r
				}))
			}
			c = append(c, implOf(ops.RopeCosSinCache, fmt.Sprintf("%v/%s", t, name), bits, func(f *fixture) *ops.RopeCosSinCacheArgs {
				r := &ops.RopeCosSinCacheArgs{CosSin: f.raw(t, 2, 16), Positions: f.ints(tensor.I32, 3, 77), Rope: p}
				if p.Scaling == ops.RopeLongRope {
					r.FreqFactors, r.LongFactors = f.f32(1, 1, 1, 2, 2, 3, 3, 4), f.f32(2, 2, 2, 3, 3, 5, 5, 9)
				}
				return r
			}))
		}
		for _, interleaved := range []bool{false, true} {
			c = append(c, implOf(ops.RopeFromCache, fmt.Sprintf("%v/interleaved=%v", t, interleaved), bits, func(f *fixture) *ops.RopeFromCacheArgs {
				return &ops.RopeFromCacheArgs{QStates: f.heads(t, 5, 3, 24, 31), KStates: f.heads(t, 5, 1, 24, 24), Positions: f.ints(tensor.I32, 0, 6, 2, 2, 5),
					CosSinCache: f.in(t, 7, 18), RotaryDim: 18, Interleaved: interleaved}
			}), implOf(ops.RopeFromCache, fmt.Sprintf("mrope/%v/%v", t, interleaved), bits, func(f *fixture) *ops.RopeFromCacheArgs {
				return &ops.RopeFromCacheArgs{QStates: f.in(t, 2, 3, 20), Positions: f.as(f.ints(tensor.I64, 0, 1, 2, 3, 4, 5), 3, 2),
					CosSinCache: f.in(t, 7, 18), RotaryDim: 18, MropeSection: [3]int32{4, 3, 2}, MropeInterleaved: interleaved}
			}), implOf(ops.RopeFromCache, fmt.Sprintf("position out of range/%v/%v", t, interleaved), bits, func(f *fixture) *ops.RopeFromCacheArgs {
				return &ops.RopeFromCacheArgs{QStates: f.in(t, 2, 3, 20), Positions: f.ints(tensor.I64, 0, 7), CosSinCache: f.in(t, 7, 18), RotaryDim: 18}
			}))
		}
	}
	return c
}

// pages returns the K and V planes of one cache, each [blocks,bs,h,d], interleaved or apart.
func (f *fixture) pages(t tensor.DType, blocks, bs, h, d int64) (k, v tensor.Tensor) {
	if t.IsBlock() {
		return f.in(t, blocks, bs, h, d), f.in(t, blocks, bs, h, d)
	}
	both := f.in(t, blocks, 2, bs, h, d)
	plane := func(i int64) tensor.Tensor {
		x := tensor.Must(both.Slice(1, i, i+1))
		copy(x.Shape[1:], x.Shape[2:])
		copy(x.Stride[1:], x.Stride[2:])
		x.Rank--
		x.Shape[x.Rank], x.Stride[x.Rank] = 0, 0
		f.mems[x.Host] = f.mems[both.Host]
		return x
	}
	return plane(0), plane(1)
}

// pagedCall is one batch of requests.
type pagedCall struct {
	queries, lens []int // of each request
	hq, hk, d     int64
	bs            int64
	pad           int // query rows behind the last request
}

func (f *fixture) paged(p pagedCall, query, cache, out tensor.DType) *ops.PagedAttentionArgs {
	starts, lens, most, total := []int64{0}, []int64{}, int64(1), int64(0)
	for i, q := range p.queries {
		starts = append(starts, starts[i]+int64(q))
		lens = append(lens, int64(p.lens[i]))
		blocks := (int64(p.lens[i]) + p.bs - 1) / p.bs
		most, total = max(most, blocks), total+blocks
	}
	table := f.raw(tensor.I32, int64(len(lens)), most) // entries behind the last block stay poison
	free := f.rng.Perm(int(total) + 1)
	for r, n := range lens {
		for b := range (n + p.bs - 1) / p.bs {
			elems[int32](&table, r*int(most)+int(b), 1)[0] = int32(free[0])
			free = free[1:]
		}
	}
	tq := starts[len(starts)-1] + int64(p.pad)
	a := &ops.PagedAttentionArgs{Out: f.raw(out, tq, p.hq, p.d), Query: f.in(query, tq, p.hq, p.d), BlockTable: table,
		SeqLens: f.ints(tensor.I32, lens...), QueryStartLoc: f.ints(tensor.I32, starts...), Scale: float32(1 / math.Sqrt(float64(p.d))), Causal: true}
	a.KCache, a.VCache = f.pages(cache, total+1, p.bs, p.hk, p.d)
	return a
}

var pagedCalls = []pagedCall{
	{queries: []int{1}, lens: []int{1}, hq: 1, hk: 1, d: 1, bs: 1},
	{queries: []int{1, 1, 1}, lens: []int{5, 70, 33}, hq: 8, hk: 2, d: 64, bs: 16},
	{queries: []int{40}, lens: []int{40}, hq: 6, hk: 2, d: 33, bs: 16, pad: 3},
	{queries: []int{3, 0, 21, 1}, lens: []int{17, 0, 50, 9}, hq: 4, hk: 4, d: 24, bs: 8, pad: 2},
	{queries: []int{2, 1}, lens: []int{1100, 513}, hq: 4, hk: 1, d: 16, bs: 32},
	{queries: []int{4}, lens: []int{2}, hq: 2, hk: 1, d: 8, bs: 4}, // more queries than keys
}

func attentionCases() (c []implCase) {
	for _, query := range floatTypes {
		for _, cache := range append([]tensor.DType{tensor.Q8_0}, floatTypes...) {
			for _, out := range outTypes {
				for i, p := range pagedCalls {
					if cache.IsBlock() && p.d%32 != 0 {
						continue
					}
					cs := implOf(ops.PagedAttention, fmt.Sprintf("%v=%v·%v/%d", out, query, cache, i), outTol(out), func(f *fixture) *ops.PagedAttentionArgs {
						return f.paged(p, query, cache, out)
					})
					if cache.IsBlock() {
						cs.may = fastTiers
					}
					c = append(c, cs)
				}
				if cache.IsBlock() {
					continue
				}
				c = append(c, implOf(ops.Attention, fmt.Sprintf("%v=%v·%v", out, query, cache), outTol(out), func(f *fixture) *ops.AttentionArgs {
					return &ops.AttentionArgs{Out: f.raw(out, 19, 4, 5), Query: f.in(cache, 19, 4, 9), Key: f.in(cache, 23, 2, 9), Value: f.in(cache, 23, 2, 5),
						Mask: f.in(query, 19, 23), Sinks: f.f32(0, 1, -1, negInf), Scale: 0.3, Causal: true}
				}))
			}
		}
	}
	paged := func(name string, p pagedCall, change func(f *fixture, a *ops.PagedAttentionArgs)) {
		c = append(c, implOf(ops.PagedAttention, name, f32Sums, func(f *fixture) *ops.PagedAttentionArgs {
			a := f.paged(p, tensor.F32, tensor.F16, tensor.F32)
			change(f, a)
			return a
		}))
	}
	for i, p := range pagedCalls {
		paged(fmt.Sprintf("window/%d", i), p, func(_ *fixture, a *ops.PagedAttentionArgs) { a.Windowed, a.WindowLeft = true, 11 })
		paged(fmt.Sprintf("both ways/%d", i), p, func(_ *fixture, a *ops.PagedAttentionArgs) {
			a.Causal, a.Windowed, a.WindowLeft, a.WindowRight = false, true, 3, 5
		})
		paged(fmt.Sprintf("not causal/%d", i), p, func(_ *fixture, a *ops.PagedAttentionArgs) { a.Causal = false })
		paged(fmt.Sprintf("soft cap/%d", i), p, func(_ *fixture, a *ops.PagedAttentionArgs) { a.LogitsSoftCap = 2 })
		paged(fmt.Sprintf("sinks/%d", i), p, func(f *fixture, a *ops.PagedAttentionArgs) { a.Sinks = f.in(tensor.F32, p.hq) })
		paged(fmt.Sprintf("NaN/%d", i), p, func(f *fixture, a *ops.PagedAttentionArgs) { put(&a.Query, 0, nan) })
	}
	spoil := func(name string, change func(a *ops.PagedAttentionArgs)) {
		paged(name, pagedCalls[3], func(_ *fixture, a *ops.PagedAttentionArgs) { change(a) })
	}
	spoil("block out of range", func(a *ops.PagedAttentionArgs) { elems[int32](&a.BlockTable, 0, 1)[0] = 1 << 30 })
	spoil("block below range", func(a *ops.PagedAttentionArgs) { elems[int32](&a.BlockTable, 0, 1)[0] = -1 })
	spoil("length over the table", func(a *ops.PagedAttentionArgs) { elems[int32](&a.SeqLens, 2, 1)[0] = 1 << 20 })
	spoil("negative length", func(a *ops.PagedAttentionArgs) { elems[int32](&a.SeqLens, 2, 1)[0] = -1 })
	spoil("falling starts", func(a *ops.PagedAttentionArgs) { elems[int32](&a.QueryStartLoc, 1, 1)[0] = 9 })
	spoil("starts over the rows", func(a *ops.PagedAttentionArgs) { elems[int32](&a.QueryStartLoc, 4, 1)[0] = 1000 })
	spoil("starts not at 0", func(a *ops.PagedAttentionArgs) { elems[int32](&a.QueryStartLoc, 0, 1)[0] = 1 })

	dense := func(name string, change func(f *fixture, a *ops.AttentionArgs)) {
		c = append(c, implOf(ops.Attention, name, f32Sums, func(f *fixture) *ops.AttentionArgs {
			a := &ops.AttentionArgs{Out: f.raw(tensor.F32, 37, 6, 20), Query: f.in(tensor.F32, 37, 6, 20), Key: f.in(tensor.F32, 37, 3, 20),
				Value: f.in(tensor.F32, 37, 3, 20), Scale: 0.2}
			change(f, a)
			return a
		}))
	}
	dense("plain", func(*fixture, *ops.AttentionArgs) {})
	dense("window", func(_ *fixture, a *ops.AttentionArgs) { a.Causal, a.Windowed, a.WindowLeft = true, true, 4 })
	dense("soft cap", func(_ *fixture, a *ops.AttentionArgs) { a.LogitsSoftCap = 1 })
	dense("mask of heads", func(f *fixture, a *ops.AttentionArgs) { a.Mask = f.in(tensor.F32, 6, 37, 37) })
	dense("hidden rows", func(f *fixture, a *ops.AttentionArgs) {
		a.Mask = f.in(tensor.F32, 37, 37)
		for i := range 37 * 5 {
			put(&a.Mask, i, negInf)
		}
		a.Sinks = f.in(tensor.F32, 6)
	})
	dense("more keys", func(f *fixture, a *ops.AttentionArgs) {
		a.Key, a.Value, a.Causal = f.in(tensor.F32, 1300, 3, 20), f.in(tensor.F32, 1300, 3, 20), true
	})
	dense("more queries", func(f *fixture, a *ops.AttentionArgs) {
		a.Key, a.Value, a.Causal = f.in(tensor.F32, 7, 3, 20), f.in(tensor.F32, 7, 3, 20), true
	})
	dense("no keys", func(f *fixture, a *ops.AttentionArgs) {
		a.Key, a.Value = f.raw(tensor.F32, 0, 3, 20), f.raw(tensor.F32, 0, 3, 20)
	})
	dense("NaN", func(_ *fixture, a *ops.AttentionArgs) { put(&a.Key, 20*3*5, nan) })
	dense("Inf in a later value", func(_ *fixture, a *ops.AttentionArgs) { a.Causal = true; put(&a.Value, 20*3*36, inf) })

	for _, from := range floatTypes {
		for _, to := range append([]tensor.DType{tensor.Q8_0}, floatTypes...) {
			write := func(name string, slots ...int64) {
				c = append(c, implOf(ops.ReshapeAndCache, fmt.Sprintf("%v→%v/%s", from, to, name), bits, func(f *fixture) *ops.ReshapeAndCacheArgs {
					n := int64(len(slots)) + 1
					a := &ops.ReshapeAndCacheArgs{K: f.columns3(from, n, 2, 32), V: f.columns3(from, n, 2, 32), SlotMapping: f.ints(tensor.I64, slots...)}
					a.KCache, a.VCache = f.pages(to, 3, 4, 2, 32)
					return a
				}))
			}
			write("some", 11, -1, 0, 5)
			write("twice", 3, 3, 3)
			write("none")
			write("out of range", 0, 12)
		}
	}
	return c
}

// columns3 returns [t,h,d] rows cut out of wider ones.
func (f *fixture) columns3(t tensor.DType, n, h, d int64) tensor.Tensor {
	x := f.in(t, n, h+1, d)
	v := tensor.Must(x.Slice(1, 0, h))
	f.mems[v.Host] = f.mems[x.Host]
	return v
}

func samplingCases() (c []implCase) {
	const n = 3
	for _, v := range []int64{1, 7, 1000, 9001} {
		logits := func(f *fixture) tensor.Tensor {
			x := f.raw(tensor.F32, n, v)
			f.fill(&x, 3)
			for i := int64(3); i < v; i += 5 {
				put(&x, int(v+i), negInf) // masked ones in the second row
			}
			return x
		}
		probs := func(f *fixture) tensor.Tensor {
			x := logits(f)
			for i := range int(n * v) {
				put(&x, i, exp32(one(&x, i)))
			}
			return x
		}
		name := fmt.Sprint(v)
		c = append(c, implOf(ops.ApplyTemperature, name, bits, func(f *fixture) *ops.ApplyTemperatureArgs {
			return &ops.ApplyTemperatureArgs{Logits: logits(f), Temp: f.f32(0.7, 0, 3)}
		}), implOf(ops.ApplyTemperature, "all random/"+name, bits, func(f *fixture) *ops.ApplyTemperatureArgs {
			return &ops.ApplyTemperatureArgs{Logits: logits(f), Temp: f.f32(0.7, 1e-9, 3), AllRandom: true}
		}), implOf(ops.GreedyArgmax, name, bits, func(f *fixture) *ops.GreedyArgmaxArgs {
			return &ops.GreedyArgmaxArgs{TokenIDs: f.raw(tensor.I64, n), Logits: logits(f)}
		}), implOf(ops.GreedyArgmax, "ties/"+name, bits, func(f *fixture) *ops.GreedyArgmaxArgs {
			x := logits(f)
			for i := range int(n * v) {
				put(&x, i, float32(math.Floor(float64(one(&x, i)))))
			}
			return &ops.GreedyArgmaxArgs{TokenIDs: f.raw(tensor.I64, n), Logits: x}
		}), implOf(ops.ComputeProbs, name, f32Sums, func(f *fixture) *ops.ComputeProbsArgs {
			return &ops.ComputeProbsArgs{Probs: f.raw(tensor.F32, n, v), Logits: logits(f)}
		}), implOf(ops.ComputeLogprobs, name, f32Sums, func(f *fixture) *ops.ComputeLogprobsArgs {
			return &ops.ComputeLogprobsArgs{Logprobs: f.raw(tensor.F32, n, v), Logits: logits(f)}
		}), implOf(ops.RandomSample, name, bits, func(f *fixture) *ops.RandomSampleArgs {
			return &ops.RandomSampleArgs{TokenIDs: f.raw(tensor.I64, n), Probs: probs(f), Seeds: f.ints(tensor.I64, 1, -7, 42)}
		}), implOf(ops.ApplyMinP, name, bits, func(f *fixture) *ops.ApplyMinPArgs {
			return &ops.ApplyMinPArgs{Logits: logits(f), MinP: f.f32(0.05, 0, 0.3)}
		}), implOf(ops.ApplyTopKTopP, "k/"+name, bits, func(f *fixture) *ops.ApplyTopKTopPArgs {
			return &ops.ApplyTopKTopPArgs{Logits: logits(f), K: f.ints(tensor.I32, 5, 0, min(v, 40))}
		}), implOf(ops.ApplyTopKTopP, "p/"+name, bits, func(f *fixture) *ops.ApplyTopKTopPArgs {
			return &ops.ApplyTopKTopPArgs{Logits: logits(f), P: f.f32(0.9, 0, 1)}
		}), implOf(ops.ApplyTopKTopP, "k and p/"+name, bits, func(f *fixture) *ops.ApplyTopKTopPArgs {
			return &ops.ApplyTopKTopPArgs{Logits: logits(f), K: f.ints(tensor.I32, 500, 20, 1), P: f.f32(0.5, 0.99, 0.3)}
		}), implOf(ops.ApplyPenalties, name, bits, func(f *fixture) *ops.ApplyPenaltiesArgs {
			return &ops.ApplyPenaltiesArgs{Logits: logits(f), PromptMask: f.mask(n, v), OutputMask: f.mask(n, v), OutputBinCounts: f.as(f.counts(n*v), n, v),
				FrequencyPenalties: f.f32(0, 0.5, -1), PresencePenalties: f.f32(0, 1, 0.1), RepetitionPenalties: f.f32(1, 1.2, 0.8)}
		}), implOf(ops.ApplyAllowedTokenIDs, name, bits, func(f *fixture) *ops.ApplyAllowedTokenIDsArgs {
			return &ops.ApplyAllowedTokenIDsArgs{Logits: logits(f), Mask: f.mask(n, v)}
		}), implOf(ops.ApplyLogitBias, name, bits, func(f *fixture) *ops.ApplyLogitBiasArgs {
			return &ops.ApplyLogitBiasArgs{Logits: logits(f), Rows: f.ints(tensor.I32, 0, 2, 0), Cols: f.ints(tensor.I32, 0, v-1, 0), Biases: f.f32(1, -2, 1e-3)}
		}), implOf(ops.ApplyLogitBias, "out of range/"+name, bits, func(f *fixture) *ops.ApplyLogitBiasArgs {
			return &ops.ApplyLogitBiasArgs{Logits: logits(f), Rows: f.ints(tensor.I32, 0, 3), Cols: f.ints(tensor.I32, 0, 0), Biases: f.f32(1, 1)}
		}), implOf(ops.ApplyTokenMask, name, bits, func(f *fixture) *ops.ApplyTokenMaskArgs {
			return &ops.ApplyTokenMaskArgs{Logits: logits(f), Rows: f.ints(tensor.I32, 0, 2), Cols: f.ints(tensor.I32, 0, v-1)}
		}), implOf(ops.ApplyTokenMask, "out of range/"+name, bits, func(f *fixture) *ops.ApplyTokenMaskArgs {
			return &ops.ApplyTokenMaskArgs{Logits: logits(f), Rows: f.ints(tensor.I32, 0, 0), Cols: f.ints(tensor.I32, 0, v)}
		}))
	}
	last := implOf(ops.GreedyArgmax, "last", bits, func(f *fixture) *ops.GreedyArgmaxArgs {
		return &ops.GreedyArgmaxArgs{TokenIDs: f.raw(tensor.I64, 1), Logits: f.as(f.f32(1, 3, 3, 2), 1, 4), Last: true}
	})
	last.may = fastTiers
	hidden := implOf(ops.ApplyTopKTopP, "hidden row", bits, func(f *fixture) *ops.ApplyTopKTopPArgs {
		return &ops.ApplyTopKTopPArgs{Logits: f.as(f.f32(negInf, negInf, negInf), 1, 3), K: f.ints(tensor.I32, 2), P: f.f32(0.5)}
	})
	hidden.may = fastTiers
	return append(c, last, hidden,
		implOf(ops.GreedyArgmax, "NaN", bits, func(f *fixture) *ops.GreedyArgmaxArgs {
			return &ops.GreedyArgmaxArgs{TokenIDs: f.raw(tensor.I64, 3), Logits: f.as(f.f32(nan, 1, 2, 1, nan, 2, negInf, negInf, negInf), 3, 3)}
		}),
		implOf(ops.ComputeProbs, "hidden row", f32Sums, func(f *fixture) *ops.ComputeProbsArgs {
			return &ops.ComputeProbsArgs{Probs: f.raw(tensor.F32, 2, 2), Logits: f.as(f.f32(negInf, negInf, negInf, 1), 2, 2)}
		}),
		implOf(ops.ComputeLogprobs, "hidden row", f32Sums, func(f *fixture) *ops.ComputeLogprobsArgs {
			return &ops.ComputeLogprobsArgs{Logprobs: f.raw(tensor.F32, 2, 2), Logits: f.as(f.f32(negInf, negInf, negInf, 1), 2, 2)}
		}),
		implOf(ops.RandomSample, "no mass", bits, func(f *fixture) *ops.RandomSampleArgs {
			return &ops.RandomSampleArgs{TokenIDs: f.raw(tensor.I64, 3), Probs: f.as(f.f32(0, 0, 0, nan, nan, nan, 0, 1e-30, 0), 3, 3), Seeds: f.ints(tensor.I64, 1, 2, 3)}
		}))
}

// mask returns random zeros and ones.
func (f *fixture) mask(n, v int64) tensor.Tensor {
	x := f.raw(tensor.I8, n, v)
	for i := range int(n * v) {
		elems[int8](&x, i, 1)[0] = int8(f.rng.IntN(2))
	}
	return x
}

// counts returns small random numbers.
func (f *fixture) counts(n int64) tensor.Tensor {
	x := f.raw(tensor.I32, n)
	for i := range int(n) {
		elems[int32](&x, i, 1)[0] = int32(f.rng.IntN(4))
	}
	return x
}

var _ = unsafe.Pointer(nil)
