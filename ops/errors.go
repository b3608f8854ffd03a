package ops

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Kinds of rejection. Every *OpError wraps one; test it with errors.Is.
var (
	ErrRank   = tensor.ErrRank
	ErrShape  = tensor.ErrShape
	ErrDType  = tensor.ErrDType  // also an absent operand
	ErrLayout = tensor.ErrLayout // strides, storage layout, alignment, or no address for elements that exist
	ErrDevice = errors.New("wrong device")
	ErrAttr   = errors.New("bad attribute")
	ErrValue  = errors.New("bad value") // data inside a tensor; found by kernels, not by validators

	// ErrNoKernel is the registry's: the call is valid, but no provider serves it.
	ErrNoKernel = registry.ErrNoKernel
)

// OpError says which operand or attribute of which op was rejected and why.
type OpError struct {
	Op      string // name of the op
	Kind    error  // one of ErrRank .. ErrValue
	Operand string // operand or attribute, "" for the call as a whole
	Msg     string // what is there and what is wanted
}

// Error returns "op: operand: message (kind)".
func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Operand != "" {
		b.WriteString(": " + e.Operand)
	}
	if e.Msg != "" {
		b.WriteString(": " + e.Msg)
	}
	if e.Kind != nil {
		b.WriteString(" (" + e.Kind.Error() + ")")
	}
	return b.String()
}

// Unwrap returns the kind.
func (e *OpError) Unwrap() error { return e.Kind }

// bad returns the error of a call that the op named later rejects.
func bad(kind error, operand, format string, args ...any) *OpError {
	return &OpError{Kind: kind, Operand: operand, Msg: fmt.Sprintf(format, args...)}
}

// finite, notNegative and positive check an attribute: no NaN, no infinity, and its sign.
func finite(name string, v float32) *OpError {
	return inRange(name, v, -math.MaxFloat32, "a finite number")
}

func notNegative(name string, v float32) *OpError { return inRange(name, v, 0, "finite and >= 0") }

func positive(name string, v float32) *OpError {
	return inRange(name, v, math.SmallestNonzeroFloat32, "finite and > 0")
}

func inRange(name string, v, low float32, want string) *OpError {
	if v >= low && v <= math.MaxFloat32 {
		return nil
	}
	return bad(ErrAttr, name, "%v is not %s", v, want)
}

// notNegativeInt is notNegative for whole numbers.
func notNegativeInt(name string, v int32) *OpError {
	if v >= 0 {
		return nil
	}
	return bad(ErrAttr, name, "%d is negative", v)
}

// first returns the first error, if any.
func first(errs ...*OpError) *OpError {
	for _, e := range errs {
		if e != nil {
			return e
		}
	}
	return nil
}
