package recipe

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Params are what a call gives besides its operands. The zero value is right for most.
type Params struct {
	Eps         float32         // of norms: >= 0, finite; 0 means 1e-6
	QuantScale  float32         // of QuantFP8 the input scale (> 0), of QuantFP4 the global scale; finite, 0 means 1
	ScaleLayout ops.ScaleLayout // of QuantFP4
	Interpreter bool            // let the interpreter run recipes whose steps are all row-wise

	RotaryDim        int32    // of Rope and AttnQKNormRopeGate: 0 means the width of cos_sin
	MropeSection     [3]int32 // of Rope, as in ops.RopeFromCacheArgs
	Interleaved      bool     // of Rope
	MropeInterleaved bool     // of Rope
}

// binding is one call's operands and parameters, defaults filled in.
type binding struct {
	t [MaxOperands]tensor.Tensor
	p Params
}

// rotary is the number of rotated elements.
func (b *binding) rotary(cosSin uint8) int32 {
	if x := &b.t[cosSin]; b.p.RotaryDim == 0 && x.Present() {
		return int32(min(x.Last(), math.MaxInt32))
	}
	return b.p.RotaryDim
}

// call is an op with a record of its own.
type call struct {
	op   registry.Op
	at   int            // the step that it does, -1 for all
	args unsafe.Pointer // to the record, which fill keeps alive
	fill func(b *binding)
}

// callOf makes a call of op, whose record is an R. fill must set all of it.
func callOf[R any](op registry.Op, fill func(a *R, b *binding)) call {
	a := new(R)
	return call{op: op, at: -1, args: unsafe.Pointer(a), fill: func(b *binding) { fill(a, b) }}
}

// of makes the call of a part of a composite.
func (p part) call() (c call) {
	in, out, out2 := p.In, p.Out, p.Out2
	switch p.Op {
	case RMSNorm:
		c = callOf(ops.OpRMSNorm, func(a *ops.RMSNormArgs, b *binding) {
			*a = ops.RMSNormArgs{Out: b.t[out], X: b.t[in[0]], Weight: b.t[in[1]], Eps: b.p.Eps, Gemma: p.Gemma}
			if p.residual >= 0 {
				a.Residual = b.t[p.residual]
			}
		})
	case SiluMul:
		c = callOf(ops.OpMoESiluMul, func(a *ops.MoESiluMulArgs, b *binding) {
			*a = ops.MoESiluMulArgs{Out: b.t[out], Gate: b.t[in[0]], Up: b.t[in[1]]}
		})
	case SigmoidGate:
		c = callOf(ops.OpSigmoidGateBF16, func(a *ops.SigmoidGateBF16Args, b *binding) {
			*a = ops.SigmoidGateBF16Args{Out: b.t[out], Attn: b.t[in[0]], Gate: b.t[in[1]]}
		})
	case RMSNormGated:
		c = callOf(ops.OpRMSNormGated, func(a *ops.RMSNormGatedArgs, b *binding) {
			*a = ops.RMSNormGatedArgs{Out: b.t[out], X: b.t[in[0]], Gate: b.t[in[1]], Weight: b.t[in[2]], Eps: b.p.Eps, SigmoidGate: p.SigmoidGate}
		})
	case Rope:
		c = callOf(ops.OpRopeFromCache, func(a *ops.RopeFromCacheArgs, b *binding) {
			*a = ops.RopeFromCacheArgs{QStates: b.t[out], CosSinCache: b.t[in[1]], Positions: b.t[in[2]], RotaryDim: b.rotary(in[1]), MropeSection: b.p.MropeSection,
				Interleaved: b.p.Interleaved, MropeInterleaved: b.p.MropeInterleaved}
			if out2 != NoSlot {
				a.KStates = b.t[out2]
			}
		})
	case QuantFP8:
		c = callOf(ops.OpQuantFP8Static, func(a *ops.QuantFP8StaticArgs, b *binding) {
			*a = ops.QuantFP8StaticArgs{Out: b.t[out], X: b.t[in[0]], InputScale: b.p.QuantScale}
		})
	case QuantFP4:
		c = callOf(ops.OpScaledFP4Quant, func(a *ops.ScaledFP4QuantArgs, b *binding) {
			*a = ops.ScaledFP4QuantArgs{OutPacked: b.t[out], OutScale: b.t[out2], X: b.t[in[0]], InputGlobalScaleInv: b.p.QuantScale, ScaleLayout: b.p.ScaleLayout}
		})
	case AttnQKNormRopeGate:
		c = callOf(ops.OpAttnQKNormRopeGate, func(a *ops.AttnQKNormRopeGateArgs, b *binding) {
			*a = ops.AttnQKNormRopeGateArgs{Qgate: b.t[0], KF: b.t[1], QNorm: b.t[2], KNorm: b.t[3], CosSin: b.t[4], QOut: b.t[5], KOut: b.t[6], GateOut: b.t[7],
				Eps: b.p.Eps, RotaryDim: b.rotary(4), Gemma: p.Gemma}
		})
	default:
		panic(fmt.Sprintf("recipe: %v is no part of a composite", p.Op)) // parts lets none through
	}
	c.at = p.at
	return c
}

// chainCall makes the interpreter's call.
func chainCall(steps []Step, residual bool) call {
	var all [MaxSteps]Step
	n := copy(all[:], steps)
	return callOf(ops.OpFusedChain, func(a *ops.FusedChainArgs, b *binding) {
		*a = ops.FusedChainArgs{Out: b.t[ops.ChainOut], X: b.t[ops.ChainX], Weight: b.t[ops.ChainWeight], Steps: all, NumSteps: int32(n), Eps: b.p.Eps}
		if residual {
			a.Residual = b.t[ops.ChainResidual]
		}
	})
}
