package main

import (
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/opmux/opmux/registry"
)

// warnings are what the environment and the configuration say that is not understood or names nothing known.
func warnings(r *registry.Registry) []registry.Warning {
	_, all := registry.OptionsFromEnv(os.LookupEnv)
	for _, w := range r.Snapshot().Warnings {
		if !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// printConfig writes which configuration is in force.
func printConfig(w io.Writer, st registry.ConfigStatus) {
	if st.State == "none" {
		return
	}
	fmt.Fprintf(w, "\nconfiguration: %s, %s\n", st.Path, st.State)
	if st.Error != "" {
		fmt.Fprintln(w, " ", st.Error)
	}
	if st.Strict {
		fmt.Fprintln(w, "  strict")
	}
	for _, rule := range st.Rules {
		fmt.Fprintln(w, " ", rule)
	}
	for _, f := range [][2]string{{"quarantine", st.Quarantine}, {"verdicts", st.Verdicts}} {
		if f[1] != "" {
			fmt.Fprintf(w, "  %s: %s\n", f[0], f[1])
		}
	}
	for _, n := range st.Notes {
		fmt.Fprintln(w, "  note:", n)
	}
}

// checkConfig reports the configuration, what is quarantined, and what the environment says in vain.
func checkConfig(r *registry.Registry, add func(check, level, format string, args ...any)) {
	switch st := r.ConfigStatus(); st.State {
	case "ignored":
		add("configuration", "bad", "%s is ignored: %s", st.Path, st.Error)
	case "active":
		add("configuration", "ok", "%s: %d rules", st.Path, len(st.Rules))
		for _, n := range st.Notes {
			add("configuration", "note", "%s", n)
		}
	}
	for _, q := range r.Quarantined() {
		add("quarantine", "note", "%s on %s: %s (%s)", q.Kernel, q.Device, q.Evidence, q.Source)
	}
	for _, w := range warnings(r) {
		if w.Name != "config" {
			add("environment", "note", "%v", w)
		}
	}
}
