package ops

// moeCosts is for mixtures of experts.
var moeCosts = costTable{}

// moeSymbols is for the same ops.
var moeSymbols = symbolTable{}
