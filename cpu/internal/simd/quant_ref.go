package simd

import (
	"math"
	"unsafe"
)

// quantizeRef is the reference of the quantize kernels.
func quantizeRef(nb int, x *float32, dst *byte, bias int32) {
	const infinity, tiny = 0x7f800000, 0x04800000 // bits of +Inf and of 2⁻¹¹⁸
	blocks := xblocks(dst, nb)
	for b := range blocks {
		in := (*[block]float32)(unsafe.Add(unsafe.Pointer(x), b*block*4))
		var bits uint32 // of the largest magnitude; NaN is above infinity
		for _, v := range in {
			bits = max(bits, math.Float32bits(v)&^(1<<31))
		}
		a := math.Float32frombits(bits)
		id := 127 / a
		out := xblock{d: f16ToF32(f32ToF16(a/127 + (a - a)))} // a - a is 0, or NaN
		if tiny <= bits && bits < infinity {
			for i, v := range in {
				out.q[i] = int8(math.RoundToEven(float64(v * id)))
				out.sum -= bias * int32(out.q[i])
			}
		}
		blocks[b] = out
	}
}
