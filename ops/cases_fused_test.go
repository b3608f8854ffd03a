package ops

// fusedCases has a valid record and what is rejected for fused chains.
func fusedCases() []opCase {
	return []opCase{}
}
