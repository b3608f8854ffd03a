// Package devicetest has a small synchronous fake device for tests of the seam: work is done when a call returns, memory
// is Go memory with made-up device addresses, and the host sees it or not as the options say. It counts what tests ask
// about: synchronisations and scratch memory.
package devicetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Options describe the fake.
type Options struct {
	ID           tensor.Device // usually of kind XPU
	Unified      bool          // the host reads the device's memory: buffers have a Host address
	ComputeMajor int32
	ReserveLimit int64 // most scratch bytes that a queue grants, 0: any
}

// Device is a fake device. It implements device.Device.
type Device struct {
	device.HealthState
	o Options

	mu      sync.Mutex
	buffers map[uint64][]byte
	next    uint64 // device address of the next buffer
}

var _ interface {
	device.Device
	device.HealthReporter
} = (*Device)(nil)

// Open returns a fake device.
func Open(o Options) *Device {
	return &Device{o: o, buffers: map[uint64][]byte{}, next: 1 << 40}
}

// ID returns the identity given to Open.
func (d *Device) ID() tensor.Device { return d.o.ID }

// Name returns "fake".
func (d *Device) Name() string { return "fake" }

// Caps returns a probed record whose memory facts follow Options.Unified.
func (d *Device) Caps() device.ProviderCaps {
	return device.ProviderCaps{Device: d.o.ID, Valid: true, State: device.Probed, Arch: "fake", ComputeMajor: d.o.ComputeMajor,
		Memory: device.Memory{SharedPhysical: d.o.Unified, HostReadsDeviceAlloc: d.o.Unified, HostVisibleAlloc: d.o.Unified,
			CoherentWithoutFlush: d.o.Unified}}
}

// Lose makes the device lost: it reports so, and Alloc, NewQueue, and its queues' Copy, Sync, Record and Reserve fail with
// the *device.LostError that is returned.
func (d *Device) Lose(cause error) error { return d.HealthState.Lose(d.o.ID, cause) }

// Alloc returns zeroed memory, aligned to 64 and with a device address that is a multiple of 256.
func (d *Device) Alloc(size int64) (device.Buffer, error) {
	if err := d.Health(); err != nil {
		return nil, err
	}
	if size < 0 {
		return nil, fmt.Errorf("devicetest: %d bytes: %w", size, device.ErrRange)
	}
	raw := make([]byte, size+64)
	skip := -uintptr(unsafe.Pointer(&raw[0])) & 63
	d.mu.Lock()
	defer d.mu.Unlock()
	b := &Buffer{d: d, id: device.NextID(), mem: raw[skip : skip+uintptr(size) : skip+uintptr(size)], addr: d.next}
	d.next += uint64(size+511) &^ 255
	d.buffers[b.id] = b.mem
	return b, nil
}

// NewQueue returns a *Queue.
func (d *Device) NewQueue() (device.Queue, error) {
	if err := d.Health(); err != nil {
		return nil, err
	}
	return &Queue{id: device.NextID(), d: d}, nil
}

// Close does nothing.
func (d *Device) Close() error { return nil }

// Bytes returns the memory that x [contiguous] covers, whether or not the host may see it: what a kernel of this device
// computes on. Nil for a tensor of another device.
func (d *Device) Bytes(x *tensor.Tensor) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := x.Bytes()
	mem, ok := d.buffers[x.Buffer]
	if err != nil || !ok || x.Offset < 0 || x.Offset+n > int64(len(mem)) {
		return nil
	}
	return mem[x.Offset : x.Offset+n]
}

// Buffer is memory of a fake device.
type Buffer struct {
	d    *Device
	id   uint64
	mem  []byte
	addr uint64
}

// Handle returns the process-unique number of the buffer.
func (b *Buffer) Handle() uint64 { return b.id }

// Size returns the bytes asked for.
func (b *Buffer) Size() int64 { return int64(len(b.mem)) }

// Host returns the memory's address on a unified device, nil otherwise.
func (b *Buffer) Host() unsafe.Pointer {
	if !b.d.o.Unified {
		return nil
	}
	return unsafe.Pointer(unsafe.SliceData(b.mem))
}

// DevAddr returns the made-up device address.
func (b *Buffer) DevAddr() uint64 { return b.addr }

// Tensor returns a contiguous view; ErrRange if it does not lie inside.
func (b *Buffer) Tensor(offset int64, t tensor.DType, shape ...int64) (tensor.Tensor, error) {
	x, err := tensor.New(nil, t, shape...)
	if err != nil {
		return tensor.Tensor{}, err
	}
	n, err := x.Bytes()
	if err != nil {
		return tensor.Tensor{}, err
	}
	if offset < 0 || offset > b.Size() || n > b.Size()-offset {
		return tensor.Tensor{}, fmt.Errorf("devicetest: %d bytes at %d of %d: %w", n, offset, b.Size(), device.ErrRange)
	}
	x.Device, x.Buffer, x.Offset, x.DevAddr = b.d.o.ID, b.id, offset, b.addr+uint64(offset)
	if h := b.Host(); h != nil {
		x.Host = unsafe.Add(h, offset)
	}
	return x, nil
}

// Close frees the buffer.
func (b *Buffer) Close() error {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	delete(b.d.buffers, b.id)
	return nil
}

// Queue is a fake queue: everything is complete when it returns.
type Queue struct {
	id        uint64
	d         *Device
	syncs     atomic.Int64
	capturing atomic.Bool
	scratch   []uint64
	SyncErr   error // what Sync returns
}

// ID returns the process-unique number of the queue.
func (q *Queue) ID() uint64 { return q.id }

// Device returns the device's identity.
func (q *Queue) Device() tensor.Device { return q.d.o.ID }

// Copy copies bytes between contiguous tensors of equal dtype and shape, on this device or the CPU.
func (q *Queue) Copy(dst, src *tensor.Tensor) error {
	if err := q.d.Health(); err != nil {
		return err
	}
	to, from := q.bytes(dst), q.bytes(src)
	if to == nil || from == nil || len(to) != len(from) || dst.DType != src.DType {
		return fmt.Errorf("devicetest: copy %v to %v: %w", src, dst, device.ErrRange)
	}
	copy(to, from)
	return nil
}

func (q *Queue) bytes(x *tensor.Tensor) []byte {
	if x.Device.Kind == tensor.CPU {
		return tensor.Slice[uint8](x)
	}
	return q.d.Bytes(x)
}

// Sync counts the call and returns SyncErr, or the device's loss.
func (q *Queue) Sync(context.Context) error {
	q.syncs.Add(1)
	if q.d != nil {
		if err := q.d.Health(); err != nil {
			return err
		}
	}
	return q.SyncErr
}

// Syncs returns how often Sync was called.
func (q *Queue) Syncs() int { return int(q.syncs.Load()) }

// Record returns an event that is done.
func (q *Queue) Record() (device.Event, error) { return event{}, q.d.Health() }

// Wait returns at once.
func (q *Queue) Wait(device.Event) error { return nil }

// Reserve grows the scratch block; ErrOutOfMemory past Options.ReserveLimit. Every block is aligned to 8 only where
// align asks for no more than that; larger alignments come from a larger block.
func (q *Queue) Reserve(size, align int64) (device.Workspace, error) {
	if err := q.d.Health(); err != nil {
		return device.Workspace{}, err
	}
	if size < 0 || align <= 0 || align&(align-1) != 0 {
		return device.Workspace{}, fmt.Errorf("devicetest: scratch of %d bytes at %d: %w", size, align, device.ErrRange)
	}
	if q.d.o.ReserveLimit > 0 && size > q.d.o.ReserveLimit {
		return device.Workspace{}, fmt.Errorf("devicetest: scratch of %d bytes: %w", size, device.ErrOutOfMemory)
	}
	if need := (size+align)/8 + 1; int64(len(q.scratch)) < need {
		q.scratch = make([]uint64, need)
	}
	p := unsafe.Pointer(unsafe.SliceData(q.scratch))
	skip := -uintptr(p) & uintptr(align-1)
	return device.Workspace{Host: unsafe.Add(p, skip), Size: int64(len(q.scratch))*8 - int64(skip)}, nil
}

// Capturing returns what SetCapturing set.
func (q *Queue) Capturing() bool { return q.capturing.Load() }

// SetCapturing makes the queue claim that launches are being recorded.
func (q *Queue) SetCapturing(on bool) { q.capturing.Store(on) }

// Close does nothing.
func (q *Queue) Close() error { return nil }

type event struct{}

func (event) Done() bool                 { return true }
func (event) Sync(context.Context) error { return nil }
func (event) Close() error               { return nil }
