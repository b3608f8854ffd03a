package registry

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// maxSelections bounds the answers that a registry, or one handle, keeps.
const maxSelections = 4096

// answer is a selection or why there is none.
type answer struct {
	q    *query // which it was found for
	s    *Selection
	err  error
	once sync.Once
	d    *Decision
}

// to is the answer to q, another query of the same kind.
func (a *answer) to(q *query) (*Selection, error) {
	if a.s != nil {
		s := *a.s
		s.q = q
		return &s, nil
	}
	switch e := a.err.(type) {
	case *NoKernelError:
		return nil, &NoKernelError{q}
	case *OverrideError:
		return nil, &OverrideError{q, e.Target, e.From}
	}
	return nil, a.err
}

func (a *answer) record() *Decision {
	a.once.Do(func() { a.d = a.q.decide() })
	return a.d
}

// selectionKey is everything that an answer depends on within one snapshot.
type selectionKey struct {
	op        Op
	operator  string // rules may name it
	dev       tensor.Device
	print     string
	sig       tensor.FormatSignature
	open      bool
	traits    string // static traits by value, dynamic ones by region
	features  string
	objective Objective
	solution  string
	override  string
	strict    bool
}

// selections keeps answers, misses included, until the snapshot changes.
type selections struct {
	cur    atomic.Pointer[selectionTable]
	hits   atomic.Uint64
	misses atomic.Uint64
}

type selectionTable struct {
	t    *table
	mu   sync.Mutex // one search at a time: the same question is asked once
	n    int
	list sync.Map // selectionKey: *answer
}

// CacheStats are counters of Select's cache.
type CacheStats struct {
	Hits   uint64 `json:"hits"`
	Misses uint64 `json:"misses"`
	Size   int    `json:"size"` // answers kept for the present snapshot, at most 4096
}

// CacheStats returns how often Select found its answer ready.
func (r *Registry) CacheStats() CacheStats {
	s := CacheStats{Hits: r.selections.hits.Load(), Misses: r.selections.misses.Load()}
	if c := r.selections.cur.Load(); c != nil {
		c.mu.Lock()
		s.Size = c.n
		c.mu.Unlock()
	}
	return s
}

// ClearCache forgets every kept answer. Changes of the registry do that by themselves.
func (r *Registry) ClearCache() { r.selections.cur.Store(nil) }

func (c *selections) get(q *query) (*Selection, error) {
	return c.answer(q).to(q)
}

// at is the table of answers for q's snapshot; where the registry has moved on, one that nobody keeps.
func (c *selections) at(q *query) *selectionTable {
	st := c.cur.Load()
	if st != nil && st.t == q.t {
		return st
	}
	fresh := &selectionTable{t: q.t}
	if st == nil || q.t.gen > st.t.gen {
		c.cur.CompareAndSwap(st, fresh)
	}
	if st = c.cur.Load(); st == nil || st.t != q.t {
		return fresh
	}
	return st
}

// answer returns the answer to q, and delivers the events of a search.
func (c *selections) answer(q *query) *answer {
	st, key := c.at(q), q.key()
	if a, ok := st.list.Load(key); ok {
		c.hits.Add(1)
		return a.(*answer)
	}
	a, told := c.search(st, key, q)
	q.r.emitAll(told)
	return a
}

// search finds an answer that was not there. From then on q belongs to everybody who gets the answer, so its events are
// taken from it.
func (c *selections) search(st *selectionTable, key selectionKey, q *query) (*answer, []Event) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if a, ok := st.list.Load(key); ok {
		c.hits.Add(1)
		return a.(*answer), nil
	}
	c.misses.Add(1)
	a := &answer{q: q}
	a.s, a.err = q.find()
	told := q.told
	q.told = nil
	if st.n >= maxSelections {
		st.list.Clear()
		st.n = 0
	}
	st.list.Store(key, a)
	st.n++
	return a, told
}

// kept reports whether q's answer is there.
func (c *selections) kept(q *query) bool {
	st := c.cur.Load()
	if st == nil || st.t != q.t {
		return false
	}
	_, ok := st.list.Load(q.key())
	return ok
}

// key is the query's place in the cache.
func (q *query) key() selectionKey {
	k := selectionKey{op: q.op, operator: q.req.Operator, dev: q.c.slot.dev, sig: q.sig, open: q.open, objective: q.objective, solution: q.req.Solution,
		override: q.req.Override, strict: q.req.Strict}
	if q.req.Platform != nil {
		k.print = q.print
	}
	k.traits = string(q.traitKey(make([]byte, 0, 64)))
	for _, f := range q.features {
		k.features += f + "\x00"
	}
	return k
}

// traitKey writes the traits: the class of a dynamic one, else the values.
func (q *query) traitKey(b []byte) []byte {
	reg := q.regions()
	for i, v := range q.vals {
		if q.schema.Traits[i].Dynamic && v.typ == TraitInt && !reg.exact {
			b = append(strconv.AppendInt(append(b, 'r'), reg.of(i, v.n), 10), ',')
			continue
		}
		b = v.appendKey(b)
		for _, e := range q.each[i] {
			b = e.appendKey(append(b, '+'))
		}
		b = append(b, ',')
	}
	return b
}

// appendKey writes a text that differs between different values.
func (v TraitValue) appendKey(b []byte) []byte {
	b = strconv.AppendInt(append(b, '0'+byte(v.typ)), v.n, 10)
	return strconv.AppendQuote(b, v.s)
}

// regions divides the values of an op's int traits into classes with equal answers, from the constraints of the op's
// kernels and the rules of the configuration.
type regions struct {
	exact  bool      // some kernel or oracle looks at values in its own way: every value is its own class
	starts [][]int64 // by trait: first numbers of intervals, ascending
	moduli []int64   // by trait: 0 or the least common multiple of the divisors asked about
}

// maxModulus bounds the remainders that regions tell apart.
const maxModulus = 1 << 12

func (q *query) regions() *regions { return q.c.regions(q.t, q.op, q.schema) }

// regions are worked out at the first selection.
func (c *chain) regions(t *table, op Op, schema *Schema) *regions {
	c.divide.Do(func() {
		reg := &regions{starts: make([][]int64, len(schema.Traits)), moduli: make([]int64, len(schema.Traits))}
		for _, list := range [][]step{c.steps, c.bench} {
			for i := range list {
				reg.add(list[i].g)
			}
		}
		for _, d := range c.dropped {
			reg.add(d.g)
		}
		for _, g := range c.all {
			reg.add(g)
		}
		for i := range schema.Traits {
			reg.starts[i] = append(reg.starts[i], t.choiceBounds(op, schema.Traits[i].Name)...)
			for j := range t.oracles {
				starts, ok := t.oracles[j].starts(op, &schema.Traits[i])
				reg.starts[i] = append(reg.starts[i], starts...)
				reg.exact = reg.exact || !ok
			}
			slices.Sort(reg.starts[i])
			reg.starts[i] = slices.Compact(reg.starts[i])
		}
		c.divided = reg
	})
	return c.divided
}

func (reg *regions) add(g *Registration) {
	if g.domain == nil {
		return
	}
	if len(g.p.Spec.Predicates) > 0 {
		reg.exact = true
	}
	for i := range g.domain.traits {
		r := &g.domain.traits[i]
		r.con.boundaries(func(n int64) { reg.starts[r.at] = append(reg.starts[r.at], n) },
			func(n int64) {
				m := max(reg.moduli[r.at], 1)
				if n <= maxModulus { // else the product might not be a number
					m = m / gcd(m, n) * n
				}
				if n > maxModulus || m > maxModulus {
					reg.exact = true
					return
				}
				reg.moduli[r.at] = m
			})
	}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// of is the class of n for trait i.
func (reg *regions) of(i int, n int64) int64 {
	lo, hi := 0, len(reg.starts[i])
	for lo < hi { // the number of starts up to n
		if mid := int(uint(lo+hi) >> 1); n < reg.starts[i][mid] {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	at := int64(lo)
	if m := reg.moduli[i]; m > 1 {
		r := n % m
		if r < 0 {
			r += m
		}
		return at*m + r
	}
	return at
}

// Handle is a prepared request: what serves the same calls again and again. It follows the registry's snapshots. It is
// safe for concurrent use.
type Handle struct {
	r       *Registry
	req     Request
	dynamic []string
	cur     atomic.Pointer[prepared]
}

// prepared is a handle resolved against one snapshot.
type prepared struct {
	t     *table
	at    []int // dynamic traits in the schema
	reg   *regions
	dense []atomic.Pointer[answer] // by class of all traits, where there are few
	sizes []int64                  // classes of each trait, with dense
	mu    sync.Mutex
	kept  atomic.Pointer[map[handleKey]*answer] // where dense is nil
}

// maxDense bounds the classes that a handle has a place for.
const maxDense = 1024

// maxHandleTraits bounds the traits that a handle varies.
const maxHandleTraits = 4

// handleKey is a call's class for each dynamic trait, or its value where every value is its own class.
type handleKey [maxHandleTraits]int64

// Prepare resolves a request once. The named int traits vary from call to call and are given to Select in place
// of what req says of them; the others are as in req. Errors: those of Select but ErrNoKernel and ErrOverride, and ErrRequest for a name that is no int trait.
func (r *Registry) Prepare(req Request, dynamic ...string) (*Handle, error) {
	h := &Handle{r: r, req: req, dynamic: slices.Clone(dynamic)}
	h.req.Traits, h.req.Each, h.req.Features = maps.Clone(req.Traits), maps.Clone(req.Each), slices.Clone(req.Features)
	if req.Platform != nil {
		h.req.Platform = req.Platform.Clone()
	}
	if len(dynamic) > maxHandleTraits {
		return nil, &RequestError{Operator: req.Operator, Field: "dynamic", Text: fmt.Sprintf("%d traits, at most %d", len(dynamic), maxHandleTraits)}
	}
	for i, n := range dynamic {
		if slices.Contains(dynamic[:i], n) {
			return nil, &RequestError{Operator: req.Operator, Field: "dynamic", Text: fmt.Sprintf("trait %q comes twice", clip(n))}
		}
	}
	if _, err := h.prepare(); err != nil {
		return nil, err
	}
	return h, nil
}

// Dynamic names the traits whose values Select takes, in that order.
func (h *Handle) Dynamic() []string { return slices.Clone(h.dynamic) }

// at returns the request with values for the dynamic traits.
func (h *Handle) at(values []int64) Request {
	req := h.req
	req.Traits = make(map[string]TraitValue, len(h.req.Traits)+len(values))
	maps.Copy(req.Traits, h.req.Traits)
	for i, n := range h.dynamic {
		var v int64
		if i < len(values) {
			v = values[i]
		}
		req.Traits[n] = IntTrait(v)
	}
	return req
}

func (h *Handle) prepare() (*prepared, error) {
	req := h.at(nil)
	q, err := h.r.resolve(&req)
	if err != nil {
		return nil, err
	}
	p := &prepared{t: q.t, reg: q.regions()}
	for _, n := range h.dynamic {
		p.at = append(p.at, q.schema.trait(n))
	}
	p.kept.Store(&map[handleKey]*answer{})
	if n := p.classes(); n <= maxDense {
		p.dense = make([]atomic.Pointer[answer], n)
	}
	h.cur.Store(p)
	return p, nil
}

// classes is the number of classes that the dynamic traits have together, or more than maxDense. It fills sizes.
func (p *prepared) classes() int64 {
	n := int64(1)
	for _, at := range p.at {
		size := int64(len(p.reg.starts[at])+1) * max(p.reg.moduli[at], 1)
		if p.reg.exact || size > maxDense {
			return maxDense + 1
		}
		if n *= size; n > maxDense {
			return n
		}
		p.sizes = append(p.sizes, size)
	}
	return n
}

// class is the place of values in dense.
func (p *prepared) class(values []int64) (n int64) {
	for i, at := range p.at {
		v := int64(0)
		if i < len(values) {
			v = values[i]
		}
		n = n*p.sizes[i] + p.reg.of(at, v)
	}
	return n
}

// Select returns the selection for the given values of the dynamic traits (missing ones are 0, more are ignored). While
// the registry does not change it costs some nanoseconds and allocates nothing, but for values of a class not seen
// before. Its record (Selection.Decision) shows the values of the first call with the same answer. Errors are those of
// Registry.Select.
func (h *Handle) Select(values ...int64) (*Selection, error) {
	p := h.cur.Load()
	if p.t != h.r.cur.Load() {
		var err error
		if p, err = h.prepare(); err != nil {
			return nil, err
		}
	}
	if p.dense != nil {
		if a := p.dense[p.class(values)].Load(); a != nil {
			return a.s, a.err
		}
	} else if a := (*p.kept.Load())[p.key(values)]; a != nil {
		return a.s, a.err
	}
	return h.keep(p, slices.Clone(values))
}

// key is the place of values in kept.
func (p *prepared) key(values []int64) (key handleKey) {
	copy(key[:len(p.at)], values)
	for i, at := range p.at {
		if !p.reg.exact {
			key[i] = p.reg.of(at, key[i])
		}
	}
	return key
}

// keep asks the registry and remembers the answer.
func (h *Handle) keep(p *prepared, values []int64) (*Selection, error) {
	req := h.at(values)
	q, err := h.r.resolve(&req)
	if err != nil {
		return nil, err
	}
	a := h.r.selections.answer(q)
	if q.t != p.t {
		return a.s, a.err // the registry moved on
	}
	if p.dense != nil {
		p.dense[p.class(values)].Store(a)
		return a.s, a.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.kept.Load()
	if len(old) >= maxSelections {
		old = nil
	}
	next := make(map[handleKey]*answer, len(old)+1)
	maps.Copy(next, old)
	next[p.key(values)] = a
	p.kept.Store(&next)
	return a.s, a.err
}

// Pinned is a selection made for later, whose kernel no override, rule or later registration replaces: weights were
// prepared for it.
type Pinned struct {
	*Selection
	seen atomic.Pointer[table] // with which the kernel was last found usable
}

// Plan selects and pins the winner alone. Its launches run on that kernel or fail; after the kernel was withdrawn or
// disabled, Plan has to be asked again.
func (r *Registry) Plan(req Request) (*Pinned, error) {
	s, err := r.Select(req)
	if err != nil {
		return nil, err
	}
	p := *s
	if p.c != nil {
		p.c = p.c.pick([]*step{&p.c.steps[0]})
	}
	return &Pinned{Selection: &p}, nil
}

// Launch is Selection.Launch on the pinned kernel alone. After a change of the registry it looks whether the kernel is
// still usable; *NoProviderError says why not.
func (p *Pinned) Launch(q *Queue, args unsafe.Pointer) error {
	if t := p.q.r.cur.Load(); p.c != nil && p.seen.Load() != t {
		if err := p.usable(t); err != nil {
			return err
		}
		p.seen.Store(t)
	}
	return p.Selection.Launch(q, args)
}

// usable reports whether the kernel stands in a chain of t. What overrides make of the chain does not matter, nor does
// whether the device lacks something if the plan forced it.
func (p *Pinned) usable(t *table) error {
	c := t.chain(p.q.op, p.c.slot.dev)
	if c.base != nil {
		c = c.base
	}
	e := &NoProviderError{Op: p.q.op, OpName: p.q.d.Name, Device: p.c.slot.dev}
	for s := range c.reachable {
		if s.g == p.g && s.k.borrowed == p.b {
			return nil
		}
	}
	for i := range c.bench {
		if c.bench[i].g == p.g && p.q.choice.target.Force {
			return nil
		}
	}
	for _, d := range c.dropped {
		if d.g == p.g {
			e.Candidates = append(e.Candidates, d.candidate())
		}
	}
	return e
}

// Preprocessor converts weights into the layout that the pinned kernel wants; nil if it takes plain weights.
func (p *Pinned) Preprocessor() WeightPreprocessor {
	if p.g.p.Spec == nil {
		return nil
	}
	return p.g.p.Spec.Weights
}

// CheckLayout reports whether the pinned kernel reads weights of a layout tag, "" for plain ones. ErrWeights.
func (p *Pinned) CheckLayout(tag string) error {
	if s := p.g.p.Spec; s != nil && len(s.Layouts) > 0 {
		if slices.Contains(s.Layouts, tag) {
			return nil
		}
		return fmt.Errorf("registry: kernel %s reads weights of layout %v, not %q: %w", p.g.p.Kernel, s.Layouts, tag, ErrWeights)
	}
	if tag != "" {
		return fmt.Errorf("registry: kernel %s reads plain weights, not layout %q: %w", p.g.p.Kernel, tag, ErrWeights)
	}
	return nil
}
