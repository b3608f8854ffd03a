package opfile

import (
	"math"
	"slices"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// The operators of ONNX that have an op. Operands are known by the operator's own names, whatever a file calls them.

// matMul is NumPy's product: a rank of 1 stands for a row before and a column after the product, and leading dimensions
// broadcast. multiply runs the op on [M,K] and [K,N].
func matMul(multiply func(r *run, out, a, b tensor.Tensor)) func(*run) {
	return func(r *run) {
		a, b := r.float("A"), r.float("B")
		if a.Rank == 0 || b.Rank == 0 {
			r.fail(ErrFormat, "", "product of %v and %v", &a, &b)
		}
		row, column := a.Rank == 1, b.Rank == 1
		if row {
			a = r.view(a, 1, a.Shape[0])
		}
		if column {
			b = r.view(b, b.Shape[0], 1)
		}
		m, k, n := a.Shape[a.Rank-2], a.Last(), b.Last()
		if b.Shape[b.Rank-2] != k {
			r.fail(ErrFormat, "", "product of %v and %v", &a, &b)
		}
		batch := r.broadcast(a.Dims()[:a.Rank-2], b.Dims()[:b.Rank-2])
		count := product(batch)
		a3 := r.view(r.expand(a, append(slices.Clone(batch), m, k)), count, m, k)
		b3 := r.view(r.expand(b, append(slices.Clone(batch), k, n)), count, k, n)
		out := r.alloc(outFloat(a.DType), count, m, n)
		var slack []float64
		for i := range count {
			ai, bi := r.sub(a3, i), r.sub(b3, i)
			multiply(r, r.sub(out, i), ai, bi)
			if r.f.tolerance == nil { // sums in another order
				wide, weight := r.cast(ai, tensor.F32), r.cast(r.permute(bi, 1, 0), tensor.F32)
				slack = append(slack, productAllowance(&wide, &weight, "")...)
			}
		}
		shape := batch
		if !row {
			shape = append(shape, m)
		}
		if !column {
			shape = append(shape, n)
		}
		r.put("Y", r.view(out, shape...), a.DType)
		r.out[0].slack = slack
	}
}

func productNN(r *run, out, a, b tensor.Tensor) {
	r.check(ops.Matmul.Call(r.Queue, ops.MatmulArgs{Out: out, A: a, B: b}))
}

func productNT(r *run, out, a, b tensor.Tensor) {
	r.check(ops.MatmulBT.Call(r.Queue, ops.MatmulBTArgs{Out: out, A: a, B: r.weight(r.permute(b, 1, 0))}))
}

// rmsNormalization normalizes over axis and all dimensions behind it. The op computes in f32 whatever stash_type asks for.
func rmsNormalization(r *run) {
	x, scale := r.float("X"), r.float("scale")
	switch stash := r.attrs.int("stash_type", 1); stash {
	case 1, 10, 11, 16: // f32, f16, f64, bf16
	default:
		r.fail(ErrFormat, "stash_type", "%d is no float type", stash)
	}
	axis := r.axis("axis", r.attrs.int("axis", -1), &x)
	width := x.Dims()[axis:]
	rows := r.flat(x, len(width))
	out := r.alloc(outFloat(scale.DType), rows.Dims()...)
	r.check(ops.RMSNorm.Call(r.Queue, ops.RMSNormArgs{Out: out, X: rows, Weight: r.view(r.expand(scale, width), product(width)),
		Eps: float32(r.attrs.float("epsilon", 1e-5))}))
	r.put("Y", r.view(out, x.Dims()...), scale.DType)
}

// rotaryEmbedding rotates with tables of cosines and sines, one row for a position or, without position_ids, one for each
// token.
func rotaryEmbedding(r *run) {
	x := r.outFloat("X")
	original := r.float("X").DType
	heads := r.attrs.int("num_heads", 0)
	tokens := x // [batch, tokens, heads, dim]
	switch x.Rank {
	case 4: // [batch, heads, tokens, dim]
		if heads != 0 && heads != x.Shape[1] {
			r.fail(ErrFormat, "num_heads", "%d for %v", heads, &x)
		}
		tokens = r.permute(x, 0, 2, 1, 3)
	case 3:
		if heads <= 0 || x.Shape[2]%heads != 0 {
			r.fail(ErrFormat, "num_heads", "%d for %v", heads, &x)
		}
		tokens = r.view(x, x.Shape[0], x.Shape[1], heads, x.Shape[2]/heads)
	default:
		r.fail(ErrFormat, "", "rotary embedding of %v", &x)
	}
	dims := slices.Clone(tokens.Dims())
	count := dims[0] * dims[1]
	states := r.copyOf(r.view(tokens, count, dims[2], dims[3]))
	rotary := r.attrs.int32("rotary_embedding_dim", 0)
	if rotary == 0 {
		rotary = int32(dims[3])
	}
	cos, sin := r.cast(r.float("cos_cache"), x.DType), r.cast(r.float("sin_cache"), x.DType)
	if !slices.Equal(cos.Dims(), sin.Dims()) {
		r.fail(ErrFormat, "", "tables of %v and %v", &cos, &sin)
	}
	positions := r.counting(count)
	if r.has("position_ids") {
		p := r.index("position_ids")
		r.rank("cos_cache", cos, 2)
		positions = r.view(p, p.Numel())
	} else {
		r.rank("cos_cache", cos, 3)
		cos, sin = r.flat(cos, 1), r.flat(sin, 1)
	}
	r.check(ops.RopeFromCache.Call(r.Queue, ops.RopeFromCacheArgs{QStates: states, Positions: positions,
		CosSinCache: r.join(cos, sin), RotaryDim: rotary, Interleaved: r.attrs.bool("interleaved", false)}))
	out := r.view(states, dims...)
	if x.Rank == 4 {
		out = r.permute(out, 0, 2, 1, 3)
	}
	r.put("Y", r.view(out, x.Dims()...), original)
}

// counting returns the positions 0 to n-1.
func (r *run) counting(n int64) tensor.Tensor {
	x := r.alloc(tensor.I64, n)
	for i := range n {
		setInt(&x, int(i), i)
	}
	return x
}

// join puts the rows of b behind those of a, [T,V] and [T,W].
func (r *run) join(a, b tensor.Tensor) tensor.Tensor {
	x := r.alloc(a.DType, a.Shape[0], a.Shape[1]+b.Shape[1])
	to := tensor.Slice[uint8](&x)
	size := a.DType.Size()
	for i := range int(a.Shape[0]) {
		for _, src := range [...]*tensor.Tensor{&a, &b} {
			n := int(src.Shape[1]) * size
			to = to[copy(to, tensor.Slice[uint8](src)[i*n:][:n]):]
		}
	}
	return x
}

// argMax finds the largest along an axis.
func argMax(r *run) {
	x := r.f32("data")
	axis := r.axis("axis", r.attrs.int("axis", 0), &x)
	rows := r.flat(r.move(x, axis, int(x.Rank)-1), 1)
	out := r.alloc(tensor.I64, rows.Shape[0])
	r.check(ops.GreedyArgmax.Call(r.Queue, ops.GreedyArgmaxArgs{TokenIDs: out, Logits: rows, Last: r.attrs.bool("select_last_index", false)}))
	shape := slices.Clone(x.Dims())
	if shape[axis] = 1; !r.attrs.bool("keepdims", true) {
		shape = slices.Delete(shape, axis, axis+1)
	}
	r.put("reduced", r.view(out, shape...), tensor.I64)
}

// overAxis runs f on x as rows [T,N] along the file's axis: that one dimension since version 13 of the operator set, before
// it that and all behind it.
func overAxis(f func(r *run, rows tensor.Tensor) tensor.Tensor) func(*run) {
	return func(r *run) {
		x := r.float("input")
		if old := r.f.Opset > 0 && r.f.Opset < 13; old {
			axis := r.axis("axis", r.attrs.int("axis", 1), &x)
			r.put("output", r.view(f(r, r.flat(x, int(x.Rank)-axis)), x.Dims()...), x.DType)
			return
		}
		axis, last := r.axis("axis", r.attrs.int("axis", -1), &x), int(x.Rank)-1
		moved := r.move(x, axis, last)
		y := r.view(f(r, r.flat(moved, 1)), moved.Dims()...)
		r.put("output", r.move(y, last, axis), x.DType)
	}
}

func softmaxRows(r *run, x tensor.Tensor) tensor.Tensor {
	x = r.view(x, 1, x.Shape[0], x.Shape[1])
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	r.check(ops.Softmax.Call(r.Queue, ops.SoftmaxArgs{Out: out, X: x, Scale: 1}))
	return out
}

func probsRows(r *run, x tensor.Tensor) tensor.Tensor {
	x = r.cast(x, tensor.F32)
	out := r.alloc(tensor.F32, x.Dims()...)
	r.check(ops.ComputeProbs.Call(r.Queue, ops.ComputeProbsArgs{Probs: out, Logits: x}))
	return out
}

func logSoftmaxRows(r *run, x tensor.Tensor) tensor.Tensor {
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	r.check(ops.LogSoftmax.Call(r.Queue, ops.LogSoftmaxArgs{Out: out, X: x}))
	return out
}

func logprobsRows(r *run, x tensor.Tensor) tensor.Tensor {
	x = r.cast(x, tensor.F32)
	out := r.alloc(tensor.F32, x.Dims()...)
	r.check(ops.ComputeLogprobs.Call(r.Queue, ops.ComputeLogprobsArgs{Logprobs: out, Logits: x}))
	return out
}

// swiGLU is a·sigmoid(alpha·a)·b.
func swiGLU(r *run) {
	a, b := r.float("A"), r.float("B")
	shape := r.broadcast(a.Dims(), b.Dims())
	gate, up := r.flat(r.expand(a, shape), 1), r.flat(r.expand(b, shape), 1)
	out := r.alloc(outFloat(a.DType), gate.Dims()...)
	r.check(ops.SiluAndMul.Call(r.Queue, ops.SiluAndMulArgs{Out: out, X: gate, Up: up, Alpha: notZero(r.attrs.float("alpha", 1))}))
	r.put("Y", r.view(out, shape...), a.DType)
}

// notZero is for attributes of which an op takes 0 for "not given": 0 becomes the smallest number above it.
func notZero(v float64) float32 {
	if v == 0 {
		return math.SmallestNonzeroFloat32
	}
	return float32(v)
}
