package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

type explainCmd struct {
	Op     string `arg:"" optional:"" help:"Name of an op; without one every op with a kernel is listed."`
	Device string `default:"cpu:0" help:"Device, as kind:index."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

// Run prints the chain of one op or of all.
func (c *explainCmd) Run(a *app) error {
	dev, err := tensor.ParseDevice(c.Device)
	if err != nil {
		return usage{err}
	}
	d, err := a.openCPU(0)
	if err != nil {
		return err
	}
	defer d.Close()
	r := registry.Default()
	if c.Op != "" {
		op, ok := r.Lookup(c.Op)
		if !ok {
			return fmt.Errorf("%q: %w", c.Op, registry.ErrUnknownOp)
		}
		e := r.Explain(op, dev)
		if !known(r, dev) {
			return fmt.Errorf("%v: %w", dev, registry.ErrUnknownDevice)
		}
		if c.JSON {
			return a.printJSON(e)
		}
		_, err := fmt.Fprintln(a.stdout, e)
		return err
	}
	if !known(r, dev) {
		return fmt.Errorf("%v: %w", dev, registry.ErrUnknownDevice)
	}
	var all []registry.Explanation
	for _, e := range r.Snapshot().Ops {
		if e.Device == dev.String() {
			all = append(all, e)
		}
	}
	if c.JSON {
		return a.printJSON(all)
	}
	rows := [][]string{{"op", "kernels, best first", "not used"}}
	for _, e := range all {
		chain, dropped := "", ""
		for _, s := range e.Chain {
			chain += s.Provider + " "
		}
		for _, s := range e.Dropped {
			dropped += s.Provider + " (" + s.State + ") "
		}
		rows = append(rows, []string{e.Op, chain, dropped})
	}
	return table(a.stdout, rows)
}

type envCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// Run prints the environment table.
func (c *envCmd) Run(a *app) error {
	vars := registry.EnvTable(os.LookupEnv)
	_, warnings := registry.OptionsFromEnv(os.LookupEnv)
	threads, why := threadFacts()
	if c.JSON {
		return a.printJSON(map[string]any{"variables": vars, "warnings": warnings, "threads": threads, "threads_because": why})
	}
	rows := [][]string{{"variable", "value", "from", "meaning"}}
	for _, v := range vars {
		rows = append(rows, []string{v.Name, v.Value, v.Source, v.Meaning})
	}
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "\nthreads: %d\n", threads)
	for _, w := range why {
		fmt.Fprintln(a.stdout, " ", w)
	}
	for _, w := range warnings {
		fmt.Fprintln(a.stdout, "warning:", w)
	}
	return nil
}

// known reports whether dev was opened in this process.
func known(r *registry.Registry, dev tensor.Device) bool { return slices.Contains(r.Devices(), dev) }
