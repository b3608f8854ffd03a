// Package author has kernels such as somebody writes in a repository of his own, right ones and ones with one fault each.
package author

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// floats returns n elements of a contiguous f32 tensor.
func floats(x *tensor.Tensor, n int64) []float32 { return unsafe.Slice((*float32)(x.Host), n) }

// state is what faulty kernels keep between calls.
var state struct {
	calls atomic.Int64
	queue atomic.Uint64
	acc   float64
	seen  *sync.Map // weights by address
}

func reset() {
	state.calls.Store(0)
	state.queue.Store(0)
	state.acc, state.seen = 0, &sync.Map{}
}

// product is matmul_bt on f32, with one sum in float64 for each element.
func product(fault string) func(q *registry.Queue, a *ops.MatmulBTArgs) registry.Status {
	return func(q *registry.Queue, a *ops.MatmulBTArgs) registry.Status {
		m, n, k := a.Out.Shape[0], a.Out.Shape[1], a.A.Shape[1]
		out, b, row := floats(&a.Out, m*n), floats(&a.B, n*k), a.A.Stride[0]
		if k == 0 || m <= 1 {
			row = k
		}
		switch fault {
		case "declines everything":
			return registry.Decline(registry.ReasonShape)
		case "declines what it declared":
			if m == 1 {
				return registry.Decline(registry.ReasonShape)
			}
		case "declines after writing":
			if k == 64 {
				out[0] = 1
				return registry.Decline(registry.ReasonShape)
			}
		case "panics":
			if k == 17 {
				panic("seventeen")
			}
		case "reads rows as if packed":
			row = k
		case "empty sums are not written":
			if k == 0 {
				return 0
			}
		case "keeps the weight by its address":
			old, _ := state.seen.LoadOrStore(a.B.Host, slices.Clone(b))
			if len(old.([]float32)) == len(b) {
				b = old.([]float32)
			}
		case "allocates":
			b = slices.Clone(b)
		}
		for i := range m {
			var x []float32
			if k > 0 {
				x = floats(&a.A, (m-1)*row+k)[i*row:][:k]
			}
			for j := range n {
				sum := 0.0
				for e, v := range x {
					w := b[j*k+int64(e)]
					if fault == "NaN counts as nothing" && v != v {
						continue
					}
					sum += float64(v) * float64(w)
				}
				if fault == "shares a sum between goroutines" {
					state.acc = sum
					runtime.Gosched()
					sum = state.acc
				}
				out[i*n+j] = float32(sum)
			}
		}
		next := func(i int64) { out[i] = math.Nextafter32(out[i], 1e9) }
		switch fault {
		case "wrong element in the tail":
			if n%16 == 1 && n > 16 && k > 0 {
				out[m*n-1] += 0.01
			}
		case "writes behind the end":
			floats(&a.Out, m*n+1)[m*n] = 0
		case "writes an input":
			if k > 0 {
				floats(&a.A, 1)[0] = 0
			}
		case "leaves the last element":
			if m > 3 {
				out[m*n-1] = math.Float32frombits(0xffffffff)
			}
		case "other bits each time":
			if state.calls.Add(1)%2 == 0 {
				next(0)
			}
		case "other bits on another queue":
			id := q.Native().ID()
			state.queue.CompareAndSwap(0, id)
			if state.queue.Load() != id {
				next(0)
			}
		case "other bits in a batch":
			if m > 1 {
				next(0)
			}
		}
		return 0
	}
}

// norm is rms_norm on f32.
func norm(fault string) func(q *registry.Queue, a *ops.RMSNormArgs) registry.Status {
	return func(q *registry.Queue, a *ops.RMSNormArgs) registry.Status {
		rows, h := a.X.Shape[0], a.X.Shape[1]
		all, to := floats(&a.X, rows*h), floats(&a.Out, rows*h)
		if fault == "clears its output first" {
			clear(to)
		}
		for i := range rows {
			x, out := all[i*h:][:h], to[i*h:][:h]
			if a.Residual.Present() {
				r := floats(&a.Residual, rows*h)[i*h:][:h]
				for e := range r {
					r[e] += x[e]
				}
				x = r
			}
			sum := 0.0
			for _, v := range x {
				sum += float64(v) * float64(v)
			}
			inv := 1 / math.Sqrt(sum/float64(h)+float64(a.Eps))
			for e, v := range x {
				w := float32(1)
				if a.Weight.Present() {
					w = floats(&a.Weight, h)[e]
				}
				if a.Gemma && fault != "ignores an attribute" {
					w++
				}
				out[e] = float32(float64(v) * inv * float64(w))
			}
		}
		return 0
	}
}

// lookup is embedding on f32 tables and i32 ids.
func lookup(fault string) func(q *registry.Queue, a *ops.EmbeddingArgs) registry.Status {
	return func(q *registry.Queue, a *ops.EmbeddingArgs) registry.Status {
		n, v, h := a.IDs.Shape[0], a.Table.Shape[0], a.Table.Shape[1]
		ids := unsafe.Slice((*int32)(a.IDs.Host), n)
		for i := range ids {
			if int64(ids[i]) < 0 || int64(ids[i]) >= v {
				if fault == "bad values are no error" {
					return 0
				}
				if fault == "writes before it finds a bad value" {
					floats(&a.Out, 1)[0] = 0
				}
				return a.Fail(&ops.OpError{Op: "embedding", Operand: "ids", Kind: ops.ErrValue})
			}
		}
		for i, id := range ids {
			copy(floats(&a.Out, n*h)[int64(i)*h:][:h], floats(&a.Table, v*h)[int64(id)*h:])
		}
		return 0
	}
}

// DoubleArgs is the record of an op that the catalogue does not have: out = 2·x.
type DoubleArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"T,H" dtype:"f32"`
	X   tensor.Tensor `op:"in" shape:"T,H" dtype:"f32"`
}

// double is its kernel and, without a fault, its reference.
func double(fault string) func(q *registry.Queue, a *DoubleArgs) registry.Status {
	return func(q *registry.Queue, a *DoubleArgs) registry.Status {
		n := a.X.Numel()
		for i, v := range floats(&a.X, n) {
			floats(&a.Out, n)[i] = v + v
		}
		if fault == "one bit of an own op" && n > 5 {
			floats(&a.Out, n)[5] = math.Nextafter32(floats(&a.Out, n)[5], 1e9)
		}
		return 0
	}
}
