package offheap

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAlloc(t *testing.T) {
	for _, n := range []int64{1, 63, 4096, hugePage - 1, hugePage, 3*hugePage + 5} {
		b, err := Alloc(n)
		require.NoError(t, err)
		require.Equal(t, n, b.Size())
		require.Zero(t, uintptr(b.Ptr())%64)
		mem := b.Bytes()
		require.Len(t, mem, int(n))
		require.Zero(t, mem[0])
		mem[0], mem[n-1] = 1, 2
		require.NoError(t, b.Free())
		require.Nil(t, b.Ptr())
		require.NoError(t, b.Free(), "freeing twice is harmless")
	}
}

func TestAllocRefuses(t *testing.T) {
	for _, n := range []int64{-1, math.MinInt64, math.MaxInt64, math.MaxInt64 - hugePage, 1 << 62} {
		_, err := Alloc(n)
		require.ErrorIs(t, err, ErrNoMemory, "%d bytes", n)
	}
	b, err := Alloc(0)
	require.NoError(t, err)
	require.Empty(t, b.Bytes())
}
