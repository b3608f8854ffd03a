package registry

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Queue is a view on a device queue through a registry: where ops are launched. It carries the scopes that With resolved
// and the counters of what runs on it. Like the device queue under it, it is used by one goroutine at a time; queues of
// several goroutines share nothing that a launch writes.
type Queue struct {
	reg   *Registry
	dq    device.Queue
	dev   tensor.Device
	dn    int
	cells *cellTable
	scope *scope // nil: none
	tests bool   // a self-test's own queue: nothing is tested again

	holdVerdicts bool // Warm writes them once
}

// NewQueue returns a view on dq. A nil dq is the first CPU without a native queue, for kernels that need none. Close the
// queue to fold its counters into the registry's totals; dq itself stays open.
func (r *Registry) NewQueue(dq device.Queue) *Queue {
	q := &Queue{reg: r, dq: dq, cells: newCellTable()}
	if dq != nil {
		q.dev = dq.Device()
	}
	q.dn = -1
	if r.ensureDevice(q.dev) == nil {
		q.dn = deviceNumber(q.dev)
	}
	r.cells.attach(q.cells)
	return q
}

// Close folds the queue's counters into the registry; launches after it are not counted. Closing twice, or a view and its
// origin, is harmless.
func (q *Queue) Close() error {
	q.reg.cells.fold(q.cells)
	return nil
}

// Device is the device that ops run on.
func (q *Queue) Device() tensor.Device { return q.dev }

// Native is the device queue, nil if there is none.
func (q *Queue) Native() device.Queue { return q.dq }

// Registry is where the queue looks kernels up.
func (q *Queue) Registry() *Registry { return q.reg }

// Reserve returns scratch memory of the device queue; see device.Queue. ErrUnsupported without a native queue.
func (q *Queue) Reserve(size, align int64) (device.Workspace, error) {
	if q.dq == nil {
		return device.Workspace{}, fmt.Errorf("registry: workspace: queue without a device queue: %w", device.ErrUnsupported)
	}
	return q.dq.Reserve(size, align)
}

func (q *Queue) capturing() bool { return q.dq != nil && q.dq.Capturing() }

// strict reports whether a fallback of this call is an error.
func (q *Queue) strict(h *Header) bool {
	return h.Flags&FlagStrict != 0 || q.scope != nil && q.scope.strict || q.reg.cur.Load().opts.Strict
}

func (q *Queue) sync() error {
	if q.dq == nil {
		return nil
	}
	return q.dq.Sync(context.Background())
}

// cell returns the queue's counters of a kernel.
func (q *Queue) cell(id int) *cell {
	if c := q.cells.at(id); c != nil {
		return c
	}
	return q.cells.add(id)
}

// chain finds the op's chain on the queue's device.
func (q *Queue) chain(op Op) (*chain, error) {
	t := q.reg.cur.Load()
	c := t.at(q.dn, op)
	if c == nil {
		var err error
		if t, c, err = q.reg.find(op, q.dev); err != nil {
			return nil, err
		}
	}
	if q.scope != nil {
		if err := q.scope.missing(t, q.dev); err != nil {
			return nil, err
		}
		c = q.scope.chain(t, c)
	}
	return c, nil
}

// Head names the kernel that a chain tries first.
type Head struct {
	Kernel   string
	Provider string
	Tier     Tier // Borrowed for a CPU kernel lent to another device
}

// Head returns the head of op's chain on the queue, as its scopes leave it; false if there is no kernel or no such op. It
// counts nothing and allocates nothing.
func (q *Queue) Head(op Op) (Head, bool) {
	c, err := q.chain(op)
	if err != nil || len(c.steps) == 0 {
		return Head{}, false
	}
	s := &c.steps[0]
	h := Head{Kernel: s.g.p.Kernel, Provider: s.provider(), Tier: s.g.p.Tier}
	if s.k.borrowed {
		h.Tier = Borrowed
	}
	return h, true
}

// find is the slow path of a lookup: it compiles the first snapshot, takes over ops described since, or says what is
// unknown.
func (r *Registry) find(op Op, dev tensor.Device) (*table, *chain, error) {
	if err := checkDevice(dev); err != nil {
		return nil, nil, err
	}
	t, err := r.snapshot()
	if err != nil {
		return nil, nil, err
	}
	if t.ops.desc(op) == nil {
		if t, err = r.caughtUp(); err != nil {
			return nil, nil, err
		}
		if t.ops.desc(op) == nil {
			return nil, nil, fmt.Errorf("registry: op %d: %w", op, ErrUnknownOp)
		}
	}
	c := t.chain(op, dev)
	if c == nil {
		return nil, nil, fmt.Errorf("registry: %v: neither published nor opened: %w", dev, ErrUnknownDevice)
	}
	return t, c, nil
}

// caughtUp returns a table with the ops that were described after the last compile.
func (r *Registry) caughtUp() (*table, error) {
	if err := r.mutate(func(*state) error { return errUnchanged }); err != nil {
		return nil, err
	}
	return r.cur.Load(), nil
}

// Launch runs the call whose record lies at args on the first kernel of op's chain that takes it. The record is not
// validated here: ops' entry points do that. Errors: ErrUnknownOp, ErrUnknownDevice, ErrNil, *NoProviderError,
// *DeclinedError (nothing was touched), *LaunchError, and ErrStrict inside a LaunchError.
func (q *Queue) Launch(op Op, args unsafe.Pointer) error {
	c, err := q.chain(op)
	if err != nil {
		return err
	}
	return c.launch(q, args)
}
