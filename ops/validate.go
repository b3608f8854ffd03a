package ops

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// bindings holds the values of a call's shape symbols.
type bindings struct {
	known uint32
	val   [maxSymbols]int64
}

// at returns operand o of the record at args.
func (o *operand) at(args unsafe.Pointer) *tensor.Tensor {
	return (*tensor.Tensor)(unsafe.Add(args, o.Offset))
}

// validate checks the record at args for a call on dev: every operand by its tags, then what the op's own check adds.
func (c *core) validate(args unsafe.Pointer, dev tensor.Device) error {
	if args == nil {
		return fmt.Errorf("%s: record: %w", c.desc.Name, registry.ErrNil)
	}
	s := c.spec()
	var b bindings
	for _, o := range s.operands {
		x := o.at(args)
		if x.DType == tensor.None {
			if o.Optional {
				continue
			}
			return c.errorf(ErrDType, o.Name, "operand is absent")
		}
		if err := c.checkOperand(s, o, x, args, dev, &b); err != nil {
			return err
		}
	}
	if c.check != nil {
		if err := c.check(args); err != nil {
			err.Op = c.name
			return err
		}
	}
	return nil
}

func (c *core) checkOperand(s *spec, o *operand, x *tensor.Tensor, args unsafe.Pointer, dev tensor.Device, b *bindings) error {
	if x.Device != dev {
		return c.deviceError(o, x, dev)
	}
	if x.DType >= 64 || o.dtypes>>x.DType&1 == 0 {
		// A missing model is reported when its turn comes.
		if y := o.likeDType; y == nil || !x.DType.Valid() || x.DType != y.at(args).DType && y.at(args).Present() {
			return c.dtypeError(o, x, args)
		}
	}
	if x.Rank == 0 || x.Rank > tensor.MaxRank {
		return c.rankError(o, x)
	}

	// Extents: none negative, the byte count inside int64.
	blockElems, blockBytes := x.DType.Block()
	n, empty, over := uint64(1), false, false
	for _, d := range x.Dims() {
		if d < 0 {
			return c.errorf(ErrShape, o.Name, "negative extent in %v", x.Dims())
		}
		empty = empty || d == 0
		hi, lo := bits.Mul64(n, uint64(max(d, 1)))
		over = over || hi != 0
		n = lo
	}
	if hi, lo := bits.Mul64(n, uint64(blockBytes)); over || hi != 0 || lo > 1<<62 {
		return c.errorf(ErrShape, o.Name, "size of %v overflows", x.Dims())
	}
	if blockElems > 1 && x.Last()%int64(blockElems) != 0 {
		return c.errorf(ErrShape, o.Name, "last extent of %v is not whole %v blocks of %d", x.Dims(), x.DType, blockElems)
	}

	switch {
	case o.anyShape:
	case o.likeShape != nil:
		y := o.likeShape.at(args)
		if !y.Present() {
			break
		}
		if x.Rank != y.Rank {
			return c.errorf(ErrRank, o.Name, "rank is %d, that of %s is %d", x.Rank, o.likeShape.Name, y.Rank)
		}
		if x.Shape != y.Shape {
			for i, d := range x.Dims() {
				if d != y.Shape[i] {
					return c.errorf(ErrShape, o.Name, "shape is %v, that of %s is %v", x.Dims(), o.likeShape.Name, y.Dims())
				}
			}
		}
	default:
		if err := c.unify(s, o, x, b); err != nil {
			return err
		}
	}

	if err := c.checkLayout(o, x, empty); err != nil {
		return err
	}
	if !empty {
		return c.checkAddress(o, x)
	}
	return nil
}

// unify matches x's extents with the form of its rank and binds symbols that are new.
func (c *core) unify(s *spec, o *operand, x *tensor.Tensor, b *bindings) error {
	for _, form := range o.forms {
		if len(form) != int(x.Rank) {
			continue
		}
		for i, e := range form {
			want := e.add
			if e.sym >= 0 {
				if b.known>>e.sym&1 == 0 {
					if x.Shape[i] < e.add {
						return c.errorf(ErrShape, o.Name, "extent %d of %v is below %d", i, x.Dims(), e.add)
					}
					b.known |= 1 << e.sym
					b.val[e.sym] = x.Shape[i] - e.add
					continue
				}
				want += b.val[e.sym]
			}
			if x.Shape[i] != want {
				return c.errorf(ErrShape, o.Name, "extent %d of %v is not the %d that [%s] asks for", i, x.Dims(), want, s.formString(form))
			}
		}
		return nil
	}
	return c.rankError(o, x)
}

func (c *core) checkLayout(o *operand, x *tensor.Tensor, empty bool) error {
	if x.Layout != tensor.Strided {
		if x.Layout == tensor.Lane16 && o.lane16 {
			return nil // strides have no meaning here
		}
		return c.layoutError(o, x)
	}
	if x.DType.IsBlock() {
		return nil // rows of whole blocks, packed; strides have no meaning
	}
	r := int(x.Rank)
	span := uint64(0) // elements from the first to the last one
	for d := range r {
		if x.Stride[d] < 0 {
			return c.errorf(ErrLayout, o.Name, "negative stride in %v", x.Stride[:r])
		}
		if o.rule != contig && x.Shape[d] > 1 {
			hi, lo := bits.Mul64(uint64(x.Shape[d]-1), uint64(x.Stride[d]))
			if span += lo; hi != 0 || span > 1<<59 {
				return c.errorf(ErrLayout, o.Name, "strides %v of shape %v overflow", x.Stride[:r], x.Dims())
			}
		}
	}
	if empty {
		return nil
	}
	ok := true
	switch o.rule {
	case contig:
		ok = x.InnerPacked(0)
	case rows:
		ok = x.InnerPacked(1) && (x.Shape[0] <= 1 || x.Stride[0] >= x.Shape[1])
	case inner1:
		ok = x.InnerPacked(r - 1)
	case innerRows:
		inner := int64(1)
		for _, d := range x.Dims()[1:] {
			inner *= d
		}
		ok = x.InnerPacked(1) && (x.Shape[0] <= 1 || x.Stride[0] >= inner)
	case pages:
		ok = x.InnerPacked(max(r-2, 0))
	}
	if !ok {
		return c.layoutError(o, x)
	}
	return nil
}

// checkAddress wants memory behind an operand that has elements, aligned to the element. Blocks may start at any byte.
func (c *core) checkAddress(o *operand, x *tensor.Tensor) error {
	mask := uint64(max(x.DType.Size(), 1) - 1)
	low := uint64(uintptr(x.Host))
	if x.Device.Kind == tensor.CPU {
		if x.Host == nil {
			return c.errorf(ErrLayout, o.Name, "no memory behind %v %v", x.DType, x.Dims())
		}
	} else {
		if x.Host == nil && x.Buffer == 0 && x.DevAddr == 0 {
			return c.errorf(ErrLayout, o.Name, "neither buffer nor address behind %v %v", x.DType, x.Dims())
		}
		if x.Offset < 0 {
			return c.errorf(ErrLayout, o.Name, "negative offset %d", x.Offset)
		}
		low |= x.DevAddr | uint64(x.Offset)
	}
	if low&mask != 0 {
		return c.errorf(ErrLayout, o.Name, "address is not aligned to the %d bytes of %v", mask+1, x.DType)
	}
	return nil
}

// idle reports whether the validated call at args has nothing to do: all its outputs are empty.
func (c *core) idle(args unsafe.Pointer) bool {
	if c.noop != nil && c.noop(args) {
		return true
	}
	for _, o := range c.spec().outs {
		if x := o.at(args); x.DType != tensor.None && !hasZero(x) {
			return false
		}
	}
	return true
}

func hasZero(x *tensor.Tensor) bool {
	for _, d := range x.Dims() {
		if d == 0 {
			return true
		}
	}
	return false
}

// errorf builds the error of a rejected call. It is kept out of line so that the path of an accepted call stays short.
//
//go:noinline
func (c *core) errorf(kind error, operand, format string, args ...any) error {
	return &OpError{Op: c.name, Kind: kind, Operand: operand, Msg: fmt.Sprintf(format, args...)}
}

func (c *core) deviceError(o *operand, x *tensor.Tensor, dev tensor.Device) error {
	return c.errorf(ErrDevice, o.Name, "lies on %v, the queue is %v's", x.Device, dev)
}

func (c *core) dtypeError(o *operand, x *tensor.Tensor, args unsafe.Pointer) error {
	if o.likeDType != nil {
		return c.errorf(ErrDType, o.Name, "dtype is %v, that of %s is %v", x.DType, o.likeDType.Name, o.likeDType.at(args).DType)
	}
	return c.errorf(ErrDType, o.Name, "dtype is %v, want %s", x.DType, o.DType)
}

func (c *core) rankError(o *operand, x *tensor.Tensor) error {
	return c.errorf(ErrRank, o.Name, "rank is %d, want [%s]", x.Rank, o.Shape)
}

func (c *core) layoutError(o *operand, x *tensor.Tensor) error {
	return c.errorf(ErrLayout, o.Name, "%v with strides %v and shape %v is not %s",
		x.Layout, x.Stride[:x.Rank], x.Dims(), o.Layout)
}
