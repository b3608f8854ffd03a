package sample

import (
	"fmt"
	"math"

	"github.com/opmux/opmux/tensor"
)

// gemmRecipes is for products.
var gemmRecipes = recipeTable{
	"batched_matmul": {shape: Shape{"G": 3, "M": 5, "N": 37, "K": 24}, big: Shape{"G": 2, "M": 13, "N": 300, "K": 100}, batch: "G", fills: sums, cases: batchedCases},
	"matmul_nvfp4": {shape: Shape{"M": 3, "N": 13, "K": 64}, big: Shape{"M": 9, "N": 66, "K": 320}, batch: "M", derived: []string{"KB", "KG"}, derive: fp4Extents, step: Shape{"K": 16},
		attrs: fixed("weight_scale2", 0.25), fill: fillers{"weight_packed": anyByte, "weight_scale": fp8Scale}, fills: sums, cases: zeroRows("M", "N", "K")},
	"matmul_nvfp4_fp4": {shape: Shape{"M": 3, "N": 13, "K": 64}, big: Shape{"M": 9, "N": 66, "K": 320}, batch: "M", derived: []string{"KB", "KG"}, derive: fp4Extents, step: Shape{"K": 16},
		attrs: fixed("alpha", 0.25), fill: fillers{"a_packed": anyByte, "a_scale": fp8Scale, "b_packed": anyByte, "b_scale": fp8Scale}, cases: zeroRows("M", "N", "K")},
	"matmul_nvfp4_swizzled": {shape: Shape{"M": 3, "N": 32, "K": 64}, big: Shape{"M": 130, "N": 160, "K": 320}, derived: []string{"KB", "MP", "NP", "KP"}, derive: fp4Extents, step: Shape{"N": 32, "K": 32},
		attrs: func(g *generator) map[string]any {
			if g.has("alpha") {
				return nil
			}
			return map[string]any{"host_alpha": 0.25}
		}, fill: fillers{"a_packed": anyByte, "a_sf_sw": fp8Scale, "b_packed": anyByte, "b_sf_sw": fp8Scale}, cases: zeroRows("M", "N", "K")},
	"matmul_fp8": {shape: Shape{"M": 3, "N": 16, "K": 48}, big: Shape{"M": 9, "N": 48, "K": 320}, batch: "M", derived: []string{"KG", "NG"}, derive: tiles, step: Shape{"N": 16, "K": 16},
		fill:  fillers{"a_fp8": fp8Code, "b_fp8": fp8Code, "a_scale": powers, "b_scale": powers},
		alone: oneScaled, cases: fp8Cases},
	"matmul_int8": {shape: Shape{"M": 3, "N": 37, "K": 20, "Z": 1, "Y": 1, "S": 1, "R": 1}, big: Shape{"M": 9, "N": 300, "K": 100}, still: []string{"Z", "Y", "S", "R"},
		fill: fillers{"a": anyByte, "b": anyByte, "a_zero_point": anyByte, "b_zero_point": anyByte, "y_zero_point": anyByte, "a_scale": span(0.01, 0.1), "b_scale": span(0.01, 0.1), "y_scale": span(0.5, 2)},
		fit:  fitScales, cases: int8Cases},
}

// gemmTolerances is for those of them whose results are not exact.
var gemmTolerances = toleranceTable{
	"batched_matmul":        {ulps: 1, sum: 4, terms: extentOf("K"), size: largestProduct("a", "b")},
	"matmul_nvfp4":          {ulps: 1, sum: 4, terms: extentOf("K"), size: largestOut},
	"matmul_nvfp4_fp4":      {ulps: 1, sum: 4, terms: extentOf("K"), size: largestOut},
	"matmul_nvfp4_swizzled": {ulps: 2, sum: 4, terms: extentOf("K"), size: largestOut},
	"matmul_fp8":            {ulps: 2, sum: 4, terms: extentOf("K"), size: largestOut},
	"matmul_int8":           {ulps: 2, terms: extentOf("")},
}

// largestProduct is the size of sums over products of two operands.
func largestProduct(a, b string) func(*Args, string) (func(int) float64, error) {
	return func(want *Args, _ string) (func(int) float64, error) {
		x, err := Values(want.Tensor(a))
		if err != nil {
			return nil, err
		}
		y, err := Values(want.Tensor(b))
		size := largestOf(x) * largestOf(y) * math.Sqrt(float64(want.shape["K"]))
		return func(int) float64 { return size }, err
	}
}

// largestOut is the size of sums over codes, whose results are of a size throughout.
func largestOut(want *Args, output string) (func(int) float64, error) {
	v, err := Values(want.Tensor(output))
	size := largestOf(v)
	return func(int) float64 { return size }, err
}

// fixed gives one attribute a value.
func fixed(name string, v any) func(*generator) map[string]any {
	return func(*generator) map[string]any { return map[string]any{name: v} }
}

// anyByte returns codes of every kind.
func anyByte(_ *generator, x *tensor.Tensor, s stream) value {
	low := int64(0)
	if x.DType == tensor.I8 {
		low = -128
	}
	return func(i int) float64 { return float64(low + s.below(i, 256)) }
}

// code is a byte as an operand's dtype spells it.
func code(t tensor.DType, c int64) float64 {
	switch {
	case t == tensor.I8:
		return float64(int8(c))
	case t == tensor.U8:
		return float64(c)
	case t == tensor.F8E5M2:
		return float64(tensor.DecodeE5M2(uint8(c)))
	}
	return float64(tensor.DecodeE4M3FN(uint8(c)))
}

// fp8Scale returns codes of e4m3fn numbers from 1/4 to 3.5.
func fp8Scale(_ *generator, x *tensor.Tensor, s stream) value {
	return func(i int) float64 { return code(x.DType, 0x28+s.below(i, 32)) }
}

// fp8Code returns codes of all finite numbers up to 30, of either sign.
func fp8Code(_ *generator, x *tensor.Tensor, s stream) value {
	return func(i int) float64 { return code(x.DType, s.below(i, 0x58)|s.below(i+1<<20, 2)<<7) }
}

// powers returns powers of two from 1/4 to 2, which every type of scale holds.
func powers(_ *generator, _ *tensor.Tensor, s stream) value {
	return func(i int) float64 { return math.Ldexp(1, int(s.below(i, 4))-2) }
}

// fp4Extents derives what packed rows of K elements take.
func fp4Extents(g *generator) error {
	k := g.shape["K"]
	up := func(n, to int64) int64 { return (n + to - 1) / to * to }
	g.set("KB", k/2)
	g.set("KG", k/16)
	g.set("KP", up(k/16, 4))
	g.set("MP", up(g.shape["M"], 128))
	g.set("NP", up(g.shape["N"], 128))
	return nil
}

// tiles derives the tiles of scales.
func tiles(g *generator) error {
	k, n := g.shape["K"], g.shape["N"]
	bk, bn := g.attr("block_k", 0), max(g.attr("block_n", 0), 1)
	if bk == 0 {
		bk = max(k, 1)
	}
	g.set("KG", (k+bk-1)/bk)
	g.set("NG", (n+bn-1)/bn)
	return nil
}

// oneScaled narrows a product to one row of a.
func oneScaled(a *Args, row int64) error {
	for _, name := range []string{"out", "a_fp8"} {
		if err := a.narrow(name, 0, row, row+1); err != nil {
			return err
		}
	}
	if s := a.Tensor("a_scale"); s.Present() && s.Rank == 2 {
		return a.narrow("a_scale", 0, row, row+1)
	}
	return nil
}

// zeroRows adds products over nothing.
func zeroRows(m, n, k string) func(*builder) {
	return func(b *builder) {
		b.add("nothing to sum", Case{Shape: Shape{m: 2, n: 32, k: 0}, Want: map[string][]float64{"out": make([]float64, 64)}})
	}
}

func batchedCases(b *builder) {
	b.add("nothing to sum", Case{Shape: Shape{"G": 2, "M": 2, "N": 3, "K": 0}, Want: map[string][]float64{"out": make([]float64, 12)}})
	b.add("two by two", Case{Shape: Shape{"G": 2, "M": 1, "N": 2, "K": 2}, Values: map[string][]float64{"a": {1, 2, 3, 4}, "b": {1, 2, 3, 4, 5, 6, 7, 8}},
		Want: map[string][]float64{"out": {7, 10, 43, 50}}})
	for _, k := range []int64{1, 3, 5, 7, 31, 257} {
		b.add(fmt.Sprintf("ragged/%d", k), Case{Shape: Shape{"G": 2, "M": 9, "N": 257, "K": k}, Strided: k%2 == 1, Offset: int(k % 3)})
	}
}

func fp8Cases(b *builder) {
	zeroRows("M", "N", "K")(b)
	b.add("epilogue", Case{Attrs: map[string]any{"bf16_epilogue": true, "alpha": 0.7}})
	for _, c := range []struct {
		name   string
		bn, bk int
		t      tensor.DType
	}{{"rows", 0, 0, tensor.F32}, {"tiles", 16, 32, tensor.F32}, {"blocks of 32", 1, 32, tensor.F8E8M0}, {"partial tiles", 10, 20, tensor.F32}} {
		types := map[string]tensor.DType{"a_scale": c.t, "b_scale": c.t}
		b.add("scales/"+c.name, Case{Shape: Shape{"M": 5, "N": 32, "K": 80}, Types: types, Forms: map[string]int{"a_scale": 1, "b_scale": 1},
			Attrs: map[string]any{"block_n": c.bn, "block_k": c.bk, "alpha": 0.5}})
	}
}

// fitScales adds the scales that an output needs, and drops those that it refuses.
func fitScales(c *Case) bool {
	out := c.Types["out"]
	small := out == tensor.I8 || out == tensor.U8
	if c.Types == nil {
		return true
	}
	for _, name := range []string{"a_scale", "b_scale"} {
		if out == tensor.I32 || out == tensor.None {
			if _, ok := c.Types[name]; ok {
				c.Types["out"] = tensor.F32
				out = tensor.F32
			}
		}
	}
	_, yScale := c.Types["y_scale"]
	_, yZero := c.Types["y_zero_point"]
	for _, name := range c.With {
		yZero = yZero || name == "y_zero_point"
	}
	if (yScale || yZero) && !small {
		c.Types["out"], small, out = tensor.I8, true, tensor.I8
	}
	if out != tensor.I32 && out != tensor.None {
		c.Types["a_scale"], c.Types["b_scale"] = tensor.F32, tensor.F32
	}
	if small {
		c.Types["y_scale"] = tensor.F32
	}
	return true
}

func int8Cases(b *builder) {
	b.add("nothing to sum", Case{Shape: Shape{"M": 2, "N": 3, "K": 0}, Want: map[string][]float64{"out": make([]float64, 6)}})
	b.add("extremes", Case{Shape: Shape{"M": 1, "N": 1, "K": 3}, Types: map[string]tensor.DType{"a": tensor.U8, "b": tensor.I8, "out": tensor.I32},
		Values: map[string][]float64{"a": {255, 255, 0}, "b": {-128, 127, -128}}, Want: map[string][]float64{"out": {-255}}})
	each := map[string]tensor.DType{"out": tensor.F32, "a": tensor.I8, "b": tensor.U8, "a_scale": tensor.F32, "b_scale": tensor.F32}
	b.add("rows and columns", Case{Shape: Shape{"M": 3, "N": 5, "K": 7, "Z": 3, "Y": 5, "S": 3, "R": 5}, Types: each, With: []string{"a_zero_point", "b_zero_point"}, Strided: true})
	small := map[string]tensor.DType{"out": tensor.I8, "a": tensor.I8, "b": tensor.I8, "a_scale": tensor.F32, "b_scale": tensor.F32, "y_scale": tensor.F32}
	b.add("ties and saturation", Case{Shape: Shape{"M": 1, "N": 5, "K": 1}, Types: small, With: []string{"y_zero_point"},
		Values: map[string][]float64{"a": {1}, "b": {1, 3, 5, 127, -128}, "a_scale": {1}, "b_scale": {1}, "y_scale": {2}, "y_zero_point": {100}},
		Want:   map[string][]float64{"out": {100, 102, 102, 127, 36}}})
}
