package bench

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// maxCopies bounds the sets of operands of one case.
const maxCopies = 1 << 14

// operands are sets of one call's operands in device memory, one behind the other, and the one record that points to
// any of them. A record that stays where it is costs a launch nothing; one for each set would be cold as the operands
// are.
type operands struct {
	record reflect.Value // pointer to the record
	list   []placed
	stride int64 // bytes from a set to the next
	copies int
	step   int   // see set
	bytes  int64 // of a set

	dq      device.Queue
	buffers []device.Buffer
	restore []int // operands of list that a launch changes
}

// placed is one operand.
type placed struct {
	name  string
	x     *tensor.Tensor // in the record
	first tensor.Tensor  // in set 0
	state tensor.Tensor  // what it is copied from
}

// operandAlign keeps every operand of every set as a buffer of its own would be.
const operandAlign = 64

// newOperands copies the operands of args into device memory, as many sets as together have want bytes, at least one
// and at most most. Weights are packed as the device likes them unless plain is set.
func newOperands(dev device.Device, dq device.Queue, args *sample.Args, plain bool, want int64, most int) (o *operands, err error) {
	d := args.Descriptor()
	o = &operands{record: reflect.New(d.Record), dq: dq}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	o.record.Elem().Set(reflect.NewAt(d.Record, args.Record()).Elem())
	packer, _ := dev.(device.WeightPacker)
	var offsets []int64
	for i := range d.Operands {
		op := &d.Operands[i]
		x := (*tensor.Tensor)(unsafe.Add(o.record.UnsafePointer(), op.Offset))
		if !x.Present() {
			continue
		}
		src := *x
		if packer != nil && !plain && strings.HasSuffix(op.Layout, " lane16") && x.Layout == tensor.Strided {
			packed, buf, err := packer.PackWeight([]tensor.Tensor{src}, nil)
			if err != nil {
				return nil, fmt.Errorf("operand %s: %w", op.Name, err)
			}
			defer buf.Close()
			src = packed
		}
		n, err := src.Bytes()
		if err != nil {
			return nil, fmt.Errorf("operand %s: %w", op.Name, err)
		}
		offsets = append(offsets, o.stride)
		o.bytes += n
		o.stride += (n + operandAlign - 1) &^ (operandAlign - 1)
		if op.Role == registry.InOut {
			o.restore = append(o.restore, len(o.list))
		}
		o.list = append(o.list, placed{name: op.Name, x: x, first: src, state: src})
	}
	o.stride = max(o.stride, operandAlign)
	o.copies = int(min(max((want-1)/o.stride+1, 1), int64(max(most, 1))))
	o.step = coprime(o.copies)
	arena, err := dev.Alloc(o.stride * int64(o.copies))
	if err != nil {
		return nil, err
	}
	o.buffers = append(o.buffers, arena)
	for i := range o.list {
		p := &o.list[i]
		base, err := arena.Tensor(offsets[i], tensor.U8)
		if err != nil {
			return nil, err
		}
		p.first.Host, p.first.Buffer, p.first.Offset, p.first.DevAddr, p.first.Device = base.Host, base.Buffer, base.Offset, base.DevAddr, base.Device
		*p.x = p.first
		for set := range o.copies {
			if err := o.reset(p, set); err != nil {
				return nil, err
			}
		}
	}
	return o, nil
}

// reset gives an operand of a set its first state.
func (o *operands) reset(p *placed, set int) error {
	dst := p.first
	o.move(&dst, p, set)
	return o.dq.Copy(&dst, &p.state)
}

// move makes x, which is like p, lie where p does in a set.
func (o *operands) move(x *tensor.Tensor, p *placed, set int) {
	shift := int64(set) * o.stride
	if p.first.Host != nil {
		x.Host = unsafe.Add(p.first.Host, shift)
	}
	if p.first.Buffer != 0 {
		x.Offset = p.first.Offset + shift
	}
	if p.first.DevAddr != 0 {
		x.DevAddr = p.first.DevAddr + uint64(shift)
	}
}

// set returns the set that turn i takes: far from the one before, which a processor would have read ahead, and each as
// often as any other.
func (o *operands) set(i int) int { return i * o.step % o.copies }

// coprime returns a number below n that has no divisor in common with it, about 0.62·n; 0 for 1.
func coprime(n int) int {
	step := int(0.618 * float64(n))
	for ; step > 1; step-- {
		a, b := n, step
		for b != 0 {
			a, b = b, a%b
		}
		if a == 1 {
			break
		}
	}
	return step
}

// point makes the record's operands those of turn i.
func (o *operands) point(i int) unsafe.Pointer {
	set := o.set(i)
	for i := range o.list {
		p := &o.list[i]
		o.move(p.x, p, set)
	}
	return o.record.UnsafePointer()
}

// renew gives the operands that launches have changed in n turns from first on their first state.
func (o *operands) renew(first, n int) error {
	for _, i := range o.restore {
		for s := range min(n, o.copies) {
			if err := o.reset(&o.list[i], o.set(first+s)); err != nil {
				return err
			}
		}
	}
	return nil
}

// mutates reports whether a launch changes what it reads.
func (o *operands) mutates() bool { return len(o.restore) > 0 }

func (o *operands) close() (err error) {
	for _, b := range o.buffers {
		err = errors.Join(err, b.Close())
	}
	o.buffers = nil
	return err
}
