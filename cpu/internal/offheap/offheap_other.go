//go:build !unix && !windows

package offheap

import "unsafe"

// align is the alignment of a block of Go memory: the width of the widest vector load.
const align = 64

// alloc takes Go memory without pointers: it is counted by the collector, never scanned.
func alloc(size int) (unsafe.Pointer, func() error, error) {
	b := make([]byte, size+align)
	p := unsafe.Pointer(unsafe.SliceData(b))
	return unsafe.Add(p, -uintptr(p)%align), func() error { return nil }, nil
}
