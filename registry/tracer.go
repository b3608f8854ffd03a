package registry

import (
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// Tracer sees every call of a kernel, also those that decline or fail, from just before it starts to just after it
// returns. It is called on the launching goroutine, so it must be quick and safe for concurrent use.
type Tracer interface {
	// Begin is told what starts; the function that it returns, unless nil, is told the answer.
	Begin(c Call) (end func(Status))
}

// Call is what a Tracer learns of one call of a kernel.
type Call struct {
	Op       Op
	OpName   string
	Device   tensor.Device
	Kernel   string
	Provider string
	Queue    *Queue
	Args     unsafe.Pointer // the record; valid until the call returns
}

// SetTracer makes t see every call from now on; nil ends it. Without a tracer a launch does nothing for tracing: chains
// are compiled anew when one comes or goes. A call that runs meanwhile may or may not be seen.
func (r *Registry) SetTracer(t Tracer) error {
	return r.mutate(func(s *state) error {
		if s.tracer == nil && t == nil {
			return errUnchanged
		}
		s.tracer, s.dirtyAll = t, true
		return nil
	})
}

// traced runs the kernel under the chain's tracer.
func (s *step) traced(q *Queue, k, mark *cell, h *Header) Status {
	end := s.tracer.Begin(Call{Op: s.k.slot.op, OpName: s.k.slot.desc.Name, Device: s.k.slot.dev, Kernel: s.g.p.Kernel,
		Provider: s.provider(), Queue: q, Args: unsafe.Pointer(h)})
	st := s.call(q, k, mark, h)
	if end != nil {
		end(st)
	}
	return st
}
