package sample

import (
	"fmt"
	"math"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// quantRecipes is for quantization, selection and movement of rows, speculative decoding.
var quantRecipes = recipeTable{
	"top_k": {shape: Shape{"T": 3, "N": 51, "K": 5}, big: Shape{"T": 5, "N": 1003, "K": 40}, batch: "T", fill: fillers{"x": anyDType}, fit: fitTopK, fills: anyFill, cases: topKCases},
	"gather": {shape: Shape{"V": 7, "H": 9, "I": 5}, big: Shape{"V": 50, "H": 333, "I": 40}, batch: "I", shapes: map[string]string{"data": "V,H", "ids": "I|I,2", "out": "I,H|V,I|I,2,H"},
		least: Shape{"V": 1, "H": 1}, fill: fillers{"data": anyDType, "ids": anyPlace("data")}, fit: fitGather, fills: anyFill, cases: gatherRowsCases},
	"scatter": {shape: Shape{"V": 7, "H": 9, "I": 5}, big: Shape{"V": 50, "H": 1333, "I": 80}, shapes: map[string]string{"data": "V,H", "ids": "I,1|I,2", "updates": "I,H|I"},
		least: Shape{"V": 1, "H": 1}, fill: fillers{"data": anyDType, "updates": anyDType, "ids": anyPlace("data")}, fit: fitScatter, fills: anyFill, cases: scatterCases},
	"cumsum": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", shapes: anyRank("x"), fill: fillers{"x": anyDType}, fills: sums, cases: cumsumCases},
	"greedy_rejection_sample": {shape: Shape{"R": 3, "W": 4, "V": 5}, big: Shape{"R": 9, "W": 7, "V": 1003}, derived: []string{"L"}, derive: func(g *generator) error {
		g.set("L", g.shape["R"]*g.shape["W"])
		return nil
	}, least: Shape{"W": 1, "V": 1}, spread: 3, fill: fillers{"draft_sampled": between("V"), "cu_num_logits": func(g *generator, _ *tensor.Tensor, _ stream) value {
		return func(i int) float64 { return float64(int64(i) * g.shape["W"]) }
	}}, fills: ranks, cases: rejectionCases},

	// Extents are multiples of four: blocks of four, and pairs.
	"quantize": {shape: Shape{"T": 3, "H": 13}, big: Shape{"T": 5, "H": 333}, batch: "T", shapes: map[string]string{"x": "T,I", "out": "T,O", "scale": "1|I|T,G"}, derived: []string{"I", "O", "G"},
		derive: affineExtents("out"), fill: fillers{"scale": span(0.01, 0.5), "zero_point": wholes(0, 9)}, fit: fitAffine("out"), fills: anyFill, cases: quantizeCases},
	"dequantize": {shape: Shape{"T": 3, "H": 13}, big: Shape{"T": 5, "H": 333}, batch: "T", shapes: map[string]string{"x": "T,O", "out": "T,I", "scale": "1|I|T,G"}, derived: []string{"I", "O", "G"},
		derive: affineExtents("x"), fill: fillers{"x": anyDType, "scale": span(0.01, 0.5), "zero_point": wholes(0, 9)}, fit: fitAffine("x"), cases: dequantizeCases},
	"dynamic_quantize": {shape: Shape{"M": 3, "K": 51}, big: Shape{"M": 5, "K": 333}, derived: []string{"S"}, derive: func(g *generator) error {
		if g.set("S", 1); g.attr("granularity", 0) == int64(ops.PerToken) {
			g.set("S", g.shape["M"])
		}
		return nil
	}, fit: func(c *Case) bool {
		if c.Types["out"] == tensor.U8 {
			c.With = []string{"zero_point"}
			return true
		}
		return len(c.With) == 0
	}, fills: anyFill, cases: dynamicQuantCases},
	"dequant_nvfp4": {shape: Shape{"M": 3, "B": 3}, big: Shape{"M": 133, "B": 9}, derived: []string{"K", "W", "S", "G"}, derive: func(g *generator) error {
		layout := ops.ScaleLayout(g.attr("scale_layout", 0))
		s, n := ops.ScaleExtents(layout, g.shape["M"], g.shape["B"])
		g.set("K", ops.FP4Group*g.shape["B"])
		g.set("W", ops.FP4Group/2*g.shape["B"])
		g.set("S", s)
		g.set("G", n)
		return nil
	}, fill: fillers{"x": anyBytes, "scale": anyBytes}, cases: nvfp4Cases},
}

// affineExtents derives what rows of 4·H elements have of codes and of scales in blocks of four.
func affineExtents(codes string) func(g *generator) error {
	return func(g *generator) error {
		h := g.shape["H"]
		g.set("I", 4*h)
		g.set("G", h)
		if g.set("O", 4*h); g.c.Types[codes] == tensor.F4E2M1x2 {
			g.set("O", 2*h)
		}
		return nil
	}
}

// fitAffine gives scales the axis and the blocks that go with their shape, and float formats no zero point.
func fitAffine(codes string) func(c *Case) bool {
	return func(c *Case) bool {
		switch c.Forms["scale"] {
		case 1:
			c.Attrs = map[string]any{"axis": 1}
		case 2:
			c.Attrs = map[string]any{"axis": 1, "block_size": 4}
		}
		switch c.Types[codes] {
		case tensor.F8E4M3FN, tensor.F8E5M2, tensor.F4E2M1x2:
			return len(c.With) == 0
		}
		return true
	}
}

// anyBytes are codes of fp8 and pairs of fp4 of every kind.
func anyBytes(_ *generator, x *tensor.Tensor, s stream) value {
	if x.DType == tensor.F8E4M3FN {
		return func(i int) float64 { return float64(tensor.DecodeE4M3FN(uint8(s.below(i, 0x7f)))) }
	}
	return func(i int) float64 { return float64(s.below(i, 127)) }
}

// quantTolerances is for those of them whose results are not exact.
var quantTolerances = toleranceTable{
	"cumsum": {ulps: 1, sum: 4, terms: extentOf("H"), size: func(want *Args, _ string) (func(i int) float64, error) {
		x, n := want.original("x"), max(want.Tensor("x").Last(), 1)
		rows := norms(x, int64(len(x))/n)
		return func(i int) float64 { return rows[int64(i)/n] }, nil
	}},
}

// fitTopK keeps K inside of N.
func fitTopK(c *Case) bool {
	n, hasN := c.Shape["N"]
	k, hasK := c.Shape["K"]
	switch {
	case hasN && !hasK:
		c.Shape["K"] = min(5, n)
	case hasK && !hasN:
		c.Shape["N"] = max(51, k)
	}
	return true
}

// anyPlace names elements of dimensions of an operand, half of them from the end: the axis of a gather, or one dimension
// after the other along rows of ids.
func anyPlace(operand string) func(g *generator, x *tensor.Tensor, s stream) value {
	return func(g *generator, x *tensor.Tensor, s stream) value {
		data := g.Tensor(operand)
		return func(i int) float64 {
			d := g.attr("axis", 0)
			if g.desc.Name == "scatter" {
				d = int64(i) % x.Last()
			}
			n := data.Shape[d]
			return float64(s.below(i, 2*n) - n)
		}
	}
}

// fitGather gives shapes the axis and the ids that go with them.
func fitGather(c *Case) bool {
	switch {
	case c.Forms["out"] == 1:
		c.Attrs = map[string]any{"axis": 1}
	case c.Forms["out"] == 2, c.Forms["ids"] == 1:
		c.Forms = map[string]int{"out": 2, "ids": 1}
	}
	return true
}

func fitScatter(c *Case) bool {
	if c.Forms["ids"] == 1 || c.Forms["updates"] == 1 {
		c.Forms = map[string]int{"ids": 1, "updates": 1}
	}
	return true
}

func topKCases(b *builder) {
	nan := math.NaN()
	top := func(name string, smallest bool, x, values, places []float64) {
		b.add(name, Case{Shape: Shape{"T": 1, "N": int64(len(x)), "K": int64(len(places))}, Attrs: map[string]any{"smallest": smallest}, With: []string{"values"},
			Values: map[string][]float64{"x": x}, Want: map[string][]float64{"values": values, "indices": places}})
	}
	zero := math.Copysign(0, -1)
	top("equal ones in order", false, []float64{1, 3, 3, 2, 3}, []float64{3, 3, 3, 2}, []float64{1, 2, 4, 3})
	top("smallest", true, []float64{1, 3, 0, 2, 0}, []float64{0, 0, 1}, []float64{2, 4, 0})
	top("both zeros", false, []float64{zero, 0, -1}, []float64{zero, 0}, []float64{0, 1})
	top("NaN last", false, []float64{nan, 1, nan, negInf}, []float64{1, negInf, nan, nan}, []float64{1, 3, 0, 2})
	top("NaN last of the smallest", true, []float64{nan, 1, nan, negInf}, []float64{negInf, 1, nan, nan}, []float64{3, 1, 0, 2})
	for _, t := range []tensor.DType{tensor.F32, tensor.BF16, tensor.I8, tensor.I64} {
		for _, k := range []int64{1, 50, 700, 1000} {
			b.add(fmt.Sprintf("first %d/%v", k, t), Case{Shape: Shape{"T": 2, "N": 1000, "K": k}, Types: map[string]tensor.DType{"x": t, "indices": tensor.I32}, With: []string{"values"},
				Attrs: map[string]any{"smallest": k == 50}})
		}
	}
}

func gatherRowsCases(b *builder) {
	data := repeat(12, func(i int) float64 { return float64(i) })
	b.add("from both ends", Case{Shape: Shape{"V": 4, "H": 3, "I": 3}, Values: map[string][]float64{"data": data, "ids": {3, -4, -1}}, Want: map[string][]float64{"out": {9, 10, 11, 0, 1, 2, 9, 10, 11}}})
	b.add("columns", Case{Shape: Shape{"V": 4, "H": 3, "I": 2}, Forms: map[string]int{"out": 1}, Attrs: map[string]any{"axis": 1}, Values: map[string][]float64{"data": data, "ids": {2, -3}},
		Want: map[string][]float64{"out": {2, 0, 5, 3, 8, 6, 11, 9}}})
	for _, id := range []float64{7, -8, 1 << 40, -1 << 40} {
		b.add(fmt.Sprintf("out of range/%v", id), Case{Types: map[string]tensor.DType{"ids": tensor.I64}, Values: map[string][]float64{"ids": {0, 1, 2, 3, id}}, Invalid: true})
	}
}

func scatterCases(b *builder) {
	for r := ops.ScatterSet; r <= ops.ScatterMax; r++ {
		for _, t := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16, tensor.I8, tensor.I64} {
			for form := range 2 {
				b.add(fmt.Sprintf("reduction %d/%v/form %d", r, t, form), Case{Shape: Shape{"V": 3, "H": 1100, "I": 20}, Types: map[string]tensor.DType{"data": t},
					Attrs: map[string]any{"reduction": r}, Forms: map[string]int{"ids": form, "updates": form}})
			}
		}
	}
	twice := func(name string, r ops.ScatterReduction, want ...float64) {
		b.add("twice/"+name, Case{Shape: Shape{"V": 3, "H": 1, "I": 2}, Attrs: map[string]any{"reduction": r},
			Values: map[string][]float64{"data": {1, 2, 3}, "ids": {1, -2}, "updates": {4, -5}}, Want: map[string][]float64{"data": want}})
	}
	twice("set", ops.ScatterSet, 1, -5, 3)
	twice("add", ops.ScatterAdd, 1, 1, 3)
	twice("mul", ops.ScatterMul, 1, -40, 3)
	twice("min", ops.ScatterMin, 1, -5, 3)
	twice("max", ops.ScatterMax, 1, 4, 3)
	for _, id := range []float64{7, -8} {
		b.add(fmt.Sprintf("out of range/%v", id), Case{Values: map[string][]float64{"ids": {0, 1, 2, 3, id}}, Invalid: true})
		b.add(fmt.Sprintf("out of range/%v/elements", id), Case{Forms: map[string]int{"ids": 1, "updates": 1}, Values: map[string][]float64{"ids": {0, 0, 0, 0, 0, 0, 0, 0, id, 0}}, Invalid: true})
	}
}

func cumsumCases(b *builder) {
	for name, want := range map[string][]float64{"": {1, 3, 6}, "exclusive": {0, 1, 3}, "reverse": {6, 5, 3}, "reverse exclusive": {5, 3, 0}} {
		attrs := map[string]any{"exclusive": name == "exclusive" || name == "reverse exclusive", "reverse": name == "reverse" || name == "reverse exclusive"}
		for _, t := range []tensor.DType{tensor.F32, tensor.F16, tensor.F64, tensor.I8, tensor.I64} {
			b.add(fmt.Sprintf("by hand/%s/%v", name, t), Case{Shape: Shape{"T": 1, "H": 3}, Types: map[string]tensor.DType{"x": t}, Attrs: attrs,
				Values: map[string][]float64{"x": {1, 2, 3}}, Want: map[string][]float64{"out": want}})
		}
	}
	b.add("wraps", Case{Shape: Shape{"T": 1, "H": 3}, Types: map[string]tensor.DType{"x": tensor.I8}, Values: map[string][]float64{"x": {100, 100, 100}}, Want: map[string][]float64{"out": {100, -56, 44}}})
}

func rejectionCases(b *builder) {
	// Logits whose largest are at the given tokens, of six.
	rows := func(tokens ...int) []float64 {
		return repeat(6*len(tokens), func(i int) float64 { return map[bool]float64{true: 9}[i%6 == tokens[i/6]] + float64(i%2)/8 })
	}
	check := func(name string, drafts, cu []float64, tokens []int, sampled, counts []float64) {
		r := int64(len(counts))
		b.add(name, Case{Shape: Shape{"R": r, "W": int64(len(sampled)) / r, "V": 6, "L": int64(len(tokens))},
			Values: map[string][]float64{"logits": rows(tokens...), "draft_sampled": drafts, "cu_num_logits": cu}, Want: map[string][]float64{"sampled": sampled, "num_sampled": counts}})
	}
	check("the second is refused", []float64{0, 1, 2, 3}, []float64{0, 4}, []int{1, 5, 3, 4}, []float64{1, 5, -1, -1}, []float64{2})
	check("all are accepted", []float64{9, 1, 2}, []float64{0, 3}, []int{1, 2, 4}, []float64{1, 2, 4, -1}, []float64{3})
	check("a placeholder is refused", []float64{0, -1}, []float64{0, 2}, []int{1, 2}, []float64{1, -1}, []float64{1})
	check("three requests", []float64{0, 3, 0, 0, 2, 2}, []float64{0, 2, 3, 6}, []int{3, 1, 5, 2, 0, 4}, []float64{3, 1, -1, 5, -1, -1, 2, 0, -1}, []float64{2, 1, 2})
	bad := func(name string, w int64, cu ...float64) {
		b.add("offsets/"+name, Case{Shape: Shape{"R": int64(len(cu)) - 1, "W": w, "L": 6}, Values: map[string][]float64{"cu_num_logits": cu}, Invalid: true})
	}
	bad("not from 0", 6, 1, 3, 6)
	bad("short of the end", 6, 0, 3, 5)
	bad("beyond the end", 6, 0, 3, 7)
	bad("falling", 6, 0, 7, 6)
	bad("an empty request", 6, 0, 0, 6)
	bad("more rows than places", 3, 0, 4, 6)
}

func quantizeCases(b *builder) {
	inf, nan := math.Inf(1), math.NaN()
	q := func(name string, t tensor.DType, attrs map[string]any, x, scale, zero, want []float64) {
		c := Case{Shape: Shape{"T": 1, "H": int64(len(x)) / 4}, Types: map[string]tensor.DType{"out": t}, Attrs: attrs, Values: map[string][]float64{"x": x, "scale": scale}, Want: map[string][]float64{"out": want}}
		if zero != nil {
			c.Values["zero_point"] = zero
		}
		if len(scale) > 1 {
			c.Forms = map[string]int{"scale": 1}
		}
		b.add(name, c)
	}
	q("ties to even", tensor.I8, nil, []float64{1, 3, 5, -3}, []float64{2}, nil, []float64{0, 2, 2, -2})
	q("ends", tensor.I8, nil, []float64{1e9, -1e9, inf, nan}, []float64{2}, []float64{3}, []float64{127, -128, 127, 3})
	q("ends of u8", tensor.U8, nil, []float64{510, -2, -1000, 3}, []float64{2}, []float64{128}, []float64{255, 127, 0, 130})
	q("four bits", tensor.I8, map[string]any{"low": -8, "high": 7}, []float64{20, -20, 3, 0}, []float64{2}, []float64{1}, []float64{7, -8, 3, 1})
	q("columns", tensor.I16, map[string]any{"axis": 1}, []float64{1, 2, 3, 4}, []float64{1, 2, 1, 0.5}, []float64{0, 1, 2, 3}, []float64{1, 2, 5, 11})
	q("fp8", tensor.F8E4M3FN, nil, []float64{900, -1, 3, 0}, []float64{2}, nil, []float64{448, -0.5, 1.5, 0})
	for _, t := range []tensor.DType{tensor.I8, tensor.U8, tensor.I16, tensor.I32} {
		for form := range 3 {
			c := Case{Shape: Shape{"T": 4, "H": 300}, Types: map[string]tensor.DType{"out": t}, Forms: map[string]int{"scale": form}, With: []string{"zero_point"}}
			fitAffine("out")(&c)
			b.add(fmt.Sprintf("zero points/%v/form %d", t, form), c)
		}
	}
	b.add("blocks of rows", Case{Shape: Shape{"T": 4, "H": 5, "G": 20}, Forms: map[string]int{"scale": 2}, Attrs: map[string]any{"axis": 1, "block_size": 1}})
}

func dequantizeCases(b *builder) {
	d := func(name string, t tensor.DType, x, scale, zero, want []float64) {
		c := Case{Shape: Shape{"T": 1, "H": int64(len(want)) / 4}, Types: map[string]tensor.DType{"x": t}, Values: map[string][]float64{"x": x, "scale": scale}, Want: map[string][]float64{"out": want}}
		if zero != nil {
			c.Values["zero_point"] = zero
		}
		b.add(name, c)
	}
	d("u8", tensor.U8, []float64{0, 255, 128, 1}, []float64{2}, []float64{128}, []float64{-256, 254, 0, -254})
	d("ends of i32", tensor.I32, []float64{-1 << 31, 1<<31 - 1, 1, 0}, []float64{1}, []float64{1}, []float64{-1<<31 - 1, 1<<31 - 2, 0, -1})
	for _, t := range []tensor.DType{tensor.I8, tensor.U8, tensor.I16, tensor.I32, tensor.F8E5M2, tensor.F4E2M1x2} {
		for form := range 3 {
			c := Case{Shape: Shape{"T": 4, "H": 300}, Types: map[string]tensor.DType{"x": t, "out": tensor.F16}, Forms: map[string]int{"scale": form}}
			fitAffine("x")(&c)
			b.add(fmt.Sprintf("scales/%v/form %d", t, form), c)
		}
	}
}

func dynamicQuantCases(b *builder) {
	u8 := map[string]tensor.DType{"out": tensor.U8, "zero_point": tensor.U8}
	b.add("u8 by hand", Case{Shape: Shape{"M": 1, "K": 4}, Types: u8, Values: map[string][]float64{"x": {-51, 204, 0, 1}}, Want: map[string][]float64{"out": {0, 255, 51, 52}, "scale": {1}, "zero_point": {51}}})
	b.add("u8 above zero", Case{Shape: Shape{"M": 1, "K": 2}, Types: u8, Values: map[string][]float64{"x": {255, 5}}, Want: map[string][]float64{"out": {255, 5}, "scale": {1}, "zero_point": {0}}})
	b.add("i8 by hand", Case{Shape: Shape{"M": 2, "K": 2}, Attrs: map[string]any{"granularity": int(ops.PerToken)}, Values: map[string][]float64{"x": {-254, 127, 0, 0}},
		Want: map[string][]float64{"out": {-127, 64, 0, 0}, "scale": {2, 1}}})
	b.add("nothing", Case{Shape: Shape{"M": 0}})
	for _, g := range []ops.Granularity{ops.PerTensor, ops.PerToken} {
		for _, f := range []Fill{Normal, Zero, NaN} {
			b.add(fmt.Sprintf("u8/%d/%v", g, f), Case{Types: u8, Attrs: map[string]any{"granularity": int(g)}, Fill: f, Strided: true})
			b.add(fmt.Sprintf("i8/%d/%v", g, f), Case{Attrs: map[string]any{"granularity": int(g)}, Fill: f, Strided: true})
		}
	}
}

func nvfp4Cases(b *builder) {
	for _, layout := range []ops.ScaleLayout{ops.ScaleLinear, ops.ScaleSwizzled} {
		for _, m := range []int64{1, 127, 130} {
			b.add(fmt.Sprintf("layout %d/%d rows", layout, m), Case{Shape: Shape{"M": m, "B": 5}, Attrs: map[string]any{"scale_layout": int(layout), "global_scale": 0.25}})
		}
	}
	b.add("by hand", Case{Shape: Shape{"M": 1, "B": 1}, Types: map[string]tensor.DType{"x": tensor.U8, "scale": tensor.U8}, Attrs: map[string]any{"global_scale": 0.5},
		Values: map[string][]float64{"x": {0x21, 0x43, 0x65, 0x07, 0, 0, 0, 0x9}, "scale": {0x40}}, // fp8 2
		Want:   map[string][]float64{"out": {0.5, 1, 1.5, 2, 3, 4, 6, 0, 0, 0, 0, 0, 0, 0, -0.5, 0}}})
}
