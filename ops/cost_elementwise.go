package ops

// elementwiseCosts is for norms, activations and other work on single elements.
var elementwiseCosts = costTable{}

// elementwiseSymbols is for the same ops.
var elementwiseSymbols = symbolTable{}
