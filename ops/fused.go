package ops

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// FusedOp is what one step of a recipe computes. Package recipe says which steps make up a recipe; FusedChain runs those
// of FusedAdd to FusedRMSNorm, in one pass over each row, and refuses the others, which only stand for whole ops.
type FusedOp uint8

// Opcodes, with their inputs and outputs.
const (
	FusedNothing            FusedOp = iota // no step
	FusedAdd                               // a, b -> a + b
	FusedMul                               // a, b -> a·b
	FusedSilu                              // a -> a·sigmoid(a)
	FusedSigmoid                           // a -> 1/(1 + exp(-a))
	FusedRMSNorm                           // a, weight -> a/sqrt(mean(a²) + eps)·weight; Reduce must be ReduceMeanSquare
	FusedSiluMul                           // gate, up -> silu(gate)·up
	FusedSigmoidGate                       // attn, gate -> attn·sigmoid(gate)
	FusedRMSNormGated                      // x, gate, weight -> rms_norm(x)·act(gate)
	FusedRope                              // q, cos_sin, positions -> q, k; in place
	FusedQuantFP8                          // a -> codes
	FusedQuantFP4                          // a -> packed codes, block scales
	FusedAttnQKNormRopeGate                // the eight operands of AttnQKNormRopeGate, slots 0 to 7
	numFusedOps
)

var fusedOps = [numFusedOps]string{"", "add", "mul", "silu", "sigmoid", "rms_norm", "silu_mul", "sigmoid_gate", "rms_norm_gated", "rope",
	"quant_fp8", "quant_fp4", "attn_qk_norm_rope_gate"}

// fusedInputs counts the inputs that a step names.
var fusedInputs = [numFusedOps]uint8{0, 2, 2, 1, 1, 2, 2, 2, 3, 3, 1, 1, 0}

// String returns the name in the catalogue: "rms_norm".
func (f FusedOp) String() string { return nameOf(f, fusedOps[:]) }

// MarshalText is String. ErrAttr.
func (f FusedOp) MarshalText() ([]byte, error) { return nameText("opcode", f, fusedOps[:]) }

// UnmarshalText reads a name. ErrAttr.
func (f *FusedOp) UnmarshalText(b []byte) error { return parseName("opcode", b, f, fusedOps[:]) }

// Valid reports whether f is an opcode.
func (f FusedOp) Valid() bool { return f > FusedNothing && f < numFusedOps }

// Inputs is how many of a step's In the opcode reads; 0 for FusedAttnQKNormRopeGate, whose operands stand in fixed slots.
func (f FusedOp) Inputs() int { return int(fusedInputs[min(f, numFusedOps-1)]) }

// RowWise reports whether FusedChain runs the opcode.
func (f FusedOp) RowWise() bool { return f >= FusedAdd && f <= FusedRMSNorm }

// FusedReduce names the reduction of a step.
type FusedReduce uint8

// Reductions.
const (
	ReduceNone       FusedReduce = iota
	ReduceMeanSquare             // of a row: what FusedRMSNorm divides by
	numFusedReduces
)

var fusedReduces = [numFusedReduces]string{"none", "mean_square"}

// String returns "none" or "mean_square".
func (f FusedReduce) String() string { return nameOf(f, fusedReduces[:]) }

// Valid reports whether f is one of the listed ones.
func (f FusedReduce) Valid() bool { return f < numFusedReduces }

// MarshalText is String. ErrAttr.
func (f FusedReduce) MarshalText() ([]byte, error) { return nameText("reduction", f, fusedReduces[:]) }

// UnmarshalText reads a name. ErrAttr.
func (f *FusedReduce) UnmarshalText(b []byte) error {
	return parseName("reduction", b, f, fusedReduces[:])
}

// MaxFusedSteps bounds the steps of a chain, and of a recipe.
const MaxFusedSteps = 8

// NoSlot is the second output of a FusedRope step that rotates q alone.
const NoSlot = 0xff

// FusedStep is one step of a recipe: opcode, and the slots that it reads and writes. In a FusedChain slot 0 is x, 1 weight
// (one row for all), 2 residual and 3 out. What an opcode does not use is zero.
type FusedStep struct {
	Op          FusedOp
	Out         uint8       // slot
	In          [3]uint8    // slots, as many as Op.Inputs
	Out2        uint8       // slot: k of FusedRope (NoSlot: none), scales of FusedQuantFP4
	Reduce      FusedReduce // FusedRMSNorm: ReduceMeanSquare
	Gemma       bool        // FusedRMSNorm, FusedAttnQKNormRopeGate: multiply by 1 + weight
	SigmoidGate bool        // FusedRMSNormGated: the gate's activation is sigmoid, else silu
}

// stepText is a FusedStep in JSON.
type stepText struct {
	Op          FusedOp     `json:"op"`
	In          []int       `json:"in,omitempty"`
	Out         int         `json:"out"`
	Out2        *int        `json:"out2,omitempty"`
	Reduce      FusedReduce `json:"reduce,omitempty"`
	Gemma       bool        `json:"gemma,omitempty"`
	SigmoidGate bool        `json:"sigmoid_gate,omitempty"`
}

// twoOutputs reports whether the opcode reads Out2.
func (f FusedOp) twoOutputs() bool { return f == FusedRope || f == FusedQuantFP4 }

// MarshalJSON writes {"op":"add","in":[0,2],"out":2}, with "out2", "reduce", "gemma" and "sigmoid_gate" where they are set;
// null for no step.
func (s FusedStep) MarshalJSON() ([]byte, error) {
	if s == (FusedStep{}) {
		return []byte("null"), nil
	}
	t := stepText{Op: s.Op, Out: int(s.Out), Reduce: s.Reduce, Gemma: s.Gemma, SigmoidGate: s.SigmoidGate}
	for _, in := range s.In[:s.Op.Inputs()] {
		t.In = append(t.In, int(in))
	}
	if s.Op.twoOutputs() && s.Out2 != NoSlot {
		out2 := int(s.Out2)
		t.Out2 = &out2
	}
	return json.Marshal(t)
}

// UnmarshalJSON reads what MarshalJSON writes. ErrAttr for numbers that are no slots, and for another number of inputs than
// the opcode has; whether the step makes sense is for the validator of FusedChain and for package recipe to say.
func (s *FusedStep) UnmarshalJSON(b []byte) error {
	*s = FusedStep{}
	if string(b) == "null" {
		return nil
	}
	var t stepText
	if err := json.Unmarshal(b, &t); err != nil {
		return err
	}
	if len(t.In) != t.Op.Inputs() {
		return fmt.Errorf("ops: step %v reads %d slots, %d are given: %w", t.Op, t.Op.Inputs(), len(t.In), ErrAttr)
	}
	slots := append(slices.Clone(t.In), t.Out)
	n := FusedStep{Op: t.Op, Out: uint8(t.Out), Reduce: t.Reduce, Gemma: t.Gemma, SigmoidGate: t.SigmoidGate}
	for i, in := range t.In {
		n.In[i] = uint8(in)
	}
	if t.Out2 != nil {
		slots, n.Out2 = append(slots, *t.Out2), uint8(*t.Out2)
	} else if t.Op.twoOutputs() {
		n.Out2 = NoSlot
	}
	for _, slot := range slots {
		if slot < 0 || slot >= NoSlot {
			return fmt.Errorf("ops: step %v: %d is no slot: %w", t.Op, slot, ErrAttr)
		}
	}
	*s = n
	return nil
}

// nameOf returns the name of an enumeration's value, its number if it has none.
func nameOf[E ~uint8](e E, names []string) string {
	if int(e) < len(names) && names[e] != "" {
		return names[e]
	}
	return strconv.Itoa(int(e))
}

// nameText is nameOf, and an error for values without a name.
func nameText[E ~uint8](what string, e E, names []string) ([]byte, error) {
	if int(e) >= len(names) || names[e] == "" {
		return nil, fmt.Errorf("ops: %s %d is not known: %w", what, e, ErrAttr)
	}
	return []byte(names[e]), nil
}

// parseName finds the value with a name.
func parseName[E ~uint8](what string, name []byte, e *E, names []string) error {
	i := slices.Index(names, string(name))
	if i < 0 || len(name) == 0 {
		return fmt.Errorf("ops: %s %.40q is not known: %w", what, name, ErrAttr)
	}
	*e = E(i)
	return nil
}

// Slots of a FusedChain.
const (
	ChainX = iota
	ChainWeight
	ChainResidual
	ChainOut
	numChainSlots
)

// FusedChainArgs is the record of FusedChain: the first num_steps of steps, for each row in order. A step is one pass over
// the row in f32; it reads its operands as they are stored and writes residual or out, rounded to the operand's dtype. A
// step's formula is in FusedOp.
type FusedChainArgs struct {
	registry.Header
	Out      tensor.Tensor            `op:"out" shape:"T,H" dtype:"outfloat"`
	X        tensor.Tensor            `op:"in" shape:"T,H" dtype:"float"`
	Weight   tensor.Tensor            `op:"in" shape:"H" dtype:"float"`
	Residual tensor.Tensor            `op:"inout,opt" shape:"T,H" dtype:"outfloat"` // needed by a step of slot 2
	Steps    [MaxFusedSteps]FusedStep // only row-wise opcodes; slot 3 is written before it is read
	NumSteps int32                    // 1 to 8
	Eps      float32                  // >= 0, finite; added to the mean
}

// AttnQKNormRopeGateArgs is the record of AttnQKNormRopeGate: what stands before attention with an output gate. Row t of
// qgate is [q | gate] for each head, row t of kf the key heads. Each q and k head is divided by its root mean square and
// multiplied by its weight; then the pairs (i, i+rotary_dim/2) are rotated by row t of cos_sin, [cos | sin]. Nothing is
// rounded in between. Gates are copied.
type AttnQKNormRopeGateArgs struct {
	registry.Header
	QOut      tensor.Tensor `op:"out" shape:"T,Hq,D" dtype:"outfloat"`
	KOut      tensor.Tensor `op:"out" shape:"T,Hk,D" dtype:"like q_out"`
	GateOut   tensor.Tensor `op:"out" shape:"T,Hq,D" dtype:"outfloat"`             // q_out's dtype, or f32
	Qgate     tensor.Tensor `op:"in" shape:"T,W" dtype:"float" layout:"rows"`      // W = Hq·2·D
	KF        tensor.Tensor `op:"in" shape:"T,V" dtype:"like qgate" layout:"rows"` // V = Hk·D
	QNorm     tensor.Tensor `op:"in" shape:"D" dtype:"f32"`
	KNorm     tensor.Tensor `op:"in" shape:"D" dtype:"f32"`
	CosSin    tensor.Tensor `op:"in" shape:"T,R" dtype:"f32"` // R = rotary_dim; by token, not by position
	Eps       float32       // >= 0, finite; added to the mean
	RotaryDim int32         // rotated elements of a head: even, > 0, <= D
	Gemma     bool          // multiply by 1 + weight
}

// RMSNormQuantFP8Args is the record of RMSNormQuantFP8: rms_norm with a bf16 output, the residual as there, then
// quant_fp8_static of what was rounded to bf16.
type RMSNormQuantFP8Args struct {
	registry.Header
	OutFP8     tensor.Tensor `op:"out" shape:"T,H" dtype:"byte"`     // fp8 e4m3fn
	OutBF16    tensor.Tensor `op:"out,opt" shape:"T,H" dtype:"bf16"` // the norm itself
	X          tensor.Tensor `op:"in" shape:"T,H" dtype:"float"`
	Weight     tensor.Tensor `op:"in" shape:"H" dtype:"float"`
	Residual   tensor.Tensor `op:"inout,opt" shape:"T,H" dtype:"outfloat"`
	Eps        float32       // >= 0, finite; added to the mean
	InputScale float32       // > 0, finite
	Gemma      bool          // multiply by 1 + weight
}

// RMSNormGatedQuantFP8Args is the record of RMSNormGatedQuantFP8: rms_norm_gated with a bf16 output, then quant_fp8_static of
// it.
type RMSNormGatedQuantFP8Args struct {
	registry.Header
	OutFP8      tensor.Tensor `op:"out" shape:"T,D|T,Hv,D" dtype:"byte"` // fp8 e4m3fn
	X           tensor.Tensor `op:"in" shape:"like out_fp8" dtype:"float"`
	Gate        tensor.Tensor `op:"in" shape:"like out_fp8" dtype:"like x" layout:"inner-rows"`
	Weight      tensor.Tensor `op:"in" shape:"D" dtype:"like x"`
	Eps         float32       // >= 0, finite; added to the mean
	InputScale  float32       // > 0, finite
	SigmoidGate bool          // the gate's activation is sigmoid, not silu
}

// SiluMulFP4QuantArgs is the record of SiluMulFP4Quant: silu(gate)·up rounded to bf16, then scaled_fp4_quant of it.
type SiluMulFP4QuantArgs struct {
	registry.Header
	OutPacked           tensor.Tensor `op:"out" shape:"M,W" dtype:"fp4"`  // W = I/2
	OutScale            tensor.Tensor `op:"out" shape:"S,G" dtype:"byte"` // [M,I/16], or as scale_layout says
	Gate                tensor.Tensor `op:"in" shape:"M,I" dtype:"float"` // I a multiple of 16
	Up                  tensor.Tensor `op:"in" shape:"M,I" dtype:"like gate"`
	InputGlobalScaleInv float32       // finite
	ScaleLayout         ScaleLayout   // ScaleLinear or ScaleSwizzled
}

// SiluAndMulFP4QuantArgs is the record of SiluAndMulFP4Quant: silu of the first half of a row times the other half, rounded to
// bf16, then scaled_fp4_quant of it.
type SiluAndMulFP4QuantArgs struct {
	registry.Header
	OutPacked           tensor.Tensor `op:"out" shape:"M,W" dtype:"fp4"`     // W = I/2
	OutScale            tensor.Tensor `op:"out" shape:"S,G" dtype:"byte"`    // [M,I/16], or as scale_layout says
	GateUp              tensor.Tensor `op:"in" shape:"M,V" dtype:"outfloat"` // V = 2·I, I a multiple of 16
	InputGlobalScaleInv float32       // finite
	ScaleLayout         ScaleLayout   // ScaleLinear or ScaleSwizzled
}

// SigmoidGateFP4QuantArgs is the record of SigmoidGateFP4Quant: attn·sigmoid(gate) rounded to bf16, then scaled_fp4_quant of
// it.
type SigmoidGateFP4QuantArgs struct {
	registry.Header
	OutPacked           tensor.Tensor `op:"out" shape:"M,W" dtype:"fp4"`     // W = I/2
	OutScale            tensor.Tensor `op:"out" shape:"S,G" dtype:"byte"`    // [M,I/16], or as scale_layout says
	Attn                tensor.Tensor `op:"in" shape:"M,I" dtype:"outfloat"` // I a multiple of 16
	Gate                tensor.Tensor `op:"in" shape:"M,I" dtype:"f32"`
	InputGlobalScaleInv float32       // finite
	ScaleLayout         ScaleLayout   // ScaleLinear or ScaleSwizzled
}

// Ops that do in one pass what several others do.
var (
	FusedChain = define(OpFusedChain, "fused_chain", "fused", "recipe_interpreter",
		"the row-wise steps of a recipe, one after the other on each row",
		func(a *FusedChainArgs) *OpError {
			if e := notNegative("eps", a.Eps); e != nil {
				return e
			}
			if a.NumSteps < 1 || a.NumSteps > MaxFusedSteps {
				return bad(ErrAttr, "num_steps", "%d is not 1 to %d", a.NumSteps, MaxFusedSteps)
			}
			return checkChain(a.Steps[:a.NumSteps], a.Residual.Present())
		})
	AttnQKNormRopeGate = define(OpAttnQKNormRopeGate, "attn_qk_norm_rope_gate", "fused", "attn_preamble_gated",
		"q and k heads split off, normalized and rotated, the gate copied", checkAttnQKNormRopeGate)
	RMSNormQuantFP8 = define(OpRMSNormQuantFP8, "rms_norm_quant_fp8", "fused", "rms_fp8",
		"rms_norm in bf16, then fp8 with one scale that is given",
		func(a *RMSNormQuantFP8Args) *OpError {
			return first(notNegative("eps", a.Eps), positive("input_scale", a.InputScale))
		})
	RMSNormGatedQuantFP8 = define(OpRMSNormGatedQuantFP8, "rms_norm_gated_quant_fp8", "fused", "rms_gated_fp8",
		"rms_norm_gated in bf16, then fp8 with one scale that is given",
		func(a *RMSNormGatedQuantFP8Args) *OpError {
			return first(notNegative("eps", a.Eps), positive("input_scale", a.InputScale))
		})
	SiluMulFP4Quant = define(OpSiluMulFP4Quant, "silu_mul_fp4_quant", "fused", "silu_mul_split_fp4",
		"silu of gate times up in bf16, then nvfp4",
		func(a *SiluMulFP4QuantArgs) *OpError {
			return checkFP4(&a.OutPacked, &a.OutScale, "gate", a.Gate.Shape[0], a.Gate.Shape[1], a.InputGlobalScaleInv, a.ScaleLayout)
		})
	SiluAndMulFP4Quant = define(OpSiluAndMulFP4Quant, "silu_and_mul_fp4_quant", "fused", "silu_mul_packed_fp4",
		"silu of a row's first half times its other half in bf16, then nvfp4",
		func(a *SiluAndMulFP4QuantArgs) *OpError {
			if a.GateUp.Shape[1]%2 != 0 {
				return bad(ErrShape, "gate_up", "odd inner extent %d", a.GateUp.Shape[1])
			}
			return checkFP4(&a.OutPacked, &a.OutScale, "gate_up", a.GateUp.Shape[0], a.GateUp.Shape[1]/2, a.InputGlobalScaleInv, a.ScaleLayout)
		})
	SigmoidGateFP4Quant = define(OpSigmoidGateFP4Quant, "sigmoid_gate_fp4_quant", "fused", "sigmoid_gate_fp4",
		"attn times the sigmoid of gate in bf16, then nvfp4",
		func(a *SigmoidGateFP4QuantArgs) *OpError {
			return checkFP4(&a.OutPacked, &a.OutScale, "attn", a.Attn.Shape[0], a.Attn.Shape[1], a.InputGlobalScaleInv, a.ScaleLayout)
		})
)

// CheckChain reports whether FusedChain runs steps, with or without a residual. The error is an *OpError.
func CheckChain(steps []FusedStep, residual bool) error {
	if n := len(steps); n < 1 || n > MaxFusedSteps {
		return &OpError{Op: "fused_chain", Kind: ErrAttr, Operand: "num_steps", Msg: fmt.Sprintf("%d is not 1 to %d", n, MaxFusedSteps)}
	}
	if e := checkChain(steps, residual); e != nil {
		e.Op = "fused_chain"
		return e
	}
	return nil
}

// checkChain checks the steps of a chain.
func checkChain(steps []FusedStep, residual bool) *OpError {
	written := false
	for i := range steps {
		s := &steps[i]
		if !s.Op.Valid() {
			return bad(ErrAttr, "steps", "step %d: opcode %d is not known", i, s.Op)
		}
		if !s.Op.RowWise() {
			return bad(ErrAttr, "steps", "step %d: %v is no row-wise opcode", i, s.Op)
		}
		for _, in := range s.In[:s.Op.Inputs()] {
			switch {
			case in >= numChainSlots:
				return bad(ErrAttr, "steps", "step %d: %v reads slot %d, the last one is %d", i, s.Op, in, numChainSlots-1)
			case in == ChainResidual && !residual:
				return bad(ErrAttr, "steps", "step %d: %v reads the residual, which is absent", i, s.Op)
			case in == ChainOut && !written:
				return bad(ErrAttr, "steps", "step %d: %v reads out, which no step has written yet", i, s.Op)
			}
		}
		switch s.Out {
		case ChainResidual:
			if !residual {
				return bad(ErrAttr, "steps", "step %d: %v writes the residual, which is absent", i, s.Op)
			}
		case ChainOut:
			written = true
		default:
			return bad(ErrAttr, "steps", "step %d: %v writes slot %d, only %d and %d may be written", i, s.Op, s.Out, ChainResidual, ChainOut)
		}
		norm := s.Op == FusedRMSNorm
		switch {
		case norm && s.Reduce != ReduceMeanSquare:
			return bad(ErrAttr, "steps", "step %d: %v without mean_square", i, s.Op)
		case !norm && (s.Reduce != ReduceNone || s.Gemma):
			return bad(ErrAttr, "steps", "step %d: %v has neither a reduction nor a weight", i, s.Op)
		case s.SigmoidGate || s.Out2 != 0:
			return bad(ErrAttr, "steps", "step %d: %v has neither a gate nor a second output", i, s.Op)
		}
	}
	if !written {
		return bad(ErrAttr, "steps", "no step writes out")
	}
	return nil
}

func checkAttnQKNormRopeGate(a *AttnQKNormRopeGateArgs) *OpError {
	hq, hk, d := a.QOut.Shape[1], a.KOut.Shape[1], a.QOut.Shape[2]
	if e := first(notNegative("eps", a.Eps), rotaryDim(a.RotaryDim, d)); e != nil {
		return e
	}
	switch {
	case a.GateOut.DType != a.QOut.DType && a.GateOut.DType != tensor.F32:
		return bad(ErrDType, "gate_out", "dtype is %v, want f32 or the %v of q_out", a.GateOut.DType, a.QOut.DType)
	case a.Qgate.Shape[1] != hq*2*d:
		return bad(ErrShape, "qgate", "rows of %d, want %d heads of twice %d", a.Qgate.Shape[1], hq, d)
	case a.KF.Shape[1] != hk*d:
		return bad(ErrShape, "kf", "rows of %d, want %d heads of %d", a.KF.Shape[1], hk, d)
	case a.CosSin.Shape[1] != int64(a.RotaryDim):
		return bad(ErrShape, "cos_sin", "rows of %d for a rotary_dim of %d", a.CosSin.Shape[1], a.RotaryDim)
	}
	return nil
}
