//go:build !amd64 || noasm || purego

package cpu

// assembly says whether the assembly tiers are compiled in.
const assembly = false
