package ops

import (
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// MatmulArgs is the record of Matmul: out = a·b, row-major, f32 accumulation, one rounding on store.
type MatmulArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"M,N" dtype:"outfloat"`
	A   tensor.Tensor `op:"in" shape:"M,K" dtype:"float"`
	B   tensor.Tensor `op:"in" shape:"K,N" dtype:"float"`
}

// MatmulBTArgs is the record of MatmulBT: out = a·bᵀ with the weight b stored as [N,K]. A may be a block of columns of a
// wider matrix. With a block dtype in b the call is MatmulBTQuant's from the validator on.
type MatmulBTArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"M,N" dtype:"outfloat"`
	A   tensor.Tensor `op:"in" shape:"M,K" dtype:"float" layout:"rows"`
	B   tensor.Tensor `op:"in" shape:"N,K" dtype:"float" layout:"contig lane16"`
}

// MatmulBTQuantArgs is the record of MatmulBTQuant: as MatmulBTArgs with a ggml block dtype in b (K in elements, a
// multiple of the block length), which is never expanded.
type MatmulBTQuantArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"M,N" dtype:"outfloat"`
	A   tensor.Tensor `op:"in" shape:"M,K" dtype:"float" layout:"rows"`
	B   tensor.Tensor `op:"in" shape:"N,K" dtype:"block" layout:"contig lane16"`
}

// The dense and the block-quantized product with a weight, and the plain one.
var (
	Matmul = define[MatmulArgs](OpMatmul, "matmul", "gemm", "dense_nn",
		"out = a·b, row-major", nil)
	MatmulBT      = defineMatmulBT()
	MatmulBTQuant = define[MatmulBTQuantArgs](OpMatmulBTQuant, "matmul_bt_quant", "gemm", "ggml_block_nt",
		"out = a·bᵀ with a weight of ggml blocks that is never expanded", nil)
)

// defineMatmulBT makes the op that hands calls with a block dtype on to MatmulBTQuant before any check. The two records
// have one layout: the conversion below compiles only while they do.
func defineMatmulBT() *Op[MatmulBTArgs] {
	o := define[MatmulBTArgs](OpMatmulBT, "matmul_bt", "gemm", "dense_nt",
		"out = a·bᵀ with the weight stored as [N,K]; a block dtype in b makes it matmul_bt_quant", nil)
	o.alt = func(args unsafe.Pointer) *core {
		if a := (*MatmulBTQuantArgs)((*MatmulBTArgs)(args)); a.B.DType.IsBlock() {
			return &MatmulBTQuant.core
		}
		return nil
	}
	return o
}
