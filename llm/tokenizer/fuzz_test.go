package tokenizer

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzEncode encodes and decodes any bytes with every pre-tokenizer and with SPM: the text comes back, through a stream as well.
func FuzzEncode(f *testing.F) {
	texts := golden[goldenTexts](f, "texts.json")
	for i, s := range slices.Concat(texts.Texts, texts.Special) {
		f.Add([]byte(s), byte(i))
	}
	for i, b := range texts.Bytes {
		f.Add(b, byte(i))
	}
	toks := []*Tokenizer{mustNew(f, golden[goldenSPM](f, "spm.json").vocab(""))}
	g := golden[goldenBPE](f, "bpe.json")
	for _, pre := range PreTokenizers() {
		toks = append(toks, mustNew(f, g.vocab(pre)))
	}
	f.Fuzz(func(t *testing.T, b []byte, which byte) {
		tok := toks[int(which)%len(toks)]
		text := string(b)
		for _, special := range []bool{false, true} {
			ids := tok.Encode(text, EncodeOptions{ParseSpecial: special})
			require.LessOrEqual(t, len(ids), len(text)+3)
			got, err := tok.Decode(ids, DecodeOptions{Special: true})
			require.NoError(t, err)
			if !tok.spm || !special && !strings.Contains(text, escapedSpace) && !strings.ContainsAny(text, "<[") {
				require.Equal(t, text, got)
			}
			if !special {
				require.False(t, slices.ContainsFunc(ids, tok.IsControl))
			}
			s := tok.NewStream(DecodeOptions{Special: true})
			var out []byte
			for _, id := range ids {
				out, err = s.Append(out, id)
				require.NoError(t, err)
			}
			require.Equal(t, got, string(s.Flush(out)))
		}
	})
}

// FuzzNew builds a vocabulary from any bytes: New refuses it with one of its errors, or the tokenizer works.
func FuzzNew(f *testing.F) {
	seed := func(v Vocab, text string) {
		var b []byte
		for _, n := range []int32{v.BOS, v.EOS, v.EOT, v.UNK} {
			b = binary.LittleEndian.AppendUint32(b, uint32(n))
		}
		f.Add(v.Model, v.Pre, strings.Join(v.Tokens, "\n"), strings.Join(v.Merges, "\n"), b, text)
	}
	seed(tiny("▁a", "ab", "ab", ""), "ab a")
	seed(tinyBPE("gpt-2", "a b", "ab c"), "abc")
	seed(tinyBPE("llama-bpe", "a b", "a b", "ab ab", "Ġ Ġ"), " abab")
	seed(golden[goldenBPE](f, "bpe.json").vocab("default"), "x")
	f.Fuzz(func(t *testing.T, model, pre, tokens, merges string, numbers []byte, text string) {
		v := Defaults(model, pre, 0)
		v.Tokens = strings.Split(tokens, "\n")
		if merges != "" {
			v.Merges = strings.Split(merges, "\n")
		}
		for _, p := range []*int32{&v.BOS, &v.EOS, &v.EOT, &v.UNK} {
			if len(numbers) >= 4 {
				*p = int32(binary.LittleEndian.Uint32(numbers))
				numbers = numbers[4:]
			}
		}
		v.AddBOS = v.AddBOS && v.BOS >= 0
		for i, b := range numbers { // what is left gives types and scores
			if i < len(v.Tokens) {
				v.Types = append(v.Types, int32(b%8))
				v.Scores = append(v.Scores, float32(int8(b)))
			}
		}
		tok, err := New(v)
		if err != nil {
			require.Nil(t, tok)
			for _, known := range []error{ErrVocab, ErrUnsupported} {
				if errors.Is(err, known) {
					return
				}
			}
			require.NoError(t, err)
		}
		for _, special := range []bool{false, true} {
			ids := tok.Encode(text, EncodeOptions{AddSpecial: true, ParseSpecial: special})
			_, err := tok.Decode(ids, DecodeOptions{Special: special})
			require.NoError(t, err)
		}
		for id := range int32(tok.Len()) {
			_, err := tok.AppendPiece(nil, id, true)
			require.NoError(t, err)
		}
	})
}
