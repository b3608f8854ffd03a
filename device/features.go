package device

import (
	"regexp"
	"slices"
)

// Vendors that platforms and requirements know.
const (
	CPUVendor = "cpu"
	NVIDIA    = "nvidia"
	AMD       = "amd"
	Apple     = "apple"
)

var vendors = []string{AMD, Apple, "arm", CPUVendor, "imagination", "intel", "mesa", NVIDIA, "qualcomm", "test", "vulkan"}

// featureName is what a feature is called: area:item. The set of features is open.
var featureName = regexp.MustCompile(`^[a-z0-9_]+:[a-z0-9_.]+$`)

// hardwareFeatures says from which version on, and up to which major version if any, an NVIDIA device has a feature, and
// which versions of AMD have it.
var hardwareFeatures = []struct {
	name         string
	major, minor int32
	lastMajor    int32 // 0: no end
	amd          bool  // gfx950 and gfx1250
}{
	{"tensor_core:f16", 7, 0, 0, true},
	{"tensor_core:int8", 8, 0, 0, false},
	{"memory:async_copy", 8, 0, 0, true},
	{"tensor_core:f8", 8, 9, 0, true},
	{"memory:tma", 9, 0, 0, false},
	{"compute:cluster", 9, 0, 0, false},
	{"tensor_core:wgmma", 9, 0, 9, false}, // warp-group products, which later parts dropped
	{"tensor_core:f4", 10, 0, 0, true},
	{"tensor_core:tcgen05", 10, 0, 11, false}, // and tensor memory: not the consumer parts (12.x)
	{"compute:tmem", 10, 0, 11, false},
}

// HardwareFeatures returns what devices of an architecture have, sorted: "tensor_core:f16", "memory:tma" ... Vendors but
// NVIDIA and AMD have none here.
func HardwareFeatures(a Arch) (list []string) {
	for _, f := range hardwareFeatures {
		if a.since(NVIDIA, f.major, f.minor) && (f.lastMajor == 0 || a.Major <= f.lastMajor) || f.amd && (a.IsCDNA4() || a.IsCDNA5()) {
			list = append(list, f.name)
		}
	}
	switch {
	case a.IsCDNA4():
		list = append(list, "compute:wave64")
	case a.IsCDNA5(), a.Vendor == NVIDIA && a.Major > 0:
		list = append(list, "compute:wave32")
	}
	slices.Sort(list)
	return list
}
