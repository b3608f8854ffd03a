package opfile

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// Tensor is a named operand.
type Tensor struct {
	Name  string
	DType string        // as the file writes it
	Data  tensor.Tensor // contiguous CPU memory; no Host if the file gives only a shape; DType None if no op has such elements

	key   string    // the name that adapters use
	wide  bool      // Data holds the values of a type that tensors lack
	bits  bool      // expected: equal to the bit
	allow []float64 // expected: largest difference of each element
	slack []float64 // computed: how far off the arithmetic of whoever wrote the expectation may be
}

// fileDTypes are words of files for dtypes that package tensor names otherwise. Words that are in neither list belong to
// operands that can be read past, but that no op takes.
var fileDTypes = map[string]tensor.DType{
	"bool": tensor.U8, "f8e4m3fn": tensor.F8E4M3FN, "f8e5m2": tensor.F8E5M2, "f8e8m0": tensor.F8E8M0,
}

// wideDTypes are words of files for types that tensors lack, and the types that hold each of their values here. Only adapters
// that know what they read take them.
var wideDTypes = map[string]tensor.DType{
	"i2": tensor.I8, "i4": tensor.I8, "u2": tensor.U8, "u4": tensor.U8, "u16": tensor.I32, "f4e2m1": tensor.U8, // codes, one an element
}

// parseDType returns None for a dtype that no op takes.
func parseDType(s string) tensor.DType {
	if t, ok := fileDTypes[s]; ok {
		return t
	}
	t, _ := tensor.ParseDType(s)
	return t
}

// memory returns a zeroed contiguous tensor. Whoever calls it has bounded the size.
func memory(t tensor.DType, shape ...int64) (tensor.Tensor, error) {
	x, err := tensor.New(nil, t, shape...)
	if err != nil {
		return x, err
	}
	n, err := x.Bytes()
	if err != nil {
		return x, err
	}
	x.Host = unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1))) // whole words: aligned for every dtype
	return x, nil
}

// tensorJSON is an operand of the common form.
type tensorJSON struct {
	Name  string
	DType string
	Shape []int64
	Data  json.RawMessage
	Slot  *int
}

// read checks o and copies its data. The elements must be as many as the shape says, each in the range of the dtype.
func (o *tensorJSON) read() (Tensor, error) {
	t := Tensor{Name: o.Name, DType: o.DType, key: o.Name}
	dt := parseDType(o.DType)
	if dt == tensor.None {
		dt = wideDTypes[o.DType]
		if t.wide = true; dt == tensor.None {
			return t, nil
		}
	}
	x, err := tensor.New(nil, dt, o.Shape...)
	if err == nil {
		switch {
		case len(o.Data) == 0 || string(o.Data) == "null":
			t.Data = x
		case o.Data[0] == '"':
			var b []byte
			if err = json.Unmarshal(o.Data, &b); err == nil {
				err = t.copyBytes(x, b)
			}
		case dt.IsBlock():
			err = fmt.Errorf("data of %v must be base64 of its bytes", dt)
		default:
			err = t.copyElements(x, o.Data)
		}
	}
	if err != nil {
		return t, errorf(ErrFormat, o.Name, "%v", err)
	}
	return t, nil
}

// copyElements gives t the shape of x and the elements of a flat array, which must be as many as x has.
func (t *Tensor) copyElements(x tensor.Tensor, raw json.RawMessage) error {
	n, err := scalars(raw, func(int, []byte) error { return nil })
	if err != nil {
		return err
	}
	if int64(n) != x.Numel() {
		return fmt.Errorf("%d elements for %v", n, &x)
	}
	if t.Data, err = memory(x.DType, x.Dims()...); err != nil {
		return err
	}
	_, err = scalars(raw, func(i int, s []byte) error { return setText(&t.Data, i, string(s)) })
	return err
}

// copyBytes gives t the shape of x and the bytes b, which must be as many as x has.
func (t *Tensor) copyBytes(x tensor.Tensor, b []byte) error {
	n, err := x.Bytes()
	if err != nil {
		return err
	}
	if int64(len(b)) != n {
		return fmt.Errorf("%d bytes for %v, which has %d", len(b), &x, n)
	}
	if t.Data, err = memory(x.DType, x.Dims()...); err != nil {
		return err
	}
	copy(tensor.Slice[uint8](&t.Data), b)
	return nil
}

// scalars calls f with the text of each element of a flat JSON array whose syntax has been checked, quotes removed.
func scalars(raw json.RawMessage, f func(i int, s []byte) error) (n int, err error) {
	if len(raw) == 0 || raw[0] != '[' {
		return 0, fmt.Errorf("data is not an array")
	}
	for at := 1; at < len(raw); {
		start := at
		switch raw[at] {
		case ' ', '\t', '\r', '\n', ',', ']':
			at++
			continue
		case '[', '{':
			return n, fmt.Errorf("element %d of the data is not a number: the array is flat", n)
		case '"':
			for at++; raw[at] != '"'; at++ {
				if raw[at] == '\\' {
					return n, fmt.Errorf("element %d of the data is no number", n)
				}
			}
			start++
		default:
			for at < len(raw) && raw[at] != ',' && raw[at] != ']' && raw[at] > ' ' {
				at++
			}
		}
		if err := f(n, raw[start:at]); err != nil {
			return n, fmt.Errorf("element %d: %w", n, err)
		}
		if raw[at] == '"' {
			at++
		}
		n++
	}
	return n, nil
}

var wholeBits = [...]int{tensor.I8: 8, tensor.I16: 16, tensor.I32: 32, tensor.I64: 64}

// setText stores the element that s spells.
func setText(x *tensor.Tensor, i int, s string) error {
	switch x.DType {
	case tensor.F32, tensor.F16, tensor.BF16, tensor.F64:
		v, err := parseFloat(s)
		if err != nil {
			return err
		}
		if set(x, i, v); math.IsInf(at(x, i), 0) && !math.IsInf(v, 0) {
			return fmt.Errorf("%s is out of the range of %v", s, x.DType)
		}
		return nil
	case tensor.U8, tensor.F8E4M3FN, tensor.F8E5M2, tensor.F8E8M0, tensor.F4E2M1x2: // codes; booleans
		switch s {
		case "true":
			s = "1"
		case "false":
			s = "0"
		}
		v, err := strconv.ParseUint(s, 10, 8)
		if err != nil {
			return err
		}
		tensor.Slice[uint8](x)[i] = uint8(v)
		return nil
	}
	v, err := strconv.ParseInt(s, 10, wholeBits[x.DType])
	if err != nil {
		return err
	}
	setInt(x, i, v)
	return nil
}

// parseFloat reads a number or one of NaN, Inf, -Inf.
func parseFloat(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return v, nil
}

// at returns element i in memory order; whole numbers beyond 2^53 lose their last bits.
func at(x *tensor.Tensor, i int) float64 {
	switch x.DType {
	case tensor.F32:
		return float64(tensor.Slice[float32](x)[i])
	case tensor.F16:
		return float64(tensor.DecodeF16(tensor.Slice[uint16](x)[i]))
	case tensor.BF16:
		return float64(tensor.DecodeBF16(tensor.Slice[uint16](x)[i]))
	case tensor.F64:
		return tensor.Slice[float64](x)[i]
	case tensor.F8E4M3FN:
		return float64(tensor.DecodeE4M3FN(tensor.Slice[uint8](x)[i]))
	case tensor.F8E5M2:
		return float64(tensor.DecodeE5M2(tensor.Slice[uint8](x)[i]))
	case tensor.F8E8M0:
		return float64(tensor.DecodeE8M0(tensor.Slice[uint8](x)[i]))
	}
	return float64(atInt(x, i))
}

// atInt returns element i of a tensor of whole numbers (or bytes).
func atInt(x *tensor.Tensor, i int) int64 {
	switch x.DType {
	case tensor.I8:
		return int64(tensor.Slice[int8](x)[i])
	case tensor.I16:
		return int64(tensor.Slice[int16](x)[i])
	case tensor.I32:
		return int64(tensor.Slice[int32](x)[i])
	case tensor.I64:
		return tensor.Slice[int64](x)[i]
	}
	return int64(tensor.Slice[uint8](x)[i])
}

// set rounds v to element i of a float tensor.
func set(x *tensor.Tensor, i int, v float64) {
	switch x.DType {
	case tensor.F32:
		tensor.Slice[float32](x)[i] = float32(v)
	case tensor.F16:
		tensor.Slice[uint16](x)[i] = tensor.EncodeF16(float32(v))
	case tensor.BF16:
		tensor.Slice[uint16](x)[i] = tensor.EncodeBF16(float32(v))
	case tensor.F64:
		tensor.Slice[float64](x)[i] = v
	}
}

// setInt stores v, which fits, as element i of a tensor of whole numbers.
func setInt(x *tensor.Tensor, i int, v int64) {
	switch x.DType {
	case tensor.I8:
		tensor.Slice[int8](x)[i] = int8(v)
	case tensor.I16:
		tensor.Slice[int16](x)[i] = int16(v)
	case tensor.I32:
		tensor.Slice[int32](x)[i] = int32(v)
	case tensor.I64:
		tensor.Slice[int64](x)[i] = v
	case tensor.U8:
		tensor.Slice[uint8](x)[i] = uint8(v)
	}
}

// isWhole reports whether t holds whole numbers.
func isWhole(t tensor.DType) bool {
	return t == tensor.I8 || t == tensor.U8 || t == tensor.I16 || t == tensor.I32 || t == tensor.I64
}
