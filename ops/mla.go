package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// MergeAttnStatesArgs is the record of MergeAttnStates: two attention results over key sets that do not overlap become
// the result over both. The first n tokens, n = PrefillTokensWithContext, or all if that is negative, are
// P·a/(a+b) + S·b/(a+b) with a = exp(p-m), b = exp(s-m), m = max(p,s), where p and s are the two log-sum-exps and an
// infinite one counts as -inf; output_lse is log(a+b) + m. Where both are -inf the prefix is copied. The other tokens are
// copies of the suffix.
type MergeAttnStatesArgs struct {
	registry.Header
	Output                   tensor.Tensor `op:"out" shape:"T,H,D" dtype:"like prefix_output" layout:"inner1"`
	OutputLSE                tensor.Tensor `op:"out,opt" shape:"H,T" dtype:"f32" layout:"inner1"`
	PrefixOutput             tensor.Tensor `op:"in" shape:"T,H,D" dtype:"float" layout:"inner1"`
	PrefixLSE                tensor.Tensor `op:"in" shape:"H,T" dtype:"f32" layout:"inner1"`
	SuffixOutput             tensor.Tensor `op:"in" shape:"T,H,D" dtype:"like prefix_output" layout:"inner1"`
	SuffixLSE                tensor.Tensor `op:"in" shape:"H,T" dtype:"f32" layout:"inner1"`
	PrefillTokensWithContext int64         // negative: all tokens; 0: none, all are copied from the suffix
}

// ConcatAndCacheMLAArgs is the record of ConcatAndCacheMLA: for t < S and slot_mapping[t] = s >= 0, row s%block_size of
// page s/block_size becomes kv_c[t] followed by k_pe[t]. A negative slot skips the token; one beyond the cache is an
// ErrValue. Of two tokens with one slot the later wins on the CPU.
type ConcatAndCacheMLAArgs struct {
	registry.Header
	KvC         tensor.Tensor `op:"in" shape:"Tk,L" dtype:"float" layout:"rows"`
	KPe         tensor.Tensor `op:"in" shape:"Tk,Dr" dtype:"like kv_c" layout:"rows"`
	KVCache     tensor.Tensor `op:"inout" shape:"NB,BS,E" dtype:"like kv_c" layout:"inner1"` // E = L + Dr
	SlotMapping tensor.Tensor `op:"in" shape:"S" dtype:"i64"`                                // S <= Tk
}

// GatherMLACacheArgs is the record of GatherMLACache: row t < NumTokens of dst is row o%block_size of page
// block_table[b, o/block_size] with b = token_to_seq[t] and o = t - cu_seq_lens[b] + seq_starts[b]. Rows with
// t >= cu_seq_lens[b+1], and those from NumTokens on, are not written. Sequences, offsets and pages outside their tables
// are an ErrValue.
type GatherMLACacheArgs struct {
	registry.Header
	Dst        tensor.Tensor `op:"out" shape:"T,E" dtype:"like src_cache" layout:"inner1"` // T >= NumTokens
	SrcCache   tensor.Tensor `op:"in" shape:"NB,BS,E" dtype:"float" layout:"inner1"`
	BlockTable tensor.Tensor `op:"in" shape:"B,MB" dtype:"i32" layout:"inner1"`
	CuSeqLens  tensor.Tensor `op:"in" shape:"B+1" dtype:"i32"`
	TokenToSeq tensor.Tensor `op:"in" shape:"N" dtype:"i32"` // N >= NumTokens
	SeqStarts  tensor.Tensor `op:"in,opt" shape:"B" dtype:"i32"`
	NumTokens  int64         // 0 to T
}

// MLADecodeAttentionArgs is the record of MLADecodeAttention: one query token of each request against the latent rows of
// its pages, which all heads share: row j is row j%block_size of page block_table[b, j/block_size], for
// j < seq_lens[b]. The logit is Scale·q·row over all D elements; the value is the row's first Dv elements. lse is the
// log-sum-exp of the logits. A request of length 0 gives zeros and -inf.
type MLADecodeAttentionArgs struct {
	registry.Header
	Out         tensor.Tensor `op:"out" shape:"B,Hq,Dv" dtype:"like query" layout:"inner1"` // Dv <= D
	LSE         tensor.Tensor `op:"out,opt" shape:"B,Hq" dtype:"f32" layout:"inner1"`
	Query       tensor.Tensor `op:"in" shape:"B,Hq,D" dtype:"float" layout:"inner1"`
	KVCache     tensor.Tensor `op:"in" shape:"NB,BS,D" dtype:"like query" layout:"inner1"`
	BlockTable  tensor.Tensor `op:"in" shape:"B,MB" dtype:"i32" layout:"inner1"`
	SeqLens     tensor.Tensor `op:"in" shape:"B" dtype:"i32"`
	Scale       float32       // > 0, finite
	NumKVSplits int32         // parts that a device may cut the keys into: 0 is its choice, 1 is none; changes last bits only
	MaxSeqLen   int32         // hint: upper bound of seq_lens, 0 is unknown
}

// MLAPrefillAttentionArgs is the record of MLAPrefillAttention: attention of requests that lie one after another, with as
// many key and value heads as query heads, and values of another width. Request b owns rows cu_seqlens_q[b] ..
// cu_seqlens_q[b+1] of query and those of key and value that cu_seqlens_k says; its query i stands at position
// Lk - Lq + i and sees the keys up to there when Causal. lse is the log-sum-exp of the logits. A query that sees no key
// gives zeros and -inf. Offsets that fall or do not cover all rows are an ErrValue.
type MLAPrefillAttentionArgs struct {
	registry.Header
	Out        tensor.Tensor `op:"out" shape:"Tq,H,Dv" dtype:"like query" layout:"inner1"` // Dv <= D
	LSE        tensor.Tensor `op:"out,opt" shape:"H,Tq" dtype:"f32" layout:"inner1"`
	Query      tensor.Tensor `op:"in" shape:"Tq,H,D" dtype:"float" layout:"inner1"`
	Key        tensor.Tensor `op:"in" shape:"Tk,H,D" dtype:"like query" layout:"inner1"`
	Value      tensor.Tensor `op:"in" shape:"Tk,H,Dv" dtype:"like query" layout:"inner1"`
	CuSeqlensQ tensor.Tensor `op:"in" shape:"B+1" dtype:"i32"`
	CuSeqlensK tensor.Tensor `op:"in" shape:"B+1" dtype:"i32"`
	Scale      float32       // > 0, finite
	MaxSeqlenQ int32         // hint: upper bound of a request's query rows, 0 is unknown
	MaxSeqlenK int32         // hint: upper bound of a request's keys, 0 is unknown
	Causal     bool
}

// ConcatMLANopeRopeArgs is the record of ConcatMLANopeRope: every head of out is that of nope followed by that of rope, of
// which there may be one for all.
type ConcatMLANopeRopeArgs struct {
	registry.Header
	Out  tensor.Tensor `op:"out" shape:"T,H,D" dtype:"like nope" layout:"inner1"` // D = Dn + Dr
	Nope tensor.Tensor `op:"in" shape:"T,H,Dn" dtype:"float" layout:"inner1"`
	Rope tensor.Tensor `op:"in" shape:"T,Hr,Dr" dtype:"like nope" layout:"inner1"` // Hr is H or 1
}

// Attention over latent rows, its cache, and the merge of partial results.
var (
	MergeAttnStates = define(OpMergeAttnStates, "merge_attn_states", "attention", "merge_lse",
		"two attention results over different keys put together by their log-sum-exps",
		func(a *MergeAttnStatesArgs) *OpError {
			return notEmpty("output", &a.Output, 1)
		})
	ConcatAndCacheMLA = define(OpConcatAndCacheMLA, "concat_and_cache_mla", "kv_cache", "mla_write",
		"new latent rows with their rotated keys written to the pages that their slots name",
		func(a *ConcatAndCacheMLAArgs) *OpError {
			l, r := a.KvC.Shape[1], a.KPe.Shape[1]
			if s := a.SlotMapping.Shape[0]; s > a.KvC.Shape[0] {
				return bad(ErrShape, "slot_mapping", "%d slots for %d tokens", s, a.KvC.Shape[0])
			} else if s > 0 && a.KVCache.Shape[1] == 0 {
				return bad(ErrShape, "kv_cache", "pages of no rows")
			}
			return first(notEmpty("kv_c", &a.KvC, 1), notEmpty("k_pe", &a.KPe, 1), joined("kv_cache", a.KVCache.Last(), l, r))
		})
	GatherMLACache = define(OpGatherMLACache, "gather_mla_cache", "kv_cache", "mla_gather",
		"latent rows of requests copied out of their pages",
		func(a *GatherMLACacheArgs) *OpError {
			n := a.NumTokens
			switch {
			case n < 0:
				return bad(ErrAttr, "num_tokens", "%d is negative", n)
			case n > a.Dst.Shape[0]:
				return bad(ErrShape, "dst", "%d rows for %d tokens", a.Dst.Shape[0], n)
			case n > a.TokenToSeq.Shape[0]:
				return bad(ErrShape, "token_to_seq", "%d entries for %d tokens", a.TokenToSeq.Shape[0], n)
			case a.BlockTable.Shape[0] == 0:
				return bad(ErrShape, "block_table", "no request")
			}
			return notEmpty("src_cache", &a.SrcCache, 1)
		})
	MLADecodeAttention = define(OpMLADecodeAttention, "mla_decode_attention", "mla", "decode_mqa",
		"attention of one token a request over paged latent rows that all heads share",
		func(a *MLADecodeAttentionArgs) *OpError {
			return first(notEmpty("out", &a.Out, 0), notEmpty("kv_cache", &a.KVCache, 1), narrower(a.Out.Last(), a.Query.Last()),
				positive("scale", a.Scale), notNegativeInt("num_kv_splits", a.NumKVSplits), notNegativeInt("max_seq_len", a.MaxSeqLen))
		})
	MLAPrefillAttention = define(OpMLAPrefillAttention, "mla_prefill_attention", "mla", "prefill_mha",
		"attention of packed requests whose values are narrower than their keys",
		func(a *MLAPrefillAttentionArgs) *OpError {
			if a.CuSeqlensQ.Shape[0] < 2 {
				return bad(ErrShape, "cu_seqlens_q", "no request")
			}
			return first(narrower(a.Out.Last(), a.Query.Last()), positive("scale", a.Scale),
				notNegativeInt("max_seqlen_q", a.MaxSeqlenQ), notNegativeInt("max_seqlen_k", a.MaxSeqlenK))
		})
	ConcatMLANopeRope = define(OpConcatMLANopeRope, "concat_mla_nope_rope", "mla", "concat_head",
		"heads put together of a part without positions and a rotated one",
		func(a *ConcatMLANopeRopeArgs) *OpError {
			if hr, h := a.Rope.Shape[1], a.Out.Shape[1]; hr != h && hr != 1 {
				return bad(ErrShape, "rope", "%d heads, not %d or 1", hr, h)
			}
			for _, x := range [...]struct {
				name string
				n    int64
			}{{"nope", a.Nope.Last()}, {"rope", a.Rope.Last()}} {
				if x.n == 0 {
					return bad(ErrShape, x.name, "heads of no elements")
				}
			}
			return joined("out", a.Out.Last(), a.Nope.Last(), a.Rope.Last())
		})
)

// notEmpty wants no dimension of x from the given one on to be 0.
func notEmpty(operand string, x *tensor.Tensor, from int) *OpError {
	for _, n := range x.Dims()[from:] {
		if n == 0 {
			return bad(ErrShape, operand, "empty dimension in %v", x.Dims())
		}
	}
	return nil
}

// joined wants a width to be that of two parts.
func joined(operand string, n, a, b int64) *OpError {
	if n-a != b {
		return bad(ErrShape, operand, "width %d is not %d and %d", n, a, b)
	}
	return nil
}

// narrower wants values that are no wider than keys.
func narrower(dv, d int64) *OpError {
	if dv > d {
		return bad(ErrShape, "out", "values of %d elements, keys of %d", dv, d)
	}
	return nil
}
