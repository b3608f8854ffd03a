package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// vec writes kernels on rows of floats once for both levels: it hides the
// register width, and how the last elements of a row, which fill no register,
// are loaded and stored without touching their neighbours.
type vec struct {
	*kit
	lanes  int // float32 lanes of a register
	labels int
	data   map[string]operand.Mem
}

func newVec(k *kit) *vec {
	v := &vec{kit: k, lanes: 8, data: map[string]operand.Mem{}}
	if k.level == avx512 {
		v.lanes = 16
	}
	return v
}

func (v *vec) wide() bool { return v.lanes == 16 }

// begin starts the function name, with the level's suffix.
func (v *vec) begin(name, signature, doc string) {
	name += map[bool]string{true: "AVX512", false: "AVX2"}[v.wide()]
	v.fn(name, signature, name+" "+doc)
}

// label returns a label that no other of the function equals.
func (v *vec) label(name string) string {
	v.labels++
	return fmt.Sprint(name, v.labels)
}

func to(label string) operand.LabelRef { return operand.LabelRef(label) }

func imm(n int) operand.U32 { return operand.U32(n) }

func (v *vec) reg() reg.VecVirtual {
	if v.wide() {
		return v.ZMM()
	}
	return v.YMM()
}

func (v *vec) regs(n int) []reg.VecVirtual {
	rs := make([]reg.VecVirtual, n)
	for i := range rs {
		rs[i] = v.reg()
	}
	return rs
}

func (v *vec) zero(r reg.Register) {
	if v.wide() {
		v.VPXORD(r, r, r)
	} else {
		v.VPXOR(r, r, r)
	}
}

func (v *vec) zeroed(n int) []reg.VecVirtual {
	rs := v.regs(n)
	for _, r := range rs {
		v.zero(r)
	}
	return rs
}

// words returns the address of 32-bit constants.
func (v *vec) words(name string, words ...uint32) operand.Mem {
	if m, ok := v.data[name]; ok {
		return m
	}
	m := v.StaticGlobal(name)
	v.DataAttributes(attr.RODATA | attr.NOPTR)
	for i, w := range words {
		v.AddDatum(4*i, operand.U32(w))
	}
	v.data[name] = m
	return m
}

// constant returns an operand whose every lane holds the word: a register where
// there are plenty, memory otherwise.
func (v *vec) constant(name string, word uint32) operand.Op {
	if v.wide() {
		return v.splat(name, word)
	}
	return v.words(name+"x8", word, word, word, word, word, word, word, word)
}

// splat returns a register whose every lane holds the word.
func (v *vec) splat(name string, word uint32) reg.VecVirtual {
	r := v.reg()
	v.VBROADCASTSS(v.words(name, word), r)
	return r
}

// splatArg returns a register whose every lane holds a float32 argument.
func (v *vec) splatArg(name string) reg.VecVirtual {
	r := v.reg()
	v.Load(v.Param(name), r.AsX())
	v.VBROADCASTSS(r.AsX(), r)
	return r
}

// mask selects the first n lanes of a register.
type mask struct {
	n reg.GPVirtual
	k reg.OpmaskVirtual
	y reg.VecVirtual
}

// mask returns the mask of the first n·scale lanes, scale 1 or 2; n·scale must be
// less than the number of lanes.
func (v *vec) mask(n reg.GPVirtual, scale int) *mask {
	m := &mask{n: n}
	bits := v.GP64()
	v.MOVQ(n, bits)
	if scale == 2 {
		v.ADDQ(bits, bits)
	}
	if v.wide() {
		ones := v.GP64()
		v.MOVQ(operand.I32(-1), ones)
		v.BZHIQ(bits, ones, bits)
		m.k = v.K()
		v.KMOVW(bits.As32(), m.k)
		return m
	}
	const on = math.MaxUint32
	table := v.words("lanemask", on, on, on, on, on, on, on, on, 0, 0, 0, 0, 0, 0, 0, 0)
	start := v.GP64()
	v.LEAQ(table.Offset(32), start)
	v.SHLQ(operand.U8(2), bits)
	v.SUBQ(bits, start)
	m.y = v.YMM()
	v.VMOVDQU(at(start, 0), m.y)
	return m
}

// load fills r with float32s; lanes that m leaves out are zero and their memory
// is not touched. A nil mask stands for all lanes.
func (v *vec) load(src operand.Mem, r reg.VecVirtual, m *mask) {
	switch {
	case m == nil:
		v.VMOVUPS(src, r)
	case v.wide():
		v.VMOVUPS_Z(src, m.k, r)
	default:
		v.VMASKMOVPS(src, m.y, r)
	}
}

// store writes the lanes that m selects.
func (v *vec) store(r reg.VecVirtual, dst operand.Mem, m *mask) {
	switch {
	case m == nil:
		v.VMOVUPS(r, dst)
	case v.wide():
		v.VMOVUPS(r, m.k, dst)
	default:
		v.VMASKMOVPS(r, m.y, dst)
	}
}

// clear zeroes the lanes that m leaves out.
func (v *vec) clear(r reg.VecVirtual, m *mask) {
	switch {
	case m == nil:
	case v.wide():
		v.VMOVAPS_Z(r, m.k, r)
	default:
		v.VANDPS(m.y, r, r)
	}
}

// fill replaces the lanes that m leaves out by those of other.
func (v *vec) fill(r, other reg.VecVirtual, m *mask) {
	switch {
	case m == nil:
	case v.wide():
		v.VBLENDMPS(r, other, m.k, r)
	default:
		v.VBLENDVPS(m.y, r, other, r)
	}
}

// element is a storage type of floats.
type element struct {
	name string
	size int
}

var (
	f32  = element{"F32", 4}
	f16  = element{"F16", 2}
	bf16 = element{"BF16", 2}
)

// widen is load with a conversion from e.
func (v *vec) widen(e element, src operand.Mem, r reg.VecVirtual, m *mask) {
	if e == f32 {
		v.load(src, r, m)
		return
	}
	var from operand.Op = src
	if m != nil && !v.wide() {
		from = v.loadHalves(src, m.n)
	}
	switch masked := m != nil && v.wide(); {
	case e == f16 && masked:
		v.VCVTPH2PS_Z(from, m.k, r)
	case e == f16:
		v.VCVTPH2PS(from, r)
	case masked:
		v.VPMOVZXWD_Z(from, m.k, r)
	default:
		v.VPMOVZXWD(from, r)
	}
	if e == bf16 {
		v.VPSLLD(operand.U8(16), r, r)
	}
}

// narrowing stores float32s as f16 or bf16, rounded to nearest even.
type narrowing struct {
	*vec
	e                 element
	one, carry, quiet operand.Op
}

func (v *vec) narrowing(e element) *narrowing {
	n := &narrowing{vec: v, e: e}
	if e == bf16 {
		n.one, n.carry, n.quiet = v.constant("one", 1), v.constant("carry", 0x7fff), v.constant("quiet", 0x40)
	}
	return n
}

// store is vec.store with the conversion. It overwrites r.
func (v *narrowing) store(r reg.VecVirtual, dst operand.Mem, m *mask) {
	half := v.XMM()
	switch {
	case v.e == f16 && m == nil:
		v.VCVTPS2PH(operand.U8(0), r, dst)
		return
	case v.e == f16 && v.wide():
		v.VCVTPS2PH(operand.U8(0), r, m.k, dst)
		return
	case v.e == f16:
		v.VCVTPS2PH(operand.U8(0), r, half)
		v.storeHalves(half, dst, m.n)
		return
	}
	v.round(r)
	switch {
	case v.wide() && m == nil:
		v.VPMOVDW(r, dst)
		return
	case v.wide():
		v.VPMOVDW(r, m.k, dst)
		return
	}
	v.VEXTRACTI128(operand.U8(1), r, half)
	v.VPACKUSDW(half, r.AsX(), half)
	if m == nil {
		v.VMOVDQU(half, dst)
	} else {
		v.storeHalves(half, dst, m.n)
	}
}

// round leaves in the low half of each 32-bit lane the bfloat16 of its float32:
// the high half plus a carry that rounds or, for a NaN, the high half made
// quiet.
func (v *narrowing) round(r reg.VecVirtual) {
	high, odd := v.reg(), v.reg()
	v.VPSRLD(operand.U8(16), r, high)
	if v.wide() {
		nan := v.K()
		v.VCMPPS(operand.U8(3), r, r, nan)
		v.VPANDD(v.one, high, odd)
		v.VPADDD(v.carry, r, r)
		v.VPADDD(odd, r, r)
		v.VPSRLD(operand.U8(16), r, r)
		v.VPORD(v.quiet, high, nan, r)
		return
	}
	nan := v.reg()
	v.VCMPPS(operand.U8(3), r, r, nan)
	v.VPAND(v.one, high, odd)
	v.VPADDD(v.carry, r, r)
	v.VPADDD(odd, r, r)
	v.VPSRLD(operand.U8(16), r, r)
	v.VPOR(v.quiet, high, high)
	v.VBLENDVPS(nan, high, r, r)
}

// loadHalves returns n < 8 16-bit words from memory, the rest zero. The words
// at the end of the row come first, and are pushed up by those before them.
func (v *vec) loadHalves(src operand.Mem, n reg.GPVirtual) reg.VecVirtual {
	x, rest, end := v.XMM(), v.GP64(), v.GP64()
	v.VPXOR(x, x, x)
	v.LEAQ(src, end)
	v.LEAQ(operand.Mem{Base: end, Index: n, Scale: 2}, end)
	v.MOVQ(n, rest)
	for _, words := range []int{1, 2, 4} {
		next := v.label("halves")
		v.TESTQ(imm(words), rest)
		v.JZ(to(next))
		v.SUBQ(imm(2*words), end)
		if words > 1 {
			v.VPSLLDQ(operand.U8(2*words), x, x)
		}
		switch words {
		case 1:
			v.VPINSRW(operand.U8(0), at(end, 0), x, x)
		case 2:
			v.VPINSRD(operand.U8(0), at(end, 0), x, x)
		case 4:
			v.VPINSRQ(operand.U8(0), at(end, 0), x, x)
		}
		v.Label(next)
	}
	return x
}

// storeHalves writes n < 8 16-bit words to memory. It overwrites x.
func (v *vec) storeHalves(x reg.VecVirtual, dst operand.Mem, n reg.GPVirtual) {
	p := v.GP64()
	v.LEAQ(dst, p)
	for _, words := range []int{4, 2, 1} {
		next := v.label("halves")
		v.TESTQ(imm(words), n)
		v.JZ(to(next))
		switch words {
		case 4:
			v.VPEXTRQ(operand.U8(0), x, at(p, 0))
		case 2:
			v.VPEXTRD(operand.U8(0), x, at(p, 0))
		case 1:
			v.VPEXTRW(operand.U8(0), x, at(p, 0))
		}
		if words > 1 {
			v.VPSRLDQ(operand.U8(2*words), x, x)
			v.ADDQ(imm(2*words), p)
		}
		v.Label(next)
	}
}

// row is a pointer that a sweep moves, and the bytes it moves for each element.
type row struct {
	p    reg.GPVirtual
	size int
}

func (v *vec) row(arg string, size int) row { return row{v.arg(arg), size} }

// sweep runs body over n elements: unroll registers of step elements at a time,
// then single ones, then the rest with a mask. body finds its elements at
// row.at(u) and must not change n.
func (v *vec) sweep(n reg.GPVirtual, step, unroll int, body func(u int, m *mask), rows ...row) {
	for _, u := range slices.Compact([]int{unroll, 1}) {
		loop, under := v.label("loop"), v.label("under")
		v.SUBQ(imm(u*step), n)
		v.JLT(to(under))
		v.Label(loop)
		for i := range u {
			body(i, nil)
		}
		for _, r := range rows {
			v.ADDQ(imm(u*step*r.size), r.p)
		}
		v.SUBQ(imm(u*step), n)
		v.JGE(to(loop))
		v.Label(under)
		v.ADDQ(imm(u*step), n)
	}
	done := v.label("done")
	v.JZ(to(done))
	body(0, v.mask(n, v.lanes/step))
	v.Label(done)
}

// at is the operand of the u-th register of a sweep's step.
func (r row) at(u, step int) operand.Mem { return at(r.p, u*step*r.size) }

// fold combines the registers, then the lanes, with op and leaves the result in
// lane 0. The order is a fixed tree.
func (v *vec) fold(op func(...operand.Op), rs []reg.VecVirtual) reg.VecVirtual {
	for n := len(rs) / 2; n > 0; n /= 2 {
		for i := range n {
			op(rs[i+n], rs[i], rs[i])
		}
	}
	r, t := rs[0], v.reg()
	if v.wide() {
		v.VEXTRACTF64X4(operand.U8(1), r, t.AsY())
		op(t.AsY(), r.AsY(), r.AsY())
		v.VEXTRACTF32X4(operand.U8(1), r.AsY(), t.AsX())
	} else {
		v.VEXTRACTF128(operand.U8(1), r, t.AsX())
	}
	op(t.AsX(), r.AsX(), r.AsX())
	v.VPERMILPS(operand.U8(0x4e), r.AsX(), t.AsX())
	op(t.AsX(), r.AsX(), r.AsX())
	v.VPERMILPS(operand.U8(0xb1), r.AsX(), t.AsX())
	op(t.AsX(), r.AsX(), r.AsX())
	return r
}

// result ends a function that returns lane 0 of r.
func (v *vec) result(r reg.VecVirtual) {
	v.VZEROUPPER()
	v.Store(r.AsX(), v.ReturnIndex(0))
	v.RET()
}

func bits(f float32) uint32 { return math.Float32bits(f) }
