package cpu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// The catalogue's vector of a merge.
func TestGoldenMerge(t *testing.T) {
	q, f := onReference(t, ops.OpMergeAttnStates), newFixture(t)
	matrix := func(v float32) tensor.Tensor { return f.as(f.f32(v), 1, 1) }
	head := func(v float32) tensor.Tensor { return f.as(f.f32(v), 1, 1, 1) }
	a := ops.MergeAttnStatesArgs{Output: head(0), OutputLSE: matrix(0), PrefixOutput: head(1), PrefixLSE: matrix(0.5), SuffixOutput: head(3), SuffixLSE: matrix(1.5), PrefillTokensWithContext: -1}
	require.NoError(t, ops.MergeAttnStates.Launch(q, &a))
	require.Equal(t, uint32(0x401d9354), math.Float32bits(one(&a.Output, 0)))
	require.Equal(t, uint32(0x3fe818f5), math.Float32bits(one(&a.OutputLSE, 0)))

	// A NaN stays one, and no operand is read where a token has no context.
	a.PrefixLSE = matrix(float32(math.NaN()))
	require.NoError(t, ops.MergeAttnStates.Launch(q, &a))
	require.True(t, math.IsNaN(float64(one(&a.Output, 0))))
	a.PrefillTokensWithContext = 0
	require.NoError(t, ops.MergeAttnStates.Launch(q, &a))
	require.EqualValues(t, 3, one(&a.Output, 0))
}

// softmaxOf is the weighted mean of values by the exponentials of logits, and the log-sum-exp, in f64.
func softmaxOf(logits []float64, value func(j, e int) float64, d int) (out []float64, lse float64) {
	out, lse = make([]float64, d), math.Inf(-1)
	if len(logits) == 0 {
		return out, lse
	}
	sum := 0.0
	for _, s := range logits {
		sum += math.Exp(s)
	}
	for e := range out {
		for j, s := range logits {
			out[e] += math.Exp(s) / sum * value(j, e)
		}
	}
	return out, math.Log(sum)
}

// Decoding over pages, and prefill in two halves that are merged, against sums in f64.
func TestLatentAttentionInF64(t *testing.T) {
	q := onReference(t, ops.OpMLADecodeAttention, ops.OpMLAPrefillAttention, ops.OpMergeAttnStates, ops.OpConcatAndCacheMLA, ops.OpGatherMLACache, ops.OpConcatMLANopeRope)
	f := newFixture(t)
	const h, l, dr, bs, scale = 3, 12, 4, 4, 0.3
	lens := []int{9, 0, 5}
	cache, kvc, kpe := f.in(tensor.F32, 6, bs, l+dr), f.in(tensor.F32, 14, l), f.in(tensor.F32, 14, dr)
	table := f.as(f.ints(tensor.I32, 4, 1, 5, -1, -1, -1, 0, 3, -1), 3, 3)
	slots := f.ints(tensor.I64, 16, 17, 18, 19, 4, 5, 6, 7, 20, 0, 1, 2, 3, 12)
	require.NoError(t, ops.ConcatAndCacheMLA.Call(q, ops.ConcatAndCacheMLAArgs{KvC: kvc, KPe: kpe, KVCache: cache, SlotMapping: slots}))
	element := func(token, e int) float64 {
		if e < l {
			return float64(one(&kvc, token*l+e))
		}
		return float64(one(&kpe, token*dr+e-l))
	}

	query := f.in(tensor.F32, 3, h, l+dr)
	a := ops.MLADecodeAttentionArgs{Out: f.raw(tensor.F32, 3, h, l), LSE: f.raw(tensor.F32, 3, h), Query: query, KVCache: cache, BlockTable: table, SeqLens: f.ints(tensor.I32, 9, 0, 5), Scale: scale}
	require.NoError(t, ops.MLADecodeAttention.Launch(q, &a))
	first := 0
	for b, n := range lens {
		for i := range h {
			logits := make([]float64, n)
			for j := range logits {
				for e := range l + dr {
					logits[j] += scale * float64(one(&query, (b*h+i)*(l+dr)+e)) * element(first+j, e)
				}
			}
			out, lse := softmaxOf(logits, func(j, e int) float64 { return element(first+j, e) }, l)
			for e, want := range out {
				require.InDelta(t, want, one(&a.Out, (b*h+i)*l+e), 1e-5)
			}
			if n == 0 {
				require.Equal(t, lse, float64(one(&a.LSE, b*h+i)))
			} else {
				require.InDelta(t, lse, one(&a.LSE, b*h+i), 1e-5)
			}
		}
		first += n
	}

	// The rows come back in their order.
	dst := f.raw(tensor.F32, 14, l+dr)
	require.NoError(t, ops.GatherMLACache.Call(q, ops.GatherMLACacheArgs{Dst: dst, SrcCache: cache, BlockTable: table, CuSeqLens: f.ints(tensor.I32, 0, 9, 9, 14),
		TokenToSeq: f.ints(tensor.I32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2), NumTokens: 14}))
	for i := range 14 * (l + dr) {
		require.Equal(t, element(i/(l+dr), i%(l+dr)), float64(one(&dst, i)))
	}

	// Prefill with those rows as keys of one head, over all keys and in two parts.
	prefill := func(rows, from, to int64, causal bool) ops.MLAPrefillAttentionArgs {
		part := func(x tensor.Tensor, d int64) tensor.Tensor {
			return f.as(tensor.Must(x.Slice(0, from, to)), to-from, 1, d)
		}
		p := ops.MLAPrefillAttentionArgs{Out: f.raw(tensor.F32, rows, 1, l), LSE: f.raw(tensor.F32, 1, rows), Query: f.as(tensor.Must(f.as(query, 9, l+dr).Slice(0, 0, rows)), rows, 1, l+dr),
			Key: part(dst, l+dr), Value: part(kvc, l), CuSeqlensQ: f.ints(tensor.I32, 0, rows), CuSeqlensK: f.ints(tensor.I32, 0, to-from), Scale: scale, Causal: causal}
		require.NoError(t, ops.MLAPrefillAttention.Launch(q, &p))
		return p
	}
	whole, context, rest := prefill(4, 0, 14, true), prefill(4, 0, 10, false), prefill(4, 10, 14, true)
	m := ops.MergeAttnStatesArgs{Output: f.raw(tensor.F32, 4, 1, l), OutputLSE: f.raw(tensor.F32, 1, 4), PrefixOutput: context.Out, PrefixLSE: context.LSE, SuffixOutput: rest.Out, SuffixLSE: rest.LSE, PrefillTokensWithContext: -1}
	require.NoError(t, ops.MergeAttnStates.Launch(q, &m))
	for i := range 4 {
		logits := make([]float64, 11+i)
		for j := range logits {
			for e := range l + dr {
				logits[j] += scale * float64(one(&query, i*(l+dr)+e)) * element(j, e)
			}
		}
		out, lse := softmaxOf(logits, element, l)
		require.InDelta(t, lse, one(&whole.LSE, i), 1e-5)
		require.InDelta(t, lse, one(&m.OutputLSE, i), 1e-5)
		for e, want := range out {
			require.InDelta(t, want, one(&whole.Out, i*l+e), 1e-5)
			require.InDelta(t, want, one(&m.Output, i*l+e), 1e-5)
		}
	}
	none := prefill(9, 0, 2, true) // the first seven see nothing
	for i := range 7 {
		require.True(t, math.IsInf(float64(one(&none.LSE, i)), -1))
		require.Equal(t, make([]float32, l), elems[float32](&none.Out, i*l, l))
	}

	out, nope, rope := f.raw(tensor.F32, 3, h, l), f.in(tensor.F32, 3, h, 8), f.in(tensor.F32, 3, 1, 4)
	require.NoError(t, ops.ConcatMLANopeRope.Call(q, ops.ConcatMLANopeRopeArgs{Out: out, Nope: nope, Rope: rope}))
	for i := range 3 * h * l {
		want := one(&rope, i/(h*l)*4+max(i%l-8, 0))
		if i%l < 8 {
			want = one(&nope, i/l*8+i%l)
		}
		require.Equal(t, want, one(&out, i))
	}
}
