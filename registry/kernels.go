package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// KernelFilter narrows GetForOperator; zero fields admit every kernel.
type KernelFilter struct {
	Features  []string         // all of them
	Platform  *device.Platform // for its kind, and satisfies what the kernel requires
	Signature tensor.FormatSignature
	Tags      []Tag // all of them
	Solution  string
}

// kernels lists the op's kernels that pass keep, best first; the kinds of equally named ones are joined.
func (t *table) kernels(op Op, keep func(*Registration) bool) (out []KernelSpec) {
	at := map[string]int{}
	for g := range t.registered(op) {
		if !keep(g) {
			continue
		}
		if i, ok := at[g.p.Kernel]; ok {
			out[i].Kinds = append(out[i].Kinds, g.kind)
			continue
		}
		at[g.p.Kernel] = len(out)
		out = append(out, g.KernelSpec())
	}
	slices.SortStableFunc(out, compareSpecs)
	return out
}

// GetForOperator lists the kernels of an operator (or op) that pass the filter, by priority and name. The descriptions
// are in the roles of their op. *UnknownOperatorError.
func (r *Registry) GetForOperator(operator string, f KernelFilter) ([]KernelSpec, error) {
	t, refs, err := r.covering(operator)
	if err != nil {
		return nil, err
	}
	var out []KernelSpec
	seen := map[Op]bool{} // an operator may cover an op by its family.mode and by an alias
	for _, ref := range refs {
		if seen[ref.op] {
			continue
		}
		sig := f.Signature
		if !sig.IsZero() {
			as, why := ref.admits(t.ops.desc(ref.op), sig)
			if why != "" {
				continue
			}
			sig = as
		}
		seen[ref.op] = true
		out = append(out, t.kernels(ref.op, func(g *Registration) bool { return f.admits(g, sig) })...)
	}
	slices.SortStableFunc(out, compareSpecs)
	return out, nil
}

// compareSpecs orders the higher priority first, then by name.
func compareSpecs(a, b KernelSpec) int {
	return cmp.Or(cmp.Compare(b.Priority.Int32(), a.Priority.Int32()), strings.Compare(a.Name, b.Name))
}

func (f *KernelFilter) admits(g *Registration, sig tensor.FormatSignature) bool {
	s := g.p.Spec
	if s == nil {
		s = &Spec{}
	}
	if f.Solution != "" && f.Solution != g.p.Name || f.Platform != nil && (f.Platform.Kind != g.kind || !s.Requires.SatisfiedBy(f.Platform)) {
		return false
	}
	if !sig.IsZero() && len(s.Signatures) > 0 && !slices.Contains(s.Signatures, sig) {
		return false
	}
	return !slices.ContainsFunc(f.Features, func(x string) bool { return !slices.Contains(s.Features, x) }) &&
		!slices.ContainsFunc(f.Tags, func(x Tag) bool { return !slices.Contains(s.Tags, x) })
}

// ListOperators names the operators, family.mode, that have a kernel, sorted.
func (r *Registry) ListOperators() []string {
	names := map[string]bool{}
	r.eachOp(func(t *table, op Op, d *Descriptor) {
		if d.Family != "" {
			names[d.Family+"."+d.Mode] = true
		}
		for _, o := range d.schema().Operators {
			names[o.Name] = true
		}
	})
	return slices.Sorted(maps.Keys(names))
}

// eachOp calls f for every op that has a kernel.
func (r *Registry) eachOp(f func(t *table, op Op, d *Descriptor)) {
	t, err := r.snapshot()
	if err != nil {
		return
	}
	for op, d := range t.ops.byID {
		for range t.registered(Op(op)) {
			f(t, Op(op), d)
			break
		}
	}
}

// ListKernels names the kernels of a family and mode, or of all where one is empty, sorted.
func (r *Registry) ListKernels(family, mode string) []string {
	names := map[string]bool{}
	r.eachOp(func(t *table, op Op, d *Descriptor) {
		match := func(f, m string) bool { return (family == "" || family == f) && (mode == "" || mode == m) }
		ok := match(d.Family, d.Mode)
		for _, o := range d.schema().Operators {
			f, m, _ := strings.Cut(o.Name, ".")
			ok = ok || match(f, m)
		}
		if ok {
			for g := range t.registered(op) {
				names[g.p.Kernel] = true
			}
		}
	})
	return slices.Sorted(maps.Keys(names))
}

// ListSolutions names the providers of an operator's kernels, sorted. *UnknownOperatorError.
func (r *Registry) ListSolutions(operator string) ([]string, error) {
	list, err := r.GetForOperator(operator, KernelFilter{})
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, k := range list {
		names[k.Solution] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// GetByName returns the description of a kernel, and false if there is none of that name.
func (r *Registry) GetByName(name string) (KernelSpec, bool) {
	k, err := r.DescribeKernel(name)
	return k, err == nil
}

// DescribeKernel returns what is known of a kernel: String is the text, JSON what spec files hold. *UnknownNameError with
// the nearest names.
func (r *Registry) DescribeKernel(name string) (KernelSpec, error) {
	var known []string
	var found []KernelSpec
	r.eachOp(func(t *table, op Op, _ *Descriptor) {
		found = append(found, t.kernels(op, func(g *Registration) bool {
			known = append(known, g.p.Kernel)
			return g.p.Kernel == name
		})...)
	})
	if len(found) == 0 {
		return KernelSpec{}, fmt.Errorf("registry: kernel: %w", &UnknownNameError{Name: clip(name), Near: near(name, known)})
	}
	return found[0], nil
}

// String prints every field, one a line; lists are sorted.
func (k KernelSpec) String() string {
	var b strings.Builder
	line := func(name, value string) {
		if value == "" {
			value = "none"
		}
		fmt.Fprintf(&b, "%-13s %s\n", name+":", value)
	}
	list := func(name string, v []string) { line(name, strings.Join(v, ", ")) }
	var kinds, tags, predicates []string
	for _, x := range k.Kinds {
		kinds = append(kinds, x.String())
	}
	for _, x := range k.Tags {
		tags = append(tags, string(x))
	}
	for _, x := range k.Predicates {
		predicates = append(predicates, x.Name)
	}
	promises, _ := json.Marshal(k.Promises) // plain data
	line("name", k.Name)
	line("operator", k.Operator())
	line("solution", k.Solution)
	list("kinds", kinds)
	line("priority", fmt.Sprintf("%v (%d)", k.Priority, k.Priority.Int32()))
	line("tier", k.Tier.String())
	line("origin", strings.TrimSpace(k.Origin+" "+k.Version))
	line("source", k.Source)
	line("requires", k.Requires.String())
	for i, s := range k.Signatures {
		line([]string{"signatures", ""}[min(i, 1)], s.String())
	}
	list("features", k.Features)
	for i, name := range slices.Sorted(maps.Keys(k.Constraints)) {
		line([]string{"constraints", ""}[min(i, 1)], name+" "+k.Constraints[name].String())
	}
	list("predicates", predicates)
	list("tags", tags)
	for i, name := range slices.Sorted(maps.Keys(k.Props)) {
		line([]string{"props", ""}[min(i, 1)], name+" = "+k.Props[name])
	}
	for i, name := range slices.Sorted(maps.Keys(k.Thresholds)) {
		line([]string{"thresholds", ""}[min(i, 1)], name+" "+strings.Trim(fmt.Sprint(k.Thresholds[name]), "[]"))
	}
	line("promises", strings.Trim(string(promises), "{}"))
	line("determinism", string(k.Determinism))
	list("required", k.Required)
	list("layouts", k.Layouts)
	line("weights", k.Preprocessor)
	line("automatic", fmt.Sprint(!k.NotAuto))
	line("any band", fmt.Sprint(k.AnyBand))
	line("unavailable", k.Unavailable)
	line("doc", k.Doc)
	return b.String()
}

// Boundaries lists, for each int trait, the values at which the kernel changes its ways: its thresholds and the first
// values inside and outside of what its constraints admit, sorted. Tests look at each and its neighbours.
func (k *KernelSpec) Boundaries() map[string][]int64 {
	out := map[string][]int64{}
	for name, list := range k.Thresholds {
		out[name] = slices.Clone(list)
	}
	for name, c := range k.Constraints {
		c.boundaries(func(n int64) { out[name] = append(out[name], n) }, func(n int64) { out[name] = append(out[name], n) })
	}
	for name, list := range out {
		slices.Sort(list)
		out[name] = slices.Compact(list)
	}
	return out
}

// FormatSignaturesForStorageDType lists the signatures, by text, in which one of the roles has that storage dtype.
// ErrArgument if no role is given.
func (k *KernelSpec) FormatSignaturesForStorageDType(t tensor.DType, roles ...string) ([]tensor.FormatSignature, error) {
	if len(roles) == 0 {
		return nil, fmt.Errorf("registry: kernel %s: signatures with %v: name the roles: %w", k.Name, t, ErrArgument)
	}
	var out []tensor.FormatSignature
	for _, s := range k.Signatures {
		if slices.ContainsFunc(roles, func(role string) bool { return s.DType(role) == t && t != tensor.None }) {
			out = append(out, s)
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Compare(out[j]) < 0 })
	return out, nil
}

// FormatSignatureForStorageDType returns the only signature in which one of the roles has that storage dtype, the zero
// signature if there is none. Errors: ErrArgument without a role, ErrAmbiguous for several signatures.
func (k *KernelSpec) FormatSignatureForStorageDType(t tensor.DType, roles ...string) (tensor.FormatSignature, error) {
	list, err := k.FormatSignaturesForStorageDType(t, roles...)
	if err != nil || len(list) == 0 {
		return tensor.FormatSignature{}, err
	}
	if len(list) > 1 {
		return tensor.FormatSignature{}, fmt.Errorf("registry: kernel %s: %d signatures have %v in %s; give a whole signature: %w",
			k.Name, len(list), t, strings.Join(roles, " or "), ErrAmbiguous)
	}
	return list[0], nil
}

// StorageDTypesForRole lists the storage dtypes of the roles over all signatures, sorted. ErrArgument if no role is given.
func (k *KernelSpec) StorageDTypesForRole(roles ...string) ([]tensor.DType, error) {
	if len(roles) == 0 {
		return nil, fmt.Errorf("registry: kernel %s: storage dtypes: name the roles: %w", k.Name, ErrArgument)
	}
	seen := map[tensor.DType]bool{}
	for _, s := range k.Signatures {
		for _, role := range roles {
			if t := s.DType(role); t != tensor.None {
				seen[t] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// impl launches one kernel by name.
type impl struct {
	r    *Registry
	op   Op
	name string
	cur  atomic.Pointer[implChain]
}

type implChain struct {
	t  *table
	dn int
	c  *chain
}

// GetImpl returns the entry of one kernel: it runs this kernel and no other, on a queue of any device that the kernel is
// usable on, and counts like every launch. What the kernel declines comes back Declined. Errors: *UnknownNameError,
// ErrNoKernel where the kernel has no implementation in this build.
func (r *Registry) GetImpl(name string) (Launcher, error) {
	k, err := r.DescribeKernel(name)
	if err != nil {
		return nil, err
	}
	m := &impl{r: r, name: name}
	fn := false
	r.eachOp(func(t *table, op Op, _ *Descriptor) {
		for g := range t.registered(op) {
			if g.p.Kernel == name && !fn {
				m.op, fn = op, g.p.Fn != nil
			}
		}
	})
	if !fn {
		return nil, fmt.Errorf("registry: kernel %s: %s: %w", name, k.Unavailable, ErrNoKernel)
	}
	return m.launch, nil
}

func (m *impl) launch(q *Queue, args unsafe.Pointer) Status {
	if args == nil {
		return Failure(0).NothingEnqueued()
	}
	h := (*Header)(args)
	if q == nil || q.reg != m.r {
		return h.Fail(fmt.Errorf("registry: kernel %s: launched without a queue of its registry: %w", m.name, ErrArgument))
	}
	c := m.chain(q.dn)
	if c == nil {
		return h.Fail(fmt.Errorf("registry: kernel %s: %v: %w", m.name, q.dev, ErrUnknownDevice))
	}
	if c.err != nil {
		c.slot.noKernel.Add(1)
		return h.Fail(c.err)
	}
	var tr trace
	h.Status = c.walk(q, 0, h, &tr)
	return h.Status
}

func (m *impl) chain(dn int) *chain {
	t := m.r.cur.Load()
	if k := m.cur.Load(); k != nil && k.t == t && k.dn == dn {
		return k.c
	}
	c := t.at(dn, m.op)
	if c == nil {
		return nil
	}
	if c.base != nil {
		c = c.base
	}
	c = c.overridden(choice{target: Target{Name: m.name, By: "kernel"}, from: fromContext, only: true})
	m.cur.Store(&implChain{t, dn, c})
	return c
}

// Unregister withdraws the kernel of that name from every op and kind in one change, like Registration.Close for each.
// *UnknownNameError.
func (r *Registry) Unregister(name string) error {
	var gone []*Registration
	err := r.mutate(func(s *state) error {
		if gone = s.named(name); len(gone) == 0 {
			return fmt.Errorf("registry: kernel: %w", &UnknownNameError{Name: clip(name), Near: s.nearest(name)})
		}
		for _, g := range gone {
			s.remove(g)
		}
		return nil
	})
	for _, g := range gone {
		if e := g.CloseContext(context.Background()); err == nil {
			err = e
		}
	}
	return err
}

// Change is one difference between two snapshots.
type Change struct {
	Op     string   `json:"op"`
	Device string   `json:"device"`
	Kernel string   `json:"kernel"`
	What   string   `json:"what"`             // "added", "removed", "changed"
	Fields []string `json:"fields,omitempty"` // of a change: "priority: 0, was 10"
}

// String prints the change in a line.
func (c Change) String() string {
	s := fmt.Sprintf("%s on %s: %s %s", c.Op, c.Device, c.Kernel, c.What)
	if len(c.Fields) > 0 {
		s += " (" + strings.Join(c.Fields, "; ") + ")"
	}
	return s
}

// Diff lists what differs in b from a, by op, device and kernel: kernels that came and went, and those of which anything
// but the counters changed, a replacement by one of the same name included.
func Diff(a, b Snapshot) (out []Change) {
	type key struct{ op, dev, kernel string }
	index := func(s Snapshot) map[key]Step {
		m := map[key]Step{}
		for _, e := range s.Ops {
			for _, list := range [][]Step{e.Dropped, e.Chain} {
				for _, st := range list {
					k := key{e.Op, e.Device, st.Kernel}
					if st.Tier == Borrowed.String() {
						k.kernel = ReferenceProviderName + "/" + k.kernel
					}
					m[k] = st
				}
			}
		}
		return m
	}
	was, is := index(a), index(b)
	for k, x := range is {
		y, ok := was[k]
		if !ok {
			out = append(out, Change{k.op, k.dev, k.kernel, "added", nil})
			continue
		}
		c := Change{k.op, k.dev, k.kernel, "changed", nil}
		field := func(name string, now, before any) {
			if now != before {
				c.Fields = append(c.Fields, fmt.Sprintf("%s: %v, was %v", name, now, before))
			}
		}
		field("provider", x.Provider, y.Provider)
		field("tier", x.Tier, y.Tier)
		field("priority", x.Priority, y.Priority)
		field("state", x.State, y.State)
		field("detail", x.Detail, y.Detail)
		field("promises", x.Traits, y.Traits)
		field("description", x.Digest, y.Digest)
		field("source", x.Source, y.Source)
		if c.Fields != nil {
			out = append(out, c)
		}
	}
	for k := range was {
		if _, ok := is[k]; !ok {
			out = append(out, Change{k.op, k.dev, k.kernel, "removed", nil})
		}
	}
	sort.SliceStable(out, func(i, j int) bool {
		a, b := &out[i], &out[j]
		return a.Op+"\x00"+a.Device+"\x00"+a.Kernel < b.Op+"\x00"+b.Device+"\x00"+b.Kernel
	})
	return out
}

// builtins are the packages of kernels that are linked into the program.
var builtins = struct {
	sync.Mutex
	load map[string]func(*Registry) error
}{load: map[string]func(*Registry) error{}}

// Builtin adds a package of kernels to those that LoadBuiltinKernels registers, and registers it in Default. It is for
// package inits: a second package of that name, or an error of load, panics.
func Builtin(name string, load func(*Registry) error) {
	builtins.Lock()
	_, known := builtins.load[name]
	if !known {
		builtins.load[name] = load
	}
	builtins.Unlock()
	if known {
		panic("registry: two packages of kernels called " + name)
	}
	if err := Default().loadBuiltin(name, load); err != nil {
		panic(err)
	}
}

// LoadBuiltinKernels registers in r the kernels of every package of kernels that is linked into the program, and returns
// the packages' names, sorted. Packages that r has through it, or through Builtin, are left as they are. The first
// package that fails ends it.
func (r *Registry) LoadBuiltinKernels() ([]string, error) {
	builtins.Lock()
	all := maps.Clone(builtins.load)
	builtins.Unlock()
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names {
		if err := r.loadBuiltin(name, all[name]); err != nil {
			return nil, fmt.Errorf("registry: kernels of %s: %w", name, err)
		}
	}
	return names, nil
}

func (r *Registry) loadBuiltin(name string, load func(*Registry) error) error {
	r.loading.Lock()
	defer r.loading.Unlock()
	if r.loaded[name] {
		return nil
	}
	if err := load(r); err != nil {
		return err
	}
	if r.loaded == nil {
		r.loaded = map[string]bool{}
	}
	r.loaded[name] = true
	return nil
}
