package device

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opmux/opmux/tensor"
)

// Conditions that this package's errors and those of backends wrap.
var (
	ErrUnavailable = errors.New("device not available")
	ErrOutOfMemory = errors.New("out of device memory")
	ErrClosed      = errors.New("closed")
	ErrRange       = errors.New("range outside the buffer")
	ErrUnsupported = errors.New("not supported by this backend")
	ErrRegistered  = errors.New("already registered")
)

// State says how far a device's capability record can be trusted.
type State uint8

// States of a capability record.
const (
	Unprobed State = iota
	Probed
	Failed
)

// String returns "unprobed", "probed" or "failed".
func (s State) String() string { return [...]string{"unprobed", "probed", "failed"}[min(s, Failed)] }

// Memory holds separate facts about a device's memory; none follows from another.
type Memory struct {
	Total                int64 `json:"total,omitempty"`     // bytes that this process may use, 0 if unknown
	Available            int64 `json:"available,omitempty"` // bytes free at Open, 0 if unknown
	SharedPhysical       bool  `json:"shared_physical"`
	DeviceReadsHost      bool  `json:"device_reads_host"`       // any pageable host memory
	HostReadsDeviceAlloc bool  `json:"host_reads_device_alloc"` // the gate of the reference tier
	HostVisibleAlloc     bool  `json:"host_visible_alloc"`      // such allocations can be had
	CoherentWithoutFlush bool  `json:"coherent_without_flush"`
}

// Library is a foreign library that a backend looked for.
type Library struct {
	Name    string `json:"name"`
	Path    string `json:"path,omitempty"` // resolved, empty if not found
	Version string `json:"version,omitempty"`
	Err     string `json:"error,omitempty"` // every attempt and why it failed
}

// ProviderCaps is what a backend publishes about one device instance. The zero value means "not probed".
type ProviderCaps struct {
	Device           tensor.Device
	Valid            bool // probed: the fields below are facts. Equal to State == Probed once published.
	State            State
	Err              error  // why State is Failed
	Arch             string // the vendor's word: "sm_90", "apple9", "avx512vnni"
	ComputeMajor     int32  // CUDA: SM version; Metal: GPU family; CPU: 0
	ComputeMinor     int32
	ComputeUnitCount int32
	Features         uint64 // bits whose meaning belongs to the publishing backend
	Memory           Memory
	Libraries        []Library
	Platform         *Platform // the device as the choice of kernels sees it; nil: AsPlatform derives it. Not to be changed
}

// MarshalJSON encodes the record as listings print it: device and state by name, features in hex, Err as its text.
func (c ProviderCaps) MarshalJSON() ([]byte, error) {
	var text string
	if c.Err != nil {
		text = c.Err.Error()
	}
	return json.Marshal(struct {
		Device       string    `json:"device"`
		State        string    `json:"state"`
		Err          string    `json:"error,omitempty"`
		Arch         string    `json:"arch,omitempty"`
		ComputeMajor int32     `json:"compute_major,omitempty"`
		ComputeMinor int32     `json:"compute_minor,omitempty"`
		ComputeUnits int32     `json:"compute_units,omitempty"`
		Features     string    `json:"features"`
		Memory       Memory    `json:"memory"`
		Libraries    []Library `json:"libraries,omitempty"`
		Platform     *Platform `json:"platform,omitempty"`
	}{c.Device.String(), c.State.String(), text, c.Arch, c.ComputeMajor, c.ComputeMinor, c.ComputeUnitCount,
		fmt.Sprintf("%#x", c.Features), c.Memory, c.Libraries, c.Platform})
}
