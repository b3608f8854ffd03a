package main

import (
	"fmt"
	"slices"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// level is what the functions of a file may ask of the CPU.
type level int

const (
	avx2    level = iota // AVX2, FMA3, F16C, BMI2; 16 vector registers
	avxvnni              // and AVX-VNNI
	avx512               // and AVX-512 F, BW, DQ, VL, VNNI
	amx                  // and AMX-TILE, AMX-INT8
)

var allowed = map[level][]string{
	avx2:    {"AVX", "AVX2", "FMA3", "F16C", "BMI", "BMI2", "SSE", "SSE2", "SSE4.1", "MMX+", "CMOV", "CPUID"},
	avxvnni: {"AVXVNNI"},
	avx512:  {"AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", "AVX512VNNI"},
	amx:     {"AMX-INT8"},
}

// check refuses what the register allocator would let pass: an instruction
// beyond the file's level, or a register that only EVEX can name in a file
// whose CPUs have no EVEX.
func check(f *ir.File, l level) error {
	for _, fn := range f.Functions() {
		for _, isa := range fn.ISA {
			ok := false
			for a := avx2; a <= l; a++ {
				ok = ok || slices.Contains(allowed[a], isa)
			}
			if !ok {
				return fmt.Errorf("%s requires %s", fn.Name, isa)
			}
		}
		if l >= avx512 {
			continue
		}
		for _, i := range fn.Instructions() {
			for _, r := range i.Registers() {
				p := reg.ToPhysical(r)
				if p.Kind() == reg.KindVector && (p.PhysicalIndex() > 15 || p.Size() > 32) {
					return fmt.Errorf("%s: %s uses %s", fn.Name, i.Opcode, p.Asm())
				}
			}
		}
	}
	return nil
}

// kit is avo's context with the few things this package's kernels share; level
// is that of its vector registers.
type kit struct {
	*build.Context
	level level
}

// fn starts a function: a leaf without a frame whose pointers do not escape.
// The documentation holds, or names, the loop in Go that it equals.
func (k *kit) fn(name, signature string, doc ...string) {
	k.Function(name)
	k.Attributes(attr.NOSPLIT)
	k.SignatureExpr(signature)
	k.Pragma("noescape")
	k.Doc(doc...)
}

// arg loads an integer or pointer argument into a register.
func (k *kit) arg(name string) reg.GPVirtual {
	r := k.GP64()
	k.Load(k.Param(name), r)
	return r
}

// argInMemory is an argument where the caller put it, which the function may
// overwrite.
func (k *kit) argInMemory(name string) operand.Mem {
	b, err := k.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// ret ends a function that used vector registers.
func (k *kit) ret() {
	k.VZEROUPPER()
	k.RET()
}

// at is the memory operand disp(base).
func at(base reg.Register, disp int) operand.Mem {
	return operand.Mem{Base: base, Disp: disp}
}

// vpdpbusd adds to each 32-bit lane of acc the four products of the unsigned
// bytes of u with the signed bytes of s, which is a register or, with bcst, one
// 32-bit word in memory for all lanes. avo does not know the instruction.
func (k *kit) vpdpbusd(s operand.Op, u, acc reg.Register, bcst bool) {
	i := &ir.Instruction{
		Opcode:   "VPDPBUSD",
		Operands: []operand.Op{s, u, acc},
		Inputs:   []operand.Op{s, u, acc},
		Outputs:  []operand.Op{acc},
		ISA:      []string{"AVX512VNNI"},
	}
	if bcst {
		i.Suffixes = []string{"BCST"}
	}
	k.Instruction(i)
}
