package registry

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

type traceLog struct {
	mu    sync.Mutex
	calls []string
}

func (l *traceLog) Begin(c Call) func(Status) {
	return func(st Status) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls = append(l.calls, c.OpName+" "+c.Device.String()+" "+c.Kernel+" "+st.String())
	}
}

// A tracer sees each call of a kernel with its answer, and nothing before it comes or after it goes.
func TestTracer(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3, Fn: declines(ReasonShape)})
	native(t, r, op, tensor.CPU)
	q := r.NewQueue(nil)
	var l traceLog
	launched(t, q, op)
	require.NoError(t, r.SetTracer(&l))
	launched(t, q, op)
	require.Equal(t, []string{"probe cpu:0 a_probe declined(shape)", "probe cpu:0 vt-native_probe ok"}, l.calls)
	require.NoError(t, r.SetTracer(nil))
	require.NoError(t, r.SetTracer(nil), "twice")
	launched(t, q, op)
	require.Len(t, l.calls, 2)
}

// The last 256 events are kept without an observer, oldest first.
func TestRecentEvents(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3, Fn: declines(ReasonShape)})
	native(t, r, op, tensor.CPU)
	launched(t, r.NewQueue(nil), op)
	ev := r.Events()
	require.Len(t, ev, 2)
	require.Equal(t, EventFallback, ev[1].Kind)
	require.False(t, ev[1].Time.Before(ev[0].Time))
	for i := range 300 {
		r.emit(Event{Kind: EventCaps, Priority: int32(i)})
	}
	ev = r.Events()
	require.Len(t, ev, 256)
	require.EqualValues(t, 44, ev[0].Priority)
	require.EqualValues(t, 299, ev[255].Priority)
}

// Strict mode names the first fallback: who declined, why, and who would have run.
func TestStrictFallback(t *testing.T) {
	for name, o := range map[string]Options{"registry": {Strict: true}, "flag": {}} {
		r, op := probe(t, o)
		add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3, Fn: declines(ReasonShape)})
		native(t, r, op, tensor.CPU)
		a := &probeArgs{}
		if name == "flag" {
			a.Flags = FlagStrict
		}
		err := r.NewQueue(nil).Launch(op, unsafe.Pointer(a))
		var s *StrictError
		require.ErrorAs(t, err, &s, name)
		require.Equal(t, StrictError{OpName: "probe", Device: cpu0, From: "a_probe", Kernel: "vt-native_probe", Reason: ReasonShape}, *s)
		require.Empty(t, a.Ran)
		require.ErrorContains(t, err, "a_probe declined (shape)")
	}
}
