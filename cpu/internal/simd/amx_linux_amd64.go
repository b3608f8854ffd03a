//go:build !noasm && !purego

package simd

import (
	"fmt"
	"syscall"
)

// requestTiles asks the kernel to let this process use the tile registers, which
// it saves for no process that has not asked; a thread gets the memory for that
// at its first use of them. It returns "" or why they cannot be used. What the
// CPU has and the kernel does not support is refused as well.
func requestTiles() string {
	const (
		archReqXCompPerm = 0x1023
		tileData         = 18
	)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, archReqXCompPerm, tileData, 0); errno != 0 {
		return fmt.Sprintf("permission to use AMX tiles (%v)", errno)
	}
	return ""
}
