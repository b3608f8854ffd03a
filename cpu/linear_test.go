package cpu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

var linearOps = []registry.Op{ops.OpCausalConv1DFwd, ops.OpCausalConv1DUpdate, ops.OpGDNPrefill, ops.OpGDNDecode, ops.OpGDNPackedDecode, ops.OpGDNGBeta, ops.OpGDNConvSplit, ops.OpGDNPostConv, ops.OpL2Norm}

// The catalogue's golden step, bit for bit.
func TestGoldenDeltaStep(t *testing.T) {
	q, f := onReference(t, linearOps...), newFixture(t)
	a := ops.GDNDecodeArgs{Out: f.raw(tensor.F32, 1, 1, 2), Q: f.as(f.f32(0.6, 0.8), 1, 1, 2), K: f.as(f.f32(0.8, -0.6), 1, 1, 2), V: f.as(f.f32(1, -2), 1, 1, 2), G: f.as(f.f32(-0.5), 1, 1),
		Beta: f.as(f.f32(0.25), 1, 1), State: f.as(f.f32(0.5, -0.25, 1, 0.125), 1, 1, 2, 2), Scale: 0.5}
	require.NoError(t, ops.GDNDecode.Launch(q, &a))
	require.Equal(t, fromBits(0x3edf8316, 0xbe80d0ea, 0x3df2dc04, 0x3ee23089), elems[float32](&a.State, 0, 4))
	require.Equal(t, fromBits(0x3cf86f60, 0x3e59616e), elems[float32](&a.Out, 0, 2))
}

func TestGoldenCausalConv(t *testing.T) {
	q, f := onReference(t, linearOps...), newFixture(t)
	a := ops.CausalConv1DFwdArgs{Out: f.raw(tensor.F32, 3, 1), X: f.as(f.f32(1, 2, 4), 3, 1), Weight: f.as(f.f32(0.5, 0.25, 2), 1, 3), ConvState: f.as(f.f32(8, 16), 1, 1, 2),
		QueryStartLoc: f.ints(tensor.I32, 0, 3), HasInitialState: f.ints(tensor.I32, 1)}
	require.NoError(t, ops.CausalConv1DFwd.Launch(q, &a))
	require.Equal(t, []float32{10, 12.25, 9}, elems[float32](&a.Out, 0, 3))
	require.Equal(t, []float32{2, 4}, elems[float32](&a.ConvState, 0, 2))
}

// A chain of updates is the convolution; padded inputs give the bits of packed ones.
func TestConvUpdatesChain(t *testing.T) {
	q, f := onReference(t, linearOps...), newFixture(t)
	const tokens, c, k = 11, 150, 4
	x, w, bias := f.random(tensor.F32, tokens, c), f.random(tensor.F32, c, k), f.random(tensor.F32, c)
	state := f.random(tensor.F32, 1, c, k-1)
	clone := func(x tensor.Tensor) tensor.Tensor {
		y := f.raw(x.DType, x.Dims()...)
		copy(elems[float32](&y, 0, int(x.Numel())), elems[float32](&x, 0, int(x.Numel())))
		return y
	}
	fwd := ops.CausalConv1DFwdArgs{Out: f.raw(tensor.F32, tokens, c), X: x, Weight: w, Bias: bias, ConvState: clone(state), QueryStartLoc: f.ints(tensor.I32, 0, tokens),
		HasInitialState: f.ints(tensor.I32, 1), SiluActivation: true}
	require.NoError(t, ops.CausalConv1DFwd.Launch(q, &fwd))
	for i := range int64(tokens) {
		step := ops.CausalConv1DUpdateArgs{Out: f.raw(tensor.F32, 1, c), X: tensor.Must(x.Slice(0, i, i+1)), Weight: w, Bias: bias, ConvState: state, SiluActivation: true}
		require.NoError(t, ops.CausalConv1DUpdate.Launch(q, &step))
		require.Equal(t, elems[float32](&fwd.Out, int(i)*c, c), elems[float32](&step.Out, 0, c))
	}
	require.Equal(t, elems[float32](&fwd.ConvState, 0, c*(k-1)), elems[float32](&state, 0, c*(k-1)))
}

// delta64 is the rule in matrix form and f64: S ← S·e^g·(I - β·k·kᵀ) + β·v·kᵀ, out = scale·S·q.
func delta64(s [][]float64, q, k, v []float64, g, beta, scale float64) []float64 {
	out := make([]float64, len(v))
	for i, row := range s {
		next := make([]float64, len(k))
		for j := range k {
			for l := range k {
				p := -beta * k[l] * k[j]
				if l == j {
					p++
				}
				next[j] += math.Exp(g) * row[l] * p
			}
			next[j] += beta * v[i] * k[j]
			out[i] += scale * next[j] * q[j]
		}
		copy(row, next)
	}
	return out
}

func TestDeltaRuleAgainstItsMatrixForm(t *testing.T) {
	qu, f := onReference(t, linearOps...), newFixture(t)
	const tokens, hk, hv, dk, dv = 6, 2, 4, 5, 3
	for _, tiled := range []bool{false, true} {
		q, k, v := f.random(tensor.F32, tokens, hk, dk), f.random(tensor.BF16, tokens, hk, dk), f.random(tensor.F16, tokens, hv, dv)
		for i := range tokens * hk * dk { // keys of about unit length, as the caller of the op gives them
			put(&k, i, one(&k, i)/3)
		}
		g, beta := f.random(tensor.F32, tokens, hv), f.random(tensor.F32, tokens, hv)
		for i := range tokens * hv {
			put(&g, i, -abs32(one(&g, i)))
			put(&beta, i, sigmoid(one(&beta, i)))
		}
		a := ops.GDNPrefillArgs{Out: f.raw(tensor.F32, tokens, hv, dv), Q: q, K: k, V: v, G: g, Beta: beta, State: f.random(tensor.F32, 2, hv, dv, dk), QueryStartLoc: f.ints(tensor.I32, 0, 4, tokens), Scale: 0.4, TiledHeads: tiled}
		states := make([][][]float64, 2*hv)
		for i := range states {
			for r := range dv {
				row := []float64{}
				for _, x := range elems[float32](&a.State, (i*dv+r)*dk, dk) {
					row = append(row, float64(x))
				}
				states[i] = append(states[i], row)
			}
		}
		require.NoError(t, ops.GDNPrefill.Launch(qu, &a))
		wide := func(x *tensor.Tensor, off, n int) (v []float64) {
			for i := range n {
				v = append(v, float64(one(x, off+i)))
			}
			return v
		}
		for tok := range tokens {
			for h := range hv {
				head := h / (hv / hk)
				if tiled {
					head = h % hk
				}
				s := states[h]
				if tok >= 4 {
					s = states[hv+h]
				}
				want := delta64(s, wide(&q, (tok*hk+head)*dk, dk), wide(&k, (tok*hk+head)*dk, dk), wide(&v, (tok*hv+h)*dv, dv), float64(one(&g, tok*hv+h)), float64(one(&beta, tok*hv+h)), 0.4)
				for i, x := range want {
					require.InDelta(t, x, one(&a.Out, (tok*hv+h)*dv+i), 3e-6*(1+math.Abs(x)))
				}
			}
		}
		for i, s := range states {
			for e := range dv * dk {
				require.InDelta(t, s[e/dk][e%dk], one(&a.State, i*dv*dk+e), 3e-6*(1+math.Abs(s[e/dk][e%dk])))
			}
		}
	}
}

// One token by prefill, by decode, and packed; the packed step is the composition of the granular ops.
func TestDecodeIsPrefillOfOneToken(t *testing.T) {
	qu, f := onReference(t, linearOps...), newFixture(t)
	const rows, hk, hv, dk, dv = 3, 2, 4, 8, 5
	conv, a, b := f.random(tensor.F32, rows, 2*hk*dk+hv*dv), f.random(tensor.F32, rows, hv), f.random(tensor.F32, rows, hv)
	aLog, bias := f.random(tensor.F32, hv), f.random(tensor.F32, hv)
	post := ops.GDNPostConvArgs{QOut: f.raw(tensor.F32, rows, hk, dk), KOut: f.raw(tensor.F32, rows, hk, dk), VOut: f.raw(tensor.F32, rows, hv, dv), GOut: f.raw(tensor.F32, rows, hv), BetaOut: f.raw(tensor.F32, rows, hv),
		Conv: conv, A: a, B: b, ALog: aLog, DtBias: bias, Eps: 1e-6}
	require.NoError(t, ops.GDNPostConv.Launch(qu, &post))

	// The fusion has the bits of split, norms and gates.
	split := ops.GDNConvSplitArgs{QOut: f.raw(tensor.F32, rows, hk, dk), KOut: f.raw(tensor.F32, rows, hk, dk), VOut: f.raw(tensor.F32, rows, hv, dv), Conv: conv}
	require.NoError(t, ops.GDNConvSplit.Launch(qu, &split))
	for _, x := range [][2]*tensor.Tensor{{&split.QOut, &post.QOut}, {&split.KOut, &post.KOut}} {
		out := f.raw(tensor.F32, rows, hk, dk)
		require.NoError(t, ops.L2Norm.Call(qu, ops.L2NormArgs{Out: out, X: *x[0], Eps: 1e-6}))
		require.Equal(t, elems[float32](&out, 0, rows*hk*dk), elems[float32](x[1], 0, rows*hk*dk))
	}
	require.Equal(t, elems[float32](&split.VOut, 0, rows*hv*dv), elems[float32](&post.VOut, 0, rows*hv*dv))
	gates := ops.GDNGBetaArgs{GOut: f.raw(tensor.F32, rows, hv), BetaOut: f.raw(tensor.F32, rows, hv), A: a, B: b, ALog: aLog, DtBias: bias}
	require.NoError(t, ops.GDNGBeta.Launch(qu, &gates))
	require.Equal(t, elems[float32](&gates.GOut, 0, rows*hv), elems[float32](&post.GOut, 0, rows*hv))
	for i := range rows * hv {
		x := float64(one(&a, i)) + float64(one(&bias, i%hv))
		require.InEpsilon(t, -math.Exp(float64(one(&aLog, i%hv)))*math.Log(1+math.Exp(x)), one(&gates.GOut, i), 1e-5)
		require.InEpsilon(t, 1/(1+math.Exp(-float64(one(&b, i)))), one(&gates.BetaOut, i), 1e-6)
	}

	state := f.random(tensor.F32, rows, hv, dv, dk)
	clone := func() tensor.Tensor {
		y := f.raw(tensor.F32, rows, hv, dv, dk)
		copy(elems[float32](&y, 0, rows*hv*dv*dk), elems[float32](&state, 0, rows*hv*dv*dk))
		return y
	}
	pre := ops.GDNPrefillArgs{Out: f.raw(tensor.F32, rows, hv, dv), Q: post.QOut, K: post.KOut, V: post.VOut, G: post.GOut, Beta: post.BetaOut, State: clone(), QueryStartLoc: f.ints(tensor.I32, 0, 1, 2, 3), Scale: 0.3}
	dec := ops.GDNDecodeArgs{Out: f.raw(tensor.F32, rows, hv, dv), Q: post.QOut, K: post.KOut, V: post.VOut, G: post.GOut, Beta: post.BetaOut, State: clone(), Scale: 0.3}
	packed := ops.GDNPackedDecodeArgs{Out: f.raw(tensor.F32, rows, hv, dv), MixedQKV: conv, A: a, B: b, ALog: aLog, DtBias: bias, State: clone(), StateIdx: f.ints(tensor.I32, 0, 1, 2), Scale: 0.3}
	require.NoError(t, ops.GDNPrefill.Launch(qu, &pre))
	require.NoError(t, ops.GDNDecode.Launch(qu, &dec))
	require.NoError(t, ops.GDNPackedDecode.Launch(qu, &packed))
	require.Equal(t, elems[float32](&pre.Out, 0, rows*hv*dv), elems[float32](&dec.Out, 0, rows*hv*dv))
	require.Equal(t, elems[float32](&pre.State, 0, rows*hv*dv*dk), elems[float32](&dec.State, 0, rows*hv*dv*dk))
	for i := range rows * hv * dv {
		require.InDelta(t, one(&dec.Out, i), one(&packed.Out, i), 1e-5+1e-5*math.Abs(float64(one(&dec.Out, i))))
	}
}
