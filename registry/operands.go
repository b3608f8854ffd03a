package registry

import (
	"bytes"
	"fmt"
	"strings"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// visible reports whether the CPU can see every operand of a record.
func visible(operands []Operand, h *Header) bool {
	for i := range operands {
		x := (*tensor.Tensor)(unsafe.Add(unsafe.Pointer(h), operands[i].Offset))
		if x.Present() && x.Host == nil && x.Numel() != 0 {
			return false
		}
	}
	return true
}

// shapes lists the operands of a call with their dtypes and extents.
func shapes(operands []Operand, h *Header) string {
	var b strings.Builder
	for i := range operands {
		x := (*tensor.Tensor)(unsafe.Add(unsafe.Pointer(h), operands[i].Offset))
		if !x.Present() {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, operands[i].Name, " ", x.DType, " ", x.Shape[:x.Rank])
	}
	return b.String()
}

// outputs are copies of a call's contiguous outputs in CPU-visible memory.
type outputs []output

type output struct {
	name      string
	now, then []byte
}

func copyOutputs(operands []Operand, h *Header) (list outputs) {
	for i := range operands {
		x := (*tensor.Tensor)(unsafe.Add(unsafe.Pointer(h), operands[i].Offset))
		if operands[i].Role == In || !x.Present() {
			continue
		}
		if now := tensor.Slice[uint8](x); now != nil {
			list = append(list, output{operands[i].Name, now, bytes.Clone(now)})
		}
	}
	return list
}

// changed names an output that differs from its copy, "" if none does.
func (o outputs) changed() string {
	for _, x := range o {
		if !bytes.Equal(x.now, x.then) {
			return x.name
		}
	}
	return ""
}
