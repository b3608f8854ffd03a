package main

import (
	"strings"

	"github.com/opmux/opmux/registry"
)

type opsCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

type opInfo struct {
	registry.Descriptor
	Kernels map[string][]string `json:"kernels"` // by device, best first
}

// Run lists the catalogue.
func (c *opsCmd) Run(a *app) error {
	d, err := a.openCPU(0)
	if err != nil {
		return err
	}
	defer d.Close()
	r := registry.Default()
	kernels, providers := map[string]map[string][]string{}, map[string][]string{}
	for _, e := range r.Snapshot().Ops {
		for _, s := range e.Chain {
			if kernels[e.Op] == nil {
				kernels[e.Op] = map[string][]string{}
			}
			kernels[e.Op][e.Device] = append(kernels[e.Op][e.Device], s.Kernel)
			if e.Device == d.ID().String() {
				providers[e.Op] = append(providers[e.Op], s.Provider)
			}
		}
	}
	all := []opInfo{}
	rows := [][]string{{"op", "kernels on " + d.ID().String(), "operands"}}
	for _, desc := range r.Descriptors() {
		if kernels[desc.Name] == nil {
			kernels[desc.Name] = map[string][]string{}
		}
		all = append(all, opInfo{desc, kernels[desc.Name]})
		var operands []string
		for _, o := range desc.Operands {
			s := o.Name + "[" + o.Shape + "]"
			if o.Optional {
				s += "?"
			}
			operands = append(operands, s)
		}
		rows = append(rows, []string{desc.Name, strings.Join(providers[desc.Name], " "), strings.Join(operands, " ")})
	}
	if c.JSON {
		return a.printJSON(all)
	}
	return table(a.stdout, rows)
}
