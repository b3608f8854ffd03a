package tensor_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/tensor"
)

type ggmlFile struct {
	Type        string `json:"ggml_type"`
	N, K        int
	RowBytes    int    `json:"row_bytes"`
	BlockElems  int    `json:"block_elems"`
	BlockBytes  int    `json:"block_bytes"`
	Weights     []byte `json:"weights_f32"`
	Quantized   []byte
	Dequantized []byte `json:"dequantized_f32"`
	Activation  string `json:"activation_type"`
	Matmul      []struct {
		M         int
		X         []byte `json:"x_f32"`
		Quantized []byte `json:"x_quantized"`
	}
}

func floats(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

func requireBits(t *testing.T, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			require.Failf(t, "bits differ", "element %d: want %v (%#x), got %v (%#x)", i,
				want[i], math.Float32bits(want[i]), got[i], math.Float32bits(got[i]))
		}
	}
}

func TestConformanceBlocks(t *testing.T) {
	decoded, packed, activations := 0, 0, 0
	for _, file := range conformance(t, "ggml/*.json", 54) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			var f ggmlFile
			readJSON(t, file, &f)
			d, err := tensor.ParseDType(f.Type)
			require.NoError(t, err)
			elems, bytes := d.Block()
			require.Equal(t, []int{f.BlockElems, f.BlockBytes}, []int{elems, bytes})
			rb, err := d.RowBytes(int64(f.K))
			require.NoError(t, err)
			require.EqualValues(t, f.RowBytes, rb)

			for _, m := range f.Matmul {
				checkActivations(t, &activations, f.Activation, f.K, m.M, floats(m.X), m.Quantized)
			}
			y := make([]float32, f.N*f.K)
			for r := range f.N {
				require.NoError(t, tensor.Decode(y[r*f.K:][:f.K], d, f.Quantized[int64(r)*rb:][:rb]))
			}
			requireBits(t, floats(f.Dequantized), y)
			decoded++

			if tensor.CanQuantize(d) {
				b := make([]byte, len(f.Quantized))
				require.NoError(t, tensor.Quantize(b, d, floats(f.Weights))) // rows are whole blocks: one row as good as n
				if slices.Contains(searched, d) {
					requireNoWorse(t, d, f, b)
				} else {
					require.Equal(t, f.Quantized, b)
				}
				packed++
			}
		})
	}
	t.Logf("decoded %d files, packed %d, activations %d", decoded, packed, activations)
	require.GreaterOrEqual(t, decoded, 54)
	require.GreaterOrEqual(t, packed, 24)
	require.GreaterOrEqual(t, activations, 54)
}

func checkActivations(t *testing.T, n *int, name string, k, m int, x []float32, want []byte) {
	d, err := tensor.ParseDType(name)
	require.NoError(t, err)
	require.Len(t, x, m*k)
	require.True(t, tensor.CanQuantize(d), "activation type %v", d)
	got := make([]byte, len(want))
	require.NoError(t, tensor.Quantize(got, d, x))
	require.Equal(t, want, got, "activations as %v", d)
	*n++
}

// goldenBlock is byte i = (29i + 7) mod 256 with d = 0.0625 and dmin = 0.03125.
func goldenBlock(d tensor.DType) []byte {
	_, n := d.Block()
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(29*i + 7)
	}
	at := map[tensor.DType]int{tensor.Q3_K: 108, tensor.Q6_K: 208}[d]
	binary.LittleEndian.PutUint16(b[at:], 0x2c00)
	if d == tensor.Q4_K || d == tensor.Q5_K {
		binary.LittleEndian.PutUint16(b[2:], 0x2800)
	}
	return b
}

func ramp(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32((i*37+11)%64-32) / 16
	}
	return x
}

func TestBlocksGolden(t *testing.T) {
	for _, g := range []struct {
		d                tensor.DType
		at               map[int]float32
		last, sequential float32
	}{
		{tensor.Q4_0, map[int]float32{0: -0.4375, 1: 0.375, 17: -0.1875}, 0.4375, -0.3125},
		{tensor.Q8_0, map[int]float32{0: 4.0625, 1: 5.875, 17: 2.875}, -3.75, -11},
		{tensor.Q3_K, map[int]float32{0: 4.3125, 1: -5.75, 17: 7, 32: -0.9375, 100: 0, 200: 2.625}, -3.9375, 10.5},
		{tensor.Q4_K, map[int]float32{0: 24.34375, 1: 13.28125, 17: 13.28125, 32: 19.125, 100: 15.5625, 200: 41.90625}, 10.03125, 4418.5},
		{tensor.Q5_K, map[int]float32{0: 83.34375, 1: 13.28125, 17: 13.28125, 32: 34.125, 100: 26.8125, 200: 41.90625}, 46.28125, 9398.5},
		{tensor.Q6_K, map[int]float32{0: -81.9375, 1: 99.75, 17: 49, 32: -0.5625, 100: 124.3125, 200: -65.625}, 45.75, -92.75},
	} {
		n, _ := g.d.Block()
		y := make([]float32, n)
		require.NoError(t, tensor.Decode(y, g.d, goldenBlock(g.d)))
		for i, want := range g.at {
			require.Equal(t, want, y[i], "%v[%d]", g.d, i)
		}
		require.Equal(t, g.last, y[n-1], g.d.String())
		var sum float32
		for _, v := range y {
			sum += v
		}
		require.Equal(t, g.sequential, sum, g.d.String())
	}
}

func TestQuantizeActivationsGolden(t *testing.T) {
	first := []int8{-83, 64, -44, 103, -4, -111, 36, -71}

	b := make([]byte, 34)
	require.NoError(t, tensor.QuantizeQ8_0(b, ramp(32)))
	require.Equal(t, []byte{0x08, 0x24}, b[:2])
	for i, q := range first {
		require.Equal(t, q, int8(b[2+i]))
	}

	k := make([]byte, 292)
	require.NoError(t, tensor.QuantizeQ8_K(k, ramp(256)))
	require.Equal(t, uint32(0x3c810204), binary.LittleEndian.Uint32(k))
	for i, q := range first {
		require.Equal(t, q, int8(k[4+i]))
	}
	for g, want := range []int16{32, -222, 31, 32} {
		require.Equal(t, want, int16(binary.LittleEndian.Uint16(k[260+2*g:])))
	}

	// Q8_1 is Q8_0 with the scaled sum between scale and quants.
	b1 := make([]byte, 36)
	require.NoError(t, tensor.QuantizeQ8_1(b1, ramp(32)))
	require.Equal(t, b[2:], b1[4:])
	sum := 0
	for _, q := range b1[4:] {
		sum += int(int8(q))
	}
	require.Equal(t, tensor.EncodeF16(float32(sum)*(float32(2)/127)), binary.LittleEndian.Uint16(b1[2:]))
}

func TestQuantizeRounding(t *testing.T) {
	// Scale 1 makes the quants visible: Q8_0 rounds halves away from zero, Q8_K to even.
	x := make([]float32, 256)
	copy(x, []float32{-127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5})
	b := make([]byte, 292)
	require.NoError(t, tensor.QuantizeQ8_0(b[:34], x[:32]))
	require.Equal(t, []int8{-127, 1, 2, 3, -1, -2, -3}, asI8(b[2:9]))
	require.NoError(t, tensor.QuantizeQ8_K(b, x))
	require.Equal(t, []int8{-127, 0, 2, 2, 0, -2, -2}, asI8(b[4:11]))
	// The first of equal magnitudes becomes -127, also when it is positive.
	x[0], x[1] = 127, -127
	require.NoError(t, tensor.QuantizeQ8_K(b, x))
	require.Equal(t, []int8{-127, 127}, asI8(b[4:6]))
	require.Equal(t, float32(-1), math.Float32frombits(binary.LittleEndian.Uint32(b)))
	clear(x)
	require.NoError(t, tensor.QuantizeQ8_K(b, x))
	require.Equal(t, make([]byte, 292), b)
}

func asI8(b []byte) []int8 {
	v := make([]int8, len(b))
	for i := range b {
		v[i] = int8(b[i])
	}
	return v
}

var allTypes = func() (types []tensor.DType) {
	for d := range tensor.DType(255) {
		if d.Valid() && d != tensor.None {
			types = append(types, d)
		}
	}
	return types
}()

// Packing must lose at most about half a step of the format, and what is packed must decode.
func TestQuantizeErrorBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	steps := map[tensor.DType]float64{ // largest error relative to the block's largest magnitude
		tensor.F32: 0, tensor.F16: 0x1p-11, tensor.BF16: 0x1p-8,
		tensor.Q4_0: 1.0 / 8, tensor.Q4_1: 1.0 / 14, tensor.Q5_0: 1.0 / 16, tensor.Q5_1: 1.0 / 28,
		tensor.Q8_0: 1.0 / 240, tensor.Q8_1: 1.0 / 240, tensor.Q8_K: 1.0 / 240,
		tensor.Q4_K: 1.0 / 10, tensor.Q5_K: 1.0 / 20, tensor.Q6_K: 1.0 / 24, tensor.IQ4_NL: 1.0 / 5, tensor.MXFP4: 1.0 / 4,
	}
	for _, d := range allTypes {
		step, ok := steps[d]
		require.Equal(t, tensor.CanQuantize(d), ok, d.String())
		if !ok {
			require.ErrorIs(t, tensor.Quantize(nil, d, nil), tensor.ErrDType)
			continue
		}
		for range 50 {
			x, y := make([]float32, 256), make([]float32, 256)
			top := 0.0
			for i := range x {
				x[i] = float32(rng.NormFloat64())
				top = max(top, math.Abs(float64(x[i])))
			}
			rb, err := d.RowBytes(256)
			require.NoError(t, err)
			b := make([]byte, rb)
			require.NoError(t, tensor.Quantize(b, d, x))
			require.NoError(t, tensor.Decode(y, d, b))
			for i := range x {
				require.InDelta(t, x[i], y[i], step*top, "%v[%d]", d, i)
			}
		}
	}
}

func TestRowErrors(t *testing.T) {
	for _, d := range allTypes {
		if !tensor.CanDecode(d) {
			require.False(t, d.IsBlock(), "%v has no decoder", d)
			require.ErrorIs(t, tensor.Decode(nil, d, nil), tensor.ErrDType)
			continue
		}
		e, b := d.Block()
		y := make([]float32, 2*e)
		require.NoError(t, tensor.Decode(y[:0], d, nil))
		require.NoError(t, tensor.Decode(y, d, make([]byte, 2*b)))
		for i := range y {
			y[i] = 7
		}
		require.ErrorIs(t, tensor.Decode(y, d, make([]byte, 2*b-1)), tensor.ErrShape, d.String())
		require.ErrorIs(t, tensor.Decode(y, d, make([]byte, 2*b+1)), tensor.ErrShape, d.String())
		if e > 1 {
			require.ErrorIs(t, tensor.Decode(y[:2*e-1], d, make([]byte, 2*b)), tensor.ErrShape, d.String())
		}
		for i := range y {
			require.Equal(t, float32(7), y[i], "an error leaves dst untouched")
		}
		if tensor.CanQuantize(d) {
			require.ErrorIs(t, tensor.Quantize(make([]byte, 2*b-1), d, y), tensor.ErrShape, d.String())
			if e > 1 {
				require.ErrorIs(t, tensor.Quantize(make([]byte, 2*b), d, y[:2*e-1]), tensor.ErrShape, d.String())
			}
		}
	}
	require.False(t, tensor.CanDecode(tensor.DType(200)))
	require.False(t, tensor.CanQuantize(tensor.DType(200)))
	require.ErrorIs(t, tensor.Decode(nil, tensor.DType(200), nil), tensor.ErrDType)
	require.ErrorIs(t, tensor.Decode(nil, tensor.None, nil), tensor.ErrDType)
	require.ErrorIs(t, tensor.Quantize(nil, tensor.DType(200), nil), tensor.ErrDType)
}

// Blocks of NaN, infinity and extremes pack without panic and the same way every time.
func TestQuantizeHostileValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	hostile := []float32{nan, inf, -inf, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, 0, -0x1p-140, 1}
	rng := rand.New(rand.NewPCG(7, 8))
	for _, d := range allTypes {
		if !tensor.CanQuantize(d) {
			continue
		}
		rb, err := d.RowBytes(256)
		require.NoError(t, err)
		for range 200 {
			x := make([]float32, 256)
			for i := range x {
				x[i] = hostile[rng.IntN(len(hostile))]
			}
			a, b := make([]byte, rb), make([]byte, rb)
			require.NoError(t, tensor.Quantize(a, d, x))
			require.NoError(t, tensor.Quantize(b, d, x))
			require.Equal(t, a, b)
		}
	}
}

func TestRowsAllocateNothing(t *testing.T) {
	x := ramp(512)
	for _, d := range allTypes {
		rb, err := d.RowBytes(512)
		require.NoError(t, err)
		b := make([]byte, rb)
		if tensor.CanQuantize(d) {
			require.Zero(t, testing.AllocsPerRun(10, func() { _ = tensor.Quantize(b, d, x) }), "quantize %v", d)
		}
		if tensor.CanDecode(d) {
			y := make([]float32, 512)
			require.Zero(t, testing.AllocsPerRun(10, func() { _ = tensor.Decode(y, d, b) }), "decode %v", d)
		}
	}
}

// FuzzDecode reads any bytes as rows of every type: never a panic, and the same bits at another address.
func FuzzDecode(f *testing.F) {
	for _, d := range allTypes {
		_, b := d.Block()
		row := make([]byte, 2*b)
		for i := range row {
			row[i] = byte(37 * i)
		}
		f.Add(uint8(d), row)
	}
	f.Fuzz(func(t *testing.T, typ uint8, src []byte) {
		d := tensor.DType(typ)
		e, b := d.Block()
		if b == 0 {
			require.ErrorIs(t, tensor.Decode(nil, d, src), tensor.ErrDType)
			return
		}
		n := len(src) / b
		y := make([]float32, n*e)
		err := tensor.Decode(y, d, src)
		if !tensor.CanDecode(d) {
			require.ErrorIs(t, err, tensor.ErrDType)
			return
		}
		if n*b != len(src) {
			require.ErrorIs(t, err, tensor.ErrShape)
			return
		}
		require.NoError(t, err)
		moved := append([]byte{0}, src...)[1:]
		y2 := make([]float32, n*e)
		require.NoError(t, tensor.Decode(y2, d, moved))
		requireBits(t, y, y2)
		if tensor.CanQuantize(d) {
			require.NoError(t, tensor.Quantize(moved, d, y))
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, d := range []tensor.DType{tensor.F16, tensor.Q4_0, tensor.Q5_1, tensor.Q8_0, tensor.Q3_K, tensor.Q4_K, tensor.Q6_K, tensor.IQ1_M, tensor.IQ2_S, tensor.IQ3_XXS} {
		b.Run(d.String(), func(b *testing.B) {
			rb, err := d.RowBytes(4096)
			require.NoError(b, err)
			src, y := make([]byte, rb), make([]float32, 4096)
			for i := range src {
				src[i] = byte(29 * i)
			}
			b.SetBytes(rb)
			for b.Loop() {
				_ = tensor.Decode(y, d, src)
			}
		})
	}
}
