package tensor_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

func TestSignature(t *testing.T) {
	bf16, q4 := tensor.Dense(tensor.BF16), tensor.Dense(tensor.Q4_0)
	s, err := tensor.NewSignature(tensor.RoleFormat{Role: "b", Format: q4}, tensor.RoleFormat{Role: "a", Format: bf16})
	require.NoError(t, err)
	require.NoError(t, s.Validate())
	require.Equal(t, "a=dense[storage=bf16], b=ggml[storage=q4_0]", s.String())
	require.True(t, s == tensor.Sig(map[string]tensor.Format{"a": bf16, "b": q4}), "equal contents are ==")
	require.False(t, s == tensor.Sig(map[string]tensor.Format{"a": bf16, "c": q4}))
	require.False(t, s == tensor.Sig(map[string]tensor.Format{"a": bf16}))
	require.Equal(t, []string{"a", "b"}, s.Roles())
	require.Equal(t, tensor.Q4_0, s.DType("b"))
	require.Equal(t, tensor.None, s.DType("c"))
	f, ok := s.Format("a")
	require.True(t, ok)
	require.Equal(t, bf16, f)
	_, ok = s.Format("z")
	require.False(t, ok)
	short, err := tensor.ParseSignature("b=q4_0, a=bf16")
	require.NoError(t, err)
	require.True(t, s == short)

	_, err = tensor.NewSignature(tensor.RoleFormat{Role: "b", Format: q4}, tensor.RoleFormat{Role: "b", Format: bf16})
	var e *tensor.FormatError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "role b", e.Field)

	var zero tensor.FormatSignature
	empty, err := tensor.NewSignature()
	require.NoError(t, err)
	require.True(t, zero.IsZero())
	require.False(t, empty.IsZero())
	require.Equal(t, "none", empty.String())
	require.Zero(t, zero.Len())
	require.NoError(t, empty.Validate())
	require.Negative(t, empty.Compare(s)*s.Compare(empty))
	none, err := tensor.ParseSignature("none")
	require.NoError(t, err)
	require.True(t, none == empty)
}

func TestSignatureJSON(t *testing.T) {
	list := tensor.ExpandSignatures([]string{"q", "k_cache", "q"}, tensor.FormatDense, []tensor.DType{tensor.F16, tensor.BF16})
	require.Len(t, list, 2)
	require.Equal(t, "k_cache=dense[storage=bf16], q=dense[storage=bf16]", list[1].String())
	list = append(list, tensor.ExpandSignatures([]string{"a"}, tensor.FormatMXFP8, []tensor.DType{tensor.F8E4M3FN}, mx)...)
	empty, _ := tensor.NewSignature()
	list = append(list, empty, tensor.FormatSignature{})
	data, err := json.Marshal(list)
	require.NoError(t, err)
	var back []tensor.FormatSignature
	require.NoError(t, json.Unmarshal(data, &back), "%s", data)
	require.Equal(t, len(list), len(back))
	for i := range list {
		require.True(t, list[i] == back[i], "%d: %v %v", i, list[i], back[i])
		require.NoError(t, back[i].Validate())
	}
	var s tensor.FormatSignature
	require.NoError(t, json.Unmarshal([]byte(`"a=bf16"`), &s))
	require.Equal(t, tensor.BF16, s.DType("a"))
	for text, field := range map[string]string{
		`{"a":"bf16","a":"f32"}`: "role a", `{"a":"fp8[storage=f8_e4m3fn]"}`: "a.name", `7`: "text", `{"A":"bf16"}`: "role A", `"a"`: "text",
		`{"a":{"name":"mxfp8","dtype":"f8_e4m3fn","scale":{"dtype":"f32","granularity":"block","block":[0]}}}`: "a.scale.block",
		`"a=bf16, a=f32"`: "role a", `"a=bf16,"`: "text", `"a=bf16 b=f32"`: "a.text", `"a=dense[storage=bf16"`: "text", `""`: "text", `{"a":7}`: "a.text",
	} {
		var e *tensor.FormatError
		require.ErrorAs(t, json.Unmarshal([]byte(text), &s), &e, text)
		require.Equal(t, field, e.Field, text)
		require.True(t, s.IsZero())
	}
	roles := map[string]tensor.Format{}
	for i := range 40 {
		roles[fmt.Sprintf("r%d", i)] = tensor.Dense(tensor.F32)
	}
	require.ErrorIs(t, tensor.Sig(roles).Validate(), tensor.ErrFormat)
}

func TestInternSignature(t *testing.T) {
	require.Zero(t, tensor.InternSignature(tensor.FormatSignature{}))
	sigs := tensor.ExpandSignatures([]string{"a", "b"}, tensor.FormatDense, []tensor.DType{tensor.F32, tensor.F16, tensor.BF16})
	var wg sync.WaitGroup
	ids := make([][]tensor.SignatureID, 4)
	for g := range ids {
		wg.Go(func() {
			for _, s := range sigs {
				ids[g] = append(ids[g], tensor.InternSignature(s))
			}
		})
	}
	wg.Wait()
	seen := map[tensor.SignatureID]bool{0: true}
	for i, s := range sigs {
		require.False(t, seen[ids[0][i]])
		seen[ids[0][i]] = true
		require.True(t, s == ids[0][i].Signature())
		for g := range ids {
			require.Equal(t, ids[0][i], ids[g][i])
		}
	}
	require.True(t, tensor.SignatureID(1<<31).Signature().IsZero())
}

func FuzzParseSignature(f *testing.F) {
	for _, x := range goodFormats() {
		f.Add(tensor.Sig(map[string]tensor.Format{"a": x, "b_2": tensor.Dense(tensor.F32)}).String())
	}
	f.Add("none")
	f.Add("a=bf16, b=q4_0")
	f.Fuzz(func(t *testing.T, s string) {
		x, err := tensor.ParseSignature(s)
		if err != nil {
			require.ErrorIs(t, err, tensor.ErrFormat)
			return
		}
		back, err := tensor.ParseSignature(x.String())
		require.NoError(t, err)
		require.True(t, x == back)
		data, err := json.Marshal(x)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &back))
		require.True(t, x == back, "%s", data)
	})
}
