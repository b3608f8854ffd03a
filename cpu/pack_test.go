package cpu

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

func bytesOf(x *tensor.Tensor) []byte {
	n, _ := x.Bytes()
	return unsafe.Slice((*byte)(x.Host), n)
}

func TestPackWeight(t *testing.T) {
	_, d := open(t, 2)
	for _, dt := range append(append([]tensor.DType{}, floatTypes...), tensor.Q4_0, tensor.Q8_0, tensor.Q4_K, tensor.Q6_K) {
		for _, rows := range [][]int64{{1}, {16}, {40}, {5, 3}, {16, 16}, {20, 7, 30, 1}, {0, 4, 0}, {3, 0}} {
			f := newFixture(t)
			var parts []tensor.Tensor
			var want []byte // the rows behind each other
			n, k := int64(0), int64(256)
			for _, r := range rows {
				p := f.in(dt, r, k)
				parts = append(parts, p)
				want = append(want, bytesOf(&p)...)
				n += r
			}
			var done int64
			x, buf, err := d.PackWeight(parts, func(b int64) { done += b })
			require.NoError(t, err)
			require.EqualValues(t, len(want), done, "progress counts the source's bytes")
			require.Equal(t, []int64{n, k}, x.Dims())
			require.Equal(t, d.ID(), x.Device)
			size, err := d.PackedBytes(dt, n, k)
			require.NoError(t, err)
			require.Equal(t, size, buf.Size())
			w, ok := weightOf(&x)
			require.True(t, ok)
			var got []byte
			for i := range int(n) {
				got = append(got, bytes.Clone(w.bytes(make([]byte, w.row), i))...)
			}
			require.Equal(t, want, got, "%v %v", dt, rows)
			if format, packs := lanes(dt); packs {
				require.Equal(t, tensor.Lane16, x.Layout)
				if n%simd.Lanes != 0 { // the rows that fill the last panel up decode to zeros
					v := make([]float32, k)
					format.Row(v, w.data[len(w.data)-format.PanelSize(int(k)):], simd.Lanes-1, int(k))
					require.Equal(t, make([]float32, k), v)
				}
			} else {
				require.Equal(t, tensor.Strided, x.Layout)
			}
			require.NoError(t, buf.Close())
		}
	}
}

func TestPackWeightRefuses(t *testing.T) {
	_, d := open(t, 1)
	f := newFixture(t)
	a := f.in(tensor.F32, 4, 8)
	column := f.columns(tensor.F32, 4, 1, 8)
	for _, c := range []struct {
		parts []tensor.Tensor
		want  error
	}{
		{nil, tensor.ErrShape},
		{[]tensor.Tensor{f.in(tensor.F32, 4)}, tensor.ErrRank},
		{[]tensor.Tensor{a, f.in(tensor.F16, 4, 8)}, tensor.ErrDType},
		{[]tensor.Tensor{a, f.in(tensor.F32, 4, 9)}, tensor.ErrShape},
		{[]tensor.Tensor{column}, tensor.ErrLayout},
		{[]tensor.Tensor{f.lane16(a)}, tensor.ErrLayout},
		{[]tensor.Tensor{{DType: tensor.F32, Rank: 2, Shape: a.Shape, Stride: a.Stride}}, tensor.ErrLayout},
		{[]tensor.Tensor{{}}, tensor.ErrRank},
	} {
		_, _, err := d.PackWeight(c.parts, nil)
		require.ErrorIs(t, err, c.want)
	}
	_, err := d.PackedBytes(tensor.Q4_0, 4, 33)
	require.ErrorIs(t, err, tensor.ErrShape)
	_, err = d.PackedBytes(tensor.F32, 1<<40, 1<<40)
	require.ErrorIs(t, err, tensor.ErrOverflow)
	require.NoError(t, d.Close())
	_, _, err = d.PackWeight([]tensor.Tensor{a}, nil)
	require.ErrorIs(t, err, device.ErrClosed)
}
