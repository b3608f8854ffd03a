package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// decoders holds for each type a function from bytes to f32: of one block for block types, of any number of elements
// for element types. Blocks may start at any address. Each multiplication, addition and subtraction rounds once; the
// explicit float32 conversions keep compilers from fusing them.
var decoders = [numDTypes]func(y []float32, b []byte){
	F32: decodeF32, F16: decodeF16, BF16: decodeBF16,
	F8E4M3FN: decodeBytes(DecodeE4M3FN), F8E5M2: decodeBytes(DecodeE5M2), F8E8M0: decodeBytes(DecodeE8M0),
	Q4_0: decodeQ4_0, Q4_1: decodeQ4_1, Q5_0: decodeQ5_0, Q5_1: decodeQ5_1, Q8_0: decodeQ8_0, Q8_1: decodeQ8_1,
	Q2_K: decodeQ2K, Q3_K: decodeQ3K, Q4_K: decodeQ4K, Q5_K: decodeQ5K, Q6_K: decodeQ6K, Q8_K: decodeQ8K,
	IQ1_S: decodeIQ1S, IQ1_M: decodeIQ1M, IQ2_XXS: decodeIQ2XXS, IQ2_XS: decodeIQ2XS, IQ2_S: decodeIQ2S,
	IQ3_XXS: decodeIQ3XXS, IQ3_S: decodeIQ3S,
	IQ4_NL: decodeIQ4NL, IQ4_XS: decodeIQ4XS, MXFP4: decodeMXFP4, NVFP4: decodeNVFP4,
	TQ1_0: decodeTQ1, TQ2_0: decodeTQ2, Q1_0: decodeQ1, Q2_0: decodeQ2,
}

// CanDecode reports whether Decode has a decoder for t: for f32, f16, bf16, the 8-bit floats and every block type.
func CanDecode(t DType) bool { return t.Valid() && decoders[t] != nil }

// Decode widens a row of len(dst) elements of type t to f32, bit for bit as ggml's scalar code does without fused
// multiply-add. src must be exactly the bytes of the row, t.RowBytes(len(dst)) (ErrShape), little-endian, at any
// alignment. A type without decoder is ErrDType. An error leaves dst untouched.
func Decode(dst []float32, t DType, src []byte) error {
	if !CanDecode(t) {
		return fmt.Errorf("tensor: decode: %v has no decoder to f32: %w", t, ErrDType)
	}
	if err := checkRow("decode", t, len(dst), len(src)); err != nil {
		return err
	}
	f := decoders[t]
	e, b := t.Block()
	if e == 1 {
		f(dst, src)
		return nil
	}
	for ; len(dst) > 0; dst, src = dst[e:], src[b:] {
		f(dst[:e], src[:b])
	}
	return nil
}

func checkRow(what string, t DType, elems, bytes int) error {
	n, err := t.RowBytes(int64(elems))
	if err != nil {
		return fmt.Errorf("tensor: %s: %w", what, err)
	}
	if n != int64(bytes) {
		return fmt.Errorf("tensor: %s: %d %v elements are %d bytes, not %d: %w", what, elems, t, n, bytes, ErrShape)
	}
	return nil
}

func half(b []byte) float32 { return DecodeF16(binary.LittleEndian.Uint16(b)) }

func decodeF32(y []float32, b []byte) {
	for i := range y {
		y[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
}

func decodeF16(y []float32, b []byte) {
	for i := range y {
		y[i] = half(b[2*i:])
	}
}

func decodeBF16(y []float32, b []byte) {
	for i := range y {
		y[i] = DecodeBF16(binary.LittleEndian.Uint16(b[2*i:]))
	}
}

func decodeBytes(value func(uint8) float32) func([]float32, []byte) {
	var table [256]float32
	for c := range table {
		table[c] = value(uint8(c))
	}
	return func(y []float32, b []byte) {
		for i := range y {
			y[i] = table[b[i]]
		}
	}
}
