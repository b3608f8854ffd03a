//go:build !linux

package guard

import "testing"

func pages(_ testing.TB, size int) []byte { return make([]byte, size) }
