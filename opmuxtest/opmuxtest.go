// Package opmuxtest tests kernels in the repository of their author: [TestKernel] does with one kernel what opmux does
// with its own.
//
// Every case of the op's corpus is run: combinations of dtypes and of optional operands, extents that are empty, small, odd
// and about powers of two and about the thresholds that the kernel declares, strided and offset views, calls in place,
// zeros, ties, subnormal and huge numbers, infinities and NaN, and data that the op calls bad. Of each call the results are
// held against the reference, within the op's tolerance or to the bit if the kernel says so, and
//
//   - nothing is written outside of the outputs, and every element of them is (operands lie between guard words, outputs
//     are poisoned),
//   - inputs keep their bytes, but for those that a call in place overwrites,
//   - a call that is declined, or refused for its data, has written nothing,
//   - the kernel takes every call that its description does not leave out, and some of every signature that it lists,
//   - a second run, another number of threads and eight goroutines give the same bits, and so does a row alone if the
//     kernel says that it is batch invariant,
//   - other data in the same memory give other results: a kernel keeps nothing of a call,
//   - what the op's validator refuses does not reach the kernel.
//
// The engine is package verify; the project's own test of its kernels calls the same.
package opmuxtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/verify"
)

// TB is what TestKernel needs of a test: *testing.T has it.
type TB interface {
	Helper()
	Name() string
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// CaseVariable is an environment variable that names the one case (or a glob of cases) that TestKernel runs, as the line
// that ends a failure does.
const CaseVariable = "OPMUXTEST_CASE"

// Option changes what TestKernel does.
type Option func(o *options)

type options struct {
	verify.Options
	threads []int
	decline []registry.Reason
	must    bool
}

// On tests the kernel on d instead of on the CPU. d must see host memory: operands lie there. The reference runs on the
// CPU unless the registry has one for d's kind. more are further openings of the same device, by their number of threads
// or whatever may change the order of its work: the bits must be the same. All stay the caller's.
func On(d device.Device, more map[int]device.Device) Option {
	return func(o *options) { o.Device, o.More = d, more }
}

// Threads gives the numbers of CPU threads to test with; without it they are 2, 1 and 3. The first is the one of all
// checks, the others must give the same bits.
func Threads(n ...int) Option { return func(o *options) { o.threads = n } }

// Level chooses the corpus; without it the test is sample.Quick, of some seconds.
func Level(l sample.Level) Option { return func(o *options) { o.Level = l } }

// Seed chooses other operands.
func Seed(n uint64) Option { return func(o *options) { o.Seed = n } }

// Cases adds calls to the corpus. An op that the author defined needs them if the zero values of its attributes or
// extents of 64 make no legal call; its operands get normal values, whole numbers 0 and 1.
func Cases(c ...sample.Case) Option { return func(o *options) { o.Cases = append(o.Cases, c...) } }

// Tolerance says how far results of an op that the author defined may lie from its reference; without it they must have
// the same bits.
func Tolerance(t sample.Tolerance) Option { return func(o *options) { o.Options.Tolerance = &t } }

// MayDecline admits declines for these reasons. Without it the kernel must take what its description (registry.Spec,
// registry.Accept) does not leave out; declines for values, ReasonNumerics, are always admitted.
func MayDecline(reasons ...registry.Reason) Option {
	return func(o *options) { o.decline = append(o.decline, reasons...) }
}

// NoAllocations adds the check that a launch allocates no Go memory.
func NoAllocations() Option { return func(o *options) { o.Options.NoAllocations = true } }

// Required makes a kernel that the device cannot run a failure; without it the test is skipped then.
func Required() Option { return func(o *options) { o.must = true } }

// TestKernel tests the kernel of that name (OpProvider.Kernel, or "<provider>_<op>") of op, which r knows. r must have a
// reference for op: for the catalogue's ops cpu.Register gives it one, for an op that the author defined he registers a
// provider of tier registry.Reference. Failures name op, kernel, case, the worst element and a command that runs the one
// case again.
func TestKernel(t TB, r *registry.Registry, op registry.Op, kernel string, opts ...Option) {
	t.Helper()
	o := options{threads: []int{2, 1, 3}}
	o.Registry, o.Seed, o.Shrink, o.Case = r, 1, true, os.Getenv(CaseVariable)
	for _, f := range opts {
		f(&o)
	}
	d, ok := r.Describe(op)
	if !ok {
		t.Fatalf("op %d is not known to the registry: of the catalogue's ops import package ops, others need Define", op)
		return
	}
	if d.Record == nil {
		t.Fatalf("op %s has no record (Descriptor.Record), from which its calls could be made", d.Name)
		return
	}
	o.Op, o.Kernel = d.Name, kernel
	if o.Device == nil || !hasReference(r.Explain(op, o.Device.ID())) {
		closers, err := o.openCPU(r)
		defer func() {
			for _, c := range closers {
				_ = c.Close()
			}
		}()
		if err != nil {
			t.Fatalf("%s %s: no CPU to test on: %v", d.Name, kernel, err)
			return
		}
	}
	step, dropped, ok := find(r.Explain(op, o.Device.ID()), kernel)
	switch {
	case !ok:
		t.Fatalf("%s on %v has no kernel %q, it has %s", d.Name, o.Device.ID(), kernel, names(r.Explain(op, o.Device.ID())))
		return
	case dropped && !o.must && step.State == registry.DropUnsupported.String():
		t.Skipf("%s cannot run on %v: %s", kernel, o.Device.ID(), step.Detail)
		return
	case dropped:
		t.Fatalf("%s %s is not usable on %v: %s %s", d.Name, kernel, o.Device.ID(), step.State, step.Detail)
		return
	}
	rep, err := verify.Run(context.Background(), o.Options)
	if err != nil {
		t.Fatalf("%s %s: %v", d.Name, kernel, err)
		return
	}
	for _, k := range rep.Kernels {
		if k.Kernel == kernel {
			o.judge(t, rep, k)
		}
	}
}

// openCPU opens the CPU with each number of threads, as the device under test or as the place of the reference.
func (o *options) openCPU(r *registry.Registry) (opened []device.Device, err error) {
	for i, n := range o.threads {
		d, err := cpu.Open(cpu.Options{Threads: n, Registry: r})
		if err != nil {
			return opened, err
		}
		opened = append(opened, d)
		switch {
		case o.Device != nil:
			o.Oracle = d
			return opened, nil
		case i == 0:
			defer func() { o.Device = d }()
			o.More = map[int]device.Device{}
		default:
			o.More[n] = d
		}
	}
	if len(opened) > 0 {
		return opened, r.SetDeviceProviderCaps(opened[0].ID(), opened[0].Caps()) // as they were before the other openings
	}
	return nil, fmt.Errorf("opmuxtest.Threads without a number: %w", verify.ErrOption)
}

func hasReference(e registry.Explanation) bool {
	return slices.ContainsFunc(e.Runnable(), func(s registry.Step) bool { return s.Tier == registry.Reference.String() })
}

// find looks for a kernel in a chain; dropped says that it is no part of it.
func find(e registry.Explanation, kernel string) (step registry.Step, dropped, ok bool) {
	for _, s := range e.Runnable() {
		if s.Kernel == kernel {
			return s, false, true
		}
	}
	for _, s := range e.Dropped {
		if s.Kernel == kernel {
			return s, true, true
		}
	}
	return step, false, false
}

func names(e registry.Explanation) string {
	var list []string
	for _, s := range slices.Concat(e.Chain, e.Dropped) {
		list = append(list, s.Kernel)
	}
	if list == nil {
		return "none"
	}
	return strings.Join(list, ", ")
}

// judge reports what verify found.
func (o *options) judge(t TB, rep *verify.Report, k verify.KernelReport) {
	t.Helper()
	again := func(c string) string {
		return fmt.Sprintf("\n  again: %s='%s' go test -run '^%s$' .", CaseVariable, c, strings.ReplaceAll(t.Name(), "/", "$/^"))
	}
	for _, f := range k.Failures {
		text := fmt.Sprintf("%s %s: %s: case %s, seed %d: %s", k.Op, k.Kernel, f.Check, f.Case.Name, rep.Seed, f.Detail)
		if f.Shrunk != nil {
			text += fmt.Sprintf("\n  smallest: %v: %s", f.Shrunk.Shape, f.Shrunk.Detail)
		}
		t.Errorf("%s%s", text, again(f.Case.Name))
	}
	if n := k.Counts.Failures - len(k.Failures); n > 0 {
		t.Errorf("%s %s: %d more failed checks", k.Op, k.Kernel, n)
	}
	switch k.Verdict {
	case verify.NeverRan:
		t.Errorf("%s %s: never ran: it declined all of %d calls (%v), though Supports accepts the device", k.Op, k.Kernel, k.Cases, k.Declines)
	case verify.Outside:
		t.Errorf("%s %s: never ran: each of %d calls lies outside of what it declares (opmuxtest.Cases adds calls)", k.Op, k.Kernel, k.Cases)
	case verify.Missing:
		t.Errorf("%s %s: the registry has no reference kernel to hold it against: see cpu.Register, or tier registry.Reference", k.Op, k.Kernel)
	case verify.Unusable:
		t.Errorf("%s %s: not usable: %s", k.Op, k.Kernel, k.Detail)
	}
	if k.Verdict == verify.Passed && k.Executed == 0 && o.Case == "" {
		t.Errorf("%s %s: no call could be made: %s", k.Op, k.Kernel, strings.Join(rep.Unserved, "; "))
	}
	if k.Verdict != verify.NeverRan {
		for _, reason := range slices.Sorted(maps.Keys(k.Unexplained)) {
			if slices.ContainsFunc(o.decline, func(r registry.Reason) bool { return r.String() == reason }) {
				continue
			}
			t.Errorf("%s %s: unexplained decline: %d calls for %s, the first is case %s: its description (Spec, Accept) does not leave them out%s", k.Op, k.Kernel,
				k.Unexplained[reason], reason, k.FirstUnexplained, again(k.FirstUnexplained))
		}
	}
	if len(k.Unverified) > 0 && o.Case == "" {
		t.Errorf("%s %s: of %d declared signatures (Spec.Signatures; none means all) no call ran of: %s", k.Op, k.Kernel, k.Signatures, strings.Join(k.Unverified, "; "))
	}
	for _, c := range rep.Unserved {
		t.Logf("no such call, or the reference declines it: %s", c)
	}
	t.Logf("%s %s: %d cases: %d executed, %d empty, %d refused as they must, %d declined; checks: %v", k.Op, k.Kernel, k.Cases, k.Executed, k.Empty, k.Rejected, k.Declined, k.Checks)
}
