//go:build unix

package gguf_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/tensor"
)

// A pipe without a writer must be refused, not waited for.
func TestOpenPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	_, err := gguf.Open(path)
	require.ErrorIs(t, err, gguf.ErrUnsupported)
}

// Discard takes the pages of a tensor out of the process.
func TestDiscardReleasesPages(t *testing.T) {
	resident := func() int {
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Skipf("no resident set to read: %v", err)
		}
		m := regexp.MustCompile(`RssFile:\s*(\d+) kB`).FindSubmatch(b)
		if m == nil {
			t.Skip("the kernel does not tell the resident pages of files")
		}
		kib, err := strconv.Atoi(string(m[1]))
		require.NoError(t, err)
		return kib << 10
	}
	const size = 64 << 20
	path := filepath.Join(t.TempDir(), "m.gguf")
	var b bytes.Buffer
	require.NoError(t, gguf.Write(&b, nil, []gguf.TensorData{{Name: "w", DType: tensor.I8, Shape: []int64{size}, Data: make([]byte, size)}}))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	w, err := f.Bytes("w")
	require.NoError(t, err)

	before, sum := resident(), 0
	for i := 0; i < len(w); i += 1 << 10 {
		sum += int(w[i])
	}
	require.Zero(t, sum)
	touched := resident()
	require.Greater(t, touched, before+size/2)
	f.Discard("w")
	require.Less(t, resident(), touched-size/2)
}
