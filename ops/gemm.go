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

// BatchedMatmulArgs is the record of BatchedMatmul: out[g] = a[g]·b[g] for G independent products, each operand addressed by
// its own strides. Rows do not overlap (stride[1] at least the row's extent); the batch stride is free, so that a [B,G,·] buffer
// can be read as [G,B,·].
type BatchedMatmulArgs struct {
	registry.Header
	Out tensor.Tensor `op:"out" shape:"G,M,N" dtype:"outfloat" layout:"inner1"`
	A   tensor.Tensor `op:"in" shape:"G,M,K" dtype:"float" layout:"inner1"`
	B   tensor.Tensor `op:"in" shape:"G,K,N" dtype:"like a" layout:"inner1"`
}

// MatmulNVFP4Args is the record of MatmulNVFP4: out = act·wᵀ with the NVFP4 weight decoded on the fly: element k of row n is
// bf16(fp4·(fp8(weight_scale[n,k/16])·weight_scale2)).
type MatmulNVFP4Args struct {
	registry.Header
	Out          tensor.Tensor `op:"out" shape:"M,N" dtype:"outfloat"`
	Act          tensor.Tensor `op:"in" shape:"M,K" dtype:"float"` // K a multiple of 16
	WeightPacked tensor.Tensor `op:"in" shape:"N,KB" dtype:"fp4"`  // KB is K/2
	WeightScale  tensor.Tensor `op:"in" shape:"N,KG" dtype:"byte"` // KG is K/16
	WeightScale2 float32       // of the whole weight, multiplied; finite, not 0
}

// MatmulNVFP4FP4Args is the record of MatmulNVFP4FP4: out = alpha·Σ A·B with A = fp4·fp8 scale of each 16 elements, B alike.
type MatmulNVFP4FP4Args struct {
	registry.Header
	Out     tensor.Tensor `op:"out" shape:"M,N" dtype:"outfloat"`
	APacked tensor.Tensor `op:"in" shape:"M,KB" dtype:"fp4"`  // KB is K/2, K a multiple of 16
	AScale  tensor.Tensor `op:"in" shape:"M,KG" dtype:"byte"` // KG is K/16
	BPacked tensor.Tensor `op:"in" shape:"N,KB" dtype:"fp4"`
	BScale  tensor.Tensor `op:"in" shape:"N,KG" dtype:"byte"`
	Alpha   float32       // finite, not 0: the product of the inverse divisors of both operands
}

// MatmulNVFP4SwizzledArgs is the record of MatmulNVFP4Swizzled: MatmulNVFP4FP4 with both scale matrices swizzled
// (ScaleSwizzled), and the result rounded to bf16 whatever the dtype of out. The factor is either a tensor, so that a captured
// graph reads a resident number, or a number of the record.
type MatmulNVFP4SwizzledArgs struct {
	registry.Header
	Out       tensor.Tensor `op:"out" shape:"M,N" dtype:"outfloat"` // N a multiple of 32
	APacked   tensor.Tensor `op:"in" shape:"M,KB" dtype:"fp4"`      // KB is K/2, K a multiple of 32
	ASfSw     tensor.Tensor `op:"in" shape:"MP,KP" dtype:"byte"`    // M and K/16 rounded up to multiples of 128 and 4
	BPacked   tensor.Tensor `op:"in" shape:"N,KB" dtype:"fp4"`
	BSfSw     tensor.Tensor `op:"in" shape:"NP,KP" dtype:"byte"` // N and K/16 rounded up
	Alpha     tensor.Tensor `op:"in,opt" shape:"1" dtype:"f32"`  // instead of host_alpha
	HostAlpha float32       // finite, not 0; 0 with Alpha
}

// MatmulFP8Args is the record of MatmulFP8: out = alpha·Σ A·B with A = fp8·scale and B = fp8·scale. Absent scales are 1. A
// scale tensor of one element is for all; one of more is a matrix of tiles: [M,⌈K/block_k⌉] of a, [⌈N/block_n⌉,⌈K/block_k⌉] of
// b. With BF16Epilogue the result is rounded to bf16 whatever the dtype of out.
type MatmulFP8Args struct {
	registry.Header
	Out          tensor.Tensor `op:"out" shape:"M,N" dtype:"outfloat"`    // N a multiple of 16
	AFp8         tensor.Tensor `op:"in" shape:"M,K" dtype:"byte f8_e5m2"` // K a multiple of 16
	BFp8         tensor.Tensor `op:"in" shape:"N,K" dtype:"byte f8_e5m2"`
	AScale       tensor.Tensor `op:"in,opt" shape:"1|M,KG" dtype:"f32 f8_e8m0"`
	BScale       tensor.Tensor `op:"in,opt" shape:"1|NG,KG" dtype:"f32 f8_e8m0"`
	Alpha        float32       // finite; 0 means 1
	BlockN       int32         // rows of b that share a scale, >= 0; 0 means 1
	BlockK       int32         // neighbours in a row that share a scale, >= 0; 0 means K
	BF16Epilogue bool
}

// MatmulInt8Args is the record of MatmulInt8: the sum of (a - a_zero_point)·(b - b_zero_point) in int32 (wrapping), and what
// the scales make of it: as it is in an i32 out; times a_scale·b_scale in a float one; divided by y_scale, rounded to nearest
// even, shifted by y_zero_point and saturated in an 8-bit one. Zero points and scales of a are one number or one for each row,
// those of b one or one for each column.
type MatmulInt8Args struct {
	registry.Header
	Out        tensor.Tensor `op:"out" shape:"M,N" dtype:"i32 outfloat i8 u8"`
	A          tensor.Tensor `op:"in" shape:"M,K" dtype:"i8 u8" layout:"rows"`
	B          tensor.Tensor `op:"in" shape:"K,N" dtype:"i8 u8" layout:"strided"` // a weight [N,K] is a transposed view
	AZeroPoint tensor.Tensor `op:"in,opt" shape:"Z" dtype:"like a"`               // Z is 1 or M
	BZeroPoint tensor.Tensor `op:"in,opt" shape:"Y" dtype:"like b"`               // Y is 1 or N
	AScale     tensor.Tensor `op:"in,opt" shape:"S" dtype:"f32"`                  // S is 1 or M; not with an i32 out
	BScale     tensor.Tensor `op:"in,opt" shape:"R" dtype:"f32"`                  // R is 1 or N; goes with a_scale
	YScale     tensor.Tensor `op:"in,opt" shape:"1" dtype:"f32"`                  // of an 8-bit out
	YZeroPoint tensor.Tensor `op:"in,opt" shape:"1" dtype:"like out"`             // of an 8-bit out
}

// Products of batches and of small number formats.
var (
	BatchedMatmul = define(OpBatchedMatmul, "batched_matmul", "gemm", "batched_nn",
		"independent products out[g] = a[g]·b[g], each operand by its own strides",
		func(a *BatchedMatmulArgs) *OpError {
			return first(separateRows("out", &a.Out), separateRows("a", &a.A), separateRows("b", &a.B))
		})
	MatmulNVFP4 = define(OpMatmulNVFP4, "matmul_nvfp4", "gemm", "w4a16_nvfp4",
		"float activations times an NVFP4 weight",
		func(a *MatmulNVFP4Args) *OpError {
			return first(fp4Extents("weight", a.Act.Shape[1], a.WeightPacked.Shape[1], a.WeightScale.Shape[1]), nonZero("weight_scale2", a.WeightScale2))
		})
	MatmulNVFP4FP4 = define(OpMatmulNVFP4FP4, "matmul_nvfp4_fp4", "gemm", "w4a4_nvfp4_linear",
		"fp4 activations times an fp4 weight, scales of 16 elements in rows",
		func(a *MatmulNVFP4FP4Args) *OpError {
			return first(fp4Extents("a", 2*a.APacked.Shape[1], a.APacked.Shape[1], a.AScale.Shape[1]), nonZero("alpha", a.Alpha))
		})
	MatmulNVFP4Swizzled = define(OpMatmulNVFP4Swizzled, "matmul_nvfp4_swizzled", "gemm", "w4a4_nvfp4_swizzled",
		"fp4 activations times an fp4 weight, scales swizzled, the result rounded to bf16",
		func(a *MatmulNVFP4SwizzledArgs) *OpError {
			k := 2 * a.APacked.Shape[1]
			for _, x := range [...]struct {
				operand string
				n       int64
			}{{"a_packed", k}, {"out", a.Out.Shape[1]}} {
				if x.n%32 != 0 {
					return bad(ErrShape, x.operand, "%d elements a row are no multiple of 32", x.n)
				}
			}
			for _, x := range [...]struct {
				operand string
				t       *tensor.Tensor
				rows    int64
			}{{"a_sf_sw", &a.ASfSw, a.Out.Shape[0]}, {"b_sf_sw", &a.BSfSw, a.Out.Shape[1]}} {
				if r, c := ScaleExtents(ScaleSwizzled, x.rows, k/16); x.t.Shape[0] != r || x.t.Shape[1] != c {
					return bad(ErrShape, x.operand, "shape %v, the scales of [%d,%d] fill [%d,%d]", x.t.Dims(), x.rows, k, r, c)
				}
			}
			if a.Alpha.Present() {
				if a.HostAlpha != 0 {
					return bad(ErrAttr, "host_alpha", "%v beside a tensor", a.HostAlpha)
				}
				return nil
			}
			return nonZero("host_alpha", a.HostAlpha)
		}, "matmul_nvfp4_cutlass")
	MatmulFP8 = define(OpMatmulFP8, "matmul_fp8", "gemm", "w8a8_fp8",
		"fp8 activations times an fp8 weight, scaled as a whole, by rows or by tiles",
		checkMatmulFP8, "matmul_fp8_cutlass", "matmul_fp8_cublaslt")
	MatmulInt8 = define(OpMatmulInt8, "matmul_int8", "gemm", "w8a8_int8",
		"8-bit integers with zero points, as int32, float or 8 bits again", checkMatmulInt8)
)

// separateRows wants rows that do not overlap.
func separateRows(operand string, x *tensor.Tensor) *OpError {
	if x.Shape[1] > 1 && x.Stride[1] < x.Shape[2] {
		return bad(ErrLayout, operand, "rows of %d are %d apart", x.Shape[2], x.Stride[1])
	}
	return nil
}

// fp4Extents checks the bytes and scales of rows of k fp4 codes.
func fp4Extents(operand string, k, packed, scales int64) *OpError {
	switch {
	case k%16 != 0:
		return bad(ErrShape, operand+"_packed", "rows of %d elements are no multiple of 16", k)
	case packed != k/2:
		return bad(ErrShape, operand+"_packed", "%d bytes a row for %d elements", packed, k)
	case scales != k/16:
		return bad(ErrShape, operand+"_scale", "%d scales a row for %d elements", scales, k)
	}
	return nil
}

// nonZero checks a factor without a default.
func nonZero(name string, v float32) *OpError {
	if v == 0 {
		return bad(ErrAttr, name, "is not set")
	}
	return finite(name, v)
}

func checkMatmulFP8(a *MatmulFP8Args) *OpError {
	m, n, k := a.Out.Shape[0], a.Out.Shape[1], a.AFp8.Shape[1]
	if k%16 != 0 {
		return bad(ErrShape, "a_fp8", "rows of %d elements are no multiple of 16", k)
	}
	if n%16 != 0 {
		return bad(ErrShape, "out", "%d columns are no multiple of 16", n)
	}
	if err := first(notNegativeInt("block_n", a.BlockN), notNegativeInt("block_k", a.BlockK), finite("alpha", a.Alpha)); err != nil {
		return err
	}
	bn, bk := max(int64(a.BlockN), 1), int64(a.BlockK)
	if bk == 0 {
		bk = max(k, 1)
	}
	for _, x := range [...]struct {
		operand string
		t       *tensor.Tensor
		rows    int64
	}{{"a_scale", &a.AScale, m}, {"b_scale", &a.BScale, (n + bn - 1) / bn}} {
		if groups := (k + bk - 1) / bk; x.t.Present() && x.t.Rank == 2 && (x.t.Shape[0] != x.rows || x.t.Shape[1] != groups) {
			return bad(ErrShape, x.operand, "shape %v, the tiles are [%d,%d]", x.t.Dims(), x.rows, groups)
		}
	}
	return nil
}

func checkMatmulInt8(a *MatmulInt8Args) *OpError {
	for _, x := range [...]struct {
		operand string
		t       *tensor.Tensor
		n       int64
	}{{"a_zero_point", &a.AZeroPoint, a.Out.Shape[0]}, {"b_zero_point", &a.BZeroPoint, a.Out.Shape[1]},
		{"a_scale", &a.AScale, a.Out.Shape[0]}, {"b_scale", &a.BScale, a.Out.Shape[1]}} {
		if x.t.Present() && x.t.Shape[0] != 1 && x.t.Shape[0] != x.n {
			return bad(ErrShape, x.operand, "%d numbers, want 1 or %d", x.t.Shape[0], x.n)
		}
	}
	scaled, small := a.Out.DType != tensor.I32, a.Out.DType == tensor.I8 || a.Out.DType == tensor.U8
	for _, x := range [...]struct {
		operand    string
		t          *tensor.Tensor
		want, must bool
	}{{"a_scale", &a.AScale, scaled, true}, {"b_scale", &a.BScale, scaled, true}, {"y_scale", &a.YScale, small, true}, {"y_zero_point", &a.YZeroPoint, small, false}} {
		switch {
		case x.t.Present() && !x.want:
			return bad(ErrAttr, x.operand, "has no use with an output of %v", a.Out.DType)
		case !x.t.Present() && x.want && x.must:
			return bad(ErrAttr, x.operand, "is missing, an output of %v needs it", a.Out.DType)
		}
	}
	return nil
}
