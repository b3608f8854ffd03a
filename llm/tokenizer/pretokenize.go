package tokenizer

import (
	"slices"
	"strings"
)

// A stage cuts text into pieces: it returns the length of the first piece of s, which is not empty. Each stage cuts the pieces of the one
// before it and sees nothing beyond them. A stage looks at each rune a bounded number of times; the regular expressions that
// it stands for would backtrack.
type stage func(c *classes, s string) int

// split hands the words of s, cut by all stages, to emit.
func split(c *classes, s string, stages []stage, emit func(string)) {
	if len(stages) == 0 {
		emit(s)
		return
	}
	for len(s) > 0 {
		n := stages[0](c, s)
		split(c, s[:n], stages[1:], emit)
		s = s[n:]
	}
}

// A family is a pre-tokenizer: how text becomes words, and what else its name implies.
type family struct {
	stages       []stage
	ignoreMerges bool // a word that is a token needs no merging
	addBOS       bool // unless the file says otherwise
}

var families = func() map[string]family {
	m := map[string]family{}
	for _, f := range []struct {
		names string
		family
	}{
		{"gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum modern-bert exaone4 trillion granite-docling", family{stages: []stage{gpt2}}},
		{"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", family{stages: []stage{isolate(digit), gpt2}}},
		{"falcon", family{stages: []stage{isolate(marks("$+<=>^~|`")), gpt2, isolate(threeDigits)}}},
		{"default", family{stages: []stage{isolate(marks("$+<=>^~|")), gpt2, isolate(digits), isolate(threeDigits)}}},
		{"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", family{stages: []stage{modern{digits: 3, contractions: true}.next}, ignoreMerges: true, addBOS: true}},
		{"dbrx smaug-bpe", family{stages: []stage{modern{digits: 3, contractions: true}.next}}},
		{"qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2 kormo", family{stages: []stage{modern{digits: 1, contractions: true}.next}}},
		{"tekken", family{stages: []stage{modern{digits: 1, cased: true, slash: true}.next}, ignoreMerges: true, addBOS: true}},
		{"gpt-4o llama4 kanana2", family{stages: []stage{modern{digits: 3, cased: true, slash: true, contractions: true}.next}}},
	} {
		for _, name := range strings.Fields(f.names) {
			m[name] = f.family
		}
	}
	return m
}()

// PreTokenizers returns the names of the pre-tokenizers that Vocab.Pre may have, sorted.
func PreTokenizers() []string {
	var names []string
	for n := range families {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// gpt2 is 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+.
func gpt2(c *classes, s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	i := 0
	if s[0] == ' ' {
		i = 1
	}
	for _, k := range [...]class{letter, number, other} {
		if end := c.run(s, i, k); end > i {
			return end
		}
	}
	return spaces(c, s)
}

// modern is the pattern that came with cl100k:
//
//	CONTRACTION|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
type modern struct {
	digits       int
	contractions bool // in either case: in front as words of their own; with cased, at the end of a word
	cased        bool // a word does not go on from a small to a capital letter
	slash        bool // [\r\n/]* instead of [\r\n]*
}

func (m modern) next(c *classes, s string) int {
	if m.contractions && !m.cased {
		if n := contraction(s, true); n > 0 {
			return n
		}
	}
	r, k, n := c.at(s, 0)

	word := 0 // where the letters begin
	if k&(letter|number) == 0 && r != '\r' && r != '\n' {
		word = n
	}
	if end := c.run(s, word, letter); end > word {
		if m.cased {
			end = cased(s[:end], word)
			if m.contractions {
				end += contraction(s[end:], true)
			}
		}
		return end
	}

	if k == number {
		i := n
		for range m.digits - 1 {
			_, k, n := c.at(s, i)
			if k != number {
				break
			}
			i += n
		}
		return i
	}

	mark := 0
	if r == ' ' {
		mark = 1
	}
	if end := c.run(s, mark, other); end > mark {
		for end < len(s) && (s[end] == '\r' || s[end] == '\n' || m.slash && s[end] == '/') {
			end++
		}
		return end
	}

	if i := strings.LastIndexAny(s[:c.run(s, 0, space)], "\r\n"); i >= 0 {
		return i + 1
	}
	return spaces(c, s)
}

// cased returns the end of the first word of letters, which begin at s[i:]: capitals, then small letters; [capital]*[small]+|[capital]+[small]*.
// As in llama.cpp, all letters outside ASCII are both.
func cased(s string, i int) int {
	capital := func(b byte) bool { return b < 'a' || b > 'z' }
	small := func(b byte) bool { return b < 'A' || b > 'Z' }
	up := i
	for up < len(s) && capital(s[up]) {
		up++
	}
	end := up
	for end < len(s) && small(s[end]) {
		end++
	}
	if end > up {
		return end
	}
	// No small letter follows: the capitals give back what comes after the last letter that is both.
	for both := up; both > i; both-- {
		if s[both-1] >= 0x80 {
			return both
		}
	}
	return up
}

// contraction returns the length of 's, 't, 'm, 'd, 're, 've or 'll at the start of s, 0 if there is none.
func contraction(s string, anyCase bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	lower := func(b byte) byte {
		if anyCase && 'A' <= b && b <= 'Z' {
			b |= 0x20
		}
		return b
	}
	a := lower(s[1])
	switch a {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(s) > 2 {
		switch b := lower(s[2]); {
		case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
			return 3
		}
	}
	return 0
}

// spaces is \s+(?!\S)|\s+: all spaces at the start of s, but not the last of several if something follows. A rune that nothing matches is a piece of its own.
func spaces(c *classes, s string) int {
	i, last := 0, 0
	for {
		_, k, n := c.at(s, i)
		if k != space {
			switch {
			case i == 0:
				return n
			case k != none && last > 0:
				return last
			}
			return i
		}
		last = i
		i += n
	}
}

// isolate makes pieces of the matches, and of what lies between them. match returns the length of the match at the start of s, 0 if there is none.
func isolate(match func(c *classes, s string) int) stage {
	return func(c *classes, s string) int {
		if n := match(c, s); n > 0 {
			return n
		}
		i := 0
		for {
			_, _, n := c.at(s, i)
			i += n
			if i == len(s) || match(c, s[i:]) > 0 {
				return i
			}
		}
	}
}

// digit is \p{N}.
func digit(c *classes, s string) int {
	if _, k, n := c.at(s, 0); k == number {
		return n
	}
	return 0
}

// digits is \p{N}+.
func digits(c *classes, s string) int { return c.run(s, 0, number) }

// threeDigits is [0-9][0-9][0-9].
func threeDigits(_ *classes, s string) int {
	for i := range 3 {
		if i == len(s) || s[i] < '0' || s[i] > '9' {
			return 0
		}
	}
	return 3
}

// marks is [\p{P}SIGNS]+.
func marks(signs string) func(*classes, string) int {
	return func(c *classes, s string) int {
		i := 0
		for {
			r, k, n := c.at(s, i)
			if k != punct && (k != sign || r >= 0x80 || !strings.ContainsRune(signs, r)) {
				return i
			}
			i += n
		}
	}
}
