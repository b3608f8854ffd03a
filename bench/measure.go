package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
)

// How samples are taken.
const (
	sampleTime  = time.Millisecond // that a sample takes at least, where there are sets of operands for it
	leastRounds = 5
	mostRounds  = 200
	mostInner   = 1 << 20
	longestLoop = 20 * time.Millisecond // of a loop that shows a limit
	warmBytes   = 8 << 20               // of sets of a call that changes its operands, in a warm cache
)

// arm is a kernel that takes samples.
type arm struct {
	step  registry.Step
	rec   Record
	bound *registry.Bound

	inner    int
	times    []float64 // nanoseconds of a launch, by round that it took part in
	rounds   []int     // which rounds those were
	dirty    []bool    // the system took the processor away meanwhile
	launches uint64    // since executed was read
	base     uint64    // executed then
	spent    time.Duration
	slow     bool // one launch takes longer than all its samples should: the warm-up is the sample
	dead     bool
	skip     string // why it is not measured though nothing is wrong with it
	cause    error  // of dead
}

// rig is what one run measures on: a device, a queue and a probe.
type rig struct {
	Options
	ctx   context.Context
	dq    device.Queue
	q     *registry.Queue
	probe device.Probe // nil: the device has none
	rates map[string][]float64
	waste []byte // what is written to empty the caches of a device without a probe
}

// caseRun measures the arms on one case; what happens to an arm stays in its record.
type caseRun struct {
	*rig
	job   job
	ops   *operands
	args  *sample.Args
	arms  []*arm
	cost  ops.Cost
	unit  string // arithmetic that is shown beside; "" if the device has no loop for any
	at    int    // turn of the sets that is next, below their number
	flush bool   // sets do not push each other out of the caches
	rates map[string][]float64
}

// newRig opens a queue and a probe.
func newRig(ctx context.Context, o Options) (*rig, error) {
	g := &rig{Options: o, ctx: ctx, rates: map[string][]float64{}}
	var err error
	if g.dq, err = o.Device.NewQueue(); err != nil {
		return nil, err
	}
	g.q = o.Registry.NewQueue(g.dq)
	if p, ok := o.Device.(device.Prober); ok {
		if g.probe, err = p.NewProbe(); err != nil {
			return nil, errors.Join(fmt.Errorf("bench: limits: %w", err), g.close())
		}
	}
	return g, nil
}

func (g *rig) close() error {
	err := errors.Join(g.q.Close(), g.dq.Close())
	if g.probe != nil {
		err = errors.Join(err, g.probe.Close())
	}
	return err
}

// unknownCache is what is flushed where the device cannot say how large its caches are.
const unknownCache = 256 << 20

// flushBytes is how much memory pushes everything else out of the caches.
func (g *rig) flushBytes() int64 {
	if g.probe != nil {
		return g.probe.Size()
	}
	return unknownCache
}

// newCase makes the operands of a case and its arms.
func (g *rig) newCase(j job, steps []registry.Step) (*caseRun, error) {
	c := &caseRun{rig: g, job: j, rates: map[string][]float64{}}
	var err error
	if c.args, err = sample.Of(j.desc, j.c); err != nil {
		return nil, err
	}
	var known bool
	if c.cost, known = ops.CostOf(j.desc.Op, c.args.Record()); !known {
		c.cost.Unit = ops.UnitF32
		c.cost.Read, c.cost.Written = c.args.Bytes()
	}
	c.rigUnit()
	want, most := g.flushBytes(), maxCopies
	if g.Warm {
		want, most = 1, 1
		if mutates(j.desc) {
			want, most = warmBytes, 64
		}
	}
	if c.ops, err = newOperands(g.Device, g.dq, c.args, g.Plain, want, most); err != nil {
		return nil, err
	}
	c.flush = !g.Warm && c.ops.stride*int64(c.ops.copies) < want
	types := map[string]string{}
	for _, p := range c.ops.list {
		types[p.name] = p.x.DType.String()
		if p.x.Layout != 0 {
			types[p.name] += " " + p.x.Layout.String()
		}
	}
	for _, s := range steps {
		a := &arm{step: s, rec: Record{Op: j.desc.Name, Kernel: s.Kernel, Provider: s.Provider, Tier: s.Tier, Case: j.text, Format: j.format,
			Types: types, Shape: c.args.Shape(), Threads: g.threads(), Cache: g.cache(), Copies: c.ops.copies,
			FLOPs: c.cost.FLOPs, Read: c.cost.Read, Written: c.cost.Written}}
		view := g.q.With(registry.WithKernel(g.ctx, j.desc.Op, s.Kernel))
		if a.bound, err = view.Bind(j.desc.Op); err != nil {
			a.fail(err)
		}
		c.arms = append(c.arms, a)
	}
	return c, nil
}

// rigUnit chooses the arithmetic to compare with: the call's, or the one that the device has a loop for.
func (c *caseRun) rigUnit() {
	if c.probe == nil || c.cost.FLOPs == 0 {
		return
	}
	for _, u := range []string{c.cost.Unit, ops.UnitF32} {
		if slices.Contains(c.probe.Units(), u) {
			c.unit = u
			return
		}
	}
}

func mutates(d registry.Descriptor) bool {
	return slices.ContainsFunc(d.Operands, func(p registry.Operand) bool { return p.Role == registry.InOut })
}

// fail takes an arm out of the run.
func (a *arm) fail(err error) {
	a.dead, a.cause = true, err
	var d *registry.DeclinedError
	if errors.As(err, &d) && len(d.Refusals) > 0 {
		a.rec.Declined = d.Refusals[len(d.Refusals)-1].Reason.String()
		return
	}
	a.rec.Error = err.Error()
}

// sample launches an arm n times, each time on the set of operands whose turn it is, and returns the nanoseconds of one launch.
// Operands that were changed get their first state again, outside of the time.
func (c *caseRun) sample(a *arm, n int) (ns float64, dirty bool, err error) {
	defer recovered(a.step.Kernel, &err)
	first, before := c.at, switches()
	start := time.Now()
	for i := range n {
		if err = a.bound.Launch(c.ops.point(first + i)); err != nil {
			return 0, false, err
		}
	}
	if err = c.dq.Sync(c.ctx); err != nil {
		return 0, false, err
	}
	d := time.Since(start)
	dirty = switches() != before
	c.at = (first + n) % c.ops.copies
	a.launches += uint64(n)
	a.spent += d
	return float64(d.Nanoseconds()) / float64(n), dirty, c.ops.renew(first, n)
}

// recovered turns a kernel's panic into an error.
func recovered(kernel string, err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("bench: kernel %s: panic: %v", kernel, r)
	}
}

// executed reads the counter of an arm's kernel, and names other kernels of the op that have run since base.
func (c *caseRun) executed(a *arm) uint64 {
	e := c.Registry.Explain(c.job.desc.Op, c.Device.ID())
	for _, s := range e.Chain {
		if s.Kernel == a.step.Kernel {
			return s.Counts.Executed
		}
	}
	for _, s := range e.Dropped {
		if s.Kernel == a.step.Kernel {
			return s.Counts.Executed
		}
	}
	return 0
}

// prepare warms an arm up and finds out how many launches make a sample.
func (c *caseRun) prepare(a *arm) {
	most := mostInner
	if c.ops.mutates() || c.flush {
		most = max(c.ops.copies/len(c.arms), 1)
	}
	c.cool()
	a.base, a.launches = c.executed(a), 0
	ns, dirty, err := c.sample(a, 1)
	if err == nil {
		err = c.check(a)
	}
	if err != nil {
		a.fail(err)
		return
	}
	a.inner = 1
	if c.Count == 0 && ns > 4*float64(c.time().Nanoseconds()) {
		a.slow = true
		a.times, a.dirty, a.rounds = []float64{ns}, []bool{dirty}, []int{0}
		return
	}
	// The first launch may have tested the kernel and made room for its scratch memory.
	a.base, a.launches = c.executed(a), 0
	for range 8 {
		c.cool()
		if ns, _, err = c.sample(a, a.inner); err != nil {
			a.fail(err)
			return
		}
		if took := ns * float64(a.inner); took >= float64(sampleTime) || a.inner == most {
			break
		}
		a.inner = int(min(math.Ceil(1.2*float64(sampleTime)/max(ns, 1)), 100*float64(a.inner), float64(most)))
	}
	a.spent = 0
}

// check wants the kernel's own counter to have seen all launches.
func (c *caseRun) check(a *arm) error {
	a.rec.Executed = c.executed(a) - a.base
	if a.rec.Executed < a.launches {
		return &KernelError{Op: c.job.desc.Name, Want: a.step.Kernel, Launches: a.launches, Executed: a.rec.Executed}
	}
	return nil
}

// cool empties the caches if the sets of operands do not do that by themselves.
func (c *caseRun) cool() {
	if c.flush && c.probe != nil {
		c.probe.Read(c.probe.Size())
	} else if c.flush {
		c.evict()
	}
}

// evict writes memory for want of a probe.
func (c *caseRun) evict() {
	if c.waste == nil {
		c.waste = make([]byte, unknownCache)
	}
	for i := 0; i < len(c.waste); i += 64 {
		c.waste[i]++
	}
}

// measure takes the samples of all arms in turn, round by round, with the loops that show the limits among them.
func (c *caseRun) measure() error {
	for _, a := range c.arms {
		if !a.dead {
			c.prepare(a)
		}
		if err := c.ctx.Err(); err != nil {
			return err
		}
	}
	live := slices.DeleteFunc(slices.Clone(c.arms), func(a *arm) bool { return a.dead || a.slow })
	read, multiply := c.loops()
	budget := c.time()
	start := time.Now()
	for round := 0; ; round++ {
		switch {
		case c.Count > 0 && round >= c.Count,
			c.Count == 0 && (round >= mostRounds || round >= leastRounds && time.Since(start) > budget*time.Duration(max(len(live), 1))):
			return nil
		}
		c.cool()
		read()
		multiply()
		some := false
		for i := range live {
			a := live[(i+round)%len(live)]
			if a.dead || c.Count == 0 && (a.spent > 4*budget || len(a.times) >= leastRounds && a.spent > budget) {
				continue
			}
			ns, dirty, err := c.sample(a, a.inner)
			if err != nil {
				a.fail(err)
				continue
			}
			some = true
			a.times, a.dirty, a.rounds = append(a.times, ns), append(a.dirty, dirty), append(a.rounds, round)
		}
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if !some && round+1 >= leastRounds {
			return nil
		}
	}
}

// loops returns the turns of the loops that show the limits, about as long as a sample of the arms.
func (c *caseRun) loops() (read, multiply func()) {
	if c.probe == nil {
		return func() {}, func() {}
	}
	var long []float64
	for _, a := range c.arms {
		if len(a.times) > 0 {
			long = append(long, a.times[0])
		} else if !a.dead {
			long = append(long, float64(a.spent.Nanoseconds()))
		}
	}
	want := float64(sampleTime)
	if len(long) > 0 {
		want = min(max(median(long), want), float64(longestLoop))
	}
	turn := func(name string, most float64, work func(n float64) float64) func() {
		n := most / 64
		for range 4 { // until the rate is that of a loop of the length wanted
			start := time.Now()
			done := work(n)
			n = min(max(done/max(float64(time.Since(start).Nanoseconds()), 1)*want, 1), most)
		}
		return func() {
			before, start := switches(), time.Now()
			done := work(n)
			rate := done / max(time.Since(start).Seconds(), 1e-9)
			if switches() == before {
				c.rates[name] = append(c.rates[name], rate)
			}
		}
	}
	read = turn(limitRead, float64(c.probe.Size()), func(n float64) float64 { return float64(c.probe.Read(int64(n))) })
	multiply = func() {}
	if c.unit != "" {
		multiply = turn(c.unit, 1e12, func(n float64) float64 { return c.probe.Multiply(c.unit, n) })
	}
	return read, multiply
}

// finish turns the samples into figures.
func (c *caseRun) finish() {
	for name, v := range c.rates {
		c.rig.rates[name] = append(c.rig.rates[name], v...)
	}
	for _, a := range c.arms {
		if a.dead {
			continue
		}
		if err := c.check(a); err != nil {
			a.fail(err)
			continue
		}
		c.figures(a)
	}
}

func (c *caseRun) figures(a *arm) {
	r := &a.rec
	r.Inner = a.inner
	var clean []float64
	for i, t := range a.times {
		if a.dirty[i] {
			r.Disturbed++
		} else {
			clean = append(clean, t)
		}
	}
	r.Samples = a.times
	switch {
	case len(clean) >= leastRounds && 2*len(clean) >= len(a.times):
		r.Samples = clean
	case r.Disturbed > 0:
		r.note("%d of %d samples were disturbed by the system and are counted all the same", r.Disturbed, len(a.times))
	}
	if a.slow {
		r.note("one sample: a launch takes longer than four times what was asked for all")
	}
	r.Summarize()
	if r.P90 > 1.5*r.Median {
		r.note("one sample in ten takes %.1f times the median", r.P90/r.Median)
	}
	if ns := r.Median * float64(a.inner); ns < float64(sampleTime)/2 {
		r.note("samples of %.0f µs: there are sets of operands for %d launches", ns/1e3, a.inner)
	}
	if c.flush && c.probe == nil || !c.Warm && c.flushBytes() < c.cacheBytes() {
		r.note("too little memory to empty a cache of %d bytes", c.cacheBytes())
	}
	if fell := c.slowed(); fell > 0.1 {
		r.note("the processor slowed down by %.0f %% meanwhile", 100*fell)
	}
	read, peak := 0.0, 0.0
	if v := c.rates[limitRead]; len(v) > 0 {
		read = median(v)
	}
	if v := c.rates[c.unit]; len(v) > 0 {
		peak = median(v)
	}
	r.Roofline = NewRoofline(r, read, c.unit, peak)
}

func (r *Record) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (c *caseRun) cacheBytes() int64 {
	if c.probe == nil {
		return 0
	}
	return c.probe.Cache()
}

// slowed returns by how much the rate of multiplications fell from the first third of the rounds to the last.
func (c *caseRun) slowed() float64 {
	v := c.rates[c.unit]
	if n := len(v) / 3; n >= 3 {
		return 1 - median(v[len(v)-n:])/median(v[:n])
	}
	return 0
}

const limitRead = "read"

// limits sums up the rates of the whole run.
func (g *rig) limits() (list []Limit) {
	for _, name := range []string{limitRead, ops.UnitF32, ops.UnitInt8} {
		if v := g.rates[name]; len(v) > 0 {
			list = append(list, Limit{Name: name, Rate: median(v), Best: slices.Max(v)})
		}
	}
	return list
}
