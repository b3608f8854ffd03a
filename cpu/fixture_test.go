package cpu

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

var (
	floatTypes = []tensor.DType{tensor.F32, tensor.F16, tensor.BF16}
	blockTypes = []tensor.DType{tensor.Q4_0, tensor.Q4_1, tensor.Q5_0, tensor.Q5_1, tensor.Q8_0, tensor.Q2_K, tensor.Q3_K, tensor.Q4_K,
		tensor.Q5_K, tensor.Q6_K, tensor.Q8_K, tensor.IQ4_NL}
)

// fixture makes the operands of one call: the same ones each time, in fresh memory, poisoned where a kernel must write.
type fixture struct {
	tb  testing.TB
	rng *rand.Rand
}

const (
	fence  = 64   // bytes around every operand
	poison = 0xff // NaN in every float type
)

func newFixture(tb testing.TB) *fixture {
	return &fixture{tb: tb, rng: rand.New(rand.NewPCG(1, 2))}
}

// memory returns n poisoned bytes between fences.
func (f *fixture) memory(n int64) unsafe.Pointer {
	b := make([]byte, n+3*fence)
	for i := range b {
		b[i] = poison
	}
	skip := fence + int(-uintptr(unsafe.Pointer(&b[0]))%fence)
	return unsafe.Pointer(&b[skip])
}

// raw returns a poisoned contiguous tensor.
func (f *fixture) raw(t tensor.DType, shape ...int64) tensor.Tensor {
	x := tensor.Must(tensor.New(nil, t, shape...))
	n, err := x.Bytes()
	require.NoError(f.tb, err)
	x.Host = f.memory(n)
	return x
}

// fill writes random normal values of the given size to a float or block tensor.
func (f *fixture) fill(x *tensor.Tensor, size float64) {
	k := int(x.Last())
	row, err := x.DType.RowBytes(int64(k))
	require.NoError(f.tb, err)
	if k == 0 {
		return
	}
	v := make([]float32, k)
	for r := range int(x.Numel()) / k {
		for i := range v {
			v[i] = float32(f.rng.NormFloat64() * size)
		}
		b := unsafe.Slice((*byte)(unsafe.Add(x.Host, r*int(row))), row)
		if tensor.CanQuantize(x.DType) {
			require.NoError(f.tb, tensor.Quantize(b, x.DType, v))
			continue
		}
		for i := range b { // any bytes are legal blocks; the scales, wherever they are, stay small
			b[i] = byte(f.rng.Uint32())
		}
		scaleBlocks(x.DType, b)
	}
}

// scaleBlocks puts sane scales into blocks of random bytes.
func scaleBlocks(t tensor.DType, b []byte) {
	_, size := t.Block()
	at := map[tensor.DType][]int{tensor.Q2_K: {80, 82}, tensor.Q3_K: {108}, tensor.Q4_K: {0, 2}, tensor.Q5_K: {0, 2}, tensor.Q6_K: {208}, tensor.IQ4_NL: {0}}[t]
	for i := 0; i < len(b); i += size {
		for _, o := range at {
			b[i+o], b[i+o+1] = byte(i), 0x1c // about 2^-8
		}
	}
}

// in returns a contiguous tensor of random values.
func (f *fixture) in(t tensor.DType, shape ...int64) tensor.Tensor {
	x := f.raw(t, shape...)
	f.fill(&x, 1)
	return x
}

// ints returns a contiguous integer tensor.
func (f *fixture) ints(t tensor.DType, v ...int64) tensor.Tensor {
	x := f.raw(t, int64(len(v)))
	for i, n := range v {
		switch t {
		case tensor.I32:
			elems[int32](&x, i, 1)[0] = int32(n)
		case tensor.I64:
			elems[int64](&x, i, 1)[0] = n
		default:
			elems[int8](&x, i, 1)[0] = int8(n)
		}
	}
	return x
}

func (f *fixture) f32(v ...float32) tensor.Tensor {
	x := f.raw(tensor.F32, int64(len(v)))
	copy(elems[float32](&x, 0, len(v)), v)
	return x
}

// columns returns columns c0.. of a wider random matrix [m, c0+k+3].
func (f *fixture) columns(t tensor.DType, m, c0, k int64) tensor.Tensor {
	x := f.in(t, m, c0+k+3)
	v, err := x.Slice(1, c0, c0+k)
	require.NoError(f.tb, err)
	return v
}

// lane16 returns x in the Lane16 layout.
func (f *fixture) lane16(x tensor.Tensor) tensor.Tensor {
	format, ok := lanes(x.DType)
	require.True(f.tb, ok)
	n, k := int(x.Shape[0]), int(x.Shape[1])
	y := x
	y.Layout = tensor.Lane16
	size, err := y.Bytes()
	require.NoError(f.tb, err)
	y.Host = f.memory(size)
	dst, rows := unsafe.Slice((*byte)(y.Host), size), unsafe.Slice((*byte)(x.Host), n*format.RowSize(k))
	for p := range simd.Panels(n) {
		first := p * simd.Lanes
		format.PackPanel(dst[p*format.PanelSize(k):], rows[first*format.RowSize(k):], min(simd.Lanes, n-first), k)
	}
	return y
}

// as gives a contiguous tensor another shape.
func (f *fixture) as(x tensor.Tensor, shape ...int64) tensor.Tensor {
	return tensor.Must(x.View(shape...))
}

// pages returns the K and V planes of one cache, each [blocks,bs,h,d], interleaved or apart.
func (f *fixture) pages(t tensor.DType, blocks, bs, h, d int64) (k, v tensor.Tensor) {
	if t.IsBlock() {
		return f.in(t, blocks, bs, h, d), f.in(t, blocks, bs, h, d)
	}
	both := f.in(t, blocks, 2, bs, h, d)
	plane := func(i int64) tensor.Tensor {
		x := tensor.Must(both.Slice(1, i, i+1))
		copy(x.Shape[1:], x.Shape[2:])
		copy(x.Stride[1:], x.Stride[2:])
		x.Rank--
		x.Shape[x.Rank], x.Stride[x.Rank] = 0, 0
		return x
	}
	return plane(0), plane(1)
}

// pagedCall is one batch of requests.
type pagedCall struct {
	queries, lens []int // of each request
	hq, hk, d     int64
	bs            int64
	pad           int // query rows behind the last request
}

func (f *fixture) paged(p pagedCall, query, cache, out tensor.DType) *ops.PagedAttentionArgs {
	starts, lens, most, total := []int64{0}, []int64{}, int64(1), int64(0)
	for i, q := range p.queries {
		starts = append(starts, starts[i]+int64(q))
		lens = append(lens, int64(p.lens[i]))
		blocks := (int64(p.lens[i]) + p.bs - 1) / p.bs
		most, total = max(most, blocks), total+blocks
	}
	table := f.raw(tensor.I32, int64(len(lens)), most) // entries behind the last block stay poison
	free := f.rng.Perm(int(total) + 1)
	for r, n := range lens {
		for b := range (n + p.bs - 1) / p.bs {
			elems[int32](&table, r*int(most)+int(b), 1)[0] = int32(free[0])
			free = free[1:]
		}
	}
	tq := starts[len(starts)-1] + int64(p.pad)
	a := &ops.PagedAttentionArgs{Out: f.raw(out, tq, p.hq, p.d), Query: f.in(query, tq, p.hq, p.d), BlockTable: table,
		SeqLens: f.ints(tensor.I32, lens...), QueryStartLoc: f.ints(tensor.I32, starts...), Scale: float32(1 / math.Sqrt(float64(p.d))), Causal: true}
	a.KCache, a.VCache = f.pages(cache, total+1, p.bs, p.hk, p.d)
	return a
}
