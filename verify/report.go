package verify

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/opmux/opmux/ops/sample"
)

// Verdict is what came out for one kernel.
type Verdict string

// Verdicts. Only Failed, NeverRan and Missing make a report fail; under Options.Strict Unusable does too, and signatures
// and cases that were not verified, and declines that the kernel's description does not explain.
const (
	Passed   Verdict = "ok"
	Failed   Verdict = "failed"
	NeverRan Verdict = "never ran"          // it declined every case, though nothing that it declares leaves them out
	Outside  Verdict = "outside its domain" // every case lies outside of what the kernel declares to take
	Unusable Verdict = "not usable"         // this device or the configuration leaves it out of the chain
	Missing  Verdict = "no reference"       // nothing to hold it against
)

// Report is the result of a run. Nothing in it depends on the order or the speed of things, so two runs of one build with
// one seed give the same JSON.
type Report struct {
	Version    int            `json:"version"`
	OK         bool           `json:"ok"`
	Level      string         `json:"level"`
	Seed       uint64         `json:"seed"`
	Strict     bool           `json:"strict,omitempty"`
	Device     string         `json:"device"`
	DeviceName string         `json:"device_name"`
	Threads    []int          `json:"threads,omitempty"` // with which results were compared, besides the device's own
	Build      Build          `json:"build"`
	Digest     string         `json:"digest"` // of the registry's kernels
	Total      Counts         `json:"total"`
	Ops        int            `json:"ops"`
	Kernels    []KernelReport `json:"kernels"`            // by op, then as in the chain
	Unserved   []string       `json:"unserved,omitempty"` // cases, as "op: case", that the reference declines or that cannot be made
	// Interrupted says that the run was ended before its last kernel: Kernels are those that were finished, and OK is false.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Build says what was run.
type Build struct {
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Revision string `json:"revision,omitempty"` // of the source, "+" behind it if that had been changed
}

// Counts counts cases.
type Counts struct {
	Cases    int `json:"cases"`
	Executed int `json:"executed"` // within tolerance or not
	Empty    int `json:"empty"`    // without an element to write, so that no kernel is called
	Rejected int `json:"rejected"` // bad data that the kernel refused as it must
	Declined int `json:"declined"`
	Failures int `json:"failures"` // failed checks; one case may fail several
}

func (c *Counts) add(o Counts) {
	c.Cases += o.Cases
	c.Executed += o.Executed
	c.Empty += o.Empty
	c.Rejected += o.Rejected
	c.Declined += o.Declined
	c.Failures += o.Failures
}

// KernelReport is the result of one kernel of one op.
type KernelReport struct {
	Op       string  `json:"op"`
	Kernel   string  `json:"kernel"`
	Provider string  `json:"provider"`
	Verdict  Verdict `json:"verdict"`
	Detail   string  `json:"detail,omitempty"`
	Counts
	Declines map[string]int `json:"declines,omitempty"` // by reason
	Checks   map[string]int `json:"checks,omitempty"`   // how often each check was made
	// Unexplained counts, by reason, the declines of calls that the kernel's description does not leave out, other than for
	// values (numerics), and FirstUnexplained names the first such case.
	Unexplained      map[string]int `json:"unexplained,omitempty"`
	FirstUnexplained string         `json:"first_unexplained,omitempty"`
	// Signatures counts those of the kernel's description, and Unverified lists the ones of which no call was executed.
	Signatures int      `json:"signatures,omitempty"`
	Unverified []string `json:"unverified,omitempty"`
	// Closest is the comparison that came closest to its bound.
	Closest  *Closest  `json:"closest,omitempty"`
	Failures []Failure `json:"first_failures,omitempty"`
}

// Closest names a comparison.
type Closest struct {
	Case   string        `json:"case"`
	Result sample.Result `json:"result"`
}

// Failure is one failed check.
type Failure struct {
	Check   string          `json:"check"`
	Case    sample.Case     `json:"case"`
	Detail  string          `json:"detail"`
	Results []sample.Result `json:"results,omitempty"`
	Shrunk  *Shrunk         `json:"shrunk,omitempty"`
}

// Shrunk is the smallest extents found at which the check still fails.
type Shrunk struct {
	Shape  sample.Shape `json:"shape"`
	Detail string       `json:"detail"`
	Tries  int          `json:"tries"`
}

// WriteText prints the report as a table, then the failures.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "verify %s on %s (%s), seed %d, %s %s/%s", r.Level, r.Device, r.DeviceName, r.Seed, r.Build.Go, r.Build.OS, r.Build.Arch)
	if r.Build.Revision != "" {
		fmt.Fprintf(&b, ", revision %s", r.Build.Revision)
	}
	if len(r.Threads) > 0 {
		fmt.Fprintf(&b, ", also with %v threads", r.Threads)
	}
	b.WriteString("\n\n")
	rows := [][]string{{"op", "kernel", "verdict", "cases", "executed", "empty", "rejected", "declined", "failed", "closest"}}
	for _, k := range r.Kernels {
		closest := ""
		if k.Closest != nil && k.Closest.Result.Worst.Share > 0 {
			closest = fmt.Sprintf("%.2g of bound (%s)", float64(k.Closest.Result.Worst.Share), k.Closest.Case)
		}
		rows = append(rows, []string{k.Op, k.Kernel, string(k.Verdict), fmt.Sprint(k.Cases), fmt.Sprint(k.Executed), fmt.Sprint(k.Empty), fmt.Sprint(k.Rejected),
			fmt.Sprint(k.Declined), fmt.Sprint(k.Counts.Failures), closest})
	}
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			switch {
			case i == len(row)-1:
				b.WriteString(cell)
			case i > 2:
				fmt.Fprintf(&b, "%*s  ", width[i], cell)
			default:
				fmt.Fprintf(&b, "%-*s  ", width[i], cell)
			}
		}
		b.WriteByte('\n')
	}
	for _, k := range r.Kernels {
		if k.Detail != "" {
			fmt.Fprintf(&b, "\n%s: %s: %s\n", k.Kernel, k.Verdict, k.Detail)
		}
		if k.Verdict == NeverRan {
			for _, reason := range slices.Sorted(maps.Keys(k.Declines)) {
				fmt.Fprintf(&b, "\n%s: declined %d cases: %s\n", k.Kernel, k.Declines[reason], reason)
			}
		}
		for _, reason := range slices.Sorted(maps.Keys(k.Unexplained)) {
			fmt.Fprintf(&b, "\n%s: declined %d cases that its description does not leave out: %s (%s)\n", k.Kernel, k.Unexplained[reason], reason, k.FirstUnexplained)
		}
		if len(k.Unverified) > 0 && k.Verdict != Unusable {
			fmt.Fprintf(&b, "\n%s: no call of %d of its %d signatures ran: %s\n", k.Kernel, len(k.Unverified), k.Signatures, strings.Join(k.Unverified, "; "))
		}
		for _, f := range k.Failures {
			fmt.Fprintf(&b, "\n%s: %s: case %s: %s\n", k.Kernel, f.Check, f.Case.Name, f.Detail)
			if f.Shrunk != nil {
				fmt.Fprintf(&b, "  still fails with %v: %s\n", f.Shrunk.Shape, f.Shrunk.Detail)
			}
		}
	}
	for _, c := range r.Unserved {
		fmt.Fprintf(&b, "\nnot served: %s\n", c)
	}
	word := "passed"
	if !r.OK {
		word = "FAILED"
	}
	if r.Interrupted {
		word = "INTERRUPTED before the last kernel"
	}
	t := r.Total
	fmt.Fprintf(&b, "\n%s: %d ops, %d kernels, %d cases: %d executed, %d empty, %d rejected as they must, %d declined, %d failures\n",
		word, r.Ops, len(r.Kernels), t.Cases, t.Executed, t.Empty, t.Rejected, t.Declined, t.Failures)
	_, err := io.WriteString(w, b.String())
	return err
}
