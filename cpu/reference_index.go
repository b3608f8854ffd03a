package cpu

import (
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

func refTopK(t *tier, q *registry.Queue, a *ops.TopKArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, n, k := int(a.X.Shape[0]), int(a.X.Shape[1]), int(a.Indices.Shape[1])
	if err := j.layout(0, 8*(n+k)); err != nil {
		return a.Fail(err)
	}
	j.each(rows, float64(10*n), func(j *job, lo, hi, worker int) {
		a := (*ops.TopKArgs)(j.args)
		n, k := int(a.X.Shape[1]), int(a.Indices.Shape[1])
		mem := own[int64](j, worker)
		heap := mem[n:][:k]
		for i := lo; i < hi; i++ {
			if a.X.DType.IsFloat() {
				first(heap, plainHalves.load(cast32(mem), &a.X, i*n, n), a.Smallest)
			} else {
				loadWhole(mem[:n], &a.X, i*n)
				first(heap, mem[:n], a.Smallest)
			}
			for e, at := range heap {
				if a.Indices.DType == tensor.I32 {
					elems[int32](&a.Indices, i*k, k)[e] = int32(at)
				} else {
					elems[int64](&a.Indices, i*k, k)[e] = at
				}
				if a.Values.Present() {
					move(&a.Values, i*k+e, &a.X, i*n+int(at), 1)
				}
			}
		}
	})
	return 0
}

// cast32 views scratch memory of 64-bit words as floats.
func cast32(b []int64) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), 2*len(b))
}

// first writes the places of the elements of x that come first to heap, in their order.
func first[T float32 | int64](heap []int64, x []T, smallest bool) {
	k := len(heap)
	if k == 0 {
		return
	}
	for i := range x {
		switch {
		case i < k: // up
			at := i
			for heap[at] = int64(i); at > 0 && before(x, heap[(at-1)/2], heap[at], smallest); at = (at - 1) / 2 {
				heap[at], heap[(at-1)/2] = heap[(at-1)/2], heap[at]
			}
		case before(x, int64(i), heap[0], smallest): // takes the place of the last one, which is the root
			heap[0] = int64(i)
			down(heap, x, smallest)
		}
	}
	for n := k - 1; n > 0; n-- {
		heap[0], heap[n] = heap[n], heap[0]
		down(heap[:n], x, smallest)
	}
}

// down lets the root of a heap, whose root comes last, sink to its place.
func down[T float32 | int64](heap []int64, x []T, smallest bool) {
	for at := 0; ; {
		child := 2*at + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && before(x, heap[child], heap[child+1], smallest) {
			child++
		}
		if before(x, heap[child], heap[at], smallest) {
			return
		}
		heap[at], heap[child] = heap[child], heap[at]
		at = child
	}
}

// before reports whether place i comes before place k: larger elements first, or smaller ones, NaN last, equal ones as they stand.
func before[T float32 | int64](x []T, i, k int64, smallest bool) bool {
	a, b := x[i], x[k]
	switch {
	case a < b:
		return smallest
	case a > b:
		return !smallest
	case a == b || a != a && b != b:
		return i < k
	}
	return a == a
}

// move copies n elements of single-element dtypes.
func move(to *tensor.Tensor, at int, from *tensor.Tensor, off, n int) {
	size := to.DType.Size()
	copy(unsafe.Slice((*byte)(unsafe.Add(to.Host, at*size)), n*size), unsafe.Slice((*byte)(unsafe.Add(from.Host, off*size)), n*size))
}

// place returns where id i lies among n, counted from the end if it is negative.
func place(ids *tensor.Tensor, i int, n int64) (at int64, ok bool) {
	at = index(ids, i)
	if at < 0 {
		at += n
	}
	return at, at >= 0 && at < n
}

func refGather(t *tier, q *registry.Queue, a *ops.GatherArgs) registry.Status {
	n := a.Data.Shape[a.Axis]
	for i := range int(a.IDs.Numel()) {
		if _, ok := place(&a.IDs, i, n); !ok {
			return a.Fail(badValue("gather", "ids", "id %d at %d is outside [%d,%d)", index(&a.IDs, i), i, -n, n))
		}
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	inner := 1
	for _, d := range a.Data.Dims()[a.Axis+1:] {
		inner *= int(d)
	}
	j.n[0] = inner
	j.each(int(a.Out.Numel())/inner, float64(inner), func(j *job, lo, hi, _ int) {
		a := (*ops.GatherArgs)(j.args)
		inner, n, ids := j.n[0], a.Data.Shape[a.Axis], int(a.IDs.Numel())
		for i := lo; i < hi; i++ {
			at, _ := place(&a.IDs, i%ids, n)
			move(&a.Out, i*inner, &a.Data, (i/ids*int(n)+int(at))*inner, inner)
		}
	})
	return 0
}

// slice returns the number of the slice of data that row i of ids names.
func slice(a *ops.ScatterArgs, i int) (at int, bad int, ok bool) {
	k := int(a.IDs.Last())
	for d := range k {
		n := a.Data.Shape[d]
		p, ok := place(&a.IDs, i*k+d, n)
		if !ok {
			return 0, i*k + d, false
		}
		at = at*int(n) + int(p)
	}
	return at, 0, true
}

// refScatter works on one thread: updates of one element follow each other.
func refScatter(t *tier, q *registry.Queue, a *ops.ScatterArgs) registry.Status {
	k := int(a.IDs.Last())
	rows := int(a.IDs.Numel()) / k
	for i := range rows {
		if _, bad, ok := slice(a, i); !ok {
			n := a.Data.Shape[bad%k]
			return a.Fail(badValue("scatter", "ids", "id %d at %d is outside [%d,%d)", index(&a.IDs, bad), bad, -n, n))
		}
	}
	inner := 1
	for _, d := range a.Data.Dims()[k:] {
		inner *= int(d)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	if err := j.layout(0, 8*2*flat); err != nil {
		return a.Fail(err)
	}
	for i := range rows {
		at, _, _ := slice(a, i)
		for e := 0; e < inner; e += flat {
			n := min(flat, inner-e)
			combine(j, a, at*inner+e, i*inner+e, n)
		}
	}
	return 0
}

// combine puts n updates from off on to the elements of data from at on.
func combine(j *job, a *ops.ScatterArgs, at, off, n int) {
	switch {
	case a.Reduction == ops.ScatterSet:
		move(&a.Data, at, &a.Updates, off, n)
	case a.Data.DType.IsFloat():
		buf := own[float32](j, 0)
		x := target(buf, &a.Data, at, n)
		x = plainHalves.load(x, &a.Data, at, n)
		reduce(x, plainHalves.load(buf[flat:], &a.Updates, off, n), a.Reduction)
		plainHalves.store(&a.Data, at, x)
	default:
		buf := own[int64](j, 0)
		x, y := buf[:n], buf[flat:][:n]
		loadWhole(x, &a.Data, at)
		loadWhole(y, &a.Updates, off)
		reduce(x, y, a.Reduction)
		storeWhole(&a.Data, at, x)
	}
}

func reduce[T float32 | int64](x, y []T, r ops.ScatterReduction) {
	for e, v := range y {
		switch r {
		case ops.ScatterAdd:
			x[e] += v
		case ops.ScatterMul:
			x[e] *= v
		case ops.ScatterMin:
			if v < x[e] || v != v {
				x[e] = v
			}
		case ops.ScatterMax:
			if v > x[e] || v != v {
				x[e] = v
			}
		}
	}
}

func refCumsum(t *tier, q *registry.Queue, a *ops.CumsumArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	n := int(a.X.Last())
	if err := j.layout(0, 8*n); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.X.Numel())/n, float64(3*n), func(j *job, lo, hi, worker int) {
		a := (*ops.CumsumArgs)(j.args)
		n := int(a.X.Last())
		for i := lo; i < hi; i++ {
			switch {
			case a.X.DType == tensor.F64:
				v := own[float64](j, worker)[:n]
				loadWide(v, &a.X, i*n)
				runningSums(v, a.Exclusive, a.Reverse)
				storeWide(&a.Out, i*n, v, false, 0)
			case a.X.DType.IsFloat():
				v := own[float32](j, worker)[:n]
				copy(v, plainHalves.load(v, &a.X, i*n, n))
				runningSums(v, a.Exclusive, a.Reverse)
				plainHalves.store(&a.Out, i*n, v)
			default:
				v := own[int64](j, worker)[:n]
				loadWhole(v, &a.X, i*n)
				runningSums(v, a.Exclusive, a.Reverse)
				storeWhole(&a.Out, i*n, v)
			}
		}
	})
	return 0
}

// runningSums replaces elements by the sums up to them.
func runningSums[T float32 | float64 | int64](v []T, exclusive, reverse bool) {
	var sum T
	for i := range v {
		e := i
		if reverse {
			e = len(v) - 1 - i
		}
		x := v[e]
		if exclusive {
			v[e] = sum
		}
		if sum += x; !exclusive {
			v[e] = sum
		}
	}
}

func refGreedyRejectionSample(t *tier, q *registry.Queue, a *ops.GreedyRejectionSampleArgs) registry.Status {
	cu, requests, width := &a.CuNumLogits, int(a.NumSampled.Shape[0]), a.Sampled.Shape[1]
	if c := index(cu, 0); c != 0 {
		return a.Fail(badValue("greedy_rejection_sample", "cu_num_logits", "starts at %d", c))
	}
	for r := range requests {
		if n := index(cu, r+1) - index(cu, r); n < 1 || n > width {
			return a.Fail(badValue("greedy_rejection_sample", "cu_num_logits", "request %d has %d rows, not 1 to %d", r, n, width))
		}
	}
	if c := index(cu, requests); c != a.Logits.Shape[0] {
		return a.Fail(badValue("greedy_rejection_sample", "cu_num_logits", "ends at %d of %d rows", c, a.Logits.Shape[0]))
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	j.each(requests, float64(a.Logits.Shape[1]), func(j *job, lo, hi, _ int) {
		a := (*ops.GreedyRejectionSampleArgs)(j.args)
		for r := lo; r < hi; r++ {
			from, to := int(index(&a.CuNumLogits, r)), int(index(&a.CuNumLogits, r+1))
			out := row[int32](&a.Sampled, r)
			for i := range out {
				out[i] = -1
			}
			n := 0
			for i := from; i < to; i++ {
				token := int32(argmax(row[float32](&a.Logits, i), false))
				out[n] = token
				n++
				if i+1 < to && token != elems[int32](&a.DraftSampled, i+1, 1)[0] {
					break
				}
			}
			elems[int32](&a.NumSampled, r, 1)[0] = int32(n)
		}
	})
	return 0
}

// argmax returns the place of the largest, the first of equal ones, or the last.
func argmax(x []float32, last bool) (best int) {
	for e, v := range x {
		if v > x[best] || last && v == x[best] {
			best = e
		}
	}
	return best
}
