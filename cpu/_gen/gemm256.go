package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func gemmAVX2(k *kit) {
	g := newGemm256(k, "AVX2", false)
	g.quantize()
	g.quantTiles()
	for _, format := range []string{"F32", "F16", "BF16"} {
		for _, n := range []int{6, 4, 3, 2, 1} {
			if n <= 3 {
				g.floatTile(format, n, 2)
			}
			g.floatTile(format, n, 1)
		}
	}
}

// gemmAVXVNNI has the tiles for which one instruction more makes a difference.
func gemmAVXVNNI(k *kit) {
	newGemm256(k, "AVXVNNI", true).quantTiles()
	k.peak("peakInt8AVXVNNI", "VPDPBUSD", 12, func(x, y, acc reg.VecVirtual) { k.vpdpbusdVEX(x, y, acc) })
}

// gemm256 has the constants that are left in memory, where 16 registers are few.
type gemm256 struct {
	*kit
	suffix string
	vnni   bool

	lanes, low, signs, ones, order operand.Mem
}

func newGemm256(k *kit, suffix string, vnni bool) *gemm256 {
	g := &gemm256{kit: k, suffix: suffix, vnni: vnni, lanes: k.signTable(), low: k.words("low", 0x0f0f0f0f)}
	if !vnni {
		g.signs, g.ones = k.words("signs", 0x80808080), k.words("ones", 0x00010001)
		g.order = k.words("order", 0, 4, 1, 5, 2, 6, 3, 7)
	}
	return g
}

// words is a constant of eight 32-bit words, or of one repeated.
func (k *kit) words(name string, w ...uint32) operand.Mem {
	g := k.StaticGlobal(name)
	k.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 8 {
		k.AddDatum(4*i, operand.U32(w[i%len(w)]))
	}
	return g
}

// registers is an array of new registers: for each of n rows, two for each
// panel.
func (g *gemm256) registers(n, panels int) [][]reg.VecVirtual {
	r := make([][]reg.VecVirtual, n)
	for m := range r {
		for range 2 * panels {
			r[m] = append(r[m], g.YMM())
		}
	}
	return r
}

// load reads the tile of C, whose columns may be fewer than the lanes if it has
// one panel.
func (g *gemm256) load(acc [][]reg.VecVirtual) {
	if len(acc[0]) > 2 {
		g.walk(len(acc), func(m int, row reg.Register) {
			for h, a := range acc[m] {
				g.VMOVUPS(at(row, 32*h), a)
			}
		})
		return
	}
	sign := g.laneSigns(g.lanes)
	g.walk(len(acc), func(m int, row reg.Register) {
		for h, a := range acc[m] {
			g.VMASKMOVPS(at(row, 32*h), sign[h], a)
		}
	})
}

// store ends a tile.
func (g *gemm256) store(acc [][]reg.VecVirtual) {
	if len(acc[0]) > 2 {
		g.walk(len(acc), func(m int, row reg.Register) {
			for h, a := range acc[m] {
				g.VMOVUPS(a, at(row, 32*h))
			}
		})
	} else {
		sign := g.laneSigns(g.lanes)
		g.walk(len(acc), func(m int, row reg.Register) {
			for h, a := range acc[m] {
				g.VMASKMOVPS(a, sign[h], at(row, 32*h))
			}
		})
	}
	g.ret()
}

func (g *gemm256) quantTiles() {
	for _, p := range packings {
		for _, n := range []int{4, 3, 2, 1} {
			if n <= 2 {
				g.quantTile(p, n, 2)
			}
			g.quantTile(p, n, 1)
		}
	}
}

// quantTile takes eight lanes after the other, so that n integer accumulators
// are enough.
func (g *gemm256) quantTile(p packing, n, panels int) {
	g.tile(fmt.Sprintf("mul%sx%dx%d%s", p.name, n, 16*panels, g.suffix), p.name, n, panels)
	acc := g.registers(n, panels)
	g.load(acc)
	w, ahead := g.newPointers(panels, g.arg("w"), g.arg("size")), g.arg("ahead")
	x := g.newPointers(n, g.arg("x"), g.arg("ldx"))
	count := g.argInMemory("n")

	g.Label("block")
	for z := range panels {
		g.prefetchBlock(p, n, w[z], ahead)
		for h := range 2 {
			sum := make([]reg.VecVirtual, n)
			for m := range sum {
				sum[m] = g.YMM()
			}
			g.dot(p, w.at(z, 32*h), x, sum)
			scale := g.YMM()
			g.VCVTPH2PS(w.at(z, p.scales()+16*h), scale)
			for m := range n {
				t := g.YMM()
				g.VCVTDQ2PS(sum[m], sum[m])
				g.VBROADCASTSS(x.at(m, xScale), t)
				g.VMULPS(scale, t, t)
				g.VFMADD231PS(t, sum[m], acc[m][2*z+h])
			}
		}
	}
	w.advance(g.kit, p.size())
	x.advance(g.kit, xBlock)
	g.DECQ(count)
	g.JNZ(operand.LabelRef("block"))
	g.store(acc)
}

// dot sets sum[m] to Σ q·w of row m and the eight lanes of the block at w.
func (g *gemm256) dot(p packing, w operand.Mem, x pointers, sum []reg.VecVirtual) {
	add, begin, end := g.addSigned, func(m int) {}, func(m int) {}
	switch {
	case g.vnni:
		add = g.addVNNI
		begin = func(m int) { g.VPBROADCASTD(x.at(m, xSum), sum[m]) }
	case p.bits == 4:
		add = g.addWords
		end = func(m int) {
			t := g.YMM()
			g.VPBROADCASTD(x.at(m, xSum), t)
			g.VPMADDWD(g.ones, sum[m], sum[m])
			g.VPADDD(t, sum[m], sum[m])
		}
	}
	for m := range sum {
		begin(m)
	}
	group := 0
	for j := range p.lines {
		units := []reg.VecVirtual{g.YMM()}
		g.VMOVDQU(w.Offset(64*j), units[0])
		if p.bits == 4 {
			units = append(units, g.YMM())
			g.VPSRLW(operand.U8(4), units[0], units[1])
			g.VPAND(g.low, units[0], units[0])
			g.VPAND(g.low, units[1], units[1])
		}
		for _, u := range units {
			add(u, x, group, sum)
			group++
		}
	}
	for m := range sum {
		end(m)
	}
}

// addVNNI adds the products of unsigned weights with a group of each row.
func (g *gemm256) addVNNI(u reg.VecVirtual, x pointers, group int, sum []reg.VecVirtual) {
	for m, s := range sum {
		t := g.YMM()
		g.VPBROADCASTD(x.at(m, 4*group), t)
		g.vpdpbusdVEX(t, u, s)
	}
}

// addWords is addVNNI for nibbles, in 16-bit sums: these hold 16 products of at
// most 15·127, so that they do not saturate within a block.
func (g *gemm256) addWords(u reg.VecVirtual, x pointers, group int, sum []reg.VecVirtual) {
	for m, s := range sum {
		t := g.YMM()
		g.VPBROADCASTD(x.at(m, 4*group), t)
		if group == 0 {
			g.VPMADDUBSW(t, u, s)
			continue
		}
		g.VPMADDUBSW(t, u, t)
		g.VPADDW(t, s, s)
	}
}

// addSigned makes the weights signed and moves their sign to the activations:
// |w|·x is at most 128·127, of which a 16-bit sum holds two. (Weights as stored,
// up to 255, would saturate.) The word for the bias is thereby not needed.
func (g *gemm256) addSigned(u reg.VecVirtual, x pointers, group int, sum []reg.VecVirtual) {
	size := g.YMM()
	g.VPXOR(g.signs, u, u)
	g.VPABSB(u, size)
	for m, s := range sum {
		t := g.YMM()
		g.VPBROADCASTD(x.at(m, 4*group), t)
		g.VPSIGNB(u, t, t)
		g.VPMADDUBSW(t, size, t)
		if group == 0 {
			g.VPMADDWD(g.ones, t, s)
			continue
		}
		g.VPMADDWD(g.ones, t, t)
		g.VPADDD(t, s, s)
	}
}

// floatTile keeps the whole tile of C in registers.
func (g *gemm256) floatTile(format string, n, panels int) {
	g.tile(fmt.Sprintf("mul%sx%dx%d%s", format, n, 16*panels, g.suffix), format, n, panels)
	acc := g.registers(n, panels)
	g.load(acc)
	x := g.newRows(n, g.arg("x"), g.arg("ldx"))
	w := g.newRows(panels, g.arg("w"), g.arg("size"))
	next := rows{g.arg("ahead"), w.odd}
	g.ADDQ(w.base, next.base)

	size := 64 // of 16 elements
	if format != "F32" {
		size = 32
	}
	step := func(u int) {
		for z := range panels {
			if u*size%cacheLine == 0 {
				g.PREFETCHT0(next.at(z, u*size))
			}
			b := g.registers(1, 1)[0]
			for h, b := range b {
				from := w.at(z, u*size+h*size/2)
				switch format {
				case "F32":
					g.VMOVUPS(from, b)
				case "F16":
					g.VCVTPH2PS(from, b)
				case "BF16":
					g.VPMOVZXWD(from, b)
					g.VPSLLD(operand.U8(16), b, b)
				}
			}
			for m := range n {
				a := g.YMM()
				g.VBROADCASTSS(x.at(m, 4*u), a)
				for h := range b {
					g.VFMADD231PS(a, b[h], acc[m][2*z+h])
				}
			}
		}
	}
	g.unrolled(g.arg("n"), 4, step, func(steps int) {
		g.ADDQ(operand.I32(steps*size), w.base)
		g.ADDQ(operand.I32(steps*size), next.base)
		g.ADDQ(operand.I32(steps*4), x.base)
	})
	g.store(acc)
}

// quantize takes one block of 32 at a time.
func (g *gemm256) quantize() {
	q, nb, x, dst := g.newQuantizer("quantizeAVX2")
	magnitude, bytes := g.broadcast(0x7fffffff), g.broadcast(0x01010101)

	g.Label("block")
	a, t := g.YMM(), g.YMM()
	var v [4]reg.VecVirtual
	for i := range v {
		v[i] = g.YMM()
		g.VMOVUPS(at(x, 32*i), v[i])
		if i == 0 {
			g.VPAND(v[i], magnitude, a)
			continue
		}
		g.VPAND(v[i], magnitude, t)
		g.VPMAXSD(t, a, a)
	}
	id, keep := q.scale(a, t, dst)
	wideID, wideKeep := g.YMM(), g.YMM()
	g.VBROADCASTSS(id, wideID)
	g.VPBROADCASTD(keep, wideKeep)
	for _, v := range v {
		g.VMULPS(wideID, v, v)
		g.VPAND(wideKeep, v, v)
		g.VCVTPS2DQ(v, v)
	}
	// The packing instructions leave words of four bytes in the order of order.
	g.VPACKSSDW(v[1], v[0], v[0])
	g.VPACKSSDW(v[3], v[2], v[2])
	g.VPACKSSWB(v[2], v[0], v[0])
	g.VMOVDQU(g.order, t)
	g.VPERMD(v[0], t, v[0])
	g.VMOVDQU(v[0], at(dst, 0))
	g.VPMADDUBSW(v[0], bytes, v[0])
	g.VPMADDWD(g.ones, v[0], v[0])
	q.sum(v[0], t, dst)
	q.loop(nb, x, dst)
}
