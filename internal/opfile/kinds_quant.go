package opfile

// quantKinds is for quantization, selection and movement of rows, speculative decoding.
var quantKinds = kindTable{}
