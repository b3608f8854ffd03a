package llm

import (
	"fmt"

	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/llm/tokenizer"
)

// readTokenizer makes the tokenizer of the file's vocabulary.
func readTokenizer(f *gguf.File) (*tokenizer.Tokenizer, error) {
	v, err := tokenizer.FromMetadata(func(key string) (any, bool) {
		x, ok := f.Value(key)
		if !ok {
			return nil, false
		}
		return metadataValue(x), true
	})
	if err != nil {
		return nil, fmt.Errorf("llm: %w", err)
	}
	t, err := tokenizer.New(v)
	if err != nil {
		return nil, fmt.Errorf("llm: %w", err)
	}
	return t, nil
}

// metadataValue turns a value into the Go types that tokenizer.FromMetadata takes; other types come back as gguf.Value,
// which it refuses.
func metadataValue(v gguf.Value) any {
	if s, ok := v.Strings(); ok {
		return s
	}
	if a, ok := v.Floats(); ok {
		return narrow[float32](a)
	}
	if a, ok := v.Ints(); ok {
		return narrow[int32](a)
	}
	if s, ok := v.Str(); ok {
		return s
	}
	if b, ok := v.Bool(); ok {
		return b
	}
	if i, ok := v.Int(); ok {
		return i
	}
	return v
}

func narrow[To, From float32 | float64 | int32 | int64](a []From) []To {
	out := make([]To, len(a))
	for i, x := range a {
		out[i] = To(x)
	}
	return out
}
