package device

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrRequirement is the condition of every *RequirementError.
var ErrRequirement = errors.New("requirement refused")

// RequirementError refuses a Requirement and names the field. It is ErrRequirement.
type RequirementError struct {
	Field string // as in JSON
	Msg   string
}

// Error names the field.
func (e *RequirementError) Error() string { return "device: requirement: " + e.Field + ": " + e.Msg }

// Unwrap returns ErrRequirement.
func (e *RequirementError) Unwrap() error { return ErrRequirement }

// Requirement is what a kernel needs of a platform. All conditions that are given must hold; the zero value is none. A
// fact that the platform does not know fails the condition that asks for it.
type Requirement struct {
	Vendors              []string             `json:"vendors,omitempty"`                  // one of them
	MinArch              string               `json:"min_arch,omitempty"`                 // "9.0" or later, "9.0a", "10.0f" (see Arch); needs one vendor
	MaxArch              string               `json:"max_arch,omitempty"`                 // "11.0" or earlier; needs one vendor
	Features             []string             `json:"features,omitempty"`                 // all of them
	Forbidden            []string             `json:"forbidden,omitempty"`                // none of these features
	AnyOf                []Requirement        `json:"any_of,omitempty"`                   // at least one holds
	MinComputeUnits      int                  `json:"min_compute_units,omitempty"`        // SMs, CUs, cores
	MinSharedMemPerBlock int64                `json:"min_shared_mem_per_block,omitempty"` // bytes
	MinMemory            int64                `json:"min_memory,omitempty"`               // bytes
	MinDriver            string               `json:"min_driver,omitempty"`               // version, numbers joined by dots
	Libraries            []LibraryRequirement `json:"libraries,omitempty"`
}

// LibraryRequirement asks for a library that was found, of a version inside the bounds that are given.
type LibraryRequirement struct {
	Name string `json:"name"`
	Min  string `json:"min,omitempty"` // "12.4" or later
	Max  string `json:"max,omitempty"` // "12.9" or earlier; 12.9.1 is later
}

// Reason is one condition that a platform does not meet.
type Reason struct {
	Kind string `json:"kind"` // vendor, min-arch, max-arch, feature, forbidden-feature, any-of, compute-units, shared-memory, memory, driver, library
	Want string `json:"want"`
	Have string `json:"have"`
}

// String returns "min-arch: wants 10.0, the platform has 9.0".
func (r Reason) String() string {
	return r.Kind + ": wants " + r.Want + ", the platform has " + r.Have
}

// maxAnyOf bounds how deep alternatives nest.
const maxAnyOf = 4

// Validate checks that vendors are known, features are area:item, versions can be read and min <= max. *RequirementError.
func (r *Requirement) Validate() error {
	if err := r.validate("", nil, 0); err != nil {
		return err
	}
	return nil
}

// validate checks r at the given path; of are the vendors that an enclosing requirement leaves.
func (r *Requirement) validate(at string, of []string, depth int) *RequirementError {
	refuse := func(field, format string, args ...any) *RequirementError {
		return &RequirementError{at + field, fmt.Sprintf(format, args...)}
	}
	for _, v := range r.Vendors {
		if !slices.Contains(vendors, v) {
			return refuse("vendors", "%q is not one of %s", clip(v), strings.Join(vendors, " "))
		}
		if of != nil && !slices.Contains(of, v) {
			return refuse("vendors", "%s is not one of the enclosing %s", v, strings.Join(of, " "))
		}
	}
	if len(r.Vendors) > 0 {
		of = r.Vendors
	}
	lo, err := ParseArch("", r.MinArch)
	if err != nil {
		return refuse("min_arch", "%v", err)
	}
	hi, err := ParseArch("", r.MaxArch)
	if err != nil || hi.Suffix != "" {
		return refuse("max_arch", "%q is not like 11.0", clip(r.MaxArch))
	}
	if r.MinArch != "" && r.MaxArch != "" && lo.number(hi) > 0 {
		return refuse("max_arch", "%s is below min_arch %s", r.MaxArch, r.MinArch)
	}
	if (r.MinArch != "" || r.MaxArch != "") && len(of) != 1 {
		field := "min_arch"
		if r.MinArch == "" {
			field = "max_arch"
		}
		return refuse(field, "versions have an order only within one vendor, vendors are %v (use any_of)", of)
	}
	if r.MinArch != "" && of[0] == CPUVendor {
		return refuse("min_arch", "processors have no version here, so none could match: ask for features, like isa:avx2")
	}
	if r.MaxArch != "" && of[0] == CPUVendor {
		return refuse("max_arch", "processors have no version here, so none could match: ask for features, like isa:avx2")
	}
	for _, f := range []struct {
		field string
		list  []string
	}{{"features", r.Features}, {"forbidden", r.Forbidden}} {
		for _, name := range f.list {
			if !featureName.MatchString(name) {
				return refuse(f.field, "%q is not area:item", clip(name))
			}
		}
	}
	for _, name := range r.Forbidden {
		if slices.Contains(r.Features, name) {
			return refuse("forbidden", "%s is required too", name)
		}
	}
	for _, n := range []struct {
		field string
		v     int64
	}{{"min_compute_units", int64(r.MinComputeUnits)}, {"min_shared_mem_per_block", r.MinSharedMemPerBlock}, {"min_memory", r.MinMemory}} {
		if n.v < 0 {
			return refuse(n.field, "%d is negative", n.v)
		}
	}
	if _, ok := version(r.MinDriver, true); r.MinDriver != "" && !ok {
		return refuse("min_driver", "%q is no version", clip(r.MinDriver))
	}
	for i, l := range r.Libraries {
		lo, okLo := version(l.Min, true)
		hi, okHi := version(l.Max, true)
		switch field := fmt.Sprintf("libraries[%d].", i); {
		case l.Name == "":
			return refuse(field+"name", "empty")
		case l.Min != "" && !okLo:
			return refuse(field+"min", "%q is no version", clip(l.Min))
		case l.Max != "" && !okHi:
			return refuse(field+"max", "%q is no version", clip(l.Max))
		case l.Min != "" && l.Max != "" && compareVersions(lo, hi) > 0:
			return refuse(field+"max", "%s is below min %s", l.Max, l.Min)
		}
	}
	if len(r.AnyOf) > 0 && depth == maxAnyOf {
		return refuse("any_of", "nested more than %d deep", maxAnyOf)
	}
	for i := range r.AnyOf {
		if err := r.AnyOf[i].validate(fmt.Sprintf("%sany_of[%d].", at, i), of, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// SatisfiedBy reports whether p meets every condition.
func (r *Requirement) SatisfiedBy(p *Platform) bool { return len(r.Check(p)) == 0 }

// Check returns one reason for each condition that p does not meet, in the order of the fields. Versions are compared
// only if the vendor fits. A nil platform meets the zero Requirement alone.
func (r *Requirement) Check(p *Platform) []Reason {
	if p == nil {
		if r.Conditions() == 0 {
			return nil
		}
		return []Reason{{"vendor", r.String(), "no description"}}
	}
	return r.check(p, true, 0)
}

func (r *Requirement) check(p *Platform, sameVendor bool, depth int) (list []Reason) {
	add := func(kind, want, have string) { list = append(list, Reason{kind, want, have}) }
	if len(r.Vendors) > 0 && !slices.Contains(r.Vendors, p.Vendor) {
		add("vendor", strings.Join(r.Vendors, " or "), p.Vendor)
		sameVendor = false
	}
	have := p.Arch.String()
	if have == "" {
		have = "no version"
	}
	if sameVendor && r.MinArch != "" {
		if lo, err := ParseArch("", r.MinArch); err != nil || p.Arch.IsZero() || !p.Arch.atLeast(lo) {
			add("min-arch", r.MinArch, have)
		}
	}
	if sameVendor && r.MaxArch != "" {
		if hi, err := ParseArch("", r.MaxArch); err != nil || p.Arch.IsZero() || p.Arch.number(hi) > 0 {
			add("max-arch", r.MaxArch, have)
		}
	}
	for _, f := range r.Features {
		switch p.Has(f) {
		case No:
			add("feature", f, "none")
		case Unsure:
			add("feature", f, "no answer: "+p.Unknown[f])
		}
	}
	for _, f := range r.Forbidden {
		switch p.Has(f) {
		case Yes:
			add("forbidden-feature", "no "+f, f)
		case Unsure:
			add("forbidden-feature", "no "+f, "no answer: "+p.Unknown[f])
		}
	}
	if len(r.AnyOf) > 0 && depth <= maxAnyOf {
		var wants, haves []string
		for i := range r.AnyOf {
			reasons := r.AnyOf[i].check(p, sameVendor, depth+1)
			if len(reasons) == 0 {
				wants = nil
				break
			}
			wants = append(wants, r.AnyOf[i].String())
			haves = append(haves, reasons[0].Have)
		}
		if wants != nil {
			add("any-of", strings.Join(wants, " or "), strings.Join(slices.Compact(haves), ", "))
		}
	}
	atLeast := func(kind string, want, have int64) {
		if want > 0 && have < want {
			text := strconv.FormatInt(have, 10)
			if have == 0 {
				text = "no answer"
			}
			add(kind, strconv.FormatInt(want, 10), text)
		}
	}
	atLeast("compute-units", int64(r.MinComputeUnits), int64(p.ComputeUnits))
	atLeast("shared-memory", r.MinSharedMemPerBlock, p.SharedMemPerBlock)
	atLeast("memory", r.MinMemory, p.Memory)
	if r.MinDriver != "" && !versionWithin(p.Driver, r.MinDriver, "") {
		add("driver", r.MinDriver, orNone(p.Driver))
	}
	for _, l := range r.Libraries {
		if have, ok := l.check(p.Libraries); !ok {
			add("library", l.String(), have)
		}
	}
	return list
}

// check looks for l among the libraries of a platform; have says what is there instead.
func (l LibraryRequirement) check(libs []Library) (have string, ok bool) {
	have = "none"
	for _, x := range libs {
		switch {
		case x.Name != l.Name:
		case !x.found():
			have = "not found: " + clip(x.Err)
		case l.Min == "" && l.Max == "", versionWithin(x.Version, l.Min, l.Max):
			return "", true
		default:
			have = orNone(x.Version)
		}
	}
	return have, false
}

// String returns the name and the bounds.
func (l LibraryRequirement) String() string {
	s := l.Name
	if l.Min != "" {
		s += " >= " + l.Min
	}
	if l.Max != "" {
		s += " <= " + l.Max
	}
	return s
}

// Missing returns the required features that p is not known to have.
func (r *Requirement) Missing(p *Platform) (list []string) {
	for _, f := range r.Features {
		if p == nil || p.Has(f) != Yes {
			list = append(list, f)
		}
	}
	return list
}

// Conditions counts the conditions; alternatives count as the one with the most.
func (r *Requirement) Conditions() int { return r.conditions(0) }

func (r *Requirement) conditions(depth int) int {
	n := len(r.Features) + len(r.Forbidden) + len(r.Libraries)
	for _, given := range []bool{len(r.Vendors) > 0, r.MinArch != "", r.MaxArch != "", r.MinComputeUnits > 0, r.MinSharedMemPerBlock > 0, r.MinMemory > 0, r.MinDriver != ""} {
		if given {
			n++
		}
	}
	most := 0
	if depth <= maxAnyOf {
		for i := range r.AnyOf {
			most = max(most, r.AnyOf[i].conditions(depth+1))
		}
	}
	return n + most
}

// Clone returns a deep copy.
func (r *Requirement) Clone() Requirement {
	c := *r
	c.Vendors, c.Features, c.Forbidden, c.Libraries = slices.Clone(r.Vendors), slices.Clone(r.Features), slices.Clone(r.Forbidden), slices.Clone(r.Libraries)
	c.AnyOf = slices.Clone(r.AnyOf)
	for i := range c.AnyOf {
		c.AnyOf[i] = r.AnyOf[i].Clone()
	}
	return c
}

// String returns the conditions in one line, "anything" for none.
func (r *Requirement) String() string { return r.text(0) }

func (r *Requirement) text(depth int) string {
	var words []string
	add := func(given bool, format string, args ...any) {
		if given {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(len(r.Vendors) > 0, "%s", strings.Join(r.Vendors, "|"))
	add(r.MinArch != "", ">= %s", r.MinArch)
	add(r.MaxArch != "", "<= %s", r.MaxArch)
	add(len(r.Features) > 0, "%s", strings.Join(r.Features, " "))
	for _, f := range r.Forbidden {
		add(true, "no %s", f)
	}
	add(r.MinComputeUnits > 0, "%d units", r.MinComputeUnits)
	add(r.MinSharedMemPerBlock > 0, "%d bytes of shared memory a block", r.MinSharedMemPerBlock)
	add(r.MinMemory > 0, "%d bytes of memory", r.MinMemory)
	add(r.MinDriver != "", "driver >= %s", r.MinDriver)
	for _, l := range r.Libraries {
		add(true, "%v", l)
	}
	if len(r.AnyOf) > 0 && depth <= maxAnyOf {
		var alt []string
		for i := range r.AnyOf {
			alt = append(alt, r.AnyOf[i].text(depth+1))
		}
		add(true, "(%s)", strings.Join(alt, " or "))
	}
	if len(words) == 0 {
		return "anything"
	}
	return strings.Join(words, ", ")
}

func orNone(s string) string {
	if s == "" {
		return "no answer"
	}
	return clip(s)
}

// version reads numbers joined by dots. Unless exact, the first character that is neither ends the version ("535.104-rc").
func version(s string, exact bool) (v []uint64, ok bool) {
	end := strings.IndexFunc(s, func(c rune) bool { return c != '.' && (c < '0' || c > '9') })
	if end >= 0 {
		if exact {
			return nil, false
		}
		s = strings.TrimRight(s[:end], ".")
	}
	for w := range strings.SplitSeq(s, ".") {
		n, err := strconv.ParseUint(w, 10, 63)
		if err != nil || len(v) == 8 {
			return nil, false
		}
		v = append(v, n)
	}
	return v, true
}

// compareVersions compares number by number; missing ones are 0.
func compareVersions(a, b []uint64) int {
	for len(a) < len(b) {
		a = append(a, 0)
	}
	for len(b) < len(a) {
		b = append(b, 0)
	}
	return slices.Compare(a, b)
}

// versionWithin reports whether s can be read and lies inside the bounds, of which either may be empty.
func versionWithin(s, lo, hi string) bool {
	v, ok := version(s, false)
	if !ok {
		return false
	}
	if w, ok := version(lo, true); lo != "" && (!ok || compareVersions(v, w) < 0) {
		return false
	}
	w, ok := version(hi, true)
	return hi == "" || ok && compareVersions(v, w) <= 0
}
