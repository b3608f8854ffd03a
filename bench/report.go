package bench

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// columns are the head of a table. A record's cells stand in row.
var columns = []string{"case", "kernel", "median", "95 % interval", "p90", "GB/s", "GFLOP/s", "share", "of", "verified", "executed", "remark"}

// row returns a record's cells.
func (r *Record) row() []string {
	cells := []string{r.Case, r.Kernel, "-", "-", "-", "-", "-", "-", "-", r.verified(), "-", r.remark()}
	if r.Median > 0 {
		cells[2], cells[3], cells[4] = duration(r.Median), duration(r.Low)+" - "+duration(r.High), duration(r.P90)
		cells[5], cells[10] = figure(r.GBs), fmt.Sprint(r.Executed)
		if r.FLOPs > 0 {
			cells[6] = figure(r.GFLOPS)
		}
		if f := r.Roofline; f != nil {
			cells[7], cells[8] = fmt.Sprintf("%.0f %%", 100*f.Share), f.limitText()
		}
	}
	return cells
}

// limitText is the limit with its rate: "15.2 GB/s read", "770 GFLOP/s int8".
func (f *Roofline) limitText() string {
	if f.Limit == "bandwidth" {
		return figure(f.Bandwidth/1e9) + " GB/s read"
	}
	return figure(f.Peak/1e9) + " GFLOP/s " + f.Unit
}

func (r *Record) verified() string {
	switch v := r.Verified; {
	case v == nil:
		return "-"
	case v.OK:
		return "ok"
	}
	return "WRONG"
}

func (r *Record) remark() string {
	notes := r.Notes
	switch {
	case r.Error != "":
		notes = []string{"error: " + r.Error}
	case r.Declined != "":
		notes = []string{"declines: " + r.Declined}
	}
	if r.Verified != nil && !r.Verified.OK {
		notes = append([]string{"differs from " + r.Verified.Against + ": " + r.Verified.Worst}, notes...)
	}
	return strings.Join(notes, "; ")
}

// duration prints nanoseconds with three digits.
func duration(ns float64) string {
	switch {
	case ns >= 1e9:
		return figure(ns/1e9) + " s"
	case ns >= 1e6:
		return figure(ns/1e6) + " ms"
	case ns >= 1e3:
		return figure(ns/1e3) + " µs"
	}
	return figure(ns) + " ns"
}

// figure prints about three digits.
func figure(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// Text writes what was measured on what, and one table for each op.
func (r *Report) Text(w io.Writer) error {
	p := &r.Provenance
	fmt.Fprintf(w, "%s: %s, %s caches, seed %d\n", p.CPU, p.DeviceName, p.Cache, p.Seed)
	fmt.Fprintf(w, "%s %s/%s, revision %s, kernels %s\n", p.Go, p.OS, p.Arch, orNone(p.Revision), p.Digest)
	for _, l := range r.Limits {
		fmt.Fprintf(w, "limit  %s\n", l.text())
	}
	for op, list := range r.sections {
		fmt.Fprintf(w, "\n%s\n", op)
		rows := [][]string{columns}
		for _, c := range list {
			rows = append(rows, c.row())
		}
		if err := align(w, rows); err != nil {
			return err
		}
	}
	if len(r.Skipped) > 0 {
		fmt.Fprintln(w, "\nnot measured")
		rows := [][]string{{"op", "case", "why"}}
		for _, s := range r.Skipped {
			rows = append(rows, []string{s.Op, s.Case, s.Why})
		}
		if err := align(w, rows); err != nil {
			return err
		}
	}
	if r.Interrupted != "" {
		fmt.Fprintf(w, "\ninterrupted: %s\n", r.Interrupted)
	}
	return nil
}

func (l *Limit) text() string {
	if l.Name == limitRead {
		return fmt.Sprintf("memory read  %s GB/s (best %s)", figure(l.Rate/1e9), figure(l.Best/1e9))
	}
	return fmt.Sprintf("%s arithmetic  %s GFLOP/s (best %s)", l.Name, figure(l.Rate/1e9), figure(l.Best/1e9))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// sections yields the records of each op, in the order in which ops first appear.
func (r *Report) sections(yield func(op string, list []*Record) bool) {
	var order []string
	by := map[string][]*Record{}
	for i := range r.Records {
		c := &r.Records[i]
		if by[c.Op] == nil {
			order = append(order, c.Op)
		}
		by[c.Op] = append(by[c.Op], c)
	}
	for _, op := range order {
		if !yield(op, by[op]) {
			return
		}
	}
}

// align writes rows in columns.
func align(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// Markdown writes one section for each op.
func (r *Report) Markdown(w io.Writer) error {
	p := &r.Provenance
	fmt.Fprintf(w, "%s, %d threads, %s caches, seed %d; %s, revision %s, kernels %s\n", markdown(p.CPU), p.Threads, p.Cache, p.Seed, p.Go, orNone(p.Revision), p.Digest)
	for _, l := range r.Limits {
		fmt.Fprintf(w, "\n- %s\n", l.text())
	}
	line := func(cells []string) {
		for _, c := range cells {
			fmt.Fprintf(w, "| %s ", markdown(c))
		}
		fmt.Fprintln(w, "|")
	}
	for op, list := range r.sections {
		fmt.Fprintf(w, "\n## %s\n\n", op)
		line(columns)
		fmt.Fprintln(w, strings.Repeat("| --- ", len(columns))+"|")
		for _, c := range list {
			line(c.row())
		}
	}
	if len(r.Skipped) > 0 {
		fmt.Fprint(w, "\n## Not measured\n\n")
		for _, s := range r.Skipped {
			fmt.Fprintf(w, "- %s %s: %s\n", s.Op, markdown(s.Case), markdown(s.Why))
		}
	}
	if r.Interrupted != "" {
		fmt.Fprintf(w, "\nInterrupted: %s.\n", r.Interrupted)
	}
	return nil
}

// markdown keeps a text inside its cell.
func markdown(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "\r", " ", "<", "&lt;").Replace(s)
}

// CSV writes one line for each record, times in nanoseconds, rates in units of a second.
func (r *Report) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	rows := [][]string{{"op", "kernel", "provider", "format", "case", "threads", "cache", "median_ns", "low_ns", "high_ns", "p90_ns", "min_ns", "samples",
		"flops", "bytes", "gflops", "gb_s", "intensity", "share", "limit", "verified", "executed", "revision", "remark"}}
	for i := range r.Records {
		v := &r.Records[i]
		intensity, share, limit := "", "", ""
		if f := v.Roofline; f != nil {
			intensity, share, limit = number(f.Intensity), number(f.Share), f.Limit
		}
		rows = append(rows, []string{v.Op, v.Kernel, v.Provider, v.Format, v.Case, fmt.Sprint(v.Threads), v.Cache, number(v.Median), number(v.Low), number(v.High),
			number(v.P90), number(v.Min), fmt.Sprint(len(v.Samples)), number(v.FLOPs), fmt.Sprint(v.Read + v.Written), number(v.GFLOPS), number(v.GBs),
			intensity, share, limit, v.verified(), fmt.Sprint(v.Executed), r.Provenance.Revision, v.remark()})
	}
	return c.WriteAll(rows)
}

// Go writes lines as Go's benchmarks do, one for each sample, so that benchstat can compare two runs:
//
//	BenchmarkMatmulBtQuant/avx2_matmul_bt_quant/q4_0/M=1/N=4096/K=4096-2  30  123456 ns/op  76.4 GB/s  272 GFLOP/s
func (r *Report) Go(w io.Writer) error {
	p := &r.Provenance
	fmt.Fprintf(w, "goos: %s\ngoarch: %s\npkg: github.com/opmux/opmux/bench\ncpu: %s\n", p.OS, p.Arch, p.CPU)
	for i := range r.Records {
		v := &r.Records[i]
		for _, ns := range v.Samples {
			if ns <= 0 {
				continue
			}
			fmt.Fprintf(w, "Benchmark%s/%s/%s-%d\t%d\t%.6g ns/op", camel(v.Op), v.Kernel, strings.ReplaceAll(v.Case, " ", "_"), v.Threads, v.Inner, ns)
			fmt.Fprintf(w, "\t%.4g GB/s", float64(v.Read+v.Written)/ns)
			if v.FLOPs > 0 {
				fmt.Fprintf(w, "\t%.4g GFLOP/s", v.FLOPs/ns)
			}
			fmt.Fprintln(w)
		}
	}
	return nil
}

// camel turns an op's name into a part of a Go name: rms_norm is RmsNorm.
func camel(s string) string {
	var b strings.Builder
	for word := range strings.FieldsFuncSeq(s, func(c rune) bool { return c == '_' || c == '.' || c == '-' || c == '+' }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}
