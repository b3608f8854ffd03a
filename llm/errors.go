package llm

import "errors"

// Conditions that this package's errors wrap; test them with errors.Is.
var (
	ErrUnsupported = errors.New("model not supported")    // a valid file of a kind that this package cannot run
	ErrModel       = errors.New("malformed model")        // metadata or tensors that contradict each other
	ErrMemory      = errors.New("not enough memory")      // the plan does not fit
	ErrContextFull = errors.New("context length reached") // no position left for another token
	ErrToken       = errors.New("token id outside the vocabulary")
	ErrValue       = errors.New("invalid value in logits") // NaN logits
	ErrOption      = errors.New("option out of range")
	ErrClosed      = errors.New("closed")
	ErrBusy        = errors.New("still in use")
)
