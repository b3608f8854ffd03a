package cpu

import (
	"fmt"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops"
)

// badValue is the error of a value inside a tensor that an op does not take.
func badValue(op, operand, format string, args ...any) error {
	return &ops.OpError{Op: op, Kind: ops.ErrValue, Operand: operand, Msg: fmt.Sprintf(format, args...)}
}

// tooLarge says that a copy of m rows of k numbers has no room in an address space.
func tooLarge(m int, k int64) error {
	return fmt.Errorf("cpu: workspace of %d rows of %d: %w", m, k, device.ErrOutOfMemory)
}
