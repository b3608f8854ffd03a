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
	if err := q.required(); err != nil {
		return err
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
	if err := q.required(); err != nil {
		return nil, err
	}
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
	_, refs, err := r.covering(operator)
	var out []Op
	for _, ref := range refs {
		if !slices.Contains(out, ref.op) {
			out = append(out, ref.op)
		}
	}
	return out, err
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
func (q *query) rank(explain bool) []*candidate {
	all := q.candidates()
	if explain && q.req.Platform != nil {
		all = append(all, q.elsewhere(all)...)
	}
	list := make([]*candidate, 0, len(all))
	for i := range all {
		c := &all[i]
		j := judge{query: q, candidate: c, explain: explain}
		if j.judge(); c.ok {
			q.score(c)
		}
		if c.ok || explain {
			list = append(list, c)
		}
	}
	slices.SortStableFunc(list, func(a, b *candidate) int {
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

// judge is one kernel's judgement.
type judge struct {
	*query
	*candidate
	explain bool
	forced  bool // judged only by what makes it unable to run
}

// no counts a refusal and reports whether judging may stop. Hard refusals count for forced kernels, too. The words are
// asked for only if somebody wants to read them.
func (j *judge) no(hard bool, why func() Why) (stop bool) {
	if j.forced && !hard {
		return false
	}
	j.ok = false
	if j.explain {
		j.candidate.why = append(j.candidate.why, why())
	}
	return !j.explain
}

// because is a reason without figures.
func because(kind, text string) func() Why {
	return func() Why { return Why{Kind: kind, Text: text} }
}

// judge decides whether the kernel can serve the query.
func (j *judge) judge() {
	j.ok = true
	j.forced = j.target.Force && j.target.Matches(j.g.p.Kernel, j.g.p.Name)
	_ = j.judgeDevice() || j.judgeDomain() || j.judgeWishes() || j.judgeChoice()
}

// judgeDevice looks at what the device, its chain or the described machine say about the kernel.
func (j *judge) judgeDevice() (stop bool) {
	lacks := func(list []device.Reason) bool {
		for _, r := range list {
			if j.no(false, func() Why { return Why{Kind: WhyCapability, Name: r.Kind, Want: r.Want, Have: r.Have} }) {
				return true
			}
		}
		return false
	}
	if d := j.drop; d != nil && d.why != DropWaiting {
		kind := WhyCapability
		switch d.why {
		case DropDisabled:
			kind = WhyDisabled
		case DropQuarantined:
			kind = WhyQuarantine
		case DropUnavailable:
			kind = WhyUnavailable
		case DropUnsupported:
			if j.t.caps[j.query.c.slot.dev].caps.State == device.Failed {
				kind = WhyLoad
			}
		}
		if len(d.reasons) > 0 {
			if lacks(d.reasons) {
				return true
			}
		} else if j.no(d.why == DropDisabled || d.why == DropUnavailable, because(kind, d.detail)) {
			return true
		}
	}
	if j.kinds != "" && j.no(true, func() Why { return Why{Kind: WhyCapability, Name: "kind", Want: j.kinds, Have: j.p.Kind.String()} }) {
		return true
	}
	if j.req.Platform == nil {
		return false
	}
	if by := j.t.disabledBy(j.g, j.query.c.slot.dev); by != "" && j.no(true, because(WhyDisabled, "by "+by)) {
		return true
	}
	if why := j.t.quarantined(j.g, j.p); why != "" && j.no(false, because(WhyQuarantine, why)) {
		return true
	}
	return j.g.p.Spec != nil && lacks(j.g.p.Spec.Requires.Check(j.p))
}

// judgeWishes looks at solution and objective.
func (j *judge) judgeWishes() (stop bool) {
	if s := j.req.Solution; s != "" && j.g.p.Name != s && !(j.borrowed && s == ReferenceProviderName) &&
		j.no(false, func() Why { return Why{Kind: WhySolution, Want: s, Have: j.g.p.Name} }) {
		return true
	}
	text := j.objective.refuses(j.g)
	return text != "" && j.no(false, func() Why { return Why{Kind: WhyObjective, Name: j.objective.String(), Text: text} })
}

// judgeDomain looks at formats, features and traits.
func (j *judge) judgeDomain() (stop bool) {
	spec, dom := j.g.p.Spec, j.g.domain
	if spec == nil {
		spec, dom = &Spec{}, &domain{}
	}
	if !j.sig.IsZero() && !dom.takes(j.sig) &&
		j.no(false, func() Why { return Why{Kind: WhyFormat, Want: signatures(spec), Have: j.sig.String()} }) {
		return true
	}
	for _, f := range j.features {
		if _, ok := slices.BinarySearch(spec.Features, f); !ok &&
			j.no(false, func() Why { return Why{Kind: WhyFeature, Name: f, Text: "is not among its features"} }) {
			return true
		}
	}
	for i := range dom.traits {
		if r := &dom.traits[i]; j.each[r.at] == nil {
			if v := j.vals[r.at]; !(v.IsZero() && j.open) && j.judgeTrait(r, v) {
				return true
			}
		} else {
			for _, v := range j.each[r.at] {
				if j.judgeTrait(r, v) {
					return true
				}
			}
		}
	}
	for _, p := range spec.Predicates {
		if !j.open && !j.holds(p) && j.no(false, func() Why { return Why{Kind: WhyTrait, Name: p.Name, Text: "does not hold"} }) {
			return true
		}
	}
	return false
}

func (j *judge) judgeTrait(r *restriction, v TraitValue) (stop bool) {
	return !r.con.Admits(v) && j.no(false, func() Why {
		have := v.String()
		if v.IsZero() {
			have = "unspecified"
		}
		return Why{Kind: WhyTrait, Name: r.def.Name, Want: r.con.String(), Have: have}
	})
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
	if len(s.Signatures) == 0 {
		return "one that the op admits"
	}
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
func (j *judge) judgeChoice() (stop bool) {
	ch := &j.choice
	name, provider := j.g.p.Kernel, j.g.p.Name
	if j.borrowed {
		provider = ReferenceProviderName
	}
	if from := ch.excluded(name, provider); from != "" && j.no(false, because(WhyOverride, "excluded by "+from)) {
		return true
	}
	if sc := j.req.scope; sc != nil {
		for i := range sc.disabled {
			if sc.disabled[i].covers(j.t.ops, j.g, j.query.c.slot.dev, j.borrowed) && j.no(true, because(WhyDisabled, "by scope "+sc.disabled[i].text)) {
				return true
			}
		}
	}
	j.named = j.target.Matches(name, provider) || j.target.Matches(name, j.g.p.Name)
	if ch.only && !j.named && j.no(false, func() Why { return Why{Kind: WhyOverride, Text: ch.from + " wants " + ch.target.String()} }) {
		return true
	}
	s := j.g.p.Spec
	return s != nil && s.NotAuto && !j.named && j.req.Solution != provider && j.no(false, because(WhyPolicy, onlyByName))
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
	q.chosen(list[0])
	return s, nil
}

// tied lists the kernels whose score equals the first one's.
func tied(list []*candidate) (names []string) {
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
	d := &Decision{Operator: q.req.Operator, Op: q.d.Name, Device: q.c.slot.dev.String(), Platform: q.p.Clone(), Print: q.print,
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
		if q.choice.unknown != nil {
			d.Error = q.choice.String()
		}
	}
	undecided := q.open || q.sig.IsZero() && len(q.schema.Roles) > 0 // each call's formats and traits decide
	for i := range list {
		c := list[i]
		ch := Choice{Kernel: c.g.p.Kernel, Provider: c.g.p.Name, Tier: c.g.p.Tier.String(), Priority: PriorityOf(c.g.p.Priority).String(),
			Verdict: "rejected", Why: c.why, Source: c.g.source}
		if c.borrowed {
			ch.Provider, ch.Tier, ch.Priority = ReferenceProviderName, Borrowed.String(), ReferencePriority.String()
		}
		if c.ok {
			s := c.score
			ch.Verdict, ch.Score, ch.Oracle = "eligible", &s, c.oracle
			switch {
			case undecided:
				ch.Verdict = "possible"
			case i == 0 && d.Error == "":
				ch.Verdict, d.Winner = "selected", ch.Kernel
			}
		}
		if s := c.g.p.Spec; s != nil && undecided {
			for _, sig := range s.Signatures {
				ch.Signatures = append(ch.Signatures, sig.String())
			}
			ch.Restricts = c.g.restricts()
		}
		if s := c.g.p.Spec; s != nil && s.Unavailable != "" && d.Planned {
			ch.Note = "not in this build: " + s.Unavailable
		}
		d.Choices = append(d.Choices, ch)
	}
	n := slices.IndexFunc(list, func(c *candidate) bool { return !c.ok })
	if n < 0 {
		n = len(list)
	}
	d.Ties = tied(list[:n])
	return d
}

// restricts lists in words what the kernel wants of a call beyond its formats.
func (g *Registration) restricts() (list []string) {
	if g.domain == nil {
		return nil
	}
	for _, r := range g.domain.traits {
		list = append(list, r.def.Name+": "+r.con.String())
	}
	for _, p := range g.p.Spec.Predicates {
		list = append(list, p.Name)
	}
	return list
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
