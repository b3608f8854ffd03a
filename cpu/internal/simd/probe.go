package simd

import (
	"encoding/binary"
	"unsafe"
)

// PeakInt8 runs 24·n of the tier's instructions for multiplying bytes and
// does nothing else; it returns the number of operations (a multiply-add is
// two), or 0 if the tier has none. Benchmarks set a kernel against it.
func (s *Set) PeakInt8(n int) (ops int) { return s.peak.run(s.peak.int8, s.peak.int8Ops, n) }

// PeakF32 is PeakInt8 for fused multiply-adds of float32.
func (s *Set) PeakF32(n int) (ops int) { return s.peak.run(s.peak.f32, s.peak.f32Ops, n) }

// PeakTiles is PeakInt8 for products of whole tiles.
func (s *Set) PeakTiles(n int) (ops int) { return s.peak.run(s.peak.tiles, s.peak.tilesOps, n) }

// ReadBytes reads p as two streams, prefetching ahead, and returns the exclusive
// or of its 64-bit little-endian words; up to 511 bytes at the end are left out.
// Benchmarks set kernels that are bound by memory against it.
func (s *Set) ReadBytes(p []byte) uint64 {
	var x uint64
	const call = 1 << 20 // bytes, some tens of microseconds
	for p = p[:len(p)&^511]; len(p) > 0; {
		part := p[:min(call, len(p))]
		x ^= s.readBytes(&part[0], len(part))
		p = p[len(part):]
	}
	return x
}

// peaks are the loops behind PeakInt8, PeakF32 and PeakTiles; the number of
// operations is that of one instruction.
type peaks struct {
	int8, f32       func(n int)
	int8Ops, f32Ops int
	tiles           func(n int)
	tilesOps        int
}

func (peaks) run(loop func(n int), ops, n int) int {
	if loop == nil || n <= 0 {
		return 0
	}
	loop(n)
	return 24 * n * ops
}

// readBytesRef is the reference of the readBytes kernels.
func readBytesRef(p *byte, n int) (x uint64) {
	for b := unsafe.Slice(p, n); len(b) > 0; b = b[8:] {
		x ^= binary.LittleEndian.Uint64(b)
	}
	return x
}
