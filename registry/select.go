package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Selection is the answer to a Request: the kernels that serve it, best first. It stays as it is when the registry
// changes; a Handle follows.
type Selection struct {
	q *query
	c *chain // what Launch walks; nil in a plan
	g *Registration
	b bool // the winner is a borrowed CPU kernel
}

// Kernel is the winner's name.
func (s *Selection) Kernel() string { return s.g.p.Kernel }

// Provider is the winner's provider.
func (s *Selection) Provider() string {
	if s.b {
		return ReferenceProviderName
	}
	return s.g.p.Name
}

// Op is the op that the request resolved to.
func (s *Selection) Op() Op { return s.q.op }

// Spec describes the winner.
func (s *Selection) Spec() KernelSpec { return s.g.KernelSpec() }

// Props are the winner's declared properties.
func (s *Selection) Props() map[string]string {
	if s.g.p.Spec == nil {
		return nil
	}
	return maps.Clone(s.g.p.Spec.Props)
}

// Decision is the record of how the winner was found.
func (s *Selection) Decision() *Decision { return s.q.decide() }

// Launch runs one call of the request on q, a queue of the request's device, on the best kernel that takes it: a kernel
// that declines leaves the call to the next one of the request, not of the op's chain. The record is not validated here.
// Errors: those of Queue.Launch, ErrArgument for a queue of another device or registry, ErrPlan for a plan.
func (s *Selection) Launch(q *Queue, args unsafe.Pointer) error {
	switch {
	case s.c == nil:
		return fmt.Errorf("registry: %s on %s: %w", s.q.req.Operator, s.q.p.Name, ErrPlan)
	case q == nil || q.reg != s.q.r || q.dev != s.c.slot.dev:
		return fmt.Errorf("registry: %s: selected for %v, launched on another queue: %w", s.q.req.Operator, s.c.slot.dev, ErrArgument)
	}
	return s.c.launch(q, args)
}

// Select finds the kernel for a request. Answers, misses included, are kept until the registry changes. Errors:
// ErrRequest (*RequestError), ErrUnknownOp, ErrUnknownDevice, ErrNoKernel (*NoKernelError), ErrOverride
// (*OverrideError), ErrAmbiguous.
func (r *Registry) Select(req Request) (*Selection, error) {
	q, err := r.resolve(&req)
	if err != nil {
		return nil, err
	}
	if req.scope != nil { // a scope's own view is not everybody's
		defer q.deliver()
		return q.find()
	}
	return r.selections.get(q)
}

// Select is Registry.Select for calls on q: its device takes the place of the request's, and the scopes of its context
// (strict mode, disabled and overriding kernels) count. A request's own Override is stronger than the context's.
func (q *Queue) Select(req Request) (*Selection, error) {
	req.Device, req.Platform, req.scope = q.dev, nil, q.scope
	req.Strict = req.Strict || q.scope != nil && q.scope.strict
	return q.reg.Select(req)
}

// Supports reports whether some kernel serves the request, and the record of the decision. Both are kept like Select's
// answers, so asking again costs little; the record is shared, is not to be changed, and shows the values of the first
// request that had the same answer.
func (r *Registry) Supports(req Request) (bool, *Decision) {
	q, err := r.resolve(&req)
	if err != nil {
		return false, refused(&req, err)
	}
	a := r.selections.answer(q)
	q.deliver()
	return a.s != nil, a.record()
}

// SelectFirst returns the first request's selection that succeeds, else the last one's error.
func (r *Registry) SelectFirst(reqs ...Request) (s *Selection, err error) {
	err = fmt.Errorf("registry: no request: %w", ErrArgument)
	for _, req := range reqs {
		if s, err = r.Select(req); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// Decide explains a request: the verdict on every kernel. A request that cannot be answered has Error set.
func (r *Registry) Decide(req Request) *Decision {
	q, err := r.resolve(&req)
	if err != nil {
		return refused(&req, err)
	}
	return q.decide()
}

// refused is the record of a request that names nothing to decide about.
func refused(req *Request, err error) *Decision {
	d := &Decision{Operator: req.Operator, Objective: req.Objective.String(), Choices: []Choice{}, Error: err.Error()}
	if !req.Signature.IsZero() {
		d.Signature = req.Signature.String()
	}
	return d
}

// Covered lists the ops that an operator's name covers, by id: one for an op's own name.
func (r *Registry) Covered(operator string) ([]Op, error) {
	t, err := r.snapshot()
	if err != nil {
		return nil, err
	}
	var out []Op
	for _, ref := range t.ops.covered(operator) {
		if !slices.Contains(out, ref.op) {
			out = append(out, ref.op)
		}
	}
	if out == nil {
		return nil, &UnknownOperatorError{Name: operator, Near: near(operator, t.ops.operatorNames())}
	}
	return out, nil
}

// candidate is one kernel before the judge.
type candidate struct {
	g        *Registration
	step     *step // how it is launched; nil where it cannot be
	borrowed bool
	drop     *drop // why the device's chain lacks it
	ok       bool
	named    bool // by the override
	why      []Why
	score    Score
	oracle   string
	kinds    string // planning: the kinds that the kernel is for, where the platform's is none of them
}

// elsewhere lists the op's kernels for other kinds than the platform's that have none for it, by name. A plan explains
// them too, so that it never says less than "not for this kind".
func (q *query) elsewhere(here []candidate) (out []candidate) {
	at := map[string]int{}
	for i := range here {
		at[here[i].g.p.Kernel] = -1
	}
	for kind := range tensor.NumKinds {
		c := q.t.chain(q.op, tensor.Device{Kind: tensor.Kind(kind)})
		if c == nil {
			continue
		}
		for _, g := range c.all {
			switch i, seen := at[g.p.Kernel]; {
			case !seen:
				at[g.p.Kernel] = len(out)
				out = append(out, candidate{g: g, kinds: g.kind.String()})
			case i >= 0:
				out[i].kinds += " or " + g.kind.String()
			}
		}
	}
	return out
}

// candidates lists every kernel of the op on the device: those in its chain and those that it dropped.
func (q *query) candidates() []candidate {
	c := q.c
	if c.base != nil { // what the options chose for launches is one of the things that this request weighs
		c = c.base
	}
	if q.req.Platform != nil {
		out := make([]candidate, len(c.all))
		for i, g := range c.all {
			out[i].g = g
		}
		return out
	}
	out := make([]candidate, 0, len(c.steps)+len(c.dropped))
	for i := range c.steps {
		s := &c.steps[i]
		out = append(out, candidate{g: s.g, step: s, borrowed: s.k.borrowed})
	}
	for i := range c.dropped {
		k := candidate{g: c.dropped[i].g, drop: &c.dropped[i]}
		for j := range c.bench {
			if c.bench[j].g == k.g {
				k.step = &c.bench[j]
			}
		}
		out = append(out, k)
	}
	return out
}

// rank judges every candidate and puts those that serve first, best first. With explain every reason is written down;
// without it the first refusal ends a judgement.
func (q *query) rank(explain bool) []candidate {
	list := q.candidates()
	if explain && q.req.Platform != nil {
		list = append(list, q.elsewhere(list)...)
	}
	for i := range list {
		q.judge(&list[i], explain)
		if list[i].ok {
			q.score(&list[i])
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int {
		if a.ok != b.ok {
			return b2i(b.ok) - b2i(a.ok)
		}
		if a.named != b.named {
			return b2i(b.named) - b2i(a.named)
		}
		if a.borrowed != b.borrowed {
			return b2i(a.borrowed) - b2i(b.borrowed)
		}
		return cmp.Or(compareScores(a.score, b.score), cmp.Compare(b.g.p.Priority, a.g.p.Priority), strings.Compare(a.g.p.Kernel, b.g.p.Kernel))
	})
	return list
}

// compareScores orders the better score first.
func compareScores(a, b Score) int {
	return cmp.Or(cmp.Compare(b.Oracle, a.Oracle), cmp.Compare(b.Objective, a.Objective), cmp.Compare(b.Priority, a.Priority),
		cmp.Compare(b.Specificity, a.Specificity), cmp.Compare(b.Origin, a.Origin))
}

func (q *query) score(c *candidate) {
	c.score = Score{Objective: q.objective.favours(c.g), Priority: c.g.p.Priority, Origin: c.g.originRank()}
	if c.borrowed {
		c.score.Priority = ReferenceTierPriority
	}
	if c.g.domain != nil {
		c.score.Specificity = c.g.domain.weight
	}
	c.score.Oracle, c.oracle = q.t.oracle(c.g, q.p, TraitView{q})
}

// judge decides whether a kernel can serve the query.
func (q *query) judge(c *candidate, explain bool) {
	c.ok = true
	ch := &q.choice
	forced := !ch.target.IsZero() && ch.target.Force && ch.target.Matches(c.g.p.Kernel, c.g.p.Name)
	// no counts a refusal and reports whether judging may stop. A forced kernel is judged only by what makes it unable to run.
	no := func(hard bool, w Why) bool {
		if forced && !hard {
			return false
		}
		c.ok = false
		if explain {
			c.why = append(c.why, w)
		}
		return !explain
	}
	g, spec, planning := c.g, c.g.p.Spec, q.req.Platform != nil
	if d := c.drop; d != nil && d.why != DropOverridden {
		w := Why{Kind: WhyCapability, Text: d.detail}
		switch d.why {
		case DropDisabled:
			w.Kind = WhyDisabled
		case DropQuarantined:
			w.Kind = WhyQuarantine
		case DropUnavailable:
			w.Kind = WhyUnavailable
		case DropUnsupported:
			if len(d.reasons) > 0 {
				for _, r := range d.reasons {
					if no(false, capability(r)) {
						return
					}
				}
				w.Kind = ""
			} else if q.t.caps[q.c.slot.dev].caps.State == device.Failed {
				w.Kind = WhyLoad
			}
		}
		if w.Kind != "" && no(d.why == DropDisabled || d.why == DropUnavailable, w) {
			return
		}
	}
	if c.kinds != "" && no(true, Why{Kind: WhyCapability, Name: "kind", Want: c.kinds, Have: q.p.Kind.String()}) {
		return
	}
	if planning {
		if by := q.t.disabledBy(g, q.c.slot.dev); by != "" && no(true, Why{Kind: WhyDisabled, Text: "by " + by}) {
			return
		}
		if why := q.t.quarantined(g, q.p); why != "" && no(false, Why{Kind: WhyQuarantine, Text: why}) {
			return
		}
		if spec != nil && !explain {
			if !spec.Requires.SatisfiedBy(q.p) && no(false, Why{}) {
				return
			}
		} else if spec != nil {
			for _, r := range spec.Requires.Check(q.p) {
				no(false, capability(r))
			}
		}
	}
	if q.judgeDomain(c, no) {
		return
	}
	if q.req.Solution != "" && g.p.Name != q.req.Solution && !(c.borrowed && q.req.Solution == ReferenceProviderName) {
		if no(false, Why{Kind: WhySolution, Want: q.req.Solution, Have: g.p.Name}) {
			return
		}
	}
	if text := q.objective.refuses(g); text != "" && no(false, Why{Kind: WhyObjective, Name: q.objective.String(), Text: text}) {
		return
	}
	q.judgeChoice(c, no)
}

func capability(r device.Reason) Why {
	return Why{Kind: WhyCapability, Name: r.Kind, Want: r.Want, Have: r.Have}
}

// judgeDomain looks at formats, features and traits.
func (q *query) judgeDomain(c *candidate, no func(bool, Why) bool) (stop bool) {
	dom, spec := c.g.domain, c.g.p.Spec
	if dom == nil {
		for _, f := range q.features {
			if no(false, Why{Kind: WhyFeature, Name: f, Text: "is not among its features"}) {
				return true
			}
		}
		return false
	}
	if dom.sigs != nil && !q.sig.IsZero() && !dom.sigs[q.sig] {
		if no(false, Why{Kind: WhyFormat, Want: signatures(spec), Have: q.sig.String()}) {
			return true
		}
	}
	for _, f := range q.features {
		if _, ok := slices.BinarySearch(spec.Features, f); !ok && no(false, Why{Kind: WhyFeature, Name: f, Text: "is not among its features"}) {
			return true
		}
	}
	for i := range dom.traits {
		r := &dom.traits[i]
		if q.each[r.at] != nil {
			for _, v := range q.each[r.at] {
				if !r.con.Admits(v) && no(false, Why{Kind: WhyTrait, Name: r.def.Name, Want: r.con.String(), Have: v.String()}) {
					return true
				}
			}
		} else if v := q.vals[r.at]; !(v.IsZero() && q.open) && !r.con.Admits(v) {
			have := v.String()
			if v.IsZero() {
				have = "unspecified"
			}
			if no(false, Why{Kind: WhyTrait, Name: r.def.Name, Want: r.con.String(), Have: have}) {
				return true
			}
		}
	}
	for _, p := range spec.Predicates {
		if !q.holds(p) && !q.open && no(false, Why{Kind: WhyTrait, Name: p.Name, Text: "does not hold"}) {
			return true
		}
	}
	return false
}

func (q *query) holds(p Predicate) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return p.Holds(TraitView{q})
}

func signatures(s *Spec) string {
	var list []string
	for _, sig := range s.Signatures {
		list = append(list, sig.String())
	}
	if len(list) > 4 {
		list = append(list[:4], fmt.Sprintf("... %d in all", len(s.Signatures)))
	}
	return strings.Join(list, " | ")
}

// judgeChoice applies what options, context and config want.
func (q *query) judgeChoice(c *candidate, no func(bool, Why) bool) {
	ch := &q.choice
	name, provider := c.g.p.Kernel, c.g.p.Name
	if c.borrowed {
		provider = ReferenceProviderName
	}
	if from := ch.excluded(name, provider); from != "" && no(false, Why{Kind: WhyOverride, Text: "excluded by " + from}) {
		return
	}
	if sc := q.req.scope; sc != nil {
		for i := range sc.disabled {
			if sc.disabled[i].covers(q.t.ops, c.g, q.c.slot.dev, c.borrowed) && no(true, Why{Kind: WhyDisabled, Text: "by scope " + sc.disabled[i].text}) {
				return
			}
		}
	}
	c.named = !ch.target.IsZero() && (ch.target.Matches(name, provider) || ch.target.Matches(name, c.g.p.Name))
	if ch.only && !c.named && no(false, Why{Kind: WhyOverride, Text: ch.from + " wants " + ch.target.String()}) {
		return
	}
	if s := c.g.p.Spec; s != nil && s.NotAuto && !c.named && q.req.Solution != provider {
		no(false, Why{Kind: WhyPolicy, Text: "runs only where it is asked for by name"})
	}
}

// find answers the query: the best candidates as a chain.
func (q *query) find() (*Selection, error) {
	list := q.rank(false)
	n := 0
	for n < len(list) && list[n].ok {
		n++
	}
	switch {
	case !q.choice.target.IsZero() && (n == 0 || !list[0].named):
		return nil, &OverrideError{q: q, Target: q.choice.target.String(), From: q.choice.from}
	case n == 0:
		return nil, &NoKernelError{q}
	}
	if ties := tied(list[:n]); len(ties) > 0 && (q.req.Strict || q.t.opts.Strict) {
		return nil, fmt.Errorf("registry: %s: only their names decide between %s and %s: %w", q.req.Operator, list[0].g.p.Kernel, strings.Join(ties, ", "), ErrAmbiguous)
	}
	s := &Selection{q: q, g: list[0].g, b: list[0].borrowed}
	if q.req.Platform == nil {
		steps := make([]*step, 0, n)
		for i := range list[:n] {
			if list[i].step != nil {
				steps = append(steps, list[i].step)
			}
		}
		s.c = q.c.pick(steps)
	}
	q.chosen(&list[0])
	return s, nil
}

// tied lists the kernels whose score equals the first one's.
func tied(list []candidate) (names []string) {
	for _, c := range list[min(1, len(list)):] {
		if c.score == list[0].score && c.borrowed == list[0].borrowed && c.named == list[0].named {
			names = append(names, c.g.p.Kernel)
		}
	}
	return names
}

// decide writes the query's record. It works on a copy: several may ask one answer for its record.
func (shared *query) decide() *Decision {
	own := *shared
	q := &own
	defer q.deliver()
	d := &Decision{Operator: q.req.Operator, Op: q.d.Name, Device: q.c.slot.dev.String(), Platform: q.p, Print: q.print,
		Planned: q.req.Platform != nil, Features: q.features, Objective: q.objective.String(), Solution: q.req.Solution,
		Table: q.r.digest(q.t), Snapshot: q.t.gen, Choices: []Choice{}, Traits: map[string]string{}}
	if d.Planned {
		d.Device = q.p.Kind.String()
	} else {
		d.Reference = q.c.refWhy
	}
	if !q.sig.IsZero() {
		d.Signature = q.sig.String()
	}
	for i, v := range q.vals {
		if !v.IsZero() {
			d.Traits[q.schema.Traits[i].Name] = v.String()
		} else if q.each[i] != nil {
			d.Traits[q.schema.Traits[i].Name] = fmt.Sprint("each of ", q.each[i])
		}
	}
	if !q.choice.target.IsZero() {
		d.Override, d.From = q.choice.target.String(), q.choice.from
	}
	d.Kept = q.req.scope == nil && q.r.selections.kept(q)
	list := q.rank(true)
	if !q.choice.target.IsZero() && (len(list) == 0 || !list[0].ok || !list[0].named) {
		d.Error = "the override names no kernel that can serve the request"
	}
	for i := range list {
		c := &list[i]
		ch := Choice{Kernel: c.g.p.Kernel, Provider: c.g.p.Name, Tier: c.g.p.Tier.String(), Priority: PriorityOf(c.g.p.Priority).String(),
			Verdict: "rejected", Why: c.why, Source: c.g.source}
		if c.borrowed {
			ch.Provider, ch.Tier, ch.Priority = ReferenceProviderName, Borrowed.String(), ReferencePriority.String()
		}
		if c.ok {
			s := c.score
			ch.Verdict, ch.Score, ch.Oracle = "eligible", &s, c.oracle
			if i == 0 && d.Error == "" {
				ch.Verdict, d.Winner = "selected", ch.Kernel
			}
		}
		if s := c.g.p.Spec; s != nil && q.sig.IsZero() {
			for _, sig := range s.Signatures {
				ch.Signatures = append(ch.Signatures, sig.String())
			}
		}
		if s := c.g.p.Spec; s != nil && s.Unavailable != "" && d.Planned {
			ch.Note = "not in this build: " + s.Unavailable
		}
		d.Choices = append(d.Choices, ch)
	}
	n := slices.IndexFunc(list, func(c candidate) bool { return !c.ok })
	if n < 0 {
		n = len(list)
	}
	d.Ties = tied(list[:n])
	return d
}

// originRank orders equal kernels: this module's first, then plugins', files', tests'.
func (g *Registration) originRank() int {
	if g.p.Spec == nil {
		return 3
	}
	switch o := g.p.Spec.Origin; {
	case o == "" || o == "builtin":
		return 3
	case strings.HasPrefix(o, "plugin:"):
		return 2
	case strings.HasPrefix(o, "file:"):
		return 1
	}
	return 0
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
