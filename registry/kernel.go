package registry

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/opmux/opmux/tensor"
)

// Kernel is a kernel registered by its description: one registration for each kind of device.
type Kernel struct {
	r    *Registry
	regs []*Registration
}

// RegisterOption modifies RegisterKernel.
type RegisterOption func(*registerOptions)

type registerOptions struct {
	replace string
}

// Replace makes the new kernel take the place of the one called old, which is withdrawn in the same change. ErrUnknownName
// if there is none.
func Replace(old string) RegisterOption { return func(o *registerOptions) { o.replace = old } }

// RegisterKernel adds a kernel by its description. (Family.Mode, signature) has to name one op, the same for every
// signature; fn takes that op's record and may be nil only where Unavailable says why there is none. An erased launcher
// is checked only by KernelSpec.Record: without that nobody notices one that was written for another op's record, and it
// reads memory as what it is not. RegisterTypedKernelIn sets it from the launcher's own type. It registers for every kind
// or for none. Errors: *SpecError (ErrSpec) for the description, ErrUnknownOp, ErrAmbiguous, ErrSignature for another
// record, and those of RegisterOpProvider.
func (r *Registry) RegisterKernel(s KernelSpec, fn Launcher, options ...RegisterOption) (*Kernel, error) {
	var o registerOptions
	for _, f := range options {
		f(&o)
	}
	k := &Kernel{r: r}
	err := r.mutate(func(st *state) error {
		regs, err := st.prepareKernel(r, s, fn)
		if err != nil {
			return err
		}
		return st.commit(regs, o.replace, func() { k.regs = regs })
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// RegisterTypedKernelIn is RegisterKernel for a launcher that takes the op's record type, and the usual way to register
// one. ErrSignature if R is another op's, or not what KernelSpec.Record says.
func RegisterTypedKernelIn[R any](r *Registry, s KernelSpec, fn func(*Queue, *R) Status, options ...RegisterOption) (*Kernel, error) {
	if record := reflect.TypeFor[R](); s.Record == nil {
		s.Record = record
	} else if s.Record != record {
		return nil, &SignatureError{OpName: s.Operator(), Want: s.Record.String(), Got: record.String()}
	}
	return r.RegisterKernel(s, Erase(fn), options...)
}

// commit inserts prepared registrations of one kernel, all or none.
func (s *state) commit(regs []*Registration, replace string, done func()) error {
	old := s.named(replace)
	if replace != "" && len(old) == 0 {
		return &UnknownNameError{Name: replace, Near: s.nearest(replace)}
	}
	for _, o := range s.named(regs[0].p.Kernel) {
		if !slices.Contains(old, o) {
			return &DuplicateError{OpName: s.ops.desc(o.op).Name, Kind: o.kind, Kernel: o.p.Kernel, Source: o.source}
		}
	}
	for _, o := range old {
		s.remove(o)
	}
	for _, g := range regs {
		s.insert(g)
	}
	regs[0].replaced = old
	done()
	return nil
}

// named lists the registrations of the kernel of that name.
func (s *state) named(kernel string) (out []*Registration) {
	if kernel == "" {
		return nil
	}
	for _, list := range s.regs {
		for _, g := range list {
			if g.p.Kernel == kernel {
				out = append(out, g)
			}
		}
	}
	slices.SortFunc(out, func(a, b *Registration) int { return int(a.kind) - int(b.kind) })
	return out
}

// prepareKernel checks a description and makes its registrations, one for each kind.
func (s *state) prepareKernel(r *Registry, k KernelSpec, fn Launcher) ([]*Registration, error) {
	if k.Name == "" {
		k.Name = k.Solution + "_" + k.Family + "_" + k.Mode
	}
	bad := func(field, format string, args ...any) error {
		return &SpecError{Kernel: k.Name, Field: field, Text: fmt.Sprintf(format, args...)}
	}
	for _, f := range []struct{ field, value string }{{"family", k.Family}, {"mode", k.Mode}, {"solution", k.Solution}, {"name", k.Name}} {
		if err := checkName(f.field, f.value); err != nil {
			return nil, &SpecError{Kernel: k.Name, Field: f.field, Err: err}
		}
	}
	switch {
	case len(k.Kinds) == 0:
		return nil, bad("kinds", "lists no kind of device")
	case len(k.Signatures) == 0:
		return nil, bad("signatures", "lists none: the kernel could never be selected")
	case fn == nil && k.Unavailable == "":
		return nil, &SpecError{Kernel: k.Name, Field: "unavailable", Text: "there is no implementation and no reason for that", Err: ErrNil}
	}
	if err := k.Priority.validate(); err != nil {
		return nil, bad("priority", "%v", err)
	}
	if ref := k.Priority.orDefault().Band == BandReference; ref != (k.Tier == Reference) {
		return nil, bad("tier", "%v with priority %v: the band REFERENCE and the tier reference go together", k.Tier, k.Priority)
	}
	if k.Solution == "reference" && k.Tier != Reference {
		return nil, &SpecError{Kernel: k.Name, Field: "solution", Text: fmt.Sprintf("%q is what kernels of the reference tier are called by, this one's is %v", k.Solution, k.Tier), Err: ErrReserved}
	}
	op, sigs, err := s.operatorOf(&k)
	if err != nil {
		return nil, err
	}
	spec := k.Spec
	spec.Signatures = sigs
	var regs []*Registration
	for i, kind := range k.Kinds {
		if slices.Contains(k.Kinds[:i], kind) {
			return nil, bad("kinds", "%v stands there twice", kind)
		}
		g := newRegistration(r, op, kind, OpProvider{Name: k.Solution, Kernel: k.Name, Priority: k.Priority.Int32(), Tier: k.Tier,
			Traits: k.Promises, Fn: fn, Record: k.Record, SelfTest: k.SelfTest, Doc: k.Doc, Spec: &spec})
		if k.Source != "" {
			g.source = k.Source
		}
		if err := g.check(s, s.ops.desc(op), false); err != nil {
			return nil, err
		}
		regs = append(regs, g)
	}
	return regs, nil
}

// operatorOf finds the op of a description, and its signatures in the op's roles.
func (s *state) operatorOf(k *KernelSpec) (op Op, sigs []tensor.FormatSignature, err error) {
	for i, sig := range k.Signatures {
		if sig.IsZero() {
			return 0, nil, &SpecError{Kernel: k.Name, Field: fmt.Sprintf("signatures[%d]", i), Text: "is no signature"}
		}
		got, as, err := s.ops.resolve(k.Operator(), sig)
		if errors.Is(err, ErrUnknownOp) {
			return 0, nil, s.unknownOperator(k)
		}
		if err != nil {
			return 0, nil, &SpecError{Kernel: k.Name, Field: fmt.Sprintf("signatures[%d]", i), Err: err}
		}
		if i > 0 && got != op {
			return 0, nil, &SpecError{Kernel: k.Name, Field: fmt.Sprintf("signatures[%d]", i),
				Text: fmt.Sprintf("is %s, the first one %s: a kernel serves one op", s.ops.desc(got).Name, s.ops.desc(op).Name)}
		}
		op, sigs = got, append(sigs, as)
	}
	return op, sigs, nil
}

// unknownOperator refuses a family and mode that no op has, and names the one that is wrong.
func (s *state) unknownOperator(k *KernelSpec) error {
	field, operators := "family", slices.Sorted(maps.Keys(s.ops.operators()))
	e := &UnknownOperatorError{Name: k.Operator(), Near: near(k.Operator(), operators)}
	if modes := slices.DeleteFunc(operators, func(o string) bool { return !strings.HasPrefix(o, k.Family+".") }); len(modes) > 0 {
		if field = "mode"; len(e.Near) == 0 {
			e.Near = modes[:min(len(modes), 3)]
		}
	}
	return &SpecError{Kernel: k.Name, Field: field, Err: e}
}

// Spec describes the kernel as it is registered.
func (k *Kernel) Spec() KernelSpec {
	s := k.regs[0].KernelSpec()
	s.Kinds = nil
	for _, g := range k.regs {
		s.Kinds = append(s.Kinds, g.kind)
	}
	return s
}

// Registrations are the kernel's entries, one for each kind of device.
func (k *Kernel) Registrations() []*Registration { return slices.Clone(k.regs) }

// Replaced describes the kernel whose place this one took, once for each kind; nil if it took nobody's.
func (k *Kernel) Replaced() (out []KernelSpec) {
	k.r.mu.Lock()
	defer k.r.mu.Unlock()
	for _, g := range k.regs[0].replaced {
		out = append(out, g.KernelSpec())
	}
	return out
}

// Undo withdraws the kernel and puts the one that it replaced back in its place, in one change. Errors: ErrArgument if it
// replaced none or was withdrawn already, *DuplicateError if the replaced kernel's name was taken meanwhile.
func (k *Kernel) Undo() error {
	err := k.r.mutate(func(s *state) error {
		old := k.regs[0].replaced
		if len(old) == 0 || !slices.Contains(s.named(k.regs[0].p.Kernel), k.regs[0]) {
			return fmt.Errorf("registry: kernel %s: it stands in no other's place: %w", k.regs[0].p.Kernel, ErrArgument)
		}
		for _, o := range s.named(old[0].p.Kernel) {
			if !slices.Contains(k.regs, o) {
				return &DuplicateError{OpName: s.ops.desc(o.op).Name, Kind: o.kind, Kernel: o.p.Kernel, Source: o.source}
			}
		}
		for _, g := range k.regs {
			s.remove(g)
		}
		for _, g := range old {
			s.insert(g)
		}
		k.regs[0].replaced = nil
		return nil
	})
	if err != nil {
		return err
	}
	return k.Close()
}

// Close withdraws the kernel from every kind. What it replaced does not come back.
func (k *Kernel) Close() error {
	for _, g := range k.regs {
		if err := g.Close(); err != nil {
			return err
		}
	}
	return nil
}

// KernelSpec describes the kernel for this registration's kind of device, in the roles of its op. A kernel that listed no
// signatures has all that its op admits.
func (g *Registration) KernelSpec() KernelSpec {
	d := g.reg.desc(g.op)
	k := KernelSpec{Name: g.p.Kernel, Family: d.Family, Mode: d.Mode, Solution: g.p.Name, Kinds: []tensor.Kind{g.kind},
		Priority: PriorityOf(g.p.Priority), Tier: g.p.Tier, Promises: g.p.Traits, Doc: g.p.Doc, Source: g.source, Record: g.p.Record, SelfTest: g.p.SelfTest}
	if g.p.Spec != nil {
		k.Spec = *g.p.Spec.clone()
	}
	if admits := d.schema().Signatures; len(k.Signatures) == 0 && admits != nil {
		k.Signatures = slices.Clone(admits())
	}
	if k.Weights != nil {
		k.Preprocessor = k.Weights.ID()
	}
	return k
}
