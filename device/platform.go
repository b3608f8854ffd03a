package device

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/opmux/opmux/tensor"
)

// ErrPlatform is the condition of every *PlatformError.
var ErrPlatform = errors.New("platform description refused")

// PlatformError refuses a Platform or its file and names the field. It is ErrPlatform.
type PlatformError struct {
	Field string // as in JSON
	Msg   string
	Err   error // the cause, if there is one
}

// Error names the field.
func (e *PlatformError) Error() string { return "device: platform: " + e.Field + ": " + e.Msg }

// Unwrap returns ErrPlatform and the cause.
func (e *PlatformError) Unwrap() []error {
	if e.Err != nil {
		return []error{ErrPlatform, e.Err}
	}
	return []error{ErrPlatform}
}

// Platform describes one kind of device, here or on a machine elsewhere, for the choice of kernels. Numbers that are not
// known are 0. A Platform that was handed out does not change.
type Platform struct {
	Vendor            string            `json:"vendor"` // who made the device: cpu, nvidia, amd, apple ...
	Kind              tensor.Kind       `json:"kind"`   // which backend drives it
	Arch              Arch              `json:"arch,omitzero"`
	Name              string            `json:"name"`
	Count             int               `json:"count,omitempty"`                // devices of this kind
	Memory            int64             `json:"memory,omitempty"`               // bytes of one device
	Bandwidth         float64           `json:"bandwidth,omitempty"`            // of its memory, GB/s
	ComputeUnits      int               `json:"compute_units,omitempty"`        // SMs, CUs, cores; threads of a CPU device
	MaxThreadsPerUnit int               `json:"max_threads_per_unit,omitempty"` // resident
	SharedMemPerUnit  int64             `json:"shared_mem_per_unit,omitempty"`  // bytes
	SharedMemPerBlock int64             `json:"shared_mem_per_block,omitempty"` // bytes
	Driver            string            `json:"driver,omitempty"`               // version
	Libraries         []Library         `json:"libraries,omitempty"`
	Features          []string          `json:"features,omitempty"`     // what it has, sorted: "memory:tma", "isa:avx2"
	Unknown           map[string]string `json:"unknown,omitempty"`      // features that could not be determined, and why
	Interconnect      *Interconnect     `json:"interconnect,omitempty"` // nil: not known
	NUMA              [][]int           `json:"numa,omitempty"`         // CPUs near each device; an empty list is not known
}

// Interconnect says how the devices of a machine are joined.
type Interconnect struct {
	Topology  string      `json:"topology"`            // single_gpu, pcie, nvlink_pairs, nvlink_full, nvswitch, xgmi_pairs, xgmi_full
	Bandwidth [][]float64 `json:"bandwidth,omitempty"` // GB/s from row to column
	NVLink    string      `json:"nvlink,omitempty"`    // version
	NVSwitch  bool        `json:"nvswitch,omitempty"`
}

// topologies of an interconnect.
var topologies = []string{"single_gpu", "pcie", "nvlink_pairs", "nvlink_full", "nvswitch", "xgmi_pairs", "xgmi_full"}

// kindVendors lists whose devices a backend may drive; nil is any.
var kindVendors = [tensor.NumKinds][]string{tensor.CPU: {CPUVendor}, tensor.CUDA: {NVIDIA}, tensor.Metal: {Apple}, tensor.ROCm: {AMD}}

// Tri is an answer that may be open.
type Tri uint8

// Answers.
const (
	No Tri = iota
	Yes
	Unsure
)

// String returns "no", "yes" or "unsure".
func (t Tri) String() string { return [...]string{"no", "yes", "unsure"}[min(t, Unsure)] }

// Has reports whether the platform has a feature: Unsure if it is listed under Unknown, No if it is listed nowhere.
func (p *Platform) Has(feature string) Tri {
	if slices.Contains(p.Features, feature) {
		return Yes
	}
	if _, ok := p.Unknown[feature]; ok {
		return Unsure
	}
	return No
}

// IsNVIDIA reports whether NVIDIA made the device.
func (p *Platform) IsNVIDIA() bool { return p.Vendor == NVIDIA }

// IsAMD reports whether AMD made the device.
func (p *Platform) IsAMD() bool { return p.Vendor == AMD }

// Generation is that of the architecture.
func (p *Platform) Generation() string {
	a := p.Arch
	a.Vendor = p.Vendor
	return a.Generation()
}

// String returns the name with vendor and version.
func (p *Platform) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s (%s", p.Name, strings.TrimSpace(p.Vendor+" "+p.Arch.String()))) + ")"
}

// bad makes a *PlatformError.
func bad(field, format string, args ...any) error {
	return &PlatformError{Field: field, Msg: fmt.Sprintf(format, args...)}
}

// Validate checks every field. *PlatformError.
func (p *Platform) Validate() error {
	switch {
	case !slices.Contains(vendors, p.Vendor):
		return bad("vendor", "%q is not one of %s", clip(p.Vendor), strings.Join(vendors, " "))
	case !p.Kind.Valid():
		return bad("kind", "%v", p.Kind)
	case kindVendors[p.Kind] != nil && !slices.Contains(kindVendors[p.Kind], p.Vendor), (p.Vendor == CPUVendor) != (p.Kind == tensor.CPU):
		return bad("kind", "a device of vendor %s is not of kind %v", p.Vendor, p.Kind)
	case p.Arch.Vendor != p.Vendor && !p.Arch.IsZero():
		return bad("arch", "a version of vendor %q, the platform is %s's", clip(p.Arch.Vendor), p.Vendor)
	case p.Name == "" || len(p.Name) > 256:
		return bad("name", "%d bytes, want 1 to 256", len(p.Name))
	}
	if a, err := ParseArch(p.Arch.Vendor, p.Arch.String()); err != nil || a != p.Arch {
		return &PlatformError{"arch", fmt.Sprintf("%q is no version", clip(p.Arch.String())), ErrArch}
	}
	for _, n := range []struct {
		name string
		v    int64
	}{{"count", int64(p.Count)}, {"memory", p.Memory}, {"compute_units", int64(p.ComputeUnits)}, {"max_threads_per_unit", int64(p.MaxThreadsPerUnit)},
		{"shared_mem_per_unit", p.SharedMemPerUnit}, {"shared_mem_per_block", p.SharedMemPerBlock}} {
		if n.v < 0 {
			return bad(n.name, "%d is negative", n.v)
		}
	}
	if !(p.Bandwidth >= 0 && p.Bandwidth <= math.MaxFloat64) {
		return bad("bandwidth", "%v", p.Bandwidth)
	}
	if p.SharedMemPerUnit > 0 && p.SharedMemPerBlock > p.SharedMemPerUnit {
		return bad("shared_mem_per_block", "%d bytes, a unit has %d", p.SharedMemPerBlock, p.SharedMemPerUnit)
	}
	for i, l := range p.Libraries {
		if l.Name == "" {
			return bad(fmt.Sprintf("libraries[%d].name", i), "empty")
		}
	}
	for i, f := range p.Features {
		switch {
		case !featureName.MatchString(f):
			return bad("features", "%q is not area:item", clip(f))
		case i > 0 && f <= p.Features[i-1]:
			return bad("features", "%q does not follow %q: the list is sorted, without repetition", f, p.Features[i-1])
		}
	}
	for _, f := range slices.Sorted(maps.Keys(p.Unknown)) {
		if !featureName.MatchString(f) || slices.Contains(p.Features, f) || p.Unknown[f] == "" {
			return bad("unknown", "%q is not area:item, or among the features, or without a cause", clip(f))
		}
	}
	if c := p.Interconnect; c != nil {
		if !slices.Contains(topologies, c.Topology) {
			return bad("interconnect.topology", "%q is not one of %s", clip(c.Topology), strings.Join(topologies, " "))
		}
		for _, row := range c.Bandwidth {
			if len(row) != len(c.Bandwidth) || slices.ContainsFunc(row, func(v float64) bool { return !(v >= 0 && v <= math.MaxFloat64) }) {
				return bad("interconnect.bandwidth", "it is no square of numbers >= 0")
			}
		}
	}
	if p.NUMA != nil && len(p.NUMA) != p.Count {
		return bad("numa", "%d lists for %d devices", len(p.NUMA), p.Count)
	}
	for _, cpus := range p.NUMA {
		if slices.ContainsFunc(cpus, func(c int) bool { return c < 0 }) {
			return bad("numa", "a negative CPU number")
		}
	}
	return nil
}

// Fingerprint is a short stable hash over everything that a Requirement or an oracle can read, for keys of caches. Where
// a library lies, and why it was not found, does not count; that it was not found does. Nil gives "".
func (p *Platform) Fingerprint() string {
	if p == nil {
		return ""
	}
	c := p.Clone()
	slices.Sort(c.Features)
	for i, l := range c.Libraries {
		c.Libraries[i] = Library{Name: l.Name, Version: l.Version}
		if !l.found() {
			c.Libraries[i].Err = "-"
		}
	}
	sayable(&c.Bandwidth)
	if c.Interconnect != nil {
		for _, row := range c.Interconnect.Bandwidth {
			for i := range row {
				sayable(&row[i])
			}
		}
	}
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // a field that JSON has no form for: a programming error
	}
	sum := sha256.Sum256(append(data, c.Arch.Vendor...))
	return hex.EncodeToString(sum[:12])
}

// sayable replaces a number that JSON does not have, and that Validate refuses.
func sayable(v *float64) {
	if math.IsNaN(*v) || math.IsInf(*v, 0) {
		*v = -1
	}
}

// found reports whether the library is there.
func (l Library) found() bool { return l.Err == "" }

// Clone returns a deep copy.
func (p *Platform) Clone() *Platform {
	if p == nil {
		return nil
	}
	c := *p
	c.Libraries, c.Features, c.Unknown, c.NUMA = slices.Clone(p.Libraries), slices.Clone(p.Features), maps.Clone(p.Unknown), slices.Clone(p.NUMA)
	for i, l := range c.NUMA {
		c.NUMA[i] = slices.Clone(l)
	}
	if i := p.Interconnect; i != nil {
		n := *i
		n.Bandwidth = slices.Clone(i.Bandwidth)
		for k, row := range n.Bandwidth {
			n.Bandwidth[k] = slices.Clone(row)
		}
		c.Interconnect = &n
	}
	return &c
}

// MarshalText is String; the vendor is not part of it.
func (a Arch) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText is ParseArch without a vendor.
func (a *Arch) UnmarshalText(b []byte) (err error) {
	*a, err = ParseArch("", string(b))
	return err
}

// UnmarshalJSON reads what encoding/json writes of a Platform. Unknown keys are refused; features are sorted. The result is
// not validated.
func (p *Platform) UnmarshalJSON(b []byte) error {
	type plain Platform
	var q plain
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return jsonError(err)
	}
	q.Arch.Vendor = q.Vendor
	if q.Arch.IsZero() {
		q.Arch = Arch{}
	}
	slices.Sort(q.Features)
	q.Features = slices.Compact(q.Features)
	*p = Platform(q)
	return nil
}

// jsonError names the field that the decoder complains about.
func jsonError(err error) error {
	if e := (*PlatformError)(nil); errors.As(err, &e) {
		return e
	}
	field := "text"
	if e := (*json.UnmarshalTypeError)(nil); errors.As(err, &e) {
		field = e.Field
	} else if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok {
		return &PlatformError{strings.Trim(name, `"`), "unknown key", err}
	} else if errors.Is(err, ErrArch) {
		field = "arch"
	} else if errors.Is(err, tensor.ErrParse) {
		field = "kind"
	}
	return &PlatformError{field, err.Error(), err}
}

// ByteOrderMark is what some editors put before UTF-8; readers of JSON files skip it.
const ByteOrderMark = "\xef\xbb\xbf"

// repeated returns a key that an object in data has twice, with its path, "" if none has. What is no JSON is for others
// to refuse.
func repeated(data []byte) string {
	type object struct {
		path, key string
		value     bool            // the key's comes next
		seen      map[string]bool // nil: a list
	}
	var open []object
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		t, err := d.Token()
		if err != nil {
			return ""
		}
		var top *object
		if len(open) > 0 {
			top = &open[len(open)-1]
		}
		if key, ok := t.(string); ok && top != nil && top.seen != nil && !top.value {
			if top.key = top.path + key; top.seen[key] {
				return top.key
			}
			top.seen[key], top.value = true, true
			continue
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			o := object{}
			if top != nil {
				o.path = top.path
				if top.seen != nil {
					o.path = top.key + "."
				}
			}
			if t == json.Delim('{') {
				o.seen = map[string]bool{}
			}
			open = append(open, o)
			continue
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		if len(open) > 0 { // a value is complete
			open[len(open)-1].value = false
		}
	}
}

// maxPlatformFile bounds a platform's file.
const maxPlatformFile = 1 << 20

// LoadPlatform reads and validates one platform in JSON, at most 1 MiB. Unknown keys and anything behind the object are
// refused. *PlatformError, or the reader's error.
func LoadPlatform(r io.Reader) (*Platform, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPlatformFile+1))
	if err != nil {
		return nil, fmt.Errorf("device: reading a platform: %w", err)
	}
	if len(data) > maxPlatformFile {
		return nil, bad("text", "over %d bytes", maxPlatformFile)
	}
	data = bytes.TrimPrefix(data, []byte(ByteOrderMark))
	if key := repeated(data); key != "" {
		return nil, bad(clip(key), "stands there twice")
	}
	var p *Platform
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, jsonError(err)
	}
	if p == nil {
		return nil, bad("text", "null")
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

// ReadPlatform is LoadPlatform on a file; errors name it.
func ReadPlatform(path string) (*Platform, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // before opening: a pipe would block
		return nil, fmt.Errorf("device: platform: %s is no regular file: %w", path, ErrPlatform)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("device: platform: %w", err)
	}
	defer f.Close()
	p, err := LoadPlatform(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// AsPlatform returns the platform that the backend published, or derives one from the record's other fields. The result
// must not be changed.
func (c *ProviderCaps) AsPlatform() *Platform {
	if c.Platform != nil {
		return c.Platform
	}
	p := &Platform{Vendor: "test", Kind: c.Device.Kind, Name: c.Arch, Count: 1, Memory: max(c.Memory.Total, 0), ComputeUnits: int(max(c.ComputeUnitCount, 0)),
		Libraries: slices.Clone(c.Libraries)}
	if p.Name == "" {
		p.Name = c.Device.Kind.String()
	}
	switch c.Device.Kind {
	case tensor.CPU:
		p.Vendor = CPUVendor
	case tensor.CUDA:
		p.Vendor = NVIDIA
	case tensor.ROCm:
		p.Vendor = AMD
	case tensor.Metal:
		p.Vendor = Apple
	case tensor.Vulkan:
		p.Vendor = "vulkan"
	}
	if c.ComputeMajor > 0 && c.ComputeMinor >= 0 {
		p.Arch = Arch{Vendor: p.Vendor, Major: c.ComputeMajor, Minor: c.ComputeMinor}
		p.Features = HardwareFeatures(p.Arch)
	}
	if c.Device.Kind == tensor.CUDA {
		p.Features = append(p.Features, "runtime:cuda_graph")
		slices.Sort(p.Features)
	}
	return p
}

// clip bounds a text that an error quotes.
func clip(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}
