package llm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Engine runs a model: it owns a queue, scratch memory and a paged KV cache. One goroutine uses it at a time; several
// engines of one model run side by side.
type Engine struct {
	m      *Model
	queue  device.Queue
	rq     *registry.Queue
	arena  *arena
	kv     []device.Buffer // one a layer, [blocks, 2, BlockSize, Hk, d]
	kvK    []tensor.Tensor // [blocks, BlockSize, Hk, d]: plane 0
	kvV    []tensor.Tensor // plane 1
	free   []int32         // cache blocks that no sequence holds
	host   hostBatch
	open   bool
	logits []float32 // host copy, where the device's memory cannot be read
}

// hostBatch is the description of one forward pass, built on the host.
type hostBatch struct {
	ids, pos, slots     []int64
	starts, lens, table []int32
}

// NewEngine allocates an engine. The memory is what Model.Plan says for KV and Workspace.
func (m *Model) NewEngine() (_ *Engine, err error) {
	if err := m.use(); err != nil {
		return nil, err
	}
	e := &Engine{m: m, open: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if e.queue, err = m.dev.NewQueue(); err != nil {
		return nil, err
	}
	e.rq = m.opts.Registry.NewQueue(e.queue)
	if e.arena, err = newArena(m.dev, engineShapes(m.Config, m.opts)); err != nil {
		return nil, err
	}
	iota := make([]int64, m.opts.ChunkSize)
	for i := range iota {
		iota[i] = int64(i)
	}
	if _, err = upload(e.arena, e.queue, regIota, iota, int64(len(iota))); err != nil {
		return nil, err
	}
	if err = e.newCache(); err != nil {
		return nil, err
	}
	e.rq.TestHeads(e.m.ops()...)
	return e, nil
}

// ops lists what every request of the model calls.
func (m *Model) ops() []registry.Op {
	list := []registry.Op{ops.OpEmbedding, ops.OpRMSNorm, ops.OpQKVSplit, ops.OpRopeCosSinCache, ops.OpRopeFromCache,
		ops.OpReshapeAndCache, ops.OpPagedAttention, ops.OpSiluAndMul, ops.OpGreedyArgmax, ops.OpApplyTemperature,
		ops.OpApplyTopKTopP, ops.OpComputeProbs, ops.OpRandomSample}
	if m.weights.output.DType.IsBlock() {
		return append(list, ops.OpMatmulBTQuant)
	}
	return append(list, ops.OpMatmulBT)
}

func (e *Engine) newCache() error {
	c, o := e.m.Config, e.m.opts
	n := int64(blocks(o.ContextLength) * o.MaxSequences)
	row, err := o.KVType.RowBytes(int64(c.KVHeads * c.HeadSize))
	if err != nil {
		return err
	}
	for range c.Layers {
		buf, err := e.m.dev.Alloc(n * 2 * BlockSize * row)
		if err != nil {
			return fmt.Errorf("llm: KV cache: %w", err)
		}
		e.kv = append(e.kv, buf)
		both, err := buf.Tensor(0, o.KVType, n, 2, BlockSize, int64(c.KVHeads), int64(c.HeadSize))
		if err != nil {
			return err
		}
		for plane, dst := range []*[]tensor.Tensor{&e.kvK, &e.kvV} {
			t, err := both.Slice(1, int64(plane), int64(plane)+1)
			if err != nil {
				return err
			}
			*dst = append(*dst, dropDim1(t))
		}
	}
	for b := int32(n) - 1; b >= 0; b-- {
		e.free = append(e.free, b)
	}
	return nil
}

// dropDim1 removes dimension 1, of extent 1, from a rank-5 view.
func dropDim1(t tensor.Tensor) tensor.Tensor {
	copy(t.Shape[1:], t.Shape[2:])
	copy(t.Stride[1:], t.Stride[2:])
	t.Rank--
	t.Shape[t.Rank], t.Stride[t.Rank] = 0, 0
	return t
}

// Model returns the model that the engine runs.
func (e *Engine) Model() *Model { return e.m }

// Queue returns the registry's view of the engine's queue, to bind or to read counters.
func (e *Engine) Queue() *registry.Queue { return e.rq }

// Close waits for queued work and frees cache and scratch. Closing twice is harmless.
func (e *Engine) Close() error {
	if !e.open {
		return nil
	}
	e.open = false
	defer e.m.unuse()
	var err error
	if e.rq != nil {
		err = e.rq.Close()
	}
	if e.queue != nil {
		err = errors.Join(err, e.queue.Close())
	}
	if e.arena != nil {
		err = errors.Join(err, e.arena.buf.Close())
	}
	for _, b := range e.kv {
		err = errors.Join(err, b.Close())
	}
	e.kv, e.kvK, e.kvV, e.free, e.arena, e.queue, e.rq = nil, nil, nil, nil, nil, nil, nil
	return err
}

// Want says of which tokens of a chunk the logits are wanted.
type Want uint8

// Wants.
const (
	LastToken Want = iota
	AllTokens
	NoTokens
)

// Chunk is the next tokens of one sequence.
type Chunk struct {
	Seq    *Sequence
	Tokens []int32
	Want   Want
}

// Row is one row of logits: those that follow token Index of chunk Chunk.
type Row struct {
	Chunk, Index int
	Logits       tensor.Tensor // f32 [1,V] on the device, valid until visit returns
}

// Forward appends each chunk's tokens to its sequence in one pass and calls visit for every wanted row of logits, in order.
// All chunks together hold at most Options.ChunkSize tokens and Options.MaxSequences chunks (ErrOption); a chunk
// that does not fit in the context is ErrContextFull, an id outside the vocabulary ErrToken; then nothing has changed.
// If ctx ends or an op or visit fails in the middle, the sequences are as long as before.
func (e *Engine) Forward(ctx context.Context, batch []Chunk, visit func(Row) error) (err error) {
	if !e.open {
		return fmt.Errorf("llm: engine: %w", ErrClosed)
	}
	if visit == nil {
		visit = func(Row) error { return nil }
	}
	if err := e.check(batch); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			for _, c := range batch {
				c.Seq.Truncate(c.Seq.len)
			}
		}
	}()
	for _, c := range batch {
		if err := c.Seq.grow(len(c.Tokens)); err != nil {
			return err
		}
	}
	T := e.describe(batch)
	if T == 0 {
		return nil
	}
	p := pass{stage: stage{arena: e.arena, queue: e.queue}, e: e, ctx: ctx, T: int64(T), R: int64(len(batch))}
	if err := p.run(); err != nil {
		return err
	}
	if err := p.logits(batch, visit); err != nil {
		return err
	}
	for _, c := range batch {
		c.Seq.len += len(c.Tokens)
	}
	return nil
}

func (e *Engine) check(batch []Chunk) error {
	total, o := 0, &e.m.opts
	for i, c := range batch {
		if c.Seq == nil || c.Seq.e != e {
			return fmt.Errorf("llm: chunk %d: the sequence belongs to another engine: %w", i, ErrOption)
		}
		if c.Seq.closed {
			return fmt.Errorf("llm: chunk %d: sequence: %w", i, ErrClosed)
		}
		if slices.ContainsFunc(batch[:i], func(o Chunk) bool { return o.Seq == c.Seq }) {
			return fmt.Errorf("llm: chunk %d: the sequence stands in the batch twice: %w", i, ErrOption)
		}
		for _, id := range c.Tokens {
			if id < 0 || int(id) >= e.m.Config.VocabSize {
				return fmt.Errorf("llm: token %d in a vocabulary of %d: %w", id, e.m.Config.VocabSize, ErrToken)
			}
		}
		total += len(c.Tokens)
	}
	if total > o.ChunkSize || len(batch) > o.MaxSequences {
		return fmt.Errorf("llm: %d tokens in %d chunks, the engine takes %d in %d: %w", total, len(batch), o.ChunkSize, o.MaxSequences, ErrOption)
	}
	return nil
}

// describe fills the host side of the batch and returns its number of tokens.
func (e *Engine) describe(batch []Chunk) int {
	h, perSeq := &e.host, blocks(e.m.opts.ContextLength)
	h.ids, h.pos, h.slots = h.ids[:0], h.pos[:0], h.slots[:0]
	h.starts, h.lens, h.table = append(h.starts[:0], 0), h.lens[:0], h.table[:0]
	for _, c := range batch {
		for i, id := range c.Tokens {
			p := c.Seq.len + i
			h.ids, h.pos, h.slots = append(h.ids, int64(id)), append(h.pos, int64(p)), append(h.slots, c.Seq.slot(p))
		}
		h.starts = append(h.starts, int32(len(h.ids)))
		h.lens = append(h.lens, int32(c.Seq.len+len(c.Tokens)))
		h.table = append(h.table, c.Seq.blocks...)
		for len(h.table)%perSeq != 0 {
			h.table = append(h.table, 0)
		}
	}
	return len(h.ids)
}

// pass is one forward pass: views of the scratch memory at the batch's size.
type pass struct {
	stage
	e    *Engine
	ctx  context.Context
	T, R int64

	ids, pos, iota, slots, starts, lens, table tensor.Tensor
	cosSin                                     tensor.Tensor
}

func (p *pass) run() error {
	e, c, w := p.e, p.e.m.Config, &p.e.m.weights
	h := &e.host
	put(&p.stage, &p.ids, regIDs, h.ids, p.T)
	put(&p.stage, &p.pos, regPos, h.pos, p.T)
	put(&p.stage, &p.slots, regSlots, h.slots, p.T)
	put(&p.stage, &p.starts, regStarts, h.starts, p.R+1)
	put(&p.stage, &p.lens, regLens, h.lens, p.R)
	put(&p.stage, &p.table, regTable, h.table, p.R, int64(len(h.table))/p.R)
	p.iota = p.view(regIota, p.T)
	p.cosSin = p.view(regCosSin, p.T, int64(c.Rope.Dim))
	x := p.view(regX, p.T, int64(c.Width))
	p.do(func() error {
		return ops.RopeCosSinCache.Call(e.rq, ops.RopeCosSinCacheArgs{CosSin: p.cosSin, Positions: p.pos, FreqFactors: w.ropeFreqs, Rope: c.Rope.params()})
	})
	p.do(func() error { return ops.Embedding.Call(e.rq, ops.EmbeddingArgs{Out: x, Table: w.embed, IDs: p.ids}) })
	delta := tensor.Tensor{} // what the block before adds to x; the norm that follows adds it
	for i := range w.layers {
		p.keep(p.ctx.Err())
		if p.err != nil {
			return p.err
		}
		delta = p.attention(i, x, delta)
		delta = p.mlp(&w.layers[i], x, delta)
	}
	return p.err
}

// norm adds delta to the residual stream x and returns the normalised rows.
func (p *pass) norm(out, x, delta, weight tensor.Tensor) tensor.Tensor {
	a := ops.RMSNormArgs{Out: out, X: x, Weight: weight, Eps: p.e.m.Config.NormEps}
	if delta.Present() {
		a.X, a.Residual = delta, x
	}
	p.do(func() error { return ops.RMSNorm.Call(p.e.rq, a) })
	return out
}

// linear computes out = a·wᵀ (+ bias).
func (p *pass) linear(out, a, w, bias tensor.Tensor) tensor.Tensor {
	p.do(func() error { return ops.MatmulBT.Call(p.e.rq, ops.MatmulBTArgs{Out: out, A: a, B: w}) })
	p.bias(out, bias)
	return out
}

// bias adds a [N] vector to each row of out [T,N], where the model has one.
func (p *pass) bias(out, b tensor.Tensor) {
	if b.Present() {
		p.do(func() error { return ops.Add.Call(p.e.rq, ops.AddArgs{Out: out, A: out, B: b}) })
	}
}

func (p *pass) attention(layer int, x, delta tensor.Tensor) tensor.Tensor {
	e, c, w := p.e, p.e.m.Config, &p.e.m.weights.layers[layer]
	T, D, d, Hq, Hk := p.T, int64(c.Width), int64(c.HeadSize), int64(c.Heads), int64(c.KVHeads)
	h := p.norm(p.view(regH, T, D), x, delta, w.attnNorm)
	q, k, v := p.view(regQ, T, Hq*d), p.view(regK, T, Hk*d), p.view(regV, T, Hk*d)
	if w.qkv.Present() {
		qkv := p.linear(p.view(regQKV, T, (Hq+2*Hk)*d), h, w.qkv, tensor.Tensor{})
		p.do(func() error { return ops.QKVSplit.Call(e.rq, ops.QKVSplitArgs{QOut: q, KOut: k, VOut: v, QKV: qkv}) })
		p.bias(q, w.qb)
		p.bias(k, w.kb)
		p.bias(v, w.vb)
	} else {
		p.linear(q, h, w.q, w.qb)
		p.linear(k, h, w.k, w.kb)
		p.linear(v, h, w.v, w.vb)
	}
	q3, k3, v3 := p.view(regQ, T, Hq, d), p.view(regK, T, Hk, d), p.view(regV, T, Hk, d)
	p.do(func() error {
		return ops.RopeFromCache.Call(e.rq, ops.RopeFromCacheArgs{QStates: q3, KStates: k3, Positions: p.iota,
			CosSinCache: p.cosSin, RotaryDim: int32(c.Rope.Dim), Interleaved: true})
	})
	p.do(func() error {
		return ops.ReshapeAndCache.Call(e.rq, ops.ReshapeAndCacheArgs{K: k3, V: v3, KCache: e.kvK[layer], VCache: e.kvV[layer], SlotMapping: p.slots})
	})
	attn := p.view(regAttn, T, Hq, d)
	p.do(func() error {
		return ops.PagedAttention.Call(e.rq, ops.PagedAttentionArgs{Out: attn, Query: q3, KCache: e.kvK[layer], VCache: e.kvV[layer],
			BlockTable: p.table, SeqLens: p.lens, QueryStartLoc: p.starts,
			Scale: float32(1 / math.Sqrt(float64(d))), Causal: true, MaxSeqLen: slices.Max(e.host.lens)})
	})
	return p.linear(p.view(regDelta, T, D), p.view(regAttn, T, Hq*d), w.o, w.ob)
}

func (p *pass) mlp(w *layerWeights, x, delta tensor.Tensor) tensor.Tensor {
	c := p.e.m.Config
	T, D, F := p.T, int64(c.Width), int64(c.FeedForward)
	h := p.norm(p.view(regH, T, D), x, delta, w.ffnNorm)
	act := p.view(regAct, T, F)
	a := ops.SiluAndMulArgs{Out: act}
	if w.gateUp.Present() {
		a.X = p.linear(p.view(regGateUp, T, 2*F), h, w.gateUp, tensor.Tensor{})
	} else {
		a.X = p.linear(p.view(regGateUp, T, F), h, w.gate, tensor.Tensor{})
		both := p.view(regGateUp, 2, T, F)
		up, err := both.Slice(0, 1, 2)
		p.keep(err)
		up, err = up.View(T, F)
		p.keep(err)
		a.Up = p.linear(up, h, w.up, tensor.Tensor{})
	}
	p.do(func() error { return ops.SiluAndMul.Call(p.e.rq, a) })
	return p.linear(p.view(regDelta, T, D), act, w.down, tensor.Tensor{})
}

// logits computes the wanted rows, a group at a time, and shows them to visit.
func (p *pass) logits(batch []Chunk, visit func(Row) error) error {
	var rows []Row
	at := make([]int64, 0, len(batch)) // row of the residual stream
	first := int64(0)
	for i, c := range batch {
		for t := range c.Tokens {
			if c.Want == AllTokens || c.Want == LastToken && t == len(c.Tokens)-1 {
				rows, at = append(rows, Row{Chunk: i, Index: t}), append(at, first+int64(t))
			}
		}
		first += int64(len(c.Tokens))
	}
	L := p.e.m.opts.logitRows()
	for g := 0; g < len(rows); g += L {
		n := min(L, len(rows)-g)
		p.keep(p.ctx.Err())
		out := p.group(at[g : g+n])
		if p.err != nil {
			return p.err
		}
		for i := range n {
			row := &rows[g+i]
			if row.Logits, p.err = out.Slice(0, int64(i), int64(i)+1); p.err != nil {
				return p.err
			}
			if err := visit(*row); err != nil {
				return err
			}
		}
	}
	return nil
}

// group computes the logits of the given rows of the residual stream.
func (p *pass) group(at []int64) tensor.Tensor {
	c, w := p.e.m.Config, &p.e.m.weights
	n, D := int64(len(at)), int64(c.Width)
	last := [2]tensor.Tensor{p.view(regLastX, n, D), p.view(regLastD, n, D)}
	from := [2]tensor.Tensor{p.view(regX, p.T, D), p.view(regDelta, p.T, D)}
	for i := range last {
		for to, row := range at {
			p.do(func() error { return copyRow(p.e.queue, last[i], int64(to), from[i], row) })
		}
	}
	h := p.norm(p.view(regLastH, n, D), last[0], last[1], w.norm)
	return p.linear(p.view(regLogits, n, int64(c.VocabSize)), h, w.output, tensor.Tensor{})
}

func copyRow(q device.Queue, dst tensor.Tensor, to int64, src tensor.Tensor, from int64) error {
	d, err := dst.Slice(0, to, to+1)
	if err != nil {
		return err
	}
	s, err := src.Slice(0, from, from+1)
	if err != nil {
		return err
	}
	return q.Copy(&d, &s)
}

// Host returns a row's logits as a slice, copied if the host cannot read the device's memory. It is valid until the
// next call and, on a device whose memory is the host's, until visit returns.
func (e *Engine) Host(ctx context.Context, row Row) ([]float32, error) {
	if !e.open {
		return nil, fmt.Errorf("llm: engine: %w", ErrClosed)
	}
	if err := e.queue.Sync(ctx); err != nil {
		return nil, err
	}
	if s := tensor.Slice[float32](&row.Logits); s != nil {
		return s, nil
	}
	if e.logits == nil {
		e.logits = make([]float32, e.m.Config.VocabSize)
	}
	dst, err := tensor.FromSlice(e.logits, tensor.F32, row.Logits.Dims()...)
	if err != nil {
		return nil, err
	}
	if err := e.queue.Copy(&dst, &row.Logits); err != nil {
		return nil, err
	}
	return e.logits, e.queue.Sync(ctx)
}

// Extend appends tokens to seq in passes of at most ChunkSize and calls visit with the logits after the last token.
// On an error the sequence holds the passes that were complete. progress, if not nil, hears of tokens done.
func (e *Engine) Extend(ctx context.Context, seq *Sequence, tokens []int32, progress func(done, total int), visit func(Row) error) error {
	for done := 0; done < len(tokens); {
		n := min(e.m.opts.ChunkSize, len(tokens)-done)
		c := Chunk{Seq: seq, Tokens: tokens[done : done+n], Want: NoTokens}
		if done+n == len(tokens) {
			c.Want = LastToken
		}
		if err := e.Forward(ctx, []Chunk{c}, visit); err != nil {
			return err
		}
		done += n
		if progress != nil {
			progress(done, len(tokens))
		}
	}
	return nil
}
