package opfile

import (
	"slices"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Selection and movement by index, running sums, verification of draft tokens.

// topK finds the k largest along an axis. Files that do not ask for an order get the sorted one.
func topK(r *run) {
	x := r.number("X")
	kt := r.index("K")
	if kt.Numel() != 1 {
		r.fail(ErrFormat, "K", "%v", &kt)
	}
	k := atInt(&kt, 0)
	axis, last := r.axis("axis", r.attrs.int("axis", -1), &x), int(x.Rank)-1
	if k < 0 || k > x.Shape[axis] {
		r.fail(ErrFormat, "K", "%d of %d", k, x.Shape[axis])
	}
	r.attrs.bool("sorted", true)
	moved := r.move(x, axis, last)
	rows := r.flat(moved, 1)
	values, places := r.alloc(x.DType, rows.Shape[0], k), r.alloc(tensor.I64, rows.Shape[0], k)
	r.check(ops.TopK.Call(r.Queue, ops.TopKArgs{Values: values, Indices: places, X: rows, Smallest: !r.attrs.bool("largest", true)}))
	shape := slices.Clone(moved.Dims())
	shape[last] = k
	r.put("Values", r.move(r.view(values, shape...), last, axis), x.DType)
	r.put("Indices", r.move(r.view(places, shape...), last, axis), tensor.I64)
}

func ggmlTopK(r *run) {
	x := r.float("x")
	rows := r.flat(x, 1)
	k := r.attrs.int("k", 1)
	if k < 0 || k > rows.Shape[1] {
		r.fail(ErrFormat, "k", "%d of %d", k, rows.Shape[1])
	}
	out := r.alloc(tensor.I32, rows.Shape[0], k)
	r.check(ops.TopK.Call(r.Queue, ops.TopKArgs{Indices: out, X: rows}))
	if x.Rank == 0 {
		r.fail(ErrFormat, "x", "no rows")
	}
	shape := slices.Clone(x.Dims())
	shape[len(shape)-1] = k
	r.put("y", r.view(out, shape...), tensor.I32)
}

// cumSum sums along the axis that the second input names.
func cumSum(r *run) {
	x, at := r.in("x"), r.index("axis")
	if x.DType != tensor.F64 {
		x = r.number("x")
	}
	if at.Numel() != 1 {
		r.fail(ErrFormat, "axis", "%v", &at)
	}
	axis, last := r.axis("axis", atInt(&at, 0), &x), int(x.Rank)-1
	moved := r.move(x, axis, last)
	out := r.alloc(x.DType, moved.Dims()...)
	r.check(ops.Cumsum.Call(r.Queue, ops.CumsumArgs{Out: out, X: moved, Exclusive: r.attrs.bool("exclusive", false), Reverse: r.attrs.bool("reverse", false)}))
	r.put("y", r.move(out, last, axis), x.DType)
}

func gather(r *run) {
	data, ids := r.in("data"), r.index("indices")
	axis := r.axis("axis", r.attrs.int("axis", 0), &data)
	shape := slices.Concat(data.Dims()[:axis], ids.Dims(), data.Dims()[axis+1:])
	flat := r.view(ids, ids.Numel()) // ops know no scalars
	out := r.alloc(data.DType, slices.Concat(data.Dims()[:axis], flat.Dims(), data.Dims()[axis+1:])...)
	r.check(ops.Gather.Call(r.Queue, ops.GatherArgs{Out: out, Data: data, IDs: flat, Axis: int32(axis)}))
	r.put("output", r.view(out, shape...), data.DType)
}

var scatterReductions = map[string]ops.ScatterReduction{"none": ops.ScatterSet, "add": ops.ScatterAdd, "mul": ops.ScatterMul, "min": ops.ScatterMin, "max": ops.ScatterMax}

func scatterND(r *run) {
	data := r.copyOf(r.number("data"))
	name := r.attrs.text("reduction", "none")
	reduction, ok := scatterReductions[name]
	if !ok {
		r.fail(ErrFormat, "reduction", "%q", name)
	}
	r.check(ops.Scatter.Call(r.Queue, ops.ScatterArgs{Data: data, IDs: r.index("indices"), Updates: r.number("updates"), Reduction: reduction}))
	r.put("output", data, data.DType)
}

// ruleNaNGuard makes logits finite.
func ruleNaNGuard(r *run) {
	l := ruleLogits(r, 1)
	end := func(v float64) tensor.Tensor { return r.each(tensor.F32, 1, v) }
	const most = 0x1.fffffep127
	r.check(ops.Clip.Call(r.Queue, ops.ClipArgs{Out: l.now, X: l.now, Min: end(-most), Max: end(most), NanToZero: true}))
	l.observe(r)
}

// ruleRejection verifies draft tokens. The target's logits are 100 at its arg max, -100 elsewhere, but 99 at another token
// where the steps before the op, masks and penalties, have to change what is largest. The row of the bonus token is spared
// those.
func ruleRejection(r *run) {
	drafts, best := r.facts.rows("draft_token_ids"), r.facts.rows("target_argmax")
	bonus := r.facts.rows("bonus_token_ids")
	vocab := r.facts.int("vocab", 0)
	if len(best) != len(drafts) || len(bonus) != 1 || len(bonus[0]) != len(drafts) {
		r.fail(ErrFormat, "bonus_token_ids", "not one for each of %d requests", len(drafts))
	}
	const second, secondToken = 99, 15
	masked, penalized := r.attrs.rows("disallowed"), len(r.attrs.m) > 0 && r.attrs.m["disallowed"] == nil
	cu, rows, width := r.alloc(tensor.I32, int64(len(drafts)+1)), int64(0), int64(1)
	for i, d := range drafts {
		if len(best[i]) != len(d) {
			r.fail(ErrFormat, "target_argmax", "%d tokens for %d drafts", len(best[i]), len(d))
		}
		rows, width = rows+int64(len(d))+1, max(width, int64(len(d))+1)
		setInt(&cu, i+1, rows)
	}
	l := &logits{now: r.alloc(tensor.F32, rows, vocab)}
	l.before = l.now
	v := tensor.Slice[float32](&l.now)
	for i := range v {
		if v[i] = -100; (masked != nil || penalized) && int64(i)%vocab == secondToken {
			v[i] = second
		}
	}
	ids := r.alloc(tensor.I32, rows)
	at := int64(0)
	for i := range drafts {
		r.tokens(l, "draft_token_ids", drafts[i])
		r.tokens(l, "target_argmax", best[i])
		r.tokens(l, "bonus_token_ids", bonus[0][i:i+1])
		for e, id := range append(slices.Clone(best[i]), bonus[0][i]) {
			v[(at+int64(e))*vocab+id] = 100
			if e > 0 {
				setInt(&ids, int(at)+e, drafts[i][e-1])
			}
		}
		at += int64(len(drafts[i])) + 1
	}
	if masked != nil {
		r.maskTargets(l, drafts, masked)
	}
	if penalized {
		r.penalizeTargets(l, drafts)
	}
	out, counts := r.alloc(tensor.I32, int64(len(drafts)), width), r.alloc(tensor.I32, int64(len(drafts)))
	r.check(ops.GreedyRejectionSample.Call(r.Queue, ops.GreedyRejectionSampleArgs{Sampled: out, NumSampled: counts, Logits: l.now, DraftSampled: ids, CuNumLogits: cu}))
	r.put("output_token_ids", out, tensor.I32)
}

// targets calls f for each row that verifies a draft token, the bonus rows left out: place e of request i.
func targets(drafts [][]int64, f func(row, i, e int)) {
	row := 0
	for i, d := range drafts {
		for e := range d {
			f(row+e, i, e)
		}
		row += len(d) + 1
	}
}

func (r *run) maskTargets(l *logits, drafts, disallowed [][]int64) {
	if len(disallowed) != len(drafts) {
		r.fail(ErrFormat, "disallowed", "%d rows for %d requests", len(disallowed), len(drafts))
	}
	mask := r.alloc(tensor.U8, l.now.Dims()...)
	targets(drafts, func(row, i, _ int) {
		r.tokens(l, "disallowed", disallowed[i])
		for _, id := range disallowed[i] {
			setInt(&mask, row*int(l.now.Shape[1])+int(id), 1)
		}
	})
	r.check(ops.ApplyAllowedTokenIDs.Call(r.Queue, ops.ApplyAllowedTokenIDsArgs{Logits: l.now, Mask: mask}))
}

// penalizeTargets penalizes tokens of the prompt, of the output, and of the drafts before a place.
func (r *run) penalizeTargets(l *logits, drafts [][]int64) {
	n, v := l.now.Shape[0], int(l.now.Shape[1])
	prompts, outs := r.facts.rows("prompt_token_ids"), r.facts.rows("output_token_ids")
	if len(prompts) != len(drafts) || len(outs) != len(drafts) {
		r.fail(ErrFormat, "prompt_token_ids", "%d and %d rows for %d requests", len(prompts), len(outs), len(drafts))
	}
	a := ops.ApplyPenaltiesArgs{Logits: l.now, PromptMask: r.alloc(tensor.U8, l.now.Dims()...), OutputMask: r.alloc(tensor.U8, l.now.Dims()...), OutputBinCounts: r.alloc(tensor.I32, l.now.Dims()...),
		FrequencyPenalties: r.each(tensor.F32, n, 0), PresencePenalties: r.each(tensor.F32, n, 0), RepetitionPenalties: r.each(tensor.F32, n, 1)}
	for key, x := range map[string]*tensor.Tensor{"frequency_penalty": &a.FrequencyPenalties, "presence_penalty": &a.PresencePenalties, "repetition_penalty": &a.RepetitionPenalties} {
		each := r.attrs.floats(key)
		if len(each) != len(drafts) {
			r.fail(ErrFormat, key, "%d for %d requests", len(each), len(drafts))
		}
		targets(drafts, func(row, i, _ int) { set(x, row, each[i]) })
	}
	targets(drafts, func(row, i, e int) {
		r.tokens(l, "prompt_token_ids", prompts[i])
		r.tokens(l, "output_token_ids", outs[i])
		for _, id := range prompts[i] {
			setInt(&a.PromptMask, row*v+int(id), 1)
		}
		for _, id := range append(slices.Clone(outs[i]), drafts[i][:e]...) {
			at := row*v + int(id)
			setInt(&a.OutputMask, at, 1)
			setInt(&a.OutputBinCounts, at, atInt(&a.OutputBinCounts, at)+1)
		}
	})
	r.check(ops.ApplyPenalties.Call(r.Queue, a))
}

// tensorScatter writes rows of update behind each other into a cache, from the place on that write_indices gives for a
// sequence, around its end in circular mode. The rows stand along axis, the last dimension but one; dimensions before it are
// the sequence's and heads.
func tensorScatter(r *run) {
	cache, update := r.copyOf(r.number("past_cache")), r.number("update")
	axis := r.axis("axis", r.attrs.int("axis", -2), &cache)
	if update.Rank != cache.Rank || axis == 0 {
		r.fail(ErrFormat, "", "%v into %v along axis %d", &update, &cache, axis)
	}
	mode := r.attrs.text("mode", "linear")
	if mode != "linear" && mode != "circular" {
		r.fail(ErrFormat, "mode", "%q", mode)
	}
	from := r.each(tensor.I64, cache.Shape[0], 0)
	if r.has("write_indices") {
		from = r.index("write_indices")
	}
	size := cache.Shape[axis]
	if from.Numel() != cache.Shape[0] || update.Shape[0] != cache.Shape[0] || size == 0 {
		r.fail(ErrFormat, "write_indices", "%d places for %v into %v", from.Numel(), &update, &cache)
	}
	k := axis + 1
	ids := r.alloc(tensor.I64, append(slices.Clone(update.Dims()[:k]), int64(k))...)
	for i := range int(ids.Numel()) / k {
		rest := int64(i)
		for d := axis; d >= 0; d-- {
			n := update.Shape[d]
			setInt(&ids, i*k+d, rest%n)
			rest /= n
		}
		at := atInt(&ids, i*k+axis) + atInt(&from, int(atInt(&ids, i*k)))
		if mode == "circular" {
			at %= size
		}
		setInt(&ids, i*k+axis, at)
	}
	r.check(ops.Scatter.Call(r.Queue, ops.ScatterArgs{Data: cache, IDs: ids, Updates: update}))
	r.put("present_cache", cache, cache.DType)
}
