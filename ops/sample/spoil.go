package sample

import (
	"bytes"
	"fmt"
	"math"

	"github.com/opmux/opmux/tensor"
)

// On moves the record's operands to dev, which must see host memory: the bytes stay where they are. It returns a.
func (a *Args) On(dev tensor.Device) *Args {
	a.c.Device = dev
	for i := range a.areas {
		if x := a.areas[i].x; x.Present() {
			x.Device = dev
		}
	}
	return a
}

// Load puts what New gave the operands of b where those of a lie, so that one record holds new data at the same addresses.
// It reports false, and does nothing, if the two are not of one case.
func (a *Args) Load(b *Args) bool {
	for i := range a.areas {
		if i >= len(b.areas) || (a.areas[i].mem == nil) != (b.areas[i].mem == nil) {
			return false
		}
		if m := a.areas[i].mem; m != nil && len(m.now) != len(b.areas[i].mem.now) {
			return false
		}
	}
	for i := range a.areas {
		if m := a.areas[i].mem; m != nil {
			m.orig = b.areas[i].mem.orig
			copy(m.now, m.orig)
		}
	}
	return true
}

// Spoiled is a call that an op's validator refuses.
type Spoiled struct {
	What string // "operand x: rank"
	*Args
}

// spoils are ways to break an operand that is present.
var spoils = []struct {
	name string
	do   func(x *tensor.Tensor)
}{
	{"dtype", func(x *tensor.Tensor) { x.DType = tensor.I16 }},
	{"rank", func(x *tensor.Tensor) { x.Rank = tensor.MaxRank }},
	{"extent", func(x *tensor.Tensor) { x.Shape[0] += 3 }},
	{"negative extent", func(x *tensor.Tensor) { x.Shape[0] = -1 }},
	{"extents beyond any memory", func(x *tensor.Tensor) { x.Shape[0] = math.MaxInt64 }},
	{"negative stride", func(x *tensor.Tensor) { x.Stride[0] = -x.Stride[0] - 1 }},
	{"layout", func(x *tensor.Tensor) { x.Layout = 63 }},
	{"no memory", func(x *tensor.Tensor) { x.Host, x.Buffer = nil, 0 }},
	{"device", func(x *tensor.Tensor) { x.Device.Index += 7 }},
	{"absent", func(x *tensor.Tensor) { *x = tensor.Tensor{} }},
}

// Spoiled lists copies of a call, each with one operand broken, as far as the op's validator refuses them.
func (a *Args) Spoiled() (list []Spoiled) {
	if a.desc.Validate == nil {
		return nil
	}
	for i := range a.areas {
		if !a.areas[i].x.Present() || a.areas[i].x.Numel() == 0 {
			continue
		}
		for _, s := range spoils {
			b := a.Clone()
			b.Reset()
			s.do(b.areas[i].x)
			if a.desc.Validate(b.Record(), a.c.Device) != nil {
				list = append(list, Spoiled{"operand " + a.areas[i].op.Name + ": " + s.name, b})
			}
		}
	}
	return list
}

// SameMemory returns an error that names the first operand whose memory, guards included, is not what New made it. Unlike
// Untouched it does not look at the record, which is broken.
func (s Spoiled) SameMemory() error {
	for i := range s.areas {
		if r := &s.areas[i]; r.mem != nil && !bytes.Equal(r.mem.now, r.mem.orig) {
			return fmt.Errorf("sample: %s %s: memory of operand %s was written", s.desc.Name, s.c.Name, r.op.Name)
		}
	}
	return nil
}
