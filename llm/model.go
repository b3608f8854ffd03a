// Package llm runs decoder language models of the Llama architecture (Llama 2 and 3, Mistral, TinyLlama, SmolLM shapes)
// from GGUF files. It is built only on package ops: which kernel serves which op is the registry's business, and what ran
// can be read there afterwards.
//
// Load reads a model onto a device; Model.NewEngine gives it a queue, scratch memory and a paged KV cache; an engine
// runs sequences, alone or in a batch; Engine.Generate is the loop that turns a prompt into text.
package llm

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/llm/tokenizer"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Options say how a model is loaded and run. The zero value of a field means its default.
type Options struct {
	Registry      *registry.Registry // default registry.Default()
	ContextLength int                // positions of each sequence; default: the model's own, at most 4096
	MaxSequences  int                // sequences that an engine holds at once; default 1
	ChunkSize     int                // tokens of one forward pass at most; default 512
	LogitRows     int                // rows of logits that are computed at once; default max(MaxSequences, 8)
	KVType        tensor.DType       // f32, f16 or bf16; default f16
	MemoryLimit   int64              // bytes; default what the device says is available
	Planned       func(Plan)         // hears the memory plan before anything is allocated
	Progress      func(done, total int64)
}

func (o Options) logitRows() int { return o.LogitRows }

// withDefaults fills unset fields and checks the set ones (ErrOption).
func (o Options) withDefaults(c Config) (Options, error) {
	if o.Registry == nil {
		o.Registry = registry.Default()
	}
	set := func(p *int, def int) {
		if *p == 0 {
			*p = def
		}
	}
	set(&o.ContextLength, min(c.ContextLength, 4096))
	set(&o.MaxSequences, 1)
	set(&o.ChunkSize, min(512, o.ContextLength))
	set(&o.LogitRows, max(o.MaxSequences, 8))
	if o.KVType == tensor.None {
		o.KVType = tensor.F16
	}
	switch {
	case o.ContextLength < 1 || o.ContextLength > maxContext:
		return o, fmt.Errorf("llm: context length %d: %w", o.ContextLength, ErrOption)
	case o.MaxSequences < 1 || o.MaxSequences > 1<<12:
		return o, fmt.Errorf("llm: %d sequences: %w", o.MaxSequences, ErrOption)
	case o.ChunkSize < o.MaxSequences || o.ChunkSize > 1<<16:
		return o, fmt.Errorf("llm: chunk of %d tokens for %d sequences: %w", o.ChunkSize, o.MaxSequences, ErrOption)
	case o.LogitRows < 1 || o.LogitRows > 1<<12:
		return o, fmt.Errorf("llm: %d rows of logits: %w", o.LogitRows, ErrOption)
	case o.MemoryLimit < 0:
		return o, fmt.Errorf("llm: memory limit of %d bytes: %w", o.MemoryLimit, ErrOption)
	case !o.KVType.IsFloat():
		return o, fmt.Errorf("llm: KV cache of %v: %w", o.KVType, ErrOption)
	}
	return o, nil
}

// Model is a loaded model. It is immutable and safe for concurrent use.
type Model struct {
	Config    Config
	Tokenizer *tokenizer.Tokenizer
	Plan      Plan

	opts    Options
	dev     device.Device
	release func() error // of the file's memory: weights may stay in it
	weights weights
	buffers []device.Buffer

	mu      sync.Mutex
	engines int
	closed  bool
}

// Load checks the whole file, plans the memory, and moves the weights to dev. The model holds the file's memory as long
// as it needs it; closing the file is the caller's, at any time after Load. ctx cancels between weights.
func Load(ctx context.Context, f *gguf.File, dev device.Device, o Options) (_ *Model, err error) {
	if f == nil || dev == nil {
		return nil, fmt.Errorf("llm: no file or no device: %w", ErrOption)
	}
	m := &Model{dev: dev}
	if m.release, err = f.Hold(); err != nil {
		return nil, fmt.Errorf("llm: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if m.Config, err = readConfig(f); err != nil {
		return nil, err
	}
	if m.Tokenizer, err = readTokenizer(f); err != nil {
		return nil, err
	}
	m.Config.VocabSize = m.Tokenizer.Len()
	if m.opts, err = o.withDefaults(m.Config); err != nil {
		return nil, err
	}
	loads, err := resolve(f, m.Config, &m.weights)
	if err != nil {
		return nil, err
	}
	m.Config.Rope.FreqFactors = hasTensor(f, "rope_freqs.weight")
	if m.Plan, err = makePlan(dev, m.Config, m.opts, loads); err != nil {
		return nil, err
	}
	if o.Planned != nil {
		o.Planned(m.Plan)
	}
	if err := m.Plan.check(o.MemoryLimit); err != nil {
		return nil, err
	}
	q, err := dev.NewQueue()
	if err != nil {
		return nil, err
	}
	defer q.Close()
	total, done := int64(0), int64(0)
	for i := range loads {
		total += sourceBytes(&loads[i])
	}
	for i := range loads {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		buf, err := loads[i].run(dev, q, func(n int64) {
			done += n
			if o.Progress != nil {
				o.Progress(done, total)
			}
		})
		if buf != nil {
			m.buffers = append(m.buffers, buf)
		}
		if err != nil {
			return nil, fmt.Errorf("llm: loading %v: %w", loads[i].names, err)
		}
		if buf != nil {
			if err := q.Sync(ctx); err != nil {
				return nil, err
			}
			for _, name := range loads[i].names {
				f.Discard(name)
			}
		}
	}
	if !m.weights.output.Present() {
		m.weights.output = m.weights.embed
	}
	if o.Progress != nil {
		o.Progress(total, total)
	}
	return m, nil
}

func sourceBytes(l *load) int64 {
	n := int64(0)
	for i := range l.parts {
		b, _ := l.parts[i].Bytes()
		n += b
	}
	return n
}

func hasTensor(f *gguf.File, name string) bool {
	_, err := f.Tensor(name)
	return err == nil
}

// Device returns the device that the weights are on.
func (m *Model) Device() device.Device { return m.dev }

// use counts an engine in, unless the model is closed.
func (m *Model) use() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("llm: model: %w", ErrClosed)
	}
	m.engines++
	return nil
}

// unuse counts an engine out.
func (m *Model) unuse() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.engines--
}

// Close frees the weights. With an engine open it frees nothing and returns ErrBusy. Closing twice is harmless.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.engines > 0 {
		return fmt.Errorf("llm: model with %d open engines: %w", m.engines, ErrBusy)
	}
	m.closed = true
	err := m.release()
	for _, b := range m.buffers {
		err = errors.Join(err, b.Close())
	}
	m.buffers = nil
	return err
}
