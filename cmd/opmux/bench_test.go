package main

import (
	"bytes"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/bench"
)

func TestBenchPrintsRatesAndShares(t *testing.T) {
	var r bench.Report
	file := filepath.Join(t.TempDir(), "a.json")
	callJSON(t, &r, "bench", "--op", "matmul_bt_quant", "--format", "q4_0", "--m", "1,40", "--n", "256", "--k", "512", "--kernel", "portable",
		"--threads", "1", "--count", "5", "--out", file)
	require.Len(t, r.Records, 2)
	for _, c := range r.Records {
		require.Equal(t, "portable_matmul_bt_quant", c.Kernel)
		require.Equal(t, "q4_0 lane16", c.Types["b"])
		require.Equal(t, 1, c.Threads)
		require.Positive(t, c.GBs)
		require.Positive(t, c.GFLOPS)
		require.Positive(t, c.Roofline.Share)
		require.Contains(t, []string{"bandwidth", "int8", "f32"}, c.Roofline.Limit)
		require.True(t, c.Verified.OK)
		require.NotZero(t, c.Executed)
	}
	require.Equal(t, float64(2*40*256*512), r.Records[1].FLOPs)
	require.NotEmpty(t, r.Provenance.Digest)
	require.NotEmpty(t, r.Limits)
	written, err := bench.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, &r, written)

	steady := func(ns float64) { // whatever the machine does meanwhile
		written.Records[0].Samples = []float64{ns, ns * 1.001, ns * 0.999, ns * 1.002, ns * 0.998}
		written.Records[0].Summarize()
	}
	steady(1000)
	require.NoError(t, written.WriteFile(file))
	code, out, errs := call(t, "bench", "compare", file, file)
	require.Zero(t, code, errs)
	require.Contains(t, out, "same")
	steady(1200)
	worse := filepath.Join(t.TempDir(), "b.json")
	require.NoError(t, written.WriteFile(worse))
	code, out, errs = call(t, "bench", "compare", file, worse)
	require.Equal(t, exitFailure, code)
	require.Contains(t, out, "slower")
	require.Contains(t, errs, "1 of 2 are slower or broken, the first is portable_matmul_bt_quant")
	code, _, errs = call(t, "bench", "compare", file, worse, "--noise", "10")
	require.Zero(t, code, errs)
	code, _, errs = call(t, "bench", "compare", worse, file, "--json")
	require.Zero(t, code, errs)

	require.NoError(t, (&bench.Report{}).WriteFile(worse))
	code, _, errs = call(t, "bench", "compare", file, worse)
	require.Equal(t, exitInput, code)
	require.Contains(t, errs, "opmux bench --json")
}

func TestBenchForms(t *testing.T) {
	r := &bench.Report{Provenance: bench.Provenance{Cache: "warm"}, Records: []bench.Record{{Op: "relu", Kernel: "portable_relu", Case: "f32/H=64", Threads: 1, Inner: 8, Samples: []float64{100, 101}}}}
	r.Records[0].Summarize()
	for _, c := range []struct {
		form benchRunCmd
		want string
	}{
		{benchRunCmd{}, `warm caches`},
		{benchRunCmd{Go: true}, `(?m)^BenchmarkRelu/portable_relu/f32/H=64-1\t8\t[0-9.e+]+ ns/op\t`},
		{benchRunCmd{Markdown: true}, `(?m)^## relu$`},
		{benchRunCmd{CSV: true}, `(?m)^relu,portable_relu,`},
		{benchRunCmd{caseFlags: caseFlags{JSON: true}}, `"median_ns": 100.5`},
	} {
		var out bytes.Buffer
		require.NoError(t, c.form.print(&out, r))
		require.Regexp(t, regexp.MustCompile(c.want), out.String())
	}
}

func TestAB(t *testing.T) {
	var r bench.ABReport
	callJSON(t, &r, "ab", "--op", "gemm.dense_nt", "--a", "portable", "--b", "reference_matmul_bt", "--m", "3", "--n", "64", "--k", "128", "--threads", "1", "--warm", "--count", "6")
	require.Len(t, r.Cases, 1)
	c := r.Cases[0]
	require.Equal(t, []string{"portable_matmul_bt", "reference_matmul_bt"}, []string{c.A.Kernel, c.B.Kernel})
	require.NotZero(t, c.A.Executed)
	require.NotZero(t, c.B.Executed)
	require.Positive(t, c.Ratio)
	require.True(t, c.Compared.OK)
	require.Equal(t, "out", c.Compared.Outputs[0].Output)
}

func TestBenchUsage(t *testing.T) {
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, "is not SYMBOL=EXTENT", []string{"bench", "--op", "relu", "--shape", "H"}},
		{exitUsage, "no whole number", []string{"bench", "--op", "relu", "--shape", "H=x"}},
		{exitInput, "there are f32, f16", []string{"bench", "--op", "relu", "--dtype", "out=f17"}},
		{exitInput, `ops of "relu" take f32, f16, bf16`, []string{"bench", "--op", "relu", "--format", "f17"}},
		{exitUsage, `ops of "relu" take f32, f16, bf16`, []string{"bench", "--op", "relu", "--format", "q4_0"}},
		{exitInput, "no/such", []string{"bench", "--op", "relu", "--out", "no/such/folder.json"}},
		{exitInput, "cublas", []string{"bench", "--op", "relu", "--kernel", "cublas"}},
		{exitUsage, "neither a number", []string{"bench", "--op", "relu", "--attr", "x=y"}},
		{exitUsage, "no op of", []string{"bench", "--op", "relu", "--shape", "Q=1"}},
		{exitInput, "relupo", []string{"bench", "--op", "relupo"}},
		{exitInput, "cublas", []string{"ab", "--op", "relu", "--a", "cublas", "--b", "portable"}},
		{exitUsage, "--op", []string{"ab", "--a", "portable", "--b", "reference"}},
		{exitUsage, "--noise", []string{"bench", "compare", "a", "b", "--noise", "-1"}},
		{exitInput, "no such file", []string{"bench", "compare", "a", "b"}},
		{exitUsage, "cold", []string{"bench", "--cold", "--warm"}},
		{exitUsage, "csv", []string{"bench", "--json", "--csv"}},
	} {
		code, _, errs := call(t, c.args...)
		require.Equal(t, c.code, code, "%v: %s", c.args, errs)
		require.Contains(t, errs, c.want)
	}
}
