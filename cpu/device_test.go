package cpu

import (
	"context"
	"math"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// open returns a device of its own registry, into which all kernels are registered.
func open(tb testing.TB, threads int) (*registry.Registry, *Device) {
	tb.Helper()
	r := registry.New(registry.Options{})
	require.NoError(tb, Register(r))
	d, err := Open(Options{Threads: threads, Registry: r})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, d.Close()) })
	return r, d
}

func newQueue(tb testing.TB, r *registry.Registry, d *Device) *registry.Queue {
	tb.Helper()
	q, err := d.NewQueue()
	require.NoError(tb, err)
	return r.NewQueue(q)
}

func TestOpenPublishesCaps(t *testing.T) {
	r, d := open(t, 1)
	require.Equal(t, tensor.Device{Kind: tensor.CPU}, d.ID())
	caps := r.GetDeviceProviderCaps(d.ID())
	require.True(t, caps.Valid)
	require.EqualValues(t, 1, caps.ComputeUnitCount)
	require.Equal(t, d.Caps().Arch, caps.Arch)
	require.NotEmpty(t, caps.Arch)
	require.True(t, caps.Memory.DeviceReadsHost)
	require.Contains(t, d.Name(), "1 threads")

	_, err := Open(Options{Index: -1})
	require.ErrorIs(t, err, device.ErrRange)
	b := Backend{Options{Registry: r}}
	infos, err := b.Devices()
	require.NoError(t, err)
	require.Len(t, infos, 1)
	two, err := b.Open(2)
	require.NoError(t, err)
	require.EqualValues(t, 2, two.ID().Index)
	require.NoError(t, two.Close())
}

// TestPlatform: a tier that runs here finds what it needs in the platform, and one that does not finds something missing.
func TestPlatform(t *testing.T) {
	_, d := open(t, 1)
	p := d.Caps().Platform
	require.NoError(t, p.Validate())
	require.Equal(t, device.CPUVendor, p.Vendor)
	require.Equal(t, device.Yes, p.Has("isa:"+runtime.GOARCH))
	require.Equal(t, d.Caps().Memory.Total, p.Memory)
	require.Equal(t, 1, p.ComputeUnits)
	for _, tier := range tiers() {
		need := device.Requirement{Vendors: []string{device.CPUVendor}, Features: isaFeatures(tier.features)}
		require.NoError(t, need.Validate())
		require.Equal(t, tier.set.Missing() == "", need.SatisfiedBy(p), "%s: %v", tier.name, need.Missing(p))
	}
	require.Len(t, isaNames, len(featureNames))
	all := isaFeatures(1<<len(isaNames) - 1)
	require.True(t, slices.IsSorted(all))
	for _, file := range []string{"cpu-avx512", "cpu-avx2", "cpu-neon"} {
		p, err := device.ReadPlatform("../docs/platforms/" + file + ".json")
		require.NoError(t, err)
		for _, f := range p.Features {
			if f != "isa:amd64" && f != "isa:arm64" {
				require.Contains(t, all, f, file)
			}
		}
	}
}

func TestBuffer(t *testing.T) {
	_, d := open(t, 1)
	b, err := d.Alloc(100)
	require.NoError(t, err)
	require.EqualValues(t, 100, b.Size())
	require.Zero(t, uintptr(b.Host())%64)
	require.NotZero(t, b.Handle())
	x, err := b.Tensor(40, tensor.F32, 3, 5)
	require.NoError(t, err)
	require.Equal(t, unsafe.Add(b.Host(), 40), x.Host)
	require.Equal(t, d.ID(), x.Device)
	for _, c := range []struct {
		off   int64
		shape []int64
	}{{-4, []int64{1}}, {44, []int64{3, 5}}, {2, []int64{1}}, {104, []int64{0}}, {0, []int64{math.MaxInt64 / 8}}} {
		_, err := b.Tensor(c.off, tensor.F32, c.shape...)
		require.ErrorIs(t, err, device.ErrRange, "%v", c)
	}
	_, err = b.Tensor(0, tensor.F32, math.MaxInt64, 2)
	require.ErrorIs(t, err, tensor.ErrOverflow)
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())

	_, err = d.Alloc(-1)
	require.ErrorIs(t, err, device.ErrRange)
	_, err = d.Alloc(math.MaxInt64)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	empty, err := d.Alloc(0)
	require.NoError(t, err)
	_, err = empty.Tensor(0, tensor.F32, 0, 4)
	require.NoError(t, err)
	require.NoError(t, empty.Close())
}

func TestQueue(t *testing.T) {
	_, d := open(t, 2)
	n, err := d.NewQueue()
	require.NoError(t, err)
	q := n.(*Queue)
	other, err := d.NewQueue()
	require.NoError(t, err)
	require.NotEqual(t, q.ID(), other.ID())
	require.NotZero(t, q.ID())
	require.False(t, q.Capturing())

	src := tensor.Must(tensor.FromSlice([]float32{1, 2, 3, 4}, tensor.F32, 2, 2))
	dst := tensor.Must(tensor.FromSlice(make([]float32, 4), tensor.F32, 2, 2))
	require.NoError(t, q.Copy(&dst, &src))
	require.Equal(t, []float32{1, 2, 3, 4}, tensor.Slice[float32](&dst))
	flat, err := dst.View(4)
	require.NoError(t, err)
	require.ErrorIs(t, q.Copy(&flat, &src), tensor.ErrShape)
	column, err := dst.Slice(1, 0, 1)
	require.NoError(t, err)
	require.ErrorIs(t, q.Copy(&column, &column), tensor.ErrLayout)
	ints := tensor.Must(tensor.FromSlice(make([]int32, 4), tensor.I32, 2, 2))
	require.ErrorIs(t, q.Copy(&ints, &src), tensor.ErrDType)
	gone := tensor.Tensor{DType: tensor.F32, Rank: 2, Shape: src.Shape, Stride: src.Stride, DevAddr: 64}
	require.ErrorIs(t, q.Copy(&dst, &gone), device.ErrUnsupported)

	w, err := q.Reserve(1000, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, w.Size, int64(1000))
	require.Zero(t, uintptr(w.Host)%64)
	smaller, err := q.Reserve(10, 4096)
	require.NoError(t, err)
	require.Equal(t, w, smaller, "the block only grows")
	_, err = q.Reserve(10, 1<<20)
	require.ErrorIs(t, err, device.ErrUnsupported)
	_, err = q.Reserve(math.MaxInt64, 64)
	require.ErrorIs(t, err, device.ErrOutOfMemory)

	ctx, cancel := context.WithCancel(context.Background())
	e, err := q.Record()
	require.NoError(t, err)
	require.True(t, e.Done())
	require.NoError(t, q.Wait(e))
	require.NoError(t, q.Sync(ctx))
	cancel()
	require.ErrorIs(t, q.Sync(ctx), context.Canceled)
	require.ErrorIs(t, e.Sync(ctx), context.Canceled)
	require.NoError(t, e.Close())

	require.NoError(t, q.Close())
	require.NoError(t, q.Close())
	_, err = q.Reserve(1, 1)
	require.ErrorIs(t, err, device.ErrClosed)
	require.ErrorIs(t, q.Copy(&dst, &src), device.ErrClosed)
	require.NoError(t, d.Close())
	require.True(t, other.(*Queue).closed, "a device closes its queues")
	_, err = d.NewQueue()
	require.ErrorIs(t, err, device.ErrClosed)
}
