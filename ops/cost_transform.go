package ops

import "math/bits"

// transformCosts is for rotations of rows and the probe.
var transformCosts = costTable{
	OpHadamardTransform: cost(func(t *tally, a *HadamardTransformArgs) {
		t.each(&a.X, bits.Len64(uint64(a.X.Shape[1]))-1+count(a.Scale != 0))
	}),
	OpQuantMX:         cost(func(t *tally, a *QuantMXArgs) { t.each(&a.X, scaleWork) }),
	OpDequantMX:       cost(func(t *tally, a *DequantMXArgs) { t.each(&a.Out, 1) }),
	OpQuantFP8Dynamic: cost(func(t *tally, a *QuantFP8DynamicArgs) { t.each(&a.X, scaleWork) }),
	OpDropinProbe:     cost(func(t *tally, a *DropinProbeArgs) { t.each(&a.In, 1) }),
}

// transformSymbols is for the same ops.
var transformSymbols = symbolTable{
	"hadamard_transform N": {"elements", false, []string{"last_dim"}},
	"quant_mx W":           {"bytes", false, nil},
	"quant_mx G":           {"blocks", false, nil},
	"dequant_mx W":         {"bytes", false, nil},
	"dequant_mx G":         {"blocks", false, nil},
	"quant_fp8_dynamic S":  {"scales", false, nil},
	"quant_fp8_dynamic G":  {"groups", false, nil},
	"dropin_probe W":       {"words", false, nil},
}

// scaleWork is that of an element that is quantized with a scale from the data: magnitude, comparison, division.
const scaleWork = 3
