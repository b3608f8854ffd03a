// Package registry is the seam between callers of an operation and the kernels that execute it. For every op on every
// device it keeps one chain of providers, best first, compiled into an immutable snapshot behind one atomic pointer;
// launching walks the chain by index: a kernel that declines leaves the call to the next one. Everything is counted, and
// Explain says why each provider is where it is. The package knows no backend and no op by name.
//
// A kernel may say more of itself (Spec, or KernelSpec for RegisterKernel): what it requires of a device, the formats and
// the values of traits that it takes, how far its bits are promised. The dispatcher then passes it over for every other
// call, and Select answers a Request from the same snapshot: which kernel serves calls of these formats and traits, on a
// device of this process or on a machine that is described by a file. Requests are filtered, then ordered by
//
//	oracle, objective, priority, specificity, origin, name
//
// so that the answer depends on the table alone, never on the order of registration; Digest names the table. Decide is
// the record of a selection, with every kernel's reasons; Prepare makes a request cheap to repeat; Plan pins a kernel.
// Descriptions of kernels whose code is elsewhere come from files (LoadSpecs) and can be planned with.
package registry

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// maxIndex bounds device indices, so that the table of devices stays dense.
const maxIndex = 255

// Registry is one table of providers with its options and counters. Use New or Default. All methods are safe for
// concurrent use. Readers (lookups, launches, Explain, Snapshot) never block a mutator and run no predicate; a mutator
// returns only after a snapshot with its change is published.
type Registry struct {
	cur     atomic.Pointer[table]
	initial *table                // what cur holds until the first compile
	ops     atomic.Pointer[opSet] // state.ops, for readers

	mu         sync.Mutex
	state      state
	want       uint64 // generation of the newest change
	published  uint64 // generation of the newest snapshot
	evaluating atomic.Int64

	callStats atomic.Bool
	observer  atomic.Pointer[Observer]
	recent    ring

	selections selections
	verdicts   verdicts
	digests    atomic.Pointer[digested]

	loading sync.Mutex      // of packages of kernels
	loaded  map[string]bool // guarded by loading

	cells counterSet

	loadOptions func() (Options, []Warning) // Default: reads the environment at the first compile
}

// state is the mutable part, guarded by Registry.mu.
type state struct {
	r          *Registry
	opts       Options
	sealed     bool
	ops        *opSet // replaced, never changed: snapshots share it
	described  int    // ops of the catalogue taken over
	defined    Op     // next id
	regs       map[slotKey][]*Registration
	slots      map[slotRef]*slot
	caps       map[tensor.Device]capsAt // every device that has a row
	disabled   []*nameSet
	policy     map[tensor.Device]ReferencePolicy // where it differs from the option
	fallOn     map[Op]bool                       // FallbackOnFailure
	dirty      map[slotRef]bool
	dirtyAll   bool
	events     []Event
	warnings   []Warning
	tracer     Tracer
	oracles    []Oracle           // strongest first; replaced, never changed
	tied       map[[4]string]bool // kind, op and kernels of the ties told
	tieWork    int                // left of the present change's
	choices    *choices
	config     configAt
	quarantine *quarantine // of the configuration, over the shipped one
}

type slotKey struct {
	op   Op
	kind tensor.Kind
}

type slotRef struct {
	op  Op
	dev tensor.Device
}

type capsAt struct {
	version uint64
	caps    device.ProviderCaps
	p       *platformAt
}

// platformAt is the platform of a device's record, worked out when it is first asked for.
type platformAt struct {
	once  sync.Once
	p     *device.Platform
	print string
}

// platform returns the device as a platform, with its fingerprint.
func (c capsAt) platform() (*device.Platform, string) {
	c.p.once.Do(func() {
		c.p.p = c.caps.AsPlatform()
		c.p.print = c.p.p.Fingerprint()
	})
	return c.p.p, c.p.print
}

// slot is what outlives recompilation for one op on one device: counters and the last announcement.
type slot struct {
	r       *Registry
	desc    *Descriptor
	op      Op
	dev     tensor.Device
	dn      int
	entry   Launcher                // what GetOp returns
	kernels map[string]*kernelState // guarded by Registry.mu

	last       atomic.Pointer[string] // provider at the head when the slot was last looked up through a fresh chain
	warned     atomic.Bool            // a borrowed kernel's warning went out
	explained  atomic.Bool
	selections atomic.Uint64
	noKernel   atomic.Uint64 // lookups and launches that found an empty chain
	fallbacks  atomic.Uint64 // GetOpFallback calls
	notes      atomic.Uint64 // NoteOpDecline calls

	mu   sync.Mutex
	zero slotTotals        // what ResetOpProviderStats subtracts
	told map[fallback]bool // fallbacks whose event went out
}

// New returns a registry that knows every op given to Describe. It compiles at the first lookup, launch or Seal.
func New(o Options) *Registry {
	r := &Registry{initial: &table{}}
	r.cells.r = r
	r.cur.Store(r.initial)
	r.state = state{r: r, opts: o, defined: FirstDefined, regs: map[slotKey][]*Registration{},
		slots: map[slotRef]*slot{}, caps: map[tensor.Device]capsAt{}, policy: map[tensor.Device]ReferencePolicy{},
		fallOn: map[Op]bool{}, dirty: map[slotRef]bool{}}
	r.state.setOps(&opSet{names: map[string]Op{}, index: &operatorIndex{}})
	for k := range tensor.NumKinds {
		r.state.addDevice(tensor.Device{Kind: tensor.Kind(k)})
	}
	r.observe(&o)
	return r
}

var defaultRegistry = sync.OnceValue(newDefault)

func newDefault() *Registry {
	r := New(Options{})
	r.loadOptions = environment
	return r
}

// Default returns the process-wide registry, to which imported backends add their providers. It reads the environment
// once, at its first compile.
func Default() *Registry { return defaultRegistry() }

// Seal compiles the registry now instead of at the first lookup.
func (r *Registry) Seal() error {
	return r.mutate(func(s *state) error {
		if s.sealed {
			return errUnchanged
		}
		s.seal()
		return nil
	})
}

func (s *state) seal() {
	if s.sealed {
		return
	}
	s.sealed, s.dirtyAll = true, true
	s.r.want++
	if s.r.loadOptions != nil {
		o, warnings := s.r.loadOptions()
		s.opts = o
		s.r.observe(&o)
		for _, w := range warnings {
			s.warn(w.Name, w.Text)
		}
	}
	s.applyOptions()
	s.readConfig()
}

// snapshot returns the current table, compiling the first one.
func (r *Registry) snapshot() (*table, error) {
	if t := r.cur.Load(); t != r.initial {
		return t, nil
	}
	if err := r.Seal(); err != nil {
		return nil, err
	}
	return r.cur.Load(), nil
}

// rounds is how often a mutator evaluates missing verdicts outside the lock before it does so inside.
const rounds = 8

// errUnchanged is what a change returns that turned out to change nothing.
var errUnchanged = errors.New("unchanged")

// mutate applies f to the mutable state and returns after a snapshot that contains the change is published. Predicates
// run without the lock; a predicate that itself calls a mutator gets ErrBusy. Before the first compile nothing is
// evaluated or published. If f returns an error it must have changed nothing.
func (r *Registry) mutate(f func(*state) error) error {
	if r.evaluating.Load() > 0 && insidePredicate() {
		return ErrBusy
	}
	r.mu.Lock()
	s := &r.state
	if s.syncCatalogue() {
		r.want++
	}
	s.tieWork = tieWork
	switch err := f(s); err {
	case nil:
		r.want++
	case errUnchanged:
	default:
		r.mu.Unlock()
		return err
	}
	if s.sealed {
		s.noticeUnknown()
		r.settle(r.want)
	}
	events := s.events
	s.events = nil
	r.mu.Unlock()
	r.emitAll(events)
	return nil
}

// settle returns, with r.mu held as before, when a snapshot of at least generation gen is published. Verdicts that the
// new chains lack are evaluated without the lock, and again if the state moved meanwhile; after some rounds with it.
func (r *Registry) settle(gen uint64) {
	for round := 0; r.published < gen; round++ {
		missing := r.state.missing()
		if len(missing) == 0 || round == rounds {
			for _, m := range missing {
				m.store(r.evaluate(m))
			}
			r.publish()
			return
		}
		r.mu.Unlock()
		answers := make([]Verdict, len(missing))
		for i, m := range missing {
			answers[i] = r.evaluate(m)
		}
		r.mu.Lock()
		for i, m := range missing {
			m.store(answers[i])
		}
	}
}

// question is a predicate to be asked about a device.
type question struct {
	g    *Registration
	dev  tensor.Device
	caps capsAt
}

// store keeps the verdict unless a newer one is there; the registry's mu is held.
func (m question) store(v Verdict) {
	if m.g.verdicts[m.dev].version > m.caps.version {
		return
	}
	m.g.verdicts[m.dev] = verdictAt{version: m.caps.version, Verdict: v}
}

// missing lists the predicates whose verdicts the dirty chains need.
func (s *state) missing() (out []question) {
	asked := map[*Registration]map[tensor.Device]bool{}
	ask := func(op Op, dev tensor.Device) {
		at := s.caps[dev]
		for _, g := range s.regs[slotKey{op, dev.Kind}] {
			if g.p.Supports == nil || s.disabledBy(g, dev, false) != "" {
				continue
			}
			if v, ok := g.verdicts[dev]; ok && v.version == at.version {
				continue
			}
			if !asked[g][dev] {
				if asked[g] == nil {
					asked[g] = map[tensor.Device]bool{}
				}
				asked[g][dev] = true
				c := at
				c.caps.Libraries = slices.Clone(at.caps.Libraries)
				out = append(out, question{g, dev, c})
			}
		}
	}
	if s.dirtyAll {
		for dev := range s.caps {
			for op := range s.ops.byID {
				ask(Op(op), dev)
			}
		}
		return out
	}
	for ref := range s.dirty {
		ask(ref.op, ref.dev)
		ask(ref.op, tensor.Device{}) // a borrowed step follows the CPU chain
	}
	return out
}

// evaluate runs one predicate; a panic becomes a verdict.
//
//go:noinline
func (r *Registry) evaluate(m question) (v Verdict) {
	r.evaluating.Add(1)
	defer func() {
		r.evaluating.Add(-1)
		if e := recover(); e != nil {
			v = Verdict{Reason: fmt.Sprintf("predicate panicked: %v", e)}
		}
	}()
	v = m.g.p.Supports(m.caps.caps)
	if !v.OK && v.Reason == "" {
		v.Reason = "not supported"
	}
	return v
}

// insidePredicate reports whether this goroutine is inside evaluate.
func insidePredicate() bool {
	pcs := make([]uintptr, 64)
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		frames := runtime.CallersFrames(pcs[:n])
		for more := n > 0; more; {
			var f runtime.Frame
			f, more = frames.Next()
			if f.Function == evaluateName {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}

const evaluateName = "github.com/opmux/opmux/registry.(*Registry).evaluate"

// addDevice gives dev a row in the table.
func (s *state) addDevice(dev tensor.Device) {
	if _, ok := s.caps[dev]; ok {
		return
	}
	s.caps[dev] = capsAt{version: 1, caps: device.ProviderCaps{Device: dev}, p: &platformAt{}}
	s.touchDevice(dev)
}

// ensureDevice gives dev a row unless it has one.
func (r *Registry) ensureDevice(dev tensor.Device) error {
	if err := checkDevice(dev); err != nil {
		return err
	}
	return r.mutate(func(s *state) error {
		if _, ok := s.caps[dev]; ok {
			return errUnchanged
		}
		s.addDevice(dev)
		return nil
	})
}

func checkDevice(dev tensor.Device) error {
	if !dev.Kind.Valid() || dev.Index < 0 || dev.Index > maxIndex {
		return fmt.Errorf("registry: %v: %w", dev, ErrUnknownDevice)
	}
	return nil
}

// syncCatalogue takes over ops described since the last call and reports whether there were any.
func (s *state) syncCatalogue() (changed bool) {
	catalogue.RLock()
	defer catalogue.RUnlock()
	if s.described == catalogue.count {
		return false
	}
	s.described = catalogue.count
	ops := s.ops.clone()
	for id, d := range catalogue.byID {
		if d != nil && ops.desc(Op(id)) == nil && ops.add(d) == nil {
			s.touch(Op(id))
			changed = true
		}
	}
	s.setOps(ops)
	return changed
}

func (s *state) setOps(ops *opSet) {
	s.ops = ops
	s.r.ops.Store(ops)
}

// touch marks the chains of op on every device.
func (s *state) touch(op Op) {
	for dev := range s.caps {
		s.dirty[slotRef{op, dev}] = true
	}
}

// touchKind marks the chains of op on devices of a kind, and those that borrow from them.
func (s *state) touchKind(op Op, kind tensor.Kind) {
	for dev := range s.caps {
		if dev.Kind == kind || kind == tensor.CPU {
			s.dirty[slotRef{op, dev}] = true
		}
	}
}

// touchDevice marks every chain of dev, and those that borrow from it.
func (s *state) touchDevice(dev tensor.Device) {
	for op, d := range s.ops.byID {
		if d == nil {
			continue
		}
		if dev == (tensor.Device{}) {
			s.touch(Op(op))
		} else {
			s.dirty[slotRef{Op(op), dev}] = true
		}
	}
}

// insert and remove copy the list: compiled chains hold the old one.
func (s *state) insert(g *Registration) {
	k := slotKey{g.op, g.kind}
	list := append(slices.Clone(s.regs[k]), g)
	slices.SortFunc(list, (*Registration).compare)
	s.regs[k] = list
	s.tellTies(g)
	s.touchKind(g.op, g.kind)
}

func (s *state) remove(g *Registration) {
	k := slotKey{g.op, g.kind}
	if i := slices.Index(s.regs[k], g); i >= 0 {
		s.regs[k] = slices.Delete(slices.Clone(s.regs[k]), i, i+1)
		s.touchKind(g.op, g.kind)
	}
}

// Define adds an op to this registry and issues its id, from FirstDefined on; d.Op is ignored. Errors: ErrName,
// ErrDuplicate (name or alias), ErrSignature (the record does not start with a Header), ErrArgument (roles or traits),
// ErrAmbiguous (an operator that another op serves for the same formats).
func (r *Registry) Define(d Descriptor) (Op, error) {
	var op Op
	err := r.mutate(func(s *state) error {
		n := d
		n.Op = s.defined
		ops := s.ops.clone()
		if err := ops.add(&n); err != nil {
			return err
		}
		if err := ops.unambiguous(&n); err != nil {
			return err
		}
		s.setOps(ops)
		op = s.defined
		s.defined++
		s.touch(op)
		return nil
	})
	return op, err
}

// Describe returns the descriptor of op, and false if the registry has no such op.
func (r *Registry) Describe(op Op) (Descriptor, bool) {
	if d := r.desc(op); d != nil {
		return d.filled(), true
	}
	return Descriptor{}, false
}

// Descriptors returns the ops that the registry knows, by id: the catalogue's, then its own.
func (r *Registry) Descriptors() []Descriptor {
	list := Descriptors()
	for op := FirstDefined; ; op++ {
		d, ok := r.Describe(op)
		if !ok {
			return list
		}
		list = append(list, d)
	}
}

// desc finds an op of the registry's own or of the catalogue, which may be ahead of the registry.
func (r *Registry) desc(op Op) *Descriptor {
	if d := r.ops.Load().desc(op); d != nil {
		return d
	}
	catalogue.RLock()
	defer catalogue.RUnlock()
	return catalogue.desc(op)
}

// Lookup finds an op by name, alias or family.mode among the catalogue's and the registry's own; an operator that one op
// alone belongs to will do too.
func (r *Registry) Lookup(name string) (Op, bool) {
	if op, ok := r.ops.Load().one(name); ok {
		return op, true
	}
	return Lookup(name)
}

// OpName returns the op's name, or "op(n)".
func (r *Registry) OpName(op Op) string {
	if d := r.desc(op); d != nil {
		return d.Name
	}
	return op.String()
}

// Devices lists the devices that have chains: index 0 of every kind, and every other one that was published or has a
// queue, by kind and index.
func (r *Registry) Devices() []tensor.Device {
	t, err := r.snapshot()
	if err != nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(t.caps), compareDevices)
}

func compareDevices(a, b tensor.Device) int {
	if a.Kind != b.Kind {
		return int(a.Kind) - int(b.Kind)
	}
	return int(a.Index) - int(b.Index)
}
