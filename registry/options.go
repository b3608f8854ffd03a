package registry

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Options configure a Registry. The zero value is a quiet registry with the reference tier at policy warn.
type Options struct {
	Disable           []string          // entries as Registry.Disable takes them
	Override          map[string]string // op name or alias: kernel or provider that heads the chain
	Force             map[string]string // op name or alias: the only kernel; beats every other choice
	Reference         ReferencePolicy
	Strict            bool     // the first fallback fails the launch: to the next kernel after a decline, or to a borrowed CPU kernel
	Stats             bool     // count Selections; events go to standard error if there is no Observer and no Logger
	Explain           []string // ops whose chain is printed at its first launch; "all"
	FallbackOnFailure []string // ops that go on to the next kernel after a failure that enqueued nothing
	CheckDeclines     bool     // debugging: a kernel that declines after writing an output fails with ErrDirtyDecline; slow
	Observer          Observer
	Logger            *slog.Logger // used when Observer is nil; nil: silent
	ExplainTo         io.Writer    // nil: standard error

	// The rest is read here and used by the packages that it is meant for.
	Config         string   // file with further settings
	Threads        int      // CPU worker threads, 0: as many as the machine and its limits give
	PluginPath     []string // folders of plugin libraries
	DisablePlugins bool
	CUBLASLt       string // path of the library
	CUDASync       bool   // synchronise after each CUDA launch
	MLX            string // path of the library
}

// Warning is something in the options or the environment that was not understood or names nothing known.
type Warning struct {
	Name string `json:"name"` // variable or option
	Text string `json:"text"`
}

// String returns "NAME: text".
func (w Warning) String() string { return w.Name + ": " + w.Text }

// applyOptions puts the options into the state at the first compile and notes names that match nothing.
func (s *state) applyOptions() {
	set := s.manualSet()
	for _, text := range s.opts.Disable {
		e, err := parseEntry(text)
		if err != nil {
			s.warn("disable", err.Error())
			continue
		}
		set.entries = append(set.entries, e)
	}
	for _, e := range s.unmatched(set.entries) {
		s.warnUnknown("disable", e.name)
	}
	for _, m := range []struct {
		name string
		m    map[string]string
	}{{"override", s.opts.Override}, {"force", s.opts.Force}} {
		for op, kernel := range m.m {
			if _, ok := s.ops.names[op]; !ok {
				s.warnUnknown(m.name, op)
			} else if e, _ := parseEntry(kernel); len(s.unmatched([]entry{e})) > 0 {
				s.warnUnknown(m.name, kernel)
			}
		}
	}
	for _, n := range s.opts.FallbackOnFailure {
		if op, ok := s.ops.names[n]; ok {
			s.fallOn[op] = true
		} else {
			s.warnUnknown("fallback on failure", n)
		}
	}
	for _, n := range s.opts.Explain {
		if _, ok := s.ops.names[n]; !ok && n != "all" {
			s.warnUnknown("explain", n)
		}
	}
}

func (s *state) warn(name, text string) {
	s.warnings = append(s.warnings, Warning{name, text})
	s.events = append(s.events, Event{Kind: EventUnknownName, Detail: name + ": " + text})
}

func (s *state) warnUnknown(option, name string) {
	s.warn(option, strings.TrimPrefix((&UnknownNameError{Name: name, Near: s.nearest(name)}).Error(), "registry: "))
}

// nearest returns known op, kernel and provider names that look like name.
func (s *state) nearest(name string) []string {
	var known []string
	for n := range s.ops.names {
		known = append(known, n)
	}
	for _, l := range s.regs {
		for _, g := range l {
			known = append(known, g.p.Name, g.p.Kernel)
		}
	}
	return near(name, known)
}

// overridden applies OPMUX_OVERRIDE and OPMUX_FORCE to a ranked list. A named kernel that is registered here but not
// usable leaves the chain empty, so that the choice is never silently ignored.
func (s *state) overridden(op Op, usable []*Registration, dropped []drop) ([]*Registration, []drop) {
	pick := func(m map[string]string) string {
		for n, k := range m {
			if id, ok := s.ops.names[n]; ok && id == op {
				return k
			}
		}
		return ""
	}
	want, only := pick(s.opts.Force), true
	if want == "" {
		want, only = pick(s.opts.Override), false
	}
	if want == "" {
		return usable, dropped
	}
	var first, rest []*Registration
	known := false
	for _, g := range usable {
		if g.is(want) {
			first = append(first, g)
		} else {
			rest = append(rest, g)
		}
	}
	for _, d := range dropped {
		known = known || d.g.is(want)
	}
	switch {
	case len(first) == 0 && !known:
		return usable, dropped
	case len(first) > 0 && !only:
		return append(first, rest...), dropped
	}
	for _, g := range rest {
		dropped = append(dropped, drop{g, DropOverridden, fmt.Sprintf("the options want %s", want)})
	}
	return first, dropped
}
