package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

const (
	untested int32 = iota
	testPassed
	testFailed
)

// selfTest is the verdict of a provider's known-answer test on one device, as the device was described then.
type selfTest struct {
	print string     // fingerprint of the device
	mu    sync.Mutex // held while the test runs
	state atomic.Int32
	err   *testError // written before state becomes testFailed
}

// selfTest returns the place of g's verdict on dev: a new one where the device is described in another way than before,
// for example with another driver. A verdict on record is taken over. r.mu is held.
func (s *state) selfTest(g *Registration, dev tensor.Device) *selfTest {
	_, print := s.caps[dev].platform()
	t := g.tests[dev]
	if t == nil || t.print != print {
		t = &selfTest{print: print}
		g.tests[dev] = t
	}
	if k, ok := g.verdictKey(s.ops, print); ok && t.state.Load() == untested && t.mu.TryLock() {
		if v, known := s.r.verdicts.find(k); known && t.state.Load() == untested {
			t.recall(g, v)
		}
		t.mu.Unlock()
	}
	return t
}

// recall takes over a verdict on record; t.mu is held.
func (t *selfTest) recall(g *Registration, v verdict) {
	if v.ok {
		t.state.Store(testPassed)
		return
	}
	seen := v.evidence
	if v.file != "" {
		seen += fmt.Sprintf(" (%s, in %s)", v.at.UTC().Format(time.DateOnly), v.file)
	}
	t.err = &testError{g.p.Kernel, errors.New(seen)}
	t.state.Store(testFailed)
}

// verdictKey is what a verdict on g is kept under; false for a kernel without a version.
func (g *Registration) verdictKey(ops *opSet, print string) (verdictKey, bool) {
	version := ""
	if g.p.Spec != nil {
		version = g.p.Spec.Version
	}
	if version == "" && strings.HasPrefix(g.source, modulePath+"/") {
		version = moduleVersion()
	}
	if version == "" || len(version) > maxVerdictText || print == "" {
		return verdictKey{}, false
	}
	return verdictKey{print, ops.desc(g.op).Name, g.p.Kernel, version}, true
}

// believed runs the step's self-test unless its verdict is known. A failing provider is quarantined with its evidence.
// While q is capturing nothing can be tested and the answer is no; so it is, without a verdict, when the device was lost.
func (s *step) believed(q *Queue) bool {
	if s.test.state.Load() == untested {
		if q.capturing() {
			return false
		}
		s.test.mu.Lock()
		fresh, home := s.test.state.Load() == untested, s.home(s.k.slot.dev)
		if fresh {
			fresh = s.test.run(s.g, q, home)
		}
		s.test.mu.Unlock()
		if fresh {
			s.g.tested(s.test, home)
			if !q.holdVerdicts {
				s.g.reg.verdicts.save()
			}
		}
	}
	return s.test.state.Load() == testPassed
}

// tested puts the verdict on record and publishes chains that know it.
func (g *Registration) tested(t *selfTest, home tensor.Device) {
	_ = g.reg.mutate(func(s *state) error { // cannot fail: no predicate runs a launch
		s.touchKind(g.op, g.kind)
		v := verdict{ok: true, at: time.Now()}
		if t.state.Load() == testFailed {
			v.ok, v.evidence = false, cmp.Or(clipTo(t.err.seen.Error(), maxVerdictText), "an error without words")
			s.events = append(s.events, Event{Kind: EventQuarantined, Op: g.op, OpName: s.ops.desc(g.op).Name, Device: home,
				Kernel: g.p.Kernel, Provider: g.p.Name, Detail: t.err.Error()})
		}
		if k, ok := g.verdictKey(s.ops, t.print); ok {
			g.reg.verdicts.add(k, v)
		}
		return nil
	})
}

// testError is a failed self-test; it unwraps to ErrSelfTest and what was seen.
type testError struct {
	kernel string
	seen   error
}

func (e *testError) Error() string {
	return fmt.Sprintf("registry: kernel %s: %v: %v", e.kernel, ErrSelfTest, e.seen)
}

func (e *testError) Unwrap() []error { return []error{ErrSelfTest, e.seen} }

// run runs the test on a view of q that reaches only this kernel and counts apart. A borrowed kernel is tested on a CPU
// view without a native queue. It reports whether there is a verdict.
func (t *selfTest) run(g *Registration, q *Queue, home tensor.Device) (settled bool) {
	v := *q
	if v.dev != home {
		v.dq, v.dev, v.dn = nil, home, deviceNumber(home)
	}
	v.cells, v.tests = newCellTable(), true
	v.scope = &scope{overrides: map[Op]choice{g.op: {target: Target{Name: g.p.Kernel, By: "kernel"}, from: fromTest, only: true}}}
	defer func() {
		if e := recover(); e != nil {
			t.err = &testError{g.p.Kernel, fmt.Errorf("panic: %v", e)}
		}
		switch {
		case t.err == nil:
			t.state.Store(testPassed)
		case errors.Is(t.err, device.ErrLost) || q.health() != nil: // the device's fault
			t.err = nil
			return
		default:
			t.state.Store(testFailed)
		}
		settled = true
	}()
	if err := g.p.SelfTest(&v); err != nil {
		t.err = &testError{g.p.Kernel, err}
	}
	return false
}

// health asks the queue, or the open device that it belongs to, whether the device still works. Nil where neither knows.
func (q *Queue) health() error {
	if h, ok := q.dq.(device.HealthReporter); ok {
		return h.Health()
	}
	if q.dq != nil {
		if d, ok := device.DefaultTable().Lookup(q.dev); ok {
			if h, ok := d.(device.HealthReporter); ok {
				return h.Health()
			}
		}
	}
	return nil
}

// Warm runs the outstanding self-tests of every kernel that a call on dev may reach, so that no first launch pays for
// them. It returns the quarantined kernels' errors, joined, or ctx's error.
func (r *Registry) Warm(ctx context.Context, dev device.Device) error {
	dq, err := dev.NewQueue()
	if err != nil {
		return err
	}
	defer dq.Close()
	q := r.NewQueue(dq)
	q.holdVerdicts = true
	defer r.verdicts.save()
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
		for s := range c.reachable {
			if s.guard&guardTest == 0 {
				continue
			}
			if err := ctx.Err(); err != nil {
				return errors.Join(append(errs, err)...)
			}
			if !s.believed(q) {
				errs = append(errs, s.test.failure(q))
			}
		}
	}
	return errors.Join(errs...)
}

// failure is the evidence against a kernel that was not believed.
func (t *selfTest) failure(q *Queue) error {
	if t.state.Load() == testFailed {
		return t.err
	}
	if err := q.health(); err != nil {
		return err
	}
	return device.ErrLost
}
