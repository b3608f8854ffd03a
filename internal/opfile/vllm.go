package opfile

import (
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// The ops of vLLM that have one here. Outputs of bf16 ops stand in files as f32.

func vllmRMSNorm(r *run) {
	x := r.float("x")
	a := ops.RMSNormArgs{X: x, Weight: r.float("weight"), Out: r.alloc(outFloat(x.DType), x.Dims()...),
		Eps: float32(r.attrs.float("eps", 1e-6)), Gemma: r.attrs.bool("gemma", false)}
	if r.attrs.bool("fused_residual", false) {
		a.Residual = r.copyOf(r.outFloat("residual_in"))
	}
	r.check(ops.RMSNorm.Call(r.Queue, a))
	r.put("out", a.Out, x.DType)
	if a.Residual.Present() {
		r.put("residual_out", a.Residual, r.float("residual_in").DType)
	}
}

func vllmSiluAndMul(r *run) {
	x := r.float("x")
	r.rank("x", x, 2)
	out := r.alloc(outFloat(x.DType), x.Shape[0], x.Shape[1]/2)
	r.check(ops.SiluAndMul.Call(r.Queue, ops.SiluAndMulArgs{Out: out, X: x}))
	r.put("out", out, x.DType)
}

// denseAttention is the attention of a decoder layer: norms of the heads of q and k by 1 + weight, rope, attention, and a gate
// behind a sigmoid.
func denseAttention(r *run) {
	a := r.attrs
	a.note("head_dim", "num_q_heads", "num_kv_heads") // the shapes say it
	p := &rope{RopeParams: ops.RopeParams{Base: float32(a.float("base", 10000)), RotaryDim: a.int32("rotary_dim", 0)}}
	eps := float32(a.float("eps", 1e-6))
	norm := func(x, weight string) tensor.Tensor {
		in := r.float(x)
		rows := r.flat(in, 1)
		out := r.alloc(outFloat(in.DType), rows.Dims()...)
		r.check(ops.RMSNorm.Call(r.Queue, ops.RMSNormArgs{Out: out, X: rows, Weight: r.float(weight), Eps: eps, Gemma: true}))
		return r.view(out, in.Dims()...)
	}
	q, k, v := norm("q", "q_norm_weight"), norm("k", "k_norm_weight"), r.outFloat("v")
	r.rank("q", q, 3)
	inline(r, p, q, k, r.index("positions"))
	out := r.alloc(q.DType, q.Dims()...)
	r.check(ops.Attention.Call(r.Queue, ops.AttentionArgs{Out: out, Query: q, Key: k, Value: v,
		Scale: float32(a.float("scale", 1)), Causal: a.bool("causal", false)}))
	r.put("attn", out, r.float("q").DType)
	gate := r.outFloat("gate")
	open, gated := r.alloc(gate.DType, gate.Dims()...), r.alloc(out.DType, out.Dims()...)
	r.check(ops.Sigmoid.Call(r.Queue, ops.SigmoidArgs{Out: open, X: gate}))
	r.check(ops.Mul.Call(r.Queue, ops.MulArgs{Out: gated, A: out, B: open}))
	r.put("out", r.flat(gated, 2), r.float("q").DType)
}
