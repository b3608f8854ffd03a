package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The catalogue's golden vector, and every place once.
func TestSwizzleOffset(t *testing.T) {
	for at, want := range map[[2]int]int{{0, 1}: 1, {0, 3}: 3, {0, 4}: 512, {1, 0}: 16, {31, 0}: 496, {32, 0}: 4, {33, 2}: 22, {95, 7}: 1019, {127, 7}: 1023,
		{128, 0}: 1024, {160, 5}: 1541, {199, 7}: 1659} {
		require.Equal(t, want, SwizzleOffset(at[0], at[1], 8), at)
	}
	for _, cols := range []int{4, 8, 12} {
		seen := make([]bool, 256*cols)
		for r := range 256 {
			for c := range cols {
				o := SwizzleOffset(r, c, cols)
				require.False(t, seen[o])
				seen[o] = true
			}
		}
	}
}
