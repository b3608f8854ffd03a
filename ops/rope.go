package ops

import (
	"math"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// EmbeddingArgs is the record of Embedding: out[t] = table[ids[t]]. The table may have a block dtype (H in elements) and
// the Lane16 layout. An id outside [0,V) is an ErrValue.
type EmbeddingArgs struct {
	registry.Header
	Out   tensor.Tensor `op:"out" shape:"T,H" dtype:"outfloat"`
	Table tensor.Tensor `op:"in" shape:"V,H" dtype:"float block" layout:"contig lane16"` // V > 0 when T > 0
	IDs   tensor.Tensor `op:"in" shape:"T" dtype:"index"`
}

// RopeScaling names a rule that changes the frequencies of a rope; RopeParams says what each needs.
type RopeScaling uint8

// Rules of frequency scaling.
const (
	RopeNone         RopeScaling = iota
	RopeLinear                   // f/Factor (position interpolation)
	RopeLlama3                   // Factor on low frequencies, blended by LowFreq and HighFreq over OrigContext
	RopeYarn                     // f/Factor on slow pairs, f on fast ones, a ramp from BetaFast to BetaSlow turns over OrigContext
	RopeDynamicNTK               // base·(Factor·L/OrigContext - (Factor-1))^(d/(d-2)) with L = max(SeqLen, OrigContext)
	RopeDynamicAlpha             // base·Factor^(d/(d-2))
	RopeLongRope                 // f divided by FreqFactors, by LongFactors when SeqLen > OrigContext
	numRopeScalings
)

// RopeParams are the attributes that give pair i of a rope its frequency (InvFreq has the formulas, in f64):
// Base^(-2i/RotaryDim), divided by the operand FreqFactors[i] where present, then changed as Scaling says. Cosine and sine
// are multiplied by AttnScale. The zero value is plain rope of base 10000.
type RopeParams struct {
	Base        float32     // > 0, finite; 0 means 10000
	RotaryDim   int32       // rotated elements of a head: even, > 0
	Factor      float32     // > 0, finite where Scaling uses it
	LowFreq     float32     // RopeLlama3: > 0, finite
	HighFreq    float32     // RopeLlama3: >= LowFreq, finite
	ExtFactor   float32     // RopeYarn: weight of the unscaled frequency, >= 0, finite; 0 means 1
	BetaFast    float32     // RopeYarn: > 0, finite; 0 means 32
	BetaSlow    float32     // RopeYarn: > 0, finite; 0 means 1
	AttnScale   float32     // finite, >= 0; 0 means 1. YarnAttnScale and LongRopeAttnScale compute it
	OrigContext int32       // context length of the training: > 0 where Scaling uses it
	SeqLen      int32       // RopeDynamicNTK, RopeLongRope: length that the rope serves, >= 0
	Scaling     RopeScaling // which rule
	NoTruncate  bool        // RopeYarn: keep the ramp's ends fractional instead of floor and ceil
	_           [2]byte
}

// RopeNeoxArgs is the record of RopeNeox: q and k are rotated in place by position·frequency, angles in f64. Pair i is
// (i, i+RotaryDim/2), or (2i, 2i+1) when Interleaved; elements from RotaryDim on stay. Negative positions are legal.
type RopeNeoxArgs struct {
	registry.Header
	QStates     tensor.Tensor `op:"inout" shape:"T,Hq,D" dtype:"outfloat"`
	KStates     tensor.Tensor `op:"inout,opt" shape:"T,Hk,D" dtype:"like q_states"`
	Positions   tensor.Tensor `op:"in" shape:"T" dtype:"index"`
	FreqFactors tensor.Tensor `op:"in,opt" shape:"P" dtype:"f32"` // P = RotaryDim/2, divides the frequencies; RopeLongRope: the short table
	LongFactors tensor.Tensor `op:"in,opt" shape:"P" dtype:"f32"` // RopeLongRope only
	Rope        RopeParams
	Interleaved bool
}

// RopeCosSinCacheArgs is the record of RopeCosSinCache: row t of cos_sin is [cos | sin] of positions[t] for all pairs.
type RopeCosSinCacheArgs struct {
	registry.Header
	CosSin      tensor.Tensor `op:"out" shape:"T,R" dtype:"outfloat"` // R = RotaryDim
	Positions   tensor.Tensor `op:"in" shape:"T" dtype:"index"`
	FreqFactors tensor.Tensor `op:"in,opt" shape:"P" dtype:"f32"` // as in RopeNeoxArgs
	LongFactors tensor.Tensor `op:"in,opt" shape:"P" dtype:"f32"`
	Rope        RopeParams
}

// RopeFromCacheArgs is the record of RopeFromCache: q and k are rotated in place with the row of cos_sin_cache that their
// position names; a position outside [0,P) is an ErrValue. With positions [3,T] (time, height, width) pair i takes the
// position of the axis that MropeSection gives it.
type RopeFromCacheArgs struct {
	registry.Header
	QStates          tensor.Tensor `op:"inout" shape:"T,Hq,D" dtype:"outfloat" layout:"inner1"`
	KStates          tensor.Tensor `op:"inout,opt" shape:"T,Hk,D" dtype:"like q_states" layout:"inner1"`
	Positions        tensor.Tensor `op:"in" shape:"T|3,T" dtype:"index"`
	CosSinCache      tensor.Tensor `op:"in" shape:"P,R" dtype:"like q_states"` // P > 0, R = RotaryDim
	RotaryDim        int32         // even, > 0, <= D
	MropeSection     [3]int32      // pairs of each axis, sum RotaryDim/2; read only for positions [3,T]
	Interleaved      bool          // pairs are (2i, 2i+1), else (i, i+RotaryDim/2)
	MropeInterleaved bool          // axes alternate pair by pair (i%3) instead of standing in three runs
}

// Table lookup and rotary position embeddings.
var (
	Embedding = define(OpEmbedding, "embedding", "rope_embedding", "embedding", "rows of a table by id",
		func(a *EmbeddingArgs) *OpError {
			if a.Table.Shape[0] == 0 && a.IDs.Shape[0] > 0 {
				return bad(ErrShape, "table", "no rows for %d ids", a.IDs.Shape[0])
			}
			return nil
		})
	RopeNeox = define(OpRopeNeox, "rope_neox", "rope_embedding", "rope_inline_neox",
		"rotation of q and k by position, angles computed on the way",
		func(a *RopeNeoxArgs) *OpError {
			return first(rotaryDim(a.Rope.RotaryDim, a.QStates.Shape[2]), a.Rope.check(&a.FreqFactors, &a.LongFactors))
		})
	RopeCosSinCache = define(OpRopeCosSinCache, "rope_cos_sin_cache", "rope_embedding", "rope_cache_fill",
		"cosines and sines of positions, one row each",
		func(a *RopeCosSinCacheArgs) *OpError {
			if e := rotaryDim(a.Rope.RotaryDim, math.MaxInt32); e != nil {
				return e
			}
			if a.CosSin.Shape[1] != int64(a.Rope.RotaryDim) {
				return bad(ErrShape, "cos_sin", "rows of %d for a rotary_dim of %d", a.CosSin.Shape[1], a.Rope.RotaryDim)
			}
			return a.Rope.check(&a.FreqFactors, &a.LongFactors)
		})
	RopeFromCache = define(OpRopeFromCache, "rope_from_cache", "rope_embedding", "rope_cached",
		"rotation of q and k with cosines and sines from a table", checkRopeFromCache)
)

func checkRopeFromCache(a *RopeFromCacheArgs) *OpError {
	if e := rotaryDim(a.RotaryDim, a.QStates.Shape[2]); e != nil {
		return e
	}
	if c := a.CosSinCache.Shape; c[0] == 0 || c[1] != int64(a.RotaryDim) {
		return bad(ErrShape, "cos_sin_cache", "shape %v, want [P,%d] with P > 0", a.CosSinCache.Dims(), a.RotaryDim)
	}
	if a.Positions.Rank == 2 {
		var sum int64
		for _, s := range a.MropeSection {
			if s < 0 {
				return bad(ErrAttr, "mrope_section", "negative section in %v", a.MropeSection)
			}
			sum += int64(s)
		}
		if sum != int64(a.RotaryDim)/2 {
			return bad(ErrAttr, "mrope_section", "%v sums to %d, want rotary_dim/2 = %d", a.MropeSection, sum, a.RotaryDim/2)
		}
	}
	return nil
}

// rotaryDim checks the number of rotated elements of a head of d.
func rotaryDim(r int32, d int64) *OpError {
	if r <= 0 || r%2 != 0 || int64(r) > d {
		return bad(ErrAttr, "rotary_dim", "%d is not an even number from 2 to %d", r, d)
	}
	return nil
}

// check checks what p's scaling needs, tables included; RotaryDim has been checked.
func (p *RopeParams) check(short, long *tensor.Tensor) *OpError {
	for i, x := range [...]*tensor.Tensor{short, long} {
		if x.Present() && x.Shape[0] != int64(p.RotaryDim)/2 {
			return bad(ErrShape, [...]string{"freq_factors", "long_factors"}[i], "%d factors for %d pairs", x.Shape[0], p.RotaryDim/2)
		}
	}
	if e := first(notNegative("base", p.Base), notNegative("attn_scale", p.AttnScale), notNegativeInt("seq_len", p.SeqLen),
		notNegativeInt("orig_context", p.OrigContext)); e != nil {
		return e
	}
	if long.Present() != (p.Scaling == RopeLongRope) {
		return bad(ErrAttr, "long_factors", "present: %v, but scaling is %v", long.Present(), p.Scaling)
	}
	if p.Scaling.needsContext() && p.OrigContext == 0 {
		return bad(ErrAttr, "orig_context", "%v scaling needs it", p.Scaling)
	}
	switch p.Scaling {
	case RopeNone:
		return nil
	case RopeLongRope:
		if !short.Present() {
			return bad(ErrAttr, "freq_factors", "absent, but scaling is %v", p.Scaling)
		}
		return nil
	case RopeLinear, RopeDynamicNTK, RopeDynamicAlpha:
		return positive("factor", p.Factor)
	case RopeLlama3:
		if e := first(positive("factor", p.Factor), positive("low_freq", p.LowFreq), positive("high_freq", p.HighFreq)); e != nil {
			return e
		}
		if p.HighFreq < p.LowFreq {
			return bad(ErrAttr, "high_freq", "%v is below low_freq %v", p.HighFreq, p.LowFreq)
		}
		return nil
	case RopeYarn:
		return first(positive("factor", p.Factor), notNegative("ext_factor", p.ExtFactor), notNegative("beta_fast", p.BetaFast),
			notNegative("beta_slow", p.BetaSlow))
	}
	return bad(ErrAttr, "scaling", "%v is not known", p.Scaling)
}
