package tensor_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// conformance returns the files of a folder of the conformance data that match pattern, and skips the test where the
// data is absent. Where it is present, at least want files must match.
func conformance(t *testing.T, pattern string, want int) []string {
	t.Helper()
	root := os.Getenv("OPMUX_CONFORMANCE")
	if root == "" {
		root = filepath.Join("..", "..", "shared", "conformance")
	}
	if _, err := os.Stat(root); err != nil {
		t.Skipf("no conformance data: set OPMUX_CONFORMANCE to its folder (%v)", err)
	}
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), want, "files %s in %s", pattern, root)
	return files
}

func readJSON(t *testing.T, file string, v any) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, v))
}
