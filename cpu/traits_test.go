package cpu

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/cpu"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Every kernel of every op launches without allocating, once the queue's scratch memory has grown.
func TestLaunchAllocatesNothing(t *testing.T) {
	for threads := 1; threads <= 2; threads++ {
		r, _ := open(t, 1)
		q := newQueue(t, r, openThreads(t, r, threads))
		for _, d := range registry.Descriptors() {
			for i, c := range sample.Corpus(d.Op, sample.Quick) {
				if i%5 != 0 {
					continue
				}
				a, err := sample.New(c)
				require.NoError(t, err)
				for _, step := range r.Explain(d.Op, tensor.Device{}).Chain {
					forced := q.With(registry.WithKernel(context.Background(), d.Op, step.Kernel))
					if ops.Launch(forced, d.Op, a.Record()) != nil { // an error of the case allocates its text
						continue
					}
					allocs := testing.AllocsPerRun(3, func() { _ = ops.Launch(forced, d.Op, a.Record()) })
					require.Zero(t, allocs, "%s %s on %s, %d threads", d.Name, c.Name, step.Kernel, threads)
				}
			}
		}
	}
}

// A machine that has the instructions must have the tier in its chains.
func TestTiersAreThere(t *testing.T) {
	r, d := open(t, 1)
	x := &cpu.X86
	hasAVX2 := assembly && x.HasAVX2 && x.HasFMA && x.HasF16C && x.HasBMI2
	hasAVX512 := hasAVX2 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512VNNI
	var want, products []string // of most ops, and of the quantised products
	for _, tier := range []struct {
		name     string
		products bool
		has      bool
	}{
		{"amx", true, hasAVX512 && x.HasAMXTile && x.HasAMXInt8 && compiled("amx")},
		{"avx512vnni", false, hasAVX512},
		{"avxvnni", true, hasAVX2 && x.HasAVXVNNI && compiled("avxvnni")},
		{"avx2", false, hasAVX2},
		{"portable", false, true},
		{"reference", false, true},
	} {
		if tier.has {
			products = append(products, tier.name)
			if !tier.products {
				want = append(want, tier.name)
			}
		}
	}
	chain := func(op registry.Op) (got []string) {
		for _, step := range r.Explain(op, tensor.Device{}).Chain {
			got = append(got, step.Provider)
		}
		return got
	}
	require.Equal(t, products, chain(ops.OpMatmulBTQuant))
	require.Equal(t, products[0], d.Caps().Arch)
	for _, o := range []registry.Op{ops.OpMatmul, ops.OpMatmulBT, ops.OpRMSNorm, ops.OpSiluAndMul, ops.OpAdd, ops.OpRelu,
		ops.OpMulScalar, ops.OpRopeNeox, ops.OpRopeFromCache, ops.OpAttention, ops.OpPagedAttention, ops.OpEmbedding, ops.OpReshapeAndCache,
		ops.OpGreedyArgmax, ops.OpComputeProbs, ops.OpComputeLogprobs, ops.OpApplyTopKTopP} {
		require.Equal(t, want, chain(o), r.OpName(o))
	}
	if !assembly {
		t.Log("assembly is not compiled in")
	}
}

// compiled reports whether the named tier was compiled in, and the operating system does not forbid it.
func compiled(name string) bool {
	return slices.ContainsFunc(tiers(), func(t *tier) bool {
		return t.name == name && !strings.Contains(t.set.Missing(), "permission")
	})
}

// A device that lacks the instructions has only what runs there, and Explain says what is missing.
func TestTiersNeedTheirFeatures(t *testing.T) {
	if !assembly {
		t.Skip("assembly is not compiled in")
	}
	r, d := open(t, 1)
	caps := d.Caps()
	caps.Platform = platform(caps.Features&^FeatureAVX512VNNI, 1, 0)
	require.NoError(t, r.SetDeviceProviderCaps(d.ID(), caps))
	e := r.Explain(ops.OpRMSNorm, d.ID())
	require.NotEqual(t, "avx512vnni", e.Chain[0].Provider)
	require.Contains(t, e.String(), "isa:avx512_vnni")
	require.Equal(t, "avx2 fma", FeatureNames(FeatureAVX2|FeatureFMA))
	require.Empty(t, FeatureNames(0))
}

// Self-tests pass here, take no time to speak of, and keep a tier out of the chains whose kernels are wrong.
func TestSelfTests(t *testing.T) {
	r, d := open(t, 1)
	q := newQueue(t, r, d)
	for _, level := range tiers() {
		if level.set.Missing() != "" {
			continue
		}
		broken := *level
		set := *level.set
		set.Add = func(dst, a, b []float32) { clear(dst) }
		set.RMSNorm = func(dst, x, w []float32, _ float32, _ bool) { copy(dst, x) }
		broken.set, broken.name, broken.assembly, broken.priority = &set, "broken_"+level.name, true, 70
		g := registrar{r: r}
		g.fast(&broken)
		require.NoError(t, g.err)
	}
	f := newFixture(t)
	a := ops.AddArgs{Out: f.raw(tensor.F32, 3), A: f.f32(1, 2, 3), B: f.f32(4, 5, 6)}
	require.NoError(t, ops.Add.Launch(q, &a))
	require.Equal(t, []float32{5, 7, 9}, elems[float32](&a.Out, 0, 3))
	n := ops.RMSNormArgs{Out: f.raw(tensor.F32, 1, 2), X: f.as(f.f32(3, 4), 1, 2)}
	require.NoError(t, ops.RMSNorm.Launch(q, &n))
	require.NotEqual(t, float32(3), elems[float32](&n.Out, 0, 1)[0])
	for _, o := range []registry.Op{ops.OpAdd, ops.OpRMSNorm} {
		e := r.Explain(o, d.ID())
		require.False(t, strings.HasPrefix(e.Chain[0].Provider, "broken"), e.String())
		require.Contains(t, e.String(), "self-test")
	}
	s := ops.ReluArgs{Out: f.raw(tensor.F32, 1), X: f.f32(1)}
	require.NoError(t, ops.Relu.Launch(q, &s))
	require.True(t, strings.HasPrefix(r.Explain(ops.OpRelu, d.ID()).Chain[0].Provider, "broken"), "relu itself is in order")
}

// rowSymbols names the extent of each op that counts independent rows.
var rowSymbols = map[registry.Op]string{ops.OpMatmul: "M", ops.OpMatmulBT: "M", ops.OpMatmulBTQuant: "M", ops.OpRMSNorm: "T", ops.OpSiluAndMul: "T",
	ops.OpEmbedding: "T", ops.OpRopeNeox: "T", ops.OpRopeCosSinCache: "T", ops.OpRopeFromCache: "T", ops.OpApplyTemperature: "N", ops.OpGreedyArgmax: "N",
	ops.OpApplyTopKTopP: "N", ops.OpComputeProbs: "N", ops.OpComputeLogprobs: "N", ops.OpApplyMinP: "N", ops.OpApplyPenalties: "N", ops.OpApplyAllowedTokenIDs: "N"}

// sameAlone launches the call that build makes and, for each of its rows, a call with that row alone, and wants equal bits.
func sameAlone[R any](t *testing.T, r *registry.Registry, q *registry.Queue, o *ops.Op[R], build func(f *fixture) *R) {
	t.Helper()
	var better []string
	for _, step := range r.Explain(o.ID(), tensor.Device{}).Chain {
		require.True(t, step.Traits.BatchInvariant, step.Kernel)
		ctx := context.Background()
		forced := q.With(registry.WithKernel(ctx, o.ID(), step.Kernel))
		onDown := q.With(registry.WithDisabled(ctx, better...)) // a kernel may leave a few rows to the next one
		better = append(better, step.Kernel)
		all := build(newFixture(t))
		require.NoError(t, o.Launch(forced, all))
		fresh := build(newFixture(t)) // rows are disjoint: a launch of one leaves the others as they were
		for i := int64(0); ; i++ {
			row, rows := *fresh, int64(0)
			alone := &row
			for _, d := range o.Descriptor().Operands {
				if first, _, _ := strings.Cut(d.Shape, ","); first != rowSymbols[o.ID()] && first != "T|3" {
					continue
				}
				x := (*tensor.Tensor)(unsafe.Add(unsafe.Pointer(alone), d.Offset))
				if rows = x.Shape[0]; i < rows && x.Present() {
					*x = tensor.Must(x.Slice(0, i, i+1))
				}
			}
			if i >= rows {
				require.NotZero(t, i)
				break
			}
			require.NoError(t, o.Launch(onDown, alone))
			for _, d := range o.Descriptor().Operands {
				x, whole := (*tensor.Tensor)(unsafe.Add(unsafe.Pointer(alone), d.Offset)), *(*tensor.Tensor)(unsafe.Add(unsafe.Pointer(all), d.Offset))
				if d.Role == registry.In || !x.Present() {
					continue
				}
				part := tensor.Must(whole.Slice(0, i, i+1))
				require.Equal(t, tensor.Slice[uint8](&part), tensor.Slice[uint8](x), "%s: row %d of %s", step.Kernel, i, d.Name)
			}
		}
	}
}

// A row has the same bits alone and in a batch.
func TestBatchInvariant(t *testing.T) {
	r, _ := open(t, 1)
	q := newQueue(t, r, openThreads(t, r, 3))
	for _, w := range []tensor.DType{tensor.F32, tensor.F16} {
		sameAlone(t, r, q, ops.Matmul, func(f *fixture) *ops.MatmulArgs {
			return &ops.MatmulArgs{Out: f.raw(tensor.F32, 67, 90), A: f.in(tensor.F32, 67, 70), B: f.in(w, 70, 90)}
		})
		for _, packed := range []bool{false, true} {
			sameAlone(t, r, q, ops.MatmulBT, func(f *fixture) *ops.MatmulBTArgs {
				a := &ops.MatmulBTArgs{Out: f.raw(tensor.F32, 23, 90), A: f.in(tensor.F32, 23, 70), B: f.in(w, 90, 70)}
				if packed {
					a.B = f.lane16(a.B)
				}
				return a
			})
		}
	}
	const k = 1088
	m := int64(139)
	if testing.Short() {
		m = 47
	}
	for _, w := range []tensor.DType{tensor.Q4_0, tensor.Q8_0} {
		for _, packed := range []bool{false, true} {
			sameAlone(t, r, q, ops.MatmulBTQuant, func(f *fixture) *ops.MatmulBTQuantArgs {
				a := &ops.MatmulBTQuantArgs{Out: f.raw(tensor.F32, m, 90), A: f.in(tensor.F32, m, k), B: f.in(w, 90, k)}
				if packed {
					a.B = f.lane16(a.B)
				}
				return a
			})
		}
	}
	const v = 1003
	logits := func(f *fixture) tensor.Tensor { return f.in(tensor.F32, 9, v) }
	nine := func(f *fixture) tensor.Tensor { return f.f32(0.5, 0.9, 0.1, 0.3, 0.7, 0.2, 0.99, 0.4, 0.6) }
	sameAlone(t, r, q, ops.RMSNorm, func(f *fixture) *ops.RMSNormArgs {
		return &ops.RMSNormArgs{Out: f.raw(tensor.F32, 9, v), X: logits(f), Weight: f.in(tensor.F32, v), Residual: logits(f), Eps: 1e-5}
	})
	sameAlone(t, r, q, ops.Embedding, func(f *fixture) *ops.EmbeddingArgs {
		return &ops.EmbeddingArgs{Out: f.raw(tensor.F32, 3, 64), Table: f.in(tensor.Q8_0, 5, 64), IDs: f.ints(tensor.I32, 4, 0, 2)}
	})
	sameAlone(t, r, q, ops.RopeFromCache, func(f *fixture) *ops.RopeFromCacheArgs {
		return &ops.RopeFromCacheArgs{QStates: f.in(tensor.F32, 3, 2, 40), Positions: f.ints(tensor.I32, 4, 0, 2), CosSinCache: f.in(tensor.F32, 5, 38), RotaryDim: 38}
	})
	sameAlone(t, r, q, ops.RopeNeox, func(f *fixture) *ops.RopeNeoxArgs {
		return &ops.RopeNeoxArgs{QStates: f.in(tensor.F32, 3, 2, 40), Positions: f.ints(tensor.I32, 4, 0, 2), Rope: ops.RopeParams{RotaryDim: 38}}
	})
	sameAlone(t, r, q, ops.RopeCosSinCache, func(f *fixture) *ops.RopeCosSinCacheArgs {
		return &ops.RopeCosSinCacheArgs{CosSin: f.raw(tensor.F32, 3, 38), Positions: f.ints(tensor.I32, 4, 0, 2), Rope: ops.RopeParams{RotaryDim: 38}}
	})
	sameAlone(t, r, q, ops.ApplyTemperature, func(f *fixture) *ops.ApplyTemperatureArgs {
		return &ops.ApplyTemperatureArgs{Logits: logits(f), Temp: nine(f)}
	})
	sameAlone(t, r, q, ops.ApplyMinP, func(f *fixture) *ops.ApplyMinPArgs {
		return &ops.ApplyMinPArgs{Logits: logits(f), MinP: nine(f)}
	})
	sameAlone(t, r, q, ops.ApplyTopKTopP, func(f *fixture) *ops.ApplyTopKTopPArgs {
		return &ops.ApplyTopKTopPArgs{Logits: logits(f), P: nine(f)}
	})
	sameAlone(t, r, q, ops.ComputeProbs, func(f *fixture) *ops.ComputeProbsArgs {
		return &ops.ComputeProbsArgs{Probs: f.raw(tensor.F32, 9, v), Logits: logits(f)}
	})
	sameAlone(t, r, q, ops.ComputeLogprobs, func(f *fixture) *ops.ComputeLogprobsArgs {
		return &ops.ComputeLogprobsArgs{Logprobs: f.raw(tensor.F32, 9, v), Logits: logits(f)}
	})
	sameAlone(t, r, q, ops.GreedyArgmax, func(f *fixture) *ops.GreedyArgmaxArgs {
		return &ops.GreedyArgmaxArgs{TokenIDs: f.raw(tensor.I64, 9), Logits: logits(f)}
	})
}

// A token's attention has the same bits in a prefill of any chunk, and decoded alone, and beside other requests.
func TestAttentionBatchInvariant(t *testing.T) {
	r, _ := open(t, 1)
	queues := []*registry.Queue{newQueue(t, r, openThreads(t, r, 1)), newQueue(t, r, openThreads(t, r, 8))} // 8: splits side by side
	past, long := 550, 600                                                                                  // keys before the request's tokens, and those tokens
	if testing.Short() {
		long = 60 // the race detector takes minutes over all
	}
	whole := pagedCall{queries: []int{1, long, 1}, lens: []int{9, past + long, 700}, hq: 6, hk: 2, d: 40, bs: 16}
	for _, step := range r.Explain(ops.OpPagedAttention, tensor.Device{}).Chain {
		for _, windowed := range []bool{false, true} {
			build := func() *ops.PagedAttentionArgs {
				a := newFixture(t).paged(whole, tensor.F32, tensor.F16, tensor.F32)
				if windowed {
					a.Windowed, a.WindowLeft = true, 100
				}
				return a
			}
			force := func(q *registry.Queue) *registry.Queue {
				return q.With(registry.WithKernel(context.Background(), ops.OpPagedAttention, step.Kernel))
			}
			all := build()
			require.NoError(t, ops.PagedAttention.Launch(force(queues[1]), all))
			want := tensor.Slice[float32](&all.Out)
			rows := int(whole.hq * whole.d)
			for _, part := range [][2]int{{0, 1}, {1, 2}, {long - 1, long}, {3, 20}, {17, long}} {
				for _, q := range queues {
					a := build()
					n := part[1] - part[0]
					for _, x := range []*tensor.Tensor{&a.Out, &a.Query} {
						*x = tensor.Must(x.Slice(0, int64(1+part[0]), int64(1+part[1])))
					}
					a.BlockTable = tensor.Must(a.BlockTable.Slice(0, 1, 2))
					f := newFixture(t)
					a.SeqLens, a.QueryStartLoc = f.ints(tensor.I32, int64(past+part[1])), f.ints(tensor.I32, 0, int64(n))
					require.NoError(t, ops.PagedAttention.Launch(force(q), a))
					require.Equal(t, want[(1+part[0])*rows:(1+part[1])*rows], tensor.Slice[float32](&a.Out), "%s, tokens %v", step.Kernel, part)
				}
			}
		}
	}
}

// A queue of no device, and one whose device was closed, still compute, on the caller alone.
func TestQueueWithoutDevice(t *testing.T) {
	r, d := open(t, 2)
	f := newFixture(t)
	a := ops.RMSNormArgs{Out: f.raw(tensor.F32, 5, 300), X: f.in(tensor.F32, 5, 300), Eps: 1e-5}
	require.NoError(t, ops.RMSNorm.Launch(newQueue(t, r, d), &a))
	want := slices.Clone(tensor.Slice[float32](&a.Out))
	clear(tensor.Slice[float32](&a.Out))
	none := r.NewQueue(nil)
	require.NoError(t, ops.RMSNorm.Launch(none, &a))
	require.Equal(t, want, tensor.Slice[float32](&a.Out))

	late := newQueue(t, r, d)
	require.NoError(t, d.Close())
	err := ops.RMSNorm.Launch(late, &a)
	require.ErrorContains(t, err, "closed")
}

// Launches of several queues at once give the bits of one.
func TestQueuesSideBySide(t *testing.T) {
	r, d := open(t, 2)
	build := func() *ops.MatmulBTQuantArgs {
		f := newFixture(t)
		return &ops.MatmulBTQuantArgs{Out: f.raw(tensor.F32, 5, 333), A: f.in(tensor.F32, 5, 256), B: f.lane16(f.in(tensor.Q4_0, 333, 256))}
	}
	first := build()
	require.NoError(t, ops.MatmulBTQuant.Launch(newQueue(t, r, d), first))
	errs := make(chan error, 4)
	for range cap(errs) {
		q, a := newQueue(t, r, d), build()
		go func() {
			for range 50 {
				clear(tensor.Slice[float32](&a.Out))
				if err := ops.MatmulBTQuant.Launch(q, a); err != nil {
					errs <- err
					return
				}
				if !slices.Equal(tensor.Slice[float32](&a.Out), tensor.Slice[float32](&first.Out)) {
					errs <- fmt.Errorf("bits differ")
					return
				}
			}
			errs <- nil
		}()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
}

// What the fast top-k and top-p keep is what the reference keeps, on rows of many shapes. Logits are multiples of 1/8, so
// that ties and borders are common.
func TestTopKTopPKeepsTheSame(t *testing.T) {
	r, d := open(t, 1)
	q := newQueue(t, r, d)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		v := 1 + rng.IntN(400)
		x := make([]float32, v)
		spread := float64(int(1) << rng.IntN(8))
		for i := range x {
			x[i] = float32(int(rng.NormFloat64()*spread)) / 8
		}
		k, p := int32(rng.IntN(v+2)), float32(rng.IntN(11))/10+1e-4 // beside the borders
		var kept [2][]float32
		for i, kernel := range []string{"portable", "reference"} {
			f := newFixture(t)
			a := ops.ApplyTopKTopPArgs{Logits: f.as(f.f32(x...), 1, int64(v)), K: f.ints(tensor.I32, int64(k))}
			if v%3 != 0 {
				a.P = f.f32(p)
			}
			require.NoError(t, ops.ApplyTopKTopP.Launch(q.With(registry.WithKernel(context.Background(), ops.OpApplyTopKTopP, kernel)), &a))
			kept[i] = tensor.Slice[float32](&a.Logits)
		}
		require.Equal(t, kept[1], kept[0], "k %d, p %v of %v", k, p, x)
	}
}

// The race that skips logarithms has the winner of the one that takes them all.
func TestRaceSkipsOnlyLosers(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for seed := range uint64(3000) {
		probs := make([]float32, 1+rng.IntN(60))
		for i := range probs {
			probs[i] = float32(rng.ExpFloat64()) * float32(rng.IntN(3))
		}
		best, want := negInf, 0
		for c, p := range probs {
			if score := p / float32(-math.Log(uniform(mix(seed), c))); score > best {
				best, want = score, c
			}
		}
		require.Equal(t, want, race(mix(seed), probs))
	}
}
