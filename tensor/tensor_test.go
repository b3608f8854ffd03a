package tensor_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/tensor"
)

func TestDeviceText(t *testing.T) {
	require.Equal(t, tensor.Device{}, tensor.Device{Kind: tensor.CPU, Index: 0}, "the zero device is the first CPU")
	for k := range tensor.Kind(tensor.NumKinds) {
		require.True(t, k.Valid())
		for _, i := range []int32{0, 1, 7, 1<<15 - 1} {
			d := tensor.Device{Kind: k, Index: i}
			back, err := tensor.ParseDevice(d.String())
			require.NoError(t, err)
			require.Equal(t, d, back)
		}
		d, err := tensor.ParseDevice(k.String())
		require.NoError(t, err)
		require.Equal(t, tensor.Device{Kind: k}, d)
	}
	for i, name := range []string{"cpu", "cuda", "metal", "vulkan", "xpu"} {
		require.Equal(t, name, tensor.Kind(i).String(), "the numbers of kinds are stable")
	}
	for _, s := range []string{"", "gpu", "cpu:", "cpu:-1", "cpu:x", "cpu:1:2", "CPU", "cuda:99999999999", ":0", " cpu"} {
		_, err := tensor.ParseDevice(s)
		require.ErrorIs(t, err, tensor.ErrParse, "%q", s)
	}
	require.False(t, tensor.Kind(tensor.NumKinds).Valid())
	require.Equal(t, "kind(200)", tensor.Kind(200).String())
}

func TestDTypeNamesAndSizes(t *testing.T) {
	require.Greater(t, len(allTypes), 35)
	for _, d := range allTypes {
		back, err := tensor.ParseDType(d.String())
		require.NoError(t, err)
		require.Equal(t, d, back)
		e, b := d.Block()
		require.Positive(t, e)
		require.Positive(t, b)
		require.Equal(t, e > 1, d.IsBlock())
		if d.IsBlock() {
			require.Zero(t, d.Size())
			require.Less(t, b, 4*e+5)
		} else {
			require.Equal(t, b, d.Size())
		}
		n, err := d.RowBytes(int64(3 * e))
		require.NoError(t, err)
		require.EqualValues(t, 3*b, n)
		for _, k := range []int64{-1, int64(-e), int64(e + 1), math.MinInt64} {
			if e > 1 || k < 0 {
				_, err = d.RowBytes(k)
				require.ErrorIs(t, err, tensor.ErrShape, "%v row of %d", d, k)
			}
		}
		_, err = d.RowBytes(math.MaxInt64 / int64(e) * int64(e))
		if b > e {
			require.ErrorIs(t, err, tensor.ErrOverflow, d.String())
		} else {
			require.NoError(t, err)
		}
	}
	for s, d := range map[string]tensor.DType{"Q4_K": tensor.Q4_K, "q4_k": tensor.Q4_K, "F32": tensor.F32, "iq4_XS": tensor.IQ4_XS} {
		back, err := tensor.ParseDType(s)
		require.NoError(t, err)
		require.Equal(t, d, back)
	}
	for _, s := range []string{"", "none", "q4", "q4_0 ", "q4\x7f0", "q4_\x10", "dtype(3)"} {
		_, err := tensor.ParseDType(s)
		require.ErrorIs(t, err, tensor.ErrDType, "%q", s)
	}
	for _, d := range []tensor.DType{tensor.None, 20, 200} {
		e, b := d.Block()
		require.Zero(t, e+b+d.Size())
		require.False(t, d.IsBlock())
		_, err := d.RowBytes(1)
		require.ErrorIs(t, err, tensor.ErrDType)
	}
	require.True(t, tensor.None.Valid())
	require.False(t, tensor.DType(20).Valid())
	for d, want := range map[tensor.DType]bool{tensor.F32: true, tensor.F16: true, tensor.BF16: true, tensor.F64: false, tensor.I32: false, tensor.Q4_0: false} {
		require.Equal(t, want, d.IsFloat(), d.String())
	}
}

func TestNew(t *testing.T) {
	x, err := tensor.New(nil, tensor.F32, 2, 3, 4)
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3, 4}, x.Dims())
	require.Equal(t, [8]int64{12, 4, 1}, x.Stride)
	require.True(t, x.Contiguous())
	require.True(t, x.Present())
	require.EqualValues(t, 24, x.Numel())
	require.EqualValues(t, 4, x.Last())
	require.Equal(t, "f32[2,3,4]", x.String())
	n, err := x.Bytes()
	require.NoError(t, err)
	require.EqualValues(t, 96, n)

	scalar, err := tensor.New(nil, tensor.I64)
	require.NoError(t, err)
	n, err = scalar.Bytes()
	require.NoError(t, err)
	require.EqualValues(t, []int64{8, 1, 1}, []int64{n, scalar.Numel(), scalar.Last()})

	q, err := tensor.New(nil, tensor.Q4_K, 3, 512)
	require.NoError(t, err)
	n, err = q.Bytes()
	require.NoError(t, err)
	require.EqualValues(t, 3*2*144, n)

	empty, err := tensor.New(nil, tensor.F32, 3, 0)
	require.NoError(t, err)
	require.Zero(t, empty.Numel())
	require.True(t, empty.Contiguous())

	for name, c := range map[string]struct {
		d     tensor.DType
		shape []int64
		want  error
	}{
		"none":            {tensor.None, []int64{1}, tensor.ErrDType},
		"unknown":         {99, []int64{1}, tensor.ErrDType},
		"negative":        {tensor.F32, []int64{2, -1}, tensor.ErrShape},
		"rank":            {tensor.F32, make([]int64, 9), tensor.ErrRank},
		"elements":        {tensor.U8, []int64{1 << 32, 1 << 31}, tensor.ErrOverflow},
		"bytes":           {tensor.F32, []int64{1 << 31, 1 << 30}, tensor.ErrOverflow},
		"behind a zero":   {tensor.U8, []int64{0, 1 << 32, 1 << 32}, tensor.ErrOverflow},
		"partial block":   {tensor.Q4_0, []int64{4, 33}, tensor.ErrShape},
		"scalar of block": {tensor.Q4_0, nil, tensor.ErrShape},
	} {
		_, err := tensor.New(nil, c.d, c.shape...)
		require.ErrorIs(t, err, c.want, name)
	}
	var absent tensor.Tensor
	require.False(t, absent.Present())
}

func TestFromSliceAndBack(t *testing.T) {
	s := []float32{0, 1, 2, 3, 4, 5}
	x, err := tensor.FromSlice(s, tensor.F32)
	require.NoError(t, err)
	require.Equal(t, []int64{6}, x.Dims())
	x, err = tensor.FromSlice(s, tensor.F32, 2, 3)
	require.NoError(t, err)
	back := tensor.Slice[float32](&x)
	require.Equal(t, s, back)
	require.Equal(t, unsafe.SliceData(s), unsafe.SliceData(back), "a view, no copy")
	require.Len(t, tensor.Slice[byte](&x), 24)

	b := make([]byte, 2*34+5)
	q, err := tensor.FromSlice(b, tensor.Q8_0)
	require.NoError(t, err)
	require.Equal(t, []int64{64}, q.Dims(), "whole blocks only")

	_, err = tensor.FromSlice(s, tensor.F32, 7)
	require.ErrorIs(t, err, tensor.ErrShape)
	require.ErrorContains(t, err, "f32[7] needs 28 bytes")
	_, err = tensor.FromSlice(s, tensor.None)
	require.ErrorIs(t, err, tensor.ErrDType)
	_, err = tensor.FromSlice(s, tensor.F32, -1)
	require.ErrorIs(t, err, tensor.ErrShape)

	none, err := tensor.New(nil, tensor.F32, 4)
	require.NoError(t, err)
	require.Nil(t, tensor.Slice[float32](&none))
	cut, err := x.Slice(1, 0, 2)
	require.NoError(t, err)
	require.Nil(t, tensor.Slice[float32](&cut), "not contiguous")

	require.Equal(t, x, tensor.Must(x, nil))
	require.Panics(t, func() { tensor.Must(tensor.New(nil, tensor.None)) })
}

// A chain of random slices must address the same elements as index arithmetic says.
func TestSliceAtAgainstIndices(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for range 300 {
		rank := 1 + rng.IntN(4)
		shape, origin := make([]int64, rank), make([]int64, rank)
		n := int64(1)
		for d := range shape {
			shape[d] = 1 + rng.Int64N(5)
			n *= shape[d]
		}
		s := make([]int32, n)
		for i := range s {
			s[i] = int32(i)
		}
		full, err := tensor.FromSlice(s, tensor.I32, shape...)
		require.NoError(t, err)
		full.DevAddr = 1 << 20
		x := full
		for range 3 {
			d := rng.IntN(rank)
			start := rng.Int64N(x.Shape[d])
			stop := start + 1 + rng.Int64N(x.Shape[d]-start)
			x, err = x.Slice(d, start, stop)
			require.NoError(t, err)
			origin[d] += start
		}
		idx, at := make([]int64, rank), int64(0)
		for d := range idx {
			idx[d] = rng.Int64N(x.Shape[d])
			at = at*shape[d] + origin[d] + idx[d]
		}
		e, err := x.At(idx...)
		require.NoError(t, err)
		require.EqualValues(t, 0, e.Rank)
		require.EqualValues(t, at, *(*int32)(e.Host))
		require.EqualValues(t, 4*at, e.Offset)
		require.EqualValues(t, 1<<20+4*at, e.DevAddr)
		require.Equal(t, full.Stride, x.Stride)

		// Contiguous by definition: walking the elements in order walks memory in order.
		require.Equal(t, packed(&x), x.Contiguous(), x.String())
		if x.Contiguous() {
			v, err := x.View(x.Numel())
			require.NoError(t, err)
			require.True(t, v.Contiguous())
		} else {
			_, err := x.View(x.Numel())
			require.ErrorIs(t, err, tensor.ErrLayout)
			_, err = x.Bytes()
			require.ErrorIs(t, err, tensor.ErrLayout)
		}
	}
}

func packed(x *tensor.Tensor) bool {
	idx := make([]int64, x.Rank)
	for n := range x.Numel() {
		at := int64(0)
		for d := range idx {
			at += idx[d] * x.Stride[d]
		}
		if at != n {
			return false
		}
		for d := len(idx) - 1; d >= 0; d-- {
			if idx[d]++; idx[d] < x.Shape[d] {
				break
			}
			idx[d] = 0
		}
	}
	return true
}

func TestViewErrors(t *testing.T) {
	x := tensor.Must(tensor.New(nil, tensor.F32, 4, 6))
	v, err := x.View(2, 3, 4)
	require.NoError(t, err)
	require.Equal(t, [8]int64{12, 4, 1}, v.Stride)
	for _, shape := range [][]int64{{5, 5}, {-4, -6}, {}, {1 << 40, 1 << 40}} {
		_, err = x.View(shape...)
		require.Error(t, err, "%v", shape)
	}
	q := tensor.Must(tensor.New(nil, tensor.Q8_0, 4, 64))
	v, err = q.View(2, 2, 64)
	require.NoError(t, err)
	require.Equal(t, []int64{2, 2, 64}, v.Dims())
	_, err = q.View(8, 32)
	require.ErrorIs(t, err, tensor.ErrShape, "rows of blocks keep their length")
	_, err = q.Slice(0, 0, 2)
	require.ErrorIs(t, err, tensor.ErrLayout)
	_, err = q.At(0, 0)
	require.ErrorIs(t, err, tensor.ErrLayout)

	for _, c := range [][3]int64{{-1, 0, 1}, {2, 0, 1}, {0, -1, 1}, {0, 3, 2}, {0, 0, 5}} {
		_, err = x.Slice(int(c[0]), c[1], c[2])
		require.ErrorIs(t, err, tensor.ErrRange, "%v", c)
	}
	e, err := x.Slice(0, 4, 4)
	require.NoError(t, err)
	require.Zero(t, e.Numel())
	_, err = x.At(1)
	require.ErrorIs(t, err, tensor.ErrRank)
	_, err = x.At(4, 0)
	require.ErrorIs(t, err, tensor.ErrRange)
	_, err = x.At(0, -1)
	require.ErrorIs(t, err, tensor.ErrRange)
}

func TestContiguity(t *testing.T) {
	x := tensor.Must(tensor.New(nil, tensor.F32, 1, 3, 1))
	x.Stride[0], x.Stride[2] = 99, 77
	require.True(t, x.Contiguous(), "strides of extents 1 do not matter")
	x.Stride[1] = 2
	require.False(t, x.Contiguous())

	rows := tensor.Must(tensor.Must(tensor.New(nil, tensor.F32, 4, 6)).Slice(1, 2, 5))
	require.False(t, rows.InnerPacked(0))
	require.True(t, rows.InnerPacked(1))
	require.Equal(t, "f32[4,3] stride [6,1]", rows.String())
}

func TestLane16(t *testing.T) {
	for d, want := range map[tensor.DType]int64{tensor.F32: 32 * 64 * 4, tensor.Q4_0: 32 * 2 * 18, tensor.Q8_0: 32 * 2 * 34} {
		x := tensor.Must(tensor.New(nil, d, 17, 64))
		x.Layout = tensor.Lane16
		n, err := x.Bytes()
		require.NoError(t, err)
		require.Equal(t, want, n, "17 rows are padded to 32")
		require.False(t, x.Contiguous())
		_, err = x.View(64, 17)
		require.ErrorIs(t, err, tensor.ErrLayout)
		_, err = x.Slice(0, 0, 16)
		require.ErrorIs(t, err, tensor.ErrLayout)
		_, err = x.At(0, 0)
		require.ErrorIs(t, err, tensor.ErrLayout)
		require.Contains(t, x.String(), "[17,64] lane16")
	}
	x := tensor.Must(tensor.New(nil, tensor.U8, math.MaxInt64-3, 1))
	x.Layout = tensor.Lane16
	_, err := x.Bytes()
	require.ErrorIs(t, err, tensor.ErrOverflow)
	require.Equal(t, "strided", tensor.Strided.String())
	require.Equal(t, "layout(9)", tensor.Layout(9).String())
}

// Fields set by hand may hold anything: no method may wrap around or panic on metadata alone.
func TestHandMadeMetadata(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	odd := []int64{0, 1, 2, 3, 16, -1, math.MaxInt64, math.MinInt64, 1 << 31, 1 << 32, 1 << 62}
	for range 5000 {
		x := tensor.Tensor{DType: tensor.DType(rng.IntN(64)), Rank: uint8(rng.IntN(9)), Layout: tensor.Layout(rng.IntN(3))}
		negative := false
		for d := range x.Dims() {
			x.Shape[d], x.Stride[d] = odd[rng.IntN(len(odd))], odd[rng.IntN(len(odd))]
			negative = negative || x.Shape[d] < 0
		}
		if n := x.Numel(); negative {
			require.EqualValues(t, -1, n)
		} else {
			require.GreaterOrEqual(t, n, int64(-1))
		}
		if n, err := x.Bytes(); err == nil {
			require.GreaterOrEqual(t, n, int64(0), "%v", &x)
		}
		require.NotEmpty(t, x.String())
		x.Contiguous()
		x.InnerPacked(1)
	}
}

func TestMetadataAllocatesNothing(t *testing.T) {
	s := make([]float32, 24)
	shape := []int64{2, 3, 4}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		x, _ := tensor.FromSlice(s, tensor.F32, shape...)
		x, _ = x.Slice(0, 1, 2)
		x, _ = x.View(shape[1:]...)
		_ = x.Contiguous()
		_, _ = x.Bytes()
		_ = tensor.Slice[float32](&x)
	}))
}

// TestSliceOfNothing: an empty view does not point behind the memory that it was cut from.
func TestSliceOfNothing(t *testing.T) {
	s := make([]float32, 6)
	x := tensor.Must(tensor.FromSlice(s, tensor.F32, 2, 3))
	end := tensor.Must(x.Slice(0, 2, 2))
	require.Zero(t, end.Numel())
	require.Equal(t, x.Host, end.Host)
	narrow := tensor.Must(x.Slice(1, 3, 3))
	row := tensor.Must(narrow.Slice(0, 1, 2))
	require.Equal(t, x.Host, row.Host)
	require.Equal(t, unsafe.Pointer(&s[3]), tensor.Must(x.Slice(0, 1, 2)).Host)
}
