// Package verify runs every kernel of every op, by name, against the reference, over the corpus of package ops/sample.
//
// For each case it checks the numbers within the documented tolerance (to the bit for kernels that promise it), the
// values that the case itself demands, the guard words around operands, that inputs keep their bytes, that a declined or
// rejected call has written nothing, that a second run and other numbers of threads give the same bits, and, where the
// kernel declares it, that a row has the same bits alone and in a batch.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/internal/build"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Errors of Run.
var (
	ErrNothing = errors.New("no kernel matches")
	ErrOption  = errors.New("option that cannot be used")
)

// Options say what to verify. The zero values of all fields but Device are usable.
type Options struct {
	Registry *registry.Registry // nil is registry.Default
	Device   device.Device      // must see host memory
	// More are further openings of the same device with other numbers of threads, whose bits must be the same. They and
	// the Device stay the caller's.
	More map[int]device.Device

	Op       string                  // glob over names, aliases and family.mode of ops: "matmul*"; empty is all
	Kernel   string                  // glob over names of kernels and providers
	Solution string                  // a provider's name; empty is all
	Types    map[string]tensor.DType // dtypes of operands in every case; ops without such operands are left out
	Shapes   []sample.Shape          // in place of the corpus: the plain call at these extents, for each combination of dtypes
	Level    sample.Level
	Seed     uint64 // 0 is a fixed one
	// Strict makes kernels that are not usable, signatures of which nothing ran, declines that a kernel's description does
	// not explain and cases that the reference declines failures, too.
	Strict    bool
	Shrink    bool              // look for the smallest extents at which a case still fails
	Case      string            // glob over the names of cases; empty is all
	Cases     []sample.Case     // further cases, of the one op that Op names
	Tolerance *sample.Tolerance // of ops that the catalogue does not know; nil: their kernels must give the reference's bits
	// Oracle, if set, is a device of another kind whose reference kernels give the results, such as the CPU for a device
	// that has no reference of its own.
	Oracle        device.Device
	NoAllocations bool // launches must not allocate memory of the Go heap
	// Progress, if set, is called with the name of each kernel before it runs.
	Progress func(kernel string)
}

// mostFailures bounds how many failures of a kernel are described; all are counted.
const mostFailures = 5

// Run verifies what o names. A wrong kernel is no error: the report says so and its OK is false. Errors: ErrNothing,
// ErrOption, those of opening queues, and, when ctx ends, its error with a report of the kernels that were finished.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Registry == nil {
		o.Registry = registry.Default()
	}
	if o.Device == nil {
		return nil, fmt.Errorf("verify: no device: %w", ErrOption)
	}
	for _, glob := range []string{o.Op, o.Kernel} {
		if _, err := path.Match(glob, ""); err != nil {
			return nil, fmt.Errorf("verify: pattern %q: %w: %w", glob, ErrOption, err)
		}
	}
	v := &run{Options: o, report: &Report{Version: 1, OK: true, Kernels: []KernelReport{}, Level: o.Level.String(), Seed: o.Seed, Strict: o.Strict,
		Device: o.Device.ID().String(), DeviceName: o.Device.Name(), Threads: slices.Sorted(maps.Keys(o.More)), Build: Build{Revision: build.Revision(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}, Digest: o.Registry.Digest()}}
	defer v.close()
	if err := v.open(); err != nil {
		return nil, err
	}
	for _, d := range v.descriptors() {
		if err := v.op(ctx, d); err != nil && ctx.Err() != nil {
			v.report.OK, v.report.Interrupted = false, true
			return v.report, err
		} else if err != nil {
			return nil, err
		}
	}
	if len(v.report.Kernels) == 0 {
		err := fmt.Errorf("verify: %w: %s", ErrNothing, o.asked())
		if v.unfit != nil {
			err = fmt.Errorf("%w: %w", err, v.unfit)
		}
		return nil, err
	}
	if o.Strict && len(v.report.Unserved) > 0 {
		v.report.OK = false
	}
	return v.report, nil
}

// asked says in words what the options name.
func (o *Options) asked() string {
	var list []string
	for _, f := range []struct{ what, name string }{{"op", o.Op}, {"kernel", o.Kernel}, {"solution", o.Solution}} {
		if f.name != "" {
			list = append(list, fmt.Sprintf("%s %q", f.what, f.name))
		}
	}
	for _, operand := range slices.Sorted(maps.Keys(o.Types)) {
		list = append(list, fmt.Sprintf("operand %s of %v", operand, o.Types[operand]))
	}
	if o.Case != "" {
		list = append(list, fmt.Sprintf("case %q", o.Case))
	}
	if o.Shapes != nil {
		list = append(list, "the shapes given")
	}
	return cmp.Or(strings.Join(list, ", "), "every op")
}

// run is one call of Run.
type run struct {
	Options
	report        *Report
	q             *registry.Queue
	oracle        *registry.Queue   // where the reference runs
	referenceName string            // of the op at work
	more          []*registry.Queue // of More, by number of threads
	unfit         error             // why the last of Shapes suited an op's calls not at all
	close_        []func() error
}

func (v *run) open() error {
	queue := func(d device.Device) (*registry.Queue, error) {
		dq, err := d.NewQueue()
		if err != nil {
			return nil, err
		}
		q := v.Registry.NewQueue(dq)
		v.close_ = append(v.close_, q.Close, dq.Close)
		return q, nil
	}
	var err error
	if v.q, err = queue(v.Device); err != nil {
		return err
	}
	if v.oracle = v.q; v.Oracle != nil {
		if v.oracle, err = queue(v.Oracle); err != nil {
			return err
		}
	}
	for _, n := range slices.Sorted(maps.Keys(v.More)) {
		q, err := queue(v.More[n])
		if err != nil {
			return err
		}
		v.more = append(v.more, q)
	}
	return nil
}

func (v *run) close() {
	for _, f := range v.close_ {
		_ = f() // nothing was left running
	}
}

// descriptors lists the ops that the options name, also those that the registry defined for itself.
func (v *run) descriptors() (list []registry.Descriptor) {
	for _, d := range v.Registry.Descriptors() {
		names := append([]string{d.Name, d.Family + "." + d.Mode}, d.Aliases...)
		if d.Record != nil && slices.ContainsFunc(names, func(n string) bool { return match(v.Op, n) }) {
			list = append(list, d)
		}
	}
	return list
}

func match(glob, name string) bool {
	ok, err := path.Match(glob, name)
	return glob == "" || ok && err == nil
}

// call is one case with what the reference made of it.
type call struct {
	sample.Case
	want *sample.Args
	err  error // of the reference: nil, or ops.ErrValue for invalid data
	tol  sample.Tolerance
}

// op verifies the kernels of one op.
func (v *run) op(ctx context.Context, d registry.Descriptor) error {
	e := v.Registry.Explain(d.Op, v.Device.ID())
	var kernels []registry.Step
	reference := ""
	for _, s := range e.Runnable() {
		if s.Tier == registry.Reference.String() {
			reference = s.Kernel
		}
		if v.wants(s) {
			kernels = append(kernels, s)
		}
	}
	if v.Oracle != nil {
		reference = ""
		for _, s := range v.Registry.Explain(d.Op, v.Oracle.ID()).Runnable() {
			if s.Tier == registry.Reference.String() {
				reference = s.Kernel
			}
		}
	}
	var dropped []registry.Step
	for _, s := range e.Dropped {
		if v.wants(s) && s.State != registry.DropWaiting.String() {
			dropped = append(dropped, s)
		}
	}
	if len(kernels)+len(dropped) == 0 {
		return nil
	}
	v.referenceName = reference
	var calls []call
	if reference != "" {
		var err error
		if calls, err = v.calls(ctx, d, reference, kernels); err != nil {
			return err
		}
		if len(calls) == 0 && (v.Shapes != nil || v.Types != nil || v.Case != "") {
			return nil // none of the op's calls was asked for
		}
	}
	v.report.Ops++
	for _, s := range dropped {
		v.done(KernelReport{Op: d.Name, Kernel: s.Kernel, Provider: s.Provider, Verdict: Unusable, Detail: strings.TrimSpace(s.State + " " + s.Detail)})
	}
	if reference == "" {
		for _, s := range kernels {
			v.done(KernelReport{Op: d.Name, Kernel: s.Kernel, Provider: s.Provider, Verdict: Missing})
		}
		return nil
	}
	for _, s := range kernels {
		if err := ctx.Err(); err != nil {
			return err
		}
		if v.Progress != nil {
			v.Progress(s.Kernel)
		}
		k := v.kernel(d, s, reference)
		k.every = len(calls) / mostKept
		for i := range calls {
			if err := ctx.Err(); err != nil {
				return err
			}
			k.case_(&calls[i])
		}
		k.once()
		v.done(k.finish())
	}
	return nil
}

func (v *run) wants(s registry.Step) bool {
	return (match(v.Kernel, s.Kernel) || match(v.Kernel, s.Provider)) && (v.Solution == "" || v.Solution == s.Provider)
}

// done adds a kernel's result.
func (v *run) done(k KernelReport) {
	v.report.Kernels = append(v.report.Kernels, k)
	v.report.Total.add(k.Counts)
	switch k.Verdict {
	case Failed, NeverRan, Missing:
		v.report.OK = false
	case Unusable:
		v.report.OK = v.report.OK && !v.Strict
	}
	if v.Strict && len(k.Unverified)+len(k.Unexplained) > 0 {
		v.report.OK = false
	}
}

// cases lists what the kernels of an op are run on: the corpus, the combinations of dtypes that kernels declare, and the
// neighbours of the thresholds that they declare.
func (v *run) cases(d registry.Descriptor, kernels []registry.Step) (list []sample.Case) {
	if v.Shapes != nil {
		for _, c := range sample.CorpusOf(d, v.Level) {
			if c.Name != "plain" && !strings.HasPrefix(c.Name, "types/") {
				continue
			}
			for _, s := range v.Shapes {
				c := c
				c.Name, c.Shape = fmt.Sprintf("%s/%v", c.Name, s), s
				list = append(list, c)
			}
		}
		return list
	}
	list = sample.CorpusOf(d, v.Level)
	seen := map[string]bool{}
	for _, c := range list {
		seen[c.Name] = true
	}
	add := func(c sample.Case) {
		if c.Types != nil {
			c.Name = fmt.Sprintf("%s/%v", c.Name, signature(c.Types))
		}
		if !seen[c.Name] {
			seen[c.Name] = true
			list = append(list, c)
		}
	}
	for _, k := range kernels {
		spec, ok := v.Registry.GetByName(k.Kernel)
		if !ok {
			continue
		}
		types := []map[string]tensor.DType{nil}
		for _, sig := range spec.Signatures {
			t := map[string]tensor.DType{}
			for _, role := range sig.Roles() {
				t[role] = sig.DType(role)
			}
			types = append(types, t)
			if c := (sample.Case{Op: d.Op, Name: "signature", Types: t}); sample.Fit(d, &c) {
				add(c)
			}
		}
		for _, c := range sample.CasesFor(d, spec.Boundaries(), types...) {
			add(c)
		}
	}
	return list
}

// signature is the format signature of dense operands and ggml blocks.
func signature(types map[string]tensor.DType) tensor.FormatSignature {
	m := map[string]tensor.Format{}
	for role, t := range types {
		m[role] = tensor.Dense(t)
	}
	return tensor.Sig(m)
}

// calls makes the records of all cases and runs the reference on them.
func (v *run) calls(ctx context.Context, d registry.Descriptor, reference string, kernels []registry.Step) (list []call, err error) {
	q := v.reference(d, reference)
	for _, c := range append(v.cases(d, kernels), v.Cases...) {
		if !match(v.Case, c.Name) && v.Case != c.Name {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.Op, c.Seed, c.Device = d.Op, v.Seed, v.oracle.Device()
		if v.Types != nil {
			c.Types = maps.Clone(c.Types)
			if c.Types == nil {
				c.Types = map[string]tensor.DType{}
			}
			maps.Copy(c.Types, v.Types)
		}
		a, err := sample.Of(d, c)
		if err != nil {
			if v.Shapes != nil || v.Types != nil {
				v.unfit = err
				continue // what was asked for need not suit every op and case
			}
			v.report.Unserved = append(v.report.Unserved, err.Error()) // a description that the op's validator does not admit
			continue
		}
		err = launch(q, d.Op, a)
		if errors.Is(err, registry.ErrDeclined) {
			v.report.Unserved = append(v.report.Unserved, d.Name+": "+c.Name)
			continue
		}
		list = append(list, call{Case: c, want: a, err: err, tol: v.tolerance(a)})
	}
	return list, nil
}

// reference is the queue on which an op reaches the oracle alone.
func (v *run) reference(d registry.Descriptor, kernel string) *registry.Queue {
	return v.oracle.With(registry.WithKernel(context.Background(), d.Op, kernel))
}

func (v *run) tolerance(a *sample.Args) sample.Tolerance {
	if v.Tolerance != nil && a.Descriptor().Op >= registry.FirstDefined {
		return *v.Tolerance
	}
	return sample.ToleranceFor(a)
}
