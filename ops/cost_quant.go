package ops

// quantCosts is for quantization, selection and movement of rows, speculative decoding.
var quantCosts = costTable{}

// quantSymbols is for the same ops.
var quantSymbols = symbolTable{}
