package cpu

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// TestSpecs looks at what the tiers declare for the op on which they differ most.
func TestSpecs(t *testing.T) {
	weights := func(s *registry.Spec) (list []string) {
		for _, sig := range s.Signatures {
			if w := sig.DType("b").String(); !slices.Contains(list, w) {
				list = append(list, w)
			}
		}
		return list
	}
	for _, level := range tiers() {
		s := specOf(level, ops.MatmulBTQuant, registry.Traits{BatchInvariant: true})
		require.Equal(t, []string{"q4_0", "q8_0"}, weights(s), level.name)
		require.Len(t, s.Signatures, 6)
		require.Equal(t, registry.BatchInvariant, s.Determinism)
		require.NotEmpty(t, s.Thresholds["m"])
		require.True(t, slices.IsSorted(s.Thresholds["m"]))
		if level.name == "amx" {
			require.Equal(t, registry.AtLeast(32), s.Constraints["m"])
			require.Equal(t, []int64{manyRows, tileTall}, s.Thresholds["m"])
			require.Contains(t, s.Requires.Features, "isa:amx_int8")
		} else {
			require.Empty(t, s.Constraints)
		}
		if level.assembly {
			require.Equal(t, []string{device.CPUVendor}, s.Requires.Vendors)
			require.NotContains(t, s.Tags, registry.TagPortability)
		} else {
			require.Zero(t, s.Requires.Conditions())
			require.Contains(t, s.Tags, registry.TagPortability)
		}
		require.Len(t, specOf(level, ops.PagedAttention, registry.Traits{}).Signatures, 9, "no block types in the cache")
		require.Equal(t, registry.RunToRun, specOf(level, ops.RandomSample, registry.Traits{}).Determinism)
	}
	for _, sig := range ops.MatmulBTQuant.Signatures() {
		require.True(t, tensor.CanDecode(sig.DType("b")), sig)
	}
	require.Nil(t, specOf(reference, ops.MatmulBTQuant, registry.Traits{}).Signatures, "all of them")
	require.Nil(t, specOf(reference, ops.PagedAttention, registry.Traits{}).Signatures, "all of them")
	require.Nil(t, specOf(reference, ops.Embedding, registry.Traits{}).Signatures, "all of them")
}

// TestSelectElsewhere asks what would run on CPUs that are not here.
func TestSelectElsewhere(t *testing.T) {
	if !assembly {
		t.Skip("assembly is not compiled in")
	}
	r := registry.New(registry.Options{})
	require.NoError(t, Register(r))
	for _, c := range []struct {
		platform, operator, signature string
		m                             int64
		winner                        string
	}{
		{"cpu-avx512", "gemm.mm", "a=f32, b=q4_0", 512, "amx_matmul_bt_quant"},
		{"cpu-avx512", "gemm.mm", "a=f32, b=q4_0", 32, "amx_matmul_bt_quant"},
		{"cpu-avx512", "gemm.mm", "a=f32, b=q4_0", 31, "avx512vnni_matmul_bt_quant"},
		{"cpu-avx512", "gemm.mm", "a=f32, b=q6_K", 512, "reference_matmul_bt_quant"},
		{"cpu-avx512", "gemm.mm", "a=bf16, b=bf16", 512, "avx512vnni_matmul_bt"},
		{"cpu-avx2", "gemm.mm", "a=f32, b=q8_0", 512, "avx2_matmul_bt_quant"},
		{"cpu-neon", "gemm.mm", "a=f32, b=q8_0", 512, "portable_matmul_bt_quant"},
	} {
		p, err := device.ReadPlatform("../docs/platforms/" + c.platform + ".json")
		require.NoError(t, err)
		sig, err := tensor.ParseSignature(c.signature)
		require.NoError(t, err)
		d := r.Decide(registry.Request{Operator: c.operator, Signature: sig, Platform: p, Traits: map[string]registry.TraitValue{"m": registry.IntTrait(c.m)}})
		require.Empty(t, d.Error)
		require.Equal(t, c.winner, d.Winner, "%s %s of %d rows:\n%v", c.platform, c.signature, c.m, d)
	}
}

// TestOutsideIsNoFallback: calls that a tier declared not to take pass it by even under strict rules, and are counted.
func TestOutsideIsNoFallback(t *testing.T) {
	r, d := open(t, 1)
	q := newQueue(t, r, d).With(registry.WithStrict(context.Background(), true))
	f := newFixture(t)
	a := ops.GreedyArgmaxArgs{TokenIDs: f.raw(tensor.I64, 1), Logits: f.as(f.f32(1, 2, 2), 1, 3), Last: true}
	require.NoError(t, ops.GreedyArgmax.Launch(q, &a))
	require.EqualValues(t, 2, elems[int64](&a.TokenIDs, 0, 1)[0])
	require.Zero(t, r.GetOpProviderStats(ops.OpGreedyArgmax, d.ID()).Declines)
	outside := 0
	for _, step := range r.Explain(ops.OpGreedyArgmax, d.ID()).Chain {
		if step.Provider != "reference" {
			require.EqualValues(t, 1, step.Counts.Declined["domain"], step.Kernel)
			outside++
		}
	}
	require.NotZero(t, outside)
	a.Last = false
	require.NoError(t, ops.GreedyArgmax.Launch(q, &a))
	require.EqualValues(t, 1, elems[int64](&a.TokenIDs, 0, 1)[0])
}
