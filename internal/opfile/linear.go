package opfile

import (
	"math"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Gated delta nets, their convolutions, and the linear attention of ONNX.

// steps returns offsets that cut rows into n sequences of equal length.
func (r *run) steps(n, length int64) tensor.Tensor {
	x := r.alloc(tensor.I32, n+1)
	for i := range n + 1 {
		setInt(&x, int(i), i*length)
	}
	return x
}

// convolve runs both convolution ops on tokens [B·T,C] with windows [B,C,K-1]: all at once or, if step is set, one token
// after the other.
func convolve(r *run, x, weight, bias, state tensor.Tensor, batch int64, silu, step bool) tensor.Tensor {
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	tokens := x.Shape[0] / max(batch, 1)
	if !step {
		flags := r.alloc(tensor.U8, batch)
		for i := range tensor.Slice[uint8](&flags) {
			tensor.Slice[uint8](&flags)[i] = 1
		}
		r.check(ops.CausalConv1DFwd.Call(r.Queue, ops.CausalConv1DFwdArgs{Out: out, X: x, Weight: weight, Bias: bias, ConvState: state,
			QueryStartLoc: r.steps(batch, tokens), HasInitialState: flags, SiluActivation: silu}))
		return out
	}
	width := x.Shape[1]
	all := r.view(out, batch, tokens, width)
	in := r.view(x, batch, tokens, width)
	for t := range tokens {
		row := r.alloc(out.DType, batch, width)
		now := r.pack(r.column1(in, t))
		r.check(ops.CausalConv1DUpdate.Call(r.Queue, ops.CausalConv1DUpdateArgs{Out: row, X: now, Weight: weight, Bias: bias, ConvState: state, SiluActivation: silu}))
		for b := range batch {
			to, from := r.sub(r.sub(all, b), t), r.sub(row, b)
			copy(tensor.Slice[uint8](&to), tensor.Slice[uint8](&from))
		}
	}
	return out
}

// column1 is x[:,i,:] of rank 2, not packed.
func (r *run) column1(x tensor.Tensor, i int64) tensor.Tensor {
	v, err := x.Slice(1, i, i+1)
	r.fits(err)
	v.Shape[1], v.Stride[1] = x.Shape[2], x.Stride[2]
	v.Shape[2], v.Stride[2], v.Rank = 0, 0, 2
	return v
}

// causalConv is ONNX CausalConvWithState: input [B,C,T], weight [C,1,K].
func causalConv(step bool) func(*run) {
	return func(r *run) {
		x, weight := r.float("input"), r.float("weight")
		r.rank("input", x, 3)
		r.rank("weight", weight, 3)
		b, c, t, k := x.Shape[0], x.Shape[1], x.Shape[2], weight.Shape[2]
		state := r.alloc(tensor.F32, b, c, k-1)
		if r.has("past_state") {
			state = r.copyOf(r.f32("past_state"))
		}
		var bias tensor.Tensor
		if r.has("bias") {
			bias = r.float("bias")
		}
		activation := r.attrs.text("activation", "none")
		rows := r.view(r.permute(x, 0, 2, 1), b*t, c)
		out := convolve(r, rows, r.view(weight, c, k), bias, state, b, activation == "silu" || activation == "swish", step)
		r.put("output", r.permute(r.view(out, b, t, c), 0, 2, 1), x.DType)
		r.put("present_state", state, x.DType)
	}
}

// ggmlConv has the window before the inputs: x_with_state is [B,C,K-1+T].
func ggmlConv(step bool) func(*run) {
	return func(r *run) {
		x, weight := r.f32("x_with_state"), r.float("weight")
		r.rank("x_with_state", x, 3)
		b, c, k := x.Shape[0], x.Shape[1], weight.Last()
		before, err := x.Slice(2, 0, k-1)
		r.fits(err)
		after, err := x.Slice(2, k-1, x.Shape[2])
		r.fits(err)
		t := after.Shape[2]
		out := convolve(r, r.view(r.permute(after, 0, 2, 1), b*t, c), weight, tensor.Tensor{}, r.pack(before), b, false, step)
		r.put("y", r.view(out, b, t, c), tensor.F32)
	}
}

func vllmConvFwd(r *run) {
	x, state := r.float("x"), r.copyOf(r.f32("conv_state_in"))
	r.attrs.note("dim", "note", "seqlens", "width", "bias")
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	r.check(ops.CausalConv1DFwd.Call(r.Queue, ops.CausalConv1DFwdArgs{Out: out, X: x, Weight: r.float("weight"), ConvState: state,
		QueryStartLoc: r.in("query_start_loc"), HasInitialState: r.in("has_initial_state"), SiluActivation: r.attrs.text("activation", "") == "silu"}))
	r.put("out", out, x.DType)
	r.put("conv_state_out", state, tensor.F32)
}

func vllmConvUpdate(r *run) {
	x, state := r.float("x"), r.copyOf(r.f32("conv_state_in"))
	r.attrs.note("dim", "note", "batch", "width", "bias")
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	r.check(ops.CausalConv1DUpdate.Call(r.Queue, ops.CausalConv1DUpdateArgs{Out: out, X: x, Weight: r.float("weight"), ConvState: state,
		SiluActivation: r.attrs.text("activation", "") == "silu"}))
	r.put("out", out, x.DType)
	r.put("conv_state_out", state, tensor.F32)
}

func vllmGDNPrefill(r *run) {
	q, state := r.float("q"), r.copyOf(r.in("state_in"))
	r.attrs.note("Dk", "Dv", "Hk", "Hv", "note", "seqlens", "q_k_prenormalized", "use_qk_l2norm_in_kernel", "with_initial_state",
		"chunk_vs_sequential_max_abs_out", "chunk_vs_sequential_max_abs_state")
	v := r.float("v")
	out := r.alloc(tensor.F32, v.Dims()...)
	r.check(ops.GDNPrefill.Call(r.Queue, ops.GDNPrefillArgs{Out: out, Q: q, K: r.float("k"), V: v, G: r.in("g"), Beta: r.in("beta"), State: state,
		QueryStartLoc: r.in("query_start_loc"), Scale: float32(r.attrs.float("scale", 1))}))
	r.put("out", out, tensor.F32)
	r.put("state_out", state, tensor.F32)
}

// vllmGDNDecode starts from raw q, k and gates: by the granular ops, or packed.
func vllmGDNDecode(packed bool) func(*run) {
	return func(r *run) {
		q, k, v, a, b := r.f32("q"), r.f32("k"), r.f32("v"), r.f32("a"), r.f32("b")
		r.attrs.note("Dk", "Dv", "Hk", "Hv", "note", "batch", "softplus_threshold", "use_qk_l2norm_in_kernel")
		aLog, dtBias, state := r.f32("A_log"), r.f32("dt_bias"), r.copyOf(r.f32("state_in"))
		rows, hv := v.Shape[0], v.Shape[1]
		scale := float32(r.attrs.float("scale", 1))
		out := r.alloc(tensor.F32, v.Dims()...)
		conv := r.join(r.view(r.join(r.flatRows(q), r.flatRows(k)), rows, 2*q.Shape[1]*q.Shape[2]), r.flatRows(v))
		if packed {
			idx := r.alloc(tensor.I32, rows)
			for i := range rows {
				setInt(&idx, int(i), i)
			}
			r.check(ops.GDNPackedDecode.Call(r.Queue, ops.GDNPackedDecodeArgs{Out: out, MixedQKV: conv, A: a, B: b, ALog: aLog, DtBias: dtBias, State: state, StateIdx: idx, Scale: scale}))
		} else {
			p := ops.GDNPostConvArgs{QOut: r.alloc(tensor.F32, q.Dims()...), KOut: r.alloc(tensor.F32, k.Dims()...), VOut: r.alloc(tensor.F32, v.Dims()...),
				GOut: r.alloc(tensor.F32, rows, hv), BetaOut: r.alloc(tensor.F32, rows, hv), Conv: conv, A: a, B: b, ALog: aLog, DtBias: dtBias, Eps: 1e-6}
			r.check(ops.GDNPostConv.Call(r.Queue, p))
			r.check(ops.GDNDecode.Call(r.Queue, ops.GDNDecodeArgs{Out: out, Q: p.QOut, K: p.KOut, V: p.VOut, G: p.GOut, Beta: p.BetaOut, State: state, Scale: scale}))
		}
		r.put("out", out, tensor.F32)
		r.put("state_out", state, tensor.F32)
	}
}

// flatRows is x as rows of its first dimension.
func (r *run) flatRows(x tensor.Tensor) tensor.Tensor { return r.flat(x, int(x.Rank)-1) }

// ggmlDelta has operands [B,T,H,D]; value head h reads q/k head h mod Hk.
func ggmlDelta(r *run) {
	q, k, v, g, beta := r.f32("q"), r.f32("k"), r.f32("v"), r.f32("g"), r.f32("beta")
	r.rank("v", v, 4)
	r.attrs.note("q_k_prenormalized")
	b, t, h := v.Shape[0], v.Shape[1], v.Shape[2]
	tokens := func(x tensor.Tensor) tensor.Tensor { return r.view(x, b*t, x.Shape[2], x.Shape[3]) }
	if g = tokens(g); g.Shape[2] == 1 {
		g = r.view(g, b*t, h)
	}
	state := r.copyOf(r.f32("state_in"))
	out := r.alloc(tensor.F32, b*t, h, v.Shape[3])
	r.check(ops.GDNPrefill.Call(r.Queue, ops.GDNPrefillArgs{Out: out, Q: tokens(q), K: tokens(k), V: tokens(v), G: g, Beta: r.view(beta, b*t, h), State: state,
		QueryStartLoc: r.steps(b, t), Scale: float32(r.attrs.float("scale", 1)), TiledHeads: true}))
	r.put("out", r.view(out, v.Dims()...), tensor.F32)
	r.put("state_out", state, tensor.F32)
}

// linearAttention is ONNX LinearAttention: operands [B,T,H·D], states [B,H,Dk,Dv]. Query heads that share a state get one
// each, which all go the same way.
func linearAttention(r *run) {
	q, k, v := r.f32("query"), r.f32("key"), r.f32("value")
	hq, hkv := r.attrs.int("q_num_heads", 0), r.attrs.int("kv_num_heads", 0)
	r.rank("query", q, 3)
	if hq <= 0 || hkv <= 0 || hq%hkv != 0 || q.Shape[2]%hq != 0 || k.Last()%hkv != 0 || v.Last()%hkv != 0 {
		r.fail(ErrFormat, "q_num_heads", "%d and %d heads of %v", hq, hkv, &q)
	}
	b, t, dk, dv, group := q.Shape[0], q.Shape[1], q.Shape[2]/hq, v.Last()/hkv, hq/hkv
	// each repeats the heads of [B,T,H·D] for the queries that share them.
	each := func(x tensor.Tensor, d int64) tensor.Tensor {
		x = r.view(x, b, t, x.Last()/d, 1, d)
		return r.view(r.expand(x, []int64{b, t, hkv, group, d}), b*t, hq, d)
	}
	a := ops.GDNPrefillArgs{Out: r.alloc(tensor.F32, b*t, hq, dv), Q: r.view(q, b*t, hq, dk), K: each(k, dk), V: each(v, dv), QueryStartLoc: r.steps(b, t)}
	rule := r.attrs.text("update_rule", "gated_delta")
	a.Additive = rule == "linear" || rule == "gated"
	if r.has("decay") {
		if g := r.f32("decay"); g.Last() == hkv*dk {
			a.G = each(g, dk)
		} else {
			a.G = r.view(each(g, 1), b*t, hq)
		}
	}
	if r.has("beta") {
		a.Beta = r.view(each(r.f32("beta"), 1), b*t, hq)
	}
	if a.Scale = float32(r.attrs.float("scale", 0)); a.Scale == 0 {
		a.Scale = float32(1 / math.Sqrt(float64(dk)))
	}
	past := r.alloc(tensor.F32, b, hkv, dk, dv)
	if r.has("past_state") {
		past = r.f32("past_state")
	}
	wide := r.expand(r.view(r.permute(past, 0, 1, 3, 2), b, hkv, 1, dv, dk), []int64{b, hkv, group, dv, dk})
	a.State = r.view(r.copyOf(wide), b, hq, dv, dk)
	r.check(ops.GDNPrefill.Call(r.Queue, a))
	r.put("output", r.view(a.Out, b, t, hq*dv), r.float("query").DType)
	first, err := r.view(a.State, b, hkv, group, dv, dk).Slice(2, 0, 1)
	r.fits(err)
	state := r.view(r.pack(first), b, hkv, dv, dk)
	r.put("present_state", r.permute(state, 0, 1, 3, 2), r.float("query").DType)
}
