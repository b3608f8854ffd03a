package registry

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// C11: 64 goroutines register, withdraw, disable, publish caps, look up and launch (run it under the race detector).
// Every observed chain is the chain of some generation between the call's start and end:
//
//   - two observations of one generation are equal, whoever made them, and generations never run backwards;
//   - a provider that nobody touched during the call is there or not as its owner last left it;
//   - a disabled or withdrawn provider never runs in a call that started after the change had returned.
func TestC11(t *testing.T) {
	const (
		owners = 16 // each toggles a provider of its own
		nOps   = 2
		rounds = 50
	)
	r := New(Options{})
	var ops [nOps]Op
	for i := range ops {
		ops[i] = define(t, r, fmt.Sprint("op", i))
		native(t, r, ops[i], tensor.XPU)
	}
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, probed(1)))

	// state of owner i's provider: even while stable; bit 1 says present.
	var state [owners]atomic.Uint64
	change := func(i int, present bool, f func()) {
		state[i].Add(1)
		f()
		v := (state[i].Load()>>2 + 1) << 2
		if present {
			v |= 2
		}
		state[i].Store(v)
	}
	name := func(i int) string { return fmt.Sprintf("p%02d", i) }
	byGen := sync.Map{} // generation and op: chain
	observe := func(op Op, before *[owners]uint64) (string, uint64) {
		for i := range state {
			before[i] = state[i].Load()
		}
		g0 := r.cur.Load().gen
		e := r.Explain(op, xpu0)
		if e.Generation < g0 || e.Generation > r.cur.Load().gen {
			t.Errorf("generation %d outside the call", e.Generation)
		}
		var got []string
		for _, s := range e.Chain {
			got = append(got, s.Kernel)
		}
		return strings.Join(got, " "), e.Generation
	}

	var wg, toggles sync.WaitGroup
	var stop atomic.Bool
	for i := range owners {
		toggles.Add(1)
		wg.Go(func() {
			defer toggles.Done()
			op := ops[i%nOps]
			p := OpProvider{Name: name(i), Priority: int32(1 + i%5), Fn: ran(name(i))}
			if i%3 == 0 {
				p.Supports = func(c device.ProviderCaps) Verdict { return Verdict{OK: c.Valid} }
			}
			for range rounds {
				var g *Registration
				var restore func()
				change(i, true, func() {
					var err error
					if g, err = r.RegisterOpProvider(op, tensor.XPU, p); err != nil {
						t.Error(err)
					}
				})
				change(i, false, func() { restore, _ = r.Disable(name(i)) })
				change(i, true, func() { restore() })
				change(i, false, func() {
					if err := g.Close(); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	for i := range 8 { // caps of the device and of others, always probed on xpu0
		wg.Go(func() {
			for n := int32(0); n < 4*rounds; n++ {
				dev := xpu0
				if i%2 == 1 {
					dev = tensor.Device{Kind: tensor.XPU, Index: int32(i)}
				}
				if err := r.SetDeviceProviderCaps(dev, probed(n%4)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 20 { // observers
		wg.Go(func() {
			var before [owners]uint64
			last := uint64(0)
			for n := 0; !stop.Load(); n++ {
				runtime.Gosched() // let the changes through
				op := ops[n%nOps]
				got, gen := observe(op, &before)
				if gen < last {
					t.Errorf("generation went back from %d to %d", last, gen)
				}
				last = gen
				if old, dup := byGen.LoadOrStore(fmt.Sprint(gen, op), got); dup && old != got {
					t.Errorf("generation %d: %q and %q", gen, old, got)
				}
				for i := range owners {
					after := state[i].Load()
					if i%nOps != n%nOps || before[i] != after || after&1 == 1 {
						continue
					}
					if has := strings.Contains(got, name(i)); has != (after&2 != 0) {
						t.Errorf("provider %d: present %v in %q, state %d", i, has, got, after)
					}
				}
			}
		})
	}
	var launches atomic.Uint64
	for w := range 20 { // launchers: one queue each, in all three forms
		wg.Go(func() {
			q := r.NewQueue(&fakeQueue{dev: xpu0})
			defer q.Close()
			var bound [nOps]*Bound
			for i := range bound {
				bound[i], _ = q.Bind(ops[i])
			}
			var before [owners]uint64
			var a probeArgs
			for n := 0; !stop.Load(); n++ {
				runtime.Gosched() // let the changes through
				op := ops[n%nOps]
				for i := range state {
					before[i] = state[i].Load()
				}
				var err error
				switch (n + w) % 3 {
				case 0:
					err = q.Launch(op, unsafe.Pointer(&a))
				case 1:
					err = bound[n%nOps].Launch(unsafe.Pointer(&a))
				default:
					fn, e := r.GetOp(op, xpu0)
					if err = e; err == nil && fn(q, unsafe.Pointer(&a)) != 0 {
						err = a.Err
					}
				}
				launches.Add(1)
				if err != nil {
					t.Error(err)
					continue
				}
				for i := range owners {
					if a.Ran == name(i) && before[i] == state[i].Load() && before[i]&3 == 0 {
						t.Errorf("%s ran although it is out", a.Ran)
					}
				}
			}
		})
	}
	toggles.Wait()
	stop.Store(true)
	wg.Wait()

	var executed uint64
	for _, op := range ops {
		var before [owners]uint64
		got, _ := observe(op, &before)
		require.Equal(t, "vt-native_"+r.OpName(op), got)
		for _, k := range r.cells.all() {
			if k.slot.op == op && k.slot.dev == xpu0 {
				executed += k.base.executed.Load()
			}
		}
	}
	require.Equal(t, launches.Load(), executed, "every launch is counted once, whoever ran it")
	require.Positive(t, executed)
}
