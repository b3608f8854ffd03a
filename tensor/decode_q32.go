package tensor

import "encoding/binary"

// Blocks of 32 elements: the low nibbles of the 16 quant bytes are elements 0..15, the high ones 16..31.

// Q4_0: f16 d, u8 qs[16].
func decodeQ4_0(y []float32, b []byte) {
	d, qs, y0 := half(b), b[2:18], y[:32]
	for j, q := range qs {
		y0[j] = float32(int(q&15)-8) * d
		y0[j+16] = float32(int(q>>4)-8) * d
	}
}

// Q4_1: f16 d, f16 m, u8 qs[16].
func decodeQ4_1(y []float32, b []byte) {
	d, m, qs, y0 := half(b), half(b[2:]), b[4:20], y[:32]
	for j, q := range qs {
		y0[j] = float32(float32(q&15)*d) + m
		y0[j+16] = float32(float32(q>>4)*d) + m
	}
}

// Q5_0: f16 d, u32 qh (bit e is the fifth bit of element e), u8 qs[16].
func decodeQ5_0(y []float32, b []byte) {
	d, h, qs, y0 := half(b), binary.LittleEndian.Uint32(b[2:]), b[6:22], y[:32]
	for j, q := range qs {
		y0[j] = float32(int(uint32(q&15)|h>>j&1<<4)-16) * d
		y0[j+16] = float32(int(uint32(q>>4)|h>>(j+16)&1<<4)-16) * d
	}
}

// Q5_1: f16 d, f16 m, u32 qh, u8 qs[16].
func decodeQ5_1(y []float32, b []byte) {
	d, m, h, qs, y0 := half(b), half(b[2:]), binary.LittleEndian.Uint32(b[4:]), b[8:24], y[:32]
	for j, q := range qs {
		y0[j] = float32(float32(uint32(q&15)|h>>j&1<<4)*d) + m
		y0[j+16] = float32(float32(uint32(q>>4)|h>>(j+16)&1<<4)*d) + m
	}
}

// Q8_0: f16 d, i8 qs[32].
func decodeQ8_0(y []float32, b []byte) { decodeI8(y, half(b), b[2:34]) }

// Q8_1: f16 d, f16 s (d times the sum of the quants, for dot products), i8 qs[32].
func decodeQ8_1(y []float32, b []byte) { decodeI8(y, half(b), b[4:36]) }

func decodeI8(y []float32, d float32, qs []byte) {
	y = y[:len(qs)]
	for j, q := range qs {
		y[j] = float32(int8(q)) * d
	}
}
