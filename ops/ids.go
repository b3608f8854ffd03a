package ops

import "github.com/opmux/opmux/registry"

// Ids of the catalogue: the numbers of the table of all ops, 1 to 79, then opmux's own. They are stable and stand in the
// C ABI. A constant without a variable of the same name (RMSNorm for OpRMSNorm) is an op that this module does not have
// yet. Number 9 and 56 are not used: the two names are aliases of 8 and 55.
const (
	OpMatmul registry.Op = iota + 1
	OpMatmulBT
	OpBatchedMatmul
	OpMatmulBTQuant
	OpMatmulNVFP4
	OpMatmulNVFP4FP4
	OpMatmulNVFP4Swizzled
	OpMatmulFP8
	_
	OpRMSNorm
	OpRMSNormGated
	OpLayerNorm
	OpL2Norm
	OpSiluAndMul
	OpGeluAndMul
	OpMoESiluMul
	OpRelu
	OpAdd
	OpMulScalar
	OpSoftCap
	OpMulColVecF32
	OpCastBF16
	OpCastF32
	OpSigmoidGateBF16
	OpAttnGateSplit
	OpQKVSplit
	OpEmbedding
	OpRopeNeox
	OpRopeCosSinCache
	OpRopeFromCache
	OpAttention
	OpPagedAttention
	OpMergeAttnStates
	OpReshapeAndCache
	OpConcatAndCacheMLA
	OpGatherMLACache
	OpMLADecodeAttention
	OpMLAPrefillAttention
	OpConcatMLANopeRope
	OpCausalConv1DFwd
	OpCausalConv1DUpdate
	OpGDNPrefill
	OpGDNDecode
	OpGDNPackedDecode
	OpGDNStateGather
	OpGDNStateScatter
	OpGDNGBeta
	OpGDNConvSplit
	OpGDNPostConv
	OpMoERouterTopK
	OpMoECombine
	OpMoECombineGate
	OpSharedExpertGate
	OpMoEGroupedGemmBF16
	OpMoEGroupedGemmNVFP4
	_
	OpScaledFP4Quant
	OpQuantFP8Static
	OpSwizzleBlockscale
	OpApplyTemperature
	OpGreedyArgmax
	OpApplyTopKTopP
	OpComputeProbs
	OpComputeLogprobs
	OpRandomSample
	OpApplyPenalties
	OpApplyMinP
	OpApplyLogitBias
	OpApplyTokenMask
	OpApplyAllowedTokenIDs
	OpGreedyRejectionSample
	OpFusedChain
	OpAttnQKNormRopeGate
	OpRMSNormQuantFP8
	OpRMSNormGatedQuantFP8
	OpSiluMulFP4Quant
	OpSiluAndMulFP4Quant
	OpSigmoidGateFP4Quant
	OpDropinProbe

	// OpSoftmax is the first op beyond the catalogue.
	OpSoftmax
	OpLogSoftmax
	OpGelu
	OpSwish
	OpSigmoid
	OpTanh
	OpHardSwish
	OpSoftplus
	OpMul
	OpClip
	OpCast
	OpGroupNorm
	OpHadamardTransform
	OpQuantize
	OpDequantize
	OpDynamicQuantize
	OpQuantMX
	OpDequantMX
	OpDequantNVFP4
	OpQuantFP8Dynamic
	OpMatmulInt8
	OpTopK
	OpCumsum
	OpGather
	OpScatter
	OpMoESoftmaxTopK
	OpMoESigmoidTopK
	OpMoEAlignBlockSize
	OpMoEGroupedGemm
	OpMoEAddBias
	OpMHAPrefill
	OpMHADecodeWithKVCache

	endOfOps
)
