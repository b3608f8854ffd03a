package opfile

import (
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Mixtures of experts.

// vllmRouter routes by launch, with outputs for the file's number of experts.
func vllmRouter(launch func(r *run, weights, ids, logits tensor.Tensor, raw bool) error) func(*run) {
	return func(r *run) {
		logits := r.float("logits")
		r.rank("logits", logits, 2)
		r.attrs.note("note", "num_experts", "scoring_func")
		t, k := logits.Shape[0], r.attrs.int("top_k", 1)
		weights, ids := r.alloc(tensor.F32, t, k), r.alloc(tensor.I32, t, k)
		r.check(launch(r, weights, ids, logits, !r.attrs.bool("renormalize", true)))
		r.put("topk_weights", weights, tensor.F32)
		r.put("topk_ids", ids, tensor.I32)
	}
}

func routerTopK(r *run, weights, ids, logits tensor.Tensor, raw bool) error {
	return ops.MoERouterTopK.Call(r.Queue, ops.MoERouterTopKArgs{Weights: weights, Indices: ids, Logits: logits, NoRenormalize: raw})
}

func softmaxTopK(r *run, weights, ids, logits tensor.Tensor, raw bool) error {
	return ops.MoESoftmaxTopK.Call(r.Queue, ops.MoESoftmaxTopKArgs{Weights: weights, Indices: ids, RouterLogits: logits, NoRenormalize: raw})
}

// perToken maps pairs to the token that they are of.
func (r *run) perToken(tokens, k int64) tensor.Tensor {
	x := r.alloc(tensor.I32, tokens*k)
	for p := range tokens * k {
		setInt(&x, int(p), p/k)
	}
	return x
}

// vllmMoEBlock is a sparse block with a shared expert: route, two grouped products around silu, combine. What vLLM keeps in
// bf16 is rounded to it here too.
func vllmMoEBlock(r *run) {
	x := r.float("x")
	r.rank("x", x, 2)
	r.attrs.note("activation", "hidden", "moe_intermediate", "note", "num_experts", "scoring_func", "shared_intermediate", "w13_layout", "w2_layout")
	t, h, k := x.Shape[0], x.Shape[1], r.attrs.int("top_k", 1)
	product := func(a tensor.Tensor, weight string, dt tensor.DType) tensor.Tensor {
		w := r.float(weight)
		out := r.alloc(dt, a.Shape[0], w.Shape[0])
		r.check(ops.MatmulBT.Call(r.Queue, ops.MatmulBTArgs{Out: out, A: a, B: w}))
		return out
	}
	silu := func(x tensor.Tensor) tensor.Tensor {
		out := r.alloc(x.DType, x.Shape[0], x.Shape[1]/2)
		r.check(ops.SiluAndMul.Call(r.Queue, ops.SiluAndMulArgs{Out: out, X: x}))
		return out
	}
	weights, ids := r.alloc(tensor.F32, t, k), r.alloc(tensor.I32, t, k)
	r.check(ops.MoERouterTopK.Call(r.Queue, ops.MoERouterTopKArgs{Weights: weights, Indices: ids, Logits: product(x, "gate_w", tensor.BF16), NoRenormalize: !r.attrs.bool("renormalize", true)}))
	w13, w2 := r.float("w13"), r.float("w2")
	gateUp := r.alloc(tensor.BF16, t*k, w13.Shape[1])
	r.check(ops.MoEGroupedGemm.Call(r.Queue, ops.MoEGroupedGemmArgs{Out: gateUp, Act: x, ExpertIDs: ids, RowMap: r.perToken(t, k), Weights: w13}))
	down := r.alloc(tensor.BF16, t*k, h)
	r.check(ops.MoEGroupedGemm.Call(r.Queue, ops.MoEGroupedGemmArgs{Out: down, Act: silu(gateUp), ExpertIDs: ids, Weights: w2}))
	shared := r.cast(product(silu(product(x, "w_shared_gate_up", tensor.BF16)), "w_shared_down", tensor.BF16), tensor.F32)
	out := r.alloc(tensor.F32, t, h)
	r.check(ops.MoECombineGate.Call(r.Queue, ops.MoECombineGateArgs{Out: out, ExpertOut: r.view(down, t, k, h), Weights: weights, Sd: shared, Gl: r.cast(product(x, "w_shared_gate", tensor.BF16), tensor.F32)}))
	r.put("out", out, tensor.F32)
}

func ggmlAddBias(r *run) {
	x := r.float("x")
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	r.check(ops.MoEAddBias.Call(r.Queue, ops.MoEAddBiasArgs{Out: out, X: x, Bias: r.float("bias"), IDs: r.in("expert_ids")}))
	r.put("y", out, x.DType)
}

// ggmlGroupedMatmul has rows x[t, slot] or, of one for all slots, x[t, 0].
func ggmlGroupedMatmul(r *run) {
	w, x, ids := r.float("experts"), r.float("x"), r.in("expert_ids")
	r.rank("x", x, 3)
	r.rank("expert_ids", ids, 2)
	t, k := ids.Shape[0], ids.Shape[1]
	a := ops.MoEGroupedGemmArgs{Out: r.alloc(tensor.F32, t*k, w.Shape[1]), Act: r.flat(x, 1), ExpertIDs: ids, Weights: w}
	if x.Shape[1] == 1 {
		a.RowMap = r.perToken(t, k)
	}
	r.check(ops.MoEGroupedGemm.Call(r.Queue, a))
	r.put("y", r.view(a.Out, t, k, w.Shape[1]), tensor.F32)
}
