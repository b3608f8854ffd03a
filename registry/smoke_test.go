package registry

import (
	"testing"
	"unsafe"

	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

type probeArgs struct {
	Header
	X tensor.Tensor
	N int64
}

func TestSmoke(t *testing.T) {
	r := New(Options{})
	op, err := r.Define(Descriptor{Name: "probe"})
	require.NoError(t, err)
	_, err = r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "a", Priority: 10, Fn: func(*Queue, unsafe.Pointer) Status { return Decline(ReasonShape) }})
	require.NoError(t, err)
	_, err = r.RegisterOp(op, tensor.CPU, func(q *Queue, a unsafe.Pointer) Status { (*probeArgs)(a).N++; return 0 })
	require.NoError(t, err)
	q := r.NewQueue(nil)
	var a probeArgs
	require.NoError(t, q.Launch(op, unsafe.Pointer(&a)))
	require.EqualValues(t, 1, a.N)
	t.Log(r.Explain(op, tensor.Device{}))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = q.Launch(op, unsafe.Pointer(&a)) }))
	require.EqualValues(t, 102, r.GetOpProviderStats(op, tensor.Device{}).Declines)
}
