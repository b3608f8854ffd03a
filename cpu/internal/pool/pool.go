// Package pool runs the chunks of one job at a time on a fixed set of goroutines, the caller among them.
//
// A decode step issues hundreds of jobs of 10 to 300 µs, so the workers spin for a bounded time between jobs (a woken
// goroutine would start too late to help), yielding to the scheduler all the while so that a garbage collection never
// waits for them, and then park. Chunks are claimed one by one from a counter: a worker that the operating system took
// off its core delays only the chunk it holds.
package pool

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Task is a job: Do computes chunk i. worker is the number of the goroutine, below Threads, for scratch memory of its
// own; which worker gets which chunk is arbitrary, so results must not depend on it.
type Task interface {
	Do(i, worker int)
}

// padded keeps a hot word on a cache line of its own.
type padded[T any] struct {
	_ [64]byte
	v T
	_ [64]byte
}

// Pool is a set of workers. The zero value and nil run everything on the caller.
type Pool struct {
	state  padded[atomic.Uint64] // chunks of the job << 32 | next chunk to claim
	done   padded[atomic.Uint32] // chunks finished
	parked padded[atomic.Int32]

	mu      sync.Mutex // held by the caller whose job runs
	task    Task
	panic   atomic.Pointer[any]
	waiting atomic.Bool   // the caller sleeps on finish
	finish  chan struct{} // capacity 1

	workers int
	spin    time.Duration
	wake    chan struct{}
	stopped atomic.Bool
	wg      sync.WaitGroup
}

// spinTime is how long an idle worker looks for the next job before it parks.
const spinTime = 200 * time.Microsecond

// New starts a pool of threads goroutines in all: threads-1 workers and the caller of Run. It spins only if the process
// has a processor for each of them.
func New(threads int) *Pool {
	p := &Pool{workers: max(threads, 1) - 1, finish: make(chan struct{}, 1)}
	if threads <= runtime.GOMAXPROCS(0) {
		p.spin = spinTime
	}
	p.wake = make(chan struct{}, p.workers)
	p.wg.Add(p.workers)
	for id := 1; id <= p.workers; id++ {
		go p.work(id)
	}
	return p
}

// Threads is the number of goroutines that share a job, at least 1. Worker numbers lie below it.
func (p *Pool) Threads() int {
	if p == nil {
		return 1
	}
	return p.workers + 1
}

// Run calls t.Do for every chunk 0 <= i < n (n below 1<<31) and returns when all are done. It allocates nothing. If the pool is busy
// (another goroutine's job, or Run called from inside a chunk) or closed, the caller does all chunks itself, as worker
// 0. If a chunk panics, the chunks not yet begun are skipped and Run panics with that value; the workers live on.
func (p *Pool) Run(n int, t Task) {
	if n <= 1 || p == nil || p.workers == 0 || !p.mu.TryLock() {
		serial(n, t)
		return
	}
	if p.stopped.Load() {
		p.mu.Unlock()
		serial(n, t)
		return
	}
	defer p.end() // also after runtime.Goexit in a chunk
	p.task = t
	p.done.v.Store(0)
	p.state.v.Store(uint64(n) << 32)
	for range min(int(p.parked.v.Load()), n-1) {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
	p.drain(0)
}

func serial(n int, t Task) {
	for i := range n {
		t.Do(i, 0)
	}
}

// end waits for the chunks that workers still hold, closes the job and hands on a panic.
func (p *Pool) end() {
	n := uint32(p.state.v.Load() >> 32)
	for !p.await(func() bool { return p.done.v.Load() == n }) {
		p.waiting.Store(true)
		if p.done.v.Load() != n {
			<-p.finish
		}
		p.waiting.Store(false)
	}
	select {
	case <-p.finish: // a signal that came when nobody slept any more
	default:
	}
	p.task = nil
	failed := p.panic.Swap(nil)
	p.mu.Unlock()
	if failed != nil && failed != &exited {
		panic(*failed)
	}
}

// exited stands for runtime.Goexit in a chunk of the caller, which goes on with its exit.
var exited any = "pool: runtime.Goexit in a chunk"

// claim takes the next chunk of the current job. A claim keeps that job from ending, so its task may be read.
func (p *Pool) claim() (i int, ok bool) {
	w := p.state.v.Add(1) - 1
	return int(uint32(w)), uint32(w) < uint32(w>>32)
}

// open reports whether there is a chunk to claim, without writing.
func (p *Pool) open() bool {
	w := p.state.v.Load()
	return uint32(w) < uint32(w>>32)
}

// drain works until no chunk is left.
func (p *Pool) drain(worker int) {
	for p.open() {
		i, ok := p.claim()
		if !ok {
			return
		}
		p.chunk(i, worker)
	}
}

// chunk runs one claimed chunk, and counts it whatever happens in it.
func (p *Pool) chunk(i, worker int) {
	returned := false
	defer func() {
		if !returned {
			v := &exited
			if r := recover(); r != nil {
				v = &r
			} else if worker != 0 {
				r = exited
				v = &r
			}
			p.panic.CompareAndSwap(nil, v)
		}
		n := uint32(p.state.v.Load() >> 32)
		if p.done.v.Add(1) == n && p.waiting.Load() {
			select {
			case p.finish <- struct{}{}:
			default:
			}
		}
	}()
	if p.panic.Load() == nil {
		p.task.Do(i, worker)
	}
	returned = true
}

func (p *Pool) work(id int) {
	defer func() {
		if p.stopped.Load() {
			p.wg.Done()
			return
		}
		go p.work(id) // a chunk ended this goroutine with runtime.Goexit
	}()
	ready := func() bool { return p.open() || p.stopped.Load() }
	for !p.stopped.Load() {
		if p.await(ready) {
			p.drain(id)
			continue
		}
		p.parked.v.Add(1)
		if !ready() { // Run looks at parked after it has published the job
			<-p.wake
		}
		p.parked.v.Add(-1)
	}
}

// await spins until cond holds or the spin time is over, and reports whether it holds. Gosched in every round lets the
// runtime stop this goroutine for a collection and run others on this processor.
func (p *Pool) await(cond func() bool) bool {
	if cond() {
		return true
	}
	if p.spin == 0 {
		return false
	}
	for start := time.Now(); time.Since(start) < p.spin; runtime.Gosched() {
		for range 64 {
			if cond() {
				return true
			}
			pause()
		}
	}
	return false
}

// Close stops the workers and waits for them. Jobs that run are finished first; later ones run on their caller. It must
// not be called from inside a chunk. Closing twice is harmless.
func (p *Pool) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped.Swap(true) {
		return
	}
	if p.wake != nil {
		close(p.wake)
	}
	p.wg.Wait()
}
