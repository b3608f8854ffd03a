package trace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
	"github.com/opmux/opmux/trace"
	"github.com/stretchr/testify/require"
)

// event is what a viewer reads.
type event struct {
	Name, Cat, Ph string
	TS, Dur       *float64
	PID, TID      int
	Args          struct {
		Name, Kernel, Provider, Device, Status string
		Operands                               map[string]string
	}
}

func setup(t testing.TB) *registry.Registry {
	r := registry.New(registry.Options{})
	for _, p := range []registry.OpProvider{
		{Name: "first", Priority: 3, Fn: func(*registry.Queue, unsafe.Pointer) registry.Status { return registry.Decline(registry.ReasonShape) }},
		{Name: "second", Fn: func(*registry.Queue, unsafe.Pointer) registry.Status { return 0 }},
	} {
		_, err := r.RegisterOpProvider(ops.OpRelu, tensor.CPU, p)
		require.NoError(t, err)
	}
	return r
}

func relu(t testing.TB) *ops.ReluArgs {
	x := make([]float32, 6)
	v, err := tensor.New(unsafe.Pointer(&x[0]), tensor.F32, 2, 3)
	require.NoError(t, err)
	return &ops.ReluArgs{X: v, Out: v}
}

// The file is a JSON array with one event for each call, in the row of its queue; declined calls are there too.
func TestChrome(t *testing.T) {
	r := setup(t)
	d := devicetest.Open(devicetest.Options{})
	dq, err := d.NewQueue()
	require.NoError(t, err)
	q, none := r.NewQueue(dq), r.NewQueue(nil)
	var out bytes.Buffer
	c := trace.NewChrome(&out)
	a := relu(t)
	require.NoError(t, q.Launch(ops.OpRelu, unsafe.Pointer(a)))
	require.NoError(t, r.SetTracer(c))
	end := c.Span("prefill")
	require.NoError(t, q.Launch(ops.OpRelu, unsafe.Pointer(a)))
	require.NoError(t, none.Launch(ops.OpRelu, unsafe.Pointer(a)))
	end()
	require.NoError(t, r.SetTracer(nil))
	require.NoError(t, q.Launch(ops.OpRelu, unsafe.Pointer(a)))
	require.NoError(t, c.Close())
	require.NoError(t, c.Close(), "twice")
	c.Span("late")()

	var all, calls []event
	require.NoError(t, json.Unmarshal(out.Bytes(), &all), out.String())
	require.Len(t, all, c.Events())
	rows := map[int]string{}
	for _, e := range all {
		if e.Ph == "M" {
			rows[e.TID] = e.Args.Name
			continue
		}
		require.Equal(t, "X", e.Ph)
		require.GreaterOrEqual(t, *e.TS, 0.0)
		require.GreaterOrEqual(t, *e.Dur, 0.0)
		calls = append(calls, e)
	}
	require.Len(t, calls, 5, "two calls of two kernels each, and the span")
	for i, e := range calls[:4] {
		require.Equal(t, "relu", e.Name)
		require.Equal(t, []string{"first_relu", "second_relu"}[i%2], e.Args.Kernel)
		require.Equal(t, []string{"declined(shape)", "ok"}[i%2], e.Args.Status)
		require.Equal(t, "cpu:0", e.Args.Device)
		require.Equal(t, map[string]string{"x": "f32 [2 3]", "out": "f32 [2 3]"}, e.Args.Operands)
		require.Equal(t, []int{int(dq.ID()), 0}[i/2], e.TID)
	}
	require.Equal(t, "prefill", calls[4].Name)
	require.GreaterOrEqual(t, *calls[4].Dur, *calls[0].Dur)
	require.Contains(t, rows[int(dq.ID())], "cpu:0 queue ")
	require.Equal(t, "no queue", rows[0])
}

// An empty trace is a file too, and queues may be traced side by side.
func TestChromeConcurrent(t *testing.T) {
	var out bytes.Buffer
	c := trace.NewChrome(&out)
	require.NoError(t, c.Close())
	var none []event
	require.NoError(t, json.Unmarshal(out.Bytes(), &none))
	require.Empty(t, none)

	r := setup(t)
	out.Reset()
	c = trace.NewChrome(&out)
	require.NoError(t, r.SetTracer(c))
	var wg sync.WaitGroup
	for range 4 {
		a := relu(t)
		wg.Go(func() {
			q := r.NewQueue(nil)
			defer q.Close()
			for range 50 {
				if err := q.Launch(ops.OpRelu, unsafe.Pointer(a)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.Close())
	var all []event
	require.NoError(t, json.Unmarshal(out.Bytes(), &all))
	require.Len(t, all, 4*50*2+1)
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// The first error of the writer comes out of Close.
func TestChromeError(t *testing.T) {
	c := trace.NewChrome(broken{})
	for range 2000 {
		c.Span("x")()
	}
	require.ErrorContains(t, c.Close(), "disk full")
	require.Less(t, c.Events(), 2000)
}

func BenchmarkLaunchTraced(b *testing.B) {
	r := setup(b)
	q := r.NewQueue(nil)
	a := relu(b)
	require.NoError(b, r.SetTracer(trace.NewChrome(discard{})))
	b.ReportAllocs()
	for b.Loop() {
		if err := q.Launch(ops.OpRelu, unsafe.Pointer(a)); err != nil {
			b.Fatal(err)
		}
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
