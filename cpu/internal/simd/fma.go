package simd

import "math"

// fma32 returns x*y + z with one rounding, as the vector instructions do, so
// that the portable tier gives the same bits as the others. (math.FMA on
// float64 would round twice.)
func fma32(x, y, z float32) float32 {
	p := float64(x) * float64(y) // exact: 24 bits by 24 bits
	s := p + float64(z)
	bits := math.Float64bits(s)
	if bits&(1<<28-1) != 0 {
		return float32(s) // not half way between two float32: the second rounding is harmless
	}
	// Rounding to odd keeps what the first rounding dropped (TwoSum gives it).
	t := s - p
	err := (p - (s - t)) + (float64(z) - t)
	if s < 0 {
		err = -err
	}
	if err > 0 {
		bits++
	} else if err < 0 {
		bits--
	}
	return float32(math.Float64frombits(bits))
}
