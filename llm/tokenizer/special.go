package tokenizer

import "math/bits"

// specials finds the special tokens of a vocabulary in a text: a trie over their texts.
type specials struct {
	nodes []trieNode // nodes[0] is the root
	first [256]int32 // children of the root; 0 for none
	order []int32    // the tokens, by increasing id
	user  []bool     // of order: found whether special tokens are asked for or not
}

type trieNode struct {
	child, sibling int32 // 0 for none
	token          int32 // place in order, -1 if no token ends here
	char           byte
}

func (t *Tokenizer) setSpecials(tokens []string) error {
	s := &t.specials
	s.nodes = []trieNode{{token: -1}}
	for i, text := range tokens {
		a := t.attrs[i]
		if a&(attrHidden|attrUser) == 0 || text == "" {
			continue
		}
		if len(text) > MaxSpecialBytes {
			return badVocab("Tokens", i, "a special token %d bytes long, more than %d", len(text), MaxSpecialBytes)
		}
		n := s.insert(text)
		if n < 0 {
			return badVocab("Tokens", i, "the special tokens are too many")
		}
		if s.nodes[n].token < 0 {
			s.nodes[n].token = int32(len(s.order))
			s.order = append(s.order, int32(i))
			s.user = append(s.user, a&attrHidden == 0)
		}
	}
	return nil
}

// insert returns the node of text, -1 if the trie is full.
func (s *specials) insert(text string) int32 {
	at := int32(0)
	for i := range len(text) {
		n := s.step(at, text[i])
		if n == 0 {
			n = int32(len(s.nodes))
			if n == maxSpecialNodes {
				return -1
			}
			s.nodes = append(s.nodes, trieNode{sibling: s.nodes[at].child, token: -1, char: text[i]})
			s.nodes[at].child = n
			if at == 0 {
				s.first[text[i]] = n
			}
		}
		at = n
	}
	return at
}

func (s *specials) step(at int32, c byte) int32 {
	if at == 0 {
		return s.first[c]
	}
	n := s.nodes[at].child
	for n != 0 && s.nodes[n].char != c {
		n = s.nodes[n].sibling
	}
	return n
}

// longest returns the longest token that text begins with, as its place in order and its length; -1 if there is none.
func (s *specials) longest(text string, all bool) (token int32, length int) {
	token = -1
	at := int32(0)
	for i := range len(text) {
		if at = s.step(at, text[i]); at == 0 {
			break
		}
		if k := s.nodes[at].token; k >= 0 && (all || s.user[k]) {
			token, length = k, i+1
		}
	}
	return token, length
}

// split hands text to emit, cut at the special tokens: either a stretch of text and id -1, or the id of a token.
// all false means only user-defined tokens.
//
// Longer tokens are taken before shorter ones, wherever they stand; of tokens equally long, the lower id first; of one token, the leftmost first.
func (s *specials) split(text string, all bool, emit func(plain string, id int32)) {
	var waiting queue // matches by that order
	propose := func(start, end int) {
		if token, n := s.longest(text[start:end], all); n > 0 {
			waiting.push(item{uint64(MaxSpecialBytes-n)<<50 | uint64(token)<<30 | uint64(start), int32(start + n), token})
		}
	}
	for i := range len(text) {
		if s.first[text[i]] != 0 {
			propose(i, len(text))
		}
	}
	if len(waiting) == 0 {
		if text != "" {
			emit(text, -1)
		}
		return
	}

	taken := make([]uint64, len(text)/64+1) // a bit for each byte within a token
	starts := make(map[int32]item)          // the tokens taken, by where they start
	for len(waiting) > 0 {
		it := waiting.pop()
		start := int32(it.key & (1<<30 - 1))
		if free := firstBit(taken, int(start), int(it.end)); free < int(it.end) {
			// A longer token stands there already; what fits before it may be a shorter one. Each token taken
			// shortens at most as many matches as it is long, so this stays linear.
			propose(int(start), free)
			continue
		}
		for i := start; i < it.end; i++ {
			taken[i/64] |= 1 << (i % 64)
		}
		starts[start] = it
	}

	at := int32(0)
	for at < int32(len(text)) {
		if it, ok := starts[at]; ok {
			emit("", s.order[it.id])
			at = it.end
			continue
		}
		next := int32(firstBit(taken, int(at), len(text)))
		emit(text[at:next], -1)
		at = next
	}
}

// firstBit returns the place of the first bit set in [from, to), or to.
func firstBit(set []uint64, from, to int) int {
	for i := from; i < to; i = (i/64 + 1) * 64 {
		if w := set[i/64] >> (i % 64); w != 0 {
			return min(i+bits.TrailingZeros64(w), to)
		}
	}
	return to
}
