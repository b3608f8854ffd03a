//go:build (amd64 || arm64) && !noasm && !purego

package pool

// pause tells the processor that this is a spin loop. It is one instruction, so that a collection that waits for the
// goroutine is never held up by it.
func pause()
