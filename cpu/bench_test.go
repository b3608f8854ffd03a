package cpu

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/offheap"
	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// best returns the best tier that this CPU runs.
func best() *simd.Set {
	for _, s := range simd.All() {
		if s.Missing() == "" {
			return s
		}
	}
	panic("the portable tier runs everywhere")
}

// turns times two functions turn by turn and returns the rates, in units of their work a second, that a tenth of the turns
// reach: the other turns are those that something disturbed.
func turns(b *testing.B, work [2]float64, f [2]func()) (rate [2]float64) {
	var times [2][]float64
	for b.Loop() {
		for i := range f {
			t0 := time.Now()
			f[i]()
			times[i] = append(times[i], time.Since(t0).Seconds())
		}
	}
	for i, t := range times {
		slices.Sort(t)
		rate[i] = work[i] / t[len(t)/10]
	}
	b.ReportMetric(0, "ns/op")
	return rate
}

// reader streams a block of memory with all threads.
type reader struct {
	mem  []byte
	set  *simd.Set
	sink atomic.Uint64
}

const readPiece = 1 << 20

// Do implements pool.Task.
func (r *reader) Do(i, _ int) {
	r.sink.Store(r.set.ReadBytes(r.mem[i*readPiece:][:readPiece]))
}

// peakLoops makes a chunk of a peak some 100 µs long.
const peakLoops = 25000

// peakChunks returns how many chunks of a peak make about as many operations as the work that it is compared with, so that
// the same share of its turns is disturbed, and the operations of one.
func peakChunks(work float64, peak func(n int) int) (n int, each float64) {
	each = float64(peak(peakLoops))
	return int(work / each), each
}

// multiplier does nothing but the tier's multiplications of bytes, with all threads.
type multiplier struct {
	set *simd.Set
	ops atomic.Int64
}

// Do implements pool.Task.
func (m *multiplier) Do(int, int) { m.ops.Add(int64(m.set.PeakInt8(peakLoops))) }

// benchWeights packs n distinct weights, more than fits in any cache.
func benchWeights(b *testing.B, d *Device, t tensor.DType, n int, rows, k int64) (w []tensor.Tensor) {
	f := newFixture(b)
	x := f.in(t, rows, k)
	for range n {
		p, buf, err := d.PackWeight([]tensor.Tensor{x}, nil)
		require.NoError(b, err)
		b.Cleanup(func() { buf.Close() })
		w = append(w, p)
	}
	return w
}

// BenchmarkMatmulBTQuant sets the product with one row of activations against the bandwidth at which the same threads
// read memory (x-bandwidth), and that with 512 rows against the rate of their multiplications of bytes (x-peak).
func BenchmarkMatmulBTQuant(b *testing.B) {
	const n, k = 4096, 4096
	set := best()
	for _, t := range []tensor.DType{tensor.Q4_0, tensor.Q8_0} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%v/M=1/threads=%d", t, threads), func(b *testing.B) {
				r, d := open(b, threads)
				q := newQueue(b, r, d)
				f := newFixture(b)
				a := ops.MatmulBTQuantArgs{Out: f.raw(tensor.F32, 1, n), A: f.in(tensor.F32, 1, k)}
				size := float64(n * k / 32 * map[tensor.DType]int{tensor.Q4_0: 18, tensor.Q8_0: 34}[t])
				weights := benchWeights(b, d, t, int(640e6/size), n, k)
				mem, err := offheap.Alloc(640 << 20)
				require.NoError(b, err)
				defer mem.Free()
				for i := range mem.Bytes() {
					mem.Bytes()[i] = byte(i)
				}
				read := reader{mem: mem.Bytes(), set: set}
				at, chunk := 0, len(read.mem)/len(weights)/readPiece*readPiece
				rate := turns(b, [2]float64{size, float64(chunk)}, [2]func(){
					func() {
						at = (at + 1) % len(weights)
						a.B = weights[at]
						require.NoError(b, ops.MatmulBTQuant.Launch(q, &a))
					},
					func() {
						part := reader{mem: read.mem[at*chunk:][:chunk], set: set}
						d.pool.Run(chunk/readPiece, &part)
					},
				})
				b.ReportMetric(rate[0]/1e9, "GB/s")
				b.ReportMetric(rate[0]/rate[1], "x-bandwidth")
			})
			b.Run(fmt.Sprintf("%v/M=512/threads=%d", t, threads), func(b *testing.B) {
				const m = 512
				r, d := open(b, threads)
				q := newQueue(b, r, d)
				f := newFixture(b)
				a := ops.MatmulBTQuantArgs{Out: benchOut(b, d, m, n), A: f.in(tensor.F32, m, k), B: benchWeights(b, d, t, 1, n, k)[0]}
				peak := multiplier{set: set}
				if set.PeakInt8(1) == 0 {
					b.Skip("the tier has no multiplication of bytes")
				}
				const work = 2.0 * m * n * k
				chunks, chunk := peakChunks(work, set.PeakInt8)
				rate := turns(b, [2]float64{work, float64(chunks) * chunk}, [2]func(){
					func() { require.NoError(b, ops.MatmulBTQuant.Launch(q, &a)) },
					func() { d.pool.Run(chunks, &peak) },
				})
				b.ReportMetric(rate[0]/1e9, "GOP/s")
				b.ReportMetric(rate[0]/rate[1], "x-peak")
			})
		}
	}
}

// benchOut returns an f32 output in the memory that a server would use.
func benchOut(b *testing.B, d device.Device, shape ...int64) tensor.Tensor {
	n := int64(4)
	for _, s := range shape {
		n *= s
	}
	buf, err := d.Alloc(n)
	require.NoError(b, err)
	b.Cleanup(func() { buf.Close() })
	return tensor.Must(buf.Tensor(0, tensor.F32, shape...))
}

// flopper does nothing but the tier's fused multiply-adds.
type flopper struct{ set *simd.Set }

// Do implements pool.Task.
func (f *flopper) Do(int, int) { f.set.PeakF32(peakLoops) }

// BenchmarkMatmulBT sets the product of 512 rows with f32, f16 and bf16 weights against the rate of the same threads'
// fused multiply-adds, in both layouts.
func BenchmarkMatmulBT(b *testing.B) {
	const m, n, k = 512, 4096, 4096
	set := best()
	for _, t := range floatTypes {
		for _, packed := range []bool{true, false} {
			b.Run(fmt.Sprintf("%v/lane16=%v/M=512/threads=1", t, packed), func(b *testing.B) {
				r, d := open(b, 1)
				q := newQueue(b, r, d)
				f := newFixture(b)
				a := ops.MatmulBTArgs{Out: benchOut(b, d, m, n), A: f.in(tensor.F32, m, k), B: f.in(t, n, k)}
				if packed {
					a.B = benchWeights(b, d, t, 1, n, k)[0]
				}
				peak := flopper{set}
				if set.PeakF32(1) == 0 {
					b.Skip("the tier has no fused multiply-adds to count")
				}
				const work = 2.0 * m * n * k
				chunks, chunk := peakChunks(work, set.PeakF32)
				rate := turns(b, [2]float64{work, float64(chunks) * chunk}, [2]func(){
					func() { require.NoError(b, ops.MatmulBT.Launch(q, &a)) },
					func() { d.pool.Run(chunks, &peak) },
				})
				b.ReportMetric(rate[0]/1e9, "GFLOP/s")
				b.ReportMetric(rate[0]/rate[1], "x-peak")
			})
		}
	}
}

// BenchmarkPagedAttention sets a decode step over a long cache against the bandwidth of reading, and a prefill against the
// rate of fused multiply-adds; 32 heads on 8, f16 cache.
func BenchmarkPagedAttention(b *testing.B) {
	set := best()
	const hq, hk, dim = 32, 8, 128
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("decode/keys=8192/threads=%d", threads), func(b *testing.B) {
			const keys = 8192
			r, d := open(b, threads)
			q := newQueue(b, r, d)
			a := newFixture(b).paged(pagedCall{queries: []int{1}, lens: []int{keys}, hq: hq, hk: hk, d: dim, bs: 16}, tensor.F32, tensor.F16, tensor.F32)
			inHugePages(b, d, a)
			const bytes = 2 * 2 * keys * hk * dim
			mem, err := offheap.Alloc(bytes)
			require.NoError(b, err)
			defer mem.Free()
			for i := range mem.Bytes() {
				mem.Bytes()[i] = byte(i)
			}
			read := reader{mem: mem.Bytes(), set: set}
			rate := turns(b, [2]float64{bytes, bytes}, [2]func(){
				func() { require.NoError(b, ops.PagedAttention.Launch(q, a)) },
				func() { d.pool.Run(bytes/readPiece, &read) },
			})
			b.ReportMetric(rate[0]/1e9, "GB/s")
			b.ReportMetric(rate[0]/rate[1], "x-bandwidth")
		})
		b.Run(fmt.Sprintf("prefill/tokens=1024/threads=%d", threads), func(b *testing.B) {
			const tokens = 1024
			r, d := open(b, threads)
			q := newQueue(b, r, d)
			a := newFixture(b).paged(pagedCall{queries: []int{tokens}, lens: []int{tokens}, hq: hq, hk: hk, d: dim, bs: 16}, tensor.F32, tensor.F16, tensor.F32)
			inHugePages(b, d, a)
			peak := flopper{set}
			if set.PeakF32(1) == 0 {
				b.Skip("the tier has no fused multiply-adds to count")
			}
			const work = 4.0 * hq * dim * tokens * (tokens + 1) / 2
			chunks, chunk := peakChunks(work, set.PeakF32)
			rate := turns(b, [2]float64{work, float64(chunks) * chunk}, [2]func(){
				func() { require.NoError(b, ops.PagedAttention.Launch(q, a)) },
				func() { d.pool.Run(chunks, &peak) },
			})
			b.ReportMetric(rate[0]/1e9, "GFLOP/s")
			b.ReportMetric(rate[0]/rate[1], "x-peak")
		})
	}
}

// inHugePages moves the cache of a call, whose planes lie in one allocation, to where a server keeps it.
func inHugePages(b *testing.B, d device.Device, a *ops.PagedAttentionArgs) {
	size := a.KCache.Shape[0] * a.KCache.Stride[0] * int64(a.KCache.DType.Size())
	plane := uintptr(a.VCache.Host) - uintptr(a.KCache.Host)
	buf, err := d.Alloc(size)
	require.NoError(b, err)
	b.Cleanup(func() { buf.Close() })
	copy(unsafe.Slice((*byte)(buf.Host()), size), unsafe.Slice((*byte)(a.KCache.Host), size))
	a.KCache.Host, a.VCache.Host = buf.Host(), unsafe.Add(buf.Host(), plane)
}

// BenchmarkRows sets the ops between the products, on 512 rows of a model's width, against the bandwidth of reading; the
// rate counts the bytes that an op reads and writes.
func BenchmarkRows(b *testing.B) {
	const m, h = 512, 4096
	set := best()
	r, d := open(b, 1)
	q := newQueue(b, r, d)
	f := newFixture(b)
	out := benchOut(b, d, m, h)
	x, w, two := f.in(tensor.F32, m, h), f.in(tensor.F32, h), f.in(tensor.F32, m, 2*h)
	norm := ops.RMSNormArgs{Out: out, X: x, Weight: w, Residual: f.in(tensor.F32, m, h), Eps: 1e-5}
	silu := ops.SiluAndMulArgs{Out: out, X: two}
	add := ops.AddArgs{Out: out, A: x, B: w}
	read := reader{mem: tensor.Slice[byte](&two), set: set}
	for _, c := range []struct {
		name  string
		bytes float64 // of an element of out
		run   func() error
	}{
		{"rms_norm", 16, func() error { return ops.RMSNorm.Launch(q, &norm) }},
		{"silu_and_mul", 12, func() error { return ops.SiluAndMul.Launch(q, &silu) }},
		{"add", 8, func() error { return ops.Add.Launch(q, &add) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			rate := turns(b, [2]float64{c.bytes * m * h, float64(len(read.mem))}, [2]func(){
				func() { require.NoError(b, c.run()) },
				func() { d.pool.Run(len(read.mem)/readPiece, &read) },
			})
			b.ReportMetric(rate[0]/1e9, "GB/s")
			b.ReportMetric(rate[0]/rate[1], "x-bandwidth")
		})
	}
}

// BenchmarkSampling measures the steps of a sampler on one row of a large vocabulary, beside the reference.
func BenchmarkSampling(b *testing.B) {
	const v = 151936
	r, d := open(b, 1)
	f := newFixture(b)
	logits, probs := f.in(tensor.F32, 1, v), f.raw(tensor.F32, 1, v)
	work := f.raw(tensor.F32, 1, v)
	ids := f.raw(tensor.I64, 1)
	softmax := ops.ComputeProbsArgs{Probs: probs, Logits: logits}
	q := newQueue(b, r, d)
	require.NoError(b, ops.ComputeProbs.Launch(q, &softmax))
	argmax := ops.GreedyArgmaxArgs{TokenIDs: ids, Logits: logits}
	top := ops.ApplyTopKTopPArgs{Logits: work, K: f.ints(tensor.I32, 40), P: f.f32(0.95)}
	nucleus := ops.ApplyTopKTopPArgs{Logits: work, P: f.f32(0.95)}
	sample := ops.RandomSampleArgs{TokenIDs: ids, Probs: probs, Seeds: f.ints(tensor.I64, 7)}
	fresh := func() { copy(tensor.Slice[float32](&work), tensor.Slice[float32](&logits)) }
	for _, c := range []struct {
		op  registry.Op
		of  string
		run func(q *registry.Queue) error
	}{
		{ops.OpComputeProbs, "", func(q *registry.Queue) error { return ops.ComputeProbs.Launch(q, &softmax) }},
		{ops.OpGreedyArgmax, "", func(q *registry.Queue) error { return ops.GreedyArgmax.Launch(q, &argmax) }},
		{ops.OpApplyTopKTopP, "k=40,p=0.95", func(q *registry.Queue) error { fresh(); return ops.ApplyTopKTopP.Launch(q, &top) }},
		{ops.OpApplyTopKTopP, "p=0.95", func(q *registry.Queue) error { fresh(); return ops.ApplyTopKTopP.Launch(q, &nucleus) }},
		{ops.OpRandomSample, "", func(q *registry.Queue) error { return ops.RandomSample.Launch(q, &sample) }},
	} {
		b.Run(r.OpName(c.op)+c.of, func(b *testing.B) {
			oracle := q.With(registry.WithKernel(context.Background(), c.op, "reference"))
			rate := turns(b, [2]float64{v, v}, [2]func(){
				func() { require.NoError(b, c.run(q)) },
				func() { require.NoError(b, c.run(oracle)) },
			})
			b.ReportMetric(v/rate[0]*1e6, "µs")
			b.ReportMetric(rate[0]/rate[1], "x-reference")
		})
	}
}
