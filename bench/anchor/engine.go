package main

import (
	"bytes"
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/tensor"
)

// Every engine runs in a process of its own, a copy of this program started as "anchor engine": a foreign library that
// crashes costs its own rows and nothing else, settings that libraries read from the environment when they are loaded are
// set for one of them only, and no engine's idle threads live in another's process.
//
// The processes take turns. Requests and replies are gob values on standard input and output.

// engine multiplies activations [m,K] by the transpose of weights [N,K], of which it holds several copies. Calls go
// through the copies in turn, so that none finds its weights in a cache.
type engine interface {
	// shape says how many rows of activations the next calls multiply; it is not timed.
	shape(m int) error
	// run makes so many calls, one after the other.
	run(calls int) error
	// output returns the result [m,N] of the last call.
	output() ([]float32, error)
	// ran says what the calls since shape ran on.
	ran() ran
}

// ran says what an engine computes with.
type ran struct {
	Kernel, Provider, Tier string
	Executed               uint64 // calls that the kernels counted themselves
	Layout                 string // of the weights
	Detail                 string // library, version, settings
	Cache                  int64  // of a yardstick: bytes of the last cache
}

// job is what an engine's process is told first.
type job struct {
	Engine  string
	Variant string // kernel, layout or core type; "" leaves the choice to the engine
	Path    string // where its library is, if that was said
	Format  tensor.DType
	N, K    int
	MaxM    int
	Threads int
	Copies  int
	Weights string // file: [N,K] in Format
	Inputs  string // file: [MaxM,K] in f32
}

func (j *job) String() string {
	if j.Variant == "" {
		return j.Engine
	}
	return j.Engine + ":" + j.Variant
}

// request is one turn: Shape rows of activations if it is not 0, then so many calls; or, of a yardstick, an amount of a
// unit.
type request struct {
	Shape, Calls int
	Output       bool
	Unit         string
	Amount       float64
}

type reply struct {
	Took      time.Duration
	Disturbed bool // the system took the processor away meanwhile
	Ran       ran
	Output    []float32
	Amount    float64
	Error     string
	Missing   bool // the engine is not on this machine
}

// kind is what the parent has to know of an engine.
type kind struct {
	open    func(*job) (engine, error)
	formats []tensor.DType        // that it multiplies; nil: it says so itself
	tries   func() []string       // variants to try, best first, when none is asked for
	env     func(j *job) []string // its process's additional environment
}

var kinds = map[string]kind{
	yardstick: {open: openLimits},
	"opmux":   {open: openOpmux},
	"ggml":    {open: openGGML},
	"openblas": {open: openOpenBLAS, formats: []tensor.DType{tensor.F32}, tries: coreTypes, env: func(j *job) []string {
		env := []string{fmt.Sprint("OPENBLAS_NUM_THREADS=", j.Threads), fmt.Sprint("OMP_NUM_THREADS=", j.Threads)}
		if j.Variant != "" {
			env = append(env, "OPENBLAS_CORETYPE="+j.Variant)
		}
		return env
	}},
	"onednn": {open: openOneDNN, formats: []tensor.DType{tensor.F32, tensor.Q8_0}, env: func(j *job) []string {
		return []string{fmt.Sprint("OMP_NUM_THREADS=", j.Threads), "ONEDNN_VERBOSE=0", "DNNL_VERBOSE=0"}
	}},
}

// worker is the parent's end of an engine's process.
type worker struct {
	job    job
	ran    ran
	cmd    *exec.Cmd
	enc    *gob.Encoder
	dec    *gob.Decoder
	close  func() error
	stderr words
	ended  error // why the process is gone
}

// start starts an engine: with the variant asked for, or with the first of its own that it accepts. The error lists
// every attempt and is errMissing if the engine is not on this machine.
func start(j job) (*worker, error) {
	k := kinds[j.Engine]
	variants := []string{j.Variant}
	if j.Variant == "" && k.tries != nil {
		variants = k.tries()
	}
	var attempts []string
	for _, v := range variants {
		try := j
		try.Variant = v
		var env []string
		if k.env != nil {
			env = k.env(&try)
		}
		w, err := spawn(try, env)
		if err == nil {
			w.job = j
			if len(attempts) > 0 {
				w.ran.Detail += " (before it: " + strings.Join(attempts, "; ") + ")"
			}
			return w, nil
		}
		if errors.Is(err, errMissing) {
			return nil, err
		}
		if !slices.Contains(attempts, err.Error()) {
			attempts = append(attempts, err.Error())
		}
	}
	return nil, errors.New(strings.Join(attempts, "; "))
}

func spawn(j job, env []string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{job: j, cmd: exec.Command(self, engineCommand)}
	w.cmd.Env = append(os.Environ(), env...)
	w.cmd.Stderr = &w.stderr
	in, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	w.enc, w.dec, w.close = gob.NewEncoder(in), gob.NewDecoder(out), in.Close
	r, err := w.exchange(&j)
	if err != nil {
		w.stop()
		return nil, err
	}
	w.ran = r.Ran
	return w, nil
}

// patience is how long a turn may take: a process that gives no answer in it is ended.
var patience = 5 * time.Minute

func (w *worker) exchange(v any) (reply, error) {
	var r reply
	if w.ended != nil {
		return r, w.ended
	}
	late := time.AfterFunc(patience, func() { _ = w.cmd.Process.Kill() })
	err := w.enc.Encode(v)
	if err == nil {
		err = w.dec.Decode(&r)
	}
	inTime := late.Stop()
	switch {
	case err != nil: // the process ended
		_ = w.close()
		if !inTime {
			_ = w.cmd.Wait()
			w.ended = fmt.Errorf("%v: no answer in %v", &w.job, patience)
			return r, w.ended
		}
		w.ended = fmt.Errorf("%v ended: %v: %s", &w.job, cmp.Or(w.cmd.Wait(), err), w.stderr.last())
		return r, w.ended
	case r.Missing:
		return r, fmt.Errorf("%w%s", errMissing, strings.TrimPrefix(r.Error, errMissing.Error()))
	case r.Error != "":
		return r, errors.New(r.Error)
	}
	return r, nil
}

func (w *worker) stop() {
	if w.ended == nil {
		_ = w.close()
		_ = w.cmd.Wait()
	}
}

// words keeps what a process printed, up to 64 KiB.
type words struct{ bytes.Buffer }

func (w *words) Write(p []byte) (int, error) {
	_, err := w.Buffer.Write(p[:min(len(p), 64<<10-w.Len())])
	return len(p), err
}

// last returns the end of what was printed before the Go runtime reported a crash, which is longer than it helps.
func (w *words) last() string {
	text := w.String()
	for _, crash := range []string{"SIG", "fatal error: ", "goroutine "} {
		if at := strings.Index("\n"+text, "\n"+crash); at >= 0 {
			line, _, _ := strings.Cut(text[at:], "\n")
			text = text[:at] + line
		}
	}
	return strings.Join(strings.Fields(text[max(0, len(text)-600):]), " ")
}

// engineCommand is the argument that makes this program an engine's process.
const engineCommand = "engine"

// serve is such a process: it opens the engine of the job on r and answers requests until r ends.
func serve(r io.Reader, w io.Writer) error {
	runtime.LockOSThread() // OpenMP keeps a team of threads for each thread that calls it
	dec, enc := gob.NewDecoder(r), gob.NewEncoder(w)
	var j job
	if err := dec.Decode(&j); err != nil {
		return err
	}
	answer := func(p reply, err error) error {
		if err != nil {
			p.Error, p.Missing = err.Error(), errors.Is(err, errMissing)
		}
		return enc.Encode(&p)
	}
	k, ok := kinds[j.Engine]
	if !ok {
		return answer(reply{}, fmt.Errorf("no engine is called %q", j.Engine))
	}
	e, err := k.open(&j)
	if err != nil {
		return answer(reply{}, err)
	}
	if err := answer(reply{Ran: e.ran()}, nil); err != nil {
		return err
	}
	for {
		var q request
		if err := dec.Decode(&q); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := answer(respond(e, q)); err != nil {
			return err
		}
	}
}

func respond(e engine, q request) (p reply, err error) {
	if q.Shape > 0 {
		if err := e.shape(q.Shape); err != nil {
			return p, err
		}
	}
	before, t := switches(), time.Now()
	if l, ok := e.(*limits); ok {
		p.Amount = l.measure(q.Unit, q.Amount)
	} else {
		err = e.run(q.Calls)
	}
	p.Took, p.Disturbed, p.Ran = time.Since(t), switches() > before, e.ran()
	if err == nil && q.Output {
		p.Output, err = e.output()
	}
	return p, err
}

// memory is where the engines without memory of their own keep operands: off the Go heap and in huge pages if the system
// has them, which is the best for each of them. It lives as long as the process.
type memory struct{ *cpu.Device }

func newMemory(threads int) (memory, error) {
	d, err := cpu.Open(cpu.Options{Threads: threads})
	return memory{d}, err
}

func (m memory) bytes(n int) ([]byte, error) {
	b, err := m.Alloc(int64(n))
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(b.Host()), n), nil
}

func (m memory) floats(n int) ([]float32, error) {
	b, err := m.bytes(4 * n)
	return floatsOf(b), err
}

// copies returns n copies of data.
func (m memory) copies(data []byte, n int) (out [][]byte, err error) {
	for range n {
		b, err := m.bytes(len(data))
		if err != nil {
			return nil, err
		}
		copy(b, data)
		out = append(out, b)
	}
	return out, nil
}

// file reads a file into such memory.
func (m memory) file(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := m.copies(data, 1)
	if err != nil {
		return nil, err
	}
	return c[0], nil
}

func floatsOf(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func int32sOf(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func bytesOf[E any](s []E) []byte {
	var e E
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(e)))
}

// rotation counts through the copies of the weights.
type rotation struct{ at, n int }

func (r *rotation) next() int {
	r.at = (r.at + 1) % r.n
	return r.at
}
