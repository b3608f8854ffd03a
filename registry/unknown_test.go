package registry

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/tensor"
)

// An option that wants what nothing is called by fails every call and selection of its op, and says so; the op is served
// again once a kernel of that name is there. Other ops, and stronger places, are not affected.
func TestUnknownTargetIsAnError(t *testing.T) {
	for variable, o := range map[string]Options{
		"OPMUX_FORCE":    {Force: map[string]string{"probe": "bb"}},
		"OPMUX_OVERRIDE": {Override: map[string]string{"probe": "solution:bb"}},
	} {
		r, op := abc(t, o)
		other := define(t, r, "other")
		add(t, r, other, tensor.CPU, OpProvider{Name: "b"})
		q := r.NewQueue(nil)
		require.Equal(t, "b", launched(t, q, other))
		err := q.Launch(op, unsafe.Pointer(&probeArgs{}))
		_, selected := r.Select(Request{Operator: "probe"})
		for _, err := range []error{err, selected} {
			require.ErrorIs(t, err, ErrOverride)
			require.ErrorContains(t, err, variable)
			require.ErrorContains(t, err, `bb": unknown name; nearest: b`)
		}
		_, err = r.GetOp(op, cpu0)
		require.ErrorIs(t, err, ErrOverride)
		e := r.Explain(op, cpu0)
		require.Empty(t, e.Chain)
		require.Regexp(t, variable+` wants "(solution:)?bb": unknown name; nearest: b, a`, e.Override)
		require.Contains(t, e.Error, "unknown name")
		require.Contains(t, r.Decide(Request{Operator: "probe"}).Error, `bb": unknown name`)
		scoped := q.With(WithKernel(context.Background(), op, "a"))
		if variable == "OPMUX_OVERRIDE" {
			require.Equal(t, "a", launched(t, scoped, op), "a context is stronger")
		} else {
			require.ErrorIs(t, scoped.Launch(op, unsafe.Pointer(&probeArgs{})), ErrOverride)
		}

		g, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "bb", Fn: ran("bb")})
		require.NoError(t, err)
		require.Equal(t, "bb", launched(t, q, op))
		require.NoError(t, g.Close())
		require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&probeArgs{})), ErrOverride)
	}
	r, op := abc(t, Options{Force: map[string]string{"probe": "!nosuch"}})
	require.Equal(t, "a", launched(t, r.NewQueue(nil), op), "what is not there can be done without")
}

// A message about a name with parts says which part is wrong.
func TestUnknownParts(t *testing.T) {
	r, _ := abc(t, Options{})
	define(t, r, "other")
	for entry, want := range map[string]string{
		"a@nosuchop": `"a@nosuchop": no op is called "nosuchop"`,
		"a@prob":     `no op is called "prob"; nearest: probe`,
		"a@other":    "a has no kernel for other; it has for probe",
		"a@xpu":      "a has no kernel for xpu; it has for cpu",
		"aa@probe":   `no kernel or provider is called "aa"; nearest: a`,
		"aa":         `"aa": unknown name; nearest: a`,
	} {
		_, err := r.Disable(entry)
		require.ErrorIs(t, err, ErrUnknownName, entry)
		require.ErrorContains(t, err, want)
		if entry != "a@xpu" {
			require.ErrorContains(t, r.Require(cpu0, entry), want)
		}
	}
	require.ErrorContains(t, r.Require(xpu0, "a"), "a has no kernel for xpu; it has for cpu")
	require.ErrorContains(t, r.Require(cpu0, "a@xpu"), "it is not about cpu:0")
	require.ErrorContains(t, r.Require(cpu0, "probe=a"), "written a@probe")
}

// What a quarantine says that can have no effect is told, and the rest of the configuration is in force; so where the file
// is missing.
func TestIdleQuarantine(t *testing.T) {
	dir := t.TempDir()
	entry := func(text string) string { return `{` + text + `, "evidence": "seen", "source": "me"}` }
	for list, want := range map[string]string{
		entry(`"kernel": "b"`):                                                   "b is the name of a solution, not of a kernel",
		entry(`"kernel": "bb"`):                                                  `q.json:2:2: entries[0]: "bb": unknown name; nearest: b`,
		entry(`"solution": "b", "op": "nosuchop"`):                               `no op is called "nosuchop"`,
		entry(`"kernel": "b_probe", "device": {"vendor": "intel"}`):              `no device that b_probe is for is of vendor "intel"; theirs: cpu`,
		entry(`"kernel": "b_probe", "op": "probe", "device": {"vendor": "cpu"}`): "",
		"": "nowhere.json: there is no such file",
	} {
		name := "q.json"
		if list == "" {
			name = "nowhere.json"
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "q.json"), []byte("{\"version\": 1, \"entries\": [\n\t"+list+"]}"), 0o600))
		c := filepath.Join(dir, "c.json")
		require.NoError(t, os.WriteFile(c, []byte("\xef\xbb\xbf"+`{"version": 1, "rules": [{"use": "a"}], "quarantine": "`+name+`"}`), 0o600))
		r, op := traited(t, Options{Config: c})
		require.Equal(t, "a", launched(t, r.NewQueue(nil), op))
		st := r.ConfigStatus()
		require.Equal(t, "active", st.State, st.Error)
		if want == "" {
			require.Empty(t, st.Notes)
			require.Empty(t, r.Snapshot().Warnings)
			continue
		}
		require.Len(t, st.Notes, 1, list)
		require.Contains(t, st.Notes[0], "quarantine file: "+dir)
		require.Contains(t, st.Notes[0], want)
		require.Equal(t, []Warning{{"config", st.Notes[0]}}, r.Snapshot().Warnings)
		require.NoError(t, r.SetConfig(nil))
		require.Empty(t, r.Snapshot().Warnings, "they go with the configuration")
	}
}

// The mark that some editors put before UTF-8 is skipped in files of descriptions.
func TestByteOrderMark(t *testing.T) {
	f, err := ParseSpecs(strings.NewReader("\xef\xbb\xbf"+`{"version": 1, "kernels": []}`), "file:x.json")
	require.NoError(t, err)
	require.Empty(t, f.Kernels)
}
