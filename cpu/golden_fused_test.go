package cpu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// The vector of rms_norm with a bf16 residual, as two steps of a chain.
func TestGoldenFusedChain(t *testing.T) {
	q, f := onReference(t, ops.OpFusedChain), newFixture(t)
	res := f.raw(tensor.BF16, 1, 4)
	copy(elems[uint16](&res, 0, 4), []uint16{0xbf91, 0x3f9a, 0xbf01, 0x3fea})
	a := ops.FusedChainArgs{Out: f.raw(tensor.F32, 1, 4), X: f.as(f.f32(ramps(0, 4)...), 1, 4), Weight: f.f32(-0.25, -0.125, 0, 0.125), Residual: res, Eps: 1e-6, NumSteps: 2,
		Steps: [ops.MaxFusedSteps]ops.FusedStep{{Op: ops.FusedAdd, In: [3]uint8{0, 2}, Out: 2},
			{Op: ops.FusedRMSNorm, In: [3]uint8{2, 1}, Out: 3, Reduce: ops.ReduceMeanSquare, Gemma: true}}}
	require.NoError(t, ops.FusedChain.Launch(q, &a))
	require.Equal(t, []uint16{0xc01c, 0x400d, 0xbf98, 0x405d}, elems[uint16](&res, 0, 4))
	require.Equal(t, fromBits(0xbf3e8c16, 0x3f48edf9, 0xbef78c6b, 0x3fca74d6), elems[float32](&a.Out, 0, 4))
}

func TestFusedChainAgainstFloat64(t *testing.T) {
	q, f := onReference(t, ops.OpFusedChain), newFixture(t)
	const rows, h = 3, 40
	a := ops.FusedChainArgs{Out: f.raw(tensor.F32, rows, h), X: f.in(tensor.F16, rows, h), Weight: f.in(tensor.BF16, h), Residual: f.in(tensor.F32, rows, h), Eps: 0.25, NumSteps: 6,
		Steps: [ops.MaxFusedSteps]ops.FusedStep{
			{Op: ops.FusedSigmoid, In: [3]uint8{0}, Out: 3},
			{Op: ops.FusedMul, In: [3]uint8{3, 2}, Out: 2}, // res = sigmoid(x)·res
			{Op: ops.FusedAdd, In: [3]uint8{2, 1}, Out: 3}, // out = res + w
			{Op: ops.FusedSilu, In: [3]uint8{3}, Out: 3},
			{Op: ops.FusedRMSNorm, In: [3]uint8{3, 1}, Out: 3, Reduce: ops.ReduceMeanSquare},
			{Op: ops.FusedAdd, In: [3]uint8{3, 0}, Out: 3}}}
	x, w, res, out := f64s(&a.X), f64s(&a.Weight), f64s(&a.Residual), make([]float64, rows*h)
	sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	require.NoError(t, ops.FusedChain.Launch(q, &a))
	for i := range rows {
		mean := 0.0
		for e := range h {
			at := i*h + e
			res[at] *= sigmoid(x[at])
			v := res[at] + w[e]
			out[at] = v * sigmoid(v)
			mean += out[at] * out[at] / h
		}
		for e := range h {
			out[i*h+e] = out[i*h+e]/math.Sqrt(mean+0.25)*w[e] + x[i*h+e]
		}
	}
	near(t, out, &a.Out, 1e-12, "out")
	near(t, res, &a.Residual, 1e-12, "residual")
}

// preamble returns a call of attn_qk_norm_rope_gate whose inputs are parts of one projection.
func (f *fixture) preamble(in, out, gate tensor.DType, tokens, hq, hk, d int64, rotary int32, gemma bool) *ops.AttnQKNormRopeGateArgs {
	all := f.in(in, tokens, hq*2*d+hk*d+3)
	a := &ops.AttnQKNormRopeGateArgs{QOut: f.raw(out, tokens, hq, d), KOut: f.raw(out, tokens, hk, d), GateOut: f.raw(gate, tokens, hq, d),
		Qgate: tensor.Must(all.Slice(1, 0, hq*2*d)), KF: tensor.Must(all.Slice(1, hq*2*d, hq*2*d+hk*d)), QNorm: f.in(tensor.F32, d), KNorm: f.in(tensor.F32, d),
		CosSin: f.raw(tensor.F32, tokens, int64(rotary)), Eps: 1e-6, RotaryDim: rotary, Gemma: gemma}
	for i := range int(tokens) {
		for p := range int(rotary) / 2 {
			s, c := math.Sincos(float64(3*i+1) / float64(p+1))
			cs := elems[float32](&a.CosSin, i*int(rotary), int(rotary))
			cs[p], cs[int(rotary)/2+p] = float32(c), float32(s)
		}
	}
	return a
}

func TestAttnQKNormRopeGateAgainstFloat64(t *testing.T) {
	q, f := onReference(t, ops.OpAttnQKNormRopeGate), newFixture(t)
	const tokens, hq, hk, d, rotary = 3, 4, 2, 10, 6
	for _, gemma := range []bool{false, true} {
		a := f.preamble(tensor.F16, tensor.F32, tensor.F32, tokens, hq, hk, d, rotary, gemma)
		at := func(x *tensor.Tensor, i, j int) float64 { return float64(one(x, i*int(x.Stride[0])+j)) }
		cs := f64s(&a.CosSin)
		head := func(x *tensor.Tensor, token, from int, weight *tensor.Tensor) []float64 {
			n, mean := make([]float64, d), 0.0
			for e := range d {
				mean += at(x, token, from+e) * at(x, token, from+e) / d
			}
			for e, w := range f64s(weight) {
				if gemma {
					w++
				}
				n[e] = at(x, token, from+e) / math.Sqrt(mean+1e-6) * w
			}
			for p := range rotary / 2 {
				turn := complex(n[p], n[p+rotary/2]) * complex(cs[token*rotary+p], cs[token*rotary+rotary/2+p])
				n[p], n[p+rotary/2] = real(turn), imag(turn)
			}
			return n
		}
		var qs, ks, gates []float64
		for i := range tokens {
			for h := range hq {
				qs = append(qs, head(&a.Qgate, i, h*2*d, &a.QNorm)...)
				for e := range d {
					gates = append(gates, at(&a.Qgate, i, (2*h+1)*d+e))
				}
			}
			for h := range hk {
				ks = append(ks, head(&a.KF, i, h*d, &a.KNorm)...)
			}
		}
		require.NoError(t, ops.AttnQKNormRopeGate.Launch(q, a))
		near(t, qs, &a.QOut, 1e-12, "q_out")
		near(t, ks, &a.KOut, 1e-12, "k_out")
		require.Equal(t, gates, f64s(&a.GateOut))
	}
}

// The preamble has the bits of the ops that it stands for: a split, two norms and a rope; with bf16 outputs, of their f32
// results rounded once.
func TestAttnQKNormRopeGateIsItsParts(t *testing.T) {
	q, f := onReference(t, ops.OpAttnQKNormRopeGate, ops.OpRMSNorm, ops.OpRopeFromCache), newFixture(t)
	const tokens = 5
	for _, shape := range [][4]int64{{4, 2, 64, 64}, {2, 1, 7, 2}, {3, 3, 128, 32}, {1, 1, 33, 24}} {
		hq, hk, d, rotary := shape[0], shape[1], shape[2], shape[3]
		for _, in := range floatTypes {
			for _, gemma := range []bool{false, true} {
				a := f.preamble(in, tensor.F32, tensor.F32, tokens, hq, hk, d, int32(rotary), gemma)
				require.NoError(t, ops.AttnQKNormRopeGate.Launch(q, a))

				part := func(x *tensor.Tensor, heads, step int64, weight tensor.Tensor) tensor.Tensor { // norm of the heads of x
					split, out := f.raw(tensor.F32, tokens*heads, d), f.raw(tensor.F32, tokens*heads, d)
					for i := range tokens * heads {
						for e := range d {
							put(&split, int(i*d+e), one(x, int(i/heads*x.Stride[0]+i%heads*step+e)))
						}
					}
					n := ops.RMSNormArgs{Out: out, X: split, Weight: weight, Eps: a.Eps, Gemma: gemma}
					require.NoError(t, ops.RMSNorm.Launch(q, &n))
					return f.as(out, tokens, heads, d)
				}
				r := ops.RopeFromCacheArgs{QStates: part(&a.Qgate, hq, 2*d, a.QNorm), KStates: part(&a.KF, hk, d, a.KNorm), CosSinCache: a.CosSin,
					Positions: f.ints(tensor.I32, 0, 1, 2, 3, 4), RotaryDim: int32(rotary)}
				require.NoError(t, ops.RopeFromCache.Launch(q, &r))
				require.Equal(t, tensor.Slice[float32](&r.QStates), tensor.Slice[float32](&a.QOut))
				require.Equal(t, tensor.Slice[float32](&r.KStates), tensor.Slice[float32](&a.KOut))

				b := *a
				b.QOut, b.KOut, b.GateOut = f.raw(tensor.BF16, tokens, hq, d), f.raw(tensor.BF16, tokens, hk, d), f.raw(tensor.BF16, tokens, hq, d)
				require.NoError(t, ops.AttnQKNormRopeGate.Launch(q, &b))
				for _, x := range [][2]*tensor.Tensor{{&a.QOut, &b.QOut}, {&a.KOut, &b.KOut}, {&a.GateOut, &b.GateOut}} {
					rounded := make([]uint16, x[0].Numel())
					tensor.F32ToBF16(rounded, tensor.Slice[float32](x[0]))
					require.Equal(t, rounded, tensor.Slice[uint16](x[1]))
				}
			}
		}
	}
}

func TestGoldenSwizzle(t *testing.T) {
	q, f := onReference(t, ops.OpSwizzleBlockscale), newFixture(t)
	const r, c = 200, 8
	a := ops.SwizzleBlockscaleArgs{Out: f.raw(tensor.U8, 256, 8), In: f.raw(tensor.U8, r, c)}
	for at, want := range map[[2]int]int{{0, 1}: 1, {0, 3}: 3, {0, 4}: 512, {1, 0}: 16, {31, 0}: 496, {32, 0}: 4, {33, 2}: 22, {95, 7}: 1019, {127, 7}: 1023,
		{128, 0}: 1024, {160, 5}: 1541, {199, 7}: 1659} {
		clear(bytesOf(&a.In))
		bytesOf(&a.In)[at[0]*c+at[1]] = 77
		require.NoError(t, ops.SwizzleBlockscale.Launch(q, &a))
		wanted := make([]byte, 256*8)
		wanted[want] = 77
		require.Equal(t, wanted, bytesOf(&a.Out), at)
	}
}

func TestGoldenScaledFP4(t *testing.T) {
	q, f := onReference(t, ops.OpScaledFP4Quant), newFixture(t)
	a := ops.ScaledFP4QuantArgs{OutPacked: f.raw(tensor.U8, 1, 16), OutScale: f.raw(tensor.U8, 1, 2), X: f.as(f.f32(ramps(0, 32)...), 1, 32), InputGlobalScaleInv: 100}
	require.NoError(t, ops.ScaledFP4Quant.Launch(q, &a))
	require.Equal(t, []byte{0x5f, 0x60}, bytesOf(&a.OutScale))
	require.Equal(t, []byte{0x5e, 0x7c, 0xf0, 0xe4, 0xb6, 0x17, 0x4f, 0x6d, 0xfa, 0xe2, 0xc5, 0x96, 0x3f, 0x6e, 0x7c, 0xf0}, bytesOf(&a.OutPacked))
}

// What is quantized to nvfp4 comes back within half a step of the codes, and swizzled scales are linear ones, swizzled.
func TestScaledFP4ComesBack(t *testing.T) {
	q, f := onReference(t, ops.OpScaledFP4Quant, ops.OpSwizzleBlockscale), newFixture(t)
	const m, k = 130, 80
	x := f.in(tensor.F32, m, k)
	a := ops.ScaledFP4QuantArgs{OutPacked: f.raw(tensor.F4E2M1x2, m, k/2), OutScale: f.raw(tensor.F8E4M3FN, m, k/16), X: x, InputGlobalScaleInv: 500}
	require.NoError(t, ops.ScaledFP4Quant.Launch(q, &a))
	for i, want := range f64s(&x) {
		scale := float64(tensor.DecodeE4M3FN(bytesOf(&a.OutScale)[i/16])) / 500
		got := float64(tensor.DecodeE2M1(bytesOf(&a.OutPacked)[i/2]>>(i%2*4))) * scale
		step := 0.5 // from 0 to 2, then 1 to 4, 2 to 6
		if v := math.Abs(want) / scale; v > 4 {
			step = 2
		} else if v > 2 {
			step = 1
		}
		require.InDelta(t, want, got, scale*(step/2+0.4), "%d", i) // the largest may lie above 6 scales by what the scale was rounded
	}
	s := a
	s.OutPacked, s.OutScale, s.ScaleLayout = f.raw(tensor.U8, m, k/2), f.raw(tensor.U8, 256, 8), ops.ScaleSwizzled
	w := ops.SwizzleBlockscaleArgs{Out: f.raw(tensor.U8, 256, 8), In: a.OutScale}
	require.NoError(t, ops.ScaledFP4Quant.Launch(q, &s))
	require.NoError(t, ops.SwizzleBlockscale.Launch(q, &w))
	require.Equal(t, bytesOf(&w.Out), bytesOf(&s.OutScale))
	require.Equal(t, bytesOf(&a.OutPacked), bytesOf(&s.OutPacked))
}

// Each op with a quantized output has the bits of the two ops that it stands for.
func TestFusedQuantIsTwoOps(t *testing.T) {
	q, f := onReference(t, ops.OpScaledFP4Quant, ops.OpQuantFP8Static, ops.OpRMSNorm, ops.OpRMSNormGated, ops.OpMoESiluMul, ops.OpSiluAndMul, ops.OpSigmoidGateBF16,
		ops.OpRMSNormQuantFP8, ops.OpRMSNormGatedQuantFP8, ops.OpSiluMulFP4Quant, ops.OpSiluAndMulFP4Quant, ops.OpSigmoidGateFP4Quant), newFixture(t)
	const m, k = 37, 96
	fp8 := func(y tensor.Tensor) []byte {
		a := ops.QuantFP8StaticArgs{Out: f.raw(tensor.U8, y.Dims()[0], y.Numel()/y.Dims()[0]), X: f.as(y, y.Dims()[0], y.Numel()/y.Dims()[0]), InputScale: 0.02}
		require.NoError(t, ops.QuantFP8Static.Launch(q, &a))
		return bytesOf(&a.Out)
	}
	for _, in := range floatTypes {
		for _, flag := range []bool{false, true} {
			res := f.in(tensor.BF16, m, k)
			copied := f.raw(tensor.BF16, m, k)
			copy(bytesOf(&copied), bytesOf(&res))
			n := ops.RMSNormArgs{Out: f.raw(tensor.BF16, m, k), X: f.in(in, m, k), Weight: f.in(in, k), Residual: res, Eps: 1e-6, Gemma: flag}
			a := ops.RMSNormQuantFP8Args{OutFP8: f.raw(tensor.U8, m, k), OutBF16: f.raw(tensor.BF16, m, k), X: n.X, Weight: n.Weight, Residual: copied, Eps: 1e-6, Gemma: flag, InputScale: 0.02}
			require.NoError(t, ops.RMSNorm.Launch(q, &n))
			require.NoError(t, ops.RMSNormQuantFP8.Launch(q, &a))
			require.Equal(t, fp8(n.Out), bytesOf(&a.OutFP8))
			require.Equal(t, bytesOf(&n.Out), bytesOf(&a.OutBF16))
			require.Equal(t, bytesOf(&res), bytesOf(&copied))

			wide := f.in(in, m, 5, k)
			g := ops.RMSNormGatedArgs{Out: f.raw(tensor.BF16, m, 3, k), X: f.in(in, m, 3, k), Gate: tensor.Must(wide.Slice(1, 1, 4)), Weight: f.in(in, k), Eps: 1e-6, SigmoidGate: flag}
			b := ops.RMSNormGatedQuantFP8Args{OutFP8: f.raw(tensor.U8, m, 3, k), X: g.X, Gate: g.Gate, Weight: g.Weight, Eps: 1e-6, SigmoidGate: flag, InputScale: 0.02}
			require.NoError(t, ops.RMSNormGated.Launch(q, &g))
			require.NoError(t, ops.RMSNormGatedQuantFP8.Launch(q, &b))
			require.Equal(t, fp8(g.Out), bytesOf(&b.OutFP8))
		}
	}
	for _, layout := range []ops.ScaleLayout{ops.ScaleLinear, ops.ScaleSwizzled} {
		rows, groups := ops.ScaleExtents(layout, m, k/16)
		outs := func() (packed, scale tensor.Tensor) { return f.raw(tensor.U8, m, k/2), f.raw(tensor.U8, rows, groups) }
		same := func(y, packed, scale tensor.Tensor) {
			a := ops.ScaledFP4QuantArgs{X: y, InputGlobalScaleInv: 300, ScaleLayout: layout}
			a.OutPacked, a.OutScale = outs()
			require.NoError(t, ops.ScaledFP4Quant.Launch(q, &a))
			require.Equal(t, bytesOf(&a.OutPacked), bytesOf(&packed))
			require.Equal(t, bytesOf(&a.OutScale), bytesOf(&scale))
		}
		for _, in := range floatTypes {
			y := f.raw(tensor.BF16, m, k)
			a := ops.SiluMulFP4QuantArgs{Gate: f.in(in, m, k), Up: f.in(in, m, k), InputGlobalScaleInv: 300, ScaleLayout: layout}
			a.OutPacked, a.OutScale = outs()
			require.NoError(t, ops.MoESiluMul.Call(q, ops.MoESiluMulArgs{Out: y, Gate: a.Gate, Up: a.Up}))
			require.NoError(t, ops.SiluMulFP4Quant.Launch(q, &a))
			same(y, a.OutPacked, a.OutScale)
			if in == tensor.F16 {
				continue
			}
			b := ops.SiluAndMulFP4QuantArgs{GateUp: f.in(in, m, 2*k), InputGlobalScaleInv: 300, ScaleLayout: layout}
			b.OutPacked, b.OutScale = outs()
			require.NoError(t, ops.SiluAndMul.Call(q, ops.SiluAndMulArgs{Out: y, X: b.GateUp}))
			require.NoError(t, ops.SiluAndMulFP4Quant.Launch(q, &b))
			same(y, b.OutPacked, b.OutScale)
			c := ops.SigmoidGateFP4QuantArgs{Attn: f.in(in, m, k), Gate: f.in(tensor.F32, m, k), InputGlobalScaleInv: 300, ScaleLayout: layout}
			c.OutPacked, c.OutScale = outs()
			require.NoError(t, ops.SigmoidGateBF16.Call(q, ops.SigmoidGateBF16Args{Out: y, Attn: c.Attn, Gate: c.Gate}))
			require.NoError(t, ops.SigmoidGateFP4Quant.Launch(q, &c))
			same(y, c.OutPacked, c.OutScale)
		}
	}
}
