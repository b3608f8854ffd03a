package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

type doctorCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// finding is the result of one check. Level is ok, note (worth knowing) or bad.
type finding struct {
	Check  string `json:"check"`
	Level  string `json:"level"`
	Detail string `json:"detail"`
}

// Run checks the machine; it fails if a check is bad.
func (c *doctorCmd) Run(a *app) error {
	d, err := a.openCPU(0)
	if err != nil {
		return err
	}
	defer d.Close()
	r := registry.Default()
	out := []finding{{"build", "ok", fmt.Sprintf("%s, %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)}}
	add := func(check, level, format string, args ...any) {
		out = append(out, finding{check, level, fmt.Sprintf(format, args...)})
	}
	if err := r.Warm(a.ctx, d); err != nil {
		add("self-tests", "bad", "%v", err)
	} else {
		add("self-tests", "ok", "every kernel that heads a chain gave the known answer")
	}
	tiers(r, d.ID(), add)
	for _, desc := range registry.Descriptors() {
		if !r.OpRegistered(desc.Op, d.ID()) && len(r.Explain(desc.Op, d.ID()).Chain) == 0 {
			add("ops", "bad", "%s has no kernel on %v", desc.Name, d.ID())
		}
	}
	for _, tie := range r.Ties() {
		add("order", "note", "%v", tie)
	}
	n, why := threadFacts()
	add("threads", "ok", "%d: %s", n, strings.Join(why, "; "))
	m := d.Caps().Memory
	add("memory", "ok", "%.1f GiB, %.1f GiB available", float64(m.Total)/(1<<30), float64(m.Available)/(1<<30))
	if b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); err == nil {
		if strings.Contains(string(b), "[never]") {
			add("huge pages", "note", "off: decoding is slower; 'madvise' in /sys/kernel/mm/transparent_hugepage/enabled turns them on")
		} else {
			add("huge pages", "ok", "%s", strings.TrimSpace(string(b)))
		}
	}
	checkConfig(r, add)
	if f, err := gguf.Parse(defaultModel); err != nil {
		add("embedded model", "bad", "%v", err)
	} else {
		name, _ := f.String("general.name")
		add("embedded model", "ok", "%s, %d tensors, %d bytes", name, len(f.Tensors()), len(defaultModel))
	}
	if c.JSON {
		err = a.printJSON(out)
	} else {
		rows := [][]string{}
		for _, f := range out {
			rows = append(rows, []string{f.Level, f.Check, f.Detail})
		}
		err = table(a.stdout, rows)
	}
	for _, f := range out {
		if f.Level == "bad" {
			err = errors.Join(err, fmt.Errorf("%s: %s", f.Check, f.Detail))
		}
	}
	return err
}

// tiers reports every provider of the quantised matmul, the op that has them all.
func tiers(r *registry.Registry, dev tensor.Device, add func(check, level, format string, args ...any)) {
	op, ok := r.Lookup("matmul_bt_quant")
	if !ok {
		return
	}
	e := r.Explain(op, dev)
	for _, s := range e.Chain {
		add("tier", "ok", "%s (priority %d)", s.Provider, s.Priority)
	}
	for _, s := range e.Dropped {
		add("tier", "note", "%s is not used: %s %s", s.Provider, s.State, s.Detail)
	}
}
