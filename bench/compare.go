package bench

import (
	"fmt"
	"io"
	"math"
)

// Verdicts of a comparison.
const (
	Same       = "same"       // the difference lies inside the noise
	Faster     = "faster"     // by more than the noise
	Slower     = "slower"     // by more than the noise: a regression
	Broken     = "broken"     // had figures and has none now, or results that are wrong now
	Repaired   = "repaired"   // the other way round
	Missing    = "missing"    // is not in the second report
	Additional = "additional" // is not in the first one
)

// Change is one kernel on one case in two reports.
type Change struct {
	Op      string  `json:"op"`
	Kernel  string  `json:"kernel"`
	Case    string  `json:"case"`
	Before  float64 `json:"before_ns"` // medians
	After   float64 `json:"after_ns"`
	Ratio   float64 `json:"ratio"` // After / Before
	Low     float64 `json:"low"`   // 95 % bootstrap interval of Ratio
	High    float64 `json:"high"`
	Noise   float64 `json:"noise"` // a Ratio within 1 ± Noise says nothing
	Verdict string  `json:"verdict"`
	Why     string  `json:"why,omitempty"`
}

// Comparison is what Compare found.
type Comparison struct {
	Changes     []Change `json:"changes"`
	Differences []string `json:"differences,omitempty"` // of the two machines or builds: reasons to doubt
}

// DefaultNoise is the relative difference of medians that two runs of one program on one machine may have.
const DefaultNoise = 0.05

// Compare sets two reports against each other, case by case. A kernel is slower if its median rose by more than the
// noise and the whole interval of the ratio lies above 1. The noise of a case is the given one, or, where samples
// scatter more, half the width of the wider of the two intervals of the median.
func Compare(before, after *Report, noise float64) Comparison {
	var c Comparison
	a, b := &before.Provenance, &after.Provenance
	for _, d := range []struct{ what, before, after string }{
		{"cpu", a.CPU, b.CPU}, {"device", a.DeviceName, b.DeviceName}, {"tier", a.DeviceArch, b.DeviceArch}, {"go", a.Go, b.Go},
		{"threads", fmt.Sprint(a.Threads), fmt.Sprint(b.Threads)}, {"cache", a.Cache, b.Cache}, {"seed", fmt.Sprint(a.Seed), fmt.Sprint(b.Seed)},
		{"kernels", a.Digest, b.Digest},
	} {
		if d.before != d.after {
			c.Differences = append(c.Differences, fmt.Sprintf("%s: %s, then %s", d.what, d.before, d.after))
		}
	}
	second := map[string]*Record{}
	for i := range after.Records {
		second[after.Records[i].Key()] = &after.Records[i]
	}
	first := map[string]bool{}
	for i := range before.Records {
		r := &before.Records[i]
		first[r.Key()] = true
		c.Changes = append(c.Changes, change(r, second[r.Key()], noise))
	}
	for i := range after.Records {
		if r := &after.Records[i]; !first[r.Key()] {
			c.Changes = append(c.Changes, Change{Op: r.Op, Kernel: r.Kernel, Case: r.Case, After: r.Median, Verdict: Additional})
		}
	}
	return c
}

func change(a, b *Record, noise float64) Change {
	c := Change{Op: a.Op, Kernel: a.Kernel, Case: a.Case, Before: a.Median, Noise: noise}
	if b == nil {
		c.Verdict = Missing
		return c
	}
	c.After = b.Median
	sound := func(r *Record) bool { return r.OK() && len(r.Samples) > 0 && r.Median > 0 }
	switch {
	case sound(a) && !sound(b):
		c.Verdict, c.Why = Broken, b.remark()
		return c
	case !sound(a) && sound(b):
		c.Verdict, c.Why = Repaired, a.remark()
		return c
	case !sound(a):
		c.Verdict, c.Why = Same, b.remark()
		return c
	}
	c.Ratio = b.Median / a.Median
	c.Low, c.High = ratioInterval(a.Samples, b.Samples)
	for _, r := range []*Record{a, b} {
		c.Noise = max(c.Noise, (r.High-r.Low)/2/r.Median)
	}
	c.Verdict = Same
	if math.Abs(c.Ratio-1) > c.Noise {
		switch {
		case c.Low > 1:
			c.Verdict = Slower
		case c.High < 1:
			c.Verdict = Faster
		}
	}
	return c
}

// Regressions lists what is slower or broken.
func (c *Comparison) Regressions() (list []Change) {
	for _, x := range c.Changes {
		if x.Verdict == Slower || x.Verdict == Broken {
			list = append(list, x)
		}
	}
	return list
}

// Text writes a table.
func (c *Comparison) Text(w io.Writer) error {
	for _, d := range c.Differences {
		fmt.Fprintf(w, "differs  %s\n", d)
	}
	rows := [][]string{{"op", "case", "kernel", "before", "after", "ratio", "95 % interval", "noise", "verdict", "why"}}
	for _, x := range c.Changes {
		row := []string{x.Op, x.Case, x.Kernel, "-", "-", "-", "-", fmt.Sprintf("%.1f %%", 100*x.Noise), x.Verdict, x.Why}
		if x.Before > 0 {
			row[3] = duration(x.Before)
		}
		if x.After > 0 {
			row[4] = duration(x.After)
		}
		if x.Ratio > 0 {
			row[5], row[6] = fmt.Sprintf("%.3f", x.Ratio), fmt.Sprintf("%.3f - %.3f", x.Low, x.High)
		}
		rows = append(rows, row)
	}
	return align(w, rows)
}
