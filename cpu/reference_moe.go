package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// moeReference registers the oracle's kernels of mixtures of experts.
func (g *registrar) moeReference() {
	t, exact := reference, registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.MoERouterTopK, refMoERouterTopK, exact, nil)
	add(g, t, ops.MoESoftmaxTopK, refMoESoftmaxTopK, exact, nil)
	add(g, t, ops.MoESigmoidTopK, refMoESigmoidTopK, exact, nil)
	add(g, t, ops.MoECombine, refMoECombine, exact, nil)
	add(g, t, ops.MoECombineGate, refMoECombineGate, exact, nil)
	add(g, t, ops.SharedExpertGate, refSharedExpertGate, exact, nil)
	add(g, t, ops.MoEAddBias, refMoEAddBias, exact, nil)
	add(g, t, ops.MoEGroupedGemm, refMoEGroupedGemm, exact, nil)
	add(g, t, ops.MoEGroupedGemmBF16, refMoEGroupedGemmBF16, exact, nil)
	add(g, t, ops.MoEGroupedGemmNVFP4, refMoEGroupedGemmNVFP4, exact, nil)
	add(g, t, ops.MoEAlignBlockSize, refMoEAlignBlockSize, registry.Traits{BitExact: true}, nil)
}

// router is what the routing ops have in common.
type router struct {
	weights, indices, logits, bias *tensor.Tensor
	scoring                        ops.Scoring
	groups, keep                   int // 0 groups: none
	renormalize                    bool
	factor                         float32
}

// launchRouter runs f over tokens with scratch for five rows of scores.
func launchRouter(t *tier, q *registry.Queue, args unsafe.Pointer, h *registry.Header, logits *tensor.Tensor, f part) registry.Status {
	j := begin(q, t, args)
	defer j.end()
	e := int(logits.Shape[1])
	if err := j.layout(0, 4*5*e); err != nil {
		return h.Fail(err)
	}
	j.each(int(logits.Shape[0]), float64(30*e), f)
	return 0
}

func refMoERouterTopK(t *tier, q *registry.Queue, a *ops.MoERouterTopKArgs) registry.Status {
	return launchRouter(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, func(j *job, lo, hi, worker int) {
		a := (*ops.MoERouterTopKArgs)(j.args)
		r := router{&a.Weights, &a.Indices, &a.Logits, &a.EScoreCorrectionBias, a.ScoringFunc, int(a.NumExpertGroup), int(a.TopkGroup), !a.NoRenormalize, orOne(a.RoutedScalingFactor)}
		r.rows(lo, hi, own[float32](j, worker))
	})
}

func refMoESoftmaxTopK(t *tier, q *registry.Queue, a *ops.MoESoftmaxTopKArgs) registry.Status {
	return launchRouter(t, q, unsafe.Pointer(a), &a.Header, &a.RouterLogits, func(j *job, lo, hi, worker int) {
		a := (*ops.MoESoftmaxTopKArgs)(j.args)
		r := router{&a.Weights, &a.Indices, &a.RouterLogits, &tensor.Tensor{}, ops.ScoreSoftmax, 0, 0, !a.NoRenormalize, 1}
		r.rows(lo, hi, own[float32](j, worker))
	})
}

// A router of one group keeps all experts, and ranks them with the bias.
func refMoESigmoidTopK(t *tier, q *registry.Queue, a *ops.MoESigmoidTopKArgs) registry.Status {
	return launchRouter(t, q, unsafe.Pointer(a), &a.Header, &a.RouterLogits, func(j *job, lo, hi, worker int) {
		a := (*ops.MoESigmoidTopKArgs)(j.args)
		r := router{&a.Weights, &a.Indices, &a.RouterLogits, &a.Bias, ops.ScoreSigmoid, 1, 1, !a.NoRenormalize, orOne(a.RoutedScalingFactor)}
		r.rows(lo, hi, own[float32](j, worker))
	})
}

// rows routes the tokens lo to hi. buf has room for five rows of scores.
func (r *router) rows(lo, hi int, buf []float32) {
	e, k := int(r.logits.Shape[1]), int(r.weights.Shape[1])
	scores, sel, wide := buf[:e], buf[e:2*e], buf[2*e:3*e]
	for t := lo; t < hi; t++ {
		r.score(scores, plainHalves.load(wide, r.logits, t*e, e))
		copy(sel, scores)
		if r.groups > 0 {
			r.bestGroups(sel, buf[3*e:])
		}
		weights, indices := elems[float32](r.weights, t*k, k), elems[int32](r.indices, t*k, k)
		var sum float32
		for i := range k {
			best := r.best(sel)
			indices[i], weights[i] = int32(best), scores[best]
			sum += weights[i]
		}
		if r.renormalize {
			if !(sum > 0) {
				sum = 1
			}
			for i := range weights {
				weights[i] /= sum
			}
		}
		if r.groups > 0 && r.factor != 1 {
			for i := range weights {
				weights[i] *= r.factor
			}
		}
	}
}

// taken marks an expert that was chosen where scores are never negative.
const taken = -1

// best returns the first of the largest, and takes it out.
func (r *router) best(sel []float32) int {
	start := float32(taken)
	if r.groups > 0 {
		start = float32(math.Inf(-1))
	}
	at, top := 0, start
	for i, v := range sel {
		if v > top {
			at, top = i, v
		}
	}
	sel[at] = start
	return at
}

// score computes the scores of a row.
func (r *router) score(scores, logits []float32) {
	if r.scoring == ops.ScoreSigmoid {
		for i, v := range logits {
			scores[i] = sigmoid(v)
		}
		return
	}
	m := float32(math.Inf(-1))
	for _, v := range logits {
		m = greater(m, v)
	}
	var sum float32
	for i, v := range logits {
		scores[i] = exp32(v - m)
		sum += scores[i]
	}
	for i := range scores {
		if !(sum > 0) {
			scores[i] = 0
		} else if scores[i] /= sum; math.IsInf(float64(scores[i]), 0) || scores[i] != scores[i] {
			scores[i] = 0
		}
	}
}

// bestGroups adds the bias to sel and takes out the experts of all but the best groups. buf has room for a score and a mark of
// each group.
func (r *router) bestGroups(sel, buf []float32) {
	negInf := float32(math.Inf(-1))
	biased := r.bias.Present()
	if biased {
		for i, b := range elems[float32](r.bias, 0, len(sel)) {
			sel[i] += b
		}
	}
	if r.groups == 1 {
		return
	}
	n := len(sel) / r.groups
	scores, kept := buf[:r.groups], buf[r.groups:][:r.groups]
	clear(kept)
	for g := range scores {
		first, second := negInf, negInf
		for _, v := range sel[g*n:][:n] {
			if v > first {
				first, second = v, first
			} else if v > second {
				second = v
			}
		}
		if scores[g] = first; biased {
			scores[g] = first + second
		}
	}
	for range r.keep { // the first one that is not kept begins, so that there is always a best
		best := -1
		for g, v := range scores {
			if kept[g] == 0 && (best < 0 || v > scores[best]) {
				best = g
			}
		}
		kept[best] = 1
	}
	for g := range scores {
		if kept[g] == 0 {
			fill(sel[g*n:][:n], negInf)
		}
	}
}

func refMoECombine(t *tier, q *registry.Queue, a *ops.MoECombineArgs) registry.Status {
	return launchCombine(t, q, unsafe.Pointer(a), &a.Header, &a.ExpertOut, func(j *job, lo, hi, worker int) {
		a := (*ops.MoECombineArgs)(j.args)
		h := int(a.Out.Shape[1])
		buf := own[float32](j, worker)
		for t := lo; t < hi; t++ {
			acc := combineRow(buf, &a.ExpertOut, &a.Weights, t)
			if a.Shared.Present() {
				for e, v := range plainHalves.load(buf[h:], &a.Shared, t*h, h) {
					acc[e] += v
				}
			}
			plainHalves.store(&a.Out, t*h, acc)
		}
	})
}

// launchCombine runs f over tokens with scratch for two rows.
func launchCombine(t *tier, q *registry.Queue, args unsafe.Pointer, h *registry.Header, expertOut *tensor.Tensor, f part) registry.Status {
	j := begin(q, t, args)
	defer j.end()
	if err := j.layout(0, 2*4*int(expertOut.Shape[2])); err != nil {
		return h.Fail(err)
	}
	j.each(int(expertOut.Shape[0]), float64(2*expertOut.Shape[1]*expertOut.Shape[2]), f)
	return 0
}

// combineRow returns the weighted sum of token t in the first row of buf, which has room for two.
func combineRow(buf []float32, expertOut, weights *tensor.Tensor, t int) []float32 {
	k, h := int(expertOut.Shape[1]), int(expertOut.Shape[2])
	acc := buf[:h]
	clear(acc)
	for j, w := range elems[float32](weights, t*k, k) {
		for e, v := range plainHalves.load(buf[h:], expertOut, (t*k+j)*h, h) {
			acc[e] += float32(w * v)
		}
	}
	return acc
}

func refMoECombineGate(t *tier, q *registry.Queue, a *ops.MoECombineGateArgs) registry.Status {
	return launchCombine(t, q, unsafe.Pointer(a), &a.Header, &a.ExpertOut, func(j *job, lo, hi, worker int) {
		a := (*ops.MoECombineGateArgs)(j.args)
		h := int(a.Out.Shape[1])
		buf := own[float32](j, worker)
		for t := lo; t < hi; t++ {
			acc := combineRow(buf, &a.ExpertOut, &a.Weights, t)
			gateSharedRow(buf[h:2*h], elems[float32](&a.Sd, t*h, h), one(&a.Gl, t))
			for e, v := range buf[h : 2*h] {
				acc[e] += v
			}
			plainHalves.store(&a.Out, t*h, acc)
		}
	})
}

// gateSharedRow is bf16(sigmoid(gl)·sd).
func gateSharedRow(out, sd []float32, gl float32) {
	gate := sigmoid(gl)
	for e, v := range sd {
		out[e] = roundBF16(gate * v)
	}
}

func refSharedExpertGate(t *tier, q *registry.Queue, a *ops.SharedExpertGateArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	h := int(a.Out.Shape[1])
	if err := j.layout(0, 4*h); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.Out.Shape[0]), float64(2*h), func(j *job, lo, hi, worker int) {
		a := (*ops.SharedExpertGateArgs)(j.args)
		h := int(a.Out.Shape[1])
		for t := lo; t < hi; t++ {
			row := own[float32](j, worker)[:h]
			gateSharedRow(row, elems[float32](&a.Sd, t*h, h), one(&a.Gl, t))
			plainHalves.store(&a.Out, t*h, row)
		}
	})
	return 0
}

// checkExperts wants indices in [0,n).
func checkExperts(op, operand string, x *tensor.Tensor, n int64) error {
	if !x.Present() {
		return nil
	}
	for i, v := range elems[int32](x, 0, int(x.Numel())) {
		if v < 0 || int64(v) >= n {
			return badValue(op, operand, "%d at %d is outside [0,%d)", v, i, n)
		}
	}
	return nil
}

func refMoEAddBias(t *tier, q *registry.Queue, a *ops.MoEAddBiasArgs) registry.Status {
	if err := checkExperts("moe_add_bias", "ids", &a.IDs, a.Bias.Shape[0]); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	h := int(a.X.Shape[2])
	if err := j.layout(0, 3*4*h); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.X.Shape[0]*a.X.Shape[1]), float64(2*h), func(j *job, lo, hi, worker int) {
		a := (*ops.MoEAddBiasArgs)(j.args)
		h, buf := int(a.X.Shape[2]), own[float32](j, worker)
		for p := lo; p < hi; p++ {
			bias := plainHalves.load(buf[h:2*h], &a.Bias, int(elems[int32](&a.IDs, p, 1)[0])*h, h)
			out := target(buf[2*h:], &a.Out, p*h, h)
			for e, v := range plainHalves.load(buf, &a.X, p*h, h) {
				out[e] = v + bias[e]
			}
			plainHalves.store(&a.Out, p*h, out)
		}
	})
	return 0
}

func refMoEAlignBlockSize(t *tier, q *registry.Queue, a *ops.MoEAlignBlockSizeArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	experts, block := int(a.NumExperts), int32(a.BlockSize)
	if err := j.layout(4*experts, 0); err != nil {
		return a.Fail(err)
	}
	ids := elems[int32](&a.TopkIDs, 0, int(a.TopkIDs.Numel()))
	sorted, blocks := elems[int32](&a.SortedTokenIDs, 0, int(a.SortedTokenIDs.Shape[0])), elems[int32](&a.ExpertIDs, 0, int(a.ExpertIDs.Shape[0]))
	next := common[int32](j)[:experts]
	clear(next)
	for _, e := range ids {
		if e >= 0 && int(e) < experts {
			next[e]++
		}
	}
	for i := range sorted {
		sorted[i] = int32(len(ids))
	}
	clear(blocks)
	var at int32
	for e, n := range next {
		next[e] = at
		for range (n + block - 1) / block {
			blocks[at/block] = int32(e)
			at += block
		}
	}
	elems[int32](&a.NumTokensPastPadded, 0, 1)[0] = at
	for i, e := range ids {
		if e >= 0 && int(e) < experts {
			sorted[next[e]] = int32(i)
			next[e]++
		}
	}
	return 0
}
