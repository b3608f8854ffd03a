package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const normFile = `{"op_type": "rms_norm", "attributes": {"eps": 0},
	"inputs": [{"name": "x", "dtype": "f32", "shape": [1, 2], "data": [3, 4]}],
	"outputs": [{"name": "out", "dtype": "f32", "shape": [1, 2], "data": [0.8485281, 1.1313709]}]}`

// opFile writes a file and returns its name.
func opFile(t *testing.T, text string) string {
	name := filepath.Join(t.TempDir(), "op.json")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func TestRunComparesAndNamesTheKernel(t *testing.T) {
	code, out, errs := call(t, "run", "rms_norm", opFile(t, normFile))
	require.Zero(t, code, errs)
	for _, want := range []string{"0.8485281", "inside the tolerance", "_rms_norm", "executed"} {
		require.Contains(t, out, want)
	}
	var res struct {
		Op      string
		Kernels []kernelUse
		Outputs []struct {
			DType string
			Data  []float32
		}
		Worst struct {
			OK    bool
			Share float64
		}
	}
	callJSON(t, &res, "run", "rms_norm", opFile(t, normFile), "--kernel", "reference")
	require.Equal(t, "rms_norm", res.Op)
	require.Len(t, res.Kernels, 1)
	require.Equal(t, []any{"reference", uint64(1)}, []any{res.Kernels[0].Provider, res.Kernels[0].Executed})
	require.InDeltaSlice(t, []float32{0.8485281, 1.1313709}, res.Outputs[0].Data, 1e-6)
	require.True(t, res.Worst.OK)
	require.LessOrEqual(t, res.Worst.Share, 1.0)
}

func TestRunOutsideTheTolerance(t *testing.T) {
	wrong := `{"op_type": "relu", "inputs": [{"name": "x", "dtype": "f32", "shape": [2], "data": [1, 2]}],
		"outputs": [{"name": "out", "dtype": "f32", "shape": [2], "data": [1, "Inf"]}]}`
	code, out, errs := call(t, "run", "relu", opFile(t, wrong), "--json")
	require.Equal(t, exitFailure, code)
	require.Contains(t, errs, "out[1] is 2, expected +Inf")
	var res map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &res), "infinities are texts in JSON")
	require.Equal(t, "Inf", res["worst"].(map[string]any)["want"])
}

func TestRunErrors(t *testing.T) {
	hostile := `{"op_type": "matmul", "inputs": [{"name": "a", "dtype": "f32", "shape": [1, 1], "data": [1]},
		{"name": "b", "dtype": "f32", "shape": [1, 1], "data": [1]}], "outputs": [{"name": "out", "dtype": "f32", "shape": [1000000000, 1000000000]}]}`
	for _, c := range []struct {
		name, text string
		args       []string
		code       int
		says       string
	}{
		{"absent", "", []string{"run", "relu", "nowhere.json"}, exitInput, "nowhere.json"},
		{"no JSON", "GGUF", []string{"run", "relu"}, exitInput, "malformed"},
		{"hostile", hostile, []string{"run", "matmul"}, exitInput, "proportion"},
		{"another op", normFile, []string{"run", "relu"}, exitInput, "rms_norm serves"},
		{"unknown op", normFile, []string{"run", "rellu"}, exitInput, "unknown op"},
		{"unknown kernel", normFile, []string{"run", "rms_norm", "-k", "fastest"}, exitInput, "reference_rms_norm"},
		{"no such type", `{"op_type": "Cast", "inputs": []}`, []string{"run", "Cast"}, exitInput, "no op serves it"},
		{"attribute", `{"op_type": "Softmax", "attributes": {"beta": 1}, "inputs": [{"name": "x", "dtype": "f32", "shape": [1], "data": [1]}]}`,
			[]string{"run", "Softmax"}, exitInput, "beta"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := c.args
			if c.text != "" {
				args = append(args[:2:2], append([]string{opFile(t, c.text)}, args[2:]...)...)
			}
			code, out, errs := call(t, args...)
			require.Equal(t, c.code, code, errs)
			require.Contains(t, errs, c.says)
			require.Empty(t, out)
		})
	}
}
