package ops

import (
	"errors"
	"strings"
)

// Kinds of rejection. Every *OpError wraps one; test it with errors.Is.
var (
	ErrRank   = errors.New("wrong rank")
	ErrShape  = errors.New("wrong shape")
	ErrDType  = errors.New("wrong dtype")
	ErrLayout = errors.New("wrong layout") // strides, storage layout, alignment, or no address for elements that exist
	ErrDevice = errors.New("wrong device")
	ErrAttr   = errors.New("bad attribute")
	ErrValue  = errors.New("bad value") // data inside a tensor; found by kernels, not by validators
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
