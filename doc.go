// Package opmux is the kernel multiplexer for Go inference servers.
//
// For every operation on every device several kernels can stand side by side: a vendor library, a hand-written tier, a
// portable reference. The registry picks the best one the same way every time, lets a kernel refuse one call and hand it
// on, and can always say which kernel ran and why the others did not.
//
// This package holds no code. Start from package ops (the operations), registry (who serves them), cpu (the backend that
// every build has) and llm (a decoder built on them), or from the command in cmd/opmux.
package opmux

//go:generate go run ./internal/readme
//go:generate go run ./internal/opsdoc
