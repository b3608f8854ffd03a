package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

const (
	untested int32 = iota
	testPassed
	testFailed
)

// selfTest is the verdict of a provider's known-answer test on one device.
type selfTest struct {
	mu    sync.Mutex // held while the test runs
	state atomic.Int32
	err   error // written before state becomes testFailed
}

// test returns the verdict's place; reg.mu is held.
func (g *Registration) test(dev tensor.Device) *selfTest {
	t := g.tests[dev]
	if t == nil {
		t = &selfTest{}
		g.tests[dev] = t
	}
	return t
}

// believed runs the step's self-test unless its verdict is known. A failing provider is quarantined with its evidence.
// While q is capturing nothing can be tested and the answer is no.
func (s *step) believed(q *Queue) bool {
	if s.test.state.Load() == untested {
		if q.capturing() {
			return false
		}
		s.test.mu.Lock()
		fresh, home := s.test.state.Load() == untested, s.home(s.k.slot.dev)
		if fresh {
			s.test.run(s.g, q, home)
		}
		s.test.mu.Unlock()
		if fresh {
			s.g.tested(s.test, home)
		}
	}
	return s.test.state.Load() == testPassed
}

// tested publishes chains that know the verdict.
func (g *Registration) tested(t *selfTest, home tensor.Device) {
	_ = g.reg.mutate(func(s *state) error { // cannot fail: no predicate runs a launch
		s.touchKind(g.op, g.kind)
		if t.state.Load() == testFailed {
			s.events = append(s.events, Event{Kind: EventQuarantined, Op: g.op, OpName: s.ops.desc(g.op).Name, Device: home,
				Kernel: g.p.Kernel, Provider: g.p.Name, Detail: t.err.Error()})
		}
		return nil
	})
}

// run runs the test on a view of q that reaches only this kernel and counts apart. A borrowed kernel is tested on a CPU
// view without a native queue.
func (t *selfTest) run(g *Registration, q *Queue, home tensor.Device) {
	v := *q
	if v.dev != home {
		v.dq, v.dev, v.dn = nil, home, deviceNumber(home)
	}
	v.cells, v.tests = newCellTable(), true
	v.scope = &scope{overrides: map[Op]choice{g.op: {target: Target{Name: g.p.Kernel, By: "kernel"}, from: fromTest, only: true}}}
	defer func() {
		if e := recover(); e != nil {
			t.err = fmt.Errorf("registry: kernel %s: panic: %v: %w", g.p.Kernel, e, ErrSelfTest)
		}
		if t.err != nil {
			t.state.Store(testFailed)
		} else {
			t.state.Store(testPassed)
		}
	}()
	if err := g.p.SelfTest(&v); err != nil {
		t.err = fmt.Errorf("registry: kernel %s: %w: %w", g.p.Kernel, ErrSelfTest, err)
	}
}

// Warm runs the outstanding self-tests of every kernel that stands in a chain of dev, so that no first launch pays for
// them. It returns the quarantined kernels' errors, joined, or ctx's error.
func (r *Registry) Warm(ctx context.Context, dev device.Device) error {
	dq, err := dev.NewQueue()
	if err != nil {
		return err
	}
	defer dq.Close()
	q := r.NewQueue(dq)
	defer q.Close()
	t, err := r.snapshot()
	if err != nil {
		return err
	}
	if q.dn < 0 {
		return fmt.Errorf("registry: %v: %w", dev.ID(), ErrUnknownDevice)
	}
	var errs []error
	for _, c := range t.devs[q.dn].ops {
		if c == nil {
			continue
		}
		for i := range c.steps {
			s := &c.steps[i]
			if s.guard&guardTest == 0 {
				continue
			}
			if err := ctx.Err(); err != nil {
				return errors.Join(append(errs, err)...)
			}
			if !s.believed(q) {
				errs = append(errs, s.test.err)
			}
		}
	}
	return errors.Join(errs...)
}
