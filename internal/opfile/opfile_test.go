package opfile_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/internal/opfile"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// runner has a queue of a CPU device of its own.
func runner(t testing.TB) opfile.Runner {
	r := registry.New(registry.Options{})
	require.NoError(t, cpu.Register(r))
	d, err := cpu.Open(cpu.Options{Threads: 1, Registry: r})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	dq, err := d.NewQueue()
	require.NoError(t, err)
	return opfile.Runner{Queue: r.NewQueue(dq)}
}

// file spells a file: operands are "name dtype[shape] data", data is left out after a trailing space.
func file(opType, attrs string, inputs, outputs []string) string {
	list := func(operands []string) string {
		var out []string
		for _, o := range operands {
			head, data, _ := strings.Cut(o, "] ")
			name, rest, _ := strings.Cut(head, " ")
			dtype, shape, _ := strings.Cut(rest, "[")
			if data != "" {
				data = `, "data": ` + data
			}
			out = append(out, fmt.Sprintf(`{"name": %q, "dtype": %q, "shape": [%s]%s}`, name, dtype, shape, data))
		}
		return "[" + strings.Join(out, ", ") + "]"
	}
	return fmt.Sprintf(`{"name": "t", "op_type": %q, "attributes": {%s}, "inputs": %s, "outputs": %s}`, opType, attrs, list(inputs), list(outputs))
}

// pass runs a file by every route that can express it and compares; it returns the outputs of the first.
func pass(t *testing.T, rn opfile.Runner, text string) []opfile.Tensor {
	t.Helper()
	f, err := opfile.Parse([]byte(text))
	require.NoError(t, err)
	require.NotEmpty(t, f.Routes())
	var outs []opfile.Tensor
	for i := range f.Routes() {
		out, err := rn.Run(f, i)
		if i > 0 && err != nil {
			require.ErrorIs(t, err, opfile.ErrRoute)
			continue
		}
		require.NoError(t, err)
		worst, err := f.Compare(out)
		require.NoError(t, err)
		require.NotEmpty(t, worst.Output, "nothing was compared")
		if i == 0 {
			outs = out
		}
	}
	return outs
}

func TestRecordsByTheirOwnNames(t *testing.T) {
	rn := runner(t)
	q8 := make([]byte, 34)
	require.NoError(t, tensor.Quantize(q8, tensor.Q8_0, append(make([]float32, 31), 127)))
	weight := fmt.Sprintf("%q", base64.StdEncoding.EncodeToString(q8))
	activations := "[" + strings.Repeat("0, ", 31) + "127]"
	for name, text := range map[string]string{
		"inout operand and output": file("rms_norm", `"eps": 0`,
			[]string{"x f32[1,2] [1, 1]", "weight f32[2] [1, 2]", "residual f32[1,2] [2, 3]"},
			[]string{"out f32[1,2] [0.84852814, 2.2627417]", "residual f32[1,2] [3, 4]"}),
		"block weight": file("matmul_bt_quant", "", []string{"a f32[1,32] " + activations, "b q8_0[1,32] " + weight},
			[]string{"out f32[1,1] [16129]"}),
		"block weight in the dense op": file("matmul_bt", "", []string{"a f32[1,32] " + activations, "b q8_0[1,32] " + weight},
			[]string{"out f32[1,1] [16129]"}),
		"nested attributes and a scaling by name": file("rope_neox", `"rope": {"base": 1, "rotary_dim": 2, "scaling": "linear", "factor": 2}`,
			[]string{"q_states f32[1,1,2] [1, 0]", "positions i32[1] [1]"},
			[]string{"q_states f32[1,1,2] [0.87758256, 0.47942554]"}), // cos and sin of 1/2
		"array attribute": file("rope_from_cache", `"rotary_dim": 2, "mrope_section": [0, 1, 0]`,
			[]string{"q_states f32[1,1,2] [5, 6]", "positions i64[3,1] [0, 1, 0]", "cos_sin_cache f32[2,2] [1, 0, 0, 1]"},
			[]string{"q_states f32[1,1,2] [-6, 5]"}),
		"structs in an array": file("fused_chain", `"num_steps": 2, "steps": [{"op": "add", "in": [0, 0], "out": 3}, {"op": "mul", "in": [3, 1], "out": 3}]`,
			[]string{"x f32[1,2] [1, -2]", "weight f32[2] [10, 100]"}, []string{"out f32[1,2] [20, -400]"}),
		"attribute by name": file("scaled_fp4_quant", `"input_global_scale_inv": 1, "scale_layout": "linear"`, []string{"x f32[1,16] [6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -6]"},
			[]string{"out_packed u8[1,8] [7, 0, 0, 0, 0, 0, 0, 240]", "out_scale u8[1,1] [56]"}),
		"shapes that no tag gives": file("qkv_split", "", []string{"qkv bf16[1,4] [1, 2, 3, 4]"},
			[]string{"q_out bf16[1,2] [1, 2]", "k_out bf16[1] [3]", "v_out bf16[1,1] [4]"}),
		"texts for numbers": file("apply_min_p", "", []string{`logits f32[1,3] [0, "-Inf", -9]`, "min_p f32[1] [0.5]"},
			[]string{`logits f32[1,3] [0, "-Inf", "-Inf"]`}),
		"booleans": file("apply_allowed_token_ids", "", []string{"logits f32[1,2] [1, 2]", "mask bool[1,2] [true, false]"},
			[]string{`logits f32[1,2] ["-Inf", 2]`}),
		"whole numbers beyond 2^53": file("random_sample", "", []string{"probs f32[1,2] [0, 1]", "seeds i64[1] [9223372036854775807]"},
			[]string{"token_ids i64[1] [1]"}),
	} {
		t.Run(name, func(t *testing.T) { pass(t, rn, text) })
	}
}

func TestAdaptersTakeEveryAttribute(t *testing.T) {
	rn := runner(t)
	softmax := "x f32[1,2,2] [7, 7, 7, 7]"
	opset := func(text, n string) string {
		return strings.Replace(text, `"attributes"`, `"opset": `+n+`, "attributes"`, 1)
	}
	for name, text := range map[string]string{
		"matmul, f16 times a vector": file("MatMul", "", []string{"a f16[2,2] [1, 2, 3, 4]", "b f16[2] [1, 10]"},
			[]string{"c f16[2] [21, 43]"}),
		"matmul, bf16 batches": file("MatMul", "", []string{"p bf16[2,1,2] [1, 2, 3, 4]", "q bf16[2,2] [1, 0, 0, 1]"},
			[]string{"r bf16[2,1,2] [1, 2, 3, 4]"}),
		"matmul of nothing": file("MatMul", "", []string{"a f32[1,0] []", "b f32[0,2] []"}, []string{"c f32[1,2] [0, 0]"}),
		"add, both repeated": file("Add", "", []string{"a f32[2,1] [1, 2]", "b f32[3] [10, 20, 30]"},
			[]string{"c f32[2,3] [11, 21, 31, 12, 22, 32]"}),
		"add, f16 scalars":            file("Add", "", []string{"a f16[] [1]", "b f16[] [2]"}, []string{"c f16[] [3]"}),
		"softmax of a new operator":   opset(file("Softmax", `"axis": 1`, []string{softmax}, []string{"y f32[1,2,2] [0.5, 0.5, 0.5, 0.5]"}), "13"),
		"softmax of an old operator":  opset(file("Softmax", "", []string{softmax}, []string{"y f32[1,2,2] [0.25, 0.25, 0.25, 0.25]"}), "11"),
		"log softmax, f16":            file("LogSoftmax", `"axis": 0`, []string{"x f16[2] [3, 3]"}, []string{"y f16[2] [-0.693, -0.693]"}),
		"arg max, bf16 last of equal": file("ArgMax", `"axis": -2, "keepdims": 0, "select_last_index": 1`, []string{"x bf16[3,1] [4, 4, 1]"}, []string{"y i64[1] [1]"}),
		"rms norm, repeated scale": file("RMSNormalization", `"axis": 0, "epsilon": 0, "stash_type": 16`,
			[]string{"x f32[1,2] [3, 4]", "w f32[1] [2]"}, []string{"y f32[1,2] [1.6970563, 2.2627417]"}),
		"swiglu, alpha of zero": file("SwiGLU", `"alpha": 0`, []string{"a f32[2] [2, -4]", "b f32[1] [3]"}, []string{"y f32[2] [3, -6]"}),
		"rotary, f16 pairs": file("RotaryEmbedding", `"interleaved": 1, "num_heads": 1, "rotary_embedding_dim": 2`,
			[]string{"x f16[1,1,3] [5, 6, 7]", "cos f16[1,1,1] [0]", "sin f16[1,1,1] [1]"}, []string{"y f16[1,1,3] [-6, 5, 7]"}),
		"rotary, bf16 heads": file("RotaryEmbedding", "",
			[]string{"x bf16[1,2,1,2] [5, 6, 7, 8]", "cos bf16[1,1,1] [0]", "sin bf16[1,1,1] [1]"}, []string{"y bf16[1,2,1,2] [-6, 5, -8, 7]"}),
		"attention without a mask": file("attention", `"scale": 1, "causal": true, "window": 1`,
			[]string{"q f32[1,2,1] [1, 1]", "k f16[1,2,1] [1, 1]", "v f16[1,2,1] [3, 5]"}, []string{"y f32[2,1,1] [3, 5]"}),
		"attention with a mask of its own": file("attention", `"scale": 1`,
			[]string{"q f32[1,1,1] [1]", "k f32[1,2,1] [1, 1]", "v f32[1,2,1] [3, 5]", `mask f16[1,2] [0, "-Inf"]`}, []string{"y f32[1,1,1] [3]"}),
		"soft_max, slopes of no mask": file("soft_max", `"max_bias": 8`, []string{"x f16[1,1,2] [1, 1]"}, []string{"y f16[1,1,2] [0.5, 0.5]"}),
		"set_rows": file("set_rows", `"rows": 2, "dst_dtype": "f16"`, []string{"src f32[1,2] [1, 2]", "row_ids i32[1] [1]"},
			[]string{"y f16[2,2] [0, 0, 1, 2]"}),
		"rope, attention factor of zero": file("rope", `"rotary_dim": 2, "attn_factor": 0`,
			[]string{"x f32[1,1,3] [1, 2, 3]", "positions i32[1] [7]"}, []string{"y f32[1,1,3] [0, 0, 3]"}),
		"rope_multi with a fourth section": file("rope_multi", `"style": "mrope (contiguous sections)", "rotary_dim": 4, "freq_base": 1, "sections": [1, 0, 0, 1]`,
			[]string{"x f32[1,1,4] [1, 1, 0, 0]", "positions i32[4] [0, 5, 5, 1]"},
			[]string{"y f32[1,1,4] [1, 0.5403023, 0, 0.841471]"}), // pair 0 stays, pair 1 turns by 1
		"rmsnorm of everything": file("rmsnorm", `"eps": 0, "gemma": true, "fused_residual": true`,
			[]string{"x f16[1,2] [1, 1]", "weight f16[2] [0, 1]", "residual_in f16[1,2] [2, 3]"},
			[]string{"out f16[1,2] [0.8486, 2.264]", "residual_out f16[1,2] [3, 4]"}),
		"long rope, linear": file("long_context_rope", `"head_size": 2, "max_position": 4, "rope_parameters": {"rope_type": "linear", "factor": 2}`,
			[]string{"positions i64[1] [0]", "q_in f32[1,2] [1, 2]", "k_in f32[1,2] [3, 4]"},
			[]string{"q_out f32[1,2] [1, 2]", "k_out f32[1,2] [3, 4]"}),
		"a rule with a threshold above 1": `{"op": "min_p", "params": {"min_p": 2}, "inputs": {"logits": [1, 3]}, "expected": {"kept_token_ids": [1]}}`,
		"a rule of several rows": `{"op": "top_p", "params": {"top_p": 0.6, "min_tokens_to_keep": 2}, "inputs": {"logits": [[9, 0, 1], [0, 0.1, 0.2]]},
			"expected": {"kept_count": [2, 2]}, "name": "t"}`,
		"a rule of temperature": `{"op": "temperature", "params": {"temperature": 0.5}, "inputs": {"logits": [1, 3]}, "expected": {"logits": [[2, 6]]}}`,
		"a rule of ropes": `{"op": "rope_attention_factor", "params": {"rope_type": "yarn", "factor": 4, "attention_factor": 0.5},
			"inputs": {"head_dim": 4}, "expected": {"attention_scale": 0.5}, "tolerance": {"rtol": 1e-6}}`,
	} {
		t.Run(name, func(t *testing.T) { pass(t, rn, text) })
	}
}

func TestRejected(t *testing.T) {
	rn := runner(t)
	x := "x f32[2,2] [1, 2, 3, 4]"
	for name, c := range map[string]struct {
		text string
		kind error
		says string
	}{
		"no JSON":              {"{", opfile.ErrFormat, "unexpected"},
		"two values":           {"{} {}", opfile.ErrFormat, "more text"},
		"no form":              {`{"a": 1}`, opfile.ErrNoOp, "op_type"},
		"deep nesting":         {`{"op_type": "relu", "inputs": ` + strings.Repeat("[", 20000), opfile.ErrFormat, "depth"},
		"unknown type":         {file("Unique", "", []string{x}, nil), opfile.ErrNoOp, "Unique"},
		"unknown form":         {`{"op": "nan_guards", "expected": {}}`, opfile.ErrNoOp, "nan_guards"},
		"integers":             {file("Sigmoid", "", []string{"a i32[1] [1]"}, nil), opfile.ErrNoOp, "i32"},
		"no such dtype":        {file("swiglu", "", []string{"x u64[1] [1]"}, nil), opfile.ErrNoOp, "u64"},
		"too few elements":     {file("relu", "", []string{"x f32[2] [1]"}, nil), opfile.ErrFormat, "1 elements"},
		"nested data":          {file("relu", "", []string{"x f32[2] [[1, 2]]"}, nil), opfile.ErrFormat, "flat"},
		"no number":            {file("relu", "", []string{`x f32[1] ["one"]`}, nil), opfile.ErrFormat, "not a number"},
		"out of range":         {file("relu", "", []string{"x f16[1] [70000]"}, nil), opfile.ErrFormat, "range"},
		"integer out of range": {file("rope", "", []string{"x f32[1,1,2] [1, 2]", "positions i32[1] [3000000000]"}, nil), opfile.ErrFormat, "range"},
		"a fraction":           {file("rope", "", []string{"x f32[1,1,2] [1, 2]", "positions i32[1] [1.5]"}, nil), opfile.ErrFormat, "1.5"},
		"negative extent":      {file("relu", "", []string{"x f32[-1] []"}, nil), opfile.ErrFormat, "negative"},
		"overflowing shape":    {file("relu", "", []string{"x f32[4611686018427387904,4] []"}, nil), opfile.ErrFormat, "overflow"},
		"nine dimensions":      {file("relu", "", []string{"x f32[1,1,1,1,1,1,1,1,1] [1]"}, nil), opfile.ErrFormat, "rank"},
		"wrong bytes":          {file("relu", "", []string{`x f32[2] "AAAA"`}, nil), opfile.ErrFormat, "3 bytes"},
		"blocks as numbers":    {file("embedding", "", []string{"table q4_0[1,32] [1]"}, nil), opfile.ErrFormat, "base64"},
		"operand twice":        {file("relu", "", []string{x, x}, nil), opfile.ErrFormat, `"x"`},
		"slot twice": {strings.Replace(file("Add", "", []string{"a f32[1] [1]", "b f32[1] [1]"}, nil), `"name": "b"`, `"slot": 0, "name": "b"`, 1),
			opfile.ErrFormat, "slot"},
		"missing operand":       {file("MatMul", "", []string{x}, nil), opfile.ErrFormat, "missing"},
		"operand without data":  {file("swiglu", "", []string{"x f32[2] "}, nil), opfile.ErrFormat, "without data"},
		"unknown operand":       {file("swiglu", "", []string{x, "z f32[1] [1]"}, nil), opfile.ErrFormat, "z"},
		"unknown attribute":     {file("Softmax", `"beta": 1`, []string{x}, nil), opfile.ErrFormat, "beta"},
		"attribute of a type":   {file("Softmax", `"axis": "last"`, []string{x}, nil), opfile.ErrFormat, "axis"},
		"axis outside":          {file("Softmax", `"axis": 2`, []string{x}, nil), opfile.ErrFormat, "axis"},
		"stash type":            {file("RMSNormalization", `"stash_type": 7`, []string{x, "w f32[2] [1, 1]"}, nil), opfile.ErrFormat, "stash_type"},
		"no broadcast":          {file("Add", "", []string{x, "y f32[3] [1, 2, 3]"}, nil), opfile.ErrFormat, "broadcast"},
		"record: attribute":     {file("rms_norm", `"beta": 1`, []string{x}, []string{"out f32[2,2] "}), opfile.ErrFormat, "beta"},
		"record: inner one":     {file("rope_neox", `"rope": {"beta": 1}`, []string{"q_states f32[1,1,2] [1, 0]", "positions i32[1] [1]"}, nil), opfile.ErrFormat, "beta"},
		"record: out of range":  {file("rms_norm", `"eps": 1e300`, []string{x}, []string{"out f32[2,2] "}), opfile.ErrFormat, "range"},
		"record: no output":     {file("rms_norm", "", []string{x, "weight f32[2] [1, 1]"}, nil), opfile.ErrFormat, "list it"},
		"record: output as in":  {file("rms_norm", "", []string{x, "out f32[2,2] [1, 2, 3, 4]"}, nil), opfile.ErrFormat, "output"},
		"record: missing":       {file("matmul", "", []string{"a f32[1,1] [1]"}, []string{"out f32[1,1] "}), opfile.ErrFormat, "missing"},
		"record: no scaling":    {file("rope_neox", `"rope": {"scaling": "x"}`, []string{"q_states f32[1,1,2] [1, 0]", "positions i32[1] [1]"}, nil), opfile.ErrFormat, "scaling"},
		"record: opcode":        {file("fused_chain", `"steps": [{"op": "tanh", "in": [0], "out": 3}]`, []string{x, "weight f32[2] [1, 1]"}, []string{"out f32[2,2] "}), opfile.ErrFormat, "tanh"},
		"record: nine steps":    {file("fused_chain", `"steps": [null,null,null,null,null,null,null,null,null]`, []string{x, "weight f32[2] [1, 1]"}, []string{"out f32[2,2] "}), opfile.ErrFormat, "array of 8"},
		"record: layout":        {file("scaled_fp4_quant", `"scale_layout": "diagonal"`, []string{"x f32[1,16] [6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -6]"}, []string{"out_packed u8[1,8] ", "out_scale u8[1,1] "}), opfile.ErrFormat, "diagonal"},
		"record: wrong shape":   {file("rms_norm", "", []string{x}, []string{"out f32[2,3] "}), ops.ErrShape, "extent 1"},
		"record: bad attribute": {file("rms_norm", `"eps": -1`, []string{x}, []string{"out f32[2,2] "}), ops.ErrAttr, "eps"},
		"record: bad value":     {file("embedding", "", []string{"table f32[1,1] [1]", "ids i32[1] [5]"}, []string{"out f32[1,1] "}), ops.ErrValue, "5"},
		"record: other names":   {file("matmul", "", []string{"left f32[1,1] [1]"}, nil), opfile.ErrFormat, "left"},
		"claimed output":        {file("rms_norm", "", []string{x}, []string{"out f32[1000000,1000000] "}), opfile.ErrTooLarge, "proportion"},
		"claimed table":         {file("set_rows", `"rows": 1000000000000`, []string{"src f32[1,2] [1, 2]", "row_ids i32[1] [1]"}, nil), opfile.ErrTooLarge, "proportion"},
		"claimed positions": {file("long_context_rope", `"head_size": 2, "max_position": 2000000000, "rope_parameters": {}`,
			[]string{"positions i64[1] [0]", "q_in f32[1,2] [1, 2]", "k_in f32[1,2] [3, 4]"}, nil), opfile.ErrTooLarge, "proportion"},
		"claimed vocabulary": {`{"op": "top_k", "params": {"top_k": 1}, "inputs": {"vocab": 1000000000000, "logits": "all 1"}, "expected": {}}`, opfile.ErrTooLarge, "proportion"},
		"ragged rows":        {`{"op": "top_k", "params": {"top_k": 1}, "inputs": {"logits": [[1], [1, 2]]}, "expected": {}}`, opfile.ErrFormat, "logits"},
		"token outside":      {`{"op": "penalties", "inputs": {"logits": [1, 2], "output_token_ids": [2]}, "expected": {}}`, opfile.ErrFormat, "token 2"},
		"unknown parameter":  {`{"op": "top_k", "params": {"top_k": 1, "tok_p": 1}, "inputs": {"logits": [1, 2]}, "expected": {}}`, opfile.ErrFormat, "tok_p"},
		"no such filter":     {`{"op": "sampler_chain", "params": {"order": ["dice"], "dice": 1}, "inputs": {"logits": [1, 2]}, "expected": {}}`, opfile.ErrFormat, "dice"},
		"blocks too short":   {`{"ggml_type": "q4_0", "n": 1, "k": 32, "quantized": "AAAA", "dequantized_f32": ""}`, opfile.ErrFormat, "3 bytes"},
		"blocks of no type":  {`{"ggml_type": "q9_9", "n": 1, "k": 32, "quantized": "AAAA", "dequantized_f32": ""}`, opfile.ErrNoOp, "q9_9"},
		"codes too few":      {`{"dtype": "f16", "x_f32_bits": [0, 1], "code": [0]}`, opfile.ErrFormat, "1 codes"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := opfile.Parse([]byte(c.text))
			if err == nil {
				_, err = rn.Run(f, 0)
			}
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestRoute(t *testing.T) {
	f, err := opfile.Parse([]byte(file("Softmax", "", []string{"x f32[1] [1]"}, nil)))
	require.NoError(t, err)
	require.Equal(t, []registry.Op{ops.OpSoftmax, ops.OpComputeProbs}, f.Routes())
	for name, want := range map[string]int{"Softmax": 0, "softmax": 0, "compute_probs": 1} {
		i, err := f.Route(name)
		require.NoError(t, err)
		require.Equal(t, want, i)
	}
	_, err = f.Route("relu")
	require.ErrorIs(t, err, opfile.ErrRoute)
	_, err = f.Route("rellu")
	require.ErrorIs(t, err, registry.ErrUnknownOp)
	_, err = runner(t).Run(f, 2)
	require.ErrorIs(t, err, opfile.ErrRoute)
}

func TestCompareFindsTheWorstElement(t *testing.T) {
	rn := runner(t)
	f, err := opfile.Parse([]byte(file("relu", "", []string{"x f32[3] [1, 2, 4]"}, []string{"y f32[3] [1, 2.5, 3.9]"})))
	require.NoError(t, err)
	out, err := rn.Run(f, 0)
	require.NoError(t, err)
	worst, err := f.Compare(out)
	require.ErrorIs(t, err, opfile.ErrMismatch)
	require.Equal(t, "y", worst.Output)
	require.Equal(t, 1, worst.Index)
	require.Equal(t, []float64{2, 2.5}, []float64{worst.Got, worst.Want})
	require.False(t, worst.OK())

	for name, want := range map[string]string{"NaN": `["NaN", 2, 4]`, "infinity": `[1, "Inf", 4]`, "shape": "[1, 2]"} {
		n := strings.Count(want, ",") + 1
		f, err := opfile.Parse([]byte(file("relu", "", []string{"x f32[3] [1, 2, 4]"}, []string{fmt.Sprintf("y f32[%d] %s", n, want)})))
		require.NoError(t, err)
		_, err = f.Compare(out)
		require.ErrorIs(t, err, opfile.ErrMismatch, name)
	}
}

// TestOutputsAreOperands writes an output and reads it back.
func TestOutputsAreOperands(t *testing.T) {
	rn := runner(t)
	out := pass(t, rn, file("relu", "", []string{`x f16[2,2] [1, "Inf", 0.333251953125, -2]`}, []string{`y f16[2,2] [1, "Inf", 0.333251953125, 0]`}))
	text, err := json.Marshal(out[0])
	require.NoError(t, err)
	f, err := opfile.Parse([]byte(`{"op_type": "relu", "inputs": [` + strings.Replace(string(text), `"y"`, `"x"`, 1) + `], "outputs": [` + string(text) + `]}`))
	require.NoError(t, err)
	again, err := rn.Run(f, 0)
	require.NoError(t, err)
	worst, err := f.Compare(again)
	require.NoError(t, err)
	require.Zero(t, worst.Share)
}

// TestReferenceProducts holds the reference's products with block weights against ggml's: those that follow ggml's packing
// of activations are ggml's but for the order of sums, the others are exact but for f32 sums.
func TestReferenceProducts(t *testing.T) {
	root := os.Getenv("OPMUX_CONFORMANCE")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared", "conformance")
	}
	files, err := filepath.Glob(filepath.Join(root, "ggml", "*.json"))
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skip("no conformance data: set OPMUX_CONFORMANCE to its folder")
	}
	rn := runner(t)
	asGGML := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		f, err := opfile.Parse(text)
		require.NoError(t, err)
		var h struct {
			K      int
			Matmul []struct {
				X     []byte `json:"x_f32"`
				Y     []byte `json:"y_f32"`
				Exact []byte `json:"y_dequant_f64"`
			}
			Weights []byte `json:"dequantized_f32"`
		}
		require.NoError(t, json.Unmarshal(text, &h))
		route, err := f.Route("matmul_bt_quant")
		if err != nil {
			continue // no decoder, or 16-bit floats
		}
		ctx := registry.WithKernel(t.Context(), ops.OpMatmulBTQuant, "reference")
		out, err := opfile.Runner{Queue: rn.Queue.With(ctx)}.Run(f, route)
		require.NoError(t, err)
		w, packed, unpacked := norms(h.Weights, h.K), true, true
		for i, m := range h.Matmul {
			y, ggml, exact := tensor.Slice[float32](&out[i].Data), cast[float32](m.Y), cast[float64](m.Exact)
			x := norms(m.X, h.K)
			for e, v := range y {
				scale := x[e/len(w)] * w[e%len(w)]
				packed = packed && math.Abs(float64(v-ggml[e])) <= 2e-7*scale
				unpacked = unpacked && math.Abs(float64(v)-exact[e]) <= 1e-6*scale
			}
		}
		require.True(t, packed || unpacked, f.Name)
		if packed {
			asGGML++
		}
	}
	require.GreaterOrEqual(t, asGGML, 20, "files whose activations are packed as ggml does")
}

// cast reads little-endian numbers.
func cast[E float32 | float64](b []byte) []E {
	v := make([]E, len(b)/binary.Size(E(0)))
	_ = binary.Read(bytes.NewReader(b), binary.LittleEndian, v)
	return v
}

// norms returns the Euclidean norm of each row of k.
func norms(b []byte, k int) (out []float64) {
	for row := range slices.Chunk(cast[float32](b), k) {
		sum := 0.0
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
		out = append(out, math.Sqrt(sum))
	}
	return out
}
