package guard

import (
	"os"
	"syscall"
	"testing"
)

// pages returns whole readable pages, at least one and at least size bytes, with an inaccessible page on either side.
func pages(tb testing.TB, size int) []byte {
	page := os.Getpagesize()
	inner := max(1, (size+page-1)/page) * page
	mem, err := syscall.Mmap(-1, 0, inner+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		tb.Fatalf("guard: mmap of %d bytes: %v", inner+2*page, err)
	}
	tb.Cleanup(func() { syscall.Munmap(mem) })
	for _, edge := range [][]byte{mem[:page], mem[page+inner:]} {
		if err := syscall.Mprotect(edge, syscall.PROT_NONE); err != nil {
			tb.Fatalf("guard: mprotect: %v", err)
		}
	}
	return mem[page : page+inner : page+inner]
}
