package tensor

import (
	"fmt"
	"math"
	"strconv"
)

// DType is a storage type: of single elements (F32, I64 ...) or of blocks of elements that share scales (Q4_0 ...).
// The numbers are stable: they stand in the C ABI. The zero value, None, marks an absent operand.
type DType uint8

// Element types.
const (
	None DType = iota
	F32
	F16
	BF16
	F64
	I8
	U8
	I16
	I32
	I64
	F8E4M3FN
	F8E5M2
	F8E8M0
	F4E2M1x2 // two codes a byte, the even element in the low nibble; extents count bytes
)

// Block types, laid out as ggml stores them.
const (
	Q4_0 DType = 32 + iota
	Q4_1
	Q5_0
	Q5_1
	Q8_0
	Q8_1
	Q2_K
	Q3_K
	Q4_K
	Q5_K
	Q6_K
	Q8_K
	IQ1_S
	IQ1_M
	IQ2_XXS
	IQ2_XS
	IQ2_S
	IQ3_XXS
	IQ3_S
	IQ4_NL
	IQ4_XS
	TQ1_0
	TQ2_0
	MXFP4
	NVFP4
	Q1_0
	Q2_0
	numDTypes int = 32 + iota
)

type dtypeInfo struct {
	name  string
	elems int // elements of one block; 1 for element types
	bytes int // bytes of one block or element
}

// Sizes of the ggml types were read from their block structures (ggml-common.h) and are checked against the conformance files.
var dtypes = [numDTypes]dtypeInfo{
	None: {"none", 0, 0},
	F32:  {"f32", 1, 4}, F16: {"f16", 1, 2}, BF16: {"bf16", 1, 2}, F64: {"f64", 1, 8},
	I8: {"i8", 1, 1}, U8: {"u8", 1, 1}, I16: {"i16", 1, 2}, I32: {"i32", 1, 4}, I64: {"i64", 1, 8},
	F8E4M3FN: {"f8_e4m3fn", 1, 1}, F8E5M2: {"f8_e5m2", 1, 1}, F8E8M0: {"f8_e8m0", 1, 1}, F4E2M1x2: {"f4_e2m1x2", 1, 1},
	Q4_0: {"q4_0", 32, 18}, Q4_1: {"q4_1", 32, 20}, Q5_0: {"q5_0", 32, 22}, Q5_1: {"q5_1", 32, 24},
	Q8_0: {"q8_0", 32, 34}, Q8_1: {"q8_1", 32, 36},
	Q2_K: {"q2_K", 256, 84}, Q3_K: {"q3_K", 256, 110}, Q4_K: {"q4_K", 256, 144}, Q5_K: {"q5_K", 256, 176},
	Q6_K: {"q6_K", 256, 210}, Q8_K: {"q8_K", 256, 292},
	IQ1_S: {"iq1_s", 256, 50}, IQ1_M: {"iq1_m", 256, 56}, IQ2_XXS: {"iq2_xxs", 256, 66}, IQ2_XS: {"iq2_xs", 256, 74},
	IQ2_S: {"iq2_s", 256, 82}, IQ3_XXS: {"iq3_xxs", 256, 98}, IQ3_S: {"iq3_s", 256, 110},
	IQ4_NL: {"iq4_nl", 32, 18}, IQ4_XS: {"iq4_xs", 256, 136}, TQ1_0: {"tq1_0", 256, 54}, TQ2_0: {"tq2_0", 256, 66},
	MXFP4: {"mxfp4", 32, 17}, NVFP4: {"nvfp4", 64, 36}, Q1_0: {"q1_0", 128, 18}, Q2_0: {"q2_0", 64, 18},
}

// String returns the name that files and errors use ("f32", "q4_K").
func (t DType) String() string {
	if t.Valid() {
		return dtypes[t].name
	}
	return "dtype(" + strconv.Itoa(int(t)) + ")"
}

// Valid reports whether t is None or a listed type.
func (t DType) Valid() bool { return int(t) < numDTypes && dtypes[t].name != "" }

// ParseDType is the inverse of String; letter case does not matter.
func ParseDType(s string) (DType, error) {
	for t := range dtypes {
		if n := dtypes[t].name; n != "" && equalFold(n, s) && t != int(None) {
			return DType(t), nil
		}
	}
	return None, fmt.Errorf("tensor: unknown dtype %q: %w", s, ErrDType)
}

// MarshalText is String, for JSON.
func (t DType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is ParseDType; "none" gives None.
func (t *DType) UnmarshalText(b []byte) (err error) {
	if *t = None; string(b) != "none" {
		*t, err = ParseDType(string(b))
	}
	return err
}

// equalFold compares without regard to the case of ASCII letters.
func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}

// IsBlock reports whether elements of t exist only in blocks that share scales.
func (t DType) IsBlock() bool { return t.Valid() && dtypes[t].elems > 1 }

// IsFloat reports whether t is f32, f16 or bf16: the class Float of the catalogue.
func (t DType) IsFloat() bool { return t == F32 || t == F16 || t == BF16 }

// Size returns the bytes of one element. A block type has none, nor has None: the result is 0.
func (t DType) Size() int {
	if !t.Valid() || dtypes[t].elems != 1 {
		return 0
	}
	return dtypes[t].bytes
}

// Block returns the elements and the bytes of one block; 1 and Size for element types.
func (t DType) Block() (elems, bytes int) {
	if !t.Valid() {
		return 0, 0
	}
	return dtypes[t].elems, dtypes[t].bytes
}

// RowBytes returns the bytes of k consecutive elements of a row. k must be a non-negative multiple of the block
// length (ErrShape) and the result must fit in int64 (ErrOverflow).
func (t DType) RowBytes(k int64) (int64, error) {
	e, b := t.Block()
	switch {
	case e == 0:
		return 0, fmt.Errorf("tensor: row of %v: %w", t, ErrDType)
	case k < 0 || k%int64(e) != 0:
		return 0, fmt.Errorf("tensor: row of %d elements is not whole %v blocks of %d: %w", k, t, e, ErrShape)
	case k/int64(e) > math.MaxInt64/int64(b):
		return 0, fmt.Errorf("tensor: row of %d %v elements: %w", k, t, ErrOverflow)
	}
	return k / int64(e) * int64(b), nil
}
