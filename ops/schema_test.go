package ops

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// traitOf finds a trait by name or alias.
func traitOf(t *testing.T, c *core, name string) *registry.TraitDef {
	for i, d := range c.schema().Traits {
		if d.Name == name || slices.Contains(d.Aliases, name) {
			return &c.schema().Traits[i]
		}
	}
	require.Fail(t, "no such trait", "%s %s", c.name, name)
	return nil
}

// TestSchemas: every op has roles that are operands, traits of a type with typed defaults, and at least one signature,
// all legal; the name family.mode is its alone.
func TestSchemas(t *testing.T) {
	modes := map[string]string{}
	for _, c := range all {
		s := c.schema()
		require.NotEmpty(t, s.Roles, c.name)
		require.True(t, slices.IsSorted(s.Roles), c.name)
		for _, r := range s.Roles {
			require.NotNil(t, c.spec().operand(r), "%s: %s", c.name, r)
		}
		require.NotEmpty(t, s.Traits, c.name)
		for _, d := range s.Traits {
			require.NotZero(t, d.Type, "%s %s", c.name, d.Name)
			require.NotEmpty(t, d.Doc)
			require.NotNil(t, d.Derive)
			if !d.Default.IsZero() {
				require.Equal(t, d.Type, d.Default.Type(), "%s %s", c.name, d.Name)
			}
		}
		for _, symbol := range c.spec().symbols {
			d := traitOf(t, c, lowerCase(symbol))
			require.Equal(t, registry.TraitInt, d.Type)
		}
		require.NotEmpty(t, s.Signatures(), c.name)
		seen := map[tensor.FormatSignature]bool{}
		for _, sig := range s.Signatures() {
			require.NoError(t, sig.Validate(), c.name)
			require.Equal(t, s.Roles, sig.Roles())
			require.False(t, seen[sig])
			seen[sig] = true
		}
		mode := c.desc.Family + "." + c.desc.Mode
		require.Empty(t, modes[mode], "%s and %s are both %s", c.name, modes[mode], mode)
		modes[mode] = c.name
		for _, a := range s.Operators {
			var to []string
			for _, operand := range a.Roles {
				to = append(to, operand)
			}
			slices.Sort(to)
			require.Equal(t, s.Roles, to, "%s as %s", c.name, a.Name)
			for role, formats := range a.Formats {
				require.Contains(t, a.Roles, role)
				for _, f := range formats {
					require.Contains(t, tensor.FormatNames(), tensor.FormatName(f))
				}
			}
			_, clash := modes[a.Name]
			require.False(t, clash && modes[a.Name] != c.name, "%s is an operator of its own", a.Name)
		}
	}
}

func lowerCase(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c | 0x20
		}
	}
	return string(b)
}

// TestOperatorsAreDisjoint: no signature of one op is admitted by another op under a shared operator.
func TestOperatorsAreDisjoint(t *testing.T) {
	type served struct{ op, sig string }
	seen := map[served]string{}
	shared := 0
	for _, c := range all {
		for _, a := range c.schema().Operators {
			for _, sig := range c.schema().Signatures() {
				as := map[string]tensor.Format{}
				fits := true
				for role, operand := range a.Roles {
					f, _ := sig.Format(operand)
					as[role] = f
					fits = fits && (a.Formats[role] == nil || slices.Contains(a.Formats[role], string(f.Name)))
				}
				if !fits {
					continue
				}
				key := served{a.Name, tensor.Sig(as).String()}
				require.Empty(t, seen[key], "%v: %s and %s", key, seen[key], c.name)
				seen[key] = c.name
				shared++
			}
		}
	}
	require.Greater(t, shared, 100)
	require.Equal(t, "matmul_bt", seen[served{"gemm.mm", "a=dense[storage=bf16], b=dense[storage=bf16]"}])
	require.Equal(t, "matmul_bt_quant", seen[served{"gemm.mm", "a=dense[storage=bf16], b=ggml[storage=q4_0]"}])
	require.Equal(t, "attention", seen[served{"attention.mha_prefill", "k=dense[storage=bf16], q=dense[storage=bf16], v=dense[storage=bf16]"}])
	for _, mode := range []string{"extend", "decode"} {
		require.Equal(t, "paged_attention", seen[served{"attention.mha_" + mode + "_with_kvcache",
			"k_cache=ggml[storage=q8_0], q=dense[storage=f32], v_cache=ggml[storage=q8_0]"}])
	}
	require.Equal(t, "rope_from_cache", seen[served{"embedding.rope", "k=dense[storage=bf16], q=dense[storage=bf16]"}])
}

// TestSignatures: what the list has the validator admits, for the ops whose record the cases hold.
func TestSignatures(t *testing.T) {
	require.Len(t, MatmulBT.Signatures(), 9)
	require.Len(t, Attention.Signatures(), 3, "key and value follow query")
	require.Len(t, PagedAttention.Signatures(), 12)
	require.Len(t, MatmulBTQuant.Signatures(), 3*len(blockDTypes()))
	require.Equal(t, []string{"a", "b"}, MatmulBTQuant.Descriptor().Roles)
	for _, c := range cases() {
		args := c.fresh()
		roles := map[string]tensor.Format{}
		for _, r := range c.core.schema().Roles {
			if x := c.core.spec().operand(r).at(args); x.Present() {
				roles[r] = tensor.Dense(x.DType)
			} else {
				f, _ := c.core.schema().Signatures()[0].Format(r)
				roles[r] = f
			}
		}
		require.Contains(t, c.core.schema().Signatures(), tensor.Sig(roles), c.core.name)
	}
}

// TestDerive: traits of real records, without an allocation; an empty record gives no extents.
func TestDerive(t *testing.T) {
	got := func(c *core, args unsafe.Pointer, name string) registry.TraitValue {
		v, _ := traitOf(t, c, name).Derive(args)
		return v
	}
	q := PagedAttentionArgs{Out: ten(f32, 5, 8, 64), Query: ten(f32, 5, 8, 64), KCache: pagesOf(f16, 0, 7, 16, 2, 64), VCache: pagesOf(f16, 1, 7, 16, 2, 64),
		BlockTable: ten(i32, 3, 9), SeqLens: ten(i32, 3), QueryStartLoc: ten(i32, 4), Scale: 1, LogitsSoftCap: 30, WindowLeft: 4, Causal: true, Windowed: true}
	require.NoError(t, PagedAttention.Validate(&q, tensor.Device{}))
	c, args := &PagedAttention.core, unsafe.Pointer(&q)
	for name, want := range map[string]registry.TraitValue{
		"head_dim": registry.IntTrait(64), "page_size": registry.IntTrait(16), "num_q_heads": registry.IntTrait(8), "num_kv_heads": registry.IntTrait(2),
		"batch_size": registry.IntTrait(3), "num_tokens": registry.IntTrait(5), "logit_cap": registry.BoolTrait(true), "is_causal": registry.BoolTrait(true),
		"sliding_window": registry.BoolTrait(true), "window_left": registry.IntTrait(4), "sinks": registry.BoolTrait(false), "k_cache_contiguous": registry.BoolTrait(false),
		"out_dtype": registry.DTypeTrait(f32), "mb": registry.IntTrait(9),
	} {
		require.Equal(t, want, got(c, args, name), name)
	}
	require.True(t, traitOf(t, c, "batch_size").Dynamic)
	require.False(t, traitOf(t, c, "head_dim").Dynamic)

	// R+1 alone shows R where the other operands are absent.
	q.BlockTable, q.SeqLens = tensor.Tensor{}, tensor.Tensor{}
	require.Equal(t, registry.IntTrait(3), got(c, args, "r"))

	m := MatmulBTArgs{Out: ten(bf16, 2, 48), A: columnsOf(f32, 2, 32, 64), B: lane16(ten(f32, 48, 32))}
	require.NoError(t, MatmulBT.Validate(&m, tensor.Device{}))
	require.Equal(t, registry.StringTrait("lane16"), got(&MatmulBT.core, unsafe.Pointer(&m), "b_layout"))
	require.Equal(t, registry.BoolTrait(false), got(&MatmulBT.core, unsafe.Pointer(&m), "a_contiguous"))
	require.Equal(t, registry.DTypeTrait(bf16), got(&MatmulBT.core, unsafe.Pointer(&m), "out_dtype"))
	r := RopeNeoxArgs{Rope: RopeParams{Scaling: RopeYarn, RotaryDim: 32}}
	require.Equal(t, registry.StringTrait("yarn"), got(&RopeNeox.core, unsafe.Pointer(&r), "scaling"))
	require.Equal(t, registry.IntTrait(32), got(&RopeNeox.core, unsafe.Pointer(&r), "rotary_dim"))
	r.Rope.Scaling = 99
	require.True(t, got(&RopeNeox.core, unsafe.Pointer(&r), "scaling").IsZero())
	for alpha, want := range map[float32]bool{0: false, 1: false, 1.5: true} {
		require.Equal(t, registry.BoolTrait(want), got(&SiluAndMul.core, unsafe.Pointer(&SiluAndMulArgs{Alpha: alpha}), "alpha"))
	}
	x := ReluArgs{X: ten(f32, 3, 4)}
	require.Equal(t, registry.IntTrait(12), got(&Relu.core, unsafe.Pointer(&x), "elements"))
	attn := AttentionArgs{Mask: ten(f32, 2, 3, 5)}
	require.Equal(t, registry.IntTrait(3), got(&Attention.core, unsafe.Pointer(&attn), "q_len"), "by the form of the operand's rank")
	attn.Mask = ten(f32, 3, 5)
	require.Equal(t, registry.IntTrait(3), got(&Attention.core, unsafe.Pointer(&attn), "q_len"))

	for _, k := range cases() {
		full, empty := k.fresh(), unsafe.Pointer(&[1 << 13]uint64{})
		traits := k.core.schema().Traits
		known := 0
		for _, d := range traits {
			if v, ok := d.Derive(full); ok {
				require.Equal(t, d.Type, v.Type(), "%s %s", k.core.name, d.Name)
				known++
			}
			v, ok := d.Derive(empty)
			require.True(t, !ok || v == d.Default || d.Name == "rotary_dim" && v == registry.IntTrait(0), "%s %s of an empty record: %v, default %v", k.core.name, d.Name, v, d.Default)
		}
		require.NotZero(t, known)
		if !raceEnabled {
			require.Zero(t, testing.AllocsPerRun(10, func() {
				for i := range traits {
					traits[i].Derive(full)
				}
			}), k.core.name)
		}
	}
}
