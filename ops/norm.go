package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// RMSNormArgs is the record of RMSNorm: out = x / sqrt(mean(x²) + eps) · weight for each row. With a residual, x becomes
// x + residual first, is stored into residual (rounded to its dtype) and goes on as stored. An absent weight is all ones.
// Out may be x when there is no residual and the dtypes are equal.
type RMSNormArgs struct {
	registry.Header
	Out      tensor.Tensor `op:"out" shape:"T,H" dtype:"outfloat"`
	X        tensor.Tensor `op:"in" shape:"T,H" dtype:"float"`
	Weight   tensor.Tensor `op:"in,opt" shape:"H" dtype:"float"`
	Residual tensor.Tensor `op:"inout,opt" shape:"T,H" dtype:"outfloat"`
	Eps      float32       // >= 0, finite; added to the mean
	Gemma    bool          // multiply by 1 + weight (needs a weight)
}

// RMSNorm normalizes rows by their root mean square.
var RMSNorm = define(OpRMSNorm, "rms_norm", "norm", "rms",
	"rows divided by their root mean square and multiplied by a weight, after adding a residual if there is one",
	func(a *RMSNormArgs) *OpError {
		if a.Gemma && !a.Weight.Present() {
			return bad(ErrAttr, "gemma", "1 + weight needs a weight")
		}
		return notNegative("eps", a.Eps)
	})
