package opfile

// gemmKinds is for products.
var gemmKinds = kindTable{}
