package ops

// fusedCosts is for fused chains.
var fusedCosts = costTable{}

// fusedSymbols is for the same ops.
var fusedSymbols = symbolTable{}
