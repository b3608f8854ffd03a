package device

// Prober is implemented by devices that can show what bounds their kernels.
type Prober interface {
	// NewProbe returns loops that do nothing but read memory or multiply. ErrOutOfMemory, ErrClosed.
	NewProbe() (Probe, error)
}

// Probe runs loops with the threads that launches on its device have, and returns when they are done. It is used by one
// goroutine, while nothing else runs on the device.
type Probe interface {
	// Cache is the size of the device's largest cache in bytes, 0 if it is not known.
	Cache() int64
	// Size is how much memory Read goes round in. It is larger than Cache wherever there is memory for that: after a
	// Read of Size bytes no cache holds anything that was there before.
	Size() int64
	// Read reads about n bytes, from where the last call stopped, and returns how many it has read.
	Read(n int64) int64
	// Units lists the kinds of arithmetic that the device has a loop for: "f32", "int8" (signed or unsigned bytes added
	// up in 32 bits), each the fastest of its kind. "int8-vector" is there beside it where that one multiplies matrices.
	Units() []string
	// Multiply runs about n operations of a unit, a multiply-add being two, and returns how many it has run: 0 for a unit
	// without a loop.
	Multiply(unit string, n float64) float64
	Close() error
}
