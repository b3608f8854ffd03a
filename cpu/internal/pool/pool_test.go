package pool

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type taskFunc func(i, worker int)

func (f taskFunc) Do(i, worker int) { f(i, worker) }

func TestEveryChunkOnce(t *testing.T) {
	for _, threads := range []int{0, 1, 2, 3, 8} {
		p := New(threads)
		for _, n := range []int{0, 1, 2, 3, 17, 1000} {
			hits := make([]atomic.Int32, n)
			p.Run(n, taskFunc(func(i, worker int) {
				require.Less(t, worker, p.Threads())
				hits[i].Add(1)
			}))
			for i := range hits {
				require.EqualValues(t, 1, hits[i].Load(), "threads %d n %d chunk %d", threads, n, i)
			}
		}
		p.Close()
		p.Close()
		ran := 0
		p.Run(5, taskFunc(func(int, int) { ran++ }))
		require.Equal(t, 5, ran, "a closed pool runs on the caller")
	}
}

// The workers take part: with the caller held in its chunk the others finish all the rest.
func TestWorkersShare(t *testing.T) {
	p := New(4)
	defer p.Close()
	var done atomic.Int32
	p.Run(8, taskFunc(func(i, worker int) {
		if worker == 0 {
			for deadline := time.Now().Add(10 * time.Second); done.Load() < 7 && time.Now().Before(deadline); {
				runtime.Gosched()
			}
		}
		done.Add(1)
	}))
	require.EqualValues(t, 8, done.Load())
}

// A worker that parked long ago is woken.
func TestWakesParked(t *testing.T) {
	p := New(2)
	defer p.Close()
	for range 5 {
		require.Eventually(t, func() bool { return p.parked.v.Load() == 1 }, 10*time.Second, time.Millisecond)
		var workers [2]atomic.Int32
		p.Run(2, taskFunc(func(i, worker int) {
			workers[worker].Add(1)
			for workers[1-worker].Load() == 0 { // neither ends before the other has begun
				runtime.Gosched()
			}
		}))
	}
}

func TestNestedAndConcurrent(t *testing.T) {
	p := New(3)
	defer p.Close()
	var total atomic.Int64
	inner := taskFunc(func(int, int) { total.Add(1) })
	outer := taskFunc(func(int, int) { p.Run(10, inner) })
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				p.Run(5, outer)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 4*100*5*10, total.Load())
}

func TestPanicReachesCaller(t *testing.T) {
	p := New(2)
	defer p.Close()
	for bad := range 6 {
		require.PanicsWithValue(t, "boom", func() {
			p.Run(6, taskFunc(func(i, _ int) {
				if i == bad {
					panic("boom")
				}
			}))
		})
		var n atomic.Int32
		p.Run(6, taskFunc(func(int, int) { n.Add(1) }))
		require.EqualValues(t, 6, n.Load(), "the pool works after a panic")
	}
}

func TestGoexit(t *testing.T) {
	p := New(2)
	defer p.Close()
	for _, who := range []int{0, 1} {
		var ended, panicked atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() { panicked.Store(recover() != nil); ended.Store(true) }()
			var met [2]atomic.Bool
			p.Run(2, taskFunc(func(_, worker int) {
				met[worker].Store(true)
				for !met[1-worker].Load() {
					runtime.Gosched()
				}
				if worker == who {
					runtime.Goexit()
				}
			}))
		})
		wg.Wait()
		require.True(t, ended.Load())
		require.Equal(t, who == 1, panicked.Load(), "a worker's exit is the caller's panic")
		var n atomic.Int32
		p.Run(64, taskFunc(func(int, int) { n.Add(1) }))
		require.EqualValues(t, 64, n.Load())
	}
}

// Several pools and callers under a collector that never rests.
func TestStressWithCollector(t *testing.T) {
	old := debug.SetGCPercent(10)
	defer debug.SetGCPercent(old)
	deadline := time.Now().Add(time.Second)
	if testing.Short() {
		deadline = time.Now().Add(100 * time.Millisecond)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			p := New(1 + g)
			defer p.Close()
			sums := make([]int64, 64)
			for round := int64(1); time.Now().Before(deadline); round++ {
				var garbage [][]byte
				p.Run(len(sums), taskFunc(func(i, _ int) { sums[i] += round * int64(i) }))
				for range 10 {
					garbage = append(garbage, make([]byte, 4096))
				}
				runtime.KeepAlive(garbage)
				for i, s := range sums {
					if want := round * (round + 1) / 2 * int64(i); s != want {
						require.Equal(t, want, s, "round %d chunk %d", round, i)
					}
				}
				if round%500 == 0 {
					time.Sleep(2 * spinTime) // park
				}
			}
		})
	}
	wg.Wait()
}

type counter struct{ n atomic.Int64 }

func (c *counter) Do(int, int) { c.n.Add(1) }

func TestRunAllocatesNothing(t *testing.T) {
	p := New(2)
	defer p.Close()
	var c counter
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Run(16, &c) }))
}

func BenchmarkRun(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(map[int]string{1: "threads=1", 2: "threads=2"}[threads], func(b *testing.B) {
			p := New(threads)
			defer p.Close()
			var c counter
			for b.Loop() {
				p.Run(4, &c)
			}
		})
	}
}
