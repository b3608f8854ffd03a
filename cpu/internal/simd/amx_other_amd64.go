//go:build !linux && !noasm && !purego

package simd

// requestTiles returns why the tiles cannot be used.
func requestTiles() string { return "AMX outside linux" }
