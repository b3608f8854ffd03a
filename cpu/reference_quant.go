package cpu

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// dotType is how the reference multiplies a row of block weights with a row of activations: the activations are packed
// once, both rows are taken apart into integers and scales, and dot follows ggml's portable loop to the bit.
type dotType struct {
	partner tensor.DType // what the activations are packed as
	unpack  func(r qrow, b []byte)
	dot     func(w, x qrow) float32
}

// dotTypes holds the weights that have such a loop. The others, Q8_K among them, are decoded to f32 and multiplied with
// f32 activations.
var dotTypes = [256]dotType{
	tensor.Q4_0: {tensor.Q8_0, unpackQ4_0, dotQ4_0},
	tensor.Q5_0: {tensor.Q8_0, unpackQ5_0, dotQ8_0},
	tensor.Q8_0: {tensor.Q8_0, unpackQ8_0, dotQ8_0},
	tensor.Q4_1: {tensor.Q8_1, unpackQ4_1, dotQ8_1},
	tensor.Q5_1: {tensor.Q8_1, unpackQ5_1, dotQ8_1},
	tensor.Q2_K: {tensor.Q8_K, unpackQ2_K, dotQ2_K},
	tensor.Q3_K: {tensor.Q8_K, unpackQ3_K, dotK},
	tensor.Q4_K: {tensor.Q8_K, unpackQ4_K, dotKMin},
	tensor.Q5_K: {tensor.Q8_K, unpackQ5_K, dotKMin},
	tensor.Q6_K: {tensor.Q8_K, unpackQ6_K, dotK},
}

// unpackX takes packed activations apart.
var unpackX = map[tensor.DType]func(qrow, []byte){tensor.Q8_0: unpackQ8_0, tensor.Q8_1: unpackQ8_1, tensor.Q8_K: unpackQ8_K}

// qrow is a row of k elements taken apart. Only the first two are used by all types.
type qrow struct {
	q []int8    // k integers
	d []float32 // scale of each block
	m []float32 // Q4_1, Q5_1: minimum of each block; Q8_1: its sum; K types: scale of the minima
	s []int8    // K types: 16 scales of each block, of 16 elements each
	z []int16   // K types: 16 minima of each block; Q8_K: 16 sums
}

// qrowBytes is the room for a qrow of k elements (block lengths of 32 and more).
func qrowBytes(k int) int { return (k + 2*4*(k/32) + k/16 + 2*(k/16) + 63) &^ 63 }

// qrowAt lays a qrow out in b, which is aligned to 4 bytes. elems is the length of a block.
func qrowAt(b []byte, k, elems int) (r qrow) {
	cut := func(n int) []byte {
		c := b[:n:n]
		b = b[n:]
		return c
	}
	r.d, r.m = cast[float32](cut(4*(k/elems))), cast[float32](cut(4*(k/elems)))
	r.z = cast[int16](cut(2 * (k / 16)))
	r.q, r.s = cast[int8](cut(k)), cast[int8](cut(k/16))
	return r
}

// refMatmulBTQuant is the reference of matmul_bt_quant.
func refMatmulBTQuant(t *tier, q *registry.Queue, a *ops.MatmulBTQuantArgs) registry.Status {
	w, ok := weightOf(&a.B)
	if !ok {
		return registry.Decline(registry.ReasonLayout)
	}
	kind := &dotTypes[w.dtype]
	if kind.dot == nil {
		return refDots(t, q, unsafe.Pointer(a), &a.Header, &a.A)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	m := int(a.Out.Shape[0])
	packed, _ := kind.partner.RowBytes(a.B.Shape[1])
	// Of each worker: a row as f32 and its packed bytes; then a row of weights, its bytes and taken apart.
	if err := j.layout(m*qrowBytes(w.k), max(4*w.k+int(packed), w.row+64+qrowBytes(w.k))); err != nil {
		return a.Fail(err)
	}
	j.n[0] = int(packed)
	j.each(m, float64(4*w.k), func(j *job, lo, hi, worker int) {
		a := (*ops.MatmulBTQuantArgs)(j.args)
		k, partner := int(a.A.Shape[1]), dotTypes[a.B.DType].partner
		elems, _ := partner.Block()
		local := own[byte](j, worker)
		for i := lo; i < hi; i++ {
			x := plainHalves.load(cast[float32](local[:4*k]), &a.A, i*rowStride(&a.A), k)
			b := local[4*k:][:j.n[0]]
			if err := tensor.Quantize(b, partner, x); err != nil {
				panic(err) // whole blocks: the validator has seen to it
			}
			r := qrowAt(common[byte](j)[i*qrowBytes(k):], k, elems)
			unpackX[partner](r, b)
		}
	})
	j.each(w.n, float64(w.k)*float64(m+2), func(j *job, lo, hi, worker int) {
		a := (*ops.MatmulBTQuantArgs)(j.args)
		w, _ := weightOf(&a.B)
		kind := &dotTypes[w.dtype]
		elems, _ := kind.partner.Block()
		local := own[byte](j, worker)
		r := qrowAt(local[(w.row+63)&^63:], w.k, elems)
		for c := lo; c < hi; c++ {
			kind.unpack(r, w.bytes(local, c))
			for i := range int(a.Out.Shape[0]) {
				x := qrowAt(common[byte](j)[i*qrowBytes(w.k):], w.k, elems)
				put(&a.Out, i*w.n+c, kind.dot(r, x))
			}
		}
	})
	return 0
}

func half(b []byte) float32 { return tensor.DecodeF16(binary.LittleEndian.Uint16(b)) }

func unpackQ4_0(r qrow, b []byte) {
	for i := range r.d {
		in, q := b[i*18:][:18], r.q[i*32:][:32]
		r.d[i] = half(in)
		for j, v := range in[2:] {
			q[j], q[j+16] = int8(v&15)-8, int8(v>>4)-8
		}
	}
}

func unpackQ4_1(r qrow, b []byte) {
	for i := range r.d {
		in, q := b[i*20:][:20], r.q[i*32:][:32]
		r.d[i], r.m[i] = half(in), half(in[2:])
		for j, v := range in[4:] {
			q[j], q[j+16] = int8(v&15), int8(v>>4)
		}
	}
}

// fifth returns bit j of the 32 high bits as 0 or 16.
func fifth(h uint32, j int) int8 { return int8(h >> j & 1 << 4) }

func unpackQ5_0(r qrow, b []byte) {
	for i := range r.d {
		in, q := b[i*22:][:22], r.q[i*32:][:32]
		r.d[i] = half(in)
		h := binary.LittleEndian.Uint32(in[2:])
		for j, v := range in[6:] {
			q[j], q[j+16] = (int8(v&15)|fifth(h, j))-16, (int8(v>>4)|fifth(h, j+16))-16
		}
	}
}

func unpackQ5_1(r qrow, b []byte) {
	for i := range r.d {
		in, q := b[i*24:][:24], r.q[i*32:][:32]
		r.d[i], r.m[i] = half(in), half(in[2:])
		h := binary.LittleEndian.Uint32(in[4:])
		for j, v := range in[8:] {
			q[j], q[j+16] = int8(v&15)|fifth(h, j), int8(v>>4)|fifth(h, j+16)
		}
	}
}

func unpackQ8_0(r qrow, b []byte) {
	for i := range r.d {
		in := b[i*34:][:34]
		r.d[i] = half(in)
		copy(r.q[i*32:][:32], cast[int8](in[2:]))
	}
}

func unpackQ8_1(r qrow, b []byte) {
	for i := range r.d {
		in := b[i*36:][:36]
		r.d[i], r.m[i] = half(in), half(in[2:])
		copy(r.q[i*32:][:32], cast[int8](in[4:]))
	}
}

func unpackQ8_K(r qrow, b []byte) {
	for i := range r.d {
		in := b[i*292:][:292]
		r.d[i] = math.Float32frombits(binary.LittleEndian.Uint32(in))
		copy(r.q[i*256:][:256], cast[int8](in[4:260]))
		for g := range 16 {
			r.z[i*16+g] = int16(binary.LittleEndian.Uint16(in[260+2*g:]))
		}
	}
}

func unpackQ2_K(r qrow, b []byte) {
	for i := range r.d {
		in, q := b[i*84:][:84], r.q[i*256:][:256]
		r.d[i], r.m[i] = half(in[80:]), half(in[82:])
		for g, v := range in[:16] {
			r.s[i*16+g], r.z[i*16+g] = int8(v&15), int16(v>>4)
		}
		for h := range 2 {
			for l, v := range in[16+32*h:][:32] {
				for t := range 4 {
					q[128*h+32*t+l] = int8(v >> (2 * t) & 3)
				}
			}
		}
	}
}

func unpackQ3_K(r qrow, b []byte) {
	for i := range r.d {
		in, q, s := b[i*110:][:110], r.q[i*256:][:256], r.s[i*16:][:16]
		hmask, qs, sc := in[:32], in[32:96], in[96:108]
		r.d[i] = half(in[108:])
		for g := range s {
			low := sc[g%8] >> (g / 8 * 4) & 15
			s[g] = int8(low|sc[8+g%4]>>(2*(g/4))&3<<4) - 32
		}
		for e := range q {
			h, t, l := e/128, e/32%4, e%32
			q[e] = int8(qs[32*h+l]>>(2*t)&3) - 4
			if hmask[l]>>(4*h+t)&1 != 0 {
				q[e] += 4
			}
		}
	}
}

// sixBits takes the 8 scales and minima of a Q4_K or Q5_K block apart; each serves two groups of 16.
func sixBits(s []int8, z []int16, b []byte) {
	for j := range 8 {
		sc, mn := b[j%4]&63, b[j%4+4]&63
		if j >= 4 {
			sc, mn = b[j+4]&15|b[j-4]>>6<<4, b[j+4]>>4|b[j]>>6<<4
		}
		s[2*j], s[2*j+1] = int8(sc), int8(sc)
		z[2*j], z[2*j+1] = int16(mn), int16(mn)
	}
}

func unpackQ4_K(r qrow, b []byte) {
	for i := range r.d {
		in, q := b[i*144:][:144], r.q[i*256:][:256]
		r.d[i], r.m[i] = half(in), half(in[2:])
		sixBits(r.s[i*16:], r.z[i*16:], in[4:16])
		for c := range 4 {
			for l, v := range in[16+32*c:][:32] {
				q[64*c+l], q[64*c+32+l] = int8(v&15), int8(v>>4)
			}
		}
	}
}

func unpackQ5_K(r qrow, b []byte) {
	for i := range r.d {
		in, q := b[i*176:][:176], r.q[i*256:][:256]
		r.d[i], r.m[i] = half(in), half(in[2:])
		sixBits(r.s[i*16:], r.z[i*16:], in[4:16])
		qh := in[16:48]
		for c := range 4 {
			for l, v := range in[48+32*c:][:32] {
				h := qh[l] >> (2 * c)
				q[64*c+l], q[64*c+32+l] = int8(v&15|h&1<<4), int8(v>>4|h>>1&1<<4)
			}
		}
	}
}

func unpackQ6_K(r qrow, b []byte) {
	for i := range r.d {
		in, q := b[i*210:][:210], r.q[i*256:][:256]
		r.d[i] = half(in[208:])
		copy(r.s[i*16:][:16], cast[int8](in[192:208]))
		for h := range 2 {
			ql, qh, q := in[64*h:][:64], in[128+32*h:][:32], q[128*h:][:128]
			for l, v := range qh {
				q[l] = int8(ql[l]&15|v&3<<4) - 32
				q[l+32] = int8(ql[l+32]&15|v>>2&3<<4) - 32
				q[l+64] = int8(ql[l]>>4|v>>4&3<<4) - 32
				q[l+96] = int8(ql[l+32]>>4|v>>6<<4) - 32
			}
		}
	}
}

// dot32 is the exact product of two blocks of 32.
func dot32(a, b []int8) (s int32) {
	a, b = a[:32], b[:32]
	for i := 0; i < 32; i += 4 {
		s += int32(a[i])*int32(b[i]) + int32(a[i+1])*int32(b[i+1]) + int32(a[i+2])*int32(b[i+2]) + int32(a[i+3])*int32(b[i+3])
	}
	return s
}

func dotQ4_0(w, x qrow) (acc float32) {
	for i, d := range w.d {
		s := dot32(w.q[i*32:], x.q[i*32:])
		acc += float32(float32(float32(s)*d) * x.d[i])
	}
	return acc
}

func dotQ8_0(w, x qrow) (acc float32) {
	for i, d := range w.d {
		s := dot32(w.q[i*32:], x.q[i*32:])
		acc += float32(float32(s) * float32(d*x.d[i]))
	}
	return acc
}

// dotQ8_1 adds the minimum of the weights times the sum of the activations.
func dotQ8_1(w, x qrow) (acc float32) {
	for i, d := range w.d {
		s := dot32(w.q[i*32:], x.q[i*32:])
		acc += float32(float32(d*x.d[i])*float32(s)) + float32(w.m[i]*x.m[i])
	}
	return acc
}

func dotQ2_K(w, x qrow) (acc float32) {
	for i, d := range w.d {
		var sum, mins int32
		for g := range 16 {
			var s int32
			for e, v := range w.q[i*256+16*g:][:16] {
				s += int32(v) * int32(x.q[i*256+16*g+e])
			}
			sum += s * int32(w.s[i*16+g])
			mins += int32(x.z[i*16+g]) * int32(w.z[i*16+g])
		}
		acc += float32(float32(x.d[i]*d)*float32(sum)) - float32(float32(x.d[i]*w.m[i])*float32(mins))
	}
	return acc
}

func dotK(w, x qrow) float32    { return dotLanes(w, x, false) }
func dotKMin(w, x qrow) float32 { return dotLanes(w, x, true) }

// dotLanes keeps eight float sums, one for each element number modulo 8, and adds them up at the end of the row.
func dotLanes(w, x qrow, minima bool) (acc float32) {
	var lanes [8]float32
	for i, d := range w.d {
		var sum [8]int32
		for g := range 16 {
			s, a, b := int32(w.s[i*16+g]), w.q[i*256+16*g:][:16], x.q[i*256+16*g:][:16]
			for l := range sum {
				sum[l] += s * (int32(a[l])*int32(b[l]) + int32(a[l+8])*int32(b[l+8]))
			}
		}
		d = float32(d * x.d[i])
		for l, s := range sum {
			lanes[l] += float32(d * float32(s))
		}
		if minima {
			var m int32
			for g := range 16 {
				m += int32(x.z[i*16+g]) * int32(w.z[i*16+g])
			}
			acc -= float32(float32(w.m[i]*x.d[i]) * float32(m))
		}
	}
	for _, l := range lanes {
		acc += l
	}
	return acc
}
