package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// GeluAndMulArgs is the record of GeluAndMul: out = gelu(g)·u. The gate g is the first half of each row of x and u the
// second; with Up present g is x itself and u is up. gelu(g) = 0.5·g·(1 + tanh(√(2/π)·(g + 0.044715·g³))), or with Erf
// 0.5·g·(1 + erf(g/√2)).
type GeluAndMulArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"T,D" dtype:"outfloat"`
	X   tensor.Tensor `op:"in" shape:"T,W" dtype:"float"` // W is 2·D, or D with Up
	Up  tensor.Tensor `op:"in,opt" shape:"T,D" dtype:"float"`
	Erf bool          // the exact function, not its approximation by tanh
}

// MoESiluMulArgs is the record of MoESiluMul: out = silu(gate)·up, element by element in memory order.
type MoESiluMulArgs struct {
	registry.Header
	Out  tensor.Tensor `op:"out" shape:"any" dtype:"outfloat"`
	Gate tensor.Tensor `op:"in" shape:"any" dtype:"float"` // as many elements as out
	Up   tensor.Tensor `op:"in" shape:"any" dtype:"float"` // as many elements as out
}

// SigmoidGateBF16Args is the record of SigmoidGateBF16: out = attn·sigmoid(gate), element by element in memory order.
type SigmoidGateBF16Args struct {
	registry.Header
	Out  tensor.Tensor `op:"out" shape:"any" dtype:"bf16"`
	Attn tensor.Tensor `op:"in" shape:"any" dtype:"f32 bf16"` // as many elements as out
	Gate tensor.Tensor `op:"in" shape:"any" dtype:"f32"`      // as many elements as out; not rounded before
}

// SoftCapArgs is the record of SoftCap: out = c·tanh(x/c) with c = float32(cap). -inf becomes -c: masks come after. Out may
// be x when the dtypes are equal.
type SoftCapArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X   tensor.Tensor `op:"in" shape:"any" dtype:"float"`
	Cap float64       // > 0, finite, also as a float32
}

// GeluArgs is the record of Gelu: out = 0.5·x·(1 + erf(x/√2)), or with Tanh its approximation, see GeluAndMulArgs. Out may be
// x when the dtypes are equal.
type GeluArgs struct {
	registry.Header
	Out  tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X    tensor.Tensor `op:"in" shape:"any" dtype:"float"`
	Tanh bool          // the approximation by tanh, not the exact function
}

// SwishArgs is the record of Swish: out = x·sigmoid(alpha·x), computed as x / (1 + exp(-alpha·x)); silu is alpha 1. Out may be
// x when the dtypes are equal.
type SwishArgs struct {
	registry.Header
	Out   tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X     tensor.Tensor `op:"in" shape:"any" dtype:"float"`
	Alpha float32       // finite; 0 means 1
}

// SigmoidArgs is the record of Sigmoid: out = 1 / (1 + exp(-x)). Out may be x when the dtypes are equal.
type SigmoidArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X   tensor.Tensor `op:"in" shape:"any" dtype:"float"`
}

// TanhArgs is the record of Tanh: the hyperbolic tangent. Out may be x when the dtypes are equal.
type TanhArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X   tensor.Tensor `op:"in" shape:"any" dtype:"float"`
}

// HardSwishArgs is the record of HardSwish: out = x·max(0, min(1, x/6 + 0.5)). Out may be x when the dtypes are equal.
type HardSwishArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X   tensor.Tensor `op:"in" shape:"any" dtype:"float"`
}

// SoftplusArgs is the record of Softplus: out = log(1 + exp(x)), which is x above the threshold. Out may be x when the dtypes
// are equal.
type SoftplusArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"like x" dtype:"outfloat"`
	X         tensor.Tensor `op:"in" shape:"any" dtype:"float"`
	Threshold float32       // >= 0, finite; 0 means none: the function itself, however large x is. Frameworks use 20
}

// Activations and gates.
var (
	GeluAndMul = define(OpGeluAndMul, "gelu_and_mul", "elementwise", "gelu_tanh_mul_packed",
		"gelu of the gate times the other half of the row, or times a second tensor",
		func(a *GeluAndMulArgs) *OpError { return halves(&a.X, a.Up.Present(), a.Out.Shape[1]) })
	MoESiluMul = define(OpMoESiluMul, "moe_silu_mul", "elementwise", "silu_mul_split",
		"silu of the gate times up, whatever their shapes",
		func(a *MoESiluMulArgs) *OpError {
			return first(sameCount("gate", &a.Gate, &a.Out), sameCount("up", &a.Up, &a.Out))
		})
	SigmoidGateBF16 = define(OpSigmoidGateBF16, "sigmoid_gate_bf16", "elementwise", "sigmoid_gate",
		"an attention's output times the sigmoid of its gate",
		func(a *SigmoidGateBF16Args) *OpError {
			return first(sameCount("attn", &a.Attn, &a.Out), sameCount("gate", &a.Gate, &a.Out))
		})
	SoftCap = define(OpSoftCap, "soft_cap", "elementwise", "soft_cap", "values bent so that none passes the cap",
		func(a *SoftCapArgs) *OpError { return positive("cap", float32(a.Cap)) })

	Gelu  = define[GeluArgs](OpGelu, "gelu", "elementwise", "gelu", "the Gaussian error linear unit", nil)
	Swish = define(OpSwish, "swish", "elementwise", "swish", "x times the sigmoid of alpha times x; silu",
		func(a *SwishArgs) *OpError { return finite("alpha", a.Alpha) })
	Sigmoid   = define[SigmoidArgs](OpSigmoid, "sigmoid", "elementwise", "sigmoid", "1 / (1 + exp(-x))", nil)
	Tanh      = define[TanhArgs](OpTanh, "tanh", "elementwise", "tanh", "the hyperbolic tangent", nil)
	HardSwish = define[HardSwishArgs](OpHardSwish, "hard_swish", "elementwise", "hard_swish", "x·max(0, min(1, x/6 + 0.5))", nil)
	Softplus  = define(OpSoftplus, "softplus", "elementwise", "softplus", "log(1 + exp(x))",
		func(a *SoftplusArgs) *OpError { return notNegative("threshold", a.Threshold) })
)

// halves checks a gated activation's x [T,W] against the d elements of an output row: W is twice that, or that if the other
// factor is a tensor of its own.
func halves(x *tensor.Tensor, up bool, d int64) *OpError {
	width := x.Shape[1]
	if !up {
		if width%2 != 0 {
			return bad(ErrShape, "x", "odd inner extent %d", width)
		}
		width /= 2
	}
	if width != d {
		return bad(ErrShape, "x", "inner extent %d does not fit the %d of out", x.Shape[1], d)
	}
	return nil
}

// sameCount wants as many elements of an operand as out has.
func sameCount(name string, x, out *tensor.Tensor) *OpError {
	if n := x.Numel(); n != out.Numel() {
		return bad(ErrShape, name, "%d elements, out has %d", n, out.Numel())
	}
	return nil
}
