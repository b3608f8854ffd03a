package cpu

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// The first k are the head of a stable sort.
func TestTopKIsASort(t *testing.T) {
	q, f := onReference(t, ops.OpTopK), newFixture(t)
	const n = 777
	x := f.in(tensor.F16, 3, n)
	for i := range 3 * n { // few distinct values, so that many are equal
		put(&x, i, float32(math.Round(float64(one(&x, i))*4))/4)
	}
	for _, smallest := range []bool{false, true} {
		for _, k := range []int{1, 2, 100, n} {
			a := ops.TopKArgs{Values: f.raw(tensor.F16, 3, int64(k)), Indices: f.raw(tensor.I32, 3, int64(k)), X: x, Smallest: smallest}
			require.NoError(t, ops.TopK.Launch(q, &a))
			for r := range 3 {
				places := make([]int32, n)
				for i := range places {
					places[i] = int32(i)
				}
				slices.SortStableFunc(places, func(i, j int32) int {
					d := one(&x, r*n+int(j)) - one(&x, r*n+int(i))
					if smallest {
						d = -d
					}
					return int(4 * d)
				})
				require.Equal(t, places[:k], elems[int32](&a.Indices, r*k, k))
				for e, at := range places[:k] {
					require.Equal(t, one(&x, r*n+int(at)), one(&a.Values, r*k+e))
				}
			}
		}
	}
}

// Gather and scatter against loops over every index.
func TestGatherScatterByIndex(t *testing.T) {
	q, f := onReference(t, ops.OpGather, ops.OpScatter), newFixture(t)
	data := f.in(tensor.F32, 4, 5, 3)
	ids := f.as(f.ints(tensor.I32, 4, -5, 0, -1), 2, 2)
	out := f.raw(tensor.F32, 4, 2, 2, 3)
	require.NoError(t, ops.Gather.Call(q, ops.GatherArgs{Out: out, Data: data, IDs: ids, Axis: 1}))
	for i, got := range elems[float32](&out, 0, 48) {
		a, row, b := i/12, i/3%4, i%3
		from := []int{4, 0, 0, 4}[row]
		require.Equal(t, one(&data, (a*5+from)*3+b), got, i)
	}

	// Two numbers name a row of three; the same row twice.
	before := slices.Clone(elems[float32](&data, 0, 60))
	at := f.as(f.ints(tensor.I64, 3, 4, 0, -5, -1, -1), 3, 2)
	up := f.in(tensor.F32, 3, 3)
	require.NoError(t, ops.Scatter.Call(q, ops.ScatterArgs{Data: data, IDs: at, Updates: up, Reduction: ops.ScatterAdd}))
	u := elems[float32](&up, 0, 9)
	for i, got := range elems[float32](&data, 0, 60) {
		want := before[i]
		switch i / 3 {
		case 19:
			want = want + u[i%3] + u[6+i%3]
		case 0:
			want += u[3+i%3]
		}
		require.Equal(t, want, got, i)
	}
	err := ops.Scatter.Call(q, ops.ScatterArgs{Data: data, IDs: f.as(f.ints(tensor.I64, 0, 5), 1, 2), Updates: f.as(f.f32(1, 2, 3), 1, 3)})
	require.ErrorIs(t, err, ops.ErrValue)
	require.ErrorContains(t, err, "id 5 at 1")
	nan := f.f32(float32(math.NaN()), 1)
	require.NoError(t, ops.Scatter.Call(q, ops.ScatterArgs{Data: nan, IDs: f.as(f.ints(tensor.I64, 0, 1), 2, 1), Updates: f.f32(5, float32(math.NaN())), Reduction: ops.ScatterMax}))
	for _, v := range elems[float32](&nan, 0, 2) {
		require.True(t, v != v)
	}
}

// The example of the catalogue: drafts (1,2,3), arg maxima (1,5,3,4).
func TestGoldenRejection(t *testing.T) {
	q, f := onReference(t, ops.OpGreedyRejectionSample), newFixture(t)
	logits := f.raw(tensor.F32, 5, 6)
	for r, token := range []int{1, 5, 3, 4, 2} {
		for c := range 6 {
			put(&logits, r*6+c, float32(c)/100)
		}
		put(&logits, r*6+token, 7)
	}
	a := ops.GreedyRejectionSampleArgs{Sampled: f.raw(tensor.I32, 2, 4), NumSampled: f.raw(tensor.I32, 2), Logits: logits, DraftSampled: f.ints(tensor.I32, 77, 1, 2, 3, 77), CuNumLogits: f.ints(tensor.I32, 0, 4, 5)}
	require.NoError(t, ops.GreedyRejectionSample.Launch(q, &a))
	require.Equal(t, []int32{1, 5, -1, -1, 2, -1, -1, -1}, elems[int32](&a.Sampled, 0, 8))
	require.Equal(t, []int32{2, 1}, elems[int32](&a.NumSampled, 0, 2))
	a.CuNumLogits = f.ints(tensor.I32, 0, 5, 5)
	require.ErrorContains(t, ops.GreedyRejectionSample.Launch(q, &a), "request 0 has 5 rows")
}

func TestGoldenCumsum(t *testing.T) {
	q, f := onReference(t, ops.OpCumsum), newFixture(t)
	x := f.raw(tensor.F64, 3)
	copy(elems[float64](&x, 0, 3), []float64{1, 0x1p-52, 1 << 52})
	require.NoError(t, ops.Cumsum.Call(q, ops.CumsumArgs{Out: x, X: x, Reverse: true}))
	require.Equal(t, []float64{1<<52 + 1, 1 << 52, 1 << 52}, elems[float64](&x, 0, 3))
	half := f.raw(tensor.BF16, 300) // sums are in f32: none sticks at 256
	for i := range 300 {
		put(&half, i, 1)
	}
	out := f.raw(tensor.BF16, 300)
	require.NoError(t, ops.Cumsum.Call(q, ops.CumsumArgs{Out: out, X: half}))
	require.EqualValues(t, 300, one(&out, 299))
}
