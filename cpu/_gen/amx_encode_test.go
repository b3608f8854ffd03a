package main

import (
	"fmt"
	"testing"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// What GNU as 2.40 makes of the same instructions with a {disp32} prefix.
func TestEncodeTile(t *testing.T) {
	mem := func(base, index reg.Register, scale uint8, disp int) operand.Mem {
		return operand.Mem{Base: base, Index: index, Scale: scale, Disp: disp}
	}
	for _, c := range []struct {
		want, text string
		opcode     string
		ops        []operand.Op
	}{
		{"c4e278498424f0ffffff", "LDTILECFG -16(SP)", "LDTILECFG", []operand.Op{operand.Mem{Base: reg.RSP, Disp: -16}}},
		{"c4c27849842410000000", "LDTILECFG 16(R12)", "LDTILECFG", []operand.Op{operand.Mem{Base: reg.R12, Disp: 16}}},
		{"c4e27849c0", "TILERELEASE", "TILERELEASE", nil},
		{"c4e27b49c0", "TILEZERO TMM0", "TILEZERO", []operand.Op{tile(0)}},
		{"c4e27b49f8", "TILEZERO TMM7", "TILEZERO", []operand.Op{tile(7)}},
		{"c4e27b4b840800000000", "TILELOADD (AX)(CX*1), TMM0", "TILELOADD", []operand.Op{mem(reg.RAX, reg.RCX, 1, 0), tile(0)}},
		{"c4827b4bac3540000000", "TILELOADD 64(R13)(R14*1), TMM5", "TILELOADD", []operand.Op{mem(reg.R13, reg.R14, 1, 64), tile(5)}},
		{"c4a27b4bbc4e00080000", "TILELOADD 2048(SI)(R9*2), TMM7", "TILELOADD", []operand.Op{mem(reg.RSI, reg.R9, 2, 2048), tile(7)}},
		{"c4c27b4b8cd900000000", "TILELOADD (R9)(BX*8), TMM1", "TILELOADD", []operand.Op{mem(reg.R9, reg.RBX, 8, 0), tile(1)}},
		{"c4e27a4b9c1700000000", "TILESTORED TMM3, (DI)(DX*1)", "TILESTORED", []operand.Op{tile(3), mem(reg.RDI, reg.RDX, 1, 0)}},
		{"c4827a4ba40400040000", "TILESTORED TMM4, 1024(R12)(R8*1)", "TILESTORED", []operand.Op{tile(4), mem(reg.R12, reg.R8, 1, 1024)}},
		{"c4e26b5ec1", "TDPBSSD TMM2, TMM1, TMM0", "TDPBSSD", []operand.Op{tile(2), tile(1), tile(0)}},
		{"c4e2435eee", "TDPBSSD TMM7, TMM6, TMM5", "TDPBSSD", []operand.Op{tile(7), tile(6), tile(5)}},
	} {
		got, text, err := encodeTile(c.opcode, c.ops)
		if err != nil || fmt.Sprintf("%x", got) != c.want || text != c.text {
			t.Errorf("%s: %x %q %v, want %s %q", c.opcode, got, text, err, c.want, c.text)
		}
	}
	for _, bad := range []operand.Op{tile(8), operand.Mem{Disp: 1}, operand.Mem{Base: reg.StackPointer}, reg.RAX} {
		if code, _, err := encodeTile("TILEZERO", []operand.Op{bad}); err == nil {
			t.Errorf("%s encoded as %x", bad.Asm(), code)
		}
	}
}
