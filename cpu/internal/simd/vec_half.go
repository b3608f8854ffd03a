package simd

import "math"

func widenF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i, h := range src {
		dst[i] = f16ToF32(h)
	}
}

func narrowF16(dst []uint16, src []float32) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] = f32ToF16(v)
	}
}

func widenBF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i, h := range src {
		dst[i] = bf16ToF32(h)
	}
}

func narrowBF16(dst []uint16, src []float32) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] = f32ToBF16(v)
	}
}

func f16ToF32(h uint16) float32 {
	sign, mag := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	if mag >= 0x7c00 {
		bits := sign | 0x7f800000 | (mag&0x3ff)<<13
		if mag > 0x7c00 {
			bits |= 1 << 22
		}
		return math.Float32frombits(bits)
	}
	// The exponent's bias differs by 112. A multiplication mends it for normal
	// and subnormal numbers alike, and is exact.
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(mag<<13)*0x1p112))
}

func f32ToF16(v float32) uint16 {
	bits := math.Float32bits(v)
	sign, mag := uint16(bits>>16)&0x8000, bits&0x7fffffff
	switch {
	case mag > 0x7f800000:
		return sign | 0x7e00 | uint16(mag>>13)&0x3ff
	case mag >= 0x477ff000: // 65520 rounds to 2^16
		return sign | 0x7c00
	case mag < 0x38800000: // below 2^-14: the last bit of 0.5 is worth one subnormal step, 2^-24
		return sign | uint16(math.Float32bits(math.Float32frombits(mag)+0.5)-0x3f000000)
	}
	return sign | uint16((mag+0xfff+mag>>13&1-112<<23)>>13)
}

func bf16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

func f32ToBF16(v float32) uint16 {
	bits := math.Float32bits(v)
	if v != v {
		return uint16(bits>>16) | 1<<6
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}
