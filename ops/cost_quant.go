package ops

// quantCosts is for quantization, selection and movement of rows, speculative decoding.
var quantCosts = costTable{
	OpTopK: cost(func(t *tally, a *TopKArgs) { t.each(&a.X, 1) }),
	OpGather: movement(func(t *tally, a *GatherArgs) {
		t.read("data", min(bytesOf(&a.Out), bytesOf(&a.Data)))
	}),
	OpScatter: cost(func(t *tally, a *ScatterArgs) {
		n := min(bytesOf(&a.Updates), bytesOf(&a.Data))
		t.written("data", n)
		if t.Movement = a.Reduction == ScatterSet; t.Movement {
			n = 0
		} else {
			t.each(&a.Updates, 1)
		}
		t.read("data", n)
	}),
	OpCumsum: cost(func(t *tally, a *CumsumArgs) { t.each(&a.X, 1) }),
	// divide, round, add, two comparisons
	OpQuantize:   cost(func(t *tally, a *QuantizeArgs) { t.each(&a.X, 4+count(a.ZeroPoint.Present())) }),
	OpDequantize: cost(func(t *tally, a *DequantizeArgs) { t.each(&a.Out, 1+count(a.ZeroPoint.Present())) }),
	// and two more for the ends
	OpDynamicQuantize:       cost(func(t *tally, a *DynamicQuantizeArgs) { t.each(&a.X, 6+count(a.ZeroPoint.Present())) }),
	OpDequantNVFP4:          cost(func(t *tally, a *DequantNVFP4Args) { t.each(&a.Out, 1) }),
	OpGreedyRejectionSample: cost(func(t *tally, a *GreedyRejectionSampleArgs) { t.each(&a.Logits, 1) }),
}

// quantSymbols is for the same ops.
var quantSymbols = symbolTable{
	"top_k T":                   {"rows", true, nil},
	"top_k N":                   {"elements", false, []string{"last_dim"}},
	"top_k K":                   {"entries", false, []string{"top_k"}},
	"greedy_rejection_sample R": {"requests", true, []string{"batch_size"}},
	"greedy_rejection_sample W": {"tokens", false, nil},
	"greedy_rejection_sample L": {"rows", true, nil},
}
