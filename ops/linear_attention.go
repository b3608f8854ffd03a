package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// CausalConv1DFwdArgs is the record of CausalConv1DFwd: a depthwise causal convolution over N packed sequences. Output t of
// a channel is bias + Σ_j weight[c,j]·v(t-(K-1-j)), oldest tap first, where v is x within the sequence and the carried window
// (zeros without an initial state) before it; then silu. The last K-1 raw inputs become the new window.
type CausalConv1DFwdArgs struct {
	registry.Header
	Out             tensor.Tensor `op:"out" shape:"T,C" dtype:"outfloat"`
	X               tensor.Tensor `op:"in" shape:"T,C" dtype:"float" layout:"rows"`
	Weight          tensor.Tensor `op:"in" shape:"C,K" dtype:"float"` // K >= 1
	Bias            tensor.Tensor `op:"in,opt" shape:"C" dtype:"float"`
	ConvState       tensor.Tensor `op:"inout" shape:"N,C,KS" dtype:"float"` // KS is K-1
	QueryStartLoc   tensor.Tensor `op:"in" shape:"N+1" dtype:"i32"`         // 0, not falling, T at the end
	HasInitialState tensor.Tensor `op:"in" shape:"N" dtype:"i8 u8 i32"`     // 0 is false
	SiluActivation  bool          // silu of the sum
}

// CausalConv1DUpdateArgs is the record of CausalConv1DUpdate: one new token for each row of the same convolution. Row t uses
// window t, or window conv_state_indices[t]; a negative index skips the row, whose output is not written.
type CausalConv1DUpdateArgs struct {
	registry.Header
	Out              tensor.Tensor `op:"out" shape:"B,C" dtype:"outfloat"`
	X                tensor.Tensor `op:"in" shape:"B,C" dtype:"float" layout:"rows"`
	Weight           tensor.Tensor `op:"in" shape:"C,K" dtype:"float"` // K >= 1
	Bias             tensor.Tensor `op:"in,opt" shape:"C" dtype:"float"`
	ConvState        tensor.Tensor `op:"inout" shape:"N,C,KS" dtype:"float"` // KS is K-1; N is B without indices
	ConvStateIndices tensor.Tensor `op:"in,opt" shape:"B" dtype:"i32"`
	SiluActivation   bool          // silu of the sum
}

// GDNPrefillArgs is the record of GDNPrefill: the gated delta rule over N packed sequences. For each token of value head h,
// with S its state of Dv rows and Dk columns: S = S·exp(g); u = (v - S·k)·beta; S = S + u·kᵀ; out = S·(scale·q). The caller
// has normalized q and k. An absent g is no decay, an absent beta is 1.
type GDNPrefillArgs struct {
	registry.Header
	Out           tensor.Tensor `op:"out" shape:"T,Hv,Dv" dtype:"outfloat"`
	Q             tensor.Tensor `op:"in" shape:"T,Hk,Dk" dtype:"float"`
	K             tensor.Tensor `op:"in" shape:"T,Hk,Dk" dtype:"float"`
	V             tensor.Tensor `op:"in" shape:"T,Hv,Dv" dtype:"float"`        // Hv a multiple of Hk
	G             tensor.Tensor `op:"in,opt" shape:"T,Hv|T,Hv,Dk" dtype:"f32"` // logarithm of the decay, of a head or of each column
	Beta          tensor.Tensor `op:"in,opt" shape:"T,Hv" dtype:"f32"`         // strength of the write
	State         tensor.Tensor `op:"inout" shape:"N,Hv,Dv,Dk" dtype:"f32"`    // of the start on entry, of the end on return
	QueryStartLoc tensor.Tensor `op:"in" shape:"N+1" dtype:"i32"`              // 0, not falling, T at the end
	Scale         float32       // > 0, finite; of q
	TiledHeads    bool          // value head h reads q/k head h mod Hk, else h/(Hv/Hk)
	Additive      bool          // u = v·beta: linear attention without the delta rule
}

// GDNDecodeArgs is the record of GDNDecode: one step of GDNPrefill's rule for each row. Row t uses state t, or state
// state_idx[t]; a negative index makes its output zero and touches no state.
type GDNDecodeArgs struct {
	registry.Header
	Out        tensor.Tensor `op:"out" shape:"B,Hv,Dv" dtype:"outfloat"`
	Q          tensor.Tensor `op:"in" shape:"B,Hk,Dk" dtype:"float"`
	K          tensor.Tensor `op:"in" shape:"B,Hk,Dk" dtype:"float"`
	V          tensor.Tensor `op:"in" shape:"B,Hv,Dv" dtype:"float"`        // Hv a multiple of Hk
	G          tensor.Tensor `op:"in,opt" shape:"B,Hv|B,Hv,Dk" dtype:"f32"` // logarithm of the decay, of a head or of each column
	Beta       tensor.Tensor `op:"in,opt" shape:"B,Hv" dtype:"f32"`         // strength of the write
	State      tensor.Tensor `op:"inout" shape:"N,Hv,Dv,Dk" dtype:"float"`  // N is B without indices
	StateIdx   tensor.Tensor `op:"in,opt" shape:"B" dtype:"i32"`
	Scale      float32       // > 0, finite; of q
	TiledHeads bool          // value head h reads q/k head h mod Hk, else h/(Hv/Hk)
	Additive   bool          // u = v·beta: linear attention without the delta rule
}

// GDNPackedDecodeArgs is the record of GDNPackedDecode: a decode step from the raw output of the convolution, a row of which
// is [q heads | k heads | v heads]: L2 norms of q and k (eps 1e-6), g = -exp(a_log)·softplus(a + dt_bias), beta = sigmoid(b),
// and the step. A negative index makes the output row zero and touches no state.
type GDNPackedDecodeArgs struct {
	registry.Header
	Out      tensor.Tensor `op:"out" shape:"B,Hv,Dv" dtype:"like mixed_qkv"`
	MixedQKV tensor.Tensor `op:"in" shape:"B,W" dtype:"float" layout:"rows"` // W is 2·Hk·Dk + Hv·Dv
	A        tensor.Tensor `op:"in" shape:"B,Hv" dtype:"like mixed_qkv" layout:"rows"`
	B        tensor.Tensor `op:"in" shape:"B,Hv" dtype:"like mixed_qkv" layout:"rows"`
	ALog     tensor.Tensor `op:"in" shape:"Hv" dtype:"float"`
	DtBias   tensor.Tensor `op:"in" shape:"Hv" dtype:"float"`
	State    tensor.Tensor `op:"inout" shape:"N,Hv,Dv,Dk" dtype:"float"`
	StateIdx tensor.Tensor `op:"in" shape:"B" dtype:"i32"` // a live state at most once
	Scale    float32       // > 0, finite; of q
}

// GDNStateGatherArgs is the record of GDNStateGather: row r of working is row state_idx[r] of cache, or zeros where
// has_initial_state says so.
type GDNStateGatherArgs struct {
	registry.Header
	Working         tensor.Tensor `op:"out" shape:"any" dtype:"f32"`  // [N, ...], rank 2 to 4
	Cache           tensor.Tensor `op:"in" shape:"any" dtype:"float"` // [slots, ...], rows as those of working
	StateIdx        tensor.Tensor `op:"in" shape:"N" dtype:"i32"`
	HasInitialState tensor.Tensor `op:"in,opt" shape:"N" dtype:"i8 u8 i32"` // 0 is false
}

// GDNStateScatterArgs is the record of GDNStateScatter: row state_idx[r] of cache becomes row r of working, rounded to its
// dtype. Rows that no index names stay as they are; of equal indices the last one holds.
type GDNStateScatterArgs struct {
	registry.Header
	Cache    tensor.Tensor `op:"inout" shape:"any" dtype:"float"` // [slots, ...], rank 2 to 4
	Working  tensor.Tensor `op:"in" shape:"any" dtype:"f32"`      // [N, ...], rows as those of cache
	StateIdx tensor.Tensor `op:"in" shape:"N" dtype:"i32"`
}

// GDNGBetaArgs is the record of GDNGBeta: g = -exp(a_log)·softplus(a + dt_bias), threshold 20; beta = sigmoid(b).
type GDNGBetaArgs struct {
	registry.Header
	GOut    tensor.Tensor `op:"out" shape:"T,Hv" dtype:"f32"`
	BetaOut tensor.Tensor `op:"out" shape:"T,Hv" dtype:"f32"`
	A       tensor.Tensor `op:"in" shape:"T,Hv" dtype:"outfloat" layout:"rows"`
	B       tensor.Tensor `op:"in" shape:"T,Hv" dtype:"like a" layout:"rows"`
	ALog    tensor.Tensor `op:"in" shape:"Hv" dtype:"f32"`
	DtBias  tensor.Tensor `op:"in" shape:"Hv" dtype:"f32"`
}

// GDNConvSplitArgs is the record of GDNConvSplit: row t of conv is [q | k | v]; q and k are of one width. The widths are the
// outputs' element counts over T.
type GDNConvSplitArgs struct {
	registry.Header
	QOut tensor.Tensor `op:"out" shape:"any" dtype:"outfloat"`
	KOut tensor.Tensor `op:"out" shape:"any" dtype:"like q_out"`
	VOut tensor.Tensor `op:"out" shape:"any" dtype:"like q_out"`
	Conv tensor.Tensor `op:"in" shape:"T,W" dtype:"outfloat"` // T > 0
}

// GDNPostConvArgs is the record of GDNPostConv: GDNConvSplit, the L2 norm of each q and k head, and GDNGBeta in one. q and k
// are not rounded before the norm.
type GDNPostConvArgs struct {
	registry.Header
	QOut    tensor.Tensor `op:"out" shape:"T,Hk,Dk" dtype:"outfloat"`
	KOut    tensor.Tensor `op:"out" shape:"T,Hk,Dk" dtype:"like q_out"`
	VOut    tensor.Tensor `op:"out" shape:"T,Hv,Dv" dtype:"like q_out"`
	GOut    tensor.Tensor `op:"out" shape:"T,Hv" dtype:"f32"`
	BetaOut tensor.Tensor `op:"out" shape:"T,Hv" dtype:"f32"`
	Conv    tensor.Tensor `op:"in" shape:"T,W" dtype:"outfloat"` // T > 0; W is 2·Hk·Dk + Hv·Dv
	A       tensor.Tensor `op:"in" shape:"T,Hv" dtype:"outfloat" layout:"rows"`
	B       tensor.Tensor `op:"in" shape:"T,Hv" dtype:"like a" layout:"rows"`
	ALog    tensor.Tensor `op:"in" shape:"Hv" dtype:"f32"`
	DtBias  tensor.Tensor `op:"in" shape:"Hv" dtype:"f32"`
	Eps     float32       // >= 0, finite; added to the sum of squares
}

// Gated delta nets and their short convolution.
var (
	CausalConv1DFwd = define(OpCausalConv1DFwd, "causal_conv1d_fwd", "linear_attention", "conv_prefill",
		"depthwise causal convolution over packed sequences with a carried window",
		func(a *CausalConv1DFwdArgs) *OpError { return convWindow(&a.Weight, &a.ConvState) })
	CausalConv1DUpdate = define(OpCausalConv1DUpdate, "causal_conv1d_update", "linear_attention", "conv_decode",
		"one token more of a depthwise causal convolution",
		func(a *CausalConv1DUpdateArgs) *OpError {
			return first(convWindow(&a.Weight, &a.ConvState), ownRows("conv_state", &a.ConvState, &a.ConvStateIndices, a.X.Shape[0]))
		})
	GDNPrefill = define(OpGDNPrefill, "gdn_prefill", "linear_attention", "delta_prefill",
		"gated delta rule over packed sequences",
		func(a *GDNPrefillArgs) *OpError {
			return first(headGroups(a.V.Shape[1], a.Q.Shape[1], "q"), positive("scale", a.Scale))
		})
	GDNDecode = define(OpGDNDecode, "gdn_decode", "linear_attention", "delta_decode",
		"one step of the gated delta rule for each row",
		func(a *GDNDecodeArgs) *OpError {
			return first(headGroups(a.V.Shape[1], a.Q.Shape[1], "q"), ownRows("state", &a.State, &a.StateIdx, a.Out.Shape[0]), positive("scale", a.Scale))
		})
	GDNPackedDecode = define(OpGDNPackedDecode, "gdn_packed_decode", "linear_attention", "delta_decode_packed",
		"a decode step of a gated delta net from the raw output of its convolution",
		func(a *GDNPackedDecodeArgs) *OpError {
			hv, dk := a.Out.Shape[1], a.State.Shape[3]
			qk := a.MixedQKV.Shape[1] - hv*a.Out.Shape[2]
			if qk <= 0 || qk%2 != 0 || dk == 0 || qk/2%dk != 0 || hv%(qk/2/dk) != 0 || hv == 0 {
				return bad(ErrShape, "mixed_qkv", "%d columns are not [q | k | v] of %d value heads of %d and keys of %d", a.MixedQKV.Shape[1], hv, a.Out.Shape[2], dk)
			}
			return positive("scale", a.Scale)
		})
	GDNStateGather = define(OpGDNStateGather, "gdn_state_gather", "linear_attention", "state_gather",
		"rows of a cache of states as a compact f32 tensor",
		func(a *GDNStateGatherArgs) *OpError { return stateRows("working", &a.Working, &a.Cache, &a.StateIdx) })
	GDNStateScatter = define(OpGDNStateScatter, "gdn_state_scatter", "linear_attention", "state_scatter",
		"rows of a compact f32 tensor back to their cache",
		func(a *GDNStateScatterArgs) *OpError { return stateRows("working", &a.Working, &a.Cache, &a.StateIdx) })
	GDNGBeta = define[GDNGBetaArgs](OpGDNGBeta, "gdn_g_beta", "linear_attention", "gate_params",
		"decay and write strength of a gated delta net from raw projections", nil)
	GDNConvSplit = define(OpGDNConvSplit, "gdn_conv_split", "linear_attention", "split_qkv",
		"the convolution's output cut into q, k and v",
		func(a *GDNConvSplitArgs) *OpError {
			t := a.Conv.Shape[0]
			if t == 0 {
				return bad(ErrShape, "conv", "no rows")
			}
			var width int64
			for _, x := range [...]struct {
				operand string
				t       *tensor.Tensor
			}{{"q_out", &a.QOut}, {"k_out", &a.KOut}, {"v_out", &a.VOut}} {
				n := x.t.Numel()
				if n%t != 0 {
					return bad(ErrShape, x.operand, "%d elements are not whole rows of %d tokens", n, t)
				}
				width += n / t
			}
			if q, k := a.QOut.Numel(), a.KOut.Numel(); q != k {
				return bad(ErrShape, "k_out", "%d elements, q_out has %d", k, q)
			}
			if width != a.Conv.Shape[1] {
				return bad(ErrShape, "conv", "inner extent %d, the outputs hold %d a row", a.Conv.Shape[1], width)
			}
			return nil
		})
	GDNPostConv = define(OpGDNPostConv, "gdn_post_conv", "linear_attention", "post_conv_fused",
		"split, L2 norm of q and k, decay and write strength in one",
		func(a *GDNPostConvArgs) *OpError {
			if a.Conv.Shape[0] == 0 {
				return bad(ErrShape, "conv", "no rows")
			}
			if w := 2*a.QOut.Shape[1]*a.QOut.Shape[2] + a.VOut.Shape[1]*a.VOut.Shape[2]; w != a.Conv.Shape[1] {
				return bad(ErrShape, "conv", "inner extent %d, the outputs hold %d a row", a.Conv.Shape[1], w)
			}
			return notNegative("eps", a.Eps)
		})
)

// convWindow wants a window of one input less than the weight has taps.
func convWindow(weight, state *tensor.Tensor) *OpError {
	k := weight.Shape[1]
	if k < 1 {
		return bad(ErrShape, "weight", "no taps")
	}
	if state.Shape[2] != k-1 {
		return bad(ErrShape, "conv_state", "windows of %d for %d taps", state.Shape[2], k)
	}
	return nil
}

// ownRows wants a state for each row where no index says which.
func ownRows(operand string, state, idx *tensor.Tensor, rows int64) *OpError {
	if !idx.Present() && state.Shape[0] != rows {
		return bad(ErrShape, operand, "%d states for %d rows without indices", state.Shape[0], rows)
	}
	return nil
}

// stateRows wants working and cache to have equal rows, one of working for each index.
func stateRows(operand string, working, cache, idx *tensor.Tensor) *OpError {
	switch {
	case working.Rank < 2 || working.Rank > 4:
		return bad(ErrRank, operand, "rank %d is not 2 to 4", working.Rank)
	case cache.Rank != working.Rank:
		return bad(ErrRank, "cache", "rank %d, that of %s is %d", cache.Rank, operand, working.Rank)
	case working.Shape[0] != idx.Shape[0]:
		return bad(ErrShape, operand, "%d rows for %d indices", working.Shape[0], idx.Shape[0])
	}
	for d := 1; d < int(working.Rank); d++ {
		if working.Shape[d] != cache.Shape[d] {
			return bad(ErrShape, "cache", "rows of %v, those of %s are %v", cache.Dims()[1:], operand, working.Dims()[1:])
		}
	}
	return nil
}
