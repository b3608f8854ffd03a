package sample

import (
	"fmt"
	"math"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// fusedRecipes is for fused chains.
var fusedRecipes = recipeTable{
	"fused_chain": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 333}, batch: "T", fills: sums, cases: chainCases,
		attrs: func(g *generator) map[string]any {
			steps := []ops.FusedStep{norm(0, 3, false)}
			if g.has("residual") {
				steps = []ops.FusedStep{step(ops.FusedAdd, 2, 0, 2), norm(2, 3, true)}
			}
			return map[string]any{"eps": 1e-5, "steps": steps, "num_steps": len(steps)}
		}},
	"attn_qk_norm_rope_gate": {shape: Shape{"T": 3, "Hq": 4, "Hk": 2, "D": 24}, big: Shape{"T": 5, "Hq": 6, "Hk": 3, "D": 70}, least: Shape{"D": 2}, batch: "T",
		derived: []string{"W", "V", "R"}, derive: func(g *generator) error {
			d := g.shape["D"]
			g.set("W", g.shape["Hq"]*2*d)
			g.set("V", g.shape["Hk"]*d)
			g.set("R", g.attr("rotary_dim", max(d/2*2-2, 2)))
			return nil
		}, attrs: func(g *generator) map[string]any {
			return map[string]any{"eps": 1e-5, "rotary_dim": g.shape["R"]}
		}, fill: fillers{"cos_sin": span(-1, 1)}, fills: sums, fit: func(c *Case) bool {
			return c.Types["gate_out"] != tensor.BF16 || c.Types["q_out"] == tensor.BF16
		}, cases: preambleCases},
	"scaled_fp4_quant":         fp4Recipe(1, scaledCases),
	"silu_mul_fp4_quant":       fp4Recipe(1, nil),
	"silu_and_mul_fp4_quant":   fp4Recipe(2, nil),
	"sigmoid_gate_fp4_quant":   fp4Recipe(1, nil),
	"quant_fp8_static":         {shape: Shape{"M": 3, "K": 51}, big: Shape{"M": 5, "K": 333}, batch: "M", attrs: inputScale, fills: anyFill, cases: staticFP8Cases},
	"rms_norm_quant_fp8":       {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 333}, batch: "T", attrs: inputScale, fills: sums, cases: normFP8Cases},
	"rms_norm_gated_quant_fp8": {shape: Shape{"T": 3, "Hv": 2, "D": 51}, big: Shape{"T": 5, "Hv": 3, "D": 333}, batch: "T", attrs: inputScale, fills: sums, cases: gatedFP8Cases, fit: fitForms},
	"swizzle_blockscale": {shape: Shape{"R": 5, "C": 6}, big: Shape{"R": 300, "C": 13}, derived: []string{"P", "Q"}, derive: func(g *generator) error {
		p, q := ops.ScaleExtents(ops.ScaleSwizzled, g.shape["R"], g.shape["C"])
		g.set("P", p)
		g.set("Q", q)
		return nil
	}, fill: fillers{"in": wholes(0, 120)}, cases: swizzleCases},
}

// fusedTolerances is for those of them whose results are not exact. Steps of a chain round in between: what is one ulp off
// there moves what follows.
var fusedTolerances = toleranceTable{
	"fused_chain":            {ulps: 4, sum: 8, terms: extentOf("H")},
	"attn_qk_norm_rope_gate": {ulps: 1, sum: 4, terms: extentOf("D")},
}

// step is one of a chain without a reduction.
func step(op ops.FusedOp, out uint8, in ...uint8) ops.FusedStep {
	s := ops.FusedStep{Op: op, Out: out}
	copy(s.In[:], in)
	return s
}

func norm(in, out uint8, gemma bool) ops.FusedStep {
	s := step(ops.FusedRMSNorm, out, in, 1)
	s.Reduce, s.Gemma = ops.ReduceMeanSquare, gemma
	return s
}

// chainCases adds every opcode, alone and in chains, and values worked out by hand.
func chainCases(b *builder) {
	chain := func(name string, c Case, steps ...ops.FusedStep) {
		c.Attrs = map[string]any{"eps": 1e-5, "steps": steps, "num_steps": len(steps)}
		b.add("chain/"+name, c)
	}
	small := Shape{"T": 1, "H": 2}
	values := func(out ...float64) Case {
		return Case{Shape: small, Values: map[string][]float64{"x": {1, -2}, "weight": {3, 0.5}}, Want: map[string][]float64{"out": out}}
	}
	add, mul, silu, sigmoid := ops.FusedAdd, ops.FusedMul, ops.FusedSilu, ops.FusedSigmoid
	chain("x + weight", values(4, -1.5), step(add, 3, 0, 1))
	chain("x·weight", values(3, -1), step(mul, 3, 0, 1))
	chain("weight for x", values(3, 0.5), step(mul, 3, 0, 1), step(add, 3, 1, 0), step(mul, 3, 0, 1), step(add, 3, 3, 3),
		step(mul, 3, 0, 0), step(add, 3, 3, 1), step(mul, 3, 0, 0), ops.FusedStep{Op: mul, Out: 3, In: [3]uint8{1, 3}})
	b.list[len(b.list)-1].Want["out"] = []float64{3, 2}
	res := values(7, -6)
	res.Values["residual"], res.Want["residual"] = []float64{6, -4}, []float64{7, -6}
	chain("residual", res, step(add, 2, 0, 2), step(mul, 3, 2, 0), step(mul, 3, 3, 0), step(add, 3, 2, 3))
	b.list[len(b.list)-1].Want["out"] = []float64{7 + 7, -6 - 24}
	for _, t := range []tensor.DType{tensor.F32, tensor.BF16} {
		c := Case{Types: map[string]tensor.DType{"x": tensor.BF16, "weight": tensor.BF16, "residual": t, "out": tensor.BF16}}
		chain(fmt.Sprintf("add, norm, silu, mul/%v", t), c, step(add, 2, 0, 2), norm(2, 3, true), step(silu, 3, 3), step(mul, 3, 3, 2))
		chain(fmt.Sprintf("sigmoid into the residual/%v", t), c, step(sigmoid, 2, 0), norm(2, 3, false), step(mul, 2, 3, 2), step(add, 3, 2, 3))
	}
	n := int64(len(oddValues))
	odd := Case{Shape: Shape{"T": 1, "H": n}, Values: map[string][]float64{"x": oddValues}}
	for _, op := range []ops.FusedOp{silu, sigmoid} {
		chain("odd values/"+op.String(), odd, step(op, 3, 0))
	}
	chain("norm of the weight", Case{}, norm(1, 3, false))
	chain("norm in place", Case{}, step(silu, 3, 0), norm(3, 3, true))
	for n := range 4 {
		chain(fmt.Sprintf("long row/offset %d", n), Case{Shape: Shape{"T": 2, "H": 3584}, Offset: n, Types: map[string]tensor.DType{"x": tensor.F16, "residual": tensor.BF16}},
			step(add, 2, 0, 2), norm(2, 3, true))
	}
}

// preambleCases adds the heads of usual models, and a row worked out by hand.
func preambleCases(b *builder) {
	b.add("gemma", Case{Attrs: map[string]any{"gemma": true}})
	b.add("all of the head", Case{Attrs: map[string]any{"rotary_dim": 24}})
	b.add("two of the head", Case{Attrs: map[string]any{"rotary_dim": 2}})
	b.add("no query heads", Case{Shape: Shape{"Hq": 0}})
	b.add("no key heads", Case{Shape: Shape{"Hk": 0}})
	for _, out := range []tensor.DType{tensor.F32, tensor.BF16} {
		for _, in := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
			b.add(fmt.Sprintf("usual heads/%v to %v", in, out), Case{Shape: Shape{"T": 2, "Hq": 16, "Hk": 2, "D": 256}, Strided: true,
				Attrs: map[string]any{"rotary_dim": 64, "gemma": true}, Types: map[string]tensor.DType{"qgate": in, "q_out": out, "gate_out": out}})
		}
	}
	r := math.Sqrt(0.5)
	b.add("quarter turn", Case{Shape: Shape{"T": 1, "Hq": 1, "Hk": 1, "D": 4}, Attrs: map[string]any{"rotary_dim": 2, "eps": 0.0},
		Values: map[string][]float64{"qgate": {1, -1, 1, 1, 5, 6, 7, 8}, "kf": {3, 3, -3, 3}, "q_norm": {2, 4, 6, 8}, "k_norm": {1, 1, 1, 1}, "cos_sin": {0, 1}},
		Want:   map[string][]float64{"q_out": {4, 2, 6, 8}, "k_out": {-1, 1, -1, 1}, "gate_out": {5, 6, 7, 8}}})
	b.add("rows of zeros", Case{Shape: Shape{"T": 1, "Hq": 1, "Hk": 1, "D": 2}, Attrs: map[string]any{"rotary_dim": 2},
		Values: map[string][]float64{"qgate": {0, 0, r, -r}, "kf": {0, 0}}, Want: map[string][]float64{"q_out": {0, 0}, "k_out": {0, 0}}})
}

// inputScale is the scale of fp8 codes that a norm's rows are given.
func inputScale(g *generator) map[string]any {
	attrs := map[string]any{"input_scale": 0.03}
	if g.desc.Name != "quant_fp8_static" {
		attrs["eps"] = 1e-5
	}
	return attrs
}

// fp4Recipe is for ops with an nvfp4 output; width is the number of elements that one of them comes from.
func fp4Recipe(width int64, more func(b *builder)) *recipe {
	inner := func(g *generator) string {
		for _, s := range []string{"K", "I"} {
			if _, ok := g.shape[s]; ok {
				return s
			}
		}
		return "V"
	}
	symbol := map[int64]string{1: "I", 2: "V"}[width]
	if more != nil {
		symbol = "K"
	}
	return &recipe{shape: Shape{"M": 3, symbol: 64 * width}, big: Shape{"M": 5, symbol: 336 * width}, step: Shape{symbol: 16 * width}, derived: []string{"W", "S", "G"},
		derive: func(g *generator) error {
			k := g.shape[inner(g)] / width
			s, c := ops.ScaleExtents(ops.ScaleLayout(g.attr("scale_layout", 0)), g.shape["M"], k/ops.FP4Group)
			g.set("W", k/2)
			g.set("S", s)
			g.set("G", c)
			return nil
		},
		attrs: func(*generator) map[string]any { return map[string]any{"input_global_scale_inv": 700.0} },
		fills: anyFill, cases: func(b *builder) {
			for _, shape := range []Shape{{"M": 1, symbol: 16 * width}, {"M": 129, symbol: 80 * width}, {"M": 33, symbol: 272 * width}} {
				b.add("swizzled/"+shape.String(), Case{Shape: shape, Attrs: map[string]any{"scale_layout": 1}})
				b.add("linear/"+shape.String(), Case{Shape: shape})
			}
			b.add("global scale 0", Case{Attrs: map[string]any{"input_global_scale_inv": 0.0}})
			b.add("global scale below 0", Case{Attrs: map[string]any{"input_global_scale_inv": -3.0}})
			b.add("global scale of overflow", Case{Attrs: map[string]any{"input_global_scale_inv": 1e30}})
			b.add("global scale of underflow", Case{Attrs: map[string]any{"input_global_scale_inv": 1e-30}})
			if more != nil {
				more(b)
			}
		}}
}

func scaledCases(b *builder) {
	row := repeat(32, func(i int) float64 { return float64((i*37+11)%64-32) / 16 })
	b.add("golden", Case{Shape: Shape{"M": 1, "K": 32}, Attrs: map[string]any{"input_global_scale_inv": 100.0}, Values: map[string][]float64{"x": row},
		Types: map[string]tensor.DType{"out_scale": tensor.U8, "out_packed": tensor.U8},
		Want: map[string][]float64{"out_scale": {0x5f, 0x60}, "out_packed": {0x5e, 0x7c, 0xf0, 0xe4, 0xb6, 0x17, 0x4f, 0x6d,
			0xfa, 0xe2, 0xc5, 0x96, 0x3f, 0x6e, 0x7c, 0xf0}}})
	b.add("NaN is no magnitude", Case{Shape: Shape{"M": 1, "K": 16}, Attrs: map[string]any{"input_global_scale_inv": 1.0},
		Types:  map[string]tensor.DType{"out_scale": tensor.U8, "out_packed": tensor.U8},
		Values: map[string][]float64{"x": {math.NaN(), 6, -6, 3, 0.5, -0.1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		Want:   map[string][]float64{"out_scale": {0x38}, "out_packed": {0x77, 0x5f, 0x01, 0, 0, 0, 0, 0}}})
}

func staticFP8Cases(b *builder) {
	b.add("edges", Case{Shape: Shape{"M": 1, "K": 12}, Attrs: map[string]any{"input_scale": 2.0}, Types: map[string]tensor.DType{"out": tensor.U8},
		Values: map[string][]float64{"x": {896, -896, 1e30, math.Inf(-1), math.NaN(), 0, math.Copysign(0, -1), 2, 832, 864, 0x1p-9, 0x1.8p-9}},
		Want:   map[string][]float64{"out": {0x7e, 0xfe, 0x7e, 0xfe, 0x7f, 0, 0x80, 0x38, 0x7d, 0x7e, 0, 1}}})
	b.add("long", Case{Shape: Shape{"M": 2, "K": 5003}})
}

func normFP8Cases(b *builder) {
	b.add("gemma", Case{Attrs: map[string]any{"gemma": true}})
	b.add("gemma and residual", Case{With: []string{"residual", "out_bf16"}, Attrs: map[string]any{"gemma": true}})
	b.add("saturates", Case{Attrs: map[string]any{"input_scale": 1e-4}})
	b.add("row of zeros", Case{Shape: Shape{"T": 1, "H": 3}, Types: map[string]tensor.DType{"out_fp8": tensor.U8, "weight": tensor.F32},
		Values: map[string][]float64{"x": {0, 0, 0}, "weight": {1, 2, 3}}, Want: map[string][]float64{"out_fp8": {0, 0, 0}}})
}

func gatedFP8Cases(b *builder) {
	for f, name := range []string{"rows", "heads"} {
		c := Case{Forms: map[string]int{"out_fp8": f}, Attrs: map[string]any{"sigmoid_gate": true}}
		b.add("sigmoid/"+name, c)
		c.Strided = true
		b.add("padded gate/"+name, c)
	}
	b.add("saturates", Case{Attrs: map[string]any{"input_scale": 1e-4}})
}

// fitForms leaves out extents of heads where there are none.
func fitForms(c *Case) bool {
	if _, ok := c.Shape["Hv"]; ok {
		c.Forms = map[string]int{"out_fp8": 1}
	}
	return true
}

func swizzleCases(b *builder) {
	for _, shape := range []Shape{{"R": 200, "C": 8}, {"R": 128, "C": 4}, {"R": 1, "C": 1}, {"R": 129, "C": 5}} {
		b.add("tiles/"+shape.String(), Case{Shape: shape})
	}
	want := make([]float64, 512)
	want[0], want[1], want[16], want[17] = 1, 2, 3, 4
	b.add("two by two", Case{Shape: Shape{"R": 2, "C": 2}, Types: map[string]tensor.DType{"in": tensor.U8, "out": tensor.U8},
		Values: map[string][]float64{"in": {1, 2, 3, 4}}, Want: map[string][]float64{"out": want}})
}
