package debug

import "github.com/opmux/opmux/registry"

// Counters are what the expvar variable shows: every kernel that was tried, under op, device and kernel.
type Counters struct {
	Generation    uint64                                           `json:"generation"`
	ReferenceHits uint64                                           `json:"reference_hits"` // launches on borrowed CPU kernels
	Unserved      uint64                                           `json:"unserved"`       // lookups and calls that found no usable kernel
	Kernels       map[string]map[string]map[string]registry.Counts `json:"kernels"`
}

// ReadCounters reads the counters of r.
func ReadCounters(r *registry.Registry) Counters {
	s := r.Snapshot()
	c := Counters{Generation: s.Generation, ReferenceHits: s.ReferenceHits, Kernels: map[string]map[string]map[string]registry.Counts{}}
	for _, e := range s.Ops {
		c.Unserved += e.Stats.Fallbacks
		for _, list := range [][]registry.Step{e.Chain, e.Dropped} {
			for _, k := range list {
				if !tried(k.Counts) {
					continue
				}
				if c.Kernels[e.Op] == nil {
					c.Kernels[e.Op] = map[string]map[string]registry.Counts{}
				}
				if c.Kernels[e.Op][e.Device] == nil {
					c.Kernels[e.Op][e.Device] = map[string]registry.Counts{}
				}
				c.Kernels[e.Op][e.Device][k.Kernel] = k.Counts
			}
		}
	}
	return c
}

// tried reports whether a kernel was asked at all.
func tried(c registry.Counts) bool {
	_, outside := c.Declined[registry.ReasonDomain.String()]
	return c.Executed+c.Failed > 0 || len(c.Declined) > 1 || len(c.Declined) == 1 && !outside
}

// fallback reports whether a reason is one for which a kernel left a call to another.
func fallback(reason string) bool {
	return reason != registry.ReasonForwarded.String() && reason != registry.ReasonDomain.String()
}
