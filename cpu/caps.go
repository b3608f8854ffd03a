package cpu

import (
	"cmp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/cpu"

	"github.com/opmux/opmux/cpu/internal/limits"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Feature bits of a CPU's ProviderCaps.Features: what the processor has and the operating system saves.
const (
	FeatureAVX2 uint64 = 1 << iota
	FeatureFMA
	FeatureF16C
	FeatureBMI2
	FeatureAVX512F
	FeatureAVX512BW
	FeatureAVX512DQ
	FeatureAVX512VL
	FeatureAVX512VNNI
	FeatureAVX512BF16
	FeatureAVXVNNI
	FeatureAMXTile
	FeatureAMXInt8
	FeatureNEON
	FeatureDotProd // arm64 SDOT and UDOT
)

var featureNames = [...]string{"avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni",
	"avx512bf16", "avxvnni", "amxtile", "amxint8", "neon", "dotprod"}

// isaNames are the features of a Platform, in the order of the bits.
var isaNames = [...]string{"avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx_vnni",
	"amx_tile", "amx_int8", "neon", "dotprod"}

// isaFeatures returns the bits in f as features of a Platform ("isa:avx2"), sorted.
func isaFeatures(f uint64) (list []string) {
	for i, n := range isaNames {
		if f>>i&1 != 0 {
			list = append(list, "isa:"+n)
		}
	}
	slices.Sort(list)
	return list
}

// FeatureNames returns the names of the bits in f, separated by blanks.
func FeatureNames(f uint64) string {
	var names []string
	for i, n := range featureNames {
		if f>>i&1 != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, " ")
}

func features() uint64 {
	x, a := &cpu.X86, &cpu.ARM64
	var f uint64
	for i, has := range [...]bool{x.HasAVX2, x.HasFMA, x.HasF16C, x.HasBMI2, x.HasAVX512F, x.HasAVX512BW, x.HasAVX512DQ,
		x.HasAVX512VL, x.HasAVX512VNNI, x.HasAVX512BF16, x.HasAVXVNNI, x.HasAMXTile, x.HasAMXInt8, a.HasASIMD, a.HasASIMDDP} {
		if has {
			f |= 1 << i
		}
	}
	return f
}

// probe describes the CPU as a device with the given number of threads.
func probe(id tensor.Device, threads int) device.ProviderCaps {
	total, available := limits.Memory()
	arch, has := "", features()
	usable := has &^ (FeatureAMXTile | FeatureAMXInt8) // the kernel has to grant the tiles, which it does to the tier that asks
	for _, t := range tiers() {
		if t.set.Missing() != "" {
			continue
		}
		arch = cmp.Or(arch, t.name)
		usable |= t.features & has
	}
	return device.ProviderCaps{
		Device: id, Valid: true, State: device.Probed, Arch: arch, ComputeUnitCount: int32(threads), Features: has, Platform: platform(usable, threads, total),
		Memory: device.Memory{Total: total, Available: available, SharedPhysical: true, DeviceReadsHost: true,
			HostReadsDeviceAlloc: true, HostVisibleAlloc: true, CoherentWithoutFlush: true},
	}
}

// platform describes the CPU for the choice of kernels: its features are what this process may really use.
func platform(features uint64, threads int, memory int64) *device.Platform {
	p := &device.Platform{Vendor: device.CPUVendor, Kind: tensor.CPU, Name: cmp.Or(limits.ProcessorName(), name()), Count: 1,
		Memory: memory, ComputeUnits: threads, Features: append(isaFeatures(features), "isa:"+runtime.GOARCH)}
	slices.Sort(p.Features)
	return p
}
