package registry

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// The shipped list can be read, and says for every entry what was seen and where it is told.
func TestShippedQuarantine(t *testing.T) {
	q, err := loadQuarantine(bytes.NewReader(shippedQuarantine), "quarantine.json")
	require.NoError(t, err)
	require.Equal(t, len(q.entries), len(shipped().entries))
	require.Empty(t, q.lifts, "the shipped list has nothing under it to lift")
}

// withShipped replaces the shipped list for a test.
func withShipped(t *testing.T, text string) {
	q, err := loadQuarantine(strings.NewReader(text), "shipped.json")
	require.NoError(t, err)
	old := shipped
	shipped = func() *quarantine { return q }
	t.Cleanup(func() { shipped = old })
}

// cards has kernels a and b of op probe on a card of a driver.
func cards(t *testing.T, driver string) (*Registry, Op) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CUDA, OpProvider{Name: "a", Priority: 3})
	add(t, r, op, tensor.CUDA, OpProvider{Name: "b", Priority: 2})
	arch, err := device.ParseArch(device.NVIDIA, "8.9")
	require.NoError(t, err)
	caps := probed(8)
	caps.Platform = &device.Platform{Vendor: device.NVIDIA, Kind: tensor.CUDA, Name: "GeForce RTX 4080/PCIe/SSE2", Arch: arch, Driver: driver}
	require.NoError(t, r.SetDeviceProviderCaps(cuda0, caps))
	return r, op
}

func TestQuarantine(t *testing.T) {
	entry := func(device string) string {
		return `{"version": 1, "entries": [{"kernel": "a_probe", ` + device + ` "evidence": "prints ####", "source": "a report"}]}`
	}
	for match, want := range map[string]bool{
		``:                                true,
		`"op": "probe",`:                  true,
		`"op": "other",`:                  false,
		`"device": {"vendor": "nvidia"},`: true,
		`"device": {"vendor": "amd"},`:    false,
		`"device": {"name": "*RTX 40*"},`: true,
		`"device": {"name": "*RTX 50*"},`: false,
		`"device": {"vendor": "nvidia", "arch": ">=8.9 <9.0"},`: true,
		`"device": {"vendor": "nvidia", "arch": ">=9.0"},`:      false,
		`"device": {"driver": "=565.90"},`:                      true,
		`"device": {"driver": ">=565 <566"},`:                   true,
		`"device": {"driver": ">565.90"},`:                      false,
		`"device": {"driver": "<=565.90"},`:                     true,
		`"device": {"driver": "!=565.90"},`:                     false,
	} {
		withShipped(t, entry(match))
		r, op := cards(t, "565.90")
		e := r.Explain(op, cuda0)
		require.Equal(t, want, e.Chain[0].Provider == "b", match)
		if want {
			require.Equal(t, "quarantined", e.Dropped[0].State)
			require.Equal(t, "prints #### (a report)", e.Dropped[0].Detail)
			require.Equal(t, "shipped.json:1", e.Dropped[0].File)
			require.Equal(t, []Quarantined{{Op: "probe", Kernel: "a_probe", Provider: "a", Device: "cuda:0", Evidence: "prints ####", Source: "a report", File: "shipped.json:1"}}, r.Quarantined())
			require.Equal(t, "a", launched(t, r.NewQueue(&fakeQueue{dev: cuda0}).With(WithKernel(t.Context(), op, "force:a")), op), "forced")
			d := r.Decide(Request{Operator: "probe", Platform: &device.Platform{Vendor: device.NVIDIA, Kind: tensor.CUDA, Name: "GeForce RTX 4080/PCIe/SSE2", Arch: device.Arch{Vendor: device.NVIDIA, Major: 8, Minor: 9}, Driver: "565.90"}})
			require.Equal(t, "b_probe", d.Choices[0].Kernel, "also in a plan")
		} else {
			require.Empty(t, r.Quarantined())
		}
	}
	withShipped(t, entry(`"device": {"driver": ">=1"},`))
	r, op := cards(t, "")
	require.Equal(t, "a", r.Explain(op, cuda0).Chain[0].Provider, "an unknown driver meets no condition")
}

// The configuration's file adds entries and lifts shipped ones.
func TestQuarantineFile(t *testing.T) {
	withShipped(t, `{"version": 1, "entries": [{"kernel": "a_probe", "evidence": "e", "source": "s"}]}`)
	r, op := cards(t, "1.0")
	require.Equal(t, []string{"b"}, providers(r.Explain(op, cuda0)))
	path := filepath.Join(t.TempDir(), "mine.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"version": 1,
		"entries": [{"solution": "b", "evidence": "NaN", "source": "seen here"}, {"kernel": "a_probe", "evidence": "x", "source": "y", "device": {"vendor": "amd"}}],
		"lift": [{"kernel": "a_probe", "device": {"driver": "<2"}, "evidence": "right with this driver", "source": "tried"}]}`), 0o600))
	c, err := LoadConfig(strings.NewReader(`{"version": 1, "quarantine": "mine.json"}`), filepath.Join(filepath.Dir(path), "c.json"))
	require.NoError(t, err)
	require.NoError(t, r.SetConfig(c))
	require.Equal(t, []string{"a"}, providers(r.Explain(op, cuda0)))
	require.Equal(t, path, r.ConfigStatus().Quarantine)
	require.Equal(t, []Quarantined{{Op: "probe", Kernel: "b_probe", Provider: "b", Device: "cuda:0", Evidence: "NaN", Source: "seen here", File: path + ":2"}}, r.Quarantined())
	require.NoError(t, r.SetConfig(nil))
	require.Equal(t, []string{"b"}, providers(r.Explain(op, cuda0)))
	require.ErrorContains(t, func() error { _, err := r.GetOp(op, xpu0); return err }(), "no provider is registered")
}

func TestQuarantineErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "version: missing",
		`{"version": 1, "entries": [{"kernel": "a", "source": "s"}]}`:                                                "entries[0].evidence: missing",
		`{"version": 1, "entries": [{"kernel": "a", "evidence": "e"}]}`:                                              "entries[0].source: missing",
		`{"version": 1, "entries": [{"evidence": "e", "source": "s"}]}`:                                              "entries[0].kernel: missing",
		`{"version": 1, "entries": [{"kernel": "a", "solution": "b", "evidence": "e", "source": "s"}]}`:              "an entry names one kernel or one solution",
		`{"version": 1, "entries": [{"kernel": "a b", "evidence": "e", "source": "s"}]}`:                             "byte 1 is not a letter",
		`{"version": 1, "lift": [{"kernel": "a", "evidence": "e", "source": "s", "device": {"name": "["}}]}`:         "lift[0].device.name: syntax error in pattern",
		`{"version": 1, "lift": [{"kernel": "a", "evidence": "e", "source": "s", "device": {"driver": ">=x"}}]}`:     "is not a comparison with a version like 565.90",
		`{"version": 1, "lift": [{"kernel": "a", "evidence": "e", "source": "s", "device": {"arch": ">=9.0"}}]}`:     "needs a vendor",
		`{"version": 1, "entries": [{"kernel": "a", "evidence": "e", "source": "s", "device": {"vendor": "none"}}]}`: `"none" is not one of`,
	} {
		_, err := loadQuarantine(strings.NewReader(text), "q.json")
		require.ErrorIs(t, err, ErrConfig, text)
		require.ErrorContains(t, err, want)
	}
}

// A failed self-test is in the same list, with its evidence, and the chain goes on.
func TestQuarantinedBySelfTest(t *testing.T) {
	r, op := probe(t, Options{})
	add(t, r, op, tensor.CPU, OpProvider{Name: "planted", Priority: 9, SelfTest: func(q *Queue) error {
		var a probeArgs
		if err := q.Launch(op, unsafe.Pointer(&a)); err != nil || a.Ran != "right" {
			return errors.New("element 3 is 5, want 4")
		}
		return nil
	}})
	add(t, r, op, tensor.CPU, OpProvider{Name: "right"})
	require.Empty(t, r.Quarantined())
	require.Equal(t, "right", launched(t, r.NewQueue(nil), op))
	require.Equal(t, []Quarantined{{Op: "probe", Kernel: "planted_probe", Provider: "planted", Device: "cpu:0", Source: "self-test",
		Evidence: "registry: kernel planted_probe: self-test failed: element 3 is 5, want 4"}}, r.Quarantined())
	require.Empty(t, r.Explain(op, cpu0).Dropped[0].File, "no file says so")
}
