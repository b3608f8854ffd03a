package ops

import (
	"math"
	"strconv"
)

var ropeScalingNames = [numRopeScalings]string{"none", "linear", "llama3", "yarn", "dynamic-ntk", "dynamic-alpha", "longrope"}

// Valid reports whether s is one of the listed rules.
func (s RopeScaling) Valid() bool { return s < numRopeScalings }

// String returns the rule's lower-case name.
func (s RopeScaling) String() string {
	if s.Valid() {
		return ropeScalingNames[s]
	}
	return "scaling(" + strconv.Itoa(int(s)) + ")"
}

// needsContext reports whether the rule reads OrigContext.
func (s RopeScaling) needsContext() bool {
	return s == RopeLlama3 || s == RopeYarn || s == RopeDynamicNTK || s == RopeLongRope
}

// or returns v, or def for the zero value of an attribute.
func or(v, def float32) float64 {
	if v == 0 {
		return float64(def)
	}
	return float64(v)
}

// Scale returns the factor on cosine and sine: AttnScale, 1 for 0.
func (p *RopeParams) Scale() float64 { return or(p.AttnScale, 1) }

// InvFreq writes the frequency of each pair, in radians a position, to dst, whose length is RotaryDim/2. freqFactors and
// longFactors are the operands of that name, nil if absent, else as long as dst. Everything is f64. The formulas, with
// d = RotaryDim and f = Base^(-2i/d) / freqFactors[i]:
//
//	none          f
//	linear        f/Factor
//	llama3        wavelength w = 2π/f, L = OrigContext: f for w < L/HighFreq, f/Factor for w > L/LowFreq, between them
//	              (1-s)·f/Factor + s·f with s = (L/w - LowFreq)/(HighFreq - LowFreq), 0 if the two are equal
//	yarn          m·f + (1-m)·f/Factor with m = ExtFactor·(1 - clamp((i-lo)/(hi-lo), 0, 1)), lo and hi the pairs that turn
//	              BetaFast and BetaSlow times over OrigContext (floor and ceil unless NoTruncate, inside 0 and d-1)
//	dynamic-ntk   f of the base Base·(Factor·L/OrigContext - (Factor-1))^(d/(d-2)), L = max(SeqLen, OrigContext)
//	dynamic-alpha f of the base Base·Factor^(d/(d-2))
//	longrope      Base^(-2i/d) / longFactors[i] when SeqLen > OrigContext, else f
func (p *RopeParams) InvFreq(dst []float64, freqFactors, longFactors []float32) {
	d := float64(p.RotaryDim)
	base, factor, ctx := or(p.Base, 10000), float64(p.Factor), float64(p.OrigContext)
	switch p.Scaling {
	case RopeDynamicNTK:
		l := max(float64(p.SeqLen), ctx)
		base *= math.Pow(factor*l/ctx-(factor-1), d/(d-2))
	case RopeDynamicAlpha:
		base *= math.Pow(factor, d/(d-2))
	case RopeLongRope:
		if p.SeqLen > p.OrigContext {
			freqFactors = longFactors
		}
	}
	lo, hi := 0.0, 0.0
	if p.Scaling == RopeYarn {
		lo, hi = p.yarnRamp(base)
	}
	for i := range dst {
		f := math.Pow(base, -2*float64(i)/d)
		if freqFactors != nil {
			f /= float64(freqFactors[i])
		}
		switch p.Scaling {
		case RopeLinear:
			f /= factor
		case RopeLlama3:
			f = llama3(f, factor, float64(p.LowFreq), float64(p.HighFreq), ctx)
		case RopeYarn:
			m := or(p.ExtFactor, 1) * (1 - min(max((float64(i)-lo)/(hi-lo), 0), 1))
			f = float64(m*f) + float64((1-m)*(f/factor))
		}
		dst[i] = f
	}
}

// yarnRamp returns the pairs between which yarn goes over from unscaled to scaled frequencies; hi > lo.
func (p *RopeParams) yarnRamp(base float64) (lo, hi float64) {
	d := float64(p.RotaryDim)
	pair := func(turns float64) float64 {
		return d * math.Log(float64(p.OrigContext)/(turns*2*math.Pi)) / (2 * math.Log(base))
	}
	lo, hi = pair(or(p.BetaFast, 32)), pair(or(p.BetaSlow, 1))
	if !p.NoTruncate {
		lo, hi = math.Floor(lo), math.Ceil(hi)
	}
	lo, hi = max(lo, 0), min(hi, d-1)
	return lo, max(hi, lo+0.001)
}

// llama3 is the Llama 3 rescale of frequency f. A factor that is not above 0 switches it off.
func llama3(f, factor, low, high, ctx float64) float64 {
	if !(factor > 0) {
		return f
	}
	wave := 2 * math.Pi / f
	switch {
	case wave < ctx/high:
		return f
	case wave > ctx/low:
		return f / factor
	}
	s := 0.0
	if high != low {
		s = (ctx/wave - low) / (high - low)
	}
	return float64((1-s)*f/factor) + float64(s*f)
}

// YarnMscale returns 0.1·mscale·ln(factor) + 1, or 1 for a factor up to 1: the growth of attention that yarn undoes.
func YarnMscale(factor, mscale float64) float64 {
	if factor <= 1 {
		return 1
	}
	return float64(0.1*mscale*math.Log(factor)) + 1
}

// YarnAttnScale returns the AttnScale of yarn: attnFactor (1 by default) times YarnMscale(factor, mscale) over
// YarnMscale(factor, mscaleAllDim). Most models have mscale 1 and mscaleAllDim 0; DeepSeek's have both.
func YarnAttnScale(factor, attnFactor, mscale, mscaleAllDim float64) float64 {
	return attnFactor * YarnMscale(factor, mscale) / YarnMscale(factor, mscaleAllDim)
}

// LongRopeAttnScale returns the AttnScale of longrope for a context that is factor times the trained one of origContext
// tokens: sqrt(1 + ln(factor)/ln(origContext)), 1 for a factor up to 1.
func LongRopeAttnScale(factor, origContext float64) float64 {
	if factor <= 1 || origContext <= 1 {
		return 1
	}
	return math.Sqrt(1 + math.Log(factor)/math.Log(origContext))
}
