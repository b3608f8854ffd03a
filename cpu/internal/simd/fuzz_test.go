package simd

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/guard"
)

// FuzzTiles runs every tile of every tier on operands that the seed decides,
// with no byte around them that could be read or written unseen.
func FuzzTiles(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(seed << 32)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		for _, s := range All() {
			if s.Missing() != "" {
				continue
			}
			for format, tiles := range s.tiles {
				for i := range tiles {
					checkTile(t, Format(format), &tiles[i], guard.Edges[seed%2], seed)
				}
			}
		}
	})
}

// FuzzQuantizeRow holds the tiers against the reference for any bit patterns.
func FuzzQuantizeRow(f *testing.F) {
	row := func(v ...float32) (b []byte) {
		for _, v := range v {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	}
	f.Add(row(1, -2, 0.5))
	f.Add(row(math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32))
	f.Add(row(0x1p-118, 0x1p-119))
	f.Add(row(float32(math.Inf(-1)), 1))
	f.Add(row(float32(math.NaN())))
	f.Fuzz(func(t *testing.T, data []byte) {
		nb := min(len(data)/(4*block)+1, 8)
		x := guard.Slice[float32](t, nb*block, guard.End)
		for i := range min(len(x), len(data)/4) {
			x[i] = math.Float32frombits(word(data, i))
		}
		want := make([]byte, nb*xBlock)
		quantizeRef(nb, &x[0], &want[0], 8)
		for _, s := range All() {
			if s.Missing() != "" {
				continue
			}
			got := guard.Slice[byte](t, nb*xBlock, guard.End)
			s.quantize(nb, &x[0], &got[0], 8)
			for b, x := range xblocks(&want[0], nb) {
				y := xblocks(&got[0], nb)[b]
				require.Equal(t, x.q, y.q, s.Name)
				require.Equal(t, x.sum, y.sum, s.Name)
				sameBits(t, []float32{x.d}, []float32{y.d}, s.Name)
			}
		}
	})
}

// FuzzPanels packs and unpacks any bytes.
func FuzzPanels(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint8(0), uint8(1), uint8(1))
	f.Add(make([]byte, 300), uint8(3), uint8(16), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, format, rows, blocks uint8) {
		f, n, k := Format(format)%formats, 1+int(rows)%Lanes, block*(1+int(blocks)%4)
		src := make([]byte, n*f.RowSize(k))
		copy(src, data)
		panel, row := make([]byte, f.PanelSize(k)), make([]byte, f.RowSize(k))
		f.PackPanel(panel, src, n, k)
		for lane := range n {
			f.UnpackRow(row, panel, lane, k)
			require.Equal(t, src[lane*len(row):][:len(row)], row)
		}
	})
}
