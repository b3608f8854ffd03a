package cpu

// elementwiseReference registers the oracle's kernels of norms, activations and other work on single elements.
func (g *registrar) elementwiseReference() {}
