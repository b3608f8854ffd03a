package registry

import "fmt"

// Code is the outcome of one launch.
type Code uint8

// Codes. Any other value counts as Failed.
const (
	OK       Code = iota
	Declined      // this call is not for this kernel: nothing was touched or enqueued, the next of the chain is tried
	Failed        // the call failed; the record's Err says why; outputs are undefined unless NothingEnqueued is set
	Grow          // the queue's workspace is too small: Payload bytes are needed, the launch is repeated once
)

// Reason says why a kernel declined.
type Reason uint8

// Reasons of a decline.
const (
	ReasonNone Reason = iota
	ReasonDType
	ReasonLayout
	ReasonStride
	ReasonAlignment
	ReasonShape
	ReasonThreshold // size threshold: another kernel is faster here
	ReasonWorkspace
	ReasonCapture
	ReasonLibrary
	ReasonDevice
	ReasonNumerics
	ReasonAttribute
	ReasonForwarded // the launcher forwarded the call by itself (GetOpFallback); attribution only
	ReasonOther
	ReasonDomain     // the call lies outside the formats or traits that the kernel declared: it was not asked, no fallback
	NumReasons   int = iota
)

var reasonNames = [NumReasons]string{"none", "dtype", "layout", "stride", "alignment", "shape", "size-threshold", "workspace",
	"capture", "library", "device-state", "numerics", "attribute", "forwarded", "other", "domain"}

// String returns the reason's name as Explain prints it.
func (r Reason) String() string {
	if int(r) < NumReasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason(%d)", r)
}

// Status is a launcher's answer in one word: code (bits 0-7), reason (8-15), flags (16-23), payload (24-63).
// The zero value is OK.
type Status uint64

const (
	statusNothingEnqueued Status = 1 << 16
	payloadShift                 = 24
)

// Decline is the status of a kernel that leaves this call to the next one.
func Decline(r Reason) Status { return Status(Declined) | Status(r)<<8 }

// NeedWorkspace asks for bytes of workspace and a second launch.
func NeedWorkspace(bytes int64) Status { return Status(Grow) | Status(bytes)<<payloadShift }

// Failure is the status of a failed call with a vendor's error code (40 bits, 0 if there is none).
func Failure(vendor int64) Status { return Status(Failed) | Status(vendor)<<payloadShift }

// NothingEnqueued marks a failure after which outputs and queue are as before the call.
func (s Status) NothingEnqueued() Status { return s | statusNothingEnqueued }

// Code returns the outcome.
func (s Status) Code() Code { return Code(s) }

// Reason returns the decline's reason.
func (s Status) Reason() Reason { return Reason(s >> 8) }

// Payload returns the bytes of a Grow or the vendor code of a failure.
func (s Status) Payload() int64 { return int64(s) >> payloadShift }

// String returns a short text for logs.
func (s Status) String() string {
	switch s.Code() {
	case OK:
		return "ok"
	case Declined:
		return "declined(" + s.Reason().String() + ")"
	case Grow:
		return fmt.Sprintf("grow(%d)", s.Payload())
	}
	return fmt.Sprintf("failed(%d)", s.Payload())
}
