package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// tiny is an SPM vocabulary with byte tokens and the given others, the first of which merge first.
func tiny(more ...string) Vocab {
	v := Defaults("llama", "", 3)
	v.Tokens = []string{"<unk>", "<s>", "</s>"}
	v.Types = []int32{TypeUnknown, TypeControl, TypeControl}
	for b := range 256 {
		v.Tokens = append(v.Tokens, fmt.Sprintf("<0x%02X>", b))
		v.Types = append(v.Types, TypeByte)
	}
	for _, s := range more {
		v.Tokens = append(v.Tokens, s)
		v.Types = append(v.Types, TypeNormal)
	}
	for i := range v.Tokens {
		v.Scores = append(v.Scores, -float32(i))
	}
	return v
}

// tinyBPE is a BPE vocabulary of all bytes and the given merges.
func tinyBPE(pre string, merges ...string) Vocab {
	v := Defaults("gpt2", pre, 0)
	v.AddBOS = false
	for _, r := range byteRune {
		v.Tokens = append(v.Tokens, string(r))
	}
	for _, m := range merges {
		v.Merges = append(v.Merges, m)
		if s := strings.Replace(m, " ", "", 1); !slices.Contains(v.Tokens, s) {
			v.Tokens = append(v.Tokens, s)
		}
	}
	return v
}

func (v *Vocab) add(text string, ty int32) int32 {
	for len(v.Types) < len(v.Tokens) {
		v.Types = append(v.Types, TypeNormal)
	}
	v.Tokens = append(v.Tokens, text)
	v.Types = append(v.Types, ty)
	if v.Scores != nil {
		v.Scores = append(v.Scores, 0)
	}
	return int32(len(v.Tokens) - 1)
}

func TestNewRejects(t *testing.T) {
	change := func(v Vocab, f func(*Vocab)) Vocab { f(&v); return v }
	long := strings.Repeat("x", MaxTokenBytes+1)
	for name, c := range map[string]struct {
		v     Vocab
		field string
		index int
	}{
		"no tokens":            {Defaults("llama", "", 0), "Tokens", -1},
		"scores too few":       {change(tiny(), func(v *Vocab) { v.Scores = v.Scores[1:] }), "Scores", -1},
		"scores too many":      {change(tiny(), func(v *Vocab) { v.Scores = append(v.Scores, 0) }), "Scores", -1},
		"score not a number":   {change(tiny(), func(v *Vocab) { v.Scores[7] = float32(math.NaN()) }), "Scores", 7},
		"types too few":        {change(tiny(), func(v *Vocab) { v.Types = v.Types[1:] }), "Types", -1},
		"BOS out of range":     {change(tiny(), func(v *Vocab) { v.BOS = 259 }), "BOS", -1},
		"EOS out of range":     {change(tiny(), func(v *Vocab) { v.EOS = math.MaxInt32 }), "EOS", -1},
		"EOT out of range":     {change(tiny(), func(v *Vocab) { v.EOT = -2 }), "EOT", -1},
		"UNK out of range":     {change(tiny(), func(v *Vocab) { v.UNK = math.MinInt32 }), "UNK", -1},
		"PAD out of range":     {change(tiny(), func(v *Vocab) { v.PAD = 1 << 20 }), "PAD", -1},
		"BOS wanted but none":  {change(tiny(), func(v *Vocab) { v.BOS = -1 }), "BOS", -1},
		"EOS wanted but none":  {change(tiny(), func(v *Vocab) { v.AddEOS, v.EOS = true, -1 }), "EOS", -1},
		"token too long":       {tiny("a", long), "Tokens", 260},
		"special too long":     {change(tiny(), func(v *Vocab) { v.add(long[:MaxSpecialBytes+1], TypeControl) }), "Tokens", 259},
		"not a byte token":     {change(tiny(), func(v *Vocab) { v.add("<0xZZ>", TypeByte) }), "Tokens", 259},
		"byte missing, no UNK": {change(tiny(), func(v *Vocab) { v.UNK = -1; v.Tokens[3+'a'] = "x"; v.Types[3+'a'] = TypeNormal }), "Tokens", -1},
		"byte missing in BPE":  {change(tinyBPE(""), func(v *Vocab) { v.Tokens['a'] = "xx" }), "Tokens", -1},
		"merge of one token":   {tinyBPE("", "ab"), "Merges", 0},
		"merge without left":   {tinyBPE("", " a"), "Merges", 0},
		"merge is empty":       {change(tinyBPE(""), func(v *Vocab) { v.Merges = []string{""} }), "Merges", 0},
		"merge, left unknown":  {change(tinyBPE("", "a b"), func(v *Vocab) { v.Merges = append(v.Merges, "xy z") }), "Merges", 1},
		"merge, right unknown": {change(tinyBPE("", "a b"), func(v *Vocab) { v.Merges = append(v.Merges, "x yz") }), "Merges", 1},
		"merge, third unknown": {change(tinyBPE("", "a b"), func(v *Vocab) { v.Merges = append(v.Merges, "x y") }), "Merges", 1},
		"merge, not a byte":    {change(tinyBPE("", "a b"), func(v *Vocab) { v.Merges = append(v.Merges, "x 語") }), "Merges", 1},
	} {
		t.Run(name, func(t *testing.T) {
			tok, err := New(c.v)
			require.Nil(t, tok)
			require.ErrorIs(t, err, ErrVocab)
			var e *VocabError
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.field, e.Field)
			require.Equal(t, c.index, e.Index)
			require.NotEmpty(t, e.Reason)
		})
	}
}

func TestNewUnsupported(t *testing.T) {
	_, err := New(Vocab{Model: "bert"})
	require.ErrorIs(t, err, ErrUnsupported)
	var e *UnsupportedError
	require.ErrorAs(t, err, &e)
	require.Equal(t, UnsupportedError{"model", "bert", []string{"gpt2", "llama"}}, *e)

	_, err = New(tinyBPE("gpt-9"))
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorAs(t, err, &e)
	require.Equal(t, UnsupportedError{"pre-tokenizer", "gpt-9", PreTokenizers()}, *e)
	require.ErrorContains(t, err, "gpt-9")
	require.ErrorContains(t, err, "llama-bpe")
	require.NotErrorIs(t, err, ErrVocab)

	for _, name := range PreTokenizers() {
		mustNew(t, tinyBPE(name))
	}
}

func TestSpecialTrieIsBounded(t *testing.T) {
	v := tiny()
	r := rand.New(rand.NewPCG(1, 2))
	for range 2*maxSpecialNodes/MaxSpecialBytes + 1 {
		b := make([]byte, MaxSpecialBytes)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		v.add(string(b), TypeControl)
	}
	_, err := New(v)
	require.ErrorIs(t, err, ErrVocab)
}

func TestDuplicatesAndEmptyTokens(t *testing.T) {
	v := tiny("ab", "ab", "")
	v.AddSpacePrefix = false
	tok := mustNew(t, v)
	require.Equal(t, []int32{259}, tok.Encode("ab", EncodeOptions{}))
	for id, want := range map[int32]string{259: "ab", 260: "ab", 261: ""} {
		s, err := tok.Decode([]int32{id}, DecodeOptions{})
		require.NoError(t, err)
		require.Equal(t, want, s)
	}
}

func TestMissingBytesBecomeUnknown(t *testing.T) {
	v := tiny()
	v.AddSpacePrefix = false
	for _, b := range "é" { // neither of its two bytes
		for _, c := range []byte(string(b)) {
			v.Tokens[3+int(c)], v.Types[3+int(c)] = fmt.Sprintf("gone%d", c), TypeNormal
		}
	}
	tok := mustNew(t, v)
	require.Equal(t, []int32{3 + 'a', 0, 3 + 'b'}, tok.Encode("aéb", EncodeOptions{}))

	b := tinyBPE("gpt-2")
	b.Tokens['a'] = "<unk>"
	b.UNK = 'a'
	tok = mustNew(t, b)
	require.Equal(t, []int32{'x', 'a', 'y'}, tok.Encode("xay", EncodeOptions{}))

	// Bytes that no UTF-8 has may be missing without an unknown token, and are dropped.
	b = tinyBPE("gpt-2")
	b.Tokens[0xff] = "gone"
	tok = mustNew(t, b)
	require.Equal(t, []int32{'x', 'y'}, tok.Encode("x\xffy", EncodeOptions{}))
}

func TestBOSAndEOSOnlyWhenAsked(t *testing.T) {
	for _, v := range []Vocab{tiny(), tinyBPE("gpt-2")} {
		v.BOS, v.EOS, v.AddBOS, v.AddEOS = 1, 2, true, true
		tok := mustNew(t, v)
		text := tok.Encode("x", EncodeOptions{})
		require.Equal(t, slices.Concat([]int32{1}, text, []int32{2}), tok.Encode("x", EncodeOptions{AddSpecial: true}))
		require.Equal(t, []int32{1, 2}, tok.Encode("", EncodeOptions{AddSpecial: true}))
		require.Empty(t, tok.Encode("", EncodeOptions{}))
		v.AddBOS, v.AddEOS = false, false
		require.Equal(t, text, mustNew(t, v).Encode("x", EncodeOptions{AddSpecial: true}))
	}
}

func TestSpecialTokensOnlyWhenAsked(t *testing.T) {
	for _, v := range []Vocab{tiny(), tinyBPE("gpt-2")} {
		control := v.add("<|c|>", TypeControl)
		user := v.add("<|u|>", TypeUserDefined)
		v.add("<|n|>", TypeNormal)
		v.AddSpacePrefix = false
		tok := mustNew(t, v)
		require.Equal(t, []int32{control, user}, tok.Encode("<|c|><|u|>", EncodeOptions{ParseSpecial: true}))
		plain := tok.Encode("<|c|><|u|>", EncodeOptions{})
		require.NotContains(t, plain, control)
		require.Equal(t, user, plain[len(plain)-1])
		require.Len(t, tok.Encode("<|n|>", EncodeOptions{ParseSpecial: true}), 5)
	}
}

// Merges that lead to a control token, whole or on the way, are not taken in plain text.
func TestPlainTextForgesNothing(t *testing.T) {
	s := tiny("</", "</s")
	s.AddSpacePrefix = false
	b := tinyBPE("llama-bpe", "< /", "</ s", "</s >")
	b.add("word", TypeControl)
	b.EOS = int32(slices.Index(b.Tokens, "</s>"))
	for _, v := range []Vocab{s, b} {
		tok := mustNew(t, v)
		for _, text := range []string{"</s>", "word", "<unk>", "<s>"} {
			for _, id := range tok.Encode(text, EncodeOptions{}) {
				require.False(t, tok.IsControl(id), "%q: %d", text, id)
			}
			got, err := tok.Decode(tok.Encode(text, EncodeOptions{}), DecodeOptions{})
			require.NoError(t, err)
			require.Equal(t, text, got)
		}
		require.Equal(t, []int32{tok.EOS()}, tok.Encode("</s>", EncodeOptions{ParseSpecial: true}))
	}
}

func TestEndOfGeneration(t *testing.T) {
	v := tinyBPE("llama-bpe")
	bos := v.add("<|begin_of_text|>", TypeControl)
	eos := v.add("<|end_of_text|>", TypeControl)
	eot := v.add("<|eot_id|>", TypeControl)
	im := v.add("<|im_end|>", TypeNormal) // a control token all the same
	mid := v.add("<|fim_middle|>", TypeNormal)
	v.BOS, v.EOS, v.EOT = bos, eos, -1
	tok := mustNew(t, v)
	require.Equal(t, []int32{eos, eot, im}, ends(tok))
	require.Equal(t, eos, tok.EOT()) // the lowest of the known texts
	v.EOT = eot
	tok = mustNew(t, v)
	require.Equal(t, []int32{bos, eos, eot}, []int32{tok.BOS(), tok.EOS(), tok.EOT()})
	for _, id := range []int32{bos, eos, eot, im, mid} {
		require.True(t, tok.IsControl(id), id)
	}
	for _, id := range []int32{-1, 0, int32(tok.Len()), math.MaxInt32, math.MinInt32} {
		require.False(t, tok.IsControl(id), id)
		require.False(t, tok.IsEOG(id), id)
	}
	require.Equal(t, []int32{im}, tok.Encode("<|im_end|>", EncodeOptions{ParseSpecial: true}))
}

func TestIDsOutsideTheVocabulary(t *testing.T) {
	tok := mustNew(t, tiny())
	for _, id := range []int32{-1, 259, math.MaxInt32, math.MinInt32} {
		_, err := tok.Decode([]int32{1, id}, DecodeOptions{})
		require.ErrorIs(t, err, ErrID)
		var e *IDError
		require.ErrorAs(t, err, &e)
		require.Equal(t, IDError{id, 259}, *e)
		dst, err := tok.AppendPiece([]byte("x"), id, true)
		require.ErrorIs(t, err, ErrID)
		require.Equal(t, "x", string(dst))
		s := tok.NewStream(DecodeOptions{})
		dst, err = s.Append([]byte("y"), id)
		require.ErrorIs(t, err, ErrID)
		require.Equal(t, "y", string(dst))
	}
}

// The spaces that Encode puts into SPM text are taken out again; those of the text stay.
func TestSPMLeadingSpace(t *testing.T) {
	tok := mustNew(t, tiny("▁", "▁a"))
	for _, text := range []string{"", " ", "  ", "a", " a", "  a", "a a", "\n", "é a", "\xff"} {
		ids := tok.Encode(text, EncodeOptions{AddSpecial: true})
		require.Equal(t, int32(1), ids[0])
		for _, ids := range [][]int32{ids, ids[1:]} {
			got, err := tok.Decode(ids, DecodeOptions{})
			require.NoError(t, err)
			require.Equal(t, text, got)
			got, err = tok.Decode(ids, DecodeOptions{Continue: true})
			require.NoError(t, err)
			if text != "" {
				require.Equal(t, " "+text, got)
			}
		}
	}
}

// What a stream has written at any time is valid UTF-8 if the whole is, and in the end what Decode returns.
func TestStream(t *testing.T) {
	texts := golden[goldenTexts](t, "texts.json")
	for _, b := range texts.Bytes {
		texts.Texts = append(texts.Texts, string(b))
	}
	texts.Texts = append(texts.Texts, strings.Join(texts.Texts, ""))
	toks := []*Tokenizer{mustNew(t, tiny("▁a")), mustNew(t, tinyBPE("gpt-2")), mustNew(t, golden[goldenBPE](t, "bpe.json").vocab("llama-bpe")), mustNew(t, golden[goldenSPM](t, "spm.json").vocab(""))}
	for _, tok := range toks {
		for _, o := range []DecodeOptions{{}, {Continue: true}, {Special: true}} {
			for _, text := range texts.Texts {
				ids := tok.Encode(text, EncodeOptions{AddSpecial: true})
				whole, err := tok.Decode(ids, o)
				require.NoError(t, err)
				s := tok.NewStream(o)
				var out []byte
				for _, id := range ids {
					out, err = s.Append(out, id)
					require.NoError(t, err)
					if utf8.ValidString(whole) {
						require.True(t, utf8.Valid(out), "%q of %q", out, whole)
					}
					require.LessOrEqual(t, len(s.pending), 3)
				}
				out = s.Flush(out)
				require.Equal(t, whole, string(out))
				require.Empty(t, s.Flush(nil))
			}
		}
	}
}

func TestRoundTrip(t *testing.T) {
	texts := golden[goldenTexts](t, "texts.json")
	for _, b := range texts.Bytes {
		texts.Texts = append(texts.Texts, string(b))
	}
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	texts.Texts = append(texts.Texts, string(all))
	g := golden[goldenBPE](t, "bpe.json")
	for _, pre := range PreTokenizers() {
		tok := mustNew(t, g.vocab(pre))
		for _, text := range texts.Texts {
			got, err := tok.Decode(tok.Encode(text, EncodeOptions{}), DecodeOptions{})
			require.NoError(t, err)
			require.Equal(t, text, got, pre)
		}
		for _, text := range texts.Special {
			got, err := tok.Decode(tok.Encode(text, EncodeOptions{ParseSpecial: true}), DecodeOptions{Special: true})
			require.NoError(t, err)
			require.Equal(t, text, got, pre)
		}
	}
	tok := mustNew(t, golden[goldenSPM](t, "spm.json").vocab(""))
	for _, text := range texts.Texts {
		got, err := tok.Decode(tok.Encode(text, EncodeOptions{}), DecodeOptions{})
		require.NoError(t, err)
		if !strings.Contains(text, "▁") {
			require.Equal(t, text, got)
		}
	}
}

// The merger against the plain reading of the rule: join the best pair, the leftmost of equals, until none joins.
func TestMergerAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		rank := map[string]int32{"a": 0, "b": 0, "c": 0}
		id := map[string]int32{}
		var names []string
		for s := range rank {
			names = append(names, s)
		}
		slices.Sort(names)
		for range r.IntN(12) {
			s := names[r.IntN(len(names))] + names[r.IntN(len(names))]
			if _, ok := rank[s]; !ok && len(s) < 9 {
				rank[s] = int32(r.IntN(6))
				names = append(names, s)
			}
		}
		for i, s := range names {
			id[s] = int32(i)
		}
		pair := func(s string, _, _ int32) (int32, int32, bool) {
			k, ok := rank[s]
			return id[s], k, ok
		}

		text := make([]byte, 1+r.IntN(30))
		for i := range text {
			text[i] = "abc"[r.IntN(3)]
		}
		want := strings.Split(string(text), "")
		for {
			best := -1
			for i := range len(want) - 1 {
				if k, ok := rank[want[i]+want[i+1]]; ok && (best < 0 || k < rank[want[best]+want[best+1]]) {
					best = i
				}
			}
			if best < 0 {
				break
			}
			want = slices.Replace(want, best, best+2, want[best]+want[best+1])
		}

		var m merger
		m.reset(string(text))
		for i, c := range text {
			m.add(i+1, id[string(c)])
		}
		m.run(pair)
		var got []string
		for i := int32(0); i >= 0; i = m.syms[i].next {
			s := m.text[m.start(i):m.syms[i].end]
			require.Equal(t, id[s], m.syms[i].id)
			got = append(got, s)
		}
		require.Equal(t, want, got, "%s with %v", text, rank)
	}
}

// The number of pairs looked at is linear in the length of the text, also where every pair joins.
func TestMergerIsLinear(t *testing.T) {
	for _, n := range []int{1 << 10, 1 << 14, 1 << 18} {
		looked := 0
		var m merger
		m.reset(strings.Repeat("a", n))
		for i := range n {
			m.add(i+1, 0)
		}
		m.run(func(s string, _, _ int32) (int32, int32, bool) {
			looked++
			return 0, int32(len(s)), true
		})
		require.LessOrEqual(t, looked, 3*n)
		require.EqualValues(t, -1, m.syms[0].next)
	}
}

// Special tokens against the plain reading: for each token, longest first, cut what is left of the text at every occurrence.
func TestSpecialsAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	random := func(n int) string {
		b := make([]byte, 1+r.IntN(n))
		for i := range b {
			b[i] = "ab<"[r.IntN(3)]
		}
		return string(b)
	}
	type part struct {
		text string
		id   int32
	}
	for range 3000 {
		v := tiny()
		for range r.IntN(8) {
			if s := random(6); !slices.Contains(v.Tokens, s) {
				v.add(s, []int32{TypeControl, TypeUserDefined}[r.IntN(2)])
			}
		}
		tok := mustNew(t, v)
		text, all := random(40), r.IntN(2) == 0

		var order []int32
		for i := range v.Tokens {
			if ty := v.Types[i]; ty == TypeUserDefined || all && (ty == TypeControl || ty == TypeUnknown) {
				order = append(order, int32(i))
			}
		}
		slices.SortStableFunc(order, func(a, b int32) int { return len(v.Tokens[b]) - len(v.Tokens[a]) })
		want := []part{{text, -1}}
		for _, id := range order {
			var next []part
			for _, p := range want {
				for p.id < 0 {
					before, after, found := strings.Cut(p.text, v.Tokens[id])
					if !found {
						break
					}
					next = append(next, part{before, -1}, part{"", id})
					p.text = after
				}
				next = append(next, p)
			}
			want = slices.DeleteFunc(next, func(p part) bool { return p == part{"", -1} })
		}

		var got []part
		tok.specials.split(text, all, func(plain string, id int32) { got = append(got, part{plain, id}) })
		require.Equal(t, want, got, "%q all=%v with %q", text, all, v.Tokens[259:])
	}
}

// Long texts of every unfriendly kind come back whole; a quadratic step anywhere would not let this end.
func TestLongTexts(t *testing.T) {
	merges := []string{"a a", "aa aa", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "1 1", "! !"}
	v := tinyBPE("", merges...)
	s := tiny("aa", "aaaa", "▁▁", "▁▁▁▁", "▁", "a")
	for n := 1; n <= MaxSpecialBytes; n *= 2 { // every place begins a special token
		v.add(strings.Repeat("<", n), TypeUserDefined)
		s.add(strings.Repeat("<", n), TypeUserDefined)
	}
	toks := map[string]*Tokenizer{"spm": mustNew(t, s)}
	for _, pre := range []string{"gpt-2", "smollm", "default", "falcon", "llama-bpe", "qwen2", "tekken", "gpt-4o"} {
		v.Pre = pre
		toks[pre] = mustNew(t, v)
	}
	size := 1 << 16
	if testing.Short() { // the race detector takes minutes over the whole
		size = 1 << 13
	}
	for name, tok := range toks {
		for _, unit := range []string{"a", " ", "\n", "1", "!", "'", "A", "é", "語", "\u00a0", "\xff", "<", " \n", "Aé", "12a", " a", "/\n"} {
			text := strings.Repeat(unit, size/len(unit))
			if unit == "a" {
				text = strings.Repeat(text, 16)
			}
			got, err := tok.Decode(tok.Encode(text, EncodeOptions{}), DecodeOptions{})
			require.NoError(t, err)
			require.True(t, got == text, "%s %q", name, unit)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	texts := golden[goldenTexts](t, "texts.json").Texts
	g := golden[goldenBPE](t, "bpe.json")
	tok := mustNew(t, g.vocab("qwen2"))
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for range cap(errs) {
		wg.Go(func() {
			for i, text := range texts {
				if !slices.Equal(tok.Encode(text, EncodeOptions{}), g.IDs["qwen2"][i]) {
					errs <- errors.New(text)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, errs)
}

func TestFromMetadata(t *testing.T) {
	g := golden[goldenSPM](t, "spm.json")
	meta := map[string]any{
		"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": g.Tokens, "tokenizer.ggml.scores": g.Scores, "tokenizer.ggml.token_type": g.Types,
		"tokenizer.ggml.bos_token_id": uint32(g.BOS), "tokenizer.ggml.eos_token_id": uint32(g.EOS), "tokenizer.ggml.unknown_token_id": uint32(g.UNK), "tokenizer.ggml.padding_token_id": int64(5),
	}
	get := func(key string) (any, bool) { x, ok := meta[key]; return x, ok }
	v, err := FromMetadata(get)
	require.NoError(t, err)
	want := g.vocab("")
	want.PAD = 5
	require.Equal(t, want, v)

	meta["tokenizer.ggml.add_bos_token"] = false
	meta["tokenizer.ggml.add_eos_token"] = true
	meta["tokenizer.ggml.add_space_prefix"] = false
	v, err = FromMetadata(get)
	require.NoError(t, err)
	require.Equal(t, []bool{false, true, false}, []bool{v.AddBOS, v.AddEOS, v.AddSpacePrefix})

	meta["tokenizer.ggml.padding_token_id"] = uint32(len(g.Tokens))
	v, err = FromMetadata(get)
	require.NoError(t, err)
	require.EqualValues(t, -1, v.PAD)

	for key, bad := range map[string]any{
		"model": 7, "pre": []string{"x"}, "tokens": []int32{1}, "scores": []float64{1}, "token_type": "x", "merges": "a b", "add_bos_token": 1,
		"bos_token_id": "1", "eos_token_id": uint32(len(g.Tokens)), "eot_token_id": int32(-1), "eom_token_id": uint64(math.MaxUint64), "unknown_token_id": nil,
	} {
		key = "tokenizer.ggml." + key
		old, had := meta[key]
		meta[key] = bad
		_, err := FromMetadata(get)
		var e *VocabError
		require.ErrorAs(t, err, &e, key)
		require.Equal(t, key, e.Field)
		require.ErrorIs(t, err, ErrVocab)
		if had {
			meta[key] = old
		} else {
			delete(meta, key)
		}
	}
}

func TestDefaults(t *testing.T) {
	v := Defaults("llama", "", 32000)
	require.Equal(t, Vocab{Model: "llama", BOS: 1, EOS: 2, UNK: 0, EOT: -1, EOM: -1, PAD: -1, AddBOS: true, AddSpacePrefix: true}, v)
	v = Defaults("gpt2", "llama-bpe", 128256)
	require.Equal(t, Vocab{Model: "gpt2", Pre: "llama-bpe", BOS: 11, EOS: 11, UNK: -1, EOT: -1, EOM: -1, PAD: -1, AddBOS: true}, v)
	v = Defaults("gpt2", "gpt-2", 5)
	require.Equal(t, Vocab{Model: "gpt2", Pre: "gpt-2", BOS: -1, EOS: -1, UNK: -1, EOT: -1, EOM: -1, PAD: -1}, v)
}

func TestCut(t *testing.T) {
	for s, want := range map[string]int{"abc": 3, "abcd": 4, "abcde": 4, "abc語": 3, "a語語": 4, "\xff\xff\xff\xff\xff": 4, "\x80\x80\x80\x80\x80\x80": 4} {
		require.Equal(t, want, cut(s, 4), "%q", s)
	}
}

func TestByteAlphabet(t *testing.T) {
	for b := range 256 {
		got, exact := appendDecoded(nil, string(byteRune[b]))
		require.True(t, exact)
		require.Equal(t, []byte{byte(b)}, got)
	}
	require.Equal(t, 'Ġ', byteRune[' '])
	require.Equal(t, 'Ċ', byteRune['\n'])
	got, exact := appendDecoded(nil, "a語Ġ\xff")
	require.False(t, exact)
	require.Equal(t, "a語 \xff", string(got))
}
