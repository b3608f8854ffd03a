package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// attendRow writes the mean of values, weighted by the logits of a query x of head h with as many keys as s has room for, to out,
// and returns the logarithm of the sum of their exponentials: zeros and -inf if there is no key. key and value load the e-th.
func attendRow(out, s, x []float32, key, value func(e int) []float32, sinks *tensor.Tensor, h int, scale, softCap float32) (lse float32) {
	for e := range s {
		s[e] = logit(x, key(e), scale, softCap)
	}
	clear(out)
	m, sum, ok := exponentials(s, sinks, h)
	if !ok {
		return float32(math.Inf(-1))
	}
	inv := 1 / sum
	for e := range s {
		axpy(out, s[e]*inv, value(e))
	}
	return m + log32(sum)
}

func refMHAPrefill(t *tier, q *registry.Queue, a *ops.MHAPrefillArgs) registry.Status {
	if err := checkOffsets("mha_prefill", "cu_seqlens_q", &a.CuSeqlensQ, a.Query.Shape[0]); err != nil {
		return a.Fail(err)
	}
	if err := checkOffsets("mha_prefill", "cu_seqlens_k", &a.CuSeqlensK, a.Key.Shape[0]); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	tk, hq, d, dv := int(a.Key.Shape[0]), int(a.Query.Shape[1]), int(a.Query.Shape[2]), int(a.Value.Shape[2])
	if err := j.layout(0, 4*(tk+2*d+2*dv)); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.Query.Shape[0])*hq, float64(tk*(d+dv+20)), func(j *job, lo, hi, worker int) {
		a := (*ops.MHAPrefillArgs)(j.args)
		tq, tk, hk := int(a.Query.Shape[0]), int(a.Key.Shape[0]), int(a.Key.Shape[1])
		hq, d, dv := int(a.Query.Shape[1]), int(a.Query.Shape[2]), int(a.Value.Shape[2])
		cq, ck := elems[int32](&a.CuSeqlensQ, 0, int(a.CuSeqlensQ.Shape[0])), elems[int32](&a.CuSeqlensK, 0, int(a.CuSeqlensK.Shape[0]))
		local := own[float32](j, worker)
		scores, qbuf, kbuf, out, vbuf := local[:tk], local[tk:][:d], local[tk+d:][:d], local[tk+2*d:][:dv], local[tk+2*d+dv:][:dv]
		for row := lo; row < hi; row++ {
			i, h := row/hq, row%hq
			r := sequence(cq, i)
			g, keys, from := h/(hq/hk), int(ck[r+1]-ck[r]), int(ck[r])
			first, last := span(keys-int(cq[r+1])+i, keys, a.Causal, a.Windowed, a.WindowLeft, a.WindowRight)
			from += first
			lse := attendRow(out, scores[:max(last-first+1, 0)], plainHalves.load(qbuf, &a.Query, row*d, d),
				func(e int) []float32 { return plainHalves.load(kbuf, &a.Key, ((from+e)*hk+g)*d, d) },
				func(e int) []float32 { return plainHalves.load(vbuf, &a.Value, ((from+e)*hk+g)*dv, dv) }, &a.Sinks, h, a.Scale, a.LogitsSoftCap)
			plainHalves.store(&a.Out, row*dv, out)
			if a.LSE.Present() {
				put(&a.LSE, h*tq+i, lse)
			}
		}
	})
	return 0
}

// checkDecode finds lengths and pages that would lead outside the operands, before anything is written.
func checkDecode(a *ops.MHADecodeWithKVCacheArgs) error {
	const op = "mha_decode_with_kvcache"
	l, nb, bs, mb := int(a.Query.Shape[1]), int(a.KCache.Shape[0]), int(a.KCache.Shape[1]), int(a.BlockTable.Shape[1])
	least := 0
	if a.NewK.Present() {
		least = l
	}
	for r, n := range elems[int32](&a.SeqLens, 0, int(a.SeqLens.Shape[0])) {
		if int(n) < least || int(n) > mb*bs {
			return badValue(op, "seq_lens", "%d at request %d, want %d to the %d of the block table", n, r, least, mb*bs)
		}
		lo, _ := span(int(n)-l, int(n), a.Causal, a.Windowed, a.WindowLeft, a.WindowRight)
		if least > 0 {
			lo = min(lo, int(n)-l)
		}
		for b := max(lo, 0) / bs; b*bs < int(n); b++ {
			if p := int(elems[int32](&a.BlockTable, r*mb+b, 1)[0]); p < 0 || p >= nb {
				return badValue(op, "block_table", "block %d at [%d,%d] is outside [0,%d)", p, r, b, nb)
			}
		}
	}
	return nil
}

func refMHADecodeWithKVCache(t *tier, q *registry.Queue, a *ops.MHADecodeWithKVCacheArgs) registry.Status {
	if err := checkDecode(a); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	l, hq, d := int(a.Query.Shape[1]), int(a.Query.Shape[2]), int(a.Query.Shape[3])
	keys := 0
	for _, n := range elems[int32](&a.SeqLens, 0, int(a.SeqLens.Shape[0])) {
		keys = max(keys, int(n))
	}
	if err := j.layout(0, 4*(keys+4*d)); err != nil {
		return a.Fail(err)
	}
	j.n[0] = keys
	if a.NewK.Present() { // one head of all new tokens an item
		j.each(2*int(a.KCache.Shape[2]), float64(int(a.SeqLens.Shape[0])*l*(10+d/4)), func(j *job, lo, hi, worker int) {
			a := (*ops.MHADecodeWithKVCacheArgs)(j.args)
			buf, l := own[float32](j, worker), int(a.Query.Shape[1])
			for it := lo; it < hi; it++ {
				c, x, h := cacheOf(&a.KCache), &a.NewK, it
				if it >= c.heads {
					c, x, h = cacheOf(&a.VCache), &a.NewV, it-c.heads
				}
				for i := range int(a.SeqLens.Shape[0]) * l {
					k := int(elems[int32](&a.SeqLens, i/l, 1)[0]) - l + i%l
					c.write(j.tier, buf, pageOf(a, i/l, k/c.rows), k%c.rows, h, x, (i*c.heads+h)*c.d)
				}
			}
		})
	}
	j.each(int(a.SeqLens.Shape[0])*l*hq, float64(keys*(2*d+20)), func(j *job, lo, hi, worker int) {
		a := (*ops.MHADecodeWithKVCacheArgs)(j.args)
		l, hq, d, keys := int(a.Query.Shape[1]), int(a.Query.Shape[2]), int(a.Query.Shape[3]), j.n[0]
		kc, vc := cacheOf(&a.KCache), cacheOf(&a.VCache)
		local := own[float32](j, worker)
		scores, qbuf, kbuf, out, vbuf := local[:keys], local[keys:][:d], local[keys+d:][:d], local[keys+2*d:][:d], local[keys+3*d:][:d]
		for row := lo; row < hi; row++ {
			h, i, r := row%hq, row/hq%l, row/(hq*l)
			g, n := h/(hq/kc.heads), int(elems[int32](&a.SeqLens, r, 1)[0])
			first, last := span(n-l+i, n, a.Causal, a.Windowed, a.WindowLeft, a.WindowRight)
			lse := attendRow(out, scores[:max(last-first+1, 0)], plainHalves.load(qbuf, &a.Query, row*d, d),
				func(e int) []float32 {
					return kc.load(&plainHalves, kbuf, pageOf(a, r, (first+e)/kc.rows), (first+e)%kc.rows, g)
				},
				func(e int) []float32 {
					return vc.load(&plainHalves, vbuf, pageOf(a, r, (first+e)/vc.rows), (first+e)%vc.rows, g)
				}, &a.Sinks, h, a.Scale, a.LogitsSoftCap)
			plainHalves.store(&a.Out, row*d, out)
			if a.LSE.Present() {
				put(&a.LSE, (r*hq+h)*l+i, lse)
			}
		}
	})
	return 0
}

// pageOf returns the page of logical block b of request r.
func pageOf(a *ops.MHADecodeWithKVCacheArgs, r, b int) int {
	return int(elems[int32](&a.BlockTable, r*int(a.BlockTable.Shape[1])+b, 1)[0])
}
