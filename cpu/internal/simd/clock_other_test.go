//go:build !linux

package simd

import (
	"testing"
	"time"
)

// newClock returns a clock; it also counts the time of other processes.
func newClock(*testing.B) func() time.Duration {
	t0 := time.Now()
	return func() time.Duration { return time.Since(t0) }
}
