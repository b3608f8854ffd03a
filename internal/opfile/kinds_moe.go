package opfile

// moeKinds is for mixtures of experts.
var moeKinds = kindTable{}
