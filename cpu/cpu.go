// Package cpu is the CPU backend: it opens the processor as a device and registers the kernels that run on it.
//
// Kernels come in tiers, each a provider: avx512vnni and avx2 are Go assembly (amx and avxvnni too, for the quantised
// products only), portable is the same code over plain Go loops, and reference is the oracle that follows the catalogue's
// formulas to the bit. The fast tiers share one driver for each op, written over the kernel sets of package simd. All work
// is complete when a launch returns; a launch allocates nothing once its queue's scratch memory has grown to what it
// needs.
//
// A fast tier packs the activations of a quantised product as simd says; the reference packs them as ggml's portable code
// does for the weight's type (q8_0, q8_1 or q8_K) and multiplies in its order. Weights without such a loop are decoded to
// f32 there and multiplied with f32 activations.
//
// Importing the package registers the kernels in registry.Default; Register does it for another registry.
package cpu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/opmux/opmux/cpu/internal/limits"
	"github.com/opmux/opmux/cpu/internal/offheap"
	"github.com/opmux/opmux/cpu/internal/pool"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Options say how a CPU device is opened. The zero value uses every processor that the process may use.
type Options struct {
	// Threads is the most threads that one launch uses; 0 or less sets no limit of its own. See Threads.
	Threads int
	// Index is the device's index, for processes that open several, each with threads of its own.
	Index int32
	// Registry is where Open publishes the device's capabilities; nil is registry.Default.
	Registry *registry.Registry
}

// Threads returns the number of threads that a device opened with Options.Threads = option uses,
//
//	max(1, min(processors of the affinity mask, whole processors of the control-group quota, option))
//
// and the facts behind it, one sentence each.
func Threads(option int) (n int, why []string) { return limits.Threads(option) }

// Backend opens CPU devices. It implements device.Backend.
type Backend struct {
	Options Options // for Open; Index is Open's argument
}

var _ device.Backend = Backend{}

// Kind returns tensor.CPU.
func (Backend) Kind() tensor.Kind { return tensor.CPU }

// Devices lists the one CPU.
func (Backend) Devices() ([]device.Info, error) {
	return []device.Info{{ID: tensor.Device{Kind: tensor.CPU}, Name: name()}}, nil
}

// Open opens the CPU as device index.
func (b Backend) Open(index int32) (device.Device, error) {
	o := b.Options
	o.Index = index
	return Open(o)
}

// Device is an open CPU: worker threads, and the memory that its queues and buffers own. It implements device.Device and
// device.WeightPacker.
type Device struct {
	id   tensor.Device
	caps device.ProviderCaps
	pool *pool.Pool

	mu     sync.Mutex
	queues map[*Queue]struct{}
	closed bool
}

var (
	_ device.Device         = (*Device)(nil)
	_ device.WeightPacker   = (*Device)(nil)
	_ device.HealthReporter = (*Device)(nil)
)

// Health returns nil: a process does not outlive its processor.
func (d *Device) Health() error { return nil }

// Open starts the worker threads and publishes what the CPU can do in o.Registry. A negative index is ErrRange.
func Open(o Options) (*Device, error) {
	if o.Index < 0 {
		return nil, fmt.Errorf("cpu: device index %d: %w", o.Index, device.ErrRange)
	}
	r := o.Registry
	if r == nil {
		r = registry.Default()
	}
	n, _ := Threads(o.Threads)
	d := &Device{id: tensor.Device{Kind: tensor.CPU, Index: o.Index}, pool: pool.New(n), queues: map[*Queue]struct{}{}}
	d.caps = probe(d.id, n)
	if err := r.SetDeviceProviderCaps(d.id, d.caps); err != nil {
		d.pool.Close()
		return nil, fmt.Errorf("cpu: publishing capabilities: %w", err)
	}
	return d, nil
}

// ID returns the device's identity.
func (d *Device) ID() tensor.Device { return d.id }

// Name returns the architecture and the number of threads.
func (d *Device) Name() string { return fmt.Sprintf("%s, %d threads", name(), d.pool.Threads()) }

func name() string { return "CPU (" + runtime.GOARCH + ")" }

// Caps returns what the CPU can do: Arch is the best tier, Features the bits of this package's Feature constants,
// ComputeUnitCount the threads. Platform names the processor and has its instruction sets as features: "isa:avx2",
// "isa:avx512_vnni", "isa:amx_int8" only where the kernel grants the tiles.
func (d *Device) Caps() device.ProviderCaps { return d.caps }

// NewQueue returns a queue. Launches of several queues run side by side; at any time one of them has the worker threads
// and the others run on their callers.
func (d *Device) NewQueue() (device.Queue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("cpu: %v: %w", d.id, device.ErrClosed)
	}
	q := &Queue{id: device.NextID(), dev: d}
	q.job.pool = d.pool
	d.queues[q] = struct{}{}
	return q, nil
}

// Close closes the device's queues and stops its threads.
func (d *Device) Close() error {
	d.mu.Lock()
	queues := d.queues
	d.queues, d.closed = nil, true
	d.mu.Unlock()
	var err error
	for q := range queues {
		err = errors.Join(err, q.Close())
	}
	d.pool.Close()
	return err
}

// Alloc returns zeroed memory off the Go heap, in huge pages where it is large and the system has them.
func (d *Device) Alloc(size int64) (device.Buffer, error) {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("cpu: %v: %w", d.id, device.ErrClosed)
	}
	b, err := newBuffer(d.id, size)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Buffer is memory of a CPU device. It implements device.Buffer.
type Buffer struct {
	handle uint64
	dev    tensor.Device
	mem    offheap.Block
}

func newBuffer(dev tensor.Device, size int64) (*Buffer, error) {
	if size < 0 {
		return nil, fmt.Errorf("cpu: buffer of %d bytes: %w", size, device.ErrRange)
	}
	mem, err := offheap.Alloc(size)
	if err != nil {
		return nil, fmt.Errorf("cpu: buffer: %w: %w", device.ErrOutOfMemory, err)
	}
	return &Buffer{handle: device.NextID(), dev: dev, mem: mem}, nil
}

// Handle returns the buffer's number.
func (b *Buffer) Handle() uint64 { return b.handle }

// Size returns the bytes asked for; 0 after Close.
func (b *Buffer) Size() int64 { return b.mem.Size() }

// Host returns the first byte, nil if the buffer is empty or closed.
func (b *Buffer) Host() unsafe.Pointer { return b.mem.Ptr() }

// DevAddr returns 0: CPU memory is addressed by Host.
func (b *Buffer) DevAddr() uint64 { return 0 }

// Tensor returns a contiguous view of the bytes from offset on.
func (b *Buffer) Tensor(offset int64, t tensor.DType, shape ...int64) (tensor.Tensor, error) {
	x, err := tensor.New(nil, t, shape...)
	if err != nil {
		return tensor.Tensor{}, err
	}
	n, err := x.Bytes()
	if err != nil {
		return tensor.Tensor{}, err
	}
	if offset < 0 || n > b.Size() || offset > b.Size()-n {
		return tensor.Tensor{}, fmt.Errorf("cpu: %v at byte %d of a buffer of %d: %w", &x, offset, b.Size(), device.ErrRange)
	}
	if align := int64(max(t.Size(), 1)); offset%align != 0 {
		return tensor.Tensor{}, fmt.Errorf("cpu: %v at byte %d is not aligned to %d: %w", &x, offset, align, device.ErrRange)
	}
	x.Host, x.Device = unsafe.Add(b.mem.Ptr(), offset), b.dev
	return x, nil
}

// Close frees the memory. Tensors on it must not be used any more.
func (b *Buffer) Close() error { return b.mem.Free() }

// Event is a point in a queue's order. Work on a CPU queue is complete when it has been issued, so it has always passed.
type Event struct{}

// Done returns true.
func (Event) Done() bool { return true }

// Sync returns ctx's error.
func (Event) Sync(ctx context.Context) error { return ctx.Err() }

// Close does nothing.
func (Event) Close() error { return nil }
