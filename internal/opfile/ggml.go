package opfile

import (
	"fmt"
	"math"
	"slices"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// The ops of ggml that have one here, and its block formats.

func ggmlRelu(r *run) {
	x := r.float("x")
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	r.check(ops.Relu.Call(r.Queue, ops.ReluArgs{Out: out, X: x}))
	r.put("y", out, x.DType)
}

func ggmlRMSNorm(r *run) {
	x := r.float("x")
	rows := r.flat(x, 1)
	out := r.alloc(outFloat(x.DType), rows.Dims()...)
	r.check(ops.RMSNorm.Call(r.Queue, ops.RMSNormArgs{Out: out, X: rows, Eps: float32(r.attrs.float("eps", 0))}))
	r.put("y", r.view(out, x.Dims()...), x.DType)
}

// ggmlSwiGLU takes gate and up as two tensors or as the halves of each row.
func ggmlSwiGLU(r *run) {
	var a ops.SiluAndMulArgs
	var shape []int64
	if r.has("gate") {
		gate := r.float("gate")
		a.X, a.Up, shape = r.flat(gate, 1), r.flat(r.float("up"), 1), slices.Clone(gate.Dims())
	} else {
		x := r.float("x")
		a.X, shape = r.flat(x, 1), slices.Clone(x.Dims())
		if len(shape) == 0 {
			r.fail(ErrFormat, "x", "no rows to halve")
		}
		shape[len(shape)-1] /= 2
	}
	a.Out = r.alloc(outFloat(a.X.DType), product(shape[:max(len(shape)-1, 0)]), product(shape[max(len(shape)-1, 0):]))
	r.check(ops.SiluAndMul.Call(r.Queue, a))
	r.put("y", r.view(a.Out, shape...), a.X.DType)
}

// ggmlSilu is silu_and_mul with an up of ones.
func ggmlSilu(r *run) {
	x := r.float("x")
	rows := r.flat(x, 1)
	up := r.alloc(x.DType, rows.Dims()...)
	for i := range int(up.Numel()) {
		set(&up, i, 1)
	}
	out := r.alloc(outFloat(x.DType), rows.Dims()...)
	r.check(ops.SiluAndMul.Call(r.Queue, ops.SiluAndMulArgs{Out: out, X: rows, Up: up}))
	r.put("y", r.view(out, x.Dims()...), x.DType)
}

func ggmlArgmax(r *run) {
	x := r.f32("x")
	rows := r.flat(x, 1)
	out := r.alloc(tensor.I64, rows.Shape[0])
	r.check(ops.GreedyArgmax.Call(r.Queue, ops.GreedyArgmaxArgs{TokenIDs: out, Logits: rows}))
	r.put("y", r.view(out, x.Dims()[:max(int(x.Rank)-1, 0)]...), tensor.I32)
}

// ggmlSoftMax is softmax(scale·x + slope·mask) of x [H,T,N].
func ggmlSoftMax(r *run) {
	x := r.float("x")
	r.rank("x", x, 3)
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	a := ops.SoftmaxArgs{Out: out, X: x, Scale: float32(r.attrs.float("scale", 1)), MaxBias: float32(r.attrs.float("max_bias", 0))}
	if r.has("mask") {
		a.Mask = r.float("mask")
	} else {
		a.MaxBias = 0 // slopes of nothing
	}
	if r.has("sinks") {
		a.Sinks = r.f32("sinks")
	}
	r.check(ops.Softmax.Call(r.Queue, a))
	r.put("y", out, x.DType)
}

// ggmlSetRows writes rows to places of a zeroed table: a cache of pages of one row.
func ggmlSetRows(r *run) {
	src, ids := r.float("src"), r.index("row_ids")
	r.rank("src", src, 2)
	dt := parseDType(r.attrs.text("dst_dtype", "f32"))
	if dt == tensor.None {
		r.fail(ErrNoOp, "dst_dtype", "no cache of this dtype")
	}
	rows, width := r.attrs.int("rows", 0), src.Shape[1]
	table, other := r.alloc(dt, rows, 1, 1, width), r.alloc(dt, rows, 1, 1, width)
	src = r.view(src, src.Shape[0], 1, width)
	r.check(ops.ReshapeAndCache.Call(r.Queue, ops.ReshapeAndCacheArgs{K: src, V: src, KCache: table, VCache: other, SlotMapping: ids}))
	r.put("y", r.view(table, rows, width), dt)
}

// ggmlAttention reads an attention file into a record whose operands have heads inside: [T,H,D]. Files have [H,T,D].
func ggmlAttention(r *run) (a ops.AttentionArgs) {
	inside := func(key string) tensor.Tensor {
		x := r.float(key)
		r.rank(key, x, 3)
		return r.permute(x, 1, 0, 2)
	}
	a.Query, a.Key, a.Value = inside("q"), inside("k"), inside("v")
	if a.Key.DType != a.Query.DType || a.Value.DType != a.Query.DType { // the op wants one dtype
		a.Query, a.Key, a.Value = r.cast(a.Query, tensor.F32), r.cast(a.Key, tensor.F32), r.cast(a.Value, tensor.F32)
	}
	if r.has("mask") {
		a.Mask = r.float("mask")
	}
	if r.has("sinks") {
		a.Sinks = r.f32("sinks")
	}
	a.Scale, a.LogitsSoftCap = float32(r.attrs.float("scale", 1)), float32(r.attrs.float("logit_softcap", 0))
	a.Causal = r.attrs.bool("causal", false)
	if w := r.attrs.int32("window", 0); w > 0 {
		if !a.Causal {
			r.fail(ErrFormat, "window", "only of causal attention")
		}
		a.Windowed, a.WindowLeft = true, w-1
	}
	a.Out = r.alloc(outFloat(a.Query.DType), a.Query.Shape[0], a.Query.Shape[1], a.Value.Shape[2])
	return a
}

func attention(r *run) {
	a := ggmlAttention(r)
	r.check(ops.Attention.Call(r.Queue, a))
	r.put("y", a.Out, a.Query.DType)
}

// dropMask clears a mask that says no more than Causal and the window do. ErrRoute if it does.
func dropMask(r *run, a *ops.AttentionArgs) {
	if !a.Mask.Present() {
		return
	}
	tq, tk := a.Query.Shape[0], a.Key.Shape[0]
	if !a.Causal || a.Mask.Rank != 2 || a.Mask.Shape[0] != tq || a.Mask.Shape[1] != tk {
		r.fail(ErrRoute, "mask", "an attention with a mask of its own")
	}
	for i := range tq {
		for j := range tk {
			p, want := tk-tq+i, 0.0
			if j > p || a.Windowed && j < p-int64(a.WindowLeft) {
				want = math.Inf(-1)
			}
			if at(&a.Mask, int(i*tk+j)) != want {
				r.fail(ErrRoute, "mask", "an attention with a mask of its own")
			}
		}
	}
	a.Mask = tensor.Tensor{}
}

// unmaskedAttention lets the op work the mask out.
func unmaskedAttention(r *run) {
	a := ggmlAttention(r)
	if !a.Mask.Present() {
		r.fail(ErrRoute, "mask", "an attention without a mask")
	}
	dropMask(r, &a)
	r.check(ops.Attention.Call(r.Queue, a))
	r.put("y", a.Out, a.Query.DType)
}

// pageRows is the length of the pages of pagedAttention, short so that files fill several.
const pageRows = 4

// pagedAttention writes keys and values to pages in an order of no meaning and attends to those.
func pagedAttention(r *run) {
	a := ggmlAttention(r)
	dropMask(r, &a)
	tq, tk, heads, dim := a.Query.Shape[0], a.Key.Shape[0], a.Key.Shape[1], a.Key.Shape[2]
	if a.Value.Shape[2] != dim {
		r.fail(ErrRoute, "v", "values of another width than the keys")
	}
	if tq > tk {
		r.fail(ErrRoute, "q", "more queries than keys")
	}
	pages := (tk + pageRows - 1) / pageRows
	keys, values := r.alloc(a.Key.DType, pages, pageRows, heads, dim), r.alloc(a.Key.DType, pages, pageRows, heads, dim)
	table, slots := r.alloc(tensor.I32, 1, pages), r.alloc(tensor.I64, tk)
	for p := range pages {
		setInt(&table, int(p), pages-1-p)
	}
	for t := range tk {
		setInt(&slots, int(t), (pages-1-t/pageRows)*pageRows+t%pageRows)
	}
	r.check(ops.ReshapeAndCache.Call(r.Queue, ops.ReshapeAndCacheArgs{K: a.Key, V: a.Value, KCache: keys, VCache: values, SlotMapping: slots}))
	lens, starts := r.alloc(tensor.I32, 1), r.alloc(tensor.I32, 2)
	setInt(&lens, 0, tk)
	setInt(&starts, 1, tq)
	r.check(ops.PagedAttention.Call(r.Queue, ops.PagedAttentionArgs{Out: a.Out, Query: a.Query, KCache: keys, VCache: values,
		BlockTable: table, SeqLens: lens, QueryStartLoc: starts, Sinks: a.Sinks, Scale: a.Scale, LogitsSoftCap: a.LogitsSoftCap,
		Causal: a.Causal, Windowed: a.Windowed, WindowLeft: a.WindowLeft, WindowRight: a.WindowRight}))
	r.put("y", a.Out, a.Query.DType)
}

// blockRows looks up every row of a weight table.
func blockRows(r *run) {
	w := r.in("weights")
	out := r.alloc(tensor.F32, w.Dims()...)
	r.check(ops.Embedding.Call(r.Queue, ops.EmbeddingArgs{Out: out, Table: r.weight(w), IDs: r.counting(w.Shape[0])}))
	r.put("rows", out, tensor.F32)
	for _, in := range r.f.Inputs {
		r.used[in.key] = true
	}
}

// blockProducts multiplies every set of activations with the weight.
func blockProducts(r *run) {
	w := r.weight(r.in("weights"))
	for i := 0; r.has(fmt.Sprintf("x%d", i)); i++ {
		x := r.f32(fmt.Sprintf("x%d", i))
		out := r.alloc(tensor.F32, x.Shape[0], w.Shape[0])
		r.check(ops.MatmulBT.Call(r.Queue, ops.MatmulBTArgs{Out: out, A: x, B: w}))
		r.put(fmt.Sprintf("y%d", i), out, tensor.F32)
	}
}
