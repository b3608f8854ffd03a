package opfile

import (
	"slices"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Norms, activations, and what else works on single elements.

// layerNormalization normalizes over axis and all dimensions behind it.
func layerNormalization(r *run) {
	x := r.float("X")
	axis := r.axis("axis", r.attrs.int("axis", -1), &x)
	width := x.Dims()[axis:]
	rows := r.flat(x, len(width))
	a := ops.LayerNormArgs{X: rows, Out: r.alloc(outFloat(x.DType), rows.Dims()...), Eps: float32(r.attrs.float("epsilon", 1e-5)),
		Weight: r.view(r.expand(r.float("Scale"), width), product(width))}
	if r.has("B") {
		a.Bias = r.view(r.expand(r.float("B"), width), product(width))
	}
	if stash := r.attrs.int("stash_type", 1); stash != 1 {
		r.fail(ErrNoOp, "stash_type", "moments of type %d", stash)
	}
	moments := slices.Clone(x.Dims())
	for d := range width {
		moments[axis+d] = 1
	}
	if r.f.expected("Mean") != nil {
		a.Mean = r.alloc(tensor.F32, moments...)
	}
	if r.f.expected("InvStdDev") != nil {
		a.InvStdDev = r.alloc(tensor.F32, moments...)
	}
	r.check(ops.LayerNorm.Call(r.Queue, a))
	r.put("Y", r.view(a.Out, x.Dims()...), x.DType)
	if a.Mean.Present() {
		r.put("Mean", a.Mean, tensor.F32)
	}
	if a.InvStdDev.Present() {
		r.put("InvStdDev", a.InvStdDev, tensor.F32)
	}
}

func ggmlLayerNorm(r *run) {
	x := r.float("x")
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	r.check(ops.LayerNorm.Call(r.Queue, ops.LayerNormArgs{Out: out, X: x, Eps: float32(r.attrs.float("eps", 0))}))
	r.put("y", out, x.DType)
}

func groupNormalization(r *run) {
	x := r.float("X")
	if r.f.Opset > 0 && r.f.Opset < 21 {
		r.fail(ErrNoOp, r.f.Name, "scales of groups: version %d of the operator set", r.f.Opset)
	}
	if stash := r.attrs.int("stash_type", 1); stash != 1 {
		r.fail(ErrNoOp, "stash_type", "moments of type %d", stash)
	}
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	r.check(ops.GroupNorm.Call(r.Queue, ops.GroupNormArgs{Out: out, X: x, Weight: r.float("scale"), Bias: r.float("bias"),
		Eps: float32(r.attrs.float("epsilon", 1e-5)), NumGroups: r.attrs.int32("num_groups", 0)}))
	r.put("Y", out, x.DType)
}

// lengthRows divides rows by their length; rows of zeros stay.
func lengthRows(r *run, x tensor.Tensor) tensor.Tensor {
	if p := r.attrs.int("p", 2); p != 2 {
		r.fail(ErrNoOp, "p", "norm of order %d", p)
	}
	out := r.alloc(outFloat(x.DType), x.Dims()...)
	const tiny = 1e-37 // less than any length but 0, and its inverse is finite
	r.check(ops.L2Norm.Call(r.Queue, ops.L2NormArgs{Out: out, X: x, Eps: tiny, Clamp: true}))
	return out
}

// l2Norm divides rows by their length with an eps that is the least one, or added to its square.
func l2Norm(result string, clamp bool) func(*run) {
	return func(r *run) {
		x := r.float("x")
		rows := r.flat(x, 1)
		out := r.alloc(outFloat(x.DType), rows.Dims()...)
		r.check(ops.L2Norm.Call(r.Queue, ops.L2NormArgs{Out: out, X: rows, Eps: float32(r.attrs.float("eps", 1e-6)), Clamp: clamp}))
		r.put(result, r.view(out, x.Dims()...), x.DType)
	}
}

func vllmRMSNormGated(r *run) {
	x := r.float("x")
	a := ops.RMSNormGatedArgs{X: x, Gate: r.float("gate"), Weight: r.float("weight"), Out: r.alloc(outFloat(x.DType), x.Dims()...), Eps: float32(r.attrs.float("eps", 1e-6))}
	switch act := r.attrs.text("activation", "silu"); act {
	case "silu", "swish":
	case "sigmoid":
		a.SigmoidGate = true
	default:
		r.fail(ErrNoOp, "activation", "gate by %s", act)
	}
	if n := r.attrs.int("group_size", x.Last()); n != x.Last() {
		r.fail(ErrNoOp, "group_size", "groups of %d in rows of %d", n, x.Last())
	}
	if !r.attrs.bool("norm_before_gate", true) {
		r.fail(ErrNoOp, "norm_before_gate", "a norm behind the gate")
	}
	r.check(ops.RMSNormGated.Call(r.Queue, a))
	r.put("out", a.Out, x.DType)
}

// single runs an op on single elements of one operand.
func single(in, out string, call func(r *run, out, x tensor.Tensor) error) func(*run) {
	return func(r *run) {
		x := r.float(in)
		flat := r.view(x, x.Numel())
		y := r.alloc(outFloat(x.DType), flat.Dims()...)
		r.check(call(r, y, flat))
		r.put(out, r.view(y, x.Dims()...), x.DType)
	}
}

func gelu(r *run, out, x tensor.Tensor) error {
	approximate := r.attrs.text("approximate", "none")
	if approximate != "none" && approximate != "tanh" {
		r.fail(ErrFormat, "approximate", "%q", approximate)
	}
	return ops.Gelu.Call(r.Queue, ops.GeluArgs{Out: out, X: x, Tanh: approximate == "tanh"})
}

func swish(r *run, out, x tensor.Tensor) error {
	return ops.Swish.Call(r.Queue, ops.SwishArgs{Out: out, X: x, Alpha: notZero(r.attrs.float("alpha", 1))})
}

func sigmoid(r *run, out, x tensor.Tensor) error {
	return ops.Sigmoid.Call(r.Queue, ops.SigmoidArgs{Out: out, X: x})
}

func tanh(r *run, out, x tensor.Tensor) error {
	return ops.Tanh.Call(r.Queue, ops.TanhArgs{Out: out, X: x})
}

func softplus(r *run, out, x tensor.Tensor) error {
	return ops.Softplus.Call(r.Queue, ops.SoftplusArgs{Out: out, X: x})
}

func hardSwish(r *run, out, x tensor.Tensor) error {
	return ops.HardSwish.Call(r.Queue, ops.HardSwishArgs{Out: out, X: x})
}

// ggmlGeGLU is the exact gelu of gate, times up.
func ggmlGeGLU(r *run) {
	gate := r.float("gate")
	x, up := r.flat(gate, 1), r.flat(r.float("up"), 1)
	out := r.alloc(outFloat(gate.DType), x.Dims()...)
	r.check(ops.GeluAndMul.Call(r.Queue, ops.GeluAndMulArgs{Out: out, X: x, Up: up, Erf: true}))
	r.put("y", r.view(out, gate.Dims()...), gate.DType)
}

// ggmlSwiGLUOAI is swiglu of limited factors, times up + 1.
func ggmlSwiGLUOAI(r *run) {
	gate := r.float("gate")
	x, up := r.flat(gate, 1), r.flat(r.float("up"), 1)
	out := r.alloc(outFloat(gate.DType), x.Dims()...)
	r.check(ops.SiluAndMul.Call(r.Queue, ops.SiluAndMulArgs{Out: out, X: x, Up: up, Alpha: notZero(r.attrs.float("alpha", 1.702)),
		Limit: notZero(r.attrs.float("limit", 7)), PlusOne: true}))
	r.put("y", r.view(out, gate.Dims()...), gate.DType)
}

// number is in for operands of ops that take floats and whole numbers.
func (r *run) number(key string) tensor.Tensor {
	x := r.in(key)
	if !x.DType.IsFloat() && !isWhole(x.DType) {
		r.fail(ErrNoOp, r.find(key).Name, "operand dtype %v", x.DType)
	}
	return x
}

// ofTwo is a sum or product with NumPy's broadcasting. A b of one row, or of one element, goes to the op as it is, which
// repeats it by itself.
func ofTwo(call func(r *run, out, a, b tensor.Tensor) error) func(*run) {
	return func(r *run) {
		a, b := r.number("A"), r.number("B")
		if a.DType != b.DType {
			r.fail(ErrFormat, "", "%v and %v", &a, &b)
		}
		shape := r.broadcast(a.Dims(), b.Dims())
		a = r.expand(a, shape)
		switch {
		case b.Numel() == 1:
			b = r.view(b, 1)
		case b.Rank == 1 && a.Rank >= 2 && b.Last() == a.Last():
		default:
			b = r.expand(b, shape)
		}
		if len(shape) == 0 { // ops know no scalars
			a = r.view(a, 1)
		}
		out := r.alloc(outFloat(a.DType), a.Dims()...)
		r.check(call(r, out, a, b))
		r.put("C", r.view(out, shape...), a.DType)
	}
}

func sum(r *run, out, a, b tensor.Tensor) error {
	return ops.Add.Call(r.Queue, ops.AddArgs{Out: out, A: a, B: b})
}

func multiply(r *run, out, a, b tensor.Tensor) error {
	return ops.Mul.Call(r.Queue, ops.MulArgs{Out: out, A: a, B: b})
}

// clip takes bounds that are scalars, each of which may be left out.
func clip(r *run) {
	x := r.number("input")
	flat := r.view(x, x.Numel())
	a := ops.ClipArgs{X: flat, Out: r.alloc(outFloat(x.DType), flat.Dims()...)}
	if r.has("min") {
		a.Min = r.view(r.number("min"), 1)
	}
	if r.has("max") {
		a.Max = r.view(r.number("max"), 1)
	}
	r.check(ops.Clip.Call(r.Queue, a))
	r.put("output", r.view(a.Out, x.Dims()...), x.DType)
}

// onnxTypes are the numbers of ONNX for dtypes here. Truth values are not bytes that are cast.
var onnxTypes = map[int64]tensor.DType{1: tensor.F32, 2: tensor.U8, 3: tensor.I8, 5: tensor.I16, 6: tensor.I32, 7: tensor.I64, 10: tensor.F16, 11: tensor.F64,
	16: tensor.BF16, 17: tensor.F8E4M3FN, 19: tensor.F8E5M2, 24: tensor.F8E8M0}

var roundModes = map[string]tensor.Rounding{"nearest": tensor.Nearest, "up": tensor.RoundUp, "down": tensor.RoundDown}

func cast(r *run) {
	to := r.attrs.int("to", 0)
	dt, ok := onnxTypes[to]
	if !ok {
		r.fail(ErrNoOp, "to", "a cast to type %d", to)
	}
	mode := r.attrs.text("round_mode", "up")
	round, ok := roundModes[mode]
	if !ok {
		r.fail(ErrFormat, "round_mode", "%q", mode)
	}
	x := r.held("input") // small whole numbers are what they are, whatever holds them
	if t := r.find("input"); t.DType == "f4e2m1" {
		r.fail(ErrNoOp, t.Name, "operand dtype %s", t.DType)
	}
	flat := r.view(x, x.Numel())
	out := r.alloc(dt, flat.Dims()...)
	r.check(ops.Cast.Call(r.Queue, ops.CastArgs{Out: out, In: flat, Saturate: r.attrs.bool("saturate", true), RoundMode: round}))
	r.put("output", r.view(out, x.Dims()...), dt)
}
