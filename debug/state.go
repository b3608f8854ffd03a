package debug

import (
	"cmp"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sort"
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
	Unserved    []Unserved            `json:"unserved"`   // ops that were asked for while no kernel was usable, now or earlier; most frequent first
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
	Failed    uint64 `json:"failed"`    // calls that failed in a kernel
	Unserved  uint64 `json:"unserved"`  // lookups and calls that found no usable kernel
	Borrowed  uint64 `json:"borrowed"`  // launches on borrowed CPU kernels
	Ops       int    `json:"ops"`       // with a usable kernel
	Kernels   int    `json:"kernels"`   // usable, over all chains
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

// Unserved is an op on a device that was asked for while no kernel was usable.
type Unserved struct {
	Op     string    `json:"op"`
	Device string    `json:"device"`
	Calls  uint64    `json:"calls"`           // lookups and calls, as registry.OpProviderStats.Fallbacks counts them
	Last   time.Time `json:"last,omitzero"`   // when the latest time without a kernel was noticed, if the event is still kept
	Error  string    `json:"error,omitempty"` // why nothing serves the op at present; empty: a kernel does
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
	File     string `json:"file,omitempty"` // FILE:LINE of the entry that quarantines it
}

// Device is a device that is open, or that the registry knows more of than its name.
type Device struct {
	ID     string              `json:"id"`
	Name   string              `json:"name,omitempty"`
	Health string              `json:"health"`          // "ok", "lost", "failing", "unknown" (it does not say; or Note), "not open"
	Note   string              `json:"note,omitempty"`  // why the health of a device at work is unknown
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
	s := State{Process: process(), Generation: snap.Generation, Digest: r.Digest(), Strict: r.Strict(), Disabled: append([]string{}, r.Disabled()...), Warnings: append([]registry.Warning{}, snap.Warnings...),
		Fallbacks: []Fallback{}, Failures: []Use{}, Borrowed: []Use{}, Quarantine: []Absence{}, Dropped: []Absence{}, Unserved: []Unserved{},
		Kernels: []Use{}, Devices: []Device{}, Chains: []Chain{}, Events: []Event{}, Environment: []registry.EnvVar{}}
	events := r.Events()
	seen := sightings{map[Fallback]registry.Event{}, map[[2]string]time.Time{}}
	for _, e := range slices.Backward(events) {
		s.Events = append(s.Events, words(e))
		switch at := [2]string{e.OpName, e.Device.String()}; e.Kind {
		case registry.EventFallback:
			seen.fallbacks[Fallback{Op: at[0], Device: at[1], From: e.From, Reason: e.Reason.String()}] = e
		case registry.EventNoProvider:
			if seen.unserved[at].IsZero() {
				seen.unserved[at] = e.Time
			}
		}
	}
	s.Totals.Borrowed, s.Config = snap.ReferenceHits, r.ConfigStatus()
	for _, e := range snap.Ops {
		s.add(&e, seen)
	}
	sort.SliceStable(s.Fallbacks, func(i, j int) bool { return s.Fallbacks[i].Calls > s.Fallbacks[j].Calls })
	sort.SliceStable(s.Unserved, func(i, j int) bool { return s.Unserved[i].Calls > s.Unserved[j].Calls })
	sort.SliceStable(s.Kernels, func(i, j int) bool { return s.Kernels[i].Executed > s.Kernels[j].Executed })
	sort.SliceStable(s.Chains, func(i, j int) bool { return s.Chains[i].Executed > s.Chains[j].Executed })
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

// sightings are what the kept events say of when something was seen.
type sightings struct {
	fallbacks map[Fallback]registry.Event // the first of each
	unserved  map[[2]string]time.Time     // the last of each op and device
}

// add takes over one chain.
func (s *State) add(e *registry.Explanation, seen sightings) {
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
		s.fallbacks(e, &k, to, seen.fallbacks)
	}
	for _, k := range e.Dropped {
		a := Absence{Op: e.Op, Device: e.Device, Kernel: k.Kernel, Provider: k.Provider, State: k.State, Detail: k.Detail, File: k.File}
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
	if n := c.Stats.Fallbacks; n > 0 {
		s.Unserved = append(s.Unserved, Unserved{Op: c.Op, Device: c.Device, Calls: n, Last: seen.unserved[[2]string{c.Op, c.Device}], Error: c.Error})
		s.Totals.Unserved += n
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

// outside is said of a device that executed calls and is in no table.
const outside = "opened outside the table: debug.Options.Devices (device.DefaultTable) does not have it"

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
		serves, used := false, false
		for _, e := range snap.Ops {
			if e.Device == d.ID {
				serves = true
				used = used || slices.ContainsFunc(slices.Concat(e.Chain, e.Dropped), func(k registry.Step) bool { return k.Counts.Executed > 0 })
			}
		}
		switch {
		case open:
			d.Health = c.State()
		case used:
			d.Health, d.Note = "unknown", outside
		case d.Caps.State == device.Unprobed && !serves:
			continue
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
