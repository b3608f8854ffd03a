package gguf

import (
	"errors"
	"fmt"
)

// What can be wrong with a file; every error of this package about a file's contents is an *Error that wraps one of them.
var (
	ErrMagic       = errors.New("not a GGUF file")
	ErrVersion     = errors.New("GGUF version that this reader does not know")
	ErrTruncated   = errors.New("file ends too early")
	ErrMalformed   = errors.New("malformed file")
	ErrUnsupported = errors.New("not supported")
	ErrLimit       = errors.New("over a limit of this reader")
	ErrNotFound    = errors.New("no such tensor")
)

// Error says where in a file the reader stopped and why. Test the kind with errors.Is.
type Error struct {
	Path   string // as given to Open; empty for Parse and Write
	Offset int64  // byte of the file at which the offending item begins
	What   string // the item and its value
	Err    error  // one of the sentinels
}

// Error implements error.
func (e *Error) Error() string {
	path := ""
	if e.Path != "" {
		path = e.Path + ": "
	}
	return fmt.Sprintf("gguf: %sbyte %d: %s: %v", path, e.Offset, e.What, e.Err)
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Err }
