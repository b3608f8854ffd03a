package cpu

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

var moeOps = []registry.Op{ops.OpMoERouterTopK, ops.OpMoESoftmaxTopK, ops.OpMoESigmoidTopK, ops.OpMoECombine, ops.OpMoECombineGate, ops.OpSharedExpertGate, ops.OpMoEGroupedGemm,
	ops.OpMoEGroupedGemmBF16, ops.OpMoEGroupedGemmNVFP4, ops.OpMoEAlignBlockSize, ops.OpMatmul, ops.OpMatmulBT, ops.OpMatmulNVFP4}

// The catalogue's golden router.
func TestGoldenRouter(t *testing.T) {
	q, f := onReference(t, moeOps...), newFixture(t)
	for name, c := range map[string]struct {
		a       ops.MoERouterTopKArgs
		bias    bool
		indices []int32
		weights []float64
	}{
		"ungrouped": {ops.MoERouterTopKArgs{}, false, []int32{2, 4, 5}, []float64{0.4518628, 0.2740686, 0.2740686}},
		"grouped":   {ops.MoERouterTopKArgs{ScoringFunc: ops.ScoreSigmoid, NumExpertGroup: 4, TopkGroup: 2, RoutedScalingFactor: 2}, false, []int32{2, 4, 5}, []float64{0.6802017, 0.6598991, 0.6598991}},
		"bias":      {ops.MoERouterTopKArgs{ScoringFunc: ops.ScoreSigmoid, NumExpertGroup: 4, TopkGroup: 2, RoutedScalingFactor: 2}, true, []int32{7, 6, 4}, []float64{0.5906384, 0.3176943, 1.091667}},
		"raw":       {ops.MoERouterTopKArgs{ScoringFunc: ops.ScoreSigmoid, NumExpertGroup: 4, TopkGroup: 2, RoutedScalingFactor: 2, NoRenormalize: true}, true, []int32{7, 6, 4}, []float64{1, 0.5378829, 1.848284}},
	} {
		a := c.a
		a.Weights, a.Indices, a.Logits = f.raw(tensor.F32, 1, 3), f.raw(tensor.I32, 1, 3), f.as(f.f32(1, 2, 3, 0.5, 2.5, 2.5, -1, 0), 1, 8)
		if c.bias {
			a.EScoreCorrectionBias = f.f32(0, 0, -2, 0, 0, 0, 0.875, 0.75)
		}
		require.NoError(t, ops.MoERouterTopK.Launch(q, &a), name)
		require.Equal(t, c.indices, elems[int32](&a.Indices, 0, 3), name)
		for i, w := range elems[float32](&a.Weights, 0, 3) {
			require.InEpsilon(t, c.weights[i], w, 2e-6, name)
		}
	}
}

func TestGoldenAlign(t *testing.T) {
	q, f := onReference(t, moeOps...), newFixture(t)
	a := ops.MoEAlignBlockSizeArgs{SortedTokenIDs: f.raw(tensor.I32, 9), ExpertIDs: f.raw(tensor.I32, 5), NumTokensPastPadded: f.raw(tensor.I32, 1), TopkIDs: f.ints(tensor.I32, 2, 0, 2, 2, 1), NumExperts: 4, BlockSize: 2}
	require.NoError(t, ops.MoEAlignBlockSize.Launch(q, &a))
	require.Equal(t, []int32{1, 5, 4, 5, 0, 2, 3, 5, 5}, elems[int32](&a.SortedTokenIDs, 0, 9))
	require.Equal(t, []int32{0, 1, 2, 2, 0}, elems[int32](&a.ExpertIDs, 0, 5))
	require.Equal(t, int32(8), elems[int32](&a.NumTokensPastPadded, 0, 1)[0])
}

// The gate inside the sum has the bits of the gate before it.
func TestCombineGateIsGateThenCombine(t *testing.T) {
	q, f := onReference(t, moeOps...), newFixture(t)
	const tok, k, h = 3, 2, 37
	x, w, sd, gl := f.random(tensor.F16, tok, k, h), f.random(tensor.F32, tok, k), f.random(tensor.F32, tok, h), f.random(tensor.F32, tok)
	one := ops.MoECombineGateArgs{Out: f.raw(tensor.F32, tok, h), ExpertOut: x, Weights: w, Sd: sd, Gl: gl}
	require.NoError(t, ops.MoECombineGate.Launch(q, &one))
	gate := ops.SharedExpertGateArgs{Out: f.raw(tensor.BF16, tok, h), Sd: sd, Gl: gl}
	require.NoError(t, ops.SharedExpertGate.Launch(q, &gate))
	two := ops.MoECombineArgs{Out: f.raw(tensor.F32, tok, h), ExpertOut: x, Weights: w, Shared: gate.Out}
	require.NoError(t, ops.MoECombine.Launch(q, &two))
	require.Equal(t, elems[float32](&two.Out, 0, tok*h), elems[float32](&one.Out, 0, tok*h))
	for i := range tok * h {
		require.InEpsilon(t, float64(elems[float32](&sd, i, 1)[0])/(1+math.Exp(-float64(elems[float32](&gl, i/h, 1)[0]))), float64(tensor.DecodeBF16(elems[uint16](&gate.Out, i, 1)[0])), 1.0/128)
	}
}

// Each pair's row is the row of the plain product with its expert's weight.
func TestGroupedGemmIsOneProductAnExpert(t *testing.T) {
	q, f := onReference(t, moeOps...), newFixture(t)
	const pairs, rows, n, k, experts = 7, 3, 64, 32, 4
	ids, rowMap := f.ints(tensor.I32, 2, 0, 2, 3, 3, 0, 2), f.ints(tensor.I32, 0, 0, 1, 1, 2, 2, 0)
	row := func(x *tensor.Tensor, i int64) tensor.Tensor { return tensor.Must(x.Slice(0, i, i+1)) }
	expert := func(x *tensor.Tensor, e int64, dims ...int64) tensor.Tensor {
		return tensor.Must(tensor.Must(x.Slice(0, e, e+1)).View(dims...))
	}

	act, w := f.random(tensor.BF16, rows, k), f.random(tensor.BF16, experts, k, n)
	dense := ops.MoEGroupedGemmBF16Args{Out: f.raw(tensor.F32, pairs, n), Act: act, ExpertIDs: ids, RowMap: rowMap, Weights: w}
	require.NoError(t, ops.MoEGroupedGemmBF16.Launch(q, &dense))
	var list []tensor.Tensor
	for e := range int64(experts) {
		list = append(list, expert(&w, e, k, n))
	}
	list[1] = tensor.Tensor{} // nobody selects it
	table, err := ops.ExpertTable(list...)
	require.NoError(t, err)
	byAddress := dense
	byAddress.Out, byAddress.Weights = f.raw(tensor.F32, pairs, n), table
	require.NoError(t, ops.MoEGroupedGemmBF16.Launch(q, &byAddress))
	require.Equal(t, elems[float32](&dense.Out, 0, pairs*n), elems[float32](&byAddress.Out, 0, pairs*n))
	byAddress.ExpertIDs = f.ints(tensor.I32, 2, 0, 2, 3, 1, 0, 2)
	require.ErrorIs(t, ops.MoEGroupedGemmBF16.Launch(q, &byAddress), ops.ErrValue)
	require.ErrorContains(t, ops.MoEGroupedGemmBF16.Launch(q, &byAddress), "expert 1, which pair 4 selects")

	packed, scales := f.bytesOf(tensor.F4E2M1x2, false, experts, n, k/2), f.bytesOf(tensor.F8E4M3FN, true, experts, n, k/16)
	fp4 := ops.MoEGroupedGemmNVFP4Args{Out: f.raw(tensor.F32, pairs, n), Act: act, ExpertIDs: ids, RowMap: rowMap, Packed: packed, Scales: scales, Scale2s: f.f32(0.5, 0.25, 1, 2)}
	require.NoError(t, ops.MoEGroupedGemmNVFP4.Launch(q, &fp4))
	for p := range int64(pairs) {
		e, r := int64(elems[int32](&ids, int(p), 1)[0]), int64(elems[int32](&rowMap, int(p), 1)[0])
		m := ops.MatmulArgs{Out: f.raw(tensor.F32, 1, n), A: row(&act, r), B: expert(&w, e, k, n)}
		require.NoError(t, ops.Matmul.Launch(q, &m))
		require.Equal(t, elems[float32](&m.Out, 0, n), elems[float32](&dense.Out, int(p)*n, n))
		v := ops.MatmulNVFP4Args{Out: f.raw(tensor.F32, 1, n), Act: row(&act, r), WeightPacked: expert(&packed, e, n, k/2), WeightScale: expert(&scales, e, n, k/16), WeightScale2: elems[float32](&fp4.Scale2s, int(e), 1)[0]}
		require.NoError(t, ops.MatmulNVFP4.Launch(q, &v))
		require.Equal(t, elems[float32](&v.Out, 0, n), elems[float32](&fp4.Out, int(p)*n, n))
	}

	// The same weights in Marlin's layout.
	words, processed, global := f.raw(tensor.I32, experts, k/16, 2*n), f.raw(tensor.U8, experts, k/16, n), make([]float32, experts)
	var from, to [][]byte
	for e := range experts {
		require.NoError(t, ops.MarlinWeight(elems[int32](&words, e*n*k/8, n*k/8), elems[byte](&packed, e*n*k/2, n*k/2), n, k))
		from, to = append(from, elems[byte](&scales, e*n*k/16, n*k/16)), append(to, elems[byte](&processed, e*n*k/16, n*k/16))
	}
	require.NoError(t, ops.MarlinScales(to, from, global, elems[float32](&fp4.Scale2s, 0, experts), n, k))
	marlin := fp4
	marlin.Out, marlin.Packed, marlin.Scales, marlin.Scale2s, marlin.WeightLayout = f.raw(tensor.F32, pairs, n), words, processed, f.f32(global...), ops.WeightMarlin
	require.NoError(t, ops.MoEGroupedGemmNVFP4.Launch(q, &marlin))
	for i, want := range elems[float32](&fp4.Out, 0, pairs*n) {
		require.InDelta(t, want, one(&marlin.Out, i), 8e-3+8e-3*math.Abs(float64(want)), i)
	}
	require.ErrorIs(t, ops.MarlinWeight(nil, nil, 32, 16), ops.ErrShape)
	require.ErrorIs(t, ops.MarlinScales(to, from[:1], global, nil, n, k), ops.ErrShape)
}

// The repack loses nothing: every code comes back, each place once.
func TestMarlinWeightIsAPermutation(t *testing.T) {
	const n, k = 128, 32
	f := newFixture(t)
	packed := f.bytesOf(tensor.U8, false, n, k/2)
	words := make([]int32, n*k/8)
	require.NoError(t, ops.MarlinWeight(words, elems[byte](&packed, 0, n*k/2), n, k))
	codes := make([]byte, 16*n)
	for kt := range k / 16 {
		ops.MarlinCodes(codes, words[kt*2*n:][:2*n], n)
		for r := range 16 {
			for c := range n {
				i := c*k + 16*kt + r
				require.Equal(t, elems[byte](&packed, i/2, 1)[0]>>(i%2*4)&15, codes[r*n+c])
			}
		}
	}
	// A corner worked out by hand: the first word holds rows 0, 1, 8 and 9 of columns 0 and 8, the even ones first.
	ones := make([]byte, 64*16/2)
	for i, at := range [][2]int{{0, 0}, {8, 0}, {0, 8}, {8, 8}, {1, 0}, {9, 0}, {1, 8}, {9, 8}} {
		ones[(at[1]*16+at[0])/2] |= byte(i+1) << (at[0] % 2 * 4)
	}
	first := make([]int32, 64*16/8)
	require.NoError(t, ops.MarlinWeight(first, ones, 64, 16))
	require.Equal(t, uint32(0x87654321), *(*uint32)(unsafe.Pointer(&first[0])))
	require.Equal(t, 8, ops.MarlinBlockSize(4, 2, 8))
	require.Equal(t, 64, ops.MarlinBlockSize(4096, 8, 8))
}

// A weight of ggml blocks is the decoded weight.
func TestGroupedGemmOfBlocks(t *testing.T) {
	q, f := onReference(t, moeOps...), newFixture(t)
	const pairs, n, k, experts = 5, 9, 256, 3
	for _, dt := range []tensor.DType{tensor.Q4_0, tensor.Q6_K, tensor.IQ4_NL, tensor.MXFP4} {
		size, err := dt.RowBytes(k)
		require.NoError(t, err)
		w := f.raw(dt, experts, n, k)
		src := make([]float32, k)
		wide := f.raw(tensor.F32, experts, n, k)
		for r := range experts * n {
			for i := range src {
				src[i] = float32(f.rng.NormFloat64())
			}
			b := unsafe.Slice((*byte)(unsafe.Add(w.Host, r*int(size))), size)
			require.NoError(t, tensor.Quantize(b, dt, src))
			require.NoError(t, tensor.Decode(elems[float32](&wide, r*k, k), dt, b))
		}
		a := ops.MoEGroupedGemmArgs{Out: f.raw(tensor.F32, pairs, n), Act: f.random(tensor.F32, pairs, k), ExpertIDs: f.ints(tensor.I32, 1, 0, 1, 2, 1), Weights: w}
		require.NoError(t, ops.MoEGroupedGemm.Launch(q, &a), dt)
		b := a
		b.Out, b.Weights = f.raw(tensor.F32, pairs, n), wide
		require.NoError(t, ops.MoEGroupedGemm.Launch(q, &b))
		require.Equal(t, elems[float32](&b.Out, 0, pairs*n), elems[float32](&a.Out, 0, pairs*n), dt)
		for p := range pairs {
			e := int(elems[int32](&a.ExpertIDs, p, 1)[0])
			for c := range n {
				want, size := 0.0, 0.0
				for i := range k {
					v := float64(one(&a.Act, p*k+i)) * float64(one(&wide, (e*n+c)*k+i))
					want, size = want+v, size+math.Abs(v)
				}
				require.InDelta(t, want, one(&a.Out, p*n+c), 1e-6*size)
			}
		}
	}
}
