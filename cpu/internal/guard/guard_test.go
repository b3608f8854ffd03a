package guard

import (
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// faults reports whether reading one byte at p faults.
func faults(p unsafe.Pointer) (bad bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { bad = recover() != nil }()
	sink = *(*byte)(p)
	return false
}

var sink byte

func TestEdgesFault(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("guard pages exist on linux only")
	}
	for _, n := range []int{1, 3, 4096 / 4, 4096/4 + 1} {
		end, start := Slice[float32](t, n, End), Slice[float32](t, n, Start)
		require.Len(t, end, n)
		require.Len(t, start, n)
		end[0], end[n-1], start[0], start[n-1] = 1, 2, 3, 4
		require.True(t, faults(unsafe.Add(unsafe.Pointer(&end[n-1]), 4)), "the byte behind %d elements placed at the end", n)
		require.True(t, faults(unsafe.Add(unsafe.Pointer(&start[0]), -1)), "the byte before %d elements placed at the start", n)
	}
	for _, edge := range Edges {
		require.Empty(t, Slice[int32](t, 0, edge))
	}
}
