package opfile

import (
	"errors"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Runner runs files on the CPU.
type Runner struct {
	Queue  *registry.Queue
	Packer device.WeightPacker // if not nil, weights are packed as this device likes them best
}

// Run runs the file by Routes()[route] and returns the outputs. Inputs stay as they are. Errors: ErrNoOp if no op takes
// the operands' dtypes, ErrRoute if this op cannot express the file, ErrFormat for operands and attributes that are
// missing, unknown or contradictory, ErrTooLarge for outputs out of proportion to the file, and those of ops.
func (rn Runner) Run(f *File, route int) (out []Tensor, err error) {
	if len(f.routes) == 0 {
		return nil, errorf(ErrNoOp, f.Name, "type %q", f.Type)
	}
	if route < 0 || route >= len(f.routes) {
		return nil, errorf(ErrRoute, f.Name, "route %d of %d", route, len(f.routes))
	}
	r := &run{Runner: rn, f: f, left: 4<<20 + 16*f.size, used: map[string]bool{},
		attrs: newAttrs("attributes", f.attrs), facts: newAttrs("inputs", f.facts)}
	defer func() {
		for _, b := range r.bufs {
			err = errors.Join(err, b.Close())
		}
		switch p := recover().(type) {
		case nil:
		case stop:
			out, err = nil, p.error
		default:
			panic(p)
		}
	}()
	f.routes[route].run(r)
	r.check(r.unread())
	return r.out, nil
}

// run is one run of a file: what adapters read from and write to. An adapter that cannot go on calls fail, which unwinds
// to Run.
type run struct {
	Runner
	f            *File
	attrs, facts *attrs
	left         int64           // bytes that may still be allocated
	used         map[string]bool // inputs that were read
	out          []Tensor
	bufs         []device.Buffer // of packed weights
}

// stop is what fail unwinds with.
type stop struct{ error }

func (r *run) fail(kind error, where, format string, args ...any) {
	panic(stop{errorf(kind, where, format, args...)})
}

// check fails with err unless it is nil.
func (r *run) check(err error) {
	if err != nil {
		panic(stop{err})
	}
}

// fits fails unless a tensor could be made or viewed.
func (r *run) fits(err error) {
	if err != nil {
		r.fail(ErrFormat, r.f.Name, "%v", err)
	}
}

// unread names inputs and attributes that the adapter has not read.
func (r *run) unread() error {
	for _, in := range r.f.Inputs {
		if !r.used[in.key] {
			return errorf(ErrFormat, in.Name, "no operand of %s", r.f.Type)
		}
	}
	return first(r.attrs.unread(), r.facts.unread())
}

// has reports whether the file has an input.
func (r *run) has(key string) bool { return r.find(key) != nil }

func (r *run) find(key string) *Tensor {
	for i := range r.f.Inputs {
		if r.f.Inputs[i].key == key {
			return &r.f.Inputs[i]
		}
	}
	return nil
}

// in returns an input, which must be there and have data. The caller must not write to it.
func (r *run) in(key string) tensor.Tensor {
	if t := r.find(key); t != nil && t.wide {
		r.fail(ErrNoOp, t.Name, "operand dtype %s", t.DType)
	}
	return r.held(key)
}

// held is in that also takes values of types that tensors lack, in the type that holds them.
func (r *run) held(key string) tensor.Tensor {
	t := r.find(key)
	if t == nil {
		r.fail(ErrFormat, key, "input is missing")
	}
	r.used[key] = true
	if t.Data.DType == tensor.None {
		r.fail(ErrNoOp, t.Name, "operand dtype %s", t.DType)
	}
	if t.Data.Host == nil {
		r.fail(ErrFormat, t.Name, "input without data")
	}
	return t.Data
}

// float is in for an operand that ops take as f32, f16 or bf16.
func (r *run) float(key string) tensor.Tensor {
	x := r.in(key)
	if !x.DType.IsFloat() {
		r.fail(ErrNoOp, r.find(key).Name, "operand dtype %v", x.DType)
	}
	return x
}

// f32 is float, widened.
func (r *run) f32(key string) tensor.Tensor { return r.cast(r.float(key), tensor.F32) }

// outFloat is float, widened if ops do not write the dtype.
func (r *run) outFloat(key string) tensor.Tensor {
	x := r.float(key)
	return r.cast(x, outFloat(x.DType))
}

// index is in for positions and row numbers, as i64.
func (r *run) index(key string) tensor.Tensor {
	x := r.in(key)
	if x.DType != tensor.I32 && x.DType != tensor.I64 {
		r.fail(ErrNoOp, r.find(key).Name, "operand dtype %v", x.DType)
	}
	return r.cast(x, tensor.I64)
}

// rank fails unless x, which is input key, has that rank.
func (r *run) rank(key string, x tensor.Tensor, want int) {
	if int(x.Rank) != want {
		r.fail(ErrFormat, r.find(key).Name, "shape %v, want rank %d", x.Dims(), want)
	}
}

// put adds an output, as dtype t.
func (r *run) put(key string, x tensor.Tensor, t tensor.DType) {
	name := key
	if want := r.f.expected(key); want != nil {
		name = want.Name
	}
	r.out = append(r.out, Tensor{Name: name, DType: t.String(), Data: r.cast(x, t), key: key})
}

// outFloat returns the dtype that an op writes for inputs of a float dtype.
func outFloat(t tensor.DType) tensor.DType {
	if t == tensor.F16 {
		return tensor.F32
	}
	return t
}

// alloc returns zeroed memory out of the run's allowance.
func (r *run) alloc(t tensor.DType, shape ...int64) tensor.Tensor {
	x, err := tensor.New(nil, t, shape...)
	r.fits(err)
	n, err := x.Bytes()
	r.fits(err)
	if r.left -= n; r.left < 0 {
		r.fail(ErrTooLarge, r.f.Name, "%v is out of proportion to a file of %d bytes", &x, r.f.size)
	}
	x, err = memory(t, shape...)
	r.fits(err)
	return x
}

// view is x with another shape.
func (r *run) view(x tensor.Tensor, shape ...int64) tensor.Tensor {
	v, err := x.View(shape...)
	r.fits(err)
	return v
}

// flat is x as rows of its last n dimensions.
func (r *run) flat(x tensor.Tensor, n int) tensor.Tensor {
	d := x.Dims()
	n = len(d) - min(n, len(d))
	return r.view(x, product(d[:n]), product(d[n:]))
}

func product(d []int64) int64 {
	n := int64(1)
	for _, v := range d {
		n *= v
	}
	return n
}

// cast returns x in another dtype, x itself if it has that already.
func (r *run) cast(x tensor.Tensor, t tensor.DType) tensor.Tensor {
	if x.DType == t {
		return x
	}
	y := r.alloc(t, x.Dims()...)
	for i := range int(x.Numel()) {
		if isWhole(t) {
			setInt(&y, i, atInt(&x, i))
		} else {
			set(&y, i, at(&x, i))
		}
	}
	return y
}

// pack copies a view of any strides into contiguous memory.
func (r *run) pack(v tensor.Tensor) tensor.Tensor {
	y := r.alloc(v.DType, v.Dims()...)
	size := int64(v.DType.Size())
	to := tensor.Slice[uint8](&y)
	var idx [tensor.MaxRank]int64
	for n := y.Numel(); n > 0; n-- {
		off := int64(0)
		for d := range v.Rank {
			off += idx[d] * v.Stride[d]
		}
		to = to[copy(to, unsafe.Slice((*byte)(unsafe.Add(v.Host, off*size)), size)):]
		for d := int(v.Rank) - 1; d >= 0; d-- {
			if idx[d]++; idx[d] < v.Shape[d] {
				break
			}
			idx[d] = 0
		}
	}
	return y
}

// copyOf returns x in memory of its own, for operands that an op overwrites.
func (r *run) copyOf(x tensor.Tensor) tensor.Tensor { return r.pack(x) }

// permute returns x with dimensions in another order: dimension i of the result is order[i] of x.
func (r *run) permute(x tensor.Tensor, order ...int) tensor.Tensor {
	v := x
	for i, d := range order {
		v.Shape[i], v.Stride[i] = x.Shape[d], x.Stride[d]
	}
	return r.pack(v)
}

// move returns x with dimension from at place to, the others in their order.
func (r *run) move(x tensor.Tensor, from, to int) tensor.Tensor {
	if from == to {
		return x
	}
	var order []int
	for d := range int(x.Rank) {
		if d != from {
			order = append(order, d)
		}
	}
	order = append(order[:to], append([]int{from}, order[to:]...)...)
	return r.permute(x, order...)
}

// broadcast returns the common shape of two by NumPy's rule.
func (r *run) broadcast(a, b []int64) []int64 {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := append([]int64{}, a...)
	for i, d := range b {
		switch o := &out[len(a)-len(b)+i]; {
		case *o == d, d == 1:
		case *o == 1:
			*o = d
		default:
			r.fail(ErrFormat, "", "shapes %v and %v do not broadcast", a, b)
		}
	}
	return out
}

// expand repeats x to a shape that broadcast returned.
func (r *run) expand(x tensor.Tensor, shape []int64) tensor.Tensor {
	v := x
	lead := len(shape) - int(x.Rank)
	if lead < 0 {
		r.fail(ErrFormat, "", "%v does not broadcast to %v", &x, shape)
	}
	v.Rank, v.Stride = uint8(len(shape)), [tensor.MaxRank]int64{}
	for d, n := range shape {
		if v.Shape[d] = n; d < lead {
			continue
		}
		switch x.Shape[d-lead] {
		case n:
			v.Stride[d] = x.Stride[d-lead]
		case 1:
		default:
			r.fail(ErrFormat, "", "%v does not broadcast to %v", &x, shape)
		}
	}
	if v.Shape == x.Shape && v.Rank == x.Rank {
		return x
	}
	return r.pack(v)
}

// axis resolves an axis of x, which may be negative.
func (r *run) axis(key string, a int64, x *tensor.Tensor) int {
	if a < 0 {
		a += int64(x.Rank)
	}
	if a < 0 || a >= int64(x.Rank) {
		r.fail(ErrFormat, key, "axis outside of %v", x)
	}
	return int(a)
}

// sub returns x[i] along the first dimension.
func (r *run) sub(x tensor.Tensor, i int64) tensor.Tensor {
	s, err := x.Slice(0, i, i+1)
	r.fits(err)
	return r.view(s, s.Dims()[1:]...)
}

// weight packs a weight [N,K] if the runner has a packer and there is something to pack.
func (r *run) weight(w tensor.Tensor) tensor.Tensor {
	if r.Packer == nil || w.Numel() == 0 {
		return w
	}
	p, buf, err := r.Packer.PackWeight([]tensor.Tensor{w}, nil)
	r.check(err)
	r.bufs = append(r.bufs, buf)
	return p
}
