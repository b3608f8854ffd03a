package verify

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
)

// Checks that run once for a kernel, over some of the calls that passed all others.

// goroutines launch at the same time in checkTogether, rounds times over all calls.
const goroutines, rounds = 8, 3

// launches are counted by checkAllocates, tries times: other goroutines may allocate meanwhile.
const launches, tries = 4, 5

// once makes the checks in turn until one fails.
func (k *kernel) once() {
	checks := []func(){k.rejections, k.newData, k.together}
	if k.v.NoAllocations {
		checks = append(checks, k.allocations)
	}
	for _, check := range checks {
		if k.Counts.Failures == 0 && len(k.kept) > 0 {
			check()
		}
	}
}

// rejections launches calls that the op's validator refuses: the kernel must not see them.
func (k *kernel) rejections() {
	c := k.kept[0]
	for _, s := range c.got.Spoiled() {
		before := k.reached()
		k.Checks[checkRejected]++
		err := launch(k.views[0], k.d.Op, s.Args)
		var rejected *ops.OpError
		switch {
		case err == nil:
			k.fail(checkRejected, c.call, nil, "%s: no error", s.What)
		case k.d.Op < registry.FirstDefined && !errors.As(err, &rejected):
			k.fail(checkRejected, c.call, nil, "%s: error is %v, want an *ops.OpError", s.What, err)
		case k.reached() != before:
			k.fail(checkRejected, c.call, nil, "%s: the kernel was called", s.What)
		default:
			if err := s.SameMemory(); err != nil {
				k.fail(checkRejected, c.call, nil, "%s: %v", s.What, err)
			}
		}
	}
}

// newData runs a record again after other data came to lie where its operands are, as it is with weights that are swapped
// and with recorded graphs: nothing of the first run may be left.
func (k *kernel) newData() {
	if k.reference || k.v.referenceName == "" {
		return
	}
	q := k.v.reference(k.d, k.v.referenceName)
	for _, c := range k.kept {
		other := c.Case
		other.Seed, other.Want = other.Seed+1, nil
		want, err := sample.Of(k.d, other)
		if err != nil || launch(q, k.d.Op, want) != nil {
			continue // the case is about values
		}
		got := c.got.Clone()
		got.Reset()
		if launch(k.views[0], k.d.Op, got) != nil || !got.Load(want) {
			continue
		}
		if err := launch(k.views[0], k.d.Op, got); errors.Is(err, registry.ErrDeclined) {
			continue
		} else if err != nil {
			k.fail(checkNewData, c.call, nil, "%v", err)
			continue
		}
		k.Checks[checkNewData]++
		tol := k.v.tolerance(want)
		if k.traits.BitExact {
			tol = sample.Bits
		}
		if results := sample.Compare(got, want, tol); worst(results) != nil {
			k.fail(checkNewData, c.call, results, "%v", worst(results))
			return
		}
	}
}

// together runs the calls from several goroutines, each with a queue of its own.
func (k *kernel) together() {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for g := range goroutines {
		dq, err := k.v.Device.NewQueue()
		if err != nil {
			k.fail(checkTogether, k.kept[0].call, nil, "queue %d: %v", g, err)
			break
		}
		all := k.v.Registry.NewQueue(dq)
		q := all.With(registry.WithKernel(context.Background(), k.d.Op, k.Kernel))
		wg.Go(func() {
			defer dq.Close()
			defer all.Close()
			for i := range rounds * len(k.kept) {
				c := k.kept[(i+g)%len(k.kept)]
				got := c.got.Clone()
				got.Reset()
				err := launch(q, k.d.Op, got)
				if err == nil && (k.traits.Nondeterministic || got.SameBits(c.got)) {
					continue
				}
				mu.Lock()
				defer mu.Unlock()
				results := sample.Compare(got, c.got, sample.Bits)
				if err == nil {
					err = errors.New("other bits than alone")
					if bad := worst(results); bad != nil {
						err = fmt.Errorf("other bits than alone: %v", bad)
					}
				}
				k.fail(checkTogether, c.call, results, "goroutine %d of %d: %v", g, goroutines, err)
				return
			}
		})
	}
	wg.Wait()
	k.Checks[checkTogether]++
}

// allocations counts what launches allocate once the queue has seen the call.
func (k *kernel) allocations() {
	for _, c := range k.kept {
		got := c.got.Clone()
		least := ^uint64(0)
		for range tries {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range launches {
				got.Reset()
				if k.views[0].Launch(k.d.Op, got.Record()) != nil { // the validator has seen it
					return
				}
			}
			runtime.ReadMemStats(&after)
			if least = min(least, (after.Mallocs-before.Mallocs)/launches); least == 0 {
				break
			}
		}
		k.Checks[checkAllocates]++
		if least > 0 {
			k.fail(checkAllocates, c.call, nil, "%d allocations for each launch", least)
			return
		}
	}
}
