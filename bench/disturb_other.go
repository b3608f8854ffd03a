//go:build !linux

package bench

import "time"

// usage returns nothing: this system is not asked.
func usage() (switches int64, processor time.Duration) { return 0, 0 }
