package simd

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newClock returns a clock that runs while the calling goroutine does, and
// stands still while other processes have the processor.
func newClock(b *testing.B) func() time.Duration {
	runtime.LockOSThread()
	b.Cleanup(runtime.UnlockOSThread)
	return func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			b.Fatal(err)
		}
		return time.Duration(ts.Nano())
	}
}
