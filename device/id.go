package device

import "sync/atomic"

var lastID atomic.Uint64

// NextID returns a number that no earlier call in this process has returned, never 0: for queues and buffers of every
// backend.
func NextID() uint64 { return lastID.Add(1) }
