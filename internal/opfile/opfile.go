// Package opfile reads files that hold one call of an op as JSON: operands, attributes and, if somebody knows them, the
// expected outputs. It runs the call through package ops and compares.
//
// Three kinds of file are read. A file whose op_type is an op's own name and whose operands have the names of the op's
// record is a call of that record. A file in the words of ONNX, vLLM or ggml (op_type MatMul, rmsnorm, soft_max ...) goes
// through an adapter, which says it in one or several calls of ops. Tables of block formats, of small floats and of
// sampling rules are forms of their own; see forms.go.
package opfile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opmux/opmux/registry"
)

// Conditions that this package's errors wrap; test them with errors.Is. Errors of ops pass through.
var (
	ErrFormat   = errors.New("malformed operand file")
	ErrTooLarge = errors.New("too large")
	ErrNoOp     = errors.New("no op serves it")      // by type, format or operand dtype
	ErrRoute    = errors.New("op cannot express it") // another op serves the file
	ErrMismatch = errors.New("not the expected output")
)

// Error says what is wrong with a file and where.
type Error struct {
	Where string // operand, attribute or field, "" for the file as a whole
	Msg   string
	Kind  error // one of the conditions above
}

// Error returns "where: message (kind)".
func (e *Error) Error() string {
	where := ""
	if e.Where != "" {
		where = e.Where + ": "
	}
	return fmt.Sprintf("operand file: %s%s (%v)", where, e.Msg, e.Kind)
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

func errorf(kind error, where, format string, args ...any) error {
	return &Error{where, fmt.Sprintf(format, args...), kind}
}

// Tolerance admits |got - want| <= Atol + Rtol·|want|.
type Tolerance struct{ Atol, Rtol float64 }

// File is one call of an op.
type File struct {
	Name    string   // as the file says
	Type    string   // op_type, or what stands for it in the other forms
	Inputs  []Tensor // operands, inout ones too
	Outputs []Tensor // expected results; one without data says only dtype and shape
	Opset   int      // ONNX: version of the operator set, 0 if the file does not say

	tolerance *Tolerance
	attrs     map[string]any // numbers are json.Number
	facts     map[string]any // sampling rules: the inputs object
	size      int64          // of the JSON text
	routes    []route
}

// route is one way to run a file: the op that it exercises, and the calls.
type route struct {
	op  registry.Op // 0: functions of package tensor
	run func(*run)
}

// Routes lists the ops that the file can be run with, the first is the usual one. It is empty for a type without an op.
// Not every route can express every file: Run says so with ErrRoute. Op 0 stands for the conversions of package tensor.
func (f *File) Routes() []registry.Op {
	var ops []registry.Op
	for _, r := range f.routes {
		ops = append(ops, r.op)
	}
	return ops
}

// Route finds the position in Routes of the first route that name means: the file's type, or an op's name or alias.
// ErrRoute if the op is another one, registry.ErrUnknownOp if there is no such op.
func (f *File) Route(name string) (int, error) {
	if len(f.routes) == 0 {
		return 0, errorf(ErrNoOp, f.Name, "type %q", f.Type)
	}
	if name == f.Type {
		return 0, nil
	}
	op, known := registry.Lookup(name)
	if !known {
		return 0, fmt.Errorf("%q: %w", name, registry.ErrUnknownOp)
	}
	var names []string
	for i, r := range f.routes {
		if r.op == op {
			return i, nil
		}
		names = append(names, r.op.String())
	}
	return 0, errorf(ErrRoute, f.Name, "%s for a file of type %s, which %s serves", name, f.Type, strings.Join(names, ", "))
}
