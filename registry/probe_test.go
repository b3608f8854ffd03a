package registry

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// The tests of this package drive ops of their own, whose kernels write which of them ran.

// probeArgs is the record of the probe ops.
type probeArgs struct {
	Header
	X   tensor.Tensor
	Ran string
}

var (
	cpu0  = tensor.Device{}
	xpu0  = tensor.Device{Kind: tensor.XPU}
	xpu1  = tensor.Device{Kind: tensor.XPU, Index: 1}
	cuda0 = tensor.Device{Kind: tensor.CUDA}
)

// probe defines an op in a fresh registry.
func probe(t testing.TB, o Options) (*Registry, Op) {
	r := New(o)
	return r, define(t, r, "probe")
}

func define(t testing.TB, r *Registry, name string, aliases ...string) Op {
	op, err := r.Define(Descriptor{Name: name, Aliases: aliases, Record: typeOf[probeArgs](), Operands: []Operand{
		{Name: "x", Offset: unsafe.Offsetof(probeArgs{}.X)}}})
	require.NoError(t, err)
	return op
}

// ran is a launcher that takes every call and leaves its name.
func ran(name string) Launcher {
	return func(_ *Queue, a unsafe.Pointer) Status {
		(*probeArgs)(a).Ran = name
		return 0
	}
}

// declines is a launcher that takes no call.
func declines(r Reason) Launcher {
	return func(*Queue, unsafe.Pointer) Status { return Decline(r) }
}

// add registers a provider whose launcher leaves the provider's name, unless p has one.
func add(t testing.TB, r *Registry, op Op, kind tensor.Kind, p OpProvider) *Registration {
	if p.Fn == nil {
		p.Fn = ran(p.Name)
	}
	g, err := r.RegisterOpProvider(op, kind, p)
	require.NoError(t, err)
	return g
}

func native(t testing.TB, r *Registry, op Op, kind tensor.Kind) *Registration {
	g, err := r.RegisterOp(op, kind, ran(NativeProviderName))
	require.NoError(t, err)
	return g
}

// launch runs the op through GetOp's entry and returns which kernel ran.
func launch(t testing.TB, q *Queue, op Op) string {
	fn, err := q.Registry().GetOp(op, q.Device())
	require.NoError(t, err)
	var a probeArgs
	require.Equal(t, OK, fn(q, unsafe.Pointer(&a)).Code(), "%v", a.Err)
	return a.Ran
}

// launched runs the op through Queue.Launch and returns which kernel ran.
func launched(t testing.TB, q *Queue, op Op) string {
	var a probeArgs
	require.NoError(t, q.Launch(op, unsafe.Pointer(&a)))
	return a.Ran
}

func names(r *Registry, op Op, dev tensor.Device) (out []string) {
	for i := range r.OpProviderCount(op, dev) {
		out = append(out, r.OpProviderNameAt(op, dev, i))
	}
	return out
}

// probed is a capability record with a version.
func probed(major int32) device.ProviderCaps {
	return device.ProviderCaps{State: device.Probed, ComputeMajor: major}
}

// unified is the record of a device whose memory the host reads.
func unified() device.ProviderCaps {
	return device.ProviderCaps{State: device.Probed, Memory: device.Memory{HostReadsDeviceAlloc: true, SharedPhysical: true}}
}

// counts returns a kernel's counters as Explain shows them.
func counts(t testing.TB, r *Registry, op Op, dev tensor.Device, kernel string) Counts {
	e := r.Explain(op, dev)
	for _, s := range append(e.Chain, e.Dropped...) {
		if s.Kernel == kernel {
			return s.Counts
		}
	}
	t.Fatalf("no kernel %s in\n%v", kernel, e)
	return Counts{}
}

func typeOf[R any]() reflect.Type { return reflect.TypeFor[R]() }
