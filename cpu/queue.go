package cpu

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/opmux/opmux/cpu/internal/offheap"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Queue runs launches one after another on the calling goroutine and the device's worker threads; each is complete when
// it returns. It implements device.Queue.
type Queue struct {
	id     uint64
	dev    *Device
	job    job
	block  offheap.Block // what Reserve gave out; the kernels of this package have scratch memory of their own
	closed bool
}

var _ device.Queue = (*Queue)(nil)

// ID returns the queue's number.
func (q *Queue) ID() uint64 { return q.id }

// Device returns the device's identity.
func (q *Queue) Device() tensor.Device { return q.dev.id }

// Copy copies the elements of src to dst at once. Either may lie on any CPU device.
func (q *Queue) Copy(dst, src *tensor.Tensor) error {
	if q.closed {
		return fmt.Errorf("cpu: copy: %w", device.ErrClosed)
	}
	if dst.DType != src.DType || dst.Layout != src.Layout {
		return fmt.Errorf("cpu: copy of %v to %v: %w", src, dst, tensor.ErrDType)
	}
	if dst.Rank != src.Rank || dst.Shape != src.Shape {
		return fmt.Errorf("cpu: copy of %v to %v: %w", src, dst, tensor.ErrShape)
	}
	n, err := dst.Bytes()
	if err == nil {
		_, err = src.Bytes()
	}
	if err != nil {
		return fmt.Errorf("cpu: copy: %w", err)
	}
	if n > 0 && (dst.Host == nil || src.Host == nil) {
		return fmt.Errorf("cpu: copy of %v to %v: no memory the CPU can see: %w", src, dst, device.ErrUnsupported)
	}
	copy(unsafe.Slice((*byte)(dst.Host), n), unsafe.Slice((*byte)(src.Host), n))
	return nil
}

// Sync returns ctx's error: there is nothing to wait for.
func (q *Queue) Sync(ctx context.Context) error { return ctx.Err() }

// Record returns an event that has passed.
func (q *Queue) Record() (device.Event, error) { return Event{}, nil }

// Wait waits for e, which may be another device's.
func (q *Queue) Wait(e device.Event) error { return e.Sync(context.Background()) }

// Reserve returns the queue's scratch block, grown to at least size bytes; growing invalidates what an earlier call returned.
func (q *Queue) Reserve(size, align int64) (device.Workspace, error) {
	if q.closed {
		return device.Workspace{}, fmt.Errorf("cpu: workspace: %w", device.ErrClosed)
	}
	if align < 0 || align&(align-1) != 0 || align > scratchAlign {
		return device.Workspace{}, fmt.Errorf("cpu: workspace aligned to %d: at most %d: %w", align, scratchAlign, device.ErrUnsupported)
	}
	if size > q.block.Size() {
		b, err := offheap.Alloc((size + scratchAlign - 1) &^ (scratchAlign - 1))
		if err != nil {
			return device.Workspace{}, fmt.Errorf("cpu: workspace: %w: %w", device.ErrOutOfMemory, err)
		}
		old := q.block
		q.block = b
		if err := old.Free(); err != nil {
			return device.Workspace{}, err
		}
	}
	return device.Workspace{Host: q.block.Ptr(), Size: q.block.Size()}, nil
}

// Capturing returns false: CPU launches are not recorded.
func (q *Queue) Capturing() bool { return false }

// Close waits for a launch that runs and frees the scratch memory. Later launches fail with ErrClosed.
func (q *Queue) Close() error {
	q.dev.mu.Lock()
	delete(q.dev.queues, q)
	q.dev.mu.Unlock()
	q.closed = true
	return errors.Join(q.job.close(), q.block.Free())
}
