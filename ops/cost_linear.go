package ops

// linearCosts is for gated delta nets and their convolutions.
var linearCosts = costTable{}

// linearSymbols is for the same ops.
var linearSymbols = symbolTable{}
