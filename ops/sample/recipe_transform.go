package sample

import (
	"math"
	"math/bits"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// transformRecipes is for rotations of rows and the probe.
var transformRecipes = recipeTable{
	"hadamard_transform": {shape: Shape{"T": 3, "N": 64}, big: Shape{"T": 5, "N": 1024}, batch: "T", alias: map[string]string{"out": "x"},
		least: Shape{"N": 1}, fit: func(c *Case) bool {
			n, ok := c.Shape["N"]
			return !ok || bits.OnesCount64(uint64(n)) == 1
		}, fills: sums, cases: hadamardCases},
	"dropin_probe": {shape: Shape{"R": 3, "C": 17, "W": 4}, big: Shape{"R": 5, "C": 333, "W": 9}, least: Shape{"R": 1, "C": 1, "W": 1}, attrs: func(*generator) map[string]any {
		return map[string]any{"scalar_type": ops.SemanticTypeF32, "workspace_slot": 3, "scalar_slot": 1}
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
	word := float64(int32(uint32(ops.SemanticTypeF32 & math.MaxUint32)))
	b.add("attribute", Case{Shape: Shape{"R": 1, "C": 3, "W": 2}, Attrs: map[string]any{"scalar": 2.5, "scalar_type": ops.SemanticTypeF32, "scalar_slot": 1},
		Values: map[string][]float64{"in": {1, -1, math.Inf(1)}}, Want: map[string][]float64{"out": {3.5, 1.5, math.Inf(1)}, "workspace": {word, 0}}})
	b.add("resident", Case{Shape: Shape{"R": 1, "C": 2, "W": 1}, Values: map[string][]float64{"in": {1, -1}, "resident_scalar": {0.25}},
		Want: map[string][]float64{"out": {1.25, -0.75}, "workspace": {word}}})
}
