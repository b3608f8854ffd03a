package registry

import (
	"context"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

func TestRequire(t *testing.T) {
	r, op := probe(t, Options{})
	other := define(t, r, "other")
	no := func(device.ProviderCaps) Verdict { return No("needs sm_90") }
	add(t, r, op, tensor.XPU, OpProvider{Name: "new", Priority: 9, Supports: no})
	add(t, r, other, tensor.XPU, OpProvider{Name: "new", Priority: 9, Supports: no})
	add(t, r, op, tensor.XPU, OpProvider{Name: "old"})
	require.NoError(t, r.Require(xpu0))
	require.NoError(t, r.Require(xpu0, "old", "old_probe", "old@probe"))
	err := r.Require(xpu0, "old", "new", "ald", "old@other")
	var e *RequireError
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, ErrRequired)
	require.Len(t, e.Missing, 3)
	require.Len(t, e.Missing[0].Candidates, 1, "a reason is told once")
	require.ErrorContains(t, err, "xpu:0: required kernel is missing: new is not usable: new_probe: unsupported (needs sm_90); ")
	require.ErrorContains(t, err, `"ald": unknown name; nearest: old`)
	require.ErrorContains(t, err, `"old@other": old has no kernel for other; it has for probe`)
	require.ErrorIs(t, r.Require(xpu0, "a b"), ErrName)
	require.ErrorIs(t, r.Require(tensor.Device{Kind: 77}, "old"), ErrUnknownDevice)
	require.ErrorContains(t, r.Require(xpu1, "old"), "unknown name", "a device that nobody opened has no chains")

	err = r.RequireExecuted(xpu0, "old")
	require.ErrorContains(t, err, "old has executed nothing")
	require.ErrorIs(t, r.RequireExecuted(xpu0, "new"), ErrRequired)
	q := r.NewQueue(&fakeQueue{dev: xpu0})
	launched(t, q, op)
	require.NoError(t, r.RequireExecuted(xpu0, "old", "old_probe"))
	require.NoError(t, q.Close())
	require.NoError(t, r.RequireExecuted(xpu0, "old"), "closing a queue loses nothing")

	executed, err := r.RequireRun(xpu0, "old")
	require.NoError(t, err)
	require.ErrorContains(t, executed(), "old has executed nothing", "since the run began")
	q = r.NewQueue(&fakeQueue{dev: xpu0})
	launched(t, q, op)
	require.NoError(t, executed())
	_, err = r.RequireRun(xpu0, "new")
	require.ErrorIs(t, err, ErrRequired)

	// The scope: nothing runs unless the names are usable.
	var a probeArgs
	good := q.With(WithRequired(context.Background(), "old"))
	require.Equal(t, "old", launched(t, good, op))
	require.Equal(t, "old", launch(t, good, op))
	bad := q.With(WithRequired(WithRequired(context.Background(), "old"), "new"))
	require.ErrorIs(t, bad.Launch(op, unsafe.Pointer(&a)), ErrRequired)
	fn, err := r.GetOp(op, xpu0)
	require.NoError(t, err)
	require.Equal(t, Failed, fn(bad, unsafe.Pointer(&a)).Code())
	require.ErrorIs(t, a.Err, ErrRequired)
	restore, err := r.Disable("old")
	require.NoError(t, err)
	err = good.Launch(op, unsafe.Pointer(&a))
	require.ErrorIs(t, err, ErrRequired)
	require.ErrorContains(t, err, "old is not usable: old_probe: disabled (by old)")
	restore()
	require.Equal(t, "old", launched(t, good, op), "a scope follows the snapshots")
	s, err := good.Select(Request{Operator: "probe"})
	require.NoError(t, err)
	require.NoError(t, s.Launch(good, unsafe.Pointer(&a)))
	require.ErrorIs(t, s.Launch(bad, unsafe.Pointer(&a)), ErrRequired)
	_, err = bad.Select(Request{Operator: "probe"})
	require.ErrorIs(t, err, ErrRequired)
	require.ErrorIs(t, q.With(WithRequired(context.Background(), "a b")).Launch(op, unsafe.Pointer(&a)), ErrRequired)

	// A borrowed kernel is no kernel of the device, unless it is asked for as one.
	native(t, r, other, tensor.CPU)
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, unified()))
	require.NoError(t, r.Require(xpu0, ReferenceProviderName))
	require.NoError(t, r.Require(xpu0, "vt-native_other"), "by its own name")
	require.Error(t, r.RequireExecuted(xpu0, ReferenceProviderName))
}
