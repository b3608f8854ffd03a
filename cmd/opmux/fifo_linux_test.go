package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPipesAreRefused: opening a pipe with nobody at its other end would wait for ever.
func TestPipesAreRefused(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for _, args := range [][]string{
		{"bench", "compare", pipe, pipe},
		{"bench", "--op", "relu", "--shape", "H=8", "--count", "1", "--warm", "--out", pipe},
		{"verify", "--op", "relu", "--shapes", pipe},
	} {
		code, _, errs := call(t, args...)
		require.Equal(t, exitInput, code, "%v: %s", args, errs)
		require.Contains(t, errs, "no regular file")
	}
}
