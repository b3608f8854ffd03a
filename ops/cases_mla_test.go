package ops

// mlaCases has a valid record and what is rejected for latent attention, its cache, and the named forms of attention.
func mlaCases() []opCase {
	return []opCase{}
}
