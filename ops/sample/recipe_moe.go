package sample

import (
	"math"
	"sync"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// moeRecipes is for mixtures of experts.
var moeRecipes = recipeTable{
	"moe_router_topk": {shape: Shape{"T": 3, "K": 2, "E": 8}, big: Shape{"T": 9, "K": 8, "E": 256}, batch: "T", spread: 2, still: []string{"K"}, least: Shape{"E": 2}, fit: fitRouter,
		fills: []Fill{Zero, Equal, Ties, NegInf, NaN}, cases: routerCases},
	"moe_softmax_topk": {shape: Shape{"T": 3, "K": 2, "E": 8}, big: Shape{"T": 9, "K": 8, "E": 256}, batch: "T", spread: 2, still: []string{"K"}, least: Shape{"E": 2},
		fills: []Fill{Zero, Equal, Ties, NegInf, NaN}, cases: routerTopCases},
	"moe_sigmoid_topk": {shape: Shape{"T": 3, "K": 2, "E": 8}, big: Shape{"T": 9, "K": 8, "E": 256}, batch: "T", spread: 2, still: []string{"K"}, least: Shape{"E": 2},
		fills: []Fill{Zero, Equal, Ties, NegInf, NaN}, cases: routerTopCases},
	"moe_combine":        {shape: Shape{"T": 3, "K": 2, "H": 21}, big: Shape{"T": 5, "K": 4, "H": 333}, batch: "T", fill: fillers{"weights": span(0, 1)}, fills: sums, cases: combineCases},
	"moe_combine_gate":   {shape: Shape{"T": 3, "K": 2, "H": 21}, big: Shape{"T": 5, "K": 4, "H": 333}, batch: "T", shapes: map[string]string{"gl": "T"}, fill: fillers{"weights": span(0, 1)}, fills: sums, cases: noCases},
	"shared_expert_gate": {shape: Shape{"T": 3, "H": 21}, big: Shape{"T": 5, "H": 333}, batch: "T", shapes: map[string]string{"sd": "T,H", "gl": "T"}, fills: anyFill, cases: noCases},
	"moe_add_bias":       {shape: Shape{"T": 3, "K": 2, "H": 21, "E": 5}, big: Shape{"T": 5, "K": 4, "H": 333, "E": 9}, batch: "T", least: Shape{"E": 1}, fill: fillers{"ids": between("E")}, fills: anyFill, cases: badIDs("ids")},
	"moe_grouped_gemm": {shape: Shape{"P": 6, "R": 6, "N": 21, "K": 256, "E": 4}, big: Shape{"P": 20, "R": 20, "N": 70, "K": 512, "E": 5}, shapes: pairShapes, still: []string{"P", "R"}, least: Shape{"E": 1},
		fill: fillers{"expert_ids": between("E"), "row_map": between("R")}, fills: []Fill{Zero, Equal, Ties, Denormal}, cases: badIDs("expert_ids")},
	"moe_grouped_gemm_bf16": {shape: Shape{"P": 6, "R": 6, "N": 21, "K": 24, "E": 4}, big: Shape{"P": 20, "R": 20, "N": 70, "K": 100, "E": 5}, shapes: pairShapes, still: []string{"P", "R"}, least: Shape{"E": 1},
		fill: fillers{"expert_ids": between("E"), "row_map": between("R"), "weights": dataOrAddress}, fit: fitAddresses("weights"), fills: []Fill{Zero, Equal, Ties, Denormal}, cases: badIDs("expert_ids")},
	"moe_grouped_gemm_nvfp4": {shape: Shape{"P": 6, "R": 6, "N": 64, "K": 32, "E": 4}, big: Shape{"P": 20, "R": 20, "N": 128, "K": 96, "E": 5}, shapes: pairShapes, still: []string{"P", "R"}, least: Shape{"E": 1}, step: Shape{"K": 16, "N": 64},
		derived: []string{"A", "B", "C", "D"}, derive: expertExtents, attrs: func(g *generator) map[string]any {
			if g.c.Types["packed"] == tensor.I32 {
				return map[string]any{"weight_layout": 1}
			}
			return nil
		},
		fill: fillers{"expert_ids": between("E"), "row_map": between("R"), "packed": codesOrAddress, "scales": scalesOrAddress, "scale2s": span(0.5, 1)}, fit: fitExperts,
		fills: []Fill{Zero, Equal, Ties, Denormal}, cases: badIDs("expert_ids")},
	"moe_align_block_size": {shape: Shape{"P": 5}, big: Shape{"P": 100}, shapes: map[string]string{"topk_ids": "P"}, derived: []string{"L", "G"}, derive: alignExtents,
		attrs: func(*generator) map[string]any { return map[string]any{"num_experts": 4, "block_size": 2} }, fill: fillers{"topk_ids": wholes(-1, 5)}, cases: alignCases},
}

// moeTolerances is for those of them whose results are not exact.
var moeTolerances = toleranceTable{
	"moe_router_topk":        {ulps: 1, sum: 4, terms: extentOf("E")},
	"moe_softmax_topk":       {ulps: 1, sum: 4, terms: extentOf("E")},
	"moe_sigmoid_topk":       {ulps: 1, sum: 4, terms: extentOf("K")},
	"moe_combine":            {ulps: 1, sum: 4, terms: extentOf("K"), size: largestOut},
	"moe_combine_gate":       {ulps: 2, sum: 4, terms: extentOf("K"), size: largestOut},
	"shared_expert_gate":     {ulps: 1, sum: 4, terms: extentOf("")},
	"moe_grouped_gemm":       {ulps: 1, sum: 4, terms: extentOf("K"), size: largestOut},
	"moe_grouped_gemm_bf16":  {ulps: 1, sum: 4, terms: extentOf("K"), size: largestOut},
	"moe_grouped_gemm_nvfp4": {ulps: 1, sum: 4, terms: extentOf("K"), size: largestOut},
}

var pairShapes = map[string]string{"expert_ids": "P", "row_map": "P"}

// expertPool is memory that tables of addresses point into: nothing else in a record can stand for an address. It holds bf16
// numbers of about 1, which are codes and scales as well.
var expertPool struct {
	once sync.Once
	mem  [1 << 19]uint16
}

// address returns where an expert's weights lie. Experts overlap; kernels only read.
func address(expert int) float64 {
	expertPool.once.Do(func() {
		for i := range expertPool.mem {
			expertPool.mem[i] = tensor.EncodeBF16(float32(math.Ldexp(float64(i*37%64+64), -6-i%3)))
		}
	})
	return float64(uintptr(unsafe.Pointer(&expertPool.mem[expert*64])))
}

// orAddress gives the operand addresses if it is a table of them, else what f returns.
func orAddress(f func(g *generator, x *tensor.Tensor, s stream) value) func(g *generator, x *tensor.Tensor, s stream) value {
	return func(g *generator, x *tensor.Tensor, s stream) value {
		if x.DType == tensor.I64 {
			return address
		}
		return f(g, x, s)
	}
}

var (
	dataOrAddress   = orAddress(func(g *generator, x *tensor.Tensor, s stream) value { return g.data(x, s) })
	scalesOrAddress = orAddress(fp8Scale)
	codesOrAddress  = orAddress(func(g *generator, x *tensor.Tensor, s stream) value {
		if x.DType == tensor.I32 {
			return func(i int) float64 { return float64(int32(s.bits(i))) }
		}
		return anyByte(g, x, s)
	})
)

// fitAddresses gives a table of addresses its form.
func fitAddresses(operands ...string) func(*Case) bool {
	return func(c *Case) bool {
		for _, o := range operands {
			switch t, ok := c.Types[o]; {
			case t == tensor.I64:
				if c.Forms == nil {
					c.Forms = map[string]int{}
				}
				c.Forms[o] = 1
			case c.Forms[o] == 1 && !ok:
				if c.Types == nil {
					c.Types = map[string]tensor.DType{}
				}
				c.Types[o] = tensor.I64
			}
		}
		return true
	}
}

// fitExperts is fitAddresses; what stands in Marlin's layout has addresses of either kind.
func fitExperts(c *Case) bool { return fitAddresses("packed", "scales")(c) }

// expertExtents derives the extents of an expert's codes and scales.
func expertExtents(g *generator) error {
	n, k := g.shape["N"], g.shape["K"]
	if g.c.Types["packed"] == tensor.I32 {
		g.set("A", k/16)
		g.set("B", 2*n)
		g.set("C", k/16)
		g.set("D", n)
		return nil
	}
	g.set("A", n)
	g.set("B", k/2)
	g.set("C", n)
	g.set("D", k/16)
	return nil
}

func alignExtents(g *generator) error {
	p, e, b := g.shape["P"], g.attr("num_experts", 4), g.attr("block_size", 2)
	n := p + e*(b-1)
	if p < e {
		n = min(n, p*b)
	}
	g.set("L", n)
	g.set("G", (n+b-1)/b)
	return nil
}

// fitRouter gives a bias the groups that it is for.
func fitRouter(c *Case) bool {
	if _, ok := c.Types["e_score_correction_bias"]; ok || len(c.With) > 0 {
		c.Attrs = map[string]any{"num_expert_group": 4, "topk_group": 2, "scoring_func": 1}
	}
	return true
}

func routerCases(b *builder) {
	logits := []float64{1, 2, 3, 0.5, 2.5, 2.5, -1, 0}
	grouped := map[string]any{"num_expert_group": 4, "topk_group": 2, "scoring_func": 1, "routed_scaling_factor": 2.0}
	raw := map[string]any{"num_expert_group": 4, "topk_group": 2, "scoring_func": 1, "routed_scaling_factor": 2.0, "no_renormalize": true}
	bias := []float64{0, 0, -2, 0, 0, 0, 0.875, 0.75}
	golden := func(name string, attrs map[string]any, bias, indices []float64) {
		c := Case{Shape: Shape{"T": 1, "K": 3, "E": 8}, Attrs: attrs, Values: map[string][]float64{"logits": logits}, Want: map[string][]float64{"indices": indices}}
		if bias != nil {
			c.Values["e_score_correction_bias"] = bias
		}
		b.add(name, c)
	}
	golden("golden", nil, nil, []float64{2, 4, 5})
	golden("golden/grouped", grouped, nil, []float64{2, 4, 5})
	golden("golden/bias", grouped, bias, []float64{7, 6, 4})
	golden("golden/raw", raw, bias, []float64{7, 6, 4})
	b.add("deepseek", Case{Shape: Shape{"T": 4, "K": 8, "E": 256}, Attrs: map[string]any{"num_expert_group": 8, "topk_group": 4, "scoring_func": 1, "routed_scaling_factor": 2.5}, Types: map[string]tensor.DType{"e_score_correction_bias": tensor.F32}})
	b.add("one group", Case{Shape: Shape{"T": 4, "K": 8, "E": 64}, Attrs: map[string]any{"num_expert_group": 1, "topk_group": 1, "scoring_func": 1, "routed_scaling_factor": 1.8}})
	b.add("groups of one", Case{Shape: Shape{"T": 2, "K": 3, "E": 8}, Attrs: map[string]any{"num_expert_group": 8, "topk_group": 4}, Types: map[string]tensor.DType{"e_score_correction_bias": tensor.F32}})
	b.add("nothing finite", Case{Shape: Shape{"T": 1, "K": 2, "E": 3}, Values: map[string][]float64{"logits": {negInf, negInf, negInf}}, Want: map[string][]float64{"indices": {0, 1}, "weights": {0, 0}}})
	b.add("infinity", Case{Shape: Shape{"T": 1, "K": 2, "E": 3}, Values: map[string][]float64{"logits": {1, math.Inf(1), 2}}, Want: map[string][]float64{"indices": {0, 1}, "weights": {0, 0}}})
	b.add("all of them", Case{Shape: Shape{"T": 2, "K": 5, "E": 5}})
}

func routerTopCases(b *builder) {
	b.add("ties", Case{Shape: Shape{"T": 1, "K": 2, "E": 4}, Values: map[string][]float64{"router_logits": {1, 2, 2, 0}}, Want: map[string][]float64{"indices": {1, 2}, "weights": {0.5, 0.5}}})
	b.add("raw", Case{Attrs: map[string]any{"no_renormalize": true}})
	b.add("all of them", Case{Shape: Shape{"T": 2, "K": 5, "E": 5}})
}

func combineCases(b *builder) {
	b.add("no experts", Case{Shape: Shape{"T": 1, "K": 0, "H": 2}, Values: map[string][]float64{"shared": {3, 4}}, Want: map[string][]float64{"out": {3, 4}}})
	b.add("nothing", Case{Shape: Shape{"T": 1, "K": 0, "H": 2}, Want: map[string][]float64{"out": {0, 0}}})
	b.add("two", Case{Shape: Shape{"T": 1, "K": 2, "H": 2}, Values: map[string][]float64{"weights": {0.5, 0.25}, "expert_out": {2, 4, 8, 16}}, Want: map[string][]float64{"out": {3, 6}}})
}

// badIDs adds indices of no expert, and of no row where there is a map.
func badIDs(operand string) func(*builder) {
	return func(b *builder) {
		for name, id := range map[string]float64{"negative": -1, "beyond": 1000} {
			ids := make([]float64, 6) // of the plain call
			ids[5] = id
			b.add("invalid/"+name, Case{Values: map[string][]float64{operand: ids}, Invalid: true})
			if operand == "expert_ids" {
				b.add("invalid/row "+name, Case{Values: map[string][]float64{"row_map": ids}, Invalid: true})
			}
		}
	}
}

func alignCases(b *builder) {
	b.add("golden", Case{Shape: Shape{"P": 5}, Values: map[string][]float64{"topk_ids": {2, 0, 2, 2, 1}},
		Want: map[string][]float64{"sorted_token_ids": {1, 5, 4, 5, 0, 2, 3, 5, 5}, "expert_ids": {0, 1, 2, 2, 0}, "num_tokens_past_padded": {8}}})
	b.add("others are left out", Case{Shape: Shape{"P": 3}, Values: map[string][]float64{"topk_ids": {-1, 4, 3}}, Attrs: map[string]any{"num_experts": 4, "block_size": 2},
		Want: map[string][]float64{"sorted_token_ids": {2, 3, 3, 3, 3, 3}, "expert_ids": {3, 0, 0}, "num_tokens_past_padded": {2}}})
	b.add("blocks of 64", Case{Shape: Shape{"P": 200}, Attrs: map[string]any{"num_experts": 8, "block_size": 64}})
}
