package registry

import (
	"reflect"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// Op identifies an operation. Ids of the catalogue are constants of package ops; Define issues ids from FirstDefined on.
type Op uint32

// FirstDefined is the first id that Registry.Define issues; lower ids belong to the catalogue.
const FirstDefined Op = 1024

// CallFlags modify one launch.
type CallFlags uint16

// Flags of a record's header.
const (
	FlagStrict        CallFlags = 1 << iota // fail instead of falling back to the next kernel or to a borrowed one
	FlagDeterministic                       // same bits on every run
)

// Header is the first field of every argument record. The zero value is right for a call; the dispatcher fills the out
// area. Field order is the C ABI's (opmux_call).
type Header struct {
	Size    uint32    // of the whole record; filled by native for C kernels
	Version uint16    // of the record's layout
	Flags   CallFlags // in
	Op      Op
	_       uint32
	Queue   uint64 // native queue handle; filled by native for C kernels
	Status  Status // out: what the kernel that ended the walk returned
	Err     error  // out: the cause of a failure (C: pointer and length of a text)
}

// Fail stores err as the cause and returns a failed status after which nothing was enqueued or written.
func (h *Header) Fail(err error) Status {
	h.Err = err
	return Failure(0).NothingEnqueued()
}

// FailDirty stores err as the cause and returns a failed status after which outputs may be partly written.
func (h *Header) FailDirty(err error) Status {
	h.Err = err
	return Failure(0)
}

// Launcher is the one type-erased shape of every kernel: run the call whose argument record lies at args on queue q.
// The record starts with a Header and has the type that the op's descriptor names. Nothing stands between a launcher and
// its caller: a panic in one unwinds through Launch, and ends the process unless the caller recovers.
type Launcher func(q *Queue, args unsafe.Pointer) Status

// Role says what a kernel does with an operand.
type Role uint8

// Roles of an operand.
const (
	In Role = iota
	Out
	InOut
)

// String returns "in", "out" or "inout".
func (r Role) String() string { return [...]string{"in", "out", "inout"}[min(r, InOut)] }

// Operand describes one tensor of a record.
type Operand struct {
	Name     string  `json:"name"`
	Role     Role    `json:"role"`
	Optional bool    `json:"optional,omitempty"`
	Shape    string  `json:"shape"`  // symbols, as in the catalogue: "T,H"
	DType    string  `json:"dtype"`  // a class ("float", "outfloat") or a list of names
	Layout   string  `json:"layout"` // contig, rows, inner1 ...
	Offset   uintptr `json:"-"`      // of the tensor.Tensor inside the record
}

// Descriptor says what an op is: its names, its record and its contract. It does not change once given to Describe or Define.
type Descriptor struct {
	Op       Op           `json:"op"`
	Name     string       `json:"name"`
	Aliases  []string     `json:"aliases,omitempty"`
	Family   string       `json:"family"`
	Mode     string       `json:"mode"`
	Doc      string       `json:"doc"` // one sentence
	Record   reflect.Type `json:"-"`   // struct whose first field is Header
	Operands []Operand    `json:"operands"`
	// Roles are the operands that a format signature names, in sorted order; Traits is the schema of the op's calls;
	// Operators are further names of the vocabulary family.mode. LoadSchema gives the three when Roles is nil, as Load
	// does for Operands.
	Roles      []string        `json:"roles,omitempty"`
	Traits     []TraitDef      `json:"traits,omitempty"`
	Operators  []OperatorAlias `json:"operators,omitempty"`
	LoadSchema func() *Schema  `json:"-"`
	// Load gives the operands when Operands is nil, so that an op can be described at start-up before anything about
	// it was worked out. It must always return the same slice. Copies that the registry hands out have Operands filled.
	Load func() []Operand `json:"-"`
	// Validate checks the metadata of a record for a call on device dev; it reads no tensor data and allocates only
	// for an error. Every launch that comes in through an op's entry point passes it first.
	Validate func(args unsafe.Pointer, dev tensor.Device) error `json:"-"`
}

// Schema is what a descriptor says for selection; see Descriptor.
type Schema struct {
	Roles     []string
	Traits    []TraitDef
	Operators []OperatorAlias
	// Signatures lists all that calls of the op can have, the same slice each time; nil where that is not known.
	Signatures func() []tensor.FormatSignature
}

// schema returns the schema, loaded if need be. It may be empty, never nil.
func (d *Descriptor) schema() *Schema {
	if d.Roles == nil && d.LoadSchema != nil {
		return d.LoadSchema()
	}
	return &Schema{Roles: d.Roles, Traits: d.Traits, Operators: d.Operators}
}

// operands returns the operands, loaded if need be.
func (d *Descriptor) operands() []Operand {
	if d.Operands == nil && d.Load != nil {
		return d.Load()
	}
	return d.Operands
}

// filled returns a copy of d with its operands.
func (d *Descriptor) filled() Descriptor {
	f := *d
	f.Operands = d.operands()
	s := d.schema()
	f.Roles, f.Traits, f.Operators = s.Roles, s.Traits, s.Operators
	return f
}
