//go:build !unix

package cpu

import "time"

func processorTime() time.Duration { return wall() }
