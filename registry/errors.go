package registry

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opmux/opmux/tensor"
)

// Conditions that this package's errors wrap; test them with errors.Is.
var (
	ErrUnknownOp     = errors.New("unknown op")
	ErrUnknownDevice = errors.New("unknown device")
	ErrUnknownName   = errors.New("unknown name")
	ErrNoKernel      = errors.New("no kernel")
	ErrDeclined      = errors.New("every kernel declined")
	ErrFailed        = errors.New("kernel failed")
	ErrRequest       = errors.New("request refused")
	ErrOverride      = errors.New("override cannot be honoured")
	ErrAmbiguous     = errors.New("ambiguous")
	ErrPlan          = errors.New("a plan for another machine cannot be launched")
	ErrWeights       = errors.New("weights of another layout")
	ErrStrict        = errors.New("strict mode refuses a fallback")
	ErrDisabled      = errors.New("disabled")
	ErrDuplicate     = errors.New("duplicate")
	ErrSignature     = errors.New("signature mismatch")
	ErrName          = errors.New("malformed name")
	ErrReserved      = errors.New("reserved name or priority")
	ErrNil           = errors.New("nil argument")
	ErrArgument      = errors.New("bad argument")
	ErrBusy          = errors.New("registry busy: a predicate changed it while it was being evaluated")
	ErrDirtyDecline  = errors.New("kernel declined after it had written an output")
	ErrSelfTest      = errors.New("self-test failed")
)

// Candidate is a registered provider that a chain does not hold, and why.
type Candidate struct {
	Kernel   string     `json:"kernel"`
	Provider string     `json:"provider"`
	Priority int32      `json:"priority"`
	Tier     string     `json:"tier"`
	Why      DropReason `json:"why"`
	Detail   string     `json:"detail,omitempty"`
}

// String returns "kernel: reason (detail)".
func (c Candidate) String() string {
	if c.Detail == "" {
		return c.Kernel + ": " + c.Why.String()
	}
	return c.Kernel + ": " + c.Why.String() + " (" + c.Detail + ")"
}

// NoProviderError says that no usable provider serves an op on a device. It is built when the chain is compiled, not
// when a lookup fails. It is ErrNoKernel, and ErrDisabled too when only disabling stands between a provider and its use,
// and ErrOverride where an option names something unknown.
type NoProviderError struct {
	Op         Op
	OpName     string
	Device     tensor.Device
	Candidates []Candidate
	Reference  string // why no reference kernel was borrowed; empty on the CPU
	Override   string // which option wants a name that nothing registered has, with near ones; the op is not served without it
}

// Error names the op, the device, every candidate with its reason, and the next step.
func (e *NoProviderError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "registry: %s on %v: %v", e.OpName, e.Device, ErrNoKernel)
	if e.Override != "" {
		return b.String() + ": " + e.Override
	}
	if len(e.Candidates) == 0 {
		b.WriteString(": no provider is registered")
	}
	for i, c := range e.Candidates {
		b.WriteString([2]string{"; ", ": "}[b2i(i == 0)] + c.String())
	}
	if e.Reference != "" {
		b.WriteString("; reference tier: " + e.Reference)
	}
	return b.String()
}

// Is reports ErrNoKernel, ErrDisabled if a candidate is only disabled, and ErrOverride if Override says something.
func (e *NoProviderError) Is(target error) bool {
	if target == ErrOverride {
		return e.Override != ""
	}
	if target == ErrDisabled {
		for _, c := range e.Candidates {
			if c.Why == DropDisabled {
				return true
			}
		}
	}
	return target == ErrNoKernel
}

// Refusal is one kernel's decline inside a DeclinedError.
type Refusal struct {
	Kernel string
	Reason Reason
	Detail string // of what the kernel's description leaves out: "m: wants at least 32, got 1"; empty if the kernel itself declined
}

// DeclinedError says that every kernel of the chain refused the call; nothing was touched. It is ErrDeclined.
type DeclinedError struct {
	Op       Op
	OpName   string
	Device   tensor.Device
	Refusals []Refusal
}

// Error lists each kernel with its reason.
func (e *DeclinedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "registry: %s on %v: %v", e.OpName, e.Device, ErrDeclined)
	for i, r := range e.Refusals {
		fmt.Fprintf(&b, "%s%s: %v", [2]string{", ", ": "}[b2i(i == 0)], r.Kernel, r.Reason)
		if r.Detail != "" {
			fmt.Fprintf(&b, " (%s)", r.Detail)
		}
	}
	return b.String()
}

// Unwrap returns ErrDeclined.
func (e *DeclinedError) Unwrap() error { return ErrDeclined }

// LaunchError is a failed launch. It is ErrFailed and wraps the cause that the kernel left in the record's header.
type LaunchError struct {
	Op     Op
	OpName string
	Device tensor.Device
	Kernel string
	Status Status // vendor code in Payload
	Err    error  // cause, may be nil
}

// Error names op, kernel, device, status and cause.
func (e *LaunchError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("registry: %s (%s on %v): %v", e.OpName, e.Kernel, e.Device, e.Err)
	}
	return fmt.Sprintf("registry: %s (%s on %v): %v", e.OpName, e.Kernel, e.Device, e.Status)
}

// Unwrap returns the cause and ErrFailed.
func (e *LaunchError) Unwrap() []error {
	if e.Err != nil {
		return []error{ErrFailed, e.Err}
	}
	return []error{ErrFailed}
}

// StrictError is a launch that strict mode stopped before it fell back: to the next kernel, because From declined (or
// failed with nothing enqueued), or to a borrowed CPU kernel. It is ErrStrict.
type StrictError struct {
	OpName string
	Device tensor.Device
	From   string // the kernel that left the call; empty where a borrowed kernel heads the chain
	Kernel string // that would have run next
	Reason Reason // why From left it
}

// Error names the op, the device, both kernels and the reason.
func (e *StrictError) Error() string {
	if e.From != "" {
		return fmt.Sprintf("registry: %s on %v: %s declined (%v) and the call would fall back to %s: %v", e.OpName, e.Device, e.From, e.Reason, e.Kernel, ErrStrict)
	}
	return fmt.Sprintf("registry: %s on %v would run on the borrowed CPU kernel %s: %v", e.OpName, e.Device, e.Kernel, ErrStrict)
}

// Unwrap returns ErrStrict.
func (e *StrictError) Unwrap() error { return ErrStrict }

// DuplicateError refuses a second registration of a kernel name in a slot. It is ErrDuplicate.
type DuplicateError struct {
	OpName string
	Kind   tensor.Kind
	Kernel string
	Source string // file:line of the earlier registration
}

// Error names the kernel, the slot and where the earlier registration stands.
func (e *DuplicateError) Error() string {
	return fmt.Sprintf("registry: %s on %v: kernel %s is registered at %s: %v", e.OpName, e.Kind, e.Kernel, e.Source, ErrDuplicate)
}

// Unwrap returns ErrDuplicate.
func (e *DuplicateError) Unwrap() error { return ErrDuplicate }

// SignatureError says that a launcher's record type is not the op's. It is ErrSignature.
type SignatureError struct {
	OpName    string
	Want, Got string
}

// Error names both record types.
func (e *SignatureError) Error() string {
	return fmt.Sprintf("registry: %s takes %s, not %s: %v", e.OpName, e.Want, e.Got, ErrSignature)
}

// Unwrap returns ErrSignature.
func (e *SignatureError) Unwrap() error { return ErrSignature }

// UnknownNameError says that a kernel, provider or op name is not registered. It is ErrUnknownName.
type UnknownNameError struct {
	Name string
	Part string   // what is wrong where it is not the name itself: "no op is called ..."
	Near []string // the nearest known names of that part
}

// Error names the unknown name and the nearest known ones.
func (e *UnknownNameError) Error() string {
	what := e.Part
	if what == "" {
		what = ErrUnknownName.Error()
	}
	s := fmt.Sprintf("registry: %q: %s", e.Name, what)
	if len(e.Near) > 0 {
		s += "; nearest: " + strings.Join(e.Near, ", ")
	}
	return s
}

// Unwrap returns ErrUnknownName.
func (e *UnknownNameError) Unwrap() error { return ErrUnknownName }

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
