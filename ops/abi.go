package ops

//go:generate go run ./_gen

// ABIVersion is the number of the record layouts as C kernels see them (opmux_call.version, OPMUX_ABI_VERSION). It grows
// when a field of a published record, of tensor.Tensor or of registry.Header moves.
const ABIVersion = 1
