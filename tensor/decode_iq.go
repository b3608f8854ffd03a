package tensor

import (
	"encoding/binary"
	"math/bits"
)

// Blocks of 256 elements whose quants are points of a codebook (grids.go), eight or four elements each, with their signs
// apart. Of eight signs the formats with seven bits leave out the last: the number of minuses is even.

var (
	valuesIQ2    = [4]float32{8, 25, 43}
	valuesIQ3XXS = [8]float32{4, 12, 20, 28, 36, 44, 52, 62}
)

func evenSigns(s uint32) uint8 {
	s &= 127
	return uint8(s | uint32(bits.OnesCount32(s)&1)<<7)
}

// negated returns -v if bit j of signs is set.
func negated(v float32, signs uint8, j int) float32 {
	if signs>>j&1 != 0 {
		return -v
	}
	return v
}

func pointIQ2(y []float32, d float32, point uint16, signs uint8) {
	for j := range y[:8] {
		y[j] = negated(d*valuesIQ2[point>>(2*j)&3], signs, j)
	}
}

// scaleIQ2 is the scale of a four-bit code.
func scaleIQ2(d float32, code uint32) float32 { return float32(d*(0.5+float32(code))) * 0.25 }

// IQ2_XXS: f16 d, eight of {u8 points[4], u32 of four signs of seven bits and a scale of four}.
func decodeIQ2XXS(y []float32, b []byte) {
	d := half(b)
	for i := range 8 {
		g := b[2+8*i:][:8]
		aux := binary.LittleEndian.Uint32(g[4:])
		s := scaleIQ2(d, aux>>28)
		for l, p := range g[:4] {
			pointIQ2(y[32*i+8*l:], s, gridIQ2XXS[p], evenSigns(aux>>(7*l)))
		}
	}
}

// IQ2_XS: f16 d, u16 qs[32] (nine bits of point, seven of signs), u8 scales[8] (a nibble for 16 elements).
func decodeIQ2XS(y []float32, b []byte) {
	d, scales := half(b), b[66:74]
	for i := range 32 {
		q := binary.LittleEndian.Uint16(b[2+2*i:])
		s := scaleIQ2(d, uint32(scales[i/4]>>(i/2%2*4)&15))
		pointIQ2(y[8*i:], s, gridIQ2XS[q&511], evenSigns(uint32(q>>9)))
	}
}

// IQ2_S: f16 d, u8 points[32], u8 signs[32], u8 qh[8] (two high bits of four points each), u8 scales[8] as in IQ2_XS.
func decodeIQ2S(y []float32, b []byte) {
	d, points, signs, qh, scales := half(b), b[2:34], b[34:66], b[66:74], b[74:82]
	for i, p := range points {
		s := scaleIQ2(d, uint32(scales[i/4]>>(i/2%2*4)&15))
		pointIQ2(y[8*i:], s, gridIQ2S[uint(p)|uint(qh[i/4]>>(i%4*2)&3)<<8], signs[i])
	}
}

// IQ3_XXS: f16 d, u8 points[64] of four elements, eight u32 of four signs of seven bits and a scale of four.
func decodeIQ3XXS(y []float32, b []byte) {
	d, points := half(b), b[2:66]
	for i, p := range points {
		aux := binary.LittleEndian.Uint32(b[66+4*(i/8):])
		s := float32(d*(0.5+float32(aux>>28))) * 0.5
		signs, point := evenSigns(aux>>(i/2%4*7))>>(i%2*4), gridIQ3XXS[p]
		for j, out := 0, y[4*i:][:4]; j < 4; j++ {
			out[j] = negated(s*valuesIQ3XXS[point>>(3*j)&7], signs, j)
		}
	}
}

// IQ3_S: f16 d, u8 points[64] of four elements, u8 qh[8] (their ninth bits), u8 signs[32], u8 scales[4] (a nibble for 32
// elements).
func decodeIQ3S(y []float32, b []byte) {
	d, points, qh, signs, scales := half(b), b[2:66], b[66:74], b[74:106], b[106:110]
	for i, p := range points {
		s := d * float32(1+2*int(scales[i/16]>>(i/8%2*4)&15))
		sign, point := signs[i/2]>>(i%2*4), gridIQ3S[uint(p)|uint(qh[i/8]>>(i%8)&1)<<8]
		for j, out := 0, y[4*i:][:4]; j < 4; j++ {
			out[j] = negated(s*float32(2*(point>>(4*j)&15)+1), sign, j)
		}
	}
}

// pointIQ1 adds an eighth to the coordinates of a point, or takes it off.
func pointIQ1(y []float32, d float32, point uint16, minus bool) {
	delta := float32(0.125)
	if minus {
		delta = -delta
	}
	for j := range y[:8] {
		y[j] = d * (float32(int(point>>(2*j)&3)-1) + delta)
	}
}

// IQ1_S: f16 d, u8 points[32], u16 qh[8]: three high bits of four points each, a scale of three bits, the sign of the shift.
func decodeIQ1S(y []float32, b []byte) {
	d, points := half(b), b[2:34]
	for i, p := range points {
		h := binary.LittleEndian.Uint16(b[34+2*(i/4):])
		s := d * float32(2*(h>>12&7)+1)
		pointIQ1(y[8*i:], s, gridIQ1[uint16(p)|h>>(i%4*3)&7<<8], h>>15 != 0)
	}
}

// IQ1_M: u8 points[32], u8 qh[16] (a nibble a point: three high bits, the sign of the shift), u16 scales[4]: four scales of
// three bits each, of 16 elements, and in the top nibbles the f16 d.
func decodeIQ1M(y []float32, b []byte) {
	points, qh := b[:32], b[32:48]
	var scales uint64 // twelve bits of each word
	var h uint16
	for i := range 4 {
		w := binary.LittleEndian.Uint16(b[48+2*i:])
		scales |= uint64(w&0xfff) << (12 * i)
		h |= w >> 12 << (4 * i)
	}
	d := DecodeF16(h)
	for i, p := range points {
		q := uint16(qh[i/2] >> (i % 2 * 4))
		s := d * float32(2*(scales>>(i/2*3)&7)+1)
		pointIQ1(y[8*i:], s, gridIQ1[uint16(p)|q&7<<8], q&8 != 0)
	}
}
