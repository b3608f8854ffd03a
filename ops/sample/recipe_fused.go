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
