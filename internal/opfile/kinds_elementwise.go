package opfile

import "github.com/opmux/opmux/ops"

// elementwiseKinds is for norms, activations and other work on single elements.
var elementwiseKinds = kindTable{
	"LayerNormalization": {"X Scale B -> Y Mean InvStdDev", []route{{ops.OpLayerNorm, layerNormalization}}},
	"GroupNormalization": {"X scale bias -> Y", []route{{ops.OpGroupNorm, groupNormalization}}},
	"LpNormalization":    {"input -> output", []route{{ops.OpL2Norm, overAxis(lengthRows)}}},
	"Gelu":               {"X -> Y", []route{{ops.OpGelu, single("X", "Y", gelu)}}},
	"Swish":              {"X -> Y", []route{{ops.OpSwish, single("X", "Y", swish)}}},
	"Sigmoid":            {"X -> Y", []route{{ops.OpSigmoid, single("X", "Y", sigmoid)}}},
	"Tanh":               {"input -> output", []route{{ops.OpTanh, single("input", "output", tanh)}}},
	"Softplus":           {"X -> Y", []route{{ops.OpSoftplus, single("X", "Y", softplus)}}},
	"HardSwish":          {"X -> Y", []route{{ops.OpHardSwish, single("X", "Y", hardSwish)}}},
	"Mul":                {"A B -> C", []route{{ops.OpMul, ofTwo(multiply)}}},
	"Clip":               {"input min max -> output", []route{{ops.OpClip, clip}}},
	"Cast":               {"input -> output", []route{{ops.OpCast, cast}}},

	"layer_norm": {"", []route{{ops.OpLayerNorm, ggmlLayerNorm}}},
	"l2_norm":    {"", []route{{ops.OpL2Norm, l2Norm("y", true)}}},
	"geglu":      {"", []route{{ops.OpGeluAndMul, ggmlGeGLU}}},
	"gelu_erf":   {"", []route{{ops.OpGelu, single("x", "y", gelu)}}},
	"sigmoid":    {"", []route{{ops.OpSigmoid, single("x", "y", sigmoid)}}},
	"swiglu_oai": {"", []route{{ops.OpSiluAndMul, ggmlSwiGLUOAI}}},

	"l2norm":        {"", []route{{ops.OpL2Norm, l2Norm("out", false)}}},
	"rmsnorm_gated": {"", []route{{ops.OpRMSNormGated, vllmRMSNormGated}}},
}
