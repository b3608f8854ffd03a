package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
)

type devicesCmd struct {
	JSON     bool `name:"json" help:"Print JSON."`
	Platform bool `help:"Print the first device as a platform file, which explain --platform reads."`
}

type deviceInfo struct {
	ID             string           `json:"id"`
	Name           string           `json:"name"`
	State          string           `json:"state"`
	Arch           string           `json:"arch"`
	Units          int32            `json:"compute_units"`
	Features       []string         `json:"features"`
	Memory         int64            `json:"memory"`
	Available      int64            `json:"memory_available"`
	Threads        int              `json:"threads"`
	ThreadsBecause []string         `json:"threads_because"`
	Platform       *device.Platform `json:"platform"`
}

func threadFacts() (int, []string) {
	env, _ := registry.OptionsFromEnv(os.LookupEnv)
	return cpu.Threads(env.Threads)
}

// Run lists the devices of this build.
func (c *devicesCmd) Run(a *app) error {
	d, err := a.openCPU(0)
	if err != nil {
		return err
	}
	defer d.Close()
	caps := d.Caps()
	if c.Platform {
		return a.printJSON(caps.AsPlatform())
	}
	n, why := threadFacts()
	i := deviceInfo{ID: d.ID().String(), Name: d.Name(), State: caps.State.String(), Arch: caps.Arch, Units: caps.ComputeUnitCount,
		Features: strings.Fields(cpu.FeatureNames(caps.Features)), Memory: caps.Memory.Total, Available: caps.Memory.Available, Threads: n, ThreadsBecause: append([]string{}, why...),
		Platform: caps.AsPlatform()}
	if c.JSON {
		return a.printJSON([]deviceInfo{i})
	}
	fmt.Fprintf(a.stdout, "%s  %s\n  processor  %s\n  best tier  %s\n  features   %s\n  memory     %.1f GiB, %.1f GiB available\n  threads    %d: %s\n",
		i.ID, i.Name, i.Platform.Name, i.Arch, strings.Join(i.Features, " "), float64(i.Memory)/(1<<30), float64(i.Available)/(1<<30), n, strings.Join(why, "; "))
	return nil
}
