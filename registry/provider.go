package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Names and the priority that the seam reserves.
const (
	NativeProviderName          = "vt-native"  // what RegisterOp registers, at priority 0
	ReferenceProviderName       = "vt-cpu-ref" // the CPU chain lent to a device whose memory the host can read
	ReferenceTierPriority int32 = -1000
)

// Tier says where a provider comes from. It does not order a chain; Priority does.
type Tier uint8

// Tiers.
const (
	Native    Tier = iota // written for this module
	Vendor                // a vendor's library
	Plugin                // loaded from outside
	Reference             // the oracle: always right, never fast; last in its chain (priority -1000)
	Borrowed              // a CPU kernel lent to another device
)

// String returns the lower-case name.
func (t Tier) String() string {
	return [...]string{"native", "vendor", "plugin", "reference", "borrowed"}[min(t, Borrowed)]
}

// MarshalText is String.
func (t Tier) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads a name. ErrArgument.
func (t *Tier) UnmarshalText(b []byte) error {
	for i := range Borrowed {
		if i.String() == string(b) {
			*t = i
			return nil
		}
	}
	return fmt.Errorf("registry: tier %q is not native, vendor, plugin or reference: %w", clip(string(b)), ErrArgument)
}

// Verdict is a predicate's answer for a device.
type Verdict struct {
	OK     bool
	Reason string // why not, as Explain prints it
}

// Yes is the verdict of a predicate that accepts.
var Yes = Verdict{OK: true}

// No returns a refusing verdict.
func No(reason string) Verdict { return Verdict{Reason: reason} }

// Traits are promises of a kernel that tests check.
type Traits struct {
	BatchInvariant   bool `json:"batch_invariant,omitempty"`  // a row has the same bits alone and in a batch
	BitExact         bool `json:"bit_exact,omitempty"`        // same bits as the reference
	CaptureSafe      bool `json:"capture_safe,omitempty"`     // may be recorded into a graph
	Nondeterministic bool `json:"nondeterministic,omitempty"` // bits may differ between runs; declines FlagDeterministic calls
}

// Library is a foreign library that a provider's code lives in. Acquire is called at registration and Release after the
// provider was withdrawn and its last running call has returned.
type Library interface {
	Acquire() error
	Release() error
}

// OpProvider is one implementation of an op for a kind of device. The registry copies it.
type OpProvider struct {
	Name     string // the provider (the solution): "avx512vnni", "reference", "mlx"
	Kernel   string // unique among the op's providers of this kind; "" means Name + "_" + op name
	Priority int32  // higher first; equal priorities by Kernel, smaller first
	Tier     Tier
	Supports func(device.ProviderCaps) Verdict // nil: always. Cheap, no side effects, for a device and never for a call.
	Accept   *Accept                           // nil: every call that the op admits
	Traits   Traits
	SelfTest func(q *Queue) error // known-answer test on a queue whose launches of this op reach only this kernel
	Fn       Launcher
	Record   reflect.Type // record type that Fn was written for; nil: not checked
	Library  Library      // nil: static code, Close does not wait
	Doc      string       // one line for Explain
	Spec     *Spec        // where the kernel runs and which calls it takes; nil: wherever Supports says, every call of the op
}

// Registration is a registered provider.
type Registration struct {
	reg    *Registry
	op     Op
	kind   tensor.Kind
	p      OpProvider
	source string
	accept *acceptProg
	domain *domain

	describe sync.Once // fills spec and sum
	spec     KernelSpec
	sum      [32]byte

	// guarded by reg.mu
	replaced []*Registration // whose place this one's kernel took
	verdicts map[tensor.Device]verdictAt
	tests    map[tensor.Device]*selfTest

	closed   atomic.Bool
	inflight atomic.Int64 // calls inside Fn; counted only with a Library
	drained  chan struct{}
	drain    sync.Once
	release  sync.Once
	relErr   error
}

type verdictAt struct {
	version uint64 // of the device's caps
	Verdict
}

// Op returns the op that the provider serves.
func (g *Registration) Op() Op { return g.op }

// Kernel returns the kernel's name.
func (g *Registration) Kernel() string { return g.p.Kernel }

// Source returns file:line of the code that registered the provider.
func (g *Registration) Source() string { return g.source }

// compare orders a chain: priority descending, then kernel name.
func (g *Registration) compare(o *Registration) int {
	if c := cmp.Compare(o.p.Priority, g.p.Priority); c != 0 {
		return c
	}
	return strings.Compare(g.p.Kernel, o.p.Kernel)
}

// is reports whether name is the kernel's or the provider's.
func (g *Registration) is(name string) bool { return g.p.Kernel == name || g.p.Name == name }

// RegisterOpProvider adds a provider for op on devices of a kind. It returns after the new chain is published.
// Errors: ErrUnknownOp, ErrUnknownDevice, ErrNil (Fn), ErrName, ErrReserved, ErrDuplicate (*DuplicateError with the
// source of the earlier registration), ErrSignature, ErrArgument (Accept names no operand), ErrBusy.
func (r *Registry) RegisterOpProvider(op Op, kind tensor.Kind, p OpProvider) (*Registration, error) {
	return r.register(op, kind, p, false)
}

// MustRegister is RegisterOpProvider on Default for package inits; it panics on an error.
func MustRegister(op Op, kind tensor.Kind, p OpProvider) *Registration {
	g, err := Default().register(op, kind, p, false)
	if err != nil {
		panic(err)
	}
	return g
}

func (r *Registry) register(op Op, kind tensor.Kind, p OpProvider, native bool) (*Registration, error) {
	g := newRegistration(r, op, kind, p)
	err := r.mutate(func(s *state) error {
		d := s.ops.desc(op)
		if d == nil {
			return fmt.Errorf("registry: op %d: %w", op, ErrUnknownOp)
		}
		if err := g.check(s, d, native); err != nil {
			return err
		}
		for _, o := range s.regs[slotKey{g.op, g.kind}] {
			if o.p.Kernel == g.p.Kernel {
				return &DuplicateError{OpName: d.Name, Kind: g.kind, Kernel: o.p.Kernel, Source: o.source}
			}
		}
		if g.p.Library != nil {
			if err := g.p.Library.Acquire(); err != nil {
				return fmt.Errorf("registry: kernel %s: library: %w", g.p.Kernel, err)
			}
		}
		s.insert(g)
		return nil
	})
	if err != nil {
		if !errors.Is(err, ErrBusy) {
			r.emit(Event{Kind: EventRefused, Op: op, OpName: r.OpName(op), Device: tensor.Device{Kind: kind}, Provider: p.Name, Kernel: g.p.Kernel, Detail: err.Error()})
		}
		return nil, err
	}
	return g, nil
}

func newRegistration(r *Registry, op Op, kind tensor.Kind, p OpProvider) *Registration {
	return &Registration{reg: r, op: op, kind: kind, p: p, source: callerOutside(),
		verdicts: map[tensor.Device]verdictAt{}, tests: map[tensor.Device]*selfTest{}, drained: make(chan struct{})}
}

// check validates the registration and fills in defaults.
func (g *Registration) check(s *state, d *Descriptor, native bool) error {
	p := &g.p
	if !g.kind.Valid() {
		return fmt.Errorf("registry: %s: %v: %w", d.Name, g.kind, ErrUnknownDevice)
	}
	if p.Fn == nil && (p.Spec == nil || p.Spec.Unavailable == "") {
		return fmt.Errorf("registry: %s on %v: launcher: %w", d.Name, g.kind, ErrNil)
	}
	if err := checkName("provider", p.Name); err != nil {
		return err
	}
	if p.Kernel == "" {
		p.Kernel = p.Name + "_" + d.Name
	}
	if err := checkName("kernel", p.Kernel); err != nil {
		return err
	}
	if !native && (p.Name == NativeProviderName || p.Name == ReferenceProviderName || p.Kernel == NativeProviderName || p.Kernel == ReferenceProviderName) {
		return fmt.Errorf("registry: provider %q, kernel %q: %w", p.Name, p.Kernel, ErrReserved)
	}
	if p.Tier > Reference {
		return fmt.Errorf("registry: kernel %s: tier %v: %w", p.Kernel, p.Tier, ErrReserved)
	}
	if p.Priority <= ReferenceTierPriority && p.Tier != Reference || p.Tier == Reference && p.Priority != ReferenceTierPriority {
		return fmt.Errorf("registry: kernel %s: priority %d with tier %v (%d belongs to the reference tier and nothing stands below): %w",
			p.Kernel, p.Priority, p.Tier, ReferenceTierPriority, ErrReserved)
	}
	if p.Record != nil && d.Record != nil && p.Record != d.Record {
		return &SignatureError{OpName: d.Name, Want: d.Record.String(), Got: p.Record.String()}
	}
	prog, err := p.Accept.compile(d)
	if err != nil {
		return err
	}
	g.accept = prog
	if s := p.Spec; s != nil && p.Traits.Nondeterministic && (s.Determinism != "" || p.Traits.BatchInvariant || p.Traits.BitExact) {
		return &SpecError{Kernel: p.Kernel, Field: "determinism", Text: "is promised by a kernel that is said to be nondeterministic"}
	}
	p.Spec = p.Spec.clone()
	g.domain, err = compileSpec(p.Kernel, d, p.Spec, p.Tier, p.Priority)
	return err
}

// lacks says what a probed device lacks of what the kernel requires.
func (g *Registration) lacks(at capsAt) []device.Reason {
	if g.p.Spec == nil || !at.caps.Valid {
		return nil
	}
	p, _ := at.platform()
	return g.p.Spec.Requires.Check(p)
}

// Close withdraws the provider and waits until its running calls have returned; see CloseContext.
func (g *Registration) Close() error { return g.CloseContext(context.Background()) }

// CloseContext withdraws the provider: after it returns no call reaches it. With a Library it waits until the calls that
// already run have returned and then releases the library reference; when ctx ends first it returns ctx's error, the
// provider stays withdrawn and a later Close can finish the wait. Closing twice is harmless. A launcher must not close
// its own registration.
func (g *Registration) CloseContext(ctx context.Context) error {
	var replaced []*Registration
	err := g.reg.mutate(func(s *state) error {
		s.remove(g)
		replaced, g.replaced = g.replaced, nil
		return nil
	})
	if err != nil {
		return err
	}
	g.closed.Store(true)
	err = g.drainLibrary(ctx)
	for _, o := range replaced { // now nobody can bring them back
		err = errors.Join(err, o.CloseContext(ctx))
	}
	return err
}

// drainLibrary waits for the calls that still run in g's library and then gives up the reference to it.
func (g *Registration) drainLibrary(ctx context.Context) error {
	if g.p.Library == nil {
		return nil
	}
	if g.inflight.Load() == 0 {
		g.drain.Do(func() { close(g.drained) })
	}
	select {
	case <-g.drained:
	case <-ctx.Done():
		return fmt.Errorf("registry: kernel %s: calls still running: %w", g.p.Kernel, ctx.Err())
	}
	g.release.Do(func() { g.relErr = g.p.Library.Release() })
	return g.relErr
}

// enter counts a call into the library; false means that the provider was withdrawn.
func (g *Registration) enter() bool {
	g.inflight.Add(1)
	if !g.closed.Load() {
		return true
	}
	g.leave()
	return false
}

func (g *Registration) leave() {
	if g.inflight.Add(-1) == 0 && g.closed.Load() {
		g.drain.Do(func() { close(g.drained) })
	}
}

// Erase turns a typed launcher into the erased shape. The caller vouches that R is the op's record; pass
// reflect.TypeFor[R]() as OpProvider.Record to have it checked.
func Erase[R any](fn func(*Queue, *R) Status) Launcher {
	if fn == nil {
		return nil
	}
	return erase(fn)
}

// erase is for pointers P, of which all instances share one body, and one name: that of an instance for a record holds
// its fields and tags.
func erase[P any](fn func(*Queue, P) Status) Launcher {
	return func(q *Queue, args unsafe.Pointer) Status { return fn(q, *(*P)(unsafe.Pointer(&args))) }
}

// mainPackage is the path of the program's own package.
var mainPackage = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "" && info.Path != "command-line-arguments" {
		return info.Path
	}
	return "main"
})

// callerOutside returns file:line of the nearest caller that is not in this package and package ops.
func callerOutside() string {
	var pcs [24]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if (!strings.HasPrefix(f.Function, "github.com/opmux/opmux/registry.") || strings.HasSuffix(f.File, "_test.go")) &&
			!strings.HasPrefix(f.Function, "github.com/opmux/opmux/ops.") || !more {
			slash := strings.LastIndexByte(f.Function, '/') + 1
			pkg, _, _ := strings.Cut(f.Function[slash:], ".")
			pkg = f.Function[:slash] + pkg
			if pkg == "main" {
				pkg = mainPackage()
			}
			return fmt.Sprintf("%s/%s:%d", pkg, path.Base(f.File), f.Line)
		}
	}
}
