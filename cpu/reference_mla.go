package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// mlaReference registers the oracle's kernels of latent attention, its cache, and the named forms of attention.
func (g *registrar) mlaReference() {
	t, exact := reference, registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.MHAPrefill, refMHAPrefill, exact, nil)
	add(g, t, ops.MHADecodeWithKVCache, refMHADecodeWithKVCache, exact, nil)
	add(g, t, ops.MergeAttnStates, refMergeAttnStates, exact, nil)
	add(g, t, ops.ConcatAndCacheMLA, refConcatAndCacheMLA, exact, nil)
	add(g, t, ops.GatherMLACache, refGatherMLACache, exact, nil)
	add(g, t, ops.MLADecodeAttention, refMLADecodeAttention, exact, nil)
	add(g, t, ops.MLAPrefillAttention, refMLAPrefillAttention, exact, nil)
	add(g, t, ops.ConcatMLANopeRope, refConcatMLANopeRope, exact, nil)
}

// at returns where x[i,j] starts in elements: an element of a matrix, a row of an operand of rank 3.
func at(x *tensor.Tensor, i, j int) int { return i*int(x.Stride[0]) + j*int(x.Stride[1]) }

func refMergeAttnStates(t *tier, q *registry.Queue, a *ops.MergeAttnStatesArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	tokens, heads, d := int(a.Output.Shape[0]), int(a.Output.Shape[1]), int(a.Output.Shape[2])
	if err := j.layout(0, 3*4*d); err != nil {
		return a.Fail(err)
	}
	j.each(tokens*heads, float64(40+2*d), func(j *job, lo, hi, worker int) {
		a := (*ops.MergeAttnStatesArgs)(j.args)
		heads, d := int(a.Output.Shape[1]), int(a.Output.Shape[2])
		buf := own[float32](j, worker)
		for i := lo; i < hi; i++ {
			t, h := i/heads, i%heads
			lse := one(&a.SuffixLSE, at(&a.SuffixLSE, h, t))
			if a.PrefillTokensWithContext >= 0 && int64(t) >= a.PrefillTokensWithContext {
				move(&a.Output, at(&a.Output, t, h), &a.SuffixOutput, at(&a.SuffixOutput, t, h), d)
			} else {
				p, s := finite(one(&a.PrefixLSE, at(&a.PrefixLSE, h, t))), finite(lse)
				m := p
				if s > p || p != p {
					m = s
				}
				if math.IsInf(float64(m), -1) {
					move(&a.Output, at(&a.Output, t, h), &a.PrefixOutput, at(&a.PrefixOutput, t, h), d)
					lse = m
				} else {
					wp, ws := exp32(p-m), exp32(s-m)
					sum := wp + ws
					lse = log32(sum) + m
					wp, ws = wp/sum, ws/sum
					x := plainHalves.load(buf, &a.PrefixOutput, at(&a.PrefixOutput, t, h), d)
					y := plainHalves.load(buf[d:], &a.SuffixOutput, at(&a.SuffixOutput, t, h), d)
					out := target(buf[2*d:], &a.Output, at(&a.Output, t, h), d)
					for e, v := range x {
						out[e] = float32(v*wp) + float32(y[e]*ws)
					}
					plainHalves.store(&a.Output, at(&a.Output, t, h), out)
				}
			}
			if a.OutputLSE.Present() {
				put(&a.OutputLSE, at(&a.OutputLSE, h, t), lse)
			}
		}
	})
	return 0
}

// finite turns +inf into -inf: the log-sum-exp of no keys, however it was written.
func finite(lse float32) float32 {
	if math.IsInf(float64(lse), 1) {
		return -lse
	}
	return lse
}

func refConcatAndCacheMLA(t *tier, q *registry.Queue, a *ops.ConcatAndCacheMLAArgs) registry.Status {
	if err := checkSlots("concat_and_cache_mla", &a.SlotMapping, a.KVCache.Shape[0]*a.KVCache.Shape[1]); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	// An item is one of the two parts of all rows, so that the last of two tokens with one slot wins.
	j.each(2, float64(int(a.SlotMapping.Shape[0])*(10+int(a.KVCache.Last())/8)), func(j *job, lo, hi, _ int) {
		a := (*ops.ConcatAndCacheMLAArgs)(j.args)
		rows := int64(a.KVCache.Shape[1])
		for part := lo; part < hi; part++ {
			x, off := &a.KvC, 0
			if part == 1 {
				x, off = &a.KPe, int(a.KvC.Shape[1])
			}
			for i, s := range elems[int64](&a.SlotMapping, 0, int(a.SlotMapping.Shape[0])) {
				if s >= 0 {
					move(&a.KVCache, at(&a.KVCache, int(s/rows), int(s%rows))+off, x, i*int(x.Stride[0]), int(x.Shape[1]))
				}
			}
		}
	})
	return 0
}

// checkSlots wants slots below n; negative ones are left out.
func checkSlots(op string, slots *tensor.Tensor, n int64) error {
	for i, s := range elems[int64](slots, 0, int(slots.Shape[0])) {
		if s >= n {
			return badValue(op, "slot_mapping", "slot %d at %d is outside [0,%d)", s, i, n)
		}
	}
	return nil
}

// latentRow returns the page and row of row o of a request, and whether the table has it.
func latentRow(table, cache *tensor.Tensor, b, o int) (page, row int, ok bool) {
	rows := int(cache.Shape[1])
	if o < 0 || o/rows >= int(table.Shape[1]) {
		return 0, 0, false
	}
	page = int(elems[int32](table, b*int(table.Stride[0])+o/rows, 1)[0])
	return page, o % rows, page >= 0 && page < int(cache.Shape[0])
}

// source returns where row t of dst lies in its request; skip is true behind the request's end.
func source(a *ops.GatherMLACacheArgs, t int) (b, o int, skip bool) {
	b = int(elems[int32](&a.TokenToSeq, t, 1)[0])
	span := elems[int32](&a.CuSeqLens, b, 2)
	if o = t - int(span[0]); a.SeqStarts.Present() {
		o += int(elems[int32](&a.SeqStarts, b, 1)[0])
	}
	return b, o, t >= int(span[1])
}

func refGatherMLACache(t *tier, q *registry.Queue, a *ops.GatherMLACacheArgs) registry.Status {
	const op = "gather_mla_cache"
	cu := elems[int32](&a.CuSeqLens, 0, int(a.CuSeqLens.Shape[0]))
	if err := checkOffsets(op, "cu_seq_lens", &a.CuSeqLens, int64(cu[len(cu)-1])); err != nil {
		return a.Fail(err)
	}
	for t := range int(a.NumTokens) {
		if b := elems[int32](&a.TokenToSeq, t, 1)[0]; b < 0 || int64(b) >= a.BlockTable.Shape[0] {
			return a.Fail(badValue(op, "token_to_seq", "request %d at %d is outside [0,%d)", b, t, a.BlockTable.Shape[0]))
		}
		b, o, skip := source(a, t)
		if _, _, ok := latentRow(&a.BlockTable, &a.SrcCache, b, o); !ok && !skip {
			return a.Fail(badValue(op, "block_table", "row %d of request %d, for token %d, is in no page of [0,%d)", o, b, t, a.SrcCache.Shape[0]))
		}
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	j.each(int(a.NumTokens), float64(20+a.SrcCache.Last()/8), func(j *job, lo, hi, _ int) {
		a := (*ops.GatherMLACacheArgs)(j.args)
		for t := lo; t < hi; t++ {
			b, o, skip := source(a, t)
			if skip {
				continue
			}
			page, row, _ := latentRow(&a.BlockTable, &a.SrcCache, b, o)
			move(&a.Dst, t*int(a.Dst.Stride[0]), &a.SrcCache, at(&a.SrcCache, page, row), int(a.SrcCache.Last()))
		}
	})
	return 0
}

func refMLADecodeAttention(t *tier, q *registry.Queue, a *ops.MLADecodeAttentionArgs) registry.Status {
	const op = "mla_decode_attention"
	longest, page := 0, int(a.KVCache.Shape[1])
	for b, n := range elems[int32](&a.SeqLens, 0, int(a.SeqLens.Shape[0])) {
		if room := int(a.BlockTable.Shape[1]) * page; n < 0 || int(n) > room {
			return a.Fail(badValue(op, "seq_lens", "%d at request %d, the block table holds %d", n, b, room))
		}
		for o := 0; o < int(n); o += page {
			if p, _, ok := latentRow(&a.BlockTable, &a.KVCache, b, o); !ok {
				return a.Fail(badValue(op, "block_table", "block %d at [%d,%d] is outside [0,%d)", p, b, o/page, a.KVCache.Shape[0]))
			}
		}
		longest = max(longest, int(n))
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	hq, d, dv := int(a.Query.Shape[1]), int(a.Query.Shape[2]), int(a.Out.Shape[2])
	if err := j.layout(0, 4*(2*d+dv)); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.Query.Shape[0])*hq, float64(longest*(d+dv+20)), func(j *job, lo, hi, worker int) {
		a := (*ops.MLADecodeAttentionArgs)(j.args)
		hq, d, dv := int(a.Query.Shape[1]), int(a.Query.Shape[2]), int(a.Out.Shape[2])
		buf := own[float32](j, worker)
		for i := lo; i < hi; i++ {
			b, h := i/hq, i%hq
			x, acc := plainHalves.load(buf, &a.Query, at(&a.Query, b, h), d), buf[2*d:][:dv]
			clear(acc)
			m, sum := float32(math.Inf(-1)), float32(0)
			n := int(elems[int32](&a.SeqLens, b, 1)[0])
			for o := range n {
				p, r, _ := latentRow(&a.BlockTable, &a.KVCache, b, o)
				row := plainHalves.load(buf[d:], &a.KVCache, at(&a.KVCache, p, r), d)
				s := logit(x, row, a.Scale, 0)
				top, f := greater(m, s), float32(0)
				if !math.IsInf(float64(m), 0) {
					f = exp32(m - top)
				}
				w := exp32(s - top)
				for e, v := range row[:dv] {
					acc[e] = float32(acc[e]*f) + float32(w*v)
				}
				sum = float32(sum*f) + w
				m = top
			}
			if n > 0 {
				scaleRow(acc, 1/sum)
			}
			plainHalves.store(&a.Out, at(&a.Out, b, h), acc)
			if a.LSE.Present() {
				put(&a.LSE, at(&a.LSE, b, h), m+log32(sum))
			}
		}
	})
	return 0
}

// scaleRow multiplies a row.
func scaleRow(v []float32, f float32) {
	for e := range v {
		v[e] *= f
	}
}

// sequence returns which of the sequences that start at the given offsets row t belongs to; t is below the last offset.
func sequence(cu []int32, t int) int {
	lo, hi := 0, len(cu)-1
	for lo < hi {
		if mid := (lo + hi) / 2; int(cu[mid+1]) > t {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

func refMLAPrefillAttention(t *tier, q *registry.Queue, a *ops.MLAPrefillAttentionArgs) registry.Status {
	const op = "mla_prefill_attention"
	if err := checkOffsets(op, "cu_seqlens_q", &a.CuSeqlensQ, a.Query.Shape[0]); err != nil {
		return a.Fail(err)
	}
	if err := checkOffsets(op, "cu_seqlens_k", &a.CuSeqlensK, a.Key.Shape[0]); err != nil {
		return a.Fail(err)
	}
	longest, ck := 0, elems[int32](&a.CuSeqlensK, 0, int(a.CuSeqlensK.Shape[0]))
	for b := range len(ck) - 1 {
		longest = max(longest, int(ck[b+1]-ck[b]))
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	tq, heads, d, dv := int(a.Query.Shape[0]), int(a.Query.Shape[1]), int(a.Query.Shape[2]), int(a.Out.Shape[2])
	if err := j.layout(0, 4*(longest+2*d+2*dv)); err != nil {
		return a.Fail(err)
	}
	j.n[0] = longest
	j.each(tq*heads, float64(longest*(d+dv+20)), func(j *job, lo, hi, worker int) {
		a := (*ops.MLAPrefillAttentionArgs)(j.args)
		heads, d, dv := int(a.Query.Shape[1]), int(a.Query.Shape[2]), int(a.Out.Shape[2])
		local, n := own[float32](j, worker), int(a.CuSeqlensQ.Shape[0])
		scores, qbuf, kbuf, out, vbuf := local[:j.n[0]], local[j.n[0]:], local[j.n[0]+d:], local[j.n[0]+2*d:][:dv], local[j.n[0]+2*d+dv:]
		cq, ck := elems[int32](&a.CuSeqlensQ, 0, n), elems[int32](&a.CuSeqlensK, 0, n)
		for i := lo; i < hi; i++ {
			t, h := i/heads, i%heads
			b := sequence(cq, t)
			keys, k0 := int(ck[b+1]-ck[b]), int(ck[b])
			_, last := span(keys-int(cq[b+1])+t, keys, a.Causal, false, 0, 0)
			s := scores[:max(last+1, 0)]
			x := plainHalves.load(qbuf, &a.Query, at(&a.Query, t, h), d)
			for e := range s {
				s[e] = logit(x, plainHalves.load(kbuf, &a.Key, at(&a.Key, k0+e, h), d), a.Scale, 0)
			}
			clear(out)
			lse := float32(math.Inf(-1))
			if m, sum, ok := exponentials(s, &noSinks, h); ok {
				for e, p := range s {
					axpy(out, p, plainHalves.load(vbuf, &a.Value, at(&a.Value, k0+e, h), dv))
				}
				scaleRow(out, 1/sum)
				lse = m + log32(sum)
			}
			plainHalves.store(&a.Out, at(&a.Out, t, h), out)
			if a.LSE.Present() {
				put(&a.LSE, at(&a.LSE, h, t), lse)
			}
		}
	})
	return 0
}

// noSinks is for attention without sinks.
var noSinks tensor.Tensor

func refConcatMLANopeRope(t *tier, q *registry.Queue, a *ops.ConcatMLANopeRopeArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	j.each(int(a.Out.Shape[0]*a.Out.Shape[1]), float64(20+a.Out.Last()/8), func(j *job, lo, hi, _ int) {
		a := (*ops.ConcatMLANopeRopeArgs)(j.args)
		heads, n := int(a.Out.Shape[1]), int(a.Nope.Last())
		for i := lo; i < hi; i++ {
			t, h := i/heads, i%heads
			move(&a.Out, at(&a.Out, t, h), &a.Nope, at(&a.Nope, t, h), n)
			from := min(h, int(a.Rope.Shape[1])-1) // one head may stand for all
			move(&a.Out, at(&a.Out, t, h)+n, &a.Rope, at(&a.Rope, t, from), int(a.Rope.Last()))
		}
	})
	return 0
}
