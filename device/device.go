// Package device has the interfaces that every backend implements (Device, Queue, Buffer, Event, Graph), the
// capability record that a backend publishes, and the table of open devices. It opens nothing by itself.
package device

import (
	"context"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// Backend opens the devices of one kind.
type Backend interface {
	// Kind is the kind of the devices that Open returns.
	Kind() tensor.Kind
	// Devices lists what is there without opening it; an error says why nothing can be listed.
	Devices() ([]Info, error)
	// Open opens device index. Nothing is probed or loaded before. The error wraps ErrUnavailable when the machine
	// lacks the device or its library.
	Open(index int32) (Device, error)
}

// Info describes a device that could be opened.
type Info struct {
	ID   tensor.Device `json:"id"`
	Name string        `json:"name"`
}

// Device is one open device instance. Methods are safe for concurrent use. Closing twice is harmless.
type Device interface {
	ID() tensor.Device
	Name() string
	// Caps is what the backend found at Open; it does not change while the device is open.
	Caps() ProviderCaps
	// Alloc returns size bytes, aligned to at least 64. Size 0 gives a valid empty buffer. ErrOutOfMemory.
	Alloc(size int64) (Buffer, error)
	NewQueue() (Queue, error)
	// Close drains the device's queues and frees what they own. Buffers must be closed before.
	Close() error
}

// Queue is an ordered stream of work on one device. Work is issued by one goroutine at a time; several queues run side
// by side. Which operating-system thread calls does not matter: a backend that cares changes or locks it itself.
type Queue interface {
	// ID is unique in the process and never used again; 0 is no queue.
	ID() uint64
	Device() tensor.Device
	// Copy copies src's elements to dst after the work queued before: same dtype and shape, both contiguous. One side
	// may be CPU memory; then the CPU side must stay untouched until Sync.
	Copy(dst, src *tensor.Tensor) error
	// Sync returns when all queued work is complete, or with ctx's error.
	Sync(ctx context.Context) error
	// Record marks the present end of the queue.
	Record() (Event, error)
	// Wait makes later work on this queue wait for e.
	Wait(e Event) error
	// Reserve returns a scratch block of at least size bytes at the given alignment (a power of two) for the launches
	// that follow on this queue. Size and alignment only grow; the block's content is undefined at each launch.
	Reserve(size, align int64) (Workspace, error)
	// Capturing reports whether launches are being recorded into a Graph instead of executed.
	Capturing() bool
	Close() error
}

// Workspace is a queue's scratch block.
type Workspace struct {
	Host    unsafe.Pointer // CPU-visible address, or nil
	DevAddr uint64
	Size    int64
}

// Buffer owns device memory.
type Buffer interface {
	Handle() uint64
	Size() int64
	Host() unsafe.Pointer // nil where the CPU cannot see it
	DevAddr() uint64      // 0 where the device has no addresses
	// Tensor returns a contiguous view of the bytes from offset on (ErrRange if they do not lie inside).
	Tensor(offset int64, t tensor.DType, shape ...int64) (tensor.Tensor, error)
	Close() error
}

// Event is a point in a queue's order.
type Event interface {
	Done() bool
	Sync(ctx context.Context) error
	Close() error
}

// Graph is captured work that can be replayed on a queue of the same device.
type Graph interface {
	Replay(q Queue) error
	Close() error
}

// WeightPacker is implemented by devices whose kernels read some weights faster in a layout of their own.
type WeightPacker interface {
	// PackWeight copies a weight once into device memory, in the layout that the device's kernels for its dtype like
	// best (Strided if there is no better one). The weight is [N,K] and comes as parts whose rows follow each other:
	// CPU memory, Strided, rank 2, one dtype, one K; N is the sum of their rows. progress, if not nil, hears of source
	// bytes done, from one goroutine at a time.
	PackWeight(parts []tensor.Tensor, progress func(bytes int64)) (tensor.Tensor, Buffer, error)
	// PackedBytes is the size of the buffer that PackWeight would allocate for n rows of k elements of dtype t.
	PackedBytes(t tensor.DType, n, k int64) (int64, error)
}
