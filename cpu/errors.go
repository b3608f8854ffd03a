package cpu

import (
	"fmt"

	"github.com/opmux/opmux/ops"
)

// badValue is the error of a value inside a tensor that an op does not take.
func badValue(op, operand, format string, args ...any) error {
	return &ops.OpError{Op: op, Kind: ops.ErrValue, Operand: operand, Msg: fmt.Sprintf(format, args...)}
}
