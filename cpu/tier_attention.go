package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Attention of the tiers, dense and paged.
//
// The work is cut into tiles. A tile has neighbouring query tokens of one request and the query heads that share one key
// head; or, where requests have one token each, that token and several key heads, so that pages are read as they lie. It
// goes over its keys in splits whose places are fixed. For each split it computes the logits, their largest m, the sum l
// of exp(logit-m) and o, the values weighted with those; the splits are merged in ascending order. So what comes out for a
// token and a head depends on the keys that it sees and on nothing else: not on the tile, the batch or the threads, nor on
// whether splits were computed one after another or, where there are few tiles, side by side.

const (
	splitKeys = 512 // keys of a split
	tileRows  = 64  // pairs of token and head in a tile, about
	tileMost  = 16  // tokens of a tile

	// logitStride is the distance of the logits of two rows: an odd number of cache lines, so that rows do not compete for
	// the same sets of the cache.
	logitStride = splitKeys + 16
)

// tokens is the query tokens t0 <= t < t1 of request r.
type tokens struct{ r, t0, t1 int32 }

// tile is some units of work of one request: unit u is token t+u with key head g or, in a wide tile, token t with key
// head g+u. A unit has a row for each of the query heads that share its key head.
type tile struct {
	r, t, g int
	units   int
	wide    bool
}

func (t *tile) token(u int) int {
	if t.wide {
		return t.t
	}
	return t.t + u
}

func (t *tile) head(u int) int {
	if t.wide {
		return t.g + u
	}
	return t.g
}

// attend is a call of either op. Chunks make their own from the record.
type attend struct {
	*tier
	query, out, mask, sinks *tensor.Tensor
	key, value              *tensor.Tensor
	paged                   *ops.PagedAttentionArgs // nil for dense attention
	kv                      *simd.Attention         // kernels for the dtype of keys and values
	k, v                    heads
	scale, softCap          float32
	causal, windowed        bool
	left, right             int32
	heads, group            int // key heads, query heads of each
	d, dv                   int
	units                   int  // of a tile, at most
	wide                    bool // tiles are wide
}

// noMask is the absent operand of paged attention.
var noMask tensor.Tensor

// heads says where the rows of one operand lie, in elements.
type heads struct{ row, page, perPage, d int }

func attendOf(t *tier, args unsafe.Pointer, paged bool) (a attend) {
	if paged {
		r := (*ops.PagedAttentionArgs)(args)
		k, v := cacheOf(&r.KCache), cacheOf(&r.VCache)
		a = attend{query: &r.Query, out: &r.Out, mask: &noMask, sinks: &r.Sinks, key: &r.KCache, value: &r.VCache, paged: r,
			k: heads{k.row, k.page, k.rows, k.d}, v: heads{v.row, v.page, v.rows, v.d}, heads: k.heads,
			scale: r.Scale, softCap: r.LogitsSoftCap, causal: r.Causal, windowed: r.Windowed, left: r.WindowLeft, right: r.WindowRight}
	} else {
		r := (*ops.AttentionArgs)(args)
		h, d, dv := int(r.Key.Shape[1]), int(r.Key.Shape[2]), int(r.Value.Shape[2])
		a = attend{query: &r.Query, out: &r.Out, mask: &r.Mask, sinks: &r.Sinks, key: &r.Key, value: &r.Value,
			k: heads{h * d, 0, math.MaxInt, d}, v: heads{h * dv, 0, math.MaxInt, dv}, heads: h,
			scale: r.Scale, softCap: r.LogitsSoftCap, causal: r.Causal, windowed: r.Windowed, left: r.WindowLeft, right: r.WindowRight}
	}
	a.tier, a.kv = t, t.products(a.key.DType)
	a.group, a.d, a.dv = int(a.query.Shape[1])/a.heads, a.k.d, a.v.d
	a.units = min(max(tileRows/a.group, 1), tileMost)
	return a
}

// attendTo makes the call of a running launch.
func attendTo(j *job) (a attend) {
	a = attendOf(j.tier, j.args, j.n[nPaged] != 0)
	a.units, a.wide = j.n[nUnits], j.n[nWide] != 0
	return a
}

func attention(t *tier, q *registry.Queue, r *ops.AttentionArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(r))
	defer j.end()
	a := attendOf(t, j.args, false)
	if err := a.run(j, int(r.Query.Shape[0]), int(r.Key.Shape[0])); err != nil {
		return r.Fail(err)
	}
	return 0
}

func pagedAttention(t *tier, q *registry.Queue, r *ops.PagedAttentionArgs) registry.Status {
	if err := checkPages(r); err != nil {
		return r.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(r))
	defer j.end()
	a := attendOf(t, j.args, true)
	most, keys := 0, 0 // query tokens and keys of a request
	n := int(r.SeqLens.Shape[0])
	starts := elems[int32](&r.QueryStartLoc, 0, n+1)
	for i, l := range elems[int32](&r.SeqLens, 0, n) {
		if queries := int(starts[i+1] - starts[i]); queries > 0 {
			most, keys = max(most, queries), max(keys, int(l))
		}
	}
	if err := a.run(j, most, keys); err != nil {
		return r.Fail(err)
	}
	return 0
}

// eachTokens calls f for neighbouring tokens of every request, at most n at a time.
func (a *attend) eachTokens(n int, f func(tokens)) {
	cut := func(r, from, to int) {
		for t := from; t < to; t += n {
			f(tokens{int32(r), int32(t), int32(min(t+n, to))})
		}
	}
	if a.paged == nil {
		cut(0, 0, int(a.query.Shape[0]))
		return
	}
	starts := elems[int32](&a.paged.QueryStartLoc, 0, int(a.paged.SeqLens.Shape[0])+1)
	for r := range len(starts) - 1 {
		cut(r, int(starts[r]), int(starts[r+1]))
	}
}

// Places in job.n.
const (
	nPaged  = iota
	nWide   // tiles are wide
	nUnits  // units of a tile
	nGroups // tiles of the same tokens
	nTokens // entries of the list of tokens
	nSplits // splits of the longest request
)

// run computes all tiles; most is the largest number of query tokens of a request, keys that of its keys.
func (a *attend) run(j *job, most, keys int) error {
	threads := j.pool.Threads()
	splits, groups, list := max((keys+splitKeys-1)/splitKeys, 1), a.heads, 0
	if a.wide = most == 1; a.wide {
		a.eachTokens(1, func(tokens) { list++ })
		// As many heads as leave two tiles for each thread, counting splits; all heads for one thread.
		if a.units = a.heads; threads > 1 {
			a.units = min(a.heads, max(a.heads*list*splits/(2*threads), 1))
		}
		groups = (a.heads + a.units - 1) / a.units
	} else {
		a.eachTokens(a.units, func(tokens) { list++ })
	}
	if list == 0 {
		return nil
	}
	tiles, rows := list*groups, a.units*a.group
	apart := threads > 1 && splits > 1 && tiles < 4*threads
	parts := 0
	if apart {
		parts = tiles * splits * a.partLen()
	}
	local := rows*(a.d+logitStride+4) + 2*a.partLen() + splitKeys + a.dv
	if err := j.layout(listBytes(list)+4*parts, 4*local); err != nil {
		return err
	}
	j.n = [8]int{nUnits: a.units, nGroups: groups, nTokens: list, nSplits: splits}
	if a.wide {
		j.n[nWide] = 1
	}
	if a.paged != nil {
		j.n[nPaged] = 1
	}
	to, n := common[tokens](j), a.units
	if a.wide {
		n = 1
	}
	list = 0
	a.eachTokens(n, func(t tokens) {
		to[list] = t
		list++
	})
	cost := float64(rows) * float64(keys*(a.d+a.dv)) / 40
	if !apart {
		j.each(tiles, cost, tileChunk)
		return nil
	}
	j.each(tiles*splits, cost/float64(splits), splitChunk)
	j.each(tiles, float64(splits*rows*a.dv)/8, mergeChunk)
	return nil
}

// listBytes is the room of the list of tokens at the start of the shared scratch.
func listBytes(n int) int { return (n*int(unsafe.Sizeof(tokens{})) + 63) &^ 63 }

// partial is the outcome of one split, or of several merged, for the rows of a tile.
type partial struct {
	m, l []float32 // largest logit and sum of each row; a row without keys has l = 0 and m = -inf
	o    []float32 // values, dv for each row
}

// partLen is the room of a partial, in floats.
func (a *attend) partLen() int { return a.units * a.group * (a.dv + 2) }

func (a *attend) partial(buf []float32) partial {
	n := a.units * a.group
	return partial{buf[:n], buf[n:][:n], buf[2*n:][:n*a.dv]}
}

// workspace is what a worker needs for a tile.
type workspace struct {
	q      []float32 // scaled queries, d for each row
	s      []float32 // logits, then weights, logitStride for each row
	lo, hi []int32   // of each unit: the keys lo <= k < hi of the split
	mask   []float32 // piece of a row of the mask
	out    []float32 // row of the output
	acc, p partial
}

func (a *attend) workspace(j *job, worker int) (w workspace) {
	buf := own[float32](j, worker)
	cut := func(n int) []float32 {
		c := buf[:n:n]
		buf = buf[n:]
		return c
	}
	rows := a.units * a.group
	w.q, w.s = cut(rows*a.d), cut(rows*logitStride)
	w.acc, w.p = a.partial(cut(a.partLen())), a.partial(cut(a.partLen()))
	w.mask, w.out = cut(splitKeys), cut(a.dv)
	w.lo, w.hi = asInts(cut(rows)), asInts(cut(rows))
	return w
}

func asInts(f []float32) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(f))), len(f))
}

// tileAt returns tile i. The last tokens come first: with a causal mask they see most keys.
func (a *attend) tileAt(j *job, i int) tile {
	groups := j.n[nGroups]
	t := common[tokens](j)[j.n[nTokens]-1-i/groups]
	if a.wide {
		g := i % groups * a.units
		return tile{r: int(t.r), t: int(t.t0), g: g, units: min(a.units, a.heads-g), wide: true}
	}
	return tile{r: int(t.r), t: int(t.t0), g: i % groups, units: int(t.t1 - t.t0)}
}

// tileChunk computes whole tiles.
func tileChunk(j *job, lo, hi, worker int) {
	a := attendTo(j)
	w := a.workspace(j, worker)
	for i := lo; i < hi; i++ {
		t := a.tileAt(j, i)
		a.load(&w, t)
		a.start(&w.acc, t)
		for s := range j.n[nSplits] {
			if a.split(&w, t, s) {
				a.merge(&w.acc, &w.p, t)
			}
		}
		a.finish(&w, t)
	}
}

// splitChunk computes single splits into the shared scratch; mergeChunk puts them together.
func splitChunk(j *job, lo, hi, worker int) {
	a := attendTo(j)
	w := a.workspace(j, worker)
	for i := lo; i < hi; i++ {
		t := a.tileAt(j, i/j.n[nSplits])
		w.p = a.stored(j, i)
		a.load(&w, t)
		a.split(&w, t, i%j.n[nSplits])
	}
}

func mergeChunk(j *job, lo, hi, worker int) {
	a := attendTo(j)
	w := a.workspace(j, worker)
	for i := lo; i < hi; i++ {
		t := a.tileAt(j, i)
		a.start(&w.acc, t)
		for s := range j.n[nSplits] {
			p := a.stored(j, i*j.n[nSplits]+s)
			a.merge(&w.acc, &p, t)
		}
		a.finish(&w, t)
	}
}

// stored returns the partial of item i in the shared scratch.
func (a *attend) stored(j *job, i int) partial {
	return a.partial(cast[float32](j.scratch[listBytes(j.n[nTokens]):j.shared])[i*a.partLen():])
}

// load scales the queries of a tile.
func (a *attend) load(w *workspace, t tile) {
	n := a.group * a.d // the heads of a group are neighbours
	for u := range t.units {
		at := (t.token(u)*a.heads + t.head(u)) * n
		q := w.q[u*n:][:n]
		a.set.MulScalar(q, a.halves.load(q, a.query, at, n), a.scale)
	}
}

// start begins a merge: with nothing, or with the sinks, which are logits without values.
func (a *attend) start(p *partial, t tile) {
	for r := range t.units * a.group {
		p.m[r], p.l[r] = negInf, 0
		if a.sinks.Present() {
			if s := one(a.sinks, t.head(r/a.group)*a.group+r%a.group); s > negInf {
				p.m[r], p.l[r] = s, 1
			}
		}
	}
	clear(p.o[:t.units*a.group*a.dv])
}

// keys returns the keys lo <= k < hi that token t of request r sees.
func (a *attend) keys(r, t int) (lo, hi int) {
	n, p := int(a.key.Shape[0]), 0
	if a.paged == nil {
		p = n - int(a.query.Shape[0]) + t
	} else {
		n = int(elems[int32](&a.paged.SeqLens, r, 1)[0])
		p = n - int(elems[int32](&a.paged.QueryStartLoc, r+1, 1)[0]) + t
	}
	lo, hi = span(p, n, a.causal, a.windowed, a.left, a.right)
	return lo, hi + 1
}

// rows returns the rows of key head 0 from key k on, at most n, that lie at one distance. Of a paged cache they name the next
// page to be read ahead.
func (a *attend) rows(x *tensor.Tensor, h *heads, r, k, n int) simd.Rows {
	at, ahead := k*h.row, 0
	if a.paged != nil {
		b, in := k/h.perPage, k%h.perPage
		p := block(a.paged, r, b)
		at = p*h.page + in*h.row
		if left := h.perPage - in; left < n {
			n, ahead = left, (block(a.paged, r, b+1)-p)*h.page
		}
	}
	return simd.Rows{Data: unsafe.Add(x.Host, at*x.DType.Size()), Stride: h.row, N: n, D: h.d, Ahead: ahead}
}

// split computes split s of a tile into w.p. It returns false, and a partial without keys, if no unit sees any of it.
func (a *attend) split(w *workspace, t tile, s int) bool {
	k0, rows, p := s*splitKeys, t.units*a.group, &w.p
	seen := false
	for u := range t.units {
		lo, hi := a.keys(t.r, t.token(u))
		lo, hi = max(lo, k0), min(hi, k0+splitKeys)
		hi = max(lo, hi)
		w.lo[u], w.hi[u] = int32(lo), int32(hi)
		seen = seen || lo < hi
	}
	for r := range rows {
		p.m[r], p.l[r] = negInf, 0
	}
	if !seen {
		return false
	}
	a.product(w, t, k0, false)
	for r := range rows {
		u := r / a.group
		lo, hi := int(w.lo[u]), int(w.hi[u])
		if lo < hi {
			p.m[r], p.l[r] = a.weights(w, w.s[r*logitStride:][lo-k0:hi-k0], t.head(u)*a.group+r%a.group, t.token(u), lo)
		}
	}
	clear(p.o[:rows*a.dv])
	a.product(w, t, k0, true)
	return true
}

// product computes the logits of a split, or mixes its values.
func (a *attend) product(w *workspace, t tile, k0 int, mix bool) {
	if t.wide { // all heads of a page before the next page
		for k, hi := int(w.lo[0]), int(w.hi[0]); k < hi; {
			p := a.piece(t, k, hi, mix)
			for u := range t.units {
				p.run(a, w, t.g+u, k-k0, u*a.group, 1, a.group)
			}
			k += p.N
		}
		return
	}
	// The keys that all tokens see are taken for one head and all tokens at once, those before and behind for one token and
	// all heads.
	c0, c1 := 0, math.MaxInt
	for u := range t.units {
		c0, c1 = max(c0, int(w.lo[u])), min(c1, int(w.hi[u]))
	}
	if t.units == 1 || c0 >= c1 {
		c0, c1 = math.MaxInt, math.MaxInt
	}
	pieces := func(lo, hi, first, step, n int) {
		for k := lo; k < hi; {
			p := a.piece(t, k, hi, mix)
			p.run(a, w, t.g, k-k0, first, step, n)
			k += p.N
		}
	}
	for u := range t.units {
		pieces(int(w.lo[u]), min(int(w.hi[u]), c0), u*a.group, 1, a.group)
	}
	if c1 == math.MaxInt {
		return
	}
	for h := range a.group {
		pieces(c0, c1, h, a.group, t.units)
	}
	for u := range t.units {
		pieces(c1, int(w.hi[u]), u*a.group, 1, a.group)
	}
}

// piece is rows of keys, or of values, that lie at one distance.
type piece struct {
	simd.Rows
	head int // bytes from one head to the next
	mix  bool
}

// piece returns rows from key k on, below hi.
func (a *attend) piece(t tile, k, hi int, mix bool) piece {
	if mix {
		return piece{a.rows(a.value, &a.v, t.r, k, hi-k), a.v.d * a.value.DType.Size(), true}
	}
	return piece{a.rows(a.key, &a.k, t.r, k, hi-k), a.k.d * a.key.DType.Size(), false}
}

// run multiplies head g of the piece, which begins at place k of the split, with n rows of the tile: first, first+step ..
func (p *piece) run(a *attend, w *workspace, g, k, first, step, n int) {
	rows, s := p.Rows, w.s[first*logitStride+k:]
	rows.Data = unsafe.Add(rows.Data, g*p.head)
	if p.mix {
		a.kv.Mix(w.p.o[first*a.dv:], step*a.dv, s, step*logitStride, n, rows)
	} else {
		a.kv.Scores(s, step*logitStride, w.q[first*a.d:], step*a.d, n, rows)
	}
}

// weights turns the logits of one row into weights, in place, and returns the largest logit and the sum of the weights.
func (a *attend) weights(w *workspace, s []float32, head, token, lo int) (m, l float32) {
	if a.softCap > 0 {
		for e, v := range s {
			s[e] = a.softCap * tanh32(v/a.softCap)
		}
	}
	if a.mask.Present() {
		a.set.Add(s, s, a.halves.load(w.mask, a.mask, maskAt(a.mask, head, token, lo), len(s)))
	}
	m = a.set.Max(s)
	if m == negInf { // all hidden, or NaN
		if !hasNaN(s) {
			clear(s)
			return negInf, 0
		}
		m = 0
	}
	l = float32(a.set.ExpSum(s, s, m))
	// A subnormal weight costs a multiplication some hundred cycles. Beside the largest weight, 1, what lies near 2^-100 is
	// nothing: it is shifted to zero, or to a difference that is not subnormal.
	a.set.AddScalar(s, s, -0x1p-100)
	a.set.Relu(s, s)
	return m, l
}

func hasNaN(s []float32) bool {
	for _, v := range s {
		if v != v {
			return true
		}
	}
	return false
}

// merge adds p to acc, for the rows that tile t has.
func (a *attend) merge(acc, p *partial, t tile) {
	for r, l := range p.l[:t.units*a.group] {
		m := p.m[r]
		if l == 0 && m == negInf {
			continue
		}
		out, o := acc.o[r*a.dv:][:a.dv], p.o[r*a.dv:][:a.dv]
		if acc.m[r] == negInf {
			acc.m[r], acc.l[r] = m, l
			copy(out, o)
			continue
		}
		top := max(acc.m[r], m)
		fa, fp := exp32(acc.m[r]-top), exp32(m-top)
		a.set.MulScalar(out, out, fa)
		a.set.MulScalar(o, o, fp)
		a.set.Add(out, out, o)
		acc.m[r], acc.l[r] = top, float32(acc.l[r]*fa)+float32(l*fp)
	}
}

// finish writes the rows of a tile. A row that sees no key is zero in dense attention and left alone in paged attention.
func (a *attend) finish(w *workspace, t tile) {
	for u := range t.units {
		if lo, hi := a.keys(t.r, t.token(u)); a.paged != nil && lo >= hi {
			continue
		}
		for h := range a.group {
			r, at := u*a.group+h, ((t.token(u)*a.heads+t.head(u))*a.group+h)*a.dv
			out := target(w.out, a.out, at, a.dv)
			if l := w.acc.l[r]; l == 0 {
				clear(out)
			} else {
				a.set.MulScalar(out, w.acc.o[r*a.dv:][:a.dv], 1/l)
			}
			a.store(a.out, at, out)
		}
	}
}
