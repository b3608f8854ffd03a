package gguf

import (
	"fmt"

	"github.com/opmux/opmux/tensor"
)

// Type is the type of a metadata value; the numbers are the format's.
type Type uint32

// Types of metadata values.
const (
	Uint8 Type = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
	numTypes
)

var typeNames = [numTypes]string{"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64"}

// typeSizes holds the bytes of a value, 0 where the length varies.
var typeSizes = [numTypes]int{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

// String returns a short name ("u32", "str", "arr").
func (t Type) String() string {
	if t < numTypes {
		return typeNames[t]
	}
	return fmt.Sprintf("type(%d)", uint32(t))
}

func (t Type) integer() bool { return t <= Int32 || t == Uint64 || t == Int64 }
func (t Type) float() bool   { return t == Float32 || t == Float64 }
func (t Type) bool() bool    { return t == Bool }

// tensorTypes maps ggml's type numbers. Numbers that are missing belonged to types that ggml removed.
var tensorTypes = map[uint32]tensor.DType{
	0: tensor.F32, 1: tensor.F16, 24: tensor.I8, 25: tensor.I16, 26: tensor.I32, 27: tensor.I64, 28: tensor.F64, 30: tensor.BF16,
	2: tensor.Q4_0, 3: tensor.Q4_1, 6: tensor.Q5_0, 7: tensor.Q5_1, 8: tensor.Q8_0, 9: tensor.Q8_1,
	10: tensor.Q2_K, 11: tensor.Q3_K, 12: tensor.Q4_K, 13: tensor.Q5_K, 14: tensor.Q6_K, 15: tensor.Q8_K,
	16: tensor.IQ2_XXS, 17: tensor.IQ2_XS, 18: tensor.IQ3_XXS, 19: tensor.IQ1_S, 20: tensor.IQ4_NL, 21: tensor.IQ3_S,
	22: tensor.IQ2_S, 23: tensor.IQ4_XS, 29: tensor.IQ1_M, 34: tensor.TQ1_0, 35: tensor.TQ2_0,
	39: tensor.MXFP4, 40: tensor.NVFP4, 41: tensor.Q1_0, 42: tensor.Q2_0,
}

var tensorIDs = func() map[tensor.DType]uint32 {
	ids := make(map[tensor.DType]uint32, len(tensorTypes))
	for id, t := range tensorTypes {
		ids[t] = id
	}
	return ids
}()

// DType returns the dtype of a ggml type number.
func DType(id uint32) (tensor.DType, bool) {
	t, ok := tensorTypes[id]
	return t, ok
}

// TypeID returns the ggml type number of a dtype; types that only kernels know (U8, fp8, fp4) have none.
func TypeID(t tensor.DType) (uint32, bool) {
	id, ok := tensorIDs[t]
	return id, ok
}
