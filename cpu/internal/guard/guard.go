// Package guard gives tests memory that faults when a kernel reads or writes one byte outside an operand.
//
// A slice lies flush against an inaccessible page: at its end or at its start. A test that runs a kernel with both placements of its operands
// proves that the kernel stays inside them. Where the operating system gives no page protection (anything but linux) the slices are plain ones
// and only values are tested.
package guard

import (
	"testing"
	"unsafe"
)

// Edge says which end of a slice touches an inaccessible page.
type Edge string

// The two placements. An element count that is no multiple of the vector width makes the start of an [End] slice unaligned.
const (
	End   Edge = "end"
	Start Edge = "start"
)

// Edges lists the placements, for tests that loop over them.
var Edges = [...]Edge{End, Start}

// Slice returns n zeroed elements of T (a type without pointers) placed at edge. They live until the test ends.
func Slice[T any](tb testing.TB, n int, edge Edge) []T {
	tb.Helper()
	size := n * int(unsafe.Sizeof(*new(T)))
	b := pages(tb, size)
	if edge == End {
		b = b[len(b)-size:]
	}
	if n == 0 {
		return []T{}
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}
