package llm

import (
	"fmt"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// region names one piece of an engine's scratch memory.
type region int

const (
	regX      region = iota // residual stream
	regH                    // normalised rows
	regDelta                // what a block adds to the stream
	regQKV                  // merged projections
	regQ                    // queries
	regK                    // keys
	regV                    // values
	regAttn                 // attention output
	regGateUp               // gate | up
	regAct                  // silu(gate)*up
	regLastX                // rows of regX and regDelta that logits are wanted of
	regLastD                //
	regLastH                // the same rows, normalised
	regLogits               //
	regCosSin               // one row a token
	regIDs                  // token ids
	regPos                  // positions
	regIota                 // 0, 1, 2 ...: row t of regCosSin belongs to token t
	regSlots                // cache slots
	regTable                // block tables
	regLens                 // sequence lengths
	regStarts               // first row of each sequence
	numRegions
)

// shapes gives each region its dtype and number of elements.
type shapes []shape

type shape struct {
	dtype tensor.DType
	elems int64
}

func engineShapes(c Config, o Options) shapes {
	s := make(shapes, numRegions)
	T, R, L := int64(o.ChunkSize), int64(o.MaxSequences), int64(o.logitRows())
	D, F, V := int64(c.Width), int64(c.FeedForward), int64(c.VocabSize)
	nq, nkv := int64(c.Heads*c.HeadSize), int64(c.KVHeads*c.HeadSize)
	f32 := func(r region, n int64) { s[r].dtype, s[r].elems = tensor.F32, n }
	for r, n := range map[region]int64{regX: D, regH: D, regDelta: D, regQKV: nq + 2*nkv, regQ: nq, regK: nkv, regV: nkv,
		regAttn: nq, regGateUp: 2 * F, regAct: F, regCosSin: int64(c.Rope.Dim)} {
		f32(r, T*n)
	}
	for r, n := range map[region]int64{regLastX: D, regLastD: D, regLastH: D, regLogits: V} {
		f32(r, L*n)
	}
	for _, r := range []region{regIDs, regPos, regIota, regSlots} {
		s[r].dtype, s[r].elems = tensor.I64, T
	}
	for r, n := range map[region]int64{regTable: R * int64(blocks(o.ContextLength)), regLens: R, regStarts: R + 1} {
		s[r].dtype, s[r].elems = tensor.I32, n
	}
	return s
}

const regionAlign = 256

func (s shape) bytes() int64 {
	return (s.elems*int64(s.dtype.Size()) + regionAlign - 1) &^ (regionAlign - 1)
}

func (s shapes) bytes() int64 {
	n := int64(0)
	for _, r := range s {
		n += r.bytes()
	}
	return n
}

// arena is scratch memory: one buffer, cut into regions.
type arena struct {
	shapes shapes
	base   []int64
	buf    device.Buffer
}

func newArena(dev device.Device, s shapes) (*arena, error) {
	a := &arena{shapes: s}
	at := int64(0)
	for _, r := range s {
		a.base = append(a.base, at)
		at += r.bytes()
	}
	var err error
	if a.buf, err = dev.Alloc(at); err != nil {
		return nil, fmt.Errorf("llm: scratch memory of %s: %w", mib(at), err)
	}
	return a, nil
}

// view returns the start of a region as a contiguous tensor; the shape fits by construction of shapes.
func (a *arena) view(r region, shape ...int64) (tensor.Tensor, error) {
	return a.buf.Tensor(a.base[r], a.shapes[r].dtype, shape...)
}

// upload copies v into the start of a region, in queue order.
func upload[E tensor.Elem](a *arena, q device.Queue, r region, v []E, shape ...int64) (tensor.Tensor, error) {
	t, err := a.view(r, shape...)
	if err != nil {
		return t, err
	}
	if t.Host != nil && q.Device().Kind == tensor.CPU {
		copy(unsafe.Slice((*E)(t.Host), len(v)), v)
		return t, nil
	}
	src, err := tensor.FromSlice(v, t.DType, shape...)
	if err != nil {
		return t, err
	}
	return t, q.Copy(&t, &src)
}

// stage is a run of steps over an arena that stops at the first error.
type stage struct {
	arena *arena
	queue device.Queue
	err   error
}

// view returns a region's start with the given shape.
func (s *stage) view(r region, shape ...int64) tensor.Tensor {
	t, err := s.arena.view(r, shape...)
	s.keep(err)
	return t
}

func (s *stage) keep(err error) {
	if s.err == nil {
		s.err = err
	}
}

// do runs f unless something failed before.
func (s *stage) do(f func() error) {
	if s.err == nil {
		s.err = f()
	}
}

// put uploads v into a region and sets dst to its view, unless something failed before.
func put[E tensor.Elem](s *stage, dst *tensor.Tensor, r region, v []E, shape ...int64) {
	s.do(func() (err error) {
		*dst, err = upload(s.arena, s.queue, r, v, shape...)
		return err
	})
}
