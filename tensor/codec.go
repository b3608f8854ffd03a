package tensor

import "math"

// Conversions between float32 and the small float types, one value at a time and by rows. Narrowing rounds to nearest,
// ties to even, unless said otherwise.

// A small float format without its sign has man mantissa bits and an exponent of the given bias.
const (
	f16Man, f16Bias       = 10, 15
	e4m3fnMan, e4m3fnBias = 3, 7
	e5m2Man, e5m2Bias     = 2, 15
	e2m1Man, e2m1Bias     = 1, 1
)

// roundCode returns the code of the magnitude a (float32 bits without sign, no NaN) in a format whose exponent has no
// upper end: the caller compares it with the largest code of its type.
func roundCode(a, man, bias uint32) uint32 {
	if a < (128-bias)<<23 { // subnormal: add a power of two whose last bit is the format's step
		magic := (151 - bias - man) << 23
		return math.Float32bits(math.Float32frombits(a)+math.Float32frombits(magic)) - magic
	}
	shift := 23 - man
	a += 1<<(shift-1) - 1 + a>>shift&1
	return a>>shift - (127-bias)<<man
}

// codeValue returns the float32 bits of a finite code without sign; all are exact.
func codeValue(c, man, bias uint32) uint32 {
	if c>>man == 0 {
		return math.Float32bits(float32(c) * math.Float32frombits((128-bias-man)<<23))
	}
	return (c + (127-bias)<<man) << (23 - man)
}

const (
	f32Sign = 1 << 31
	f32Inf  = 0x7f800000
)

// EncodeF16 returns the binary16 code of v. Magnitudes of 65520 and above become infinite; a NaN becomes quiet and keeps
// its upper payload bits.
func EncodeF16(v float32) uint16 {
	b := math.Float32bits(v)
	s, a := uint16(b>>16&0x8000), b&^f32Sign
	if a > f32Inf {
		return s | 0x7e00 | uint16(a>>13&0x3ff)
	}
	return s | uint16(min(roundCode(a, f16Man, f16Bias), 0x7c00))
}

// DecodeF16 returns the value of a binary16 code, exactly.
func DecodeF16(h uint16) float32 {
	s, c := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	if c >= 0x7c00 {
		return math.Float32frombits(s | f32Inf | c<<13)
	}
	return math.Float32frombits(s | codeValue(c, f16Man, f16Bias))
}

// EncodeBF16 returns the bfloat16 code of v. Overflow becomes infinite; a NaN becomes quiet.
func EncodeBF16(v float32) uint16 {
	b := math.Float32bits(v)
	if b&^f32Sign > f32Inf {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// DecodeBF16 returns the value of a bfloat16 code, exactly.
func DecodeBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// EncodeE4M3FN returns the fp8 e4m3fn code of v; NaN becomes 0x7f. What rounds beyond 448, infinity included, becomes
// ±448 if saturate is set and NaN of the same sign if not.
func EncodeE4M3FN(v float32, saturate bool) uint8 {
	return encodeFP8(v, e4m3fnMan, e4m3fnBias, 0x7e, 0x7f, 0x7f, saturate)
}

// DecodeE4M3FN returns the value of an fp8 e4m3fn code.
func DecodeE4M3FN(c uint8) float32 {
	s, a := uint32(c&0x80)<<24, uint32(c&0x7f)
	if a == 0x7f {
		return math.Float32frombits(s | 0x7fc00000)
	}
	return math.Float32frombits(s | codeValue(a, e4m3fnMan, e4m3fnBias))
}

// EncodeE5M2 returns the fp8 e5m2 code of v; NaN becomes 0x7e. What rounds beyond 57344, infinity included, becomes
// ±57344 if saturate is set and infinite if not.
func EncodeE5M2(v float32, saturate bool) uint8 {
	return encodeFP8(v, e5m2Man, e5m2Bias, 0x7b, 0x7c, 0x7e, saturate)
}

// DecodeE5M2 returns the value of an fp8 e5m2 code.
func DecodeE5M2(c uint8) float32 {
	s, a := uint32(c&0x80)<<24, uint32(c&0x7f)
	switch {
	case a > 0x7c:
		return math.Float32frombits(s | 0x7fc00000)
	case a == 0x7c:
		return math.Float32frombits(s | f32Inf)
	}
	return math.Float32frombits(s | codeValue(a, e5m2Man, e5m2Bias))
}

func encodeFP8(v float32, man, bias, largest, over, nan uint32, saturate bool) uint8 {
	b := math.Float32bits(v)
	s, a := b>>24&0x80, b&^f32Sign
	if a > f32Inf {
		return uint8(nan)
	}
	c := roundCode(a, man, bias)
	switch {
	case c <= largest:
	case saturate:
		c = largest
	default:
		c = over
	}
	return uint8(s | c)
}

// EncodeE2M1 returns the 4-bit fp4 code of v. The type has neither NaN nor infinity: magnitudes above 6 become 6, NaN
// becomes +6. The sign of a zero is kept; see EncodeE2M1Quant.
func EncodeE2M1(v float32) uint8 {
	b := math.Float32bits(v)
	a := b &^ f32Sign
	if a > f32Inf {
		return 7
	}
	return uint8(b>>28&8 | min(roundCode(a, e2m1Man, e2m1Bias), 7))
}

// EncodeE2M1Quant is EncodeE2M1 as the fp4 quantization ops store it: what rounds to zero is always code 0.
func EncodeE2M1Quant(v float32) uint8 {
	c := EncodeE2M1(v)
	if c == 8 {
		return 0
	}
	return c
}

// DecodeE2M1 returns the value of a 4-bit fp4 code; the upper four bits are ignored.
func DecodeE2M1(c uint8) float32 {
	return math.Float32frombits(uint32(c&8)<<28 | codeValue(uint32(c&7), e2m1Man, e2m1Bias))
}

// Rounding is the rule by which EncodeE8M0 picks a power of two.
type Rounding uint8

// Rules of EncodeE8M0.
const (
	Nearest   Rounding = iota // the half way point 1.5·2^k goes up; zero has no nearest power: NaN
	RoundUp                   // to the next power of two not below v; zero gives the smallest
	RoundDown                 // to the power of two not above v; zero gives the smallest
)

// EncodeE8M0 returns the e8m0 code c of v, a power of two 2^(c-127). Negative values and NaN give 255, the code of NaN;
// so does overflow, infinity included, unless saturate is set, which gives 254.
func EncodeE8M0(v float32, r Rounding, saturate bool) uint8 {
	b := math.Float32bits(v)
	if b == 0 && r != Nearest {
		return 0
	}
	if b == 0 || b > f32Inf { // zero, NaN, negative
		return 255
	}
	// The exponent field is the code. The one subnormal power of two, 2^-127, is code 0; above it Nearest knows no half
	// way point, as in ml_dtypes, because the mantissa of a subnormal counts from zero.
	if b > 0x400000 {
		switch r {
		case Nearest:
			b += 0x400000
		case RoundUp:
			b += 0x7fffff
		}
	}
	c := b >> 23
	if c >= 255 && saturate {
		c = 254
	}
	return uint8(c)
}

// DecodeE8M0 returns 2^(c-127), or NaN for code 255.
func DecodeE8M0(c uint8) float32 {
	switch c {
	case 0:
		return math.Float32frombits(0x00400000)
	case 255:
		return math.Float32frombits(0x7fc00000)
	}
	return math.Float32frombits(uint32(c) << 23)
}

// F16ToF32 decodes binary16 codes: min(len(dst), len(src)) of them, as all row conversions.
func F16ToF32(dst []float32, src []uint16) {
	src = src[:min(len(dst), len(src))]
	for i, h := range src {
		dst[i] = DecodeF16(h)
	}
}

// F32ToF16 encodes a row as EncodeF16 does.
func F32ToF16(dst []uint16, src []float32) {
	src = src[:min(len(dst), len(src))]
	for i, v := range src {
		dst[i] = EncodeF16(v)
	}
}

// BF16ToF32 decodes bfloat16 codes.
func BF16ToF32(dst []float32, src []uint16) {
	src = src[:min(len(dst), len(src))]
	for i, h := range src {
		dst[i] = DecodeBF16(h)
	}
}

// F32ToBF16 encodes a row as EncodeBF16 does.
func F32ToBF16(dst []uint16, src []float32) {
	src = src[:min(len(dst), len(src))]
	for i, v := range src {
		dst[i] = EncodeBF16(v)
	}
}
