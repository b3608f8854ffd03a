package registry

import (
	"fmt"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// Accept is a static table of the calls that a kernel takes, checked before the kernel is called, so that a common
// decline costs no call. Operands are named as in the op's descriptor; absent optional operands are not checked.
type Accept struct {
	// Types lists admitted combinations of dtypes; a call must match one of them in every operand it names. Empty: any.
	Types []map[string]tensor.DType
	// Operands holds conditions by operand name.
	Operands map[string]AcceptOperand
}

// AcceptOperand is what a kernel demands of one operand; zero fields demand nothing.
type AcceptOperand struct {
	DTypes      []tensor.DType  // one of these
	Layouts     []tensor.Layout // one of these
	Contiguous  bool
	Align       int64 // of the address (or of the offset in its buffer), a power of two
	LastMod     int64 // the last extent is a multiple of this
	MaxElements int64
}

// outsideTable is a refusal's detail where the table, and not the kernel, declined.
const outsideTable = "outside of its accept table"

type acceptProg struct {
	offs   []uintptr        // operands that type combinations look at
	tuples [][]tensor.DType // one dtype per offs, None: any
	ops    []acceptOp
}

type acceptOp struct {
	off     uintptr
	dtypes  uint64 // bit per DType
	layouts uint64 // bit per Layout
	AcceptOperand
}

// compile resolves operand names to offsets in the record. A nil table gives nil.
func (a *Accept) compile(d *Descriptor) (*acceptProg, error) {
	if a == nil {
		return nil, nil
	}
	offset := func(name string) (uintptr, error) {
		for _, o := range d.operands() {
			if o.Name == name {
				return o.Offset, nil
			}
		}
		return 0, fmt.Errorf("registry: accept table of %s: no operand %q: %w", d.Name, name, ErrArgument)
	}
	p := &acceptProg{}
	col := map[string]int{}
	for _, t := range a.Types {
		for name := range t {
			if _, ok := col[name]; !ok {
				off, err := offset(name)
				if err != nil {
					return nil, err
				}
				col[name] = len(p.offs)
				p.offs = append(p.offs, off)
			}
		}
	}
	for _, t := range a.Types {
		row := make([]tensor.DType, len(p.offs))
		for name, dt := range t {
			row[col[name]] = dt
		}
		p.tuples = append(p.tuples, row)
	}
	for name, o := range a.Operands {
		off, err := offset(name)
		if err != nil {
			return nil, err
		}
		if o.Align < 0 || o.Align&(o.Align-1) != 0 || o.LastMod < 0 || o.MaxElements < 0 {
			return nil, fmt.Errorf("registry: accept table of %s: operand %s: %+v: %w", d.Name, name, o, ErrArgument)
		}
		op := acceptOp{off: off, AcceptOperand: o}
		for _, t := range o.DTypes {
			if !t.Valid() {
				return nil, fmt.Errorf("registry: accept table of %s: operand %s: %v: %w", d.Name, name, t, ErrArgument)
			}
			op.dtypes |= 1 << t
		}
		for _, l := range o.Layouts {
			if l >= 64 {
				return nil, fmt.Errorf("registry: accept table of %s: operand %s: %v: %w", d.Name, name, l, ErrArgument)
			}
			op.layouts |= 1 << l
		}
		p.ops = append(p.ops, op)
	}
	return p, nil
}

// check returns ReasonNone if the record at args passes.
func (p *acceptProg) check(args unsafe.Pointer) Reason {
	for i := range p.ops {
		o := &p.ops[i]
		x := (*tensor.Tensor)(unsafe.Add(args, o.off))
		if !x.Present() {
			continue
		}
		switch {
		case o.dtypes != 0 && o.dtypes&(1<<x.DType) == 0:
			return ReasonDType
		case o.layouts != 0 && o.layouts&(1<<x.Layout) == 0:
			return ReasonLayout
		case o.Contiguous && !x.Contiguous():
			return ReasonStride
		case o.Align > 1 && address(x)&uint64(o.Align-1) != 0:
			return ReasonAlignment
		case o.LastMod > 1 && x.Last()%o.LastMod != 0:
			return ReasonShape
		case o.MaxElements > 0 && (x.Numel() > o.MaxElements || x.Numel() < 0):
			return ReasonShape
		}
	}
	if len(p.tuples) == 0 {
		return ReasonNone
	}
next:
	for _, row := range p.tuples {
		for i, want := range row {
			x := (*tensor.Tensor)(unsafe.Add(args, p.offs[i]))
			if want != tensor.None && x.Present() && x.DType != want {
				continue next
			}
		}
		return ReasonNone
	}
	return ReasonDType
}

// address is where x starts for the purpose of alignment.
func address(x *tensor.Tensor) uint64 {
	switch {
	case x.DevAddr != 0:
		return x.DevAddr
	case x.Buffer != 0:
		return uint64(x.Offset)
	}
	return uint64(uintptr(x.Host))
}
