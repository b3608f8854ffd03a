//go:build !amd64 || noasm || purego

package simd

func archSets() []*Set { return nil }
