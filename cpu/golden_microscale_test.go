package cpu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// What comes back from a quantizer is off by half a step of the element format at the element's size, unless it saturates.
func TestMicroscalingRoundTrip(t *testing.T) {
	const rows, k = 3, 96
	q, f := onReference(t, ops.OpQuantMX, ops.OpDequantMX), newFixture(t)
	for _, format := range []struct {
		t       tensor.DType
		bytes   int64
		man     int
		largest float64
		least   float64 // exponent of the smallest normal number
	}{{tensor.F8E4M3FN, k, 3, 448, -6}, {tensor.F8E5M2, k, 2, 57344, -14}, {tensor.F4E2M1x2, k / 2, 1, 6, 0}} {
		for _, rule := range []ops.ScaleRounding{ops.ScaleFloor, ops.ScaleCeil} {
			x := f.f32(ramps(5, rows*k)...)
			v := elems[float32](&x, 0, rows*k)
			v[40], v[100], v[170] = 1e-30, 3e20, -1e-12
			x = f.as(x, rows, k)
			a := ops.QuantMXArgs{Out: f.raw(format.t, rows, format.bytes), Scale: f.raw(tensor.F8E8M0, rows, k/32), X: x, Rounding: rule}
			require.NoError(t, ops.QuantMX.Launch(q, &a))
			d := ops.DequantMXArgs{Out: f.raw(tensor.F32, rows, k), X: a.Out, Scale: a.Scale}
			require.NoError(t, ops.DequantMX.Launch(q, &d))
			for b := range rows * k / 32 {
				largest := 0.0
				for _, e := range v[32*b:][:32] {
					largest = max(largest, math.Abs(float64(e)))
				}
				scale := math.Exp2(math.Floor(math.Log2(largest)) - math.Floor(math.Log2(format.largest)))
				if rule == ops.ScaleCeil {
					scale = math.Exp2(math.Ceil(math.Log2(largest / format.largest)))
					require.LessOrEqual(t, largest/scale, format.largest)
				}
				require.Equal(t, scale, float64(tensor.DecodeE8M0(elems[byte](&a.Scale, b, 1)[0])), "%v rule %d block %d", format.t, rule, b)
				for e, got := range elems[float32](&d.Out, 32*b, 32) {
					y := float64(v[32*b+e]) / scale
					want := math.Copysign(min(math.Abs(y), format.largest), y)
					step := math.Exp2(max(math.Floor(math.Log2(math.Abs(want))), format.least) - float64(format.man))
					require.LessOrEqual(t, math.Abs(float64(got)/scale-want), step/2, "%v rule %d element %d of %v", format.t, rule, 32*b+e, v[32*b+e])
				}
			}
		}
	}
}

func TestQuantFP8DynamicScales(t *testing.T) {
	q, f := onReference(t, ops.OpQuantFP8Dynamic), newFixture(t)
	nan := float32(math.NaN())
	x := f.as(f.f32(1, -2, 0, nan, 896, 3, 0, 0), 2, 4)
	run := func(g ops.Granularity, group int32, dt tensor.DType, shape ...int64) (codes []byte, scale tensor.Tensor) {
		a := ops.QuantFP8DynamicArgs{Out: f.raw(tensor.F8E4M3FN, 2, 4), Scale: f.raw(dt, shape...), X: x, Granularity: g, GroupSize: group}
		require.NoError(t, ops.QuantFP8Dynamic.Launch(q, &a))
		return elems[byte](&a.Out, 0, 8), a.Scale
	}
	codes, s := run(ops.PerTensor, 0, tensor.F32, 1)
	require.Equal(t, []float32{2}, elems[float32](&s, 0, 1))
	require.Equal(t, []byte{0x30, 0xb8, 0, 0x7f, 0x7e, 0x3c, 0, 0}, codes, "0.5 -1 0 NaN 448 1.5 0 0")
	_, s = run(ops.PerToken, 0, tensor.F32, 2, 1)
	require.Equal(t, []float32{float32(2) / 448, 2}, elems[float32](&s, 0, 2))
	codes, s = run(ops.PerGroup, 2, tensor.F32, 2, 2)
	require.Equal(t, []float32{float32(2) / 448, leastScale, 2, leastScale}, elems[float32](&s, 0, 4))
	require.Equal(t, []byte{0x76, 0xfe, 0, 0x7f}, codes[:4], "224 -448 0 NaN")
	_, s = run(ops.PerToken, 0, tensor.F8E8M0, 2, 1)
	require.Equal(t, []byte{127 - 7, 128}, elems[byte](&s, 0, 2), "2/448 goes up to 2^-7")
}
