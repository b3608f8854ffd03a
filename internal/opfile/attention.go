package opfile

import (
	"math"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// onnxAttention is ONNX Attention and FlexAttention: Q, K and V are [batch, heads, tokens, dim], or [batch, tokens,
// heads·dim] with the counts of heads as attributes. The batch is taken apart; past keys come before the new ones.
func onnxAttention(r *run) {
	original := r.in("Q")
	flat := original.Rank == 3
	qHeads, kHeads := r.attrs.int("q_num_heads", 0), r.attrs.int("kv_num_heads", 0)
	q, k, v := r.headsFirst("Q", qHeads), r.headsFirst("K", kHeads), r.headsFirst("V", kHeads)
	past := int64(0)
	if r.has("past_key") {
		pk, pv := r.cast(r.float("past_key"), k.DType), r.cast(r.float("past_value"), v.DType)
		r.rank("past_key", pk, 4)
		r.rank("past_value", pv, 4)
		past = pk.Shape[2]
		k, v = r.behind(pk, k), r.behind(pv, v)
	}
	batch, hq, tq, tk := q.Shape[0], q.Shape[1], q.Shape[2], k.Shape[2]
	if k.Shape[0] != batch || v.Shape[0] != batch || v.Shape[2] != tk {
		r.fail(ErrFormat, "", "attention of %v over %v and %v", &q, &k, &v)
	}
	mask := r.attentionMask(batch, hq, tq)
	if mask.Present() && mask.Last() < tk && !r.has("nonpad_kv_seqlen") {
		r.fail(ErrFormat, "attn_mask", "%v for %d keys", &mask, tk)
	}
	a := ops.AttentionArgs{Scale: float32(r.attrs.float("scale", 1/math.Sqrt(float64(max(q.Last(), 1))))), LogitsSoftCap: float32(r.attrs.float("softcap", 0)),
		Causal: r.attrs.bool("is_causal", false), TopLeft: true, QueryOffset: int32(past)}
	if p := r.attrs.int("softmax_precision", 1); p != 1 && p != 10 && p != 11 && p != 16 {
		r.fail(ErrFormat, "softmax_precision", "%d is no float type", p)
	}
	mode := r.attrs.int("qk_matmul_output_mode", 0)
	var scores tensor.Tensor
	if r.f.expected("qk_matmul_output") != nil {
		if mode < 0 || mode >= int64(len(scoresModes)) {
			r.fail(ErrFormat, "qk_matmul_output_mode", "%d is no stage", mode)
		}
		a.ScoresAt, scores = scoresModes[mode], r.alloc(outFloat(q.DType), batch, tq, hq, tk)
	}
	left, right := r.attrs.int32("left_window_size", -1), r.attrs.int32("right_window_size", -1)
	if a.Windowed = left >= 0 || right >= 0; a.Windowed {
		a.WindowLeft, a.WindowRight = bound(left), bound(right)
	}
	out := r.alloc(outFloat(q.DType), batch, tq, hq, v.Last())
	for b := range batch {
		call, keys := a, tk
		if r.has("nonpad_kv_seqlen") { // keys behind a length are padding, and the queries are the last of what is before
			n := r.index("nonpad_kv_seqlen")
			r.rank("nonpad_kv_seqlen", n, 1)
			if n.Shape[0] != batch || atInt(&n, int(b)) < 0 || atInt(&n, int(b)) > tk {
				r.fail(ErrFormat, "nonpad_kv_seqlen", "lengths of %v keys in %v", tk, &n)
			}
			keys = atInt(&n, int(b))
			call.TopLeft, call.QueryOffset = false, 0
		}
		tokens := func(x tensor.Tensor, n int64) tensor.Tensor {
			s, err := r.permute(r.sub(x, b), 1, 0, 2).Slice(0, 0, n)
			r.fits(err)
			return s
		}
		call.Out, call.Query = r.sub(out, b), tokens(q, tq)
		call.Key, call.Value = tokens(k, keys), tokens(v, keys)
		if mask.Present() {
			m, err := r.sub(mask, b).Slice(2, 0, keys)
			r.fits(err)
			call.Mask = r.pack(m)
		}
		if scores.Present() {
			if keys < tk {
				r.fail(ErrNoOp, "qk_matmul_output", "scores beside padding keys")
			}
			call.Scores = r.sub(scores, b)
		}
		r.check(ops.Attention.Call(r.Queue, call))
	}
	if scores.Present() {
		r.put("qk_matmul_output", r.permute(scores, 0, 2, 1, 3), original.DType)
	}
	if flat {
		r.put("Y", r.view(out, batch, tq, hq*v.Last()), original.DType)
	} else {
		r.put("Y", r.permute(out, 0, 2, 1, 3), original.DType)
	}
	if original.DType == tensor.F64 { // what rounding to f32 may cost
		y := &r.out[len(r.out)-1]
		for i := range int(y.Data.Numel()) {
			y.slack = append(y.slack, 1e-7+1e-5*math.Abs(at(&y.Data, i)))
		}
	}
	if r.f.expected("present_key") != nil {
		r.put("present_key", k, k.DType)
		r.put("present_value", v, v.DType)
	}
}

// scoresModes are the stages that ONNX numbers.
var scoresModes = [...]ops.ScoresStage{ops.ScoresScaled, ops.ScoresCapped, ops.ScoresMasked, ops.ScoresWeights}

// bound is a side of a window, of which a negative one has no end.
func bound(n int32) int32 {
	if n < 0 {
		return math.MaxInt32
	}
	return n
}

// headsFirst returns an operand as [batch, heads, tokens, dim].
func (r *run) headsFirst(key string, heads int64) tensor.Tensor {
	x := r.in(key)
	if x.DType == tensor.F64 { // ops compute in f32
		x = r.cast(x, tensor.F32)
	}
	switch {
	case !x.DType.IsFloat():
		r.fail(ErrNoOp, key, "operand dtype %v", x.DType)
	case x.Rank == 4:
		return x
	case x.Rank != 3 || heads <= 0 || x.Shape[2]%heads != 0:
		r.fail(ErrFormat, key, "%v of %d heads", &x, heads)
	}
	return r.permute(r.view(x, x.Shape[0], x.Shape[1], heads, x.Shape[2]/heads), 0, 2, 1, 3)
}

// behind puts the tokens of b behind those of a, both [batch, heads, tokens, dim].
func (r *run) behind(a, b tensor.Tensor) tensor.Tensor {
	if a.Shape[0] != b.Shape[0] || a.Shape[1] != b.Shape[1] || a.Last() != b.Last() {
		r.fail(ErrFormat, "", "%v behind %v", &b, &a)
	}
	rows := a.Shape[0] * a.Shape[1]
	x := r.join(r.view(a, rows, a.Shape[2]*a.Last()), r.view(b, rows, b.Shape[2]*b.Last()))
	return r.view(x, a.Shape[0], a.Shape[1], a.Shape[2]+b.Shape[2], a.Last())
}

// attentionMask returns attn_mask as logits to add, [batch, heads, queries, keys]: a boolean one hides where it is false.
func (r *run) attentionMask(batch, heads, queries int64) (m tensor.Tensor) {
	if !r.has("attn_mask") {
		return m
	}
	m = r.in("attn_mask")
	if m.DType == tensor.U8 {
		wide := r.alloc(tensor.F32, m.Dims()...)
		for i, keep := range tensor.Slice[uint8](&m) {
			if keep == 0 {
				set(&wide, i, math.Inf(-1))
			}
		}
		m = wide
	}
	m = r.cast(m, tensor.F32)
	if m.Rank == 1 {
		m = r.view(m, 1, m.Shape[0])
	}
	return r.expand(m, []int64{batch, heads, queries, m.Last()})
}
