package ops

// elementwiseCosts is for norms, activations and other work on single elements.
var elementwiseCosts = costTable{
	// square, add, scale, weight; silu or sigmoid of the gate, and its product
	OpRMSNormGated: cost(func(t *tally, a *RMSNormGatedArgs) { t.each(&a.X, 4+5-count(a.SigmoidGate)) }),
	OpLayerNorm: cost(func(t *tally, a *LayerNormArgs) {
		t.each(&a.X, momentsWork+count(a.Weight.Present())+count(a.Bias.Present()))
	}),
	OpL2Norm: cost(func(t *tally, a *L2NormArgs) { t.each(&a.X, 3) }), // square, add, scale
	OpGroupNorm: cost(func(t *tally, a *GroupNormArgs) {
		t.each(&a.X, momentsWork+count(a.Weight.Present())+count(a.Bias.Present()))
	}),

	OpGeluAndMul:      cost(func(t *tally, a *GeluAndMulArgs) { t.each(&a.Out, geluWork(!a.Erf)+1) }),
	OpMoESiluMul:      cost(func(t *tally, a *MoESiluMulArgs) { t.each(&a.Out, 5) }),      // as silu_and_mul
	OpSigmoidGateBF16: cost(func(t *tally, a *SigmoidGateBF16Args) { t.each(&a.Out, 5) }), // negate, exp, add, divide, multiply
	OpSoftCap:         cost(func(t *tally, a *SoftCapArgs) { t.each(&a.X, 3) }),           // divide, tanh, multiply
	OpGelu:            cost(func(t *tally, a *GeluArgs) { t.each(&a.X, geluWork(a.Tanh)) }),
	OpSwish:           cost(func(t *tally, a *SwishArgs) { t.each(&a.X, 4) }),     // multiply, exp, add, divide
	OpSigmoid:         cost(func(t *tally, a *SigmoidArgs) { t.each(&a.X, 4) }),   // negate, exp, add, divide
	OpTanh:            cost(func(t *tally, a *TanhArgs) { t.each(&a.X, 1) }),      // tanh
	OpHardSwish:       cost(func(t *tally, a *HardSwishArgs) { t.each(&a.X, 5) }), // divide, add, two comparisons, multiply
	OpSoftplus:        cost(func(t *tally, a *SoftplusArgs) { t.each(&a.X, 3) }),  // compare, exp, logarithm of one more

	OpMul: cost(func(t *tally, a *MulArgs) { t.each(&a.A, 1) }),
	OpClip: cost(func(t *tally, a *ClipArgs) {
		t.each(&a.X, count(a.Min.Present())+count(a.Max.Present())+count(a.NanToZero))
	}),
	OpMulColVecF32:  cost(func(t *tally, a *MulColVecF32Args) { t.each(&a.X, 1) }),
	OpCastBF16:      moved,
	OpCastF32:       moved,
	OpCast:          moved,
	OpAttnGateSplit: moved,
	OpLogSoftmax:    cost(func(t *tally, a *LogSoftmaxArgs) { t.each(&a.X, softmaxWork+count(a.Scale != 0)) }),
}

// momentsWork is what mean, variance and their use take of an element: add, subtract, square, add, subtract, scale.
const momentsWork = 6

// geluWork is what gelu takes of an element: three products for the cube, sum, scale, tanh, add, two products; or scale, erf,
// add, two products.
func geluWork(approximate bool) int {
	if approximate {
		return 9
	}
	return 5
}

// elementwiseSymbols is for the same ops.
var elementwiseSymbols = symbolTable{
	"rms_norm_gated D":  {"elements", false, []string{"head_dim"}},
	"rms_norm_gated Hv": {"heads", false, []string{"num_v_heads"}},
	"layer_norm D":      {"elements", false, []string{"hidden_size"}},
	"l2_norm H":         {"heads", false, []string{"num_heads"}},
	"group_norm C":      {"channels", false, []string{"num_channels"}},
	"gelu_and_mul D":    {"elements", false, []string{"intermediate_size"}},
	"mul_col_vec_f32 N": {"elements", false, nil},
	"log_softmax T":     {"rows", true, nil},
	"log_softmax N":     {"elements", false, []string{"last_dim"}},
}
