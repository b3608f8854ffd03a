package device

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Conditions of this file's errors.
var (
	ErrArch   = errors.New("unknown architecture")
	ErrVendor = errors.New("architectures of different vendors")
)

// Arch is the version of a vendor's architecture: the compute capability of NVIDIA, AMD's and Apple's generations below.
// The zero version is none, as CPUs have. A Suffix names code for few devices, as NVIDIA's "9.0a" (9.0 only) and "10.0f"
// (10.0 and later 10.x); what a device reports of itself has none. Archs can be compared with ==.
type Arch struct {
	Vendor       string
	Major, Minor int32
	Suffix       string
}

// amdArchs are the architectures of AMD that have a version here. Any other is refused, never mapped to a near one.
var amdArchs = map[string]Arch{
	"gfx950":  {Vendor: AMD, Major: 9, Minor: 5},
	"gfx1250": {Vendor: AMD, Major: 12, Minor: 5},
}

// ParseArch reads the text form of a vendor's version, "9.0" or "9.0a"; "" is no version. ErrArch.
func ParseArch(vendor, s string) (Arch, error) {
	a := Arch{Vendor: vendor}
	if s == "" {
		return a, nil
	}
	number := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyz")
	a.Suffix = s[len(number):]
	major, minor, ok := strings.Cut(number, ".")
	if !ok || len(a.Suffix) > 1 || !versionNumber(major, &a.Major) || !versionNumber(minor, &a.Minor) || a.Major == 0 && a.Minor == 0 {
		return Arch{}, fmt.Errorf("device: architecture version %q is not like 9.0 or 9.0a: %w", clip(s), ErrArch)
	}
	return a, nil
}

func versionNumber(s string, n *int32) bool {
	v, err := strconv.ParseUint(s, 10, 15)
	*n = int32(v)
	return err == nil && strconv.FormatUint(v, 10) == s
}

// ArchOf turns the name under which a vendor's software reports an architecture into its version: "sm_90a" or "9.0" of
// NVIDIA, "gfx950:sramecc+:xnack-" of AMD (what follows the first colon does not count), "apple9" of Apple. An
// architecture of AMD that has no version here is refused with the list of those that have. ErrArch.
func ArchOf(vendor, name string) (Arch, error) {
	switch vendor {
	case AMD:
		base, _, _ := strings.Cut(name, ":")
		if a, ok := amdArchs[base]; ok {
			return a, nil
		}
		return Arch{}, fmt.Errorf("device: architecture %q of AMD is not supported, %s are: %w", clip(base),
			strings.Join(slices.Sorted(maps.Keys(amdArchs)), " "), ErrArch)
	case NVIDIA:
		if v, ok := strings.CutPrefix(name, "sm_"); ok {
			digits := strings.TrimRight(v, "abcdefghijklmnopqrstuvwxyz")
			if len(digits) < 2 {
				return Arch{}, fmt.Errorf("device: architecture %q of NVIDIA: %w", clip(name), ErrArch)
			}
			name = digits[:len(digits)-1] + "." + digits[len(digits)-1:] + v[len(digits):]
		}
	case Apple:
		if v, ok := strings.CutPrefix(name, "apple"); ok {
			name = v + ".0"
		}
	}
	if name == "" {
		return Arch{}, fmt.Errorf("device: no architecture: %w", ErrArch)
	}
	return ParseArch(vendor, name)
}

// IsZero reports whether a has no version.
func (a Arch) IsZero() bool { return a.Major == 0 && a.Minor == 0 && a.Suffix == "" }

// String returns "9.0" or "9.0a", without the vendor; "" for no version.
func (a Arch) String() string {
	if a.IsZero() {
		return ""
	}
	return fmt.Sprintf("%d.%d%s", a.Major, a.Minor, a.Suffix)
}

// Compare orders two versions of one vendor by number, then suffix. Versions of different vendors have no order:
// ErrVendor.
func (a Arch) Compare(b Arch) (int, error) {
	if a.Vendor != b.Vendor {
		return 0, fmt.Errorf("device: %s %v and %s %v: %w", a.Vendor, a, b.Vendor, b, ErrVendor)
	}
	return cmp.Or(a.number(b), strings.Compare(a.Suffix, b.Suffix)), nil
}

// number compares the numbers alone.
func (a Arch) number(b Arch) int {
	return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
}

// atLeast reports whether a device of version a runs what asks for b or later. Code for "9.0a" runs on 9.0 alone, code
// for "10.0f" on 10.0 and later 10.x.
func (a Arch) atLeast(b Arch) bool {
	switch b.Suffix {
	case "":
		return a.number(b) >= 0
	case "f":
		return a.Major == b.Major && a.Minor >= b.Minor
	}
	return a.number(b) == 0 && (a.Suffix == "" || a.Suffix == b.Suffix)
}

// Generation returns the name of the architecture's generation, as "Hopper" or "CDNA4"; SM or GFX and the version for
// those of NVIDIA and AMD that have no name here, vendor:version for others.
func (a Arch) Generation() string {
	switch v := fmt.Sprintf("%d.%d", a.Major, a.Minor); a.Vendor {
	case NVIDIA:
		if name, ok := map[string]string{"8.0": "Ampere", "8.6": "Ampere", "8.9": "Ada Lovelace", "9.0": "Hopper", "10.0": "Blackwell"}[v]; ok {
			return name
		}
		return "SM" + v
	case AMD:
		if name, ok := map[string]string{"9.5": "CDNA4", "12.5": "CDNA5"}[v]; ok {
			return name
		}
		return "GFX" + v
	default:
		return a.Vendor + ":" + v
	}
}

// is, since and version test one vendor's version.
func (a Arch) is(vendor string, major, minor int32) bool {
	return a.Vendor == vendor && a.Major == major && a.Minor == minor
}

func (a Arch) since(vendor string, major, minor int32) bool {
	return a.Vendor == vendor && a.number(Arch{Major: major, Minor: minor}) >= 0
}

// IsAmpere reports an NVIDIA device of major version 8, Ada (8.9) among them.
func (a Arch) IsAmpere() bool { return a.Vendor == NVIDIA && a.Major == 8 }

// IsHopper reports an NVIDIA device of major version 9.
func (a Arch) IsHopper() bool { return a.Vendor == NVIDIA && a.Major == 9 }

// IsBlackwell reports an NVIDIA device of major version 10: data-centre Blackwell, not the consumer parts (12.x).
func (a Arch) IsBlackwell() bool { return a.Vendor == NVIDIA && a.Major == 10 }

// IsAmperePlus reports NVIDIA 8.0 or later.
func (a Arch) IsAmperePlus() bool { return a.since(NVIDIA, 8, 0) }

// IsHopperPlus reports NVIDIA 9.0 or later.
func (a Arch) IsHopperPlus() bool { return a.since(NVIDIA, 9, 0) }

// IsBlackwellPlus reports NVIDIA 10.0 or later: also 11.0 and 12.x, which lack data-centre Blackwell's tensor memory or
// its instructions. A requirement names the features it needs instead.
func (a Arch) IsBlackwellPlus() bool { return a.since(NVIDIA, 10, 0) }

// IsCDNA4 reports AMD 9.5.
func (a Arch) IsCDNA4() bool { return a.is(AMD, 9, 5) }

// IsCDNA5 reports AMD 12.5.
func (a Arch) IsCDNA5() bool { return a.is(AMD, 12, 5) }

// IsCDNA4Plus reports AMD 9.5 or later.
func (a Arch) IsCDNA4Plus() bool { return a.since(AMD, 9, 5) }

// IsCDNA5Plus reports AMD 12.5 or later.
func (a Arch) IsCDNA5Plus() bool { return a.since(AMD, 12, 5) }
