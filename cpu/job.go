package cpu

import (
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/opmux/opmux/cpu/internal/offheap"
	"github.com/opmux/opmux/cpu/internal/pool"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
)

// scratchAlign is the alignment of a queue's scratch block.
const scratchAlign = 4096

// job is what the parts of one launch share. A queue has one, so that a launch allocates nothing; nothing is kept from
// one launch to the next but the scratch memory. Two launches at once, which a queue forbids, wait for each other.
type job struct {
	mu sync.Mutex // held by the launch

	tier    *tier
	args    unsafe.Pointer // the op's record
	scratch []byte         // see layout
	n       [8]int         // numbers that the launch worked out for its parts

	pool   *pool.Pool // nil: everything runs on the caller
	mem    offheap.Block
	shared int // bytes of scratch that all workers share
	local  int // bytes of each worker's own scratch, behind them
	closed bool

	part  part
	items int
	step  int
}

// part computes the items lo <= i < hi of a launch.
type part func(j *job, lo, hi, worker int)

// borrowed holds the jobs of launches that come from a queue of another device: they run on the caller alone, with
// scratch memory of the Go heap.
var borrowed = sync.Pool{New: func() any { return new(job) }}

// begin returns the job of a launch on q; end gives it back.
func begin(q *registry.Queue, t *tier, args unsafe.Pointer) *job {
	j := (*job)(nil)
	if own, ok := q.Native().(*Queue); ok {
		j = &own.job
	} else {
		j = borrowed.Get().(*job)
	}
	j.mu.Lock()
	j.tier, j.args = t, args
	return j
}

func (j *job) end() {
	j.tier, j.args, j.part = nil, nil, nil
	j.mu.Unlock()
	if j.pool == nil {
		borrowed.Put(j)
	}
}

// grain is the least work, in nanoseconds, that is worth another chunk: the pool hands chunks out in well under one.
const grain = 4000

// each runs f over the items 0..n-1 on the workers, in chunks of neighbours. cost is about the time of one item in
// nanoseconds; it decides on how many chunks there are, never on what comes out.
func (j *job) each(n int, cost float64, f part) {
	chunks := 1
	if threads := j.pool.Threads(); threads > 1 {
		chunks = min(int(min(float64(n)*cost/grain, 1<<20)), n, 16*threads)
	}
	j.chunks(n, (n+max(chunks, 1)-1)/max(chunks, 1), f)
}

// chunks runs f over the items 0..n-1 on the workers, step neighbours at a time.
func (j *job) chunks(n, step int, f part) {
	if n <= 0 {
		return
	}
	j.items, j.step, j.part = n, step, f
	j.pool.Run((n+step-1)/step, j)
}

// Do implements pool.Task.
func (j *job) Do(i, worker int) {
	lo := i * j.step
	j.part(j, lo, min(lo+j.step, j.items), worker)
}

// layout makes room for shared bytes that all workers see and local bytes for each of them.
func (j *job) layout(shared, local int) error {
	const line = 64
	shared, local = (shared+line-1)&^(line-1), (local+line-1)&^(line-1)
	threads := j.pool.Threads()
	if shared < 0 || local < 0 || local > (math.MaxInt-shared)/threads {
		return fmt.Errorf("cpu: workspace of %d threads: %w", threads, device.ErrOutOfMemory)
	}
	j.shared, j.local = shared, local
	return j.reserve(int64(shared) + int64(local)*int64(threads))
}

// common returns the shared scratch as elements of T.
func common[T any](j *job) []T { return cast[T](j.scratch[:j.shared]) }

// own returns a worker's scratch as elements of T.
func own[T any](j *job, worker int) []T {
	return cast[T](j.scratch[j.shared+worker*j.local:][:j.local])
}

// cast views bytes, which are aligned to a cache line, as elements of T.
func cast[T any](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// reserve grows the scratch memory to at least size bytes.
func (j *job) reserve(size int64) error {
	if j.closed {
		return fmt.Errorf("cpu: workspace: %w", device.ErrClosed)
	}
	if size <= int64(len(j.scratch)) {
		return nil
	}
	if j.pool == nil {
		b := make([]byte, size+scratchAlign)
		j.scratch = b[-uintptr(unsafe.Pointer(unsafe.SliceData(b)))%scratchAlign:]
		return nil
	}
	// Grow by a half at least: a length that rises by one must not mean a new block each time.
	if half := int64(len(j.scratch)) / 2; size < math.MaxInt64-half {
		size = max(size, int64(len(j.scratch))+half)
	}
	b, err := offheap.Alloc((size + scratchAlign - 1) &^ (scratchAlign - 1))
	if err != nil {
		return fmt.Errorf("cpu: workspace: %w: %w", device.ErrOutOfMemory, err)
	}
	old := j.mem
	j.mem, j.scratch = b, b.Bytes()
	return old.Free()
}

// close waits for the launch that runs and frees the scratch memory.
func (j *job) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed, j.scratch = true, nil
	return j.mem.Free()
}
