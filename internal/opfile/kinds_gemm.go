package opfile

import "github.com/opmux/opmux/ops"

// gemmKinds is for products.
var gemmKinds = kindTable{
	"Gemm":          {"A B C -> Y", []route{{ops.OpMatmul, gemm}}},
	"MatMulInteger": {"A B a_zero_point b_zero_point -> Y", []route{{ops.OpMatmulInt8, matMulInteger}}},
	"QLinearMatMul": {"A a_scale a_zero_point B b_scale b_zero_point y_scale y_zero_point -> Y", []route{{ops.OpMatmulInt8, qLinearMatMul}}},
}
