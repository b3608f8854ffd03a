package tensor

import (
	"fmt"
	"strconv"
)

// Layout says how the bytes of a tensor are ordered. It is part of the tensor's type: a view keeps it or is refused,
// so that reordered bytes can never be read as plain ones.
type Layout uint8

// Layouts.
const (
	// Strided is the plain layout: element (i,j,..) at Σ index·stride; rows of whole blocks for block dtypes.
	Strided Layout = iota
	// Lane16 holds a weight [N,K] as panels of 16 rows, interleaved so that each 32-bit lane of a 512-bit load belongs
	// to one row. N is padded with zero rows to a multiple of 16. F32: [N/16][K][16]. Q4_0 and Q8_0: per panel and block
	// of 32 k the quants of the 16 rows in groups of 4 k, then 16 f16 scales (cpu/internal/simd says the exact bytes).
	Lane16
	numLayouts int = iota
)

// String returns "strided" or "lane16".
func (l Layout) String() string {
	switch l {
	case Strided:
		return "strided"
	case Lane16:
		return "lane16"
	}
	return "layout(" + strconv.Itoa(int(l)) + ")"
}

// ParseLayout is the inverse of String.
func ParseLayout(s string) (Layout, error) {
	for l := range numLayouts {
		if Layout(l).String() == s {
			return Layout(l), nil
		}
	}
	return 0, fmt.Errorf("tensor: layout %q is not strided or lane16: %w", s, ErrParse)
}

// MarshalText is String, for JSON.
func (l Layout) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is ParseLayout.
func (l *Layout) UnmarshalText(b []byte) (err error) {
	*l, err = ParseLayout(string(b))
	return err
}
