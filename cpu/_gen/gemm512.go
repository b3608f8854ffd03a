package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func gemmAVX512(k *kit) {
	g := &gemm512{k}
	g.quantize()
	rows := []int{12, 8, 4, 3, 2, 1} // twelve use up the 32 registers
	for _, p := range packings {
		for _, n := range rows {
			if n <= 4 {
				g.quantTile(p, n, 2)
			}
			g.quantTile(p, n, 1)
		}
	}
	for _, format := range []string{"F32", "F16", "BF16"} {
		for _, n := range rows {
			g.floatTile(format, n, 2)
			g.floatTile(format, n, 1)
		}
	}
}

type gemm512 struct{ *kit }

// registers is an array of new registers: one for each of n rows and panels.
func (g *gemm512) registers(n, panels int) [][]reg.VecVirtual {
	r := make([][]reg.VecVirtual, n)
	for m := range r {
		for range panels {
			r[m] = append(r[m], g.ZMM())
		}
	}
	return r
}

// load reads the tile of C; it returns the mask of the columns if they may be
// fewer than the lanes.
func (g *gemm512) load(acc [][]reg.VecVirtual) (mask reg.Register) {
	if len(acc[0]) > 1 {
		g.walk(len(acc), func(m int, row reg.Register) {
			for z, a := range acc[m] {
				g.VMOVUPS(at(row, 64*z), a)
			}
		})
		return nil
	}
	mask = g.laneMask()
	g.walk(len(acc), func(m int, row reg.Register) { g.VMOVUPS_Z(at(row, 0), mask, acc[m][0]) })
	return mask
}

// store ends a tile.
func (g *gemm512) store(acc [][]reg.VecVirtual, mask reg.Register) {
	g.walk(len(acc), func(m int, row reg.Register) {
		for z, a := range acc[m] {
			if mask == nil {
				g.VMOVUPS(a, at(row, 64*z))
			} else {
				g.VMOVUPS(a, mask, at(row, 64*z))
			}
		}
	})
	g.ret()
}

// quantTile keeps one integer and one float accumulator for each row. Weights
// are unpacked once for all rows; activations are broadcast from memory by the
// multiplication itself.
func (g *gemm512) quantTile(p packing, n, panels int) {
	g.tile(fmt.Sprintf("mul%sx%dx%dAVX512", p.name, n, 16*panels), p.name, n, panels)
	acc, sum := g.registers(n, panels), g.registers(n, panels)
	mask := g.load(acc)
	var low reg.VecVirtual
	if p.bits == 4 {
		low = g.broadcast(0x0f0f0f0f)
	}
	w, ahead := g.newPointers(panels, g.arg("w"), g.arg("size")), g.arg("ahead")
	x := g.newPointers(n, g.arg("x"), g.arg("ldx"))
	count := g.argInMemory("n")

	g.Label("block")
	for z := range panels {
		g.prefetchBlock(p, n, w[z], ahead)
		for m := range n {
			g.VPBROADCASTD(x.at(m, xSum), sum[m][z])
		}
		dot := func(group int, u reg.VecVirtual) {
			for m := range n {
				g.vpdpbusd(x.at(m, 4*group), u, sum[m][z], true)
			}
		}
		for j := range p.lines {
			u := g.ZMM()
			g.VMOVDQU64(w.at(z, 64*j), u)
			if p.bits == 8 {
				dot(j, u)
				continue
			}
			high := g.ZMM()
			g.VPSRLW(operand.U8(4), u, high)
			g.VPANDD(u, low, u)
			g.VPANDD(high, low, high)
			dot(2*j, u)
			dot(2*j+1, high)
		}
		scale := g.ZMM()
		g.VCVTPH2PS(w.at(z, p.scales()), scale)
		for m := range n {
			t := g.ZMM()
			g.VCVTDQ2PS(sum[m][z], sum[m][z])
			g.VMULPS_BCST(x.at(m, xScale), scale, t)
			g.VFMADD231PS(t, sum[m][z], acc[m][z])
		}
	}
	w.advance(g.kit, p.size())
	x.advance(g.kit, xBlock)
	g.DECQ(count)
	g.JNZ(operand.LabelRef("block"))
	g.store(acc, mask)
}

// floatTile keeps the whole tile of C in registers.
func (g *gemm512) floatTile(format string, n, panels int) {
	g.tile(fmt.Sprintf("mul%sx%dx%dAVX512", format, n, 16*panels), format, n, panels)
	acc := g.registers(n, panels)
	mask := g.load(acc)
	x := g.newRows(n, g.arg("x"), g.arg("ldx"))
	w := g.newRows(panels, g.arg("w"), g.arg("size"))
	next := rows{g.arg("ahead"), w.odd}
	g.ADDQ(w.base, next.base)

	size := 64 // of 16 elements
	if format != "F32" {
		size = 32
	}
	step := func(u int) {
		b := g.registers(1, panels)[0]
		for z := range b {
			from := w.at(z, u*size)
			switch format {
			case "F32":
				g.VMOVUPS(from, b[z])
			case "F16":
				g.VCVTPH2PS(from, b[z])
			case "BF16":
				g.VPMOVZXWD(from, b[z])
				g.VPSLLD(operand.U8(16), b[z], b[z])
			}
			if u*size%cacheLine == 0 {
				g.PREFETCHT0(next.at(z, u*size))
			}
		}
		for m := range n {
			if panels == 1 {
				g.VFMADD231PS_BCST(x.at(m, 4*u), b[0], acc[m][0])
				continue
			}
			a := g.ZMM()
			g.VBROADCASTSS(x.at(m, 4*u), a)
			for z := range b {
				g.VFMADD231PS(a, b[z], acc[m][z])
			}
		}
	}
	g.unrolled(g.arg("n"), 4, step, func(steps int) {
		g.ADDQ(operand.I32(steps*size), w.base)
		g.ADDQ(operand.I32(steps*size), next.base)
		g.ADDQ(operand.I32(steps*4), x.base)
	})
	g.store(acc, mask)
}

// quantize takes one block of 32 at a time.
func (g *gemm512) quantize() {
	q, nb, x, dst := g.newQuantizer("quantizeAVX512")
	magnitude, ones := g.broadcast(0x7fffffff), g.broadcast(0x01010101)

	g.Label("block")
	v := [2]reg.VecVirtual{g.ZMM(), g.ZMM()}
	a, t := g.ZMM(), g.ZMM()
	for h := range v {
		g.VMOVUPS(at(x, 64*h), v[h])
	}
	g.VPANDD(v[0], magnitude, a)
	g.VPANDD(v[1], magnitude, t)
	g.VPMAXSD(t, a, a)
	g.VEXTRACTI64X4(operand.U8(1), a, t.AsY())
	g.VPMAXSD(t.AsY(), a.AsY(), a.AsY())
	id, keep := q.scale(a, t, dst)
	wideID, wideKeep := g.ZMM(), g.ZMM()
	g.VBROADCASTSS(id, wideID)
	g.VPBROADCASTD(keep, wideKeep)
	for h := range v {
		g.VMULPS(wideID, v[h], v[h])
		g.VPANDD(wideKeep, v[h], v[h])
		g.VCVTPS2DQ(v[h], v[h])
		g.VPMOVSDB(v[h], v[h].AsX())
	}
	quants := v[0].AsY()
	g.VINSERTI128(operand.U8(1), v[1].AsX(), quants, quants)
	g.VMOVDQU(quants, at(dst, 0))
	s := g.ZMM()
	g.VPXORD(s, s, s)
	g.vpdpbusd(quants, ones.AsY(), s.AsY(), false)
	q.sum(s, t, dst)
	q.loop(nb, x, dst)
}
