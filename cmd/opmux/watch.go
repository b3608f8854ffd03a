package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/debug"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/trace"
)

// watchFlags are what an operator can ask of a run.
type watchFlags struct {
	Debug   string        `placeholder:"ADDR" help:"Serve the page /debug/opmux on this address, as localhost:6060, while the command runs; this machine alone is answered."`
	Hold    time.Duration `placeholder:"D" help:"Keep the page for so long after the run, as 1m."`
	Trace   string        `placeholder:"FILE" help:"Write every call of a kernel to FILE, for chrome://tracing or ui.perfetto.dev; a file that is there is replaced. %p in the name stands for the process id."`
	Strict  bool          `help:"Fail at the first fallback: a kernel that leaves a call to the next one, or a borrowed CPU kernel."`
	Require []string      `sep:"none" placeholder:"K" help:"Fail unless kernel or provider K can run and does; OP=K: for this op (may be repeated)."`
}

// errListen is an address that cannot be served.
var errListen = errors.New("no page can be served there")

// watch is a run under watchFlags.
type watch struct {
	flags   *watchFlags
	names   []string // required, as the registry takes them
	ran     func() error
	devices device.Table
	server  *http.Server
	url     string
	trace   *trace.Chrome
	file    *os.File
	undo    func()
}

// start begins what the flags ask for; the caller ends it.
func (f *watchFlags) start(a *app) (*watch, error) {
	w := &watch{flags: f, undo: func() {}}
	if f.Hold != 0 && (f.Debug == "" || f.Hold < 0) {
		return nil, usagef("--hold %v: a positive duration, for the page of --debug", f.Hold)
	}
	for _, name := range f.Require {
		if op, kernel, ok := strings.Cut(name, "="); ok {
			name = kernel + "@" + op
		}
		w.names = append(w.names, name)
	}
	if f.Debug != "" {
		l, err := listen(f.Debug)
		if err != nil {
			return nil, fmt.Errorf("--debug %s: %w: %w", f.Debug, errListen, err)
		}
		w.server = pageServer(debug.Handler(debug.Options{Devices: &w.devices}))
		w.url = "http://" + l.Addr().String() + debug.Path
		go w.server.Serve(l)
		a.warn("the page is at %s", w.url)
	}
	if err := w.change(registry.Default()); err != nil {
		return nil, errors.Join(err, w.stop(a))
	}
	return w, nil
}

// listen opens an address that only this machine reaches, since only this machine gets an answer; ":6060" is short for
// localhost:6060.
func listen(addr string) (net.Listener, error) {
	if strings.HasPrefix(addr, ":") {
		addr = "localhost" + addr
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	if !l.Addr().(*net.TCPAddr).IP.IsLoopback() {
		return nil, errors.Join(fmt.Errorf("%v is not this machine's alone", l.Addr()), l.Close())
	}
	return l, nil
}

// pageServer serves h to clients that need not be well-behaved: none holds a connection, and what it costs, for long.
func pageServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
}

// change makes r do what the flags ask of it.
func (w *watch) change(r *registry.Registry) (err error) {
	if w.flags.Strict && !r.Strict() {
		if err := r.SetStrict(true); err != nil {
			return err
		}
		w.undo = func() { _ = r.SetStrict(false) } // cannot fail where it has just been set
	}
	if w.flags.Trace != "" {
		if w.file, err = os.Create(strings.ReplaceAll(w.flags.Trace, "%p", strconv.Itoa(os.Getpid()))); err != nil {
			return err
		}
		w.trace = trace.NewChrome(w.file)
		return r.SetTracer(w.trace)
	}
	return nil
}

// span marks a stage of the run in the trace until the returned function is called.
func (w *watch) span(name string) (end func()) {
	if w.trace == nil {
		return func() {}
	}
	return w.trace.Span(name)
}

// opened checks, before a model is loaded, that what the run requires can run on d.
func (w *watch) opened(d *cpu.Device) error {
	if err := w.devices.Add(d); err != nil {
		return err
	}
	var err error
	if w.ran, err = registry.Default().RequireRun(d.ID(), w.names...); errors.Is(err, registry.ErrName) {
		return usage{err}
	}
	return err
}

// executed checks after the run that what it required did run.
func (w *watch) executed() error { return w.ran() }

// hold ends the trace, so that it can be read, and keeps the page for as long as it was asked for, or until ctx ends.
// failed is what the run ended with; the trace's error joins it.
func (w *watch) hold(a *app, failed error) error {
	if w.flags.Hold == 0 || errors.Is(failed, context.Canceled) {
		return failed
	}
	if err := w.endTrace(a); err != nil {
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		a.warn("failed, more at the end: %v", failed)
	}
	a.warn("%s stays for %v", w.url, w.flags.Hold)
	select {
	case <-time.After(w.flags.Hold):
	case <-a.ctx.Done():
	}
	return failed
}

// endTrace completes the trace's file, if there is one that is not complete.
func (w *watch) endTrace(a *app) error {
	c := w.trace
	if c == nil {
		return nil
	}
	w.trace = nil
	err := errors.Join(registry.Default().SetTracer(nil), c.Close(), w.file.Close())
	if err == nil {
		a.warn("%d events of the trace are in %s", c.Events(), w.file.Name())
	}
	return err
}

// stop ends the trace, the page and strict mode.
func (w *watch) stop(a *app) error {
	err := w.endTrace(a)
	w.undo()
	if w.server != nil {
		err = errors.Join(err, w.server.Close())
	}
	return err
}
