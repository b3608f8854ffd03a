package ops

// ScaleLayout says how the fp8 scales of 16-element groups lie.
type ScaleLayout uint8

// Layouts of a scale matrix [R,C].
const (
	ScaleLinear   ScaleLayout = iota // row-major
	ScaleSwizzled                    // the scale-factor atom of CUTLASS: [roundup(R,128), roundup(C,4)] permuted, see tensor.SwizzleOffset
	numScaleLayouts
)

// ScaleExtents returns the extents of a scale matrix of r rows and c groups a row in layout l.
func ScaleExtents(l ScaleLayout, r, c int64) (rows, cols int64) {
	if l == ScaleSwizzled {
		return (r + 127) / 128 * 128, (c + 3) / 4 * 4
	}
	return r, c
}
