package registry

import (
	"fmt"
	"reflect"
	"slices"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// RegisterOp registers fn as the native provider of op on a kind: name NativeProviderName, priority 0, no predicate.
// Errors as RegisterOpProvider.
func (r *Registry) RegisterOp(op Op, kind tensor.Kind, fn Launcher) (*Registration, error) {
	return r.register(op, kind, OpProvider{Name: NativeProviderName, Fn: fn}, true)
}

// RegisterTypedOpIn is RegisterOp for a launcher that takes the op's record type. ErrSignature if R is another type.
func RegisterTypedOpIn[R any](r *Registry, op Op, kind tensor.Kind, fn func(*Queue, *R) Status) (*Registration, error) {
	return r.register(op, kind, OpProvider{Name: NativeProviderName, Fn: Erase(fn), Record: reflect.TypeFor[R]()}, true)
}

// GetOp looks up op on dev and returns the counting entry of its chain: calling it runs the best usable kernel of the
// chain as it is at the call, and counts. A hit costs one atomic load and two indexes. Errors: ErrUnknownOp,
// ErrUnknownDevice, *NoProviderError (built at compile time).
func (r *Registry) GetOp(op Op, dev tensor.Device) (Launcher, error) {
	t := r.cur.Load()
	if c := t.chain(op, dev); c != nil && c.ready.Load() {
		return c.entry, nil
	}
	return r.getOp(op, dev)
}

func (r *Registry) getOp(op Op, dev tensor.Device) (Launcher, error) {
	_, c, err := r.find(op, dev)
	if err != nil {
		return nil, err
	}
	c.announce()
	if c.err != nil {
		c.slot.noKernel.Add(1)
		return nil, c.err
	}
	return c.slot.entry, nil
}

// GetTypedOpIn is GetOp with the record's type. ErrSignature if R is not the op's record.
func GetTypedOpIn[R any](r *Registry, op Op, dev tensor.Device) (func(*Queue, *R) Status, error) {
	if d, ok := r.Describe(op); ok && d.Record != nil && d.Record != reflect.TypeFor[R]() {
		return nil, &SignatureError{OpName: d.Name, Want: d.Record.String(), Got: reflect.TypeFor[R]().String()}
	}
	fn, err := r.GetOp(op, dev)
	if err != nil {
		return nil, err
	}
	return func(q *Queue, a *R) Status { return fn(q, unsafe.Pointer(a)) }, nil
}

// GetOpFallback counts one decline of op on dev and returns the entry that runs the kernels below the one called name
// (a kernel's or a provider's name), whether or not that one is usable. Errors: ErrNil for an empty name, ErrUnknownOp,
// ErrUnknownDevice, ErrUnknownName (these count nothing), ErrDeclined when nothing usable stands below (counted).
func (r *Registry) GetOpFallback(op Op, dev tensor.Device, name string) (Launcher, error) {
	_, c, err := r.find(op, dev)
	if err != nil {
		return nil, err
	}
	k, err := c.floor(name)
	if err != nil {
		return nil, err
	}
	c.slot.fallbacks.Add(1)
	if c.below(k.newest.Load()) == len(c.steps) {
		return nil, fmt.Errorf("registry: %s on %v: %s declined and nothing usable is below: %w", c.slot.desc.Name, c.slot.dev, name, ErrDeclined)
	}
	return k.below, nil
}

// NoteOpDecline counts one decline of op on dev without a lookup, for a launcher that keeps its fallback. Invalid ids
// are ignored.
func (r *Registry) NoteOpDecline(op Op, dev tensor.Device) {
	if _, c, err := r.find(op, dev); err == nil {
		c.slot.notes.Add(1)
	}
}

// OpRegistered reports whether op has a usable provider of dev's own; a borrowed CPU kernel does not count.
func (r *Registry) OpRegistered(op Op, dev tensor.Device) bool {
	_, c, err := r.find(op, dev)
	return err == nil && c.native()
}

// OpProviderCount is the number of providers that OpProviderNameAt lists.
func (r *Registry) OpProviderCount(op Op, dev tensor.Device) int {
	return len(r.names(op, dev))
}

// OpProviderNameAt is the i-th provider name in chain order over all registered providers, usable or not, with
// ReferenceProviderName where a borrowed kernel is the head; "" outside the list.
func (r *Registry) OpProviderNameAt(op Op, dev tensor.Device, i int) string {
	if n := r.names(op, dev); i >= 0 && i < len(n) {
		return n[i]
	}
	return ""
}

func (r *Registry) names(op Op, dev tensor.Device) (out []string) {
	_, c, err := r.find(op, dev)
	if err != nil {
		return nil
	}
	if len(c.steps) > 0 && !c.native() {
		out = append(out, ReferenceProviderName)
	}
	for _, g := range c.all {
		out = append(out, g.p.Name)
	}
	return out
}

// OpProviderStats are the statistics of one op on one device since the last reset.
type OpProviderStats struct {
	LastSelected string `json:"last_selected"` // provider at the head at the last first lookup of a snapshot
	Selections   uint64 `json:"selections"`    // successful lookups (GetOp, and launches through a queue or handle) while call statistics are on
	Declines     uint64 `json:"declines"`      // declined calls, GetOpFallback calls and NoteOpDecline calls
	Fallbacks    uint64 `json:"fallbacks"`     // lookups and launches that found no usable provider
}

// GetOpProviderStats returns the statistics of op on dev, zero for invalid ids.
func (r *Registry) GetOpProviderStats(op Op, dev tensor.Device) OpProviderStats {
	_, c, err := r.find(op, dev)
	if err != nil {
		return OpProviderStats{}
	}
	return c.slot.stats(r.cells.totals())
}

// stats are the slot's statistics, given every kernel's totals.
func (sl *slot) stats(all []kernelTotals) OpProviderStats {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	t := sl.totals(all)
	st := OpProviderStats{Selections: t.selections - sl.zero.selections, Declines: t.declines - sl.zero.declines, Fallbacks: t.noKernel - sl.zero.noKernel}
	if p := sl.last.Load(); p != nil {
		st.LastSelected = *p
	}
	return st
}

// ResetOpProviderStats clears the statistics of op on dev, last selected and the memory of delivered events included.
// The counters of Snapshot are monotone and stay.
func (r *Registry) ResetOpProviderStats(op Op, dev tensor.Device) {
	_, c, err := r.find(op, dev)
	if err != nil {
		return
	}
	sl := c.slot
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.zero = sl.totals(r.cells.totals())
	sl.last.Store(nil)
	sl.warned.Store(false)
	clear(sl.told)
	for i := range c.steps {
		c.steps[i].seen.Store(0)
	}
	c.announced.Store(false)
	c.ready.Store(false)
}

// EnableOpProviderCallStats switches the counting of Selections; every other counter is always on.
func (r *Registry) EnableOpProviderCallStats(on bool) {
	r.callStats.Store(on)
	for _, d := range r.cur.Load().devs {
		for _, c := range d.ops {
			if c != nil && on {
				c.ready.Store(false)
			}
		}
	}
}

// SetDeviceProviderCaps publishes what a backend found out about dev; the chains of dev are recompiled before it
// returns. The record's Device is set to dev and Valid to State == Probed (State to Probed where Valid is set and State
// is not). An equal record changes nothing; the zero record goes back to "not probed". ErrUnknownDevice.
func (r *Registry) SetDeviceProviderCaps(dev tensor.Device, caps device.ProviderCaps) error {
	if err := checkDevice(dev); err != nil {
		return err
	}
	caps.Device = dev
	caps.Libraries = slices.Clone(caps.Libraries)
	if caps.Valid && caps.State == device.Unprobed {
		caps.State = device.Probed
	}
	caps.Valid = caps.State == device.Probed
	return r.mutate(func(s *state) error {
		at, known := s.caps[dev]
		if !known {
			s.addDevice(dev)
			at = s.caps[dev]
		} else if reflect.DeepEqual(at.caps, caps) {
			return errUnchanged
		}
		s.caps[dev] = capsAt{version: at.version + 1, caps: caps, p: &platformAt{}}
		s.touchDevice(dev)
		s.events = append(s.events, Event{Kind: EventCaps, Device: dev, Detail: caps.State.String() + " " + caps.Arch})
		return nil
	})
}

// GetDeviceProviderCaps returns the published record of dev, or one that is not Valid.
func (r *Registry) GetDeviceProviderCaps(dev tensor.Device) device.ProviderCaps {
	t, err := r.snapshot()
	if err == nil {
		if at, ok := t.caps[dev]; ok {
			c := at.caps
			c.Libraries = slices.Clone(c.Libraries)
			return c
		}
	}
	return device.ProviderCaps{Device: dev}
}
