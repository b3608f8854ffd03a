//go:build !unix

package gguf

import (
	"io"
	"os"
)

// mapFile reads the first size bytes of the file.
func mapFile(path string, size int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, &os.PathError{Op: "read", Path: path, Err: err}
	}
	return data, nil
}

func unmapFile([]byte) error { return nil }

func discard([]byte, int64, int64) {}
