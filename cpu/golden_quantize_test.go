package cpu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Codes against float64, element by element, for every form of scales.
func TestQuantizeByElement(t *testing.T) {
	q, f := onReference(t, ops.OpQuantize, ops.OpDequantize), newFixture(t)
	x := f.raw(tensor.F32, 3, 8, 5)
	f.fill(&x, 40)
	for name, c := range map[string]struct {
		axis, block int32
		shape       []int64
		place       func(i, j, k int) int
	}{
		"tensor": {0, 0, []int64{1}, func(_, _, _ int) int { return 0 }},
		"axis 0": {0, 0, []int64{3}, func(i, _, _ int) int { return i }},
		"axis 1": {1, 0, []int64{8}, func(_, j, _ int) int { return j }},
		"axis 2": {2, 0, []int64{5}, func(_, _, k int) int { return k }},
		"blocks": {1, 4, []int64{3, 2, 5}, func(i, j, k int) int { return (i*2+j/4)*5 + k }},
		"rows":   {0, 3, []int64{1, 8, 5}, func(_, j, k int) int { return j*5 + k }},
	} {
		n := int64(1)
		for _, d := range c.shape {
			n *= d
		}
		scale, zero := f.raw(tensor.F32, c.shape...), f.raw(tensor.I8, c.shape...)
		for i := range int(n) {
			put(&scale, i, float32(i%7+1)/4)
			elems[int8](&zero, i, 1)[0] = int8(3*i - 20)
		}
		codes, back := f.raw(tensor.I8, 3, 8, 5), f.raw(tensor.F32, 3, 8, 5)
		require.NoError(t, ops.Quantize.Call(q, ops.QuantizeArgs{Out: codes, X: x, Scale: scale, ZeroPoint: zero, Axis: c.axis, BlockSize: c.block, Low: -100, High: 100}))
		require.NoError(t, ops.Dequantize.Call(q, ops.DequantizeArgs{Out: back, X: codes, Scale: scale, ZeroPoint: zero, Axis: c.axis, BlockSize: c.block}))
		for e := range 120 {
			p := c.place(e/40, e/5%8, e%5)
			s, z := float64(one(&scale, p)), float64(elems[int8](&zero, p, 1)[0])
			want := math.Max(-100, math.Min(100, math.RoundToEven(float64(one(&x, e))/s)+z)) // scales are powers of two or leave no tie
			got := float64(elems[int8](&codes, e, 1)[0])
			require.Equal(t, want, got, "%s %d", name, e)
			require.InDelta(t, (got-z)*s, one(&back, e), 1e-4, "%s %d", name, e)
		}
	}
}

// An example of ONNX; rows of zeros, of whole ends, and with a NaN.
func TestGoldenDynamicQuantize(t *testing.T) {
	q, f := onReference(t, ops.OpDynamicQuantize), newFixture(t)
	x := f.as(f.f32(0, 2, -3, -2.5, 1.34, 0.5), 1, 6)
	a := ops.DynamicQuantizeArgs{Out: f.raw(tensor.U8, 1, 6), Scale: f.raw(tensor.F32, 1), ZeroPoint: f.raw(tensor.U8, 1), X: x}
	require.NoError(t, ops.DynamicQuantize.Launch(q, &a))
	require.InDelta(t, 5.0/255, one(&a.Scale, 0), 1e-7)
	require.Equal(t, uint8(153), elems[uint8](&a.ZeroPoint, 0, 1)[0])
	require.Equal(t, []uint8{153, 255, 0, 26, 221, 179}, elems[uint8](&a.Out, 0, 6))

	rows := f.as(f.f32(0, 0, -4, 1, float32(math.NaN()), 8), 3, 2)
	b := ops.DynamicQuantizeArgs{Out: f.raw(tensor.I8, 3, 2), Scale: f.raw(tensor.F32, 3), X: rows, Granularity: ops.PerToken}
	require.NoError(t, ops.DynamicQuantize.Launch(q, &b))
	require.Equal(t, []int8{0, 0, -127, 32, 0, 127}, elems[int8](&b.Out, 0, 6))
	require.Equal(t, []float32{1, float32(4.0 / 127), float32(8.0 / 127)}, elems[float32](&b.Scale, 0, 3))
}

// What scaled_fp4_quant made comes back, in both layouts of scales, within half a step of the coarsest codes.
func TestNVFP4ComesBack(t *testing.T) {
	q, f := onReference(t, ops.OpDequantNVFP4, ops.OpScaledFP4Quant), newFixture(t)
	x := f.in(tensor.F32, 130, 96)
	var first []float32
	for _, layout := range []ops.ScaleLayout{ops.ScaleLinear, ops.ScaleSwizzled} {
		rows, cols := ops.ScaleExtents(layout, 130, 6)
		packed, scale, out := f.raw(tensor.F4E2M1x2, 130, 48), f.raw(tensor.F8E4M3FN, rows, cols), f.raw(tensor.F32, 130, 96)
		const gs = 448 * 6 / 4.5
		require.NoError(t, ops.ScaledFP4Quant.Call(q, ops.ScaledFP4QuantArgs{OutPacked: packed, OutScale: scale, X: x, InputGlobalScaleInv: gs, ScaleLayout: layout}))
		require.NoError(t, ops.DequantNVFP4.Call(q, ops.DequantNVFP4Args{Out: out, X: packed, Scale: scale, GlobalScale: 1.0 / gs, ScaleLayout: layout}))
		for g := range 130 * 6 {
			top := 0.0
			for _, v := range elems[float32](&x, g*16, 16) {
				top = max(top, math.Abs(float64(v)))
			}
			for e := range 16 {
				require.InDelta(t, one(&x, g*16+e), one(&out, g*16+e), top*0.19+1e-3)
			}
		}
		if first == nil {
			first = elems[float32](&out, 0, 130*96)
		}
		require.Equal(t, first, elems[float32](&out, 0, 130*96))
	}
}
