package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

type explainCmd struct {
	Op        string   `arg:"" optional:"" help:"An op, or an operator as FAMILY.MODE; without one every op with a kernel is listed."`
	Device    string   `default:"cpu:0" help:"Device of this machine, as kind:index."`
	Platform  string   `placeholder:"FILE" help:"Explain for the machine that FILE describes (docs/platforms has some) in place of a device of this one."`
	Specs     []string `placeholder:"FILE" sep:"none" help:"Add the kernels that FILE describes; may be given again."`
	Sig       string   `placeholder:"ROLE=FORMAT,..." help:"Formats of the operands: a=bf16,b=q4_0. Without it every op of the operator is listed with what may serve, and nothing is selected."`
	Trait     []string `placeholder:"NAME=VALUE" sep:"none" help:"A property of the calls: head_dim=128; several values (1,16,64) want a kernel that takes each, any one that takes all. May be given again."`
	Feature   []string `placeholder:"NAME" sep:"none" help:"A feature that the kernel must have; may be given again."`
	Objective string   `default:"default" help:"What counts: default, latency, throughput, portability, determinism, batch_invariant or debug."`
	Solution  string   `placeholder:"NAME" help:"Only kernels of this provider."`
	Override  string   `placeholder:"TARGET" help:"What OPMUX_OVERRIDE would say: kernel:NAME, solution:NAME, !NAME, force:NAME."`
	Verbose   bool     `short:"v" help:"For a device's op: also counters, and where each kernel was registered."`
	JSON      bool     `name:"json" help:"Print JSON: with --sig one decision, else a list; for a device's op without a request its chain."`
}

// asks reports whether the flags make a request, which goes beyond the chain of a device.
func (c *explainCmd) asks() bool {
	return c.Platform != "" || len(c.Specs) > 0 || c.Sig != "" || len(c.Trait) > 0 || len(c.Feature) > 0 || c.Objective != "default" || c.Solution != "" || c.Override != ""
}

// Run prints the chain of an op, or the decision on a request.
func (c *explainCmd) Run(a *app) error {
	req := registry.Request{Solution: c.Solution, Override: c.Override, Features: c.Feature}
	var err error
	if req.Device, err = tensor.ParseDevice(c.Device); err != nil {
		return usage{err}
	}
	if req.Objective, err = registry.ParseObjective(c.Objective); err != nil {
		return usage{err}
	}
	if c.Sig != "" {
		if req.Signature, err = tensor.ParseSignature(c.Sig); err != nil {
			return fmt.Errorf("--sig: %w", err)
		}
	}
	if c.Platform != "" {
		if req.Platform, err = device.ReadPlatform(c.Platform); err != nil {
			return err
		}
		req.Platform.Name = cell.Replace(req.Platform.Name) // free text, which is printed in a line
	}
	r, closeDevice, err := c.open(a)
	if err != nil {
		return err
	}
	defer closeDevice()
	if here := present(r); c.Platform == "" && !slices.Contains(here, req.Device) {
		return fmt.Errorf("%v is not among the devices of this machine, %v: %w", req.Device, here, registry.ErrUnknownDevice)
	}
	if err := c.known(r); err != nil {
		return err
	}
	switch op, own := r.Lookup(c.Op); {
	case c.asks():
		return c.decide(a, r, req)
	case c.Op == "":
		return c.list(a, r, req.Device)
	case own:
		return c.chain(a, r, op, req.Device)
	default:
		return c.decide(a, r, req)
	}
}

// open returns the default registry, or, with --specs, one with the same kernels and those of the files; and opens the
// CPU for it unless another machine is asked about. It prints what the environment got wrong.
func (c *explainCmd) open(a *app) (r *registry.Registry, closeDevice func(), err error) {
	if len(c.Specs) == 0 && c.Platform == "" {
		d, err := a.openCPU(0)
		if err != nil {
			return nil, nil, err
		}
		return registry.Default(), func() { d.Close() }, nil
	}
	r, closeDevice = registry.Default(), func() {}
	if len(c.Specs) > 0 {
		options, _ := registry.OptionsFromEnv(os.LookupEnv)
		r = registry.New(options)
		if err := cpu.Register(r); err != nil {
			return nil, nil, err
		}
		for _, path := range c.Specs {
			if err := loadSpecs(r, path); err != nil {
				return nil, nil, err
			}
		}
		if c.Platform == "" {
			d, err := cpu.Open(cpu.Options{Threads: options.Threads, Registry: r})
			if err != nil {
				return nil, nil, err
			}
			closeDevice = func() { d.Close() }
		}
	}
	for _, w := range warnings(r) {
		a.warn("%v", w)
	}
	return r, closeDevice, nil
}

// known wants the provider, the features and the overriding kernel that the flags name to be those of some kernel.
func (c *explainCmd) known(r *registry.Registry) error {
	solutions, features := map[string]bool{registry.ReferenceProviderName: true}, map[string]bool{}
	targets := map[string]bool{}
	for _, name := range r.ListKernels("", "") {
		s, err := r.DescribeKernel(name)
		if err != nil {
			return err
		}
		solutions[s.Solution], targets[s.Solution], targets[name] = true, true, true
		for _, f := range s.Features {
			features[f] = true
		}
	}
	unknown := func(flag, name string, among map[string]bool) error {
		if len(among) == 0 {
			return fmt.Errorf("--%s %s: %w; no kernel declares any", flag, name, errUnknown)
		}
		return fmt.Errorf("--%s %s: %w; there are %s", flag, name, errUnknown, strings.Join(slices.Sorted(maps.Keys(among)), ", "))
	}
	if c.Solution != "" && !solutions[c.Solution] {
		return unknown("solution", c.Solution, solutions)
	}
	for _, f := range c.Feature {
		if !features[f] {
			return unknown("feature", f, features)
		}
	}
	if t, err := registry.ParseTarget(c.Override); c.Override != "" && err == nil && !targets[t.Name] && t.Name != registry.ReferenceProviderName {
		return fmt.Errorf("--override %s: %w; 'opmux explain OP' lists the kernels of an op", c.Override, errUnknown)
	}
	return nil
}

// link is a kernel of a chain with what it takes and wants of a call, where it declares that.
type link struct {
	registry.Step
	Signatures []string `json:"signatures,omitempty"`
	Restricts  []string `json:"restricts,omitempty"`
}

// chained is an Explanation whose steps are links.
type chained struct {
	registry.Explanation
	Chain   []link `json:"chain"`
	Dropped []link `json:"dropped,omitempty"`
}

// chain prints the chain of an op on a device. One without a kernel is an error.
func (c *explainCmd) chain(a *app, r *registry.Registry, op registry.Op, dev tensor.Device) error {
	e := chained{Explanation: r.Explain(op, dev), Chain: []link{}}
	declared := map[string]registry.Choice{}
	for _, k := range r.Decide(registry.Request{Operator: r.OpName(op), Device: dev}).Choices {
		declared[k.Kernel] = k
	}
	links := func(steps []registry.Step) (out []link) {
		for _, s := range steps {
			out = append(out, link{s, declared[s.Kernel].Signatures, declared[s.Kernel].Restricts})
		}
		return out
	}
	e.Chain, e.Dropped = append(e.Chain, links(e.Explanation.Chain)...), links(e.Explanation.Dropped)
	var none error
	if len(e.Chain) == 0 {
		none = fmt.Errorf("%s on %v: %w can run", e.Op, dev, ops.ErrNoKernel)
		if e.Error == "" {
			e.Error = none.Error()
		}
	}
	if c.JSON {
		return errors.Join(a.printJSON(e), none)
	}
	rest := e.Explanation
	rest.Chain, rest.Dropped = nil, nil
	head, tail, _ := strings.Cut(rest.String(), "\n")
	fmt.Fprintln(a.stdout, head)
	for i, l := range e.Chain {
		c.link(a, fmt.Sprintf("%d.", i+1), l)
	}
	for _, l := range e.Dropped {
		c.link(a, "-", l)
	}
	if none != nil {
		fmt.Fprintln(a.stdout, "  no kernel")
	}
	_, err := fmt.Fprint(a.stdout, tail)
	return errors.Join(err, none)
}

// maxTakes bounds the signatures of one kernel that are printed.
const maxTakes = 6

func (c *explainCmd) link(a *app, mark string, l link) {
	if c.Verbose {
		fmt.Fprintf(a.stdout, "  %-3s %v\n", mark, l.Step)
	} else {
		fmt.Fprintf(a.stdout, "  %-3s %s  provider %s, tier %s, priority %d, %s\n", mark, l.Kernel, l.Provider, l.Tier, l.Priority, l.State)
		if l.Detail != "" {
			fmt.Fprintf(a.stdout, "        %s\n", l.Detail)
		}
	}
	for i, s := range l.Signatures {
		if i == maxTakes {
			fmt.Fprintf(a.stdout, "        takes %d more\n", len(l.Signatures)-i)
			break
		}
		fmt.Fprintf(a.stdout, "        takes %s\n", s)
	}
	for _, s := range l.Restricts {
		fmt.Fprintf(a.stdout, "        wants %s\n", s)
	}
}

func loadSpecs(r *registry.Registry, path string) error {
	if err := regular(path, registry.ErrSpec); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = r.LoadSpecs(f, "file:"+path)
	return err
}

// decide prints the decision on the request, or, without a signature, one for each op. A request that nothing can serve is
// an error; a list of what there is, with neither signature nor traits, is an answer also where nothing is.
func (c *explainCmd) decide(a *app, r *registry.Registry, req registry.Request) error {
	list := []*registry.Decision{}
	var failed error // of decisions that are none the less worth printing
	switch {
	case c.Op == "" && c.Sig != "":
		return usagef("--sig needs an op")
	case c.Op == "":
		for _, op := range r.Descriptors() {
			d, err := c.one(r, req, op.Name)
			if err != nil {
				continue // an op without a trait that was asked for
			}
			if len(d.Choices) > 0 {
				list = append(list, d)
			}
		}
	case c.Sig != "":
		d, err := c.one(r, req, c.Op)
		if d == nil {
			return err
		}
		if err == nil {
			err = nobody([]*registry.Decision{d}, c.Op)
		}
		if c.JSON {
			return errors.Join(a.printJSON(d), err)
		}
		_, printErr := fmt.Fprint(a.stdout, d)
		return errors.Join(printErr, err)
	default:
		covered, err := r.Covered(c.Op)
		if err != nil {
			return err
		}
		for _, op := range covered {
			d, err := c.one(r, req, r.OpName(op))
			if d == nil {
				return err
			}
			list, failed = append(list, d), errors.Join(failed, err)
		}
		if failed == nil && len(c.Trait) > 0 {
			failed = nobody(list, c.Op)
		}
	}
	return errors.Join(c.print(a, list), failed)
}

// nobody is an error if no kernel of any decision can serve.
func nobody(list []*registry.Decision, what string) error {
	for _, d := range list {
		if serves(d) {
			return nil
		}
	}
	return fmt.Errorf("%w can serve what was asked of %s", ops.ErrNoKernel, what)
}

func serves(d *registry.Decision) bool { // the kernels that do stand first
	return len(d.Choices) > 0 && d.Choices[0].Verdict != "rejected"
}

func (c *explainCmd) print(a *app, list []*registry.Decision) error {
	switch {
	case c.JSON:
		return a.printJSON(list)
	case c.Op == "":
		return decisionTable(a.stdout, list)
	}
	for i, d := range list {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		if _, err := fmt.Fprint(a.stdout, d); err != nil {
			return err
		}
	}
	return nil
}

// one decides the request for one name. A decision that finds no kernel is none the less an answer; an override that
// cannot be honoured is a decision and an error.
func (c *explainCmd) one(r *registry.Registry, req registry.Request, name string) (*registry.Decision, error) {
	req.Operator = name
	if err := c.traits(r, &req); err != nil {
		return nil, err
	}
	_, err := r.Select(req)
	switch {
	case errors.Is(err, registry.ErrOverride), errors.Is(err, registry.ErrAmbiguous):
	case errors.As(err, new(*registry.NoKernelError)):
		err = nil
	case err != nil:
		return nil, err
	}
	d := r.Decide(req)
	if !serves(d) && d.Error == "" {
		d.Error = "no kernel can serve the request"
	}
	return d, err
}

// traits reads --trait by the schema of the request's ops.
func (c *explainCmd) traits(r *registry.Registry, req *registry.Request) error {
	covered, err := r.Covered(req.Operator)
	if err != nil {
		return err
	}
	defs, sizes := map[string]registry.TraitType{}, map[string]bool{}
	for _, op := range covered {
		d, _ := r.Describe(op)
		for _, t := range d.Traits {
			for _, n := range append([]string{t.Name}, t.Aliases...) {
				defs[n], sizes[n] = t.Type, t.Unit != ""
			}
		}
	}
	req.Traits, req.Each = map[string]registry.TraitValue{}, map[string][]registry.TraitValue{}
	for _, text := range c.Trait {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return usagef("--trait %s: want NAME=VALUE", text)
		}
		if _, twice := req.Traits[name]; twice || req.Each[name] != nil {
			return usagef("--trait %s: %s is given twice", text, name)
		}
		typ, known := defs[name]
		if !known {
			req.Traits[name] = registry.StringTrait(value) // the request is refused with the names that look like it
			continue
		}
		if value == "any" && typ != registry.TraitString {
			req.Traits[name] = registry.AnyTrait()
			continue
		}
		var values []registry.TraitValue
		for word := range strings.SplitSeq(value, ",") {
			v, err := registry.ParseTrait(typ, word)
			if err != nil {
				if _, long := strconv.ParseInt(word, 10, 64); typ == registry.TraitInt && errors.Is(long, strconv.ErrRange) {
					return usagef("--trait %s: %s does not fit 64 bits", text, word)
				}
				return usagef("--trait %s: %w", text, err)
			}
			if n, ok := v.Int(); ok && n < 0 && sizes[name] {
				return usagef("--trait %s: a size cannot be negative", text)
			}
			values = append(values, v)
		}
		if len(values) == 1 {
			req.Traits[name] = values[0]
		} else {
			req.Each[name] = values
		}
	}
	return nil
}

// decisionTable prints a line for each op.
func decisionTable(w io.Writer, list []*registry.Decision) error {
	rows := [][]string{{"op", "rejected", "kernels that may serve, best first"}}
	for _, d := range list {
		var good []string
		bad := 0
		for _, k := range d.Choices {
			if k.Verdict == "rejected" {
				bad++
			} else {
				good = append(good, k.Provider)
			}
		}
		if len(good) == 0 {
			good = []string{"no kernel"}
		}
		rows = append(rows, []string{d.Op, fmt.Sprint(bad), strings.Join(good, " ")})
	}
	return table(w, rows)
}

// list prints the chains of every op with a kernel on dev.
func (c *explainCmd) list(a *app, r *registry.Registry, dev tensor.Device) error {
	all := []registry.Explanation{}
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
	all, config := warnings(registry.Default()), registry.Default().ConfigStatus()
	threads, why := threadFacts()
	if c.JSON {
		return a.printJSON(map[string]any{"variables": vars, "warnings": all, "config": config, "threads": threads, "threads_because": why})
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
	printConfig(a.stdout, config)
	for _, w := range all {
		fmt.Fprintln(a.stdout, "warning:", w)
	}
	return nil
}

// present lists the devices that were opened, or that could not be and say why.
func present(r *registry.Registry) []tensor.Device {
	return slices.DeleteFunc(r.Devices(), func(d tensor.Device) bool { return r.GetDeviceProviderCaps(d).State == device.Unprobed })
}
