package registry

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// chain is the compiled list of usable providers of one op on one device.
type chain struct {
	slot      *slot
	steps     []step // usable, best first, borrowed reference kernels last
	bench     []step // unsupported or quarantined: only a force: override reaches them; or waiting to be asked for by name
	base      *chain // what choice was applied to, nil without one
	choice    choice
	err       *NoProviderError // when steps is empty
	dropped   []drop
	all       []*Registration // every registered provider in chain order
	floors    []*kernelState  // of all
	refWhy    string          // why nothing was borrowed
	fallOn    bool            // a failure that enqueued nothing goes on to the next step
	entry     Launcher        // the slot's
	announced atomic.Bool     // its event went out
	divide    sync.Once       // fills divided
	divided   *regions
	ready     atomic.Bool // not empty, announced, and no call statistics: a lookup has nothing to do but return
}

// step is one usable provider.
type step struct {
	fn     Launcher
	guard  guard // what has to be looked at before the call
	id     int   // of the kernel's counters
	mark   int   // of the counters that the kernel's fallback entry marks: a borrowed kernel's are the lender's
	k      *kernelState
	g      *Registration
	test   *selfTest     // nil without one
	tracer Tracer        // with guardTrace
	seen   atomic.Uint32 // reasons whose fallback event went out
}

type guard uint16

const (
	guardAccept guard = 1 << iota
	guardLibrary
	guardTest
	guardCapture  // not capture-safe, on a device that can capture
	guardBorrowed // a CPU kernel on another device
	guardWarn     // policy warn
	guardOutputs  // Options.CheckDeclines
	guardDomain   // the kernel declared formats or traits that a call must have
	guardTrace    // the registry has a tracer
	guardExplicit // on the bench: usable, but runs only where it is asked for by name
)

type drop struct {
	g       *Registration
	why     DropReason
	detail  string
	reasons []device.Reason // what the device lacks
}

// DropReason says why a registered provider is not in a chain.
type DropReason uint8

// Reasons of absence.
const (
	DropUnsupported DropReason = iota // the predicate refused the device
	DropDisabled
	DropQuarantined // its self-test failed
	DropOverridden  // another kernel is forced
	DropUnavailable // there is no implementation in this build
	DropWaiting     // usable, but it runs only where it is asked for by name
)

// String returns the reason's name as Explain prints it.
func (d DropReason) String() string {
	return [...]string{"unsupported", "disabled", "quarantined", "overridden", "unavailable", "waiting"}[min(d, DropWaiting)]
}

// MarshalText encodes the name.
func (d DropReason) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// kernelState is what outlives recompilation for one kernel on one device: its counters' number and its fallback entry.
type kernelState struct {
	id       int
	slot     *slot
	borrowed bool
	newest   atomic.Pointer[Registration] // of this name
	base     cell                         // folded from closed queues, and counted without a queue
	below    Launcher                     // what GetOpFallback returns
}

// slot returns the lasting part of a chain, made on first use; r.mu is held.
func (s *state) slot(ref slotRef) *slot {
	sl := s.slots[ref]
	if sl == nil {
		sl = &slot{r: s.r, desc: s.ops.desc(ref.op), op: ref.op, dev: ref.dev, dn: deviceNumber(ref.dev), kernels: map[string]*kernelState{}}
		sl.entry = sl.run
		s.slots[ref] = sl
	}
	return sl
}

// kernel returns the lasting part of a step; r.mu is held.
func (sl *slot) kernel(g *Registration, borrowed bool) *kernelState {
	name := g.p.Kernel
	if borrowed {
		name = ReferenceProviderName + "/" + name
	}
	k := sl.kernels[name]
	if k == nil {
		k = &kernelState{slot: sl, borrowed: borrowed}
		k.below = k.runBelow
		sl.r.cells.add(k)
		sl.kernels[name] = k
	}
	k.newest.Store(g)
	return k
}

// compile builds one chain; verdicts are there. r.mu is held.
func (s *state) compile(ref slotRef) *chain {
	c := &chain{slot: s.slot(ref), all: s.regs[slotKey{ref.op, ref.dev.Kind}], fallOn: s.fallOn[ref.op]}
	for _, g := range c.all {
		c.floors = append(c.floors, c.slot.kernel(g, false))
	}
	usable, dropped := s.ranked(ref.op, ref.dev)
	c.dropped = dropped
	var lent []*Registration
	if ref.dev.Kind != tensor.CPU {
		if c.refWhy = s.referenceRefused(ref.dev); c.refWhy == "" {
			cpu := s.compile(slotRef{ref.op, tensor.Device{}}).steps
			for i := range cpu {
				if s.disabledBy(cpu[i].g, ref.dev, true) == "" {
					lent = append(lent, cpu[i].g)
				}
			}
			if len(lent) == 0 {
				c.refWhy = "no usable CPU kernel"
			}
		}
	}
	c.steps = make([]step, len(usable)+len(lent))
	for i := range c.steps {
		if i < len(usable) {
			s.fill(&c.steps[i], c.slot, usable[i], false)
		} else {
			s.fill(&c.steps[i], c.slot, lent[i-len(usable)], true)
		}
	}
	var out []drop
	for _, d := range dropped {
		if d.why != DropDisabled && d.g.p.Fn != nil {
			out = append(out, d)
		}
	}
	c.bench = make([]step, len(out))
	for i, d := range out {
		b := &c.bench[i]
		s.fill(b, c.slot, d.g, false)
		if d.why == DropWaiting {
			b.guard |= guardExplicit
		} else {
			b.guard &^= guardTest
		}
	}
	c.entry = c.slot.entry
	c.finish()
	if ch := s.override(ref.op, ref.dev); !ch.isZero() {
		return c.overridden(ch)
	}
	return c
}

// fill makes the step of a kernel in a chain of sl; r.mu is held.
func (s *state) fill(st *step, sl *slot, g *Registration, borrowed bool) {
	st.g, st.k = g, sl.kernel(g, borrowed)
	st.fn, st.id, st.mark = g.p.Fn, st.k.id, st.k.id
	if borrowed {
		st.guard |= guardBorrowed
		if s.referencePolicy(sl.dev) == ReferenceWarn {
			st.guard |= guardWarn
		}
		st.mark = s.slot(slotRef{sl.op, tensor.Device{}}).kernel(g, false).id
	} else if sl.dev.Kind != tensor.CPU && !g.p.Traits.CaptureSafe {
		st.guard |= guardCapture
	}
	if g.p.SelfTest != nil {
		if st.test = s.selfTest(g, st.home(sl.dev)); st.test.state.Load() == untested {
			st.guard |= guardTest
		}
	}
	if g.accept != nil {
		st.guard |= guardAccept
	}
	if g.domain.atLaunch() {
		st.guard |= guardDomain
	}
	if g.p.Library != nil {
		st.guard |= guardLibrary
	}
	if s.opts.CheckDeclines {
		st.guard |= guardOutputs
	}
	if s.tracer != nil {
		st.guard |= guardTrace
		st.tracer = s.tracer
	}
}

// ranked returns the providers of op that are usable on dev, best first, and the others with their reasons.
func (s *state) ranked(op Op, dev tensor.Device) (usable []*Registration, dropped []drop) {
	for _, g := range s.regs[slotKey{op, dev.Kind}] {
		by := s.disabledBy(g, dev, false)
		lacks := g.lacks(s.caps[dev])
		switch {
		case g.p.Fn == nil:
			dropped = append(dropped, drop{g: g, why: DropUnavailable, detail: g.p.Spec.Unavailable})
		case by != "":
			dropped = append(dropped, drop{g: g, why: DropDisabled, detail: "by " + by})
		case len(lacks) > 0:
			var words []string
			for _, r := range lacks {
				words = append(words, r.String())
			}
			dropped = append(dropped, drop{g, DropUnsupported, strings.Join(words, "; "), lacks})
		case g.p.Supports != nil && !g.verdicts[dev].OK:
			dropped = append(dropped, drop{g: g, why: DropUnsupported, detail: g.verdicts[dev].Reason})
		case s.quarantine.of(s.ops, g, s.caps[dev]) != "":
			dropped = append(dropped, drop{g: g, why: DropQuarantined, detail: s.quarantine.of(s.ops, g, s.caps[dev])})
		case g.p.SelfTest != nil && s.selfTest(g, dev).state.Load() == testFailed:
			dropped = append(dropped, drop{g: g, why: DropQuarantined, detail: s.selfTest(g, dev).err.Error()})
		case g.p.Spec != nil && g.p.Spec.NotAuto:
			dropped = append(dropped, drop{g: g, why: DropWaiting, detail: onlyByName})
		default:
			usable = append(usable, g)
		}
	}
	return usable, dropped
}

// onlyByName is why a usable kernel does not stand in a chain.
const onlyByName = "runs only where it is asked for by name"

// finish builds the error of an empty chain.
func (c *chain) finish() {
	if len(c.steps) > 0 {
		return
	}
	c.err = &NoProviderError{Op: c.slot.op, OpName: c.slot.desc.Name, Device: c.slot.dev, Reference: c.refWhy}
	if c.choice.unknown != nil {
		c.err.Override = c.choice.String()
	}
	for _, d := range c.dropped {
		c.err.Candidates = append(c.err.Candidates, d.candidate())
	}
}

// reachable calls yield for the steps that a call may reach, now or when it asks for them by name.
func (c *chain) reachable(yield func(*step) bool) {
	for i := range c.steps {
		if !yield(&c.steps[i]) {
			return
		}
	}
	bench := c.bench
	if c.base != nil {
		bench = c.base.bench
	}
	for i := range bench {
		if s := &bench[i]; s.guard&guardExplicit != 0 && !yield(s) {
			return
		}
	}
}

// native reports whether a provider of the device itself is usable.
func (c *chain) native() bool { return len(c.steps) > 0 && !c.steps[0].k.borrowed }

// below returns the index of the step after g's own, or of the first step that ranks under g where g is not usable.
func (c *chain) below(g *Registration) int {
	under := len(c.steps)
	for i := len(c.steps) - 1; i >= 0; i-- {
		s := &c.steps[i]
		if s.g == g && !s.k.borrowed {
			return i + 1
		}
		if s.k.borrowed || g.compare(s.g) < 0 {
			under = i
		}
	}
	return under
}

// derive returns c without the steps that keep refuses (it returns why). The copy is never announced.
func (c *chain) derive(keep func(*step) (DropReason, string, bool)) *chain {
	n := &chain{slot: c.slot, all: c.all, floors: c.floors, refWhy: c.refWhy, fallOn: c.fallOn, base: c.base, choice: c.choice}
	n.dropped = append(n.dropped, c.dropped...)
	var kept []*step
	for i := range c.steps {
		s := &c.steps[i]
		if why, detail, ok := keep(s); ok {
			kept = append(kept, s)
		} else {
			n.dropped = append(n.dropped, drop{g: s.g, why: why, detail: detail})
		}
	}
	n.steps = make([]step, len(kept))
	for i, s := range kept {
		n.steps[i].copy(s)
	}
	n.finish()
	n.announced.Store(true)
	return n
}

// pick returns a chain of some of c's steps in another order, for calls that asked for them.
func (c *chain) pick(steps []*step) *chain {
	n := &chain{slot: c.slot, all: c.all, floors: c.floors, refWhy: c.refWhy, fallOn: c.fallOn, dropped: c.dropped, entry: c.entry}
	n.steps = make([]step, len(steps))
	for i, s := range steps {
		n.steps[i].copy(s)
		n.steps[i].guard &^= guardExplicit
	}
	n.finish()
	n.announced.Store(true)
	return n
}

// provider and priority are the step's own, or the tier's for a borrowed kernel.
func (s *step) provider() string {
	if s.k.borrowed {
		return ReferenceProviderName
	}
	return s.g.p.Name
}

func (s *step) priority() int32 {
	if s.k.borrowed {
		return ReferenceTierPriority
	}
	return s.g.p.Priority
}

// home is the device that the kernel was written for: the first CPU for a borrowed one.
func (s *step) home(dev tensor.Device) tensor.Device {
	if s.k.borrowed {
		return tensor.Device{}
	}
	return dev
}

func (s *step) copy(o *step) {
	s.fn, s.guard, s.id, s.mark, s.k, s.g, s.test, s.tracer = o.fn, o.guard, o.id, o.mark, o.k, o.g, o.test, o.tracer
}
