package ops

// elementwiseCases has a valid record and what is rejected for norms, activations and other work on single elements.
func elementwiseCases() []opCase {
	return []opCase{}
}
