package main

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opmux/opmux/internal/opinfo"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

type opsCmd struct {
	Op   string `arg:"" optional:"" name:"op" help:"Ops by name, alias, family or family.mode; a glob. One op is shown in full."`
	JSON bool   `name:"json" help:"Print JSON."`
}

type opInfo struct {
	registry.Descriptor
	Operands   []operandInfo       `json:"operands"`
	Attributes []opinfo.Attribute  `json:"attributes,omitempty"`
	Kernels    map[string][]string `json:"kernels"` // by device, best first

	providers []string
}

type operandInfo struct {
	registry.Operand
	Use    string         `json:"use"`              // the role in words: in, out, inout
	DTypes []tensor.DType `json:"dtypes"`           // what the dtype's words stand for; those of the operand that it is like
	Shares string         `json:"shares,omitempty"` // the input whose memory an output may have
}

// Run lists the catalogue.
func (c *opsCmd) Run(a *app) error {
	if _, err := path.Match(c.Op, ""); err != nil {
		return usage{fmt.Errorf("pattern %q: %w", c.Op, err)}
	}
	d, err := a.openCPU(0)
	if err != nil {
		return err
	}
	defer d.Close()
	r := registry.Default()
	all := []opInfo{}
	for _, desc := range r.Descriptors() {
		if c.wants(desc) {
			all = append(all, opInfo{Descriptor: desc, Operands: operandsOf(desc), Attributes: attributesOf(desc), Kernels: map[string][]string{}})
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("%q: %w", c.Op, registry.ErrUnknownOp)
	}
	index := map[string]*opInfo{}
	for i := range all {
		index[all[i].Name] = &all[i]
	}
	for _, e := range r.Snapshot().Ops {
		o := index[e.Op]
		if o == nil {
			continue
		}
		for _, s := range e.Chain {
			o.Kernels[e.Device] = append(o.Kernels[e.Device], s.Kernel)
			if e.Device == d.ID().String() {
				o.providers = append(o.providers, s.Provider)
			}
		}
	}
	switch {
	case c.JSON:
		return a.printJSON(all)
	case len(all) == 1:
		return a.printOp(&all[0])
	}
	return a.printOps(all, d.ID().String())
}

// wants reports whether the pattern covers an op.
func (c *opsCmd) wants(d registry.Descriptor) bool {
	names := append([]string{d.Name, d.Family, d.Family + "." + d.Mode}, d.Aliases...)
	return c.Op == "" || slices.ContainsFunc(names, func(n string) bool {
		ok, _ := path.Match(c.Op, n)
		return ok
	})
}

func operandsOf(d registry.Descriptor) []operandInfo {
	shares := sample.Shares(d)
	list := []operandInfo{}
	for i := range d.Operands {
		o := operandInfo{Operand: d.Operands[i], Use: d.Operands[i].Role.String(), Shares: shares[d.Operands[i].Name]}
		like := &d.Operands[i]
		for range d.Operands { // a chain of likes is no longer than that
			name, ok := strings.CutPrefix(like.DType, "like ")
			at := slices.IndexFunc(d.Operands, func(o registry.Operand) bool { return o.Name == name })
			if !ok || at < 0 {
				break
			}
			like = &d.Operands[at]
		}
		o.DTypes, _ = sample.DTypes(like) // the descriptor's tags were read before
		list = append(list, o)
	}
	return list
}

func attributesOf(d registry.Descriptor) []opinfo.Attribute {
	if d.Record == nil {
		return nil
	}
	return opinfo.Attributes(d.Record)
}

// printOps prints a table for each family.
func (a *app) printOps(all []opInfo, device string) error {
	families := map[string][]opInfo{}
	for _, o := range all {
		families[o.Family] = append(families[o.Family], o)
	}
	for i, family := range slices.Sorted(maps.Keys(families)) {
		if i > 0 {
			if _, err := fmt.Fprintln(a.stdout); err != nil {
				return err
			}
		}
		rows := [][]string{{family, "kernels on " + device, "operands"}}
		for _, o := range families[family] {
			var operands []string
			for _, x := range o.Operands {
				operands = append(operands, x.short())
			}
			rows = append(rows, []string{o.Name, strings.Join(o.providers, " "), strings.Join(operands, " ")})
		}
		if err := table(a.stdout, rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(a.stdout, "\n%d ops; opmux ops NAME shows one in full\n", len(all))
	return err
}

func (o *operandInfo) short() string {
	s := o.Name + "[" + o.Shape + "]"
	if o.Optional {
		s += "?"
	}
	return s
}

// printOp prints one op.
func (a *app) printOp(o *opInfo) error {
	_, err := fmt.Fprintf(a.stdout, "%s (op %d), %s.%s: %s\n", o.Name, o.Op, o.Family, o.Mode, o.Doc)
	if len(o.Aliases) > 0 {
		_, err2 := fmt.Fprintf(a.stdout, "also %s\n", strings.Join(o.Aliases, ", "))
		err = errors.Join(err, err2)
	}
	rows := [][]string{{"operand", "role", "shape", "layout", "dtypes"}}
	for _, x := range o.Operands {
		role := x.Use
		if x.Optional {
			role += " opt"
		}
		if x.Shares != "" {
			role += ", may be " + x.Shares
		}
		dtypes := fmt.Sprint(x.DTypes)
		rows = append(rows, []string{x.Name, role, x.Shape, x.Layout, strings.Trim(dtypes, "[]")})
	}
	err = errors.Join(err, a.section(rows))
	if len(o.Attributes) > 0 {
		rows = [][]string{{"attribute", "type"}}
		for _, x := range o.Attributes {
			t := x.Type
			if x.Words != nil {
				t += ": " + strings.Join(x.Words, " ")
			}
			rows = append(rows, []string{x.Name, t})
		}
		err = errors.Join(err, a.section(rows))
	}
	rows = [][]string{{"device", "kernels, best first"}}
	for _, d := range slices.Sorted(maps.Keys(o.Kernels)) {
		rows = append(rows, []string{d, strings.Join(o.Kernels[d], " ")})
	}
	return errors.Join(err, a.section(rows))
}

func (a *app) section(rows [][]string) error {
	_, err := fmt.Fprintln(a.stdout)
	return errors.Join(err, table(a.stdout, rows))
}
