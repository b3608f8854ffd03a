//go:build unix

package gguf

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps the first size bytes of the file read-only.
func mapFile(path string, size int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: path, Err: err}
	}
	return data, nil
}

func unmapFile(data []byte) error { return unix.Munmap(data) }

// discard drops the pages that hold data[at:at+n]. A page shared with a neighbour is read again when touched.
func discard(data []byte, at, n int64) {
	page := int64(os.Getpagesize())
	first := at &^ (page - 1)
	_ = unix.Madvise(data[first:at+n], unix.MADV_DONTNEED) // advice: nothing depends on it
}
