package sample

import (
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// Lane16 weights, element by element as package tensor describes the layout; slow, and independent of the backends that
// pack for speed.

// lane16Types are the dtypes that the layout exists for.
var lane16Types = []tensor.DType{tensor.F32, tensor.F16, tensor.BF16, tensor.Q4_0, tensor.Q8_0}

// packLane16 writes the plain rows of a weight [n,k] to dst in panels of 16 rows; missing rows of the last one are zero.
func packLane16(dst, rows []byte, t tensor.DType, n, k int) {
	lane16(dst, rows, t, n, k, true)
}

// unpackLane16 returns the plain rows of a Lane16 weight.
func unpackLane16(x *tensor.Tensor) []byte {
	n, k := int(x.Shape[0]), int(x.Shape[1])
	row, _ := x.DType.RowBytes(int64(k))
	rows := make([]byte, n*int(row))
	lane16(unsafe.Slice((*byte)(x.Host), (n+15)/16*16*int(row)), rows, x.DType, n, k, false)
	return rows
}

// lane16 copies between panels and plain rows.
func lane16(panels, rows []byte, t tensor.DType, n, k int, pack bool) {
	e, b := t.Block()
	row := k / e * b
	if pack {
		clear(panels)
		if t == tensor.Q4_0 || t == tensor.Q8_0 {
			for r := n; r < (n+15)/16*16; r++ { // codes of zero
				for i := range k {
					put16(panels[r/16*16*row:], t, r%16, i, zeroCode(t))
				}
			}
		}
	}
	for r := range n {
		panel, plain, lane := panels[r/16*16*row:], rows[r*row:][:row], r%16
		switch t {
		case tensor.Q4_0, tensor.Q8_0:
			for blk := range k / 32 {
				scale := panel[blk*16*b+16*(b-2)+2*lane:][:2]
				if pack {
					copy(scale, plain[blk*b:])
				} else {
					copy(plain[blk*b:], scale)
				}
			}
			for i := range k {
				if pack {
					put16(panel, t, lane, i, plainCode(plain, t, i))
				} else {
					setPlainCode(plain, t, i, get16(panel, t, lane, i))
				}
			}
		default:
			for i := range k {
				in := panel[(i*16+lane)*b:][:b]
				if pack {
					copy(in, plain[i*b:])
				} else {
					copy(plain[i*b:][:b], in)
				}
			}
		}
	}
}

// zeroCode is the panel's code of a zero quant.
func zeroCode(t tensor.DType) byte {
	if t == tensor.Q4_0 {
		return 8
	}
	return 0x80
}

// place16 is where element i of a lane lies in its panel: the byte and, for Q4_0, the shift of its nibble.
func place16(t tensor.DType, lane, i int) (at, shift int) {
	blk, g := i/32, i%32/4
	if t == tensor.Q4_0 {
		return blk*288 + g/2*64 + 4*lane + i%4, g % 2 * 4
	}
	return blk*544 + g*64 + 4*lane + i%4, 0
}

func put16(panel []byte, t tensor.DType, lane, i int, code byte) {
	at, shift := place16(t, lane, i)
	if t == tensor.Q4_0 {
		panel[at] = panel[at]&^(15<<shift) | code<<shift
	} else {
		panel[at] = code
	}
}

func get16(panel []byte, t tensor.DType, lane, i int) byte {
	at, shift := place16(t, lane, i)
	if t == tensor.Q4_0 {
		return panel[at] >> shift & 15
	}
	return panel[at]
}

// plainCode reads the code of element i of a plain row as the panel stores it: Q8_0 with its sign bit flipped.
func plainCode(row []byte, t tensor.DType, i int) byte {
	if t == tensor.Q4_0 {
		return row[i/32*18+2+i%16] >> (i % 32 / 16 * 4) & 15
	}
	return row[i/32*34+2+i%32] ^ 0x80
}

func setPlainCode(row []byte, t tensor.DType, i int, code byte) {
	if t == tensor.Q4_0 {
		row[i/32*18+2+i%16] |= code << (i % 32 / 16 * 4)
	} else {
		row[i/32*34+2+i%32] = code ^ 0x80
	}
}
