package opmux_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// blocks are the code blocks of docs/selection.md in a language.
func blocks(t *testing.T, language string) (out []string) {
	text, err := os.ReadFile(filepath.Join("docs", "selection.md"))
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		out = append(out, m[1])
	}
	require.NotEmpty(t, out, language)
	return out
}

// TestW15DocumentedCode wants the page's Go code to be that of an example, which go test runs.
func TestW15DocumentedCode(t *testing.T) {
	b, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	example := strings.ReplaceAll(string(b), "\t", "")
	for _, code := range blocks(t, "go") {
		require.Contains(t, example, strings.ReplaceAll(code, "\t", ""))
	}
}

// TestW15DocumentedConfig puts the page's configuration in force.
func TestW15DocumentedConfig(t *testing.T) {
	r := registry.New(registry.Options{})
	require.NoError(t, cpu.Register(r))
	c, err := registry.LoadConfig(strings.NewReader(blocks(t, "json")[0]), "selection.md")
	require.NoError(t, err)
	require.NoError(t, r.SetConfig(c))

	machine, err := device.ReadPlatform(filepath.Join("docs", "platforms", "cpu-avx512.json"))
	require.NoError(t, err)
	mm := func(m int64) *registry.Decision {
		return r.Decide(registry.Request{Operator: "gemm.mm", Platform: machine, Traits: map[string]registry.TraitValue{"m": registry.IntTrait(m)},
			Signature: tensor.Sig(map[string]tensor.Format{"a": tensor.Dense(tensor.F32), "b": tensor.Dense(tensor.Q8_0)})})
	}
	few, many := mm(4), mm(5)
	require.Equal(t, "reference_matmul_bt_quant", few.Winner, "%v", few)
	require.Contains(t, few.From, "selection.md")
	require.NotEqual(t, "reference_matmul_bt_quant", many.Winner)
	require.Empty(t, many.Override)
	d := r.Decide(registry.Request{Operator: "rms_norm", Platform: machine})
	for _, k := range d.Choices {
		require.Equal(t, k.Kernel == "portable_rms_norm", k.Verdict == "rejected" && k.Why[0].Kind == registry.WhyOverride, k.Kernel)
	}
	require.Equal(t, "determinism", r.Decide(registry.Request{Operator: "softmax", Platform: machine}).Objective)
}
