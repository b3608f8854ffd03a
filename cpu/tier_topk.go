package cpu

import (
	"math"
	"slices"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
)

// Top-k and top-p without sorting the vocabulary. Logits fall into buckets by their distance from the row's largest;
// counts and probabilities of whole buckets tell in which of them the border lies, and only that one is sorted.
const (
	bucketsPerUnit = 16
	buckets        = 64*bucketsPerUnit + 1 // the last one holds all from e^-64 down
)

// bucket returns the place of a logit that lies d below the largest. It never falls as d grows; NaN goes last.
func bucket(d float32) int {
	if d < (buckets-1)/bucketsPerUnit {
		return int(d * bucketsPerUnit)
	}
	return buckets - 1
}

func applyTopKTopP(t *tier, q *registry.Queue, a *ops.ApplyTopKTopPArgs) registry.Status {
	for i := range int(a.Logits.Shape[0]) {
		if m := t.top(row[float32](&a.Logits, i)); !(m > negInf && m < -negInf) {
			return registry.Decline(registry.ReasonNumerics) // no finite largest: nothing to measure distances from
		}
	}
	v := int(a.Logits.Shape[1])
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Logits, 5, 8*buckets+(8+4)*v, func(j *job, lo, hi, worker int) {
		a := (*ops.ApplyTopKTopPArgs)(j.args)
		v := int(a.Logits.Shape[1])
		local := own[byte](j, worker)
		sums := cast[float64](local[:8*buckets])
		keys, e := cast[uint64](local[8*buckets:][:8*v]), cast[float32](local[8*buckets+8*v:])[:v]
		for i := lo; i < hi; i++ {
			x := row[float32](&a.Logits, i)
			m := j.tier.top(x)
			if a.K.Present() {
				if k := int(elems[int32](&a.K, i, 1)[0]); k >= 1 && k < v {
					keepTopK(x, k, m, sums, keys)
				}
			}
			if a.P.Present() {
				j.tier.set.ExpSum(e, x, m)
				keepTopP(x, e, 1-elems[float32](&a.P, i, 1)[0], m, sums, keys)
			}
		}
	})
}

// keepTopK hides the logits below the k-th largest.
func keepTopK(x []float32, k int, m float32, sums []float64, keys []uint64) {
	clear(sums)
	for _, l := range x {
		sums[bucket(m-l)]++
	}
	b := 0
	for left := float64(k); left > sums[b]; b++ {
		left -= sums[b]
		k -= int(sums[b])
	}
	keys = gather(x, m, b, keys) // ascending: the k-th largest of them is the border
	th := x[uint32(keys[len(keys)-k])]
	for c, l := range x {
		if l < th {
			x[c] = negInf
		}
	}
}

// keepTopP hides the smallest logits while their probabilities, which are e over their sum, add up to no more than border.
func keepTopP(x, e []float32, border, m float32, sums []float64, keys []uint64) {
	clear(sums)
	for c, l := range x {
		sums[bucket(m-l)] += float64(e[c])
	}
	var total float64
	for _, s := range sums {
		total += s
	}
	limit := float64(border) * total
	if border >= 1 {
		limit = math.Inf(1) // whatever the sums were rounded to
	}
	var below float64 // mass of the buckets that are hidden as a whole
	b := buckets - 1
	for b > 0 && below+sums[b] <= limit {
		below += sums[b]
		b--
	}
	keys = gather(x, m, b, keys)
	if b == 0 {
		keys = keys[:len(keys)-1] // the largest one stays
	}
	for c, l := range x {
		if bucket(m-l) > b {
			x[c] = negInf
		}
	}
	for _, key := range keys {
		c := uint32(key)
		if below += float64(e[c]); !(below <= limit) {
			break
		}
		x[c] = negInf
	}
}

// gather returns the keys of the logits in bucket b, ascending by value, equal ones by index.
func gather(x []float32, m float32, b int, keys []uint64) []uint64 {
	n := 0
	for c, l := range x {
		if bucket(m-l) == b {
			keys[n] = order(l, c)
			n++
		}
	}
	slices.Sort(keys[:n])
	return keys[:n]
}

// randomSample takes the logarithm only of draws that can win: -ln(u) is at least 1-u, so a column whose probability over
// 1-u stays below the best score so far loses whatever its logarithm. Bits equal the reference's.
func randomSample(t *tier, q *registry.Queue, a *ops.RandomSampleArgs) registry.Status {
	return eachRow(t, q, unsafe.Pointer(a), &a.Header, &a.Probs, 4, 0, func(j *job, lo, hi, _ int) {
		a := (*ops.RandomSampleArgs)(j.args)
		for i := lo; i < hi; i++ {
			key := mix(uint64(elems[int64](&a.Seeds, i, 1)[0]) + 0x9E3779B97F4A7C15*uint64(i))
			elems[int64](&a.TokenIDs, i, 1)[0] = int64(race(key, row[float32](&a.Probs, i)))
		}
	})
}

func race(key uint64, probs []float32) int {
	const slack = 1 + 1e-6 // more than all roundings together
	best, token := negInf, 0
	for c, p := range probs {
		u := uniform(key, c)
		if best > 0 && !((1-u)*float64(best) <= float64(p)*slack) {
			continue
		}
		if score := p / float32(-math.Log(u)); score > best {
			best, token = score, c
		}
	}
	return token
}
