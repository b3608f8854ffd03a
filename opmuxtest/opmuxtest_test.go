package opmuxtest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// faults are the planted ones of testdata/author, with the check that has to find each.
//
// One kind has none: a kernel cannot accept what the op's validator refuses, since such calls do not reach kernels. That
// they do not is the check "rejected by the validator", which every right kernel passes.
var faults = map[string]string{
	"wrong element in the tail":          "numbers",
	"NaN counts as nothing":              "numbers",
	"reads rows as if packed":            "numbers",
	"empty sums are not written":         "numbers",
	"leaves the last element":            "numbers",
	"ignores an attribute":               "numbers",
	"clears its output first":            "numbers",
	"is not bit exact":                   "bit exact",
	"one bit of an own op":               "numbers",
	"writes behind the end":              "guards",
	"writes an input":                    "inputs",
	"declines after writing":             "decline",
	"declines what it declared":          "unexplained decline",
	"declines everything":                "never ran",
	"other bits each time":               "same bits again",
	"other bits on another queue":        "same bits for any number of threads",
	"other bits in a batch":              "same bits alone and in a batch",
	"panics":                             "error",
	"shares a sum between goroutines":    "same bits from eight goroutines",
	"keeps the weight by its address":    "new data in the same memory",
	"allocates":                          "allocates nothing",
	"bad values are no error":            "invalid data",
	"writes before it finds a bad value": "invalid data",
}

// result is what a test of the author's module came to.
type result struct {
	action string
	output strings.Builder
}

// author runs the tests of testdata/author in a module outside of this tree, with nothing to be downloaded.
func author(t *testing.T) map[string]*result {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	dir := t.TempDir()
	entries, err := os.ReadDir("testdata/author")
	require.NoError(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join("testdata/author", e.Name()))
		require.NoError(t, err)
		b = bytes.ReplaceAll(b, []byte("=> REPLACE"), []byte("=> "+filepath.ToSlash(root)))
		require.NoError(t, os.WriteFile(filepath.Join(dir, strings.TrimSuffix(e.Name(), ".txt")), b, 0o600))
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o600))

	cmd := exec.CommandContext(t.Context(), "go", "test", "-json", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	tests := map[string]*result{}
	for d := json.NewDecoder(bufio.NewReader(bytes.NewReader(out))); ; {
		var e struct{ Action, Test, Output string }
		err := d.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "%s%s", out, &stderr)
		if tests[e.Test] == nil {
			tests[e.Test] = &result{}
		}
		if e.Action == "output" {
			tests[e.Test].output.WriteString(e.Output)
		} else {
			tests[e.Test].action = e.Action
		}
	}
	require.NotNil(t, tests["TestRight"], "%s%s", out, &stderr)
	return tests
}

// TestPlantedFaults: in the repository of a kernel's author right kernels pass, and each fault is found, by the check that
// is for it, with a text that says where it is and how to see it again.
func TestPlantedFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs another module")
	}
	found, right := 0, 0
	for name, r := range author(t) {
		switch kind, fault, _ := strings.Cut(name, "/"); {
		case kind == "TestRight" && fault != "": // an op here
			right++
			require.Equal(t, "pass", r.action, "%s: %s", name, &r.output)
		case fault != "":
			found++
			fault = strings.ReplaceAll(fault, "_", " ")
			check, ok := faults[fault]
			require.True(t, ok, "%s is not in the list", fault)
			require.Equal(t, "fail", r.action, "%s was not found: %s", fault, &r.output)
			text := r.output.String()
			require.Contains(t, text, ": "+check+": ", fault)
			require.Contains(t, text, " mine_", fault)
			if check != "never ran" {
				require.Contains(t, text, "again: OPMUXTEST_CASE='", fault)
			}
			if check == "numbers" || check == "bit exact" {
				require.Regexp(t, `out\[\d+,\d+\] is `, text, fault)
			}
		}
	}
	require.Equal(t, len(faults), found)
	require.Equal(t, 4, right)
}
