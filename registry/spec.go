package registry

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// ErrSpec is the condition of every *SpecError.
var ErrSpec = errors.New("kernel description refused")

// SpecError refuses a kernel's description and names the field. It is ErrSpec, and Err's condition if there is one.
type SpecError struct {
	Kernel string
	Field  string // as in JSON: "constraints.head_dim"
	Text   string
	Err    error
}

// Error names the kernel and the field.
func (e *SpecError) Error() string {
	s := fmt.Sprintf("registry: kernel %q: %s: %s", e.Kernel, e.Field, e.Text)
	if e.Err != nil {
		if e.Text != "" {
			s += ": "
		}
		s += e.Err.Error()
	}
	return s
}

// Unwrap returns ErrSpec and the cause.
func (e *SpecError) Unwrap() []error {
	if e.Err != nil {
		return []error{ErrSpec, e.Err}
	}
	return []error{ErrSpec}
}

// Tag is a label of a kernel. The first four weigh in a request's objective; the others describe.
type Tag string

// Tags.
const (
	TagLatency     Tag = "latency"
	TagThroughput  Tag = "throughput"
	TagPortability Tag = "portability"
	TagDeterminism Tag = "determinism"
)

// tags is the closed list.
var tags = []Tag{TagLatency, TagThroughput, TagPortability, TagDeterminism, "batched", "blackwell", "cuda_graph", "decode", "expert_map",
	"fusion", "hopper", "moe", "paged_cache", "prefill", "reference", "replay", "routing", "speculative"}

// Determinism is how far a kernel's bits are promised.
type Determinism string

// Promises of determinism; the empty one promises nothing beyond Traits.
const (
	RunToRun       Determinism = "run-to-run"      // the same call gives the same bits
	BatchInvariant Determinism = "batch-invariant" // and a row has the same bits alone and in a batch
)

// Predicate is a named condition over several traits of a request. It must be pure and quick.
type Predicate struct {
	Name  string               `json:"name"`
	Holds func(TraitView) bool `json:"-"`
}

// WeightPreprocessor converts weights into the private layout that a kernel wants. Apply leaves the tag of the layout
// with the weights, so that applying twice changes nothing and no other kernel takes them for its own.
type WeightPreprocessor interface {
	// ID names the layout that Apply produces.
	ID() string
	// Check reports whether the weights can be converted.
	Check(weights any) error
	// Apply converts the weights for the planned kernel and returns the layout's tag.
	Apply(plan *Pinned, weights any) (layout string, err error)
}

// Spec is what a kernel says of itself beyond the fields of an OpProvider: where it runs and which calls it takes. The
// zero Spec takes every call that the op admits, on every device. It is copied at registration and never changes.
type Spec struct {
	Requires    device.Requirement       `json:"requires,omitzero"`
	Signatures  []tensor.FormatSignature `json:"signatures,omitempty"`  // of the op's roles; none: every one that the op admits
	Features    []string                 `json:"features,omitempty"`    // of the operator, which a request may ask for
	Constraints map[string]Constraint    `json:"constraints,omitempty"` // by trait of the op's schema
	Predicates  []Predicate              `json:"predicates,omitempty"`
	Tags        []Tag                    `json:"tags,omitempty"`
	Props       map[string]string        `json:"props,omitempty"`      // declared properties: "fused_bias": "true"
	Thresholds  map[string][]int64       `json:"thresholds,omitempty"` // by trait: values from which on the kernel takes another path
	Determinism Determinism              `json:"determinism,omitempty"`
	Required    []string                 `json:"required,omitempty"` // optional operands that a call must have
	Layouts     []string                 `json:"layouts,omitempty"`  // tags of weight layouts that it reads; none: plain weights
	NotAuto     bool                     `json:"not_auto,omitempty"` // runs only where it is asked for by name
	Origin      string                   `json:"origin,omitempty"`   // "builtin" (also where empty), "plugin:NAME", "file:NAME", "test"
	AnyBand     bool                     `json:"any_band,omitempty"` // a plug-in's kernel means to stand in one of this module's bands
	Version     string                   `json:"version,omitempty"`
	Unavailable string                   `json:"unavailable,omitempty"` // why there is no implementation: "needs -tags cuda"
	Weights     WeightPreprocessor       `json:"-"`
}

// KernelSpec is the whole description of one kernel, as DescribeKernel returns and spec files hold it.
type KernelSpec struct {
	Name     string        `json:"name"` // unique in the registry; "" means <solution>_<family>_<mode>
	Family   string        `json:"family"`
	Mode     string        `json:"mode"`
	Solution string        `json:"solution"` // the provider
	Kinds    []tensor.Kind `json:"kinds"`    // devices that it is for
	Priority Priority      `json:"priority"`
	Tier     Tier          `json:"tier"`
	Promises Traits        `json:"promises,omitzero"`
	Doc      string        `json:"doc,omitempty"`
	Source   string        `json:"source,omitempty"` // where it was registered; filled in

	Record   reflect.Type         `json:"-"` // that the launcher was written for, checked at registration; nil: not checked
	SelfTest func(q *Queue) error `json:"-"` // as OpProvider.SelfTest

	Preprocessor string `json:"preprocessor,omitempty"` // the ID of Weights; filled in
	Spec
}

// Operator is family.mode.
func (s *KernelSpec) Operator() string { return s.Family + "." + s.Mode }

// Band is a range of priorities with a meaning.
type Band uint8

// Bands, from last to first choice. Each but BandReference is four priorities wide.
const (
	BandReference   Band = 0  // the oracle: never wins where another kernel can run
	BandPortable    Band = 4  // generic, without a gate
	BandPerformant  Band = 8  // generally optimised: the usual winner
	BandSpecialized Band = 12 // for few architectures and shapes
	BandPlugin      Band = 16 // from outside this module
)

var bands = []struct {
	band Band
	name string
}{{BandReference, "REFERENCE"}, {BandPortable, "PORTABLE"}, {BandPerformant, "PERFORMANT"}, {BandSpecialized, "SPECIALIZED"}, {BandPlugin, "PLUGIN"}}

// String returns the upper-case name.
func (b Band) String() string {
	for _, n := range bands {
		if n.band == b {
			return n.name
		}
	}
	return fmt.Sprintf("BAND(%d)", uint8(b))
}

// Priority is a band and a small offset in it. The zero Priority stands for the default, PERFORMANT+2.
type Priority struct {
	Band   Band
	Offset uint8 // 0 to 3, 0 in BandReference
	set    bool
}

// Plus returns the priority band+offset. It does not check; registration does.
func (b Band) Plus(offset uint8) Priority { return Priority{b, offset, true} }

// DefaultPriority is that of kernels that give none.
var DefaultPriority = BandPerformant.Plus(2)

// ReferencePriority is the oracle's.
var ReferencePriority = BandReference.Plus(0)

// Int32 is the priority on the seam's scale: 10·(p-8), and ReferenceTierPriority for the oracle.
func (p Priority) Int32() int32 {
	p = p.orDefault()
	if p.Band == BandReference {
		return ReferenceTierPriority
	}
	return 10 * (int32(p.Band) + int32(p.Offset) - 8)
}

func (p Priority) orDefault() Priority {
	if p == (Priority{}) {
		return DefaultPriority
	}
	return p
}

// PriorityOf returns the band and offset at or below a priority of the seam's scale.
func PriorityOf(n int32) Priority {
	if n <= ReferenceTierPriority {
		return ReferencePriority
	}
	at := min(max((int(n)+80)/10, int(BandPortable)), int(BandPlugin)+3)
	if n < -40 {
		at = int(BandPortable)
	}
	band := BandPortable
	for _, b := range bands[1:] {
		if at >= int(b.band) {
			band = b.band
		}
	}
	return band.Plus(uint8(at - int(band)))
}

// String prints "PERFORMANT+2".
func (p Priority) String() string {
	p = p.orDefault()
	if p.Offset == 0 {
		return p.Band.String()
	}
	return fmt.Sprintf("%v+%d", p.Band, p.Offset)
}

// MarshalText is String.
func (p Priority) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads "BAND" or "BAND+offset". ErrArgument.
func (p *Priority) UnmarshalText(b []byte) error {
	name, off, more := strings.Cut(string(b), "+")
	for _, n := range bands {
		if n.name != name {
			continue
		}
		if !more {
			*p = n.band.Plus(0)
			return nil
		}
		if len(off) == 1 && off[0] >= '0' && off[0] <= '3' && n.band != BandReference {
			*p = n.band.Plus(off[0] - '0')
			return nil
		}
	}
	return fmt.Errorf("registry: priority %q is not REFERENCE, or one of PORTABLE PERFORMANT SPECIALIZED PLUGIN with an offset up to +3: %w", clip(string(b)), ErrArgument)
}

// validate checks what a priority says about its kernel.
func (p Priority) validate() error {
	if p.Offset > 3 || p.Band == BandReference && p.Offset > 0 || !slices.ContainsFunc(bands, func(b struct {
		band Band
		name string
	}) bool {
		return b.band == p.Band
	}) {
		return fmt.Errorf("%v: want REFERENCE, or one of PORTABLE PERFORMANT SPECIALIZED PLUGIN with an offset of 0 to 3", p)
	}
	return nil
}

var featureName = regexp.MustCompile(`^[a-z0-9_]+(:[a-z0-9_.]+)?$`)

// clone is a deep copy.
func (s *Spec) clone() *Spec {
	if s == nil {
		return nil
	}
	n := *s
	n.Requires = s.Requires.Clone()
	n.Signatures = slices.Clone(s.Signatures)
	n.Features, n.Tags, n.Required, n.Layouts = slices.Clone(s.Features), slices.Clone(s.Tags), slices.Clone(s.Required), slices.Clone(s.Layouts)
	slices.Sort(n.Features)
	slices.Sort(n.Tags)
	n.Features, n.Tags = slices.Compact(n.Features), slices.Compact(n.Tags) // one feature counts once for specificity
	n.Predicates, n.Props = slices.Clone(s.Predicates), maps.Clone(s.Props)
	n.Constraints = maps.Clone(s.Constraints)
	for k, c := range n.Constraints {
		n.Constraints[k] = c.clone()
	}
	n.Thresholds = maps.Clone(s.Thresholds)
	for k, v := range n.Thresholds {
		n.Thresholds[k] = slices.Clone(v)
	}
	return &n
}

// domain is the compiled form of a Spec: what Select and the dispatcher ask.
type domain struct {
	sigs    map[tensor.FormatSignature]bool // nil: every one that the op admits
	admits  func() []tensor.FormatSignature // by the op, where sigs is nil; nil: every one
	traits  []restriction                   // in schema order
	masks   []dtypeMask                     // launch check: dtypes of each role, where the declared signatures are their product
	rows    [][]tensor.DType                // launch check: else each combination, in the order of masks
	derived []restriction                   // those of traits that a call's record shows
	must    []uintptr                       // operands that a call must have
	weight  int                             // specificity: conditions that say something
}

type restriction struct {
	def *TraitDef
	at  int // in the schema
	con *Constraint
}

type dtypeMask struct {
	off uintptr
	set uint64
}

// compileSpec validates s for a kernel of op d and compiles it. A nil Spec has a nil domain.
func compileSpec(kernel string, d *Descriptor, s *Spec, tier Tier, priority int32) (*domain, error) {
	if s == nil {
		return nil, nil
	}
	bad := func(field, format string, args ...any) error {
		return &SpecError{Kernel: kernel, Field: field, Text: fmt.Sprintf(format, args...)}
	}
	if err := s.Requires.Validate(); err != nil {
		return nil, &SpecError{Kernel: kernel, Field: "requires", Err: err}
	}
	schema := d.schema()
	dom := &domain{weight: s.Requires.Conditions()}
	for _, f := range s.Features {
		if !featureName.MatchString(f) {
			return nil, bad("features", "%q is not of small letters, digits and _", clip(f))
		}
	}
	for _, t := range s.Tags {
		if !slices.Contains(tags, t) {
			return nil, bad("tags", "%q is not one of %v", clip(string(t)), tags)
		}
	}
	switch s.Determinism {
	case "", RunToRun, BatchInvariant:
	default:
		return nil, bad("determinism", "%q is not %q or %q", clip(string(s.Determinism)), RunToRun, BatchInvariant)
	}
	for i, p := range s.Predicates {
		if checkName("predicate", p.Name) != nil || p.Holds == nil {
			return nil, bad("predicates", "number %d (%q) lacks a name or a function", i, clip(p.Name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Constraints)) {
		c, at := s.Constraints[name], schema.trait(name)
		if at < 0 {
			return nil, &SpecError{Kernel: kernel, Field: "constraints." + name, Text: d.Name + " has no such trait", Err: &UnknownNameError{Name: name, Near: near(name, schema.names())}}
		}
		def := &schema.Traits[at]
		if err := c.validate(def.Type, 0); err != nil {
			return nil, bad("constraints."+name, "%v", err)
		}
		if n := c.size(); n > maxConstraintSize {
			return nil, bad("constraints."+name, "lists %d values and conditions, at most %d", n, maxConstraintSize)
		}
		if c.trivial() {
			continue
		}
		r := restriction{def, at, &c}
		dom.traits = append(dom.traits, r)
		if def.Derive != nil {
			dom.derived = append(dom.derived, r)
		}
	}
	for name := range s.Thresholds {
		at := schema.trait(name)
		if at < 0 || schema.Traits[at].Type != TraitInt {
			return nil, &SpecError{Kernel: kernel, Field: "thresholds." + name, Text: d.Name + " has no such int trait", Err: &UnknownNameError{Name: name, Near: near(name, schema.names())}}
		}
	}
	for _, name := range s.Required {
		i := slices.IndexFunc(d.operands(), func(o Operand) bool { return o.Name == name })
		if i < 0 {
			return nil, bad("required", "%s has no operand %q", d.Name, clip(name))
		}
		dom.must = append(dom.must, d.operands()[i].Offset)
	}
	plugin := strings.HasPrefix(s.Origin, "plugin:")
	switch band := PriorityOf(priority).Band; {
	case s.Origin == "", s.Origin == "builtin":
		if tier != Plugin && band == BandPlugin {
			return nil, bad("priority", "%v belongs to plugins; this kernel's origin is builtin", PriorityOf(priority))
		}
	case plugin:
		if band != BandPlugin && !s.AnyBand {
			return nil, bad("priority", "%v belongs to this module; a plug-in's kernel stands in %v, or says any_band", PriorityOf(priority), BandPlugin)
		}
	case s.Origin == "test", strings.HasPrefix(s.Origin, "file:"):
	default:
		return nil, bad("origin", "%q is not builtin, test, plugin:NAME or file:NAME", clip(s.Origin))
	}
	dom.weight += len(dom.traits) + len(s.Predicates) + len(s.Features)
	if len(s.Signatures) > 0 {
		dom.weight++
	}
	return dom, dom.compileSignatures(kernel, d, schema, s)
}

// compileSignatures checks the roles of every signature and prepares the launch check of dtypes.
func (dom *domain) compileSignatures(kernel string, d *Descriptor, schema *Schema, s *Spec) error {
	if len(s.Signatures) == 0 {
		dom.admits = schema.Signatures // the op's validator sees to it in a launch
		return nil
	}
	dom.sigs = map[tensor.FormatSignature]bool{}
	var offs []uintptr
	for _, role := range schema.Roles {
		if i := slices.IndexFunc(d.operands(), func(o Operand) bool { return o.Name == role }); i >= 0 {
			offs = append(offs, d.operands()[i].Offset)
		}
	}
	sets := make([]map[tensor.DType]bool, len(schema.Roles))
	seen := map[string]bool{}
	for i, sig := range s.Signatures {
		field := fmt.Sprintf("signatures[%d]", i)
		if err := sig.Validate(); err != nil {
			return &SpecError{Kernel: kernel, Field: field, Err: err}
		}
		if got := sig.Roles(); schema.Roles != nil && !slices.Equal(got, schema.Roles) {
			return &SpecError{Kernel: kernel, Field: field, Text: fmt.Sprintf("roles %v, %s has %v", got, d.Name, schema.Roles)}
		}
		dom.sigs[sig] = true
		row := make([]tensor.DType, len(schema.Roles))
		key := ""
		for j, role := range schema.Roles {
			row[j] = sig.DType(role)
			if sets[j] == nil {
				sets[j] = map[tensor.DType]bool{}
			}
			sets[j][row[j]] = true
			key += row[j].String() + ","
		}
		if !seen[key] {
			seen[key] = true
			dom.rows = append(dom.rows, row)
		}
	}
	if len(offs) != len(schema.Roles) { // an op without records: nothing is launched
		dom.rows = nil
		return nil
	}
	product := 1
	for j, set := range sets {
		m := dtypeMask{off: offs[j]}
		for t := range set {
			m.set |= 1 << t
		}
		dom.masks = append(dom.masks, m)
		product *= len(set)
	}
	if product == len(dom.rows) {
		dom.rows = nil
	}
	return nil
}

// takes reports whether a signature belongs to the domain.
func (dom *domain) takes(sig tensor.FormatSignature) bool {
	if dom.sigs != nil {
		return dom.sigs[sig]
	}
	return dom.admits == nil || slices.Contains(dom.admits(), sig)
}

// atLaunch reports whether a call's record shows anything that the domain restricts.
func (dom *domain) atLaunch() bool {
	return dom != nil && len(dom.masks)+len(dom.derived)+len(dom.must) > 0
}

// covers reports whether the record at args lies in the domain, as far as it shows.
func (dom *domain) covers(args unsafe.Pointer) bool {
	for _, m := range dom.masks {
		if x := (*tensor.Tensor)(unsafe.Add(args, m.off)); x.Present() && m.set>>x.DType&1 == 0 {
			return false
		}
	}
	if dom.rows != nil && !dom.listed(args) {
		return false
	}
	for i := range dom.derived {
		if v, ok := dom.derived[i].def.Derive(args); ok && !dom.derived[i].con.Admits(v) {
			return false
		}
	}
	for _, off := range dom.must {
		if !(*tensor.Tensor)(unsafe.Add(args, off)).Present() {
			return false
		}
	}
	return true
}

// outside says, for an error, what of the record at args lies outside the domain; "" if nothing does.
func (dom *domain) outside(d *Descriptor, args unsafe.Pointer) string {
	operand := func(off uintptr) string {
		for _, o := range d.operands() {
			if o.Offset == off {
				return o.Name
			}
		}
		return "operand"
	}
	var out, have []string
	for _, m := range dom.masks {
		x := (*tensor.Tensor)(unsafe.Add(args, m.off))
		if !x.Present() {
			continue
		}
		have = append(have, fmt.Sprintf("%s %v", operand(m.off), x.DType))
		if m.set>>x.DType&1 == 0 {
			var want []string
			for t := tensor.None; t < 64; t++ {
				if m.set>>t&1 != 0 {
					want = append(want, t.String())
				}
			}
			out = append(out, fmt.Sprintf("%s: wants %s, got %v", operand(m.off), strings.Join(want, " or "), x.DType))
		}
	}
	if len(out) == 0 && dom.rows != nil && !dom.listed(args) {
		out = append(out, "formats: not this combination, "+strings.Join(have, ", "))
	}
	for _, r := range dom.derived {
		if v, ok := r.def.Derive(args); ok && !r.con.Admits(v) {
			out = append(out, fmt.Sprintf("%s: wants %s, got %s", r.def.Name, clipTo(r.con.String(), maxWhy), v))
		}
	}
	for _, off := range dom.must {
		if !(*tensor.Tensor)(unsafe.Add(args, off)).Present() {
			out = append(out, operand(off)+": is missing")
		}
	}
	return strings.Join(out, "; ")
}

func (dom *domain) listed(args unsafe.Pointer) bool {
next:
	for _, row := range dom.rows {
		for j, m := range dom.masks {
			if x := (*tensor.Tensor)(unsafe.Add(args, m.off)); x.Present() && x.DType != row[j] {
				continue next
			}
		}
		return true
	}
	return false
}

// trait is the index of a trait by name or alias, -1 if there is none.
func (s *Schema) trait(name string) int {
	for i := range s.Traits {
		if s.Traits[i].Name == name || slices.Contains(s.Traits[i].Aliases, name) {
			return i
		}
	}
	return -1
}

func (s *Schema) names() (out []string) {
	for i := range s.Traits {
		out = append(append(out, s.Traits[i].Name), s.Traits[i].Aliases...)
	}
	return out
}
