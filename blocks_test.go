package opmux_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Whole blocks of models, built from ops, against the blocks' definitions in float64 and in another form. The ops run on the
// best kernels of the machine.

// block makes the operands of a block and remembers their values.
type block struct {
	*testing.T
	q   *registry.Queue
	rng *rand.Rand
}

func newBlock(t *testing.T) *block {
	_, q := linked(t)
	return &block{t, q, rand.New(rand.NewPCG(5, 7))}
}

// matrix is rows of numbers in float64.
type matrix [][]float64

// random returns a tensor of n rows in dtype t, of normal numbers times spread, and its values.
func (b *block) random(t tensor.DType, spread float64, n, width int, shape ...int64) (tensor.Tensor, matrix) {
	x := b.new(t, shape...)
	m := make(matrix, n)
	for r := range m {
		m[r] = make([]float64, width)
		for i := range m[r] {
			v := float32(spread * b.rng.NormFloat64())
			at := r*width + i
			if t == tensor.BF16 {
				c := tensor.EncodeBF16(v)
				tensor.Slice[uint16](&x)[at], v = c, tensor.DecodeBF16(c)
			} else {
				tensor.Slice[float32](&x)[at] = v
			}
			m[r][i] = float64(v)
		}
	}
	return x, m
}

func (b *block) new(t tensor.DType, shape ...int64) tensor.Tensor {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	switch t {
	case tensor.BF16:
		return tensor.Must(tensor.FromSlice(make([]uint16, n), t, shape...))
	case tensor.I32:
		return tensor.Must(tensor.FromSlice(make([]int32, n), t, shape...))
	case tensor.I64:
		return tensor.Must(tensor.FromSlice(make([]int64, n), t, shape...))
	}
	return tensor.Must(tensor.FromSlice(make([]float32, n), t, shape...))
}

func (b *block) ints(v ...int32) tensor.Tensor {
	return tensor.Must(tensor.FromSlice(v, tensor.I32, int64(len(v))))
}

// product is x·wᵀ.
func (b *block) product(x, w tensor.Tensor) tensor.Tensor {
	out := b.new(tensor.F32, x.Shape[0], w.Shape[0])
	require.NoError(b, ops.MatmulBT.Call(b.q, ops.MatmulBTArgs{Out: out, A: x, B: w}))
	return out
}

func (b *block) view(x tensor.Tensor, shape ...int64) tensor.Tensor {
	return tensor.Must(x.View(shape...))
}

// near compares a tensor with rows.
func (b *block) near(what string, want matrix, got *tensor.Tensor, tolerance float64) {
	v := tensor.Slice[float32](got)
	size := 0.0
	for _, row := range want {
		for _, x := range row {
			size = max(size, math.Abs(x))
		}
	}
	i := 0
	for r, row := range want {
		for c, x := range row {
			require.InDelta(b, x, v[i], tolerance*size, "%s: row %d column %d", what, r, c)
			i++
		}
	}
	require.Len(b, v, i)
}

// Definitions in float64.

func times(x []float64, w matrix) []float64 { // x·wᵀ
	out := make([]float64, len(w))
	for i, row := range w {
		for j, v := range row {
			out[i] += v * x[j]
		}
	}
	return out
}

func rms(x, w []float64, eps, plus float64) []float64 {
	s := 0.0
	for _, v := range x {
		s += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(s/float64(len(x))+eps) * (w[i] + plus)
	}
	return out
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func plus(x, y []float64) []float64 {
	out := slices.Clone(x)
	for i, v := range y {
		out[i] += v
	}
	return out
}

func unit(x []float64) []float64 {
	s := 1e-6
	for _, v := range x {
		s += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(s)
	}
	return out
}

// TestGatedDeltaNetBlock builds the linear-attention layer of Qwen3-Next: norm, projections, short convolution, gated delta
// rule, gated norm, projection, residual; two sequences, their prompts at once and then token by token, by the granular ops and by
// the packed one. The reference is the recurrence as the paper on Gated Delta Networks (arXiv 2412.06464, equation 10) has it:
// S ← α·S·(I - β·k·kᵀ) + β·v·kᵀ as products of matrices, over each whole sequence.
func TestGatedDeltaNetBlock(t *testing.T) {
	const h, hk, hv, dk, dv, taps = 24, 2, 4, 8, 6, 4
	const wide, scale, eps = 2*hk*dk + hv*dv, 0.35355339, 1e-6
	prompts, steps := []int{5, 3}, 3
	b := newBlock(t)
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16} {
		wNorm, norm := b.random(tensor.F32, 0.1, 1, h, h)
		wQKV, qkv := b.random(dt, 0.2, wide, h, wide, h)
		wZ, z := b.random(dt, 0.2, hv*dv, h, hv*dv, h)
		wA, pa := b.random(dt, 0.2, hv, h, hv, h)
		wB, pb := b.random(dt, 0.2, hv, h, hv, h)
		wConv, conv := b.random(tensor.F32, 0.4, wide, taps, wide, taps)
		aLog, al := b.random(tensor.F32, 0.5, 1, hv, hv)
		dtBias, db := b.random(tensor.F32, 0.5, 1, hv, hv)
		wGate, gate := b.random(tensor.F32, 1, 1, dv, dv)
		wOut, out := b.random(dt, 0.2, h, hv*dv, h, hv*dv)

		// The reference.
		var inputs, want []matrix
		for _, n := range prompts {
			_, x := b.random(tensor.F32, 1, n+steps, h, int64(n+steps), h)
			inputs = append(inputs, x)
			var y, raw matrix
			state := make([]matrix, hv)
			for i := range state {
				state[i] = make(matrix, dv)
				for r := range state[i] {
					state[i][r] = make([]float64, dk)
				}
			}
			for i, row := range x {
				in := rms(row, norm[0], eps, 1)
				raw = append(raw, times(in, qkv))
				c := make([]float64, wide)
				for ch := range c {
					for j, w := range conv[ch] {
						if from := i - (taps - 1 - j); from >= 0 {
							c[ch] += w * raw[from][ch]
						}
					}
					c[ch] *= logistic(c[ch])
				}
				zs, as, bs := times(in, z), times(in, pa), times(in, pb)
				mixed := make([]float64, 0, hv*dv)
				for head := range hv {
					q := unit(c[head/(hv/hk)*dk:][:dk])
					k := unit(c[(hk+head/(hv/hk))*dk:][:dk])
					v := c[2*hk*dk+head*dv:][:dv]
					alpha := math.Exp(-math.Exp(al[0][head]) * math.Log1p(math.Exp(as[head]+db[0][head])))
					beta := logistic(bs[head])
					o := make([]float64, dv)
					for r, s := range state[head] {
						next := make([]float64, dk)
						for col := range next {
							for m, x := range s { // s·(I - β·k·kᵀ)
								d := -beta * k[m] * k[col]
								if m == col {
									d++
								}
								next[col] += alpha * x * d
							}
							next[col] += beta * v[r] * k[col]
							o[r] += scale * next[col] * q[col]
						}
						copy(s, next)
					}
					o = rms(o, gate[0], eps, 0)
					for r, x := range zs[head*dv:][:dv] {
						o[r] *= x * logistic(x)
					}
					mixed = append(mixed, o...)
				}
				y = append(y, plus(row, times(mixed, out)))
			}
			want = append(want, y)
		}

		// The ops, up to the convolution and from its output on.
		front := func(rows matrix) (x, raw, zs, as, bs tensor.Tensor) {
			x = b.new(tensor.F32, int64(len(rows)), h)
			for i, row := range rows {
				for c, v := range row {
					tensor.Slice[float32](&x)[i*h+c] = float32(v)
				}
			}
			in := b.new(tensor.F32, int64(len(rows)), h)
			require.NoError(t, ops.RMSNorm.Call(b.q, ops.RMSNormArgs{Out: in, X: x, Weight: wNorm, Eps: eps, Gemma: true}))
			return x, b.product(in, wQKV), b.product(in, wZ), b.product(in, wA), b.product(in, wB)
		}
		back := func(x, o, zs tensor.Tensor) tensor.Tensor {
			n := x.Shape[0]
			normed := b.new(tensor.F32, n, hv, dv)
			require.NoError(t, ops.RMSNormGated.Call(b.q, ops.RMSNormGatedArgs{Out: normed, X: o, Gate: b.view(zs, n, hv, dv), Weight: wGate, Eps: eps}))
			y := b.product(b.view(normed, n, hv*dv), wOut)
			require.NoError(t, ops.Add.Call(b.q, ops.AddArgs{Out: y, A: y, B: x}))
			return y
		}
		post := func(c, as, bs tensor.Tensor) ops.GDNPostConvArgs {
			n := c.Shape[0]
			p := ops.GDNPostConvArgs{QOut: b.new(tensor.F32, n, hk, dk), KOut: b.new(tensor.F32, n, hk, dk), VOut: b.new(tensor.F32, n, hv, dv), GOut: b.new(tensor.F32, n, hv), BetaOut: b.new(tensor.F32, n, hv),
				Conv: c, A: as, B: bs, ALog: aLog, DtBias: dtBias, Eps: eps}
			require.NoError(t, ops.GDNPostConv.Call(b.q, p))
			return p
		}
		seqs := int64(len(prompts))
		windows, states := b.new(tensor.F32, seqs, wide, taps-1), b.new(tensor.F32, seqs, hv, dv, dk)
		var prompt, expected matrix
		starts := []int32{0}
		for i, n := range prompts {
			prompt, expected = append(prompt, inputs[i][:n]...), append(expected, want[i][:n]...)
			starts = append(starts, int32(len(prompt)))
		}
		x, raw, zs, as, bs := front(prompt)
		convolved := b.new(tensor.F32, x.Shape[0], wide)
		require.NoError(t, ops.CausalConv1DFwd.Call(b.q, ops.CausalConv1DFwdArgs{Out: convolved, X: raw, Weight: wConv, ConvState: windows, QueryStartLoc: b.ints(starts...), HasInitialState: b.ints(0, 0), SiluActivation: true}))
		p := post(convolved, as, bs)
		o := b.new(tensor.F32, x.Shape[0], hv, dv)
		require.NoError(t, ops.GDNPrefill.Call(b.q, ops.GDNPrefillArgs{Out: o, Q: p.QOut, K: p.KOut, V: p.VOut, G: p.GOut, Beta: p.BetaOut, State: states, QueryStartLoc: b.ints(starts...), Scale: scale}))
		y := back(x, o, zs)
		b.near("prefill", expected, &y, 1e-5)

		for step := range steps {
			var rows, expected matrix
			for i, n := range prompts {
				rows, expected = append(rows, inputs[i][n+step]), append(expected, want[i][n+step])
			}
			x, raw, zs, as, bs := front(rows)
			convolved := b.new(tensor.F32, seqs, wide)
			require.NoError(t, ops.CausalConv1DUpdate.Call(b.q, ops.CausalConv1DUpdateArgs{Out: convolved, X: raw, Weight: wConv, ConvState: windows, SiluActivation: true}))
			o := b.new(tensor.F32, seqs, hv, dv)
			if step%2 == 0 {
				require.NoError(t, ops.GDNPackedDecode.Call(b.q, ops.GDNPackedDecodeArgs{Out: o, MixedQKV: convolved, A: as, B: bs, ALog: aLog, DtBias: dtBias, State: states, StateIdx: b.ints(0, 1), Scale: scale}))
			} else {
				p := post(convolved, as, bs)
				require.NoError(t, ops.GDNDecode.Call(b.q, ops.GDNDecodeArgs{Out: o, Q: p.QOut, K: p.KOut, V: p.VOut, G: p.GOut, Beta: p.BetaOut, State: states, Scale: scale}))
			}
			y := back(x, o, zs)
			b.near(fmt.Sprintf("decode %d", step), expected, &y, 1e-5)
		}
	}
}

// TestMoEBlock builds a decoder layer of Qwen3-MoE: grouped-query attention with norms of heads and rope over a paged cache,
// then experts behind a router, with and without a shared expert; two requests, their prompts at once and then a token each. The
// reference is the layer's definition (Qwen3MoeDecoderLayer and Qwen3MoeSparseMoeBlock of HF transformers), recomputed token by token:
// each token attends over its whole request, and every expert is asked whether the token is its own.
func TestMoEBlock(t *testing.T) {
	const h, hq, hkv, d, inter, eps, base, pageSize = 32, 4, 2, 8, 12, 1e-6, 1e4, 4
	prompts, steps := []int{6, 3}, 2
	for _, c := range []struct {
		experts, topK int
		weights       tensor.DType
		shared        bool
		tolerance     float64
	}{{8, 2, tensor.F32, false, 2e-5}, {16, 4, tensor.F32, false, 2e-5}, {8, 2, tensor.BF16, false, 2e-5}, {16, 4, tensor.BF16, true, 5e-3}} {
		t.Run(fmt.Sprintf("%d experts, %d of them, %v, shared %v", c.experts, c.topK, c.weights, c.shared), func(t *testing.T) {
			b := newBlock(t)
			e := int64(c.experts)
			n1, norm1 := b.random(tensor.F32, 1, 1, h, h)
			n2, norm2 := b.random(tensor.F32, 1, 1, h, h)
			qn, qNorm := b.random(tensor.F32, 1, 1, d, d)
			kn, kNorm := b.random(tensor.F32, 1, 1, d, d)
			wQKV, qkv := b.random(c.weights, 0.2, (hq+2*hkv)*d, h, (hq+2*hkv)*d, h)
			wO, o := b.random(c.weights, 0.2, h, hq*d, h, hq*d)
			wR, router := b.random(c.weights, 0.5, c.experts, h, e, h)
			wGate, gate := b.random(c.weights, 0.2, c.experts*inter, h, e, inter, h)
			wUp, up := b.random(c.weights, 0.2, c.experts*inter, h, e, inter, h)
			wDown, down := b.random(c.weights, 0.2, c.experts*h, inter, e, h, inter)
			wSG, sharedGate := b.random(c.weights, 0.2, inter, h, inter, h)
			wSU, sharedUp := b.random(c.weights, 0.2, inter, h, inter, h)
			wSD, sharedDown := b.random(c.weights, 0.2, h, inter, h, inter)
			wG, sharedLogit := b.random(c.weights, 0.2, 1, h, 1, h)

			mlp := func(x []float64, gate, up, down matrix) []float64 {
				g, u := times(x, gate), times(x, up)
				for i := range g {
					g[i] *= logistic(g[i]) * u[i]
				}
				return times(g, down)
			}
			rotate := func(x []float64, pos int) []float64 {
				out := slices.Clone(x)
				for i := range d / 2 {
					s, c := math.Sincos(float64(pos) * math.Pow(base, -2*float64(i)/d))
					out[i], out[i+d/2] = x[i]*c-x[i+d/2]*s, x[i]*s+x[i+d/2]*c
				}
				return out
			}
			var inputs, want []matrix
			for _, n := range prompts {
				_, x := b.random(tensor.F32, 1, n+steps, h, int64(n+steps), h)
				inputs = append(inputs, x)
				var keys, values, y matrix // keys of all heads, one row a token
				for pos, row := range x {
					all := times(rms(row, norm1[0], eps, 0), qkv)
					var key []float64
					for i := range hkv {
						key = append(key, rotate(rms(all[(hq+i)*d:][:d], kNorm[0], eps, 0), pos)...)
					}
					keys, values = append(keys, key), append(values, all[(hq+hkv)*d:])
					attended := make([]float64, hq*d)
					for i := range hq {
						q, kv := rotate(rms(all[i*d:][:d], qNorm[0], eps, 0), pos), i/(hq/hkv)*d
						weights, sum := make([]float64, len(keys)), 0.0
						for j, k := range keys {
							for m, x := range q {
								weights[j] += x * k[kv+m] / math.Sqrt(d)
							}
							weights[j] = math.Exp(weights[j])
							sum += weights[j]
						}
						for j, v := range values {
							for m := range d {
								attended[i*d+m] += weights[j] / sum * v[kv+m]
							}
						}
					}
					residual := plus(row, times(attended, o))
					in := rms(residual, norm2[0], eps, 0)
					logits := times(in, router)
					chosen := 0.0
					mixed := make([]float64, h)
					for x := range c.experts { // is x among the topK best?
						better := 0
						for other, l := range logits {
							if l > logits[x] || l == logits[x] && other < x {
								better++
							}
						}
						if better >= c.topK {
							continue
						}
						share := math.Exp(logits[x])
						chosen += share
						for i, v := range mlp(in, gate[x*inter:][:inter], up[x*inter:][:inter], down[x*h:][:h]) {
							mixed[i] += share * v
						}
					}
					for i := range mixed {
						mixed[i] /= chosen
					}
					if c.shared {
						open := logistic(times(in, sharedLogit)[0])
						for i, v := range mlp(in, sharedGate, sharedUp, sharedDown) {
							mixed[i] += open * v
						}
					}
					y = append(y, plus(residual, mixed))
				}
				want = append(want, y)
			}

			const pages = 8
			cache := b.new(tensor.F32, pages, 2, pageSize, hkv, d)
			plane := func(i int64) tensor.Tensor {
				v := tensor.Must(cache.Slice(1, i, i+1))
				copy(v.Shape[1:], v.Shape[2:])
				copy(v.Stride[1:], v.Stride[2:])
				v.Rank--
				return v
			}
			table := []int32{5, 2, 7, 0, 3, 6} // pages of both requests, three each
			// layer runs the tokens from..to of each request.
			layer := func(from, to []int) tensor.Tensor {
				var rows matrix
				var positions, slots []int64
				starts, lens := []int32{0}, []int32{}
				for r := range prompts {
					for pos := from[r]; pos < to[r]; pos++ {
						rows = append(rows, inputs[r][pos])
						positions = append(positions, int64(pos))
						slots = append(slots, int64(table[3*r+pos/pageSize])*pageSize+int64(pos%pageSize))
					}
					starts, lens = append(starts, int32(len(rows))), append(lens, int32(to[r]))
				}
				n := int64(len(rows))
				x := b.new(tensor.F32, n, h)
				for i, row := range rows {
					for c, v := range row {
						tensor.Slice[float32](&x)[i*h+c] = float32(v)
					}
				}
				in := b.new(tensor.F32, n, h)
				require.NoError(t, ops.RMSNorm.Call(b.q, ops.RMSNormArgs{Out: in, X: x, Weight: n1, Eps: eps}))
				q, k, v := b.new(tensor.F32, n, hq, d), b.new(tensor.F32, n, hkv, d), b.new(tensor.F32, n, hkv, d)
				require.NoError(t, ops.QKVSplit.Call(b.q, ops.QKVSplitArgs{QOut: q, KOut: k, VOut: v, QKV: b.product(in, wQKV)}))
				for _, s := range []struct{ x, w tensor.Tensor }{{b.view(q, n*hq, d), qn}, {b.view(k, n*hkv, d), kn}} {
					require.NoError(t, ops.RMSNorm.Call(b.q, ops.RMSNormArgs{Out: s.x, X: s.x, Weight: s.w, Eps: eps}))
				}
				require.NoError(t, ops.RopeNeox.Call(b.q, ops.RopeNeoxArgs{QStates: q, KStates: k, Positions: tensor.Must(tensor.FromSlice(positions, tensor.I64, n)), Rope: ops.RopeParams{Base: base, RotaryDim: d}}))
				require.NoError(t, ops.ReshapeAndCache.Call(b.q, ops.ReshapeAndCacheArgs{K: k, V: v, KCache: plane(0), VCache: plane(1), SlotMapping: tensor.Must(tensor.FromSlice(slots, tensor.I64, n))}))
				attended := b.new(tensor.F32, n, hq, d)
				require.NoError(t, ops.PagedAttention.Call(b.q, ops.PagedAttentionArgs{Out: attended, Query: q, KCache: plane(0), VCache: plane(1), BlockTable: b.view(b.ints(table...), 2, 3),
					SeqLens: b.ints(lens...), QueryStartLoc: b.ints(starts...), Scale: float32(1 / math.Sqrt(d)), Causal: true}))
				residual := x
				require.NoError(t, ops.RMSNorm.Call(b.q, ops.RMSNormArgs{Out: in, X: b.product(b.view(attended, n, hq*d), wO), Weight: n2, Residual: residual, Eps: eps}))

				weights, ids := b.new(tensor.F32, n, int64(c.topK)), b.new(tensor.I32, n, int64(c.topK))
				require.NoError(t, ops.MoERouterTopK.Call(b.q, ops.MoERouterTopKArgs{Weights: weights, Indices: ids, Logits: b.product(in, wR)}))
				pairs := n * int64(c.topK)
				rowMap := b.new(tensor.I32, pairs)
				for p := range pairs {
					tensor.Slice[int32](&rowMap)[p] = int32(p / int64(c.topK))
				}
				g, u, mixed := b.new(tensor.F32, pairs, inter), b.new(tensor.F32, pairs, inter), b.new(tensor.F32, pairs, h)
				require.NoError(t, ops.MoEGroupedGemm.Call(b.q, ops.MoEGroupedGemmArgs{Out: g, Act: in, ExpertIDs: ids, RowMap: rowMap, Weights: wGate}))
				require.NoError(t, ops.MoEGroupedGemm.Call(b.q, ops.MoEGroupedGemmArgs{Out: u, Act: in, ExpertIDs: ids, RowMap: rowMap, Weights: wUp}))
				act := b.new(tensor.F32, pairs, inter)
				require.NoError(t, ops.MoESiluMul.Call(b.q, ops.MoESiluMulArgs{Out: act, Gate: g, Up: u}))
				require.NoError(t, ops.MoEGroupedGemm.Call(b.q, ops.MoEGroupedGemmArgs{Out: mixed, Act: act, ExpertIDs: ids, Weights: wDown}))
				y, experts := b.new(tensor.F32, n, h), b.view(mixed, n, int64(c.topK), h)
				if c.shared {
					act := b.new(tensor.F32, n, inter)
					require.NoError(t, ops.MoESiluMul.Call(b.q, ops.MoESiluMulArgs{Out: act, Gate: b.product(in, wSG), Up: b.product(in, wSU)}))
					require.NoError(t, ops.MoECombineGate.Call(b.q, ops.MoECombineGateArgs{Out: y, ExpertOut: experts, Weights: weights, Sd: b.product(act, wSD), Gl: b.product(in, wG)}))
				} else {
					require.NoError(t, ops.MoECombine.Call(b.q, ops.MoECombineArgs{Out: y, ExpertOut: experts, Weights: weights}))
				}
				require.NoError(t, ops.Add.Call(b.q, ops.AddArgs{Out: y, A: y, B: residual}))
				return y
			}
			compare := func(what string, from, to []int) {
				y := layer(from, to)
				var expected matrix
				for r := range prompts {
					expected = append(expected, want[r][from[r]:to[r]]...)
				}
				b.near(what, expected, &y, c.tolerance)
			}
			compare("prefill", []int{0, 0}, prompts)
			for s := range steps {
				compare(fmt.Sprintf("decode %d", s), []int{prompts[0] + s, prompts[1] + s}, []int{prompts[0] + s + 1, prompts[1] + s + 1})
			}
		})
	}
}
