package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// print writes the table of the rows of one format and number of threads.
func (r *report) print(out io.Writer, rows []row) {
	if len(rows) == 0 {
		return
	}
	x := rows[0]
	temperature := x.Cache
	if temperature == "warm" {
		temperature = "warm: they fit in the last cache"
	}
	unit := "peak"
	if x.Roofline != nil && x.Roofline.Unit != "" {
		unit = x.Roofline.Unit
	}
	fmt.Fprintf(out, "%s, N=%d K=%d, threads: %d, copies of the weights: %d (%d MiB, %s), rounds: %d\n", x.Format, x.Shape["N"],
		x.Shape["K"], x.Threads, x.Copies, x.WeightBytes>>20, temperature, r.Rounds)
	w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	fmt.Fprintf(w, "M\tengine\tms\tspread\tGB/s\tof read\tGFLOP/s\tof %s\topmux/engine\tnmse\tkernel\t\n", unit)
	for _, x := range rows {
		if x.Error != "" {
			fmt.Fprintf(w, "%d\t%s\tfailed: %s\n", x.Shape["M"], x.Engine, x.Error)
			continue
		}
		ratio := ""
		switch {
		case x.wrong():
			ratio = "WRONG"
		case x.Ratio != nil:
			ratio = fmt.Sprintf("%.2fx (%.2f-%.2f)", *x.Ratio, x.Range[0], x.Range[1])
		}
		_, read := x.bandwidth()
		peak := ""
		if f := x.Roofline; f != nil && f.Peak > 0 {
			peak = fmt.Sprintf("%.0f %%", x.GFLOPS*1e9/f.Peak*100)
		}
		spread := (slices.Max(x.Samples) - x.Min) / x.Median
		fmt.Fprintf(w, "%d\t%s\t%.3f\t%.0f %%\t%.1f\t%.0f %%\t%.1f\t%s\t%s\t%.1e\t%s\t\n", x.Shape["M"], x.Engine, x.Median/1e6, spread*100,
			x.GBs, read*100, x.GFLOPS, peak, ratio, x.Verified.NMSE, x.Kernel)
	}
	w.Flush()
	for _, line := range details(rows) {
		fmt.Fprintln(out, line)
	}
	turns, disturbed := 0, 0
	for _, x := range rows {
		turns, disturbed = turns+len(x.Samples), disturbed+x.Disturbed
	}
	if disturbed > 0 {
		fmt.Fprintf(out, "the system took the processor away in %d of %d turns: an idle machine has few of them\n", disturbed, turns)
	}
	for _, s := range r.Skipped {
		if s.Case == groupOf(x.Format, x.Threads) {
			fmt.Fprintf(out, "%s: left out: %s\n", s.Op, s.Why)
		}
	}
	for _, m := range r.Missing {
		fmt.Fprintf(out, "%s: not here: %s\n", m.Engine, m.Attempts)
	}
	fmt.Fprintln(out)
}

// details says once what each engine is, and what bounded the rounds of each M.
func details(rows []row) (lines []string) {
	add := func(line string) {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	for _, x := range rows {
		if x.Detail != "" {
			add(x.Engine + ": " + x.Detail)
		}
	}
	var limits []string
	for _, x := range rows {
		if f := x.Roofline; f != nil {
			text := fmt.Sprintf("M=%d read %.1f GB/s", x.Shape["M"], f.Bandwidth/1e9)
			if f.Peak > 0 {
				text += fmt.Sprintf(" %s %.1f GFLOP/s", f.Unit, f.Peak/1e9)
			}
			if !slices.Contains(limits, text) {
				limits = append(limits, text)
			}
		}
	}
	add("limits in the same rounds: " + strings.Join(limits, ", "))
	return lines
}
