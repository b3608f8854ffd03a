package ops

// moeCases has a valid record and what is rejected for mixtures of experts.
func moeCases() []opCase {
	return []opCase{}
}
