// Package bench measures kernels: any op, through its descriptor, on any device, kernel by kernel.
//
// Calls are cold by default: every launch finds operands that no cache holds, because sets of operands that are together
// larger than the last-level cache take turns, or because the cache is flushed between samples. All kernels of a case
// take their samples in turn, and so do loops that do nothing but read memory or multiply: a kernel is set against what
// the same threads could do in the same seconds. A kernel whose own counter did not see the launches has no figures.
package bench

import "errors"

// Errors of the package.
var (
	ErrReport = errors.New("not a report of a benchmark run")
	ErrOption = errors.New("option cannot be used")
)
