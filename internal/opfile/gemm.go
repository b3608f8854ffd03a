package opfile

import (
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// gemm is alpha·A'·B' + beta·C, C repeated to the product's shape; A' and B' are transposed where the file says so.
func gemm(r *run) {
	a, b := r.f32("A"), r.f32("B")
	r.rank("A", a, 2)
	r.rank("B", b, 2)
	if r.attrs.bool("transA", false) {
		a = r.permute(a, 1, 0)
	}
	if r.attrs.bool("transB", false) {
		b = r.permute(b, 1, 0)
	}
	if a.Shape[1] != b.Shape[0] {
		r.fail(ErrFormat, "", "product of %v and %v", &a, &b)
	}
	out := r.alloc(tensor.F32, a.Shape[0], b.Shape[1])
	productNN(r, out, a, b)
	scale := func(x tensor.Tensor, by float64) {
		if by != 1 && x.Numel() > 0 {
			r.check(ops.MulScalar.Call(r.Queue, ops.MulScalarArgs{Out: x, X: x, Scalar: by}))
		}
	}
	scale(out, r.attrs.float("alpha", 1))
	beta := r.attrs.float("beta", 1)
	if r.has("C") {
		c := r.copyOf(r.expand(r.f32("C"), out.Dims()))
		scale(c, beta)
		r.check(ops.Add.Call(r.Queue, ops.AddArgs{Out: out, A: out, B: c}))
	}
	r.put("Y", out, tensor.F32)
}

// intProduct multiplies batches of 8-bit matrices; finish completes the record of one.
func intProduct(r *run, dt tensor.DType, finish func(a *ops.MatmulInt8Args)) {
	a, b := r.in("A"), r.in("B")
	for _, x := range []*tensor.Tensor{&a, &b} {
		if x.Rank < 2 || x.DType != tensor.I8 && x.DType != tensor.U8 {
			r.fail(ErrNoOp, "", "product of %v and %v", &a, &b)
		}
	}
	m, k, n := a.Shape[a.Rank-2], a.Last(), b.Last()
	batch := r.broadcast(a.Dims()[:a.Rank-2], b.Dims()[:b.Rank-2])
	count := product(batch)
	a3 := r.view(r.expand(a, append(append([]int64{}, batch...), m, k)), count, m, k)
	b3 := r.view(r.expand(b, append(append([]int64{}, batch...), b.Shape[b.Rank-2], n)), count, b.Shape[b.Rank-2], n)
	out := r.alloc(dt, count, m, n)
	for i := range count {
		args := ops.MatmulInt8Args{Out: r.sub(out, i), A: r.sub(a3, i), B: r.sub(b3, i)}
		finish(&args)
		r.check(ops.MatmulInt8.Call(r.Queue, args))
	}
	r.put("Y", r.view(out, append(append([]int64{}, batch...), m, n)...), dt)
}

// list returns an operand of one dimension, a number as one of length 1.
func (r *run) list(x tensor.Tensor) tensor.Tensor { return r.view(x, x.Numel()) }

func matMulInteger(r *run) {
	intProduct(r, tensor.I32, func(a *ops.MatmulInt8Args) {
		if r.has("a_zero_point") {
			a.AZeroPoint = r.list(r.in("a_zero_point"))
		}
		if r.has("b_zero_point") {
			a.BZeroPoint = r.list(r.in("b_zero_point"))
		}
	})
}

func qLinearMatMul(r *run) {
	zero := r.in("y_zero_point")
	intProduct(r, zero.DType, func(a *ops.MatmulInt8Args) {
		a.AZeroPoint, a.BZeroPoint, a.YZeroPoint = r.list(r.in("a_zero_point")), r.list(r.in("b_zero_point")), r.list(zero)
		a.AScale, a.BScale, a.YScale = r.list(r.f32("a_scale")), r.list(r.f32("b_scale")), r.list(r.f32("y_scale"))
	})
}
