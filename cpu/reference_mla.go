package cpu

// mlaReference registers the oracle's kernels of latent attention, its cache, and the named forms of attention.
func (g *registrar) mlaReference() {}
