package ops

// gemmCosts is for products.
var gemmCosts = costTable{}

// gemmSymbols is for the same ops.
var gemmSymbols = symbolTable{}
