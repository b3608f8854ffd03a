package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opmux/opmux/internal/opfile"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

type runCmd struct {
	Op      string `arg:"" help:"Op to run: its name or alias, or the op_type of the file."`
	File    string `arg:"" help:"JSON file with operands, attributes and, if known, the expected outputs."`
	Kernel  string `short:"k" placeholder:"NAME" help:"Run on this kernel, or on this provider's, and on no other."`
	Threads int    `short:"t" help:"Most CPU threads; 0 takes what the machine, its limits and OPMUX_THREADS give."`
	JSON    bool   `name:"json" help:"Print JSON."`
}

// Help describes the file.
func (c *runCmd) Help() string {
	return `The file holds one call. Operands have the names that 'opmux ops' shows, attributes those of the op's record; every
output is listed with its dtype and shape, and with data if that is what it should be:

  {"op_type": "rms_norm", "attributes": {"eps": 1e-6},
   "inputs":  [{"name": "x", "dtype": "f32", "shape": [1, 2], "data": [3, 4]}],
   "outputs": [{"name": "out", "dtype": "f32", "shape": [1, 2]}],
   "tolerance": {"atol": 1e-6, "rtol": 1e-5}}

data is flat, outermost dimension first; NaN, Inf and -Inf are texts; a text in place of the array is base64 of the
bytes, the only form for block dtypes such as q4_0. Files in the words of ONNX (MatMul, Softmax ...), vLLM (rmsnorm ...) and
ggml (soft_max ...) run too.`
}

// ran is what came out of one run of a file.
type ran struct {
	File    string             `json:"file"`
	Type    string             `json:"type"`
	Op      string             `json:"op"`
	Kernels []kernelUse        `json:"kernels"`
	Outputs []opfile.Tensor    `json:"outputs"`
	Worst   *opfile.Difference `json:"worst,omitempty"` // absent if the file expects nothing
}

// Run runs one op on the operands of a file. Outputs that are not the expected ones are a failure.
func (c *runCmd) Run(a *app) (err error) {
	f, err := opfile.Open(c.File)
	if err != nil {
		return err
	}
	route, err := f.Route(c.Op)
	if err != nil {
		return err
	}
	d, err := a.openCPU(c.Threads)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	dq, err := d.NewQueue()
	if err != nil {
		return err
	}
	q := registry.Default().NewQueue(dq)
	defer q.Close()

	op, name, ctx := f.Routes()[route], f.Type, a.ctx
	if op != 0 {
		name = op.String()
	}
	if c.Kernel != "" {
		if err := knownKernel(op, name, d.ID(), c.Kernel); err != nil {
			return err
		}
		ctx = registry.WithKernel(ctx, op, c.Kernel)
	}
	before := used(registry.Default())
	out, err := opfile.Runner{Queue: q.With(ctx)}.Run(f, route)
	if err != nil {
		return err
	}
	res := ran{File: c.File, Type: f.Type, Op: name, Kernels: since(before, used(registry.Default())), Outputs: out}
	if c.Kernel != "" && !slices.ContainsFunc(res.Kernels, func(k kernelUse) bool { return k.Kernel == c.Kernel || k.Provider == c.Kernel }) {
		return usagef("%s did not run: the call has nothing to do for %s", c.Kernel, name) // empty outputs, or it became another op's
	}
	worst, mismatch := f.Compare(out)
	if worst.Output != "" {
		res.Worst = &worst
	}
	if c.JSON {
		return errors.Join(a.printJSON(res), mismatch)
	}
	return errors.Join(c.print(a, &res), mismatch)
}

func (c *runCmd) print(a *app, res *ran) error {
	rows := [][]string{{"output", "dtype", "shape", "first values"}}
	for _, o := range res.Outputs {
		rows = append(rows, []string{o.Name, o.DType, fmt.Sprint(o.Data.Dims()), strings.Join(o.First(6), " ")})
	}
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	switch w := res.Worst; {
	case w == nil:
		fmt.Fprintln(a.stdout, "\nnothing to compare: the file expects no values")
	case w.OK():
		fmt.Fprintf(a.stdout, "\ninside the tolerance; worst: %v\n", w)
	default:
		fmt.Fprintf(a.stdout, "\noutside the tolerance; worst: %v\n", w)
	}
	if len(res.Kernels) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	return usedTable(a.stdout, res.Kernels)
}

// knownKernel wants name to be a kernel or provider of op on dev, in its chain or dropped from it.
func knownKernel(op registry.Op, opName string, dev tensor.Device, name string) error {
	var names []string
	e := registry.Default().Explain(op, dev)
	for _, s := range append(e.Chain, e.Dropped...) {
		if s.Kernel == name || s.Provider == name {
			return nil
		}
		names = append(names, fmt.Sprintf("%s (%s)", s.Kernel, s.Provider))
	}
	if len(names) == 0 {
		return fmt.Errorf("%s has no kernels on %v: %w", opName, dev, ops.ErrNoKernel)
	}
	return fmt.Errorf("no kernel %q of %v on %v; there are %s: %w", name, opName, dev, strings.Join(names, ", "), errUnknown)
}

// since leaves of after what has been counted since before.
func since(before, after []kernelUse) []kernelUse {
	old := map[[2]string]kernelUse{}
	for _, k := range before {
		old[[2]string{k.Device, k.Kernel}] = k
	}
	var out []kernelUse
	for _, k := range after {
		o := old[[2]string{k.Device, k.Kernel}]
		k.Executed, k.Declined, k.Failed = k.Executed-o.Executed, k.Declined-o.Declined, k.Failed-o.Failed
		if k.Executed+k.Declined+k.Failed > 0 {
			out = append(out, k)
		}
	}
	return out
}
