package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/opmux/opmux/registry"
)

// printJSON writes v as indented JSON.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table writes rows of cells in columns; the first row is the head.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		for _, c := range r {
			fmt.Fprint(t, c, "\t")
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// kernelUse is what one kernel did.
type kernelUse struct {
	Op       string `json:"op"`
	Device   string `json:"device"`
	Kernel   string `json:"kernel"`
	Provider string `json:"provider"`
	Tier     string `json:"tier"`
	Priority int32  `json:"priority"`
	Executed uint64 `json:"executed"`
	Declined uint64 `json:"declined"`
	Failed   uint64 `json:"failed"`
}

// used lists the kernels of r that were tried at least once, in the order of the catalogue and of their chains.
func used(r *registry.Registry) []kernelUse {
	out := []kernelUse{}
	for _, e := range r.Snapshot().Ops {
		for _, s := range append(append([]registry.Step{}, e.Chain...), e.Dropped...) {
			k := kernelUse{Op: e.Op, Device: e.Device, Kernel: s.Kernel, Provider: s.Provider, Tier: s.Tier, Priority: s.Priority,
				Executed: s.Counts.Executed, Failed: s.Counts.Failed}
			for reason, n := range s.Counts.Declined {
				if reason != registry.ReasonForwarded.String() && reason != registry.ReasonDomain.String() { // no fallbacks
					k.Declined += n
				}
			}
			if k.Executed+k.Declined+k.Failed > 0 {
				out = append(out, k)
			}
		}
	}
	return out
}

func usedTable(w io.Writer, use []kernelUse) error {
	rows := [][]string{{"op", "device", "kernel", "provider", "tier", "executed", "declined", "failed"}}
	for _, k := range use {
		rows = append(rows, []string{k.Op, k.Device, k.Kernel, k.Provider, k.Tier, fmt.Sprint(k.Executed), fmt.Sprint(k.Declined), fmt.Sprint(k.Failed)})
	}
	return table(w, rows)
}
