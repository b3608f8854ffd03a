package ops

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// fakes registers two providers for op c on the CPU of a fresh registry: one that declines, above one that answers st.
func fakes(t *testing.T, c opCase, st registry.Status) *registry.Queue {
	t.Helper()
	r := registry.New(registry.Options{})
	require.NoError(t, c.provide(r, tensor.CPU, registry.OpProvider{Name: "picky", Priority: 10}, registry.Decline(registry.ReasonShape)))
	require.NoError(t, c.provide(r, tensor.CPU, registry.OpProvider{Name: "plain"}, st))
	q := r.NewQueue(nil)
	t.Cleanup(func() { require.NoError(t, q.Close()) })
	return q
}

// executed returns how often the plain fake of c ran on q's registry.
func executed(q *registry.Queue, c opCase) (n uint64) {
	for _, ch := range q.Registry().Explain(c.core.desc.Op, cpu0).Chain {
		if strings.HasPrefix(ch.Kernel, "plain_") {
			n = ch.Counts.Executed
		}
	}
	return n
}

// TestEntryPoints launches every op in every way: the head declines, the next one serves, and nothing is allocated.
func TestEntryPoints(t *testing.T) {
	for _, c := range cases() {
		t.Run(c.core.name, func(t *testing.T) {
			q := fakes(t, c, 0)
			launch, validated, err := c.bind(q)
			require.NoError(t, err)
			args := c.fresh()
			ways := map[string]func() error{
				"Call":            func() error { return c.call(q, args) },
				"Launch":          func() error { return c.launch(q, args) },
				"ops.Launch":      func() error { return Launch(q, c.core.desc.Op, args) },
				"Bound":           func() error { return launch(args) },
				"LaunchValidated": func() error { return validated(args) },
			}
			var want uint64
			for name, way := range ways {
				require.NoError(t, way(), name)
				want++
				require.Equal(t, want, executed(q, c), name)
				if !raceEnabled {
					require.Zero(t, testing.AllocsPerRun(20, func() { err = way() }), name)
					require.NoError(t, err)
					want += 21 // AllocsPerRun runs once more to warm up
				}
			}
		})
	}
}

// TestValidateAllocatesNothing covers the records that TestEntryPoints does not: the accepted variants.
func TestValidateAllocatesNothing(t *testing.T) {
	for _, c := range cases() {
		for _, a := range c.accepts {
			args := c.fresh()
			a.change(args)
			require.Zero(t, testing.AllocsPerRun(20, func() { _ = c.check(args, cpu0) }), "%s: %s", c.core.name, a.name)
		}
	}
}

// TestRejectedCallsReachNoKernel: a call that the validator rejects runs nothing.
func TestRejectedCallsReachNoKernel(t *testing.T) {
	for _, c := range cases() {
		q := fakes(t, c, 0)
		for _, r := range c.rejects {
			args := c.fresh()
			r.change(args)
			require.ErrorIs(t, c.launch(q, args), r.kind, r.name)
			require.ErrorIs(t, c.call(q, args), r.kind, r.name)
			require.ErrorIs(t, Launch(q, c.core.desc.Op, args), r.kind, r.name)
		}
		require.Zero(t, executed(q, c), c.core.name)
	}
}

// TestEmptyCalls: calls without an output element are valid or not like others, but reach no kernel.
func TestEmptyCalls(t *testing.T) {
	r := registry.New(registry.Options{})
	q := r.NewQueue(nil)
	defer q.Close()
	require.NoError(t, Relu.Call(q, ReluArgs{Out: ten(f32, 0, 3), X: ten(f32, 0, 3)}))
	require.NoError(t, ApplyTopKTopP.Call(q, ApplyTopKTopPArgs{Logits: ten(f32, 2, 3)}), "neither k nor p")
	require.ErrorIs(t, Relu.Call(q, ReluArgs{Out: ten(f32, 0, 3), X: ten(f32, 3, 0)}), ErrShape)
	require.ErrorIs(t, ApplyTopKTopP.Call(q, ApplyTopKTopPArgs{Logits: ten(bf16, 2, 3)}), ErrDType)
	require.ErrorIs(t, Relu.Call(q, ReluArgs{Out: ten(f32, 1), X: ten(f32, 1)}), ErrNoKernel)
	// K = 0 has an output to fill.
	require.ErrorIs(t, Matmul.Call(q, MatmulArgs{Out: ten(f32, 2, 3), A: ten(f32, 2, 0), B: ten(f32, 0, 3)}), ErrNoKernel)
}

// TestMatmulBTHandsBlocksOn: one call site serves dense and block weights.
func TestMatmulBTHandsBlocksOn(t *testing.T) {
	r := registry.New(registry.Options{})
	var got []string
	_, err := Register(r, MatmulBT, tensor.CPU, Provider[MatmulBTArgs]{registry.OpProvider{Name: "x"},
		func(*registry.Queue, *MatmulBTArgs) registry.Status { got = append(got, "dense"); return 0 }})
	require.NoError(t, err)
	_, err = Register(r, MatmulBTQuant, tensor.CPU, Provider[MatmulBTQuantArgs]{registry.OpProvider{Name: "x"},
		func(_ *registry.Queue, a *MatmulBTQuantArgs) registry.Status {
			got = append(got, a.B.DType.String())
			return 0
		}})
	require.NoError(t, err)
	q := r.NewQueue(nil)
	defer q.Close()
	dense := MatmulBTArgs{Out: ten(f32, 1, 2), A: ten(f32, 1, 32), B: ten(f32, 2, 32)}
	block := dense
	block.B = ten(tensor.Q5_1, 2, 32)
	b, err := MatmulBT.Bind(q)
	require.NoError(t, err)
	require.NoError(t, MatmulBT.Call(q, dense))
	require.NoError(t, MatmulBT.Call(q, block))
	require.NoError(t, MatmulBT.Launch(q, &block))
	require.NoError(t, b.Launch(&block))
	require.NoError(t, b.Launch(&dense))
	require.NoError(t, Launch(q, OpMatmulBT, unsafe.Pointer(&block)))
	require.NoError(t, MatmulBT.Validate(&block, cpu0))
	require.Equal(t, []string{"dense", "q5_1", "q5_1", "q5_1", "dense", "q5_1"}, got)

	a := reflect.TypeFor[MatmulBTArgs]()
	for f := range reflect.TypeFor[MatmulBTQuantArgs]().Fields() {
		g, ok := a.FieldByName(f.Name)
		require.True(t, ok)
		require.Equal(t, g.Offset, f.Offset)
	}
}

// TestValueErrors: what a kernel says about bad data reaches the caller typed, and the pooled record keeps nothing.
func TestValueErrors(t *testing.T) {
	r := registry.New(registry.Options{})
	var record *EmbeddingArgs
	_, err := Register(r, Embedding, tensor.CPU, Provider[EmbeddingArgs]{registry.OpProvider{Name: "x"},
		func(_ *registry.Queue, a *EmbeddingArgs) registry.Status {
			record = a
			return a.Fail(&OpError{Op: "embedding", Kind: ErrValue, Operand: "ids", Msg: "id 9 of 5 rows"})
		}})
	require.NoError(t, err)
	q := r.NewQueue(nil)
	defer q.Close()
	err = Embedding.Call(q, EmbeddingArgs{Out: ten(f32, 3, 4), Table: ten(f32, 5, 4), IDs: ten(i32, 3)})
	require.ErrorIs(t, err, ErrValue)
	var e *OpError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "ids", e.Operand)
	require.Equal(t, EmbeddingArgs{}, *record)
}

func TestRegisterErrors(t *testing.T) {
	r := registry.New(registry.Options{})
	_, err := Register(r, Relu, tensor.CPU, Provider[ReluArgs]{OpProvider: registry.OpProvider{Name: "x"}})
	require.ErrorIs(t, err, registry.ErrNil)
	// The untyped way checks the record's type.
	_, err = r.RegisterOpProvider(OpRelu, tensor.CPU, registry.OpProvider{Name: "x", Record: reflect.TypeFor[AddArgs](),
		Fn: func(*registry.Queue, unsafe.Pointer) registry.Status { return 0 }})
	require.ErrorIs(t, err, registry.ErrSignature)
	// An accept table names operands, which are loaded on demand.
	_, err = Register(r, Relu, tensor.CPU, Provider[ReluArgs]{registry.OpProvider{Name: "y",
		Accept: &registry.Accept{Operands: map[string]registry.AcceptOperand{"x": {LastMod: 4}}}},
		func(*registry.Queue, *ReluArgs) registry.Status { return 0 }})
	require.NoError(t, err)
	q := r.NewQueue(nil)
	defer q.Close()
	require.ErrorIs(t, Relu.Call(q, ReluArgs{Out: ten(f32, 3), X: ten(f32, 3)}), registry.ErrDeclined)
	require.NoError(t, Relu.Call(q, ReluArgs{Out: ten(f32, 4), X: ten(f32, 4)}))
}

// TestLaunchOfDefinedOp: the untyped entry serves ops that a registry defined itself.
func TestLaunchOfDefinedOp(t *testing.T) {
	r := registry.New(registry.Options{})
	refuse := errors.New("no")
	type args struct {
		registry.Header
		N int64
	}
	op, err := r.Define(registry.Descriptor{Name: "mine", Record: reflect.TypeFor[args](),
		Validate: func(p unsafe.Pointer, _ tensor.Device) error {
			if (*args)(p).N < 0 {
				return refuse
			}
			return nil
		}})
	require.NoError(t, err)
	n := int64(0)
	_, err = r.RegisterOpProvider(op, tensor.CPU, registry.OpProvider{Name: "x", Fn: registry.Erase(func(_ *registry.Queue, a *args) registry.Status {
		n += a.N
		return 0
	})})
	require.NoError(t, err)
	q := r.NewQueue(nil)
	defer q.Close()
	require.NoError(t, Launch(q, op, unsafe.Pointer(&args{N: 3})))
	require.ErrorIs(t, Launch(q, op, unsafe.Pointer(&args{N: -3})), refuse)
	require.EqualValues(t, 3, n)
	require.ErrorIs(t, Launch(q, op+1, unsafe.Pointer(&args{})), registry.ErrUnknownOp)
	require.ErrorIs(t, Launch(q, 9, unsafe.Pointer(&args{})), registry.ErrUnknownOp)
}

// catalogue is the table of all ops of the specification: number, name, family.mode. 7 and 8 have neutral names here, 9 and 56
// are aliases.
var catalogue = map[registry.Op]string{
	1: "matmul gemm.dense_nn", 2: "matmul_bt gemm.dense_nt", 3: "batched_matmul gemm.batched_nn", 4: "matmul_bt_quant gemm.ggml_block_nt",
	5: "matmul_nvfp4 gemm.w4a16_nvfp4", 6: "matmul_nvfp4_fp4 gemm.w4a4_nvfp4_linear", 10: "rms_norm norm.rms",
	11: "rms_norm_gated norm.rms_gated", 12: "layer_norm norm.layer", 13: "l2_norm norm.l2", 14: "silu_and_mul elementwise.silu_mul_packed",
	15: "gelu_and_mul elementwise.gelu_tanh_mul_packed", 16: "moe_silu_mul elementwise.silu_mul_split", 17: "relu elementwise.relu",
	18: "add elementwise.add", 19: "mul_scalar elementwise.mul_scalar", 20: "soft_cap elementwise.soft_cap",
	21: "mul_col_vec_f32 elementwise.mul_col_vec", 22: "cast_bf16 elementwise.cast_f32_bf16", 23: "cast_f32 elementwise.cast_bf16_f32",
	24: "sigmoid_gate_bf16 elementwise.sigmoid_gate", 25: "attn_gate_split elementwise.split_q_gate", 26: "qkv_split elementwise.split_qkv",
	27: "embedding rope_embedding.embedding", 28: "rope_neox rope_embedding.rope_inline_neox",
	29: "rope_cos_sin_cache rope_embedding.rope_cache_fill", 30: "rope_from_cache rope_embedding.rope_cached",
	31: "attention attention.dense", 32: "paged_attention attention.paged_varlen", 33: "merge_attn_states attention.merge_lse",
	34: "reshape_and_cache kv_cache.kv_write", 35: "concat_and_cache_mla kv_cache.mla_write", 36: "gather_mla_cache kv_cache.mla_gather",
	37: "mla_decode_attention mla.decode_mqa", 38: "mla_prefill_attention mla.prefill_mha", 39: "concat_mla_nope_rope mla.concat_head",
	40: "causal_conv1d_fwd linear_attention.conv_prefill", 41: "causal_conv1d_update linear_attention.conv_decode",
	42: "gdn_prefill linear_attention.delta_prefill", 43: "gdn_decode linear_attention.delta_decode",
	44: "gdn_packed_decode linear_attention.delta_decode_packed", 45: "gdn_state_gather linear_attention.state_gather",
	46: "gdn_state_scatter linear_attention.state_scatter", 47: "gdn_g_beta linear_attention.gate_params",
	48: "gdn_conv_split linear_attention.split_qkv", 49: "gdn_post_conv linear_attention.post_conv_fused", 50: "moe_router_topk moe.router",
	51: "moe_combine moe.combine", 52: "moe_combine_gate moe.combine_shared_gate", 53: "shared_expert_gate moe.shared_gate",
	54: "moe_grouped_gemm_bf16 moe.grouped_gemm_bf16", 55: "moe_grouped_gemm_nvfp4 moe.grouped_gemm_w4a16",
	57: "scaled_fp4_quant quant.fp4_dynamic_group", 58: "quant_fp8_static quant.fp8_static_tensor",
	59: "swizzle_blockscale quant.scale_swizzle", 60: "apply_temperature sampling.temperature", 61: "greedy_argmax sampling.argmax",
	62: "apply_top_k_top_p sampling.top_k_top_p", 63: "compute_probs sampling.softmax", 64: "compute_logprobs sampling.log_softmax",
	65: "random_sample sampling.exponential_race", 66: "apply_penalties sampling.penalties", 67: "apply_min_p sampling.min_p",
	68: "apply_logit_bias sampling.logit_bias", 69: "apply_token_mask sampling.token_mask_sparse",
	70: "apply_allowed_token_ids sampling.token_mask_dense", 71: "greedy_rejection_sample spec_decode.greedy_rejection",
	72: "fused_chain fused.recipe_interpreter", 73: "attn_qk_norm_rope_gate fused.attn_preamble_gated",
	74: "rms_norm_quant_fp8 fused.rms_fp8", 75: "rms_norm_gated_quant_fp8 fused.rms_gated_fp8",
	76: "silu_mul_fp4_quant fused.silu_mul_split_fp4", 77: "silu_and_mul_fp4_quant fused.silu_mul_packed_fp4",
	78: "sigmoid_gate_fp4_quant fused.sigmoid_gate_fp4", 79: "dropin_probe diag.abi_probe",
}

func TestDescriptors(t *testing.T) {
	require.EqualValues(t, 79, OpDropinProbe)
	require.EqualValues(t, 55, OpMoEGroupedGemmNVFP4)
	require.EqualValues(t, 71, OpGreedyRejectionSample)
	modes := map[string]string{}
	for _, d := range registry.Descriptors() {
		if want, ok := catalogue[d.Op]; ok {
			require.Equal(t, want, d.Name+" "+d.Family+"."+d.Mode)
		}
		mode := d.Family + "." + d.Mode
		require.Empty(t, modes[mode], "%s and %s are both %s", modes[mode], d.Name, mode)
		modes[mode] = d.Name
		require.NotEmpty(t, d.Doc, d.Name)
		require.Equal(t, d.Name, d.Op.String())
		op, ok := registry.Lookup(d.Name)
		require.True(t, ok)
		require.Equal(t, d.Op, op)
		require.NotEmpty(t, d.Operands, d.Name)
		require.NotNil(t, d.Validate, d.Name)
		outs := 0
		for _, o := range d.Operands {
			f, ok := d.Record.FieldByNameFunc(func(n string) bool { return FieldName(n) == o.Name })
			require.True(t, ok, "%s: no field for %s", d.Name, o.Name)
			require.Equal(t, f.Offset, o.Offset)
			require.NotEmpty(t, o.Shape)
			require.NotEmpty(t, o.DType)
			require.NotEmpty(t, o.Layout)
			if o.Role != registry.In {
				outs++
			}
		}
		require.NotZero(t, outs, "%s writes nothing", d.Name)
	}
	require.Equal(t, "rms_norm", RMSNorm.Name())
	require.Equal(t, OpRMSNorm, RMSNorm.ID())
	require.Len(t, RMSNorm.Descriptor().Operands, 4)
}

// TestFieldsDocumented: every record has a comment, and every attribute a comment or a place in the record's.
func TestFieldsDocumented(t *testing.T) {
	records := map[string]bool{"RopeParams": true}
	for _, d := range registry.Descriptors() {
		records[d.Record.Name()] = true
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	seen := 0
	look := func(n ast.Node) bool {
		g, ok := n.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			return true
		}
		s := g.Specs[0].(*ast.TypeSpec)
		st, ok := s.Type.(*ast.StructType)
		if !ok || !records[s.Name.Name] {
			return true
		}
		seen++
		doc := g.Doc.Text()
		require.True(t, strings.HasPrefix(doc, s.Name.Name+" "), s.Name.Name)
		for _, f := range st.Fields.List {
			for _, name := range f.Names {
				if name.Name != "_" && f.Tag == nil {
					require.True(t, f.Comment.Text() != "" || strings.Contains(doc, name.Name), "%s.%s", s.Name.Name, name.Name)
				}
			}
		}
		return true
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		ast.Inspect(f, look)
	}
	require.Equal(t, len(records), seen)
}

func TestFieldName(t *testing.T) {
	for in, want := range map[string]string{"Out": "out", "QStates": "q_states", "KCache": "k_cache", "TokenIDs": "token_ids", "IDs": "ids",
		"QKV": "qkv", "QOut": "q_out", "MinP": "min_p", "QueryStartLoc": "query_start_loc", "CosSinCache": "cos_sin_cache", "A": "a", "NVFP4Scale": "nvfp4_scale"} {
		require.Equal(t, want, FieldName(in))
	}
}

// TestMalformedTags: a record with a tag that means nothing is refused as a whole.
func TestMalformedTags(t *testing.T) {
	type header = registry.Header
	for _, r := range []any{
		struct {
			header
			X tensor.Tensor `op:"input" shape:"T" dtype:"f32"`
		}{},
		struct {
			header
			X tensor.Tensor `op:"in,maybe" shape:"T" dtype:"f32"`
		}{},
		struct {
			header
			X tensor.Tensor `op:"in" shape:"T,,D" dtype:"f32"`
		}{},
		struct {
			header
			X tensor.Tensor `op:"in" shape:"T+x" dtype:"f32"`
		}{},
		struct {
			header
			X tensor.Tensor `op:"in" shape:"like y" dtype:"f32"`
		}{},
		struct {
			header
			X tensor.Tensor `op:"in" shape:"T" dtype:"f33"`
		}{},
		struct {
			header
			X tensor.Tensor `op:"in" shape:"T" dtype:"like x"`
		}{},
		struct {
			header
			X tensor.Tensor `op:"in" shape:"T" dtype:"f32" layout:"columns"`
		}{},
		struct {
			header
			X tensor.Tensor `op:"in" shape:"A,B,C,D,E,F,G" dtype:"f32"`
			Y tensor.Tensor `op:"in" shape:"H,I,J,K,L,M" dtype:"f32"`
		}{},
	} {
		require.Panics(t, func() { compile(reflect.TypeOf(r)) }, "%T", r)
	}
}

// TestConcurrentUse: entry points of one op run on several queues at once.
func TestConcurrentUse(t *testing.T) {
	c := caseOf(Relu, ReluArgs{Out: ten(f32, 4), X: ten(f32, 4)})
	r := registry.New(registry.Options{})
	require.NoError(t, c.provide(r, tensor.CPU, registry.OpProvider{Name: "plain"}, 0))
	done := make(chan error)
	for range 4 {
		go func() {
			q := r.NewQueue(nil)
			var err error
			for range 500 {
				err = errors.Join(err, c.call(q, c.fresh()))
			}
			done <- errors.Join(err, q.Close())
		}()
	}
	for range 4 {
		require.NoError(t, <-done)
	}
	q := r.NewQueue(nil)
	defer q.Close()
	require.EqualValues(t, 2000, executed(q, c))
}
