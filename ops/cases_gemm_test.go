package ops

// gemmCases has a valid record and what is rejected for products.
func gemmCases() []opCase {
	return []opCase{}
}
