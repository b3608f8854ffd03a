package opfile

import "github.com/opmux/opmux/ops"

// linearKinds is for gated delta nets and their convolutions.
var linearKinds = kindTable{
	"CausalConvWithState": {"input weight bias past_state -> output present_state", []route{{ops.OpCausalConv1DFwd, causalConv(false)}, {ops.OpCausalConv1DUpdate, causalConv(true)}}},
	"LinearAttention":     {"query key value past_state decay beta -> output present_state", []route{{ops.OpGDNPrefill, linearAttention}}},

	"causal_conv1d_fwd":    {"", []route{{ops.OpCausalConv1DFwd, vllmConvFwd}}},
	"causal_conv1d_update": {"", []route{{ops.OpCausalConv1DUpdate, vllmConvUpdate}}},
	"gdn_prefill":          {"", []route{{ops.OpGDNPrefill, vllmGDNPrefill}}},
	"gdn_decode":           {"", []route{{ops.OpGDNDecode, vllmGDNDecode(false)}, {ops.OpGDNPackedDecode, vllmGDNDecode(true)}}},
	"causal_conv1d":        {"", []route{{ops.OpCausalConv1DFwd, ggmlConv(false)}, {ops.OpCausalConv1DUpdate, ggmlConv(true)}}},
	"gated_delta_net":      {"", []route{{ops.OpGDNPrefill, ggmlDelta}}},
}
