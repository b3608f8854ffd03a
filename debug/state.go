package debug

import (
	"cmp"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/internal/build"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// State is everything that the page shows, as its JSON has it.
type State struct {
	Process     Process               `json:"process"`
	Generation  uint64                `json:"generation"` // of the registry's snapshot
	Digest      string                `json:"digest"`     // of the table of kernels: equal on hosts that choose alike
	Strict      bool                  `json:"strict"`
	Totals      Totals                `json:"totals"`
	Fallbacks   []Fallback            `json:"fallbacks"`  // most frequent first
	Failures    []Use                 `json:"failures"`   // kernels with failed calls
	Unserved    []Chain               `json:"unserved"`   // ops that were asked for where no kernel is usable
	Borrowed    []Use                 `json:"borrowed"`   // CPU kernels that ran for other devices (the reference tier)
	Quarantine  []Absence             `json:"quarantine"` // kernels that are not trusted, with the evidence
	Dropped     []Absence             `json:"dropped"`    // all other registered kernels that no chain of their op holds, with the reason
	Disabled    []string              `json:"disabled"`   // entries in force
	Warnings    []registry.Warning    `json:"warnings"`
	Kernels     []Use                 `json:"kernels"` // every kernel that was tried, busiest first
	Devices     []Device              `json:"devices"`
	Chains      []Chain               `json:"chains"`
	Events      []Event               `json:"events"` // the latest, newest first
	Config      registry.ConfigStatus `json:"config"`
	Environment []registry.EnvVar     `json:"environment"`     // variables that are set; of the default registry only
	Token       string                `json:"token,omitempty"` // for POST, where changes are allowed
}

// Process says whose state it is.
type Process struct {
	Time     time.Time `json:"time"`
	Started  time.Time `json:"started"`
	PID      int       `json:"pid"`
	Program  string    `json:"program"`
	Revision string    `json:"revision,omitempty"` // of the source, "+" behind it if that had been changed
	Go       string    `json:"go"`
	Platform string    `json:"platform"` // GOOS/GOARCH
}

// Totals are sums over all ops and devices.
type Totals struct {
	Executed  uint64 `json:"executed"`  // calls that kernels answered
	Fallbacks uint64 `json:"fallbacks"` // calls that a kernel left to another one
	Failed    uint64 `json:"failed"`
	Borrowed  uint64 `json:"borrowed"` // launches on borrowed CPU kernels
	Ops       int    `json:"ops"`      // with a usable kernel
	Kernels   int    `json:"kernels"`  // usable, over all chains
}

// Fallback is one reason for which one kernel leaves calls to the next one.
type Fallback struct {
	Op     string    `json:"op"`
	Device string    `json:"device"`
	From   string    `json:"from"`
	To     string    `json:"to"` // empty: nobody was left
	Reason string    `json:"reason"`
	Calls  uint64    `json:"calls"`
	First  time.Time `json:"first,omitzero"` // when it was seen first, if the event is still kept
}

// Use is what one kernel did.
type Use struct {
	Op       string            `json:"op"`
	Device   string            `json:"device"`
	Kernel   string            `json:"kernel"`
	Provider string            `json:"provider"`
	Tier     string            `json:"tier"`
	Executed uint64            `json:"executed"`
	Declined map[string]uint64 `json:"declined,omitempty"` // by reason
	Failed   uint64            `json:"failed"`
}

// Absence is a registered kernel that is not used, and why.
type Absence struct {
	Op       string `json:"op"`
	Device   string `json:"device"`
	Kernel   string `json:"kernel"`
	Provider string `json:"provider"`
	State    string `json:"state"`
	Detail   string `json:"detail,omitempty"`
}

// Device is a device that is open, or that the registry knows more of than its name.
type Device struct {
	ID     string              `json:"id"`
	Name   string              `json:"name,omitempty"`
	Health string              `json:"health"`          // "ok", "lost", "failing", "unknown" (it does not say), "not open" (not in the table of devices)
	Error  string              `json:"error,omitempty"` // what is wrong, with the time of a loss
	Caps   device.ProviderCaps `json:"caps"`
}

// Chain says which kernels serve an op on a device, best first.
type Chain struct {
	Op        string                   `json:"op"`
	Device    string                   `json:"device"`
	Steps     []registry.Step          `json:"steps"`
	Dropped   []registry.Step          `json:"dropped,omitempty"`
	Reference string                   `json:"reference,omitempty"` // why no CPU kernel is borrowed
	Executed  uint64                   `json:"executed"`
	Stats     registry.OpProviderStats `json:"stats"`
	Error     string                   `json:"error,omitempty"` // why nothing serves the op
}

// Event is a registry.Event in words.
type Event struct {
	Time       time.Time `json:"time"`
	Kind       string    `json:"kind"`
	Op         string    `json:"op,omitempty"`
	Device     string    `json:"device,omitempty"`
	Kernel     string    `json:"kernel,omitempty"`
	Provider   string    `json:"provider,omitempty"`
	From       string    `json:"from,omitempty"`
	To         string    `json:"to,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	Detail     string    `json:"detail,omitempty"`
	Generation uint64    `json:"generation"`
}

var started = time.Now()

// Collect reads the state that o chooses. Chains and counters are of one snapshot; what changes meanwhile is in the next.
func Collect(o Options) State {
	o = o.withDefaults()
	r := o.Registry
	snap := r.Snapshot()
	s := State{Process: process(), Generation: snap.Generation, Digest: r.Digest(), Strict: r.Strict(), Disabled: r.Disabled(), Warnings: snap.Warnings,
		Fallbacks: []Fallback{}, Failures: []Use{}, Borrowed: []Use{}, Quarantine: []Absence{}, Dropped: []Absence{}, Unserved: []Chain{},
		Kernels: []Use{}, Devices: []Device{}, Chains: []Chain{}, Events: []Event{}, Environment: []registry.EnvVar{}}
	events := r.Events()
	first := map[Fallback]registry.Event{}
	for _, e := range slices.Backward(events) {
		s.Events = append(s.Events, words(e))
		if e.Kind == registry.EventFallback {
			first[Fallback{Op: e.OpName, Device: e.Device.String(), From: e.From, Reason: e.Reason.String()}] = e
		}
	}
	s.Totals.Borrowed, s.Config = snap.ReferenceHits, r.ConfigStatus()
	for _, e := range snap.Ops {
		s.add(&e, first)
	}
	slices.SortStableFunc(s.Fallbacks, func(a, b Fallback) int { return cmp.Compare(b.Calls, a.Calls) })
	slices.SortStableFunc(s.Kernels, func(a, b Use) int { return cmp.Compare(b.Executed, a.Executed) })
	slices.SortStableFunc(s.Chains, func(a, b Chain) int { return cmp.Compare(b.Executed, a.Executed) })
	s.Devices = devices(o, &snap)
	if r == registry.Default() {
		for _, v := range registry.EnvTable(os.LookupEnv) {
			if v.Source != "default" {
				s.Environment = append(s.Environment, v)
			}
		}
	}
	return s
}

// add takes over one chain.
func (s *State) add(e *registry.Explanation, first map[Fallback]registry.Event) {
	c := Chain{Op: e.Op, Device: e.Device, Steps: e.Chain, Dropped: e.Dropped, Reference: e.Reference, Stats: e.Stats, Error: e.Error}
	for i, k := range slices.Concat(e.Chain, e.Dropped) {
		c.Executed += k.Counts.Executed
		s.Totals.Failed += k.Counts.Failed
		if tried(k.Counts) {
			u := Use{Op: e.Op, Device: e.Device, Kernel: k.Kernel, Provider: k.Provider, Tier: k.Tier, Executed: k.Counts.Executed,
				Declined: k.Counts.Declined, Failed: k.Counts.Failed}
			s.Kernels = append(s.Kernels, u)
			if u.Failed > 0 {
				s.Failures = append(s.Failures, u)
			}
			if k.Tier == registry.Borrowed.String() && u.Executed > 0 {
				s.Borrowed = append(s.Borrowed, u)
			}
		}
		to := ""
		if i+1 < len(e.Chain) {
			to = e.Chain[i+1].Kernel
		}
		s.fallbacks(e, &k, to, first)
	}
	for _, k := range e.Dropped {
		a := Absence{Op: e.Op, Device: e.Device, Kernel: k.Kernel, Provider: k.Provider, State: k.State, Detail: k.Detail}
		if k.State == registry.DropQuarantined.String() {
			s.Quarantine = append(s.Quarantine, a)
		} else {
			s.Dropped = append(s.Dropped, a)
		}
	}
	s.Totals.Executed += c.Executed
	s.Totals.Kernels += len(e.Chain)
	if len(e.Chain) > 0 {
		s.Totals.Ops++
	}
	s.Chains = append(s.Chains, c)
	if c.Error != "" && c.Stats.Fallbacks > 0 {
		s.Unserved = append(s.Unserved, c)
	}
}

// fallbacks takes over a kernel's declines; to is the kernel that stands under it at present, "" if none does or it stands
// in no chain any more: then the event knows.
func (s *State) fallbacks(e *registry.Explanation, k *registry.Step, to string, first map[Fallback]registry.Event) {
	for _, reason := range slices.Sorted(maps.Keys(k.Counts.Declined)) {
		if !fallback(reason) {
			continue
		}
		f := Fallback{Op: e.Op, Device: e.Device, From: k.Kernel, Reason: reason}
		event := first[f]
		f.To, f.Calls, f.First = cmp.Or(to, event.To), k.Counts.Declined[reason], event.Time
		s.Fallbacks = append(s.Fallbacks, f)
		s.Totals.Fallbacks += f.Calls
	}
}

// devices lists the open devices and those that were published or have chains.
func devices(o Options, snap *registry.Snapshot) (out []Device) {
	health := map[tensor.Device]device.Condition{}
	for _, c := range o.Devices.Health() {
		health[c.Device] = c
	}
	all := o.Registry.Devices()
	for id := range health {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	slices.SortFunc(all, func(a, b tensor.Device) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
	})
	for _, id := range all {
		c, open := health[id]
		d := Device{ID: id.String(), Name: c.Name, Health: "not open", Caps: o.Registry.GetDeviceProviderCaps(id)}
		serves := slices.ContainsFunc(snap.Ops, func(e registry.Explanation) bool { return e.Device == d.ID })
		if !open && d.Caps.State == device.Unprobed && !serves {
			continue
		}
		if open {
			d.Health = c.State()
		}
		if c.Err != nil {
			d.Error = c.Err.Error()
		} else if d.Caps.Err != nil {
			d.Error = d.Caps.Err.Error()
		}
		out = append(out, d)
	}
	return out
}

func words(e registry.Event) Event {
	w := Event{Time: e.Time, Kind: e.Kind.String(), Op: e.OpName, Kernel: e.Kernel, Provider: e.Provider, From: e.From, To: e.To, Detail: e.Detail, Generation: e.Gen}
	if e.Kind != registry.EventUnknownName {
		w.Device = e.Device.String()
	}
	if e.Kind == registry.EventFallback {
		w.Reason = e.Reason.String()
	}
	return w
}

func process() Process {
	p := Process{Time: time.Now(), Started: started, PID: os.Getpid(), Revision: build.Revision(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if b, ok := debug.ReadBuildInfo(); ok {
		p.Program = cmp.Or(b.Path, b.Main.Path)
	}
	return p
}
