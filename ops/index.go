package ops

import (
	"math"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// TopKArgs is the record of TopK: the K largest elements of each row, or the smallest, and where they stand. They are sorted;
// equal ones, of which -0 and +0 are two, keep their order in the row. NaN comes last, whichever end is asked for.
type TopKArgs struct {
	registry.Header
	Values   tensor.Tensor `op:"out,opt" shape:"T,K" dtype:"like x"`
	Indices  tensor.Tensor `op:"out" shape:"T,K" dtype:"index"`
	X        tensor.Tensor `op:"in" shape:"T,N" dtype:"float int"` // N >= K
	Smallest bool          // the smallest first
}

// GatherArgs is the record of Gather: out[a..., i..., b...] = data[a..., ids[i...], b...], ids standing in for dimension Axis of
// data. A negative id counts from the end.
type GatherArgs struct {
	registry.Header
	Out  tensor.Tensor `op:"out" shape:"any" dtype:"like data"`
	Data tensor.Tensor `op:"in" shape:"any" dtype:"element"`
	IDs  tensor.Tensor `op:"in" shape:"any" dtype:"index"` // each in [-n, n), n the extent of the axis
	Axis int32         // 0 to data's rank - 1
}

// ScatterReduction says what becomes of an element that an update meets.
type ScatterReduction uint8

// Reductions of Scatter.
const (
	ScatterSet ScatterReduction = iota // the update; of several the last one
	ScatterAdd
	ScatterMul
	ScatterMin // NaN of either stays
	ScatterMax // NaN of either stays
	numScatterReductions
)

// ScatterArgs is the record of Scatter: each row of ids, along its last dimension of k numbers, names an element of data's
// first k dimensions, a slice of the others, and the slice of updates that belongs to it is combined with that, one after the
// other in the order of ids, each result rounded to data's dtype. Whole numbers wrap around. A negative id counts from the end.
type ScatterArgs struct {
	registry.Header
	Data      tensor.Tensor    `op:"inout" shape:"any" dtype:"float int"`
	IDs       tensor.Tensor    `op:"in" shape:"any" dtype:"index"`     // [I..., k], 1 <= k <= data's rank; each in [-n, n)
	Updates   tensor.Tensor    `op:"in" shape:"any" dtype:"like data"` // [I..., data's dimensions from k on]; [1] if there are neither
	Reduction ScatterReduction // 0 set, 1 add, 2 mul, 3 min, 4 max
}

// CumsumArgs is the record of Cumsum: sums along the last dimension, element by element from its start, each including its own
// element. Floats of 16 and 32 bits add up in f32, f64 in f64; whole numbers wrap around.
type CumsumArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"like x" dtype:"like x"`
	X         tensor.Tensor `op:"in" shape:"any" dtype:"float f64 int"`
	Exclusive bool          // without the own element: the first sum is 0
	Reverse   bool          // from the end
}

// GreedyRejectionSampleArgs is the record of GreedyRejectionSample. Request r owns the rows cu[r] to cu[r+1]-1 of logits, of which
// each but the first verifies the draft token of its row: the arg max of the row before it, the lowest of equal ones, is
// sampled, and the request goes on while that is the draft token. A request whose drafts are all accepted samples its last
// row, too. Places that are not reached hold -1.
type GreedyRejectionSampleArgs struct {
	registry.Header
	Sampled      tensor.Tensor `op:"out" shape:"R,W" dtype:"i32"` // W >= rows of any request
	NumSampled   tensor.Tensor `op:"out" shape:"R" dtype:"i32"`
	Logits       tensor.Tensor `op:"in" shape:"L,V" dtype:"f32"` // V > 0 when L > 0
	DraftSampled tensor.Tensor `op:"in" shape:"L" dtype:"i32"`   // the entry of a request's first row is not looked at
	CuNumLogits  tensor.Tensor `op:"in" shape:"R+1" dtype:"i32"` // rising from 0 to L
}

// Selection and movement of elements and rows by index, sums along rows, verification of draft tokens.
var (
	TopK = define(OpTopK, "top_k", "index", "top_k", "the largest or smallest elements of rows and their places",
		func(a *TopKArgs) *OpError {
			if n, k := a.X.Shape[1], a.Indices.Shape[1]; k > n {
				return bad(ErrShape, "x", "%d elements a row for the first %d", n, k)
			} else if a.Indices.DType == tensor.I32 && n > math.MaxInt32 {
				return bad(ErrDType, "indices", "places of %d elements in i32", n)
			}
			return nil
		})
	Gather  = define(OpGather, "gather", "index", "gather", "slices of a tensor by their index along an axis", checkGather)
	Scatter = define(OpScatter, "scatter", "index", "scatter_nd", "slices of a tensor set or combined with others, by index", checkScatter)
	Cumsum  = define[CumsumArgs](OpCumsum, "cumsum", "index", "cumsum", "running sums along the last dimension", nil)

	GreedyRejectionSample = define(OpGreedyRejectionSample, "greedy_rejection_sample", "spec_decode", "greedy_rejection",
		"draft tokens verified against the arg max of the target's logits",
		func(a *GreedyRejectionSampleArgs) *OpError {
			if a.Logits.Shape[0] > 0 && a.Logits.Shape[1] == 0 {
				return bad(ErrShape, "logits", "rows of no tokens")
			}
			return nil
		})
)

func checkGather(a *GatherArgs) *OpError {
	x, ids, out := a.Data.Dims(), a.IDs.Dims(), a.Out.Dims()
	axis := int(a.Axis)
	if axis < 0 || axis >= len(x) {
		return bad(ErrAttr, "axis", "%d of rank %d", a.Axis, len(x))
	}
	if len(out) != len(x)-1+len(ids) {
		return bad(ErrRank, "out", "rank is %d, want %d", len(out), len(x)-1+len(ids))
	}
	for d, n := range out {
		want := int64(0)
		switch {
		case d < axis:
			want = x[d]
		case d < axis+len(ids):
			want = ids[d-axis]
		default:
			want = x[d-len(ids)+1]
		}
		if n != want {
			return bad(ErrShape, "out", "extent %d of %v is not %d", d, out, want)
		}
	}
	return nil
}

func checkScatter(a *ScatterArgs) *OpError {
	if a.Reduction >= numScatterReductions {
		return bad(ErrAttr, "reduction", "%d is not known", a.Reduction)
	}
	x, up := a.Data.Dims(), a.Updates.Dims()
	ids := a.IDs.Dims()
	k := ids[len(ids)-1]
	if k < 1 || k > int64(len(x)) {
		return bad(ErrShape, "ids", "%d numbers name an element of rank %d", k, len(x))
	}
	ids = ids[:len(ids)-1]
	rest := x[k:]
	if len(ids)+len(rest) == 0 { // one element
		if len(up) != 1 || up[0] != 1 {
			return bad(ErrShape, "updates", "shape %v for one element", up)
		}
		return nil
	}
	if len(up) != len(ids)+len(rest) {
		return bad(ErrRank, "updates", "rank is %d, want %d", len(up), len(ids)+len(rest))
	}
	for d, n := range up {
		want := int64(0)
		if d < len(ids) {
			want = ids[d]
		} else {
			want = rest[d-len(ids)]
		}
		if n != want {
			return bad(ErrShape, "updates", "extent %d of %v is not %d", d, up, want)
		}
	}
	return nil
}
