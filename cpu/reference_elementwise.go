package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// elementwiseReference registers the oracle's kernels of norms, activations and other work on single elements.
func (g *registrar) elementwiseReference() {
	t, exact := reference, registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.RMSNormGated, refRMSNormGated, exact, nil)
	add(g, t, ops.LayerNorm, refLayerNorm, exact, nil)
	add(g, t, ops.L2Norm, refL2Norm, exact, nil)
	add(g, t, ops.GroupNorm, refGroupNorm, exact, nil)
	add(g, t, ops.GeluAndMul, refGeluAndMul, exact, nil)
	add(g, t, ops.MoESiluMul, refMoESiluMul, exact, nil)
	add(g, t, ops.SigmoidGateBF16, refSigmoidGateBF16, exact, nil)
	add(g, t, ops.SoftCap, refSoftCap, exact, nil)
	add(g, t, ops.MulColVecF32, refMulColVecF32, exact, nil)
	add(g, t, ops.CastBF16, refCastBF16, exact, nil)
	add(g, t, ops.CastF32, refCastF32, exact, nil)
	add(g, t, ops.Cast, refCast, exact, nil)
	add(g, t, ops.AttnGateSplit, refAttnGateSplit, exact, nil)
	add(g, t, ops.Gelu, refGelu, exact, nil)
	add(g, t, ops.Swish, refSwish, exact, nil)
	add(g, t, ops.Sigmoid, refSigmoid, exact, nil)
	add(g, t, ops.Tanh, refTanh, exact, nil)
	add(g, t, ops.HardSwish, refHardSwish, exact, nil)
	add(g, t, ops.Softplus, refSoftplus, exact, nil)
	add(g, t, ops.Mul, refMul, exact, nil)
	add(g, t, ops.Clip, refClip, exact, nil)
	add(g, t, ops.LogSoftmax, refLogSoftmax, exact, nil)
}

// oneOperand is how the record of every op begins that works on single elements of one operand.
type oneOperand struct {
	registry.Header
	Out, X tensor.Tensor
}

// mapped makes a kernel of a function on pieces of one operand.
func mapped[P any](f func(a P, out, x []float32)) kernel[P] {
	part := func(j *job, lo, hi, worker int) {
		a, u, buf := *(*P)(unsafe.Pointer(&j.args)), (*oneOperand)(j.args), own[float32](j, worker)
		eachFlat(&u.Out, lo, hi, func(off, n int) {
			out := target(buf, &u.Out, off, n)
			f(a, out, plainHalves.load(buf[flat:], &u.X, off, n))
			plainHalves.store(&u.Out, off, out)
		})
	}
	return func(t *tier, q *registry.Queue, a P) registry.Status {
		u := *(**oneOperand)(unsafe.Pointer(&a))
		return mapFlat(t, q, unsafe.Pointer(u), &u.Header, &u.Out, part)
	}
}

// each1 is mapped of a function on single elements.
func each1[P any](f func(a P, x float32) float32) kernel[P] {
	return mapped(func(a P, out, x []float32) {
		for e, v := range x {
			out[e] = f(a, v)
		}
	})
}

// twoOperands is how the record of every op begins that works on single elements of two operands.
type twoOperands struct {
	registry.Header
	Out, A, B tensor.Tensor
}

// mapped2 makes a kernel of a function on pieces of two operands, of which the second repeats as often as it has to.
func mapped2[P any](f func(a P, out, x, y []float32), whole func(x, y int64) int64) kernel[P] {
	part := func(j *job, lo, hi, worker int) {
		a, u := *(*P)(unsafe.Pointer(&j.args)), (*twoOperands)(j.args)
		if !u.A.DType.IsFloat() {
			buf := own[int64](j, worker)
			eachFlat(&u.Out, lo, hi, func(off, n int) {
				x, y := buf[:n], buf[flat:][:n]
				loadWhole(x, &u.A, off)
				repeated(&u.B, off, n, func(at, from, n int) { loadWhole(y[at:at+n], &u.B, from) })
				for e, v := range y {
					x[e] = whole(x[e], v)
				}
				storeWhole(&u.Out, off, x)
			})
			return
		}
		buf := own[float32](j, worker)
		eachFlat(&u.Out, lo, hi, func(off, n int) {
			out, x := target(buf, &u.Out, off, n), plainHalves.load(buf[flat:], &u.A, off, n)
			y := buf[2*flat:][:n]
			repeated(&u.B, off, n, func(at, from, n int) { copy(y[at:], plainHalves.load(y[at:], &u.B, from, n)) })
			f(a, out, x, y)
			plainHalves.store(&u.Out, off, out)
		})
	}
	return func(t *tier, q *registry.Queue, a P) registry.Status {
		u := *(**twoOperands)(unsafe.Pointer(&a))
		return mapFlat(t, q, unsafe.Pointer(u), &u.Header, &u.Out, part)
	}
}

// repeated calls run for the runs of neighbours of x that make n elements from off on, x being repeated without end: n of
// them from place from of x on belong to place at.
func repeated(x *tensor.Tensor, off, n int, run func(at, from, n int)) {
	period := int(x.Numel())
	for at := 0; at < n; {
		from := (off + at) % period
		k := min(period-from, n-at)
		run(at, from, k)
		at += k
	}
}

// Kernels of single elements.
var (
	refRelu = mapped(func(_ *ops.ReluArgs, out, x []float32) {
		for e, v := range x {
			if !(v > 0) {
				v = 0
			}
			out[e] = v
		}
	})
	refMulScalar = mapped(func(a *ops.MulScalarArgs, out, x []float32) {
		s := float32(a.Scalar)
		for e, v := range x {
			out[e] = v * s
		}
	})
	refSoftCap = each1(func(a *ops.SoftCapArgs, x float32) float32 {
		c := float32(a.Cap)
		return c * tanh32(x/c)
	})
	refGelu      = each1(func(a *ops.GeluArgs, x float32) float32 { return gelu(x, a.Tanh) })
	refSwish     = each1(func(a *ops.SwishArgs, x float32) float32 { return silu(x, orOne(a.Alpha)) })
	refSigmoid   = each1(func(_ *ops.SigmoidArgs, x float32) float32 { return sigmoid(x) })
	refTanh      = each1(func(_ *ops.TanhArgs, x float32) float32 { return tanh32(x) })
	refHardSwish = each1(func(_ *ops.HardSwishArgs, x float32) float32 { return x * clip(float32(x/6)+0.5, 0, 1) })
	refSoftplus  = each1(func(a *ops.SoftplusArgs, x float32) float32 { return softplus(x, a.Threshold) })

	refAdd = mapped2(func(_ *ops.AddArgs, out, x, y []float32) {
		for e, v := range x {
			out[e] = v + y[e]
		}
	}, func(x, y int64) int64 { return x + y })
	refMul = mapped2(func(_ *ops.MulArgs, out, x, y []float32) {
		for e, v := range x {
			out[e] = v * y[e]
		}
	}, func(x, y int64) int64 { return x * y })
	refMoESiluMul      = mapped2(func(_ *ops.MoESiluMulArgs, out, x, y []float32) { siluMulRow(out, x, y, 1) }, nil)
	refSigmoidGateBF16 = mapped2(func(_ *ops.SigmoidGateBF16Args, out, x, y []float32) { sigmoidGateRow(out, x, y) }, nil)
)

// sigmoidGateRow writes x·sigmoid(gate) to out, which may be either.
func sigmoidGateRow(out, x, gate []float32) {
	for e, v := range x {
		out[e] = v * sigmoid(gate[e])
	}
}

func sigmoid(x float32) float32 { return 1 / (1 + exp32(-x)) }

// orOne is v, or 1 for the zero that stands for it.
func orOne(v float32) float32 {
	if v == 0 {
		return 1
	}
	return v
}

// gelu is the Gaussian error linear unit, exact or by its approximation with tanh.
func gelu(x float32, approximate bool) float32 {
	if approximate {
		inner := 0.7978845608028654 * (x + float32(float32(float32(0.044715*x)*x)*x))
		return float32(0.5*x) * (1 + tanh32(inner))
	}
	return float32(0.5 * float64(x) * math.Erfc(-float64(x)/math.Sqrt2)) // 1 + erf(v) is erfc(-v), which loses nothing
}

// softplus is log(1 + exp(x)), or x above a threshold, if there is one.
func softplus(x, threshold float32) float32 {
	const same = 40 // log(1 + exp(x)) is x from here on, also in float64
	if x > same || threshold > 0 && x > threshold {
		return x
	}
	return float32(math.Log1p(math.Exp(float64(x))))
}

func refGeluAndMul(t *tier, q *registry.Queue, a *ops.GeluAndMulArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, d := int(a.Out.Shape[0]), int(a.Out.Shape[1])
	if err := j.layout(0, 3*4*d); err != nil {
		return a.Fail(err)
	}
	j.each(rows, float64(25*d), func(j *job, lo, hi, worker int) {
		a := (*ops.GeluAndMulArgs)(j.args)
		d, buf := int(a.Out.Shape[1]), own[float32](j, worker)
		for i := lo; i < hi; i++ {
			gate, up := gateAndUp(&plainHalves, &a.X, &a.Up, i, d, buf)
			out := target(buf[2*d:], &a.Out, i*d, d)
			for e, g := range gate {
				out[e] = gelu(g, !a.Erf) * up[e]
			}
			plainHalves.store(&a.Out, i*d, out)
		}
	})
	return 0
}

func refMulColVecF32(t *tier, q *registry.Queue, a *ops.MulColVecF32Args) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	j.each(int(a.X.Shape[0]), float64(a.X.Shape[1]), func(j *job, lo, hi, _ int) {
		a := (*ops.MulColVecF32Args)(j.args)
		n := int(a.X.Shape[1])
		col := elems[float32](&a.Col, 0, n)
		for i := lo; i < hi; i++ {
			row := elems[float32](&a.X, i*int(a.X.Stride[0]), n)
			for e, v := range col {
				row[e] *= v
			}
		}
	})
	return 0
}

func refAttnGateSplit(t *tier, q *registry.Queue, a *ops.AttnGateSplitArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	j.each(int(a.QOut.Shape[0]*a.QOut.Shape[1]), float64(a.QOut.Shape[2]), func(j *job, lo, hi, _ int) {
		a := (*ops.AttnGateSplitArgs)(j.args)
		d := int(a.QOut.Shape[2])
		for i := lo; i < hi; i++ { // heads of all tokens
			for half, out := range [...]*tensor.Tensor{&a.QOut, &a.GateOut} {
				to := elems[float32](out, i*d, d)
				copy(to, plainHalves.load(to, &a.Qgate, (2*i+half)*d, d))
			}
		}
	})
	return 0
}

func refClip(t *tier, q *registry.Queue, a *ops.ClipArgs) registry.Status {
	return mapFlat(t, q, unsafe.Pointer(a), &a.Header, &a.Out, func(j *job, lo, hi, worker int) {
		a := (*ops.ClipArgs)(j.args)
		if !a.X.DType.IsFloat() {
			buf := own[int64](j, worker)
			low, high := int64(math.MinInt64), int64(math.MaxInt64)
			if a.Min.Present() {
				loadWhole(buf[:1], &a.Min, 0)
				low = buf[0]
			}
			if a.Max.Present() {
				loadWhole(buf[:1], &a.Max, 0)
				high = buf[0]
			}
			eachFlat(&a.Out, lo, hi, func(off, n int) {
				x := buf[:n]
				loadWhole(x, &a.X, off)
				for e, v := range x {
					x[e] = clip(v, low, high)
				}
				storeWhole(&a.Out, off, x)
			})
			return
		}
		buf := own[float32](j, worker)
		low, high := float32(math.Inf(-1)), float32(math.Inf(1))
		if a.Min.Present() {
			low = one(&a.Min, 0)
		}
		if a.Max.Present() {
			high = one(&a.Max, 0)
		}
		eachFlat(&a.Out, lo, hi, func(off, n int) {
			out := target(buf, &a.Out, off, n)
			for e, v := range plainHalves.load(buf[flat:], &a.X, off, n) {
				if v != v && a.NanToZero {
					v = 0
				}
				out[e] = clip(v, low, high)
			}
			plainHalves.store(&a.Out, off, out)
		})
	})
}

func refLogSoftmax(t *tier, q *registry.Queue, a *ops.LogSoftmaxArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, n := int(a.X.Shape[0]), int(a.X.Shape[1])
	if err := j.layout(0, 2*4*n); err != nil {
		return a.Fail(err)
	}
	j.each(rows, float64(15*n), func(j *job, lo, hi, worker int) {
		a := (*ops.LogSoftmaxArgs)(j.args)
		n, buf := int(a.X.Shape[1]), own[float32](j, worker)
		for i := lo; i < hi; i++ {
			s := buf[:n]
			for e, v := range plainHalves.load(s, &a.X, i*n, n) {
				s[e] = v * orOne(a.Scale)
			}
			out := target(buf[n:], &a.Out, i*n, n)
			logSoftmaxRow(out, s)
			plainHalves.store(&a.Out, i*n, out)
		}
	})
	return 0
}

// logSoftmaxRow writes the logarithms of softmax(x) to out, which may be x.
func logSoftmaxRow(out, x []float32) {
	m := largest(x)
	var sum float32
	for _, v := range x {
		sum += exp32(v - m)
	}
	lse := m + log32(sum)
	for e, v := range x {
		out[e] = v - lse
	}
}
