//go:build unix && !linux

package offheap

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func alloc(size int) (unsafe.Pointer, func() error, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, err
	}
	return unsafe.Pointer(unsafe.SliceData(b)), func() error { return unix.Munmap(b) }, nil
}
