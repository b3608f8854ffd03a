package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// encoders mirrors decoders.
var encoders = [numDTypes]func(b []byte, x []float32){
	F32: encodeF32, F16: encodeRow16(EncodeF16), BF16: encodeRow16(EncodeBF16),
	Q4_0: encodeQ4_0, Q4_1: encodeQ4_1, Q5_0: encodeQ5_0, Q5_1: encodeQ5_1,
	Q8_0: encodeQ8_0, Q8_1: encodeQ8_1, Q8_K: encodeQ8K,
	Q4_K: encodeQ4K, Q5_K: encodeQ5K, Q6_K: encodeQ6K, IQ4_NL: encodeIQ4NL, MXFP4: encodeMXFP4,
}

// CanQuantize reports whether Quantize has an encoder for t.
func CanQuantize(t DType) bool { return t.Valid() && encoders[t] != nil }

// Quantize packs a row of f32 into type t. f32 f16 bf16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, and Q8_1 and Q8_K, the types of
// activations, come out byte for byte as from ggml's reference packers for finite values. Q4_K Q5_K Q6_K IQ4_NL MXFP4 take
// the scales of least squared error that a search finds: the same bytes on every machine, but not ggml's. dst must be
// exactly the bytes of the row, t.RowBytes(len(src)) (ErrShape); a type without encoder is ErrDType. A block that holds
// NaN or infinity is written, with values that nothing specifies where the bytes are ggml's; where scales are searched for,
// the elements that share a scale with it become zeros. An error leaves dst untouched.
func Quantize(dst []byte, t DType, src []float32) error {
	if !CanQuantize(t) {
		return fmt.Errorf("tensor: quantize: %v has no encoder: %w", t, ErrDType)
	}
	if err := checkRow("quantize", t, len(src), len(dst)); err != nil {
		return err
	}
	f := encoders[t]
	e, b := t.Block()
	if e == 1 {
		f(dst, src)
		return nil
	}
	for ; len(src) > 0; dst, src = dst[b:], src[e:] {
		f(dst[:b], src[:e])
	}
	return nil
}

// QuantizeQ8_0 packs activations for the dot product with Q4_0, Q5_0 and Q8_0 weights. The quants are rounded by the
// scale before its own rounding to f16, halves away from zero. len(src) must be a multiple of 32 and dst 34 bytes for
// each 32 (ErrShape).
func QuantizeQ8_0(dst []byte, src []float32) error { return Quantize(dst, Q8_0, src) }

// QuantizeQ8_1 packs activations for the dot product with Q4_1 and Q5_1 weights: Q8_0 with the sum of the block. 36
// bytes for each 32 elements (ErrShape).
func QuantizeQ8_1(dst []byte, src []float32) error { return Quantize(dst, Q8_1, src) }

// QuantizeQ8_K packs activations for the dot product with the 256-element weight types. The value of largest magnitude
// becomes -127, the f32 scale takes its sign; halves go to even. 292 bytes for each 256 elements (ErrShape).
func QuantizeQ8_K(dst []byte, src []float32) error { return Quantize(dst, Q8_K, src) }

func encodeF32(b []byte, x []float32) {
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
}

func encodeRow16(code func(float32) uint16) func([]byte, []float32) {
	return func(b []byte, x []float32) {
		for i, v := range x {
			binary.LittleEndian.PutUint16(b[2*i:], code(v))
		}
	}
}

func putHalf(b []byte, v float32) { binary.LittleEndian.PutUint16(b, EncodeF16(v)) }

// inverse returns 1/d, or 0 for a block of zeros.
func inverse(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// truncate converts to an integer in 0..top; NaN gives 0. Go leaves the conversion of what does not fit to the
// processor, so the range is checked before.
func truncate(v float32, top uint8) uint8 {
	if v >= float32(top) {
		return top
	}
	if v > 0 {
		return uint8(v)
	}
	return 0
}

// clampI8 converts a whole number to -127..127; NaN gives 0.
func clampI8(v float64) int8 {
	if v >= 127 {
		return 127
	}
	if v <= -127 {
		return -127
	}
	if v != v {
		return 0
	}
	return int8(v)
}

// extreme returns the element of largest magnitude, the first of equals.
func extreme(x []float32) float32 {
	var v, amax float32
	for _, e := range x {
		a := e
		if a < 0 {
			a = -a
		}
		if a > amax {
			v, amax = e, a
		}
	}
	return v
}

func bounds(x []float32) (lo, hi float32) {
	lo, hi = math.MaxFloat32, -math.MaxFloat32
	for _, v := range x {
		if v < lo {
			lo = v
		}
		if v > hi {
			hi = v
		}
	}
	return lo, hi
}

// encodeSymmetric serves Q4_0 and Q5_0: the extreme becomes the lowest code, 0 is the middle one.
func encodeSymmetric(x []float32, middle uint8, put func(j int, lo, hi uint8)) (d float32) {
	d = extreme(x) / -float32(middle)
	id, shift := inverse(d), float32(middle)+0.5
	for j := range 16 {
		put(j, truncate(float32(x[j]*id)+shift, 2*middle-1), truncate(float32(x[j+16]*id)+shift, 2*middle-1))
	}
	return d
}

// encodeAffine serves Q4_1 and Q5_1: the codes 0..top spread from minimum to maximum.
func encodeAffine(x []float32, top uint8, put func(j int, lo, hi uint8)) (d, m float32) {
	lo, hi := bounds(x)
	d = (hi - lo) / float32(top)
	id := inverse(d)
	for j := range 16 {
		put(j, truncate(float32((x[j]-lo)*id)+0.5, top), truncate(float32((x[j+16]-lo)*id)+0.5, top))
	}
	return d, lo
}

func encodeQ4_0(b []byte, x []float32) {
	putHalf(b, encodeSymmetric(x, 8, func(j int, lo, hi uint8) { b[2+j] = lo | hi<<4 }))
}

func encodeQ4_1(b []byte, x []float32) {
	d, m := encodeAffine(x, 15, func(j int, lo, hi uint8) { b[4+j] = lo | hi<<4 })
	putHalf(b, d)
	putHalf(b[2:], m)
}

func encodeQ5_0(b []byte, x []float32) {
	var fifth uint32
	putHalf(b, encodeSymmetric(x, 16, func(j int, lo, hi uint8) {
		b[6+j] = lo&15 | hi<<4
		fifth |= uint32(lo>>4)<<j | uint32(hi>>4)<<(j+16)
	}))
	binary.LittleEndian.PutUint32(b[2:], fifth)
}

func encodeQ5_1(b []byte, x []float32) {
	var fifth uint32
	d, m := encodeAffine(x, 31, func(j int, lo, hi uint8) {
		b[8+j] = lo&15 | hi<<4
		fifth |= uint32(lo>>4)<<j | uint32(hi>>4)<<(j+16)
	})
	putHalf(b, d)
	putHalf(b[2:], m)
	binary.LittleEndian.PutUint32(b[4:], fifth)
}

// encodeI8 writes the quants of Q8_0 and Q8_1 and returns the scale and their sum.
func encodeI8(qs []byte, x []float32) (d float32, sum int) {
	d = extreme(x) / 127
	if d < 0 {
		d = -d
	}
	id := inverse(d)
	for j, v := range x {
		q := clampI8(math.Round(float64(float32(v * id))))
		qs[j] = byte(q)
		sum += int(q)
	}
	return d, sum
}

func encodeQ8_0(b []byte, x []float32) {
	d, _ := encodeI8(b[2:], x)
	putHalf(b, d)
}

func encodeQ8_1(b []byte, x []float32) {
	d, sum := encodeI8(b[4:], x)
	putHalf(b, d)
	putHalf(b[2:], float32(sum)*d)
}

func encodeQ8K(b []byte, x []float32) {
	top := extreme(x)
	if top == 0 {
		clear(b)
		return
	}
	scale := -127 / top
	binary.LittleEndian.PutUint32(b, math.Float32bits(1/scale))
	for g := range 16 {
		sum := 0
		for j := 16 * g; j < 16*g+16; j++ {
			q := clampI8(math.RoundToEven(float64(float32(scale * x[j]))))
			b[4+j] = byte(q)
			sum += int(q)
		}
		binary.LittleEndian.PutUint16(b[260+2*g:], uint16(sum))
	}
}
