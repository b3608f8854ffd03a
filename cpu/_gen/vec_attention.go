package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// attention writes the two products for every storage type and for as many
// queries at a time as the registers hold.
func (v *vec) attention() {
	queries := []int{2, 1}
	if v.wide() {
		queries = []int{4, 2, 1}
	}
	for _, e := range []element{f32, f16, bf16} {
		for _, q := range queries {
			v.scores(e, q)
		}
		for _, q := range queries {
			v.mix(e, q)
		}
	}
}

// spread is up to four rows at one distance: row i begins at p plus i times it.
type spread struct{ p, one, three reg.GPVirtual }

// spread loads a pointer and a distance in elements; fewer rows need fewer
// registers.
func (v *vec) spread(pointer, distance string, size, rows int) spread {
	s := spread{p: v.arg(pointer)}
	if rows > 1 {
		s.one = v.arg(distance)
		v.IMUL3Q(imm(size), s.one, s.one)
	}
	if rows > 3 {
		s.three = v.GP64()
		v.LEAQ(operand.Mem{Base: s.one, Index: s.one, Scale: 2}, s.three)
	}
	return s
}

// at is the address disp bytes into row i.
func (s spread) at(i, disp int) operand.Mem {
	m := at(s.p, disp)
	switch i {
	case 1, 2:
		m.Index, m.Scale = s.one, uint8(i)
	case 3:
		m.Index, m.Scale = s.three, 1
	}
	return m
}

// scores takes four rows at a time. Each product of a query with a row has a
// register of its own in which lane l sums the elements l, l+lanes, ...; in the
// end the lanes are added, by a tree in which only the number of lanes counts.
// When fewer than four rows are left the last ones are the first again, and are
// not stored.
func (v *vec) scores(e element, queries int) {
	v.begin(fmt.Sprint("scores", queries, e.name),
		"func(rows, d int, dst *float32, ldd int, q *float32, ldq int, k *byte, ldk, ahead int)",
		fmt.Sprintf("sets dst[g·ldd+j] = Σ q[g·ldq+e]·k[j·ldk+e], g < %d, j < rows, e < d; rows > 0. It prefetches ahead bytes beyond each row.", queries))
	left, width := v.arg("rows"), v.GP64()
	dst := v.spread("dst", "ldd", 4, queries)
	q := v.spread("q", "ldq", 4, queries)
	row, k, ahead := v.arg("k"), v.GP64(), v.GP64()
	var step [4]reg.GPVirtual
	for i := 1; i < 4; i++ {
		step[i] = v.GP64()
	}
	order := v.treeOrder()
	rest := v.GP64()
	v.Load(v.Param("d"), rest)
	v.ANDQ(imm(v.lanes-1), rest)
	m := v.mask(rest, 1)

	tile := v.label("tile")
	v.Label(tile)
	v.Load(v.Param("ldk"), step[1])
	v.IMUL3Q(imm(e.size), step[1], step[1])
	v.LEAQ(operand.Mem{Base: step[1], Index: step[1], Scale: 1}, step[2])
	v.LEAQ(operand.Mem{Base: step[1], Index: step[1], Scale: 2}, step[3])
	v.XORQ(k, k)
	for i := 1; i < 4; i++ {
		v.CMPQ(left, imm(i))
		v.CMOVQLE(k, step[i])
	}
	v.MOVQ(row, k)
	v.Load(v.Param("ahead"), ahead)
	v.ADDQ(row, ahead)
	v.Load(v.Param("q"), q.p)
	sums := v.zeroed(4 * queries)

	dots := func(m *mask) {
		keys := v.regs(4)
		for i, r := range keys {
			src := at(k, 0)
			if i > 0 {
				src.Index, src.Scale = step[i], 1
			}
			v.widen(e, src, r, m)
			src.Base = ahead
			v.PREFETCHT0(src)
		}
		for g := range queries {
			x := v.reg()
			v.load(q.at(g, 0), x, m)
			for i, r := range keys {
				v.VFMADD231PS(r, x, sums[4*g+i])
			}
		}
	}
	loop, under, reduce := v.label("loop"), v.label("under"), v.label("reduce")
	v.Load(v.Param("d"), width)
	v.SUBQ(imm(v.lanes), width)
	v.JLT(to(under))
	v.Label(loop)
	dots(nil)
	v.ADDQ(imm(v.lanes*e.size), k)
	v.ADDQ(imm(v.lanes*e.size), ahead)
	v.ADDQ(imm(v.lanes*4), q.p)
	v.SUBQ(imm(v.lanes), width)
	v.JGE(to(loop))
	v.Label(under)
	v.ADDQ(imm(v.lanes), width)
	v.JZ(to(reduce))
	dots(m)
	v.Label(reduce)

	scores := make([]reg.VecVirtual, queries)
	for g := range scores {
		scores[g] = v.foldFour(sums[4*g:4*g+4], order)
	}
	partial, next := v.label("partial"), v.label("next")
	v.CMPQ(left, imm(4))
	v.JLT(to(partial))
	for g, s := range scores {
		v.VMOVUPS(s.AsX(), dst.at(g, 0))
	}
	v.ADDQ(imm(16), dst.p)
	v.Load(v.Param("ldk"), step[1])
	v.IMUL3Q(imm(4*e.size), step[1], step[1])
	v.ADDQ(step[1], row)
	v.SUBQ(imm(4), left)
	v.JNZ(to(tile))
	v.JMP(to(next))
	v.Label(partial)
	few := v.mask(left, 1)
	for g, s := range scores {
		if v.wide() {
			v.VMOVUPS(s.AsX(), few.k, dst.at(g, 0))
		} else {
			v.VMASKMOVPS(s.AsX(), few.y.AsX(), dst.at(g, 0))
		}
	}
	v.Label(next)
	v.ret()
}

// treeOrder is what foldFour needs: the lanes in which it leaves its sums.
func (v *vec) treeOrder() reg.VecVirtual {
	if !v.wide() {
		return nil
	}
	r := v.reg()
	v.VMOVUPS(v.words("sumlanes", 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), r)
	return r
}

// foldFour adds the lanes of each of four registers and returns the sums in the
// first four lanes of one. Lane i is first added to the one half a register
// away, then to the one a quarter away, and so on.
func (v *vec) foldFour(r []reg.VecVirtual, order reg.VecVirtual) reg.VecVirtual {
	t, sum := v.reg(), v.reg()
	if v.wide() {
		join := func(low, high int, a, b reg.VecVirtual) reg.VecVirtual {
			t, sum := v.reg(), v.reg()
			v.VSHUFF64X2(operand.U8(low), b, a, sum)
			v.VSHUFF64X2(operand.U8(high), b, a, t)
			v.VADDPS(t, sum, sum)
			return sum
		}
		sum := join(0x88, 0xdd, join(0x44, 0xee, r[0], r[1]), join(0x44, 0xee, r[2], r[3]))
		v.VPERMILPS(operand.U8(0x4e), sum, t)
		v.VADDPS(t, sum, sum)
		v.VPERMILPS(operand.U8(0xb1), sum, t)
		v.VADDPS(t, sum, sum)
		v.VPERMPS(sum, order, sum)
		return sum
	}
	join := func(a, b reg.VecVirtual) reg.VecVirtual {
		v.VPERM2F128(operand.U8(0x20), b, a, t)
		v.VPERM2F128(operand.U8(0x31), b, a, b)
		v.VADDPS(t, b, b)
		return b
	}
	ab, cd := join(r[0], r[1]), join(r[2], r[3])
	v.VUNPCKLPS(cd, ab, t)
	v.VUNPCKHPS(cd, ab, sum)
	v.VADDPS(t, sum, sum)
	v.VPERMILPS(operand.U8(0x4e), sum, t)
	v.VADDPS(t, sum, sum)
	v.VEXTRACTF128(operand.U8(1), sum, t.AsX())
	v.VUNPCKLPS(t.AsX(), sum.AsX(), sum.AsX())
	return sum
}

// mix goes down the rows with a tile of columns: four registers wide as long as
// there are as many, then one, then what is left of one.
func (v *vec) mix(e element, queries int) {
	v.begin(fmt.Sprint("mix", queries, e.name),
		"func(rows, d int, out *float32, ldo int, p *float32, ldp int, v *byte, ldv, ahead int)",
		fmt.Sprintf("adds Σ p[g·ldp+j]·v[j·ldv+e], j < rows ascending, to out[g·ldo+e], g < %d, e < d; rows > 0. It prefetches ahead bytes beyond each row.", queries))
	d := v.arg("d")
	out := v.spread("out", "ldo", 4, queries)
	p := v.spread("p", "ldp", 4, queries)
	column, row, distance, left, ahead := v.arg("v"), v.GP64(), v.arg("ldv"), v.GP64(), v.arg("ahead")
	v.IMUL3Q(imm(e.size), distance, distance)

	tile := func(width int, m *mask) {
		sums := v.regs(queries * width)
		for i, s := range sums {
			v.load(out.at(i/width, i%width*v.lanes*4), s, m)
		}
		v.MOVQ(column, row)
		v.Load(v.Param("p"), p.p)
		v.Load(v.Param("rows"), left)
		loop := v.label("rows")
		v.Label(loop)
		weights := v.regs(queries)
		for g, w := range weights {
			v.VBROADCASTSS(p.at(g, 0), w)
		}
		for i := 0; i < width*v.lanes*e.size; i += 64 {
			v.PREFETCHT0(operand.Mem{Base: row, Index: ahead, Scale: 1, Disp: i})
		}
		for i := range width {
			x := v.reg()
			v.widen(e, at(row, i*v.lanes*e.size), x, m)
			for g, w := range weights {
				v.VFMADD231PS(x, w, sums[g*width+i])
			}
		}
		v.ADDQ(distance, row)
		v.ADDQ(imm(4), p.p)
		v.DECQ(left)
		v.JNZ(to(loop))
		for i, s := range sums {
			v.store(s, out.at(i/width, i%width*v.lanes*4), m)
		}
	}
	for _, width := range []int{4, 1} {
		loop, under := v.label("columns"), v.label("under")
		v.SUBQ(imm(width*v.lanes), d)
		v.JLT(to(under))
		v.Label(loop)
		tile(width, nil)
		v.ADDQ(imm(width*v.lanes*4), out.p)
		v.ADDQ(imm(width*v.lanes*e.size), column)
		v.SUBQ(imm(width*v.lanes), d)
		v.JGE(to(loop))
		v.Label(under)
		v.ADDQ(imm(width*v.lanes), d)
	}
	done := v.label("done")
	v.JZ(to(done))
	tile(1, v.mask(d, 1))
	v.Label(done)
	v.ret()
}
