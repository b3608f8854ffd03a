package sample

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/opmux/opmux/tensor"
)

// transformRecipes is for rotations of rows and the probe.
var transformRecipes = recipeTable{
	"hadamard_transform": {shape: Shape{"T": 3, "N": 64}, big: Shape{"T": 5, "N": 1024}, batch: "T", alias: map[string]string{"out": "x"},
		least: Shape{"N": 1}, fit: func(c *Case) bool {
			n, ok := c.Shape["N"]
			return !ok || bits.OnesCount64(uint64(n)) == 1
		}, fills: sums, cases: hadamardCases},
	"quant_mx": {shape: Shape{"M": 3, "K": 64}, big: Shape{"M": 5, "K": 320}, batch: "M", derived: []string{"W", "G"}, derive: mxExtents("out"), step: Shape{"K": 32},
		fills: []Fill{Zero, Equal, Ties, Denormal, Huge, NaN}, cases: mxCases},
	"dequant_mx": {shape: Shape{"M": 3, "K": 64}, big: Shape{"M": 5, "K": 320}, batch: "M", derived: []string{"W", "G"}, derive: mxExtents("x"), step: Shape{"K": 32},
		fill: fillers{"x": anyByte, "scale": wholes(110, 140)}, cases: mxDecodeCases},
	"quant_fp8_dynamic": {shape: Shape{"M": 3, "K": 64}, big: Shape{"M": 5, "K": 333}, derived: []string{"S", "G"}, derive: scaleExtents, attrs: func(g *generator) map[string]any {
		if g.c.Forms["scale"] == 0 {
			return nil
		}
		return map[string]any{"granularity": 1}
	}, fills: []Fill{Zero, Equal, Ties, Denormal, Huge, NaN}, cases: dynamicCases},
	"dropin_probe": {shape: Shape{"R": 3, "C": 17, "W": 4}, big: Shape{"R": 5, "C": 333, "W": 9}, least: Shape{"R": 1, "C": 1, "W": 1}, attrs: func(*generator) map[string]any {
		return map[string]any{"scalar_type": tensor.F32.ScalarID(), "workspace_slot": 3, "scalar_slot": 1}
	}, fills: anyFill, cases: probeCases},
}

// transformTolerances is for those of them whose results are not exact.
var transformTolerances = toleranceTable{
	"hadamard_transform": {ulps: 1, sum: 4, terms: extentOf("N"), size: func(want *Args, _ string) (func(i int) float64, error) {
		n := int(max(want.shape["N"], 1))
		rows := norms(want.original("x"), want.shape["T"])
		scale := math.Abs(want.rec.Elem().FieldByName("Scale").Float())
		if scale == 0 {
			scale = 1
		}
		return func(i int) float64 { return rows[i/n] * scale * math.Sqrt(float64(n)) }, nil
	}},
}

func hadamardCases(b *builder) {
	b.add("four", Case{Shape: Shape{"T": 1, "N": 4}, Values: map[string][]float64{"x": {1, 2, 3, 5}}, Want: map[string][]float64{"out": {11, -3, -5, 1}}})
	b.add("scale", Case{Shape: Shape{"T": 1, "N": 4}, Attrs: map[string]any{"scale": 0.5}, Values: map[string][]float64{"x": {1, 0, 0, 0}},
		Want: map[string][]float64{"out": {0.5, 0.5, 0.5, 0.5}}})
	b.add("one element", Case{Shape: Shape{"T": 2, "N": 1}, Attrs: map[string]any{"scale": -2.0}, Values: map[string][]float64{"x": {3, -4}},
		Want: map[string][]float64{"out": {-6, 8}}})
	for _, n := range []int64{2, 8, 32, 128, 512, 4096} {
		for _, t := range []tensor.DType{tensor.F32, tensor.BF16} {
			b.add("rows of "+Shape{"N": n}.String()+"/"+t.String(), Case{Shape: Shape{"T": 2, "N": n}, Types: map[string]tensor.DType{"x": t}, Attrs: map[string]any{"scale": 1 / math.Sqrt(float64(n))}})
		}
	}
}

func probeCases(b *builder) {
	word := float64(int32(uint32(tensor.F32.ScalarID() & math.MaxUint32)))
	b.add("attribute", Case{Shape: Shape{"R": 1, "C": 3, "W": 2}, Attrs: map[string]any{"scalar": 2.5, "scalar_type": tensor.F32.ScalarID(), "scalar_slot": 1},
		Values: map[string][]float64{"in": {1, -1, math.Inf(1)}}, Want: map[string][]float64{"out": {3.5, 1.5, math.Inf(1)}, "workspace": {word, 0}}})
	b.add("resident", Case{Shape: Shape{"R": 1, "C": 2, "W": 1}, Values: map[string][]float64{"in": {1, -1}, "resident_scalar": {0.25}},
		Want: map[string][]float64{"out": {1.25, -0.75}, "workspace": {word}}})
}

// mxExtents derives the bytes and scales of a row from its elements.
func mxExtents(codes string) func(g *generator) error {
	return func(g *generator) error {
		k := g.shape["K"]
		g.set("G", k/32)
		if g.set("W", k); g.c.Types[codes] == tensor.F4E2M1x2 {
			g.set("W", k/2)
		}
		return nil
	}
}

// scaleExtents derives the scales from the attributes.
func scaleExtents(g *generator) error {
	g.set("S", 1)
	if g.set("G", 1); g.attr("granularity", 0) == 2 {
		g.set("G", g.shape["K"]/g.attr("group_size", 1))
	}
	return nil
}

func mxCases(b *builder) {
	row := func(i int) float64 { return map[bool]float64{true: 500}[i == 5] + float64(i%7-3)/4 }
	x := repeat(32, row)
	for _, rule := range []int{0, 1} {
		for _, t := range []tensor.DType{tensor.F8E4M3FN, tensor.F8E5M2, tensor.F4E2M1x2} {
			b.add(fmt.Sprintf("rule %d/%v", rule, t), Case{Shape: Shape{"M": 1, "K": 32}, Types: map[string]tensor.DType{"out": t}, Attrs: map[string]any{"rounding": rule}, Values: map[string][]float64{"x": x}})
		}
	}
	// 500 is 1.95·2^8: in e4m3fn floor scales by 1 and saturates, ceil scales by 2.
	b.add("floor saturates", Case{Shape: Shape{"M": 1, "K": 32}, Values: map[string][]float64{"x": repeat(32, constant(500))},
		Want: map[string][]float64{"out": repeat(32, constant(448)), "scale": {1}}})
	b.add("ceil does not", Case{Shape: Shape{"M": 1, "K": 32}, Attrs: map[string]any{"rounding": 1}, Values: map[string][]float64{"x": repeat(32, constant(500))},
		Want: map[string][]float64{"out": repeat(32, constant(256)), "scale": {2}}})
	b.add("zeros", Case{Shape: Shape{"M": 1, "K": 32}, Values: map[string][]float64{"x": make([]float64, 32)}, Want: map[string][]float64{"out": make([]float64, 32), "scale": {0x1p-127}}})
}

func mxDecodeCases(b *builder) {
	b.add("largest and NaN", Case{Shape: Shape{"M": 1, "K": 64}, Types: map[string]tensor.DType{"x": tensor.F8E5M2, "scale": tensor.U8},
		Values: map[string][]float64{"x": repeat(64, constant(1.5)), "scale": {254, 255}}})
}

func dynamicCases(b *builder) {
	for _, group := range []int{1, 32, 64} {
		for _, t := range []tensor.DType{tensor.F32, tensor.F8E8M0} {
			b.add(fmt.Sprintf("groups of %d/%v", group, t), Case{Forms: map[string]int{"scale": 1}, Types: map[string]tensor.DType{"scale": t}, Attrs: map[string]any{"granularity": 2, "group_size": group}})
		}
	}
	b.add("groups of 128", Case{Shape: Shape{"M": 2, "K": 256}, Forms: map[string]int{"scale": 1}, Attrs: map[string]any{"granularity": 2, "group_size": 128}, Strided: true})
	b.add("a token", Case{Shape: Shape{"M": 1, "K": 4}, Forms: map[string]int{"scale": 1}, Attrs: map[string]any{"granularity": 1},
		Values: map[string][]float64{"x": {448, -224, 0, 1}}, Want: map[string][]float64{"out": {448, -224, 0, 1}, "scale": {1}}})
	b.add("a power of two", Case{Shape: Shape{"M": 1, "K": 4}, Types: map[string]tensor.DType{"scale": tensor.F8E8M0},
		Values: map[string][]float64{"x": {449, -224, 0, 2}}, Want: map[string][]float64{"out": {224, -112, 0, 1}, "scale": {2}}})
}
