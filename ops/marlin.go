package ops

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Marlin's layout of NVFP4 weights (vLLM's GPTQ-Marlin repack of 4-bit codes without activation order): the codes of 16 rows
// of k by 64 columns of n are permuted and packed eight to a word.

// marlinTile is how many codes one permutation spans.
const marlinTile = 1024

// marlinOrder says which code of a tile stands at each place: code i is row i%256/16 of k, column i/256·16 + i%16 of n.
var marlinOrder = func() (order [marlinTile]int16) {
	at := 0
	for i := range 32 {
		var eight [8]int
		for b := range 2 {
			for j, row := range [4]int{2 * (i % 4), 2*(i%4) + 1, 2 * (i%4 + 4), 2*(i%4+4) + 1} {
				eight[4*b+j] = 16*row + i/4 + 8*b
			}
		}
		for tile := range 4 {
			for _, from := range [8]int{0, 2, 4, 6, 1, 3, 5, 7} {
				order[at] = int16(eight[from] + 256*tile)
				at++
			}
		}
	}
	return order
}()

// MarlinWeight repacks the fp4 codes of one expert, n rows of k/2 bytes, into k/16 rows of 2·n words. k is a multiple of 16, n of
// 64; otherwise, and for operands of other lengths, the error wraps ErrShape.
func MarlinWeight(words []int32, packed []byte, n, k int) error {
	if n < 0 || k < 0 || n%64 != 0 || k%16 != 0 || len(packed) != n*k/2 || len(words) != n*k/8 {
		return fmt.Errorf("ops: Marlin weight of %d words from %d bytes of [%d,%d]: %w", len(words), len(packed), n, k, ErrShape)
	}
	for kt := range k / 16 {
		for nt := range n / 64 {
			to := words[kt*2*n+nt*marlinTile/8:][:marlinTile/8]
			for i, from := range marlinOrder {
				row, col := 16*kt+int(from)%256/16, 64*nt+int(from)/256*16+int(from)%16
				code := packed[(col*k+row)/2] >> (row % 2 * 4) & 15
				if i%8 == 0 {
					to[i/8] = 0
				}
				to[i/8] |= int32(code) << (i % 8 * 4)
			}
		}
	}
	return nil
}

// MarlinCodes is the inverse of MarlinWeight for one row of words, 2·n of them, which hold 16 rows of k: code of row r and
// column c becomes codes[r·n+c]. n is a multiple of 64.
func MarlinCodes(codes []byte, words []int32, n int) {
	for nt := range n / 64 {
		from := words[nt*marlinTile/8:][:marlinTile/8]
		for i, at := range marlinOrder {
			codes[int(at)%256/16*n+64*nt+int(at)/256*16+int(at)%16] = byte(from[i/8]>>(i%8*4)) & 15
		}
	}
}

// MarlinScales processes the fp8 scales [n,k/16] of the experts that share a factor: out[e] gets those of scales[e], as [k/16,n],
// and global what stands for weight_scale_2 (for bf16 activations). The error wraps ErrShape.
func MarlinScales(out, scales [][]byte, global, weightScale2 []float32, n, k int) error {
	if len(out) != len(scales) || len(global) != len(scales) || len(weightScale2) != len(scales) || n%64 != 0 || k%16 != 0 {
		return fmt.Errorf("ops: Marlin scales of %d experts of [%d,%d]: %w", len(scales), n, k, ErrShape)
	}
	top := 0.0
	for e, s := range scales {
		if len(s) != n*k/16 || len(out[e]) != len(s) {
			return fmt.Errorf("ops: Marlin scales: expert %d has %d of [%d,%d]: %w", e, len(s), n, k/16, ErrShape)
		}
		for _, b := range s {
			if v := float64(tensor.DecodeE4M3FN(b)); v > top {
				top = v
			}
		}
	}
	factor := 1.0
	if top > 0 && top*128 < 448*128 {
		factor = math.Exp2(math.Floor(math.Log2(448 * 128 / (top * 128))))
	}
	groups := k / 16
	for e, s := range scales {
		for i := range out[e] {
			m := i/4*4 + [4]int{0, 2, 1, 3}[i%4]
			j := m/64*64 + m%64%8*8 + m%64/8
			v := float32(float64(tensor.DecodeE4M3FN(s[j%n*groups+j/n])) * factor * 128)
			if out[e][i] = 0; v >= 2 {
				out[e][i] = byte(tensor.EncodeF16(v) << 1 >> 8)
			}
		}
		global[e] = float32(float64(weightScale2[e]) * 0x1p119 / factor)
	}
	return nil
}

// MarlinScale returns the place of the scale of group g and column c in the processed scales of n columns, and MarlinScaleValue
// what a processed byte stands for.
func MarlinScale(g, c, n int) int {
	j := g*n + c
	m := j/64*64 + j%64%8*8 + j%64/8
	return m/4*4 + [4]int{0, 2, 1, 3}[m%4]
}

// MarlinScaleValue returns the factor of a processed scale byte; times the processed global scale and 2⁻¹²⁶ it is the scale.
func MarlinScaleValue(b byte) float32 { return tensor.DecodeF16(uint16(b) << 7) }

// MarlinBlockSize returns vLLM's choice of the block that MoEAlignBlockSize fills up for Marlin kernels.
func MarlinBlockSize(tokens, topK, experts int) int {
	for _, b := range [...]int{8, 16, 32, 48, 64} {
		if float64(tokens)*float64(topK)/float64(max(experts, 1))/float64(b) < 0.9 {
			return b
		}
	}
	return 64
}

// ExpertTable returns the addresses of tensors in host memory as an operand [E] of i64: what MoEGroupedGemmBF16 and
// MoEGroupedGemmNVFP4 take in place of one tensor of all weights. An absent tensor has address 0. The caller keeps the tensors'
// memory alive for as long as the table is used. A tensor without host memory is an error that wraps ErrDevice.
func ExpertTable(experts ...tensor.Tensor) (tensor.Tensor, error) {
	table := make([]int64, len(experts))
	for i := range experts {
		x := &experts[i]
		if x.Present() && x.Host == nil && x.Numel() > 0 {
			return tensor.Tensor{}, fmt.Errorf("ops: expert %d has no host memory: %w", i, ErrDevice)
		}
		table[i] = int64(uintptr(x.Host))
	}
	if len(table) == 0 {
		return tensor.Tensor{}, fmt.Errorf("ops: no experts: %w", registry.ErrNil)
	}
	x, err := tensor.FromSlice(table, tensor.I64, int64(len(table)))
	if err != nil {
		return x, err
	}
	x.Host = unsafe.Pointer(&table[0])
	return x, nil
}
