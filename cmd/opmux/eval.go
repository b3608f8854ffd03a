package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/opmux/opmux/llm"
	"github.com/opmux/opmux/llm/tokenizer"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

type evalCmd struct {
	modelFlags `embed:""`

	Tokens []int32 `xor:"what" help:"Token ids to feed, comma-separated."`
	Text   string  `xor:"what" help:"Text to feed."`
	File   string  `xor:"what" placeholder:"FILE" help:"Text file to measure: bits per byte over chunks of --window tokens, each after the model's begin (or end) token."`
	Window int     `default:"256" help:"Tokens of a chunk with --file."`
	Top    int     `default:"10" help:"How many of the likeliest next tokens to print."`
	JSON   bool    `name:"json" help:"Print JSON."`
}

type guess struct {
	ID      int32   `json:"id"`
	Logprob float64 `json:"logprob"`
	Text    string  `json:"text"`
}

// evalStep is what the model expects after one token.
type evalStep struct {
	Index int      `json:"index"`
	Token int32    `json:"token"`
	Next  *float64 `json:"next_logprob,omitempty"` // of the token that follows in the input
	Top   []guess  `json:"top"`
}

type evaluated struct {
	Tokens     []int32     `json:"tokens"`
	Steps      []evalStep  `json:"steps"`
	SumLogprob float64     `json:"sum_logprob"` // of all tokens but the first
	Providers  []kernelUse `json:"providers"`
}

type measured struct {
	Bytes       int     `json:"bytes"`
	Tokens      int     `json:"tokens"`
	BitsPerByte float64 `json:"bits_per_byte"`
}

// Run feeds tokens and prints log-probabilities.
func (c *evalCmd) Run(a *app) (err error) {
	s, err := c.open(a, true, llm.Options{}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	switch {
	case c.File != "":
		return c.measure(a, s)
	case c.Text != "":
		c.Tokens = s.model.Tokenizer.Encode(c.Text, tokenizer.EncodeOptions{AddSpecial: true})
	case len(c.Tokens) == 0:
		return usagef("eval needs --tokens, --text or --file")
	}
	if c.Top < 0 {
		return usagef("--top %d", c.Top)
	}
	if n := s.model.Plan.Context; len(c.Tokens) > n {
		return fmt.Errorf("%d tokens for a context of %d: %w", len(c.Tokens), n, llm.ErrContextFull)
	}
	out := evaluated{Tokens: c.Tokens}
	err = s.logprobs(a, c.Tokens, func(i int, lp []float32) error {
		step := evalStep{Index: i, Token: c.Tokens[i], Top: s.best(lp, c.Top)}
		if i+1 < len(c.Tokens) {
			next := float64(lp[c.Tokens[i+1]])
			step.Next = &next
			out.SumLogprob += next
		}
		out.Steps = append(out.Steps, step)
		return nil
	})
	if err != nil {
		return err
	}
	out.Providers = used(registry.Default())
	if c.JSON {
		return a.printJSON(out)
	}
	rows := [][]string{{"#", "token", "text", "next", "expected"}}
	for _, st := range out.Steps {
		next, top := "", ""
		if st.Next != nil {
			next = fmt.Sprintf("%.4f", *st.Next)
		}
		for _, g := range st.Top {
			top += fmt.Sprintf("%q %.3f  ", g.Text, g.Logprob)
		}
		rows = append(rows, []string{fmt.Sprint(st.Index), fmt.Sprint(st.Token), fmt.Sprintf("%q", s.piece(st.Token)), next, top})
	}
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "\nsum of log-probabilities %.4f\n", out.SumLogprob)
	return nil
}

func (s *session) piece(id int32) string {
	b, _ := s.model.Tokenizer.AppendPiece(nil, id, true) // an id that was fed is in the vocabulary
	return string(b)
}

// best returns the n likeliest tokens, the lowest id first among equals.
func (s *session) best(lp []float32, n int) []guess {
	ids := make([]int32, len(lp))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortStableFunc(ids, func(a, b int32) int { return cmp.Compare(lp[b], lp[a]) })
	out := []guess{}
	for _, id := range ids[:min(n, len(ids))] {
		out = append(out, guess{id, float64(lp[id]), s.piece(id)})
	}
	return out
}

// logprobs feeds tokens to a new sequence and visits the log-probabilities of every next token, in order.
func (s *session) logprobs(a *app, tokens []int32, visit func(i int, lp []float32) error) error {
	seq := s.engine.NewSequence()
	defer seq.Close()
	lp := make([]float32, s.model.Config.VocabSize)
	out, err := tensor.FromSlice(lp, tensor.F32, 1, int64(len(lp)))
	if err != nil {
		return err
	}
	for at := 0; at < len(tokens); {
		n := min(s.model.Plan.Chunk, len(tokens)-at)
		err := s.engine.Forward(a.ctx, []llm.Chunk{{Seq: seq, Tokens: tokens[at : at+n], Want: llm.AllTokens}}, func(r llm.Row) error {
			if err := ops.ComputeLogprobs.Call(s.engine.Queue(), ops.ComputeLogprobsArgs{Logprobs: out, Logits: r.Logits}); err != nil {
				return err
			}
			return visit(at+r.Index, lp)
		})
		if err != nil {
			return err
		}
		at += n
	}
	return nil
}

// measure computes the bits per byte of a text.
func (c *evalCmd) measure(a *app, s *session) error {
	text, err := readText(c.File)
	if err != nil {
		return err
	}
	if c.Window > s.model.Plan.Context {
		return usagef("--window %d is longer than the context of %d", c.Window, s.model.Plan.Context)
	}
	t := s.model.Tokenizer
	first := t.BOS()
	if first < 0 {
		first = t.EOS()
	}
	if first < 0 || c.Window < 1 || len(text) == 0 {
		return usagef("--file needs a text, a window above 0 and a model with a begin or end token")
	}
	ids := t.Encode(string(text), tokenizer.EncodeOptions{})
	m := measured{Bytes: len(text), Tokens: len(ids)}
	for chunk := range slices.Chunk(ids, c.Window) {
		err := s.logprobs(a, append([]int32{first}, chunk[:len(chunk)-1]...), func(i int, lp []float32) error {
			m.BitsPerByte -= float64(lp[chunk[i]]) / math.Ln2 / float64(len(text))
			return nil
		})
		if err != nil {
			return err
		}
	}
	if c.JSON {
		return a.printJSON(m)
	}
	fmt.Fprintf(a.stdout, "%.4f bits per byte: %d bytes, %d tokens, windows of %d\n", m.BitsPerByte, m.Bytes, m.Tokens, c.Window)
	return nil
}

// regular refuses, as is, what exists and is no regular file; before opening, since a pipe would block.
func regular(name string, is error) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file: %w", name, is)
	}
	return nil
}

// maxText bounds a text file.
const maxText = 64 << 20

// readText reads a regular file of at most maxText bytes.
func readText(name string) ([]byte, error) {
	info, err := os.Stat(name) // before opening: a pipe would block
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, usagef("%s is not a regular file", name)
	case info.Size() > maxText:
		return nil, usagef("%s has %d bytes; the most is %d", name, info.Size(), maxText)
	}
	return os.ReadFile(name)
}
