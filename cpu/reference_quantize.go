package cpu

// quantReference registers the oracle's kernels of quantization, selection and movement of rows, speculative decoding.
func (g *registrar) quantReference() {}
