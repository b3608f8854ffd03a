package cpu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Packed sequences have the bits of one call of attention each, and lse is what float64 says.
func TestMHAPrefillIsAttention(t *testing.T) {
	q, f := onReference(t, ops.OpMHAPrefill, ops.OpAttention), newFixture(t)
	a := ops.MHAPrefillArgs{Out: f.raw(tensor.F32, 12, 4, 8), LSE: f.raw(tensor.F32, 4, 12), Query: f.in(tensor.BF16, 12, 4, 8), Key: f.in(tensor.BF16, 20, 2, 8), Value: f.in(tensor.BF16, 20, 2, 8),
		CuSeqlensQ: f.ints(tensor.I32, 0, 5, 5, 12), CuSeqlensK: f.ints(tensor.I32, 0, 9, 11, 20), Sinks: f.f32(1, 0, -1, 2), Scale: 0.5, LogitsSoftCap: 3, Causal: true, Windowed: true, WindowLeft: 4}
	require.NoError(t, ops.MHAPrefill.Launch(q, &a))
	for _, s := range [][4]int64{{0, 5, 0, 9}, {5, 12, 11, 20}} {
		cut := func(x tensor.Tensor, from, to int64) tensor.Tensor { return tensor.Must(x.Slice(0, from, to)) }
		want := ops.AttentionArgs{Out: f.raw(tensor.F32, s[1]-s[0], 4, 8), Query: cut(a.Query, s[0], s[1]), Key: cut(a.Key, s[2], s[3]), Value: cut(a.Value, s[2], s[3]),
			Sinks: a.Sinks, Scale: 0.5, LogitsSoftCap: 3, Causal: true, Windowed: true, WindowLeft: 4}
		require.NoError(t, ops.Attention.Launch(q, &want))
		got := cut(a.Out, s[0], s[1])
		require.Equal(t, tensor.Slice[float32](&want.Out), tensor.Slice[float32](&got))
		n, m := int(s[3]-s[2]), int(s[1]-s[0])
		qs, ks := f64s(&want.Query), f64s(&want.Key)
		for i := range m {
			for h := range 4 {
				sum := math.Exp(float64(one(&a.Sinks, h)))
				for k := max(0, n-m+i-4); k <= n-m+i; k++ {
					dot := 0.0
					for e := range 8 {
						dot += qs[(i*4+h)*8+e] * ks[(k*2+h/2)*8+e]
					}
					sum += math.Exp(3 * math.Tanh(dot/2/3))
				}
				require.InDelta(t, math.Log(sum), one(&a.LSE, h*12+int(s[0])+i), 1e-5)
			}
		}
	}
}

// Decoding is a write to the cache and paged attention.
func TestMHADecodeIsWriteAndPagedAttention(t *testing.T) {
	q, f := onReference(t, ops.OpMHADecodeWithKVCache, ops.OpPagedAttention, ops.OpReshapeAndCache), newFixture(t)
	for _, dt := range []tensor.DType{tensor.F16, tensor.Q8_0} {
		kc, vc := f.pages(dt, 6, 4, 2, 32)
		table := f.as(f.ints(tensor.I32, 3, 1, 0, 5, 2, 4), 2, 3)
		a := ops.MHADecodeWithKVCacheArgs{Out: f.raw(tensor.F32, 2, 3, 4, 32), Query: f.in(tensor.F32, 2, 3, 4, 32), NewK: f.in(tensor.F32, 2, 3, 2, 32), NewV: f.in(tensor.F32, 2, 3, 2, 32),
			KCache: kc, VCache: vc, BlockTable: table, SeqLens: f.ints(tensor.I32, 10, 7), Scale: 0.3, Causal: true}
		require.NoError(t, ops.MHADecodeWithKVCache.Launch(q, &a))
		out := a.Out
		// The slots of positions 7 to 9 of the first request and 4 to 6 of the second; writing them again changes nothing.
		w := ops.ReshapeAndCacheArgs{K: f.as(a.NewK, 6, 2, 32), V: f.as(a.NewV, 6, 2, 32), KCache: kc, VCache: vc, SlotMapping: f.ints(tensor.I64, 1*4+3, 0, 1, 2*4, 2*4+1, 2*4+2)}
		require.NoError(t, ops.ReshapeAndCache.Launch(q, &w))
		p := ops.PagedAttentionArgs{Out: f.raw(tensor.F32, 6, 4, 32), Query: f.as(a.Query, 6, 4, 32), KCache: kc, VCache: vc, BlockTable: table, SeqLens: a.SeqLens,
			QueryStartLoc: f.ints(tensor.I32, 0, 3, 6), Scale: 0.3, Causal: true}
		require.NoError(t, ops.PagedAttention.Launch(q, &p))
		require.Equal(t, tensor.Slice[float32](&p.Out), tensor.Slice[float32](&out), dt)
		a.NewK, a.NewV = tensor.Tensor{}, tensor.Tensor{}
		a.Out = f.raw(tensor.F32, 2, 3, 4, 32)
		require.NoError(t, ops.MHADecodeWithKVCache.Launch(q, &a))
		require.Equal(t, tensor.Slice[float32](&p.Out), tensor.Slice[float32](&a.Out), "what was written is read again")
	}
}
