package cpu

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// H[i][j] of Sylvester's matrix is -1 to the number of bits that i and j share.
func TestHadamardAgainstItsMatrix(t *testing.T) {
	q, f := onReference(t, ops.OpHadamardTransform), newFixture(t)
	for n := 1; n <= 256; n *= 2 {
		x := ramps(3, 2*n)
		a := ops.HadamardTransformArgs{Out: f.raw(tensor.F32, 2, int64(n)), X: f.as(f.f32(x...), 2, int64(n)), Scale: 0.125}
		require.NoError(t, ops.HadamardTransform.Launch(q, &a))
		for i, got := range elems[float32](&a.Out, 0, 2*n) {
			want := 0.0
			for j, v := range x[i/n*n:][:n] {
				if bits.OnesCount(uint(i%n)&uint(j))%2 == 1 {
					v = -v
				}
				want += float64(v)
			}
			require.EqualValues(t, want/8, got, "%d of %d", i, n) // multiples of 1/16 are exact
		}
	}
	// Scaled by 1/sqrt(N) it is its own inverse and keeps lengths.
	x := ramps(0, 64)
	a := ops.HadamardTransformArgs{Out: f.raw(tensor.F32, 1, 64), X: f.as(f.f32(x...), 1, 64), Scale: 0.125}
	require.NoError(t, ops.HadamardTransform.Launch(q, &a))
	a.X, a.Out = a.Out, f.raw(tensor.F32, 1, 64)
	require.NoError(t, ops.HadamardTransform.Launch(q, &a))
	require.Equal(t, x, elems[float32](&a.Out, 0, 64))
}

func TestProbeSeesItsCall(t *testing.T) {
	q, f := onReference(t, ops.OpDropinProbe), newFixture(t)
	in := f.f32(1, 2, 3, 4, 5, 6)
	in.Rank, in.Shape, in.Stride = 2, [8]int64{3, 2}, [8]int64{1, 3} // [2,3] transposed
	a := ops.DropinProbeArgs{Out: f.raw(tensor.F32, 3, 2), In: in, Workspace: f.raw(tensor.I32, 3), ScalarType: tensor.F32.ScalarID(), Scalar: 0.5, ScalarSlot: 1}
	require.NoError(t, ops.DropinProbe.Launch(q, &a))
	require.Equal(t, []float32{1.5, 4.5, 2.5, 5.5, 3.5, 6.5}, elems[float32](&a.Out, 0, 6))
	require.Equal(t, []int32{0x11708, 0, 0}, elems[int32](&a.Workspace, 0, 3), "8 exponent bits, 23 of mantissa, signed")
}
