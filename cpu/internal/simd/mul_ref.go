package simd

import "unsafe"

// The references of the tiles: one row, one panel.

func mulQ4Ref(n int, w *byte, _ int, x *byte, _ int, c *float32, _, cols, _ int) {
	out := unsafe.Slice(c, cols)
	for b, xb := range xblocks(x, n) {
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

func mulQ8Ref(n int, w *byte, _ int, x *byte, _ int, c *float32, _, cols, _ int) {
	out := unsafe.Slice(c, cols)
	for b, xb := range xblocks(x, n) {
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

func mulF32Ref(n int, w *byte, _ int, x *byte, _ int, c *float32, _, cols, _ int) {
	mulFRef(n, x, c, cols, func(i int) float32 { return *(*float32)(unsafe.Add(unsafe.Pointer(w), 4*i)) })
}

func mulF16Ref(n int, w *byte, _ int, x *byte, _ int, c *float32, _, cols, _ int) {
	mulFRef(n, x, c, cols, func(i int) float32 { return f16ToF32(*(*uint16)(unsafe.Add(unsafe.Pointer(w), 2*i))) })
}

func mulBF16Ref(n int, w *byte, _ int, x *byte, _ int, c *float32, _, cols, _ int) {
	mulFRef(n, x, c, cols, func(i int) float32 { return bf16ToF32(*(*uint16)(unsafe.Add(unsafe.Pointer(w), 2*i))) })
}

func mulFRef(n int, x *byte, c *float32, cols int, weight func(i int) float32) {
	out := unsafe.Slice(c, cols)
	for i, v := range unsafe.Slice((*float32)(unsafe.Pointer(x)), n) {
		for l := range out {
			out[l] = fma32(v, weight(i*Lanes+l), out[l])
		}
	}
}
