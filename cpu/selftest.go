package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// kernel is a tier's function for an op with record R.
type kernel[R any] func(t *tier, q *registry.Queue, a *R) registry.Status

// selfTest returns a known-answer test of o's kernels: the calls that builds make, each twice the same, are launched on
// the queue and run by the reference, and what they write must agree. It takes some microseconds.
func selfTest[R any](o *ops.Op[R], ref kernel[R], builds ...func(s *sample) *R) func(q *registry.Queue) error {
	return func(q *registry.Queue) error {
		for _, build := range builds {
			got, want := build(&sample{dev: q.Device()}), build(&sample{dev: q.Device()})
			if err := o.Launch(q, got); err != nil {
				return err
			}
			if s := ref(reference, q, want); s.Code() != registry.OK {
				return fmt.Errorf("reference: %v", s)
			}
			for _, d := range o.Descriptor().Operands {
				at := func(a *R) *tensor.Tensor { return (*tensor.Tensor)(unsafe.Add(unsafe.Pointer(a), d.Offset)) }
				if d.Role == registry.In || !at(want).Present() {
					continue
				}
				if err := agree(at(got), at(want)); err != nil {
					return fmt.Errorf("%s: %w", d.Name, err)
				}
			}
		}
		return nil
	}
}

// agree compares two contiguous f32 or i64 tensors: numbers exactly, floats within a squared error of 5e-4 of the whole,
// which covers the two roundings of quantised activations.
func agree(got, want *tensor.Tensor) error {
	if want.DType == tensor.I64 {
		for i := range int(want.Numel()) {
			if g, w := index(got, i), index(want, i); g != w {
				return fmt.Errorf("element %d is %d, want %d", i, g, w)
			}
		}
		return nil
	}
	var diff, sum float64
	for i := range int(want.Numel()) {
		g, w := float64(one(got, i)), float64(one(want, i))
		if g == w { // infinities too
			continue
		}
		if d := math.Abs(g - w); !(d <= 0.02*(1+math.Abs(w))) {
			return fmt.Errorf("element %d is %v, want %v", i, g, w)
		}
		diff += (g - w) * (g - w)
		sum += w * w
	}
	if diff > 5e-4*sum {
		return fmt.Errorf("squared error is %.2g of the whole", diff/sum)
	}
	return nil
}

// sample makes small operands with fixed values.
type sample struct {
	dev tensor.Device
	n   int // operands made
}

// tensor returns zeros.
func (s *sample) tensor(t tensor.DType, shape ...int64) tensor.Tensor {
	x := tensor.Must(tensor.New(nil, t, shape...))
	n, _ := x.Bytes()
	x.Host, x.Device = memory(int(n)), s.dev
	return x
}

// memory returns n bytes of the Go heap, aligned to 8.
func memory(n int) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1))) }

// f32 returns values between -2 and 2, others for each operand.
func (s *sample) f32(shape ...int64) tensor.Tensor {
	x := s.tensor(tensor.F32, shape...)
	s.n++
	v := elems[float32](&x, 0, int(x.Numel()))
	for i := range v {
		v[i] = float32(((i+s.n)*37+11)%64-32) / 16
	}
	return x
}

// constant returns one number.
func (s *sample) constant(v float32) tensor.Tensor {
	x := s.tensor(tensor.F32, 1)
	put(&x, 0, v)
	return x
}

func (s *sample) i32(v ...int32) tensor.Tensor {
	x := s.tensor(tensor.I32, int64(len(v)))
	copy(elems[int32](&x, 0, len(v)), v)
	return x
}

// weight returns rows in the Lane16 layout.
func (s *sample) weight(t tensor.DType, n, k int) tensor.Tensor {
	plain := s.f32(int64(n), int64(k))
	f, _ := lanes(t)
	x := s.tensor(t, int64(simd.Panels(n)*simd.Lanes), int64(k))
	x.Shape[0], x.Layout = int64(n), tensor.Lane16
	rows := make([]byte, n*f.RowSize(k))
	for i := range n {
		if err := tensor.Quantize(rows[i*f.RowSize(k):][:f.RowSize(k)], t, elems[float32](&plain, i*k, k)); err != nil {
			panic(err) // whole blocks of a type with an encoder
		}
	}
	packPanels(f, unsafe.Slice((*byte)(x.Host), simd.Panels(n)*f.PanelSize(k)), rows, n, k)
	return x
}

// The calls of the self-tests. Rows and columns are odd numbers, so that tiles of several sizes and tails take part.

func sampleMatmul(s *sample) *ops.MatmulArgs {
	return &ops.MatmulArgs{Out: s.tensor(tensor.F32, 7, 37), A: s.f32(7, 19), B: s.f32(19, 37)}
}

func sampleMatmulBT(s *sample) *ops.MatmulBTArgs {
	return &ops.MatmulBTArgs{Out: s.tensor(tensor.F32, 7, 85), A: s.f32(7, 19), B: s.weight(tensor.F32, 85, 19)}
}

// sampleQ4 has enough rows for every kernel of a tier, and a tail for the smaller ones.
func sampleQ4(s *sample) *ops.MatmulBTQuantArgs {
	return &ops.MatmulBTQuantArgs{Out: s.tensor(tensor.F32, 47, 37), A: s.f32(47, 96), B: s.weight(tensor.Q4_0, 37, 96)}
}

func sampleQ8(s *sample) *ops.MatmulBTQuantArgs {
	return &ops.MatmulBTQuantArgs{Out: s.tensor(tensor.F32, 47, 37), A: s.f32(47, 96), B: s.weight(tensor.Q8_0, 37, 96)}
}

func sampleRMSNorm(s *sample) *ops.RMSNormArgs {
	return &ops.RMSNormArgs{Out: s.tensor(tensor.F32, 2, 51), X: s.f32(2, 51), Weight: s.f32(51), Residual: s.f32(2, 51), Eps: 1e-5}
}

func sampleSilu(s *sample) *ops.SiluAndMulArgs {
	return &ops.SiluAndMulArgs{Out: s.tensor(tensor.F32, 1, 51), X: s.f32(1, 102)}
}

func sampleRelu(s *sample) *ops.ReluArgs {
	return &ops.ReluArgs{Out: s.tensor(tensor.F32, 51), X: s.f32(51)}
}

func sampleAdd(s *sample) *ops.AddArgs {
	return &ops.AddArgs{Out: s.tensor(tensor.F32, 2, 51), A: s.f32(2, 51), B: s.f32(51)}
}

func sampleMulScalar(s *sample) *ops.MulScalarArgs {
	return &ops.MulScalarArgs{Out: s.tensor(tensor.F32, 51), X: s.f32(51), Scalar: 0.3}
}

func sampleSoftmax(s *sample) *ops.SoftmaxArgs {
	return &ops.SoftmaxArgs{Out: s.tensor(tensor.F32, 2, 1, 51), X: s.f32(2, 1, 51), Mask: s.f32(1, 51), Scale: 0.5}
}

func sampleRope(s *sample) *ops.RopeFromCacheArgs {
	return &ops.RopeFromCacheArgs{QStates: s.f32(2, 3, 40), KStates: s.f32(2, 1, 40), Positions: s.i32(1, 0), CosSinCache: s.f32(2, 38), RotaryDim: 38}
}

func sampleAttention(s *sample) *ops.AttentionArgs {
	return &ops.AttentionArgs{Out: s.tensor(tensor.F32, 7, 6, 19), Query: s.f32(7, 6, 19), Key: s.f32(7, 2, 19), Value: s.f32(7, 2, 19), Scale: 0.25, Causal: true}
}

func samplePaged(s *sample) *ops.PagedAttentionArgs {
	table := s.i32(2, 0)
	table = tensor.Must(table.View(1, 2))
	return &ops.PagedAttentionArgs{Out: s.tensor(tensor.F32, 3, 6, 19), Query: s.f32(3, 6, 19), KCache: s.f32(3, 8, 2, 19), VCache: s.f32(3, 8, 2, 19),
		BlockTable: table, SeqLens: s.i32(13), QueryStartLoc: s.i32(0, 3), Scale: 0.25, Causal: true}
}

func sampleTemperature(s *sample) *ops.ApplyTemperatureArgs {
	return &ops.ApplyTemperatureArgs{Logits: s.f32(1, 51), Temp: s.constant(0.7)}
}

func sampleArgmax(s *sample) *ops.GreedyArgmaxArgs {
	return &ops.GreedyArgmaxArgs{TokenIDs: s.tensor(tensor.I64, 2), Logits: s.f32(2, 151)}
}

func sampleProbs(s *sample) *ops.ComputeProbsArgs {
	return &ops.ComputeProbsArgs{Probs: s.tensor(tensor.F32, 2, 51), Logits: s.f32(2, 51)}
}

func sampleLogprobs(s *sample) *ops.ComputeLogprobsArgs {
	return &ops.ComputeLogprobsArgs{Logprobs: s.tensor(tensor.F32, 2, 51), Logits: s.f32(2, 51)}
}

func sampleMinP(s *sample) *ops.ApplyMinPArgs {
	return &ops.ApplyMinPArgs{Logits: s.f32(1, 51), MinP: s.constant(0.1)}
}
