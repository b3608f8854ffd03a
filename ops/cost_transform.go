package ops

import "math/bits"

// transformCosts is for rotations of rows and the probe.
var transformCosts = costTable{
	OpHadamardTransform: cost(func(t *tally, a *HadamardTransformArgs) {
		t.each(&a.X, bits.Len64(uint64(a.X.Shape[1]))-1+count(a.Scale != 0))
	}),
	OpDropinProbe: cost(func(t *tally, a *DropinProbeArgs) { t.each(&a.In, 1) }),
}

// transformSymbols is for the same ops.
var transformSymbols = symbolTable{
	"hadamard_transform N": {"elements", false, []string{"last_dim"}},
	"dropin_probe W":       {"words", false, nil},
}
