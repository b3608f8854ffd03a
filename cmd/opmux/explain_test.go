package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/registry"
)

const (
	machines  = "../../docs/platforms/"
	described = "../../registry/testdata/specs/"
)

// TestExplainForAnotherMachine asks about machines that are not here.
func TestExplainForAnotherMachine(t *testing.T) {
	var list []registry.Decision
	code, out, errs := call(t, "explain", "gemm.mm", "--platform", machines+"b200.json", "--json")
	require.Zero(t, code, "a list is an answer: %s", errs)
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.NotEmpty(t, list)
	for _, d := range list {
		require.True(t, d.Planned)
		require.NotEmpty(t, d.Error)
		require.Equal(t, "NVIDIA B200", d.Platform.Name)
		require.NotEmpty(t, d.Choices, d.Op)
		for _, c := range d.Choices { // this build has CPU kernels only
			require.Equal(t, "rejected", c.Verdict)
			require.Equal(t, registry.Why{Kind: registry.WhyCapability, Name: "kind", Want: "cpu", Have: "cuda"}, c.Why[0])
		}
	}

	var d registry.Decision
	mm := []string{"explain", "gemm.mm", "--specs", described + "gemm.json", "--platform", machines + "b200.json",
		"--trait", "m=16", "--trait", "n=4096", "--trait", "k=4096", "--sig"}
	callJSON(t, &d, append(mm, "a=bf16,b=bf16")...)
	require.Equal(t, "torch_mm", d.Winner)
	require.Equal(t, "4096", d.Traits["k"])
	fp8 := "block-fp8[storage=f8_e4m3fn, scale(block, storage=f32, block=128x128)]"
	callJSON(t, &d, append(mm, "a="+fp8+",b="+fp8)...)
	require.Equal(t, "flashinfer_mm_fp8_blockscale", d.Winner)
	code, out, errs = call(t, append(mm, "a="+fp8+",b="+fp8)...)
	require.Zero(t, code, errs)
	first := strings.Index(out, "flashinfer_mm_fp8_blockscale")
	require.Positive(t, first)
	require.Less(t, first, strings.Index(out, "triton_mm_fp8_blockscale"), "the winner comes first")
	require.Contains(t, out, "capability vendor: wants amd, got nvidia")

	// Without a signature: the kernels with the signatures that they take, for every op; without an op: every op.
	callJSON(t, &list, "explain", "gemm.bmm", "--specs", described+"gemm.json", "--platform", machines+"mi350x.json")
	require.Len(t, list, 1)
	require.Empty(t, list[0].Winner, "no signature, no winner")
	require.Equal(t, "gluon_bmm_gfx950", list[0].Choices[0].Kernel)
	require.Equal(t, "possible", list[0].Choices[0].Verdict)
	require.Equal(t, []string{"a=dense[storage=f8_e4m3fn], b=dense[storage=f8_e4m3fn]"}, list[0].Choices[0].Signatures)
	callJSON(t, &list, "explain", "--specs", described+"moe.json", "--specs", described+"sampling.json", "--platform", machines+"h100.json")
	ops := map[string]bool{}
	for _, d := range list {
		ops[d.Op] = true
	}
	require.True(t, ops["moe.apply"] && ops["sampling.argmax"] && ops["matmul_bt"])
	code, out, errs = call(t, "explain", "--platform", machines+"cpu-avx2.json")
	require.Zero(t, code, errs)
	require.Contains(t, out, "matmul_bt")
	require.Contains(t, out, "avx2 portable reference")
}

// TestExplainRequestHere asks about calls on this machine.
func TestExplainRequestHere(t *testing.T) {
	var list []registry.Decision
	callJSON(t, &list, "explain", "matmul_bt_quant", "--override", "solution:reference")
	require.Len(t, list, 1)
	require.Equal(t, "reference_matmul_bt_quant", list[0].Choices[0].Kernel)
	require.Equal(t, "call", list[0].From)
	callJSON(t, &list, "explain", "matmul_bt_quant", "--solution", "portable")
	require.Equal(t, "portable_matmul_bt_quant", list[0].Choices[0].Kernel)
	callJSON(t, &list, "explain", "rms_norm", "--objective", "debug")
	require.Equal(t, "debug", list[0].Objective)
	require.Equal(t, "reference_rms_norm", list[0].Choices[0].Kernel)
	code, out, errs := call(t, "explain", "matmul_bt", "--override", "kernel:reference_rms_norm")
	require.Equal(t, exitNoKernel, code)
	require.Contains(t, out, "reference_matmul_bt", "the record is printed all the same")
	require.Contains(t, errs, "reference_rms_norm")
	for _, flag := range []string{"--override", "--solution", "--feature"} {
		code, out, errs = call(t, "explain", "matmul_bt", flag, "nosuch")
		require.Equal(t, exitInput, code, flag)
		require.Empty(t, out, flag)
		require.Contains(t, errs, flag+" nosuch: unknown name")
	}
}

// A device's chain shows what its kernels declare, in lines that fit, and nothing is selected without a signature.
func TestExplainDeclares(t *testing.T) {
	code, out, errs := call(t, "explain", "matmul_bt_quant")
	require.Zero(t, code, errs)
	require.Contains(t, out, "takes a=dense[storage=f32], b=ggml[storage=q4_0]")
	require.False(t, strings.HasSuffix(out, "\n\n"))
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, len(line), 121, line)
	}
	var e struct {
		Chain []struct {
			Kernel, Tier          string
			Signatures, Restricts []string
		}
	}
	callJSON(t, &e, "explain", "matmul_bt_quant")
	require.NotEmpty(t, e.Chain)
	for _, l := range e.Chain {
		require.Equal(t, l.Tier == "reference", len(l.Signatures) == 0, l.Kernel)
	}
	_, out, _ = call(t, "explain", "matmul_bt_quant", "-v")
	require.Contains(t, out, "registered at")

	amx := []string{"explain", "matmul_bt_quant", "--platform", machines + "cpu-avx512.json"}
	code, out, errs = call(t, amx...)
	require.Zero(t, code, errs)
	require.NotContains(t, out, "selected")
	require.Contains(t, out, "may serve")
	var d registry.Decision
	callJSON(t, &d, append(amx, "--sig", "a=f32,b=q4_0", "--trait", "m=64", "--trait", "k=4096", "--trait", "n=4096")...)
	require.NotEmpty(t, d.Winner)
	code, out, _ = call(t, "explain", "--platform", machines+"b200.json")
	require.Zero(t, code)
	require.Contains(t, out, "no kernel")
}

// A machine's name is free text: it forges no line and moves no terminal.
func TestExplainForANastyName(t *testing.T) {
	b, err := os.ReadFile(machines + "cpu-avx2.json")
	require.NoError(t, err)
	var p map[string]any
	require.NoError(t, json.Unmarshal(b, &p))
	p["name"] = "a\x1b[31m\u202eb\nc"
	b, err = json.Marshal(p)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "nasty.json")
	require.NoError(t, os.WriteFile(path, b, 0o644))
	code, out, errs := call(t, "explain", "rms_norm", "--platform", path)
	require.Zero(t, code, errs)
	require.True(t, strings.HasPrefix(out, `rms_norm on a\u001b[31m\u202eb; c (cpu`), out)
}

// TestExplainTraits asks for one value, for several, and for all.
func TestExplainTraits(t *testing.T) {
	ask := func(more ...string) (d registry.Decision) {
		code, out, errs := call(t, append([]string{"explain", "gemm.decode_gemv", "--specs", described + "gemm.json", "--platform", machines + "h100.json",
			"--sig", "x=bf16,weight=bf16", "--trait", "n=4096", "--trait", "k=4096", "--json"}, more...)...)
		require.NoError(t, json.Unmarshal([]byte(out), &d), errs)
		require.Equal(t, d.Winner == "", code == exitNoKernel, errs)
		return d
	}
	require.Equal(t, "triton_decode_gemv", ask("--trait", "m=8").Winner)
	require.Equal(t, "triton_decode_gemv", ask("--trait", "m=1,8").Winner)
	require.Equal(t, "torch_decode_gemv", ask("--trait", "m=1,9").Winner)
	require.Equal(t, "torch_decode_gemv", ask("--trait", "m=any").Winner)
	paged := filepath.Join(t.TempDir(), "paged.json") // a kernel of another op that has the feature: it is known
	require.NoError(t, os.WriteFile(paged, []byte(`{"version":1,"operators":[{"name":"my.op","roles":["x"]}],"kernels":[{"name":"k","family":"my","mode":"op",
		"solution":"s","kinds":["cuda"],"signatures":["x=bf16"],"features":["paged"],"unavailable":"a test"}]}`), 0o644))
	d := ask("--trait", "m=1", "--feature", "paged", "--specs", paged)
	require.Empty(t, d.Winner)
	for _, c := range d.Choices {
		require.True(t, slices.ContainsFunc(c.Why, func(w registry.Why) bool { return w.Kind == registry.WhyFeature && w.Name == "paged" }), c.Kernel)
	}
}

// TestExplainBadInput wants typed refusals with the exit code of bad input or of bad usage.
func TestExplainBadInput(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
		return p
	}
	b200, err := os.ReadFile(machines + "b200.json")
	require.NoError(t, err)
	nested := strings.Repeat(`{"operators":[`, 20000)
	many := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"version":1,"operators":[{"name":"big.op","roles":["x"]}],"kernels":[`)
		for i := range n {
			fmt.Fprintf(&b, `{"name":"k%d","family":"big","mode":"op","solution":"s","kinds":["cuda"],"signatures":["x=bf16"],"unavailable":"a test"},`, i)
		}
		return strings.TrimSuffix(b.String(), ",") + "]}"
	}
	spec := func(field, value string) string {
		k := map[string]any{"name": "k", "family": "my", "mode": "op", "solution": "s", "kinds": []string{"cuda"}, "signatures": []string{"x=bf16"}, "unavailable": "a test"}
		var v any
		require.NoError(t, json.Unmarshal([]byte(value), &v))
		k[field] = v
		b, err := json.Marshal(map[string]any{"version": 1, "operators": []any{map[string]any{"name": "my.op", "roles": []string{"x"}, "traits": []any{map[string]any{"name": "n", "type": "int"}}}}, "kernels": []any{k}})
		require.NoError(t, err)
		return string(b)
	}
	for name, c := range map[string]struct {
		code int
		says string
		args []string
	}{
		"no such op":            {exitInput, "matmul_bt", []string{"matmul_bd"}},
		"no such operator":      {exitInput, "gemm.mm", []string{"gemm.mx", "--specs", described + "gemm.json"}},
		"no such device":        {exitInput, "cpu:0", []string{"matmul_bt", "--device", "cuda:0"}},
		"no such device at all": {exitInput, "cpu:0", []string{"--device", "cuda:0"}},
		"malformed device":      {exitUsage, "", []string{"matmul_bt", "--device", "cuda:x"}},
		"objective":             {exitUsage, "batch_invariant", []string{"matmul_bt", "--objective", "fast"}},
		"signature":             {exitInput, "bf17", []string{"matmul_bt", "--sig", "a=bf17"}},
		"signature without op":  {exitUsage, "op", []string{"--sig", "a=bf16"}},
		"roles":                 {exitNoKernel, "want", []string{"gemm.mm", "--specs", described + "gemm.json", "--sig", "a=bf16,c=bf16"}},
		"trait without value":   {exitUsage, "NAME=VALUE", []string{"gemm.mm", "--specs", described + "gemm.json", "--trait", "m"}},
		"trait of another type": {exitUsage, "int", []string{"gemm.mm", "--specs", described + "gemm.json", "--trait", "m=much"}},
		"trait: negative size":  {exitUsage, "negative", []string{"matmul_bt", "--sig", "a=f32,b=f32", "--trait", "m=-5"}},
		"trait: too long":       {exitUsage, "64 bits", []string{"matmul_bt", "--sig", "a=f32,b=f32", "--trait", "m=99999999999999999999"}},
		"trait twice":           {exitUsage, "twice", []string{"gemm.mm", "--specs", described + "gemm.json", "--trait", "m=1", "--trait", "m=2"}},
		"misspelt trait":        {exitInput, "head_dim", []string{"attention.mha_prefill", "--specs", described + "attention.json", "--trait", "head_din=128"}},
		"trait left out":        {exitInput, "required", []string{"gemm.mm", "--specs", described + "gemm.json", "--sig", "a=bf16,b=bf16"}},
		"override":              {exitInput, "", []string{"matmul_bt", "--override", "kernel:"}},
		"no platform":           {exitInput, "absent", []string{"--platform", filepath.Join(dir, "absent.json")}},
		"platform is a folder":  {exitInput, "regular", []string{"--platform", dir}},
		"platform is a device":  {exitInput, "regular", []string{"--platform", os.DevNull}},
		"platform is empty":     {exitInput, "empty.json", []string{"--platform", write("empty.json", "")}},
		"platform is cut":       {exitInput, "cut.json", []string{"--platform", write("cut.json", string(b200[:200]))}},
		"platform is text":      {exitInput, "text.json", []string{"--platform", write("text.json", "hello")}},
		"platform: key":         {exitInput, "memmory", []string{"--platform", write("key.json", strings.Replace(string(b200), `"memory"`, `"memmory"`, 1))}},
		"platform: vendor":      {exitInput, "vendor", []string{"--platform", write("vendor.json", strings.Replace(string(b200), "nvidia", "nvidea", 1))}},
		"platform is huge":      {exitInput, "huge.json", []string{"--platform", write("huge.json", string(b200)+strings.Repeat(" ", 3<<20))}},
		"no specs":              {exitInput, "absent", []string{"--specs", filepath.Join(dir, "absent.json")}},
		"specs are a folder":    {exitInput, "regular", []string{"--specs", dir}},
		"specs are empty":       {exitInput, "nothing.json", []string{"--specs", write("nothing.json", "")}},
		"specs are a platform":  {exitInput, "b200.json", []string{"--specs", machines + "b200.json"}},
		"specs: deep":           {exitInput, "deep.json", []string{"--specs", write("deep.json", nested)}},
		"specs: too large":      {exitInput, "large.json", []string{"--specs", write("large.json", strings.Repeat(" ", 64<<20)+"{}")}},
		"specs: too many":       {exitInput, "many.json", []string{"--specs", write("many.json", many(100000))}},
		"specs: version":        {exitInput, "version", []string{"--specs", write("version.json", `{"version":2}`)}},
		"specs: key":            {exitInput, "kernel", []string{"--specs", write("key2.json", `{"version":1,"kernel":[]}`)}},
		"specs: twice":          {exitInput, "k", []string{"--specs", write("a.json", spec("doc", `""`)), "--specs", write("b.json", spec("doc", `""`))}},
		"specs: priority":       {exitInput, "priority", []string{"--specs", write("prio.json", spec("priority", `"PERFORMANT+4"`))}},
		"specs: trait":          {exitInput, "constraints", []string{"--specs", write("trait.json", spec("constraints", `{"m":{"at_least":1}}`))}},
		"specs: constraint":     {exitInput, "constraints", []string{"--specs", write("con.json", spec("constraints", `{"n":{"range":[2,1]}}`))}},
		"specs: tag":            {exitInput, "tags", []string{"--specs", write("tag.json", spec("tags", `["fast"]`))}},
		"specs: format":         {exitInput, "fp8", []string{"--specs", write("fmt.json", spec("signatures", `["x=fp8[storage=f8_e4m3fn]"]`))}},
		"specs: gate":           {exitInput, "requires", []string{"--specs", write("gate.json", spec("requires", `{"vendors":["nvidia"],"min_arch":"9.0","max_arch":"8.0"}`))}},
		"specs: kind":           {exitInput, "kinds", []string{"--specs", write("kind.json", spec("kinds", `[]`))}},
	} {
		code, out, errs := call(t, append([]string{"explain"}, c.args...)...)
		require.Equal(t, c.code, code, "%s: %s %s", name, errs, out)
		require.Contains(t, errs, c.says, name)
		require.Less(t, len(errs), 4000, name)
	}
}

// TestW15DocumentedCommands runs the commands of docs/selection.md.
func TestW15DocumentedCommands(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	text, err := os.ReadFile(filepath.Join("docs", "selection.md"))
	require.NoError(t, err)
	_, block, ok := strings.Cut(string(text), "```sh\n")
	require.True(t, ok)
	block, _, _ = strings.Cut(block, "```")
	for line := range strings.Lines(block) {
		words := strings.Fields(line)
		require.Equal(t, "opmux", words[0])
		code, out, errs := call(t, words[1:]...)
		require.Zero(t, code, "%s%s", line, errs)
		require.NotEmpty(t, out)
	}
}

// TestOpsListsSchemas wants roles, traits and operators in the listing of the ops.
func TestOpsListsSchemas(t *testing.T) {
	var all []struct {
		Name      string
		Roles     []string
		Traits    []registry.TraitDef
		Operators []registry.OperatorAlias
	}
	callJSON(t, &all, "ops")
	operators := map[string]bool{}
	for _, o := range all {
		require.NotNil(t, o.Roles, o.Name)
		require.NotEmpty(t, o.Traits, o.Name)
		for _, a := range o.Operators {
			operators[a.Name] = true
		}
	}
	require.True(t, operators["gemm.mm"], "%v", operators)
}
