package opmux_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// The answers of selection for machines that are not here, as files: registry/testdata/specs holds descriptions of
// kernels, docs/platforms the machines, registry/testdata/cases.json the traits that requests ask with, and
// registry/testdata/golden what was selected. A change of any of them shows as a difference of the last.

var update = flag.Bool("update", false, "rewrite registry/testdata/golden")

const fixtures = "registry/testdata"

type specFile struct {
	Operators []struct{ Name string }
	Kernels   []registry.KernelSpec
}

// specs reads the description files of the fixtures, by family.
func specs(t *testing.T) map[string][]byte {
	files, err := filepath.Glob(filepath.Join(fixtures, "specs", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	out := map[string][]byte{}
	for _, f := range files {
		out[strings.TrimSuffix(filepath.Base(f), ".json")], err = os.ReadFile(f)
		require.NoError(t, err)
	}
	return out
}

// described is a registry that has the kernels of the description files and no others.
func described(t *testing.T, files map[string][]byte) *registry.Registry {
	r := registry.New(registry.Options{})
	for _, name := range slices.Sorted(maps.Keys(files)) {
		_, err := r.LoadSpecs(bytes.NewReader(files[name]), "file:"+name)
		require.NoError(t, err, name)
	}
	return r
}

// platforms reads the golden machines, by name.
func platforms(t *testing.T) map[string]*device.Platform {
	files, err := filepath.Glob(filepath.Join("docs", "platforms", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	out := map[string]*device.Platform{}
	for _, f := range files {
		p, err := device.ReadPlatform(f)
		require.NoError(t, err, f)
		out[strings.TrimSuffix(filepath.Base(f), ".json")] = p
	}
	return out
}

// cases are the traits that requests for an operator are made with.
func cases(t *testing.T) map[string][]map[string]registry.TraitValue {
	b, err := os.ReadFile(filepath.Join(fixtures, "cases.json"))
	require.NoError(t, err)
	var out map[string][]map[string]registry.TraitValue
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&out))
	return out
}

// tabulate answers every request for an operator: signatures × traits × machines. What has the same answers stands
// together.
func tabulate(t *testing.T, r *registry.Registry, operator string, sigs []tensor.FormatSignature, traits []map[string]registry.TraitValue, machines map[string]*device.Platform) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", operator)
	if len(sigs) == 0 {
		b.WriteString("\nno kernel\n")
		return b.String()
	}
	if len(traits) == 0 {
		traits = []map[string]registry.TraitValue{nil}
	}
	body := grouped(sigs, tensor.FormatSignature.String, func(sig tensor.FormatSignature) string {
		return grouped(traits, traitsText, func(set map[string]registry.TraitValue) string {
			return grouped(slices.Sorted(maps.Keys(machines)), func(s string) string { return s }, func(m string) string {
				return answer(t, r, registry.Request{Operator: operator, Signature: sig, Traits: set, Platform: machines[m]})
			}, "    ", " ")
		}, "  ", "\n  ")
	}, "\n", "\n")
	b.WriteString(body)
	return b.String()
}

// grouped renders every item and prints the renderings once each, under the names of the items that share it.
func grouped[T any](items []T, name func(T) string, render func(T) string, indent, sep string) string {
	var order []string
	under := map[string][]string{}
	for _, x := range items {
		text := render(x)
		if under[text] == nil {
			order = append(order, text)
		}
		under[text] = append(under[text], name(x))
	}
	var b strings.Builder
	for _, text := range order {
		fmt.Fprintf(&b, "%s%s\n%s", indent, strings.Join(under[text], sep), text)
	}
	return b.String()
}

func traitsText(set map[string]registry.TraitValue) string {
	var words []string
	for _, n := range slices.Sorted(maps.Keys(set)) {
		words = append(words, n+"="+set[n].String())
	}
	if words == nil {
		return "no traits"
	}
	return strings.Join(words, " ")
}

// answer is one decision in few lines: the kernels that serve, best first, then the others under their first reason.
func answer(t *testing.T, r *registry.Registry, req registry.Request) string {
	d := r.Decide(req)
	require.Empty(t, d.Error, "%s %v %s", req.Operator, req.Signature, traitsText(req.Traits))
	var b strings.Builder
	var reasons []string
	under := map[string][]string{}
	for i, c := range d.Choices {
		if c.Verdict != "rejected" {
			fmt.Fprintf(&b, "      %d. %s  %s, specificity %d\n", i+1, c.Kernel, c.Priority, c.Score.Specificity)
			continue
		}
		why := c.Why[0]
		if why.Have = ""; why.Kind == registry.WhyFormat {
			why.Want = ""
		}
		text := strings.TrimSuffix(why.String(), ", got nothing given")
		if under[text] == nil {
			reasons = append(reasons, text)
		}
		under[text] = append(under[text], c.Kernel)
	}
	if d.Winner == "" {
		b.WriteString("      no kernel\n")
	}
	if len(d.Ties) > 0 {
		fmt.Fprintf(&b, "      only the name decides against %s\n", strings.Join(d.Ties, ", "))
	}
	slices.Sort(reasons)
	for _, text := range reasons {
		slices.Sort(under[text])
		fmt.Fprintf(&b, "      - %s: %s\n", text, strings.Join(under[text], " "))
	}
	return b.String()
}

// signaturesOf lists the signatures that an operator's kernels declare, sorted.
func signaturesOf(kernels []registry.KernelSpec, operator string) []tensor.FormatSignature {
	var sigs []tensor.FormatSignature
	for i := range kernels {
		if kernels[i].Operator() == operator {
			sigs = append(sigs, kernels[i].Signatures...)
		}
	}
	slices.SortFunc(sigs, tensor.FormatSignature.Compare)
	return slices.Compact(sigs)
}

// compareGolden compares a table with its file, or writes it.
func compareGolden(t *testing.T, name, text string) {
	path := filepath.Join(fixtures, "golden", name+".txt")
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "go test -run TestGolden -update . writes it")
	require.Equal(t, string(want), text, "go test -run TestGolden -update . rewrites %s", path)
}

// TestGolden compares the whole table of the described kernels with registry/testdata/golden.
func TestGolden(t *testing.T) {
	files, machines, ask := specs(t), platforms(t), cases(t)
	r := described(t, files)
	written := map[string]bool{}
	for _, family := range slices.Sorted(maps.Keys(files)) {
		var f specFile
		require.NoError(t, json.Unmarshal(files[family], &f))
		for _, o := range f.Operators {
			compareGolden(t, o.Name, tabulate(t, r, o.Name, signaturesOf(f.Kernels, o.Name), ask[o.Name], machines))
			written[o.Name] = true
		}
	}
	for name := range ask {
		require.True(t, written[name] || strings.HasPrefix(name, "cpu/"), "cases.json: no operator %s", name)
	}
}

// TestGoldenCPU compares what the CPU's own kernels serve, on CPUs that are not here.
func TestGoldenCPU(t *testing.T) {
	r := registry.New(registry.Options{})
	require.NoError(t, cpu.Register(r))
	for _, provider := range []string{"amx", "avx2"} {
		if d := r.Decide(registry.Request{Operator: "matmul_bt_quant", Solution: provider}); d.Winner == "" && !has(d, provider) {
			t.Skipf("this build has no kernels of %s", provider)
		}
	}
	ask, machines := cases(t), platforms(t)
	maps.DeleteFunc(machines, func(_ string, p *device.Platform) bool { return p.Kind != tensor.CPU })
	require.NotEmpty(t, machines)
	for _, d := range registry.Descriptors() {
		if d.Op >= registry.FirstDefined || r.OpProviderCount(d.Op, tensor.Device{}) == 0 {
			continue
		}
		name := "cpu/" + d.Name
		compareGolden(t, name, tabulate(t, r, d.Name, d.LoadSchema().Signatures(), ask[name], machines))
	}
}

// has reports whether a decision knows a kernel of the provider.
func has(d *registry.Decision, provider string) bool {
	return slices.ContainsFunc(d.Choices, func(c registry.Choice) bool { return c.Provider == provider })
}

// TestGoldenShowsAChange changes one trait of one kernel and wants another table.
func TestGoldenShowsAChange(t *testing.T) {
	files, machines, ask := specs(t), platforms(t), cases(t)
	const operator, kernel = "attention.mha_prefill", `"fa4_mha_prefill"`
	old := string(files["attention"])
	at := strings.Index(old, kernel)
	require.Positive(t, at)
	changed := strings.Replace(old[at:], `"one_of": [64, 96, 128]`, `"one_of": [64, 96]`, 1)
	require.NotEqual(t, old[at:], changed)
	files["attention"] = []byte(old[:at] + changed)

	var f specFile
	require.NoError(t, json.Unmarshal(files["attention"], &f))
	got := tabulate(t, described(t, files), operator, signaturesOf(f.Kernels, operator), ask[operator], machines)
	want, err := os.ReadFile(filepath.Join(fixtures, "golden", operator+".txt"))
	require.NoError(t, err)
	require.NotEqual(t, string(want), got)
	require.Contains(t, string(want), "1. fa4_mha_prefill")
	require.Contains(t, got, "- trait head_dim: wants one of 64, 96: fa4_mha_prefill\n")
	require.NotContains(t, string(want), "wants one of 64, 96:")
}
