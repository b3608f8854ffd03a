package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

func refAttention(t *tier, q *registry.Queue, a *ops.AttentionArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	tq, hq, d := int(a.Query.Shape[0]), int(a.Query.Shape[1]), int(a.Query.Shape[2])
	tk, dv := int(a.Key.Shape[0]), int(a.Value.Shape[2])
	if err := j.layout(0, 4*(2*tk+5*d+5*dv)); err != nil {
		return a.Fail(err)
	}
	j.each(tq*hq, float64(tk*(d+dv+20)), func(j *job, lo, hi, worker int) {
		a := (*ops.AttentionArgs)(j.args)
		hq, d := int(a.Query.Shape[1]), int(a.Query.Shape[2])
		tq, tk, hk, dv := int(a.Query.Shape[0]), int(a.Key.Shape[0]), int(a.Key.Shape[1]), int(a.Value.Shape[2])
		local := own[float32](j, worker)
		scores, stage, qbuf, kbuf := local[:tk], local[tk:][:tk], local[2*tk:][:d], local[2*tk+d:][:4*d]
		out, vbuf := local[2*tk+5*d:][:dv], local[2*tk+5*d+dv:][:4*dv]
		start := tk - tq // position of query 0
		if a.TopLeft {
			start = int(a.QueryOffset)
		}
		for r := lo; r < hi; r++ {
			i, h := r/hq, r%hq
			g := h / (hq / hk)
			first, last := span(start+i, tk, a.Causal, a.Windowed, a.WindowLeft, a.WindowRight)
			s := scores[:max(last-first+1, 0)]
			x := plainHalves.load(qbuf, &a.Query, r*d, d)
			logitsOf(s, x, kbuf, a.Scale, a.LogitsSoftCap, func(buf []float32, e int) []float32 {
				return plainHalves.load(buf, &a.Key, ((first+e)*hk+g)*d, d)
			})
			if a.Mask.Present() {
				for e := range s {
					s[e] += one(&a.Mask, maskAt(&a.Mask, h, i, first+e))
				}
			}
			keep := a.Scores.Present()
			if keep && a.ScoresAt < ops.ScoresMasked { // of all keys, seen or not
				softCap := a.LogitsSoftCap
				if a.ScoresAt == ops.ScoresScaled {
					softCap = 0
				}
				logitsOf(stage, x, kbuf, a.Scale, softCap, func(buf []float32, e int) []float32 {
					return plainHalves.load(buf, &a.Key, (e*hk+g)*d, d)
				})
			} else if keep {
				fill(stage, float32(math.Inf(-1)))
				copy(stage[min(first, tk):], s)
			}
			clear(out)
			seen := weigh(s, &a.Sinks, h)
			if seen {
				weighted(out, s, vbuf, func(buf []float32, e int) []float32 {
					return plainHalves.load(buf, &a.Value, ((first+e)*hk+g)*dv, dv)
				})
			}
			if keep {
				if a.ScoresAt == ops.ScoresWeights {
					if clear(stage); seen {
						copy(stage[first:], s)
					}
				}
				plainHalves.store(&a.Scores, r*tk, stage)
			}
			plainHalves.store(&a.Out, r*dv, out)
		}
	})
	return 0
}

// maskAt returns the element of a mask [Tq,Tk] or [Hq,Tq,Tk] for head h, query i and key k.
func maskAt(m *tensor.Tensor, h, i, k int) int {
	if m.Rank == 3 {
		return (h*int(m.Shape[1])+i)*int(m.Shape[2]) + k
	}
	return i*int(m.Shape[1]) + k
}

// logitsOf computes the logits of a query for each of len(s) keys, four at a time; no sum's order depends on that. buf has room
// for four keys.
func logitsOf(s, q, buf []float32, scale, softCap float32, key func(buf []float32, e int) []float32) {
	var rows [4][]float32
	d := len(q)
	for e := 0; e < len(s); e += 4 {
		n := min(4, len(s)-e)
		for c := range rows {
			rows[c] = key(buf[c*d:][:d], e+min(c, n-1))
		}
		p := dot4(q, &rows)
		for c := range n {
			s[e+c] = capped(p[c]*scale, softCap)
		}
	}
}

// weighted adds the values of len(s) keys times their weights to out, in the order of the keys. buf has room for four values.
func weighted(out, s, buf []float32, value func(buf []float32, e int) []float32) {
	var rows [4][]float32
	d, e := len(out), 0
	for ; e+4 <= len(s); e += 4 {
		for c := range rows {
			rows[c] = value(buf[c*d:][:d], e+c)
		}
		addTerms(out, (*[4]float32)(s[e:]), &rows)
	}
	for ; e < len(s); e++ {
		axpy(out, s[e], value(buf[:d], e))
	}
}

// capped returns cap·tanh(s/cap), or s without a cap.
func capped(s, softCap float32) float32 {
	if softCap > 0 {
		s = softCap * tanh32(s/softCap)
	}
	return s
}

// logit returns the scaled product, soft-capped if cap is above 0.
func logit(q, k []float32, scale, softCap float32) float32 {
	var s float32
	for e, v := range q {
		s += float32(v * k[e])
	}
	return capped(s*scale, softCap)
}

// weigh turns the logits of the keys that a query sees into weights. It returns false, and weights of no meaning, when
// there is no key, or when all are hidden.
func weigh(s []float32, sinks *tensor.Tensor, head int) bool {
	_, sum, ok := exponentials(s, sinks, head)
	if ok {
		inv := 1 / sum
		for e := range s {
			s[e] *= inv
		}
	}
	return ok
}

// exponentials replaces logits by exp(logit - m) with their maximum m, and returns that and the sum. It returns false when
// there is no key, or when all are hidden. A sink is one more logit.
func exponentials(s []float32, sinks *tensor.Tensor, head int) (m, sum float32, ok bool) {
	m = float32(math.Inf(-1))
	hidden := true
	for _, v := range s {
		m = greater(m, v)
		hidden = hidden && math.IsInf(float64(v), -1)
	}
	if hidden {
		return m, 0, false
	}
	if sinks.Present() {
		m = greater(m, one(sinks, head))
	}
	for e, v := range s {
		s[e] = exp32(v - m)
		sum += s[e]
	}
	if sinks.Present() {
		sum += exp32(one(sinks, head) - m)
	}
	return m, sum, true
}

// axpy adds p·v to out.
func axpy(out []float32, p float32, v []float32) {
	for e, x := range v {
		out[e] += float32(p * x)
	}
}

func refPagedAttention(t *tier, q *registry.Queue, a *ops.PagedAttentionArgs) registry.Status {
	if err := checkPages(a); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	tq, hq, d := int(a.Query.Shape[0]), int(a.Query.Shape[1]), int(a.Query.Shape[2])
	keys := 0
	for _, n := range elems[int32](&a.SeqLens, 0, int(a.SeqLens.Shape[0])) {
		keys = max(keys, int(n))
	}
	keys = min(keys, int(a.BlockTable.Shape[1]*a.KCache.Shape[1])) // the length of a request without queries is not checked
	if err := j.layout(0, 4*(keys+10*d)); err != nil {
		return a.Fail(err)
	}
	j.n[0] = keys
	j.each(tq*hq, float64(keys*(2*d+20)), func(j *job, lo, hi, worker int) {
		a := (*ops.PagedAttentionArgs)(j.args)
		hq, d, keys := int(a.Query.Shape[1]), int(a.Query.Shape[2]), j.n[0]
		kc, vc := cacheOf(&a.KCache), cacheOf(&a.VCache)
		local := own[float32](j, worker)
		scores, qbuf, out, kbuf, vbuf := local[:keys], local[keys:][:d], local[keys+d:][:d], local[keys+2*d:][:4*d], local[keys+6*d:][:4*d]
		for row := lo; row < hi; row++ {
			t, h := row/hq, row%hq
			r, ok := request(a, t)
			if !ok {
				return // padding rows
			}
			starts := elems[int32](&a.QueryStartLoc, r, 2)
			n := int(elems[int32](&a.SeqLens, r, 1)[0])
			first, last := span(n-int(starts[1])+t, n, a.Causal, a.Windowed, a.WindowLeft, a.WindowRight)
			if first > last {
				continue
			}
			s, g := scores[:last-first+1], h/(hq/kc.heads)
			x := plainHalves.load(qbuf, &a.Query, row*d, d)
			logitsOf(s, x, kbuf, a.Scale, a.LogitsSoftCap, func(buf []float32, e int) []float32 {
				k := first + e
				return kc.load(&plainHalves, buf, block(a, r, k/kc.rows), k%kc.rows, g)
			})
			clear(out)
			if weigh(s, &a.Sinks, h) {
				weighted(out, s, vbuf, func(buf []float32, e int) []float32 {
					k := first + e
					return vc.load(&plainHalves, buf, block(a, r, k/vc.rows), k%vc.rows, g)
				})
			}
			plainHalves.store(&a.Out, row*d, out)
		}
	})
	return 0
}

// reshapeAndCache is the kernel of every tier.
func reshapeAndCache(t *tier, q *registry.Queue, a *ops.ReshapeAndCacheArgs) registry.Status {
	if err := checkSlots("reshape_and_cache", &a.SlotMapping, a.KCache.Shape[0]*a.KCache.Shape[1]); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	heads, d := int(a.K.Shape[1]), int(a.K.Shape[2])
	if err := j.layout(0, 4*d); err != nil {
		return a.Fail(err)
	}
	// An item is one head of K or V with all its tokens, so that the last of two tokens with one slot wins.
	j.each(2*heads, float64(int(a.SlotMapping.Shape[0])*(10+d/4)), func(j *job, lo, hi, worker int) {
		a := (*ops.ReshapeAndCacheArgs)(j.args)
		heads, buf := int(a.K.Shape[1]), own[float32](j, worker)
		for it := lo; it < hi; it++ {
			h, x, c := it%heads, &a.K, cacheOf(&a.KCache)
			if it >= heads {
				x, c = &a.V, cacheOf(&a.VCache)
			}
			for i, s := range elems[int64](&a.SlotMapping, 0, int(a.SlotMapping.Shape[0])) {
				if s >= 0 {
					c.write(j.tier, buf, int(s)/c.rows, int(s)%c.rows, h, x, i*int(x.Stride[0])+h*c.d)
				}
			}
		}
	})
	return 0
}

// write converts the head that starts at element off of x to the cache's dtype and puts it in its place.
func (c *cache) write(t *tier, buf []float32, p, r, h int, x *tensor.Tensor, off int) {
	switch {
	case c.d == 0:
	case c.x.DType == x.DType && x.DType.Size() == 2:
		copy(elems[uint16](c.x, c.at(p, r, h), c.d), elems[uint16](x, off, c.d))
	case c.x.DType.IsBlock():
		if err := tensor.Quantize(c.bytes(p, r, h), c.x.DType, t.load(buf, x, off, c.d)); err != nil {
			panic(err) // q8_0 of whole blocks: the validator has seen to it
		}
	default:
		t.store(c.x, c.at(p, r, h), t.load(buf, x, off, c.d))
	}
}
