package tokenizer

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Token types of GGUF, for Vocab.Types.
const (
	TypeUndefined   int32 = 0
	TypeNormal      int32 = 1
	TypeUnknown     int32 = 2
	TypeControl     int32 = 3
	TypeUserDefined int32 = 4
	TypeUnused      int32 = 5
	TypeByte        int32 = 6
)

// Bounds on what New accepts, far above any vocabulary in use; they keep a hostile one from costing more than its own size.
const (
	MaxTokenBytes   = 4096    // length of a token's text
	MaxSpecialBytes = 512     // length of the text of a control, unknown or user-defined token
	maxSpecialNodes = 1 << 20 // size of the trie of special tokens
)

// Vocab is a vocabulary as a GGUF file has it under "tokenizer.ggml.". Start from Defaults, or let FromMetadata fill it in.
type Vocab struct {
	Model  string    // "llama" (SPM) or "gpt2" (byte-level BPE)
	Pre    string    // how BPE cuts text into words, one of PreTokenizers(); empty means "default"
	Tokens []string  // by id; of a BPE vocabulary in GPT-2's byte alphabet
	Scores []float32 // SPM: by id, higher merges first; nil for all equal
	Types  []int32   // by id, Type constants; nil for all TypeNormal
	Merges []string  // BPE: "left right", the first merges first

	BOS, EOS, EOT, EOM, UNK, PAD int32 // ids, -1 where there is none

	AddBOS, AddEOS bool // a text begins with BOS, ends with EOS
	AddSpacePrefix bool // SPM: a space is put before text at the start and behind a special token
}

// Defaults returns a Vocab without tokens whose other fields are what llama.cpp assumes when a file of n tokens does not set them.
// An unknown model or pre-tokenizer gets no ids and no flags; New rejects it.
func Defaults(model, pre string, n int) Vocab {
	v := Vocab{Model: model, Pre: pre, BOS: -1, EOS: -1, EOT: -1, EOM: -1, UNK: -1, PAD: -1}
	in := func(id int32) int32 {
		if int(id) < n {
			return id
		}
		return -1
	}
	switch model {
	case "llama":
		v.BOS, v.EOS, v.UNK = in(1), in(2), in(0)
		v.AddBOS, v.AddSpacePrefix = true, true
	case "gpt2":
		v.BOS, v.EOS = in(11), in(11)
		v.AddBOS = families[pre].addBOS
	}
	return v
}

// FromMetadata fills in a Vocab from the metadata of a model file. get returns the value of a key: a string, []string, []float32 or []int32, a bool, or an integer of any
// type. A key that is absent leaves the default; a value of another type, or an id outside the vocabulary, is a *VocabError; but such a PAD counts as absent.
// The slices are kept, not copied.
func FromMetadata(get func(key string) (value any, ok bool)) (Vocab, error) {
	var err error
	var f Vocab // what the file has
	load(get, &err, "model", &f.Model)
	load(get, &err, "pre", &f.Pre)
	load(get, &err, "tokens", &f.Tokens)
	v := Defaults(f.Model, f.Pre, len(f.Tokens))
	v.Tokens = f.Tokens
	load(get, &err, "scores", &v.Scores)
	load(get, &err, "token_type", &v.Types)
	load(get, &err, "merges", &v.Merges)
	load(get, &err, "add_bos_token", &v.AddBOS)
	load(get, &err, "add_eos_token", &v.AddEOS)
	load(get, &err, "add_space_prefix", &v.AddSpacePrefix)
	for _, x := range []struct {
		key string
		to  *int32
	}{
		{"bos_token_id", &v.BOS}, {"eos_token_id", &v.EOS}, {"eot_token_id", &v.EOT},
		{"eom_token_id", &v.EOM}, {"unknown_token_id", &v.UNK},
	} {
		loadID(get, &err, x.key, x.to, len(v.Tokens))
	}
	// Nothing here depends on PAD, and files of tuned models are known to name one that they lack.
	var ignored error
	loadID(get, &ignored, "padding_token_id", &v.PAD, len(v.Tokens))
	return v, err
}

const keyPrefix = "tokenizer.ggml."

// load stores the value of a key in to, if there is one; a value of another type is an error, of which err keeps the first.
func load[T any](get func(string) (any, bool), err *error, key string, to *T) {
	value, ok := get(keyPrefix + key)
	if !ok {
		return
	}
	if x, ok := value.(T); ok {
		*to = x
	} else if *err == nil {
		*err = badVocab(keyPrefix+key, -1, "is a %T, not a %T", value, *to)
	}
}

func loadID(get func(string) (any, bool), err *error, key string, to *int32, n int) {
	value, ok := get(keyPrefix + key)
	if !ok {
		return
	}
	id := uint64(math.MaxUint64)
	switch r := reflect.ValueOf(value); {
	case r.CanUint():
		id = r.Uint()
	case r.CanInt():
		id = uint64(r.Int())
	}
	if id < uint64(n) {
		*to = int32(id)
	} else if *err == nil {
		*err = badVocab(keyPrefix+key, -1, "%.40v is not the id of one of %d tokens", value, n)
	}
}

// attr says what a token is; 0 is text.
type attr uint8

const (
	attrUnknown attr = 1 << iota
	attrControl
	attrUser
	attrByte
	attrEOG // generation ends here

	attrHidden = attrUnknown | attrControl // not written, and not to be had from plain text
)

var attrOf = [...]attr{TypeUnknown: attrUnknown, TypeControl: attrControl, TypeUserDefined: attrUser, TypeByte: attrByte}

// Texts that make a token a control token whatever its type, as in llama.cpp.
var (
	// These end the generation; the first kind ends a turn.
	eotTexts = []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"}
	eogTexts = []string{"<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<turn|>", "<|tool_response>", "[e~["}

	// Padding, repository and file separators of models that fill in the middle end it too; of each kind only one token counts.
	fimEndTexts = [][]string{
		{"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
		{"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
		{"<|file_sep|>"},
	}
	// Prefix, suffix and middle do not.
	fimTexts = [][]string{
		{"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>"},
		{"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"},
		{"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>"},
	}
)

// New checks a vocabulary and makes a Tokenizer of it. It keeps no reference to v's slices.
//
// An unknown model or pre-tokenizer is an *UnsupportedError. A *VocabError says what else is wrong: slices of different lengths, an id that is no token, a score that is not a
// number, a text above the bounds, a merge that is not two tokens which make a third, a byte that no token can spell. Of two tokens with the same text, text gets the lower id.
func New(v Vocab) (*Tokenizer, error) {
	if v.Model != "llama" && v.Model != "gpt2" {
		return nil, &UnsupportedError{"model", v.Model, []string{"gpt2", "llama"}}
	}
	t := &Tokenizer{
		spm: v.Model == "llama", addBOS: v.AddBOS, addEOS: v.AddEOS,
		bos: v.BOS, eos: v.EOS, eot: v.EOT, unk: v.UNK,
	}
	if err := check(v); err != nil {
		return nil, err
	}
	if err := t.setTokens(v); err != nil {
		return nil, err
	}
	if err := t.setBytes(); err != nil {
		return nil, err
	}
	t.setEnds(v)
	if t.spm {
		t.spacePrefix = v.AddSpacePrefix
		t.ranks = ranks(v.Scores, len(v.Tokens))
	} else {
		f, ok := families[cmp.Or(v.Pre, "default")]
		if !ok {
			return nil, &UnsupportedError{"pre-tokenizer", v.Pre, PreTokenizers()}
		}
		t.stages, t.ignoreMerges = f.stages, f.ignoreMerges
		t.classes = runeClasses()
		if err := t.setMerges(v.Merges); err != nil {
			return nil, err
		}
	}
	if err := t.setSpecials(v.Tokens); err != nil {
		return nil, err
	}
	// From here on ids is for plain text.
	for text, id := range t.ids {
		if t.attrs[id]&(attrHidden|attrByte) != 0 {
			delete(t.ids, text)
		}
	}
	return t, nil
}

// check looks at everything that needs no index.
func check(v Vocab) error {
	n := len(v.Tokens)
	if n == 0 || n > math.MaxInt32 {
		return badVocab("Tokens", -1, "%d tokens", n)
	}
	if v.Types != nil && len(v.Types) != n {
		return badVocab("Types", -1, "%d types of %d tokens", len(v.Types), n)
	}
	if v.Scores != nil && len(v.Scores) != n {
		return badVocab("Scores", -1, "%d scores of %d tokens", len(v.Scores), n)
	}
	for i, s := range v.Scores {
		if s != s {
			return badVocab("Scores", i, "not a number")
		}
	}
	for _, f := range []struct {
		name     string
		id       int32
		required bool
	}{{"BOS", v.BOS, v.AddBOS}, {"EOS", v.EOS, v.AddEOS}, {"EOT", v.EOT, false}, {"EOM", v.EOM, false}, {"UNK", v.UNK, false}, {"PAD", v.PAD, false}} {
		switch {
		case f.id < -1 || int(f.id) >= n:
			return badVocab(f.name, -1, "%d is not the id of one of %d tokens", f.id, n)
		case f.id < 0 && f.required:
			return badVocab(f.name, -1, "to be added to texts, but there is none")
		}
	}
	var total int
	for i, s := range v.Tokens {
		if len(s) > MaxTokenBytes {
			return badVocab("Tokens", i, "%d bytes long, more than %d", len(s), MaxTokenBytes)
		}
		total += len(s)
	}
	if total > math.MaxUint32 {
		return badVocab("Tokens", -1, "%d bytes in all", total)
	}
	return nil
}

// setTokens stores the texts, the attributes and the index from text to id.
func (t *Tokenizer) setTokens(v Vocab) error {
	n := len(v.Tokens)
	t.attrs = make([]attr, n)
	t.ends = make([]uint32, n)
	var text []byte
	for i, s := range v.Tokens {
		if v.Types != nil && uint32(v.Types[i]) < uint32(len(attrOf)) {
			t.attrs[i] = attrOf[v.Types[i]]
		}
		if t.attrs[i] == attrByte {
			if _, ok := hexByte(s); !ok {
				return badVocab("Tokens", i, "%.20q is a byte token, but not of the form <0xXX>", s)
			}
		}
		if t.spm || t.attrs[i] != 0 {
			text = append(text, s...)
		} else {
			text, _ = appendDecoded(text, s)
		}
		t.ends[i] = uint32(len(text))
	}
	t.text = string(text)

	t.ids = make(map[string]int32, n)
	var buf []byte
	for i, s := range v.Tokens {
		key := t.piece(int32(i))
		if !t.spm {
			var exact bool
			buf, exact = appendDecoded(buf[:0], s)
			if !exact {
				continue // no text reaches it but as a special token
			}
			if string(buf) != key {
				key = string(buf)
			}
		}
		if _, dup := t.ids[key]; key != "" && !dup {
			t.ids[key] = int32(i)
			t.maxLen = max(t.maxLen, len(key))
		}
	}
	return nil
}

// setBytes finds the token of each byte.
func (t *Tokenizer) setBytes() error {
	for b := range t.bytes {
		t.bytes[b] = -1
		if t.spm {
			if id, ok := t.ids[fmt.Sprintf("<0x%02X>", b)]; ok {
				t.bytes[b] = id
				continue
			}
		}
		if id, ok := t.ids[string([]byte{byte(b)})]; ok {
			t.bytes[b] = id
			continue
		}
		// These bytes are in no UTF-8 text; BPE vocabularies trained on text often lack them.
		never := b == 0xc0 || b == 0xc1 || b >= 0xf5
		if t.unk < 0 && (t.spm || !never) {
			return badVocab("Tokens", -1, "no token spells the byte 0x%02X, and there is no unknown token", b)
		}
	}
	return nil
}

// hexByte reads a token of the form <0xXX>.
func hexByte(s string) (byte, bool) {
	if len(s) != 6 || s[:3] != "<0x" || s[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(s[3:5], 16, 8)
	return byte(b), err == nil
}

// ranks numbers the scores from the best on; equal scores are of equal rank.
func ranks(scores []float32, n int) []int32 {
	r := make([]int32, n)
	if scores == nil {
		return r
	}
	order := make([]int32, n)
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(scores[b], scores[a]) })
	for i := 1; i < n; i++ {
		r[order[i]] = r[order[i-1]]
		if scores[order[i]] != scores[order[i-1]] {
			r[order[i]]++
		}
	}
	return r
}

func (t *Tokenizer) setMerges(merges []string) error {
	if len(merges) > math.MaxInt32 {
		return badVocab("Merges", -1, "%d merges", len(merges))
	}
	t.merges = make(map[uint64]merge, len(merges))
	var buf []byte
	token := func(i int, s string) (int32, error) {
		var exact bool
		if buf, exact = appendDecoded(buf[:0], s); exact {
			if id, ok := t.ids[string(buf)]; ok {
				return id, nil
			}
		}
		return -1, badVocab("Merges", i, "%.40q is not a token", s)
	}
	for i, m := range merges {
		cut := -1
		if len(m) > 1 {
			cut = strings.IndexByte(m[1:], ' ') + 1
		}
		if cut < 1 {
			return badVocab("Merges", i, "%.40q is not two tokens with a space between", m)
		}
		left, err := token(i, m[:cut])
		if err != nil {
			return err
		}
		right, err := token(i, m[cut+1:])
		if err != nil {
			return err
		}
		both, err := token(i, m[:cut]+m[cut+1:])
		if err != nil {
			return err
		}
		key := pairKey(left, right)
		if _, dup := t.merges[key]; !dup && t.attrs[both]&attrHidden == 0 {
			t.merges[key] = merge{both, int32(i)}
		}
	}
	return nil
}

// setEnds marks the tokens that end the generation, and those that are control tokens by their text.
func (t *Tokenizer) setEnds(v Vocab) {
	ids := map[string]int32{}
	for _, texts := range slices.Concat([][]string{eotTexts, eogTexts}, fimEndTexts, fimTexts) {
		for _, s := range texts {
			ids[s] = -1
		}
	}
	for i, s := range v.Tokens {
		if id, ok := ids[s]; ok && id < 0 {
			ids[s] = int32(i)
		}
	}
	lowest := func(texts []string) int32 {
		low := int32(-1)
		for _, s := range texts {
			if id := ids[s]; id >= 0 && (low < 0 || id < low) {
				low = id
			}
		}
		return low
	}
	mark := func(id int32, a attr) {
		if id >= 0 {
			t.attrs[id] |= a
		}
	}
	if t.eot < 0 {
		t.eot = lowest(eotTexts)
	}
	for _, s := range slices.Concat(eotTexts, eogTexts) {
		mark(ids[s], attrControl|attrEOG)
	}
	for _, texts := range fimEndTexts {
		mark(lowest(texts), attrControl|attrEOG)
	}
	for _, texts := range fimTexts {
		mark(lowest(texts), attrControl)
	}
	for _, id := range []int32{t.eos, t.eot, v.EOM} {
		mark(id, attrEOG)
	}
}
