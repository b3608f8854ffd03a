package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	cacheLine = 64
	xBlock    = 40 // bytes of a block of quantised activations: 32 quants,
	xScale    = 32 // the scale
	xSum      = 36 // and -bias·Σq
)

// packing says where things are in one block of a panel.
type packing struct {
	name  string
	bits  int
	lines int // of 64 bytes: four elements of 16 rows at 8 bits, eight at 4
}

func (p packing) scales() int { return p.lines * 64 }
func (p packing) size() int   { return p.scales() + 32 }

var packings = []packing{{"Q4", 4, 4}, {"Q8", 8, 8}}

// tile starts the function of a tile; see the type of that name in package simd.
func (k *kit) tile(name, format string, n, panels int) {
	k.fn(name, "func(n int, w *byte, size int, x *byte, ldx int, c *float32, ldc, cols, ahead int)",
		fmt.Sprintf("%s is a tile of %d rows and %d panels, for each of which it", name, n, panels),
		fmt.Sprintf("equals mul%sRef.", format))
}

// rows addresses rows that are a stride apart without a pointer for each: row
// odd·2^e is at base + (odd·stride)·2^e, which is one memory operand.
type rows struct {
	base reg.Register
	odd  map[int]reg.Register // odd multiples of the stride
}

// newRows prepares n rows; stride is in bytes.
func (k *kit) newRows(n int, base, stride reg.Register) rows {
	r := rows{base, map[int]reg.Register{1: stride}}
	for m := 3; m < n; m += 2 {
		p := k.GP64()
		k.LEAQ(operand.Mem{Base: r.odd[m-2], Index: stride, Scale: 2}, p)
		r.odd[m] = p
	}
	return r
}

// at is disp bytes into row m.
func (r rows) at(m, disp int) operand.Mem {
	if m == 0 {
		return at(r.base, disp)
	}
	odd, scale := m, 1
	for odd%2 == 0 {
		odd, scale = odd/2, scale*2
	}
	return operand.Mem{Base: r.base, Index: r.odd[odd], Scale: uint8(scale), Disp: disp}
}

// pointers is rows with a pointer for each: an instruction that multiplies by a
// word in memory is one micro-operation less where the address has no index.
type pointers []reg.Register

func (k *kit) newPointers(n int, base, stride reg.Register) pointers {
	p := pointers{base}
	for m := 1; m < n; m++ {
		r := k.GP64()
		k.LEAQ(operand.Mem{Base: p[m-1], Index: stride, Scale: 1}, r)
		p = append(p, r)
	}
	return p
}

func (p pointers) at(m, disp int) operand.Mem { return at(p[m], disp) }

func (p pointers) advance(k *kit, bytes int) {
	for _, r := range p {
		k.ADDQ(operand.I32(bytes), r)
	}
}

// prefetchBlock fetches a block of weights that is needed later, or only a third
// of it in a tile of 12 rows: its driver has three of them share the work.
func (k *kit) prefetchBlock(p packing, n int, w, ahead reg.Register) {
	lines := (p.size() + cacheLine - 1) / cacheLine
	if n == 12 {
		lines = (lines + 2) / 3
	}
	for i := range lines {
		k.PREFETCHT0(operand.Mem{Base: w, Index: ahead, Scale: 1, Disp: i * cacheLine})
	}
}

// walk calls f with the address of each of n rows of C in turn.
func (k *kit) walk(n int, f func(m int, row reg.Register)) {
	row := k.arg("c")
	var ldc reg.GPVirtual
	if n > 1 {
		ldc = k.arg("ldc")
		k.SHLQ(operand.U8(2), ldc)
	}
	for m := range n {
		f(m, row)
		if m < n-1 {
			k.ADDQ(ldc, row)
		}
	}
}

// laneMask puts the first cols of 16 lanes into a mask register.
func (k *kit) laneMask() reg.OpmaskVirtual {
	cols, bits, mask := k.arg("cols"), k.GP32(), k.K()
	k.MOVL(operand.I32(-1), bits)
	k.BZHIL(cols.As32(), bits, bits)
	k.KMOVW(bits, mask)
	return mask
}

// signTable is where laneSigns reads: 16 words of ones, then 16 of zeros.
func (k *kit) signTable() operand.Mem {
	t := k.StaticGlobal("lanes")
	k.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 16 {
		v := uint64(0)
		if i < 8 {
			v = ^v
		}
		k.AddDatum(8*i, operand.U64(v))
	}
	return t
}

// laneSigns puts the first cols of 16 lanes into two registers as signs, which
// is what masked moves take where there are no mask registers.
func (k *kit) laneSigns(table operand.Mem) [2]reg.VecVirtual {
	cols, p := k.arg("cols"), k.GP64()
	k.LEAQ(table.Offset(64), p)
	k.NEGQ(cols)
	s := [2]reg.VecVirtual{k.YMM(), k.YMM()}
	for h, r := range s {
		k.VMOVDQU(operand.Mem{Base: p, Index: cols, Scale: 4, Disp: 32 * h}, r)
	}
	return s
}

// broadcast fills a register of the level's width with a 32-bit word.
func (k *kit) broadcast(word uint32) reg.VecVirtual {
	r := k.GP32()
	k.MOVL(operand.U32(word), r)
	if k.level == avx512 {
		v := k.ZMM()
		k.VPBROADCASTD(r, v)
		return v
	}
	v := k.YMM()
	k.VMOVD(r, v.AsX())
	k.VPBROADCASTD(v.AsX(), v)
	return v
}

// unrolled runs step(0), step(1), … n times in all: by of them at a time
// while that many are left, then one by one. n may be zero.
func (k *kit) unrolled(n reg.GPVirtual, by int, step, advance func(int)) {
	k.SUBQ(operand.I32(by), n)
	k.JLT(operand.LabelRef("rest"))
	k.Label("loop")
	for u := range by {
		step(u)
	}
	advance(by)
	k.SUBQ(operand.I32(by), n)
	k.JGE(operand.LabelRef("loop"))
	k.Label("rest")
	k.ADDQ(operand.I32(by), n)
	k.JZ(operand.LabelRef("done"))
	k.Label("single")
	step(0)
	advance(1)
	k.DECQ(n)
	k.JNZ(operand.LabelRef("single"))
	k.Label("done")
}

// quantizer is what quantising a block does in single lanes: the same for both
// levels.
type quantizer struct {
	k                    *kit
	negBias              reg.GPVirtual
	most, tiny, infinity reg.VecVirtual
}

// newQuantizer starts the function and loads its arguments.
func (k *kit) newQuantizer(name string) (q quantizer, nb, x, dst reg.Register) {
	k.fn(name, "func(nb int, x *float32, dst *byte, bias int32)", name+" equals quantizeRef.")
	constant := func(bits uint32) reg.VecVirtual {
		r, v := k.GP32(), k.XMM()
		k.MOVL(operand.U32(bits), r)
		k.VMOVD(r, v)
		return v
	}
	q = quantizer{
		k:        k,
		negBias:  k.GP32(),
		most:     constant(0x42fe0000), // 127
		tiny:     constant(0x047fffff), // the number below 2^-118
		infinity: constant(0x7f800000),
	}
	k.Load(k.Param("bias"), q.negBias)
	k.NEGL(q.negBias)
	return q, k.arg("nb"), k.arg("x"), k.arg("dst")
}

// loop ends the function: on to the next block.
func (q quantizer) loop(nb, x, dst reg.Register) {
	q.k.ADDQ(operand.I32(4*32), x)
	q.k.ADDQ(operand.I32(xBlock), dst)
	q.k.DECQ(nb)
	q.k.JNZ(operand.LabelRef("block"))
	q.k.ret()
}

// scale reduces the eight bit patterns of magnitudes in a to the largest and
// stores the scale of the block, rounded to binary16, at dst. In lane 0, id is 127 over the largest,
// and keep is ones where the block's quants are not all zero by rule. t is
// spoilt.
func (q quantizer) scale(a, t reg.VecVirtual, dst reg.Register) (id, keep reg.VecVirtual) {
	k := q.k
	k.fold(a, t, k.VPMAXSD)
	d := k.XMM()
	id, keep = k.XMM(), k.XMM()
	k.VDIVSS(q.most, a.AsX(), d)
	k.VSUBSS(a.AsX(), a.AsX(), id) // 0, or NaN
	k.VADDSS(id, d, d)
	k.VCVTPS2PH(operand.U8(0), d, d)
	k.VCVTPH2PS(d, d)
	k.VMOVSS(d, at(dst, xScale))
	k.VDIVSS(a.AsX(), q.most, id)
	k.VPCMPGTD(q.tiny, a.AsX(), keep)
	k.VPCMPGTD(a.AsX(), q.infinity, d)
	k.VPAND(d, keep, keep)
	return id, keep
}

// sum adds the eight words of s and stores their sum times -bias at dst. t is
// spoilt.
func (q quantizer) sum(s, t reg.VecVirtual, dst reg.Register) {
	k := q.k
	k.fold(s, t, k.VPADDD)
	r := k.GP32()
	k.VMOVD(s.AsX(), r)
	k.IMULL(q.negBias, r)
	k.MOVL(r, at(dst, xSum))
}

// fold reduces the eight words of v to the first with op. t is spoilt.
func (k *kit) fold(v, t reg.VecVirtual, op func(...operand.Op)) {
	k.VEXTRACTI128(operand.U8(1), v.AsY(), t.AsX())
	op(t.AsX(), v.AsX(), v.AsX())
	k.VPSHUFD(operand.U8(0x4e), v.AsX(), t.AsX())
	op(t.AsX(), v.AsX(), v.AsX())
	k.VPSHUFD(operand.U8(0xb1), v.AsX(), t.AsX())
	op(t.AsX(), v.AsX(), v.AsX())
}
