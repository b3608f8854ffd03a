//go:build unix

package cpu

import (
	"time"

	"golang.org/x/sys/unix"
)

func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return wall()
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
