package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Request asks which kernel should serve calls of one kind. The zero value of every field but Operator means "nothing
// special".
type Request struct {
	Operator  string                  // an op's name or alias, or an operator family.mode
	Signature tensor.FormatSignature  // formats of the operator's roles; the zero signature leaves formats open
	Traits    map[string]TraitValue   // properties of the calls, by the op's schema; AnyTrait() wants a kernel that takes every value
	Each      map[string][]TraitValue // traits of which the kernel must take every listed value
	Device    tensor.Device           // an open device of this process
	Platform  *device.Platform        // another machine's device: the answer is a plan and cannot be launched
	Features  []string                // of the operator, which the kernel must have
	Objective Objective
	Solution  string // only kernels of this provider
	Override  string // a Target, as OPMUX_OVERRIDE takes them
	scope     *scope // of the queue
	Strict    bool   // a choice that only names could decide is ErrAmbiguous
}

// query is a request resolved against one table.
type query struct {
	req       *Request
	r         *Registry
	t         *table
	op        Op
	d         *Descriptor
	schema    *Schema
	c         *chain // of the device, or of the platform's kind when planning
	p         *device.Platform
	print     string // p's fingerprint
	sig       tensor.FormatSignature
	open      bool         // nothing was said of the calls: it asks what the op has, and traits refuse nobody
	vals      []TraitValue // by schema; defaults filled in
	each      [][]TraitValue
	features  []string
	objective Objective
	choice    choice
	target    Target  // of the choice; a bare name of one of the op's kernels means the kernel
	told      []Event // to be delivered once no lock is held
}

// tell notes an event.
func (q *query) tell(e Event) { q.told = append(q.told, e) }

func (q *query) deliver() { q.r.emitAll(q.told) }

// RequestError says what is wrong with a request. It is ErrRequest.
type RequestError struct {
	Operator string
	Field    string // "traits.head_dim"
	Text     string
	Near     []string
}

// Error names the operator and the field.
func (e *RequestError) Error() string {
	s := fmt.Sprintf("registry: request for %s: %s: %s", e.Operator, e.Field, e.Text)
	if len(e.Near) > 0 {
		s += "; nearest: " + strings.Join(e.Near, ", ")
	}
	return s
}

// Unwrap returns ErrRequest.
func (e *RequestError) Unwrap() error { return ErrRequest }

// resolve checks a request and finds its op and chain.
func (r *Registry) resolve(req *Request) (*query, error) {
	t, _, err := r.covering(req.Operator)
	if err != nil {
		return nil, err
	}
	q := &query{req: req, r: r, t: t}
	bad := func(field string, near []string, format string, args ...any) error {
		return &RequestError{Operator: req.Operator, Field: field, Text: fmt.Sprintf(format, args...), Near: near}
	}
	if q.op, q.sig, err = t.ops.resolve(req.Operator, req.Signature); err != nil {
		return nil, err
	}
	if !q.sig.IsZero() {
		if err := q.sig.Validate(); err != nil {
			return nil, bad("signature", nil, "%v", err)
		}
	}
	q.open = req.Signature.IsZero() && len(req.Traits)+len(req.Each) == 0
	q.d = t.ops.desc(q.op)
	q.schema = q.d.schema()
	if err := q.place(req); err != nil {
		return nil, err
	}
	q.vals = make([]TraitValue, len(q.schema.Traits))
	q.each = make([][]TraitValue, len(q.schema.Traits))
	for _, name := range slices.Sorted(maps.Keys(req.Traits)) {
		at, err := q.traitAt(name, req.Traits[name])
		if err != nil {
			return nil, err
		}
		if !q.vals[at].IsZero() {
			return nil, bad("traits."+name, nil, "is given twice, by name and by alias")
		}
		q.vals[at] = req.Traits[name]
	}
	for _, name := range slices.Sorted(maps.Keys(req.Each)) {
		if n := len(req.Each[name]); n == 0 || n > maxWanted {
			return nil, bad("each."+clip(name), nil, "lists %d values, want 1 to %d", n, maxWanted)
		}
		for _, v := range req.Each[name] {
			at, err := q.traitAt(name, v)
			if err != nil {
				return nil, err
			}
			if !q.vals[at].IsZero() {
				return nil, bad("each."+name, nil, "has one value in traits, too")
			}
			q.each[at] = append(q.each[at], v)
		}
	}
	for i := range q.schema.Traits {
		def := &q.schema.Traits[i]
		if !q.vals[i].IsZero() || q.each[i] != nil {
			continue
		}
		if def.Required && !req.Signature.IsZero() {
			return nil, bad("traits."+def.Name, nil, "is required (%s)", def.Doc)
		}
		q.vals[i] = def.Default
	}
	if len(req.Features) > maxWanted {
		return nil, bad("features", nil, "%d, at most %d", len(req.Features), maxWanted)
	}
	if req.Solution != "" && checkName("solution", req.Solution) != nil {
		return nil, bad("solution", nil, "%q is no name", clip(req.Solution))
	}
	for _, f := range req.Features {
		if !featureName.MatchString(f) {
			return nil, bad("features", nil, "%q is not of small letters, digits and _", clip(f))
		}
	}
	q.features = slices.Sorted(slices.Values(req.Features))
	if q.objective = req.Objective; q.objective > ObjectiveDebug {
		return nil, bad("objective", nil, "%d is none", q.objective)
	}
	return q, q.choose()
}

// Limits of a request, whose parts are kept as keys.
const (
	maxWord   = 256 // bytes of a trait's value
	maxWanted = 64  // features; values of one trait
)

// place finds the device's or platform's chain.
func (q *query) place(req *Request) error {
	dev := req.Device
	if req.Platform != nil {
		if err := req.Platform.Validate(); err != nil {
			return &RequestError{Operator: req.Operator, Field: "platform", Text: err.Error()}
		}
		dev = tensor.Device{Kind: req.Platform.Kind}
		q.p = req.Platform.Clone() // answers outlive the call
		q.print = q.p.Fingerprint()
	}
	if err := checkDevice(dev); err != nil {
		return err
	}
	if q.c = q.t.chain(q.op, dev); q.c == nil {
		return fmt.Errorf("registry: %v: neither published nor opened: %w", dev, ErrUnknownDevice)
	}
	if q.p == nil {
		at := q.t.caps[dev]
		q.p, q.print = at.platform()
	}
	return nil
}

// traitAt is the index of a trait in the schema; the value must have its type.
func (q *query) traitAt(name string, v TraitValue) (int, error) {
	at := q.schema.trait(name)
	if at < 0 {
		return 0, &RequestError{Operator: q.req.Operator, Field: "traits." + clip(name), Text: q.d.Name + " has no such trait", Near: near(name, q.schema.names())}
	}
	if len(v.s) > maxWord {
		return 0, &RequestError{Operator: q.req.Operator, Field: "traits." + name, Text: fmt.Sprintf("a word of %d bytes, at most %d", len(v.s), maxWord)}
	}
	if want := q.schema.Traits[at].Type; v.typ != want && v.typ != traitAny {
		return 0, &RequestError{Operator: q.req.Operator, Field: "traits." + name, Text: fmt.Sprintf("%q is %v, want %v", v, v.typ, want)}
	}
	return at, nil
}

// choose asks what options, context and config say about the request.
func (q *query) choose() error {
	q.choice = q.t.choices.choose(q.t.ops, choiceRequest{op: q.op, operator: q.req.Operator, p: q.p, sig: q.sig, trait: q.trait,
		call: q.req.Override, scope: q.req.scope.choice(q.op), kind: q.c.slot.dev.Kind, all: q.c.all})
	if q.choice.err != nil {
		return &RequestError{Operator: q.req.Operator, Field: "override", Text: q.choice.err.Error()}
	}
	q.target = q.choice.target.narrow(q.c.all)
	if q.objective == ObjectiveDefault {
		q.objective = q.choice.objective
	}
	return nil
}

func (q *query) trait(name string) (TraitValue, bool) {
	if at := q.schema.trait(name); at >= 0 && !q.vals[at].IsZero() {
		return q.vals[at], true
	}
	return TraitValue{}, false
}

// TraitView is what predicates and oracles see of a request's traits.
type TraitView struct{ q *query }

// Get returns the value of a trait by name or alias; false where the request and the schema leave it open.
func (v TraitView) Get(name string) (TraitValue, bool) { return v.q.trait(name) }

// Int returns the number of an int trait, or def where it is open.
func (v TraitView) Int(name string, def int64) int64 {
	if x, ok := v.q.trait(name); ok && x.typ == TraitInt {
		return x.n
	}
	return def
}

// Signature returns the formats asked for, in the op's roles.
func (v TraitView) Signature() tensor.FormatSignature { return v.q.sig }
