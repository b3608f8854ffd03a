package device_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/opmux/opmux/device"
	"github.com/stretchr/testify/require"
)

func kinds(list []device.Reason) (out []string) {
	for _, r := range list {
		out = append(out, r.Kind)
	}
	return out
}

// allConditions has every condition, each of which h100 fails.
var allConditions = device.Requirement{
	Vendors: []string{"amd"}, Features: []string{"a:b", "comms:symmetric_memory"}, Forbidden: []string{"memory:tma"},
	AnyOf:           []device.Requirement{{Vendors: []string{"amd"}, MinMemory: 1}, {Features: []string{"a:c"}}},
	MinComputeUnits: 1000, MinSharedMemPerBlock: 1 << 20, MinMemory: 1 << 50, MinDriver: "600.1", Libraries: []device.LibraryRequirement{{Name: "cublas", Min: "12"}},
}

func TestRequirementCheck(t *testing.T) {
	h := golden(t, "h100")
	r := allConditions
	require.NoError(t, r.Validate())
	reasons := r.Check(h)
	require.Equal(t, []string{"vendor", "feature", "feature", "forbidden-feature", "any-of", "compute-units", "shared-memory", "memory", "driver", "library"}, kinds(reasons))
	require.Equal(t, "vendor: wants amd, the platform has nvidia", reasons[0].String())
	require.Contains(t, reasons[2].Have, "no answer: needs the framework's module")
	require.Equal(t, "compute-units: wants 1000, the platform has 132", reasons[5].String())
	require.False(t, r.SatisfiedBy(h))
	require.Equal(t, []string{"a:b", "comms:symmetric_memory"}, r.Missing(h))
	require.Equal(t, 11, r.Conditions())
	data, err := json.Marshal(reasons)
	require.NoError(t, err)
	var back []device.Reason
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, reasons, back)

	var none device.Requirement
	require.True(t, none.SatisfiedBy(h))
	require.True(t, none.SatisfiedBy(nil))
	require.False(t, r.SatisfiedBy(nil))
	require.Zero(t, none.Conditions())
	require.Equal(t, "anything", none.String())
}

// TestRequirementFields finds a condition for every field, and a platform that fails it alone.
func TestRequirementFields(t *testing.T) {
	typ := reflect.TypeFor[device.Requirement]()
	full := reflect.ValueOf(allConditions)
	for i := range typ.NumField() {
		r := device.Requirement{}
		switch name := typ.Field(i).Name; name {
		case "MinArch", "MaxArch":
			r.Vendors = []string{"nvidia"}
			v := map[string]string{"MinArch": "10.0", "MaxArch": "8.9"}[name]
			reflect.ValueOf(&r).Elem().Field(i).SetString(v)
		default:
			require.False(t, full.Field(i).IsZero(), "allConditions lacks %s", name)
			reflect.ValueOf(&r).Elem().Field(i).Set(full.Field(i))
		}
		require.NotEmpty(t, r.Check(golden(t, "h100")), typ.Field(i).Name)
		require.NotZero(t, r.Conditions())
		require.NotEqual(t, "anything", r.String())
		data, err := json.Marshal(r)
		require.NoError(t, err)
		var back device.Requirement
		require.NoError(t, json.Unmarshal(data, &back))
		require.Equal(t, r, back)
		require.Equal(t, r, r.Clone())
	}
}

func TestRequirementVersions(t *testing.T) {
	h, b := golden(t, "h100"), golden(t, "b200")
	nv := func(lo, hi string) *device.Requirement {
		return &device.Requirement{Vendors: []string{"nvidia"}, MinArch: lo, MaxArch: hi}
	}
	for _, c := range []struct {
		r    *device.Requirement
		name string
		want []string
	}{
		{nv("9.0", ""), "h100", nil}, {nv("9.0", "9.0"), "h100", nil}, {nv("9.1", ""), "h100", []string{"min-arch"}}, {nv("", "8.9"), "h100", []string{"max-arch"}},
		{nv("9.0", ""), "a100", []string{"min-arch"}}, {nv("9.0a", ""), "h100", nil}, {nv("9.0a", ""), "b200", []string{"min-arch"}},
		{nv("10.0f", ""), "b300", nil}, {nv("10.0f", ""), "thor", []string{"min-arch"}}, {nv("10.3f", ""), "b200", []string{"min-arch"}},
		{nv("9.0", ""), "mi455x", []string{"vendor"}}, // 12.5 of another vendor is not compared
		{&device.Requirement{Vendors: []string{"amd"}, MinArch: "9.5"}, "vulkan-generic-amd", []string{"min-arch"}},
		{&device.Requirement{Vendors: []string{"cpu"}, Features: []string{"isa:avx512_vnni"}}, "cpu-avx512", nil},
		{&device.Requirement{Vendors: []string{"cpu"}, Features: []string{"isa:avx512_vnni"}}, "cpu-neon", []string{"feature"}},
	} {
		require.NoError(t, c.r.Validate())
		require.Equal(t, c.want, kinds(c.r.Check(golden(t, c.name))), "%v on %s", c.r, c.name)
	}
	// Data-centre Blackwell and Thor, but not the consumer parts: as alternatives, or by what they have.
	blackwell := device.Requirement{Vendors: []string{"nvidia"}, AnyOf: []device.Requirement{{MinArch: "10.0", MaxArch: "10.3"}, {MinArch: "11.0", MaxArch: "11.0"}}}
	tcgen := device.Requirement{Vendors: []string{"nvidia"}, Features: []string{"tensor_core:tcgen05"}}
	require.NoError(t, blackwell.Validate(), "alternatives inherit the vendor")
	for name, want := range map[string]bool{"b200": true, "b300": true, "thor": true, "rtx5090": false, "h100": false, "mi455x": false} {
		require.Equal(t, want, blackwell.SatisfiedBy(golden(t, name)), name)
		require.Equal(t, want, tcgen.SatisfiedBy(golden(t, name)), name)
	}
	require.Equal(t, "nvidia, (>= 10.0, <= 10.3 or >= 11.0, <= 11.0)", blackwell.String())
	require.Equal(t, []string{"vendor"}, kinds(blackwell.Check(golden(t, "mi455x"))), "one cause is said once")
	require.Equal(t, "any-of: wants >= 10.0, <= 10.3 or >= 11.0, <= 11.0, the platform has 9.0", blackwell.Check(h)[0].String())

	lib := func(l device.LibraryRequirement) *device.Requirement {
		return &device.Requirement{Libraries: []device.LibraryRequirement{l}}
	}
	b.Libraries = []device.Library{{Name: "cublas", Version: "12.4.1-rc"}, {Name: "gone", Err: "not on the path"}, {Name: "odd", Version: "main"}}
	b.Driver = "570.86.15"
	for _, c := range []struct {
		r    *device.Requirement
		want bool
	}{
		{lib(device.LibraryRequirement{Name: "cublas"}), true}, {lib(device.LibraryRequirement{Name: "cublas", Min: "12.4"}), true},
		{lib(device.LibraryRequirement{Name: "cublas", Min: "12.4.2"}), false}, {lib(device.LibraryRequirement{Name: "cublas", Max: "12.4"}), false},
		{lib(device.LibraryRequirement{Name: "cublas", Min: "12.4.1.0", Max: "12.10"}), true}, {lib(device.LibraryRequirement{Name: "gone"}), false},
		{lib(device.LibraryRequirement{Name: "odd"}), true}, {lib(device.LibraryRequirement{Name: "odd", Min: "1"}), false}, {lib(device.LibraryRequirement{Name: "none"}), false},
		{&device.Requirement{MinDriver: "570.86"}, true}, {&device.Requirement{MinDriver: "570.100"}, false},
	} {
		require.NoError(t, c.r.Validate())
		require.Equal(t, c.want, c.r.SatisfiedBy(b), "%v", c.r)
	}
	require.Contains(t, lib(device.LibraryRequirement{Name: "gone"}).Check(b)[0].Have, "not on the path")
}

func TestRequirementValidate(t *testing.T) {
	deep := device.Requirement{}
	for range 8 {
		deep = device.Requirement{AnyOf: []device.Requirement{deep}}
	}
	for _, c := range []struct {
		field string
		r     device.Requirement
	}{
		{"vendors", device.Requirement{Vendors: []string{"acme"}}},
		{"min_arch", device.Requirement{Vendors: []string{"nvidia"}, MinArch: "nine"}},
		{"min_arch", device.Requirement{MinArch: "9.0"}},
		{"min_arch", device.Requirement{Vendors: []string{"nvidia", "amd"}, MinArch: "9.0"}},
		{"max_arch", device.Requirement{Vendors: []string{"nvidia", "amd"}, MaxArch: "9.0"}},
		{"max_arch", device.Requirement{Vendors: []string{"nvidia"}, MinArch: "10.0", MaxArch: "9.0"}},
		{"max_arch", device.Requirement{Vendors: []string{"nvidia"}, MaxArch: "9.0a"}},
		{"features", device.Requirement{Features: []string{"tma"}}},
		{"features", device.Requirement{Features: []string{"Memory:tma"}}},
		{"forbidden", device.Requirement{Forbidden: []string{""}}},
		{"forbidden", device.Requirement{Features: []string{"a:b"}, Forbidden: []string{"a:b"}}},
		{"min_compute_units", device.Requirement{MinComputeUnits: -1}},
		{"min_shared_mem_per_block", device.Requirement{MinSharedMemPerBlock: -1}},
		{"min_memory", device.Requirement{MinMemory: -1}},
		{"min_driver", device.Requirement{MinDriver: "new"}},
		{"min_driver", device.Requirement{MinDriver: "1..2"}},
		{"libraries[0].name", device.Requirement{Libraries: []device.LibraryRequirement{{}}}},
		{"libraries[1].min", device.Requirement{Libraries: []device.LibraryRequirement{{Name: "a"}, {Name: "b", Min: "x"}}}},
		{"libraries[0].max", device.Requirement{Libraries: []device.LibraryRequirement{{Name: "b", Max: "1.x"}}}},
		{"libraries[0].max", device.Requirement{Libraries: []device.LibraryRequirement{{Name: "b", Min: "2", Max: "1.9"}}}},
		{"any_of[1].vendors", device.Requirement{AnyOf: []device.Requirement{{}, {Vendors: []string{"acme"}}}}},
		{"any_of[0].vendors", device.Requirement{Vendors: []string{"nvidia"}, AnyOf: []device.Requirement{{Vendors: []string{"amd"}}}}},
		{"any_of[0].any_of[0].any_of[0].any_of[0].any_of", deep},
	} {
		var e *device.RequirementError
		require.ErrorAs(t, c.r.Validate(), &e, "%v", c.r)
		require.Equal(t, c.field, e.Field, "%v", e)
		require.ErrorIs(t, e, device.ErrRequirement)
		require.NotPanics(t, func() { c.r.Check(golden(t, "h100")); _ = c.r.String(); c.r.Conditions() })
	}
	clone := allConditions.Clone()
	clone.AnyOf[1].Features[0] = "z:z"
	clone.Vendors[0] = "cpu"
	require.Equal(t, "a:c", allConditions.AnyOf[1].Features[0], "a clone shares nothing")
	require.Equal(t, "amd", allConditions.Vendors[0])
}

// A version asked of processors could never match.
func TestProcessorsHaveNoVersion(t *testing.T) {
	for field, r := range map[string]device.Requirement{
		"min_arch":           {Vendors: []string{device.CPUVendor}, MinArch: "9.0"},
		"max_arch":           {Vendors: []string{device.CPUVendor}, MaxArch: "9.0"},
		"any_of[0].min_arch": {AnyOf: []device.Requirement{{Vendors: []string{device.CPUVendor}, MinArch: "1.0"}}},
	} {
		var e *device.RequirementError
		require.ErrorAs(t, r.Validate(), &e)
		require.Equal(t, field, e.Field)
		require.ErrorContains(t, e, "isa:avx2")
	}
}
