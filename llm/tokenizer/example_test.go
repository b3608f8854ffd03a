package tokenizer_test

import (
	"errors"
	"fmt"

	"github.com/opmux/opmux/llm/tokenizer"
)

func ExampleFromMetadata() {
	// A model file has these; here, the smallest SPM vocabulary that can spell anything.
	tokens := []string{"<unk>", "<s>", "</s>", "\u2581", "h", "i", "hi", "\u2581hi"}
	types := []int32{2, 3, 3, 1, 1, 1, 1, 1}
	scores := []float32{0, 0, 0, -4, -5, -6, -1, -2}
	for b := range 256 {
		tokens = append(tokens, fmt.Sprintf("<0x%02X>", b))
		types = append(types, tokenizer.TypeByte)
		scores = append(scores, 0)
	}
	metadata := map[string]any{
		"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.scores": scores,
	}

	v, err := tokenizer.FromMetadata(func(key string) (any, bool) { x, ok := metadata[key]; return x, ok })
	if err != nil {
		panic(err)
	}
	t, err := tokenizer.New(v)
	if err != nil {
		panic(err)
	}
	ids := t.Encode("hi é", tokenizer.EncodeOptions{AddSpecial: true})
	fmt.Println(ids)

	s := t.NewStream(tokenizer.DecodeOptions{})
	for _, id := range ids {
		text, err := s.Append(nil, id)
		fmt.Printf("%q %v\n", text, err)
	}
	_, err = s.Append(nil, 1000)
	fmt.Println(errors.Is(err, tokenizer.ErrID), err)
	// Output:
	// [1 7 3 203 177]
	// "" <nil>
	// "hi" <nil>
	// " " <nil>
	// "" <nil>
	// "é" <nil>
	// true tokenizer: token id 1000 outside the vocabulary of 264
}
