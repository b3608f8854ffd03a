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
	times    []timing // of a launch, by round that it took part in
	rounds   []int    // which rounds those were
	clean    int      // times that are not disturbed
	launches uint64   // since executed was read
	base     uint64   // executed then
	spent    time.Duration
	first    float64 // nanoseconds of the sample that came before the rounds
	slow     bool    // one launch takes longer than all its samples should: the warm-up is the sample
	dead     bool
	skip     string // why it is not measured though nothing is wrong with it
	cause    error  // of dead
}

// timing is how long something took.
type timing struct {
	ns        float64
	disturbed bool    // the system took a processor away meanwhile
	processor float64 // nanoseconds without that; 0 where it is not known
}

// best is the processor time of what was disturbed, where it is known.
func (t timing) best() float64 {
	if t.disturbed && t.processor > 0 {
		return min(t.processor, t.ns)
	}
	return t.ns
}

// clock measures from now on. Processor time is that of a single thread: with more of them it says nothing about how
// long something took.
func (g *rig) clock() func() timing {
	switches, processor := usage()
	start := time.Now()
	return func() timing {
		t := timing{ns: max(float64(time.Since(start).Nanoseconds()), 1)}
		now, used := usage()
		t.disturbed = now != switches
		if g.threads() == 1 {
			t.processor = float64(used - processor)
		}
		return t
	}
}

// pick returns the values of the times that count: the undisturbed ones if there are enough of them, else all, the
// disturbed ones by their processor time where that is known. whole says that there were enough.
func pick(times []timing) (v []float64, whole bool) {
	for _, t := range times {
		if !t.disturbed {
			v = append(v, t.ns)
		}
	}
	if len(v) >= leastRounds || len(v) == len(times) {
		return v, true
	}
	v = nil
	for _, t := range times {
		v = append(v, t.best())
	}
	return v, false
}

// rig is what one run measures on: a device, a queue and a probe.
type rig struct {
	Options
	ctx   context.Context
	dq    device.Queue
	q     *registry.Queue
	probe device.Probe        // nil: the device has none
	turns map[string][]timing // of the loops that show the limits, of one unit of work
	waste []byte              // what is written to empty the caches of a device without a probe
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
	turns map[string][]timing
}

// newRig opens a queue and a probe.
func newRig(ctx context.Context, o Options) (*rig, error) {
	g := &rig{Options: o, ctx: ctx, turns: map[string][]timing{}}
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
	c := &caseRun{rig: g, job: j, turns: map[string][]timing{}}
	var err error
	if c.args, err = sample.Of(j.desc, j.c); err != nil {
		return nil, err
	}
	if why := idle(c.args); why != "" {
		return nil, fmt.Errorf("bench: nothing to do: %s: %w", why, ErrOption)
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
			FLOPs: c.cost.FLOPs, Read: c.cost.Read, Written: c.cost.Written, Touched: c.cost.Touched()}}
		view := g.q.With(registry.WithKernel(g.ctx, j.desc.Op, s.Kernel))
		if a.bound, err = view.Bind(j.desc.Op); err != nil {
			a.fail(err)
		}
		c.arms = append(c.arms, a)
	}
	return c, nil
}

// idle says why a call has nothing to do, "" if it has: a rate of nothing would be a number all the same.
func idle(a *sample.Args) string {
	var full, empty [3]int // operands by role
	d := a.Descriptor()
	for _, p := range d.Operands {
		if x := a.Tensor(p.Name); !x.Present() {
			continue
		} else if x.Numel() > 0 {
			full[p.Role]++
		} else {
			empty[p.Role]++
		}
	}
	switch {
	case full[registry.Out]+full[registry.InOut] == 0:
		return "all outputs are empty"
	case full[registry.Out]+full[registry.In] == 0 && empty[registry.In] > 0:
		return "all inputs are empty"
	}
	return ""
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

// sample launches an arm n times, each time on the set of operands whose turn it is, and returns the time of one launch.
// Operands that were changed get their first state again, outside of the time.
func (c *caseRun) sample(a *arm, n int) (t timing, err error) {
	defer recovered(a.step.Kernel, &err)
	first := c.at
	stop := c.clock()
	for i := range n {
		if err = a.bound.Launch(c.ops.point(first + i)); err != nil {
			return t, err
		}
	}
	if err = c.dq.Sync(c.ctx); err != nil {
		return t, err
	}
	t = stop()
	a.spent += time.Duration(t.best())
	t.ns, t.processor = t.ns/float64(n), t.processor/float64(n)
	c.at = (first + n) % c.ops.copies
	a.launches += uint64(n)
	return t, c.ops.renew(first, n)
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
	t, err := c.sample(a, 1)
	if err == nil {
		err = c.check(a)
	}
	if err != nil {
		a.fail(err)
		return
	}
	a.inner = 1
	if c.Count == 0 && t.best() > 4*float64(c.time().Nanoseconds()) {
		a.slow, a.times, a.rounds, a.first = true, []timing{t}, []int{0}, t.best()
		return
	}
	// The first launch may have tested the kernel and made room for its scratch memory.
	a.base, a.launches = c.executed(a), 0
	for range 8 {
		c.cool()
		if t, err = c.sample(a, a.inner); err != nil {
			a.fail(err)
			return
		}
		a.first = t.best() * float64(a.inner)
		if a.first >= float64(sampleTime) || a.inner == most {
			break
		}
		a.inner = int(min(math.Ceil(1.2*float64(sampleTime)/max(t.best(), 1)), 100*float64(a.inner), float64(most)))
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
	if len(live) == 0 { // what is slow is set against limits all the same
		for range leastRounds {
			read()
			multiply()
		}
	}
	for round := 0; c.Count == 0 && round < mostRounds || round < c.Count; round++ {
		turn := false
		for i := range live {
			a := live[(i+round)%len(live)]
			if c.Count == 0 && a.enough(c.time()) || a.dead {
				continue
			}
			if !turn {
				turn = true
				c.cool()
				read()
				multiply()
			}
			t, err := c.sample(a, a.inner)
			if err != nil {
				a.fail(err)
				continue
			}
			a.times, a.rounds = append(a.times, t), append(a.rounds, round)
			if !t.disturbed {
				a.clean++
			}
		}
		if err := c.ctx.Err(); err != nil || !turn {
			return err
		}
	}
	return nil
}

// enough reports whether an arm has used up its time. Where the system disturbs samples it gets more of it.
func (a *arm) enough(budget time.Duration) bool {
	return a.spent > budget && a.clean >= leastRounds || a.spent > 4*budget
}

// loops returns the turns of the loops that show the limits, about as long as a sample of the arms.
func (c *caseRun) loops() (read, multiply func()) {
	if c.probe == nil {
		return func() {}, func() {}
	}
	var long []float64
	for _, a := range c.arms {
		if !a.dead {
			long = append(long, a.first)
		}
	}
	want := float64(sampleTime)
	if len(long) > 0 {
		want = min(max(median(long), want), float64(longestLoop))
	}
	turn := func(name string, most float64, work func(n float64) float64) func() {
		n := most / 64
		for range 4 { // until the rate is that of a loop of the length wanted
			stop := c.clock()
			done := work(n)
			n = min(max(done/stop().best()*want, 1), most)
		}
		return func() {
			stop := c.clock()
			done := work(n)
			t := stop()
			c.turns[name] = append(c.turns[name], timing{t.ns / done, t.disturbed, t.processor / done})
		}
	}
	read = turn(limitRead, float64(c.probe.Size()), func(n float64) float64 { return float64(c.probe.Read(int64(n))) })
	var loops []func()
	for _, u := range c.probe.Units() {
		if u == c.unit || u == c.unit+"-vector" {
			loops = append(loops, turn(u, 1e12, func(n float64) float64 { return c.probe.Multiply(u, n) }))
		}
	}
	return read, func() {
		for _, f := range loops {
			f()
		}
	}
}

// finish turns the samples into figures.
func (c *caseRun) finish() {
	for name, v := range c.turns {
		c.rig.turns[name] = append(c.rig.turns[name], v...)
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
	whole := false
	r.Samples, whole = pick(a.times)
	r.Disturbed = len(a.times) - a.clean
	switch {
	case whole:
	case a.times[0].processor > 0:
		r.note("%d of %d samples were disturbed by the system: their processor time counts", r.Disturbed, len(a.times))
	default:
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
	r.Roofline = NewRoofline(r, best(c.turns[limitRead]), c.unit, best(c.turns[c.unit]))
	if f := r.Roofline; f != nil && f.Share > mostShare {
		loop := c.turns[limitRead]
		if f.Limit != "bandwidth" {
			loop = c.turns[f.Limit]
		}
		switch {
		case f.Limit == "bandwidth" && c.Warm:
			r.note("more than the limit: the operands are in the cache, the limit is that of memory")
		case best(loop) > 1.5*middle(loop):
			r.note("more than the limit: its own rounds were disturbed, the share says nothing")
		case f.Limit == "bandwidth":
			r.note("more than the limit: operands were in the cache, or the limit's rounds were disturbed")
		default:
			r.note("more than the limit: its rounds were disturbed, or the processor was faster meanwhile")
		}
	}
}

// mostShare is the share of a limit above which something else than the kernel explains it.
const mostShare = 1.05

// best is the highest rate of the turns of a loop, in units of work a second; 0 of none. What disturbs a loop makes it
// slower, never faster: the best turn is the closest to what the machine can do.
func best(turns []timing) float64 {
	if len(turns) == 0 {
		return 0
	}
	v, _ := pick(turns)
	return 1e9 / slices.Min(v)
}

// middle is the median rate of the turns of a loop, in units of work a second; 0 of none.
func middle(turns []timing) float64 {
	if len(turns) == 0 {
		return 0
	}
	v, _ := pick(turns)
	return 1e9 / median(v)
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
	v, _ := pick(c.turns[c.unit])
	if n := len(v) / 3; n >= leastRounds {
		return 1 - median(v[:n])/median(v[len(v)-n:])
	}
	return 0
}

const limitRead = "read"

// limits sums up the rates of the whole run.
func (g *rig) limits() (list []Limit) {
	for _, name := range []string{limitRead, ops.UnitF32, ops.UnitInt8, ops.UnitInt8 + "-vector"} {
		if turns := g.turns[name]; len(turns) > 0 {
			list = append(list, Limit{Name: name, Rate: middle(turns), Best: best(turns)})
		}
	}
	return list
}
