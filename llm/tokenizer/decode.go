package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// DecodeOptions says how ids become text.
type DecodeOptions struct {
	// Special writes control and unknown tokens as their texts; otherwise they are left out.
	Special bool
	// Continue means that the ids go on from text written before. Otherwise the space that Encode puts before SPM text is taken away again:
	// one space at the start of the first token that writes anything.
	Continue bool
}

// Decode returns the text of ids, the bytes as the tokens have them: not necessarily valid UTF-8. An id outside the vocabulary is an *IDError.
//
// Decode(Encode(s)) is s for every BPE vocabulary that has a token for each byte. For SPM vocabularies with a token for each byte and one for U+2581 it is s too,
// unless s has U+2581, which comes back as a space, or a user-defined token in it.
func (t *Tokenizer) Decode(ids []int32, o DecodeOptions) (string, error) {
	s := t.NewStream(o)
	var buf []byte
	for _, id := range ids {
		var err error
		if buf, err = s.append(buf, id); err != nil {
			return "", err
		}
	}
	return string(buf), nil
}

// AppendPiece appends the bytes of one token to dst, with a leading space if the token has one. An id outside the vocabulary is an *IDError, and dst comes back as it was.
func (t *Tokenizer) AppendPiece(dst []byte, id int32, special bool) ([]byte, error) {
	if id < 0 || int(id) >= len(t.attrs) {
		return dst, &IDError{id, len(t.attrs)}
	}
	text := t.piece(id)
	switch a := t.attrs[id]; {
	case a&attrHidden != 0:
		if special {
			dst = append(dst, text...)
		}
	case a&attrByte != 0:
		b, _ := hexByte(text)
		dst = append(dst, b)
	case a&attrUser != 0 || !t.spm:
		dst = append(dst, text...)
	default:
		for {
			before, after, found := strings.Cut(text, escapedSpace)
			dst = append(dst, before...)
			if !found {
				break
			}
			dst = append(dst, ' ')
			text = after
		}
	}
	return dst, nil
}

// A Stream decodes ids one by one. It holds back a UTF-8 sequence until it is whole; what it writes in all, Flush included, is what Decode returns.
type Stream struct {
	t       *Tokenizer
	o       DecodeOptions
	strip   bool   // the leading space is still to be taken away
	pending []byte // the beginning of a UTF-8 sequence
}

// NewStream begins to decode. For text that a model adds to a prompt, set Continue. A Stream belongs to one goroutine at a time.
func (t *Tokenizer) NewStream(o DecodeOptions) *Stream {
	return &Stream{t: t, o: o, strip: t.spacePrefix && !o.Continue}
}

// Append appends to dst the text that id completes, perhaps none. An id outside the vocabulary is an *IDError, and nothing changes.
func (s *Stream) Append(dst []byte, id int32) ([]byte, error) {
	n := len(dst)
	out, err := s.append(append(dst, s.pending...), id)
	if err != nil {
		return dst, err
	}
	whole := len(out) - partial(out[n:])
	s.pending = append(s.pending[:0], out[whole:]...)
	return out[:whole], nil
}

// Flush appends what is held back, an incomplete UTF-8 sequence of at most three bytes, to dst.
func (s *Stream) Flush(dst []byte) []byte {
	dst = append(dst, s.pending...)
	s.pending = s.pending[:0]
	return dst
}

func (s *Stream) append(dst []byte, id int32) ([]byte, error) {
	n := len(dst)
	dst, err := s.t.AppendPiece(dst, id, s.o.Special)
	if err == nil && s.strip && len(dst) > n {
		s.strip = false
		if dst[n] == ' ' {
			dst = append(dst[:n], dst[n+1:]...)
		}
	}
	return dst, err
}

// partial returns the length of the unfinished UTF-8 sequence at the end of b.
func partial(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
