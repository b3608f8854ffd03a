package offheap

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func alloc(size int) (unsafe.Pointer, func() error, error) {
	total := size
	if size >= hugePage {
		if size%hugePage > hugePage/2 { // the end is worth a huge page of its own
			size = (size + hugePage - 1) / hugePage * hugePage
		}
		total = size + hugePage // room to align; untouched pages cost nothing
	}
	b, err := unix.Mmap(-1, 0, total, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, err
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if size >= hugePage {
		p = unsafe.Add(p, -uintptr(p)%hugePage)
		// Advice: a kernel without huge pages answers with an error that changes nothing.
		_ = unix.Madvise(unsafe.Slice((*byte)(p), size), unix.MADV_HUGEPAGE)
	}
	return p, func() error { return unix.Munmap(b) }, nil
}
