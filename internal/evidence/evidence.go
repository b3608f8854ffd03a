// Package evidence is the record of what a test run saw a provider do. Test runs write it as JSON; the status table of the
// README is generated from it and from nothing else.
package evidence

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opmux/opmux/registry"
)

// Count is what happened to the launches of one op.
type Count struct {
	Executed uint64 `json:"executed"`
	Declined uint64 `json:"declined"`
	Failed   uint64 `json:"failed"`
}

// Record is one provider on one machine in one run.
type Record struct {
	Provider string           `json:"provider"`
	Device   string           `json:"device"`
	Machine  string           `json:"machine"`
	Platform string           `json:"platform"` // GOOS/GOARCH, and how it was run if not natively
	Date     string           `json:"date"`
	Commit   string           `json:"commit"`
	Run      string           `json:"run"` // the command
	Ops      map[string]Count `json:"ops"`
}

// Collect makes a record for each provider that executed something in r. run is the command that was used.
func Collect(r *registry.Registry, run, how string) []Record {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	if how != "" {
		platform += " (" + how + ")"
	}
	byName := map[string]*Record{}
	for _, e := range r.Snapshot().Ops {
		for _, s := range slices.Concat(e.Chain, e.Dropped) {
			c := Count{Executed: s.Counts.Executed, Failed: s.Counts.Failed}
			for _, n := range s.Counts.Declined {
				c.Declined += n
			}
			if c.Executed+c.Failed == 0 {
				continue
			}
			rec := byName[s.Provider]
			if rec == nil {
				rec = &Record{Provider: s.Provider, Device: e.Device, Machine: machine(), Platform: platform,
					Date: time.Now().UTC().Format(time.DateOnly), Commit: commit(), Run: run, Ops: map[string]Count{}}
				byName[s.Provider] = rec
			}
			rec.Ops[e.Op] = c
		}
	}
	var out []Record
	for _, rec := range byName {
		out = append(out, *rec)
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.Provider, b.Provider) })
	return out
}

// Write stores each record as dir/provider-os-arch.json.
func Write(dir string, records []Record) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, r := range records {
		b, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%s-%s-%s.json", r.Provider, runtime.GOOS, runtime.GOARCH)
		if err := os.WriteFile(filepath.Join(dir, name), append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Read loads every record of dir, sorted by file name.
func Read(dir string) ([]Record, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var out []Record
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			return nil, err
		}
		var r Record
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// Table is the status table in Markdown: never more than the records say.
func Table(records []Record) string {
	var b strings.Builder
	b.WriteString("| provider | device | ops that ran | launches | failed | seen on |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, r := range records {
		var ops []string
		var executed, failed uint64
		for name, c := range r.Ops {
			executed, failed = executed+c.Executed, failed+c.Failed
			if c.Executed > 0 {
				ops = append(ops, name)
			}
		}
		slices.Sort(ops)
		fmt.Fprintf(&b, "| `%s` | %s | %d: %s | %d | %d | %s, %s, %s, commit %s |\n", r.Provider, r.Device, len(ops),
			strings.Join(ops, " "), executed, failed, r.Machine, r.Platform, r.Date, r.Commit)
	}
	return b.String()
}

func machine() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown " + runtime.GOARCH + " CPU"
}

func commit() string {
	b, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
