package registry

import (
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// Bound is an op bound to a queue: the cheapest way to launch the same op again and again. It follows the registry's
// snapshots, so disabling and counting stay effective. Handles are small and may be kept for long.
type Bound struct {
	q   *Queue
	op  Op
	cur atomic.Pointer[boundChain]
}

type boundChain struct {
	t *table
	c *chain
}

// Bind resolves op on the queue. It fails with ErrUnknownOp or ErrUnknownDevice; an empty chain is no error here, it is
// one at Launch.
func (q *Queue) Bind(op Op) (*Bound, error) {
	b := &Bound{q: q, op: op}
	if _, err := b.rebind(); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *Bound) rebind() (*chain, error) {
	t := b.q.reg.cur.Load()
	c, err := b.q.chain(b.op)
	if err != nil {
		return nil, err
	}
	b.cur.Store(&boundChain{t, c})
	return c, nil
}

func (b *Bound) chain() (*chain, error) {
	if bc := b.cur.Load(); bc.t == b.q.reg.cur.Load() {
		return bc.c, nil
	}
	return b.rebind()
}

// Launch is Queue.Launch for the bound op.
func (b *Bound) Launch(args unsafe.Pointer) error {
	c, err := b.chain()
	if err != nil {
		return err
	}
	return c.launch(b.q, args)
}

// Queue is the queue that the op is bound to.
func (b *Bound) Queue() *Queue { return b.q }

// Provider is the kernel at the head of the present chain, "" if it is empty.
func (b *Bound) Provider() string {
	c, err := b.chain()
	if err != nil || len(c.steps) == 0 {
		return ""
	}
	return c.steps[0].g.p.Kernel
}

// Explain describes the present chain as this handle sees it.
func (b *Bound) Explain() Explanation {
	c, err := b.chain()
	if err != nil {
		return Explanation{Error: err.Error()}
	}
	return b.q.reg.explain(c, b.cur.Load().t)
}

// Below is the part of a chain under one kernel: what a launcher that forwards by itself keeps instead of calling
// GetOpFallback each time. It follows the registry's snapshots.
type Below struct{ k *kernelState }

// Below returns the handle for the kernel or provider called name of op on dev. Errors: ErrUnknownOp, ErrUnknownDevice,
// *UnknownNameError.
func (r *Registry) Below(op Op, dev tensor.Device, name string) (*Below, error) {
	_, c, err := r.find(op, dev)
	if err != nil {
		return nil, err
	}
	k, err := c.floor(name)
	if err != nil {
		return nil, err
	}
	return &Below{k}, nil
}

// Launch runs the call on the kernels below. It counts no decline of its own: pair it with NoteDecline.
func (b *Below) Launch(q *Queue, args unsafe.Pointer) Status { return b.k.below(q, args) }

// NoteDecline counts one decline of the upper kernel, with its reason.
func (b *Below) NoteDecline(reason Reason) {
	if int(reason) >= NumReasons || reason == ReasonForwarded {
		reason = ReasonOther
	}
	b.k.base.declined[reason].Add(1)
}

// floor finds the registered kernel that GetOpFallback and Below look under, by kernel name first.
func (c *chain) floor(name string) (*kernelState, error) {
	if name == "" {
		return nil, fmt.Errorf("registry: %s on %v: fallback of a provider without a name: %w", c.slot.desc.Name, c.slot.dev, ErrNil)
	}
	at := slices.IndexFunc(c.all, func(g *Registration) bool { return g.p.Kernel == name })
	if at < 0 {
		at = slices.IndexFunc(c.all, func(g *Registration) bool { return g.p.Name == name })
	}
	if at < 0 {
		var known []string
		for _, g := range c.all {
			known = append(known, g.p.Name, g.p.Kernel)
		}
		return nil, fmt.Errorf("registry: %s on %v: fallback: %w", c.slot.desc.Name, c.slot.dev, &UnknownNameError{Name: name, Near: near(name, known)})
	}
	return c.floors[at], nil
}
