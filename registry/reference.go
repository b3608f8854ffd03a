package registry

import (
	"github.com/opmux/opmux/tensor"
)

// ReferencePolicy says whether a device whose memory the host can read may run an op on a borrowed CPU kernel.
type ReferencePolicy uint8

// Policies. The zero value stands for the default, ReferenceWarn.
const (
	ReferenceDefault ReferencePolicy = iota
	ReferenceOff
	ReferenceWarn  // allowed, with one warning for each op and device
	ReferenceAllow // allowed and silent; counted all the same
)

// String returns "default", "off", "warn" or "allow".
func (p ReferencePolicy) String() string {
	return [...]string{"default", "off", "warn", "allow"}[min(p, ReferenceAllow)]
}

func (s *state) referencePolicy(dev tensor.Device) ReferencePolicy {
	if p, ok := s.policy[dev]; ok {
		return p
	}
	if s.opts.Reference == ReferenceDefault {
		return ReferenceWarn
	}
	return s.opts.Reference
}

// referenceRefused says why dev may not borrow CPU kernels; "" if it may.
func (s *state) referenceRefused(dev tensor.Device) string {
	switch {
	case !s.caps[dev].caps.Memory.HostReadsDeviceAlloc:
		return "the host cannot read the device's memory"
	case s.referencePolicy(dev) == ReferenceOff:
		return "policy off"
	}
	return ""
}

// borrow prepares the launch of a CPU kernel on another device's queue: never in strict mode or while capturing, only
// where the CPU sees every operand, and after the queued work is complete. It returns 0 to go on.
func (s *step) borrow(q *Queue, k *cell, h *Header) Status {
	if q.strict(h) {
		sl := s.k.slot
		return h.Fail(&StrictError{OpName: sl.desc.Name, Device: sl.dev, Kernel: s.g.p.Kernel})
	}
	r := ReasonNone
	if q.capturing() {
		r = ReasonCapture
	} else if !visible(s.k.slot.desc.operands(), h) {
		r = ReasonDevice
	}
	if r != ReasonNone {
		k.declined[r].Add(1)
		return Decline(r)
	}
	if err := q.sync(); err != nil {
		k.failed.Add(1)
		return h.Fail(err)
	}
	return 0
}

func (sl *slot) referenceUsed(s *step) {
	if s.guard&guardWarn != 0 && !sl.warned.Load() && sl.warned.CompareAndSwap(false, true) {
		sl.r.emit(Event{Kind: EventReference, Op: sl.op, OpName: sl.desc.Name, Device: sl.dev,
			Kernel: s.g.p.Kernel, Provider: ReferenceProviderName, Detail: "the op runs on the host CPU"})
	}
}

// ReferenceTierEligible reports whether dev could borrow CPU kernels: it is not a CPU and the host reads its memory.
// Invalid devices are not eligible. The policy does not matter.
func (r *Registry) ReferenceTierEligible(dev tensor.Device) bool {
	if checkDevice(dev) != nil || dev.Kind == tensor.CPU {
		return false
	}
	return r.GetDeviceProviderCaps(dev).Memory.HostReadsDeviceAlloc
}

// RegisterReferenceTier sets policy ReferenceAllow for dev and returns the number of ops that thereby run on a borrowed
// CPU kernel for want of a native one. It returns 0 when dev is not eligible or the policy was ReferenceAllow before.
func (r *Registry) RegisterReferenceTier(dev tensor.Device) int {
	if !r.ReferenceTierEligible(dev) {
		return 0
	}
	if r.Seal() != nil {
		return 0
	}
	changed := false
	err := r.mutate(func(s *state) error {
		if changed = s.referencePolicy(dev) != ReferenceAllow; changed {
			s.policy[dev] = ReferenceAllow
			s.touchDevice(dev)
			return nil
		}
		return errUnchanged
	})
	if err != nil || !changed {
		return 0
	}
	n := 0
	for _, c := range r.cur.Load().devs[deviceNumber(dev)].ops {
		if c != nil && len(c.steps) > 0 && !c.native() {
			n++
		}
	}
	return n
}

// GetReferenceTierHits counts the launches that ran on borrowed CPU kernels, on every device.
func (r *Registry) GetReferenceTierHits() (n uint64) {
	totals := r.cells.totals()
	for id, k := range r.cells.all()[:len(totals)] {
		if k.borrowed {
			n += totals[id].served()
		}
	}
	return n
}

// SetReferencePolicy sets the policy of one device, over the options' own; ReferenceDefault goes back to it.
// ErrUnknownDevice.
func (r *Registry) SetReferencePolicy(dev tensor.Device, p ReferencePolicy) error {
	if err := checkDevice(dev); err != nil {
		return err
	}
	return r.mutate(func(s *state) error {
		s.addDevice(dev)
		delete(s.policy, dev)
		if p != ReferenceDefault {
			s.policy[dev] = p
		}
		s.touchDevice(dev)
		return nil
	})
}
