package bench

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Bounds of the calls on which results are compared: references are slow.
const (
	verifyExtent = 256
	verifyWork   = 1e8 // operations
)

// patience is how many times the time for all samples of a kernel a launch may take that nobody asked for by name.
const patience = 10

// verify compares the results of every arm with the reference's, on the case made smaller, and takes out arms that would
// take very long on the case itself unless they were asked for.
func (c *caseRun) verify() {
	ref := ""
	for _, s := range c.Registry.Explain(c.job.desc.Op, c.Device.ID()).Chain {
		if s.Tier == registry.Reference.String() {
			ref = s.Kernel
		}
	}
	if m := c.Device.Caps().Memory; ref == "" || c.Device.ID().Kind != tensor.CPU && !m.DeviceReadsHost {
		return
	}
	small, cost, err := c.small()
	var want *sample.Args
	if err == nil {
		want = small.Clone()
		err = c.launch(want, ref)
	}
	for _, a := range c.arms {
		if a.dead {
			continue
		}
		if err != nil {
			a.rec.note("results are not compared: %v", err)
			continue
		}
		if a.step.Kernel == ref {
			continue
		}
		got := small.Clone()
		if e := c.launch(got, a.step.Kernel); e != nil {
			if !errors.Is(e, registry.ErrDeclined) {
				a.rec.note("results are not compared: %v", e)
			}
			continue
		}
		v := &Verification{OK: true, Against: ref, Shape: small.Shape()}
		for _, r := range sample.Compare(got, want, sample.ToleranceFor(want)) {
			v.NMSE = max(v.NMSE, float64(r.NMSE))
			if v.OK && !r.OK {
				v.OK, v.Worst = false, r.String()
			}
		}
		if e := errors.Join(got.CheckGuards(), got.InputsUntouched()); e != nil {
			v.OK, v.Worst = false, e.Error()
		}
		a.rec.Verified = v
		if c.Kernel != "" {
			continue
		}
		least := time.Duration(math.MaxInt64)
		for range 3 {
			start := time.Now()
			if c.launch(got, a.step.Kernel) == nil {
				least = min(least, time.Since(start))
			}
		}
		if t := float64(least) * c.cost.FLOPs / max(cost.FLOPs, 1); cost.FLOPs > 0 && t > patience*float64(c.time()) {
			a.dead, a.skip = true, fmt.Sprintf("kernel %s would take about %.1f s for a launch; ask for it by name", a.step.Kernel, t/1e9)
		}
	}
}

// launch runs one kernel on a sample.
func (c *caseRun) launch(a *sample.Args, kernel string) (err error) {
	defer recovered(kernel, &err)
	err = c.q.With(registry.WithKernel(c.ctx, c.job.desc.Op, kernel)).Launch(c.job.desc.Op, a.Record())
	if err == nil {
		err = c.dq.Sync(c.ctx)
	}
	return err
}

// small makes the case with smaller extents, operands in the layouts that are measured, and its cost.
func (c *caseRun) small() (*sample.Args, ops.Cost, error) {
	v := c.verifyCase()
	for s, n := range v.Shape {
		v.Shape[s] = min(n, verifyExtent)
	}
	a, err := sample.Of(c.job.desc, v)
	if err != nil {
		return nil, ops.Cost{}, err
	}
	cost, _ := ops.CostOf(c.job.desc.Op, a.Record())
	for cost.FLOPs > verifyWork {
		v.Shape = maps.Clone(v.Shape)
		largest := ""
		for s, n := range v.Shape {
			if m := v.Shape[largest]; n > m || n == m && s < largest {
				largest = s
			}
		}
		v.Shape[largest] /= 2
		b, err := sample.Of(c.job.desc, v)
		if err != nil {
			break
		}
		a = b
		cost, _ = ops.CostOf(c.job.desc.Op, a.Record())
	}
	return a, cost, nil
}

// verifyCase is the case with weights in the layout that is measured.
func (c *caseRun) verifyCase() sample.Case {
	v := c.job.c
	v.Shape, v.Layouts = maps.Clone(v.Shape), map[string]tensor.Layout{}
	for _, p := range c.ops.list {
		if p.x.Layout != tensor.Strided {
			v.Layouts[p.name] = p.x.Layout
		}
	}
	return v
}

// difference runs both arms on the case itself and holds the second's results against the first's.
func (c *caseRun) difference() (*Difference, error) {
	if m := c.Device.Caps().Memory; c.Device.ID().Kind != tensor.CPU && !m.DeviceReadsHost {
		return nil, nil
	}
	x, err := sample.Of(c.job.desc, c.verifyCase())
	if err != nil {
		return nil, err
	}
	y := x.Clone()
	for i, a := range []*sample.Args{x, y} {
		if err := c.launch(a, c.arms[i].step.Kernel); err != nil {
			return nil, err
		}
	}
	d := &Difference{OK: true, Same: true}
	exact := sample.Compare(y, x, sample.Bits)
	for i, r := range sample.Compare(y, x, sample.ToleranceFor(x)) {
		d.OK, d.Same = d.OK && r.OK, d.Same && exact[i].OK
		d.Outputs = append(d.Outputs, OutputDifference{Output: r.Output, NMSE: float64(r.NMSE), MaxULP: float64(r.MaxULP), Worst: r.String()})
	}
	return d, nil
}
