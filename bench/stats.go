package bench

import (
	"math"
	"math/rand/v2"
	"slices"
)

// resamples is how often a bootstrap draws.
const resamples = 1000

// quantile returns the p-quantile of v, 0 <= p <= 1, between neighbours in proportion; NaN of nothing.
func quantile(v []float64, p float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	at := p * float64(len(s)-1)
	i := min(int(at), len(s)-1)
	if i == len(s)-1 {
		return s[i]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}

func median(v []float64) float64 { return quantile(v, 0.5) }

// interval returns the 95 % bootstrap interval of the median of v. Equal arguments give equal results.
func interval(v []float64) (low, high float64) {
	v = thin(v)
	r := rand.New(rand.NewPCG(1, uint64(len(v))))
	draw := make([]float64, len(v))
	return percentiles(func() float64 {
		for i := range draw {
			draw[i] = v[r.IntN(len(v))]
		}
		return median(draw)
	})
}

// mostDrawn bounds the samples that a bootstrap draws from; more say little more and take for ever.
const mostDrawn = 500

// thin returns at most mostDrawn values of v, evenly spread.
func thin(v []float64) []float64 {
	if len(v) <= mostDrawn {
		return v
	}
	t := make([]float64, mostDrawn)
	for i := range t {
		t[i] = v[i*len(v)/mostDrawn]
	}
	return t
}

// ratioInterval returns the 95 % bootstrap interval of median(b)/median(a), whose samples do not come in pairs.
func ratioInterval(a, b []float64) (low, high float64) {
	a, b = thin(a), thin(b)
	r := rand.New(rand.NewPCG(2, uint64(len(a)+len(b))))
	x, y := make([]float64, len(a)), make([]float64, len(b))
	return percentiles(func() float64 {
		for i := range x {
			x[i] = a[r.IntN(len(a))]
		}
		for i := range y {
			y[i] = b[r.IntN(len(b))]
		}
		return median(y) / median(x)
	})
}

func percentiles(statistic func() float64) (low, high float64) {
	v := make([]float64, resamples)
	for i := range v {
		v[i] = statistic()
	}
	return quantile(v, 0.025), quantile(v, 0.975)
}
