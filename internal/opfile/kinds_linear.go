package opfile

// linearKinds is for gated delta nets and their convolutions.
var linearKinds = kindTable{}
