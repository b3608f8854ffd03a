package opfile

import (
	"math"

	"github.com/opmux/opmux/tensor"
)

// unspecified marks a code that a table leaves open.
const unspecified = math.MinInt32

// codec is a small float type.
type codec struct {
	codes    int
	decode   func(c int) float32
	encode   func(v float32) int
	saturate func(v float32) int // nil: the type overflows to infinity only
}

// codecs by the names of files.
var codecs = map[string]codec{
	"f16": {1 << 16, func(c int) float32 { return tensor.DecodeF16(uint16(c)) },
		func(v float32) int { return int(tensor.EncodeF16(v)) }, nil},
	"bf16": {1 << 16, func(c int) float32 { return tensor.DecodeBF16(uint16(c)) },
		func(v float32) int { return int(tensor.EncodeBF16(v)) }, nil},
	"f8e4m3fn": {256, func(c int) float32 { return tensor.DecodeE4M3FN(uint8(c)) },
		func(v float32) int { return int(tensor.EncodeE4M3FN(v, false)) },
		func(v float32) int { return int(tensor.EncodeE4M3FN(v, true)) }},
	"f8e5m2": {256, func(c int) float32 { return tensor.DecodeE5M2(uint8(c)) },
		func(v float32) int { return int(tensor.EncodeE5M2(v, false)) },
		func(v float32) int { return int(tensor.EncodeE5M2(v, true)) }},
	"f8e8m0": {256, func(c int) float32 { return tensor.DecodeE8M0(uint8(c)) },
		func(v float32) int { return int(tensor.EncodeE8M0(v, tensor.Nearest, false)) },
		func(v float32) int { return int(tensor.EncodeE8M0(v, tensor.Nearest, true)) }},
	"f4e2m1": {16, func(c int) float32 { return tensor.DecodeE2M1(uint8(c)) },
		func(v float32) int { return int(tensor.EncodeE2M1(v)) },
		func(v float32) int { return int(tensor.EncodeE2M1(v)) }},
}

// codecRoutes serve a table of a small float type.
func codecRoutes(dtype string, f func(*run, codec)) []route {
	c, ok := codecs[dtype]
	if !ok {
		return nil
	}
	return []route{{0, func(r *run) { f(r, c) }}}
}

func decodeAll(r *run, c codec) {
	out := r.alloc(tensor.F32, int64(c.codes))
	for i := range c.codes {
		tensor.Slice[float32](&out)[i] = c.decode(i)
	}
	r.put("value", out, tensor.F32)
}

// encodeAll encodes by every rule that the table has. What it leaves open is copied from it; so are the codes of NaN in a
// type without NaN, on which implementations disagree.
func encodeAll(r *run, c codec) {
	rules := map[string]func(float32) int{"code": c.encode, "code_saturating": c.saturate,
		"code_round_up":   func(v float32) int { return int(tensor.EncodeE8M0(v, tensor.RoundUp, true)) },
		"code_round_down": func(v float32) int { return int(tensor.EncodeE8M0(v, tensor.RoundDown, true)) }}
	x := r.in("x")
	values := tensor.Slice[float32](&x)
	for _, want := range r.f.Outputs {
		encode := rules[want.Name]
		if encode == nil {
			continue
		}
		out := r.alloc(tensor.I32, int64(len(values)))
		for i, v := range values {
			code := int64(encode(v))
			if w := atInt(&want.Data, i); w == unspecified || v != v && c.codes == 16 {
				code = w
			}
			setInt(&out, i, code)
		}
		r.put(want.Name, out, tensor.I32)
	}
}
