package registry

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/opmux/opmux/tensor"
)

// maxSelections bounds the answers that a registry, or one handle, keeps.
const maxSelections = 4096

// answer is a selection or why there is none.
type answer struct {
	s   *Selection
	err error
}

// selectionKey is everything that an answer depends on within one snapshot.
type selectionKey struct {
	op        Op
	dev       tensor.Device
	print     string
	sig       tensor.SignatureID
	hasSig    bool
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
	st := c.cur.Load()
	if st == nil || st.t != q.t {
		fresh := &selectionTable{t: q.t}
		if st == nil || q.t.gen > st.t.gen {
			c.cur.CompareAndSwap(st, fresh)
		}
		if st = c.cur.Load(); st == nil || st.t != q.t { // an answer from an older snapshot is nobody's later
			st = fresh
		}
	}
	key := q.key()
	if a, ok := st.list.Load(key); ok {
		c.hits.Add(1)
		return a.(*answer).s, a.(*answer).err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if a, ok := st.list.Load(key); ok {
		c.hits.Add(1)
		return a.(*answer).s, a.(*answer).err
	}
	c.misses.Add(1)
	a := &answer{}
	a.s, a.err = q.find()
	if st.n >= maxSelections {
		st.list.Clear()
		st.n = 0
	}
	st.list.Store(key, a)
	st.n++
	return a.s, a.err
}

// key is the query's place in the cache.
func (q *query) key() selectionKey {
	k := selectionKey{op: q.op, dev: q.c.slot.dev, sig: q.sigID, hasSig: !q.sig.IsZero(), objective: q.objective, solution: q.req.Solution,
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

func (q *query) traitKey(b []byte) []byte {
	reg := q.regions()
	for i, v := range q.vals {
		def := &q.schema.Traits[i]
		if def.Dynamic && v.typ == TraitInt && !reg.exact {
			b = fmt.Appendf(b, "r%d,", reg.of(i, v.n))
			continue
		}
		b = fmt.Appendf(b, "%d:%q,", v.typ, v.String())
		for _, e := range q.each[i] {
			b = fmt.Appendf(b, "+%d:%q,", e.typ, e.String())
		}
	}
	return b
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
		reg := &regions{starts: make([][]int64, len(schema.Traits)), moduli: make([]int64, len(schema.Traits)), exact: len(t.oracles) > 0}
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
				if m = m / gcd(m, n) * n; m > maxModulus {
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
	t      *table
	q      *query // with the dynamic traits open
	at     []int  // dynamic traits in the schema
	reg    *regions
	sizes  []int64 // classes of each dynamic trait
	single answer  // without dynamic traits
	mu     sync.Mutex
	kept   atomic.Pointer[map[int64]*answer]
}

// maxHandleTraits bounds the traits that a handle varies.
const maxHandleTraits = 4

// Prepare resolves a request once. The named int traits vary from call to call and are given to Select; the others are as
// in req. Errors: those of Select but ErrNoKernel and ErrOverride, and ErrRequest for a name that is no int trait.
func (r *Registry) Prepare(req Request, dynamic ...string) (*Handle, error) {
	h := &Handle{r: r, req: req, dynamic: slices.Clone(dynamic)}
	if len(dynamic) > maxHandleTraits {
		return nil, &RequestError{Operator: req.Operator, Field: "dynamic", Text: fmt.Sprintf("%d traits, at most %d", len(dynamic), maxHandleTraits)}
	}
	if _, err := h.prepare(); err != nil {
		return nil, err
	}
	return h, nil
}

// Dynamic names the traits whose values Select takes, in that order.
func (h *Handle) Dynamic() []string { return slices.Clone(h.dynamic) }

// at returns the request with values for the dynamic traits.
func (h *Handle) at(values []int64) *Request {
	req := h.req
	req.Traits = make(map[string]TraitValue, len(h.req.Traits)+len(values))
	for k, v := range h.req.Traits {
		req.Traits[k] = v
	}
	for i, n := range h.dynamic {
		var v int64
		if i < len(values) {
			v = values[i]
		}
		req.Traits[n] = IntTrait(v)
	}
	return &req
}

func (h *Handle) prepare() (*prepared, error) {
	q, err := h.r.resolve(h.at(nil))
	if err != nil {
		return nil, err
	}
	p := &prepared{t: q.t, q: q, reg: q.regions()}
	for _, n := range h.dynamic {
		at := q.schema.trait(n)
		p.at = append(p.at, at)
		p.sizes = append(p.sizes, int64(len(p.reg.starts[at])+1)*max(p.reg.moduli[at], 1))
	}
	p.kept.Store(&map[int64]*answer{})
	if len(h.dynamic) == 0 {
		p.single.s, p.single.err = h.r.selections.get(q)
	}
	h.cur.Store(p)
	return p, nil
}

// Select returns the selection for the given values of the dynamic traits (missing ones are 0). While the registry does
// not change it costs some nanoseconds and allocates nothing. Errors are those of Registry.Select.
func (h *Handle) Select(values ...int64) (*Selection, error) {
	p := h.cur.Load()
	if p.t != h.r.cur.Load() {
		var err error
		if p, err = h.prepare(); err != nil {
			return nil, err
		}
	}
	if len(p.at) == 0 {
		return p.single.s, p.single.err
	}
	if len(values) == len(p.at) && !p.reg.exact {
		key := int64(0)
		for i, at := range p.at {
			key = key*p.sizes[i] + p.reg.of(at, values[i])
		}
		if a := (*p.kept.Load())[key]; a != nil {
			return a.s, a.err
		}
		return h.keep(p, key, slices.Clone(values))
	}
	return h.r.Select(*h.at(slices.Clone(values)))
}

// keep asks the registry and remembers the answer.
func (h *Handle) keep(p *prepared, key int64, values []int64) (*Selection, error) {
	s, err := h.r.Select(*h.at(values))
	if s != nil && s.q.t != p.t || h.r.cur.Load() != p.t {
		return s, err // the registry moved on
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.kept.Load()
	if len(old) >= maxSelections {
		old = nil
	}
	next := make(map[int64]*answer, len(old)+1)
	for k, a := range old {
		next[k] = a
	}
	next[key] = &answer{s, err}
	p.kept.Store(&next)
	return s, err
}

// Pinned is a selection made for later, whose kernel no override, rule or later registration replaces: weights were
// prepared for it.
type Pinned struct {
	*Selection
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
	return &Pinned{&p}, nil
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
