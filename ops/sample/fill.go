package sample

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// value is element i of an operand, by row-major index.
type value func(i int) float64

// fill writes the elements of an operand that a kernel reads.
func (g *generator) fill(r *area) error {
	x := r.x
	if r.op.Role == registry.Out || !x.Present() || x.Numel() == 0 {
		return nil
	}
	s := g.key.of(r.op.Name)
	at, err := g.values(r, s)
	if err != nil {
		return err
	}
	if x.Layout == tensor.Strided && !x.DType.IsBlock() {
		w := newWalk(x)
		for i := range int(x.Numel()) {
			if err := store(x, w.offset(i), at(i)); err != nil {
				return err
			}
		}
		return nil
	}
	k := int(x.Last())
	row, err := x.DType.RowBytes(int64(k))
	if err != nil {
		return err
	}
	n := int(x.Numel()) / k
	rows := unsafe.Slice((*byte)(x.Host), n*int(row))
	if x.Layout == tensor.Lane16 {
		rows = make([]byte, n*int(row))
	}
	v := make([]float32, k)
	for i := range n {
		b := rows[i*int(row):][:row]
		if !tensor.CanQuantize(x.DType) {
			randomBlocks(x.DType, b, s, i*int(row))
			continue
		}
		for j := range v {
			v[j] = float32(at(i*k + j))
		}
		if err := tensor.Quantize(b, x.DType, v); err != nil {
			return err
		}
	}
	if x.Layout == tensor.Lane16 {
		size, err := x.Bytes()
		if err != nil {
			return err
		}
		packLane16(unsafe.Slice((*byte)(x.Host), size), rows, x.DType, n, k)
	}
	return nil
}

// values returns the numbers of an operand: the case's, the recipe's for operands with a meaning, or the fill's.
func (g *generator) values(r *area, s stream) (value, error) {
	if v, ok := g.c.Values[r.op.Name]; ok {
		if int64(len(v)) != r.x.Numel() {
			return nil, fmt.Errorf("%d values for %v", len(v), r.x.Dims())
		}
		return func(i int) float64 { return v[i] }, nil
	}
	if f := g.recipe.fill[r.op.Name]; f != nil {
		return f(g, r.x, s), nil
	}
	t := r.x.DType
	if t.IsFloat() || t.IsBlock() {
		return g.data(r.x, s), nil
	}
	return func(i int) float64 { return float64(s.below(i, 2)) }, nil // a whole number that is legal nearly everywhere
}

// data returns the numbers of an operand that holds data, as the case's Fill says.
func (g *generator) data(x *tensor.Tensor, s stream) value {
	spread := g.recipe.spread
	if spread == 0 {
		spread = 1
	}
	normal := func(i int) float64 { return spread * s.normal(i) }
	cols := int(max(x.Last(), 1))
	rows := max(int(x.Numel())/cols, 1)
	fill := g.c.Fill
	if x.DType.IsBlock() && fill > Ties {
		fill = Normal
	}
	sign := func(i int, v float64) float64 {
		if s.bits(i)&1 == 0 {
			return -v
		}
		return v
	}
	switch fill {
	case Zero:
		return func(i int) float64 { return sign(i, 0) * 1 }
	case Equal:
		return func(i int) float64 { return normal(i / cols) }
	case Ties:
		return func(i int) float64 { return float64(s.below(i, 5)-2) / 2 }
	case Denormal:
		step, normalAt := tiny(x.DType)
		return func(i int) float64 {
			switch b := s.bits(i) >> 8; b % 8 {
			case 0:
				return sign(i, 0)
			case 1:
				return sign(i, normalAt)
			case 2:
				return sign(i, step)
			default:
				return sign(i, math.Floor(s.uniform(i)*normalAt/step)*step)
			}
		}
	case Huge:
		return func(i int) float64 {
			if s.bits(i)>>8%4 == 0 {
				return sign(i, largest(x.DType))
			}
			return normal(i)
		}
	case NegInf:
		return func(i int) float64 {
			if i/cols == min(1, rows-1) || s.bits(i)>>8%4 == 0 {
				return math.Inf(-1)
			}
			return normal(i)
		}
	case NaN:
		return func(i int) float64 {
			switch s.bits(i) >> 8 % 32 {
			case 0:
				return math.NaN()
			case 1:
				return math.Inf(1)
			case 2:
				return math.Inf(-1)
			}
			return normal(i)
		}
	}
	return normal
}

// tiny returns the smallest positive number of a float dtype and its smallest normal one.
func tiny(t tensor.DType) (step, normal float64) {
	switch t {
	case tensor.F16:
		return 0x1p-24, 0x1p-14
	case tensor.BF16:
		return 0x1p-133, 0x1p-126
	}
	return 0x1p-149, 0x1p-126
}

// largest returns the largest finite number of a float dtype.
func largest(t tensor.DType) float64 {
	switch t {
	case tensor.F16:
		return 65504
	case tensor.BF16:
		return 0x1.fep127
	}
	return math.MaxFloat32
}

// at returns a pointer to the element off elements behind the first one.
func at[T any](x *tensor.Tensor, off int64) *T {
	var t T
	return (*T)(unsafe.Add(x.Host, off*int64(unsafe.Sizeof(t))))
}

// store rounds v to the element off elements behind the first one.
func store(x *tensor.Tensor, off int64, v float64) error {
	switch x.DType {
	case tensor.F32:
		*at[float32](x, off) = float32(v)
	case tensor.F64:
		*at[float64](x, off) = v
	case tensor.F16:
		*at[uint16](x, off) = tensor.EncodeF16(float32(v))
	case tensor.BF16:
		*at[uint16](x, off) = tensor.EncodeBF16(float32(v))
	case tensor.I8:
		*at[int8](x, off) = int8(v)
	case tensor.U8:
		*at[uint8](x, off) = uint8(v)
	case tensor.I16:
		*at[int16](x, off) = int16(v)
	case tensor.I32:
		*at[int32](x, off) = int32(v)
	case tensor.I64:
		*at[int64](x, off) = int64(v)
	case tensor.F8E4M3FN:
		*at[uint8](x, off) = tensor.EncodeE4M3FN(float32(v), true)
	case tensor.F8E5M2:
		*at[uint8](x, off) = tensor.EncodeE5M2(float32(v), true)
	case tensor.F8E8M0:
		*at[uint8](x, off) = tensor.EncodeE8M0(float32(math.Abs(v)), tensor.RoundUp, true)
	case tensor.F4E2M1x2:
		*at[uint8](x, off) = tensor.EncodeE2M1(float32(v)) * 17 // the same code twice
	default:
		return fmt.Errorf("values of %v", x.DType)
	}
	return nil
}

// load reads the element off elements behind the first one.
func load(x *tensor.Tensor, off int64) float64 {
	switch x.DType {
	case tensor.F32:
		return float64(*at[float32](x, off))
	case tensor.F64:
		return *at[float64](x, off)
	case tensor.F16:
		return float64(tensor.DecodeF16(*at[uint16](x, off)))
	case tensor.BF16:
		return float64(tensor.DecodeBF16(*at[uint16](x, off)))
	case tensor.I8:
		return float64(*at[int8](x, off))
	case tensor.U8:
		return float64(*at[uint8](x, off))
	case tensor.I16:
		return float64(*at[int16](x, off))
	case tensor.I32:
		return float64(*at[int32](x, off))
	case tensor.I64:
		return float64(*at[int64](x, off))
	case tensor.F8E4M3FN:
		return float64(tensor.DecodeE4M3FN(*at[uint8](x, off)))
	case tensor.F8E5M2:
		return float64(tensor.DecodeE5M2(*at[uint8](x, off)))
	case tensor.F8E8M0:
		return float64(tensor.DecodeE8M0(*at[uint8](x, off)))
	case tensor.F4E2M1x2:
		return float64(*at[uint8](x, off))
	}
	return math.NaN()
}

// scalePlaces says where the blocks of types without a packer hold binary16 scales.
var scalePlaces = map[tensor.DType][]int{
	tensor.Q2_K: {80, 82}, tensor.Q3_K: {108}, tensor.IQ4_XS: {0}, tensor.TQ1_0: {52}, tensor.TQ2_0: {64}, tensor.Q1_0: {0}, tensor.Q2_0: {0},
	tensor.IQ1_S: {0}, tensor.IQ2_XXS: {0}, tensor.IQ2_XS: {0}, tensor.IQ2_S: {0}, tensor.IQ3_XXS: {0}, tensor.IQ3_S: {0},
}

// randomBlocks fills b with blocks of random codes, all of which are legal, and scales of a moderate size. from is the
// counter of its first byte.
func randomBlocks(t tensor.DType, b []byte, s stream, from int) {
	_, size := t.Block()
	for i := range b {
		b[i] = byte(s.bits(from+i) >> 24)
	}
	for i := 0; i < len(b); i += size {
		blk, r := b[i:][:size], byte(s.bits(from+i))
		for _, o := range scalePlaces[t] {
			blk[o], blk[o+1] = r, 0x1c // about 2^-8
		}
		switch t {
		case tensor.IQ1_M: // the scale is in the upper halves of four bytes
			blk[53], blk[55] = blk[53]&15|0xc0, blk[55]&15|0x10
		case tensor.NVFP4:
			for j := range 4 {
				blk[j] = 0x28 + blk[j]%16 // 2^-2 to nearly 1
			}
		}
	}
}
