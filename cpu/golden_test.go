package cpu

import (
	"context"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// The golden vectors of the catalogue (docs/ops, appendix of golden vectors), computed by an independent implementation.

func ramp(i int) float32 { return float32((i*37+11)%64-32) / 16 }

func ramps(from, n int) (v []float32) {
	for i := range n {
		v = append(v, ramp(from+i))
	}
	return v
}

func fromBits(b ...uint32) (v []float32) {
	for _, u := range b {
		v = append(v, math.Float32frombits(u))
	}
	return v
}

// onReference returns a queue on which every given op runs on the reference.
func onReference(t *testing.T, list ...registry.Op) *registry.Queue {
	r, d := open(t, 2)
	ctx := context.Background()
	for _, op := range list {
		ctx = registry.WithKernel(ctx, op, "reference")
	}
	return newQueue(t, r, d).With(ctx)
}

func TestGoldenRMSNorm(t *testing.T) {
	q, f := onReference(t, ops.OpRMSNorm), newFixture(t)
	res := f.raw(tensor.BF16, 1, 4)
	copy(elems[uint16](&res, 0, 4), []uint16{0xbf91, 0x3f9a, 0xbf01, 0x3fea})
	a := ops.RMSNormArgs{Out: f.raw(tensor.F32, 1, 4), X: f.as(f.f32(ramps(0, 4)...), 1, 4), Weight: f.f32(-0.25, -0.125, 0, 0.125), Residual: res, Eps: 1e-6, Gemma: true}
	require.NoError(t, ops.RMSNorm.Launch(q, &a))
	require.Equal(t, []uint16{0xc01c, 0x400d, 0xbf98, 0x405d}, elems[uint16](&res, 0, 4))
	require.Equal(t, fromBits(0xbf3e8c16, 0x3f48edf9, 0xbef78c6b, 0x3fca74d6), elems[float32](&a.Out, 0, 4))
}

func TestGoldenRope(t *testing.T) {
	q, f := onReference(t, ops.OpRopeCosSinCache), newFixture(t)
	a := ops.RopeCosSinCacheArgs{CosSin: f.raw(tensor.F32, 1, 4), Positions: f.ints(tensor.I32, 3), Rope: ops.RopeParams{RotaryDim: 4}}
	require.NoError(t, ops.RopeCosSinCache.Launch(q, &a))
	require.Equal(t, fromBits(0xbf7d7026, 0x3f7fe283, 0x3e1081c3, 0x3cf5b920), elems[float32](&a.CosSin, 0, 4), "cosines, then sines")
}

func TestGoldenKeyRanges(t *testing.T) {
	for _, c := range []struct {
		causal, windowed bool
		left, right      int32
		want             [4][2]int
	}{
		{true, false, 0, 0, [4][2]int{{0, 6}, {0, 7}, {0, 8}, {0, 9}}},
		{true, true, 2, 0, [4][2]int{{4, 6}, {5, 7}, {6, 8}, {7, 9}}},
		{false, true, 3, 2, [4][2]int{{3, 8}, {4, 9}, {5, 9}, {6, 9}}},
	} {
		for i, w := range c.want {
			lo, hi := span(10-4+i, 10, c.causal, c.windowed, c.left, c.right)
			require.Equal(t, w, [2]int{lo, hi}, "%+v query %d", c, i)
		}
	}
}

func TestGoldenTopP(t *testing.T) {
	q := onReference(t, ops.OpApplyTopKTopP)
	row := []float32{0, 2, 1, 2, -1, 0.5}
	for p, kept := range map[float32][]int{1: {0, 1, 2, 3, 4, 5}, 0.9: {1, 2, 3, 5}, 0.7: {1, 3}, 0.4: {1, 3}, 0.3: {3}, 0: {3}} {
		f := newFixture(t)
		a := ops.ApplyTopKTopPArgs{Logits: f.as(f.f32(row...), 1, 6), P: f.f32(p)}
		require.NoError(t, ops.ApplyTopKTopP.Launch(q, &a))
		want := []float32{negInf, negInf, negInf, negInf, negInf, negInf}
		for _, i := range kept {
			want[i] = row[i]
		}
		require.Equal(t, want, elems[float32](&a.Logits, 0, 6), "p = %v", p)
	}
}

func TestGoldenRandomSample(t *testing.T) {
	require.Equal(t, uint64(0xe220a8397b1dcdaf), mix(0))
	require.Equal(t, uint64(0x910a2dec89025cc1), mix(1))
	require.Equal(t, uint64(0x5e41ab087439611e), mix(mix(1)))
	require.Equal(t, uint32(0x3f7fc8c9), math.Float32bits(float32(-math.Log(uniform(mix(1), 0)))))
	require.Equal(t, uint32(0x3f241e79), math.Float32bits(float32(-math.Log(uniform(mix(1), 1)))))
	q, f := onReference(t, ops.OpRandomSample), newFixture(t)
	uniformRows := make([]float32, 16)
	for i := range uniformRows {
		uniformRows[i] = 1.0 / 8
	}
	for seed, want := range map[int64][]int64{1: {4, 3}, 42: {7, 0}} {
		a := ops.RandomSampleArgs{TokenIDs: f.raw(tensor.I64, 2), Probs: f.as(f.f32(uniformRows...), 2, 8), Seeds: f.ints(tensor.I64, seed, seed)}
		require.NoError(t, ops.RandomSample.Launch(q, &a))
		require.Equal(t, want, elems[int64](&a.TokenIDs, 0, 2))
	}
}

func TestGoldenBlocks(t *testing.T) {
	q := onReference(t, ops.OpMatmulBTQuant)
	for _, c := range []struct {
		t     tensor.DType
		dmin  int // where the scales are
		d     int
		want  uint32
		first []float32 // y[0], y[1], y[17]
	}{
		{tensor.Q4_0, -1, 0, 0x3fc38400, []float32{-0.4375, 0.375, -0.1875}},
		{tensor.Q8_0, -1, 0, 0xc1b5c6bc, []float32{4.0625, 5.875, 2.875}},
		{tensor.Q3_K, -1, 108, 0x41d2b56a, []float32{4.3125, -5.75, 7}},
		{tensor.Q4_K, 2, 0, 0xc3b2a7e0, []float32{24.34375, 13.28125, 13.28125}},
		{tensor.Q5_K, 2, 0, 0xc40c6592, []float32{83.34375, 13.28125, 13.28125}},
		{tensor.Q6_K, -1, 208, 0x44bb41b4, []float32{-81.9375, 99.75, 49}},
	} {
		f := newFixture(t)
		elements, size := c.t.Block()
		w := f.raw(c.t, 1, int64(elements))
		b := unsafe.Slice((*byte)(w.Host), size)
		for i := range b {
			b[i] = byte(i*29 + 7)
		}
		b[c.d], b[c.d+1] = 0x00, 0x2c
		if c.dmin >= 0 {
			b[c.dmin], b[c.dmin+1] = 0x00, 0x28
		}
		a := ops.MatmulBTQuantArgs{Out: f.raw(tensor.F32, 1, 1), A: f.as(f.f32(ramps(0, elements)...), 1, int64(elements)), B: w}
		require.NoError(t, ops.MatmulBTQuant.Launch(q, &a))
		require.Equal(t, c.want, elems[uint32](&a.Out, 0, 1)[0], c.t)
		y := make([]float32, elements)
		require.NoError(t, tensor.Decode(y, c.t, b))
		require.Equal(t, c.first, []float32{y[0], y[1], y[17]}, c.t)
	}
}

// The reference against formulas in float64 that share nothing with it.

func f64s(x *tensor.Tensor) []float64 {
	k := int(x.Last())
	row, _ := x.DType.RowBytes(int64(k))
	var out []float64
	v := make([]float32, k)
	for i := range int(x.Numel()) / max(k, 1) {
		if err := tensor.Decode(v, x.DType, unsafe.Slice((*byte)(unsafe.Add(x.Host, i*int(row))), row)); err != nil {
			panic(err)
		}
		for _, e := range v {
			out = append(out, float64(e))
		}
	}
	return out
}

func near(t *testing.T, want []float64, got *tensor.Tensor, tol float64, what string) {
	t.Helper()
	var diff, sum float64
	for i, g := range f64s(got) {
		diff += (g - want[i]) * (g - want[i])
		sum += want[i] * want[i]
	}
	require.Positive(t, sum)
	require.LessOrEqual(t, diff/sum, tol, what)
}

func TestReferenceAgainstFloat64(t *testing.T) {
	q := onReference(t, ops.OpMatmul, ops.OpMatmulBT, ops.OpMatmulBTQuant, ops.OpRMSNorm, ops.OpSiluAndMul, ops.OpSoftmax, ops.OpAttention,
		ops.OpPagedAttention, ops.OpComputeProbs, ops.OpComputeLogprobs, ops.OpRopeNeox)
	f := newFixture(t)
	const m, n, k = 5, 11, 512
	product := func(a, b []float64) (c []float64) { // a [m,k] by b [n,k]
		for i := range m {
			for j := range n {
				s := 0.0
				for e := range k {
					s += a[i*k+e] * b[j*k+e]
				}
				c = append(c, s)
			}
		}
		return c
	}
	for _, w := range append(append([]tensor.DType{}, floatTypes...), blockTypes...) {
		a := ops.MatmulBTArgs{Out: f.raw(tensor.F32, m, n), A: f.in(tensor.F16, m, k), B: f.in(w, n, k)}
		require.NoError(t, ops.MatmulBT.Launch(q, &a))
		tol := 1e-12
		if w.IsBlock() && w != tensor.Q8_K {
			tol = 5e-4 // activations are quantised
		}
		near(t, product(f64s(&a.A), f64s(&a.B)), &a.Out, tol, w.String())
	}
	mm := ops.MatmulArgs{Out: f.raw(tensor.F32, m, n), A: f.in(tensor.F32, m, k), B: f.in(tensor.BF16, k, n)}
	require.NoError(t, ops.Matmul.Launch(q, &mm))
	b, bt := f64s(&mm.B), make([]float64, n*k)
	for e := range k {
		for j := range n {
			bt[j*k+e] = b[e*n+j]
		}
	}
	near(t, product(f64s(&mm.A), bt), &mm.Out, 1e-12, "matmul")

	norm := ops.RMSNormArgs{Out: f.raw(tensor.F32, 1, k), X: f.in(tensor.F32, 1, k), Weight: f.in(tensor.F32, k), Eps: 0.5}
	require.NoError(t, ops.RMSNorm.Launch(q, &norm))
	x, w, want, sq := f64s(&norm.X), f64s(&norm.Weight), make([]float64, k), 0.0
	for _, v := range x {
		sq += v * v
	}
	for i, v := range x {
		want[i] = v / math.Sqrt(sq/k+0.5) * w[i]
	}
	near(t, want, &norm.Out, 1e-12, "rms_norm")

	silu := ops.SiluAndMulArgs{Out: f.raw(tensor.F32, 1, k/2), X: f.in(tensor.F32, 1, k), Alpha: 1.5}
	require.NoError(t, ops.SiluAndMul.Launch(q, &silu))
	x, want = f64s(&silu.X), make([]float64, k/2)
	for i := range want {
		want[i] = x[i] / (1 + math.Exp(-1.5*x[i])) * x[k/2+i]
	}
	near(t, want, &silu.Out, 1e-12, "silu_and_mul")

	probs := ops.ComputeProbsArgs{Probs: f.raw(tensor.F32, 1, k), Logits: f.in(tensor.F32, 1, k)}
	logs := ops.ComputeLogprobsArgs{Logprobs: f.raw(tensor.F32, 1, k), Logits: probs.Logits}
	require.NoError(t, ops.ComputeProbs.Launch(q, &probs))
	require.NoError(t, ops.ComputeLogprobs.Launch(q, &logs))
	x, sum := f64s(&probs.Logits), 0.0
	for _, v := range x {
		sum += math.Exp(v)
	}
	p, lp := make([]float64, k), make([]float64, k)
	for i, v := range x {
		p[i], lp[i] = math.Exp(v)/sum, v-math.Log(sum)
	}
	near(t, p, &probs.Probs, 1e-12, "compute_probs")
	near(t, lp, &logs.Logprobs, 1e-12, "compute_logprobs")

	// Attention: 7 queries behind 6 past keys, 4 heads on 2, soft cap, window, sinks, mask.
	at := ops.AttentionArgs{Out: f.raw(tensor.F32, 7, 4, 8), Query: f.in(tensor.F32, 7, 4, 8), Key: f.in(tensor.F32, 13, 2, 8), Value: f.in(tensor.F32, 13, 2, 8),
		Mask: f.in(tensor.F32, 7, 13), Sinks: f.f32(1, 0, -1, 2), Scale: 0.5, LogitsSoftCap: 3, Causal: true, Windowed: true, WindowLeft: 5}
	require.NoError(t, ops.Attention.Launch(q, &at))
	qs, ks, vs, ms := f64s(&at.Query), f64s(&at.Key), f64s(&at.Value), f64s(&at.Mask)
	want = make([]float64, 7*4*8)
	for i := range 7 {
		for h := range 4 {
			total := math.Exp(float64(one(&at.Sinks, h)))
			out := want[(i*4+h)*8:][:8]
			for j := max(0, 6+i-5); j <= 6+i; j++ {
				s := 0.0
				for e := range 8 {
					s += qs[(i*4+h)*8+e] * ks[(j*2+h/2)*8+e]
				}
				w := math.Exp(3*math.Tanh(s*0.5/3) + ms[i*13+j])
				total += w
				for e := range 8 {
					out[e] += w * vs[(j*2+h/2)*8+e]
				}
			}
			for e := range out {
				out[e] /= total
			}
		}
	}
	near(t, want, &at.Out, 1e-12, "attention")

	// The same keys in pages of 4, in another order, without the mask.
	pa := ops.PagedAttentionArgs{Out: f.raw(tensor.F32, 7, 4, 8), Query: at.Query, KCache: f.raw(tensor.F32, 5, 4, 2, 8), VCache: f.raw(tensor.F32, 5, 4, 2, 8),
		BlockTable: f.as(f.ints(tensor.I32, 4, 0, 3, 1), 1, 4), SeqLens: f.ints(tensor.I32, 13), QueryStartLoc: f.ints(tensor.I32, 0, 7), Sinks: at.Sinks,
		Scale: 0.5, LogitsSoftCap: 3, Causal: true, Windowed: true, WindowLeft: 5}
	for j := range 13 {
		page := int(elems[int32](&pa.BlockTable, j/4, 1)[0])
		copy(elems[float32](&pa.KCache, (page*4+j%4)*16, 16), elems[float32](&at.Key, j*16, 16))
		copy(elems[float32](&pa.VCache, (page*4+j%4)*16, 16), elems[float32](&at.Value, j*16, 16))
	}
	at.Mask = tensor.Tensor{}
	require.NoError(t, ops.Attention.Launch(q, &at))
	require.NoError(t, ops.PagedAttention.Launch(q, &pa))
	require.Equal(t, tensor.Slice[float32](&at.Out), tensor.Slice[float32](&pa.Out))

	rope := ops.RopeNeoxArgs{QStates: f.in(tensor.F32, 1, 1, 8), Positions: f.ints(tensor.I64, 17), Rope: ops.RopeParams{RotaryDim: 6, Base: 100}, Interleaved: true}
	x = f64s(&rope.QStates)
	require.NoError(t, ops.RopeNeox.Launch(q, &rope))
	for i := range 3 {
		s, c := math.Sincos(17 * math.Pow(100, -2*float64(i)/6))
		x[2*i], x[2*i+1] = x[2*i]*c-x[2*i+1]*s, x[2*i]*s+x[2*i+1]*c
	}
	near(t, x, &rope.QStates, 1e-12, "rope_neox")
}
