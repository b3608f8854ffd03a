package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tile512 lists the rows of the tiles; twelve use up 32 registers.
var tile512 = []int{12, 8, 4, 3, 2, 1}

func gemmAVX512(k *kit) {
	quantizeAVX512(k)
	for _, p := range panels {
		for _, rows := range tile512 {
			qtileAVX512(k, p, rows)
		}
	}
	for _, w := range []string{"F32", "F16", "BF16"} {
		for _, panels := range []int{2, 1} {
			for _, rows := range tile512 {
				ftileAVX512(k, w, rows, panels)
			}
		}
	}
}

// qtileAVX512 keeps one integer and one float accumulator a row. The weights
// are unpacked once for all rows; activations are broadcast from memory by the
// multiplication itself.
func qtileAVX512(k *kit, p panel, n int) {
	name := fmt.Sprintf("mul%sx%dAVX512", p.name(), n)
	k.fn(name, qSignature, fmt.Sprintf("%s is a qtile of %d rows, each of which equals mul%sRef.", name, n, p.name()))
	c, ldc, mask := k.arg("c"), k.floats("ldc"), k.laneMask()

	sum, acc := make([]reg.VecVirtual, n), make([]reg.VecVirtual, n)
	for m := range n {
		sum[m], acc[m] = k.ZMM(), k.ZMM()
	}
	k.walk(n, c, ldc, func(m int, row reg.Register) { k.VMOVUPS_Z(at(row, 0), mask, acc[m]) })
	var low reg.VecVirtual
	if p.bits == 4 {
		low = k.broadcast(0x0f0f0f0f)
	}
	w, ahead := k.arg("w"), k.arg("ahead")
	x := k.newPointers(n, k.arg("x"), k.arg("ldx"))
	nb := k.argInMemory("nb")

	k.Label("block")
	for m := range n {
		k.VPBROADCASTD(x.at(m, xSum), sum[m])
	}
	k.prefetchBlock(p, n, w, ahead)
	dot := func(group int, u reg.VecVirtual) {
		for m := range n {
			k.vpdpbusd(x.at(m, 4*group), u, sum[m], true)
		}
	}
	for j := range p.groups {
		u := k.ZMM()
		if p.bits == 8 {
			k.VMOVDQU64(at(w, 64*j), u)
			dot(j, u)
			continue
		}
		high := k.ZMM()
		k.VMOVDQU64(at(w, 64*j), u)
		k.VPSRLW(operand.U8(4), u, high)
		k.VPANDD(u, low, u)
		k.VPANDD(high, low, high)
		dot(2*j, u)
		dot(2*j+1, high)
	}
	scale := k.ZMM()
	k.VCVTPH2PS(at(w, p.scales()), scale)
	for m := range n {
		t := k.ZMM()
		k.VCVTDQ2PS(sum[m], sum[m])
		k.VMULPS_BCST(x.at(m, xScale), scale, t)
		k.VFMADD231PS(t, sum[m], acc[m])
	}
	k.ADDQ(operand.I32(p.size()), w)
	for _, row := range x {
		k.ADDQ(operand.I8(xBlock), row)
	}
	k.DECQ(nb)
	k.JNZ(operand.LabelRef("block"))

	c, ldc = k.arg("c"), k.floats("ldc")
	k.walk(n, c, ldc, func(m int, row reg.Register) { k.VMOVUPS(acc[m], mask, at(row, 0)) })
	k.ret()
}

// ftileAVX512 keeps the whole tile of C in registers.
func ftileAVX512(k *kit, format string, n, panels int) {
	name := fmt.Sprintf("mul%sx%dx%dAVX512", format, n, 16*panels)
	k.fn(name, fSignature, fmt.Sprintf("%s is an ftile of %d rows and %d panels, each of which equals mul%sRef.", name, n, panels, format))
	count := k.arg("k")
	x := k.newRows(n, k.arg("x"), k.floats("ldx"))
	w := k.newRows(panels, k.arg("w"), k.arg("size"))
	ahead := k.arg("ahead")
	k.ADDQ(w.base, ahead)
	next := rows{ahead, w.odd}
	c, ldc := k.arg("c"), k.floats("ldc")

	acc := make([][]reg.VecVirtual, n)
	for m := range acc {
		acc[m] = make([]reg.VecVirtual, panels)
		for z := range acc[m] {
			acc[m][z] = k.ZMM()
		}
	}
	var mask reg.OpmaskVirtual
	if panels == 1 {
		mask = k.laneMask()
	}
	k.walk(n, c, ldc, func(m int, row reg.Register) {
		for z, a := range acc[m] {
			if panels == 1 {
				k.VMOVUPS_Z(at(row, 0), mask, a)
			} else {
				k.VMOVUPS(at(row, 64*z), a)
			}
		}
	})

	size := 64 // of 16 elements
	if format != "F32" {
		size = 32
	}
	step := func(u int) {
		b := make([]reg.VecVirtual, panels)
		for z := range b {
			b[z] = k.ZMM()
			from := w.at(z, u*size)
			switch format {
			case "F32":
				k.VMOVUPS(from, b[z])
			case "F16":
				k.VCVTPH2PS(from, b[z])
			case "BF16":
				k.VPMOVZXWD(from, b[z])
				k.VPSLLD(operand.U8(16), b[z], b[z])
			}
			if u*size%cacheLine == 0 {
				k.PREFETCHT0(next.at(z, u*size))
			}
		}
		for m := range n {
			if panels == 1 {
				k.VFMADD231PS_BCST(x.at(m, 4*u), b[0], acc[m][0])
				continue
			}
			a := k.ZMM()
			k.VBROADCASTSS(x.at(m, 4*u), a)
			for z := range b {
				k.VFMADD231PS(a, b[z], acc[m][z])
			}
		}
	}
	advance := func(steps int) {
		k.ADDQ(operand.I32(steps*size), w.base)
		k.ADDQ(operand.I32(steps*size), next.base)
		k.ADDQ(operand.I32(steps*4), x.base)
	}
	k.unrolled(count, 4, step, advance)

	k.walk(n, c, ldc, func(m int, row reg.Register) {
		for z, a := range acc[m] {
			if panels == 1 {
				k.VMOVUPS(a, mask, at(row, 0))
			} else {
				k.VMOVUPS(a, at(row, 64*z))
			}
		}
	})
	k.ret()
}

// quantizeAVX512 takes one block of 32 at a time.
func quantizeAVX512(k *kit) {
	k.fn("quantizeAVX512", quantSignature, "quantizeAVX512 equals quantizeRef.")
	nb, x, dst := k.arg("nb"), k.arg("x"), k.arg("dst")
	bias := k.GP32()
	k.Load(k.Param("bias"), bias)
	k.NEGL(bias)
	magnitude := k.broadcast(0x7fffffff)
	ones := k.broadcast(0x01010101)
	q := k.newQuantizer()

	k.Label("block")
	v := [2]reg.VecVirtual{k.ZMM(), k.ZMM()}
	a, t := k.ZMM(), k.ZMM()
	for h := range v {
		k.VMOVUPS(at(x, 64*h), v[h])
	}
	k.VPANDD(v[0], magnitude, a)
	k.VPANDD(v[1], magnitude, t)
	k.VPMAXSD(t, a, a)
	k.VEXTRACTI64X4(operand.U8(1), a, t.AsY())
	k.VPMAXSD(t.AsY(), a.AsY(), a.AsY())
	id, keep := q.scale(a, t, dst)
	wideID, wideKeep := k.ZMM(), k.ZMM()
	k.VBROADCASTSS(id.AsX(), wideID)
	k.VPBROADCASTD(keep.AsX(), wideKeep)
	for h := range v {
		k.VMULPS(wideID, v[h], v[h])
		k.VPANDD(wideKeep, v[h], v[h])
		k.VCVTPS2DQ(v[h], v[h])
		k.VPMOVSDB(v[h], v[h].AsX())
	}
	quants := v[0].AsY()
	k.VINSERTI128(operand.U8(1), v[1].AsX(), quants, quants)
	k.VMOVDQU(quants, at(dst, 0))
	s := k.ZMM()
	k.VPXORD(s, s, s)
	k.vpdpbusd(quants, ones.AsY(), s.AsY(), false)
	q.sum(s, t, bias, dst)
	k.ADDQ(operand.I32(128), x)
	k.ADDQ(operand.I32(xBlock), dst)
	k.DECQ(nb)
	k.JNZ(operand.LabelRef("block"))
	k.ret()
}
