package device

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/opmux/opmux/tensor"
)

// ErrLost says that a device stopped working while it was open: nothing more can be done on it until it is closed and
// opened again.
var ErrLost = errors.New("device lost")

// HealthReporter is implemented by devices that can tell whether they still work. Health returns nil, or what is wrong;
// a *LostError is sticky: the same one is returned until the device is closed. The call is cheap and never blocks.
type HealthReporter interface{ Health() error }

// LostError is the loss of a device. It is ErrLost and wraps the cause.
type LostError struct {
	Device tensor.Device
	At     time.Time // when the loss was noticed
	Err    error     // what the vendor's library said
}

// Error names the device, the time and the cause.
func (e *LostError) Error() string {
	return fmt.Sprintf("device: %v: %v at %s: %v", e.Device, ErrLost, e.At.UTC().Format(time.RFC3339), e.Err)
}

// Unwrap returns ErrLost and the cause.
func (e *LostError) Unwrap() []error { return []error{ErrLost, e.Err} }

// HealthState is the sticky state of one device, for backends to embed; it makes them a HealthReporter. The zero value is a
// working device. Methods are safe for concurrent use.
type HealthState struct{ lost atomic.Pointer[LostError] }

// Lose records the loss of device id, unless it was lost before, and returns the recorded error: what calls on the
// device fail with from now on.
func (h *HealthState) Lose(id tensor.Device, cause error) error {
	h.lost.CompareAndSwap(nil, &LostError{Device: id, At: time.Now(), Err: cause})
	return h.lost.Load()
}

// Health returns nil or the recorded *LostError.
func (h *HealthState) Health() error {
	if e := h.lost.Load(); e != nil {
		return e
	}
	return nil
}

// Condition is the health of one open device.
type Condition struct {
	Device tensor.Device
	Name   string
	Err    error // nil: works, or does not say
	Known  bool  // the device is a HealthReporter
}

// State returns "ok", "lost", "failing" or "unknown".
func (c Condition) State() string {
	switch {
	case !c.Known:
		return "unknown"
	case c.Err == nil:
		return "ok"
	case errors.Is(c.Err, ErrLost):
		return "lost"
	}
	return "failing"
}

// Health lists how the open devices are, by kind and index.
func (t *Table) Health() []Condition {
	open := t.Devices()
	out := make([]Condition, len(open))
	for i, d := range open {
		out[i] = Condition{Device: d.ID(), Name: d.Name()}
		if h, ok := d.(HealthReporter); ok {
			out[i].Known, out[i].Err = true, h.Health()
		}
	}
	return out
}
