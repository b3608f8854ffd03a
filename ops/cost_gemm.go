package ops

import "github.com/opmux/opmux/tensor"

// gemmCosts is for products. Decoding counts nothing, as conversions do everywhere.
var gemmCosts = costTable{
	OpBatchedMatmul: cost(func(t *tally, a *BatchedMatmulArgs) { t.product(&a.A, a.Out.Last()) }),
	OpMatmulNVFP4:   cost(func(t *tally, a *MatmulNVFP4Args) { t.product(&a.Act, a.Out.Last()) }),
	OpMatmulNVFP4FP4: cost(func(t *tally, a *MatmulNVFP4FP4Args) {
		t.FLOPs = 4 * elements(&a.APacked) * float64(a.Out.Last())
	}),
	OpMatmulNVFP4Swizzled: cost(func(t *tally, a *MatmulNVFP4SwizzledArgs) {
		t.FLOPs = 4 * elements(&a.APacked) * float64(a.Out.Last())
		// Padding is not read.
		groups := a.APacked.Last() / 8
		t.read("a_sf_sw", a.Out.Shape[0]*groups)
		t.read("b_sf_sw", a.Out.Shape[1]*groups)
	}),
	OpMatmulFP8: cost(func(t *tally, a *MatmulFP8Args) { t.product(&a.AFp8, a.Out.Last()) }),
	OpMatmulInt8: cost(func(t *tally, a *MatmulInt8Args) {
		t.product(&a.A, a.Out.Last())
		t.Unit = UnitInt8
		for _, x := range [...]*tensor.Tensor{&a.AScale, &a.YScale} {
			if x.Present() {
				t.FLOPs += elements(&a.Out)
			}
		}
	}),
}

// gemmSymbols is for the same ops.
var gemmSymbols = symbolTable{
	"batched_matmul G":         {"products", true, []string{"batch"}},
	"batched_matmul N":         {"elements", false, nil},
	"matmul_nvfp4 N":           {"elements", false, nil},
	"matmul_nvfp4_fp4 N":       {"elements", false, nil},
	"matmul_nvfp4_swizzled N":  {"elements", false, nil},
	"matmul_nvfp4_swizzled MP": {"rows", true, nil},
	"matmul_fp8 N":             {"elements", false, nil},
	"matmul_int8 N":            {"elements", false, nil},
	"matmul_int8 Z":            {"zero points", true, nil},
	"matmul_int8 S":            {"scales", true, nil},
	"KB":                       {"bytes", false, nil},
	"KG":                       {"scales", false, nil},
	"NG":                       {"scales", false, nil},
}
