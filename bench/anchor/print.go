package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// print writes the table of one group.
func (r *report) print(out io.Writer, g *measurement) {
	temperature := "cold"
	if !g.Cold {
		temperature = "warm: they fit in the last cache"
	}
	fmt.Fprintf(out, "%v, N=%d K=%d, threads: %d, copies of the weights: %d (%d MiB, %s), rounds: %d\n", g.Format, r.N, r.K, g.Threads,
		g.Copies, g.Bytes>>20, temperature, r.Rounds)
	w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "M\tengine\tms\tspread\tGB/s\tof read\tGFLOP/s\topmux/engine\tnmse\t")
	for _, x := range g.Rows {
		if x.Error != "" {
			fmt.Fprintf(w, "%d\t%s\tfailed: %s\n", x.M, x.Engine, x.Error)
			continue
		}
		ratio := ""
		switch {
		case x.Wrong:
			ratio = "WRONG"
		case x.Ratio != nil:
			ratio = fmt.Sprintf("%.2fx (%.2f-%.2f)", *x.Ratio, x.Range[0], x.Range[1])
		}
		spread := (slices.Max(x.Samples) - slices.Min(x.Samples)) / x.Seconds
		fmt.Fprintf(w, "%d\t%s\t%.3f\t%.0f %%\t%.1f\t%.0f %%\t%.1f\t%s\t%.1e\t\n", x.M, x.Engine, x.Seconds*1e3, spread*100, x.GBs,
			x.Bandwidth*100, x.GFLOPs, ratio, x.NMSE)
	}
	w.Flush()
	for _, line := range g.details() {
		fmt.Fprintln(out, line)
	}
	for _, m := range r.Missing {
		fmt.Fprintf(out, "%s: not here: %s\n", m.Engine, m.Attempts)
	}
	fmt.Fprintln(out)
}

// details says once what each engine ran, and why others did not.
func (g *measurement) details() (lines []string) {
	type key struct{ engine, detail string }
	var order []key
	rows := map[key][]string{}
	for _, x := range g.Rows {
		if x.Error != "" {
			continue
		}
		k := key{x.Engine, x.Detail}
		if rows[k] == nil {
			order = append(order, k)
		}
		rows[k] = append(rows[k], fmt.Sprint("M=", x.M))
	}
	for _, k := range order {
		lines = append(lines, fmt.Sprintf("%s, %s: %s", k.engine, strings.Join(rows[k], " "), k.detail))
	}
	var skipped []string
	for engine, why := range g.Skipped {
		skipped = append(skipped, fmt.Sprintf("%s: %s", engine, why))
	}
	slices.Sort(skipped)
	lines = append(lines, skipped...)
	var reads []string
	for _, x := range g.Rows {
		text := fmt.Sprintf("M=%d %.1f GB/s", x.M, x.Read)
		if x.Read > 0 && !slices.Contains(reads, text) {
			reads = append(reads, text)
		}
	}
	return append(lines, "read, in the same rounds: "+strings.Join(reads, ", "))
}

// lastCache returns the bytes of the largest cache of the first processor; 0 is unknown.
func lastCache() (size int64) {
	files, _ := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index*/size")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		text := strings.TrimSpace(string(b))
		unit := int64(1)
		if t, ok := strings.CutSuffix(text, "K"); ok {
			text, unit = t, 1<<10
		} else if t, ok := strings.CutSuffix(text, "M"); ok {
			text, unit = t, 1<<20
		}
		n, _ := strconv.ParseInt(text, 10, 40)
		size = max(size, n*unit)
	}
	return size
}

// memoryInfo returns the machine's bytes of memory and those that are free; 0 is unknown.
func memoryInfo() (total, free int64) {
	b, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(b)) {
		var kb int64
		name, rest, _ := strings.Cut(line, ":")
		_, err := fmt.Sscan(rest, &kb)
		switch {
		case err != nil:
		case name == "MemTotal":
			total = kb << 10
		case name == "MemAvailable":
			free = kb << 10
		}
	}
	return total, free
}
