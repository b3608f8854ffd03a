package llm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opmux/opmux/llm/tokenizer"
)

// Request is one text to generate.
type Request struct {
	Prompt    []int32 // token ids, at least one
	MaxTokens int     // of the answer; 0 means as many as the context holds
	Sampling  Sampling
	Stop      []string // texts that end the answer and are not part of it
	IgnoreEnd bool     // go on after the model's own end tokens
	// Token, if not nil, hears of every token; Text of every piece of text that can no longer become part of a stop
	// text or of an incomplete character. An error ends the generation and is returned.
	Token func(id int32) error
	Text  func(piece string) error
}

// Stop says why a generation ended.
type Stop string

// Reasons to stop.
const (
	StopEnd     Stop = "end"     // the model said so
	StopText    Stop = "stop"    // a stop text appeared
	StopLength  Stop = "length"  // MaxTokens
	StopContext Stop = "context" // no position left
)

// Result is what Generate did.
type Result struct {
	Text       string
	Tokens     []int32 // the answer, without an end token
	Prompt     int     // tokens of the prompt
	Stop       Stop
	PrefillFor time.Duration // until the first logits
	DecodeFor  time.Duration // after them
	Decoded    int           // tokens that passed through the model one by one
}

// Generate runs req on a new sequence of e. A prompt that does not fit is ErrContextFull; ctx ends it between layers. The
// result holds what was said until the error.
func (e *Engine) Generate(ctx context.Context, req Request) (res Result, err error) {
	res.Prompt = len(req.Prompt)
	if len(req.Prompt) == 0 {
		return res, fmt.Errorf("llm: empty prompt: %w", ErrOption)
	}
	if req.MaxTokens < 0 {
		return res, fmt.Errorf("llm: %d tokens: %w", req.MaxTokens, ErrOption)
	}
	if slices.Contains(req.Stop, "") {
		return res, fmt.Errorf("llm: an empty stop text: %w", ErrOption)
	}
	if n := e.m.opts.ContextLength; len(req.Prompt) > n {
		return res, fmt.Errorf("llm: a prompt of %d tokens for a context of %d: %w", len(req.Prompt), n, ErrContextFull)
	}
	seq := e.NewSequence()
	defer seq.Close()
	sampler, err := e.NewSampler(req.Sampling, req.Prompt)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, sampler.Close()) }()
	out := newOutput(e.m.Tokenizer, req)
	defer func() { res.Text = out.said.String() }()

	next := int32(0)
	choose := func(r Row) (err error) {
		next, err = sampler.Next(ctx, r)
		return err
	}
	start := time.Now()
	if err := e.Extend(ctx, seq, req.Prompt, nil, choose); err != nil {
		return res, err
	}
	res.PrefillFor = time.Since(start)
	start = time.Now()
	defer func() { res.DecodeFor = time.Since(start) }()
	for {
		if !req.IgnoreEnd && e.m.Tokenizer.IsEOG(next) {
			res.Stop = StopEnd
			break
		}
		res.Tokens = append(res.Tokens, next)
		stopped, err := out.add(next)
		if err != nil {
			return res, err
		}
		if stopped {
			res.Stop = StopText
			return res, nil
		}
		if len(res.Tokens) == req.MaxTokens {
			res.Stop = StopLength
			break
		}
		err = e.Extend(ctx, seq, []int32{next}, nil, choose)
		if errors.Is(err, ErrContextFull) {
			res.Stop = StopContext
			break
		}
		if err != nil {
			return res, err
		}
		res.Decoded++
	}
	stopped, err := out.flush()
	if stopped {
		res.Stop = StopText
	}
	return res, err
}

// output turns tokens into text, watches for stop texts, and holds back what may become part of one.
type output struct {
	req    Request
	stream *tokenizer.Stream
	held   []byte // decoded, not yet said
	said   strings.Builder
	max    int // longest stop text
}

func newOutput(t *tokenizer.Tokenizer, req Request) *output {
	o := &output{req: req, stream: t.NewStream(tokenizer.DecodeOptions{Continue: true})}
	for _, s := range req.Stop {
		o.max = max(o.max, len(s))
	}
	return o
}

// say gives the first n bytes that are held to the caller.
func (o *output) say(n int) error {
	s := string(o.held[:n])
	o.held = append(o.held[:0], o.held[n:]...)
	o.said.WriteString(s)
	if s == "" || o.req.Text == nil {
		return nil
	}
	return o.req.Text(s)
}

// add takes one token and reports whether a stop text has appeared.
func (o *output) add(id int32) (stopped bool, err error) {
	if o.req.Token != nil {
		if err := o.req.Token(id); err != nil {
			return false, err
		}
	}
	if o.held, err = o.stream.Append(o.held, id); err != nil {
		return false, err
	}
	return o.release()
}

// release says what can be said and reports whether a stop text has appeared.
func (o *output) release() (stopped bool, err error) {
	first := -1
	for _, s := range o.req.Stop {
		if i := bytes.Index(o.held, []byte(s)); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	if first >= 0 {
		err := o.say(first)
		o.held = nil
		return true, err
	}
	return false, o.say(len(o.held) - o.pending())
}

// pending is the length of the longest end of held that begins a stop text.
func (o *output) pending() int {
	for n := min(o.max-1, len(o.held)); n > 0; n-- {
		tail := string(o.held[len(o.held)-n:])
		if slices.ContainsFunc(o.req.Stop, func(s string) bool { return strings.HasPrefix(s, tail) }) {
			return n
		}
	}
	return 0
}

// flush says what was held back, and reports whether a stop text was in it.
func (o *output) flush() (stopped bool, err error) {
	o.held = o.stream.Flush(o.held)
	if stopped, err := o.release(); stopped || err != nil {
		return stopped, err
	}
	return false, o.say(len(o.held))
}
