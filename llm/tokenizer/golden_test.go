package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The golden files are written by testdata/_gen/gen.py: ids of llama.cpp, agreed on by tokenizers and sentencepiece.
type goldenTexts struct {
	Texts, Special []string
	Bytes          [][]byte
}

type goldenVocab struct {
	Model         string
	Tokens        []string
	Scores        []float32
	Types         []int32
	Merges        []string
	BOS, EOS, UNK int32
	EOG           []int32
}

type goldenBPE struct {
	goldenVocab
	IDs     map[string][][]int32
	Special map[string][][2][]int32
}

type goldenSPM struct {
	goldenVocab
	IDs         [][]int32 `json:"ids"`
	IDsNoPrefix [][]int32 `json:"ids_noprefix"`
	Special     [][2][]int32
	Text        []string
}

func golden[T any](t testing.TB, name string) T {
	b, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	var x T
	require.NoError(t, json.Unmarshal(b, &x))
	return x
}

func (g goldenVocab) vocab(pre string) Vocab {
	v := Defaults(g.Model, pre, len(g.Tokens))
	v.Tokens, v.Scores, v.Types, v.Merges = g.Tokens, g.Scores, g.Types, g.Merges
	v.BOS, v.EOS, v.UNK = g.BOS, g.EOS, g.UNK
	return v
}

func mustNew(t testing.TB, v Vocab) *Tokenizer {
	tok, err := New(v)
	require.NoError(t, err)
	return tok
}

// pieces shows ids as what they stand for, so that a difference can be read.
func pieces(t testing.TB, tok *Tokenizer, ids []int32) string {
	var s []string
	for _, id := range ids {
		b, err := tok.AppendPiece(nil, id, true)
		require.NoError(t, err)
		s = append(s, string(b))
	}
	return strings.Join(s, "|")
}

func requireIDs(t testing.TB, tok *Tokenizer, want, got []int32, text string) {
	if !slices.Equal(want, got) {
		require.Failf(t, "ids differ", "text %q\nwant %q\ngot  %q", text, pieces(t, tok, want), pieces(t, tok, got))
	}
}

func TestGoldenBPE(t *testing.T) {
	texts := golden[goldenTexts](t, "texts.json")
	g := golden[goldenBPE](t, "bpe.json")
	require.GreaterOrEqual(t, len(g.IDs), 9)
	for pre, want := range g.IDs {
		t.Run(pre, func(t *testing.T) {
			tok := mustNew(t, g.vocab(pre))
			require.Len(t, want, len(texts.Texts))
			for i, text := range texts.Texts {
				requireIDs(t, tok, want[i], tok.Encode(text, EncodeOptions{}), text)
			}
			for i, want := range g.Special[pre] {
				text := texts.Special[i]
				requireIDs(t, tok, want[0], tok.Encode(text, EncodeOptions{}), text)
				requireIDs(t, tok, want[1], tok.Encode(text, EncodeOptions{AddSpecial: true, ParseSpecial: true}), text)
			}
			require.Equal(t, g.EOG, ends(tok))
		})
	}
}

func TestGoldenSPM(t *testing.T) {
	texts := golden[goldenTexts](t, "texts.json")
	g := golden[goldenSPM](t, "spm.json")
	tok := mustNew(t, g.vocab(""))
	require.Len(t, g.IDs, len(texts.Texts))
	for i, text := range texts.Texts {
		requireIDs(t, tok, g.IDs[i], tok.Encode(text, EncodeOptions{}), text)
	}
	require.Len(t, g.Special, len(texts.Special))
	for i, text := range texts.Special {
		requireIDs(t, tok, g.Special[i][0], tok.Encode(text, EncodeOptions{}), text)
		requireIDs(t, tok, g.Special[i][1], tok.Encode(text, EncodeOptions{AddSpecial: true, ParseSpecial: true}), text)
		got, err := tok.Decode(tok.Encode(text, EncodeOptions{ParseSpecial: true}), DecodeOptions{Special: true})
		require.NoError(t, err)
		require.Equal(t, g.Text[i], got)
	}
	require.Equal(t, g.EOG, ends(tok))

	v := g.vocab("")
	v.AddSpacePrefix = false
	tok = mustNew(t, v)
	require.Len(t, g.IDsNoPrefix, len(texts.Texts))
	for i, text := range texts.Texts {
		requireIDs(t, tok, g.IDsNoPrefix[i], tok.Encode(text, EncodeOptions{}), text)
	}
}

func ends(tok *Tokenizer) (ids []int32) {
	for id := range int32(tok.Len()) {
		if tok.IsEOG(id) {
			ids = append(ids, id)
		}
	}
	return ids
}
