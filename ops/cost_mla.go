package ops

// mlaCosts is for latent attention, its cache, and the named forms of attention.
var mlaCosts = costTable{
	// Two exponentials of a head are small change; two products and a sum of an element are not.
	OpMergeAttnStates: cost(func(t *tally, a *MergeAttnStatesArgs) { t.each(&a.Output, 3) }),
	OpConcatAndCacheMLA: movement(func(t *tally, a *ConcatAndCacheMLAArgs) {
		rows := int64(0)
		for _, s := range indices(t, &a.SlotMapping) {
			rows += int64(count(s >= 0))
		}
		t.read("kv_c", rows*rowBytes(&a.KvC))
		t.read("k_pe", rows*rowBytes(&a.KPe))
		t.read("kv_cache", 0)
		t.written("kv_cache", rows*rowBytes(&a.KVCache))
	}),
	OpGatherMLACache: movement(func(t *tally, a *GatherMLACacheArgs) {
		t.read("src_cache", a.NumTokens*rowBytes(&a.SrcCache))
		t.written("dst", a.NumTokens*rowBytes(&a.Dst))
	}),
	OpMLADecodeAttention: cost(func(t *tally, a *MLADecodeAttentionArgs) {
		keys, pages, page := int64(0), int64(0), a.KVCache.Shape[1]
		for _, n := range visible[int32](t, &a.SeqLens) {
			if n > 0 && page > 0 {
				keys += int64(n)
				pages += (int64(n)-1)/page + 1
			}
		}
		t.FLOPs = 2 * float64(keys) * float64(a.Query.Shape[1]) * float64(a.Query.Last()+a.Out.Last())
		t.read("kv_cache", keys*rowBytes(&a.KVCache))
		t.read("block_table", pages*int64(a.BlockTable.DType.Size()))
	}),
	OpMLAPrefillAttention: cost(func(t *tally, a *MLAPrefillAttentionArgs) {
		cq, ck := visible[int32](t, &a.CuSeqlensQ), visible[int32](t, &a.CuSeqlensK)
		var pairs, keys, rows int64
		for b := range min(len(cq), len(ck)) - 1 {
			lq, lk := min(int64(cq[b+1])-int64(cq[b]), a.Query.Shape[0]), int64(ck[b+1])-int64(ck[b])
			if lq <= 0 || lk < 0 {
				continue
			}
			p, first, end, n := seen(lq, lk, lk-lq, a.Causal, false, 0, 0)
			pairs, keys, rows = pairs+p, keys+end-first, rows+n
		}
		h := a.Query.Shape[1]
		t.FLOPs = 2 * float64(pairs) * float64(h) * float64(a.Query.Last()+a.Out.Last())
		t.read("query", rows*h*rowBytes(&a.Query))
		t.read("key", keys*h*rowBytes(&a.Key))
		t.read("value", keys*h*rowBytes(&a.Value))
	}),
	OpConcatMLANopeRope:    moved,
	OpMHAPrefill:           cost(prefillCost),
	OpMHADecodeWithKVCache: cost(decodeCost),
}

// mlaSymbols is for the same ops.
var mlaSymbols = symbolTable{
	"merge_attn_states T":       {"tokens", true, []string{"num_tokens"}},
	"concat_and_cache_mla Tk":   {"tokens", true, []string{"num_tokens"}},
	"concat_and_cache_mla L":    {"elements", false, []string{"kv_lora_rank"}},
	"concat_and_cache_mla Dr":   {"elements", false, []string{"qk_rope_head_dim"}},
	"gather_mla_cache T":        {"rows", true, nil},
	"gather_mla_cache N":        {"entries", true, nil},
	"gather_mla_cache B":        {"requests", true, []string{"batch_size"}},
	"mla_decode_attention B":    {"requests", true, []string{"batch_size"}},
	"mla_prefill_attention Tq":  {"tokens", true, []string{"num_tokens"}},
	"mla_prefill_attention B":   {"requests", true, []string{"batch_size"}},
	"mha_prefill Tq":            {"tokens", true, []string{"num_tokens"}},
	"mha_prefill R":             {"requests", true, []string{"batch_size"}},
	"mha_decode_with_kvcache R": {"requests", true, []string{"batch_size"}},
	"mha_decode_with_kvcache L": {"tokens", true, []string{"q_len"}},
	"concat_mla_nope_rope T":    {"tokens", true, []string{"num_tokens"}},
	"concat_mla_nope_rope Dn":   {"elements", false, []string{"qk_nope_head_dim"}},
	"concat_mla_nope_rope Dr":   {"elements", false, []string{"qk_rope_head_dim"}},
}
