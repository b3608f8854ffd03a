package opfile

// elementwiseKinds is for norms, activations and other work on single elements.
var elementwiseKinds = kindTable{}
