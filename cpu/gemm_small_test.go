package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// bytesOf returns n random bytes as a tensor; scales are codes of fp8 numbers between 1/4 and 3.5.
func (f *fixture) bytesOf(t tensor.DType, scales bool, shape ...int64) tensor.Tensor {
	x := f.raw(t, shape...)
	for i, b := 0, elems[byte](&x, 0, int(x.Numel())); i < len(b); i++ {
		if b[i] = byte(f.rng.IntN(256)); scales {
			b[i] = byte(0x28 + f.rng.IntN(32))
		}
	}
	return x
}

// e2m1 are the magnitudes of fp4, as the catalogue lists them.
var e2m1 = [8]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}

// fp4At and e4m3At decode by definition.
func fp4At(x *tensor.Tensor, i int) float64 {
	c := elems[byte](x, i/2, 1)[0] >> (i % 2 * 4) & 15
	if c > 7 {
		return -e2m1[c&7]
	}
	return e2m1[c]
}

func e4m3At(x *tensor.Tensor, i int) float64 {
	c := int(elems[byte](x, i, 1)[0])
	sign, e, m := 1-2*float64(c>>7), c>>3&15, float64(c&7)
	if e == 0 {
		return sign * m * 0x1p-9
	}
	return sign * (1 + m/8) * math.Ldexp(1, e-7)
}

func TestBatchedMatmulAgainstFloat64(t *testing.T) {
	q, f := onReference(t, ops.OpBatchedMatmul), newFixture(t)
	const g, m, n, k = 3, 9, 270, 11
	for _, dt := range floatTypes {
		// [M,G,K] and [M,G,N] read as [G,M,·]: the batch stride is the smaller one.
		a, b := f.random(dt, m, g, k), f.random(dt, g, k, n)
		out := f.raw(tensor.F32, m, g, n)
		swap := func(x tensor.Tensor) tensor.Tensor {
			x.Shape[0], x.Shape[1] = x.Shape[1], x.Shape[0]
			x.Stride[0], x.Stride[1] = x.Stride[1], x.Stride[0]
			return x
		}
		require.NoError(t, ops.BatchedMatmul.Call(q, ops.BatchedMatmulArgs{Out: swap(out), A: swap(a), B: b}))
		for e, got := range elems[float32](&out, 0, m*g*n) {
			i, h, c := e/(g*n), e/n%g, e%n
			want, size := 0.0, 0.0
			for x := range k {
				p := float64(one(&a, (i*g+h)*k+x)) * float64(one(&b, (h*k+x)*n+c))
				want, size = want+p, size+math.Abs(p)
			}
			require.InDelta(t, want, got, 1e-6*size+1e-30, "%v %d", dt, e)
		}
	}
}

// random returns normal numbers.
func (f *fixture) random(t tensor.DType, shape ...int64) tensor.Tensor {
	x := f.raw(t, shape...)
	for i := range int(x.Numel()) {
		put(&x, i, float32(f.rng.NormFloat64()))
	}
	return x
}

func TestFP4ProductsAgainstFloat64(t *testing.T) {
	const m, n, k = 5, 32, 96
	q, f := onReference(t, ops.OpMatmulNVFP4FP4, ops.OpMatmulNVFP4Swizzled), newFixture(t)
	ap, as := f.bytesOf(tensor.F4E2M1x2, false, m, k/2), f.bytesOf(tensor.F8E4M3FN, true, m, k/16)
	bp, bs := f.bytesOf(tensor.U8, false, n, k/2), f.bytesOf(tensor.I8, true, n, k/16)
	linear := ops.MatmulNVFP4FP4Args{Out: f.raw(tensor.F32, m, n), APacked: ap, AScale: as, BPacked: bp, BScale: bs, Alpha: 0.375}
	require.NoError(t, ops.MatmulNVFP4FP4.Launch(q, &linear))
	for e, got := range elems[float32](&linear.Out, 0, m*n) {
		i, c, want := e/n, e%n, 0.0
		for x := range k {
			want += fp4At(&ap, i*k+x) * e4m3At(&as, i*k/16+x/16) * fp4At(&bp, c*k+x) * e4m3At(&bs, c*k/16+x/16)
		}
		require.InEpsilon(t, 0.375*want+1000, float64(got)+1000, 1e-6)
	}
	// The same scales swizzled, and the result rounded to bf16: bit for bit, also for an f32 output, with the factor here or there.
	sw := func(x *tensor.Tensor, rows int) tensor.Tensor {
		y := f.raw(tensor.U8, 128, 8) // of padding the kernel must take nothing
		for r := range rows {
			for c := range k / 16 {
				elems[byte](&y, tensor.SwizzleOffset(r, c, 8), 1)[0] = elems[byte](x, r*k/16+c, 1)[0]
			}
		}
		return y
	}
	for _, resident := range []bool{false, true} {
		for _, dt := range []tensor.DType{tensor.F32, tensor.BF16} {
			a := ops.MatmulNVFP4SwizzledArgs{Out: f.raw(dt, m, n), APacked: ap, ASfSw: sw(&as, m), BPacked: bp, BSfSw: sw(&bs, n)}
			if a.HostAlpha = 0.375; resident {
				a.HostAlpha, a.Alpha = 0, f.f32(0.375)
			}
			require.NoError(t, ops.MatmulNVFP4Swizzled.Launch(q, &a))
			for e, v := range elems[float32](&linear.Out, 0, m*n) {
				require.Equal(t, roundBF16(v), one(&a.Out, e))
			}
		}
	}
}

// The op is matmul_bt on the weight that was decoded and rounded to bf16.
func TestNVFP4IsMatmulOfTheDecodedWeight(t *testing.T) {
	const m, n, k = 4, 9, 64
	q, f := onReference(t, ops.OpMatmulNVFP4, ops.OpMatmulBT), newFixture(t)
	for _, dt := range floatTypes {
		a := ops.MatmulNVFP4Args{Out: f.raw(tensor.F32, m, n), Act: f.random(dt, m, k), WeightPacked: f.bytesOf(tensor.U8, false, n, k/2),
			WeightScale: f.bytesOf(tensor.U8, true, n, k/16), WeightScale2: 0.3}
		require.NoError(t, ops.MatmulNVFP4.Launch(q, &a))
		w := f.raw(tensor.BF16, n, k)
		for i := range n * k {
			s := float32(e4m3At(&a.WeightScale, i/16)) * a.WeightScale2
			put(&w, i, float32(fp4At(&a.WeightPacked, i))*s)
		}
		b := ops.MatmulBTArgs{Out: f.raw(tensor.F32, m, n), A: a.Act, B: w}
		require.NoError(t, ops.MatmulBT.Launch(q, &b))
		require.Equal(t, elems[float32](&b.Out, 0, m*n), elems[float32](&a.Out, 0, m*n), dt)
	}
}

func TestFP8ProductsAgainstFloat64(t *testing.T) {
	const m, n, k = 5, 16, 80
	q, f := onReference(t, ops.OpMatmulFP8), newFixture(t)
	code := func(shape ...int64) tensor.Tensor {
		x := f.raw(tensor.F8E4M3FN, shape...)
		for i, b := 0, elems[byte](&x, 0, int(x.Numel())); i < len(b); i++ {
			b[i] = byte(f.rng.IntN(0x50) | f.rng.IntN(2)<<7)
		}
		return x
	}
	scales := func(shape ...int64) tensor.Tensor {
		x := f.raw(tensor.F32, shape...)
		for i := range int(x.Numel()) {
			put(&x, i, 0.5+f.rng.Float32())
		}
		return x
	}
	for name, c := range map[string]struct {
		a, b   tensor.Tensor
		bn, bk int32
	}{
		"none": {}, "tensor": {scales(1), scales(1), 0, 0}, "rows": {scales(m, 1), scales(n, 1), 0, 0},
		"tiles": {scales(m, 3), scales(2, 3), 10, 32}, "mixed": {scales(1), scales(16, 5), 1, 16},
	} {
		a := ops.MatmulFP8Args{Out: f.raw(tensor.F32, m, n), AFp8: code(m, k), BFp8: code(n, k), AScale: c.a, BScale: c.b, BlockN: c.bn, BlockK: c.bk, Alpha: 0.75}
		require.NoError(t, ops.MatmulFP8.Launch(q, &a), name)
		at := func(x *tensor.Tensor, r, e int) float64 {
			switch {
			case !x.Present():
				return 1
			case x.Rank == 1:
				return float64(one(x, 0))
			case c.bk == 0:
				return float64(one(x, r))
			}
			return float64(one(x, r*int(x.Shape[1])+e/int(c.bk)))
		}
		rounded := a
		rounded.Out, rounded.BF16Epilogue = f.raw(tensor.F32, m, n), true
		require.NoError(t, ops.MatmulFP8.Launch(q, &rounded), name)
		for e, got := range elems[float32](&a.Out, 0, m*n) {
			i, col, want, size := e/n, e%n, 0.0, 0.0
			for x := range k {
				p := e4m3At(&a.AFp8, i*k+x) * at(&c.a, i, x) * e4m3At(&a.BFp8, col*k+x) * at(&c.b, col/max(int(c.bn), 1), x)
				want, size = want+p, size+math.Abs(p)
			}
			require.InDelta(t, 0.75*want, got, 2e-6*size, "%s %d", name, e)
			require.Equal(t, roundBF16(got), one(&rounded.Out, e), name)
		}
	}
}

func TestInt8ProductsAgainstWholeNumbers(t *testing.T) {
	const m, n, k = 3, 7, 9
	q, rng := onReference(t, ops.OpMatmulInt8), rand.New(rand.NewPCG(3, 4))
	f := newFixture(t)
	for _, at := range []tensor.DType{tensor.I8, tensor.U8} {
		for _, bt := range []tensor.DType{tensor.I8, tensor.U8} {
			a := ops.MatmulInt8Args{Out: f.raw(tensor.I32, m, n), A: f.bytesOf(at, false, m, k), B: f.bytesOf(bt, false, n, k), AZeroPoint: f.bytesOf(at, false, m), BZeroPoint: f.bytesOf(bt, false, n)}
			a.B.Shape[0], a.B.Shape[1], a.B.Stride[0], a.B.Stride[1] = k, n, 1, k // [N,K] transposed
			if rng.IntN(2) == 0 {
				a.AZeroPoint = f.bytesOf(at, false, 1)
			}
			require.NoError(t, ops.MatmulInt8.Launch(q, &a))
			value := func(x *tensor.Tensor, i int) int64 {
				b := elems[byte](x, min(i, int(x.Numel())-1), 1)[0]
				if x.DType == tensor.I8 {
					return int64(int8(b))
				}
				return int64(b)
			}
			for e, got := range elems[int32](&a.Out, 0, m*n) {
				i, c, want := e/n, e%n, int64(0)
				for x := range k {
					want += (value(&a.A, i*k+x) - value(&a.AZeroPoint, i)) * (value(&a.B, c*k+x) - value(&a.BZeroPoint, c))
				}
				require.EqualValues(t, want, got)
			}
		}
	}
}

// What the catalogue says of vendors' names holds: they are aliases.
func TestVendorNamesAreAliases(t *testing.T) {
	for name, op := range map[string]registry.Op{"matmul_nvfp4_cutlass": ops.OpMatmulNVFP4Swizzled, "matmul_fp8_cutlass": ops.OpMatmulFP8, "matmul_fp8_cublaslt": ops.OpMatmulFP8} {
		got, ok := registry.Lookup(name)
		require.True(t, ok, name)
		require.Equal(t, op, got)
	}
}
