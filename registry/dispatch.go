package registry

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// trace remembers how one walk went, for the error at its end.
type trace struct {
	reasons [16]Reason // why the first steps declined
	at      int        // the step that ended the walk
}

// launch walks the chain for one call.
func (c *chain) launch(q *Queue, args unsafe.Pointer) error {
	if args == nil || !c.ready.Load() {
		if err := c.unready(args); err != nil {
			return err
		}
	}
	h := (*Header)(args)
	var tr trace
	st := c.walk(q, 0, h, &tr)
	h.Status = st
	if st.Code() == OK {
		return nil
	}
	return c.failure(q, st, h, &tr)
}

// unready is the part of a launch that a chain in use skips.
func (c *chain) unready(args unsafe.Pointer) error {
	if args == nil {
		return fmt.Errorf("registry: %s: record: %w", c.slot.desc.Name, ErrNil)
	}
	c.announce()
	if c.err != nil {
		c.slot.noKernel.Add(1)
		return c.err
	}
	return nil
}

// walk tries the steps from index i on. It returns the status of the step that ended the walk; past the last step that
// is the last decline.
func (c *chain) walk(q *Queue, i int, h *Header, tr *trace) Status {
	if h.Err != nil {
		h.Err = nil
	}
	st := Decline(ReasonOther)
	for ; i < len(c.steps); i++ {
		s := &c.steps[i]
		k := q.cells.at(s.id)
		if k == nil {
			k = q.cells.add(s.id)
		}
		if uint16(s.guard)|uint16(h.Flags) == 0 {
			st = s.call(q, k, k, h)
		} else {
			st = s.guarded(q, k, h)
		}
		if st.Code() == OK {
			return st
		}
		r := st.Reason()
		if st.Code() != Declined {
			tr.at = i
			if !c.fallOn || st&statusNothingEnqueued == 0 || i+1 == len(c.steps) {
				return st
			}
			r, h.Err = ReasonOther, nil
		}
		if i < len(tr.reasons) {
			tr.reasons[i] = r
		}
		if s.seen.Load()>>(r&31)&1 == 0 {
			c.fellBack(i, r, h)
		}
		if r != ReasonDomain && i+1 < len(c.steps) && q.strict(h) {
			tr.at = i
			return h.Fail(c.forbidden(i, r))
		}
	}
	return st
}

// forbidden is strict mode's error for a call that step i left to the next one.
func (c *chain) forbidden(i int, r Reason) error {
	return &StrictError{OpName: c.slot.desc.Name, Device: c.slot.dev, From: c.steps[i].g.p.Kernel, Kernel: c.steps[i+1].g.p.Kernel, Reason: r}
}

// call runs the kernel; k counts it, and a change of mark's forwarded says that the kernel handed the call on by itself.
func (s *step) call(q *Queue, k, mark *cell, h *Header) Status {
	fwd := mark.forwarded.Load()
	st := s.fn(q, unsafe.Pointer(h))
	if mark.forwarded.Load() == fwd {
		if st.Code() == OK {
			k.executed.Add(1)
			return st
		}
		if r := st.Reason(); st.Code() == Declined && int(r) < NumReasons && r != ReasonForwarded {
			k.declined[r].Add(1)
			return st
		}
	}
	return s.settle(q, k, mark, h, st, fwd)
}

// settle handles the rarer outcomes: growth, forwarding, failure, odd reasons.
func (s *step) settle(q *Queue, k, mark *cell, h *Header, st Status, fwd uint64) Status {
	if st.Code() == Grow {
		if n := st.Payload(); n <= 0 {
			st = Decline(ReasonWorkspace)
		} else if _, err := q.Reserve(n, 64); err != nil {
			st = Decline(ReasonWorkspace)
		} else if st = s.fn(q, unsafe.Pointer(h)); st.Code() == Grow {
			st = Decline(ReasonWorkspace)
		}
	}
	forwarded := mark.forwarded.Load() != fwd
	if forwarded {
		mark.forwarded.Store(fwd) // answered for
	}
	switch {
	case st.Code() == OK && forwarded:
		k.declined[ReasonForwarded].Add(1)
	case st.Code() == OK:
		k.executed.Add(1)
	case st.Code() == Declined:
		if int(st.Reason()) >= NumReasons || st.Reason() == ReasonForwarded {
			st = Decline(ReasonOther)
		}
		k.declined[st.Reason()].Add(1)
	default:
		k.failed.Add(1)
	}
	return st
}

// guarded looks at everything that may stand between a step and its call.
func (s *step) guarded(q *Queue, k *cell, h *Header) Status {
	if r := s.refuses(q, h); r != ReasonNone {
		k.declined[r].Add(1)
		return Decline(r)
	}
	if s.guard&guardBorrowed != 0 {
		if st := s.borrow(q, k, h); st != 0 {
			return st
		}
	}
	if s.guard&guardLibrary != 0 {
		if !s.g.enter() {
			k.declined[ReasonLibrary].Add(1)
			return Decline(ReasonLibrary)
		}
		defer s.g.leave()
	}
	mark := k
	if s.mark != s.id {
		mark = q.cell(s.mark)
	}
	var before outputs
	if s.guard&guardOutputs != 0 {
		before = copyOutputs(s.k.slot.desc.operands(), h)
	}
	call := s.call
	if s.guard&guardTrace != 0 {
		call = s.traced
	}
	st := call(q, k, mark, h)
	switch st.Code() {
	case OK:
		if s.guard&guardBorrowed != 0 {
			s.k.slot.referenceUsed(s)
		}
	case Declined:
		if name := before.changed(); name != "" {
			k.failed.Add(1)
			return h.FailDirty(fmt.Errorf("registry: kernel %s, output %s: %w", s.g.p.Kernel, name, ErrDirtyDecline))
		}
	}
	return st
}

// refuses is the part of a step's refusals that needs no kernel.
func (s *step) refuses(q *Queue, h *Header) Reason {
	switch {
	case s.guard&guardDomain != 0 && !s.g.domain.covers(unsafe.Pointer(h)):
		return ReasonDomain
	case h.Flags&FlagDeterministic != 0 && s.g.p.Traits.Nondeterministic:
		return ReasonNumerics
	case s.guard&guardCapture != 0 && q.capturing():
		return ReasonCapture
	case s.guard&guardTest != 0 && !q.tests && !s.believed(q):
		return ReasonDevice
	case s.guard&guardAccept != 0:
		return s.g.accept.check(unsafe.Pointer(h))
	}
	return ReasonNone
}

// failure turns the status that ended a walk into an error.
func (c *chain) failure(q *Queue, st Status, h *Header, tr *trace) error {
	if st.Code() == Declined {
		e := &DeclinedError{Op: c.slot.op, OpName: c.slot.desc.Name, Device: c.slot.dev}
		for i := range c.steps {
			r := ReasonOther
			if i < len(tr.reasons) {
				r = tr.reasons[i]
			}
			f := Refusal{Kernel: c.steps[i].g.p.Kernel, Reason: r}
			if g := c.steps[i].g; r == ReasonDomain && g.domain != nil {
				f.Detail = g.domain.outside(c.slot.desc, unsafe.Pointer(h))
			} else if g.accept != nil && g.accept.check(unsafe.Pointer(h)) == r {
				f.Detail = outsideTable
			}
			e.Refusals = append(e.Refusals, f)
		}
		return e
	}
	if e, ok := h.Err.(*StrictError); ok {
		return e
	}
	e := &LaunchError{Op: c.slot.op, OpName: c.slot.desc.Name, Device: c.slot.dev, Kernel: c.steps[tr.at].g.p.Kernel, Status: st, Err: h.Err}
	if lost := q.health(); lost != nil && !errors.Is(h.Err, lost) { // the device's fault rather than the kernel's
		e.Err = lost
		if h.Err != nil {
			e.Err = fmt.Errorf("%w: %w", lost, h.Err)
		}
	}
	return e
}

// run is the entry that GetOp returns: it dispatches through the slot's present chain, whatever the chain was when the
// entry was looked up.
func (sl *slot) run(q *Queue, args unsafe.Pointer) Status {
	return sl.walk(q, args, func(*chain) int { return 0 })
}

// runBelow is the entry that GetOpFallback returns: it dispatches below the kernel, and leaves it the note that its call
// was forwarded.
func (k *kernelState) runBelow(q *Queue, args unsafe.Pointer) Status {
	st := k.slot.walk(q, args, func(c *chain) int { return c.below(k.newest.Load()) })
	if st.Code() == OK {
		q.cell(k.id).forwarded.Add(1)
	}
	return st
}

func (sl *slot) walk(q *Queue, args unsafe.Pointer, from func(*chain) int) Status {
	if args == nil {
		return Failure(0).NothingEnqueued()
	}
	h := (*Header)(args)
	switch {
	case q == nil || q.reg != sl.r:
		return h.Fail(fmt.Errorf("registry: %s: launched without a queue of its registry: %w", sl.desc.Name, ErrArgument))
	case q.dev != sl.dev && sl.dev.Kind != tensor.CPU: // a CPU kernel may be borrowed, no other
		return h.Fail(fmt.Errorf("registry: %s: entry for %v on a queue of %v: %w", sl.desc.Name, sl.dev, q.dev, ErrArgument))
	}
	t := sl.r.cur.Load()
	c := t.at(sl.dn, sl.op)
	if q.scope != nil {
		if err := q.scope.missing(t, q.dev); err != nil {
			return h.Fail(err)
		}
		c = q.scope.chain(t, c)
	}
	if c.err != nil {
		sl.noKernel.Add(1)
		return h.Fail(c.err)
	}
	var tr trace
	h.Status = c.walk(q, from(c), h, &tr)
	return h.Status
}
