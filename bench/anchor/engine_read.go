package main

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
)

// reader is the yardstick of bandwidth: its threads read as many bytes as a call reads weights, from memory as large as
// all copies of them, and do nothing else. Go's own search for a byte reads with the widest loads of the machine.
type reader struct {
	parts [][]byte // one for each thread
	at    int
	size  int // bytes of a call and thread
}

func openReader(j *job) (engine, error) {
	mem, err := newMemory(j.Threads)
	if err != nil {
		return nil, err
	}
	row, err := j.Format.RowBytes(int64(j.K))
	if err != nil {
		return nil, err
	}
	r := &reader{size: int(row) * j.N / j.Threads}
	for range j.Threads {
		b, err := mem.bytes(r.size * j.Copies)
		if err != nil {
			return nil, err
		}
		for i := range b {
			b[i] = 1
		}
		r.parts = append(r.parts, b)
	}
	return r, nil
}

func (r *reader) shape(int) error { return nil }

// run reads calls times size bytes with each thread, without stopping in between.
func (r *reader) run(calls int) error {
	var wg sync.WaitGroup
	for _, part := range r.parts {
		wg.Go(func() {
			at := r.at
			for left := calls * r.size; left > 0; {
				n := min(left, len(part)-at)
				if bytes.IndexByte(part[at:at+n], 0) >= 0 {
					panic("the memory holds ones")
				}
				at, left = (at+n)%len(part), left-n
			}
		})
	}
	wg.Wait()
	r.at = (r.at + calls*r.size) % len(r.parts[0])
	return nil
}

func (r *reader) output() ([]float32, error) { return nil, errors.New("reading has no output") }

func (r *reader) detail() string { return fmt.Sprintf("%d threads read memory", len(r.parts)) }
