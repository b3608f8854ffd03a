package ops

// mlaCosts is for latent attention, its cache, and the named forms of attention.
var mlaCosts = costTable{}

// mlaSymbols is for the same ops.
var mlaSymbols = symbolTable{}
