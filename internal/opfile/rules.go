package opfile

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Rules of sampling: what is left of a distribution after a step.

// logits is a distribution [N,V] on its way through the steps.
type logits struct {
	before, now tensor.Tensor // f32
	probs       tensor.Tensor // f32; absent: softmax of now
}

// ruleLogits reads the inputs of a rule: logits as rows or one row, the logarithms of probs, or words. rows is the number
// of rows that words stand for.
func ruleLogits(r *run, rows int64) *logits {
	shape, values, err := nested(r.facts.m["logits"])
	r.facts.note("logits")
	if words, ok := r.facts.m["logits"].(string); ok {
		if err = nil; words == "ln(probs)" {
			r.facts.note("probs")
			if shape, values, err = nested(r.facts.m["probs"]); err == nil {
				for i, p := range values {
					values[i] = math.Log(p)
				}
			}
		} else {
			shape, values = r.spelled(words, rows)
		}
	}
	if len(shape) == 1 {
		shape = append([]int64{1}, shape...)
	}
	if err != nil || len(shape) != 2 {
		r.fail(ErrFormat, "logits", "neither rows of numbers nor known words")
	}
	l := &logits{before: r.alloc(tensor.F32, shape...)}
	for i, v := range values {
		set(&l.before, i, v)
	}
	l.now = r.copyOf(l.before)
	return l
}

// spelled returns the logits that words describe.
func (r *run) spelled(words string, rows int64) ([]int64, []float64) {
	vocab := r.facts.int("vocab", 0)
	x := r.alloc(tensor.F64, rows, vocab)
	values := tensor.Slice[float64](&x)
	switch number, all := strings.CutPrefix(words, "all "); {
	case all:
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			r.fail(ErrFormat, "logits", "%q", words)
		}
		for i := range values {
			values[i] = v
		}
	case strings.HasPrefix(words, "ln(token id)"):
		for i := range values {
			values[i] = math.Log(float64(int64(i) % vocab))
		}
	default:
		r.fail(ErrFormat, "logits", "%q", words)
	}
	return x.Dims(), values
}

// each returns [N] of dtype t filled with v.
func (r *run) each(t tensor.DType, n int64, v float64) tensor.Tensor {
	x := r.alloc(t, n)
	for i := range int(n) {
		if isWhole(t) {
			setInt(&x, i, int64(v))
		} else {
			set(&x, i, v)
		}
	}
	return x
}

// filter applies one filter to x: "top_k", "top_p" or "min_p".
func filter(r *run, x tensor.Tensor, name string, limit float64) {
	n := x.Shape[0]
	switch name {
	case "top_k":
		r.check(ops.ApplyTopKTopP.Call(r.Queue, ops.ApplyTopKTopPArgs{Logits: x, K: r.each(tensor.I32, n, limit)}))
	case "top_p":
		before := r.copyOf(x)
		r.check(ops.ApplyTopKTopP.Call(r.Queue, ops.ApplyTopKTopPArgs{Logits: x, P: r.each(tensor.F32, n, limit)}))
		dropBorder(x, before, limit)
	case "min_p":
		r.check(ops.ApplyMinP.Call(r.Queue, ops.ApplyMinPArgs{Logits: x, MinP: r.each(tensor.F32, n, limit)}))
	default:
		r.fail(ErrFormat, "order", "%q is no filter", name)
	}
}

// nearly is how far sums of probabilities in f32 may be off.
const nearly = 2e-6

// dropBorder settles a tie: where the likeliest tokens of a row reach p exactly, rounding decides whether a kernel keeps
// one more, and files say it does not.
func dropBorder(x, before tensor.Tensor, p float64) {
	v := int(x.Shape[1])
	for i := range int(x.Shape[0]) {
		order := make([]int, v)
		for id := range order {
			order[id] = i*v + id
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(at(&before, b), at(&before, a)) })
		sum := 0.0
		for _, e := range order {
			sum += math.Exp(at(&before, e) - at(&before, order[0]))
		}
		mass := 0.0
		for n, e := range order {
			share := math.Exp(at(&before, e)-at(&before, order[0])) / sum
			if n > 0 && math.Abs(mass-p) < min(nearly, share/4) {
				for _, e := range order[n:] {
					set(&x, e, math.Inf(-1))
				}
				break
			}
			mass += share
		}
	}
}

// limit reads a filter's parameter.
func limit(r *run, name string) float64 {
	v := r.attrs.float(name, math.NaN())
	if math.IsNaN(v) || name == "top_k" && (v < 0 || v > math.MaxInt32) {
		r.fail(ErrFormat, name, "%v", v)
	}
	return v
}

// ruleFilter is one filter. The libraries that the rules come from never drop the likeliest tokens, min_tokens_to_keep in
// number; the ops leave that to their caller.
func ruleFilter(name string) func(*run) {
	return func(r *run) {
		l := ruleLogits(r, 1)
		filter(r, l.now, name, limit(r, name))
		best := r.copyOf(l.before)
		filter(r, best, "top_k", float64(max(r.attrs.int32("min_tokens_to_keep", 1), 1)))
		now, kept := tensor.Slice[float32](&l.now), tensor.Slice[float32](&best)
		for i := range now {
			now[i] = max(now[i], kept[i])
		}
		l.observe(r)
	}
}

// ruleChain applies filters one after the other.
func ruleChain(r *run) {
	l := ruleLogits(r, 1)
	r.attrs.note("top_k", "top_p", "min_p") // those that order leaves out do nothing
	for _, v := range r.attrs.list("order") {
		name, _ := v.(string)
		filter(r, l.now, name, limit(r, name))
	}
	l.observe(r)
}

// ruleTemperature divides by a temperature. 0 is greedy: the op leaves such rows alone and the sampler takes the arg max.
func ruleTemperature(r *run) {
	l := ruleLogits(r, 1)
	n := l.now.Shape[0]
	t := r.attrs.float("temperature", 1)
	r.check(ops.ApplyTemperature.Call(r.Queue, ops.ApplyTemperatureArgs{Logits: l.now, Temp: r.each(tensor.F32, n, t)}))
	if t == 0 {
		ids := r.alloc(tensor.I64, n)
		r.check(ops.GreedyArgmax.Call(r.Queue, ops.GreedyArgmaxArgs{TokenIDs: ids, Logits: l.now}))
		l.probs = r.alloc(tensor.F32, l.now.Dims()...)
		for i := range n {
			set(&l.probs, int(i*l.now.Shape[1]+atInt(&ids, int(i))), 1)
		}
	}
	l.observe(r)
}

// tokenRows reads lists of token ids, one list for each row of logits; none if the key is absent.
func (r *run) tokenRows(l *logits, key string) [][]int64 {
	rows := r.facts.rows(key)
	if rows != nil && int64(len(rows)) != l.now.Shape[0] {
		r.fail(ErrFormat, key, "%d rows for %v", len(rows), &l.now)
	}
	for _, row := range rows {
		r.tokens(l, key, row)
	}
	return rows
}

// tokens checks ids against the vocabulary.
func (r *run) tokens(l *logits, key string, ids []int64) {
	for _, id := range ids {
		if id < 0 || id >= l.now.Shape[1] {
			r.fail(ErrFormat, key, "token %d of %d", id, l.now.Shape[1])
		}
	}
}

// rulePenalties penalizes tokens of the prompt (token_ids too) and of the output.
func rulePenalties(r *run) {
	l := ruleLogits(r, 1)
	shape, n, v := l.now.Dims(), l.now.Shape[0], l.now.Shape[1]
	prompt, out, counts := r.alloc(tensor.U8, shape...), r.alloc(tensor.U8, shape...), r.alloc(tensor.I32, shape...)
	for _, key := range []string{"token_ids", "prompt_token_ids"} {
		for i, row := range r.tokenRows(l, key) {
			for _, id := range row {
				setInt(&prompt, int(int64(i)*v+id), 1)
			}
		}
	}
	for i, row := range r.tokenRows(l, "output_token_ids") {
		for _, id := range row {
			e := int(int64(i)*v + id)
			setInt(&out, e, 1)
			setInt(&counts, e, atInt(&counts, e)+1)
		}
	}
	r.check(ops.ApplyPenalties.Call(r.Queue, ops.ApplyPenaltiesArgs{Logits: l.now, PromptMask: prompt, OutputMask: out, OutputBinCounts: counts,
		FrequencyPenalties:  r.each(tensor.F32, n, r.attrs.float("frequency_penalty", 0)),
		PresencePenalties:   r.each(tensor.F32, n, r.attrs.float("presence_penalty", 0)),
		RepetitionPenalties: r.each(tensor.F32, n, r.attrs.float("repetition_penalty", 1))}))
	l.observe(r)
}

// places collects indices into logits for the ops that take lists of them.
type places struct{ rows, cols, biases []float64 }

func (p *places) add(row int64, col int64, bias float64) {
	p.rows, p.cols, p.biases = append(p.rows, float64(row)), append(p.cols, float64(col)), append(p.biases, bias)
}

// column returns values as [M] of dtype t.
func (r *run) column(t tensor.DType, values []float64) tensor.Tensor {
	x := r.alloc(tensor.F64, int64(len(values)))
	for i, v := range values {
		set(&x, i, v)
	}
	if !isWhole(t) {
		return r.cast(x, t)
	}
	y := r.alloc(t, int64(len(values)))
	for i, v := range values {
		setInt(&y, i, int64(v))
	}
	return y
}

// ruleLogitBias adds a bias to the last token of each listed sequence where the tokens before it end the row.
func ruleLogitBias(r *run) {
	l := ruleLogits(r, 1)
	said := r.tokenRows(l, "token_ids")
	var p places
	for _, v := range r.attrs.list("sequence_bias") {
		pair := newAttrs("sequence_bias", map[string]any{})
		if entry, ok := v.([]any); ok && len(entry) == 2 {
			pair.m["sequence"], pair.m["bias"] = entry[0], entry[1]
		}
		rows, bias := pair.rows("sequence"), pair.float("bias", 0)
		if len(rows) != 1 || len(rows[0]) == 0 {
			r.fail(ErrFormat, "sequence_bias", "%v", v)
		}
		r.tokens(l, "sequence_bias", rows[0])
		last := len(rows[0]) - 1
		for i := range l.now.Shape[0] {
			var row []int64
			if said != nil {
				row = said[i]
			}
			if len(row) >= last && slices.Equal(row[len(row)-last:], rows[0][:last]) {
				p.add(i, rows[0][last], bias)
			}
		}
	}
	r.check(ops.ApplyLogitBias.Call(r.Queue, ops.ApplyLogitBiasArgs{Logits: l.now, Rows: r.column(tensor.I32, p.rows),
		Cols: r.column(tensor.I32, p.cols), Biases: r.column(tensor.F32, p.biases)}))
	l.observe(r)
}

// ruleMask reads allowed tokens, a list for each row.
func ruleMask(r *run) (l *logits, excluded tensor.Tensor) {
	allowed := r.attrs.rows("allowed")
	l = ruleLogits(r, int64(len(allowed)))
	if int64(len(allowed)) != l.now.Shape[0] {
		r.fail(ErrFormat, "allowed", "%d rows for %v", len(allowed), &l.now)
	}
	excluded = r.alloc(tensor.U8, l.now.Dims()...)
	mask := tensor.Slice[uint8](&excluded)
	for i := range mask {
		mask[i] = 1
	}
	for i, row := range allowed {
		r.tokens(l, "allowed", row)
		for _, id := range row {
			mask[int64(i)*l.now.Shape[1]+id] = 0
		}
	}
	return l, excluded
}

func ruleDenseMask(r *run) {
	l, excluded := ruleMask(r)
	r.check(ops.ApplyAllowedTokenIDs.Call(r.Queue, ops.ApplyAllowedTokenIDsArgs{Logits: l.now, Mask: excluded}))
	l.observe(r)
}

func ruleSparseMask(r *run) {
	l, excluded := ruleMask(r)
	var p places
	for i, m := range tensor.Slice[uint8](&excluded) {
		if m != 0 {
			p.add(int64(i)/l.now.Shape[1], int64(i)%l.now.Shape[1], 0)
		}
	}
	r.check(ops.ApplyTokenMask.Call(r.Queue, ops.ApplyTokenMaskArgs{Logits: l.now, Rows: r.column(tensor.I32, p.rows), Cols: r.column(tensor.I32, p.cols)}))
	l.observe(r)
}

// observe puts every output that the file expects, or the logits if it expects none.
func (l *logits) observe(r *run) {
	if len(r.f.Outputs) == 0 {
		r.put("logits", l.now, tensor.F32)
	}
	n, v := l.now.Shape[0], l.now.Shape[1]
	kept := make([][]float64, n)
	for i := range kept {
		kept[i] = l.kept(i)
	}
	first := []float64{}
	if n > 0 {
		first = kept[0]
	}
	for _, want := range r.f.Outputs {
		var out []float64
		switch want.Name {
		case "logits":
			for i := range int(n * v) {
				out = append(out, at(&l.now, i))
			}
		case "masked":
			for i := range int(n * v) {
				out = append(out, map[bool]float64{true: 1}[math.IsInf(at(&l.now, i), -1)])
			}
		case "probs":
			p := l.distribution(r, l.now)
			for _, id := range first {
				out = append(out, at(&p, int(id)))
			}
		case "probs_not_renormalised":
			p := l.distribution(r, l.before)
			for i := range int(n * v) {
				if out = append(out, at(&p, i)); math.IsInf(at(&l.now, i), -1) {
					out[i] = 0
				}
			}
		case "kept_token_ids":
			out = first
		case "kept_count":
			for _, ids := range kept {
				out = append(out, float64(len(ids)))
			}
		case "lowest_kept_token_id":
			for _, id := range first[:min(1, len(first))] {
				out = append(out, max(id, l.lowestPossible()))
			}
		case "highest_kept_token_id":
			out = first[max(0, len(first)-1):]
		default:
			r.fail(ErrFormat, want.Name, "no observation of a distribution")
		}
		x := r.column(tensor.F64, out)
		if x.Numel() == want.Data.Numel() { // otherwise Compare names both shapes
			x = r.view(x, want.Data.Dims()...)
		}
		r.put(want.Name, x, tensor.F64)
	}
}

// kept lists the tokens of a row that are left. A token that was impossible before counts when every possible one is left:
// nothing shows whether it was dropped.
func (l *logits) kept(row int) (ids []float64) {
	v := int(l.now.Shape[1])
	dropped := false
	var all []float64
	for id := range v {
		now, before := at(&l.now, row*v+id), at(&l.before, row*v+id)
		all = append(all, float64(id))
		if !math.IsInf(now, -1) {
			ids = append(ids, float64(id))
		} else if !math.IsInf(before, -1) {
			dropped = true
		}
	}
	if dropped {
		return ids
	}
	return all
}

// lowestPossible is the first token of the first row that was possible before.
func (l *logits) lowestPossible() float64 {
	for id := range int(l.before.Shape[1]) {
		if !math.IsInf(at(&l.before, id), -1) {
			return float64(id)
		}
	}
	return 0
}

// distribution is the softmax of x, unless a step gave probabilities of its own.
func (l *logits) distribution(r *run, x tensor.Tensor) tensor.Tensor {
	if l.probs.Present() {
		return l.probs
	}
	p := r.alloc(tensor.F32, x.Dims()...)
	r.check(ops.ComputeProbs.Call(r.Queue, ops.ComputeProbsArgs{Probs: p, Logits: x}))
	return p
}
