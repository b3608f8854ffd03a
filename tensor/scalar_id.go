package tensor

// ScalarID returns the 64-bit id by which C kernels name the scalar type of an element, the packing of vLLM's
// ScalarType: exponent bits (8), mantissa bits (8), signed (1), bias (32), finite values only (1), kind of NaN (from
// bit 50: 0 none, 1 IEEE, 2 extended range). F4E2M1x2 has the id of one of its two codes. Block types and None have no
// scalar type: 0.
func (t DType) ScalarID() int64 {
	const (
		signed  = 1 << 16
		finite  = 1 << 49
		ieee    = 1 << 50
		extends = 2 << 50
	)
	id := func(exponent, mantissa, flags int64) int64 { return exponent | mantissa<<8 | flags }
	switch t {
	case F32:
		return id(8, 23, signed|ieee)
	case F16:
		return id(5, 10, signed|ieee)
	case BF16:
		return id(8, 7, signed|ieee)
	case F64:
		return id(11, 52, signed|ieee)
	case I8:
		return id(0, 7, signed|ieee)
	case U8:
		return id(0, 8, ieee)
	case I16:
		return id(0, 15, signed|ieee)
	case I32:
		return id(0, 31, signed|ieee)
	case I64:
		return id(0, 63, signed|ieee)
	case F8E4M3FN:
		return id(4, 3, signed|finite|extends)
	case F8E5M2:
		return id(5, 2, signed|ieee)
	case F8E8M0:
		return id(8, 0, finite|extends)
	case F4E2M1x2:
		return id(2, 1, signed|finite)
	}
	return 0
}
