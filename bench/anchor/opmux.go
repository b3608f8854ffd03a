package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/llm"
)

// open loads file on the CPU and gives it an engine.
func open(ctx context.Context, file string, threads int) (*gguf.File, *llm.Model, *llm.Engine, error) {
	f, err := gguf.Open(file)
	if err != nil {
		return nil, nil, nil, err
	}
	dev, err := cpu.Open(cpu.Options{Threads: threads})
	if err != nil {
		return nil, nil, nil, err
	}
	m, err := llm.Load(ctx, f, dev, llm.Options{ContextLength: 1024})
	if err != nil {
		return nil, nil, nil, err
	}
	e, err := m.NewEngine()
	return f, m, e, err
}

// measure is one round of opmux: a warm-up, then prefill and greedy decode.
func measure(ctx context.Context, file string, threads int) (speed, error) {
	_, m, e, err := open(ctx, file, threads)
	if err != nil {
		return speed{}, err
	}
	prompt := make([]int32, prefillLen)
	for i := range prompt {
		prompt[i] = int32(300 + (i*7919)%(m.Config.VocabSize-1000))
	}
	var s speed
	for range 2 {
		res, err := e.Generate(ctx, llm.Request{Prompt: prompt, MaxTokens: decodeLen + 1, IgnoreEnd: true})
		if err != nil {
			return speed{}, err
		}
		s.Prefill = prefillLen / res.PrefillFor.Seconds()
		s.Decode = float64(res.Decoded) / res.DecodeFor.Seconds()
	}
	info, err := os.Stat(file)
	if err != nil {
		return s, err
	}
	s.Limit = int64(float64(info.Size())*1.15) + m.Plan.KV + 64<<20
	s.HWM, err = peakMemory()
	return s, err
}

// peakMemory is VmHWM of this process.
func peakMemory() (int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kb int64
			_, err := fmt.Sscan(rest, &kb)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no VmHWM in /proc/self/status")
}

// logprobs feeds steps fixed tokens and returns them with the log-probabilities of every next token after each.
func logprobs(ctx context.Context, file string, steps int) ([]int32, [][]float64, error) {
	_, m, e, err := open(ctx, file, 2)
	if err != nil {
		return nil, nil, err
	}
	tokens := make([]int32, steps)
	for i := range tokens {
		tokens[i] = int32((300 + i*7919) % m.Config.VocabSize)
	}
	var out [][]float64
	seq := e.NewSequence()
	err = e.Forward(ctx, []llm.Chunk{{Seq: seq, Tokens: tokens, Want: llm.AllTokens}}, func(r llm.Row) error {
		logits, err := e.Host(ctx, r)
		if err != nil {
			return err
		}
		lse := math.Inf(-1)
		for _, l := range logits {
			lse = max(lse, float64(l))
		}
		sum := 0.0
		for _, l := range logits {
			sum += math.Exp(float64(l) - lse)
		}
		lse += math.Log(sum)
		row := make([]float64, len(logits))
		for i, l := range logits {
			row[i] = float64(l) - lse
		}
		out = append(out, row)
		return nil
	})
	return tokens, out, err
}
