package tokenizer

import (
	"errors"
	"fmt"
	"strings"
)

// Conditions that this package's errors wrap; test them with errors.Is.
var (
	ErrUnsupported = errors.New("tokenizer not supported")
	ErrVocab       = errors.New("malformed vocabulary")
	ErrID          = errors.New("token id outside the vocabulary")
)

// UnsupportedError names a tokenizer model or a pre-tokenizer that this package does not know, and those it knows. It wraps ErrUnsupported.
type UnsupportedError struct {
	What  string   // "model" or "pre-tokenizer"
	Name  string   // as found
	Known []string // sorted
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("tokenizer: unknown %s %.80q; known: %s", e.What, e.Name, strings.Join(e.Known, ", "))
}

func (e *UnsupportedError) Unwrap() error { return ErrUnsupported }

// VocabError says which entry of a vocabulary is wrong, and how. It wraps ErrVocab.
type VocabError struct {
	Field  string // of Vocab, or the metadata key
	Index  int    // of the entry; -1 if the field as a whole is meant
	Reason string
}

func (e *VocabError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("tokenizer: %s: %s", e.Field, e.Reason)
	}
	return fmt.Sprintf("tokenizer: %s[%d]: %s", e.Field, e.Index, e.Reason)
}

func (e *VocabError) Unwrap() error { return ErrVocab }

// IDError is about a token id outside the vocabulary. It wraps ErrID.
type IDError struct {
	ID  int32
	Len int // of the vocabulary
}

func (e *IDError) Error() string {
	return fmt.Sprintf("tokenizer: token id %d outside the vocabulary of %d", e.ID, e.Len)
}

func (e *IDError) Unwrap() error { return ErrID }

func badVocab(field string, index int, format string, args ...any) error {
	return &VocabError{field, index, fmt.Sprintf(format, args...)}
}
