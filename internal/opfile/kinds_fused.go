package opfile

// fusedKinds is for fused chains.
var fusedKinds = kindTable{}
