package registry

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opmux/opmux/tensor"
)

// ErrRequired is what every RequireError is.
var ErrRequired = errors.New("required kernel is missing")

// RequireError says which of the kernels or providers that a caller insists on cannot run on a device, or did not.
type RequireError struct {
	Device  tensor.Device
	Missing []Missing
}

// Missing is one name of a RequireError.
type Missing struct {
	Name       string      `json:"name"`
	Candidates []Candidate `json:"candidates,omitempty"` // registered, with the reasons why they are not used; each reason once
	Part       string      `json:"part,omitempty"`       // of an unknown name: what of it is unknown, if not all
	Near       []string    `json:"near,omitempty"`       // of an unknown name: the nearest known ones
	Idle       bool        `json:"idle,omitempty"`       // usable, but it has executed nothing
	Instead    []string    `json:"instead,omitempty"`    // of an idle one: what has executed calls of its ops on the device
}

// String returns the name and what is the matter with it.
func (m Missing) String() string {
	switch {
	case m.Idle:
		if len(m.Instead) > 0 {
			return m.Name + " has executed nothing; " + strings.Join(m.Instead, ", ") + " ran instead"
		}
		return m.Name + " has executed nothing"
	case len(m.Candidates) == 0:
		return strings.TrimPrefix((&UnknownNameError{Name: m.Name, Part: m.Part, Near: m.Near}).Error(), "registry: ")
	}
	var why []string
	for _, c := range m.Candidates {
		why = append(why, c.String())
	}
	return m.Name + " is not usable: " + strings.Join(why, "; ")
}

// Error names the device and each missing name with its reasons.
func (e *RequireError) Error() string {
	var all []string
	for _, m := range e.Missing {
		all = append(all, m.String())
	}
	return fmt.Sprintf("registry: %v: %v: %s", e.Device, ErrRequired, strings.Join(all, "; "))
}

// Unwrap returns ErrRequired.
func (e *RequireError) Unwrap() error { return ErrRequired }

// Require checks, for example when a program starts, that every name is usable on dev: that a kernel of it stands in the
// chain of some op. Names are a kernel's or a provider's, or name@op; ReferenceProviderName means the borrowed kernels.
// Errors: *RequireError with the reasons; ErrName; ErrUnknownDevice.
func (r *Registry) Require(dev tensor.Device, names ...string) error {
	entries, err := requirements(dev, names)
	if err != nil {
		return err
	}
	t, err := r.snapshot()
	if err != nil {
		return err
	}
	if err := t.require(dev, entries); err != nil {
		for i, m := range err.Missing {
			if len(m.Candidates) == 0 {
				r.explainUnknown(&err.Missing[i], entries[slices.IndexFunc(entries, func(e entry) bool { return e.text == m.Name })], dev)
			}
		}
		return err
	}
	return nil
}

// RequireExecuted checks after a run that every name, as in Require, has executed a call on dev since the registry was
// made. Errors as Require's.
func (r *Registry) RequireExecuted(dev tensor.Device, names ...string) error {
	return r.requireExecuted(dev, nil, names)
}

// RequireRun is Require at the start of a run. The function that it returns is RequireExecuted at the end, for what was
// executed in between.
func (r *Registry) RequireRun(dev tensor.Device, names ...string) (executed func() error, err error) {
	if err := r.Require(dev, names...); err != nil {
		return nil, err
	}
	before := r.cells.totals()
	return func() error { return r.requireExecuted(dev, before, names) }, nil
}

// maxInstead bounds what an error lists of the kernels that ran instead of one.
const maxInstead = 4

func (r *Registry) requireExecuted(dev tensor.Device, before []kernelTotals, names []string) error {
	if err := r.Require(dev, names...); err != nil {
		return err
	}
	entries, err := requirements(dev, names)
	if err != nil {
		return err
	}
	e, ops, totals := &RequireError{Device: dev}, r.ops.Load(), r.cells.totals()
next:
	for i := range entries {
		for id, k := range r.cells.all()[:len(totals)] {
			n := totals[id].executed
			if id < len(before) {
				n -= before[id].executed
			}
			if k.slot.dev == dev && n > 0 && entries[i].covers(ops, k.newest.Load(), dev, k.borrowed) {
				continue next
			}
		}
		m := Missing{Name: entries[i].text, Idle: true}
		served := map[Op]bool{}
		for _, k := range r.cells.all()[:len(totals)] {
			if k.slot.dev == dev && entries[i].covers(ops, k.newest.Load(), dev, k.borrowed) {
				served[k.slot.op] = true
			}
		}
		for id, k := range r.cells.all()[:len(totals)] {
			n := totals[id].executed
			if id < len(before) {
				n -= before[id].executed
			}
			if name := k.newest.Load().p.Kernel; k.slot.dev == dev && served[k.slot.op] && n > 0 && len(m.Instead) < maxInstead && !slices.Contains(m.Instead, name) {
				m.Instead = append(m.Instead, name)
			}
		}
		e.Missing = append(e.Missing, m)
	}
	if len(e.Missing) > 0 {
		return e
	}
	return nil
}

// requirements parses the names of Require.
func requirements(dev tensor.Device, names []string) (out []entry, err error) {
	if err := checkDevice(dev); err != nil {
		return nil, err
	}
	for _, n := range names {
		e, err := parseEntry(n)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// require returns nil if a kernel of every entry stands in a chain of dev.
func (t *table) require(dev tensor.Device, entries []entry) *RequireError {
	e := &RequireError{Device: dev}
	dn := deviceNumber(dev)
	for i := range entries {
		m, found := Missing{Name: entries[i].text}, false
		for op := range t.ops.byID {
			if c := t.at(dn, Op(op)); c != nil && !found {
				found = m.search(t, c, &entries[i])
			}
		}
		if !found {
			e.Missing = append(e.Missing, m)
		}
	}
	if len(e.Missing) == 0 {
		return nil
	}
	return e
}

// search looks for the entry in a chain and keeps the reasons of what the chain does not hold.
func (m *Missing) search(t *table, c *chain, e *entry) bool {
	for s := range c.reachable {
		if e.covers(t.ops, s.g, c.slot.dev, s.k.borrowed) {
			return true
		}
	}
	for _, d := range c.dropped {
		same := func(o Candidate) bool { return o.Why == d.why && o.Detail == d.detail }
		if e.covers(t.ops, d.g, c.slot.dev, false) && !slices.ContainsFunc(m.Candidates, same) {
			m.Candidates = append(m.Candidates, d.candidate())
		}
	}
	return false
}

// candidate is the drop as errors list it.
func (d drop) candidate() Candidate {
	return Candidate{Kernel: d.g.p.Kernel, Provider: d.g.p.Name, Priority: d.g.p.Priority, Tier: d.g.p.Tier.String(), Why: d.why, Detail: d.detail}
}

// required checks the names that the queue's scope requires.
func (q *Queue) required() error {
	if q.scope == nil || len(q.scope.required) == 0 {
		return nil
	}
	t, err := q.reg.snapshot()
	if err != nil {
		return err
	}
	return q.scope.missing(t, q.dev)
}

// missing checks the names that a scope requires, once for each snapshot.
func (sc *scope) missing(t *table, dev tensor.Device) error {
	if len(sc.required) == 0 {
		return nil
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if sc.checked != t {
		sc.checked, sc.absent = t, nil
		if e := t.require(dev, sc.required); e != nil {
			sc.absent = e
		}
	}
	return sc.absent
}

// explainUnknown says what of a required name is unknown on dev.
func (r *Registry) explainUnknown(m *Missing, e entry, dev tensor.Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !e.on(dev) {
		m.Part = fmt.Sprintf("it is not about %v", dev)
		return
	}
	if !e.hasDev {
		e.hasDev, e.dev = true, tensor.Device{Kind: dev.Kind}
	}
	if u := (*UnknownNameError)(nil); errors.As(r.state.unknown(e, ""), &u) {
		m.Part, m.Near = u.Part, u.Near
	}
}
