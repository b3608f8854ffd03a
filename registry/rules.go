package registry

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opmux/opmux/device"
)

// bound is a configuration whose names a registry has looked up. It is replaced, never changed.
type bound struct {
	*Config
	rules []boundRule
	notes []string // rules left out, and keys without effect
}

type boundRule struct {
	*rule
	ops map[Op]*boundMatch // nil: every op
}

// boundMatch is what a rule asks of the requests for one op, in the op's own roles and traits.
type boundMatch struct {
	formats []formatCond
	traits  []boundTrait
}

type boundTrait struct {
	name string
	con  Constraint
}

// bind looks up the ops, kernels, roles and traits of c. Everything that does not exist is an error, or a note where the
// rule says "on_error": "warn"; that rule is then left out.
func (s *state) bind(c *Config) (*bound, error) {
	b := &bound{Config: c}
	var errs []error
	for _, r := range c.rules {
		left := maxConfigErrors - len(errs) - len(b.notes)
		br, wrong := s.bindRule(r, left)
		switch {
		case len(wrong) == 0:
			b.rules = append(b.rules, br)
		case r.warn:
			b.notes = append(b.notes, strings.TrimPrefix(errors.Join(wrong...).Error(), "registry: ")+": the rule is left out")
		default:
			errs = append(errs, wrong...)
		}
	}
	if c.tuningDB != "" {
		b.notes = append(b.notes, "tuning_db: read, but nothing in this version uses it")
	}
	return b, errors.Join(errs[:min(len(errs), maxConfigErrors)]...)
}

// bindRule looks up the names of one rule. At most left errors say which names are near, and one tells without that.
func (s *state) bindRule(r *rule, left int) (b boundRule, wrong []error) {
	b.rule = r
	var ops []Op
	if r.op != "" {
		if ops = s.ops.named(r.op); len(ops) == 0 {
			return b, []error{unknownAt(r.opAt, r.op, s.ops.operatorNames())}
		}
		b.ops = map[Op]*boundMatch{}
	}
	check := func(t Target, at spot) {
		if len(wrong) > max(left, 0) {
			return
		}
		var known []string
		for k, list := range s.regs {
			if ops != nil && !slices.Contains(ops, k.op) {
				continue
			}
			for _, g := range list {
				if t.Matches(g.p.Kernel, g.p.Name) {
					return
				}
				if len(wrong) < left {
					known = append(known, g.p.Kernel, g.p.Name)
				}
			}
		}
		if t.Name != ReferenceProviderName {
			wrong = append(wrong, unknownAt(at, t.Name, known))
		}
	}
	if !r.use.IsZero() {
		check(r.use, r.useAt)
	}
	for i, t := range r.exclude {
		check(t, r.excludeAt[i])
	}
	var misses []error
	for _, op := range ops {
		m, miss := s.bindMatch(r, op)
		if len(miss) == 0 {
			b.ops[op] = m
		}
		misses = miss
	}
	if len(ops) > 0 && len(b.ops) == 0 { // an operator's rule holds for those of its ops that have what it asks about
		wrong = append(wrong, misses...)
	}
	return b, wrong
}

// bindMatch translates a rule's roles and traits to those of op.
func (s *state) bindMatch(r *rule, op Op) (m *boundMatch, miss []error) {
	schema := s.ops.desc(op).schema()
	m = &boundMatch{}
	for _, f := range r.formats {
		for _, o := range schema.Operators {
			if own, ok := o.Roles[f.role]; ok && o.Name == r.op {
				f.role = own
			}
		}
		if !slices.Contains(schema.Roles, f.role) {
			miss = append(miss, unknownAt(f.spot, f.role, schema.Roles))
		}
		m.formats = append(m.formats, f)
	}
	for _, c := range r.traits {
		if len(miss) == maxConfigErrors {
			break
		}
		at := schema.trait(c.name)
		if at < 0 {
			miss = append(miss, unknownAt(c.spot, c.name, schema.names()))
			continue
		}
		def := &schema.Traits[at]
		con, err := c.constraint(def.Type)
		if err != nil {
			miss = append(miss, c.spot.wrong("%s", strings.TrimPrefix(err.Error(), "registry: ")))
		}
		m.traits = append(m.traits, boundTrait{def.Name, con})
	}
	return m, miss
}

func unknownAt(at spot, name string, known []string) error {
	return at.wrong("%s", strings.TrimPrefix((&UnknownNameError{Name: name, Near: near(name, known)}).Error(), "registry: "))
}

// holds reports whether the rule is about a request. What the request leaves open meets no condition.
func (b *boundRule) holds(c *choiceRequest) bool {
	if b.vendor != "" && (c.p == nil || c.p.Vendor != b.vendor) {
		return false
	}
	for _, a := range b.arch {
		if !a.holds(c.p) {
			return false
		}
	}
	if b.ops == nil {
		return true
	}
	m := b.ops[c.op]
	if m == nil {
		return false
	}
	for i := range m.formats {
		if f, ok := c.sig.Format(m.formats[i].role); !ok || !m.formats[i].admits(f) {
			return false
		}
	}
	for i := range m.traits {
		if c.trait == nil {
			return false
		}
		if v, ok := c.trait(m.traits[i].name); !ok || !m.traits[i].con.Admits(v) {
			return false
		}
	}
	return true
}

func (a archBound) holds(p *device.Platform) bool {
	if p == nil || p.Arch.IsZero() {
		return false
	}
	arch := p.Arch
	arch.Suffix = ""
	n, err := arch.Compare(a.arch)
	if err != nil {
		return false
	}
	switch a.cmp {
	case ">=":
		return n >= 0
	case "<=":
		return n <= 0
	case ">":
		return n > 0
	case "<":
		return n < 0
	case "!=":
		return n != 0
	}
	return n == 0
}

func (b *boundRule) from() string { return fmt.Sprintf("%s%s:%d", fromConfig, b.File, b.Line) }

// apply adds what the configuration says to a choice that the stronger places have made.
func (b *bound) apply(c *choiceRequest, out *choice) {
	if b == nil {
		return
	}
	use, exclude, objective := out.from == "", true, true
	for i := range b.rules {
		r := &b.rules[i]
		if !r.holds(c) {
			continue
		}
		if use && !r.use.IsZero() && c.here(r.use) {
			out.target, out.from, use = r.use, r.from(), false
			*out = out.settled()
		}
		if exclude && r.exclude != nil {
			for _, t := range r.exclude {
				out.exclude, out.excludeFrom = append(slices.Clip(out.exclude), t), append(slices.Clip(out.excludeFrom), r.from())
			}
			exclude = false
		}
		if objective && r.ranked {
			out.objective, objective = r.objective, false
		}
	}
	if objective {
		out.objective = b.objective
	}
}

// choiceBounds lists the first values of the intervals of an op's int trait that rules tell apart.
func (t *table) choiceBounds(op Op, trait string) (out []int64) {
	if t.choices == nil || t.choices.config == nil {
		return nil
	}
	for i := range t.choices.config.rules {
		m := t.choices.config.rules[i].ops[op]
		if m == nil {
			continue
		}
		for j := range m.traits {
			if m.traits[j].name == trait {
				m.traits[j].con.boundaries(func(n int64) { out = append(out, n) }, func(int64) {})
			}
		}
	}
	return out
}

// SetConfig puts c in force in place of the configuration before; nil takes it away. It is all or nothing: what c names
// and this registry lacks (ops, kernels, roles, traits) is an error, as is a quarantine file that cannot be read, and then
// nothing changes. A quarantine file that is not there, entries of one that can have no effect, and a file of verdicts that
// cannot be read are no errors; ConfigStatus and Snapshot's warnings tell of them. Errors: *ConfigError, several joined.
func (r *Registry) SetConfig(c *Config) error {
	list, err := c.readQuarantine()
	if err != nil {
		return err
	}
	return r.mutate(func(s *state) error {
		s.seal()
		return s.configure(c, list)
	})
}

// configure binds c and puts it into the state with the quarantine that it names; r.mu is held.
func (s *state) configure(c *Config, list *quarantine) error {
	next := *s.choices
	next.config = nil
	if c != nil {
		b, err := s.bind(c)
		if err != nil {
			return err
		}
		b.notes = append(b.notes, list.notes(s)...)
		next.config = b
	}
	s.warnings = slices.DeleteFunc(s.warnings, func(w Warning) bool { return w.Name == "config" }) // snapshots have copies
	if next.config != nil {
		for _, n := range next.config.notes {
			s.warn("config", n)
		}
	}
	s.choices, s.quarantine, s.config, s.dirtyAll = &next, list, configAt{}, true
	path := ""
	if c != nil {
		path = c.verdicts
	}
	if note := s.r.verdicts.open(path); note != "" {
		s.warn("config", note)
	}
	return nil
}

// configAt is what became of the file that the options name.
type configAt struct {
	path string
	err  error // it is ignored
}

// readConfig puts the file that the options name in force, at the first compile. Whatever is wrong with it is a warning:
// no program stops for it.
func (s *state) readConfig() {
	path := s.opts.Config
	if path == "" {
		return
	}
	c, err := ReadConfig(path)
	if err == nil {
		var list *quarantine
		if list, err = c.readQuarantine(); err == nil {
			err = s.configure(c, list)
		}
	}
	if err != nil {
		s.config = configAt{path, err}
		s.warn("config", strings.TrimPrefix(err.Error(), "registry: ")+"; the configuration "+path+" is ignored")
	}
}

// ConfigStatus says which configuration is in force.
type ConfigStatus struct {
	Path       string   `json:"path,omitempty"`
	State      string   `json:"state"` // "none", "active" or "ignored"
	Error      string   `json:"error,omitempty"`
	Notes      []string `json:"notes,omitempty"` // rules left out, keys without effect, files that were ignored
	Objective  string   `json:"objective,omitempty"`
	Strict     bool     `json:"strict,omitempty"`
	Rules      []string `json:"rules,omitempty"` // in force, in order
	Quarantine string   `json:"quarantine,omitempty"`
	Verdicts   string   `json:"verdicts,omitempty"`
	TuningDB   string   `json:"tuning_db,omitempty"`
}

// ConfigStatus describes the configuration in force, or why a file is not.
func (r *Registry) ConfigStatus() ConfigStatus {
	if _, err := r.snapshot(); err != nil {
		return ConfigStatus{State: "none", Error: err.Error()}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	b := s.choices.config
	if b == nil {
		st := ConfigStatus{State: "none"}
		if s.config.err != nil {
			st = ConfigStatus{State: "ignored", Path: s.config.path, Error: s.config.err.Error()}
		}
		return st
	}
	st := ConfigStatus{Path: b.file, State: "active", Objective: b.objective.String(), Strict: b.strict, Quarantine: b.quarantine, Verdicts: b.verdicts,
		TuningDB: b.tuningDB, Notes: slices.Clone(b.notes)}
	if note := r.verdicts.told(); note != "" {
		st.Notes = append(st.Notes, note)
	}
	for i := range b.rules {
		st.Rules = append(st.Rules, b.rules[i].String())
	}
	return st
}

// String returns "line 7: {match}: use X; exclude Y, Z; objective latency".
func (r *rule) String() string {
	var parts []string
	if !r.use.IsZero() {
		parts = append(parts, "use "+r.use.String())
	}
	if len(r.exclude) > 0 {
		var all []string
		for _, t := range r.exclude {
			all = append(all, t.String())
		}
		parts = append(parts, "exclude "+strings.Join(all, ", "))
	}
	if r.ranked {
		parts = append(parts, "objective "+r.objective.String())
	}
	return fmt.Sprintf("line %d: %s: %s", r.Line, r.match, strings.Join(parts, "; "))
}
