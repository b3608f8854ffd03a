package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// MHAPrefillArgs is the record of MHAPrefill: attention of R sequences that lie one after another, sequence r owning rows
// cu_seqlens_q[r] to cu_seqlens_q[r+1] of the queries and cu_seqlens_k[r] to cu_seqlens_k[r+1] of the keys. Positions, logits,
// sinks, Causal and Windowed are as in AttentionArgs for each sequence. lse is the logarithm of the sum of the exponentials of
// a row's logits, its sink among them. A query that sees no key gives zeros, and -inf in lse.
type MHAPrefillArgs struct {
	registry.Header
	Out           tensor.Tensor `op:"out" shape:"Tq,Hq,Dv" dtype:"outfloat"`
	LSE           tensor.Tensor `op:"out,opt" shape:"Hq,Tq" dtype:"f32"`
	Query         tensor.Tensor `op:"in" shape:"Tq,Hq,D" dtype:"float"`
	Key           tensor.Tensor `op:"in" shape:"Tk,Hk,D" dtype:"like query"`
	Value         tensor.Tensor `op:"in" shape:"Tk,Hk,Dv" dtype:"like query"`
	CuSeqlensQ    tensor.Tensor `op:"in" shape:"R+1" dtype:"i32"` // rising from 0 to Tq
	CuSeqlensK    tensor.Tensor `op:"in" shape:"R+1" dtype:"i32"` // rising from 0 to Tk
	Sinks         tensor.Tensor `op:"in,opt" shape:"Hq" dtype:"f32"`
	Scale         float32       // > 0, finite
	LogitsSoftCap float32       // >= 0, finite; 0 is none
	WindowLeft    int32         // >= 0, and 0 unless Windowed
	WindowRight   int32         // >= 0, and 0 unless Windowed
	Causal        bool
	Windowed      bool
}

// MHADecodeWithKVCacheArgs is the record of MHADecodeWithKVCache: attention of the last L tokens of R requests over pages that
// hold all their keys and values, laid out as in PagedAttentionArgs. seq_lens[r] counts these tokens. With new keys and values
// their rows are written to the pages first, converted to the cache's dtype. Positions, logits, sinks, Causal and Windowed are as
// in AttentionArgs with Tk = seq_lens[r]; lse is as in MHAPrefillArgs. A query that sees no key gives zeros, and -inf in lse.
type MHADecodeWithKVCacheArgs struct {
	registry.Header
	Out           tensor.Tensor `op:"out" shape:"R,L,Hq,D" dtype:"outfloat"`
	LSE           tensor.Tensor `op:"out,opt" shape:"R,Hq,L" dtype:"f32"`
	Query         tensor.Tensor `op:"in" shape:"R,L,Hq,D" dtype:"float"`
	NewK          tensor.Tensor `op:"in,opt" shape:"R,L,Hk,D" dtype:"like query"`
	NewV          tensor.Tensor `op:"in,opt" shape:"R,L,Hk,D" dtype:"like query"` // present with new_k
	KCache        tensor.Tensor `op:"inout" shape:"NB,BS,Hk,D" dtype:"float q8_0" layout:"pages"`
	VCache        tensor.Tensor `op:"inout" shape:"NB,BS,Hk,D" dtype:"like k_cache" layout:"pages"`
	BlockTable    tensor.Tensor `op:"in" shape:"R,MB" dtype:"i32"`
	SeqLens       tensor.Tensor `op:"in" shape:"R" dtype:"i32"` // 0 to MB·BS, and at least L with new keys
	Sinks         tensor.Tensor `op:"in,opt" shape:"Hq" dtype:"f32"`
	Scale         float32       // > 0, finite
	LogitsSoftCap float32       // >= 0, finite; 0 is none
	WindowLeft    int32         // >= 0, and 0 unless Windowed
	WindowRight   int32         // >= 0, and 0 unless Windowed
	Causal        bool
	Windowed      bool
}

// Attention of several sequences, packed or over a cache.
var (
	MHAPrefill = define(OpMHAPrefill, "mha_prefill", "attention", "varlen_packed",
		"dense attention of packed sequences of any length",
		func(a *MHAPrefillArgs) *OpError {
			return first(headGroups(a.Query.Shape[1], a.Key.Shape[1], "key"),
				logits(a.Scale, a.LogitsSoftCap, a.Windowed, a.WindowLeft, a.WindowRight))
		})
	MHADecodeWithKVCache = define(OpMHADecodeWithKVCache, "mha_decode_with_kvcache", "attention", "paged_decode",
		"attention of the last tokens of requests over a paged cache, to which their keys and values may be written first",
		func(a *MHADecodeWithKVCacheArgs) *OpError {
			if a.NewK.Present() != a.NewV.Present() {
				return bad(ErrAttr, "new_v", "new keys and new values go together")
			}
			if a.KCache.Shape[1] == 0 {
				return bad(ErrShape, "k_cache", "pages of no rows")
			}
			return first(headGroups(a.Query.Shape[2], a.KCache.Shape[2], "k_cache"),
				logits(a.Scale, a.LogitsSoftCap, a.Windowed, a.WindowLeft, a.WindowRight))
		})
)

func prefillCost(t *tally, a *MHAPrefillArgs) {
	cq, ck := visible[int32](t, &a.CuSeqlensQ), visible[int32](t, &a.CuSeqlensK)
	pairs := int64(0)
	for r := range min(len(cq), len(ck)) - 1 {
		lq, lk := min(int64(cq[r+1])-int64(cq[r]), a.Query.Shape[0]), int64(ck[r+1])-int64(ck[r])
		if lq > 0 && lk > 0 {
			n, _, _, _ := seen(lq, lk, lk-lq, a.Causal, a.Windowed, a.WindowLeft, a.WindowRight)
			pairs += n
		}
	}
	t.FLOPs = 2 * float64(pairs) * float64(a.Query.Shape[1]) * float64(a.Query.Shape[2]+a.Value.Shape[2])
}

func decodeCost(t *tally, a *MHADecodeWithKVCacheArgs) {
	l, page, hk := a.Query.Shape[1], a.KCache.Shape[1], a.KCache.Shape[2]
	var pairs, keys, pages int64
	for _, n := range visible[int32](t, &a.SeqLens) {
		if n <= 0 || page == 0 || int64(n) > a.BlockTable.Shape[1]*page {
			continue
		}
		p, first, end, _ := seen(l, int64(n), int64(n)-l, a.Causal, a.Windowed, a.WindowLeft, a.WindowRight)
		pairs, keys, pages = pairs+p, keys+end-first, pages+(int64(n)-1)/page+1
	}
	t.FLOPs = 4 * float64(pairs) * float64(a.Query.Shape[2]) * float64(a.Query.Shape[3])
	written := int64(0)
	if a.NewK.Present() {
		written = a.NewK.Shape[0] * l * hk * rowBytes(&a.KCache)
	}
	for _, name := range []string{"k_cache", "v_cache"} {
		t.read(name, max(keys*hk*rowBytes(&a.KCache)-written, 0)) // what was just written need not be read
		t.written(name, written)
	}
	t.read("block_table", pages*int64(a.BlockTable.DType.Size()))
}
