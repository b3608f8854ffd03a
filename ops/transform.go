package ops

import (
	"math/bits"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// HadamardTransformArgs is the record of HadamardTransform: out = scale·H·x for each row x of N elements, N a power of two,
// H the Walsh-Hadamard matrix in natural order (Sylvester's: H₁ = 1, H₂ₙ = [[Hₙ, Hₙ], [Hₙ, -Hₙ]]). Out may be x when the
// dtypes are equal.
type HadamardTransformArgs struct {
	registry.Header
	Out   tensor.Tensor `op:"out" shape:"T,N" dtype:"float"`
	X     tensor.Tensor `op:"in" shape:"T,N" dtype:"float" layout:"rows"`
	Scale float32       // finite; 0 means 1. 1/sqrt(N) makes the transform its own inverse
}

// HadamardTransform rotates rows so that outliers spread over all elements, before they are quantized.
var HadamardTransform = define(OpHadamardTransform, "hadamard_transform", "transform", "hadamard_transform",
	"rows times the Walsh-Hadamard matrix in natural order",
	func(a *HadamardTransformArgs) *OpError {
		if n := a.X.Shape[1]; bits.OnesCount64(uint64(n)) != 1 {
			return bad(ErrShape, "x", "%d elements a row are not a power of two", n)
		}
		return finite("scale", a.Scale)
	})
