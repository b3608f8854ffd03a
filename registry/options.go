package registry

import (
	"io"
	"log/slog"
	"strings"
)

// Options configure a Registry. The zero value is a quiet registry with the reference tier at policy warn. Wherever an
// option names an op, its name, an alias, family.mode or an operator that it belongs to will do.
type Options struct {
	Disable           []string          // entries as Registry.Disable takes them
	Override          map[string]string // op: target (see ParseTarget) that heads the chain
	Force             map[string]string // op: the only target; beats every other choice
	Reference         ReferencePolicy
	Strict            bool     // the first fallback fails the launch: to the next kernel after a decline, or to a borrowed CPU kernel
	Stats             bool     // count Selections; events go to standard error if there is no Observer and no Logger
	Explain           []string // ops whose chain is printed at its first launch; "all"
	FallbackOnFailure []string // ops that go on to the next kernel after a failure that enqueued nothing
	CheckDeclines     bool     // debugging: a kernel that declines after writing an output fails with ErrDirtyDecline; slow
	Observer          Observer
	Logger            *slog.Logger // used when Observer is nil; nil: silent
	ExplainTo         io.Writer    // nil: standard error
	Config            string       // file as ReadConfig takes it, read at the first compile; a bad one is ignored, see ConfigStatus

	// The rest is read here and used by the packages that it is meant for.
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
		s.warn("disable", strings.TrimPrefix(s.unknown(e, "").Error(), "registry: "))
	}
	s.choices = &choices{force: s.targets("force", s.opts.Force), override: s.targets("override", s.opts.Override)}
	for _, n := range s.opts.FallbackOnFailure {
		if ops := s.ops.named(n); len(ops) > 0 {
			for _, op := range ops {
				s.fallOn[op] = true
			}
		} else {
			s.warnUnknown("fallback on failure", n)
		}
	}
	for _, n := range s.opts.Explain {
		if n != "all" && len(s.ops.named(n)) == 0 {
			s.warnUnknown("explain", n)
		}
	}
}

// targets reads an option that maps ops to targets. What is malformed is left out; unknown ops and kernels stay, for
// those that come later. Both are told.
func (s *state) targets(option string, m map[string]string) []named {
	out := namedTargets(m, func(op string, err error) { s.warn(option, op+": "+strings.TrimPrefix(err.Error(), "registry: ")) })
	for _, n := range out {
		if len(s.ops.named(n.op)) == 0 {
			s.warnUnknown(option, n.op)
		} else if err := s.unknownTarget(n); err != nil {
			s.warn(option, n.op+": "+strings.TrimPrefix(err.Error(), "registry: "))
		}
	}
	return out
}

// unknownTarget says why an option's target can be no kernel of its op, on any kind of device; nil if it can.
func (s *state) unknownTarget(n named) error {
	if n.target.Name == ReferenceProviderName {
		return nil
	}
	return s.unknown(entry{text: n.target.Name, name: n.target.Name, op: n.op}, n.target.By)
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
