package opmux_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// TestAcceptance asks what the library that the descriptions come from asserts about its own selection, and wants the
// winners that it names. Where the published facts do not decide, unsure says what is missing and what was assumed.
func TestAcceptance(t *testing.T) {
	r, machines := described(t, specs(t)), platforms(t)
	with := func(name, library string) *device.Platform { // the machine has a library
		p := *machines[name]
		p.Libraries = append([]device.Library{{Name: library, Version: "4.2.0"}}, p.Libraries...)
		return &p
	}
	all := func(winner string) map[string]string {
		return map[string]string{"h100": winner, "a100": winner, "b200": winner, "b300": winner, "mi350x": winner, "mi455x": winner}
	}
	const (
		blockFP8 = "block-fp8[storage=f8_e4m3fn, scale(block, storage=f32, block=128x128)]"
		nvfp4    = "nvfp4[storage=u8, scale(block, storage=f8_e4m3fn, block=16)]"
		mxfp4    = "mxfp4[storage=u8, scale(block, storage=u8, block=32)]"
	)
	square := traits{"m": 16, "n": 128, "k": 128}
	paged := traits{"head_dim": 128, "page_size": 64}
	moe := func(weights, routing string, more traits) traits {
		out := traits{"weight_dtype": weights, "routing_mode": routing, "activation": "swiglu", "ispp": 2048}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	fp8 := traits{"fp8_scale_block_shape": "128x128"}
	mla := func(heads int) traits {
		return traits{"batch_size": 8, "num_q_heads": heads, "page_size": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
	}
	for _, c := range []struct {
		what     string
		operator string
		sig      string
		traits   traits
		solution string
		library  string // that the machines have
		want     map[string]string
		unsure   string
	}{
		{what: "dense bf16 mm", operator: "gemm.mm", sig: "a=bf16, b=bf16", traits: square, want: all("torch_mm"),
			unsure: "the source runs it under the solution reference; here a vendor's BLAS is no reference, so the solution is torch"},
		{what: "dense bf16 bmm", operator: "gemm.bmm", sig: "a=bf16, b=bf16", traits: traits{"batch": 16, "m": 16, "n": 128, "k": 128}, want: all("torch_bmm")},
		{what: "block fp8 128x128, N=K=128", operator: "gemm.mm", sig: "a=" + blockFP8 + ", b=" + blockFP8, traits: square,
			want: map[string]string{"h100": "deep_gemm_mm_fp8_blockscale", "b200": "flashinfer_mm_fp8_blockscale", "mi350x": "triton_mm_fp8_blockscale"}},
		{what: "NVFP4 mm", operator: "gemm.mm", sig: "a=" + nvfp4 + ", b=" + nvfp4, traits: square,
			want: map[string]string{"b200": "cublaslt_mm_nvfp4", "b300": "cublaslt_mm_nvfp4"}},
		{what: "MXFP4 mm", operator: "gemm.mm", sig: "a=" + mxfp4 + ", b=" + mxfp4, traits: square, want: map[string]string{"mi350x": "triton_mm_mxfp4"}},
		{what: "MXFP8 quantise", operator: "quantization.mxfp8", sig: "x=bf16",
			want: map[string]string{"h100": "triton_quantize_mxfp8", "b200": "flashinfer_quantize_mxfp8"}},
		{what: "mha prefill, dense", operator: "attention.mha_prefill", sig: "q=bf16, k=bf16, v=bf16", traits: traits{"head_dim": 128},
			want: map[string]string{"h100": "fa3_mha_prefill", "b200": "fa4_mha_prefill", "mi350x": "gluon_mha_prefill_gfx950"}},
		{what: "mha extend, dense", operator: "attention.mha_extend_with_kvcache", sig: "q=bf16, k_cache=bf16, v_cache=bf16", traits: paged,
			want: map[string]string{"h100": "fa3_mha_extend_with_kvcache", "b200": "fa4_mha_extend_with_kvcache",
				"b300": "flashinfer_trtllm_mha_extend_with_kvcache", "mi350x": "gluon_mha_extend_with_kvcache_gfx950"}},
		{what: "mha decode, dense", operator: "attention.mha_decode_with_kvcache", sig: "q=bf16, k_cache=bf16, v_cache=bf16", traits: paged,
			want: map[string]string{"h100": "fa3_mha_decode_with_kvcache", "b200": "fa4_mha_decode_with_kvcache",
				"b300": "flashinfer_trtllm_mha_decode_with_kvcache", "mi350x": "gluon_mha_decode_with_kvcache_gfx950"},
			unsure: "on b200 the source has a tie that import order decides; here the narrower gate does"},
		{what: "attention merge", operator: "attention.attn_merge_state", sig: "out_a=bf16, out_b=bf16",
			want: map[string]string{"h100": "cuda_attn_merge_state", "b200": "cuda_attn_merge_state", "b300": "cuda_attn_merge_state",
				"rtx5090": "cuda_attn_merge_state", "mi350x": "triton_attn_merge_state"}},
		{what: "mla decode, fp8, 16 heads", operator: "attention.mla_decode_with_kvcache", sig: "q=f8_e4m3fn, kv_cache=f8_e4m3fn", traits: mla(16),
			want: map[string]string{"mi350x": "gluon_mla_decode_fp8xfp8_gfx950_bh16bn128"}},
		{what: "mla decode, fp8, a head count that no gluon kernel has", operator: "attention.mla_decode_with_kvcache", sig: "q=f8_e4m3fn, kv_cache=f8_e4m3fn", traits: mla(24),
			want: map[string]string{"mi350x": "triton_mla_decode_with_kvcache"}, unsure: "which head counts the other gluon kernels take: 32, 64 and 128 were assumed"},
		{what: "argmax with the CuTe DSL", operator: "sampling.argmax", sig: "logits=f32", library: "cutlass-dsl",
			want: map[string]string{"h100": "cute_dsl_argmax", "b200": "cute_dsl_argmax", "mi350x": "gluon_argmax_gfx950"}},
		{what: "argmax without it", operator: "sampling.argmax", sig: "logits=f32", want: map[string]string{"h100": "", "mi350x": "gluon_argmax_gfx950"},
			unsure: "the source then runs an unregistered function; here nothing serves the call and explain names the library"},
		{what: "MoE, unquantised, precomputed routing", operator: "moe.apply", sig: "x=bf16", traits: moe("unquant", "precomputed_topk", nil),
			want:   map[string]string{"h100": "flashinfer_cutlass_unquant_moe_apply", "b200": "flashinfer_trtllm_unquant_routed_moe_apply"},
			unsure: "the gate of the trtllm kernels is not published: 10.0 to 10.3 was assumed"},
		{what: "the same, solution=triton", operator: "moe.apply", sig: "x=bf16", traits: moe("unquant", "precomputed_topk", nil), solution: "triton", want: all("triton_bf16_precomputed_moe_apply")},
		{what: "MoE fp8 128x128", operator: "moe.apply", sig: "x=bf16", traits: moe("fp8", "precomputed_topk", fp8),
			want:   map[string]string{"h100": "flashinfer_cutlass_fp8_moe_apply", "b200": "flashinfer_trtllm_fp8_moe_apply"},
			unsure: "the kernels' names are ours: the source's row gives solutions"},
		{what: "MoE NVFP4, kernel routing", operator: "moe.apply", sig: "x=bf16", traits: moe("nvfp4", "kernel_routing", nil),
			want: map[string]string{"b200": "flashinfer_trtllm_nvfp4_moe_apply"}, unsure: "name ours"},
		{what: "MoE NVFP4, precomputed", operator: "moe.apply", sig: "x=bf16", traits: moe("nvfp4", "precomputed_topk", nil),
			want: map[string]string{"b200": "flashinfer_trtllm_nvfp4_routed_moe_apply"}, unsure: "name ours"},
		{what: "MoE NVFP4, all to all", operator: "moe.apply", sig: "x=bf16", traits: moe("nvfp4", "precomputed_topk", traits{"all_to_all_ep": true, "deepep_mode": "low_latency", "ep_size": 8}),
			want: map[string]string{"b200": "flashinfer_cutedsl_deepep_nvfp4_moe_apply"}, unsure: "name and modes ours"},
		{what: "MoE fp8 with DeepEP", operator: "moe.apply", sig: "x=bf16",
			traits: moe("fp8", "precomputed_topk", traits{"fp8_scale_block_shape": "128x128", "all_to_all_ep": true, "deepep_mode": "auto", "ep_size": 8}),
			want:   map[string]string{"h100": "deep_gemm_deepep_fp8_moe_apply", "b200": "deep_gemm_deepep_fp8_moe_apply", "b300": "deep_gemm_deepep_fp8_moe_apply"},
			unsure: "the source's gate is 9.0 and up; here it ends at 11.0"},
		{what: "MoE MXFP4, one expert partition, activations as they come", operator: "moe.apply", sig: "x=bf16", traits: moe("mxfp4", "precomputed_topk", nil),
			want: map[string]string{"mi350x": "gluon_mxfp4_dynamic_moe_apply"}},
		{what: "the same with fp8 inside", operator: "moe.apply", sig: "x=bf16", traits: moe("mxfp4", "precomputed_topk", traits{"internal_activation_dtype": "fp8"}),
			want: map[string]string{"mi350x": "gluon_mxfp4_moe_apply"}},
	} {
		sig, err := tensor.ParseSignature(c.sig)
		require.NoError(t, err, c.what)
		for machine, want := range c.want {
			p := machines[machine]
			if c.library != "" {
				p = with(machine, c.library)
			}
			d := r.Decide(registry.Request{Operator: c.operator, Signature: sig, Traits: c.traits.values(), Platform: p, Solution: c.solution})
			require.Empty(t, d.Error, c.what)
			require.Equal(t, want, d.Winner, "%s on %s (%s)\n%v", c.what, machine, c.unsure, d)
			if want == "" {
				continue
			}
			s, err := r.Select(registry.Request{Operator: c.operator, Signature: sig, Traits: c.traits.values(), Platform: p, Solution: c.solution})
			require.NoError(t, err)
			require.Equal(t, want, s.Kernel(), "select and explain disagree")
		}
	}
}

// traits are trait values as Go constants: bool, int or string.
type traits map[string]any

func (s traits) values() map[string]registry.TraitValue {
	out := map[string]registry.TraitValue{}
	for k, v := range s {
		switch v := v.(type) {
		case bool:
			out[k] = registry.BoolTrait(v)
		case int:
			out[k] = registry.IntTrait(int64(v))
		case string:
			out[k] = registry.StringTrait(v)
		}
	}
	return out
}

// TestW16UpperBounds wants every description to say where it ends: a kernel with a least architecture has a last one
// too, or names the hardware that it needs. And what was built for data-centre parts is not offered to the consumer part
// of the same vendor.
func TestW16UpperBounds(t *testing.T) {
	consumer, server := platforms(t)["rtx5090"], platforms(t)["b200"]
	bounded, kept := 0, 0
	for _, text := range specs(t) {
		var f specFile
		require.NoError(t, json.Unmarshal(text, &f))
		for _, k := range f.Kernels {
			q := k.Requires
			if q.MinArch == "" {
				continue
			}
			bounded++
			require.False(t, q.MaxArch == "" && len(q.Features) == 0 && len(q.AnyOf) == 0, "%s: from %s on, and no feature named", k.Name, q.MinArch)
			if q.SatisfiedBy(server) && !q.SatisfiedBy(consumer) {
				kept++
			}
		}
	}
	require.Greater(t, bounded, 60)
	require.Greater(t, kept, 20)
}
