package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/verify"
)

type verifyCmd struct {
	Op       string            `placeholder:"GLOB" help:"Ops by name, alias or family.mode."`
	Kernel   string            `placeholder:"GLOB" help:"Kernels by name or provider."`
	Solution string            `placeholder:"NAME" help:"Kernels of this provider."`
	Dtype    map[string]string `mapsep:"," placeholder:"OPERAND=DTYPE,..." help:"Dtypes of operands in every call; ops that have no such calls are left out."`
	Shapes   string            `placeholder:"FILE" help:"JSON object, or list of objects, of extents by symbol ({\"M\":512,\"N\":64,\"K\":256}) to use in place of the corpus."`
	Level    string            `enum:"quick,full" default:"quick" help:"quick (seconds) or full (a minute or two): every combination of dtypes, longer sweeps of extents, more numbers of threads."`
	Seed     uint64            `default:"1" help:"Seed of the operands."`
	Threads  int               `short:"t" help:"CPU threads; 0 takes what the machine, its limits and OPMUX_THREADS give."`
	Strict   bool              `help:"Kernels that cannot be used here, and calls that the reference does not take, are failures."`
	Shrink   bool              `help:"Look for the smallest extents at which a failing call still fails."`
	JSON     bool              `name:"json" help:"Print JSON."`
}

// errVerify is a report with failures, which has been printed.
var errVerify = errors.New("verification failed")

// errShapes is a file of extents that cannot be used: a case that fits no op.
var errShapes = fmt.Errorf("file of extents: %w", sample.ErrCase)

// maxShapes bounds a file of extents.
const maxShapes = 1 << 20

// Run verifies kernels and prints the report. Exit codes: 0 passed, 1 a kernel is wrong, 2 usage, 3 nothing matched.
func (c *verifyCmd) Run(a *app) error {
	o := verify.Options{Op: c.Op, Kernel: c.Kernel, Solution: c.Solution, Seed: c.Seed, Strict: c.Strict, Shrink: c.Shrink, More: map[int]device.Device{}}
	if c.Level == "full" {
		o.Level = sample.Full
	}
	var err error
	if o.Types, err = dtypes(c.Dtype); err != nil {
		return err
	}
	if c.Shapes != "" {
		if o.Shapes, err = readShapes(c.Shapes); err != nil {
			return err
		}
	}
	d, err := a.openCPU(c.Threads)
	if err != nil {
		return err
	}
	defer d.Close()
	o.Device = d
	own := int(d.Caps().ComputeUnitCount)
	for n := 1; n <= 4; n++ { // all openings are one device; fewer threads than asked for add nothing
		if n == own || c.Level != "full" && n > 1 {
			continue
		}
		m, err := cpu.Open(cpu.Options{Threads: n})
		if err != nil {
			return err
		}
		defer m.Close()
		if got := int(m.Caps().ComputeUnitCount); got == n {
			o.More[n] = m
		}
	}
	if err := registry.Default().SetDeviceProviderCaps(d.ID(), d.Caps()); err != nil { // as they were before the other openings
		return err
	}
	r, err := verify.Run(a.ctx, o)
	if errors.Is(err, verify.ErrOption) {
		return usage{err}
	}
	if r == nil {
		return err
	}
	stopped := err // what was verified until then is printed
	if c.JSON {
		err = a.printJSON(r)
	} else {
		err = r.WriteText(a.stdout)
	}
	if stopped != nil {
		return stopped
	}
	if err == nil && !r.OK {
		err = fmt.Errorf("%w: %d failed checks", errVerify, r.Total.Failures)
	}
	return err
}

// readShapes reads an object of extents or a list of them.
func readShapes(path string) (list []sample.Shape, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // before opening: a pipe would block
		return nil, fmt.Errorf("--shapes %s: no regular file: %w", path, errShapes)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxShapes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxShapes {
		return nil, fmt.Errorf("--shapes %s: over %d bytes: %w", path, maxShapes, errShapes)
	}
	var one sample.Shape
	if err := json.Unmarshal(b, &one); err == nil && one != nil {
		return []sample.Shape{one}, nil
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("--shapes %s: %w: want an object of extents, or a list of them: %w", path, errShapes, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("--shapes %s: the list is empty: %w", path, errShapes)
	}
	return list, nil
}
