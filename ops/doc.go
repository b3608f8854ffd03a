// Package ops is the catalogue: for every operation its id, its argument record, its descriptor, one validator and one
// entry point. It computes nothing; a validated record goes to the registry, which finds the kernel.
package ops
