package main

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
)

// TestFresh: docs/ops.md is what the descriptors and comments say today.
func TestFresh(t *testing.T) {
	root := filepath.Join("..", "..")
	want, err := generate(root)
	require.NoError(t, err)
	for _, d := range registry.Descriptors() {
		require.Contains(t, string(want), "\n### "+d.Name+"\n")
	}
	require.NotZero(t, ops.OpMatmul)
	if runtime.GOARCH != "amd64" || noasm {
		t.Skip("the list of kernels is that of linux/amd64 with assembly")
	}
	got, err := os.ReadFile(filepath.Join(root, "docs", "ops.md"))
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run go generate .")
}
