package registry

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Step is one kernel of an Explanation.
type Step struct {
	Kernel   string `json:"kernel"`
	Provider string `json:"provider"`
	Tier     string `json:"tier"`
	Priority int32  `json:"priority"`
	State    string `json:"state"`            // "usable", or why not
	Detail   string `json:"detail,omitempty"` // the reason's own words
	File     string `json:"file,omitempty"`   // FILE:LINE of the entry that quarantines it
	Traits   Traits `json:"traits"`
	Source   string `json:"source"` // where it was registered
	Doc      string `json:"doc,omitempty"`
	Digest   string `json:"digest,omitempty"` // of the kernel's description, if it has one
	Counts   Counts `json:"counts"`
}

// Explanation says which kernels serve an op on a device, best first, and why the others do not.
type Explanation struct {
	Op             string              `json:"op"`
	Device         string              `json:"device"`
	Generation     uint64              `json:"generation"`
	Caps           device.ProviderCaps `json:"caps"`
	Chain          []Step              `json:"chain"`
	Dropped        []Step              `json:"dropped,omitempty"`
	Reference      string              `json:"reference,omitempty"`       // why no CPU kernel is borrowed
	Borrowed       uint64              `json:"borrowed,omitempty"`        // launches on borrowed CPU kernels
	BorrowingSlots int                 `json:"borrowing_slots,omitempty"` // ops and devices of the whole registry that had such launches
	Override       string              `json:"override,omitempty"`        // what the options, the configuration or a scope made of the chain
	Stats          OpProviderStats     `json:"stats"`
	Error          string              `json:"error,omitempty"`
}

// Runnable lists the kernels that some call can run on: the chain, and those that only wait to be asked for by name.
func (e Explanation) Runnable() []Step {
	out := slices.Clone(e.Chain)
	for _, s := range e.Dropped {
		if s.State == DropWaiting.String() {
			out = append(out, s)
		}
	}
	return out
}

// Explain describes the chain of op on dev as data; String is the text. Unknown ids give an Explanation with Error set.
func (r *Registry) Explain(op Op, dev tensor.Device) Explanation {
	t, c, err := r.find(op, dev)
	if err != nil {
		return Explanation{Op: r.OpName(op), Device: dev.String(), Error: err.Error()}
	}
	return r.explain(c, t)
}

func (r *Registry) explain(c *chain, t *table) Explanation {
	return r.explainWith(c, t, r.cells.totals())
}

func (r *Registry) explainWith(c *chain, t *table, totals []kernelTotals) Explanation {
	sl := c.slot
	e := Explanation{Op: sl.desc.Name, Device: sl.dev.String(), Generation: t.gen, Caps: t.caps[sl.dev].caps, Reference: c.refWhy, Override: c.choice.String(), Stats: sl.stats(totals)}
	if c.err != nil {
		e.Error = c.err.Error()
	}
	for i := range c.steps {
		s := &c.steps[i]
		st := s.g.step(s.k.borrowed)
		switch st.State = "usable"; {
		case s.guard&guardTest != 0:
			st.State = "usable, not yet self-tested"
		case s.test == nil:
			st.Detail = "no self-test"
		}
		if s.id < len(totals) {
			st.Counts = totals[s.id].counts()
		}
		e.Chain = append(e.Chain, st)
	}
	kernels := r.cells.all()[:len(totals)]
	borrowing := map[*slot]bool{}
	for id, k := range kernels {
		if n := totals[id].served(); k.borrowed && n > 0 {
			borrowing[k.slot] = true
			if k.slot == sl {
				e.Borrowed += n
			}
		}
	}
	e.BorrowingSlots = len(borrowing)
	for _, d := range c.dropped {
		st := d.g.step(false)
		st.State, st.Detail = d.why.String(), d.detail
		if d.why == DropQuarantined {
			p, _ := t.caps[sl.dev].platform()
			if entry := t.quarantine.find(t.ops, d.g, p); entry != nil {
				st.File = entry.file()
			}
		}
		for id, k := range kernels {
			if k.slot == sl && !k.borrowed && k.newest.Load() == d.g {
				st.Counts = totals[id].counts()
			}
		}
		e.Dropped = append(e.Dropped, st)
	}
	return e
}

func (g *Registration) step(borrowed bool) Step {
	s := Step{Kernel: g.p.Kernel, Provider: g.p.Name, Tier: g.p.Tier.String(), Priority: g.p.Priority, Traits: g.p.Traits, Source: g.source, Doc: g.p.Doc}
	if g.p.Spec != nil {
		s.Digest = hex.EncodeToString(g.print())
	}
	if borrowed {
		s.Provider, s.Tier, s.Priority = ReferenceProviderName, Borrowed.String(), ReferenceTierPriority
	}
	return s
}

// String prints the chain, best first, one kernel a line, then what is not used and why.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s (%v", e.Op, e.Device, e.Caps.State)
	if e.Caps.Arch != "" {
		fmt.Fprintf(&b, " %s", e.Caps.Arch)
	}
	fmt.Fprintf(&b, ", snapshot %d)\n", e.Generation)
	for i, s := range e.Chain {
		fmt.Fprintf(&b, "  %d. %s\n", i+1, s)
	}
	for _, s := range e.Dropped {
		fmt.Fprintf(&b, "  -  %s\n", s)
	}
	if e.Override != "" {
		fmt.Fprintf(&b, "  override: %s\n", e.Override)
	}
	if e.Reference != "" {
		fmt.Fprintf(&b, "  reference tier: %s\n", e.Reference)
	}
	if e.Borrowed > 0 {
		fmt.Fprintf(&b, "  %d launches on borrowed CPU kernels; %d ops and devices have such launches\n", e.Borrowed, e.BorrowingSlots)
	}
	if e.Error != "" {
		fmt.Fprintf(&b, "  error: %s\n", e.Error)
	}
	return b.String()
}

// String prints kernel, provider, tier, priority, state, counters and source in one line.
func (s Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  provider %s, tier %s, priority %d, %s", s.Kernel, s.Provider, s.Tier, s.Priority, s.State)
	if s.Detail != "" {
		fmt.Fprintf(&b, " (%s)", s.Detail)
	}
	fmt.Fprintf(&b, "; executed %d, failed %d", s.Counts.Executed, s.Counts.Failed)
	for _, r := range slices.Sorted(maps.Keys(s.Counts.Declined)) {
		fmt.Fprintf(&b, ", declined{%s} %d", r, s.Counts.Declined[r])
	}
	fmt.Fprintf(&b, "; registered at %s", s.Source)
	return b.String()
}

// Snapshot is one consistent copy of everything that the registry knows, ready for encoding/json.
type Snapshot struct {
	Generation    uint64        `json:"generation"`
	Ops           []Explanation `json:"ops"`            // every op and device with a registered or borrowed kernel, or a failed lookup
	ReferenceHits uint64        `json:"reference_hits"` // launches on borrowed CPU kernels
	Warnings      []Warning     `json:"warnings,omitempty"`
}

// Snapshot returns chains, drops and counters of one generation.
func (r *Registry) Snapshot() Snapshot {
	t, err := r.snapshot()
	if err != nil {
		return Snapshot{}
	}
	totals := r.cells.totals()
	s := Snapshot{Generation: t.gen, Warnings: t.warnings}
	for _, d := range t.devs {
		for _, c := range d.ops {
			if c == nil || len(c.all) == 0 && len(c.steps) == 0 && c.slot.noKernel.Load() == 0 {
				continue
			}
			e := r.explainWith(c, t, totals)
			s.Ops = append(s.Ops, e)
			s.ReferenceHits += e.Borrowed
		}
	}
	return s
}
