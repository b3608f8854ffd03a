package cpu

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Norms against formulas in float64 on whole arrays, and by hand where the bits are plain.

func TestNormsAgainstFloat64(t *testing.T) {
	q, f := onReference(t, ops.OpRMSNormGated, ops.OpLayerNorm, ops.OpL2Norm, ops.OpGroupNorm), newFixture(t)
	const rows, d = 6, 70
	x, w, b := f.in(tensor.F32, rows, d), f.in(tensor.BF16, d), f.in(tensor.F16, d)
	xs, ws, bs := f64s(&x), f64s(&w), f64s(&b)
	power := func(row, exp int) (s float64) { // the mean of powers
		for _, v := range xs[row*d:][:d] {
			s += math.Pow(v, float64(exp)) / d
		}
		return s
	}
	for _, sigmoid := range []bool{false, true} {
		gate := f.in(tensor.F32, 3, 2*d+5) // two heads a token, rows padded
		heads := gate
		heads.Rank, heads.Shape, heads.Stride = 3, [8]int64{3, 2, d}, [8]int64{2*d + 5, d, 1}
		a := ops.RMSNormGatedArgs{Out: f.raw(tensor.F32, 3, 2, d), X: f.as(x, 3, 2, d), Gate: heads, Weight: w, Eps: 0.25, SigmoidGate: sigmoid}
		require.NoError(t, ops.RMSNormGated.Launch(q, &a))
		gs, want := f64s(&gate), make([]float64, rows*d)
		for i := range want {
			r, e := i/d, i%d
			g := gs[r/2*(2*d+5)+r%2*d+e]
			act := 1 / (1 + math.Exp(-g))
			if !sigmoid {
				act *= g
			}
			want[i] = xs[i] / math.Sqrt(power(r, 2)+0.25) * ws[e] * act
		}
		near(t, want, &a.Out, 1e-12, "rms_norm_gated")
		packed := a
		packed.Out, packed.Gate = f.raw(tensor.F32, 3, 2, d), f.raw(tensor.F32, 3, 2, d)
		for i := range 3 {
			copy(elems[float32](&packed.Gate, i*2*d, 2*d), elems[float32](&gate, i*(2*d+5), 2*d))
		}
		require.NoError(t, ops.RMSNormGated.Launch(q, &packed))
		require.Equal(t, tensor.Slice[int32](&packed.Out), tensor.Slice[int32](&a.Out), "a padded gate has the bits of a packed one")
	}

	ln := ops.LayerNormArgs{Out: f.raw(tensor.F32, rows, d), X: x, Weight: w, Bias: b, Mean: f.raw(tensor.F32, rows), InvStdDev: f.raw(tensor.F32, 1, rows), Eps: 0.25}
	require.NoError(t, ops.LayerNorm.Launch(q, &ln))
	want, means, invs := make([]float64, rows*d), make([]float64, rows), make([]float64, rows)
	for r := range rows {
		means[r] = power(r, 1)
		invs[r] = 1 / math.Sqrt(power(r, 2)-means[r]*means[r]+0.25)
		for e := range d {
			want[r*d+e] = (xs[r*d+e]-means[r])*invs[r]*ws[e] + bs[e]
		}
	}
	near(t, want, &ln.Out, 1e-12, "layer_norm")
	near(t, means, &ln.Mean, 1e-12, "mean")
	near(t, invs, &ln.InvStdDev, 1e-12, "inv_std_dev")

	for _, clamp := range []bool{false, true} {
		l2 := ops.L2NormArgs{Out: f.raw(tensor.F32, 3, 2, d), X: f.as(x, 3, 2, d), Eps: 9, Clamp: clamp}
		require.NoError(t, ops.L2Norm.Launch(q, &l2))
		for i := range want {
			s := power(i/d, 2) * d
			if want[i] = xs[i] / math.Sqrt(s+9); clamp {
				want[i] = xs[i] / max(math.Sqrt(s), 9)
			}
		}
		near(t, want, &l2.Out, 1e-12, "l2_norm")
	}

	// [2,6,5,7] in 3 groups of 2 channels; its statistics are those of layer_norm over rows of 70.
	gn := ops.GroupNormArgs{Out: f.raw(tensor.F32, 2, 6, 5, 7), X: f.as(x, 2, 6, 5, 7), Weight: f.f32(1, 2, 3, 4, 5, 6), Bias: f.f32(6, 5, 4, 3, 2, 1), Eps: 0.25, NumGroups: 3}
	require.NoError(t, ops.GroupNorm.Launch(q, &gn))
	for i := range want {
		c := i / 35 % 6
		want[i] = (xs[i]-means[i/70])*invs[i/70]*float64(c+1) + float64(6-c)
	}
	near(t, want, &gn.Out, 1e-12, "group_norm")
}

// Norms of the golden values of the catalogue's formulas, by hand.
func TestGoldenNorms(t *testing.T) {
	q, f := onReference(t, ops.OpRMSNormGated, ops.OpLayerNorm, ops.OpL2Norm), newFixture(t)
	l2 := ops.L2NormArgs{Out: f.raw(tensor.BF16, 2, 2), X: f.as(f.f32(3, 4, 0, 0), 2, 2), Eps: 0}
	require.NoError(t, ops.L2Norm.Launch(q, &l2))
	out := elems[uint16](&l2.Out, 0, 4)
	require.Equal(t, []uint16{0x3f1a, 0x3f4d}, out[:2], "0.6 and 0.8 in bf16")
	require.Greater(t, out[2]&0x7fff, uint16(0x7f80), "0·inf of a zero row without eps is NaN")
	l2.Eps = 1e-6
	require.NoError(t, ops.L2Norm.Launch(q, &l2))
	require.Equal(t, []uint16{0, 0}, elems[uint16](&l2.Out, 2, 2))

	// silu(-200) is -0 times what stands before it; silu(-inf) is NaN.
	g := ops.RMSNormGatedArgs{Out: f.raw(tensor.F32, 1, 2), X: f.as(f.f32(1, 1), 1, 2), Gate: f.as(f.f32(-200, negInf), 1, 2), Weight: f.f32(1, 1)}
	require.NoError(t, ops.RMSNormGated.Launch(q, &g))
	got := elems[float32](&g.Out, 0, 2)
	require.Equal(t, uint32(1<<31), math.Float32bits(got[0]))
	require.True(t, got[1] != got[1])
}

// Activations against other forms of their formulas in float64.
func TestActivationsAgainstFloat64(t *testing.T) {
	q, f := onReference(t, ops.OpGelu, ops.OpSwish, ops.OpSigmoid, ops.OpTanh, ops.OpHardSwish, ops.OpSoftplus, ops.OpSoftCap, ops.OpGeluAndMul,
		ops.OpMoESiluMul, ops.OpSigmoidGateBF16, ops.OpSiluAndMul, ops.OpLogSoftmax, ops.OpMulColVecF32), newFixture(t)
	const n = 3000 // more than two pieces
	x, y := f.raw(tensor.F32, n), f.in(tensor.F32, n)
	f.fill(&x, 4)
	xs, ys := f64s(&x), f64s(&y)
	check := func(name string, out *tensor.Tensor, err error, want func(v float64) float64) {
		t.Helper()
		require.NoError(t, err, name)
		for i, g := range f64s(out) {
			require.InDelta(t, want(xs[i]), g, 2e-6*(1+math.Abs(want(xs[i]))), "%s of %v", name, xs[i])
		}
	}
	normal := func(v float64) float64 { return math.Erfc(-v/math.Sqrt2) / 2 } // distribution function
	out := f.raw(tensor.F32, n)
	check("gelu", &out, ops.Gelu.Call(q, ops.GeluArgs{Out: out, X: x}), func(v float64) float64 { return v * normal(v) })
	cube := func(v float64) float64 { return v / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))) }
	check("gelu by tanh", &out, ops.Gelu.Call(q, ops.GeluArgs{Out: out, X: x, Tanh: true}), cube)
	check("swish", &out, ops.Swish.Call(q, ops.SwishArgs{Out: out, X: x, Alpha: 1.702}), func(v float64) float64 { return v * (1 + math.Tanh(0.851*v)) / 2 })
	check("silu", &out, ops.Swish.Call(q, ops.SwishArgs{Out: out, X: x}), func(v float64) float64 { return v * (1 + math.Tanh(v/2)) / 2 })
	check("sigmoid", &out, ops.Sigmoid.Call(q, ops.SigmoidArgs{Out: out, X: x}), func(v float64) float64 { return (1 + math.Tanh(v/2)) / 2 })
	check("tanh", &out, ops.Tanh.Call(q, ops.TanhArgs{Out: out, X: x}), func(v float64) float64 { return 1 - 2/(1+math.Exp(2*v)) })
	check("hard_swish", &out, ops.HardSwish.Call(q, ops.HardSwishArgs{Out: out, X: x}), func(v float64) float64 { return v * math.Min(math.Max(v+3, 0), 6) / 6 })
	check("softplus", &out, ops.Softplus.Call(q, ops.SoftplusArgs{Out: out, X: x}), func(v float64) float64 { return math.Max(v, 0) + math.Log1p(math.Exp(-math.Abs(v))) })
	check("softplus of a threshold", &out, ops.Softplus.Call(q, ops.SoftplusArgs{Out: out, X: x, Threshold: 2}), func(v float64) float64 {
		if v > 2 {
			return v
		}
		return math.Log(1 + math.Exp(v))
	})
	check("soft_cap", &out, ops.SoftCap.Call(q, ops.SoftCapArgs{Out: out, X: x, Cap: 3}), func(v float64) float64 { return 3 - 6/(1+math.Exp(2*v/3)) })

	// Gated ones, packed and in two tensors.
	want := make([]float64, n)
	gated := func(name string, tol float64, act func(v float64) float64, other func(v float64) float64) {
		t.Helper()
		for i := range want {
			want[i] = act(xs[i]) * other(ys[i])
		}
		near(t, want, &out, tol, name)
	}
	same := func(v float64) float64 { return v }
	packed := f.raw(tensor.F32, 1, 2*n)
	copy(elems[float32](&packed, 0, n), elems[float32](&x, 0, n))
	copy(elems[float32](&packed, n, n), elems[float32](&y, 0, n))
	rows := func(x tensor.Tensor) tensor.Tensor { return f.as(x, 1, n) }
	for _, erf := range []bool{false, true} {
		act := cube
		if erf {
			act = func(v float64) float64 { return v * normal(v) }
		}
		require.NoError(t, ops.GeluAndMul.Call(q, ops.GeluAndMulArgs{Out: rows(out), X: packed, Erf: erf}))
		gated("gelu_and_mul", 1e-12, act, same)
		require.NoError(t, ops.GeluAndMul.Call(q, ops.GeluAndMulArgs{Out: rows(out), X: rows(x), Up: rows(y), Erf: erf}))
		gated("gelu_and_mul of two", 1e-12, act, same)
	}
	silu := func(v float64) float64 { return v * (1 + math.Tanh(v/2)) / 2 }
	require.NoError(t, ops.MoESiluMul.Call(q, ops.MoESiluMulArgs{Out: out, Gate: f.as(x, 30, 100), Up: f.as(y, 100, 30)}))
	gated("moe_silu_mul", 1e-12, silu, same)
	require.NoError(t, ops.SiluAndMul.Call(q, ops.SiluAndMulArgs{Out: rows(out), X: packed, Alpha: 1.702, Limit: 1.5, PlusOne: true}))
	gated("silu_and_mul with a limit", 1e-12, func(v float64) float64 { v = math.Min(v, 1.5); return v * (1 + math.Tanh(0.851*v)) / 2 },
		func(v float64) float64 { return math.Max(-1.5, math.Min(1.5, v)) + 1 })

	half := f.raw(tensor.BF16, n)
	require.NoError(t, ops.SigmoidGateBF16.Call(q, ops.SigmoidGateBF16Args{Out: half, Attn: y, Gate: x}))
	for i := range want {
		want[i] = ys[i] * (1 + math.Tanh(xs[i]/2)) / 2
	}
	near(t, want, &half, 1e-5, "sigmoid_gate_bf16")
	narrow, wide := f.in(tensor.BF16, n), f.raw(tensor.F32, n)
	plainHalves.widenBF16(elems[float32](&wide, 0, n), elems[uint16](&narrow, 0, n))
	again := f.raw(tensor.BF16, n)
	require.NoError(t, ops.SigmoidGateBF16.Call(q, ops.SigmoidGateBF16Args{Out: half, Attn: narrow, Gate: x}))
	require.NoError(t, ops.SigmoidGateBF16.Call(q, ops.SigmoidGateBF16Args{Out: again, Attn: wide, Gate: x}))
	require.Equal(t, tensor.Slice[uint16](&again), tensor.Slice[uint16](&half), "bf16 rows have the bits of their f32 widening")

	ls := ops.LogSoftmaxArgs{Out: f.raw(tensor.F32, 3, 1000), X: f.as(x, 3, 1000), Scale: 0.5}
	require.NoError(t, ops.LogSoftmax.Launch(q, &ls))
	for r := range 3 {
		sum := 0.0
		for _, v := range xs[r*1000:][:1000] {
			sum += math.Exp(v / 2)
		}
		for i := range 1000 {
			want[r*1000+i] = xs[r*1000+i]/2 - math.Log(sum)
		}
	}
	near(t, want, &ls.Out, 1e-12, "log_softmax")

	cols := ops.MulColVecF32Args{X: f.columns(tensor.F32, 5, 2, 9), Col: f.in(tensor.F32, 9)}
	var products []float32
	for i := range 5 {
		for e, v := range elems[float32](&cols.Col, 0, 9) {
			products = append(products, elems[float32](&cols.X, i*int(cols.X.Stride[0])+e, 1)[0]*v)
		}
	}
	require.NoError(t, ops.MulColVecF32.Launch(q, &cols))
	for i := range 5 {
		require.Equal(t, products[i*9:][:9], elems[float32](&cols.X, i*int(cols.X.Stride[0]), 9))
	}
}

// Every cast against exact arithmetic: what is stored is the nearest value of the type, and of two the even one.
func TestCastIsNearest(t *testing.T) {
	q, f := onReference(t, ops.OpCast), newFixture(t)
	values := []float64{0, 1, -1, 1.5, 2.5, 3.5, -0.3, 447.9, 463.99, 464, 57344, 61439.9, 65504, 65519.999, 65520, 1e-3, 0x1p-24, 0x1.8p-25, 0x1p-25, 0x1p-133, 1e38, 3.4e38,
		1 + 0x1p-11, 1 + 0x1p-11 + 0x1p-50, 1 + 0x1p-8, 1 + 0x1p-8 + 0x1p-50, 1 + 3*0x1p-8 - 0x1p-50, 1.0625, 1.0625 + 0x1p-50, 5, 5 + 0x1p-50, 0.25, 0.25 + 0x1p-53, 0x1p-150, 1 + 0x1p-24, 1 + 0x1p-24 + 0x1p-52}
	codes := map[tensor.DType]struct {
		n      int
		decode func(c int) float64
	}{
		tensor.F16:      {1 << 16, func(c int) float64 { return float64(tensor.DecodeF16(uint16(c))) }},
		tensor.BF16:     {1 << 16, func(c int) float64 { return float64(tensor.DecodeBF16(uint16(c))) }},
		tensor.F8E4M3FN: {256, func(c int) float64 { return float64(tensor.DecodeE4M3FN(uint8(c))) }},
		tensor.F8E5M2:   {256, func(c int) float64 { return float64(tensor.DecodeE5M2(uint8(c))) }},
	}
	for dt, c := range codes {
		in := f.raw(tensor.F64, int64(len(values)))
		copy(elems[float64](&in, 0, len(values)), values)
		out := f.raw(dt, int64(len(values)))
		require.NoError(t, ops.Cast.Call(q, ops.CastArgs{Out: out, In: in, Saturate: true}))
		var finite []float64
		top := 0.0
		for code := range c.n {
			if v := c.decode(code); !math.IsNaN(v) && !math.IsInf(v, 0) {
				finite, top = append(finite, v), max(top, v)
			}
		}
		got := make([]float64, len(values))
		loadWide(got, &out, 0)
		for i, v := range values {
			if math.Abs(v) > top { // overflow has rules of its own
				continue
			}
			distance := func(w float64) *big.Float {
				return new(big.Float).Abs(new(big.Float).Sub(big.NewFloat(v), big.NewFloat(w)))
			}
			if math.IsInf(got[i], 0) {
				continue
			}
			for _, w := range finite {
				require.LessOrEqual(t, distance(got[i]).Cmp(distance(w)), 0, "%v as %v is %v, %v is nearer", v, dt, got[i], w)
			}
		}
	}

	// Whole numbers of more bits than a float64 has are rounded once, too.
	wide := []int64{math.MaxInt64, math.MinInt64, 1<<62 + 1<<38 + 1, 1<<62 + 1<<38, 1<<62 + 3<<38, -(1<<62 + 1<<38 + 1), 1<<53 + 1}
	in, out, half := f.ints(tensor.I64, wide...), f.raw(tensor.F32, int64(len(wide))), f.raw(tensor.BF16, int64(len(wide)))
	require.NoError(t, ops.Cast.Call(q, ops.CastArgs{Out: out, In: in}))
	require.NoError(t, ops.Cast.Call(q, ops.CastArgs{Out: half, In: in}))
	for i, v := range wide {
		exact, _ := new(big.Float).SetInt64(v).Float32()
		require.Equal(t, exact, elems[float32](&out, i, 1)[0], v)
		nearest := new(big.Float).SetPrec(8).SetInt64(v)
		want, _ := nearest.Float64()
		require.EqualValues(t, want, one(&half, i), v)
	}
}

// Bits that the catalogue names: ties and NaN of cast_bf16, padded rows of both casts, pairs of codes.
func TestGoldenCasts(t *testing.T) {
	q, f := onReference(t, ops.OpCastBF16, ops.OpCastF32, ops.OpCast), newFixture(t)
	in := f.as(f.f32(fromBits(0x3f808000, 0x3f818000, 7, 0x7fa00001, 0xff800000, 7)...), 2, 3)
	in.Shape[1] = 2 // rows of two, padded to three
	out := f.raw(tensor.BF16, 4)
	require.NoError(t, ops.CastBF16.Call(q, ops.CastBF16Args{Out: out, In: in}))
	require.Equal(t, []uint16{0x3f80, 0x3f82, 0x7fe0, 0xff80}, elems[uint16](&out, 0, 4), "a NaN is quiet")

	back := f.raw(tensor.F32, 1, 2, 2)
	padded := f.raw(tensor.BF16, 2, 3)
	copy(elems[uint16](&padded, 0, 6), []uint16{0x3f80, 0xc000, 1, 0x7f80, 0x7fc0, 1})
	padded.Shape[1] = 2
	require.NoError(t, ops.CastF32.Call(q, ops.CastF32Args{Out: back, In: padded}))
	require.Equal(t, []uint32{0x3f800000, 0xc0000000, 0x7f800000, 0x7fc00000}, elems[uint32](&back, 0, 4))

	v := f.f32(0.25, -0.75, 5, -5.5, 1e9, float32(math.NaN()), -0.1, 3)
	pairs := f.raw(tensor.F4E2M1x2, 4)
	require.NoError(t, ops.Cast.Call(q, ops.CastArgs{Out: pairs, In: v}))
	require.Equal(t, []uint8{0xa0, 0xf6, 0x77, 0x58}, elems[uint8](&pairs, 0, 4), "low nibble first")
	values := f.raw(tensor.I8, 2, 4)
	require.NoError(t, ops.Cast.Call(q, ops.CastArgs{Out: values, In: pairs}))
	require.Equal(t, []int8{0, -1, 4, -6, 6, 6, 0, 3}, elems[int8](&values, 0, 8))

	over := f.f32(500, -500, negInf, 0)
	fp8 := f.raw(tensor.F8E4M3FN, 4)
	for saturate, want := range map[bool][]uint8{true: {0x7e, 0xfe, 0xfe, 0}, false: {0x7f, 0xff, 0xff, 0}} {
		require.NoError(t, ops.Cast.Call(q, ops.CastArgs{Out: fp8, In: over, Saturate: saturate}))
		require.Equal(t, want, elems[uint8](&fp8, 0, 4))
	}
	over.Shape[0], fp8 = 3, f.raw(tensor.F8E5M2, 3)
	copy(elems[float32](&over, 0, 3), []float32{1e9, -1e9, 65536})
	for saturate, want := range map[bool][]uint8{true: {0x7b, 0xfb, 0x7b}, false: {0x7c, 0xfc, 0x7c}} {
		require.NoError(t, ops.Cast.Call(q, ops.CastArgs{Out: fp8, In: over, Saturate: saturate}))
		require.Equal(t, want, elems[uint8](&fp8, 0, 3))
	}
	scales := f.raw(tensor.F8E8M0, 3)
	for mode, want := range map[tensor.Rounding][]uint8{tensor.Nearest: {127, 129, 255}, tensor.RoundUp: {128, 129, 255}, tensor.RoundDown: {127, 128, 255}} {
		require.NoError(t, ops.Cast.Call(q, ops.CastArgs{Out: scales, In: f.f32(1.25, 3, -1), RoundMode: mode}))
		require.Equal(t, want, elems[uint8](&scales, 0, 3), mode)
	}
}

// Whole numbers wrap, factors repeat, heads come apart.
func TestGoldenElements(t *testing.T) {
	q, f := onReference(t, ops.OpAdd, ops.OpMul, ops.OpClip, ops.OpAttnGateSplit), newFixture(t)
	a, b := f.as(f.ints(tensor.I64, math.MaxInt64, 2, 3, -4), 2, 2), f.ints(tensor.I64, 1, 10)
	out := f.raw(tensor.I64, 2, 2)
	require.NoError(t, ops.Add.Call(q, ops.AddArgs{Out: out, A: a, B: b}))
	require.Equal(t, []int64{math.MinInt64, 12, 4, 6}, elems[int64](&out, 0, 4))
	require.NoError(t, ops.Mul.Call(q, ops.MulArgs{Out: out, A: a, B: f.ints(tensor.I64, -2)}))
	require.Equal(t, []int64{2, -4, -6, 8}, elems[int64](&out, 0, 4))

	bytes := f.raw(tensor.U8, 3)
	copy(elems[uint8](&bytes, 0, 3), []uint8{250, 16, 3})
	require.NoError(t, ops.Mul.Call(q, ops.MulArgs{Out: bytes, A: bytes, B: bytes}))
	require.Equal(t, []uint8{36, 0, 9}, elems[uint8](&bytes, 0, 3))

	x := f.f32(-1, float32(math.NaN()), 5)
	require.NoError(t, ops.Clip.Call(q, ops.ClipArgs{Out: x, X: x, Min: f.f32(0)}))
	got := elems[float32](&x, 0, 3)
	require.Equal(t, []float32{0, 5}, []float32{got[0], got[2]})
	require.True(t, got[1] != got[1])

	qo, go_ := f.raw(tensor.F32, 1, 2, 2), f.raw(tensor.F32, 1, 2, 2)
	require.NoError(t, ops.AttnGateSplit.Call(q, ops.AttnGateSplitArgs{QOut: qo, GateOut: go_, Qgate: f.as(f.f32(1, 2, 3, 4, 5, 6, 7, 8), 1, 8)}))
	require.Equal(t, []float32{1, 2, 5, 6}, elems[float32](&qo, 0, 4))
	require.Equal(t, []float32{3, 4, 7, 8}, elems[float32](&go_, 0, 4))
}
