package tensor

import "errors"

// Conditions that this package's errors wrap; test them with errors.Is.
var (
	ErrParse    = errors.New("malformed text")
	ErrDType    = errors.New("wrong dtype")
	ErrRank     = errors.New("wrong rank")
	ErrShape    = errors.New("wrong shape")
	ErrLayout   = errors.New("wrong layout")
	ErrRange    = errors.New("index out of range")
	ErrOverflow = errors.New("size overflows")
	ErrFormat   = errors.New("wrong format") // of a Format or FormatSignature; the details are a *FormatError
)
