package cpu

import (
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// cache is one plane (K or V) of a paged cache [NB,BS,Hk,D].
type cache struct {
	x              *tensor.Tensor
	page, row      int // distance of pages and of rows in a page, in elements; without meaning for block dtypes
	rows, heads, d int // rows of a page, heads of a row, elements of a head
}

func cacheOf(x *tensor.Tensor) cache {
	return cache{x: x, page: int(x.Stride[0]), row: int(x.Stride[1]), rows: int(x.Shape[1]), heads: int(x.Shape[2]), d: int(x.Shape[3])}
}

// at returns the number of the first element of head h in row r of page p.
func (c *cache) at(p, r, h int) int {
	if c.x.DType.IsBlock() {
		return ((p*c.rows+r)*c.heads + h) * c.d
	}
	return p*c.page + r*c.row + h*c.d
}

// bytes returns the bytes of a head of a block dtype.
func (c *cache) bytes(p, r, h int) []byte {
	n, _ := c.x.DType.RowBytes(int64(c.d))
	return unsafe.Slice((*byte)(unsafe.Add(c.x.Host, ((p*c.rows+r)*c.heads+h)*int(n))), n)
}

// load returns a head as f32; buf has room for it.
func (c *cache) load(h *halves, buf []float32, p, r, head int) []float32 {
	if c.x.DType.IsBlock() {
		if err := tensor.Decode(buf[:c.d], c.x.DType, c.bytes(p, r, head)); err != nil {
			panic(err) // whole blocks: the validator has seen to it
		}
		return buf[:c.d]
	}
	return h.load(buf, c.x, c.at(p, r, head), c.d)
}

// span is the keys lo <= j <= hi that the query at position p of a request of n keys sees.
func span(p, n int, causal, windowed bool, left, right int32) (lo, hi int) {
	hi = n - 1
	if causal {
		hi = min(hi, p)
	}
	if windowed {
		lo, hi = max(0, p-int(left)), min(hi, p+int(right))
	}
	return lo, hi
}

// checkPages finds values that would lead outside the operands, before anything is written.
func checkPages(a *ops.PagedAttentionArgs) error {
	const op = "paged_attention"
	r, tq := int(a.SeqLens.Shape[0]), int(a.Query.Shape[0])
	nb, bs, mb := int(a.KCache.Shape[0]), int(a.KCache.Shape[1]), int(a.BlockTable.Shape[1])
	starts, lens := elems[int32](&a.QueryStartLoc, 0, r+1), elems[int32](&a.SeqLens, 0, r)
	if starts[0] != 0 {
		return badValue(op, "query_start_loc", "starts at %d, not 0", starts[0])
	}
	for i, n := range lens {
		if starts[i+1] < starts[i] || int(starts[i+1]) > tq {
			return badValue(op, "query_start_loc", "%d follows %d at request %d of %d query rows", starts[i+1], starts[i], i, tq)
		}
		if starts[i+1] == starts[i] {
			continue
		}
		if n < 0 || int(n) > mb*bs {
			return badValue(op, "seq_lens", "%d at request %d, the block table holds %d", n, i, mb*bs)
		}
		queries := int(starts[i+1] - starts[i])
		lo, _ := span(int(n)-queries, int(n), a.Causal, a.Windowed, a.WindowLeft, a.WindowRight)
		for b := lo / bs; b*bs < int(n); b++ {
			if p := block(a, i, b); p < 0 || p >= nb {
				return badValue(op, "block_table", "block %d at [%d,%d] is outside [0,%d)", p, i, b, nb)
			}
		}
	}
	return nil
}

// block returns the page of logical block b of request r.
func block(a *ops.PagedAttentionArgs, r, b int) int {
	off := r*int(a.BlockTable.Stride[0]) + b*int(a.BlockTable.Stride[1])
	return int(elems[int32](&a.BlockTable, off, 1)[0])
}

// request returns which request query row t belongs to; ok is false behind the last one.
func request(a *ops.PagedAttentionArgs, t int) (r int, ok bool) {
	n := int(a.SeqLens.Shape[0])
	starts := elems[int32](&a.QueryStartLoc, 0, n+1)
	r = sequence(starts, t)
	return r, t < int(starts[n])
}
