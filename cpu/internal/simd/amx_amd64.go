//go:build !noasm && !purego

package simd

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// amx is avx512vnni with the tiles of AMX for quantised products of many rows.
var amx = func() *Set {
	s := *avx512vnni
	s.Name = "amx"
	s.missing = sync.OnceValue(func() string {
		if m := avx512vnni.missing(); m != "" {
			return m
		}
		x := &cpu.X86
		if m := firstMissing([]feature{{"AMX-TILE", x.HasAMXTile}, {"AMX-INT8", x.HasAMXInt8}}); m != "" {
			return m
		}
		return requestTiles()
	})
	s.wide, s.minRows = mulTiles, tileMin
	s.peak.tiles, s.peak.tilesOps = peakTilesAMX, 2*tileRows*tileRows*64
	return &s
}()

// Weights and activations are copied into the form in which tiles are loaded, a
// block of 32 elements along k of a panel, or of 16 rows, after the other, in
// blocks of 576 bytes:
//
//   - weights: element 4·g+i of row l is the signed byte g·64 + 4·l + i, for both
//     formats, and then come the 16 scales as float32;
//   - activations: element e of row m is byte 32·m + e, then come the 16 d.
//
// The product of two blocks is one instruction on tiles. What it gives is exact,
// and is scaled and added up as every other kernel does it: the bits are those
// of the other tiers.
const (
	tileRows   = 16
	tileBlock  = 576
	tileBlocks = 28 // blocks of a run, in whole pages: as many as fit the first level cache, twice
	tileRun    = 4 * page
	tileRuns   = 5  // runs that a chunk of rows takes over a panel before the next panel
	tileChunk  = 8  // tiles of rows in a chunk: its runs fit the second level cache
	tileMin    = 32 // rows from which on unpacking a panel pays
	tileLast   = 12 // rows that are left for which one more tile is faster than the vector kernels
	page       = 4096
)

// tileScratch is the memory of one product. It begins at a page: a and b of
// mulAMX have to lie alike in theirs.
type tileScratch struct {
	rows  [tileRuns][tileChunk][tileRun]byte
	panel [tileRun]byte
	sums  [2 * page]byte
	c     [tileChunk * tileRows][Lanes]float32
}

var tileScratches = sync.Pool{New: func() any { return new([unsafe.Sizeof(tileScratch{}) + page]byte) }}

// mulTiles is [Set.MulQ] for the first rows rows, which it returns: 16 at a time
// and perhaps what is left of them.
func mulTiles(f Format, c []float32, ldc int, xq, w []byte, m, n, k, p0, p1 int) (rows int) {
	rows = min(m, (m+tileRows-tileLast)/tileRows*tileRows)
	p1 = min(p1, Panels(n))
	if m < tileMin || p0 >= p1 || k == 0 {
		return 0
	}
	size, bs, stride, nb := f.PanelSize(k), f.blockSize(), QuantizedStride(k), k/block
	need("c", len(c), (rows-1)*ldc+min(p1*Lanes, n))
	need("xq", len(xq), rows*stride)
	need("w", len(w), p1*size)
	touches(c[p0*Lanes:], ldc, min(p1*Lanes, n)-p0*Lanes, unsafe.SliceData(xq), stride, stride, w[p0*size:p1*size], rows)
	unpack := unpackQ8AMX
	if f == Q4_0 {
		unpack = unpackQ4AMX
	}
	memory := tileScratches.Get().(*[unsafe.Sizeof(tileScratch{}) + page]byte)
	defer tileScratches.Put(memory)
	s := (*tileScratch)(unsafe.Pointer(&memory[-uintptr(unsafe.Pointer(memory))%page]))

	for r0 := 0; r0 < rows; r0 += tileChunk * tileRows {
		chunk := min(tileChunk*tileRows, rows-r0)
		tiles := (chunk + tileRows - 1) / tileRows
		for first := 0; first < nb; first += tileRuns * tileBlocks {
			end := min(nb, first+tileRuns*tileBlocks)
			for b := first; b < end; b += tileBlocks {
				for r := 0; r < chunk; r += tileRows {
					packRowsAMX(min(tileBlocks, end-b), &xq[(r0+r)*stride+b*xBlock], stride, min(tileRows, chunk-r), &s.rows[(b-first)/tileBlocks][r/tileRows][0])
				}
			}
			for p := p0; p < p1; p++ {
				out, cols := c[r0*ldc+p*Lanes:], min(Lanes, n-p*Lanes)
				if first == 0 {
					clear(s.c[:chunk])
				} else {
					for i := range chunk {
						copy(s.c[i][:cols], out[i*ldc:])
					}
				}
				for b := first; b < end; b += tileBlocks {
					run := min(tileBlocks, end-b)
					part := w[p*size+b*bs:]
					unpack(run, &part[0], &s.panel[0])
					// What follows in memory is next, or soon will be.
					next := uintptr(unsafe.Pointer(&part[0])) + uintptr(run*bs)
					mulAMX(run, &s.panel[0], &s.rows[(b-first)/tileBlocks][0][0], tileRun, tiles, &s.c[0][0], &s.sums[0], next, (bs+tiles-1)/tiles)
				}
				for i := range chunk {
					copy(out[i*ldc:], s.c[i][:cols])
				}
			}
		}
	}
	return rows
}
