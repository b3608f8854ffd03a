package sample

import (
	"math"

	"github.com/opmux/opmux/tensor"
)

// elementwiseRecipes is for norms, activations and other work on single elements.
var elementwiseRecipes = recipeTable{
	"rms_norm_gated": {shape: Shape{"T": 3, "D": 51, "Hv": 2}, big: Shape{"T": 5, "D": 333, "Hv": 3}, batch: "T", attrs: eps, fills: sums, cases: gatedCases},
	"layer_norm": {shape: Shape{"T": 3, "D": 51}, big: Shape{"T": 5, "D": 333}, batch: "T", attrs: eps, least: Shape{"D": 1}, fills: sums, cases: layerCases,
		shapes: map[string]string{"x": "T,D|D|2,T,1,D", "mean": "T|T,1", "inv_std_dev": "T,1|1,T"}, fit: fitMoments},
	"l2_norm": {shape: Shape{"T": 3, "D": 51, "H": 2}, big: Shape{"T": 5, "D": 333, "H": 3}, batch: "T", attrs: eps, fills: sums, cases: lengthCases},
	"group_norm": {shape: Shape{"T": 3, "C": 6, "S": 17}, big: Shape{"T": 2, "C": 12, "S": 133}, batch: "T", shapes: map[string]string{"x": "T,C,S|T,C|T,C,2,S,1"},
		fills: sums, cases: groupCases, attrs: func(g *generator) map[string]any {
			n := 1
			if g.shape["C"]%3 == 0 {
				n = 3
			}
			return map[string]any{"eps": 1e-5, "num_groups": n}
		}},

	"gelu_and_mul": {shape: Shape{"T": 3, "D": 51}, big: Shape{"T": 5, "D": 333}, batch: "T", derived: []string{"W"}, derive: func(g *generator) error {
		if g.set("W", 2*g.shape["D"]); g.has("up") {
			g.set("W", g.shape["D"])
		}
		return nil
	}, fills: anyFill, cases: geluMulCases},
	"moe_silu_mul": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", fills: anyFill, cases: longCases,
		shapes: map[string]string{"gate": "T,H|1,T,1,H", "up": "T,H|T,1,H"}},
	"sigmoid_gate_bf16": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", fills: anyFill, cases: longCases,
		shapes: map[string]string{"attn": "T,H|1,T,1,H", "gate": "T,H|T,1,H"}},
	"soft_cap":   unary(softCapCases, func(*generator) map[string]any { return map[string]any{"cap": 3} }),
	"gelu":       unary(geluCases, nil),
	"swish":      unary(swishCases, nil),
	"sigmoid":    unary(oddCases, nil),
	"tanh":       unary(oddCases, nil),
	"hard_swish": unary(hardCases, nil),
	"softplus":   unary(softplusCases, nil),

	"mul": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", shapes: repeats, alias: map[string]string{"out": "a"},
		fill: fillers{"a": anyDType, "b": anyDType}, fit: fitWhole("out", "a", "b"), fills: anyFill, cases: productOfTwoCases},
	"clip": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", shapes: anyRank("x"), alias: map[string]string{"out": "x"},
		fill: fillers{"x": anyDType, "min": span(-1, 0), "max": span(0, 1)}, fit: fitWhole("out", "x"), fills: anyFill, cases: clipCases},
	"mul_col_vec_f32": {shape: Shape{"M": 3, "N": 51}, big: Shape{"M": 5, "N": 333}, batch: "M", fills: anyFill},
	"cast_bf16": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", shapes: map[string]string{"in": "T,H|1,T,1,H"},
		fills: anyFill, cases: roundingCases},
	"cast_f32": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", shapes: map[string]string{"in": "T,H|1,T,1,H"}, fills: anyFill, cases: longCases},
	"cast": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", shapes: map[string]string{"out": "T,O", "in": "T,I|1,T,1,I"},
		derived: []string{"O", "I"}, derive: pairedExtents, fill: fillers{"in": anyDType}, fills: anyFill, cases: castCases},
	"attn_gate_split": {shape: Shape{"T": 3, "Hq": 4, "D": 20}, big: Shape{"T": 5, "Hq": 6, "D": 70}, batch: "T", derived: []string{"W"}, derive: func(g *generator) error {
		g.set("W", 2*g.shape["Hq"]*g.shape["D"])
		return nil
	}, fills: anyFill},
	"log_softmax": {shape: Shape{"T": 3, "N": 51}, big: Shape{"T": 5, "N": 333}, batch: "T", alias: map[string]string{"out": "x"}, fills: append([]Fill{NegInf}, sums...), cases: logSoftmaxCases},
}

// elementwiseTolerances is for those of them whose results are not exact.
var elementwiseTolerances = toleranceTable{
	"rms_norm_gated":    {ulps: 2, sum: 8, terms: extentOf("D")},
	"layer_norm":        {ulps: 1, sum: 8, terms: extentOf("D"), size: momentSize},
	"l2_norm":           {ulps: 1, sum: 4, terms: extentOf("D")},
	"group_norm":        {ulps: 1, sum: 8, terms: func(s Shape) int64 { return max(s["C"]*s["S"], 1) }, size: momentSize},
	"gelu_and_mul":      {ulps: 2, sum: 8, terms: extentOf("")},
	"moe_silu_mul":      {ulps: 2, sum: 8, terms: extentOf("")},
	"sigmoid_gate_bf16": {ulps: 2, sum: 8, terms: extentOf("")},
	"soft_cap":          {ulps: 2, sum: 8, terms: extentOf("")},
	"gelu":              {ulps: 2, sum: 8, terms: extentOf("")},
	"swish":             {ulps: 2, sum: 8, terms: extentOf("")},
	"sigmoid":           {ulps: 2, sum: 8, terms: extentOf("")},
	"tanh":              {ulps: 2, sum: 8, terms: extentOf("")},
	"hard_swish":        {ulps: 2, sum: 8, terms: extentOf("")},
	"softplus":          {ulps: 2, sum: 8, terms: extentOf("")},
	"log_softmax":       {ulps: 1, sum: 4, terms: extentOf("N"), size: logSize},
}

// unary is the recipe of an op on single elements of one operand.
func unary(cases func(b *builder), attrs func(g *generator) map[string]any) *recipe {
	return &recipe{shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", shapes: anyRank("x"), alias: map[string]string{"out": "x"},
		attrs: attrs, fills: anyFill, cases: cases}
}

// repeats are the shapes of the second factor of add and mul.
var repeats = map[string]string{"b": "T,H|H|1"}

// fitWhole gives operands one dtype if any of them is of whole numbers.
func fitWhole(names ...string) func(c *Case) bool {
	return func(c *Case) bool {
		whole := tensor.None
		for _, n := range names {
			if t := c.Types[n]; t != tensor.None && !t.IsFloat() {
				whole = t
			}
		}
		for _, n := range names {
			if t := c.Types[n]; whole == tensor.None || t == whole {
				continue
			} else if t != tensor.None && t != tensor.F32 { // f32 stands where the corpus makes no choice
				return false
			}
			c.Types[n] = whole
		}
		return true
	}
}

// fitMoments leaves out moments of other rows than those of the first form.
func fitMoments(c *Case) bool { return c.Forms["x"] == 0 || len(c.With) == 0 }

// anyDType is data that reaches all bits of whole numbers.
func anyDType(g *generator, x *tensor.Tensor, s stream) value {
	bits := 8 * x.DType.Size()
	switch x.DType {
	case tensor.U8:
		return func(i int) float64 { return float64(s.below(i, 256)) }
	case tensor.I8, tensor.I16, tensor.I32, tensor.I64:
		return func(i int) float64 { return float64(int64(s.bits(i)) >> (64 - bits) >> s.below(i+1<<20, int64(bits))) }
	}
	return g.data(x, s)
}

// pairedExtents derives the extents of a cast: those of pairs count two values each.
func pairedExtents(g *generator) error {
	h := g.shape["H"]
	in, out := g.c.Types["in"] == tensor.F4E2M1x2, g.c.Types["out"] == tensor.F4E2M1x2
	g.set("I", h)
	g.set("O", h)
	switch {
	case in && !out:
		g.set("O", 2*h)
	case out && !in:
		g.set("I", 2*h)
	}
	return nil
}

// momentSize is the size of what the differences from a mean are made of, as they are scaled.
func momentSize(want *Args, output string) (func(i int) float64, error) {
	x := want.original("x")
	if output == "mean" {
		top := largestOf(x)
		return func(int) float64 { return top }, nil
	}
	rec := want.rec.Elem()
	e, t := rec.FieldByName("Eps").Float(), want.Tensor("x")
	n := int(max(t.Last(), 1))
	if f := rec.FieldByName("NumGroups"); f.IsValid() {
		n = int(max(t.Numel()/max(t.Shape[0]*f.Int(), 1), 1))
	}
	rows := make([]float64, len(x)/n)
	for i := range rows {
		row, mean, squares := x[i*n:(i+1)*n], 0.0, 0.0
		for _, v := range row {
			mean += v / float64(n)
		}
		for _, v := range row {
			squares += (v - mean) * (v - mean) / float64(n)
		}
		if rows[i] = 1 / math.Sqrt(squares+e); output == "out" {
			rows[i] *= largestOf(row)
		}
	}
	if output != "out" {
		return func(i int) float64 { return rows[i] }, nil
	}
	scale, shift := 1.0, largestOf(want.original("bias"))
	if w := want.original("weight"); w != nil {
		scale = largestOf(w)
	}
	return func(i int) float64 { return rows[i/n]*scale + shift }, nil
}

// logSize is the size of the scaled logits of the row.
func logSize(want *Args, _ string) (func(i int) float64, error) {
	x, n := want.original("x"), int(max(want.Tensor("x").Last(), 1))
	scale := math.Abs(want.rec.Elem().FieldByName("Scale").Float())
	if scale == 0 {
		scale = 1
	}
	return func(i int) float64 { return scale*largestOf(x[i/n*n:][:n]) + math.Log(float64(n)) + 1 }, nil
}

func gatedCases(b *builder) {
	b.add("sigmoid", Case{Attrs: map[string]any{"sigmoid_gate": true}})
	b.add("heads of a wider row", Case{Forms: map[string]int{"out": 1}, Strided: true, Types: map[string]tensor.DType{"gate": tensor.BF16}})
	b.add("eps 0", Case{Attrs: map[string]any{"eps": 0.0}})
	b.add("row of zeros", Case{Shape: Shape{"T": 1, "D": 3}, Values: map[string][]float64{"x": {0, 0, 0}, "gate": {1, -1, 5}, "weight": {1, 2, 3}}, Want: map[string][]float64{"out": {0, 0, 0}}})
	b.add("half", Case{Shape: Shape{"T": 1, "D": 2}, Attrs: map[string]any{"sigmoid_gate": true, "eps": 0.0}, Values: map[string][]float64{"x": {2, -2}, "gate": {0, 0}, "weight": {1, 3}},
		Want: map[string][]float64{"out": {0.5, -1.5}}})
}

func layerCases(b *builder) {
	b.add("by hand", Case{Shape: Shape{"T": 2, "D": 2}, Attrs: map[string]any{"eps": 0.0}, With: []string{"mean", "inv_std_dev"},
		Values: map[string][]float64{"x": {1, 3, -4, 0}, "weight": {2, 3}, "bias": {10, 20}},
		Want:   map[string][]float64{"out": {8, 23, 8, 23}, "mean": {2, -2}, "inv_std_dev": {1, 0.5}}})
	b.add("one element", Case{Shape: Shape{"T": 1, "D": 1}, Values: map[string][]float64{"x": {7}, "bias": {3}}, Want: map[string][]float64{"out": {3}}})
	for _, n := range []int64{768, 1024, 4096} {
		b.add("rows of "+Shape{"D": n}.String(), Case{Shape: Shape{"T": 2, "D": n}, Types: map[string]tensor.DType{"x": tensor.BF16, "weight": tensor.BF16, "bias": tensor.BF16}})
	}
}

func lengthCases(b *builder) {
	two := Shape{"T": 1, "D": 2}
	b.add("by hand", Case{Shape: two, Attrs: map[string]any{"eps": 0.0}, Values: map[string][]float64{"x": {3, -4}}, Want: map[string][]float64{"out": {0.6, -0.8}}})
	b.add("eps of the square", Case{Shape: two, Attrs: map[string]any{"eps": 75.0}, Values: map[string][]float64{"x": {3, -4}}, Want: map[string][]float64{"out": {0.3, -0.4}}})
	b.add("least length", Case{Shape: two, Attrs: map[string]any{"eps": 10.0, "clamp": true}, Values: map[string][]float64{"x": {3, -4}}, Want: map[string][]float64{"out": {0.3, -0.4}}})
	b.add("above the least length", Case{Shape: two, Attrs: map[string]any{"eps": 1.0, "clamp": true}, Values: map[string][]float64{"x": {3, -4}}, Want: map[string][]float64{"out": {0.6, -0.8}}})
	for _, clamp := range []bool{false, true} {
		name := map[bool]string{false: "zeros", true: "zeros/clamp"}[clamp]
		b.add(name, Case{Shape: two, Attrs: map[string]any{"clamp": clamp}, Values: map[string][]float64{"x": {0, 0}}, Want: map[string][]float64{"out": {0, 0}}})
	}
	b.add("clamp", Case{Attrs: map[string]any{"clamp": true}})
}

func groupCases(b *builder) {
	b.add("by hand", Case{Shape: Shape{"T": 1, "C": 2, "S": 2}, Attrs: map[string]any{"eps": 0.0, "num_groups": 2},
		Values: map[string][]float64{"x": {1, 3, 10, 30}, "weight": {2, 1}, "bias": {0, 5}}, Want: map[string][]float64{"out": {-2, 2, 4, 6}}})
	b.add("one group", Case{Attrs: map[string]any{"num_groups": 1}, With: []string{"weight", "bias"}, Types: map[string]tensor.DType{"weight": tensor.F32, "bias": tensor.BF16}})
	b.add("a group each", Case{Attrs: map[string]any{"num_groups": 6}, Types: map[string]tensor.DType{"weight": tensor.F16}})
}

func longCases(b *builder) { b.add("long", Case{Shape: Shape{"T": 3, "H": 5003}}) }

// oddCases adds infinities, NaN and the ends of exp, and more than one piece.
func oddCases(b *builder) {
	longCases(b)
	b.add("odd values", Case{Shape: Shape{"T": 1, "H": int64(len(oddValues))}, Values: map[string][]float64{"x": oddValues}})
}

func geluMulCases(b *builder) {
	odd := append(append([]float64{}, oddValues...), oddValues...)
	for _, erf := range []bool{false, true} {
		name := map[bool]string{false: "tanh", true: "erf"}[erf]
		b.add("odd values/"+name, Case{Shape: Shape{"T": 1, "D": int64(len(oddValues))}, Attrs: map[string]any{"erf": erf}, Values: map[string][]float64{"x": odd}})
		b.add("up/"+name, Case{Types: map[string]tensor.DType{"up": tensor.F16}, Attrs: map[string]any{"erf": erf}})
	}
}

func softCapCases(b *builder) {
	oddCases(b)
	b.add("ends", Case{Shape: Shape{"T": 1, "H": 4}, Values: map[string][]float64{"x": {negInf, math.Inf(1), 0, 3e38}}, Want: map[string][]float64{"out": {-3, 3, 0, 3}}})
	b.add("usual", Case{Attrs: map[string]any{"cap": 30.0}, Types: map[string]tensor.DType{"x": tensor.BF16}})
}

func geluCases(b *builder) {
	oddCases(b)
	b.add("tanh", Case{Attrs: map[string]any{"tanh": true}})
	b.add("odd values/tanh", Case{Shape: Shape{"T": 1, "H": int64(len(oddValues))}, Attrs: map[string]any{"tanh": true}, Values: map[string][]float64{"x": oddValues}})
}

func swishCases(b *builder) {
	oddCases(b)
	b.add("alpha", Case{Attrs: map[string]any{"alpha": 1.702}})
	b.add("negative alpha", Case{Attrs: map[string]any{"alpha": -0.5}})
}

func hardCases(b *builder) {
	oddCases(b)
	b.add("by hand", Case{Shape: Shape{"T": 1, "H": 6}, Values: map[string][]float64{"x": {-4, -3, 0, 1.5, 3, 4}}, Want: map[string][]float64{"out": {0, 0, 0, 1.125, 3, 4}}})
}

func softplusCases(b *builder) {
	oddCases(b)
	b.add("by hand", Case{Shape: Shape{"T": 1, "H": 4}, Values: map[string][]float64{"x": {0, 100, -200, 3e38}}, Want: map[string][]float64{"out": {math.Ln2, 100, 0, 3e38}}})
	b.add("threshold", Case{Shape: Shape{"T": 1, "H": 3}, Attrs: map[string]any{"threshold": 1.0}, Values: map[string][]float64{"x": {1, 1.5, 0}}, Want: map[string][]float64{"out": {math.Log1p(math.E), 1.5, math.Ln2}}})
}

// wholeCase is a call of add or mul on i8.
func wholeCase(a, b, want []float64) Case {
	return Case{Shape: Shape{"T": 1, "H": int64(len(a))}, Types: map[string]tensor.DType{"a": tensor.I8, "b": tensor.I8, "out": tensor.I8},
		Values: map[string][]float64{"a": a, "b": b}, Want: map[string][]float64{"out": want}}
}

func sumCases(b *builder) {
	addCases(b)
	b.add("wraps", wholeCase([]float64{100, -128, 7}, []float64{100, -1, -7}, []float64{-56, 127, 0}))
	factorCases(b)
}

func productOfTwoCases(b *builder) {
	addCases(b)
	b.add("wraps", wholeCase([]float64{100, -128, 7}, []float64{3, -1, -7}, []float64{44, -128, -49}))
	factorCases(b)
}

// factorCases adds factors that repeat, for every dtype of whole numbers.
func factorCases(b *builder) {
	for _, t := range []tensor.DType{tensor.I8, tensor.U8, tensor.I16, tensor.I32, tensor.I64} {
		for form, name := range []string{"all", "row", "one"} {
			b.add("whole/"+t.String()+"/"+name, Case{Shape: Shape{"T": 3, "H": 701}, Types: map[string]tensor.DType{"a": t, "b": t, "out": t}, Forms: map[string]int{"b": form}})
		}
	}
}

func clipCases(b *builder) {
	longCases(b)
	nan := math.NaN()
	clip := func(name string, t tensor.DType, x []float64, bounds map[string][]float64, want ...float64) {
		c := Case{Shape: Shape{"T": 1, "H": int64(len(x))}, Types: map[string]tensor.DType{"x": t, "out": t}, Values: map[string][]float64{"x": x}, Want: map[string][]float64{"out": want}}
		for k, v := range bounds {
			c.Values[k] = v
		}
		b.add(name, c)
	}
	both := map[string][]float64{"min": {-2}, "max": {3}}
	clip("both", tensor.F32, []float64{-3, -2, 0, 4, math.Inf(1), negInf}, both, -2, -2, 0, 3, 3, -2)
	clip("zero NaN", tensor.F32, []float64{nan, 9, -9, math.Inf(1)}, both, 0, 3, -2, 3)
	b.list[len(b.list)-1].Attrs = map[string]any{"nan_to_zero": true}
	clip("max below min", tensor.F32, []float64{-3, 0, 4}, map[string][]float64{"min": {5}, "max": {1}}, 1, 1, 1)
	clip("none", tensor.BF16, []float64{-3, nan, 4}, nil, -3, nan, 4)
	clip("i8", tensor.I8, []float64{-128, -2, 0, 127}, both, -2, -2, 0, 3)
	clip("u8 from below", tensor.U8, []float64{0, 200, 255}, map[string][]float64{"min": {201}}, 201, 201, 255)
	clip("i64", tensor.I64, []float64{-1 << 60, 1 << 60}, map[string][]float64{"max": {1 << 50}}, -1<<60, 1<<50)
}

// roundingCases adds ties and what hardware gets wrong.
func roundingCases(b *builder) {
	longCases(b)
	in := []uint32{0x3E89CCD5, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0xFF7FFFFF, 0x00008000, 0x00018000}
	out := []uint16{0x3E8A, 0x3F80, 0x3F82, 0x7F80, 0xFF80, 0x0000, 0x0002}
	b.add("ties", Case{Shape: Shape{"T": 1, "H": int64(len(in))},
		Values: map[string][]float64{"in": repeat(len(in), func(i int) float64 { return float64(math.Float32frombits(in[i])) })},
		Want:   map[string][]float64{"out": repeat(len(in), func(i int) float64 { return float64(tensor.DecodeBF16(out[i])) })}})
}

func castCases(b *builder) {
	longCases(b)
	inf, nan := math.Inf(1), math.NaN()
	cast := func(name string, from, to tensor.DType, attrs map[string]any, in []float64, want ...float64) {
		c := Case{Shape: Shape{"T": 1, "H": int64(len(in))}, Types: map[string]tensor.DType{"in": from, "out": to}, Attrs: attrs, Values: map[string][]float64{"in": in}, Want: map[string][]float64{"out": want}}
		b.add(name, c)
	}
	saturate := map[string]any{"saturate": true}
	odd := []float64{1.9, -1.9, 300, -300, nan, inf, -inf}
	cast("to i8", tensor.F32, tensor.I8, nil, odd, 1, -1, 127, -128, 0, 127, -128)
	cast("to u8", tensor.F32, tensor.U8, nil, odd, 1, 0, 255, 0, 0, 255, 0)
	cast("low bits", tensor.I32, tensor.I8, nil, []float64{300, -300, 128, -1}, 44, -44, -128, -1)
	cast("u8 to i8", tensor.U8, tensor.I8, nil, []float64{127, 128, 255}, 127, -128, -1)
	cast("i64 to f32", tensor.I64, tensor.F32, nil, []float64{1<<24 + 1, 1<<24 + 3, -1 << 62}, 1<<24, 1<<24+4, -1<<62)
	cast("f64 to f16 once", tensor.F64, tensor.F16, nil, []float64{1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11, 65519.99999999}, 1+0x1p-10, 1, 65504)
	over := []float64{448, 464, 465, -1e9, inf}
	cast("f8_e4m3fn", tensor.F32, tensor.F8E4M3FN, saturate, over, 448, 448, 448, -448, 448)
	cast("f8_e4m3fn/not saturated", tensor.F32, tensor.F8E4M3FN, nil, over, 448, 448, nan, nan, nan)
	over = []float64{57344, 61439, 61440, -1e9, inf}
	cast("f8_e5m2", tensor.F32, tensor.F8E5M2, saturate, over, 57344, 57344, 57344, -57344, 57344)
	cast("f8_e5m2/not saturated", tensor.F32, tensor.F8E5M2, nil, over, 57344, 57344, nan, nan, nan)
	for mode, want := range [][]float64{{2, 4, 4}, {2, 4, 4}, {2, 2, 2}} {
		cast("f8_e8m0/"+[]string{"nearest", "up", "down"}[mode], tensor.F32, tensor.F8E8M0, map[string]any{"round_mode": mode, "saturate": true}, []float64{2, 3, 3.5}, want...)
	}
	cast("f8_e8m0/a quarter", tensor.F32, tensor.F8E8M0, nil, []float64{2.5, 0.75}, 2, 1)
	for _, t := range []tensor.DType{tensor.F4E2M1x2, tensor.F32, tensor.I64} {
		b.add("pairs/"+t.String(), Case{Shape: Shape{"T": 3, "H": 1025}, Strided: true, Types: map[string]tensor.DType{"in": tensor.F4E2M1x2, "out": t}})
		b.add("to pairs/"+t.String(), Case{Shape: Shape{"T": 3, "H": 1025}, Strided: true, Types: map[string]tensor.DType{"in": t, "out": tensor.F4E2M1x2}})
	}
}

func logSoftmaxCases(b *builder) {
	b.add("by hand", Case{Shape: Shape{"T": 1, "N": 2}, Values: map[string][]float64{"x": {5, 5}}, Want: map[string][]float64{"out": {-math.Ln2, -math.Ln2}}})
	b.add("scale", Case{Attrs: map[string]any{"scale": -0.5}})
	b.add("hidden row", Case{Shape: Shape{"T": 2, "N": 2}, Values: map[string][]float64{"x": {negInf, negInf, negInf, 1}}})
	b.add("vocabulary", Case{Shape: Shape{"T": 2, "N": 9001}, Types: map[string]tensor.DType{"x": tensor.BF16}})
}
