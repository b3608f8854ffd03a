package tokenizer

import "unicode/utf8"

// A merge is what two tokens make, and when.
type merge struct{ id, rank int32 }

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// appendBPE splits text into words and merges the bytes of each.
func (t *Tokenizer) appendBPE(ids []int32, m *merger, text string) []int32 {
	pair := func(_ string, left, right int32) (int32, int32, bool) {
		x, ok := t.merges[pairKey(left, right)]
		return x.id, x.rank, ok
	}
	split(t.classes, text, t.stages, func(word string) {
		if t.ignoreMerges && len(word) <= t.maxLen {
			if id, ok := t.ids[word]; ok {
				ids = append(ids, id)
				return
			}
		}
		m.reset(word)
		for i := range len(word) {
			m.add(i+1, t.bytes[word[i]])
		}
		m.run(pair)
		for i := int32(0); i >= 0; i = m.syms[i].next {
			if id := m.syms[i].id; id >= 0 {
				ids = append(ids, id)
			} else if t.unk >= 0 {
				ids = append(ids, t.unk)
			}
		}
	})
	return ids
}

// GPT-2's alphabet writes every byte as a printable character: printable Latin-1 as itself, the other 68 bytes, in order, from U+0100 on.
var byteRune, runeByte = func() (to [256]rune, from [0x144]int16) {
	for i := range from {
		from[i] = -1
	}
	next := rune(0x100)
	for b := range rune(256) {
		r := b
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			r = next
			next++
		}
		to[b], from[r] = r, int16(b)
	}
	return to, from
}()

// appendDecoded appends the bytes that a token's characters stand for. A character that stands for none is appended as it is, and exact is false.
func appendDecoded(dst []byte, text string) (_ []byte, exact bool) {
	exact = true
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if int(r) < len(runeByte) && runeByte[r] >= 0 {
			dst = append(dst, byte(runeByte[r]))
		} else {
			dst = append(dst, text[i:i+n]...)
			exact = false
		}
		i += n
	}
	return dst, exact
}
