package main

import "golang.org/x/sys/unix"

// switches counts how often the system took a processor away from a thread of this process that had work to do.
func switches() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Nivcsw
}
