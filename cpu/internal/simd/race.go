//go:build race

package simd

import (
	"runtime"
	"unsafe"
)

// Assembly is invisible to the race detector: the drivers say what their
// kernels touch.

func reads[T any](p *T, n int)  { touch(runtime.RaceReadRange, p, n) }
func writes[T any](p *T, n int) { touch(runtime.RaceWriteRange, p, n) }

func touch[T any](f func(unsafe.Pointer, int), p *T, n int) {
	if n > 0 {
		f(unsafe.Pointer(p), n*int(unsafe.Sizeof(*p)))
	}
}

// touches says that a product wrote cols columns of m rows of c, read bytes
// bytes of as many rows of x, and read w.
func touches(c []float32, ldc, cols int, x *byte, ldx, bytes int, w []byte, m int) {
	for i := range m {
		writes(&c[i*ldc], cols)
		reads((*byte)(unsafe.Add(unsafe.Pointer(x), i*ldx)), bytes)
	}
	reads(unsafe.SliceData(w), len(w))
}
