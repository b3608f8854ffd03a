package sample

import (
	"fmt"
	"math"
	"slices"

	"github.com/opmux/opmux/tensor"
)

var mhaPrefill = &recipe{shape: Shape{"Tq": 7, "Tk": 19, "R": 2, "Hq": 6, "Hk": 2, "D": 19, "Dv": 19}, big: Shape{"Tq": 37, "Tk": 70, "R": 3, "Hq": 6, "Hk": 3, "D": 40, "Dv": 33}, attrs: headScale,
	least: Shape{"R": 1}, fill: fillers{"cu_seqlens_q": evenly("Tq"), "cu_seqlens_k": evenly("Tk")}, fit: fitHeads, fills: sums, cases: mhaPrefillCases}

var mhaDecode = &recipe{shape: Shape{"R": 2, "L": 2, "Tk": 21, "Hq": 6, "Hk": 2, "D": 32, "BS": 8}, big: Shape{"R": 3, "L": 3, "Tk": 70, "Hq": 6, "Hk": 3, "D": 64, "BS": 16}, attrs: headScale,
	derived: []string{"NB", "MB"}, derive: requests, least: Shape{"R": 1, "BS": 1}, fill: fillers{"seq_lens": pagedFill["seq_lens"], "block_table": pagedFill["block_table"]},
	fit: func(c *Case) bool {
		if slices.Contains(c.With, "new_k") || slices.Contains(c.With, "new_v") {
			c.With = append(slices.DeleteFunc(slices.Clone(c.With), func(n string) bool { return n == "new_k" || n == "new_v" }), "new_k", "new_v")
		}
		return fitHeads(c)
	}, fills: sums, cases: mhaDecodeCases}

// evenly spreads rows over the sequences.
func evenly(symbol string) func(g *generator, x *tensor.Tensor, s stream) value {
	return func(g *generator, _ *tensor.Tensor, _ stream) value {
		return func(i int) float64 { return float64(int64(i) * g.shape[symbol] / max(g.shape["R"], 1)) }
	}
}

// mhaAttrs are the attributes of every form of attention.
var mhaAttrs = map[string]map[string]any{"causal": {"causal": true}, "window": {"causal": true, "windowed": true, "window_left": 4},
	"both ways": {"windowed": true, "window_left": 3, "window_right": 2}, "soft cap": {"causal": true, "logits_soft_cap": 2.0}}

func mhaPrefillCases(b *builder) {
	ragged := map[string][]float64{"cu_seqlens_q": {0, 3, 3, 8, 9}, "cu_seqlens_k": {0, 5, 9, 12, 19}}
	for name, attrs := range mhaAttrs {
		b.add("ragged/"+name, Case{Shape: Shape{"Tq": 9, "R": 4}, Attrs: attrs, Values: ragged, With: []string{"lse"}})
		b.add("ragged/sinks/"+name, Case{Shape: Shape{"Tq": 9, "R": 4}, Attrs: attrs, Values: ragged, With: []string{"lse", "sinks"}})
	}
	negInf := math.Inf(-1)
	b.add("no keys", Case{Shape: Shape{"Tq": 1, "Tk": 0, "R": 1, "Hq": 1, "Hk": 1, "D": 2, "Dv": 2}, With: []string{"lse"}, Want: map[string][]float64{"out": {0, 0}, "lse": {negInf}}})
	b.add("mean of two", Case{Shape: Shape{"Tq": 1, "Tk": 2, "R": 1, "Hq": 1, "Hk": 1, "D": 1, "Dv": 1}, With: []string{"lse"}, Values: map[string][]float64{"query": {0}, "key": {3, -7}, "value": {1, 5}},
		Want: map[string][]float64{"out": {3}, "lse": {math.Ln2}}})
	bad := func(name string, q, k []float64) {
		b.add("offsets/"+name, Case{Values: map[string][]float64{"cu_seqlens_q": q, "cu_seqlens_k": k}, Invalid: true})
	}
	bad("falling", []float64{0, 8, 7}, []float64{0, 9, 19})
	bad("not from 0", []float64{1, 3, 7}, []float64{0, 9, 19})
	bad("short of the end", []float64{0, 3, 6}, []float64{0, 9, 19})
	bad("keys beyond the end", []float64{0, 3, 7}, []float64{0, 9, 20})
}

func mhaDecodeCases(b *builder) {
	caches := []tensor.DType{tensor.F32, tensor.F16, tensor.BF16, tensor.Q8_0}
	for name, attrs := range mhaAttrs {
		for _, t := range caches {
			for _, with := range [][]string{{"lse"}, {"new_k", "new_v", "lse"}, {"new_k", "new_v", "sinks"}} {
				b.add(fmt.Sprintf("%s/%v/%v", name, t, with), Case{Shape: Shape{"R": 3}, Attrs: attrs, Types: map[string]tensor.DType{"k_cache": t}, With: with, Strided: !t.IsBlock(),
					Values: map[string][]float64{"seq_lens": {2, 17, 9}}})
			}
		}
	}
	negInf := math.Inf(-1)
	b.add("an empty request", Case{Shape: Shape{"R": 2, "L": 1, "Hq": 1, "Hk": 1, "D": 1, "BS": 2, "NB": 2, "MB": 1}, With: []string{"lse"}, Values: map[string][]float64{"seq_lens": {0, 1},
		"block_table": {-1, 1}, "query": {1, 1}, "k_cache": {9, 9, 2, 9}, "v_cache": {9, 9, 5, 9}}, Want: map[string][]float64{"out": {0, 5}, "lse": {negInf, 2}}})
	b.add("a new token", Case{Shape: Shape{"R": 1, "L": 1, "Hq": 1, "Hk": 1, "D": 1, "BS": 2, "NB": 2, "MB": 2}, Values: map[string][]float64{"seq_lens": {3}, "block_table": {1, 0}, "query": {0},
		"k_cache": {8, 8, 1, 1}, "v_cache": {8, 8, 1, 2}, "new_k": {4}, "new_v": {6}}, Want: map[string][]float64{"out": {3}, "k_cache": {4, 8, 1, 1}, "v_cache": {6, 8, 1, 2}}})
	bad := func(name string, with []string, lens, table []float64) {
		b.add("invalid/"+name, Case{Shape: Shape{"R": 2, "NB": 3, "MB": 2}, With: with, Values: map[string][]float64{"seq_lens": lens, "block_table": table}, Invalid: true})
	}
	table := []float64{0, 1, 2, 0}
	bad("negative length", nil, []float64{9, -1}, table)
	bad("length over the table", nil, []float64{9, 17}, table)
	bad("new tokens before the start", []string{"new_k", "new_v"}, []float64{9, 1}, table)
	bad("page out of range", nil, []float64{9, 9}, []float64{0, 3, 2, 0})
	bad("page below range", nil, []float64{9, 9}, []float64{0, 1, 2, -1})
}
