package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// probes are no kernels: they measure what the machine could do at most.
func probes(k *kit) {
	peakVNNI(k)
	readBytes(k)
}

func peakVNNI(k *kit) {
	k.fn("peakVNNIAVX512", "func(n int)",
		"peakVNNIAVX512 issues 24·n VPDPBUSD on 512-bit registers, of which 24 are",
		"independent of each other.")
	n := k.arg("n")
	var acc [24]reg.VecVirtual
	for i := range acc {
		acc[i] = k.ZMM()
		k.VPXORD(acc[i], acc[i], acc[i])
	}
	x, y := k.ZMM(), k.ZMM()
	k.VPXORD(x, x, x)
	k.VPXORD(y, y, y)
	k.Label("loop")
	for _, a := range acc {
		k.vpdpbusd(x, y, a, false)
	}
	k.DECQ(n)
	k.JNZ(operand.LabelRef("loop"))
	k.ret()
}

func readBytes(k *kit) {
	k.fn("readBytesAVX512", "func(p *byte, n int) (x uint64)",
		"readBytesAVX512 reads n bytes, a positive multiple of 256, the way the",
		"kernels for one row do, prefetching 8 KiB ahead; x is the exclusive or of",
		"all the 64-bit words.")
	p, n := k.arg("p"), k.arg("n")
	var acc [4]reg.VecVirtual
	for i := range acc {
		acc[i] = k.ZMM()
		k.VPXORD(acc[i], acc[i], acc[i])
	}
	k.Label("loop")
	for i, a := range acc {
		k.PREFETCHT0(at(p, 64*i+8192))
		k.VPXORD(at(p, 64*i), a, a)
	}
	k.ADDQ(operand.U32(256), p)
	k.SUBQ(operand.U32(256), n)
	k.JNZ(operand.LabelRef("loop"))
	k.VPXORD(acc[1], acc[0], acc[0])
	k.VPXORD(acc[3], acc[2], acc[2])
	k.VPXORD(acc[2], acc[0], acc[0])
	hi, sum := k.ZMM(), acc[0]
	k.VEXTRACTI64X4(operand.U8(1), sum, hi.AsY())
	k.VPXOR(hi.AsY(), sum.AsY(), sum.AsY())
	k.VEXTRACTI128(operand.U8(1), sum.AsY(), hi.AsX())
	k.VPXOR(hi.AsX(), sum.AsX(), sum.AsX())
	k.VPSHUFD(operand.U8(0x4e), sum.AsX(), hi.AsX())
	k.VPXOR(hi.AsX(), sum.AsX(), sum.AsX())
	r := k.GP64()
	k.VMOVQ(sum.AsX(), r)
	k.VZEROUPPER()
	k.Store(r, k.Return("x"))
	k.RET()
}
