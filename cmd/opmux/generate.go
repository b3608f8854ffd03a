package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/opmux/opmux/llm"
	"github.com/opmux/opmux/llm/tokenizer"
	"github.com/opmux/opmux/registry"
)

type generateCmd struct {
	modelFlags `embed:""`
	watchFlags `embed:"" group:"Watching the run"`

	Prompt      string   `short:"p" default:"In the beginning" empty:"ok" help:"Text to continue."`
	N           int      `short:"n" default:"64" help:"Most tokens to generate; 0 goes on to the end of the context."`
	Seed        uint64   `default:"1" help:"Seed of the draws: equal seeds give equal texts."`
	Temperature float32  `default:"0.8" help:"0 always takes the likeliest token."`
	TopK        int      `help:"Keep the K likeliest tokens; 0 keeps all."`
	TopP        float32  `default:"0.95" help:"Keep the likeliest tokens that together reach this probability; 0 keeps one, 1 all."`
	MinP        float32  `help:"Drop tokens below this fraction of the likeliest one's probability."`
	Repetition  float32  `default:"1" help:"Above 1: tokens that were said become less likely."`
	Stop        []string `sep:"none" help:"Text that ends the answer (may be repeated)."`
	IgnoreEOS   bool     `name:"ignore-eos" help:"Go on after the model's end token."`
	Special     bool     `help:"Recognise special tokens in the prompt."`
	Quiet       bool     `short:"q" help:"Print the text only."`
	JSON        bool     `name:"json" help:"Print one JSON object instead of a stream of text."`
}

// phase is the speed of prefill or decode.
type phase struct {
	Tokens    int     `json:"tokens"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"tokens_per_second"`
}

func newPhase(n int, d time.Duration) phase {
	p := phase{Tokens: n, Seconds: d.Seconds()}
	if d > 0 && n > 0 {
		p.PerSecond = float64(n) / d.Seconds()
	}
	return p
}

type generated struct {
	Text         string      `json:"text"`
	Tokens       []int32     `json:"tokens"`
	PromptTokens int         `json:"prompt_tokens"`
	Stop         llm.Stop    `json:"stop"`
	Prefill      phase       `json:"prefill"`
	Decode       phase       `json:"decode"`
	Plan         llm.Plan    `json:"plan"`
	Providers    []kernelUse `json:"providers"`
}

// Run generates text.
func (c *generateCmd) Run(a *app) (err error) {
	w, err := c.start(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop(a)) }()
	loaded := w.span("load")
	s, err := c.open(a, c.JSON || c.Quiet, llm.Options{}, w.opened)
	loaded()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	defer func() { err = w.hold(a, err) }()
	req := llm.Request{
		Prompt:    s.model.Tokenizer.Encode(c.Prompt, tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: c.Special}),
		MaxTokens: c.N, Stop: c.Stop, IgnoreEnd: c.IgnoreEOS,
		Sampling: llm.Sampling{Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, MinP: c.MinP, Repetition: c.Repetition, Seed: c.Seed},
	}
	if len(req.Prompt) == 0 {
		return usagef("an empty prompt, and the model has no token that begins a text")
	}
	text, late := a.stdout, &strings.Builder{}
	if env, _ := registry.OptionsFromEnv(os.LookupEnv); env.Stats || len(env.Explain) > 0 {
		text = late // what the registry says meanwhile is not to stand in the middle of a line
	}
	if !c.JSON {
		fmt.Fprint(text, c.Prompt)
		req.Text = func(piece string) error { _, err := fmt.Fprint(text, piece); return err }
	}
	done := w.span("generate")
	res, err := s.engine.Generate(a.ctx, req)
	done()
	if !c.JSON {
		fmt.Fprintln(a.stdout, late)
	}
	if err != nil {
		return err
	}
	idle := w.executed()
	out := generated{Text: res.Text, Tokens: append([]int32{}, res.Tokens...), PromptTokens: res.Prompt, Stop: res.Stop,
		Prefill: newPhase(res.Prompt, res.PrefillFor), Decode: newPhase(res.Decoded, res.DecodeFor),
		Plan: s.model.Plan, Providers: used(registry.Default())}
	switch {
	case c.JSON:
		return errors.Join(a.printJSON(out), idle)
	case c.Quiet:
		return idle
	}
	fmt.Fprintf(a.stdout, "\nprefill %d tokens, %.1f tokens/s; decode %d tokens, %.1f tokens/s; stopped by %s; %s\n\n",
		out.Prefill.Tokens, out.Prefill.PerSecond, out.Decode.Tokens, out.Decode.PerSecond, out.Stop, s.dev.Name())
	return errors.Join(usedTable(a.stdout, out.Providers), idle)
}
