package ops

import (
	"math"
	"slices"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// opCase is one op with a valid record and the calls that its section of the catalogue rejects.
type opCase struct {
	core    *core
	fresh   func() unsafe.Pointer // a new valid record
	launch  func(q *registry.Queue, args unsafe.Pointer) error
	call    func(q *registry.Queue, args unsafe.Pointer) error
	bind    func(q *registry.Queue) (launch, validated func(args unsafe.Pointer) error, err error)
	provide func(r *registry.Registry, kind tensor.Kind, p registry.OpProvider, st registry.Status) error
	rejects []reject
	accepts []accept
}

// reject is a change that makes a valid record invalid.
type reject struct {
	name    string
	kind    error
	operand string
	change  func(args unsafe.Pointer)
}

// accept is a change that leaves a valid record valid.
type accept struct {
	name   string
	change func(args unsafe.Pointer)
}

func caseOf[R any](o *Op[R], valid R, tests ...any) opCase {
	c := opCase{
		core:   &o.core,
		fresh:  func() unsafe.Pointer { r := valid; return unsafe.Pointer(&r) },
		launch: func(q *registry.Queue, args unsafe.Pointer) error { return o.Launch(q, (*R)(args)) },
		call:   func(q *registry.Queue, args unsafe.Pointer) error { return o.Call(q, *(*R)(args)) },
		bind: func(q *registry.Queue) (launch, validated func(unsafe.Pointer) error, err error) {
			b, err := o.Bind(q)
			return func(args unsafe.Pointer) error { return b.Launch((*R)(args)) },
				func(args unsafe.Pointer) error { return b.LaunchValidated((*R)(args)) }, err
		},
		provide: func(r *registry.Registry, kind tensor.Kind, p registry.OpProvider, st registry.Status) error {
			_, err := Register(r, o, kind, Provider[R]{p, func(*registry.Queue, *R) registry.Status { return st }})
			return err
		},
	}
	for _, t := range tests {
		switch t := t.(type) {
		case reject:
			c.rejects = append(c.rejects, t)
		case accept:
			c.accepts = append(c.accepts, t)
		}
	}
	return c
}

func no[R any](name string, kind error, operand string, change func(a *R)) reject {
	return reject{name, kind, operand, func(args unsafe.Pointer) { change((*R)(args)) }}
}

func ok[R any](name string, change func(a *R)) accept {
	return accept{name, func(args unsafe.Pointer) { change((*R)(args)) }}
}

// ten returns a contiguous CPU tensor with memory of its own.
func ten(t tensor.DType, shape ...int64) tensor.Tensor {
	x := tensor.Must(tensor.New(nil, t, shape...))
	n, err := x.Bytes()
	if err != nil {
		panic(err)
	}
	x.Host = unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1)))
	return x
}

// lane16 returns x [N,K] in the Lane16 layout.
func lane16(x tensor.Tensor) tensor.Tensor {
	y := ten(x.DType, (x.Shape[0]+15)/16*16, x.Shape[1])
	y.Shape, y.Layout = x.Shape, tensor.Lane16
	return y
}

// columnsOf returns the first n columns of a matrix of w columns.
func columnsOf(t tensor.DType, rows, n, w int64) tensor.Tensor {
	x := ten(t, rows, w)
	return tensor.Must(x.Slice(1, 0, n))
}

// pagesOf returns plane 0 or 1 of a cache [blocks,2,size,heads,dim].
func pagesOf(t tensor.DType, plane, blocks, size, heads, dim int64) tensor.Tensor {
	x := ten(t, blocks, 2, size, heads, dim)
	v := tensor.Must(x.Slice(1, plane, plane+1))
	copy(v.Shape[1:], v.Shape[2:])
	copy(v.Stride[1:], v.Stride[2:])
	v.Rank--
	return v
}

const (
	f32, f16, bf16 = tensor.F32, tensor.F16, tensor.BF16
	i8, u8         = tensor.I8, tensor.U8
	i32, i64       = tensor.I32, tensor.I64
)

var (
	nan = float32(math.NaN())
	inf = float32(math.Inf(1))
)

// cases lists every op of the package.
func cases() []opCase {
	return slices.Concat(basicCases(), gemmCases(), elementwiseCases(), mlaCases(), linearCases(), moeCases(), quantCases(), transformCases(), fusedCases())
}

// basicCases has the ops that a dense model calls.
func basicCases() []opCase {
	return []opCase{
		caseOf(Matmul, MatmulArgs{Out: ten(f32, 2, 3), A: ten(f32, 2, 4), B: ten(f32, 4, 3)},
			no("inner extents differ", ErrShape, "b", func(a *MatmulArgs) { a.B = ten(f32, 5, 3) }),
			no("output shape", ErrShape, "", func(a *MatmulArgs) { a.Out = ten(f32, 3, 3) }),
			no("f16 output", ErrDType, "out", func(a *MatmulArgs) { a.Out = ten(f16, 2, 3) }),
			no("padded a", ErrLayout, "a", func(a *MatmulArgs) { a.A = columnsOf(f32, 2, 4, 6) }),
			no("block b", ErrDType, "b", func(a *MatmulArgs) { a.B = ten(tensor.Q4_0, 4, 32); a.Out = ten(f32, 2, 32) }),
			ok("mixed dtypes", func(a *MatmulArgs) { a.Out, a.A, a.B = ten(bf16, 2, 3), ten(f16, 2, 4), ten(bf16, 4, 3) }),
			ok("no rows", func(a *MatmulArgs) { a.Out, a.A = ten(f32, 0, 3), ten(f32, 0, 4) }),
			ok("K = 0", func(a *MatmulArgs) { a.A, a.B = ten(f32, 2, 0), ten(f32, 0, 3) }),
		),
		caseOf(MatmulBT, MatmulBTArgs{Out: ten(f32, 2, 3), A: ten(f32, 2, 32), B: ten(f32, 3, 32)},
			no("inner extents differ", ErrShape, "b", func(a *MatmulBTArgs) { a.B = ten(f32, 3, 33) }),
			no("row stride below K", ErrLayout, "a", func(a *MatmulBTArgs) { a.A.Stride[0] = 31 }),
			no("inner stride 2", ErrLayout, "a", func(a *MatmulBTArgs) { a.A = ten(f32, 2, 64); a.A.Shape[1], a.A.Stride[1] = 32, 2 }),
			no("padded weight", ErrLayout, "b", func(a *MatmulBTArgs) { a.B = columnsOf(f32, 3, 32, 40) }),
			no("lane16 activation", ErrLayout, "a", func(a *MatmulBTArgs) { a.A = lane16(a.A) }),
			ok("columns of a wider a", func(a *MatmulBTArgs) { a.A = columnsOf(bf16, 2, 32, 50) }),
			ok("lane16 weight", func(a *MatmulBTArgs) { a.B = lane16(a.B) }),
			ok("block weight", func(a *MatmulBTArgs) { a.B = ten(tensor.Q8_0, 3, 32) }),
		),
		caseOf(MatmulBTQuant, MatmulBTQuantArgs{Out: ten(f32, 2, 3), A: ten(f32, 2, 256), B: ten(tensor.Q4_K, 3, 256)},
			no("element dtype", ErrDType, "b", func(a *MatmulBTQuantArgs) { a.B = ten(f32, 3, 256) }),
			no("activation format", ErrDType, "b", func(a *MatmulBTQuantArgs) { a.B = ten(tensor.Q8_1, 3, 256) }),
			no("part of a block", ErrShape, "b", func(a *MatmulBTQuantArgs) { a.A = ten(f32, 2, 128); a.B.Shape[1] = 128 }),
			no("row stride below K", ErrLayout, "a", func(a *MatmulBTQuantArgs) { a.A.Stride[0] = 255 }),
			ok("Q8_K", func(a *MatmulBTQuantArgs) { a.B = ten(tensor.Q8_K, 3, 256) }),
			ok("lane16", func(a *MatmulBTQuantArgs) { a.B = lane16(ten(tensor.Q4_0, 3, 256)) }),
			ok("odd address of blocks", func(a *MatmulBTQuantArgs) { a.B.Host = unsafe.Add(a.B.Host, 1) }),
		),
		caseOf(RMSNorm, RMSNormArgs{Out: ten(f32, 2, 8), X: ten(f32, 2, 8), Weight: ten(f32, 8), Residual: ten(bf16, 2, 8), Eps: 1e-6},
			no("negative eps", ErrAttr, "eps", func(a *RMSNormArgs) { a.Eps = -1e-6 }),
			no("NaN eps", ErrAttr, "eps", func(a *RMSNormArgs) { a.Eps = nan }),
			no("infinite eps", ErrAttr, "eps", func(a *RMSNormArgs) { a.Eps = inf }),
			no("gemma without weight", ErrAttr, "gemma", func(a *RMSNormArgs) { a.Gemma, a.Weight = true, tensor.Tensor{} }),
			no("f16 residual", ErrDType, "residual", func(a *RMSNormArgs) { a.Residual = ten(f16, 2, 8) }),
			no("weight of other width", ErrShape, "weight", func(a *RMSNormArgs) { a.Weight = ten(f32, 7) }),
			ok("eps 0", func(a *RMSNormArgs) { a.Eps = 0 }),
			ok("plain", func(a *RMSNormArgs) { a.Weight, a.Residual = tensor.Tensor{}, tensor.Tensor{} }),
		),
		caseOf(SiluAndMul, SiluAndMulArgs{Out: ten(f32, 2, 4), X: ten(f32, 2, 8)},
			no("odd inner extent", ErrShape, "x", func(a *SiluAndMulArgs) { a.X = ten(f32, 2, 9) }),
			no("not twice out", ErrShape, "x", func(a *SiluAndMulArgs) { a.X = ten(f32, 2, 4) }),
			no("split gate too wide", ErrShape, "x", func(a *SiluAndMulArgs) { a.Up = ten(f32, 2, 4) }),
			no("NaN alpha", ErrAttr, "alpha", func(a *SiluAndMulArgs) { a.Alpha = nan }),
			no("negative limit", ErrAttr, "limit", func(a *SiluAndMulArgs) { a.Limit = -1 }),
			no("NaN limit", ErrAttr, "limit", func(a *SiluAndMulArgs) { a.Limit = nan }),
			ok("limit and one more", func(a *SiluAndMulArgs) { a.Alpha, a.Limit, a.PlusOne = 1.702, 7, true }),
			ok("split", func(a *SiluAndMulArgs) { a.X, a.Up, a.Alpha = ten(bf16, 2, 4), ten(f16, 2, 4), 0.5 }),
		),
		caseOf(Relu, ReluArgs{Out: ten(bf16, 2, 3, 4), X: ten(f16, 2, 3, 4)},
			no("other shape", ErrShape, "out", func(a *ReluArgs) { a.Out = ten(f32, 2, 4, 3) }),
			no("other rank", ErrRank, "out", func(a *ReluArgs) { a.Out = ten(f32, 2, 12) }),
		),
		caseOf(Add, AddArgs{Out: ten(f32, 2, 3), A: ten(bf16, 2, 3), B: ten(f16, 2, 3)}, append(
			factorTests(func(a *AddArgs) (out, x, y *tensor.Tensor) { return &a.Out, &a.A, &a.B }),
			no("other shape", ErrShape, "b", func(a *AddArgs) { a.B = ten(f32, 3, 2) }),
			no("other row", ErrShape, "b", func(a *AddArgs) { a.B = ten(f32, 2) }),
			no("other rank", ErrRank, "b", func(a *AddArgs) { a.B = ten(f32, 1, 2, 3) }),
			no("short vector", ErrShape, "b", func(a *AddArgs) { a.Out, a.A, a.B = ten(f32, 3), ten(f32, 3), ten(f32, 2) }),
			ok("row", func(a *AddArgs) { a.B = ten(f32, 3) }),
			ok("in place", func(a *AddArgs) {
				a.Out, a.A = ten(f32, 4, 1, 2, 3), ten(f32, 4, 1, 2, 3)
				a.A = a.Out
				a.B = ten(f32, 3)
			}))...,
		),
		caseOf(MulScalar, MulScalarArgs{Out: ten(f32, 5), X: ten(bf16, 5), Scalar: 2},
			no("other shape", ErrShape, "out", func(a *MulScalarArgs) { a.Out = ten(f32, 4) }),
			ok("NaN", func(a *MulScalarArgs) { a.Scalar = math.NaN() }),
		),
		caseOf(QKVSplit, QKVSplitArgs{QOut: ten(bf16, 2, 2, 4), KOut: ten(bf16, 2, 4), VOut: ten(bf16, 8), QKV: ten(bf16, 2, 16)},
			no("no rows", ErrShape, "qkv", func(a *QKVSplitArgs) {
				*a = QKVSplitArgs{QOut: ten(f32, 0), KOut: ten(f32, 0), VOut: ten(f32, 0), QKV: ten(f32, 0, 16)}
			}),
			no("part of a row", ErrShape, "k_out", func(a *QKVSplitArgs) { a.KOut = ten(bf16, 7) }),
			no("widths", ErrShape, "qkv", func(a *QKVSplitArgs) { a.VOut = ten(bf16, 10) }),
			no("dtypes differ", ErrDType, "v_out", func(a *QKVSplitArgs) { a.VOut = ten(f32, 8) }),
			no("f16", ErrDType, "", func(a *QKVSplitArgs) { a.QKV = ten(f16, 2, 16) }),
		),
		caseOf(Softmax, SoftmaxArgs{Out: ten(f32, 2, 3, 4), X: ten(f32, 2, 3, 4), Mask: ten(f16, 3, 4), Sinks: ten(f32, 2), Scale: 1},
			no("no scale", ErrAttr, "scale", func(a *SoftmaxArgs) { a.Scale = 0 }),
			no("NaN scale", ErrAttr, "scale", func(a *SoftmaxArgs) { a.Scale = nan }),
			no("negative bias", ErrAttr, "max_bias", func(a *SoftmaxArgs) { a.MaxBias = -1 }),
			no("bias without mask", ErrAttr, "max_bias", func(a *SoftmaxArgs) { a.MaxBias, a.Mask = 8, tensor.Tensor{} }),
			no("sinks of other heads", ErrShape, "sinks", func(a *SoftmaxArgs) { a.Sinks = ten(f32, 3) }),
		),
		caseOf(Embedding, EmbeddingArgs{Out: ten(f32, 3, 32), Table: ten(f16, 5, 32), IDs: ten(i32, 3)},
			no("empty table", ErrShape, "table", func(a *EmbeddingArgs) { a.Table = ten(f16, 0, 32) }),
			no("part of a block", ErrShape, "table", func(a *EmbeddingArgs) {
				a.Out, a.Table = ten(f32, 3, 16), ten(tensor.Q4_0, 5, 32)
				a.Table.Shape[1] = 16
			}),
			no("float ids", ErrDType, "ids", func(a *EmbeddingArgs) { a.IDs = ten(f32, 3) }),
			ok("blocks", func(a *EmbeddingArgs) { a.Table, a.IDs = ten(tensor.Q8_0, 5, 32), ten(i64, 3) }),
			ok("lane16", func(a *EmbeddingArgs) { a.Table = lane16(ten(tensor.Q8_0, 5, 32)) }),
			ok("empty call on an empty table", func(a *EmbeddingArgs) { a.Out, a.Table, a.IDs = ten(f32, 0, 32), ten(f32, 0, 32), ten(i32, 0) }),
		),
		caseOf(RopeNeox, RopeNeoxArgs{QStates: ten(f32, 3, 4, 8), KStates: ten(f32, 3, 2, 8), Positions: ten(i64, 3),
			FreqFactors: ten(f32, 3), Rope: RopeParams{RotaryDim: 6}},
			append(ropeParamTests(func(a *RopeNeoxArgs) (*RopeParams, *tensor.Tensor, *tensor.Tensor) {
				return &a.Rope, &a.FreqFactors, &a.LongFactors
			}),
				no("rotary_dim above D", ErrAttr, "rotary_dim", func(a *RopeNeoxArgs) { a.Rope.RotaryDim = 10 }),
				no("q and k dtypes", ErrDType, "k_states", func(a *RopeNeoxArgs) { a.KStates = ten(bf16, 3, 2, 8) }),
				no("q and k token counts", ErrShape, "k_states", func(a *RopeNeoxArgs) { a.KStates = ten(f32, 2, 2, 8) }),
				no("q and k head sizes", ErrShape, "k_states", func(a *RopeNeoxArgs) { a.KStates = ten(f32, 3, 2, 10) }),
				no("padded q", ErrLayout, "q_states", func(a *RopeNeoxArgs) { a.QStates.Stride[0] = 64 }),
				ok("q alone, interleaved", func(a *RopeNeoxArgs) { a.KStates, a.Interleaved = tensor.Tensor{}, true }))...,
		),
		caseOf(RopeCosSinCache, RopeCosSinCacheArgs{CosSin: ten(f32, 3, 6), Positions: ten(i64, 3), FreqFactors: ten(f32, 3), Rope: RopeParams{RotaryDim: 6}},
			append(ropeParamTests(func(a *RopeCosSinCacheArgs) (*RopeParams, *tensor.Tensor, *tensor.Tensor) {
				return &a.Rope, &a.FreqFactors, &a.LongFactors
			}),
				no("other width", ErrShape, "cos_sin", func(a *RopeCosSinCacheArgs) { a.CosSin = ten(f32, 3, 8) }),
				ok("bf16", func(a *RopeCosSinCacheArgs) { a.CosSin = ten(bf16, 3, 6) }))...,
		),
		caseOf(RopeFromCache, RopeFromCacheArgs{QStates: ten(f32, 3, 4, 8), KStates: ten(f32, 3, 2, 8), Positions: ten(i32, 3),
			CosSinCache: ten(f32, 10, 6), RotaryDim: 6},
			no("rotary_dim 0", ErrAttr, "rotary_dim", func(a *RopeFromCacheArgs) { a.RotaryDim = 0 }),
			no("rotary_dim odd", ErrAttr, "rotary_dim", func(a *RopeFromCacheArgs) { a.RotaryDim = 5 }),
			no("rotary_dim above D", ErrAttr, "rotary_dim", func(a *RopeFromCacheArgs) { a.RotaryDim, a.CosSinCache = 10, ten(f32, 10, 10) }),
			no("cache width", ErrShape, "cos_sin_cache", func(a *RopeFromCacheArgs) { a.CosSinCache = ten(f32, 10, 8) }),
			no("empty cache", ErrShape, "cos_sin_cache", func(a *RopeFromCacheArgs) { a.CosSinCache = ten(f32, 0, 6) }),
			no("cache dtype", ErrDType, "cos_sin_cache", func(a *RopeFromCacheArgs) { a.CosSinCache = ten(bf16, 10, 6) }),
			no("k dtype", ErrDType, "k_states", func(a *RopeFromCacheArgs) { a.KStates = ten(bf16, 3, 2, 8) }),
			no("inner stride 2", ErrLayout, "q_states", func(a *RopeFromCacheArgs) {
				a.QStates = ten(f32, 3, 4, 16)
				a.QStates.Shape[2], a.QStates.Stride[2] = 8, 2
			}),
			no("two rows of positions", ErrShape, "positions", func(a *RopeFromCacheArgs) { a.Positions = ten(i32, 2, 3) }),
			no("section sum", ErrAttr, "mrope_section", func(a *RopeFromCacheArgs) { a.Positions, a.MropeSection = ten(i32, 3, 3), [3]int32{1, 1, 2} }),
			no("negative section", ErrAttr, "mrope_section", func(a *RopeFromCacheArgs) { a.Positions, a.MropeSection = ten(i32, 3, 3), [3]int32{-1, 2, 2} }),
			no("section overflow", ErrAttr, "mrope_section", func(a *RopeFromCacheArgs) {
				a.Positions, a.MropeSection = ten(i32, 3, 3), [3]int32{math.MaxInt32, math.MaxInt32, 5}
			}),
			ok("multimodal", func(a *RopeFromCacheArgs) { a.Positions, a.MropeSection = ten(i64, 3, 3), [3]int32{1, 1, 1} }),
			ok("sections unread", func(a *RopeFromCacheArgs) { a.MropeSection = [3]int32{-9, 0, 0} }),
			ok("slice of a wider head", func(a *RopeFromCacheArgs) {
				x := ten(f32, 3, 4, 20)
				a.QStates, a.KStates = tensor.Must(x.Slice(2, 12, 20)), tensor.Tensor{}
			}),
		),
		caseOf(Attention, AttentionArgs{Out: ten(f32, 2, 4, 6), Query: ten(bf16, 2, 4, 8), Key: ten(bf16, 5, 2, 8), Value: ten(bf16, 5, 2, 6),
			Mask: ten(f16, 2, 5), Sinks: ten(f32, 4), Scale: 0.5, Causal: true},
			no("stage", ErrAttr, "scores_at", func(a *AttentionArgs) {
				a.Scores, a.ScoresAt = ten(f32, a.Query.Shape[0], a.Query.Shape[1], a.Key.Shape[0]), numScoresStages
			}),
			no("stage of nothing", ErrAttr, "scores_at", func(a *AttentionArgs) { a.ScoresAt = ScoresMasked }),
			no("scores", ErrShape, "scores", func(a *AttentionArgs) { a.Scores = ten(f32, a.Query.Shape[0], a.Query.Shape[1], a.Key.Shape[0]+1) }),
			ok("scores", func(a *AttentionArgs) {
				a.Scores, a.ScoresAt = ten(bf16, a.Query.Shape[0], a.Query.Shape[1], a.Key.Shape[0]), ScoresWeights
			}),
			no("heads not a multiple", ErrShape, "key", func(a *AttentionArgs) { a.Key, a.Value = ten(bf16, 5, 3, 8), ten(bf16, 5, 3, 6) }),
			no("no key heads", ErrShape, "key", func(a *AttentionArgs) { a.Key, a.Value = ten(bf16, 5, 0, 8), ten(bf16, 5, 0, 6) }),
			no("no query heads", ErrShape, "key", func(a *AttentionArgs) {
				a.Out, a.Query, a.Sinks = ten(f32, 2, 0, 6), ten(bf16, 2, 0, 8), ten(f32, 0)
			}),
			no("scale unset", ErrAttr, "scale", func(a *AttentionArgs) { a.Scale = 0 }),
			no("scale negative", ErrAttr, "scale", func(a *AttentionArgs) { a.Scale = -1 }),
			no("scale NaN", ErrAttr, "scale", func(a *AttentionArgs) { a.Scale = nan }),
			no("soft cap negative", ErrAttr, "logits_soft_cap", func(a *AttentionArgs) { a.LogitsSoftCap = -1 }),
			no("soft cap NaN", ErrAttr, "logits_soft_cap", func(a *AttentionArgs) { a.LogitsSoftCap = nan }),
			no("window negative", ErrAttr, "window_right", func(a *AttentionArgs) { a.Windowed, a.WindowRight = true, -1 }),
			no("window without windowed", ErrAttr, "windowed", func(a *AttentionArgs) { a.WindowLeft = 3 }),
			no("dtypes differ", ErrDType, "value", func(a *AttentionArgs) { a.Value = ten(f32, 5, 2, 6) }),
			no("mask of other keys", ErrShape, "mask", func(a *AttentionArgs) { a.Mask = ten(f32, 2, 4) }),
			no("sinks of other heads", ErrShape, "sinks", func(a *AttentionArgs) { a.Sinks = ten(f32, 2) }),
			no("f16 output", ErrDType, "out", func(a *AttentionArgs) { a.Out = ten(f16, 2, 4, 6) }),
			no("offset without top left", ErrAttr, "query_offset", func(a *AttentionArgs) { a.QueryOffset = 1 }),
			no("offset negative", ErrAttr, "query_offset", func(a *AttentionArgs) { a.TopLeft, a.QueryOffset = true, -1 }),
			ok("from the first key", func(a *AttentionArgs) { a.TopLeft, a.QueryOffset = true, 3 }),
			ok("mask by head", func(a *AttentionArgs) { a.Mask = ten(f32, 4, 2, 5) }),
			ok("window", func(a *AttentionArgs) {
				a.Windowed, a.WindowLeft, a.WindowRight, a.LogitsSoftCap = true, 3, math.MaxInt32, 30
			}),
		),
		caseOf(PagedAttention, PagedAttentionArgs{Out: ten(bf16, 3, 4, 32), Query: ten(f32, 3, 4, 32), KCache: pagesOf(bf16, 0, 5, 2, 2, 32), VCache: pagesOf(bf16, 1, 5, 2, 2, 32),
			BlockTable: ten(i32, 2, 7), SeqLens: ten(i32, 2), QueryStartLoc: ten(i32, 3), Scale: 1, Causal: true},
			no("heads not a multiple", ErrShape, "k_cache", func(a *PagedAttentionArgs) {
				a.KCache, a.VCache = pagesOf(bf16, 0, 5, 2, 3, 32), pagesOf(bf16, 1, 5, 2, 3, 32)
			}),
			no("no request", ErrShape, "seq_lens", func(a *PagedAttentionArgs) {
				a.BlockTable, a.SeqLens, a.QueryStartLoc = ten(i32, 0, 7), ten(i32, 0), ten(i32, 1)
			}),
			no("scale unset", ErrAttr, "scale", func(a *PagedAttentionArgs) { a.Scale = 0 }),
			no("scale NaN", ErrAttr, "scale", func(a *PagedAttentionArgs) { a.Scale = nan }),
			no("window negative", ErrAttr, "window_left", func(a *PagedAttentionArgs) { a.Windowed, a.WindowLeft = true, -1 }),
			no("window without windowed", ErrAttr, "windowed", func(a *PagedAttentionArgs) { a.WindowRight = 1 }),
			no("soft cap negative", ErrAttr, "logits_soft_cap", func(a *PagedAttentionArgs) { a.LogitsSoftCap = -1 }),
			no("soft cap NaN", ErrAttr, "logits_soft_cap", func(a *PagedAttentionArgs) { a.LogitsSoftCap = nan }),
			no("hint negative", ErrAttr, "max_seq_len", func(a *PagedAttentionArgs) { a.MaxSeqLen = -1 }),
			no("other hint negative", ErrAttr, "max_query_len", func(a *PagedAttentionArgs) { a.MaxQueryLen = -1 }),
			no("cache shapes differ", ErrShape, "v_cache", func(a *PagedAttentionArgs) { a.VCache = pagesOf(bf16, 1, 4, 2, 2, 32) }),
			no("cache dtypes differ", ErrDType, "v_cache", func(a *PagedAttentionArgs) { a.VCache = pagesOf(f16, 1, 5, 2, 2, 32) }),
			no("head size differs", ErrShape, "k_cache", func(a *PagedAttentionArgs) {
				a.KCache, a.VCache = pagesOf(bf16, 0, 5, 2, 2, 16), pagesOf(bf16, 1, 5, 2, 2, 16)
			}),
			no("pages of no rows", ErrShape, "k_cache", func(a *PagedAttentionArgs) { a.KCache, a.VCache = ten(bf16, 5, 0, 2, 32), ten(bf16, 5, 0, 2, 32) }),
			no("heads not packed", ErrLayout, "k_cache", func(a *PagedAttentionArgs) { a.KCache.Stride[2] = 40 }),
			no("i64 lengths", ErrDType, "seq_lens", func(a *PagedAttentionArgs) { a.SeqLens = ten(i64, 2) }),
			no("offsets too short", ErrShape, "query_start_loc", func(a *PagedAttentionArgs) { a.QueryStartLoc = ten(i32, 2) }),
			no("no offsets", ErrShape, "query_start_loc", func(a *PagedAttentionArgs) { a.QueryStartLoc = ten(i32, 0) }),
			no("table of other requests", ErrShape, "", func(a *PagedAttentionArgs) { a.BlockTable = ten(i32, 3, 7) }),
			ok("columns of a wider table", func(a *PagedAttentionArgs) { a.BlockTable = columnsOf(i32, 2, 4, 9) }),
			ok("q8_0 cache", func(a *PagedAttentionArgs) {
				a.KCache, a.VCache = ten(tensor.Q8_0, 5, 2, 2, 32), ten(tensor.Q8_0, 5, 2, 2, 32)
			}),
			ok("window and sinks", func(a *PagedAttentionArgs) {
				a.Windowed, a.WindowLeft, a.Sinks = true, 127, ten(f32, 4)
			}),
		),
		caseOf(ReshapeAndCache, ReshapeAndCacheArgs{K: ten(f32, 3, 2, 32), V: ten(f32, 3, 2, 32), KCache: pagesOf(bf16, 0, 5, 2, 2, 32), VCache: pagesOf(bf16, 1, 5, 2, 2, 32), SlotMapping: ten(i64, 3)},
			no("more slots than tokens", ErrShape, "slot_mapping", func(a *ReshapeAndCacheArgs) { a.SlotMapping = ten(i64, 4) }),
			no("k and v dtypes", ErrDType, "v", func(a *ReshapeAndCacheArgs) { a.V = ten(f16, 3, 2, 32) }),
			no("cache dtypes", ErrDType, "v_cache", func(a *ReshapeAndCacheArgs) { a.VCache = pagesOf(f16, 1, 5, 2, 2, 32) }),
			no("cache head size", ErrShape, "k_cache", func(a *ReshapeAndCacheArgs) { a.KCache = pagesOf(bf16, 0, 5, 2, 2, 16) }),
			no("k heads not packed", ErrLayout, "k", func(a *ReshapeAndCacheArgs) { a.K.Stride[1] = 40; a.K.Stride[0] = 80 }),
			no("k rows overlap", ErrLayout, "k", func(a *ReshapeAndCacheArgs) { a.K.Stride[0] = 63 }),
			no("cache not packed", ErrLayout, "v_cache", func(a *ReshapeAndCacheArgs) { a.VCache.Stride[3] = 2 }),
			no("pages of no rows", ErrShape, "k_cache", func(a *ReshapeAndCacheArgs) { a.KCache, a.VCache = ten(bf16, 5, 0, 2, 32), ten(bf16, 5, 0, 2, 32) }),
			no("i32 slots", ErrDType, "slot_mapping", func(a *ReshapeAndCacheArgs) { a.SlotMapping = ten(i32, 3) }),
			ok("fewer slots", func(a *ReshapeAndCacheArgs) { a.SlotMapping = ten(i64, 2) }),
			ok("rows of a wider projection", func(a *ReshapeAndCacheArgs) {
				x := ten(f32, 3, 6, 32)
				a.K, a.V = tensor.Must(x.Slice(1, 2, 4)), tensor.Must(x.Slice(1, 4, 6))
			}),
		),
		caseOf(ApplyTemperature, ApplyTemperatureArgs{Logits: ten(f32, 2, 5), Temp: ten(f32, 2)},
			no("other rows", ErrShape, "temp", func(a *ApplyTemperatureArgs) { a.Temp = ten(f32, 3) }),
			no("bf16 logits", ErrDType, "logits", func(a *ApplyTemperatureArgs) { a.Logits = ten(bf16, 2, 5) }),
			ok("no rows", func(a *ApplyTemperatureArgs) { a.Logits, a.Temp = ten(f32, 0, 5), ten(f32, 0) }),
		),
		caseOf(GreedyArgmax, GreedyArgmaxArgs{TokenIDs: ten(i64, 2), Logits: ten(f32, 2, 5)},
			no("no columns", ErrShape, "logits", func(a *GreedyArgmaxArgs) { a.Logits = ten(f32, 2, 0) }),
			no("i32 ids", ErrDType, "token_ids", func(a *GreedyArgmaxArgs) { a.TokenIDs = ten(i32, 2) }),
			ok("nothing at all", func(a *GreedyArgmaxArgs) { a.TokenIDs, a.Logits = ten(i64, 0), ten(f32, 0, 0) }),
		),
		caseOf(ApplyTopKTopP, ApplyTopKTopPArgs{Logits: ten(f32, 2, 5), K: ten(i32, 2), P: ten(f32, 2)},
			no("i64 k", ErrDType, "k", func(a *ApplyTopKTopPArgs) { a.K = ten(i64, 2) }),
			no("f16 p", ErrDType, "p", func(a *ApplyTopKTopPArgs) { a.P = ten(f16, 2) }),
			no("other rows", ErrShape, "p", func(a *ApplyTopKTopPArgs) { a.P = ten(f32, 1) }),
		),
		caseOf(ComputeProbs, ComputeProbsArgs{Probs: ten(f32, 2, 5), Logits: ten(f32, 2, 5)},
			no("other shape", ErrShape, "", func(a *ComputeProbsArgs) { a.Probs = ten(f32, 2, 4) })),
		caseOf(ComputeLogprobs, ComputeLogprobsArgs{Logprobs: ten(f32, 2, 5), Logits: ten(f32, 2, 5)},
			no("other shape", ErrShape, "", func(a *ComputeLogprobsArgs) { a.Logprobs = ten(f32, 2, 4) })),
		caseOf(RandomSample, RandomSampleArgs{TokenIDs: ten(i64, 2), Probs: ten(f32, 2, 5), Seeds: ten(i64, 2)},
			no("no columns", ErrShape, "probs", func(a *RandomSampleArgs) { a.Probs = ten(f32, 2, 0) }),
			no("other rows", ErrShape, "seeds", func(a *RandomSampleArgs) { a.Seeds = ten(i64, 3) })),
		caseOf(ApplyPenalties, ApplyPenaltiesArgs{Logits: ten(f32, 2, 5), PromptMask: ten(i8, 2, 5), OutputBinCounts: ten(i32, 2, 5), OutputMask: ten(u8, 2, 5),
			FrequencyPenalties: ten(f32, 2), PresencePenalties: ten(f32, 2), RepetitionPenalties: ten(f32, 2)},
			no("i32 mask", ErrDType, "prompt_mask", func(a *ApplyPenaltiesArgs) { a.PromptMask = ten(i32, 2, 5) }),
			no("other shape", ErrShape, "output_bin_counts", func(a *ApplyPenaltiesArgs) { a.OutputBinCounts = ten(i32, 2, 4) })),
		caseOf(ApplyMinP, ApplyMinPArgs{Logits: ten(f32, 2, 5), MinP: ten(f32, 2)},
			no("other rows", ErrShape, "min_p", func(a *ApplyMinPArgs) { a.MinP = ten(f32, 1) })),
		caseOf(ApplyLogitBias, ApplyLogitBiasArgs{Logits: ten(f32, 2, 5), Rows: ten(i32, 3), Cols: ten(i32, 3), Biases: ten(f32, 3)},
			no("list lengths", ErrShape, "biases", func(a *ApplyLogitBiasArgs) { a.Biases = ten(f32, 2) }),
			ok("no biases", func(a *ApplyLogitBiasArgs) { a.Rows, a.Cols, a.Biases = ten(i32, 0), ten(i32, 0), ten(f32, 0) })),
		caseOf(ApplyTokenMask, ApplyTokenMaskArgs{Logits: ten(f32, 2, 5), Rows: ten(i32, 3), Cols: ten(i32, 3)},
			no("list lengths", ErrShape, "cols", func(a *ApplyTokenMaskArgs) { a.Cols = ten(i32, 2) })),
		caseOf(ApplyAllowedTokenIDs, ApplyAllowedTokenIDsArgs{Logits: ten(f32, 2, 5), Mask: ten(u8, 2, 5)},
			no("other shape", ErrShape, "mask", func(a *ApplyAllowedTokenIDsArgs) { a.Mask = ten(u8, 2, 6) })),
	}
}

// ropeParamTests are the calls that both ops with inline frequencies judge alike.
func ropeParamTests[R any](of func(*R) (p *RopeParams, freq, long *tensor.Tensor)) []any {
	set := func(change func(p *RopeParams)) func(*R) {
		return func(a *R) { p, _, _ := of(a); change(p) }
	}
	long := func(a *R) {
		p, _, l := of(a)
		p.Scaling, p.OrigContext, p.SeqLen, *l = RopeLongRope, 32, 64, ten(f32, 3)
	}
	yarn := func(change func(p *RopeParams)) func(*R) {
		return set(func(p *RopeParams) { p.Scaling, p.Factor, p.OrigContext = RopeYarn, 4, 32; change(p) })
	}
	llama := func(change func(p *RopeParams)) func(*R) {
		return set(func(p *RopeParams) {
			p.Scaling, p.Factor, p.LowFreq, p.HighFreq, p.OrigContext = RopeLlama3, 8, 1, 4, 8192
			change(p)
		})
	}
	return []any{
		no("rotary_dim 0", ErrAttr, "rotary_dim", set(func(p *RopeParams) { p.RotaryDim = 0 })),
		no("rotary_dim negative", ErrAttr, "rotary_dim", set(func(p *RopeParams) { p.RotaryDim = -6 })),
		no("rotary_dim odd", ErrAttr, "rotary_dim", set(func(p *RopeParams) { p.RotaryDim = 5 })),
		no("negative base", ErrAttr, "base", set(func(p *RopeParams) { p.Base = -1 })),
		no("NaN base", ErrAttr, "base", set(func(p *RopeParams) { p.Base = nan })),
		no("infinite base", ErrAttr, "base", set(func(p *RopeParams) { p.Base = inf })),
		no("NaN attention scale", ErrAttr, "attn_scale", set(func(p *RopeParams) { p.AttnScale = nan })),
		no("unknown scaling", ErrAttr, "scaling", set(func(p *RopeParams) { p.Scaling = numRopeScalings })),
		no("linear without factor", ErrAttr, "factor", set(func(p *RopeParams) { p.Scaling = RopeLinear })),
		no("linear by a negative factor", ErrAttr, "factor", set(func(p *RopeParams) { p.Scaling, p.Factor = RopeLinear, -2 })),
		no("ntk without context", ErrAttr, "orig_context", set(func(p *RopeParams) { p.Scaling, p.Factor = RopeDynamicNTK, 2 })),
		no("alpha without factor", ErrAttr, "factor", set(func(p *RopeParams) { p.Scaling = RopeDynamicAlpha })),
		no("negative length", ErrAttr, "seq_len", set(func(p *RopeParams) { p.SeqLen = -1 })),
		no("negative context", ErrAttr, "orig_context", set(func(p *RopeParams) { p.OrigContext = -1 })),
		no("llama3 without low", ErrAttr, "low_freq", llama(func(p *RopeParams) { p.LowFreq = 0 })),
		no("llama3 with NaN high", ErrAttr, "high_freq", llama(func(p *RopeParams) { p.HighFreq = nan })),
		no("llama3 high below low", ErrAttr, "high_freq", llama(func(p *RopeParams) { p.HighFreq = 0.5 })),
		no("yarn without factor", ErrAttr, "factor", yarn(func(p *RopeParams) { p.Factor = 0 })),
		no("yarn with negative ext", ErrAttr, "ext_factor", yarn(func(p *RopeParams) { p.ExtFactor = -1 })),
		no("yarn with NaN beta", ErrAttr, "beta_fast", yarn(func(p *RopeParams) { p.BetaFast = nan })),
		no("yarn with negative beta", ErrAttr, "beta_slow", yarn(func(p *RopeParams) { p.BetaSlow = -1 })),
		no("factors for other pairs", ErrShape, "freq_factors", func(a *R) { _, f, _ := of(a); *f = ten(f32, 6) }),
		no("long factors for other pairs", ErrShape, "long_factors", func(a *R) { long(a); _, f, l := of(a); *f, *l = tensor.Tensor{}, ten(f32, 6) }),
		no("long factors unused", ErrAttr, "long_factors", func(a *R) { _, _, l := of(a); *l = ten(f32, 3) }),
		no("longrope without short", ErrAttr, "freq_factors", func(a *R) { long(a); _, f, _ := of(a); *f = tensor.Tensor{} }),
		no("longrope without long", ErrAttr, "long_factors", func(a *R) { long(a); _, _, l := of(a); *l = tensor.Tensor{} }),
		no("longrope without context", ErrAttr, "orig_context", func(a *R) { long(a); p, _, _ := of(a); p.OrigContext = 0 }),
		ok("longrope", long),
		ok("yarn", yarn(func(p *RopeParams) { p.AttnScale, p.NoTruncate = 1.13, true })),
		ok("llama3", llama(func(p *RopeParams) {})),
		ok("ntk", set(func(p *RopeParams) { p.Scaling, p.Factor, p.OrigContext = RopeDynamicNTK, 2, 2048 })),
		ok("alpha", set(func(p *RopeParams) { p.Scaling, p.Factor = RopeDynamicAlpha, 2 })),
	}
}
