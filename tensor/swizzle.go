package tensor

// SwizzleOffset returns the place of byte (r, c) of a scale matrix in the swizzled layout, which keeps tiles of 128 rows by
// 4 columns together. cols is the number of columns, padded to a multiple of 4 (the rows are padded to a multiple of 128). It is
// the scale-factor atom of CUTLASS.
func SwizzleOffset(r, c, cols int) int {
	return (((r/128*(cols/4)+c/4)*32+r%32)*4+r%128/32)*4 + c%4
}
