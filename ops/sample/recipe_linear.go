package sample

import (
	"fmt"
	"math"

	"github.com/opmux/opmux/tensor"
)

// linearRecipes is for gated delta nets and their convolutions.
var linearRecipes = recipeTable{
	"causal_conv1d_fwd": {shape: Shape{"T": 9, "C": 13, "N": 3, "K": 4}, big: Shape{"T": 40, "C": 300, "N": 4, "K": 5}, derived: []string{"KS"}, derive: window,
		least: Shape{"K": 1, "N": 1}, fill: fillers{"query_start_loc": starts("T")}, fills: sums, cases: convCases},
	"causal_conv1d_update": {shape: Shape{"B": 5, "C": 13, "K": 4}, big: Shape{"B": 9, "C": 300, "K": 5}, derived: []string{"KS", "N"}, derive: window,
		least: Shape{"K": 1}, fill: fillers{"conv_state_indices": slotsOf("B")}, fills: sums, cases: convUpdateCases},
	"gdn_prefill": {shape: Shape{"T": 7, "Hk": 2, "Hv": 4, "Dk": 8, "Dv": 5, "N": 2}, big: Shape{"T": 20, "Hk": 1, "Hv": 3, "Dk": 33, "Dv": 18, "N": 3}, attrs: fixed("scale", 0.25),
		least: Shape{"N": 1}, fill: deltaFill(fillers{"query_start_loc": starts("T")}), fit: fitValueHeads, fills: []Fill{Zero, Equal, Ties, Denormal, NaN}, cases: deltaCases("T")},
	"gdn_decode": {shape: Shape{"B": 3, "Hk": 2, "Hv": 4, "Dk": 8, "Dv": 5}, big: Shape{"B": 5, "Hk": 1, "Hv": 3, "Dk": 33, "Dv": 18}, derived: []string{"N"}, derive: window, attrs: fixed("scale", 0.25),
		fill: deltaFill(fillers{"state_idx": slotsOf("B")}), fit: fitValueHeads, fills: []Fill{Zero, Equal, Ties, Denormal, NaN}, cases: deltaCases("B")},
	"gdn_packed_decode": {shape: Shape{"B": 3, "Hk": 2, "Hv": 4, "Dk": 8, "Dv": 5, "N": 4}, big: Shape{"B": 5, "Hk": 1, "Hv": 3, "Dk": 33, "Dv": 18, "N": 7}, derived: []string{"W", "N"}, derive: packedWidth,
		attrs: fixed("scale", 0.25), least: Shape{"Hk": 1, "Hv": 1, "Dk": 1}, fill: fillers{"state_idx": slotsOf("B")}, fit: fitValueHeads, fills: sums, cases: packedCases},
	"gdn_state_gather": {shape: Shape{"N": 3, "S": 5, "H": 24}, big: Shape{"N": 4, "S": 6, "H": 5000}, shapes: map[string]string{"working": "N,H|N,2,H|N,2,1,H", "cache": "S,H|S,2,H|S,2,1,H"}, least: Shape{"S": 1},
		fill: fillers{"state_idx": between("S")}, fit: fitStates("working", "cache"), fills: anyFill, cases: gatherCases("cache")},
	"gdn_state_scatter": {shape: Shape{"N": 3, "S": 5, "H": 24}, big: Shape{"N": 4, "S": 6, "H": 5000}, shapes: map[string]string{"working": "N,H|N,2,H|N,2,1,H", "cache": "S,H|S,2,H|S,2,1,H"}, least: Shape{"S": 1},
		fill: fillers{"state_idx": between("S")}, fit: fitStates("working", "cache"), fills: anyFill, cases: gatherCases("working")},
	"gdn_g_beta": {shape: Shape{"T": 5, "Hv": 7}, big: Shape{"T": 9, "Hv": 40}, batch: "T", fills: []Fill{Zero, Ties, Huge, NegInf, NaN}, cases: gateCases},
	"gdn_conv_split": {shape: Shape{"T": 3, "Q": 8, "V": 20}, big: Shape{"T": 5, "Q": 33, "V": 96}, batch: "T", shapes: map[string]string{"q_out": "T,Q", "k_out": "T,Q", "v_out": "T,V"}, least: Shape{"T": 1},
		derived: []string{"W"}, derive: func(g *generator) error {
			g.set("W", 2*g.shape["Q"]+g.shape["V"])
			return nil
		}, fills: anyFill, cases: noCases},
	"gdn_post_conv": {shape: Shape{"T": 3, "Hk": 2, "Hv": 4, "Dk": 8, "Dv": 5}, big: Shape{"T": 5, "Hk": 3, "Hv": 6, "Dk": 33, "Dv": 18}, batch: "T", least: Shape{"T": 1}, derived: []string{"W"},
		derive: packedWidth, attrs: fixed("eps", 1e-6), fills: []Fill{Zero, Equal, Ties, Denormal, NaN}, cases: noCases},
}

// linearTolerances is for those of them whose results are not exact.
var linearTolerances = toleranceTable{
	"causal_conv1d_fwd":    {ulps: 2, sum: 8, terms: extentOf("K")},
	"causal_conv1d_update": {ulps: 2, sum: 8, terms: extentOf("K")},
	"gdn_prefill":          {ulps: 2, sum: 64, terms: func(s Shape) int64 { return s["Dk"] * max(s["T"], 1) }},
	"gdn_decode":           {ulps: 2, sum: 16, terms: extentOf("Dk")},
	"gdn_packed_decode":    {ulps: 2, sum: 32, terms: extentOf("Dk")},
	"gdn_g_beta":           {ulps: 4, sum: 8, terms: extentOf("")},
	"gdn_post_conv":        {ulps: 2, sum: 8, terms: extentOf("Dk")},
}

func noCases(*builder) {}

// window derives the carried inputs of a convolution, and the states of a decode step.
func window(g *generator) error {
	g.set("KS", g.shape["K"]-1)
	rows, decode := g.shape["B"]
	if !decode {
		return nil
	}
	if g.set("N", rows); g.has("conv_state_indices") || g.has("state_idx") {
		g.set("N", rows+1)
	}
	return nil
}

func packedWidth(g *generator) error {
	g.set("W", 2*g.shape["Hk"]*g.shape["Dk"]+g.shape["Hv"]*g.shape["Dv"])
	g.set("N", g.shape["B"]+1)
	return nil
}

// starts returns offsets that cut rows into sequences of different lengths, some of them empty.
func starts(rows string) func(g *generator, x *tensor.Tensor, s stream) value {
	return func(g *generator, x *tensor.Tensor, _ stream) value {
		n, all := x.Shape[0]-1, g.shape[rows]
		return func(i int) float64 {
			if int64(i) == n {
				return float64(all)
			}
			return float64(all * int64(i) * int64(i) / max(n*n, 1))
		}
	}
}

// slotsOf returns states in reverse order, the second row without one.
func slotsOf(rows string) func(g *generator, x *tensor.Tensor, s stream) value {
	return func(g *generator, _ *tensor.Tensor, _ stream) value {
		return func(i int) float64 {
			if i == 1 {
				return -1
			}
			return float64(g.shape[rows] - int64(i))
		}
	}
}

// deltaFill adds decays below 1 and strengths of the write.
func deltaFill(more fillers) fillers {
	f := fillers{"g": span(-1, 0), "beta": span(0, 1), "k": span(-0.5, 0.5), "q": span(-0.5, 0.5)}
	for name, fill := range more {
		f[name] = fill
	}
	return f
}

// fitValueHeads makes the value heads a multiple of the key heads.
func fitValueHeads(c *Case) bool {
	hk, k := c.Shape["Hk"]
	hv, v := c.Shape["Hv"]
	switch {
	case k && hk == 0 || v && hv == 0:
		return false
	case k && !v:
		c.Shape["Hv"] = 2 * hk
	case v && !k:
		c.Shape["Hk"] = 1
	}
	return true
}

// fitStates gives two operands one form.
func fitStates(a, b string) func(*Case) bool {
	return func(c *Case) bool {
		n := max(c.Forms[a], c.Forms[b])
		if n > 0 {
			c.Forms = map[string]int{a: n, b: n}
		}
		return true
	}
}

func convCases(b *builder) {
	b.add("golden", Case{Shape: Shape{"T": 3, "C": 1, "K": 3, "N": 1}, Values: map[string][]float64{"x": {1, 2, 4}, "weight": {0.5, 0.25, 2}, "conv_state": {8, 16}, "has_initial_state": {1}},
		Want: map[string][]float64{"out": {10, 12.25, 9}, "conv_state": {2, 4}}})
	b.add("silu", Case{Attrs: map[string]any{"silu_activation": true}, Types: map[string]tensor.DType{"bias": tensor.F32}})
	b.add("short, fresh", Case{Shape: Shape{"T": 1, "C": 1, "K": 4, "N": 1}, Values: map[string][]float64{"x": {3}, "weight": {1, 1, 1, 2}, "conv_state": {7, 8, 9}, "has_initial_state": {0}},
		Want: map[string][]float64{"out": {6}, "conv_state": {0, 0, 3}}})
	b.add("empty sequences", Case{Shape: Shape{"T": 0, "C": 1, "K": 3, "N": 2}, Values: map[string][]float64{"query_start_loc": {0, 0, 0}, "conv_state": {1, 2, 3, 4}, "has_initial_state": {1, 0}},
		Want: map[string][]float64{"conv_state": {1, 2, 0, 0}}})
	for name, cu := range map[string][]float64{"starts at 1": {1, 5, 9}, "falls": {0, 9, 3}, "ends early": {0, 4, 8}, "ends late": {0, 4, 10}, "negative": {0, -1, 9}} {
		b.add("invalid/"+name, Case{Shape: Shape{"T": 9, "N": 2}, Values: map[string][]float64{"query_start_loc": cu}, Invalid: true})
	}
}

func convUpdateCases(b *builder) {
	b.add("golden", Case{Shape: Shape{"B": 1, "C": 1, "K": 3}, Values: map[string][]float64{"x": {1}, "weight": {0.5, 0.25, 2}, "conv_state": {8, 16}},
		Want: map[string][]float64{"out": {10}, "conv_state": {16, 1}}})
	b.add("silu", Case{Attrs: map[string]any{"silu_activation": true}, With: []string{"conv_state_indices"}, Types: map[string]tensor.DType{"bias": tensor.F16}})
	b.add("one tap", Case{Shape: Shape{"B": 2, "C": 1, "K": 1}, Values: map[string][]float64{"x": {1, 2}, "weight": {3}}, Want: map[string][]float64{"out": {3, 6}}})
	b.add("invalid/index", Case{Shape: Shape{"B": 2}, Values: map[string][]float64{"conv_state_indices": {0, 3}}, Invalid: true})
}

func deltaCases(rows string) func(*builder) {
	return func(b *builder) {
		one := Shape{rows: 1, "Hk": 1, "Hv": 1, "Dk": 2, "Dv": 2}
		if rows == "T" {
			one["N"] = 1
		}
		golden := map[string][]float64{"q": {0.6, 0.8}, "k": {0.8, -0.6}, "v": {1, -2}, "g": {-0.5}, "beta": {0.25}, "state": {0.5, -0.25, 1, 0.125}}
		bits := func(v ...uint32) (list []float64) {
			for _, u := range v {
				list = append(list, float64(math.Float32frombits(u)))
			}
			return list
		}
		b.add("golden", Case{Shape: one, Attrs: map[string]any{"scale": 0.5}, Values: golden,
			Want: map[string][]float64{"out": bits(0x3cf86f60, 0x3e59616e), "state": bits(0x3edf8316, 0xbe80d0ea, 0x3df2dc04, 0x3ee23089)}})
		b.add("tiled heads", Case{Shape: Shape{"Hk": 2, "Hv": 6}, Attrs: map[string]any{"scale": 0.5, "tiled_heads": true}, With: []string{"g", "beta"}})
		b.add("additive", Case{Attrs: map[string]any{"scale": 0.5, "additive": true}, With: []string{"g", "beta"}})
		b.add("decay of columns", Case{With: []string{"g", "beta"}, Forms: map[string]int{"g": 1}})
		if rows == "T" {
			for name, cu := range map[string][]float64{"starts at 1": {1, 5, 7}, "falls": {0, 7, 3}, "ends early": {0, 4, 6}, "ends late": {0, 4, 8}} {
				b.add("invalid/"+name, Case{Values: map[string][]float64{"query_start_loc": cu}, Invalid: true})
			}
			return
		}
		b.add("indices", Case{With: []string{"g", "beta", "state_idx"}, Types: map[string]tensor.DType{"state": tensor.BF16}})
		b.add("no state", Case{Shape: one, Values: map[string][]float64{"state_idx": {-1}}, Want: map[string][]float64{"out": {0, 0}}})
		b.add("invalid/index", Case{Shape: Shape{"B": 2}, Values: map[string][]float64{"state_idx": {0, 3}}, Invalid: true})
	}
}

func packedCases(b *builder) {
	b.add("no state", Case{Shape: Shape{"B": 1, "Hk": 1, "Hv": 1, "Dk": 2, "Dv": 2}, Values: map[string][]float64{"state_idx": {-1}}, Want: map[string][]float64{"out": {0, 0}}})
	b.add("invalid/index", Case{Shape: Shape{"B": 2}, Values: map[string][]float64{"state_idx": {0, 3}}, Invalid: true})
	b.add("invalid/twice", Case{Shape: Shape{"B": 3}, Values: map[string][]float64{"state_idx": {2, -1, 2}}, Invalid: true})
}

func gatherCases(source string) func(*builder) {
	return func(b *builder) {
		for name, idx := range map[string][]float64{"beyond": {0, 5}, "negative": {0, -1}} {
			b.add("invalid/"+name, Case{Shape: Shape{"N": 2, "S": 5}, Values: map[string][]float64{"state_idx": idx}, Invalid: true})
		}
		rows := Case{Shape: Shape{"N": 2, "S": 2, "H": 2}, Values: map[string][]float64{"state_idx": {1, 0}, source: {1, 2, 3, 4}}}
		if source == "cache" {
			rows.Want = map[string][]float64{"working": {3, 4, 1, 2}}
			zeros := rows
			zeros.Values = map[string][]float64{"state_idx": {1, 0}, source: {1, 2, 3, 4}, "has_initial_state": {0, 2}}
			zeros.Want = map[string][]float64{"working": {0, 0, 1, 2}}
			b.add("fresh", zeros)
		} else {
			rows.Want = map[string][]float64{"cache": {3, 4, 1, 2}}
		}
		b.add("two rows", rows)
	}
}

func gateCases(b *builder) {
	for _, x := range []float64{20, 19.99, 20.01, -100, 88, -88} {
		b.add(fmt.Sprintf("a=%v", x), Case{Shape: Shape{"T": 1, "Hv": 1}, Values: map[string][]float64{"a": {x}, "dt_bias": {0}, "a_log": {0}, "b": {0}},
			Want: map[string][]float64{"g_out": {anything}, "beta_out": {0.5}}})
	}
}
