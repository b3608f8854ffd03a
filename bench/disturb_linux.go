package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// usage returns how often the system took a processor away from a thread of this process that had work to do, and the
// processor time of all its threads.
func usage() (switches int64, processor time.Duration) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0, 0
	}
	return int64(u.Nivcsw), time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
