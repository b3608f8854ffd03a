package simd

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Lanes is the number of weight rows in a panel: one for each 32-bit lane of a
// 512-bit register.
const Lanes = 16

// block is the number of elements along k that share a scale.
const block = 32

// Format is how the weights of a matrix product lie in memory.
//
// A weight [n, k] (n rows of k elements) is cut into panels of 16 rows; the
// last panel is filled up with rows of zero. Panels follow each other, each of
// [Format.PanelSize] bytes. Inside a panel, along k:
//
//   - Q4_0: a block of 32 k is 288 bytes: 4 × 64 bytes of nibbles, then the
//     scales of the 16 rows as binary16. Element 4·g+i of a row (g < 8, i < 4)
//     is in byte (g/2)·64 + 4·row + i, in the low half when g is even; its value
//     is (nibble − 8) · scale.
//   - Q8_0: a block of 32 k is 544 bytes: 8 × 64 bytes, then the 16 scales.
//     Element 4·g+i is byte g·64 + 4·row + i; its value is (byte − 128) · scale.
//   - F32, F16, BF16: element (row, k) is number k·16 + row, little endian.
type Format uint8

// The formats that have kernels.
const (
	Q4_0 Format = iota
	Q8_0
	F32
	F16
	BF16
	formats
)

// String is the name that GGUF gives the format.
func (f Format) String() string {
	if f >= formats {
		return fmt.Sprintf("Format(%d)", uint8(f))
	}
	return [formats]string{"Q4_0", "Q8_0", "F32", "F16", "BF16"}[f]
}

// Quantized says whether a row is stored in blocks of 32 with a scale each, so
// that k must be a multiple of 32 and products go through [Set.MulQ] rather
// than [Set.MulF].
func (f Format) Quantized() bool { return f <= Q8_0 }

// RowSize is the number of bytes of k elements of one row as GGUF files hold
// them: blocks of a binary16 scale and the quants, or plain elements.
func (f Format) RowSize(k int) int {
	switch f {
	case Q4_0:
		return k / block * 18
	case Q8_0:
		return k / block * 34
	case F32:
		return k * 4
	}
	return k * 2
}

// PanelSize is the number of bytes of a panel of 16 rows of k elements. It is
// 16 times [Format.RowSize].
func (f Format) PanelSize(k int) int { return Lanes * f.RowSize(k) }

// Panels is the number of panels of n rows.
func Panels(n int) int { return (n + Lanes - 1) / Lanes }

// PackPanel fills the panel dst, of f.PanelSize(k) bytes, from the first rows
// (1 to 16) rows of src, which are f.RowSize(k) bytes each and follow each
// other. Rows that are missing become zeros.
func (f Format) PackPanel(dst, src []byte, rows, k int) {
	dst = dst[:f.PanelSize(k)]
	if !f.Quantized() {
		packElements(dst, src, rows, k, f.RowSize(1))
		return
	}
	size := f.RowSize(k)
	for lane := range Lanes {
		var row []byte
		if lane < rows {
			row = src[lane*size:][:size]
		}
		if f == Q4_0 {
			packQ4(dst, row, lane, k)
		} else {
			packQ8(dst, row, lane, k)
		}
	}
}

// UnpackRow is the inverse of [Format.PackPanel] for one row: it writes row
// lane of a panel to dst, f.RowSize(k) bytes, exactly as it was packed.
func (f Format) UnpackRow(dst, panel []byte, lane, k int) {
	dst = dst[:f.RowSize(k)]
	switch f {
	case Q4_0:
		for b := range k / block {
			w, out := panel[b*q4Block:][:q4Block], dst[b*18:][:18]
			copy(out, w[256+2*lane:][:2])
			for j := range 2 {
				lo, hi := word(w[64*j:], lane), word(w[64*j+128:], lane)
				putWord(out[2:], 2*j, lo&low|hi&low<<4)
				putWord(out[2:], 2*j+1, lo>>4&low|hi&^low)
			}
		}
	case Q8_0:
		for b := range k / block {
			w, out := panel[b*q8Block:][:q8Block], dst[b*34:][:34]
			copy(out, w[512+2*lane:][:2])
			for g := range 8 {
				putWord(out[2:], g, word(w[64*g:], lane)^signs)
			}
		}
	default:
		size := f.RowSize(1)
		for i := range k {
			copy(dst[i*size:][:size], panel[(i*Lanes+lane)*size:])
		}
	}
}

// Row writes the k values of row lane of a panel to dst.
func (f Format) Row(dst []float32, panel []byte, lane, k int) {
	dst = dst[:k]
	switch f {
	case Q4_0:
		for b := range k / block {
			w, out := panel[b*q4Block:][:q4Block], dst[b*block:][:block]
			d := scale(w[256:], lane)
			for j := range 4 {
				v := word(w[64*j:], lane)
				for i := range 4 {
					out[8*j+i] = d * float32(int(v>>(8*i)&15)-8)
					out[8*j+4+i] = d * float32(int(v>>(8*i+4)&15)-8)
				}
			}
		}
	case Q8_0:
		for b := range k / block {
			w, out := panel[b*q8Block:][:q8Block], dst[b*block:][:block]
			d := scale(w[512:], lane)
			for g := range 8 {
				v := word(w[64*g:], lane) ^ signs
				for i := range 4 {
					out[4*g+i] = d * float32(int8(v>>(8*i)))
				}
			}
		}
	default:
		for i := range dst {
			dst[i] = f.element(panel, i*Lanes+lane)
		}
	}
}

const (
	q4Block = 4*64 + 2*Lanes
	q8Block = 8*64 + 2*Lanes
)

// blockSize is the number of bytes of 32 k of a panel.
func (f Format) blockSize() int { return f.PanelSize(block) }

// A block of Q4_0 in a file has the first 16 elements in the low halves of its
// bytes and the others in the high halves: as four words, the groups of four
// elements j and j+4 are the halves of word j.

func packQ4(panel, row []byte, lane, k int) {
	for b := range k / block {
		w := panel[b*q4Block:][:q4Block]
		in := zeroQ4[:]
		if row != nil {
			in = row[b*18:][:18]
		}
		copy(w[256+2*lane:], in[:2])
		for j := range 2 {
			even, odd := word(in[2:], 2*j), word(in[2:], 2*j+1)
			putWord(w[64*j:], lane, even&low|odd&low<<4)
			putWord(w[64*j+128:], lane, even>>4&low|odd&^low)
		}
	}
}

func packQ8(panel, row []byte, lane, k int) {
	for b := range k / block {
		w := panel[b*q8Block:][:q8Block]
		in := zeroQ8[:]
		if row != nil {
			in = row[b*34:][:34]
		}
		copy(w[512+2*lane:], in[:2])
		for g := range 8 {
			putWord(w[64*g:], lane, word(in[2:], g)^signs)
		}
	}
}

const (
	low   = 0x0f0f0f0f // the low half of every byte
	signs = 0x80808080 // q + 128 for every byte
)

func word(p []byte, i int) uint32       { return binary.LittleEndian.Uint32(p[4*i:]) }
func putWord(p []byte, i int, v uint32) { binary.LittleEndian.PutUint32(p[4*i:], v) }

// packElements transposes elements of 2 or 4 bytes, a stretch of k at a time so
// that the lines written stay in the cache until they are full.
func packElements(panel, src []byte, rows, k, size int) {
	if rows < Lanes {
		clear(panel)
	}
	const stretch = 128
	for k0 := 0; k0 < k; k0 += stretch {
		n := min(stretch, k-k0)
		for lane := range rows {
			in := src[(lane*k+k0)*size:][:n*size]
			out := panel[(k0*Lanes+lane)*size:]
			if size == 4 {
				for i := range n {
					putWord(out, i*Lanes, word(in, i))
				}
			} else {
				for i := range n {
					binary.LittleEndian.PutUint16(out[2*i*Lanes:], binary.LittleEndian.Uint16(in[2*i:]))
				}
			}
		}
	}
}

// zeroQ4 and zeroQ8 are file blocks of zeros.
var (
	zeroQ4 = [18]byte{2: 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88}
	zeroQ8 = [34]byte{}
)

// scale is the binary16 number lane of s.
func scale(s []byte, lane int) float32 {
	return f16ToF32(binary.LittleEndian.Uint16(s[2*lane:]))
}

// element is number i of a run of elements of a format that is not quantised.
func (f Format) element(p []byte, i int) float32 {
	switch f {
	case F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(p[4*i:]))
	case F16:
		return f16ToF32(binary.LittleEndian.Uint16(p[2*i:]))
	}
	return bf16ToF32(binary.LittleEndian.Uint16(p[2*i:]))
}
