package tensor

import (
	"fmt"
	"strconv"
	"strings"
)

// Kind is a type of device. The numbers are stable: they stand in the C ABI.
type Kind uint8

// Device kinds. XPU is reserved: no backend of this module opens one, tests use it for fakes. No backend opens ROCm
// (AMD's compute stack) either: kernels for it can be described and chosen for a machine elsewhere, not run.
const (
	CPU Kind = iota
	CUDA
	Metal
	Vulkan
	XPU
	ROCm
	NumKinds int = iota
)

var kindNames = [NumKinds]string{"cpu", "cuda", "metal", "vulkan", "xpu", "rocm"}

// String returns the lower-case name, or "kind(n)" outside the list.
func (k Kind) String() string {
	if k.Valid() {
		return kindNames[k]
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Valid reports whether k is one of the listed kinds.
func (k Kind) Valid() bool { return int(k) < NumKinds }

// ParseKind is the inverse of String.
func ParseKind(s string) (Kind, error) {
	for k, n := range kindNames {
		if n == s {
			return Kind(k), nil
		}
	}
	return 0, fmt.Errorf("tensor: device kind %q: known kinds are %s: %w", s, strings.Join(kindNames[:], " "), ErrParse)
}

// MarshalText is String, for JSON.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is ParseKind.
func (k *Kind) UnmarshalText(b []byte) (err error) {
	*k, err = ParseKind(string(b))
	return err
}

// Device is the identity of one device instance: its kind and its index among the devices of that kind.
// The zero value is the first CPU.
type Device struct {
	Kind  Kind
	Index int32
}

// String returns "kind:index", the form that ParseDevice reads.
func (d Device) String() string { return d.Kind.String() + ":" + strconv.Itoa(int(d.Index)) }

// ParseDevice reads "kind" or "kind:index" ("cpu", "cuda:1").
func ParseDevice(s string) (Device, error) {
	name, idx, has := strings.Cut(s, ":")
	for k, n := range kindNames {
		if n != name {
			continue
		}
		d := Device{Kind: Kind(k)}
		if has {
			i, err := strconv.ParseUint(idx, 10, 15)
			if err != nil {
				return Device{}, fmt.Errorf("tensor: device %q: index: %w", s, ErrParse)
			}
			d.Index = int32(i)
		}
		return d, nil
	}
	return Device{}, fmt.Errorf("tensor: device %q: known kinds are %s: %w", s, strings.Join(kindNames[:], " "), ErrParse)
}

// MarshalText is String, for JSON.
func (d Device) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDevice.
func (d *Device) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDevice(string(b))
	return err
}
