package main

import (
	"fmt"
	"slices"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// vpdpbusdVEX is vpdpbusd for CPUs with AVX-VNNI but without AVX-512. It is
// symbolic until registers are allocated.
func (k *kit) vpdpbusdVEX(s, u, acc reg.Register) {
	ops := []operand.Op{s, u, acc}
	k.Instruction(&ir.Instruction{
		Opcode:   "VPDPBUSD_VEX",
		Operands: ops,
		Inputs:   slices.Clone(ops),
		Outputs:  []operand.Op{acc},
		ISA:      []string{"AVXVNNI"},
	})
}

// encodeVEX turns the VEX instructions of f, whose registers are allocated, into
// the macro of vex_amd64.h.
func encodeVEX(f *ir.File) {
	used := false
	for _, fn := range f.Functions() {
		for _, i := range fn.Instructions() {
			if i.Opcode != "VPDPBUSD_VEX" {
				continue
			}
			var n [3]any
			for j, o := range i.Operands {
				n[j] = reg.ToPhysical(o.(reg.Register)).PhysicalIndex()
			}
			i.Opcode, i.Operands, used = fmt.Sprintf("VPDPBUSD_VEX(%d, %d, %d)", n[:]...), nil, true
		}
	}
	if used {
		f.Includes = append(f.Includes, "vex_amd64.h")
	}
}
