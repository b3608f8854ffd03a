package cpu

// linearReference registers the oracle's kernels of gated delta nets and their convolutions.
func (g *registrar) linearReference() {}
