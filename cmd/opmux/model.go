package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/schollz/progressbar/v3"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/llm"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// defaultModel is the small Llama-architecture model that the project trained itself; model/README.md says on what.
//
//go:embed model/default.gguf
var defaultModel []byte

// modelFlags choose a model and how it is run.
type modelFlags struct {
	Model   string `short:"m" placeholder:"FILE" help:"GGUF model file. Default: the small model inside this program."`
	Threads int    `short:"t" help:"Most CPU threads; 0 takes what the machine, its limits and OPMUX_THREADS give."`
	Context int    `short:"c" help:"Positions of the context; 0 takes the model's own, at most 4096."`
	KV      string `name:"kv" default:"f16" enum:"f16,bf16,f32" help:"Type of the KV cache (${enum})."`
	Memory  int64  `placeholder:"MIB" help:"Refuse a model that needs more than this many MiB."`
}

// session is an open model with one engine.
type session struct {
	file   *gguf.File
	dev    *cpu.Device
	model  *llm.Model
	engine *llm.Engine
}

// openCPU opens the CPU for the default registry and prints what the environment got wrong.
func (a *app) openCPU(threads int) (*cpu.Device, error) {
	env, _ := registry.OptionsFromEnv(os.LookupEnv)
	if threads == 0 {
		threads = env.Threads
	}
	if threads < 0 {
		return nil, usagef("%d threads", threads)
	}
	d, err := cpu.Open(cpu.Options{Threads: threads})
	if err != nil {
		return nil, err
	}
	if n, why := cpu.Threads(threads); n < threads {
		a.warn("%d threads asked for, %d taken: %s", threads, n, strings.Join(why, "; "))
	}
	for _, w := range registry.Default().Snapshot().Warnings { // variables and names that the environment got wrong
		a.warn("%v", w)
	}
	return d, nil
}

// open loads the model, with a progress bar on a terminal when the file is large. ready, if not nil, may refuse the device
// before the model is loaded.
func (f *modelFlags) open(a *app, quiet bool, o llm.Options, ready func(*cpu.Device) error) (_ *session, err error) {
	s := &session{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if f.Model == "" {
		s.file, err = gguf.Parse(defaultModel)
	} else if err = regular(f.Model, gguf.ErrMagic); err == nil {
		s.file, err = gguf.Open(f.Model)
	}
	if err != nil {
		return nil, err
	}
	if s.dev, err = a.openCPU(f.Threads); err != nil {
		return nil, err
	}
	if ready != nil {
		if err := ready(s.dev); err != nil {
			return nil, err
		}
	}
	if f.Memory < 0 || f.Memory > 1<<40 {
		return nil, usagef("--memory %d is not between 0 and 2^40 MiB", f.Memory)
	}
	o.ContextLength, o.MemoryLimit = f.Context, f.Memory<<20
	if o.KVType, err = tensor.ParseDType(f.KV); err != nil {
		return nil, usage{err}
	}
	if !quiet {
		o.Planned = func(p llm.Plan) { fmt.Fprintln(a.stderr, p) }
		o.Progress = progress(a)
	}
	if s.model, err = llm.Load(a.ctx, s.file, s.dev, o); err != nil {
		return nil, err
	}
	debug.FreeOSMemory() // what parsing the vocabulary left behind
	s.engine, err = s.model.NewEngine()
	return s, err
}

// progress shows a bar for files above 64 MiB.
func progress(a *app) func(done, total int64) {
	var bar *progressbar.ProgressBar
	return func(done, total int64) {
		if total < 64<<20 {
			return
		}
		if bar == nil {
			bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(a.screen), progressbar.OptionSetDescription("loading"),
				progressbar.OptionShowBytes(true), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(1e8))
		}
		_ = bar.Set64(done) // a bar that cannot be drawn is no reason to stop
	}
}

// Close closes what is open, the last first.
func (s *session) Close() error {
	var err error
	if s.engine != nil {
		err = s.engine.Close()
	}
	if s.model != nil {
		err = errors.Join(err, s.model.Close())
	}
	if s.dev != nil {
		err = errors.Join(err, s.dev.Close())
	}
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	return err
}
