package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/opmux/opmux/bench"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

type benchCmd struct {
	Run     benchRunCmd     `cmd:"" default:"withargs" help:"Measure kernels."`
	Compare benchCompareCmd `cmd:"" help:"Compare two reports; exit code 1 if something became slower."`
}

// caseFlags say which calls are measured.
type caseFlags struct {
	Op      string            `placeholder:"GLOB" help:"Ops by name, alias or family.mode."`
	Format  []string          `placeholder:"DTYPE,..." help:"Dtypes of the weight, else the cache, else the first input."`
	M       []int64           `name:"m" placeholder:"N,..." help:"Rows: the extent M, T or Tq."`
	N       []int64           `name:"n" placeholder:"N,..." help:"The extent N."`
	K       []int64           `name:"k" placeholder:"N,..." help:"The extent K."`
	Shape   []string          `sep:"none" placeholder:"SYM=N,..." help:"Extents of another symbol of the op's shapes (may be repeated)."`
	Dtype   map[string]string `mapsep:"," placeholder:"OPERAND=DTYPE,..." help:"Dtypes of other operands."`
	Attr    map[string]string `mapsep:"," placeholder:"NAME=VALUE,..." help:"Attributes of the op's record."`
	Threads int               `short:"t" help:"CPU threads; 0 takes what the machine, its limits and OPMUX_THREADS give."`
	Cold    bool              `xor:"cache" help:"Operands come from memory (default)."`
	Warm    bool              `xor:"cache" help:"Operands stay in the cache."`
	Plain   bool              `help:"Leave weights in the layout of files."`
	Count   int               `help:"Samples of a kernel on a case; 0 takes as many as --time has room for."`
	Time    time.Duration     `default:"500ms" help:"Time for the samples of a kernel on a case."`
	Seed    uint64            `default:"1" help:"Seed of the operands."`
	NoCheck bool              `name:"no-verify" help:"Do not compare results."`
	JSON    bool              `name:"json" xor:"form" help:"Print JSON."`
}

type benchRunCmd struct {
	caseFlags `embed:""`

	Kernel   string `placeholder:"GLOB" help:"Kernels by name or provider; without it all but the reference."`
	Go       bool   `xor:"form" help:"Print lines that benchstat reads."`
	Markdown bool   `xor:"form" help:"Print Markdown."`
	CSV      bool   `name:"csv" xor:"form" help:"Print comma-separated values."`
	Out      string `placeholder:"FILE" help:"Write the JSON report to a file, too."`
}

// options turns flags into options, without a device.
func (f *caseFlags) options(a *app) (bench.Options, error) {
	o := bench.Options{Registry: registry.Default(), Op: f.Op, Formats: f.Format, M: f.M, N: f.N, K: f.K, Warm: f.Warm, Plain: f.Plain,
		NoVerify: f.NoCheck, Count: f.Count, Time: f.Time, Seed: f.Seed, Shape: map[string][]int64{}, Attrs: map[string]any{},
		Progress: func(op, text string) { fmt.Fprintf(a.stderr, "opmux: %s %s\n", op, text) }, Plan: a.plan}
	for _, s := range f.Shape {
		name, list, ok := strings.Cut(s, "=")
		if !ok {
			return o, usagef("--shape %q is not SYMBOL=EXTENT,...", s)
		}
		for text := range strings.SplitSeq(list, ",") {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return o, usagef("--shape %q: %q is no whole number", s, text)
			}
			o.Shape[name] = append(o.Shape[name], n)
		}
	}
	var err error
	if o.Types, err = dtypes(f.Dtype); err != nil {
		return o, err
	}
	for name, text := range f.Attr {
		if b, err := strconv.ParseBool(text); err == nil && text != "0" && text != "1" {
			o.Attrs[name] = b
		} else if v, err := strconv.ParseFloat(text, 64); err == nil {
			o.Attrs[name] = v
		} else {
			return o, usagef("--attr %s=%q is neither a number nor true or false", name, text)
		}
	}
	return o, nil
}

// plan says on standard error what a run of several cases is about to do.
func (a *app) plan(p bench.Plan) {
	switch {
	case p.Cases < 2:
	case p.Least == 0:
		a.warn("%d cases, %d measurements; --op and --kernel choose fewer", p.Cases, p.Kernels)
	default:
		a.warn("%d cases, %d measurements, %v or more of samples; --op, --kernel and --time make it shorter", p.Cases, p.Kernels, p.Least.Round(time.Second/10))
	}
}

// dtypes reads --dtype; nil if it was not given.
func dtypes(flags map[string]string) (types map[string]tensor.DType, err error) {
	for operand, name := range flags {
		t, err := tensor.ParseDType(name)
		if err != nil {
			return nil, fmt.Errorf("--dtype %s=%q: %w; there are %s", operand, name, registry.ErrUnknownName, strings.Join(dtypeNames(), ", "))
		}
		if types == nil {
			types = map[string]tensor.DType{}
		}
		types[operand] = t
	}
	return types, nil
}

// Run measures kernels and prints a report. A kernel that fails or gives wrong results is a failure, after the report.
func (c *benchRunCmd) Run(a *app) (err error) {
	o, err := c.options(a)
	if err != nil {
		return err
	}
	o.Kernel = c.Kernel
	d, err := a.openCPU(c.Threads)
	if err != nil {
		return err
	}
	defer d.Close()
	o.Device = d
	var out *bench.File
	if c.Out != "" { // before minutes are spent
		if out, err = bench.Create(c.Out); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	r, err := bench.Run(a.ctx, o)
	if r == nil {
		return err
	}
	if e := c.print(a.stdout, r); err == nil {
		err = e
	}
	if out != nil {
		if e := r.Write(out); err == nil {
			err = e
		}
	}
	if failed := r.Failed(); err == nil && len(failed) > 0 {
		err = fmt.Errorf("%d of %d records failed, the first is %s on %s %s", len(failed), len(r.Records), failed[0].Kernel, failed[0].Op, failed[0].Case)
	}
	return err
}

// dtypeNames lists every dtype that ParseDType knows.
func dtypeNames() (list []string) {
	for t := range math.MaxUint8 {
		name := tensor.DType(t).String()
		if known, err := tensor.ParseDType(name); err == nil && known == tensor.DType(t) {
			list = append(list, name)
		}
	}
	return list
}

func (c *benchRunCmd) print(w io.Writer, r *bench.Report) error {
	switch {
	case c.JSON:
		return r.Write(w)
	case c.Go:
		return r.Go(w)
	case c.Markdown:
		return r.Markdown(w)
	case c.CSV:
		return r.CSV(w)
	}
	return r.Text(w)
}

type benchCompareCmd struct {
	Before string  `arg:"" help:"Report of an earlier run."`
	After  string  `arg:"" help:"Report of a later run."`
	Noise  float64 `default:"0.05" help:"Relative difference that says nothing."`
	JSON   bool    `name:"json" help:"Print JSON."`
}

// Run compares two reports. What became slower or broke is a failure.
func (c *benchCompareCmd) Run(a *app) error {
	if !(c.Noise >= 0) {
		return usagef("--noise %v", c.Noise)
	}
	before, err := bench.ReadFile(c.Before)
	if err != nil {
		return err
	}
	after, err := bench.ReadFile(c.After)
	if err != nil {
		return err
	}
	x := bench.Compare(before, after, c.Noise)
	if c.JSON {
		err = a.printJSON(x)
	} else {
		err = x.Text(a.stdout)
	}
	if bad := x.Regressions(); err == nil && len(bad) > 0 {
		err = fmt.Errorf("%d of %d are slower or broken, the first is %s on %s %s", len(bad), len(x.Changes), bad[0].Kernel, bad[0].Op, bad[0].Case)
	}
	return err
}

type abCmd struct {
	caseFlags `embed:""`

	A string `required:"" placeholder:"KERNEL" help:"One kernel, by its name or its provider's."`
	B string `required:"" placeholder:"KERNEL" help:"The other one."`
}

// Run sets two kernels side by side. Results that lie too far apart are a failure.
func (c *abCmd) Run(a *app) error {
	if c.Op == "" {
		return usagef("--op says of which op the kernels are")
	}
	o, err := c.options(a)
	if err != nil {
		return err
	}
	d, err := a.openCPU(c.Threads)
	if err != nil {
		return err
	}
	defer d.Close()
	o.Device = d
	r, stopped := bench.AB(a.ctx, o, c.A, c.B)
	if stopped != nil && (a.ctx.Err() == nil || r == nil || len(r.Cases) == 0) {
		return stopped
	}
	if c.JSON {
		err = a.printJSON(r)
	} else {
		err = r.Text(a.stdout)
	}
	if stopped != nil { // the cases until then were printed
		return stopped
	}
	if err == nil && r.Failed() {
		err = fmt.Errorf("the results of %s and %s lie too far apart", c.A, c.B)
	}
	return err
}
