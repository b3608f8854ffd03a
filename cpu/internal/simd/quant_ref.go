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
		out := xblock{d: a/127 + (a - a)} // a - a is 0, or NaN
		if tiny <= bits && bits < infinity {
			for i, v := range in {
				out.q[i] = int8(math.RoundToEven(float64(v * id)))
				out.sum -= bias * int32(out.q[i])
			}
		}
		blocks[b] = out
	}
}

// mulQ4Ref is the reference of the Q4_0 kernels, for one row.
func mulQ4Ref(nb int, w, x *byte, _ int, c *float32, _, cols, _ int) {
	out := unsafe.Slice(c, cols)
	for b, xb := range xblocks(x, nb) {
		wb := (*[q4Block]byte)(unsafe.Add(unsafe.Pointer(w), b*q4Block))
		for l := range out {
			sum := xb.sum
			for j := range 4 { // groups 2j and 2j+1 share bytes
				for i := range 4 {
					v := int32(wb[64*j+4*l+i])
					sum += v&15*int32(xb.q[8*j+i]) + v>>4*int32(xb.q[8*j+4+i])
				}
			}
			out[l] = fma32(float32(xb.d*scale(wb[256:], l)), float32(sum), out[l])
		}
	}
}

// mulQ8Ref is the reference of the Q8_0 kernels, for one row.
func mulQ8Ref(nb int, w, x *byte, _ int, c *float32, _, cols, _ int) {
	out := unsafe.Slice(c, cols)
	for b, xb := range xblocks(x, nb) {
		wb := (*[q8Block]byte)(unsafe.Add(unsafe.Pointer(w), b*q8Block))
		for l := range out {
			sum := xb.sum
			for g := range 8 {
				for i := range 4 {
					sum += int32(wb[64*g+4*l+i]) * int32(xb.q[4*g+i])
				}
			}
			out[l] = fma32(float32(xb.d*scale(wb[512:], l)), float32(sum), out[l])
		}
	}
}
