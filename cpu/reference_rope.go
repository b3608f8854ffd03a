package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// refRopeNeox and refRopeCosSinCache take their angles from angles; the tiers do too, so that every tier rotates by the
// same cosines and sines.

// ropeNeox rotates with the tier's kernels.
func ropeNeox(t *tier, q *registry.Queue, a *ops.RopeNeoxArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	pairs := int(a.Rope.RotaryDim) / 2
	if err := j.layout(8*pairs, 4*(2*pairs+int(a.QStates.Shape[2]))); err != nil {
		return a.Fail(err)
	}
	invFreq(common[float64](j)[:pairs], &a.Rope, &a.FreqFactors, &a.LongFactors)
	heads := a.QStates.Shape[1]
	if a.KStates.Present() {
		heads += a.KStates.Shape[1]
	}
	j.each(int(a.Positions.Shape[0]), float64(pairs)*(60+2*float64(heads)), func(j *job, lo, hi, worker int) {
		a := (*ops.RopeNeoxArgs)(j.args)
		pairs, buf := int(a.Rope.RotaryDim)/2, own[float32](j, worker)
		freq, cos, sin := common[float64](j)[:pairs], buf[:pairs], buf[pairs:2*pairs]
		for i := lo; i < hi; i++ {
			angles(cos, sin, freq, index(&a.Positions, i), a.Rope.Scale())
			j.tier.rotateHeads(&a.QStates, i, cos, sin, a.Interleaved, buf[2*pairs:])
			j.tier.rotateHeads(&a.KStates, i, cos, sin, a.Interleaved, buf[2*pairs:])
		}
	})
	return 0
}

// invFreq writes the frequency of each pair.
func invFreq(dst []float64, p *ops.RopeParams, factors, long *tensor.Tensor) {
	table := func(x *tensor.Tensor) []float32 {
		if !x.Present() {
			return nil
		}
		return elems[float32](x, 0, len(dst))
	}
	p.InvFreq(dst, table(factors), table(long))
}

// angles writes cosine and sine of each pair at a position, in f64 and rounded once.
func angles(cos, sin []float32, freq []float64, pos int64, scale float64) {
	for e, f := range freq {
		s, c := math.Sincos(float64(pos) * f)
		cos[e], sin[e] = float32(c*scale), float32(s*scale)
	}
}

// rotateHeads turns the heads of token i of x [T,H,D], whose innermost stride is 1. An absent x has none. buf has room
// for a head.
func (t *tier) rotateHeads(x *tensor.Tensor, i int, cos, sin []float32, interleaved bool, buf []float32) {
	if !x.Present() {
		return
	}
	n := 2 * len(cos)
	for h := range int(x.Shape[1]) {
		off := i*int(x.Stride[0]) + h*int(x.Stride[1])
		v := t.load(buf, x, off, n)
		if interleaved {
			t.rotatePairs(v, cos, sin)
		} else {
			t.rotateHalves(v, cos, sin)
		}
		t.store(x, off, v)
	}
}

func rotateHalves(x, cos, sin []float32) {
	n := len(cos)
	for e, c := range cos {
		u, v, s := x[e], x[e+n], sin[e]
		x[e], x[e+n] = float32(u*c)-float32(v*s), float32(u*s)+float32(v*c)
	}
}

func rotatePairs(x, cos, sin []float32) {
	for e, c := range cos {
		u, v, s := x[2*e], x[2*e+1], sin[e]
		x[2*e], x[2*e+1] = float32(u*c)-float32(v*s), float32(u*s)+float32(v*c)
	}
}

func ropeCosSinCache(t *tier, q *registry.Queue, a *ops.RopeCosSinCacheArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	pairs := int(a.Rope.RotaryDim) / 2
	if err := j.layout(8*pairs, 4*2*pairs); err != nil {
		return a.Fail(err)
	}
	invFreq(common[float64](j)[:pairs], &a.Rope, &a.FreqFactors, &a.LongFactors)
	j.each(int(a.Positions.Shape[0]), float64(60*pairs), func(j *job, lo, hi, worker int) {
		a := (*ops.RopeCosSinCacheArgs)(j.args)
		n := int(a.Rope.RotaryDim)
		for i := lo; i < hi; i++ {
			row := target(own[float32](j, worker), &a.CosSin, i*n, n)
			angles(row[:n/2], row[n/2:], common[float64](j)[:n/2], index(&a.Positions, i), a.Rope.Scale())
			j.tier.store(&a.CosSin, i*n, row)
		}
	})
	return 0
}

func ropeFromCache(t *tier, q *registry.Queue, a *ops.RopeFromCacheArgs) registry.Status {
	for i := range int(a.Positions.Numel()) {
		if p := index(&a.Positions, i); p < 0 || p >= a.CosSinCache.Shape[0] {
			return a.Fail(badValue("rope_from_cache", "positions", "position %d at %d is outside [0,%d)", p, i, a.CosSinCache.Shape[0]))
		}
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rotary := int(a.RotaryDim)
	if err := j.layout(0, 4*(2*rotary+int(a.QStates.Shape[2]))); err != nil {
		return a.Fail(err)
	}
	heads := a.QStates.Shape[1]
	if a.KStates.Present() {
		heads += a.KStates.Shape[1]
	}
	j.each(int(a.QStates.Shape[0]), float64(rotary)*(2+float64(heads)), func(j *job, lo, hi, worker int) {
		a := (*ops.RopeFromCacheArgs)(j.args)
		n, buf := int(a.RotaryDim), own[float32](j, worker)
		for i := lo; i < hi; i++ {
			row := cachedRow(j.tier, a, i, buf[:2*n])
			j.tier.rotateHeads(&a.QStates, i, row[:n/2], row[n/2:], a.Interleaved, buf[2*n:])
			j.tier.rotateHeads(&a.KStates, i, row[:n/2], row[n/2:], a.Interleaved, buf[2*n:])
		}
	})
	return 0
}

// cachedRow returns the cosines and sines of token i; buf has room for two rows of the cache.
func cachedRow(t *tier, a *ops.RopeFromCacheArgs, i int, buf []float32) []float32 {
	n := int(a.RotaryDim)
	if a.Positions.Rank == 1 {
		return t.load(buf, &a.CosSinCache, int(index(&a.Positions, i))*n, n)
	}
	tokens := int(a.Positions.Shape[1])
	for e := range n / 2 {
		row := int(index(&a.Positions, axis(a, e)*tokens+i)) * n
		buf[e], buf[n/2+e] = one(&a.CosSinCache, row+e), one(&a.CosSinCache, row+n/2+e)
	}
	return buf[:n]
}

// axis returns which of the three positions of a token pair e turns by.
func axis(a *ops.RopeFromCacheArgs, e int) int {
	s := a.MropeSection
	switch {
	case a.MropeInterleaved && e%3 == 1 && e < 3*int(s[1]), !a.MropeInterleaved && e >= int(s[0]) && e < int(s[0]+s[1]):
		return 1
	case a.MropeInterleaved && e%3 == 2 && e < 3*int(s[2]), !a.MropeInterleaved && e >= int(s[0]+s[1]):
		return 2
	}
	return 0
}
