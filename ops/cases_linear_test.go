package ops

// linearCases has a valid record and what is rejected for gated delta nets and their convolutions.
func linearCases() []opCase {
	return []opCase{}
}
