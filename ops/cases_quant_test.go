package ops

// quantCases has a valid record and what is rejected for quantization, selection and movement of rows, speculative decoding.
func quantCases() []opCase {
	return []opCase{}
}
