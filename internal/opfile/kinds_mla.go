package opfile

import "github.com/opmux/opmux/ops"

// mlaKinds is for latent attention, its cache, and the named forms of attention.
var mlaKinds = kindTable{
	"Attention":     {"Q K V attn_mask past_key past_value nonpad_kv_seqlen -> Y present_key present_value qk_matmul_output", []route{{ops.OpAttention, onnxAttention}}},
	"FlexAttention": {"Q K V -> Y", []route{{ops.OpAttention, onnxAttention}}},
}
