package debug_test

import (
	"bytes"
	"context"
	"reflect"
	"runtime/pprof"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/debug"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// goroutines is the profile of all goroutines with their labels.
func goroutines(t *testing.T) string {
	var b bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
	return b.String()
}

// While a kernel runs its goroutine carries the labels; after the call those that the tracer was made with.
func TestLabels(t *testing.T) {
	r := registry.New(registry.Options{})
	op, err := r.Define(registry.Descriptor{Name: "labelled", Record: reflect.TypeFor[args]()})
	require.NoError(t, err)
	var inside string
	_, err = r.RegisterOpProvider(op, tensor.CPU, registry.OpProvider{Name: "p", Fn: func(*registry.Queue, unsafe.Pointer) registry.Status {
		inside = goroutines(t)
		return 0
	}})
	require.NoError(t, err)
	pprof.Do(t.Context(), pprof.Labels("request", "r1"), func(ctx context.Context) {
		require.NoError(t, r.SetTracer(debug.Labels(ctx)))
		q := r.NewQueue(nil)
		launch(t, q, op, 2)
		require.Regexp(t, `labels: \{"device":"cpu:0", "kernel":"p_labelled", "op":"labelled", "provider":"p", "request":"r1"\}`, inside)
		after := goroutines(t)
		require.NotContains(t, after, "p_labelled")
		require.Contains(t, after, `labels: {"request":"r1"}`)
	})
}
