package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// A class is a set of kinds of characters; every character is of exactly one kind.
type class uint8

const (
	letter class = 1 << iota // \p{L}
	number                   // \p{N}
	space                    // \s
	punct                    // \p{P}
	sign                     // all others

	other = punct | sign // [^\s\p{L}\p{N}]
	none  = class(0)     // behind the end of the text
)

// classes tells the class of a rune in two look-ups: its page, then its place there.
type classes [(unicode.MaxRune + 1) >> 8]*[256]class

// runeClasses builds the table from package unicode (about 1 ms, 300 KB) when it is first needed.
var runeClasses = sync.OnceValue(func() *classes {
	c := new(classes)
	rest := new([256]class)
	for i := range rest {
		rest[i] = sign
	}
	for i := range c {
		c[i] = rest
	}
	set := func(r rune, k class) {
		p := c[r>>8]
		if p == rest {
			p = new([256]class)
			*p = *rest
			c[r>>8] = p
		}
		p[r&0xff] = k
	}
	each := func(t *unicode.RangeTable, k class) {
		for _, x := range t.R16 {
			for r := rune(x.Lo); r <= rune(x.Hi); r += rune(x.Stride) {
				set(r, k)
			}
		}
		for _, x := range t.R32 {
			for r := rune(x.Lo); r <= rune(x.Hi); r += rune(x.Stride) {
				set(r, k)
			}
		}
	}
	each(unicode.P, punct)
	each(unicode.L, letter)
	// Letters of Unicode 15.1 that package unicode may lack: CJK extension I.
	each(&unicode.RangeTable{R32: []unicode.Range32{{Lo: 0x2ebf0, Hi: 0x2ee5d, Stride: 1}}}, letter)
	each(unicode.N, number)
	each(unicode.White_Space, space)
	return c
})

// at returns the rune at s[i:], its class and its length; class none at the end. A byte that is not UTF-8 is a symbol, like U+FFFD.
func (c *classes) at(s string, i int) (rune, class, int) {
	if i >= len(s) {
		return 0, none, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return rune(b), c[0][b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return r, c[r>>8][r&0xff], n
}

// run returns the end of the run of runes of the given class at s[i:].
func (c *classes) run(s string, i int, of class) int {
	for {
		_, k, n := c.at(s, i)
		if k&of == 0 {
			return i
		}
		i += n
	}
}
