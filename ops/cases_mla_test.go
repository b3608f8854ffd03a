package ops

import (
	"math"

	"github.com/opmux/opmux/tensor"
)

// mlaCases has a valid record and what is rejected for latent attention, its cache, and the named forms of attention.
func mlaCases() []opCase {
	type (
		merge   = MergeAttnStatesArgs
		write   = ConcatAndCacheMLAArgs
		gather  = GatherMLACacheArgs
		decode  = MLADecodeAttentionArgs
		prefill = MLAPrefillAttentionArgs
		concat  = ConcatMLANopeRopeArgs
	)
	nan := float32(math.NaN())
	return []opCase{
		caseOf(MergeAttnStates, merge{Output: ten(f32, 3, 2, 4), OutputLSE: ten(f32, 2, 3), PrefixOutput: ten(f32, 3, 2, 4), PrefixLSE: ten(f32, 2, 3),
			SuffixOutput: ten(f32, 3, 2, 4), SuffixLSE: ten(f32, 2, 3), PrefillTokensWithContext: -1},
			no("no heads", ErrShape, "", func(a *merge) {
				a.Output, a.PrefixOutput, a.SuffixOutput = ten(f32, 3, 0, 4), ten(f32, 3, 0, 4), ten(f32, 3, 0, 4)
				a.OutputLSE, a.PrefixLSE, a.SuffixLSE = ten(f32, 0, 3), ten(f32, 0, 3), ten(f32, 0, 3)
			}),
			no("heads of nothing", ErrShape, "output", func(a *merge) {
				a.Output, a.PrefixOutput, a.SuffixOutput = ten(f32, 3, 2, 0), ten(f32, 3, 2, 0), ten(f32, 3, 2, 0)
			}),
			no("lse by tokens", ErrShape, "prefix_lse", func(a *merge) { a.PrefixLSE = ten(f32, 3, 2) }),
			no("lse of bf16", ErrDType, "suffix_lse", func(a *merge) { a.SuffixLSE = ten(bf16, 2, 3) }),
			no("another dtype", ErrDType, "suffix_output", func(a *merge) { a.SuffixOutput = ten(f16, 3, 2, 4) }),
			no("other tokens", ErrShape, "prefix_output", func(a *merge) { a.PrefixOutput = ten(f32, 2, 2, 4) }),
			ok("no lse", func(a *merge) { a.OutputLSE = tensor.Tensor{} }),
			ok("f16", func(a *merge) {
				a.Output, a.PrefixOutput, a.SuffixOutput = ten(f16, 3, 2, 4), ten(f16, 3, 2, 4), ten(f16, 3, 2, 4)
			}),
			ok("some without context", func(a *merge) { a.PrefillTokensWithContext = 2 }),
		),
		caseOf(ConcatAndCacheMLA, write{KvC: ten(bf16, 3, 6), KPe: ten(bf16, 3, 2), KVCache: ten(bf16, 4, 2, 8), SlotMapping: ten(i64, 3)},
			no("width", ErrShape, "kv_cache", func(a *write) { a.KVCache = ten(bf16, 4, 2, 9) }),
			no("more slots than tokens", ErrShape, "slot_mapping", func(a *write) { a.SlotMapping = ten(i64, 4) }),
			no("i32 slots", ErrDType, "slot_mapping", func(a *write) { a.SlotMapping = ten(i32, 3) }),
			no("another dtype", ErrDType, "kv_cache", func(a *write) { a.KVCache = ten(f32, 4, 2, 8) }),
			no("bytes", ErrDType, "kv_cache", func(a *write) { a.KVCache = ten(tensor.F8E4M3FN, 4, 2, 8) }),
			no("rank 4", ErrRank, "kv_cache", func(a *write) { a.KVCache = ten(bf16, 4, 2, 1, 8) }),
			no("no latent", ErrShape, "kv_c", func(a *write) { a.KvC, a.KVCache = ten(bf16, 3, 0), ten(bf16, 4, 2, 2) }),
			no("no rotated part", ErrShape, "k_pe", func(a *write) { a.KPe, a.KVCache = ten(bf16, 3, 0), ten(bf16, 4, 2, 6) }),
			no("pages of no rows", ErrShape, "kv_cache", func(a *write) { a.KVCache = ten(bf16, 4, 0, 8) }),
			ok("fewer slots", func(a *write) { a.SlotMapping = ten(i64, 1) }),
		),
		caseOf(GatherMLACache, gather{Dst: ten(bf16, 5, 8), SrcCache: ten(bf16, 4, 2, 8), BlockTable: ten(i32, 2, 3), CuSeqLens: ten(i32, 3), TokenToSeq: ten(i32, 5), NumTokens: 5},
			no("negative count", ErrAttr, "num_tokens", func(a *gather) { a.NumTokens = -1 }),
			no("dst too small", ErrShape, "dst", func(a *gather) { a.Dst = ten(bf16, 4, 8) }),
			no("too few requests", ErrShape, "token_to_seq", func(a *gather) { a.TokenToSeq = ten(i32, 4) }),
			no("another dtype", ErrDType, "dst", func(a *gather) { a.SrcCache = ten(f32, 4, 2, 8) }),
			no("offsets", ErrShape, "cu_seq_lens", func(a *gather) { a.CuSeqLens = ten(i32, 2) }),
			no("starts", ErrShape, "seq_starts", func(a *gather) { a.SeqStarts = ten(i32, 3) }),
			no("no request", ErrShape, "block_table", func(a *gather) { a.BlockTable, a.CuSeqLens = ten(i32, 0, 3), ten(i32, 1) }),
			no("rows of nothing", ErrShape, "src_cache", func(a *gather) { a.Dst, a.SrcCache = ten(bf16, 5, 0), ten(bf16, 4, 2, 0) }),
			ok("starts of each", func(a *gather) { a.SeqStarts = ten(i32, 2) }),
			ok("room for more", func(a *gather) { a.NumTokens = 0 }),
		),
		caseOf(MLADecodeAttention, decode{Out: ten(f32, 2, 3, 6), LSE: ten(f32, 2, 3), Query: ten(f32, 2, 3, 8), KVCache: ten(f32, 4, 2, 8), BlockTable: ten(i32, 2, 3), SeqLens: ints32(3, 6), Scale: 1},
			no("scale unset", ErrAttr, "scale", func(a *decode) { a.Scale = 0 }),
			no("scale not a number", ErrAttr, "scale", func(a *decode) { a.Scale = nan }),
			no("negative splits", ErrAttr, "num_kv_splits", func(a *decode) { a.NumKVSplits = -1 }),
			no("negative hint", ErrAttr, "max_seq_len", func(a *decode) { a.MaxSeqLen = -1 }),
			no("wide values", ErrShape, "out", func(a *decode) { a.Out = ten(f32, 2, 3, 9) }),
			no("no values", ErrShape, "out", func(a *decode) { a.Out = ten(f32, 2, 3, 0) }),
			no("cache width", ErrShape, "kv_cache", func(a *decode) { a.KVCache = ten(f32, 4, 2, 7) }),
			no("rank 4", ErrRank, "kv_cache", func(a *decode) { a.KVCache = ten(f32, 4, 2, 1, 8) }),
			no("pages of no rows", ErrShape, "kv_cache", func(a *decode) { a.KVCache = ten(f32, 4, 0, 8) }),
			no("another dtype", ErrDType, "kv_cache", func(a *decode) { a.KVCache = ten(bf16, 4, 2, 8) }),
			ok("splits", func(a *decode) { a.NumKVSplits, a.MaxSeqLen = 4, 9 }),
			ok("no lse", func(a *decode) { a.LSE = tensor.Tensor{} }),
			ok("f16", func(a *decode) { a.Out, a.Query, a.KVCache = ten(f16, 2, 3, 6), ten(f16, 2, 3, 8), ten(f16, 4, 2, 8) }),
		),
		caseOf(MLAPrefillAttention, prefill{Out: ten(f32, 5, 2, 4), LSE: ten(f32, 2, 5), Query: ten(f32, 5, 2, 6), Key: ten(f32, 7, 2, 6), Value: ten(f32, 7, 2, 4),
			CuSeqlensQ: ints32(0, 2, 5), CuSeqlensK: ints32(0, 3, 7), Scale: 1, Causal: true},
			no("scale unset", ErrAttr, "scale", func(a *prefill) { a.Scale = 0 }),
			no("negative hint", ErrAttr, "max_seqlen_q", func(a *prefill) { a.MaxSeqlenQ = -1 }),
			no("negative other hint", ErrAttr, "max_seqlen_k", func(a *prefill) { a.MaxSeqlenK = -1 }),
			no("wide values", ErrShape, "out", func(a *prefill) { a.Out, a.Value = ten(f32, 5, 2, 7), ten(f32, 7, 2, 7) }),
			no("other heads", ErrShape, "key", func(a *prefill) { a.Key = ten(f32, 7, 1, 6) }),
			no("other requests", ErrShape, "cu_seqlens_k", func(a *prefill) { a.CuSeqlensK = ten(i32, 2) }),
			no("i64 offsets", ErrDType, "cu_seqlens_q", func(a *prefill) { a.CuSeqlensQ = ten(i64, 3) }),
			no("no request", ErrShape, "cu_seqlens_q", func(a *prefill) { a.CuSeqlensQ, a.CuSeqlensK = ten(i32, 1), ten(i32, 1) }),
			no("another dtype", ErrDType, "value", func(a *prefill) { a.Value = ten(f16, 7, 2, 4) }),
			ok("no lse", func(a *prefill) { a.LSE = tensor.Tensor{} }),
			ok("hints", func(a *prefill) { a.MaxSeqlenQ, a.MaxSeqlenK, a.Causal = 3, 4, false }),
		),
		caseOf(ConcatMLANopeRope, concat{Out: ten(bf16, 3, 2, 8), Nope: ten(bf16, 3, 2, 6), Rope: ten(bf16, 3, 2, 2)},
			no("width", ErrShape, "out", func(a *concat) { a.Out = ten(bf16, 3, 2, 9) }),
			no("some heads", ErrShape, "rope", func(a *concat) { a.Out, a.Nope = ten(bf16, 3, 4, 8), ten(bf16, 3, 4, 6) }),
			no("another dtype", ErrDType, "rope", func(a *concat) { a.Rope = ten(f32, 3, 2, 2) }),
			no("no nope", ErrShape, "nope", func(a *concat) { a.Out, a.Nope = ten(bf16, 3, 2, 2), ten(bf16, 3, 2, 0) }),
			no("no rope", ErrShape, "rope", func(a *concat) { a.Out, a.Rope = ten(bf16, 3, 2, 6), ten(bf16, 3, 2, 0) }),
			ok("one for all", func(a *concat) { a.Rope = ten(bf16, 3, 1, 2) }),
		),
		caseOf(MHAPrefill, MHAPrefillArgs{Out: ten(f32, 5, 4, 6), LSE: ten(f32, 4, 5), Query: ten(bf16, 5, 4, 8), Key: ten(bf16, 7, 2, 8), Value: ten(bf16, 7, 2, 6), CuSeqlensQ: ints32(0, 2, 5), CuSeqlensK: ints32(0, 3, 7), Scale: 1},
			no("heads not a multiple", ErrShape, "key", func(a *MHAPrefillArgs) { a.Key, a.Value = ten(bf16, 7, 3, 8), ten(bf16, 7, 3, 6) }),
			no("other width", ErrShape, "key", func(a *MHAPrefillArgs) { a.Key = ten(bf16, 7, 2, 6) }),
			no("other dtype", ErrDType, "value", func(a *MHAPrefillArgs) { a.Value = ten(f16, 7, 2, 6) }),
			no("other requests", ErrShape, "cu_seqlens_k", func(a *MHAPrefillArgs) { a.CuSeqlensK = ten(i32, 4) }),
			no("i64 offsets", ErrDType, "cu_seqlens_q", func(a *MHAPrefillArgs) { a.CuSeqlensQ = ten(i64, 3) }),
			no("lse by token", ErrShape, "lse", func(a *MHAPrefillArgs) { a.LSE = ten(f32, 5, 4) }),
			no("scale", ErrAttr, "scale", func(a *MHAPrefillArgs) { a.Scale = 0 }),
			no("window without windowed", ErrAttr, "windowed", func(a *MHAPrefillArgs) { a.WindowLeft = 1 }),
			no("soft cap", ErrAttr, "logits_soft_cap", func(a *MHAPrefillArgs) { a.LogitsSoftCap = nan }),
			ok("all of it", func(a *MHAPrefillArgs) {
				a.Causal, a.Windowed, a.WindowLeft, a.LogitsSoftCap, a.Sinks = true, true, 3, 5, ten(f32, 4)
			}),
		),
		caseOf(MHADecodeWithKVCache, MHADecodeWithKVCacheArgs{Out: ten(f32, 2, 1, 4, 32), LSE: ten(f32, 2, 4, 1), Query: ten(bf16, 2, 1, 4, 32), NewK: ten(bf16, 2, 1, 2, 32), NewV: ten(bf16, 2, 1, 2, 32),
			KCache: pagesOf(f16, 0, 5, 2, 2, 32), VCache: pagesOf(f16, 1, 5, 2, 2, 32), BlockTable: ten(i32, 2, 3), SeqLens: ints32(1, 4), Scale: 1, Causal: true},
			no("heads not a multiple", ErrShape, "k_cache", func(a *MHADecodeWithKVCacheArgs) {
				a.Query, a.Out, a.LSE = ten(bf16, 2, 1, 3, 32), ten(f32, 2, 1, 3, 32), tensor.Tensor{}
			}),
			no("keys alone", ErrAttr, "new_v", func(a *MHADecodeWithKVCacheArgs) { a.NewV = tensor.Tensor{} }),
			no("new heads", ErrShape, "k_cache", func(a *MHADecodeWithKVCacheArgs) { a.NewK, a.NewV = ten(bf16, 2, 1, 4, 32), ten(bf16, 2, 1, 4, 32) }),
			no("new dtype", ErrDType, "new_k", func(a *MHADecodeWithKVCacheArgs) { a.NewK = ten(f32, 2, 1, 2, 32) }),
			no("pages of no rows", ErrShape, "k_cache", func(a *MHADecodeWithKVCacheArgs) { a.KCache, a.VCache = ten(f16, 5, 0, 2, 32), ten(f16, 5, 0, 2, 32) }),
			no("caches of two dtypes", ErrDType, "v_cache", func(a *MHADecodeWithKVCacheArgs) { a.VCache = ten(bf16, 5, 2, 2, 32) }),
			no("other requests", ErrShape, "seq_lens", func(a *MHADecodeWithKVCacheArgs) { a.SeqLens = ten(i32, 3) }),
			no("scale", ErrAttr, "scale", func(a *MHADecodeWithKVCacheArgs) { a.Scale = inf }),
			ok("nothing new", func(a *MHADecodeWithKVCacheArgs) { a.NewK, a.NewV = tensor.Tensor{}, tensor.Tensor{} }),
			ok("q8_0", func(a *MHADecodeWithKVCacheArgs) {
				a.KCache, a.VCache = ten(tensor.Q8_0, 5, 2, 2, 32), ten(tensor.Q8_0, 5, 2, 2, 32)
			}),
		),
	}
}
