package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Names of checks.
const (
	checkNumbers   = "numbers"         // within tolerance of the reference
	checkBits      = "bit exact"       // the reference's bits, as declared
	checkValues    = "expected values" // what the case itself demands
	checkGuards    = "guards"          // nothing written outside of operands
	checkInputs    = "inputs"          // inputs keep their bytes
	checkDecline   = "decline"         // a declined call has written nothing
	checkInvalid   = "invalid data"    // bad data are an ErrValue and nothing is written
	checkError     = "error"           // the kernel serves what the reference serves
	checkRepeat    = "same bits again"
	checkThreads   = "same bits for any number of threads"
	checkRowsAlone = "same bits alone and in a batch"
	checkTogether  = "same bits from eight goroutines"
	checkNewData   = "new data in the same memory"
	checkRejected  = "rejected by the validator" // the kernel never sees the call and nothing is written
	checkAllocates = "allocates nothing"
)

// kernel is one kernel under test.
type kernel struct {
	KernelReport
	v         *run
	d         registry.Descriptor
	traits    registry.Traits
	reference bool
	views     []*registry.Queue // of the run's queues, narrowed to the kernel; the first is the device's own
	domain    int               // declines that a declared domain explains
	before    uint64            // calls that reached the kernel before
	declared  map[string]bool   // signatures of its description, false until one was executed
	kept      []kept            // calls that passed, spread over the cases
	every     int               // which of them are kept
}

// kept is a call with what the kernel made of it.
type kept struct {
	*call
	got *sample.Args
}

// mostKept bounds the calls of a kernel that are kept for the checks that run once.
const mostKept = 16

func (v *run) kernel(d registry.Descriptor, s registry.Step, reference string) *kernel {
	k := &kernel{KernelReport: KernelReport{Op: d.Name, Kernel: s.Kernel, Provider: s.Provider, Declines: map[string]int{}, Checks: map[string]int{}},
		v: v, d: d, traits: s.Traits, reference: s.Kernel == reference}
	k.before = k.reached()
	if spec, ok := v.Registry.GetByName(s.Kernel); ok && v.Types == nil && v.Shapes == nil {
		k.declared = map[string]bool{}
		for _, sig := range spec.Signatures {
			k.declared[sig.String()] = false
		}
	}
	ctx := registry.WithKernel(context.Background(), d.Op, s.Kernel)
	for _, q := range append([]*registry.Queue{v.q}, v.more...) {
		k.views = append(k.views, q.With(ctx))
	}
	return k
}

// fail records a failed check.
func (k *kernel) fail(check string, c *call, results []sample.Result, format string, args ...any) {
	k.Counts.Failures++
	if len(k.Failures) < mostFailures {
		k.Failures = append(k.Failures, Failure{Check: check, Case: c.Case, Detail: fmt.Sprintf(format, args...), Results: results})
	}
}

// check counts a check and records err.
func (k *kernel) check(check string, c *call, err error) {
	k.Checks[check]++
	if err != nil {
		k.fail(check, c, nil, "%v", err)
	}
}

// case_ runs the kernel on one case and makes every check that applies.
func (k *kernel) case_(c *call) {
	k.Cases++
	got := c.want.Clone().On(k.v.Device.ID())
	got.Reset()
	err := launch(k.views[0], k.d.Op, got)
	switch {
	case errors.Is(err, registry.ErrDeclined):
		k.declined(c, err)
		k.check(checkDecline, c, got.Untouched())
		return
	case c.Invalid:
		k.Rejected++
		if !errors.Is(err, ops.ErrValue) {
			k.fail(checkInvalid, c, nil, "error is %v, want %v", err, ops.ErrValue)
		}
		k.check(checkInvalid, c, got.Untouched())
		return
	case err != nil || c.err != nil:
		k.Executed++
		k.check(checkError, c, fmt.Errorf("%w (the reference's: %w)", orNone(err), orNone(c.err)))
		return
	}
	if got.Empty() {
		k.Empty++
	} else {
		k.Executed++
		k.seen(got)
	}
	k.check(checkGuards, c, got.CheckGuards())
	k.check(checkInputs, c, got.InputsUntouched())
	failed := k.Counts.Failures
	if !k.reference {
		k.compare(c, got)
	}
	if results := sample.CheckWant(got, c.tol); results != nil {
		k.Checks[checkValues]++
		if bad := worst(results); bad != nil {
			k.fail(checkValues, c, results, "%v", bad)
		}
	}
	if k.Counts.Failures == failed && !k.traits.Nondeterministic {
		k.repeat(c, got)
	}
	if k.Counts.Failures == failed && k.traits.BatchInvariant {
		k.rows(c, got)
	}
	if k.Counts.Failures == failed && k.Cases%max(k.every, 1) == 0 && len(k.kept) < mostKept && !got.Empty() {
		k.kept = append(k.kept, kept{c, got})
	}
}

// seen notes the signature of an executed call.
func (k *kernel) seen(got *sample.Args) {
	if k.declared == nil {
		return
	}
	types := map[string]tensor.DType{}
	for _, role := range k.d.Roles {
		if x := got.Tensor(role); x != nil && x.Present() {
			types[role] = x.DType
		}
	}
	if s := signature(types).String(); !k.declared[s] {
		if _, ok := k.declared[s]; ok {
			k.declared[s] = true
		}
	}
}

var errNone = errors.New("no error")

func orNone(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

// launch runs a call. A panic of the kernel is an error.
func launch(q *registry.Queue, op registry.Op, a *sample.Args) (err error) {
	defer func() {
		if e := recover(); e != nil {
			err = fmt.Errorf("panic: %v", e)
		}
	}()
	if err := ops.Launch(q, op, a.Record()); err != nil {
		return err
	}
	if n := q.Native(); n != nil {
		return n.Sync(context.Background())
	}
	return nil
}

// declined counts a decline by its reason.
func (k *kernel) declined(c *call, err error) {
	k.Declined++
	var d *registry.DeclinedError
	if !errors.As(err, &d) || len(d.Refusals) == 0 {
		k.Declines["unknown"]++
		return
	}
	reason := d.Refusals[0].Reason
	k.Declines[reason.String()]++
	switch {
	case reason == registry.ReasonDomain || d.Refusals[0].Detail != "":
		k.domain++
	case reason != registry.ReasonNumerics: // what only values tell no description can
		if k.Unexplained == nil {
			k.Unexplained = map[string]int{}
		}
		k.Unexplained[reason.String()]++
		if k.FirstUnexplained == "" {
			k.FirstUnexplained = c.Name
		}
	}
}

// compare holds the outputs against the reference's.
func (k *kernel) compare(c *call, got *sample.Args) {
	check, tol := checkNumbers, c.tol
	if k.traits.BitExact {
		check, tol = checkBits, sample.Bits
	}
	k.Checks[check]++
	results := sample.Compare(got, c.want, tol)
	for _, r := range results {
		if k.Closest == nil || r.Worst.Share > k.Closest.Result.Worst.Share {
			k.Closest = &Closest{c.Name, r}
		}
	}
	bad := worst(results)
	if bad == nil {
		return
	}
	k.fail(check, c, results, "%v", bad)
	if last := len(k.Failures) - 1; k.v.Shrink && k.Counts.Failures == len(k.Failures) { // it is among those described
		k.Failures[last].Shrunk = k.shrink(c, tol)
	}
}

// worst returns the result that failed by the largest share, nil if none did.
func worst(results []sample.Result) *sample.Result {
	var w *sample.Result
	for i := range results {
		if r := &results[i]; !r.OK && (w == nil || r.Worst.Share > w.Worst.Share) {
			w = r
		}
	}
	return w
}

// repeat runs the call once more, and with other numbers of threads: the bits must be the same.
func (k *kernel) repeat(c *call, got *sample.Args) {
	again := got.Clone()
	for i, q := range k.views {
		check := checkThreads
		if i == 0 {
			check = checkRepeat
		}
		again.Reset()
		k.Checks[check]++
		if err := launch(q, k.d.Op, again); err != nil {
			k.fail(check, c, nil, "%v", err)
			return
		}
		if !again.SameBits(got) {
			results := sample.Compare(again, got, sample.Bits)
			where := ""
			if bad := worst(results); bad != nil {
				where = ": " + bad.String()
			}
			if i > 0 {
				where = fmt.Sprintf(" with %d threads%s", k.v.report.Threads[i-1], where)
			}
			k.fail(check, c, results, "other bits%s", where)
			return
		}
	}
}

// rows runs the first, the middle and the last row alone.
func (k *kernel) rows(c *call, got *sample.Args) {
	n := got.Rows()
	if n < 2 {
		return
	}
	fresh := got.Clone()
	fresh.Reset()
	for _, i := range slices.Compact([]int64{0, n / 2, n - 1}) {
		alone, err := fresh.Row(i)
		if err != nil {
			return // a layout that cannot be cut
		}
		batch, err := got.Row(i)
		if err != nil {
			return
		}
		err = launch(k.views[0], k.d.Op, alone)
		if errors.Is(err, registry.ErrDeclined) {
			return // not this kernel's size: the promise is about calls that it takes
		}
		k.Checks[checkRowsAlone]++
		if err != nil {
			k.fail(checkRowsAlone, c, nil, "row %d: %v", i, err)
			return
		}
		if results := sample.Compare(alone, batch, sample.Bits); worst(results) != nil {
			k.fail(checkRowsAlone, c, results, "row %d: %v", i, worst(results))
			return
		}
	}
}

// reached counts the calls that the kernel took.
func (k *kernel) reached() uint64 {
	for _, s := range k.v.Registry.Explain(k.d.Op, k.v.Device.ID()).Chain {
		if s.Kernel == k.Kernel {
			return s.Counts.Executed + s.Counts.Failed
		}
	}
	return 0
}

// finish gives the verdict.
func (k *kernel) finish() KernelReport {
	k.Verdict, k.Signatures = Passed, len(k.declared)
	for _, s := range slices.Sorted(maps.Keys(k.declared)) {
		if !k.declared[s] {
			k.Unverified = append(k.Unverified, s)
		}
	}
	switch {
	case k.Counts.Failures > 0:
		k.Verdict = Failed
	case k.reached() > k.before || k.Cases == k.Empty:
	case k.domain == k.Declined:
		k.Verdict = Outside
	default:
		k.Verdict = NeverRan
	}
	return k.KernelReport
}
