package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
	"github.com/opmux/opmux/verify"
)

// TestVerifyCommand: exit codes 0, 2 and 3 and both forms of the report; a failing kernel is TestVerifyFails' concern.
func TestVerifyCommand(t *testing.T) {
	code, out, _ := call(t, "verify", "--op", "rms_nor?", "--strict=false", "--json")
	require.Zero(t, code)
	var r verify.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.True(t, r.OK)
	require.Equal(t, 1, r.Ops)
	require.NotZero(t, r.Total.Executed)
	require.NotEmpty(t, r.Digest)

	code, out, _ = call(t, "verify", "--op", "norm.rms", "--solution", "reference", "--seed", "7", "--dtype", "x=f16")
	require.Zero(t, code)
	require.Contains(t, out, "reference_rms_norm")
	require.Contains(t, out, "passed: 1 ops, 1 kernels")

	shapes := filepath.Join(t.TempDir(), "shapes.json")
	write := func(text string) { require.NoError(t, os.WriteFile(shapes, []byte(text), 0o644)) }
	write(`[{"T": 3, "H": 7}, {"T": 1, "H": 1000}]`)
	code, out, _ = call(t, "verify", "--op", "rms_norm", "--shapes", shapes)
	require.Zero(t, code)
	require.Contains(t, out, "passed")
	write(`{"T": 3, "H": 7}`)
	code, _, _ = call(t, "verify", "--op", "rms_norm", "--shapes", shapes)
	require.Zero(t, code)

	for _, bad := range []string{`[]`, `[1]`, `"x"`, `{`, `null`, `{"T": 1.5}`} {
		write(bad)
		code, _, errs := call(t, "verify", "--shapes", shapes)
		require.Equal(t, exitInput, code, "%s: %s", bad, errs)
	}
	for _, args := range [][]string{{"--op", "["}, {"--level", "endless"}, {"--threads", "-1"}} {
		code, _, errs := call(t, append([]string{"verify"}, args...)...)
		require.Equal(t, exitUsage, code, "%v: %s", args, errs)
	}
	write(`{"no_symbol": 1}`)
	for _, args := range [][]string{{"--op", "nothing_like_it"}, {"--kernel", "nothing*"}, {"--solution", "nobody"}, {"--shapes", shapes}, {"--shapes", "no/such/file"}, {"--shapes", t.TempDir()}, {"--dtype", "x=f99"}} {
		code, _, errs := call(t, append([]string{"verify"}, args...)...)
		require.Equal(t, exitInput, code, "%v: %s", args, errs)
		require.NotContains(t, errs, "map[")
		require.Contains(t, errs, "next: ")
	}
}

// TestVerifyFails: a wrong kernel makes the command fail and the report names it with the worst element.
func TestVerifyFails(t *testing.T) {
	g, err := ops.Register(registry.Default(), ops.Relu, tensor.CPU, ops.Provider[ops.ReluArgs]{
		OpProvider: registry.OpProvider{Name: "planted", Priority: -5},
		Fn: func(_ *registry.Queue, a *ops.ReluArgs) registry.Status {
			if a.X.DType != tensor.F32 || a.Out.DType != tensor.F32 {
				return registry.Decline(registry.ReasonDType)
			}
			n := int(a.X.Numel())
			x, out := unsafe.Slice((*float32)(a.X.Host), n), unsafe.Slice((*float32)(a.Out.Host), n)
			for i, v := range x {
				if out[i] = max(v, 0); v != v {
					out[i] = 0
				}
				if i == 33 {
					out[i]++
				}
			}
			return 0
		},
	})
	require.NoError(t, err)
	defer g.Close()
	code, out, errs := call(t, "verify", "--op", "relu", "--kernel", "planted*", "--shrink")
	require.Equal(t, exitFailure, code)
	require.Contains(t, out, "planted_relu: numbers: case ")
	require.Regexp(t, `out\[\d+,\d+\] is `, out)
	require.Contains(t, out, "still fails with H=")
	require.Contains(t, out, "FAILED: 1 ops, 1 kernels")
	require.Contains(t, errs, "verification failed")
	code, _, _ = call(t, "verify", "--op", "relu", "--kernel", "planted*", "--json")
	require.Equal(t, exitFailure, code)
}

// TestVerifyInterrupted: what was verified is printed, in both forms, and the exit code says that it is not all.
func TestVerifyInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	require.Equal(t, exitInterrupted, run(ctx, []string{"verify", "--op", "relu", "--json"}, &out, &errs))
	var r verify.Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	require.True(t, r.Interrupted)
	require.False(t, r.OK)
	out.Reset()
	require.Equal(t, exitInterrupted, run(ctx, []string{"bench", "--op", "relu"}, &out, &errs))
	require.Contains(t, out.String(), "interrupted: 0 of 1 cases were finished")
	require.NotContains(t, out.String(), "context canceled")
	require.Contains(t, errs.String(), "opmux: interrupted")
}
