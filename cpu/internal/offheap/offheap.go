// Package offheap gives zeroed memory that the garbage collector neither scans nor counts, in huge pages where the
// operating system has them: weights, caches and workspaces are read as long streams, and with small pages a tenth of
// the memory bandwidth goes into address translation.
package offheap

import (
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// ErrNoMemory is what a failed Alloc wraps.
var ErrNoMemory = errors.New("out of memory")

// Block is one allocation. The zero value is an empty block.
type Block struct {
	ptr  unsafe.Pointer
	size int64
	free func() error
}

// hugePage is the page size that Alloc aligns large blocks to.
const hugePage = 2 << 20

// Alloc returns size zeroed bytes, aligned to at least 64 bytes, to 2 MiB from that size on where the system has huge
// pages. The error wraps ErrNoMemory.
func Alloc(size int64) (Block, error) {
	if size < 0 || size > math.MaxInt64-2*hugePage || int64(int(size+hugePage)) != size+hugePage {
		return Block{}, fmt.Errorf("offheap: %d bytes: %w", size, ErrNoMemory)
	}
	if size == 0 {
		return Block{}, nil
	}
	p, free, err := alloc(int(size))
	if err != nil {
		return Block{}, fmt.Errorf("offheap: %d bytes: %w: %w", size, ErrNoMemory, err)
	}
	return Block{ptr: p, size: size, free: free}, nil
}

// Ptr returns the first byte, nil if the block is empty.
func (b *Block) Ptr() unsafe.Pointer { return b.ptr }

// Size returns the bytes of the block.
func (b *Block) Size() int64 { return b.size }

// Bytes returns the block as a slice.
func (b *Block) Bytes() []byte { return unsafe.Slice((*byte)(b.ptr), b.size) }

// Free returns the memory; nothing may use it any more. The block is empty afterwards.
func (b *Block) Free() error {
	free := b.free
	*b = Block{}
	if free == nil {
		return nil
	}
	return free()
}
