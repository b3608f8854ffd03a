// Package tokenizer turns text into token ids and back, from the vocabulary that a GGUF file carries: the SPM tokenizer of
// Llama 2, Mistral and TinyLlama (model "llama") and the byte-level BPE of GPT-2, Llama 3, SmolLM and Qwen2 (model "gpt2").
//
// The ids are those of llama.cpp for the same file and the same valid UTF-8 text: merges by score or rank with ties to the left,
// byte fallback, special tokens found longest first and only when asked for, a space put before SPM text at the start and after a special token.
// It departs in these places:
//   - A byte that is not part of valid UTF-8 stands for itself, so that every byte string survives encoding and decoding. llama.cpp's BPE replaces
//     it by U+FFFD, its SPM lets it swallow what follows.
//   - Plain text never becomes a control, unknown or byte token, even if merges would lead there. An empty token never matches.
//   - Decoding does not "clean up" spaces before punctuation, takes the leading space of SPM text away also behind a hidden BOS,
//     writes unused tokens, and writes characters of a BPE token that stand for no byte as they are.
//
// Time is O(n log n) in the length of the text, whatever the text. A Tokenizer may be used by any number of goroutines at once.
package tokenizer

import (
	"sync"
	"unicode/utf8"
)

// maxText is the longest text encoded as one: positions in a text, its spaces escaped to three bytes, fit an int32.
const maxText = 1 << 29

// A Tokenizer holds a checked vocabulary. It is made by New, never changes, and may be used concurrently.
type Tokenizer struct {
	spm         bool
	spacePrefix bool
	addBOS      bool
	addEOS      bool

	bos, eos, eot, unk int32

	text     string           // the texts of all tokens, one after the other
	ends     []uint32         // where each token's text ends in text
	attrs    []attr           // what each token is
	ids      map[string]int32 // the token with these bytes: its escaped text (SPM), what it decodes to (BPE)
	bytes    [256]int32       // the token of each byte; -1 where there is none
	maxLen   int              // longest key of ids, in bytes
	specials specials

	ranks        []int32          // SPM: place of each token among the scores, best first
	merges       map[uint64]merge // BPE: by the ids of the left and the right part
	ignoreMerges bool             // BPE: a word that is a token needs no merging
	classes      *classes         // BPE
	stages       []stage          // BPE

	scratch sync.Pool // of *merger
}

// EncodeOptions says what Encode does beyond turning text into ids. The zero value encodes plain text.
type EncodeOptions struct {
	// AddSpecial puts BOS before and EOS behind the text where the vocabulary asks for it (Vocab.AddBOS, Vocab.AddEOS).
	AddSpecial bool
	// ParseSpecial recognizes the texts of control tokens ("<|im_end|>", "</s>"). Leave it off for text from outside, which could
	// otherwise forge them. User-defined tokens are recognized always.
	ParseSpecial bool
}

// Encode returns the ids of text. Text may be any bytes; what is not UTF-8 is encoded byte by byte.
func (t *Tokenizer) Encode(text string, o EncodeOptions) []int32 {
	var ids []int32
	if o.AddSpecial && t.addBOS {
		ids = append(ids, t.bos)
	}
	m, _ := t.scratch.Get().(*merger)
	if m == nil {
		m = new(merger)
	}
	atStart := true // of the text, or behind a special token
	for len(text) > 0 {
		part := text[:cut(text, maxText)]
		text = text[len(part):]
		t.specials.split(part, o.ParseSpecial, func(plain string, id int32) {
			switch {
			case id >= 0:
				ids = append(ids, id)
			case t.spm:
				ids = t.appendSPM(ids, m, plain, atStart)
			default:
				ids = t.appendBPE(ids, m, plain)
			}
			atStart = id >= 0
		})
	}
	m.text = ""
	t.scratch.Put(m)
	if o.AddSpecial && t.addEOS {
		ids = append(ids, t.eos)
	}
	return ids
}

// cut returns the length of a prefix of s of at most max bytes, at least one, that does not end within a rune.
func cut(s string, max int) int {
	if len(s) <= max {
		return len(s)
	}
	for n := max; n > max-utf8.UTFMax; n-- {
		if utf8.RuneStart(s[n]) {
			return n
		}
	}
	return max
}

// Len returns the number of tokens; ids are 0 to Len()-1.
func (t *Tokenizer) Len() int { return len(t.attrs) }

// BOS returns the id of the token that begins a text, -1 if there is none.
func (t *Tokenizer) BOS() int32 { return t.bos }

// EOS returns the id of the token that ends a text, -1 if there is none.
func (t *Tokenizer) EOS() int32 { return t.eos }

// EOT returns the id of the token that ends a turn of a conversation, as given in the vocabulary or else found by its text; -1 if there is none.
func (t *Tokenizer) EOT() int32 { return t.eot }

// IsEOG reports whether generation ends at this token: EOS, EOT and other tokens with a text known for that purpose.
func (t *Tokenizer) IsEOG(id int32) bool { return t.has(id, attrEOG) }

// IsControl reports whether the token is a control token: it renders as nothing unless DecodeOptions.Special is set.
func (t *Tokenizer) IsControl(id int32) bool { return t.has(id, attrControl) }

func (t *Tokenizer) has(id int32, a attr) bool {
	return id >= 0 && int(id) < len(t.attrs) && t.attrs[id]&a != 0
}

// piece returns the stored text of a token of the vocabulary.
func (t *Tokenizer) piece(id int32) string {
	var start uint32
	if id > 0 {
		start = t.ends[id-1]
	}
	return t.text[start:t.ends[id]]
}
