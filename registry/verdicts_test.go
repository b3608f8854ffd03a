package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// tester registers kernels good and bad with a version, whose self-tests count.
type tester struct{ good, bad int }

func (c *tester) on(t *testing.T, r *Registry, op Op, version string) {
	spec := &Spec{Version: version}
	add(t, r, op, tensor.XPU, OpProvider{Name: "bad", Priority: 9, Spec: spec, SelfTest: func(*Queue) error { c.bad++; return errors.New("want 4, got 5") }})
	add(t, r, op, tensor.XPU, OpProvider{Name: "good", Priority: 3, Spec: spec, SelfTest: func(*Queue) error { c.good++; return nil }})
}

// driven describes an XPU with a driver.
func driven(t *testing.T, r *Registry, dev tensor.Device, driver string) *Queue {
	c := probed(1)
	c.Platform = &device.Platform{Vendor: "test", Kind: tensor.XPU, Name: "card", Driver: driver}
	require.NoError(t, r.SetDeviceProviderCaps(dev, c))
	return r.NewQueue(&fakeQueue{dev: dev})
}

// A verdict is kept by device fingerprint, which has the driver, kernel and version: in memory.
func TestVerdictCache(t *testing.T) {
	r, op := probe(t, Options{})
	var n tester
	n.on(t, r, op, "1")
	require.Equal(t, "good", launched(t, driven(t, r, xpu0, "1.0"), op))
	require.Equal(t, tester{1, 1}, n)
	require.Equal(t, "good", launched(t, driven(t, r, xpu1, "1.0"), op))
	require.Equal(t, tester{1, 1}, n, "an equal device: known")
	require.Len(t, r.Quarantined(), 2)
	require.Equal(t, "good", launched(t, driven(t, r, xpu0, "2.0"), op))
	require.Equal(t, tester{2, 2}, n, "another driver: tested again")
	require.Equal(t, "good", launched(t, driven(t, r, xpu0, "1.0"), op))
	require.Equal(t, tester{2, 2}, n, "the old driver again: known")

	other := New(Options{})
	op2 := define(t, other, "probe")
	n = tester{}
	n.on(t, other, op2, "")
	launched(t, driven(t, other, xpu0, "1.0"), op2)
	launched(t, driven(t, other, xpu1, "1.0"), op2)
	require.Equal(t, tester{2, 2}, n, "a kernel without a version is tested on every device")
}

// The file carries verdicts from process to process; it is written in one step and merged with what others wrote.
func TestVerdictFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "verdicts.json")
	with := func(version string) (*Registry, Op, *tester) {
		r, op := probe(t, Options{})
		n := &tester{}
		n.on(t, r, op, version)
		c, err := LoadConfig(strings.NewReader(`{"version": 1, "verdicts": "verdicts.json"}`), filepath.Join(dir, "c.json"))
		require.NoError(t, err)
		require.NoError(t, r.SetConfig(c))
		require.Equal(t, path, r.ConfigStatus().Verdicts)
		return r, op, n
	}
	r, op, n := with("1")
	launched(t, driven(t, r, xpu0, "1.0"), op)
	require.Equal(t, tester{1, 1}, *n)
	require.FileExists(t, path)

	r, op, n = with("1")
	require.Equal(t, "good", launched(t, driven(t, r, xpu0, "1.0"), op))
	require.Equal(t, tester{}, *n, "another process knows")
	q := r.Quarantined()
	require.Len(t, q, 1)
	require.Contains(t, q[0].Evidence, "self-test failed: want 4, got 5 (")
	require.Contains(t, q[0].Evidence, path)
	require.Equal(t, "self-test", q[0].Source)
	a, opA, nA := with("2")
	b, opB, nB := with("1")
	launched(t, driven(t, a, xpu0, "1.0"), opA)
	launched(t, driven(t, b, xpu0, "3.0"), opB)
	require.Equal(t, tester{1, 1}, *nA, "another version: tested again")
	require.Equal(t, tester{1, 1}, *nB)
	read, err := readVerdicts(path)
	require.NoError(t, err)
	require.Len(t, read, 6, "two kernels; versions 1 and 2 with driver 1.0, version 1 with driver 3.0")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing but the file")

	// Warm writes once, at its end.
	r, op = probe(t, Options{})
	n = &tester{}
	n.on(t, r, op, "9")
	r.verdicts.open(path)
	d := devicetest.Open(devicetest.Options{ID: xpu0})
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, d.Caps()))
	require.ErrorIs(t, r.Warm(context.Background(), d), ErrSelfTest)
	read, err = readVerdicts(path)
	require.NoError(t, err)
	require.Len(t, read, 8)
}

// A hostile or broken file is ignored, told of, and left as it is.
func TestVerdictFileHostile(t *testing.T) {
	line := func(s string) string { return `{"version": 1, "verdicts": [` + s + `]}` }
	for text, want := range map[string]string{
		"not JSON":                  "invalid character",
		`{"verdicts": []}`:          "version: missing",
		`{"version": 1, "more": 1}`: "unknown key",
		line(`{"device": "d"}`):     "not a verdict",
		line(`{"device": "d", "op": "o", "kernel": "k", "version": "v", "ok": true, "evidence": "none", "time": "2026-01-02T03:04:05Z"}`): "not a verdict",
		line(`{"device": "d", "op": "o", "kernel": "k", "version": "v", "ok": "yes", "time": "2026-01-02T03:04:05Z"}`):                    "not true or false",
		line(`{"device": "d", "op": "o", "kernel": "k", "version": "v", "ok": true, "time": "yesterday"}`):                                "cannot parse",
		strings.Repeat("[", 1000):                                   "nested more than 16 deep",
		line(strings.Repeat("{},", 5000) + "{}"):                    "at most 1000 are read",
		`{"version": 1, "x": "` + strings.Repeat("y", 1<<20) + `"}`: "more than 1048576 bytes",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "v.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "c.json"), []byte(`{"version": 1, "verdicts": "v.json"}`), 0o600))
		r, op := probe(t, Options{Config: filepath.Join(dir, "c.json")})
		var n tester
		n.on(t, r, op, "1")
		require.Equal(t, "good", launched(t, driven(t, r, xpu0, "1.0"), op), "nothing stops")
		require.Equal(t, tester{1, 1}, n)
		require.Len(t, r.ConfigStatus().Notes, 1)
		require.Contains(t, r.ConfigStatus().Notes[0], want)
		require.Contains(t, r.ConfigStatus().Notes[0], "the file of verdicts is ignored")
		require.Contains(t, fmt.Sprint(r.Snapshot().Warnings), want)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
	r, op := probe(t, Options{})
	var n tester
	n.on(t, r, op, "1")
	c, err := LoadConfig(strings.NewReader(`{"version": 1, "verdicts": "no/such/folder/v.json"}`), filepath.Join(t.TempDir(), "c.json"))
	require.NoError(t, err)
	require.NoError(t, r.SetConfig(c))
	require.Empty(t, r.ConfigStatus().Notes, "a file that is not there yet is none")
	require.Equal(t, "good", launched(t, driven(t, r, xpu0, "1.0"), op))
	require.Contains(t, r.ConfigStatus().Notes[0], "is not written any more")
}

// This module's own kernels have the version that the module was built from, unless the build had changes of its own.
func TestModuleVersion(t *testing.T) {
	for _, c := range []struct {
		main, dep *debug.Module
		want      string
	}{
		{&debug.Module{Path: modulePath, Version: "v1.2.3"}, nil, "v1.2.3 go1.26"},
		{&debug.Module{Path: modulePath, Version: "v0.0.0-20261201-abc+dirty"}, nil, ""},
		{&debug.Module{Path: modulePath, Version: "(devel)"}, nil, ""},
		{&debug.Module{Path: "server", Version: "v9"}, &debug.Module{Path: modulePath, Version: "v1.0.0"}, "v1.0.0 go1.26"},
		{&debug.Module{Path: "server", Version: "v9"}, &debug.Module{Path: modulePath, Version: "v1.0.0", Replace: &debug.Module{Path: "../opmux"}}, ""},
		{&debug.Module{Path: "server", Version: "v9"}, &debug.Module{Path: "other", Version: "v1"}, ""},
	} {
		info := &debug.BuildInfo{GoVersion: "go1.26", Main: *c.main}
		if c.dep != nil {
			info.Deps = append(info.Deps, c.dep)
		}
		require.Equal(t, c.want, versionIn(info))
	}
	old := moduleVersion
	moduleVersion = func() string { return "v1" }
	defer func() { moduleVersion = old }()
	r, op := probe(t, Options{})
	var n tester
	n.on(t, r, op, "")
	launched(t, driven(t, r, xpu0, "1.0"), op)
	launched(t, driven(t, r, xpu1, "1.0"), op)
	require.Equal(t, tester{1, 1}, n)
}

// A lost device is no evidence against a kernel.
func TestSelfTestOnLostDevice(t *testing.T) {
	r, op := probe(t, Options{})
	d := devicetest.Open(devicetest.Options{ID: xpu0})
	tests := 0
	add(t, r, op, tensor.XPU, OpProvider{Name: "k", SelfTest: func(q *Queue) error {
		if tests++; tests == 1 {
			return fmt.Errorf("copy: %w", d.Lose(errors.New("fell off the bus")))
		}
		return nil
	}})
	require.NoError(t, r.SetDeviceProviderCaps(xpu0, d.Caps()))
	q := r.NewQueue(&fakeQueue{dev: xpu0})
	require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&probeArgs{})), ErrDeclined)
	require.Empty(t, r.Quarantined())
	require.Equal(t, "k", launched(t, q, op), "tested again")
	require.Equal(t, 2, tests)
}

// healthy is a queue that tells its device's health.
type healthy struct {
	fakeQueue
	err error
}

func (q *healthy) Health() error { return q.err }

// A launch that fails on a device that was lost says so.
func TestLaunchOnLostDevice(t *testing.T) {
	r, op := probe(t, Options{})
	cause := errors.New("launch failed (719)")
	add(t, r, op, tensor.XPU, OpProvider{Name: "k", Fn: func(_ *Queue, a unsafe.Pointer) Status { return (*probeArgs)(a).FailDirty(cause) }})
	add(t, r, op, tensor.XPU, OpProvider{Name: "j", Priority: -1, Fn: func(_ *Queue, a unsafe.Pointer) Status { return Failure(700) }})
	dq := &healthy{fakeQueue: fakeQueue{dev: xpu0}}
	q := r.NewQueue(dq)
	err := q.Launch(op, unsafe.Pointer(&probeArgs{}))
	require.ErrorIs(t, err, cause)
	require.NotErrorIs(t, err, device.ErrLost)
	dq.err = &device.LostError{Device: xpu0, Err: errors.New("reset")}
	err = q.Launch(op, unsafe.Pointer(&probeArgs{}))
	require.ErrorIs(t, err, device.ErrLost)
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, err, ErrFailed)
	err = q.With(WithKernel(t.Context(), op, "j")).Launch(op, unsafe.Pointer(&probeArgs{}))
	require.ErrorIs(t, err, device.ErrLost, "also without a cause of the kernel's own")
}

// What is written can be read again, whatever the texts are.
func TestVerdictFileOfOddTexts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.json")
	var v, back verdicts
	require.Empty(t, v.open(path))
	odd := strings.Repeat("<", maxVerdictText)
	key := func(i int) verdictKey {
		return verdictKey{strings.Repeat("d", 64), "op", fmt.Sprintf("%0128d", i), odd}
	}
	for i := range 1000 {
		v.add(key(i), verdict{evidence: odd, at: time.Unix(int64(i), 0)})
	}
	v.save()
	require.Empty(t, v.told())
	require.Empty(t, back.open(path))
	_, newest := back.find(key(999))
	_, oldest := back.find(key(0))
	require.True(t, newest)
	require.False(t, oldest)
}

type wordless struct{}

func (wordless) Error() string { return "" }

// A self-test that fails without a word leaves a verdict that can be read.
func TestVerdictWithoutEvidence(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.json")
	r, op := mm(t, Options{})
	r.verdicts.open(path)
	_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "p", Fn: ranMM("p"), Spec: &Spec{Version: "1"}, SelfTest: func(*Queue) error { return wordless{} }})
	require.NoError(t, err)
	require.ErrorIs(t, r.NewQueue(nil).Launch(op, unsafe.Pointer(&mmArgs{})), ErrDeclined)
	var back verdicts
	require.Empty(t, back.open(path))
	require.Len(t, back.known, 1)
}
