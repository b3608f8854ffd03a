package ops

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

var cpu0 = tensor.Device{}

// check validates as the op's entry point does.
func (c *opCase) check(args unsafe.Pointer, dev tensor.Device) error {
	return c.core.target(args).validate(args, dev)
}

func TestEveryOpHasACase(t *testing.T) {
	have := map[*core]bool{}
	for _, c := range cases() {
		require.False(t, have[c.core], c.core.name)
		have[c.core] = true
	}
	for _, c := range all {
		require.True(t, have[c], "no case for %s", c.name)
	}
}

func TestAccepted(t *testing.T) {
	for _, c := range cases() {
		require.NoError(t, c.check(c.fresh(), cpu0), c.core.name)
		for _, a := range c.accepts {
			args := c.fresh()
			a.change(args)
			require.NoError(t, c.check(args, cpu0), "%s: %s", c.core.name, a.name)
		}
	}
}

// TestRejected runs what the sections of the catalogue list under Reject.
func TestRejected(t *testing.T) {
	for _, c := range cases() {
		for _, r := range c.rejects {
			args := c.fresh()
			r.change(args)
			c.mustReject(t, args, cpu0, r.name, r.kind, r.operand)
		}
	}
}

// mustReject wants an *OpError of a kind about an operand; operand "" leaves it open.
func (c *opCase) mustReject(t *testing.T, args unsafe.Pointer, dev tensor.Device, what string, kind error, operand string) {
	t.Helper()
	err := c.check(args, dev)
	require.ErrorIs(t, err, kind, "%s: %s", c.core.name, what)
	var e *OpError
	require.ErrorAs(t, err, &e)
	if operand != "" {
		require.Equal(t, operand, e.Operand, "%s: %s: %v", c.core.name, what, err)
	}
	require.True(t, strings.HasPrefix(err.Error(), e.Op+": "), err.Error())
	require.NotEmpty(t, e.Msg, err.Error())
}

// TestRejectedCommon changes each operand of each op in every way that no op admits.
func TestRejectedCommon(t *testing.T) {
	type change struct {
		name string
		kind error
		do   func(x *tensor.Tensor)
	}
	changes := []change{
		{"other index", ErrDevice, func(x *tensor.Tensor) { x.Device.Index = 1 }},
		{"other kind", ErrDevice, func(x *tensor.Tensor) { x.Device.Kind = tensor.CUDA }},
		{"f64", ErrDType, func(x *tensor.Tensor) { x.DType = tensor.F64 }},
		{"dtype 63", ErrDType, func(x *tensor.Tensor) { x.DType = 63 }},
		{"dtype 64 and more", ErrDType, func(x *tensor.Tensor) { x.DType = 64 + f32 }},
		{"rank 0", ErrRank, func(x *tensor.Tensor) { x.Rank = 0 }},
		{"rank 9", ErrRank, func(x *tensor.Tensor) { x.Rank = 9 }},
		{"rank 255", ErrRank, func(x *tensor.Tensor) { x.Rank = 255 }},
		{"negative extent", ErrShape, func(x *tensor.Tensor) { x.Shape[0] = -1 }},
		{"least extent", ErrShape, func(x *tensor.Tensor) { x.Shape[x.Rank-1] = math.MinInt64 }},
		{"huge extent", ErrShape, func(x *tensor.Tensor) { x.Shape[0] = math.MaxInt64 }},
		{"unknown layout", ErrLayout, func(x *tensor.Tensor) { x.Layout = 77 }},
		{"no memory", ErrLayout, func(x *tensor.Tensor) { x.Host = nil }},
	}
	plain := []change{
		{"negative stride", ErrLayout, func(x *tensor.Tensor) { x.Stride[0] = -1 }},
		{"negative inner stride", ErrLayout, func(x *tensor.Tensor) { x.Stride[x.Rank-1] = -1 }},
		{"overflowing stride", ErrLayout, func(x *tensor.Tensor) { x.Stride[0] = math.MaxInt64 / 2 }},
	}
	odd := change{"odd address", ErrLayout, func(x *tensor.Tensor) { x.Host = unsafe.Add(x.Host, 1) }}
	for _, c := range cases() {
		for _, o := range c.core.spec().operands {
			run := func(ch change) {
				args := c.fresh()
				x := o.at(args)
				if !x.Present() || ch.name == "f64" && o.dtypes>>tensor.F64&1 != 0 {
					return
				}
				ch.do(x)
				c.mustReject(t, args, cpu0, o.Name+": "+ch.name, ch.kind, "")
			}
			for _, ch := range changes {
				run(ch)
			}
			x := o.at(c.fresh())
			if x.Present() && !x.DType.IsBlock() {
				for _, ch := range plain {
					if x.Shape[0] > 1 || ch.name != "overflowing stride" { // the stride of one element does not matter
						run(ch)
					}
				}
			}
			if x.DType.Size() > 1 {
				run(odd)
			}
			args := c.fresh()
			*o.at(args) = tensor.Tensor{}
			if !o.Optional {
				c.mustReject(t, args, cpu0, o.Name+" absent", ErrDType, "")
			} else if err := c.check(args, cpu0); err != nil { // an attribute may need it
				require.ErrorIs(t, err, ErrAttr, "%s without %s", c.core.name, o.Name)
			}
		}
		// A queue of another device fits none of the operands.
		c.mustReject(t, c.fresh(), tensor.Device{Kind: tensor.Metal}, "queue's device", ErrDevice, "")
	}
}

// TestDeviceMemory checks what an operand of a device with its own memory needs.
func TestDeviceMemory(t *testing.T) {
	dev := tensor.Device{Kind: tensor.Metal, Index: 2}
	on := func(x tensor.Tensor) tensor.Tensor {
		x.Device, x.Host, x.Buffer = dev, nil, 7
		return x
	}
	a := ReluArgs{Out: on(ten(f32, 4)), X: on(ten(bf16, 4))}
	require.NoError(t, Relu.Validate(&a, dev))
	for name, change := range map[string]func(x *tensor.Tensor){
		"neither buffer nor address": func(x *tensor.Tensor) { x.Buffer = 0 },
		"odd offset":                 func(x *tensor.Tensor) { x.Offset = 1 },
		"negative offset":            func(x *tensor.Tensor) { x.Offset = -2 },
		"odd address":                func(x *tensor.Tensor) { x.DevAddr = 1001 },
	} {
		b := a
		change(&b.X)
		require.ErrorIs(t, Relu.Validate(&b, dev), ErrLayout, name)
	}
	b := a
	b.X.Buffer, b.X.DevAddr = 0, 4096
	require.NoError(t, Relu.Validate(&b, dev))
}

// TestEmptyOperands: an operand without elements needs no memory and no particular strides.
func TestEmptyOperands(t *testing.T) {
	x := ten(f32, 2, 0, 3)
	x.Host, x.Stride = nil, [tensor.MaxRank]int64{0, 3, 1} // row-major, with the products taken literally
	require.NoError(t, Relu.Validate(&ReluArgs{Out: x, X: x}, cpu0))
	x.Stride[0] = -1
	require.ErrorIs(t, Relu.Validate(&ReluArgs{Out: x, X: x}, cpu0), ErrLayout)
}

// TestOverflow: sizes and spans beyond int64 are refused, not wrapped.
func TestOverflow(t *testing.T) {
	for _, shape := range [][2]int64{{1 << 40, 1 << 40}, {1 << 32, 1 << 32}, {1, 1 << 61}, {math.MaxInt64, math.MaxInt64}, {math.MaxInt64, 0}} { // the last as in tensor.New
		x := ten(f32, 1, 1)
		x.Shape[0], x.Shape[1] = shape[0], shape[1]
		x.Stride[0] = shape[1]
		require.ErrorIs(t, Relu.Validate(&ReluArgs{Out: x, X: x}, cpu0), ErrShape, "%v", shape)
	}
	q := ten(f32, 2, 2, 2)
	q.Stride[0], q.Stride[1] = math.MaxInt64/4, math.MaxInt64/4
	err := RopeFromCache.Validate(&RopeFromCacheArgs{QStates: q, Positions: ten(i32, 2), CosSinCache: ten(f32, 4, 2), RotaryDim: 2}, cpu0)
	require.ErrorIs(t, err, ErrLayout)
}

func TestOpError(t *testing.T) {
	err := Add.Validate(&AddArgs{Out: ten(f32, 2, 3), A: ten(f32, 2, 3), B: ten(f32, 4)}, cpu0)
	require.EqualError(t, err, "add: b: a row of 4 for rows of 3 (wrong shape)")
	err = RMSNorm.Validate(&RMSNormArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 3), Weight: ten(f32, 4)}, cpu0)
	require.EqualError(t, err, "rms_norm: weight: extent 0 of [4] is not the 3 that [H] asks for (wrong shape)")
	err = MatmulBT.Validate(&MatmulBTArgs{Out: ten(f32, 2, 3), A: ten(f32, 2, 32), B: ten(tensor.Q4_0, 3, 64)}, cpu0)
	require.EqualError(t, err, "matmul_bt_quant: b: extent 1 of [3 64] is not the 32 that [N,K] asks for (wrong shape)")
	for _, kind := range []error{ErrRank, ErrShape, ErrDType, ErrLayout, ErrDevice, ErrAttr, ErrValue} {
		e := error(&OpError{Op: "add", Kind: kind})
		require.ErrorIs(t, e, kind)
		for _, other := range []error{ErrRank, ErrShape, ErrDType, ErrLayout, ErrDevice, ErrAttr, ErrValue, ErrNoKernel} {
			require.Equal(t, kind == other, errors.Is(e, other))
		}
	}
}

// FuzzValidate changes fields of valid records at random: no validator may panic, and a record that it accepts keeps the
// constraints of its tags, judged by a second, slower reading of them.
func FuzzValidate(f *testing.F) {
	cs := cases()
	for i := range cs {
		f.Add(byte(i), []byte{})
		f.Add(byte(i), []byte{0, 3, 1, 5, 1, 4, 0, 9, 2, 2, 0, 1})
	}
	f.Fuzz(func(t *testing.T, op byte, data []byte) {
		c := &cs[int(op)%len(cs)]
		args := c.fresh()
		ops := c.core.spec().operands
		for len(data) >= 3 {
			mutate(ops[int(data[0])%len(ops)].at(args), data[1], data[2])
			data = data[3:]
		}
		target := c.core.target(args)
		if target.validate(args, cpu0) == nil {
			if msg := target.violates(args); msg != "" {
				t.Fatalf("%s: accepted although %s", target.name, msg)
			}
		}
	})
}

// mutate changes one field of x.
func mutate(x *tensor.Tensor, what, v byte) {
	values := [...]int64{-1, 0, 1, 2, 3, 4, 5, 8, 32, 256, 1 << 31, 1 << 40, 1 << 62, math.MaxInt64, math.MinInt64}
	val, d := values[int(v)%len(values)], int(v)/len(values)%4
	switch what % 12 {
	case 0, 1, 2:
		x.Shape[d] = val
	case 3, 4:
		x.Stride[d] = val
	case 5:
		x.Rank = v
	case 6:
		x.DType = tensor.DType(v)
	case 7:
		x.Layout = tensor.Layout(v)
	case 8:
		x.Device.Index = int32(v)
	case 9:
		x.Host = nil
	case 10:
		*x = tensor.Tensor{}
	case 11: // a consistent change of one extent
		if x.Rank <= tensor.MaxRank && d < int(x.Rank) && val >= 0 && val <= 256 {
			s := append([]int64(nil), x.Dims()...)
			s[d] = val
			if y, err := tensor.New(x.Host, x.DType, s...); err == nil {
				*x = y
			}
		}
	}
}

// violates reads the descriptor's texts again and says which constraint the record at args breaks.
func (c *core) violates(args unsafe.Pointer) string {
	ops := c.spec().list
	find := func(name string) *tensor.Tensor {
		for _, o := range ops {
			if o.Name == name {
				return (*tensor.Tensor)(unsafe.Add(args, o.Offset))
			}
		}
		return nil
	}
	sym := map[string]int64{}
	for _, o := range ops {
		x := find(o.Name)
		if !x.Present() {
			if !o.Optional {
				return o.Name + " is absent"
			}
			continue
		}
		if x.Rank < 1 || x.Rank > tensor.MaxRank {
			return fmt.Sprintf("%s has rank %d", o.Name, x.Rank)
		}
		if x.Device != cpu0 {
			return o.Name + " lies elsewhere"
		}
		n := x.Numel()
		if n < 0 {
			return o.Name + " has no count"
		}
		if n > 0 && x.Host == nil {
			return o.Name + " has no memory"
		}

		shapeOK := o.Shape == "any"
		if y, found := strings.CutPrefix(o.Shape, "like "); found {
			shapeOK = fmt.Sprint(x.Dims()) == fmt.Sprint(find(y).Dims())
		}
		for _, form := range strings.Split(o.Shape, "|") {
			terms := strings.Split(form, ",")
			if shapeOK || len(terms) != int(x.Rank) {
				continue
			}
			shapeOK = true
			for i, term := range terms {
				name, want := term, x.Shape[i]
				if base, found := strings.CutSuffix(term, "+1"); found {
					name, want = base, want-1
				}
				if fixed, err := strconv.ParseInt(name, 10, 64); err == nil {
					shapeOK = shapeOK && want == fixed
					continue
				}
				if old, known := sym[name]; known {
					shapeOK = shapeOK && old == want
				}
				sym[name] = want
			}
		}
		if !shapeOK {
			return fmt.Sprintf("%s is %v, want %s", o.Name, x.Dims(), o.Shape)
		}

		dtypeOK := false
		if y, found := strings.CutPrefix(o.DType, "like "); found {
			dtypeOK = x.DType == find(y).DType
		}
		for _, w := range strings.Fields(o.DType) {
			switch w {
			case "float":
				dtypeOK = dtypeOK || x.DType.IsFloat()
			case "outfloat":
				dtypeOK = dtypeOK || x.DType == f32 || x.DType == bf16
			case "index":
				dtypeOK = dtypeOK || x.DType == i32 || x.DType == i64
			case "byte":
				dtypeOK = dtypeOK || x.DType == i8 || x.DType == u8 || x.DType == tensor.F8E4M3FN
			case "fp4":
				dtypeOK = dtypeOK || x.DType == i8 || x.DType == u8 || x.DType == tensor.F4E2M1x2
			case "int":
				dtypeOK = dtypeOK || x.DType >= i8 && x.DType <= i64
			case "element":
				dtypeOK = dtypeOK || x.DType.Size() > 0
			case "mask":
				dtypeOK = dtypeOK || x.DType == i8 || x.DType == u8
			case "block":
				dtypeOK = dtypeOK || x.DType.IsBlock() && x.DType != tensor.Q8_1
			default:
				dtypeOK = dtypeOK || x.DType.String() == w
			}
		}
		if !dtypeOK {
			return fmt.Sprintf("%s is %v, want %s", o.Name, x.DType, o.DType)
		}

		if x.Layout == tensor.Lane16 {
			if !strings.Contains(o.Layout, "lane16") {
				return o.Name + " is lane16"
			}
			continue
		}
		if x.Layout != tensor.Strided {
			return o.Name + " has no layout"
		}
		if _, err := x.DType.RowBytes(x.Last()); err != nil {
			return o.Name + ": " + err.Error()
		}
		if x.DType.IsBlock() || n == 0 {
			continue
		}
		for _, s := range x.Stride[:x.Rank] {
			if s < 0 {
				return o.Name + " has a negative stride"
			}
		}
		inner := int64(1)
		for _, d := range x.Dims()[1:] {
			inner *= d
		}
		outer := x.Shape[0] == 1 || x.Stride[0] >= inner
		rule, _ := strings.CutSuffix(o.Layout, " lane16")
		ok := false
		switch rule {
		case "contig":
			ok = x.Contiguous()
		case "rows":
			ok = x.Rank == 2 && x.InnerPacked(1) && outer
		case "inner1":
			ok = x.Last() == 1 || x.Stride[x.Rank-1] == 1
		case "inner-rows":
			ok = x.InnerPacked(1) && outer
		case "pages":
			ok = x.InnerPacked(int(x.Rank) - 2)
		case "strided":
			ok = true
		}
		if !ok {
			return fmt.Sprintf("%s is %v, want %s", o.Name, x, o.Layout)
		}
	}
	return ""
}
