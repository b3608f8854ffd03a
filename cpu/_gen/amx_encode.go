package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tile is the number of one of the eight tile registers of AMX. To avo it is a
// constant: its allocator has no part in tiles.
type tile = operand.U8

// The tile instructions, operands in the order of Go's assembler, which does not
// know them, nor does avo. They are symbolic until general registers are
// allocated; then encodeTiles turns them into bytes.

func (k *kit) ldtilecfg(m operand.Mem)          { k.tileInstruction("LDTILECFG", m) }
func (k *kit) tilerelease()                     { k.tileInstruction("TILERELEASE") }
func (k *kit) tilezero(t tile)                  { k.tileInstruction("TILEZERO", t) }
func (k *kit) tileloadd(m operand.Mem, t tile)  { k.tileInstruction("TILELOADD", m, t) }
func (k *kit) tilestored(t tile, m operand.Mem) { k.tileInstruction("TILESTORED", t, m) }

// tdpbssd adds to the words of acc the products of the signed bytes of a, in its
// rows, and of b, four of a column in each word.
func (k *kit) tdpbssd(b, a, acc tile) { k.tileInstruction("TDPBSSD", b, a, acc) }

func (k *kit) tileInstruction(opcode string, ops ...operand.Op) {
	i := &ir.Instruction{Opcode: opcode, Operands: ops, ISA: []string{"AMX-INT8"}}
	for _, o := range ops {
		if m, ok := o.(operand.Mem); ok {
			i.Inputs = append(i.Inputs, m)
		}
	}
	k.Instruction(i)
}

// tileOpcodes has the mandatory prefix, as VEX numbers it, and the opcode.
var tileOpcodes = map[string]struct{ prefix, opcode byte }{
	"LDTILECFG":   {0, 0x49},
	"TILERELEASE": {0, 0x49},
	"TILEZERO":    {3, 0x49},
	"TILELOADD":   {3, 0x4b},
	"TILESTORED":  {2, 0x4b},
	"TDPBSSD":     {3, 0x5e},
}

// encodeTiles replaces the tile instructions of f, whose general registers are
// allocated, by their bytes, with a comment that says what they are.
func encodeTiles(f *ir.File) error {
	for _, fn := range f.Functions() {
		var nodes []ir.Node
		for _, n := range fn.Nodes {
			i, ok := n.(*ir.Instruction)
			if !ok || !isTile(i) {
				nodes = append(nodes, n)
				continue
			}
			b, text, err := encodeTile(i.Opcode, i.Operands)
			if err != nil {
				return fmt.Errorf("%s: %w", fn.Name, err)
			}
			nodes = append(nodes, ir.NewComment(text))
			for _, v := range b {
				nodes = append(nodes, &ir.Instruction{Opcode: "BYTE", Operands: []operand.Op{operand.U8(v)}})
			}
		}
		fn.Nodes = nodes
	}
	return nil
}

func isTile(i *ir.Instruction) bool {
	_, ok := tileOpcodes[i.Opcode]
	return ok
}

// encodeTile encodes one instruction: three bytes of VEX, the opcode, ModRM with
// the first register, and for a memory operand always a displacement of four
// bytes. Tiles come destination last; VEX has them destination first.
func encodeTile(opcode string, ops []operand.Op) (code []byte, text string, err error) {
	var regs [3]byte // ModRM.reg, ModRM.rm, VEX.vvvv
	var mem *operand.Mem
	n := 0
	text = opcode
	for i := len(ops) - 1; i >= 0; i-- {
		switch o := ops[i].(type) {
		case tile:
			if o > 7 || n == len(regs) {
				return nil, "", fmt.Errorf("%s with tile %d", opcode, o)
			}
			regs[n] = byte(o)
			n++
		case operand.Mem:
			mem = &o
		default:
			return nil, "", fmt.Errorf("%s of a %T", opcode, o)
		}
	}
	for i, o := range ops {
		text += [2]string{" ", ", "}[min(i, 1)]
		if t, ok := o.(tile); ok {
			text += fmt.Sprintf("TMM%d", uint8(t))
		} else {
			text += o.Asm()
		}
	}
	op := tileOpcodes[opcode]
	vex := func(x, b byte) []byte { // high bits of index and base
		return []byte{0xc4, 1<<7 | (x^1)<<6 | (b^1)<<5 | 2, (regs[2]^15)<<3 | op.prefix, op.opcode}
	}
	if mem == nil {
		return append(vex(0, 0), 3<<6|regs[0]<<3|regs[1]), text, nil
	}
	if mem.Base == nil || mem.Base.Kind() != reg.KindGP || mem.Symbol.Name != "" {
		return nil, "", fmt.Errorf("%s of %s, which has no base register", opcode, mem.Asm())
	}
	base, index, scale := number(mem.Base), byte(4), byte(0) // 4: no index
	if mem.Index != nil {
		index, scale = number(mem.Index), mem.Scale>>1-mem.Scale>>3 // 1, 2, 4, 8: 0 to 3
	}
	disp := uint32(int32(mem.Disp))
	code = append(vex(index>>3, base>>3), 2<<6|regs[0]<<3|4, scale<<6|index&7<<3|base&7)
	return append(code, byte(disp), byte(disp>>8), byte(disp>>16), byte(disp>>24)), text, nil
}

// number is how an allocated general register is encoded.
func number(r reg.Register) byte { return byte(reg.ToPhysical(r).PhysicalIndex()) }
