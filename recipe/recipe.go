// Package recipe runs fused recipes: short lists of primitive steps over an indexed table of operands, that say once, without
// naming a device, what a fused kernel stands for.
//
// A [Recipe] is plain data, in Go or in JSON. [Prepare] checks it and makes it ready; [Prepared.Run] then executes a call by
// the best of three ways that the queue's device has:
//
//	fast         one special op (Recipe.Fast), where the device has a kernel of its own for it
//	interpreter  one pass of ops.FusedChain over each row, where every step is row-wise and Params.Interpreter is set
//	composite    the steps, one ordinary op after the other
//
// On one device, and on kernels of one family, all three give the same bits, for the outputs and for the residual.
// [Prepared.Plan] says which way a call would take and why not another; [Prepared.RunTier] takes a given one.
package recipe

import (
	"errors"
	"fmt"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
)

// Errors of this package. Those of a run are, besides, the ones of ops.Op.Launch.
var (
	ErrRecipe    = errors.New("bad recipe")                   // a recipe that no tier can run as it stands
	ErrOperands  = errors.New("wrong operands")               // a call that binds too few or too many, or not what a tier needs
	ErrTier      = errors.New("tier cannot run the recipe")   // a forced tier
	ErrDuplicate = errors.New("recipe is already in the set") // Set.Add
)

// Limits of a recipe.
const (
	MaxSteps    = ops.MaxFusedSteps
	MaxOperands = 8
)

// Step is one step of a recipe. Slots are places in Recipe.Operands. A step reads as many of In as its opcode has inputs:
//
//	Add            a, b -> Out. To the composite only a residual add: b and Out are one residual slot, and an RMSNorm follows
//	Mul            a, b -> Out; not in a composite
//	Silu, Sigmoid  a -> Out; not in a composite
//	RMSNorm        a, weight -> Out
//	SiluMul        gate, up -> Out
//	SigmoidGate    attn, gate -> Out
//	RMSNormGated   x, gate, weight -> Out
//	Rope           q, cos_sin, positions -> q (Out, the same slot), k (Out2, or NoSlot); in place
//	QuantFP8       a -> Out
//	QuantFP4       a -> packed (Out), scale (Out2)
//	AttnQKNormRopeGate  slots 0 to 7 are the operands of the op: qgate, kf, q_norm, k_norm, cos_sin -> q_out, k_out, gate_out;
//	               In is empty and Out is 5
type Step = ops.FusedStep

// Op is what a step computes.
type Op = ops.FusedOp

// Opcodes; see Step.
const (
	Add                = ops.FusedAdd
	Mul                = ops.FusedMul
	Silu               = ops.FusedSilu
	Sigmoid            = ops.FusedSigmoid
	RMSNorm            = ops.FusedRMSNorm
	SiluMul            = ops.FusedSiluMul
	SigmoidGate        = ops.FusedSigmoidGate
	RMSNormGated       = ops.FusedRMSNormGated
	Rope               = ops.FusedRope
	QuantFP8           = ops.FusedQuantFP8
	QuantFP4           = ops.FusedQuantFP4
	AttnQKNormRopeGate = ops.FusedAttnQKNormRopeGate
)

// Reductions, and the mark of a missing second output.
const (
	None       = ops.ReduceNone
	MeanSquare = ops.ReduceMeanSquare // what RMSNorm must say
	NoSlot     = ops.NoSlot
)

// Kind says what an operand slot holds.
type Kind uint8

// Kinds of slot.
const (
	Unused   Kind = iota
	Row           // [T,W], one row for each token; an intermediate that a fast op does not need may be left unbound
	Weight        // [W], per column; read only
	Residual      // [T,W], read and written in place; may be unbound, and then nothing is added
	Aux           // what the interpreter does not know: codes, block scales, cos|sin caches, positions, heads
	numKinds
)

var kindNames = [numKinds]string{"unused", "row", "weight", "residual", "aux"}

// String returns the lower-case name.
func (k Kind) String() string { return kindNames[min(k, numKinds-1)] }

// MarshalText is String. ErrRecipe.
func (k Kind) MarshalText() ([]byte, error) {
	if k >= numKinds {
		return nil, fmt.Errorf("recipe: kind %d is not known: %w", k, ErrRecipe)
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads a name. ErrRecipe.
func (k *Kind) UnmarshalText(b []byte) error {
	for i, n := range kindNames {
		if n == string(b) {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("recipe: kind %.40q is not known: %w", b, ErrRecipe)
}

// Slot describes an operand of a recipe.
type Slot struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"` // for messages; letters, digits and . _ -, at most 64
}

// Recipe is a fused kernel's meaning as data.
type Recipe struct {
	Name     string // letters, digits and . _ -, at most 64
	Operands []Slot // 1 to 8
	Steps    []Step // 1 to 8
	// Fast is an op that does all steps at once, 0 for none. Operands and steps must then be those of the catalogue's
	// recipe for that op, but for the names and the flags Gemma and SigmoidGate.
	Fast registry.Op
}

// Tier is a way to run a recipe.
type Tier uint8

// Tiers.
const (
	Composite   Tier = iota // tier 0: the steps, each by its op
	Interpreter             // tier 1: ops.FusedChain
	Fast                    // the recipe's fast op
	numTiers
)

// String returns "composite", "interpreter" or "fast".
func (t Tier) String() string { return [...]string{"composite", "interpreter", "fast"}[min(t, Fast)] }

// MarshalText is String.
func (t Tier) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
