// Package bench measures kernels: any op, through its descriptor, on any device, kernel by kernel.
//
// Calls are cold by default: every launch finds operands that no cache holds, because sets of operands that are together
// larger than the last-level cache take turns, or because the cache is flushed between samples. All kernels of a case
// take their samples in turn, and so do loops that do nothing but read memory or multiply: a kernel is set against what
// the same threads could do in the same seconds. A kernel whose own counter did not see the launches has no figures.
//
// Times are those of a launch through the dispatcher with everything that the kernel does in it; allocating, filling and
// restoring operands are outside. Threads are not pinned to processors.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Errors of the package.
var (
	ErrReport      = errors.New("not a report of a benchmark run")
	ErrOption      = errors.New("option cannot be used")
	ErrNotExecuted = errors.New("the kernel asked for did not run")
)

// KernelError is a kernel whose counter did not see its launches: another kernel did the work. It is ErrNotExecuted.
type KernelError struct {
	Op       string
	Want     string // kernel
	Launches uint64
	Executed uint64
}

// Error names the kernel and both numbers.
func (e *KernelError) Error() string {
	return fmt.Sprintf("bench: %s: kernel %s executed %d of %d launches: %v", e.Op, e.Want, e.Executed, e.Launches, ErrNotExecuted)
}

// Unwrap returns ErrNotExecuted.
func (e *KernelError) Unwrap() error { return ErrNotExecuted }

// Options say what to measure and how. The zero value but for Device is every op with a kernel there.
type Options struct {
	Registry *registry.Registry // nil is registry.Default
	Device   device.Device      // open; its threads are those that are measured

	Op      string                  // glob over names, aliases and family.mode; "" is all
	Kernel  string                  // glob over kernels and providers; "" is all but those of tier reference
	Formats []string                // dtypes of the operand that formats are about: a weight, else a cache, else the first input
	Types   map[string]tensor.DType // dtypes of further operands
	M, N, K []int64                 // extents of M (or T, or Tq), N and K, in all combinations
	Shape   map[string][]int64      // extents of other symbols; those that are not given are usual ones
	Attrs   map[string]any          // attributes of the record by their snake-case names

	Warm     bool          // operands stay in the cache
	Plain    bool          // weights stay in the layout of files
	NoVerify bool          // results are not compared
	Count    int           // samples of a kernel on a case; 0 is as many as Time has room for, 5 to 200
	Time     time.Duration // for the samples of a kernel on a case; 0 is half a second
	Seed     uint64        // of operands

	Progress func(op, text string) // is told of each case before it is measured; may be nil
	Plan     func(Plan)            // is told before anything is measured; may be nil
}

// Plan says how much a run will do.
type Plan struct {
	Cases   int
	Kernels int           // measurements: the kernels of all cases
	Least   time.Duration // that the samples alone take; 0 if their number and not their time is given
}

// plan counts the cases that have a kernel to measure.
func (o *Options) plan(jobs []job) (p Plan, err error) {
	for _, j := range jobs {
		steps, _, err := o.steps(j.desc.Op)
		if err != nil {
			return p, err
		}
		if len(steps) > 0 {
			p.Cases++
			p.Kernels += len(steps)
		}
	}
	if o.Count == 0 {
		p.Least = time.Duration(p.Kernels) * o.time()
	}
	return p, nil
}

func (o *Options) time() time.Duration {
	if o.Time > 0 {
		return o.Time
	}
	return 500 * time.Millisecond
}

func (o *Options) threads() int { return int(o.Device.Caps().ComputeUnitCount) }

func (o *Options) cache() string {
	if o.Warm {
		return "warm"
	}
	return "cold"
}

// check fills in defaults.
func (o *Options) check() error {
	if o.Device == nil {
		return fmt.Errorf("bench: no device: %w", ErrOption)
	}
	if o.Registry == nil {
		o.Registry = registry.Default()
	}
	if o.Count < 0 || o.Time < 0 {
		return fmt.Errorf("bench: %d samples in %v: %w", o.Count, o.Time, ErrOption)
	}
	return nil
}

// Run measures every kernel that the options name on every case that they name. What goes wrong with one kernel stands
// in its record and the run goes on; Report.Failed lists such records. Errors: ErrOption, registry.ErrUnknownOp,
// registry.ErrUnknownName if no op has a kernel of that name, or for a format that is none, device.ErrOutOfMemory. When ctx
// ends, its error comes with a report of the cases that were finished.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	jobs, skipped, err := o.jobs()
	if err != nil {
		return nil, err
	}
	g, err := newRig(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.Plan != nil {
		p, err := o.plan(jobs)
		if err != nil {
			return nil, errors.Join(err, g.close())
		}
		o.Plan(p)
	}
	r := &Report{Version: Version, Records: []Record{}, Skipped: skipped}
	kernels := 0
	for i, j := range jobs {
		steps, dropped, err := o.steps(j.desc.Op)
		if err != nil {
			return nil, errors.Join(err, g.close())
		}
		kernels += len(steps) + len(dropped)
		for _, s := range dropped {
			r.Skipped = append(r.Skipped, Skip{Op: j.desc.Name, Case: j.text, Why: fmt.Sprintf("kernel %s is not used: %s %s", s.Kernel, s.State, s.Detail)})
		}
		if len(steps) == 0 {
			if len(dropped) == 0 {
				r.Skipped = append(r.Skipped, Skip{Op: j.desc.Name, Case: j.text, Why: "no kernel"})
			}
			continue
		}
		if o.Progress != nil {
			o.Progress(j.desc.Name, j.text)
		}
		list, skips, err := g.run(j, steps)
		if stop := ctx.Err(); stop != nil { // what this case has is not whole
			r.Interrupted = fmt.Sprintf("%d of %d cases were finished", i, len(jobs))
			r.Provenance, r.Limits = g.provenance(), g.limits()
			return r, errors.Join(stop, g.close())
		}
		r.Records, r.Skipped = append(r.Records, list...), append(r.Skipped, skips...)
		if err != nil {
			r.Provenance, r.Limits = g.provenance(), g.limits()
			return r, errors.Join(err, g.close())
		}
	}
	r.Provenance, r.Limits = g.provenance(), g.limits()
	if kernels == 0 {
		err := fmt.Errorf("bench: kernel %q: %w among those of op %q on %v", o.Kernel, registry.ErrUnknownName, cmp.Or(o.Op, "*"), o.Device.ID())
		if o.Kernel == "" {
			err = fmt.Errorf("bench: op %q has no kernel on %v but the reference's, which is measured if it is named: %w", o.Op, o.Device.ID(), registry.ErrNoKernel)
		}
		return r, errors.Join(err, g.close())
	}
	return r, g.close()
}

// steps lists the kernels of an op that the options name: those of its chain, best first, and those that a pattern names
// and that cannot be used.
func (o *Options) steps(op registry.Op) (usable, dropped []registry.Step, err error) {
	e := o.Registry.Explain(op, o.Device.ID())
	for _, s := range e.Runnable() {
		ok, err := match(o.Kernel, s.Kernel, s.Provider)
		if err != nil {
			return nil, nil, err
		}
		if ok && (o.Kernel != "" || s.Tier != registry.Reference.String()) {
			usable = append(usable, s)
		}
	}
	for _, s := range e.Dropped {
		if ok, _ := match(o.Kernel, s.Kernel, s.Provider); ok && o.Kernel != "" && o.Kernel != "*" && s.State != registry.DropWaiting.String() {
			dropped = append(dropped, s)
		}
	}
	return usable, dropped, nil
}

// run measures one case. Its error is one that ends the run; a case that cannot be made is an error in the records.
func (g *rig) run(j job, steps []registry.Step) (list []Record, skips []Skip, err error) {
	c, err := g.newCase(j, steps)
	if err != nil {
		for _, s := range steps {
			list = append(list, Record{Op: j.desc.Name, Kernel: s.Kernel, Provider: s.Provider, Tier: s.Tier, Case: j.text, Format: j.format,
				Shape: j.c.Shape, Threads: g.threads(), Cache: g.cache(), Error: err.Error()})
		}
		return list, nil, nil
	}
	defer func() { err = errors.Join(err, c.ops.close()) }()
	if !g.NoVerify {
		c.verify()
	}
	err = c.measure()
	c.finish()
	for _, a := range c.arms {
		if a.skip != "" {
			skips = append(skips, Skip{Op: j.desc.Name, Case: j.text, Why: a.skip})
		} else {
			list = append(list, a.rec)
		}
	}
	return list, skips, err
}
