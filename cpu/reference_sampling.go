package cpu

import (
	"math"
	"slices"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

var negInf = float32(math.Inf(-1))

// row returns row i of a contiguous [n,v] tensor.
func row[T any](x *tensor.Tensor, i int) []T {
	v := int(x.Shape[1])
	return elems[T](x, i*v, v)
}

// eachRow runs f over the rows of x, which cost about cost nanoseconds an element.
func eachRow(t *tier, q *registry.Queue, args unsafe.Pointer, h *registry.Header, x *tensor.Tensor, cost float64, local int, f part) registry.Status {
	j := begin(q, t, args)
	defer j.end()
	if err := j.layout(0, local); err != nil {
		return h.Fail(err)
	}
	j.each(int(x.Shape[0]), cost*float64(x.Shape[1]), f)
	return 0
}

// temperature returns what row i is divided by.
func temperature(a *ops.ApplyTemperatureArgs, i int) float32 {
	t := elems[float32](&a.Temp, i, 1)[0]
	if !a.AllRandom && t < 1e-5 {
		return 1
	}
	return t
}

func refApplyTemperature(t *tier, q *registry.Queue, a *ops.ApplyTemperatureArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 2, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.ApplyTemperatureArgs)(j.args)
		for i := lo; i < hi; i++ {
			t := temperature(a, i)
			x := row[float32](&a.Logits, i)
			for e := range x {
				x[e] /= t
			}
		}
	})
}

func refGreedyArgmax(t *tier, q *registry.Queue, a *ops.GreedyArgmaxArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 1, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.GreedyArgmaxArgs)(j.args)
		for i := lo; i < hi; i++ {
			elems[int64](&a.TokenIDs, i, 1)[0] = int64(argmax(row[float32](&a.Logits, i), a.Last))
		}
	})
}

// order returns a key that sorts like (v, index), equal values of different sign included.
func order(v float32, index int) uint64 {
	b := math.Float32bits(v + 0) // -0 + 0 is +0
	if b>>31 != 0 {
		b = ^b
	} else {
		b |= 1 << 31
	}
	return uint64(b)<<32 | uint64(uint32(index))
}

func refApplyTopKTopP(t *tier, q *registry.Queue, a *ops.ApplyTopKTopPArgs) registry.Status {
	v := int(a.Logits.Shape[1])
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 200, (8+4)*v, func(j *job, lo, hi, worker int) {
		a := (*ops.ApplyTopKTopPArgs)(j.args)
		v := int(a.Logits.Shape[1])
		local := own[byte](j, worker)
		keys, e := cast[uint64](local[:8*v]), cast[float32](local[8*v:])[:v]
		for i := lo; i < hi; i++ {
			x := row[float32](&a.Logits, i)
			k := 0
			if a.K.Present() {
				k = int(elems[int32](&a.K, i, 1)[0])
			}
			limit := k >= 1 && k < v
			if !limit && !a.P.Present() {
				continue
			}
			for c, l := range x {
				keys[c] = order(l, c)
			}
			slices.Sort(keys)
			at := func(n int) *float32 { return &x[uint32(keys[n])] } // the n-th smallest
			if limit {
				th := *at(v - k)
				for c, l := range x {
					if l < th {
						x[c] = negInf
					}
				}
			}
			if !a.P.Present() || v == 0 {
				continue
			}
			var sum float32
			m := *at(v - 1)
			for n := range e {
				e[n] = 0
				if l := *at(n); l != negInf {
					e[n] = exp32(l - m)
				}
				sum += e[n]
			}
			var c float32
			border := 1 - elems[float32](&a.P, i, 1)[0]
			for n := range v - 1 {
				c += e[n] / sum
				if min(c, 1) <= border { // roundings must not carry a sum past 1
					*at(n) = negInf
				}
			}
		}
	})
}

// largest is the maximum of a scan from the first element: a NaN there stays, others are passed over.
func largest(x []float32) float32 {
	m := negInf
	for i, v := range x {
		if i == 0 || v > m {
			m = v
		}
	}
	return m
}

func refComputeProbs(t *tier, q *registry.Queue, a *ops.ComputeProbsArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 15, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.ComputeProbsArgs)(j.args)
		for i := lo; i < hi; i++ {
			x, p := row[float32](&a.Logits, i), row[float32](&a.Probs, i)
			m := largest(x)
			var sum float32
			for e, v := range x {
				p[e] = exp32(v - m)
				sum += p[e]
			}
			for e := range p {
				p[e] /= sum
			}
		}
	})
}

func refComputeLogprobs(t *tier, q *registry.Queue, a *ops.ComputeLogprobsArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 15, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.ComputeLogprobsArgs)(j.args)
		for i := lo; i < hi; i++ {
			logSoftmaxRow(row[float32](&a.Logprobs, i), row[float32](&a.Logits, i))
		}
	})
}

// mix is the finalizer of splitmix64 after one step.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// uniform draws from (0, 1] for a column.
func uniform(key uint64, col int) float64 {
	return float64(mix(key+uint64(col))>>11+1) * (1 / 9007199254740993.0)
}

func refRandomSample(t *tier, q *registry.Queue, a *ops.RandomSampleArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Probs, 15, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.RandomSampleArgs)(j.args)
		for i := lo; i < hi; i++ {
			key := mix(uint64(elems[int64](&a.Seeds, i, 1)[0]) + 0x9E3779B97F4A7C15*uint64(i))
			best, token := negInf, 0
			for c, p := range row[float32](&a.Probs, i) {
				if score := p / float32(-math.Log(uniform(key, c))); score > best {
					best, token = score, c
				}
			}
			elems[int64](&a.TokenIDs, i, 1)[0] = int64(token)
		}
	})
}

func refApplyPenalties(t *tier, q *registry.Queue, a *ops.ApplyPenaltiesArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 4, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.ApplyPenaltiesArgs)(j.args)
		for i := lo; i < hi; i++ {
			freq, pres, rep := elems[float32](&a.FrequencyPenalties, i, 1)[0], elems[float32](&a.PresencePenalties, i, 1)[0], elems[float32](&a.RepetitionPenalties, i, 1)[0]
			logits, prompt, out, counts := row[float32](&a.Logits, i), row[uint8](&a.PromptMask, i), row[int8](&a.OutputMask, i), row[int32](&a.OutputBinCounts, i)
			for c, x := range logits {
				if prompt[c] != 0 || out[c] != 0 {
					if x > 0 {
						x /= rep
					} else {
						x *= rep
					}
				}
				x -= float32(freq * float32(counts[c]))
				logits[c] = x - float32(pres*float32(out[c]))
			}
		}
	})
}

func refApplyMinP(t *tier, q *registry.Queue, a *ops.ApplyMinPArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 15, 4*int(a.Logits.Shape[1]), func(j *job, lo, hi, worker int) {
		a := (*ops.ApplyMinPArgs)(j.args)
		for i := lo; i < hi; i++ {
			minP := elems[float32](&a.MinP, i, 1)[0]
			if minP <= 0 {
				continue
			}
			x := row[float32](&a.Logits, i)
			p := own[float32](j, worker)[:len(x)]
			m := largest(x)
			var sum float32
			for e, v := range x {
				p[e] = exp32(v - m)
				sum += p[e]
			}
			top := float32(0)
			for e := range p {
				p[e] /= sum
				top = greater(top, p[e])
			}
			th := minP * top
			for e, v := range p {
				if v < th {
					x[e] = negInf
				}
			}
		}
	})
}

// eachPlace calls f with the element that rows[e], cols[e] name, in order, after all places were checked.
func eachPlace(op string, logits, rows, cols *tensor.Tensor, f func(e int, x *float32)) error {
	m := int(rows.Shape[0])
	r, c := elems[int32](rows, 0, m), elems[int32](cols, 0, m)
	for e := range m {
		if r[e] < 0 || int64(r[e]) >= logits.Shape[0] {
			return badValue(op, "rows", "row %d at %d is outside [0,%d)", r[e], e, logits.Shape[0])
		}
		if c[e] < 0 || int64(c[e]) >= logits.Shape[1] {
			return badValue(op, "cols", "column %d at %d is outside [0,%d)", c[e], e, logits.Shape[1])
		}
	}
	for e := range m {
		f(e, &row[float32](logits, int(r[e]))[c[e]])
	}
	return nil
}

func refApplyLogitBias(_ *tier, _ *registry.Queue, a *ops.ApplyLogitBiasArgs) registry.Status {
	b := elems[float32](&a.Biases, 0, int(a.Biases.Shape[0]))
	if err := eachPlace("apply_logit_bias", &a.Logits, &a.Rows, &a.Cols, func(e int, x *float32) { *x += b[e] }); err != nil {
		return a.Fail(err)
	}
	return 0
}

func refApplyTokenMask(_ *tier, _ *registry.Queue, a *ops.ApplyTokenMaskArgs) registry.Status {
	if err := eachPlace("apply_token_mask", &a.Logits, &a.Rows, &a.Cols, func(_ int, x *float32) { *x = negInf }); err != nil {
		return a.Fail(err)
	}
	return 0
}

func refApplyAllowedTokenIDs(t *tier, q *registry.Queue, a *ops.ApplyAllowedTokenIDsArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 1, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.ApplyAllowedTokenIDsArgs)(j.args)
		for i := lo; i < hi; i++ {
			x := row[float32](&a.Logits, i)
			for c, m := range row[uint8](&a.Mask, i) {
				if m != 0 {
					x[c] = negInf
				}
			}
		}
	})
}
