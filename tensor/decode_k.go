package tensor

import (
	"encoding/binary"
	"math"
)

// Blocks of 256 elements.

// Q2_K: u8 scales[16] (low nibble scale, high nibble minimum), u8 qs[64], f16 d, f16 dmin. Element 128h+32t+l has the
// bits 2t.. of qs[32h+l] and the scale of its sixteenth.
func decodeQ2K(y []float32, b []byte) {
	scales, qs, d, dmin := b[:16], b[16:80], half(b[80:]), half(b[82:])
	for i, sc := range scales {
		dl, ml := d*float32(sc&15), dmin*float32(sc>>4)
		q, shift := qs[32*(i/8)+16*(i%2):][:16], i/2%4*2
		for l, out := 0, y[16*i:][:16]; l < 16; l++ {
			out[l] = float32(dl*float32(q[l]>>shift&3)) - ml
		}
	}
}

// Q3_K: u8 hmask[32], u8 qs[64], u8 scales[12] (sixteen of six bits), f16 d. Elements lie as in Q2_K; bit 4h+t of
// hmask[l] clear takes 4 from the two low bits.
func decodeQ3K(y []float32, b []byte) {
	hmask, qs, r, d := b[:32], b[32:96], b[96:108], half(b[108:])
	for i := range 16 {
		low := r[i%8] >> (i / 8 * 4) & 15
		high := r[8+i%4] >> (i / 4 * 2) & 3
		dl := d * float32(int(low|high<<4)-32)
		q, hm, shift, bit := qs[32*(i/8)+16*(i%2):][:16], hmask[16*(i%2):][:16], i/2%4*2, i/2
		for l, out := 0, y[16*i:][:16]; l < 16; l++ {
			v := int(q[l]>>shift&3) - 4 + int(hm[l]>>bit&1)<<2
			out[l] = dl * float32(v)
		}
	}
}

// scaleMin returns the j-th of eight pairs of six-bit scale and minimum that Q4_K and Q5_K pack in twelve bytes.
func scaleMin(j int, q []byte) (scale, minimum float32) {
	if j < 4 {
		return float32(q[j] & 63), float32(q[j+4] & 63)
	}
	return float32(q[j+4]&15 | q[j-4]>>6<<4), float32(q[j+4]>>4 | q[j]>>6<<4)
}

// Q4_K: f16 d, f16 dmin, u8 scales[12], u8 qs[128]. Of each 32 bytes the low nibbles are 32 elements, the high nibbles
// the next 32.
func decodeQ4K(y []float32, b []byte) {
	d, dmin, scales, qs := half(b), half(b[2:]), b[4:16], b[16:144]
	for j := range 8 {
		sc, mn := scaleMin(j, scales)
		dl, ml := d*sc, dmin*mn
		q, shift := qs[32*(j/2):][:32], j%2*4
		for l, out := 0, y[32*j:][:32]; l < 32; l++ {
			out[l] = float32(dl*float32(q[l]>>shift&15)) - ml
		}
	}
}

// Q5_K: f16 d, f16 dmin, u8 scales[12], u8 qh[32], u8 qs[128]. As Q4_K, with bit j of qh[l] as fifth bit.
func decodeQ5K(y []float32, b []byte) {
	d, dmin, scales, qh, qs := half(b), half(b[2:]), b[4:16], b[16:48], b[48:176]
	for j := range 8 {
		sc, mn := scaleMin(j, scales)
		dl, ml := d*sc, dmin*mn
		q, shift := qs[32*(j/2):][:32], j%2*4
		for l, out := 0, y[32*j:][:32]; l < 32; l++ {
			out[l] = float32(dl*float32(q[l]>>shift&15|qh[l]>>j&1<<4)) - ml
		}
	}
}

// Q6_K: u8 ql[128], u8 qh[64], i8 scales[16], f16 d. In each half of 128, element 32t+l has a nibble of
// ql[32(t%2)+l], low for t < 2, and the bits 2t.. of qh[l].
func decodeQ6K(y []float32, b []byte) {
	ql, qh, scales, d := b[:128], b[128:192], b[192:208], half(b[208:])
	for i := range 16 {
		h, t, part := i/8, i/2%4, 16*(i%2)
		dl := d * float32(int8(scales[i]))
		lo, hi := ql[64*h+32*(t%2)+part:][:16], qh[32*h+part:][:16]
		for l, out := 0, y[16*i:][:16]; l < 16; l++ {
			q := lo[l]>>(t/2*4)&15 | hi[l]>>(2*t)&3<<4
			out[l] = dl * float32(int(q)-32)
		}
	}
}

// Q8_K: f32 d, i8 qs[256], i16 sums of the quants by sixteens (for dot products).
func decodeQ8K(y []float32, b []byte) {
	decodeI8(y, math.Float32frombits(binary.LittleEndian.Uint32(b)), b[4:260])
}
