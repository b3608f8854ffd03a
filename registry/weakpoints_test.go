package registry

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// W7: a strategy that cannot be honoured is an error, not a setting that looks effective.
func TestW07Strategy(t *testing.T) {
	for _, text := range []string{`{"version": 1, "defaults": {"strategy": "autotune"}}`, `{"version": 1, "rules": [{"strategy": "autotune"}]}`} {
		_, err := LoadConfig(strings.NewReader(text), "c.json")
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, "autotune cannot be honoured")
	}
	loaded(t, `{"version": 1, "defaults": {"strategy": "heuristic"}}`)
}

// W20: scopes travel in contexts and snapshots do not change, so that goroutines with different overrides, a configuration
// that comes and goes, and a tracer do not disturb each other. Run it under the race detector.
func TestW20ScopesDoNotLeak(t *testing.T) {
	r, op := abc(t, Options{})
	config := loaded(t, `{"version": 1, "rules": [{"match": {"op": "probe"}, "use": "vt-native"}]}`)
	var stop atomic.Bool
	var wg, work sync.WaitGroup
	wg.Go(func() {
		var l traceLog
		for i := 0; !stop.Load(); i++ {
			runtime.Gosched()
			var err error
			switch i % 4 {
			case 0:
				err = r.SetConfig(config)
			case 1:
				err = r.SetTracer(&l)
			case 2:
				err = r.SetConfig(nil)
			case 3:
				err = r.SetTracer(nil)
			}
			if err != nil {
				t.Error(err)
			}
			r.ConfigStatus()
			r.Quarantined()
		}
	})
	for _, name := range []string{"a", "b", "vt-native"} {
		for _, ctx := range []context.Context{WithKernel(t.Context(), op, name), WithOverride(WithRequired(t.Context(), name), op, Target{Name: name, By: "solution"})} {
			work.Add(1)
			wg.Go(func() {
				defer work.Done()
				q := r.NewQueue(nil)
				defer q.Close()
				v := q.With(ctx)
				bound, err := v.Bind(op)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range 300 {
					var a probeArgs
					if i%2 == 0 {
						err = v.Launch(op, unsafe.Pointer(&a))
					} else {
						err = bound.Launch(unsafe.Pointer(&a))
					}
					if err != nil || a.Ran != name {
						t.Errorf("%s: %q ran, %v", name, a.Ran, err)
						return
					}
					var plain probeArgs
					if err := q.Launch(op, unsafe.Pointer(&plain)); err != nil || plain.Ran != "a" && plain.Ran != NativeProviderName {
						t.Errorf("without a scope: %q ran, %v", plain.Ran, err)
						return
					}
				}
			})
		}
	}
	work.Wait()
	stop.Store(true)
	wg.Wait()
}

// W44: a kernel that may not be recorded into a graph leaves the call to the next one, which is counted, told with the
// shape, and an error in strict mode.
func TestW44CaptureIsTold(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.XPU, OpProvider{Name: "fast", Priority: 2})
	add(t, r, op, tensor.XPU, OpProvider{Name: "plain", Priority: 1, Traits: Traits{CaptureSafe: true}})
	q := queueOn(t, r, devicetest.Options{ID: xpu0})
	q.Native().(*devicetest.Queue).SetCapturing(true)
	x := tensor.Must(tensor.FromSlice(make([]float32, 6), tensor.F32, 2, 3))
	a := probeArgs{X: x}
	require.NoError(t, q.Launch(op, unsafe.Pointer(&a)))
	require.Equal(t, "plain", a.Ran)
	require.Equal(t, Counts{Declined: map[string]uint64{"capture": 1}}, counts(t, r, op, xpu0, "fast_probe"))
	events := r.Events()
	last := events[len(events)-1]
	require.Equal(t, EventFallback, last.Kind)
	require.Equal(t, [3]string{"fast_probe", "plain_probe", "x f32 [2 3]"}, [3]string{last.From, last.To, last.Detail})
	require.Equal(t, ReasonCapture, last.Reason)
	err := q.With(WithStrict(t.Context(), true)).Launch(op, unsafe.Pointer(&a))
	require.ErrorIs(t, err, ErrStrict)
	require.ErrorContains(t, err, "fast_probe declined (capture)")
}

// W41: what is kept of a run does not grow with it.
func TestW41EventsAreBounded(t *testing.T) {
	r, op := probe(t, Options{})
	for i := range 20 {
		add(t, r, op, tensor.CPU, OpProvider{Name: fmt.Sprint("d", i), Priority: int32(40 - i), Fn: declines(Reason(1 + i%12))})
	}
	native(t, r, op, tensor.CPU)
	q := r.NewQueue(nil)
	for range 50 {
		launched(t, q, op)
	}
	require.Len(t, r.Events(), 21, "one for the selection, one for each fallback")
	for range 400 {
		r.ResetOpProviderStats(op, cpu0)
		launched(t, q, op)
	}
	require.Len(t, r.Events(), 256)
}
