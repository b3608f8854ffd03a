package offheap

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

func alloc(size int) (unsafe.Pointer, func() error, error) {
	p, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_COMMIT|windows.MEM_RESERVE, windows.PAGE_READWRITE)
	if err != nil {
		return nil, nil, err
	}
	return *(*unsafe.Pointer)(unsafe.Pointer(&p)), func() error { return windows.VirtualFree(p, 0, windows.MEM_RELEASE) }, nil
}
