//go:build !linux

package main

// switches is not known here.
func switches() int64 { return 0 }
