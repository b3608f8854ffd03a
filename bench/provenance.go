package bench

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/opmux/opmux/internal/build"
)

// provenance says where the figures of a run come from.
func (g *rig) provenance() Provenance {
	caps := g.Device.Caps()
	p := Provenance{Time: time.Now().UTC().Format(time.RFC3339), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		Revision: build.Revision(), Device: g.Device.ID().String(), DeviceName: g.Device.Name(), DeviceArch: caps.Arch, Threads: g.threads(),
		Digest: g.Registry.Digest(), Cache: g.cache(), Seed: g.Seed}
	if caps.Platform != nil {
		p.CPU = caps.Platform.Name
	}
	p.CPU = cmp.Or(p.CPU, g.Device.Name())
	for _, l := range caps.Libraries {
		p.Driver = append(p.Driver, l.Name+" "+l.Version)
	}
	if !g.Warm {
		p.FlushBytes = g.flushBytes()
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		p.Version = info.Main.Version
	}
	return p
}
