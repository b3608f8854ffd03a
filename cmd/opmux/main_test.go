package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
)

// call runs the command and returns what it printed.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// callJSON runs a command that must succeed and decodes what it printed.
func callJSON(t *testing.T, into any, args ...string) {
	code, out, errs := call(t, append(args, "--json")...)
	require.Zero(t, code, errs)
	require.NoError(t, json.Unmarshal([]byte(out), into), out)
}

func TestGenerateStreamsTextAndNamesKernels(t *testing.T) {
	code, out, errs := call(t, "generate", "-p", "In the beginning", "-n", "12", "-t", "2")
	require.Zero(t, code, errs)
	require.True(t, strings.HasPrefix(out, "In the beginning"))
	for _, want := range []string{"tokens/s", "executed", "matmul_bt_quant", "paged_attention", "random_sample"} {
		require.Contains(t, out, want)
	}
	code, quiet, errs := call(t, "generate", "-p", "In the beginning", "-n", "12", "-q")
	require.Zero(t, code, errs)
	require.True(t, strings.HasPrefix(out, strings.TrimSuffix(quiet, "\n")), "the same seed gives the same text")
}

func TestGenerateJSON(t *testing.T) {
	var a, b generated
	callJSON(t, &a, "generate", "-p", "And the", "-n", "9", "--ignore-eos")
	require.Len(t, a.Tokens, 9)
	require.NotEmpty(t, a.Text)
	executed := map[string]uint64{}
	for _, p := range a.Providers {
		executed[p.Op] += p.Executed
	}
	require.NotZero(t, executed["matmul_bt_quant"])
	callJSON(t, &b, "generate", "-p", "And the", "-n", "9", "--ignore-eos", "--seed", "2")
	require.NotEqual(t, a.Tokens, b.Tokens)
}

func TestDisableMovesTheWork(t *testing.T) {
	heads := func() string {
		var e struct{ Chain []registry.Step }
		callJSON(t, &e, "explain", "matmul_bt_quant")
		require.NotEmpty(t, e.Chain)
		return e.Chain[0].Kernel
	}
	first := heads()
	restore, err := registry.Default().Disable(first)
	require.NoError(t, err)
	t.Cleanup(restore)
	second := heads()
	require.NotEqual(t, first, second)
	count := func(kernel string) (n uint64) {
		for _, k := range used(registry.Default()) {
			if k.Kernel == kernel {
				n += k.Executed
			}
		}
		return n
	}
	before, beforeSecond := count(first), count(second)
	var g generated
	callJSON(t, &g, "generate", "-n", "4")
	require.Equal(t, before, count(first))
	require.Greater(t, count(second), beforeSecond)
	restore()
	require.Equal(t, first, heads())
}

func TestEval(t *testing.T) {
	var e evaluated
	callJSON(t, &e, "eval", "--tokens", "5,6,7", "--top", "4")
	require.Len(t, e.Steps, 3)
	require.Len(t, e.Steps[0].Top, 4)
	require.Nil(t, e.Steps[2].Next)
	require.InDelta(t, *e.Steps[0].Next+*e.Steps[1].Next, e.SumLogprob, 1e-6)
	require.GreaterOrEqual(t, e.Steps[0].Top[0].Logprob, e.Steps[0].Top[1].Logprob)
}

// TestHeldOutText compares with the figure that the training script computed from the same file.
func TestHeldOutText(t *testing.T) {
	b, err := os.ReadFile("model/heldout.json")
	require.NoError(t, err)
	var want struct {
		Tokens, Bytes int
		BitsPerByte   float64 `json:"bits_per_byte"`
	}
	require.NoError(t, json.Unmarshal(b, &want))
	var got measured
	callJSON(t, &got, "eval", "--file", "model/heldout.txt", "--window", "256")
	require.Equal(t, want.Bytes, got.Bytes)
	require.Equal(t, want.Tokens, got.Tokens)
	require.InEpsilon(t, want.BitsPerByte, got.BitsPerByte, 0.005)
}

func TestListings(t *testing.T) {
	for _, args := range [][]string{{"ops"}, {"devices"}, {"explain"}, {"explain", "rms_norm"}, {"env"}, {"doctor"}} {
		code, out, errs := call(t, args...)
		require.Zero(t, code, "%v: %s", args, errs)
		require.NotEmpty(t, out)
		var v any
		callJSON(t, &v, args...)
	}
	_, out, _ := call(t, "explain", "matmul_bt_quant")
	require.Contains(t, out, "reference")
	_, out, _ = call(t, "env")
	require.Contains(t, out, "OPMUX_DISABLE")

	_, out, _ = call(t, "devices", "--platform")
	p, err := device.LoadPlatform(strings.NewReader(out))
	require.NoError(t, err, out)
	require.Equal(t, "cpu", p.Vendor)
	var list []struct{ Platform *device.Platform }
	callJSON(t, &list, "devices")
	require.Equal(t, p.Fingerprint(), list[0].Platform.Fingerprint())
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
		return p
	}
	long := strings.Repeat("the ", 2000)
	for _, c := range []struct {
		code int
		next string // expected in the hint
		args []string
	}{
		{0, "", []string{"--help"}},
		{exitUsage, "--help", []string{"sing"}},
		{exitUsage, "--help", []string{"generate", "--top-k", "many"}},
		{exitUsage, "opmux eval --help", []string{"eval"}},
		{exitUsage, "opmux explain --help", []string{"explain", "--what"}},
		{exitUsage, "--platform: the value is empty", []string{"explain", "--platform", ""}},
		{exitUsage, "--override: the value is empty", []string{"explain", "rms_norm", "--override="}},
		{exitUsage, "<op>", []string{"explain", ""}},
		{exitUsage, "--op: the value is empty", []string{"verify", "--op", ""}},
		{exitUsage, "--op: the value is empty", []string{"bench", "--op", ""}},
		{exitUsage, "--trace: the value is empty", []string{"generate", "--trace", ""}},
		{exitUsage, "--stop: a value is empty", []string{"generate", "--stop", ""}},
		{exitUsage, "--model: the value is empty", []string{"generate", "-m", ""}},
		{exitInput, "opmux explain", []string{"generate", "-n", "1", "--require", "nosuch"}},
		{exitNoKernel, "executed nothing", []string{"generate", "-n", "1", "--require", "reference_relu"}},
		{exitInput, "regular", []string{"generate", "-m", dir}},
		{exitUsage, "--help", []string{"explain", "add", "--device", "quantum:0"}},
		{exitInput, "path", []string{"generate", "-m", filepath.Join(dir, "absent.gguf")}},
		{exitInput, "GGUF", []string{"generate", "-m", write("text.gguf", "this is no model")}},
		{exitInput, "again", []string{"generate", "-m", write("short.gguf", string(defaultModel[:1000]))}},
		{exitInput, "ids", []string{"eval", "--tokens", "99999999"}},
		{exitInput, "", []string{"generate", "--temperature=-1"}},
		{exitInput, "ops", []string{"explain", "no_such_op"}},
		{exitInput, "ops", []string{"ops", "no_such_op"}},
		{exitMemory, "--context", []string{"generate", "-p", long}},
		{exitMemory, "--memory", []string{"generate", "--memory", "1"}},
	} {
		code, _, errs := call(t, c.args...)
		require.Equal(t, c.code, code, "%.60v: %s", c.args, errs)
		require.Contains(t, errs, c.next)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	require.Equal(t, exitInterrupted, run(ctx, []string{"generate"}, &out, &errs))
}

// The help names every exit code.
func TestHelpNamesExitCodes(t *testing.T) {
	_, out, _ := call(t, "--help")
	words := strings.Join(strings.Fields(out), " ")
	for _, code := range []int{0, exitFailure, exitUsage, exitInput, exitMemory, exitNoKernel, exitInterrupted} {
		require.Contains(t, words, fmt.Sprintf("%d ", code))
	}
	require.Contains(t, words, exitHelp)
}

// What names may contain reaches no terminal as it is.
func TestPlainWriter(t *testing.T) {
	var b bytes.Buffer
	n, err := fmt.Fprint(plain{&b}, "a\x1b[31m\u202eb\r\u009b\tc\n\u00e9 \u200f")
	require.NoError(t, err)
	require.Equal(t, len("a\x1b[31m\u202eb\r\u009b\tc\n\u00e9 \u200f"), n)
	require.Equal(t, `a\u001b[31m\u202eb\u000d\u009b`+"\tc\n\u00e9 \u200f", b.String())
	b.Reset()
	require.NoError(t, (&app{stdout: plain{&b}}).printJSON("x\u202ey"))
	var back string
	require.NoError(t, json.Unmarshal(b.Bytes(), &back))
	require.Equal(t, "x\u202ey", back)
	require.NotContains(t, b.String(), "\u202e")
}

// Tables have no blanks at the end, a cell is one line, and the last column is wrapped.
func TestTable(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, table(&b, [][]string{{"head", "x", ""}, {"two\nlines", "y", strings.Repeat("word ", 40)}}))
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, "head        x", lines[0])
	require.True(t, strings.HasPrefix(lines[1], "two; lines  y  word word"), lines[1])
	require.True(t, strings.HasPrefix(lines[2], strings.Repeat(" ", 15)+"word"), lines[2])
	for _, l := range lines {
		require.LessOrEqual(t, len(l), tableWidth)
		require.Equal(t, strings.TrimRight(l, " "), l)
	}
	require.Equal(t, 40, strings.Count(b.String(), "word"))
}

// Listings in JSON hold arrays where there is nothing, and threads beyond what there is are told.
func TestSmallPrint(t *testing.T) {
	for _, args := range [][]string{{"explain"}, {"devices"}, {"ops"}, {"explain", "rms_norm"}} {
		_, out, _ := call(t, append(args, "--json")...)
		require.NotContains(t, out, "null", "%v", args)
	}
	code, _, errs := call(t, "generate", "-n", "1", "-q", "-t", "100000")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "100000 threads asked for, ")
}

// What the registry says while text is streamed does not stand inside it.
func TestTextAfterExplanations(t *testing.T) {
	t.Setenv("OPMUX_EXPLAIN", "no_such_op")
	code, out, errs := call(t, "generate", "-p", "In the beginning", "-n", "3", "-q")
	require.Zero(t, code, errs)
	require.True(t, strings.HasPrefix(out, "In the beginning"), out)
	require.Equal(t, 1, strings.Count(out, "\n"), out)
}
