package opfile

// mlaKinds is for latent attention, its cache, and the named forms of attention.
var mlaKinds = kindTable{}
