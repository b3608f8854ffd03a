package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/debug"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// alone leaves the portable kernels and the reference in the default registry's chains: no kernel of them leaves a call
// to another one.
func alone(t *testing.T) {
	restore, err := registry.Default().Disable("amx", "avx512vnni", "avxvnni", "avx2")
	if err != nil { // a build without assembly
		require.ErrorIs(t, err, registry.ErrUnknownName)
	}
	t.Cleanup(restore)
}

func TestGenerateRequire(t *testing.T) {
	alone(t)
	code, out, errs := call(t, "generate", "-n", "3", "-p", "Hi", "--require", "portable", "--require", "matmul_bt_quant=portable")
	require.Zero(t, code, errs)
	require.Contains(t, out, "portable_matmul_bt_quant")

	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{exitNoKernel, "relu", []string{"--require", "relu=portable"}},                       // usable, never called
		{exitNoKernel, "has executed nothing", []string{"--require", "reference", "--json"}}, // the JSON comes all the same
		{exitInput, "no-such-kernel", []string{"--require", "no-such-kernel"}},
		{exitInput, "no-such-op", []string{"--require", "no-such-op=portable"}},
		{exitUsage, "malformed", []string{"--require", "a b"}},
	} {
		code, out, errs := call(t, append([]string{"generate", "-n", "2", "-p", "Hi"}, c.args...)...)
		require.Equal(t, c.code, code, "%v: %s", c.args, errs)
		require.Contains(t, errs, c.says)
		if c.args[len(c.args)-1] == "--json" {
			require.True(t, json.Valid([]byte(out)))
		}
	}
	restore, err := registry.Default().Disable("portable_rms_norm")
	require.NoError(t, err)
	defer restore()
	code, out, errs = call(t, "generate", "-n", "2", "--require", "portable_rms_norm")
	require.Equal(t, exitNoKernel, code)
	require.Contains(t, errs, "portable_rms_norm is not usable: portable_rms_norm: disabled (by portable_rms_norm)")
	require.Empty(t, out, "refused before anything is generated")
}

func TestGenerateStrict(t *testing.T) {
	alone(t)
	code, _, errs := call(t, "generate", "-n", "2", "-p", "Hi", "--strict")
	require.Zero(t, code, errs)
	require.False(t, registry.Default().Strict(), "only for the run")

	picky(t)
	code, _, errs = call(t, "generate", "-n", "2", "-p", "Hi", "--strict")
	require.Equal(t, exitNoKernel, code, errs)
	require.Contains(t, errs, "rms_norm on cpu:0: picky_rms_norm declined (alignment) and the call would fall back to portable_rms_norm")
	require.Contains(t, errs, "--strict")
	code, _, errs = call(t, "generate", "-n", "2", "-p", "Hi")
	require.Zero(t, code, errs)
}

// output can be read while the command writes it.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// The page is there during the run and, with --hold, after it; the trace is complete by then; an interrupt ends the wait.
func TestGenerateDebug(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs output
	trace := filepath.Join(t.TempDir(), "trace.json")
	require.NoError(t, os.WriteFile(trace, bytes.Repeat([]byte("old "), 1<<20), 0o600))
	done := make(chan int)
	go func() {
		done <- run(ctx, []string{"generate", "-n", "2", "-p", "Hi", "--debug", ":0", "--hold", "1h", "--trace", trace}, &out, &errs)
	}()
	require.Eventually(t, func() bool { return strings.Contains(errs.String(), "stays for") }, time.Minute, time.Millisecond)
	url := regexp.MustCompile(`http://\S+/debug/opmux`).FindString(errs.String())
	res, err := http.Get(url + "?format=json")
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	var s struct {
		Totals  debug.Totals
		Devices []struct{ ID, Health string }
		Token   string
	}
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &s))
	require.NotZero(t, s.Totals.Executed)
	require.Equal(t, "ok", s.Devices[0].Health)
	require.Empty(t, s.Token, "nothing can be changed")
	require.Contains(t, out.String(), "executed", "the run is over")
	events, err := os.ReadFile(trace)
	require.NoError(t, err)
	require.True(t, json.Valid(events), "complete while the page stays, and nothing of the old file is left")
	require.Contains(t, string(events), `"launch"`)
	cancel()
	require.Zero(t, <-done)
	require.Equal(t, 1, strings.Count(errs.String(), "events of the trace"), "told once")
	_, err = http.Get(url)
	require.Error(t, err, "the page is gone")
}

// A client that sends nothing, or reads nothing, does not keep the page's server busy.
func TestPageServerIsBounded(t *testing.T) {
	s := pageServer(http.NotFoundHandler())
	for name, d := range map[string]time.Duration{"read": s.ReadTimeout, "write": s.WriteTimeout, "idle": s.IdleTimeout} {
		require.Positive(t, d, name)
		require.LessOrEqual(t, d, time.Minute, name)
	}
	s.ReadTimeout = 50 * time.Millisecond
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("GET / HTTP/1.1\r\nHost: localho"))
	require.NoError(t, err)
	_, err = io.ReadAll(c)
	require.NoError(t, err, "the server closes it")
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-done, http.ErrServerClosed)
}

// A trace holds every call of every op: as many as the counters say.
func TestW41TraceHoldsEveryCall(t *testing.T) {
	name := filepath.Join(t.TempDir(), "trace.json")
	var before, after generated
	callJSON(t, &before, "generate", "-n", "3", "-p", "Hi", "--ignore-eos")
	callJSON(t, &after, "generate", "-n", "3", "-p", "Hi", "--ignore-eos", "--trace", name)
	want := map[string]int{}
	for _, k := range since(before.Providers, after.Providers) {
		want[k.Kernel] = int(k.Executed + k.Declined + k.Failed)
	}
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	var events []struct {
		Name, Cat string
		Args      struct{ Kernel, Status string }
	}
	require.NoError(t, json.Unmarshal(raw, &events))
	got, spans := map[string]int{}, []string{}
	for _, e := range events {
		switch e.Cat {
		case "launch":
			got[e.Args.Kernel]++
		case "span":
			spans = append(spans, e.Name)
		}
	}
	require.Equal(t, want, got)
	require.Equal(t, []string{"load", "generate"}, spans)
}

// Processes that run the same command line need not write to one file: %p is the process id.
func TestW42TraceNamesTheProcess(t *testing.T) {
	dir := t.TempDir()
	code, _, errs := call(t, "generate", "-n", "1", "-q", "--trace", filepath.Join(dir, "rank-%p.json"))
	require.Zero(t, code, errs)
	name := filepath.Join(dir, fmt.Sprintf("rank-%d.json", os.Getpid()))
	require.FileExists(t, name)
	require.Contains(t, errs, name)
}

func TestWatchErrors(t *testing.T) {
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{exitInput, "localhost:0", []string{"--debug", "no port"}},
		{exitInput, "localhost:0", []string{"--debug", "localhost:99999"}},
		{exitInput, "not this machine's alone", []string{"--debug", "0.0.0.0:0"}},
		{exitInput, "path", []string{"--trace", filepath.Join(t.TempDir(), "absent", "t.json")}},
		{exitUsage, "--hold", []string{"--hold", "1s"}},
		{exitUsage, "--hold", []string{"--debug", "localhost:0", "--hold=-1s"}},
		{exitUsage, "--help", []string{"--debug", "localhost:0", "--hold", "long"}},
	} {
		code, out, errs := call(t, append([]string{"generate", "-n", "2"}, c.args...)...)
		require.Equal(t, c.code, code, "%v: %s", c.args, errs)
		require.Contains(t, errs, c.says)
		require.Empty(t, out)
	}
}

// picky puts a kernel before all others of rms_norm that takes no call.
func picky(t *testing.T) {
	g, err := registry.Default().RegisterOpProvider(ops.RMSNorm.ID(), tensor.CPU, registry.OpProvider{Name: "picky", Priority: 200,
		Fn: func(*registry.Queue, unsafe.Pointer) registry.Status {
			return registry.Decline(registry.ReasonAlignment)
		}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
}
