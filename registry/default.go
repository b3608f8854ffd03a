package registry

import (
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// RegisterOpProvider is Registry.RegisterOpProvider on Default.
func RegisterOpProvider(op Op, kind tensor.Kind, p OpProvider) (*Registration, error) {
	return Default().RegisterOpProvider(op, kind, p)
}

// RegisterOp is Registry.RegisterOp on Default.
func RegisterOp(op Op, kind tensor.Kind, fn Launcher) (*Registration, error) {
	return Default().RegisterOp(op, kind, fn)
}

// RegisterTypedOp is RegisterTypedOpIn on Default.
func RegisterTypedOp[R any](op Op, kind tensor.Kind, fn func(*Queue, *R) Status) (*Registration, error) {
	return RegisterTypedOpIn(Default(), op, kind, fn)
}

// GetOp is Registry.GetOp on Default.
func GetOp(op Op, dev tensor.Device) (Launcher, error) { return Default().GetOp(op, dev) }

// GetTypedOp is GetTypedOpIn on Default.
func GetTypedOp[R any](op Op, dev tensor.Device) (func(*Queue, *R) Status, error) {
	return GetTypedOpIn[R](Default(), op, dev)
}

// GetOpFallback is Registry.GetOpFallback on Default.
func GetOpFallback(op Op, dev tensor.Device, name string) (Launcher, error) {
	return Default().GetOpFallback(op, dev, name)
}

// NoteOpDecline is Registry.NoteOpDecline on Default.
func NoteOpDecline(op Op, dev tensor.Device) { Default().NoteOpDecline(op, dev) }

// OpRegistered is Registry.OpRegistered on Default.
func OpRegistered(op Op, dev tensor.Device) bool { return Default().OpRegistered(op, dev) }

// OpProviderCount is Registry.OpProviderCount on Default.
func OpProviderCount(op Op, dev tensor.Device) int { return Default().OpProviderCount(op, dev) }

// OpProviderNameAt is Registry.OpProviderNameAt on Default.
func OpProviderNameAt(op Op, dev tensor.Device, i int) string {
	return Default().OpProviderNameAt(op, dev, i)
}

// GetOpProviderStats is Registry.GetOpProviderStats on Default.
func GetOpProviderStats(op Op, dev tensor.Device) OpProviderStats {
	return Default().GetOpProviderStats(op, dev)
}

// ResetOpProviderStats is Registry.ResetOpProviderStats on Default.
func ResetOpProviderStats(op Op, dev tensor.Device) { Default().ResetOpProviderStats(op, dev) }

// EnableOpProviderCallStats is Registry.EnableOpProviderCallStats on Default.
func EnableOpProviderCallStats(on bool) { Default().EnableOpProviderCallStats(on) }

// DisableOpProvider is Registry.DisableOpProvider on Default.
func DisableOpProvider(name string, disabled bool) (matched bool, err error) {
	return Default().DisableOpProvider(name, disabled)
}

// OpProviderDisabled is Registry.OpProviderDisabled on Default.
func OpProviderDisabled(name string) bool { return Default().OpProviderDisabled(name) }

// ReferenceTierEligible is Registry.ReferenceTierEligible on Default.
func ReferenceTierEligible(dev tensor.Device) bool { return Default().ReferenceTierEligible(dev) }

// RegisterReferenceTier is Registry.RegisterReferenceTier on Default.
func RegisterReferenceTier(dev tensor.Device) int { return Default().RegisterReferenceTier(dev) }

// GetReferenceTierHits is Registry.GetReferenceTierHits on Default.
func GetReferenceTierHits() uint64 { return Default().GetReferenceTierHits() }

// SetDeviceProviderCaps is Registry.SetDeviceProviderCaps on Default.
func SetDeviceProviderCaps(dev tensor.Device, caps device.ProviderCaps) error {
	return Default().SetDeviceProviderCaps(dev, caps)
}

// GetDeviceProviderCaps is Registry.GetDeviceProviderCaps on Default.
func GetDeviceProviderCaps(dev tensor.Device) device.ProviderCaps {
	return Default().GetDeviceProviderCaps(dev)
}
