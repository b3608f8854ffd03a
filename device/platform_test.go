package device_test

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

func golden(t *testing.T, name string) *device.Platform {
	t.Helper()
	p, err := device.ReadPlatform(filepath.Join("..", "docs", "platforms", name+".json"))
	require.NoError(t, err)
	return p
}

func TestGoldenPlatforms(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "docs", "platforms", "*.json"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 13)
	prints := map[string]string{"": "nil"}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		p := golden(t, name)
		require.NoError(t, p.Validate())
		require.NotContains(t, prints, p.Fingerprint(), name)
		prints[p.Fingerprint()] = name

		data, err := json.MarshalIndent(p, "", "  ")
		require.NoError(t, err)
		back, err := device.LoadPlatform(strings.NewReader(string(data)))
		require.NoError(t, err)
		require.Equal(t, p, back, name)
		require.Equal(t, p.Fingerprint(), back.Fingerprint())
		require.Equal(t, p, p.Clone())
		for _, f := range device.HardwareFeatures(p.Arch) {
			require.Equal(t, device.Yes, p.Has(f), "%s lacks %s, which its architecture has", name, f)
		}
		for _, f := range p.Features {
			if area, _, _ := strings.Cut(f, ":"); area == "tensor_core" {
				require.Contains(t, device.HardwareFeatures(p.Arch), f, name)
			}
		}
	}
	for name, want := range map[string]string{"a100": "Ampere", "h100": "Hopper", "b200": "Blackwell", "b300": "SM10.3", "rtx5090": "SM12.0", "thor": "SM11.0",
		"mi350x": "CDNA4", "mi455x": "CDNA5", "apple-m3": "apple:9.0", "cpu-avx2": "cpu:0.0"} {
		require.Equal(t, want, golden(t, name).Generation(), name)
	}
	h := golden(t, "h100")
	require.Equal(t, "NVIDIA H100 80GB HBM3 (nvidia 9.0)", h.String())
	require.EqualValues(t, 80<<30, h.Memory)
	require.EqualValues(t, 132, h.ComputeUnits)
	require.True(t, h.IsNVIDIA())
	require.True(t, golden(t, "mi350x").IsAMD())
	require.Equal(t, device.Unsure, h.Has("comms:symmetric_memory"))
	require.Equal(t, device.No, h.Has("tensor_core:f4"))
	require.Equal(t, device.Yes, h.Has("memory:tma"))
	require.Equal(t, "unsure", device.Unsure.String())
}

// TestPredicates has the consequences that surprise: Ada counts as Ampere, and later numbers are "plus" without being
// the part they seem to follow.
func TestPredicates(t *testing.T) {
	type row struct{ ampere, hopper, blackwell, amperePlus, hopperPlus, blackwellPlus, cdna4, cdna5, cdna4Plus, cdna5Plus bool }
	for s, want := range map[string]row{
		"nvidia 7.5": {}, "nvidia 8.0": {ampere: true, amperePlus: true}, "nvidia 8.9": {ampere: true, amperePlus: true},
		"nvidia 9.0":  {hopper: true, amperePlus: true, hopperPlus: true},
		"nvidia 10.0": {blackwell: true, amperePlus: true, hopperPlus: true, blackwellPlus: true},
		"nvidia 10.3": {blackwell: true, amperePlus: true, hopperPlus: true, blackwellPlus: true},
		"nvidia 11.0": {amperePlus: true, hopperPlus: true, blackwellPlus: true},
		"nvidia 12.1": {amperePlus: true, hopperPlus: true, blackwellPlus: true},
		"amd 9.5":     {cdna4: true, cdna4Plus: true}, "amd 12.5": {cdna5: true, cdna4Plus: true, cdna5Plus: true}, "apple 9.0": {}, "cpu ": {},
	} {
		vendor, version, _ := strings.Cut(s, " ")
		a, err := device.ParseArch(vendor, version)
		require.NoError(t, err)
		require.Equal(t, want, row{a.IsAmpere(), a.IsHopper(), a.IsBlackwell(), a.IsAmperePlus(), a.IsHopperPlus(), a.IsBlackwellPlus(), a.IsCDNA4(), a.IsCDNA5(),
			a.IsCDNA4Plus(), a.IsCDNA5Plus()}, s)
	}
	require.Equal(t, "Ada Lovelace", device.Arch{Vendor: device.NVIDIA, Major: 8, Minor: 9}.Generation())
}

func TestHardwareFeatures(t *testing.T) {
	of := func(vendor, v string) []string {
		a, err := device.ParseArch(vendor, v)
		require.NoError(t, err)
		list := device.HardwareFeatures(a)
		require.True(t, slices.IsSorted(list))
		return list
	}
	require.Empty(t, of(device.CPUVendor, ""))
	require.Empty(t, of(device.Apple, "9.0"))
	require.Equal(t, []string{"compute:wave32", "memory:async_copy", "tensor_core:f16", "tensor_core:int8"}, of(device.NVIDIA, "8.0"))
	require.Contains(t, of(device.NVIDIA, "8.9"), "tensor_core:f8")
	require.Equal(t, []string{"compute:wave64", "memory:async_copy", "tensor_core:f16", "tensor_core:f4", "tensor_core:f8"}, of(device.AMD, "9.5"))
	require.Empty(t, of(device.AMD, "9.4"))
	for v, has := range map[string]bool{"9.0": false, "10.0": true, "10.3": true, "11.0": true, "12.0": false} {
		require.Equal(t, has, slices.Contains(of(device.NVIDIA, v), "tensor_core:tcgen05"), v)
		require.Equal(t, has, slices.Contains(of(device.NVIDIA, v), "compute:tmem"), v)
	}
	require.Contains(t, of(device.NVIDIA, "12.0"), "tensor_core:f4")
}

func TestArch(t *testing.T) {
	for name, want := range map[string]string{"nvidia sm_90": "9.0", "nvidia sm_90a": "9.0a", "nvidia sm_103": "10.3", "nvidia sm_120f": "12.0f", "nvidia 8.6": "8.6",
		"amd gfx950:sramecc+:xnack-": "9.5", "amd gfx1250": "12.5", "apple apple9": "9.0"} {
		vendor, arch, _ := strings.Cut(name, " ")
		a, err := device.ArchOf(vendor, arch)
		require.NoError(t, err, name)
		require.Equal(t, want, a.String(), name)
		require.Equal(t, vendor, a.Vendor)
	}
	_, err := device.ArchOf(device.AMD, "gfx942:sramecc+")
	require.ErrorIs(t, err, device.ErrArch)
	require.ErrorContains(t, err, `"gfx942"`)
	require.ErrorContains(t, err, "gfx1250 gfx950", "the supported ones, sorted")
	for _, name := range []string{"nvidia ", "nvidia sm_9", "nvidia sm_", "nvidia turing", "amd ", "amd gfx950x", "apple apple", "apple mac2"} {
		vendor, arch, _ := strings.Cut(name, " ")
		_, err := device.ArchOf(vendor, arch)
		require.ErrorIs(t, err, device.ErrArch, name)
	}
	for _, s := range []string{"9", "9.", ".0", "9.0.0", "09.0", "9.0aa", "-1.0", "0.0", "9.0A", "99999.0", " 9.0", strings.Repeat("9", 1000)} {
		_, err := device.ParseArch(device.NVIDIA, s)
		require.ErrorIs(t, err, device.ErrArch, s)
		require.Less(t, len(err.Error()), 200)
	}
	a := func(vendor string, major, minor int32, suffix string) device.Arch {
		return device.Arch{Vendor: vendor, Major: major, Minor: minor, Suffix: suffix}
	}
	for _, c := range []struct {
		a, b device.Arch
		want int
	}{{a("nvidia", 9, 0, ""), a("nvidia", 10, 0, ""), -1}, {a("nvidia", 10, 3, ""), a("nvidia", 10, 0, ""), 1}, {a("nvidia", 9, 0, ""), a("nvidia", 9, 0, ""), 0},
		{a("nvidia", 9, 0, ""), a("nvidia", 9, 0, "a"), -1}} {
		got, err := c.a.Compare(c.b)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	_, err = a("nvidia", 9, 0, "").Compare(a("amd", 9, 5, ""))
	require.ErrorIs(t, err, device.ErrVendor)
}

func TestPlatformValidate(t *testing.T) {
	for field, change := range map[string]func(p *device.Platform){
		"vendor":                 func(p *device.Platform) { p.Vendor = "acme" },
		"kind":                   func(p *device.Platform) { p.Kind = tensor.Metal },
		"arch":                   func(p *device.Platform) { p.Arch.Vendor = device.AMD },
		"name":                   func(p *device.Platform) { p.Name = "" },
		"count":                  func(p *device.Platform) { p.Count = -1 },
		"memory":                 func(p *device.Platform) { p.Memory = -1 },
		"bandwidth":              func(p *device.Platform) { p.Bandwidth = math.NaN() },
		"compute_units":          func(p *device.Platform) { p.ComputeUnits = -1 },
		"max_threads_per_unit":   func(p *device.Platform) { p.MaxThreadsPerUnit = -1 },
		"shared_mem_per_unit":    func(p *device.Platform) { p.SharedMemPerUnit = -1 },
		"shared_mem_per_block":   func(p *device.Platform) { p.SharedMemPerBlock = p.SharedMemPerUnit + 1 },
		"libraries[0].name":      func(p *device.Platform) { p.Libraries = []device.Library{{}} },
		"features":               func(p *device.Platform) { p.Features = []string{"b:b", "a:a"} },
		"unknown":                func(p *device.Platform) { p.Unknown = map[string]string{"a:a": ""} },
		"interconnect.topology":  func(p *device.Platform) { p.Interconnect.Topology = "string" },
		"interconnect.bandwidth": func(p *device.Platform) { p.Interconnect.Bandwidth = [][]float64{{1, 2}} },
		"numa":                   func(p *device.Platform) { p.NUMA = [][]int{{1}} },
	} {
		p := golden(t, "h100")
		change(p)
		var e *device.PlatformError
		require.ErrorAs(t, p.Validate(), &e, field)
		require.Equal(t, field, e.Field)
		require.ErrorIs(t, p.Validate(), device.ErrPlatform)
	}
	p := golden(t, "h100")
	p.Features = append(p.Features, "Bad Feature")
	require.ErrorContains(t, p.Validate(), "area:item")
	p = golden(t, "cpu-avx2")
	p.Kind = tensor.CUDA
	require.ErrorIs(t, p.Validate(), device.ErrPlatform)
	p = golden(t, "vulkan-generic-amd")
	require.Equal(t, tensor.Vulkan, p.Kind, "one vendor's device under another backend")
}

func TestLoadPlatformRefuses(t *testing.T) {
	for text, field := range map[string]string{
		`{"vendor":"cpu","kind":"cpu","name":"x","colour":1}`:                  "colour",
		`{"vendor":"cpu","kind":"cpu","name":"x","interconnect":{"colour":1}}`: "colour",
		`{"vendor":"cpu","kind":"tpu","name":"x"}`:                             "kind",
		`{"vendor":"nvidia","kind":"cuda","name":"x","arch":"nine"}`:           "arch",
		`{"vendor":"nvidia","kind":"cuda","name":"x","count":"many"}`:          "count",
		`{"vendor":"nvidia","name":"x"}`:                                       "kind",
		`{"vendor":"cpu","kind":"cpu"}`:                                        "name",
		`null`:                                                                 "text",
		`{"vendor":"cpu","kind":"cpu","name":"x"} {}`:                          "text",
		``:   "text",
		`[]`: "",
		`{"vendor":"cpu","kind":"cpu","name":"` + strings.Repeat("x", 1<<20) + `"}`:      "text",
		`{"vendor":"cpu","kind":"cpu","name":"x","features":["isa avx2"]}`:               "features",
		`{"vendor":"cpu","kind":"cpu","name":"x","numa":[[0],[1]],"count":1}`:            "numa",
		`{"vendor":"cpu","kind":"cpu","name":"x","libraries":[{"name":"y","colour":1}]}`: "colour",
	} {
		_, err := device.LoadPlatform(strings.NewReader(text))
		var e *device.PlatformError
		require.ErrorAs(t, err, &e, "%.80s", text)
		require.Equal(t, field, e.Field, "%.80s: %v", text, err)
	}
	_, err := device.LoadPlatform(failing{})
	require.ErrorIs(t, err, io.ErrClosedPipe)
	_, err = device.ReadPlatform(filepath.Join(t.TempDir(), "none.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = device.ReadPlatform(t.TempDir())
	require.Error(t, err)
	p, err := device.LoadPlatform(strings.NewReader(`{"vendor":"cpu","kind":"cpu","name":"x","features":["isa:fma","isa:avx2","isa:fma"]}`))
	require.NoError(t, err)
	require.Equal(t, []string{"isa:avx2", "isa:fma"}, p.Features, "files may list features in any order")
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestFingerprintOfNoNumbers wants the same hash of equal descriptions, also of those that Validate refuses.
func TestFingerprintOfNoNumbers(t *testing.T) {
	a := golden(t, "h100")
	a.Interconnect = &device.Interconnect{Topology: "pcie", Bandwidth: [][]float64{{math.NaN(), math.Inf(1)}}}
	b := a.Clone()
	require.Equal(t, a.Fingerprint(), b.Fingerprint())
	require.True(t, math.IsNaN(a.Interconnect.Bandwidth[0][0]), "the description stays as it is")
	b.Interconnect.Bandwidth[0][0] = 1
	require.NotEqual(t, a.Fingerprint(), b.Fingerprint())
}

// TestFingerprint changes every field, found by reflection, and wants another hash each time.
func TestFingerprint(t *testing.T) {
	base := golden(t, "h100")
	base.Libraries = []device.Library{{Name: "a", Path: "/usr/lib/a.so", Version: "1.2"}}
	base.Driver = "570.1"
	base.Interconnect = &device.Interconnect{Topology: "pcie", Bandwidth: [][]float64{{1}}}
	base.NUMA = [][]int{{0, 1}}
	seen := map[string]string{base.Fingerprint(): "nothing"}
	changed := func(path string, p *device.Platform) {
		t.Helper()
		f := p.Fingerprint()
		require.NotContains(t, seen, f, "%s has no part in the fingerprint", path)
		seen[f] = path
	}
	typ := reflect.TypeFor[device.Platform]()
	for i := range typ.NumField() {
		p := base.Clone()
		f := reflect.ValueOf(p).Elem().Field(i)
		name := typ.Field(i).Name
		switch v := f.Addr().Interface().(type) {
		case *device.Arch:
			for _, a := range []device.Arch{{Vendor: "amd", Major: 9}, {Vendor: "nvidia", Major: 8}, {Vendor: "nvidia", Major: 9, Minor: 1}, {Vendor: "nvidia", Major: 9, Suffix: "a"}} {
				*v = a
				changed(name, p)
			}
		case *[]device.Library:
			for _, l := range []device.Library{{Name: "b", Version: "1.2"}, {Name: "a", Version: "1.3"}, {Name: "a", Version: "1.2", Err: "not found"}} {
				*v = []device.Library{l}
				changed(name, p)
			}
			*v = []device.Library{{Name: "a", Path: "/opt/a.so", Version: "1.2"}}
			require.Equal(t, base.Fingerprint(), p.Fingerprint(), "where a library lies does not count")
		case *[]string:
			*v = slices.Concat(*v, []string{"zz:new"})
			changed(name, p)
		case *map[string]string:
			(*v)["zz:new"] = "why"
			changed(name, p)
		case **device.Interconnect:
			for k := range reflect.TypeFor[device.Interconnect]().NumField() {
				n := **v
				switch g := reflect.ValueOf(&n).Elem().Field(k); g.Kind() {
				case reflect.String:
					g.SetString(g.String() + "2")
				case reflect.Bool:
					g.SetBool(true)
				default:
					g.Set(reflect.ValueOf([][]float64{{2}}))
				}
				q := base.Clone()
				q.Interconnect = &n
				changed(name+"."+reflect.TypeFor[device.Interconnect]().Field(k).Name, q)
			}
		case *[][]int:
			(*v)[0][0] = 7
			changed(name, p)
		case *tensor.Kind:
			*v = tensor.Vulkan
			changed(name, p)
		case *float64:
			*v++
			changed(name, p)
		default:
			switch f.Kind() {
			case reflect.String:
				f.SetString(f.String() + "2")
			case reflect.Int, reflect.Int64:
				f.SetInt(f.Int() + 1)
			default:
				t.Fatalf("a field of type %v: say here how it changes", f.Type())
			}
			changed(name, p)
		}
	}
	require.Equal(t, "nothing", seen[base.Fingerprint()], "the copies share nothing with it")
	shuffled := base.Clone()
	slices.Reverse(shuffled.Features)
	require.Equal(t, base.Fingerprint(), shuffled.Fingerprint())
	broken := base.Clone()
	broken.Bandwidth = math.Inf(1)
	require.NotEmpty(t, broken.Fingerprint())
	require.Empty(t, (*device.Platform)(nil).Fingerprint())
	require.Nil(t, (*device.Platform)(nil).Clone())
}

func TestAsPlatform(t *testing.T) {
	c := device.ProviderCaps{Device: tensor.Device{Kind: tensor.CUDA}, ComputeMajor: 9, ComputeUnitCount: 132, Arch: "sm_90", Memory: device.Memory{Total: 80 << 30},
		Libraries: []device.Library{{Name: "cublas", Version: "12.4"}}}
	p := c.AsPlatform()
	require.NoError(t, p.Validate())
	require.Equal(t, "nvidia", p.Vendor)
	require.True(t, p.Arch.IsHopper())
	require.Equal(t, device.Yes, p.Has("runtime:cuda_graph"))
	require.Equal(t, device.Yes, p.Has("memory:tma"))
	for k := range tensor.NumKinds {
		c := device.ProviderCaps{Device: tensor.Device{Kind: tensor.Kind(k)}, ComputeMajor: 3}
		require.NoError(t, c.AsPlatform().Validate(), tensor.Kind(k))
	}
	own := golden(t, "thor")
	c.Platform = own
	require.Same(t, own, c.AsPlatform())
	data, err := json.Marshal(c)
	require.NoError(t, err)
	var back struct{ Platform *device.Platform }
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, own, back.Platform)
}

func FuzzLoadPlatform(f *testing.F) {
	files, _ := filepath.Glob(filepath.Join("..", "docs", "platforms", "*.json"))
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(string(data))
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := device.LoadPlatform(strings.NewReader(s))
		if err != nil {
			require.True(t, errors.Is(err, device.ErrPlatform), err)
			return
		}
		data, err := json.Marshal(p)
		require.NoError(t, err)
		back, err := device.LoadPlatform(strings.NewReader(string(data)))
		require.NoError(t, err, "%s", data)
		require.Equal(t, p.Fingerprint(), back.Fingerprint())
	})
}

// A key that stands twice is an error at any depth; the mark that some editors put before the text is skipped.
func TestPlatformText(t *testing.T) {
	text := `{"vendor": "cpu", "kind": "cpu", "name": "a", "count": 1, "libraries": [{"name": "x", "version": "1"}, {"name": "y"}]}`
	p, err := device.LoadPlatform(strings.NewReader(device.ByteOrderMark + text))
	require.NoError(t, err)
	require.Equal(t, "a", p.Name)
	for twice, field := range map[string]string{
		strings.Replace(text, `"count": 1`, `"count": 1, "name": "b"`, 1):          "name",
		strings.Replace(text, `{"name": "y"}`, `{"name": "y", "name": "name"}`, 1): "libraries.name",
		strings.Replace(text, `"count": 1`, `"count": 1, "count": 1`, 1):           "count",
	} {
		_, err := device.LoadPlatform(strings.NewReader(twice))
		var e *device.PlatformError
		require.ErrorAs(t, err, &e, twice)
		require.Equal(t, field, e.Field)
		require.ErrorContains(t, err, "stands there twice")
	}
}
