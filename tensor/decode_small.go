package tensor

import (
	"encoding/binary"
	"math"
)

// Code books, ternary and binary blocks.

var (
	bookIQ4 = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	bookFP4 = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12} // twice the e2m1 values
)

// decodeBook reads len(qs) low nibbles, then as many high ones.
func decodeBook(y []float32, d float32, book *[16]float32, qs []byte) {
	n := len(qs)
	y = y[:2*n]
	for j, q := range qs {
		y[j] = d * book[q&15]
		y[j+n] = d * book[q>>4]
	}
}

// IQ4_NL: f16 d, u8 qs[16].
func decodeIQ4NL(y []float32, b []byte) { decodeBook(y, half(b), &bookIQ4, b[2:18]) }

// IQ4_XS: f16 d, u16 high scale bits, u8 low scale nibbles[4], u8 qs[128].
func decodeIQ4XS(y []float32, b []byte) {
	d, high, low, qs := half(b), binary.LittleEndian.Uint16(b[2:]), b[4:8], b[8:136]
	for i := range 8 {
		s := int(low[i/2]>>(i%2*4)&15) | int(high>>(2*i)&3)<<4
		decodeBook(y[32*i:], d*float32(s-32), &bookIQ4, qs[16*i:][:16])
	}
}

// MXFP4: u8 exponent e, u8 qs[16]; the scale is 2^(e-128), half of e8m0 because the book is doubled, without NaN.
func decodeMXFP4(y []float32, b []byte) {
	d := uint32(0x00200000) << b[0] // subnormal for e < 2
	if b[0] >= 2 {
		d = uint32(b[0]-1) << 23
	}
	decodeBook(y, math.Float32frombits(d), &bookFP4, b[1:17])
}

// NVFP4: four scales of e4m3 without sign (a set top bit is ignored, 0x7f counts as zero), u8 qs[32]; a scale serves
// 16 elements.
func decodeNVFP4(y []float32, b []byte) {
	for i, s := range b[:4] {
		d := float32(0)
		if s != 0x7f {
			d = math.Float32frombits(codeValue(uint32(s&0x7f), e4m3fnMan, e4m3fnBias)) * 0.5
		}
		decodeBook(y[16*i:], d, &bookFP4, b[4+8*i:][:8])
	}
}

// TQ1_0: u8 qs[48] of five ternary digits, u8 qh[4] of four, f16 d. A byte holds its digits as a fraction of 256: the
// first one is 3·byte/256, and a multiplication by 3^n brings up the n-th. The 32 first bytes give five runs of 32
// elements, the next 16 five runs of 16, qh four runs of 4.
func decodeTQ1(y []float32, b []byte) {
	d := half(b[52:])
	run := func(qs []byte, digits int) {
		for pow := uint8(1); digits > 0; digits, pow = digits-1, pow*3 {
			for m, q := range qs {
				y[m] = float32(int(uint16(q*pow)*3>>8)-1) * d
			}
			y = y[len(qs):]
		}
	}
	run(b[:32], 5)
	run(b[32:48], 5)
	run(b[48:52], 4)
}

// TQ2_0: u8 qs[64], f16 d. Each 32 bytes hold four runs of 32 elements, two bits each.
func decodeTQ2(y []float32, b []byte) {
	d := half(b[64:])
	for i := range 8 {
		for m, q := range b[32*(i/4):][:32] {
			y[32*i+m] = float32(int(q>>(i%4*2)&3)-1) * d
		}
	}
}

// Q1_0: f16 d, one bit an element, ±d.
func decodeQ1(y []float32, b []byte) {
	d := half(b)
	for j := range y[:128] {
		y[j] = -d
		if b[2+j/8]>>(j%8)&1 != 0 {
			y[j] = d
		}
	}
}

// Q2_0: f16 d, two bits an element, (code-1)·d.
func decodeQ2(y []float32, b []byte) {
	d := half(b)
	for j := range y[:64] {
		y[j] = float32(int(b[2+j/4]>>(j%4*2)&3)-1) * d
	}
}
