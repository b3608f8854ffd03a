package llm

import (
	"context"
	"fmt"
	"math"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Sampling says how the next token is chosen from logits. The steps come in vLLM's order: banned tokens, bias,
// penalties, temperature, min-p, top-k, top-p, and one draw. The zero value is greedy.
type Sampling struct {
	Temperature float32           // 0 is greedy: the largest logit, the lowest id of equal ones
	TopK        int               // keep the k largest; 0 keeps all
	TopP        float32           // keep the fewest tokens whose probabilities reach p; 0 keeps one, 1 all
	MinP        float32           // drop tokens below p times the largest probability; 0 drops none
	Repetition  float32           // > 1 makes tokens of prompt and output less likely; 0 means 1, no penalty
	Frequency   float32           // subtracted from a logit for each time the output has the token
	Presence    float32           // subtracted once if the output has the token
	Bias        map[int32]float32 // added to logits
	Banned      []int32           // never chosen
	Seed        uint64            // of the draws; equal seeds give equal texts
}

// check reports what is out of range (ErrOption, or ErrToken for an id outside a vocabulary of n).
func (s Sampling) check(n int) error {
	bad := func(f float32, lo, hi float64) bool { return !(float64(f) >= lo && float64(f) <= hi) }
	switch {
	case bad(s.Temperature, 0, math.MaxFloat32):
		return fmt.Errorf("llm: temperature %v: %w", s.Temperature, ErrOption)
	case s.TopK < 0 || s.TopK > math.MaxInt32:
		return fmt.Errorf("llm: top-k %d: %w", s.TopK, ErrOption)
	case bad(s.TopP, 0, 1):
		return fmt.Errorf("llm: top-p %v is outside 0..1: %w", s.TopP, ErrOption)
	case bad(s.MinP, 0, 1):
		return fmt.Errorf("llm: min-p %v is outside 0..1: %w", s.MinP, ErrOption)
	case bad(s.Repetition, 0, math.MaxFloat32):
		return fmt.Errorf("llm: repetition penalty %v: %w", s.Repetition, ErrOption)
	case bad(s.Frequency, -math.MaxFloat32, math.MaxFloat32) || bad(s.Presence, -math.MaxFloat32, math.MaxFloat32):
		return fmt.Errorf("llm: penalties %v, %v: %w", s.Frequency, s.Presence, ErrOption)
	}
	for _, id := range s.Banned {
		if id < 0 || int(id) >= n {
			return fmt.Errorf("llm: banned token %d in a vocabulary of %d: %w", id, n, ErrToken)
		}
	}
	banned := map[int32]bool{}
	for _, id := range s.Banned {
		banned[id] = true
	}
	if len(banned) == n {
		return fmt.Errorf("llm: every token is banned: %w", ErrOption)
	}
	for id, b := range s.Bias {
		if b != b {
			return fmt.Errorf("llm: bias of token %d is NaN: %w", id, ErrOption)
		}
		if id < 0 || int(id) >= n {
			return fmt.Errorf("llm: biased token %d in a vocabulary of %d: %w", id, n, ErrToken)
		}
	}
	return nil
}

func (s Sampling) greedy() bool { return s.Temperature == 0 || s.TopP == 0 }

func (s Sampling) penalised() bool {
	return s.Repetition != 0 && s.Repetition != 1 || s.Frequency != 0 || s.Presence != 0
}

// regions of a sampler's scratch memory
const (
	samLogits region = iota
	samProbs
	samToken
	samSeed
	samTemp
	samMinP
	samTopP
	samTopK
	samPromptMask
	samOutputMask
	samCounts
	samFrequency
	samPresence
	samRepetition
	samBanRows
	samBanCols
	samBiasRows
	samBiasCols
	samBias
	numSamRegions
)

// Sampler draws the tokens of one sequence: it knows the options, what was said so far, and has scratch memory on the
// engine's device.
type Sampler struct {
	e     *Engine
	opts  Sampling
	arena *arena
	step  uint64

	promptMask, outputMask []int8
	counts                 []int32
	banCols, biasCols      []int32
	bias                   []float32
}

// NewSampler returns a sampler for one sequence whose prompt is given (for the penalties).
func (e *Engine) NewSampler(o Sampling, prompt []int32) (*Sampler, error) {
	V := e.m.Config.VocabSize
	if !e.open {
		return nil, fmt.Errorf("llm: engine: %w", ErrClosed)
	}
	if err := o.check(V); err != nil {
		return nil, err
	}
	s := &Sampler{e: e, opts: o, banCols: o.Banned}
	for id, b := range o.Bias {
		s.biasCols, s.bias = append(s.biasCols, id), append(s.bias, b)
	}
	one := func(t tensor.DType) shape { return shape{t, 1} }
	sh := make(shapes, numSamRegions)
	sh[samLogits], sh[samProbs] = shape{tensor.F32, int64(V)}, shape{tensor.F32, int64(V)}
	sh[samToken], sh[samSeed], sh[samTopK] = one(tensor.I64), one(tensor.I64), one(tensor.I32)
	for _, r := range []region{samTemp, samMinP, samTopP, samFrequency, samPresence, samRepetition} {
		sh[r] = one(tensor.F32)
	}
	if o.penalised() {
		s.promptMask, s.outputMask, s.counts = make([]int8, V), make([]int8, V), make([]int32, V)
		sh[samPromptMask], sh[samOutputMask], sh[samCounts] = shape{tensor.I8, int64(V)}, shape{tensor.I8, int64(V)}, shape{tensor.I32, int64(V)}
		for _, id := range prompt {
			if id >= 0 && int(id) < V {
				s.promptMask[id] = 1
			}
		}
	}
	sh[samBanRows], sh[samBanCols] = shape{tensor.I32, int64(len(s.banCols))}, shape{tensor.I32, int64(len(s.banCols))}
	n := int64(len(s.bias))
	sh[samBiasRows], sh[samBiasCols], sh[samBias] = shape{tensor.I32, n}, shape{tensor.I32, n}, shape{tensor.F32, n}
	for r := range sh {
		if sh[r].dtype == tensor.None {
			sh[r].dtype = tensor.I8
		}
	}
	var err error
	s.arena, err = newArena(e.m.dev, sh)
	return s, err
}

// Close frees the sampler's memory. Closing twice is harmless.
func (s *Sampler) Close() error {
	if s.arena == nil {
		return nil
	}
	a := s.arena
	s.arena = nil
	return a.buf.Close()
}

// Next chooses the token that follows row, and remembers it as output. A NaN among the logits is ErrValue.
func (s *Sampler) Next(ctx context.Context, row Row) (int32, error) {
	e, V := s.e, int64(s.e.m.Config.VocabSize)
	host, err := e.Host(ctx, row)
	if err != nil {
		return 0, err
	}
	for id, v := range host {
		if v != v {
			return 0, fmt.Errorf("llm: the logit of token %d is NaN: %w", id, ErrValue)
		}
	}
	p := stage{arena: s.arena, queue: e.queue}
	logits := p.view(samLogits, 1, V)
	p.do(func() error { return e.queue.Copy(&logits, &row.Logits) })
	s.shape(&p, logits)
	token := p.view(samToken, 1)
	if s.opts.greedy() {
		p.do(func() error {
			return ops.GreedyArgmax.Call(e.rq, ops.GreedyArgmaxArgs{TokenIDs: token, Logits: logits})
		})
	} else {
		s.draw(&p, token, logits)
	}
	id, err := s.read(ctx, &p, token)
	if err != nil {
		return 0, err
	}
	if s.counts != nil {
		s.counts[id]++
		s.outputMask[id] = 1
	}
	s.step++
	return id, nil
}

// shape applies what does not depend on the draw: bans, bias, penalties.
func (s *Sampler) shape(p *stage, logits tensor.Tensor) {
	q := s.e.rq
	if n := int64(len(s.banCols)); n > 0 {
		a := ops.ApplyTokenMaskArgs{Logits: logits}
		put(p, &a.Rows, samBanRows, make([]int32, n), n)
		put(p, &a.Cols, samBanCols, s.banCols, n)
		p.do(func() error { return ops.ApplyTokenMask.Call(q, a) })
	}
	if n := int64(len(s.bias)); n > 0 {
		a := ops.ApplyLogitBiasArgs{Logits: logits}
		put(p, &a.Rows, samBiasRows, make([]int32, n), n)
		put(p, &a.Cols, samBiasCols, s.biasCols, n)
		put(p, &a.Biases, samBias, s.bias, n)
		p.do(func() error { return ops.ApplyLogitBias.Call(q, a) })
	}
	if s.counts != nil {
		V := int64(len(s.counts))
		a := ops.ApplyPenaltiesArgs{Logits: logits}
		put(p, &a.PromptMask, samPromptMask, s.promptMask, 1, V)
		put(p, &a.OutputMask, samOutputMask, s.outputMask, 1, V)
		put(p, &a.OutputBinCounts, samCounts, s.counts, 1, V)
		rep := s.opts.Repetition
		if rep == 0 {
			rep = 1
		}
		put(p, &a.FrequencyPenalties, samFrequency, []float32{s.opts.Frequency}, 1)
		put(p, &a.PresencePenalties, samPresence, []float32{s.opts.Presence}, 1)
		put(p, &a.RepetitionPenalties, samRepetition, []float32{rep}, 1)
		p.do(func() error { return ops.ApplyPenalties.Call(q, a) })
	}
}

func (s *Sampler) draw(p *stage, token, logits tensor.Tensor) {
	q, o := s.e.rq, s.opts
	temp := ops.ApplyTemperatureArgs{Logits: logits, AllRandom: true}
	put(p, &temp.Temp, samTemp, []float32{o.Temperature}, 1)
	p.do(func() error { return ops.ApplyTemperature.Call(q, temp) })
	if o.MinP > 0 {
		a := ops.ApplyMinPArgs{Logits: logits}
		put(p, &a.MinP, samMinP, []float32{o.MinP}, 1)
		p.do(func() error { return ops.ApplyMinP.Call(q, a) })
	}
	cut := ops.ApplyTopKTopPArgs{Logits: logits}
	if o.TopK > 0 {
		put(p, &cut.K, samTopK, []int32{int32(o.TopK)}, 1)
	}
	if o.TopP < 1 {
		put(p, &cut.P, samTopP, []float32{o.TopP}, 1)
	}
	if cut.K.Present() || cut.P.Present() {
		p.do(func() error { return ops.ApplyTopKTopP.Call(q, cut) })
	}
	probs := p.view(samProbs, logits.Dims()...)
	p.do(func() error { return ops.ComputeProbs.Call(q, ops.ComputeProbsArgs{Probs: probs, Logits: logits}) })
	a := ops.RandomSampleArgs{TokenIDs: token, Probs: probs}
	const golden = 0x9E3779B97F4A7C15 // an odd step visits every seed
	put(p, &a.Seeds, samSeed, []int64{int64(o.Seed + golden*s.step)}, 1)
	p.do(func() error { return ops.RandomSample.Call(q, a) })
}

// read fetches the chosen id.
func (s *Sampler) read(ctx context.Context, p *stage, token tensor.Tensor) (int32, error) {
	var id [1]int64
	p.do(func() error {
		dst, err := tensor.FromSlice(id[:], tensor.I64)
		if err != nil {
			return err
		}
		return s.e.queue.Copy(&dst, &token)
	})
	p.do(func() error { return s.e.queue.Sync(ctx) })
	if p.err == nil && (id[0] < 0 || id[0] >= int64(s.e.m.Config.VocabSize)) {
		p.err = fmt.Errorf("llm: the sampler chose token %d of %d: %w", id[0], s.e.m.Config.VocabSize, ErrValue)
	}
	return int32(id[0]), p.err
}
