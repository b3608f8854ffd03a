package opmux_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// The whole thing linked together, as a serving binary would: the seam's conformance cases that need real kernels.
// The others (T1-T10, T12, T13, C1-C12) are tests of package registry.

// linked is a registry with every CPU kernel, an open CPU, and a queue on it.
func linked(t *testing.T) (*registry.Registry, *registry.Queue) {
	r := registry.New(registry.Options{})
	require.NoError(t, cpu.Register(r))
	dev, err := cpu.Open(cpu.Options{Registry: r, Threads: 2})
	require.NoError(t, err)
	dq, err := dev.NewQueue()
	require.NoError(t, err)
	q := r.NewQueue(dq)
	t.Cleanup(func() {
		require.NoError(t, q.Close())
		require.NoError(t, dq.Close())
		require.NoError(t, dev.Close())
	})
	return r, q
}

// fake is a synchronous device whose memory the host reads, with a queue on it.
type fake struct {
	*devicetest.Device
	t *testing.T
	q *registry.Queue
}

func open(t *testing.T, r *registry.Registry) fake {
	d := devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: tensor.XPU}, Unified: true})
	require.NoError(t, r.SetDeviceProviderCaps(d.ID(), d.Caps()))
	dq, err := d.NewQueue()
	require.NoError(t, err)
	q := r.NewQueue(dq)
	t.Cleanup(func() { require.NoError(t, q.Close()) })
	return fake{d, t, q}
}

// put copies values to the device, offset bytes into a buffer of their own.
func (f fake) put(offset int64, values []float32, shape ...int64) tensor.Tensor {
	b, err := f.Alloc(offset + 4*int64(len(values)))
	require.NoError(f.t, err)
	x, err := b.Tensor(offset, tensor.F32, shape...)
	require.NoError(f.t, err)
	src := host(values, shape...)
	require.NoError(f.t, f.q.Native().Copy(&x, &src))
	return x
}

// get copies a tensor back.
func (f fake) get(x tensor.Tensor) []float32 {
	out := make([]float32, x.Numel())
	dst := host(out, x.Dims()...)
	require.NoError(f.t, f.q.Native().Copy(&dst, &x))
	return out
}

func host(values []float32, shape ...int64) tensor.Tensor {
	return tensor.Must(tensor.FromSlice(values, tensor.F32, shape...))
}

func chain(r *registry.Registry, op registry.Op, dev tensor.Device) (kernels []string) {
	for _, s := range r.Explain(op, dev).Chain {
		kernels = append(kernels, s.Kernel)
	}
	return kernels
}

// T11: CPU matmul resolves to a native-tier kernel, and to the reference when all others are disabled.
func TestT11(t *testing.T) {
	r, q := linked(t)
	e := r.Explain(ops.OpMatmul, q.Device())
	require.Equal(t, "native", e.Chain[0].Tier)
	_, err := r.GetOp(ops.OpMatmul, q.Device())
	require.NoError(t, err)
	require.Equal(t, e.Chain[0].Provider, r.GetOpProviderStats(ops.OpMatmul, q.Device()).LastSelected)

	last := e.Chain[len(e.Chain)-1]
	require.Equal(t, "reference", last.Provider)
	for _, s := range e.Chain[:len(e.Chain)-1] {
		_, err := r.Disable(s.Provider)
		require.NoError(t, err)
	}
	require.Equal(t, []string{last.Kernel}, chain(r, ops.OpMatmul, q.Device()))
	y := make([]float32, 4)
	require.NoError(t, ops.Matmul.Launch(q, &ops.MatmulArgs{Out: host(y, 2, 2), A: host([]float32{1, 2, 3, 4}, 2, 2), B: host([]float32{1, 1, 0, 1}, 2, 2)}))
	require.Equal(t, []float32{1, 3, 3, 7}, y)
	require.EqualValues(t, 1, r.Explain(ops.OpMatmul, q.Device()).Chain[0].Counts.Executed)
}

// T14: a device with unified memory, relu: bit-identical to the CPU, hits grow, first name is the reference one,
// presence false.
func TestT14(t *testing.T) {
	r, q := linked(t)
	f := open(t, r)
	x := []float32{-1, 0, 2.5, -3, 1e-40, 7}
	want := make([]float32, len(x))
	require.NoError(t, ops.Relu.Launch(q, &ops.ReluArgs{Out: host(want, 2, 3), X: host(x, 2, 3)}))

	out := f.put(0, make([]float32, len(x)), 2, 3)
	args := ops.ReluArgs{Out: out, X: f.put(0, x, 2, 3)}
	for n := range uint64(3) {
		require.Equal(t, n, r.GetReferenceTierHits())
		require.NoError(t, ops.Relu.Launch(f.q, &args))
	}
	require.Equal(t, want, f.get(out))
	require.EqualValues(t, 3, r.GetReferenceTierHits())
	require.Equal(t, 3, f.q.Native().(*devicetest.Queue).Syncs(), "the device's work is complete before the host reads")
	require.Equal(t, registry.ReferenceProviderName, r.OpProviderNameAt(ops.OpRelu, f.ID(), 0))
	require.Equal(t, 1, r.OpProviderCount(ops.OpRelu, f.ID()))
	require.False(t, r.OpRegistered(ops.OpRelu, f.ID()))
}

// T15: the eager pass with one native operation: more than 0 installed, the native slot untouched with count 1, the
// matmul kernel is the CPU's.
func TestT15(t *testing.T) { eager(t) }

// T16: a second eager pass gives 0.
func TestT16(t *testing.T) {
	r, f := eager(t)
	require.Zero(t, r.RegisterReferenceTier(f.ID()))
}

func eager(t *testing.T) (*registry.Registry, fake) {
	r, q := linked(t)
	f := open(t, r)
	_, err := r.RegisterOp(ops.OpRelu, tensor.XPU, func(*registry.Queue, unsafe.Pointer) registry.Status { return 0 })
	require.NoError(t, err)
	missing := 0
	for _, d := range registry.Descriptors() {
		if !r.OpRegistered(d.Op, f.ID()) && r.OpRegistered(d.Op, q.Device()) {
			missing++
		}
	}
	require.Positive(t, missing)
	require.Equal(t, missing, r.RegisterReferenceTier(f.ID()))
	require.Equal(t, 1, r.OpProviderCount(ops.OpRelu, f.ID()))
	require.Equal(t, registry.NativeProviderName, r.OpProviderNameAt(ops.OpRelu, f.ID(), 0))
	require.Equal(t, chain(r, ops.OpMatmul, q.Device()), chain(r, ops.OpMatmul, f.ID()))
	return r, f
}

// T17: a vendor matmul that takes no interior pointer: the result is right, exactly one decline, the chain is vendor,
// then native.
func TestT17(t *testing.T) {
	r, _ := linked(t)
	f := open(t, r)
	naive := func(_ *registry.Queue, a *ops.MatmulBTArgs) registry.Status {
		out, x, w := floats(f, &a.Out), floats(f, &a.A), floats(f, &a.B)
		k := int(a.A.Shape[1])
		for i := range out {
			row, col := i/int(a.B.Shape[0]), i%int(a.B.Shape[0])
			sum := float32(0)
			for j := range k {
				sum = float32(x[row*k+j]*w[col*k+j]) + sum
			}
			out[i] = sum
		}
		return 0
	}
	_, err := ops.Register(r, ops.MatmulBT, tensor.XPU, ops.Provider[ops.MatmulBTArgs]{
		OpProvider: registry.OpProvider{Name: "mlx", Priority: 100, Tier: registry.Vendor},
		Fn: func(q *registry.Queue, a *ops.MatmulBTArgs) registry.Status {
			for _, x := range []*tensor.Tensor{&a.Out, &a.A, &a.B} {
				if x.Offset != 0 {
					return registry.Decline(registry.ReasonAlignment)
				}
			}
			return naive(q, a)
		}})
	require.NoError(t, err)
	_, err = registry.RegisterTypedOpIn(r, ops.OpMatmulBT, tensor.XPU, naive)
	require.NoError(t, err)
	require.Equal(t, "mlx", r.OpProviderNameAt(ops.OpMatmulBT, f.ID(), 0))
	require.Equal(t, registry.NativeProviderName, r.OpProviderNameAt(ops.OpMatmulBT, f.ID(), 1))
	require.Equal(t, 2, r.OpProviderCount(ops.OpMatmulBT, f.ID()))

	executed := func(kernel string) uint64 {
		for _, s := range r.Explain(ops.OpMatmulBT, f.ID()).Chain {
			if s.Kernel == kernel {
				return s.Counts.Executed
			}
		}
		return 0
	}
	x, w := []float32{1, 2, 3, 4, 5, 6}, []float32{1, 0, 0, 0, 1, 1}
	want := []float32{1, 5, 4, 11}
	for i, offset := range []int64{0, 12} { // the whole buffer, then an interior pointer
		out := f.put(0, make([]float32, 4), 2, 2)
		require.NoError(t, ops.MatmulBT.Launch(f.q, &ops.MatmulBTArgs{Out: out, A: f.put(offset, x, 2, 3), B: f.put(0, w, 2, 3)}))
		require.Equal(t, want, f.get(out))
		require.EqualValues(t, i, r.GetOpProviderStats(ops.OpMatmulBT, f.ID()).Declines)
		require.EqualValues(t, 1, executed("mlx_matmul_bt"))
		require.EqualValues(t, i, executed("vt-native_matmul_bt"))
	}
	require.Zero(t, r.GetReferenceTierHits())
}

// floats is the device's own view of a tensor.
func floats(f fake, x *tensor.Tensor) []float32 {
	b := f.Bytes(x)
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
