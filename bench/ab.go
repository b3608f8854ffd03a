package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/opmux/opmux/registry"
)

// ABReport is two kernels side by side.
type ABReport struct {
	Version    int        `json:"version"`
	Provenance Provenance `json:"provenance"`
	Limits     []Limit    `json:"limits,omitempty"`
	Cases      []ABCase   `json:"cases"`
	Skipped    []Skip     `json:"skipped,omitempty"`
}

// ABCase is one case. Ratio is the median over the rounds of A's time by B's in the same round: above 1, B is faster.
type ABCase struct {
	Op       string      `json:"op"`
	Case     string      `json:"case"`
	A        Record      `json:"a"`
	B        Record      `json:"b"`
	Rounds   int         `json:"rounds"` // that Ratio is the median of: those that nothing disturbed, if they are enough
	Ratio    float64     `json:"ratio"`
	Low      float64     `json:"low"` // 95 % bootstrap interval of Ratio, over rounds
	High     float64     `json:"high"`
	Verdict  string      `json:"verdict"`            // "a is faster", "b is faster"; "no difference shown" if the interval contains 1; "too few rounds"
	Compared *Difference `json:"compared,omitempty"` // B's results on the case's operands, held against A's
}

// Difference is how far the results of two kernels lie apart.
type Difference struct {
	OK      bool               `json:"ok"`      // inside the tolerance of the op
	Same    bool               `json:"same"`    // bit for bit
	Outputs []OutputDifference `json:"outputs"` // in record order
}

// OutputDifference is how far one output of two kernels lies apart.
type OutputDifference struct {
	Output string  `json:"output"`
	NMSE   float64 `json:"nmse"`
	MaxULP float64 `json:"max_ulp"`
	Worst  string  `json:"worst"` // element, both values
}

// AB measures kernel a against kernel b (names of kernels or providers) on the cases of the options, whose Kernel does
// not count. Both take a sample in every round, by turns first and second, on the same sets of operands. Results are
// compared on the case itself. An arm whose kernel declines, fails or does not execute is an error: ErrNotExecuted,
// registry.ErrDeclined, registry.ErrNoKernel for a kernel that is not used here, registry.ErrUnknownName for none. When ctx
// ends, its error comes with the cases that were finished.
func AB(ctx context.Context, o Options, a, b string) (*ABReport, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	jobs, skipped, err := o.jobs()
	if err != nil {
		return nil, err
	}
	g, err := newRig(ctx, o)
	if err != nil {
		return nil, err
	}
	r := &ABReport{Version: Version, Skipped: skipped}
	for _, j := range jobs {
		var steps []registry.Step
		for _, name := range []string{a, b} {
			s, e := g.arm(j, name)
			if e != nil {
				err = e
				break
			}
			steps = append(steps, s)
		}
		if err == nil && steps[0].Kernel == steps[1].Kernel {
			err = fmt.Errorf("bench: %s: %q and %q are one kernel: %w", j.desc.Name, a, b, ErrOption)
		}
		if err != nil {
			break
		}
		if o.Progress != nil {
			o.Progress(j.desc.Name, j.text)
		}
		c, e := g.pair(j, steps)
		if err = e; err != nil {
			break
		}
		r.Cases = append(r.Cases, c)
	}
	r.Provenance, r.Limits = g.provenance(), g.limits()
	if err == nil && len(r.Cases) == 0 {
		err = fmt.Errorf("bench: nothing to measure: %w", ErrOption)
		if len(skipped) > 0 {
			err = fmt.Errorf("bench: %s %s: %s: %w", skipped[0].Op, skipped[0].Case, skipped[0].Why, ErrOption)
		}
	}
	return r, errors.Join(err, g.close())
}

// arm finds a kernel of the job's op by its name or its provider's.
func (g *rig) arm(j job, name string) (registry.Step, error) {
	e := g.Registry.Explain(j.desc.Op, g.Device.ID())
	for _, s := range e.Chain {
		if s.Kernel == name || s.Provider == name {
			return s, nil
		}
	}
	for _, s := range e.Dropped {
		if s.Kernel == name || s.Provider == name {
			return s, fmt.Errorf("bench: %s: kernel %s is not used on %v: %s %s: %w", j.desc.Name, s.Kernel, g.Device.ID(), s.State, s.Detail, registry.ErrNoKernel)
		}
	}
	var names []string
	for _, s := range e.Chain {
		names = append(names, s.Kernel)
	}
	return registry.Step{}, fmt.Errorf("bench: %s has no kernel %q on %v; there are %s: %w", j.desc.Name, name, g.Device.ID(), strings.Join(names, ", "), registry.ErrUnknownName)
}

// pair measures two kernels on one case.
func (g *rig) pair(j job, steps []registry.Step) (ab ABCase, err error) {
	c, err := g.newCase(j, steps)
	if err != nil {
		return ab, err
	}
	defer func() { err = errors.Join(err, c.ops.close()) }()
	if !g.NoVerify {
		if ab.Compared, err = c.difference(); err != nil {
			return ab, err
		}
	}
	if err := c.measure(); err != nil {
		return ab, err
	}
	c.finish()
	for _, a := range c.arms {
		if a.dead {
			return ab, a.cause
		}
	}
	x, y := c.arms[0], c.arms[1]
	ab.Op, ab.Case, ab.A, ab.B = j.desc.Name, j.text, x.rec, y.rec
	var clean, all []float64
	other := map[int]int{}
	for i, round := range y.rounds {
		other[round] = i
	}
	for i, round := range x.rounds {
		if k, ok := other[round]; ok {
			s, t := x.times[i], y.times[k]
			all = append(all, s.best()/t.best())
			if !s.disturbed && !t.disturbed {
				clean = append(clean, s.ns/t.ns)
			}
		}
	}
	ratios := all
	if len(clean) >= leastRounds {
		ratios = clean
	}
	ab.Rounds, ab.Verdict = len(ratios), "too few rounds"
	if ab.Rounds == 0 {
		return ab, nil
	}
	ab.Ratio = median(ratios)
	ab.Low, ab.High = interval(ratios)
	if ab.Rounds >= leastRounds {
		switch {
		case ab.Low > 1:
			ab.Verdict = "b is faster"
		case ab.High < 1:
			ab.Verdict = "a is faster"
		default:
			ab.Verdict = "no difference shown"
		}
	}
	return ab, nil
}

// Failed reports whether results of two kernels lie too far apart.
func (r *ABReport) Failed() bool {
	for i := range r.Cases {
		if d := r.Cases[i].Compared; d != nil && !d.OK {
			return true
		}
	}
	return false
}

// Text writes both arms, their ratio and how far their results lie apart.
func (r *ABReport) Text(w io.Writer) error {
	p := &r.Provenance
	fmt.Fprintf(w, "%s: %s, %s caches, seed %d, kernels %s\n", p.CPU, p.DeviceName, p.Cache, p.Seed, p.Digest)
	for i := range r.Cases {
		c := &r.Cases[i]
		fmt.Fprintf(w, "\n%s %s\n", c.Op, c.Case)
		rows := [][]string{{"", "kernel", "median", "95 % interval", "GB/s", "GFLOP/s", "share", "of", "executed", "remark"}}
		for k, v := range []*Record{&c.A, &c.B} {
			cells := v.row()
			rows = append(rows, []string{string(rune('a' + k)), cells[1], cells[2], cells[3], cells[5], cells[6], cells[7], cells[8], cells[10], cells[11]})
		}
		if err := align(w, rows); err != nil {
			return err
		}
		fmt.Fprintf(w, "a takes %.3f times as long as b (95 %% interval %.3f - %.3f, %d rounds): %s\n", c.Ratio, c.Low, c.High, c.Rounds, c.Verdict)
		fmt.Fprintln(w, "(the ratio is the median of a's time by b's in the same round, not that of the medians above)")
		if d := c.Compared; d != nil {
			for _, o := range d.Outputs {
				if d.Same {
					break
				}
				fmt.Fprintf(w, "%s: NMSE %.3g, at most %.4g ulp apart, worst %s\n", o.Output, o.NMSE, o.MaxULP, o.Worst)
			}
			switch {
			case d.Same:
				fmt.Fprintln(w, "results are the same, bit for bit")
			case d.OK:
				fmt.Fprintln(w, "results lie inside the op's tolerance")
			default:
				fmt.Fprintln(w, "results DIFFER by more than the op's tolerance")
			}
		}
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "\nnot measured: %s %s: %s\n", s.Op, s.Case, s.Why)
	}
	return nil
}
