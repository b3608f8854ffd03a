package opfile

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/opmux/opmux/tensor"
)

// MarshalJSON writes the operand in the common form, with all its elements; blocks as base64 of their bytes.
func (t Tensor) MarshalJSON() ([]byte, error) {
	v := struct {
		Name  string  `json:"name"`
		DType string  `json:"dtype"`
		Shape []int64 `json:"shape"`
		Data  any     `json:"data,omitempty"`
	}{t.Name, t.DType, append([]int64{}, t.Data.Dims()...), nil}
	switch {
	case t.Data.Host == nil:
	case t.Data.DType.IsBlock():
		v.Data = tensor.Slice[uint8](&t.Data)
	default:
		v.Data = elements(t.Data)
	}
	return json.Marshal(v)
}

// elements writes all values of a tensor as a flat array.
type elements tensor.Tensor

// MarshalJSON writes floats as the shortest text that gives them back, whole numbers and codes as they are.
func (e elements) MarshalJSON() ([]byte, error) {
	x := tensor.Tensor(e)
	b := []byte{'['}
	for i := range int(x.Numel()) {
		if i > 0 {
			b = append(b, ',')
		}
		switch x.DType {
		case tensor.F32, tensor.F16, tensor.BF16:
			b = appendNumber(b, at(&x, i), 32)
		case tensor.F64:
			b = appendNumber(b, at(&x, i), 64)
		default:
			b = strconv.AppendInt(b, atInt(&x, i), 10)
		}
	}
	return append(b, ']'), nil
}

// appendNumber writes v, quoted where JSON has no number for it.
func appendNumber(b []byte, v float64, bits int) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(b, `"Inf"`...)
	case math.IsInf(v, -1):
		return append(b, `"-Inf"`...)
	}
	return strconv.AppendFloat(b, v, 'g', -1, bits)
}

// MarshalJSON writes the fields in lower case, share as "share".
func (d Difference) MarshalJSON() ([]byte, error) {
	n := func(v float64) json.RawMessage { return appendNumber(nil, v, 64) }
	return json.Marshal(struct {
		Output  string          `json:"output"`
		Index   int             `json:"index"`
		Got     json.RawMessage `json:"got"`
		Want    json.RawMessage `json:"want"`
		Allowed json.RawMessage `json:"allowed"`
		Share   json.RawMessage `json:"share"`
		OK      bool            `json:"ok"`
	}{d.Output, d.Index, n(d.Got), n(d.Want), n(d.Allowed), n(d.Share), d.OK()})
}

// First returns the texts of the first n elements in memory order, of blocks none.
func (t *Tensor) First(n int) (out []string) {
	if t.Data.Host == nil || t.Data.DType.IsBlock() {
		return nil
	}
	for i := range min(n, int(t.Data.Numel())) {
		out = append(out, strconv.FormatFloat(at(&t.Data, i), 'g', 7, 64))
	}
	return out
}
