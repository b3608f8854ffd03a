package ops

import "github.com/opmux/opmux/tensor"

// Work of elementary formulas, in operations: silu negates, exponentiates, adds and divides; the gates of a head are a
// softplus, two exponentials and a sigmoid.
const (
	siluWork = 4
	gateWork = 10
)

// linearCosts is for gated delta nets and their convolutions.
var linearCosts = costTable{
	OpCausalConv1DFwd: cost(func(t *tally, a *CausalConv1DFwdArgs) {
		t.each(&a.X, 2*int(a.Weight.Shape[1])+count(a.Bias.Present())+siluWork*count(a.SiluActivation))
	}),
	OpCausalConv1DUpdate: cost(func(t *tally, a *CausalConv1DUpdateArgs) {
		t.each(&a.X, 2*int(a.Weight.Shape[1])+count(a.Bias.Present())+siluWork*count(a.SiluActivation))
		t.states("conv_state", &a.ConvState, &a.ConvStateIndices)
	}),
	// Decay, product with k, update, product with q.
	OpGDNPrefill: cost(func(t *tally, a *GDNPrefillArgs) { t.FLOPs = 7 * elements(&a.V) * float64(a.State.Shape[3]) }),
	OpGDNDecode: cost(func(t *tally, a *GDNDecodeArgs) {
		t.FLOPs = 7 * elements(&a.V) * float64(a.State.Shape[3])
		t.states("state", &a.State, &a.StateIdx)
	}),
	OpGDNPackedDecode: cost(func(t *tally, a *GDNPackedDecodeArgs) {
		t.FLOPs = 7*elements(&a.Out)*float64(a.State.Shape[3]) + 3*(elements(&a.MixedQKV)-elements(&a.Out)) + gateWork*elements(&a.A)
		t.states("state", &a.State, &a.StateIdx)
	}),
	OpGDNStateGather: movement(func(t *tally, a *GDNStateGatherArgs) {
		t.read("cache", int64(len(distinct(t, &a.StateIdx, a.Cache.Shape[0])))*rowBytesOf(&a.Cache))
	}),
	OpGDNStateScatter: movement(func(t *tally, a *GDNStateScatterArgs) {
		t.read("cache", 0)
		t.written("cache", int64(len(distinct(t, &a.StateIdx, a.Cache.Shape[0])))*rowBytesOf(&a.Cache))
	}),
	OpGDNGBeta:     cost(func(t *tally, a *GDNGBetaArgs) { t.each(&a.GOut, gateWork) }),
	OpGDNConvSplit: moved,
	OpGDNPostConv: cost(func(t *tally, a *GDNPostConvArgs) {
		t.FLOPs = 3*(elements(&a.QOut)+elements(&a.KOut)) + gateWork*elements(&a.GOut)
	}),
}

// rowBytesOf is the size of what one index of the first dimension holds.
func rowBytesOf(x *tensor.Tensor) int64 {
	if x.Shape[0] == 0 {
		return 0
	}
	return bytesOf(x) / x.Shape[0]
}

// states counts the states that indices name, read and written.
func (t *tally) states(operand string, state, idx *tensor.Tensor) {
	if !idx.Present() {
		return
	}
	n := int64(len(distinct(t, idx, state.Shape[0]))) * rowBytesOf(state)
	t.read(operand, n)
	t.written(operand, n)
}

// linearSymbols is for the same ops.
var linearSymbols = symbolTable{
	"B":                      {"rows", true, []string{"batch_size"}},
	"Hv":                     {"heads", false, []string{"num_v_heads"}},
	"Dk":                     {"elements", false, []string{"head_k_dim"}},
	"KS":                     {"elements", false, nil},
	"causal_conv1d_fwd N":    {"sequences", true, []string{"batch_size"}},
	"causal_conv1d_fwd K":    {"taps", false, []string{"conv_kernel_size"}},
	"causal_conv1d_update N": {"states", false, nil},
	"causal_conv1d_update K": {"taps", false, []string{"conv_kernel_size"}},
	"gdn_prefill N":          {"sequences", true, []string{"batch_size"}},
	"gdn_prefill Hk":         {"heads", false, []string{"num_k_heads"}},
	"gdn_decode N":           {"states", false, nil},
	"gdn_decode Hk":          {"heads", false, []string{"num_k_heads"}},
	"gdn_packed_decode N":    {"states", false, nil},
	"gdn_post_conv Hk":       {"heads", false, []string{"num_k_heads"}},
}
