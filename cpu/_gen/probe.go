package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// probes are no kernels: they do the most that the machine can, for kernels to
// be compared with.

func probes512(k *kit) {
	k.peak("peakInt8AVX512", "VPDPBUSD", 24, func(x, y, acc reg.VecVirtual) { k.vpdpbusd(x, y, acc, false) })
	k.peak("peakF32AVX512", "VFMADD231PS", 24, func(x, y, acc reg.VecVirtual) { k.VFMADD231PS(x, y, acc) })
	k.readBytes("readBytesAVX512")
}

func probes256(k *kit) {
	k.peak("peakInt8AVX2", "VPMADDUBSW with VPADDW", 12, func(x, y, acc reg.VecVirtual) {
		t := k.YMM()
		k.VPMADDUBSW(x, y, t)
		k.VPADDW(t, acc, acc)
	})
	k.peak("peakF32AVX2", "VFMADD231PS", 12, func(x, y, acc reg.VecVirtual) { k.VFMADD231PS(x, y, acc) })
	k.readBytes("readBytesAVX2")
}

// vector is a new register of the level's width.
func (k *kit) vector() reg.VecVirtual {
	if k.level == avx512 {
		return k.ZMM()
	}
	return k.YMM()
}

// zero is a new register of the level's width, filled with zeros.
func (k *kit) zero() reg.VecVirtual {
	v := k.vector()
	if k.level == avx512 {
		k.VPXORD(v, v, v)
	} else {
		k.VPXOR(v, v, v)
	}
	return v
}

func (k *kit) peak(name, what string, independent int, do func(x, y, acc reg.VecVirtual)) {
	k.fn(name, "func(n int)", name+" runs 24·n times "+what+"; n is positive.")
	n := k.arg("n")
	acc := make([]reg.VecVirtual, independent)
	for i := range acc {
		acc[i] = k.zero()
	}
	x, y := k.zero(), k.zero()
	k.Label("loop")
	for i := range 24 {
		do(x, y, acc[i%independent])
	}
	k.DECQ(n)
	k.JNZ(operand.LabelRef("loop"))
	k.ret()
}

func (k *kit) readBytes(name string) {
	k.fn(name, "func(p *byte, n int) (x uint64)",
		name+" reads n bytes, a positive multiple of 512, the way the",
		"kernels for one row do, as two streams; x is the exclusive or of all the",
		"64-bit words.")
	half, n := k.GP64(), k.arg("n")
	k.MOVQ(n, half)
	k.SHRQ(operand.U8(1), half)
	p := k.newPointers(2, k.arg("p"), half)
	acc := []reg.VecVirtual{k.zero(), k.zero(), k.zero(), k.zero()}
	width := int(acc[0].Size())
	xor := func(a operand.Op, b, dst reg.Register) {
		if k.level == avx512 {
			k.VPXORD(a, b, dst)
		} else {
			k.VPXOR(a, b, dst)
		}
	}
	k.Label("loop")
	for off := 0; off < 256; off += width {
		for z := range p {
			if off%cacheLine == 0 {
				k.PREFETCHT0(p.at(z, off+2048))
			}
			a := acc[(off/width*len(p)+z)%len(acc)]
			xor(p.at(z, off), a, a)
		}
	}
	p.advance(k, 256)
	k.SUBQ(operand.I32(512), n)
	k.JNZ(operand.LabelRef("loop"))
	sum, t := acc[0], acc[1]
	for _, a := range acc[1:] {
		xor(a, sum, sum)
	}
	if k.level == avx512 {
		k.VEXTRACTI64X4(operand.U8(1), sum, t.AsY())
		k.VPXOR(t.AsY(), sum.AsY(), sum.AsY())
	}
	k.VEXTRACTI128(operand.U8(1), sum.AsY(), t.AsX())
	k.VPXOR(t.AsX(), sum.AsX(), sum.AsX())
	k.VPSHUFD(operand.U8(0x4e), sum.AsX(), t.AsX())
	k.VPXOR(t.AsX(), sum.AsX(), sum.AsX())
	r := k.GP64()
	k.VMOVQ(sum.AsX(), r)
	k.VZEROUPPER()
	k.Store(r, k.Return("x"))
	k.RET()
}
