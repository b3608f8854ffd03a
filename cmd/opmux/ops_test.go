package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/registry"
)

// TestOpsJSON: every op has a reference kernel on the CPU, every operand the dtypes that its words stand for, and every
// attribute a type.
func TestOpsJSON(t *testing.T) {
	var all []struct {
		Name     string
		Operands []struct {
			Name, Use, Shape, DType, Layout, Shares string
			Role                                    int
			DTypes                                  []string
		}
		Attributes []struct {
			Name, Type string
			Words      []string
		}
		Kernels map[string][]string
	}
	callJSON(t, &all, "ops")
	require.Len(t, all, len(registry.Descriptors()))
	for _, o := range all {
		require.Contains(t, o.Kernels["cpu:0"], "reference_"+o.Name)
		require.NotEmpty(t, o.Operands, o.Name)
		for _, x := range o.Operands {
			require.NotEmpty(t, x.DTypes, "%s %s", o.Name, x.Name)
			require.Contains(t, []string{"in", "out", "inout"}, x.Use)
		}
		for _, x := range o.Attributes {
			require.NotEmpty(t, x.Type, "%s %s", o.Name, x.Name)
		}
		if o.Name == "rope_neox" {
			at := map[string][]string{}
			for _, x := range o.Attributes {
				at[x.Name] = append(x.Words, x.Type)
			}
			require.Equal(t, []string{"bool"}, at["interleaved"])
			require.Equal(t, "llama3", at["rope.scaling"][2])
			require.Equal(t, []string{"f32"}, at["rope.base"])
		}
	}
}

// TestOpsOfOne shows one op in full, and a family as a table.
func TestOpsOfOne(t *testing.T) {
	code, out, errOut := call(t, "ops", "norm.rms")
	require.Zero(t, code, errOut)
	for _, part := range []string{"rms_norm (op 10), norm.rms: ", "out, may be x", "f32 f16 bf16", "gemma", "bool", "reference_rms_norm"} {
		require.Contains(t, out, part)
	}
	code, out, errOut = call(t, "ops", "gemm")
	require.Zero(t, code, errOut)
	require.Contains(t, out, "matmul_bt_quant")
	require.NotContains(t, out, "rms_norm")
}
