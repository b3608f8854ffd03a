// Package simd holds the inner kernels of the CPU tiers.
//
// A tier is a [Set]: the same kernels, with the same meaning, for one level of
// vector instructions. The portable tier is plain Go and is the reference of
// the others; the rest is generated Go assembly (see ../../_gen). The package
// knows memory, strides and lengths, and nothing of tensors, operations or
// threads: whoever calls it has validated shapes and splits the work.
//
// With the build tags noasm or purego, and on other architectures than amd64,
// the portable tier is the only one.
package simd

import "slices"

//go:generate go -C ../../_gen run . -dir ../internal/simd

// Set is one tier. Its methods mean the same in every tier; the kernels behind
// them are fields, and a field that is nil says that the tier lacks the kernel.
// Sets are read-only and may be used by any number of goroutines.
type Set struct {
	// Name is "amx", "avx512vnni", "avxvnni", "avx2" or "portable".
	Name string
	// Vec holds the kernels on rows of floats.
	Vec

	missing func() string

	quantize quantize
	tiles    [formats][]tile // most rows first, and two panels before one
	minRows  int             // see MinRows

	// wide, where a tier has it, is MulQ for the first rows rows, which it
	// returns: as many as it is faster for than the tiles.
	wide func(f Format, c []float32, ldc int, xq, w []byte, m, n, k, p0, p1 int) (rows int)

	peak      peaks
	readBytes func(p *byte, n int) uint64
}

// All returns every tier that was compiled in, best first, portable last. That
// a tier is listed does not say that this CPU can run it: see [Set.Missing].
func All() []*Set {
	return append(archSets(), portable)
}

// Missing returns "" when this CPU and its operating system can run the tier,
// and otherwise the name of the first CPU feature that is lacking.
func (s *Set) Missing() string {
	return s.missing()
}

// portable is the tier that every machine runs: the reference loops.
var portable = &Set{
	Name:    "portable",
	missing: func() string { return "" },
	Vec:     portableVec,

	quantize: quantizeRef,
	tiles: [formats][]tile{
		Q4_0: {{1, 1, mulQ4Ref}},
		Q8_0: {{1, 1, mulQ8Ref}},
		F32:  {{1, 1, mulF32Ref}},
		F16:  {{1, 1, mulF16Ref}},
		BF16: {{1, 1, mulBF16Ref}},
	},

	readBytes: readBytesRef,
}

// TileRows returns the numbers of rows that the tier's kernels for a format take at once, ascending.
func (s *Set) TileRows(f Format) []int {
	var rows []int
	for _, t := range s.tiles[f] {
		rows = append(rows, t.rows)
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// MinRows is the number of rows of activations from which on the tier's quantised products are its own; with fewer they
// are those of the tier that it was made from. It is 0 for a tier that has all its products itself.
func (s *Set) MinRows() int { return s.minRows }
