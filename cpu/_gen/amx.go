package main

import (
	"encoding/binary"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// What the tile kernels read: see tileBlock in package simd.
const (
	tileRows   = 16
	tileScales = 512 // behind 8 rows of 64 bytes of weights, or 16 rows of 32 of activations
	tileBlock  = tileScales + 64
)

func amxKernels(k *kit) {
	unpackQ4AMX(k)
	unpackQ8AMX(k)
	packAMX(k)
	mulAMX(k)
	peakAMX(k)
}

// unpack begins and ends a function that unpacks blocks of a panel; quants does
// one block's.
func unpack(k *kit, name string, scales int, constants func(), quants func(w, dst reg.Register)) {
	k.fn(name+"AMX", "func(nb int, w, dst *byte)", name+"AMX equals "+name+"Ref.")
	nb, w, dst := k.arg("nb"), k.arg("w"), k.arg("dst")
	constants()
	k.Label("block")
	quants(w, dst)
	s := k.ZMM()
	k.VCVTPH2PS(at(w, scales), s)
	k.VMOVUPS(s, at(dst, tileScales))
	k.ADDQ(operand.I32(scales+32), w)
	k.ADDQ(operand.I32(tileBlock), dst)
	k.DECQ(nb)
	k.JNZ(operand.LabelRef("block"))
	k.ret()
}

func unpackQ4AMX(k *kit) {
	var low, bias reg.VecVirtual
	constants := func() { low, bias = k.broadcast(0x0f0f0f0f), k.broadcast(0x08080808) }
	unpack(k, "unpackQ4", 256, constants, func(w, dst reg.Register) {
		for j := range 4 {
			even, odd := k.ZMM(), k.ZMM()
			k.VMOVDQU64(at(w, 64*j), even)
			k.VPSRLW(operand.U8(4), even, odd)
			for i, v := range []reg.VecVirtual{even, odd} {
				k.VPANDD(v, low, v)
				k.VPSUBB(bias, v, v)
				k.VMOVDQU64(v, at(dst, 128*j+64*i))
			}
		}
	})
}

func unpackQ8AMX(k *kit) {
	var bias reg.VecVirtual
	constants := func() { bias = k.broadcast(0x80808080) }
	unpack(k, "unpackQ8", 512, constants, func(w, dst reg.Register) {
		for j := range 8 {
			v := k.ZMM()
			k.VPXORD(at(w, 64*j), bias, v)
			k.VMOVDQU64(v, at(dst, 64*j))
		}
	})
}

func packAMX(k *kit) {
	k.fn("packRowsAMX", "func(nb int, x *byte, ldx, rows int, dst *byte)", "packRowsAMX equals packRowsRef.")
	ldx, rows := k.arg("ldx"), k.arg("rows")
	first, row := k.GP64(), k.GP64() // the first row's block, and where its copy goes
	k.Load(k.Param("x"), first)
	k.Load(k.Param("dst"), row)
	x, dst, scale, nb := k.GP64(), k.GP64(), k.GP64(), k.GP64()
	k.LEAQ(at(row, tileScales), scale)
	k.Label("row")
	k.MOVQ(first, x)
	k.MOVQ(row, dst)
	to := k.GP64()
	k.MOVQ(scale, to)
	k.Load(k.Param("nb"), nb)
	k.Label("block")
	q, d := k.YMM(), k.GP32()
	k.VMOVDQU(at(x, 0), q)
	k.VMOVDQU(q, at(dst, 0))
	k.MOVL(at(x, xScale), d)
	k.MOVL(d, at(to, 0))
	k.ADDQ(operand.I32(xBlock), x)
	k.ADDQ(operand.I32(tileBlock), dst)
	k.ADDQ(operand.I32(tileBlock), to)
	k.DECQ(nb)
	k.JNZ(operand.LabelRef("block"))
	k.ADDQ(ldx, first)
	k.ADDQ(operand.I8(32), row)
	k.ADDQ(operand.I8(4), scale)
	k.DECQ(rows)
	k.JNZ(operand.LabelRef("row"))
	k.ret()
}

// The tiles of mulAMX.
const (
	sums tile = iota
	weights
	activations
)

// mulAMX runs one block ahead with the tiles: while the integers of a block are
// scaled and added up in vector registers, the next block's are multiplied. The
// only way from a tile to a vector leads through memory; what is stored there
// must be read before the next store, and nothing else that is read meanwhile
// may lie at the same place in another page, or it would wait for the store.
func mulAMX(k *kit) {
	k.fn("mulAMX", "func(nb int, w, x *byte, size, tiles int, c *float32, scratch *byte, next uintptr, step int)",
		"mulAMX multiplies one unpacked panel with tiles times 16 packed rows, the",
		"packed tiles being size bytes apart: C[16·tiles][16] += X·Wᵀ, C being",
		"contiguous. For each row it equals mulQ4Ref and mulQ8Ref. w, x and size are",
		"multiples of a page, and so is scratch, which has two. For each block of each",
		"tile two cache lines from next on are prefetched, and next moves on by step.",
		"All tile registers are released at the end.")
	config := k.GP64()
	k.LEAQ(tileConfig(k, "tileConfig", shape{sums, tileRows, 64}, shape{weights, 8, 64}, shape{activations, tileRows, 32}), config)
	k.ldtilecfg(at(config, 0))
	wide, narrow := k.GP64(), k.GP64() // strides of rows
	k.MOVQ(operand.U32(64), wide)
	k.MOVQ(operand.U32(32), narrow)
	x, c, scratch := k.arg("x"), k.arg("c"), k.arg("scratch")
	next, step := k.arg("next"), k.arg("step")
	tiles := k.argInMemory("tiles")

	k.Label("tile")
	w, block, nb := k.arg("w"), k.GP64(), k.arg("nb")
	k.MOVQ(x, block)
	acc := make([]reg.VecVirtual, tileRows)
	for m := range acc {
		acc[m] = k.ZMM()
		k.VMOVUPS(at(c, 64*m), acc[m])
	}
	multiply := func(ahead int) {
		k.tileloadd(operand.Mem{Base: block, Index: narrow, Scale: 1, Disp: ahead * tileBlock}, activations)
		k.tileloadd(operand.Mem{Base: w, Index: wide, Scale: 1, Disp: ahead * tileBlock}, weights)
		k.tilezero(sums)
		k.tdpbssd(weights, activations, sums)
	}
	// The place moves along with w and block, a good half page before them.
	place := k.GP64()
	store := func(ahead int) {
		k.LEAQ(at(w, ahead*tileBlock+2304), place)
		k.ANDQ(operand.I32(4095), place)
		k.ADDQ(scratch, place)
		k.tilestored(sums, operand.Mem{Base: place, Index: wide, Scale: 1})
	}
	scale := func() {
		s := k.ZMM()
		k.VMOVUPS(at(w, tileScales), s)
		for m := range acc {
			v, t := k.ZMM(), k.ZMM()
			k.VCVTDQ2PS(at(place, 64*m), v)
			k.VMULPS_BCST(at(block, tileScales+4*m), s, t)
			k.VFMADD231PS(t, v, acc[m])
		}
	}
	multiply(0)
	store(0)
	k.DECQ(nb)
	k.JZ(operand.LabelRef("last"))
	k.Label("block")
	multiply(1)
	k.PREFETCHT1(at(next, 0))
	k.PREFETCHT1(at(next, cacheLine))
	k.ADDQ(step, next)
	scale()
	store(1)
	k.ADDQ(operand.I32(tileBlock), w)
	k.ADDQ(operand.I32(tileBlock), block)
	k.DECQ(nb)
	k.JNZ(operand.LabelRef("block"))
	k.Label("last")
	scale()
	for m := range acc {
		k.VMOVUPS(acc[m], at(c, 64*m))
	}
	k.ADDQ(operand.I32(64*tileRows), c)
	k.ADDQ(k.argInMemory("size"), x)
	k.DECQ(tiles)
	k.JNZ(operand.LabelRef("tile"))
	k.tilerelease()
	k.ret()
}

// peakAMX is a probe: the largest product of tiles, one after the other, into
// six sums in turn.
func peakAMX(k *kit) {
	k.fn("peakTilesAMX", "func(n int)", "peakTilesAMX runs 24·n times TDPBSSD on whole tiles; n is positive. All tile",
		"registers are released at the end.")
	var whole []shape
	for t := range tile(8) {
		whole = append(whole, shape{t, tileRows, 64})
	}
	n, config := k.arg("n"), k.GP64()
	k.LEAQ(tileConfig(k, "peakConfig", whole...), config)
	k.ldtilecfg(at(config, 0))
	for _, s := range whole {
		k.tilezero(s.tile)
	}
	k.Label("loop")
	for i := range tile(24) {
		k.tdpbssd(7, 6, i%6)
	}
	k.DECQ(n)
	k.JNZ(operand.LabelRef("loop"))
	k.tilerelease()
	k.ret()
}

// shape is the form of a tile: rows, and the bytes of each.
type shape struct {
	tile
	rows, bytes byte
}

// tileConfig is what LDTILECFG reads: palette 1, and the rows of each tile and
// the bytes of each row.
func tileConfig(k *kit, name string, tiles ...shape) operand.Mem {
	var b [64]byte
	b[0] = 1
	for _, t := range tiles {
		b[16+2*t.tile], b[48+t.tile] = t.bytes, t.rows
	}
	m := k.StaticGlobal(name)
	k.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := 0; i < len(b); i += 8 {
		k.AddDatum(i, operand.U64(binary.LittleEndian.Uint64(b[i:])))
	}
	return m
}
