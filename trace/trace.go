// Package trace writes what a registry's kernels do while a program runs as a file for chrome://tracing and
// https://ui.perfetto.dev: one line for each call of a kernel, also for calls that a kernel declined or that failed.
//
//	c := trace.NewChrome(file)
//	err := registry.Default().SetTracer(c)
//	... run ...
//	err = registry.Default().SetTracer(nil)
//	err = c.Close()
//
// The times are those of the launching goroutine: on a device that works by itself they are how long a launch took to be
// put into the queue.
package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Chrome is a registry.Tracer that writes the JSON array format of trace events. Methods are safe for concurrent use.
type Chrome struct {
	start time.Time
	pid   int

	mu       sync.Mutex
	w        *bufio.Writer
	err      error // the first one of w
	events   int
	closed   bool
	rows     map[uint64]bool // queues that have a name
	operands map[*registry.Registry]map[registry.Op][]registry.Operand
}

// event is one trace event. Times are in microseconds.
type event struct {
	Name  string  `json:"name"`
	Cat   string  `json:"cat,omitempty"`
	Phase string  `json:"ph"`
	Start float64 `json:"ts"`
	Dur   float64 `json:"dur"`
	PID   int     `json:"pid"`
	TID   uint64  `json:"tid"` // the device queue, 0 for none
	Args  any     `json:"args,omitempty"`
}

// call is what an event says about a kernel's call.
type call struct {
	Kernel   string            `json:"kernel"`
	Provider string            `json:"provider"`
	Device   string            `json:"device"`
	Status   string            `json:"status"`
	Operands map[string]string `json:"operands,omitempty"` // dtype and shape
}

// NewChrome returns a tracer that writes to w from now on. Close it to complete the file.
func NewChrome(w io.Writer) *Chrome {
	c := &Chrome{start: time.Now(), pid: os.Getpid(), w: bufio.NewWriterSize(w, 1<<16), rows: map[uint64]bool{},
		operands: map[*registry.Registry]map[registry.Op][]registry.Operand{}}
	_, c.err = c.w.WriteString("[")
	return c
}

// Begin implements registry.Tracer.
func (c *Chrome) Begin(k registry.Call) func(registry.Status) {
	tid := uint64(0)
	if dq := k.Queue.Native(); dq != nil {
		tid = dq.ID()
	}
	args := call{Kernel: k.Kernel, Provider: k.Provider, Device: k.Device.String(), Operands: map[string]string{}}
	for _, o := range c.describe(k) {
		if x := (*tensor.Tensor)(unsafe.Add(k.Args, o.Offset)); x.Present() {
			args.Operands[o.Name] = fmt.Sprint(x.DType, x.Shape[:x.Rank])
		}
	}
	start := time.Now()
	return func(st registry.Status) {
		end := time.Now()
		args.Status = st.String()
		c.row(tid, k.Device)
		c.write(event{k.OpName, "launch", "X", micros(start.Sub(c.start)), micros(end.Sub(start)), c.pid, tid, args})
	}
}

// Span writes what happens until the returned function is called as one event around the calls, in the row of calls
// without a queue: a stage of the program.
func (c *Chrome) Span(name string) (end func()) {
	start := time.Now()
	return func() {
		c.row(0, tensor.Device{})
		c.write(event{name, "span", "X", micros(start.Sub(c.start)), micros(time.Since(start)), c.pid, 0, nil})
	}
}

// Close completes the array and returns the first error of writing. Later calls are not written; closing twice is
// harmless. The writer stays open.
func (c *Chrome) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.keep(c.w.WriteString("\n]\n"))
		c.keep(0, c.w.Flush())
	}
	return c.err
}

// Events is the number of events written so far.
func (c *Chrome) Events() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events
}

// describe returns the operands of the call's op.
func (c *Chrome) describe(k registry.Call) []registry.Operand {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := k.Queue.Registry()
	if c.operands[r] == nil {
		c.operands[r] = map[registry.Op][]registry.Operand{}
	}
	list, ok := c.operands[r][k.Op]
	if !ok {
		d, _ := r.Describe(k.Op)
		list = d.Operands
		c.operands[r][k.Op] = list
	}
	return list
}

// row names a queue's row once.
func (c *Chrome) row(tid uint64, dev tensor.Device) {
	c.mu.Lock()
	named := c.rows[tid]
	c.rows[tid] = true
	c.mu.Unlock()
	if !named {
		name := "no queue"
		if tid > 0 {
			name = fmt.Sprintf("%v queue %d", dev, tid)
		}
		c.write(event{Name: "thread_name", Phase: "M", PID: c.pid, TID: tid, Args: map[string]string{"name": name}})
	}
}

func (c *Chrome) write(e event) {
	b, err := json.Marshal(e)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.err != nil {
		return
	}
	sep := "\n"
	if c.events > 0 {
		sep = ",\n"
	}
	c.events++
	c.keep(0, err)
	c.keep(c.w.WriteString(sep))
	c.keep(c.w.Write(b))
}

// keep remembers the first error; c.mu is held.
func (c *Chrome) keep(_ int, err error) {
	if c.err == nil {
		c.err = err
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
