package sample

import (
	"fmt"
	"math"

	"github.com/opmux/opmux/tensor"
)

// mlaRecipes is for latent attention, its cache, and the named forms of attention.
var mlaRecipes = recipeTable{
	"mha_prefill":             mhaPrefill,
	"mha_decode_with_kvcache": mhaDecode,
	"merge_attn_states":       {shape: Shape{"T": 5, "H": 3, "D": 19}, big: Shape{"T": 33, "H": 4, "D": 100}, attrs: fixed("prefill_tokens_with_context", -1), least: Shape{"H": 1, "D": 1}, fills: sums, cases: mergeCases},
	"concat_and_cache_mla": {shape: Shape{"Tk": 5, "L": 32, "Dr": 8, "NB": 4, "BS": 8}, big: Shape{"Tk": 33, "L": 512, "Dr": 64, "NB": 9, "BS": 16}, derived: []string{"S", "E"}, derive: latentSlots,
		fill: fillers{"slot_mapping": slotFill}, least: Shape{"L": 1, "Dr": 1, "NB": 1, "BS": 1}, fills: anyFill, cases: latentWriteCases},
	"gather_mla_cache": {shape: Shape{"T": 9, "B": 2, "E": 40, "BS": 4}, big: Shape{"T": 70, "B": 3, "E": 576, "BS": 16}, derived: []string{"NB", "MB", "N"}, derive: contextPages,
		attrs: func(g *generator) map[string]any { return map[string]any{"num_tokens": g.shape["T"]} },
		least: Shape{"B": 1, "E": 1, "BS": 1}, fill: fillers{"cu_seq_lens": starts("T"), "token_to_seq": ownerOf, "block_table": between("NB"), "seq_starts": between("BS")}, fills: anyFill, cases: latentReadCases},
	"mla_decode_attention": {shape: Shape{"B": 3, "Tk": 21, "Hq": 4, "D": 40, "Dv": 32, "BS": 8}, big: Shape{"B": 4, "Tk": 70, "Hq": 6, "D": 72, "Dv": 64, "BS": 16}, batch: "B", derived: []string{"NB", "MB"}, derive: latentPages, attrs: headScale,
		least: Shape{"B": 1, "Hq": 1, "D": 1, "Dv": 1, "BS": 1}, fill: fillers{"seq_lens": pagedFill["seq_lens"], "block_table": pagedFill["block_table"]}, fit: fitNarrow, fills: sums, cases: latentDecodeCases},
	"mla_prefill_attention": {shape: Shape{"Tq": 7, "Tk": 19, "B": 2, "H": 3, "D": 24, "Dv": 16}, big: Shape{"Tq": 37, "Tk": 70, "B": 3, "H": 4, "D": 72, "Dv": 33}, attrs: headScale,
		least: Shape{"B": 1}, fill: fillers{"cu_seqlens_q": starts("Tq"), "cu_seqlens_k": starts("Tk")}, fit: fitNarrow, fills: sums, cases: latentPrefillCases},
	"concat_mla_nope_rope": {shape: Shape{"T": 5, "H": 3, "Dn": 16, "Dr": 8}, big: Shape{"T": 33, "H": 4, "Dn": 128, "Dr": 64}, batch: "T", derived: []string{"D", "Hr"}, derive: func(g *generator) error {
		g.set("D", g.shape["Dn"]+g.shape["Dr"])
		g.set("Hr", g.shape["H"])
		return nil
	}, least: Shape{"Dn": 1, "Dr": 1}, fills: anyFill, cases: func(b *builder) {
		b.add("one for all", Case{Shape: Shape{"T": 2, "H": 2, "Hr": 1, "Dn": 2, "Dr": 1}, Values: map[string][]float64{"nope": {1, 2, 3, 4, 5, 6, 7, 8}, "rope": {9, 10}},
			Want: map[string][]float64{"out": {1, 2, 9, 3, 4, 9, 5, 6, 10, 7, 8, 10}}})
		b.add("one for all, any strides", Case{Shape: Shape{"T": 3, "H": 4, "Hr": 1}, Strided: true})
	}},
}

// mlaTolerances is for those of them whose results are not exact.
var mlaTolerances = toleranceTable{
	"mha_prefill":             {ulps: 2, sum: 8, terms: func(s Shape) int64 { return s["Tk"] + s["D"] }, size: latentSize("key", "value")},
	"mha_decode_with_kvcache": {ulps: 2, sum: 8, terms: func(s Shape) int64 { return s["MB"]*s["BS"] + s["D"] }, size: latentSize("k_cache", "v_cache")},
	"merge_attn_states":       {ulps: 2, sum: 8, terms: extentOf("")},
	"mla_decode_attention":    {ulps: 2, sum: 8, terms: func(s Shape) int64 { return s["MB"]*s["BS"] + s["D"] }, size: latentSize("kv_cache", "kv_cache")},
	"mla_prefill_attention":   {ulps: 2, sum: 8, terms: func(s Shape) int64 { return s["Tk"] + s["D"] }, size: latentSize("key", "value")},
}

// latentSize is the size of values, or of logits for lse, times what an error of the logits makes of it.
func latentSize(key, val string) func(want *Args, output string) (func(i int) float64, error) {
	return func(want *Args, output string) (func(i int) float64, error) {
		d := max(want.shape["D"], 1)
		largest := func(name string) float64 {
			v := want.original(name)
			return largestOf(norms(v, max(int64(len(v))/d, 1)))
		}
		logit := 1 + want.rec.Elem().FieldByName("Scale").Float()*largest("query")*largest(key)
		size := logit * max(largestOf(want.original(val)), 1)
		return func(int) float64 { return size }, nil
	}
}

func latentSlots(g *generator) error {
	g.set("E", g.shape["L"]+g.shape["Dr"])
	return slots(g)
}

// contextPages derives pages that hold all tokens of the workspace, and one more row page for starts inside one.
func contextPages(g *generator) error {
	n := g.shape["T"]/max(g.shape["BS"], 1) + 2
	g.set("MB", n)
	g.set("NB", n)
	g.set("N", g.shape["T"])
	return nil
}

// ownerOf says which request each row of the workspace belongs to.
func ownerOf(g *generator, x *tensor.Tensor, s stream) value {
	cu := starts("T")(g, g.Tensor("cu_seq_lens"), s)
	return func(i int) float64 {
		b := 0
		for float64(i) >= cu(b+1) && int64(b)+1 < g.shape["B"] {
			b++
		}
		return float64(b)
	}
}

// latentPages derives pages for requests of one length unless the case gives seq_lens.
func latentPages(g *generator) error {
	bs, lens := max(g.shape["BS"], 1), g.c.Values["seq_lens"]
	if lens == nil {
		for range min(g.shape["B"], 1<<20) {
			lens = append(lens, float64(g.shape["Tk"]))
		}
	}
	most, total := int64(1), int64(1)
	for _, n := range lens {
		pages := (int64(max(n, 0)) + bs - 1) / bs
		most, total = max(most, pages), total+pages
	}
	g.set("MB", most)
	g.set("NB", total)
	return nil
}

// fitNarrow keeps values no wider than keys.
func fitNarrow(c *Case) bool {
	d, hasD := c.Shape["D"]
	dv, hasDv := c.Shape["Dv"]
	switch {
	case hasD && !hasDv:
		c.Shape["Dv"] = d
	case hasDv && !hasD:
		c.Shape["D"] = dv
	}
	return true
}

func mergeCases(b *builder) {
	inf := math.Inf(1)
	one := func(name string, n int, prefix, p, suffix, s, out, lse float64) {
		b.add(name, Case{Shape: Shape{"T": 1, "H": 1, "D": 1}, With: []string{"output_lse"}, Attrs: map[string]any{"prefill_tokens_with_context": n},
			Values: map[string][]float64{"prefix_output": {prefix}, "prefix_lse": {p}, "suffix_output": {suffix}, "suffix_lse": {s}}, Want: map[string][]float64{"output": {out}, "output_lse": {lse}}})
	}
	one("no prefix", -1, 0, negInf, 3, 1.5, 3, 1.5)
	one("no suffix", -1, 1, 0.5, 0, inf, 1, 0.5)
	one("neither", -1, 4, inf, 5, negInf, 4, negInf)
	one("equal", 1, 1, 0, 3, 0, 2, float64(float32(math.Log(2))))
	one("copied as it is", 0, 1, 9, 3, inf, 3, inf)
	for _, n := range []int{0, 3, 100} {
		b.add(fmt.Sprintf("context of %d", n), Case{Attrs: map[string]any{"prefill_tokens_with_context": n}, With: []string{"output_lse"}, Strided: true})
	}
	b.add("without lse", Case{Strided: true})
}

func latentWriteCases(b *builder) {
	for _, t := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		types := map[string]tensor.DType{"kv_c": t}
		b.add(fmt.Sprintf("some/%v", t), Case{Types: types, Strided: true, Values: map[string][]float64{"slot_mapping": {11, -1, 0, 5}}})
		b.add(fmt.Sprintf("twice/%v", t), Case{Types: types, Values: map[string][]float64{"slot_mapping": {3, 3, 3}}})
		b.add(fmt.Sprintf("slot out of range/%v", t), Case{Types: types, Values: map[string][]float64{"slot_mapping": {0, 32}}, Invalid: true})
	}
}

func latentReadCases(b *builder) {
	small := Shape{"T": 4, "B": 2, "E": 1, "BS": 2, "NB": 3, "MB": 2, "N": 4}
	cache := []float64{0, 1, 2, 3, 4, 5}
	add := func(name string, n int, values, want map[string][]float64) {
		all := map[string][]float64{"src_cache": cache, "block_table": {2, 0, 1, -1}, "cu_seq_lens": {0, 3, 4}, "token_to_seq": {0, 0, 0, 1}}
		for k, v := range values {
			all[k] = v
		}
		b.add(name, Case{Shape: small, Attrs: map[string]any{"num_tokens": n}, Values: all, Want: want, Invalid: want == nil})
	}
	add("by hand", 4, nil, map[string][]float64{"dst": {4, 5, 0, 2}})
	add("starts inside a page", 4, map[string][]float64{"seq_starts": {1, 1}}, map[string][]float64{"dst": {5, 0, 1, 3}})
	add("some", 2, nil, map[string][]float64{"dst": {4, 5, anything, anything}})
	add("behind the end", 4, map[string][]float64{"cu_seq_lens": {0, 2, 3}}, map[string][]float64{"dst": {4, 5, anything, anything}})
	add("invalid/page", 4, map[string][]float64{"block_table": {2, 3, 1, -1}}, nil)
	add("invalid/negative page", 4, map[string][]float64{"block_table": {2, -1, 1, -1}}, nil)
	add("invalid/request", 4, map[string][]float64{"token_to_seq": {0, 0, 2, 1}}, nil)
	add("invalid/negative request", 4, map[string][]float64{"token_to_seq": {0, 0, -1, 1}}, nil)
	add("invalid/before its request", 4, map[string][]float64{"token_to_seq": {0, 0, 1, 1}}, nil)
	add("invalid/behind the table", 4, map[string][]float64{"seq_starts": {2, 0}}, nil)
	add("invalid/negative start", 4, map[string][]float64{"seq_starts": {-1, 0}}, nil)
	add("invalid/falling offsets", 4, map[string][]float64{"cu_seq_lens": {0, 4, 3}}, nil)
	add("invalid/offsets not from 0", 4, map[string][]float64{"cu_seq_lens": {1, 3, 4}}, nil)
}

func latentDecodeCases(b *builder) {
	for _, t := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		b.add(fmt.Sprintf("ragged/%v", t), Case{Shape: Shape{"B": 4}, Types: map[string]tensor.DType{"query": t}, With: []string{"lse"}, Strided: t == tensor.BF16, Values: map[string][]float64{"seq_lens": {1, 0, 70, 33}}})
	}
	b.add("latent of 512", Case{Shape: Shape{"B": 2, "Hq": 16, "D": 576, "Dv": 512, "Tk": 130, "BS": 64}, Attrs: map[string]any{"scale": 0.05, "num_kv_splits": 4, "max_seq_len": 130}})
	b.add("nothing", Case{Shape: Shape{"B": 2}, With: []string{"lse"}, Values: map[string][]float64{"seq_lens": {0, 0}}})
	bad := func(name string, lens, table []float64) {
		b.add("invalid/"+name, Case{Shape: Shape{"B": 2, "NB": 3, "MB": 2, "BS": 8}, Values: map[string][]float64{"seq_lens": lens, "block_table": table}, Invalid: true})
	}
	bad("page out of range", []float64{9, 5}, []float64{0, 3, 2, -1})
	bad("page below range", []float64{9, 5}, []float64{0, -1, 2, -1})
	bad("length over the table", []float64{9, 17}, []float64{0, 1, 2, 1})
	bad("negative length", []float64{9, -1}, []float64{0, 1, 2, 1})
}

func latentPrefillCases(b *builder) {
	for _, t := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		for _, causal := range []bool{false, true} {
			b.add(fmt.Sprintf("ragged/%v/causal %v", t, causal), Case{Shape: Shape{"Tq": 12, "Tk": 40, "B": 4}, Types: map[string]tensor.DType{"query": t}, With: []string{"lse"}, Strided: t == tensor.F16,
				Attrs: map[string]any{"causal": causal, "max_seqlen_q": 5, "max_seqlen_k": 30}, Values: map[string][]float64{"cu_seqlens_q": {0, 3, 3, 8, 12}, "cu_seqlens_k": {0, 5, 10, 12, 40}}})
		}
	}
	bad := func(name string, q, k []float64) {
		b.add("invalid/"+name, Case{Shape: Shape{"Tq": 4, "Tk": 6, "B": 2}, Values: map[string][]float64{"cu_seqlens_q": q, "cu_seqlens_k": k}, Invalid: true})
	}
	bad("falling queries", []float64{0, 5, 4}, []float64{0, 3, 6})
	bad("queries beyond the rows", []float64{0, 2, 5}, []float64{0, 3, 6})
	bad("queries not from 0", []float64{1, 2, 4}, []float64{0, 3, 6})
	bad("falling keys", []float64{0, 2, 4}, []float64{0, 7, 6})
	bad("keys beyond the rows", []float64{0, 2, 4}, []float64{0, 3, 7})
}
