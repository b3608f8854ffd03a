package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func gemmAVX2(k *kit) {
	g := &gemm256{
		kit:   k,
		lanes: k.signTable(),
		low:   k.words("low", 0x0f0f0f0f),
		signs: k.words("signs", 0x80808080),
		ones:  k.words("ones", 0x00010001),
	}
	g.quantize()
	for _, p := range panels {
		for _, rows := range []int{4, 2, 1} {
			g.qtile(p, rows)
		}
	}
	for _, w := range []string{"F32", "F16", "BF16"} {
		for _, rows := range []int{6, 4, 3, 2, 1} {
			g.ftile(w, rows)
		}
	}
}

// gemm256 has the constants that are left in memory, where 16 registers are few.
type gemm256 struct {
	*kit
	lanes, low, signs, ones operand.Mem
}

// words is a constant of eight equal 32-bit words.
func (k *kit) words(name string, word uint32) operand.Mem {
	g := k.StaticGlobal(name)
	k.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 8 {
		k.AddDatum(4*i, operand.U32(word))
	}
	return g
}

// halves is a row of 16 floats.
type halves [2]reg.VecVirtual

func (g *gemm256) rows(n int) []halves {
	r := make([]halves, n)
	for m := range r {
		r[m] = halves{g.YMM(), g.YMM()}
	}
	return r
}

// load and store move the first cols columns of the rows of C.
func (g *gemm256) load(acc []halves) {
	sign := g.laneSigns(g.lanes)
	g.walk(len(acc), g.arg("c"), g.floats("ldc"), func(m int, row reg.Register) {
		for h, a := range acc[m] {
			g.VMASKMOVPS(at(row, 32*h), sign[h], a)
		}
	})
}

func (g *gemm256) store(acc []halves) {
	sign := g.laneSigns(g.lanes)
	g.walk(len(acc), g.arg("c"), g.floats("ldc"), func(m int, row reg.Register) {
		for h, a := range acc[m] {
			g.VMASKMOVPS(a, sign[h], at(row, 32*h))
		}
	})
	g.ret()
}

// qtile takes one half of the 16 lanes after the other, so that n integer
// accumulators are enough.
func (g *gemm256) qtile(p panel, n int) {
	name := fmt.Sprintf("mul%sx%dAVX2", p.name(), n)
	g.fn(name, qSignature, fmt.Sprintf("%s is a qtile of %d rows, each of which equals mul%sRef.", name, n, p.name()))
	acc := g.rows(n)
	g.load(acc)
	nb, w, ahead := g.arg("nb"), g.arg("w"), g.arg("ahead")
	x := g.newPointers(n, g.arg("x"), g.arg("ldx"))

	g.Label("block")
	g.prefetchBlock(p, n, w, ahead)
	for h := range 2 {
		sum := make([]reg.VecVirtual, n)
		for m := range sum {
			sum[m] = g.YMM()
		}
		if p.bits == 4 {
			g.dotQ4(p, at(w, 32*h), x, sum)
		} else {
			g.dotQ8(p, at(w, 32*h), x, sum)
		}
		scale := g.YMM()
		g.VCVTPH2PS(at(w, p.scales()+16*h), scale)
		for m := range n {
			t := g.YMM()
			g.VCVTDQ2PS(sum[m], sum[m])
			g.VBROADCASTSS(x.at(m, xScale), t)
			g.VMULPS(scale, t, t)
			g.VFMADD231PS(t, sum[m], acc[m][h])
		}
	}
	g.ADDQ(operand.I32(p.size()), w)
	for _, row := range x {
		g.ADDQ(operand.I8(xBlock), row)
	}
	g.DECQ(nb)
	g.JNZ(operand.LabelRef("block"))
	g.store(acc)
}

// dotQ4 multiplies in 16-bit sums. These hold 16 products of at most 15·127, so
// that they do not saturate within a block.
func (g *gemm256) dotQ4(p panel, w operand.Mem, x pointers, sum []reg.VecVirtual) {
	for j := range p.groups {
		even, odd := g.YMM(), g.YMM()
		g.VMOVDQU(w.Offset(64*j), even)
		g.VPSRLW(operand.U8(4), even, odd)
		g.VPAND(g.low, even, even)
		g.VPAND(g.low, odd, odd)
		for i, u := range []reg.VecVirtual{even, odd} {
			for m, s := range sum {
				t := g.YMM()
				g.VPBROADCASTD(x.at(m, 8*j+4*i), t)
				if i+j == 0 {
					g.VPMADDUBSW(t, u, s)
					continue
				}
				g.VPMADDUBSW(t, u, t)
				g.VPADDW(t, s, s)
			}
		}
	}
	for m, s := range sum {
		t := g.YMM()
		g.VPBROADCASTD(x.at(m, xSum), t)
		g.VPMADDWD(g.ones, s, s)
		g.VPADDD(t, s, s)
	}
}

// dotQ8 takes the weights as signed and moves their sign to the activations:
// |w|·x is at most 128·127, of which a 16-bit sum holds two. (Weights as stored,
// up to 255, would saturate.) The word for the bias is thereby not needed.
func (g *gemm256) dotQ8(p panel, w operand.Mem, x pointers, sum []reg.VecVirtual) {
	for j := range p.groups {
		signed, size := g.YMM(), g.YMM()
		g.VMOVDQU(w.Offset(64*j), signed)
		g.VPXOR(g.signs, signed, signed)
		g.VPABSB(signed, size)
		for m, s := range sum {
			t := g.YMM()
			g.VPBROADCASTD(x.at(m, 4*j), t)
			g.VPSIGNB(signed, t, t)
			g.VPMADDUBSW(t, size, t)
			if j == 0 {
				g.VPMADDWD(g.ones, t, s)
				continue
			}
			g.VPMADDWD(g.ones, t, t)
			g.VPADDD(t, s, s)
		}
	}
}

// ftile keeps the whole tile of C in registers.
func (g *gemm256) ftile(format string, n int) {
	name := fmt.Sprintf("mul%sx%dx16AVX2", format, n)
	g.fn(name, fSignature, fmt.Sprintf("%s is an ftile of %d rows and one panel, each of which equals mul%sRef.", name, n, format))
	acc := g.rows(n)
	g.load(acc)
	count, w, ahead := g.arg("k"), g.arg("w"), g.arg("ahead")
	x := g.newRows(n, g.arg("x"), g.floats("ldx"))

	size := 64 // of 16 elements
	if format != "F32" {
		size = 32
	}
	step := func(u int) {
		if u*size%cacheLine == 0 {
			g.PREFETCHT0(operand.Mem{Base: w, Index: ahead, Scale: 1, Disp: u * size})
		}
		b := halves{g.YMM(), g.YMM()}
		for h, b := range b {
			from := at(w, u*size+h*size/2)
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
				g.VFMADD231PS(a, b[h], acc[m][h])
			}
		}
	}
	advance := func(steps int) {
		g.ADDQ(operand.I32(steps*size), w)
		g.ADDQ(operand.I32(steps*4), x.base)
	}
	g.unrolled(count, 4, step, advance)
	g.store(acc)
}

// quantize takes one block of 32 at a time.
func (g *gemm256) quantize() {
	order := g.StaticGlobal("order")
	g.DataAttributes(attr.RODATA | attr.NOPTR)
	for i, word := range []uint32{0, 4, 1, 5, 2, 6, 3, 7} {
		g.AddDatum(4*i, operand.U32(word))
	}

	g.fn("quantizeAVX2", quantSignature, "quantizeAVX2 equals quantizeRef.")
	nb, x, dst := g.arg("nb"), g.arg("x"), g.arg("dst")
	bias := g.GP32()
	g.Load(g.Param("bias"), bias)
	g.NEGL(bias)
	magnitude, bytes := g.broadcast(0x7fffffff), g.broadcast(0x01010101)
	q := g.newQuantizer()

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
	g.VMOVDQU(order, t)
	g.VPERMD(v[0], t, v[0])
	g.VMOVDQU(v[0], at(dst, 0))
	g.VPMADDUBSW(v[0], bytes, v[0])
	g.VPMADDWD(g.ones, v[0], v[0])
	q.sum(v[0], t, bias, dst)
	g.ADDQ(operand.I32(128), x)
	g.ADDQ(operand.I8(xBlock), dst)
	g.DECQ(nb)
	g.JNZ(operand.LabelRef("block"))
	g.ret()
}
