package opfile_test

import (
	"errors"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/internal/opfile"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
)

// seeds are files of every form and of most types.
func seeds() []string {
	x3, qkv := "x f32[2,2,2] [1, 2, 3, 4, 5, 6, 7, 8]", []string{"q f32[2,2,2] [1, 2, 3, 4, 5, 6, 7, 8]", "k f32[1,2,2] [1, 2, 3, 4]",
		"v f16[1,2,2] [1, 2, 3, 4]", `mask f16[2,2] [0, "-Inf", 0, 0]`, "sinks f32[2] [1, 2]"}
	return []string{
		file("MatMul", "", []string{"a bf16[2,2] [1, 2, 3, 4]", "b f32[1,2,1] [1, 2]"}, nil),
		file("RMSNormalization", `"axis": 1, "epsilon": 0.1`, []string{x3, "w f32[2,2] [1, 2, 3, 4]"}, []string{"y f32[2,2,2] "}),
		file("RotaryEmbedding", `"num_heads": 1, "interleaved": 1`, []string{x3, "c f32[3,1] [1, 2, 3]", "s f32[3,1] [1, 2, 3]", "p i64[2,2] [0, 1, 2, 0]"}, nil),
		file("ArgMax", `"axis": 1, "keepdims": 0`, []string{x3}, []string{"y i64[2,2] [1, 1, 1, 1]"}),
		file("Softmax", `"axis": -2`, []string{x3}, nil), file("LogSoftmax", "", []string{x3}, nil),
		file("SwiGLU", `"alpha": 0.5`, []string{x3, "u f32[2] [1, 2]"}, nil), file("Add", "", []string{x3, "b f16[2] [1, 2]"}, nil),
		file("attention", `"scale": 0.5, "causal": true, "window": 1, "logit_softcap": 2`, qkv, nil),
		file("soft_max", `"scale": 0.5, "max_bias": 8`, []string{x3, "mask f32[2,2] [0, 1, 2, 3]"}, nil),
		file("rope", `"style": "gptj", "rotary_dim": 2, "freq_scale": 0.5, "ext_factor": 1, "n_ctx_orig": 8`, []string{x3, "positions i32[2] [1, 9]", "freq_factors f32[1] [2]"}, nil),
		file("rope_multi", `"style": "imrope", "rotary_dim": 2, "sections": [1, 0, 0, 0]`, []string{x3, "positions i32[8] [1, 2, 3, 4, 5, 6, 7, 8]"}, nil),
		file("set_rows", `"rows": 3, "dst_dtype": "bf16"`, []string{"src f32[1,2] [1, 2]", "row_ids i64[1] [2]"}, nil),
		file("long_context_rope", `"head_size": 2, "max_position": 8, "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4, "short_factor": [1], "long_factor": [2]}`,
			[]string{"positions i64[1] [1]", "q_in f32[1,2] [1, 2]", "k_in f32[1,2] [3, 4]"}, nil),
		file("rms_norm", `"eps": 1`, []string{"x f32[1,2] [1, 2]", "residual bf16[1,2] [1, 2]"}, []string{"out f32[1,2] [1, 2]", "residual bf16[1,2] "}),
		file("paged_attention", `"scale": 1, "causal": true`, []string{"query f32[1,1,1] [1]", "k_cache f32[1,1,1,1] [1]", "v_cache f32[1,1,1,1] [1]",
			"block_table i32[1,1] [0]", "seq_lens i32[1] [1]", "query_start_loc i32[2] [0, 1]"}, []string{"out f32[1,1,1] "}),
		file("LayerNormalization", `"axis": 1`, []string{x3, "w f32[2,2] [1, 2, 3, 4]", "b f32[2] [1, 2]"}, []string{"y f32[2,2,2] ", "m f32[2,1,1] ", "s f32[2,1,1] "}),
		file("GroupNormalization", `"num_groups": 2`, []string{x3, "w f32[2] [1, 2]", "b f32[2] [1, 2]"}, nil), file("LpNormalization", `"axis": 1, "p": 2`, []string{x3}, nil),
		file("Gelu", `"approximate": "tanh"`, []string{x3}, nil), file("Mul", "", []string{"a i8[2,2] [1, 2, 3, 100]", "b i8[] [3]"}, nil),
		file("Clip", "", []string{x3, "lo f32[] [2]", "hi f32[] [3]"}, nil), file("Cast", `"to": 24, "round_mode": "up", "saturate": 0`, []string{"x i4[2] [7, -8]"}, nil),
		file("rmsnorm_gated", `"activation": "sigmoid", "group_size": 2`, []string{"x f32[1,2] [1, 2]", "gate bf16[1,2] [1, 2]", "weight f32[2] [1, 2]"}, nil),
		file("swiglu_oai", `"alpha": 1.7, "limit": 7`, []string{"gate f32[2] [1, 2]", "up f32[2] [1, 2]"}, nil), file("l2_norm", `"eps": 1`, []string{x3}, nil),
		file("TopK", `"axis": 1, "largest": 0, "sorted": 1`, []string{x3, "k i64[1] [1]"}, nil), file("top_k", `"k": 2`, []string{x3}, nil),
		file("CumSum", `"exclusive": 1, "reverse": 1`, []string{"x f64[3] [1, 2, 3]", "axis i32[] [0]"}, nil), file("Gather", `"axis": 1`, []string{x3, "ids i64[2] [0, -1]"}, nil),
		file("ScatterND", `"reduction": "max"`, []string{x3, "ids i64[1,2] [1, -1]", "u f32[1,2] [8, 9]"}, nil),
		file("TensorScatter", `"mode": "circular", "axis": 1`, []string{x3, "u f32[2,1,2] [1, 2, 3, 4]", "at i64[2] [1, 0]"}, nil),
		file("QuantizeLinear", `"axis": 1, "block_size": 2`, []string{"x f32[2,2] [1, 2, 3, 4]", "s f32[2,1] [2, 3]", "z u4[2,1] [1, 2]"}, nil),
		file("DequantizeLinear", `"axis": 0`, []string{"x f4e2m1[3] [1, 2, 3]", "s f32[] [2]", "z f4e2m1[1] [0]"}, nil), file("DynamicQuantizeLinear", "", []string{x3}, nil),
		`{"op": "greedy_rejection_sample", "params": {"disallowed": [[1], []]}, "inputs": {"draft_token_ids": [[1, 2], [3]], "target_argmax": [[1, 5], [3]], "bonus_token_ids": [6, 7], "vocab": 20}, "expected": {"output_token_ids": [[15, -1, -1], [3, 7, -1]]}}`,
		`{"op": "greedy_rejection_sample", "params": {"frequency_penalty": [1], "presence_penalty": [0], "repetition_penalty": [1]}, "inputs": {"draft_token_ids": [[1, 1]], "target_argmax": [[1, 1]], "bonus_token_ids": [1], "prompt_token_ids": [[2]], "output_token_ids": [[3]], "vocab": 20}, "expected": {"output_token_ids": [[1, 1, 1]]}}`,
		`{"op": "nan_guard", "params": {}, "inputs": {"logits": [[0, "NaN", "Inf"]]}, "expected": {"logits": [[0, 0, 1]]}}`,
		`{"op": "sampler_chain", "params": {"order": ["top_k", "top_p", "min_p"], "top_k": 2, "top_p": 0.5, "min_p": 0.1}, "inputs": {"vocab": 9, "logits": "ln(token id)"}, "expected": {"kept_count": 1, "probs": [1]}}`,
		`{"op": "logit_bias", "params": {"sequence_bias": [[[1, 0], -1]]}, "inputs": {"logits": [[0, 1]], "token_ids": [[1]]}, "expected": {"logits": [[-1, 1]]}}`,
		`{"op": "token_mask", "params": {"allowed": [[1]]}, "inputs": {"vocab": 2, "logits": "all 1"}, "expected": {"masked": [[true, false]]}}`,
		`{"ggml_type": "q8_0", "n": 1, "k": 32, "quantized": "AAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fAA==", "dequantized_f32": "", "matmul": []}`,
		`{"dtype": "f8e8m0", "x_f32_bits": [1], "code": [0], "code_round_up": [null]}`, `{"dtype": "f4e2m1", "f32_bits": [0]}`,
	}
}

// FuzzRun wants an error or outputs from any text, and no panic.
func FuzzRun(f *testing.F) {
	for _, text := range seeds() {
		f.Add([]byte(text))
	}
	rn := runner(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := opfile.Parse(text)
		if err != nil {
			var e *opfile.Error
			if !errors.As(err, &e) {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		for i := range file.Routes() {
			if out, err := rn.Run(file, i); err == nil {
				_, _ = file.Compare(out)
			}
		}
	})
}

// TestEveryNumberReplaced runs the seeds with each number and each name turned into something else.
func TestEveryNumberReplaced(t *testing.T) {
	rn := runner(t)
	token := regexp.MustCompile(`-?[0-9][0-9.]*|"[a-z_]+"`)
	failed, ran := 0, 0
	for _, text := range seeds() {
		for _, at := range token.FindAllStringIndex(text, -1) {
			for _, with := range []string{"-1", "0", "0.5", "3", "2147483647", "1e15", "9223372036854775807", "1e300", `"NaN"`, "null", "[]", `"x"`, `"f16"`, `"i64"`} {
				file, err := opfile.Parse([]byte(text[:at[0]] + with + text[at[1]:]))
				for i := 0; err == nil && i < len(file.Routes()); i++ {
					if _, err = rn.Run(file, i); errors.Is(err, opfile.ErrRoute) {
						err = nil
					}
				}
				if ran++; err != nil {
					failed++
					require.True(t, typed(err), "%T: %v", err, err)
				}
			}
		}
	}
	require.Greater(t, failed, ran/3)
	require.Less(t, failed, ran)
}

// typed reports whether err is one of those that Parse and Run promise.
func typed(err error) bool {
	var file *opfile.Error
	var op *ops.OpError
	return errors.As(err, &file) || errors.As(err, &op) || errors.Is(err, registry.ErrDeclined) || errors.Is(err, registry.ErrNoKernel)
}
