package simd

import (
	"fmt"
	"unsafe"
)

// Quantised activations. A row of k elements becomes k/32 blocks of 40 bytes:
// 32 × int8 q, then d as float32, then the int32 −bias·Σq, where bias (8 for
// Q4_0, 128 for Q8_0) is what the weights' unsigned quants are too large by: a
// kernel starts its integer sum from that word and so multiplies unsigned
// weights as if they were signed. With a the largest magnitude of the block,
//
//	d = a / 127, rounded to binary16 as ggml's Q8_0 stores it
//	q = round(x · (127 / a)), halves to even
//
// in float32. A block with a < 2⁻¹¹⁸ is all zeros; a block that holds a NaN or
// an infinity has q = 0 and d = NaN, so that every product with it is NaN.
//
// Rows are [QuantizedStride] bytes apart. A row does not depend on the rows
// beside it, on the tier, or on the number of rows that a product takes at once.
const xBlock = int(unsafe.Sizeof(xblock{})) // 40

// QuantizedStride is the distance in bytes between quantised rows of k
// elements: an odd number of cache lines, so that rows do not compete for the
// same sets of the cache.
func QuantizedStride(k int) int {
	const line = 64
	return ((k/block*xBlock+line-1)/line | 1) * line
}

// QuantizedSize is the number of bytes of m quantised rows of k elements.
func QuantizedSize(m, k int) int { return m * QuantizedStride(k) }

// bias of the unsigned quants of a quantised format.
func (f Format) bias() int32 {
	if f == Q4_0 {
		return 8
	}
	return 128
}

func (f Format) mustBeQuantized(k int) {
	if k%block != 0 || !f.Quantized() {
		panic(fmt.Sprintf("simd: %s is not quantised, or k = %d is not a multiple of %d", f, k, block))
	}
}

// QuantizeRows quantises rows m0 to m1 (exclusive) of x, which are ldx elements
// apart and of which the first k are used, for a product with weights of format
// f. k is a multiple of 32. It writes the same rows of dst, which has
// [QuantizedSize] bytes for all rows, and nothing else: goroutines may share
// the rows out among them.
func (s *Set) QuantizeRows(f Format, dst []byte, x []float32, ldx, m0, m1, k int) {
	f.mustBeQuantized(k)
	if k == 0 || m0 >= m1 {
		return
	}
	stride := QuantizedStride(k)
	need("x", len(x), (m1-1)*ldx+k)
	need("dst", len(dst), m1*stride)
	for m := m0; m < m1; m++ {
		reads(&x[m*ldx], k)
		writes(&dst[m*stride], k/block*xBlock)
		s.quantize(k/block, &x[m*ldx], &dst[m*stride], f.bias())
	}
}

// quantize makes nb blocks of one row.
type quantize func(nb int, x *float32, dst *byte, bias int32)

// xblock is a block of a quantised row.
type xblock struct {
	q   [block]int8
	d   float32
	sum int32 // -bias·Σq
}

// xblocks views nb blocks of a quantised row.
func xblocks(x *byte, nb int) []xblock {
	return unsafe.Slice((*xblock)(unsafe.Pointer(x)), nb)
}
