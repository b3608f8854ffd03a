package tokenizer

import (
	"fmt"
	"strings"
	"testing"
)

// prose is n bytes of varied text.
func prose(b testing.TB, n int) string {
	var s strings.Builder
	for s.Len() < n {
		for _, t := range golden[goldenTexts](b, "texts.json").Texts {
			if len(t) > 8 {
				s.WriteString(t)
				s.WriteByte(' ')
			}
		}
	}
	return s.String()[:cut(s.String(), n)]
}

func BenchmarkEncode(b *testing.B) {
	const n = 1 << 20
	inputs := map[string]string{"mixed": prose(b, n), "english": strings.Repeat("The quick brown fox jumps over the lazy dog, doesn't it? ", n/57), "one-letter": strings.Repeat("a", n), "spaces": strings.Repeat(" ", n), "ideographs": strings.Repeat("今天天气很好", n/18)}
	g := golden[goldenBPE](b, "bpe.json")
	toks := map[string]*Tokenizer{"spm": mustNew(b, golden[goldenSPM](b, "spm.json").vocab(""))}
	for _, pre := range []string{"gpt-2", "llama-bpe", "default"} {
		toks[pre] = mustNew(b, g.vocab(pre))
	}
	for name, tok := range toks {
		for what, text := range inputs {
			b.Run(name+"/"+what, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					tok.Encode(text, EncodeOptions{ParseSpecial: true})
				}
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := mustNew(b, golden[goldenSPM](b, "spm.json").vocab(""))
	text := prose(b, 1<<20)
	ids := tok.Encode(text, EncodeOptions{})
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := tok.Decode(ids, DecodeOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNew is for a vocabulary of the size of Llama 3's.
func BenchmarkNew(b *testing.B) {
	v := Defaults("gpt2", "llama-bpe", 128000)
	for i := range 256 {
		v.Tokens = append(v.Tokens, string(byteRune[i]))
	}
	for len(v.Tokens) < 128000 {
		left, right := v.Tokens[len(v.Tokens)/3], v.Tokens[len(v.Tokens)%256]
		v.Tokens = append(v.Tokens, left+right)
		v.Merges = append(v.Merges, left+" "+right)
	}
	for i := range 256 {
		v.Tokens = append(v.Tokens, fmt.Sprintf("<|reserved_special_token_%d|>", i))
	}
	for b.Loop() {
		if _, err := New(v); err != nil {
			b.Fatal(err)
		}
	}
}
