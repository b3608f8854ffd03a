package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// escapedSpace stands for a space in the tokens of an SPM vocabulary.
const escapedSpace = "\u2581"

// appendSPM merges the characters of text. atStart says that the text begins the input or stands behind a special token.
func (t *Tokenizer) appendSPM(ids []int32, m *merger, text string, atStart bool) []int32 {
	text = strings.ReplaceAll(text, " ", escapedSpace)
	if t.spacePrefix && atStart {
		text = escapedSpace + text
	}
	m.reset(text)
	for i := 0; i < len(text); {
		_, n := utf8.DecodeRuneInString(text[i:])
		m.add(i+n, t.id(text[i:i+n]))
		i += n
	}
	m.run(func(s string, _, _ int32) (int32, int32, bool) {
		id := t.id(s)
		if id < 0 {
			return 0, 0, false
		}
		return id, t.ranks[id], true
	})
	start := 0
	for i := int32(0); i >= 0; i = m.syms[i].next {
		s := m.syms[i]
		if s.id >= 0 {
			ids = append(ids, s.id)
		} else {
			ids = t.appendBytes(ids, text[start:s.end])
		}
		start = int(s.end)
	}
	return ids
}

// id returns the token with this text, -1 if there is none.
func (t *Tokenizer) id(text string) int32 {
	if len(text) <= t.maxLen {
		if id, ok := t.ids[text]; ok {
			return id
		}
	}
	return -1
}

// appendBytes spells a character with byte tokens, or as the unknown token where one is missing.
func (t *Tokenizer) appendBytes(ids []int32, char string) []int32 {
	n := len(ids)
	for i := range len(char) {
		id := t.bytes[char[i]]
		if id < 0 {
			return append(ids[:n], t.unk)
		}
		ids = append(ids, id)
	}
	return ids
}
