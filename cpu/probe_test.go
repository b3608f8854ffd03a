package cpu

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
)

func TestProbe(t *testing.T) {
	for _, threads := range []int{1, 2} {
		if threads == 1 && testing.Short() {
			continue // filling more than a cache takes an emulator long
		}
		d, err := Open(Options{Threads: threads, Registry: registry.New(registry.Options{})})
		require.NoError(t, err)
		p, err := d.NewProbe()
		require.NoError(t, err)
		require.Positive(t, p.Size())
		require.Zero(t, p.Read(0))
		require.Zero(t, p.Read(-1))
		require.EqualValues(t, probePiece, p.Read(1))
		require.EqualValues(t, 3*probePiece, p.Read(2*probePiece+1))
		require.Equal(t, 4%int(p.Size()/probePiece), p.(*Probe).at, "goes on where it stopped")
		require.EqualValues(t, p.Size(), p.Read(p.Size()))
		require.Equal(t, 4%int(p.Size()/probePiece), p.(*Probe).at, "once round")

		if best().PeakF32(1) > 0 {
			require.Subset(t, p.Units(), []string{"f32", "int8"})
			require.Equal(t, best().PeakTiles(1) > 0, slices.Contains(p.Units(), "int8-vector"))
		}
		for _, u := range p.Units() {
			for _, n := range []float64{1, 1e6, 3e8} {
				got := p.Multiply(u, n)
				require.InDelta(t, n, got, 0.5*n+float64(4*d.pool.Threads())*24*32768, "%s %g", u, n)
			}
			require.Zero(t, p.Multiply(u, 0))
			require.Zero(t, p.Multiply(u, -1))
		}
		require.Zero(t, p.Multiply("f128", 1e6))
		require.NoError(t, p.Close())
		require.Zero(t, p.Size())
		require.Zero(t, p.Read(1))
		require.NoError(t, d.Close())
		_, err = d.NewProbe()
		require.ErrorIs(t, err, device.ErrClosed)
	}
}
