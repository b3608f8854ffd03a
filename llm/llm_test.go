package llm_test

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/llm"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// rig is a registry with the CPU's kernels and one open CPU.
type rig struct {
	reg *registry.Registry
	dev *cpu.Device
}

func newRig(t testing.TB) rig {
	reg := registry.New(registry.Options{})
	require.NoError(t, cpu.Register(reg))
	dev, err := cpu.Open(cpu.Options{Threads: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return rig{reg, dev}
}

func (r rig) load(t testing.TB, data []byte, o llm.Options) *llm.Model {
	f, err := gguf.Parse(data)
	require.NoError(t, err)
	o.Registry = r.reg
	m, err := llm.Load(t.Context(), f, r.dev, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func engine(t testing.TB, m *llm.Model) *llm.Engine {
	e, err := m.NewEngine()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func someTokens(n, vocab int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(3 + (i*7919)%(vocab-3))
	}
	return v
}

// collect returns a visit function that copies each row of logits.
func collect(t testing.TB, e *llm.Engine, into *[][]float32) func(llm.Row) error {
	return func(r llm.Row) error {
		l, err := e.Host(t.Context(), r)
		*into = append(*into, append([]float32{}, l...))
		return err
	}
}

func TestForwardMatchesTheFormula(t *testing.T) {
	yarn := func(i int) float64 { // ramp over pairs 0..7 of a rotary width of 16, base 10000, factor 4, trained length 64
		at := func(turns float64) float64 { return 16 * math.Log(64/(turns*2*math.Pi)) / (2 * math.Log(10000)) }
		lo, hi := max(math.Floor(at(32)), 0), min(math.Ceil(at(1)), 15)
		ramp := 1 - min(max((float64(i)-lo)/max(0.001, hi-lo), 0), 1)
		return 0.25*(1-ramp) + ramp
	}
	cases := map[string]*tiny{
		"f32":          {},
		"tied":         {tied: true},
		"one kv head":  {kvHeads: 1},
		"no grouping":  {kvHeads: 4},
		"bias":         {bias: true},
		"wide heads":   {headSize: 32},
		"partial rope": {ropeDim: 8},
		"rope factors": {freqs: true, base: 500000},
		"odd widths":   {width: 36, heads: 3, kvHeads: 3, ff: 50, vocab: 277},
		"f16":          {dtype: tensor.F16},
		"bf16":         {dtype: tensor.BF16},
		"q8_0":         {dtype: tensor.Q8_0},
		"q4_0":         {dtype: tensor.Q4_0, tied: true},
		"q5_1":         {dtype: tensor.Q5_1},
		"mixed":        {dtype: tensor.Q8_0, dtypeOf: map[string]tensor.DType{"attn_v.weight": tensor.F16, "ffn_up.weight": tensor.Q4_0, "token_embd.weight": tensor.F32}},
		"linear rope": {meta: []gguf.KV{{Key: "llama.rope.scaling.type", Value: "linear"}, {Key: "llama.rope.scaling.factor", Value: float32(4)}},
			freqScale: func(int) float64 { return 0.25 }},
		"yarn rope": {meta: []gguf.KV{{Key: "llama.rope.scaling.type", Value: "yarn"}, {Key: "llama.rope.scaling.factor", Value: float32(4)},
			{Key: "llama.rope.scaling.original_context_length", Value: uint32(64)}}, freqScale: yarn, ropeScale: 1 + 0.1*math.Log(4)},
	}
	r := newRig(t)
	for name, m := range cases {
		t.Run(name, func(t *testing.T) {
			data := m.file(t)
			limit := 1e-9 // f32 arithmetic
			if m.dtype.IsBlock() {
				limit = 1e-2 // activations are packed to 8 bits
			}
			tokens := someTokens(75, m.vocab)
			want := m.naive(tokens)
			model := r.load(t, data, llm.Options{KVType: tensor.F32, ChunkSize: 32})
			e := engine(t, model)
			seq := e.NewSequence()
			var got [][]float32
			for at := 0; at < len(tokens); { // chunks of several sizes, 1 among them
				n := min([]int{32, 1, 7, 20}[at%4], len(tokens)-at)
				require.NoError(t, e.Forward(t.Context(), []llm.Chunk{{Seq: seq, Tokens: tokens[at : at+n], Want: llm.AllTokens}}, collect(t, e, &got)))
				at += n
			}
			require.Len(t, got, len(tokens))
			for i := range got {
				require.Less(t, nmse(got[i], want[i]), limit, "after token %d", i)
			}
		})
	}
}

// Models in every format that a weight can have.
func TestEveryWeightFormat(t *testing.T) {
	r := newRig(t)
	seen := map[tensor.DType]bool{}
	for _, sig := range ops.MatmulBTQuant.Signatures() {
		dt := sig.DType("b")
		if seen[dt] {
			continue
		}
		seen[dt] = true
		t.Run(dt.String(), func(t *testing.T) {
			m := &tiny{dtype: dt, layers: 1, width: 256, ff: 256}
			data := m.file(t)
			tokens := someTokens(9, m.vocab)
			want := m.naive(tokens)
			e := engine(t, r.load(t, data, llm.Options{KVType: tensor.F32}))
			var got [][]float32
			require.NoError(t, e.Forward(t.Context(), []llm.Chunk{{Seq: e.NewSequence(), Tokens: tokens, Want: llm.AllTokens}}, collect(t, e, &got)))
			require.Len(t, got, len(tokens))
			limit := 1e-9 // f32 arithmetic
			if dt <= tensor.Q6_K {
				limit = 1e-2 // activations are packed to 8 bits
			}
			for i := range got {
				require.Less(t, nmse(got[i], want[i]), limit, "after token %d", i)
			}
		})
	}
	require.Len(t, seen, 26)
}

func TestUnalignedFileGivesTheSameLogits(t *testing.T) {
	r := newRig(t)
	m := &tiny{dtypeOf: map[string]tensor.DType{"ffn_down.weight": tensor.F16}}
	data := m.file(t)
	var rows [2][][]float32
	for i, d := range [][]byte{data, unaligned(data)} {
		e := engine(t, r.load(t, d, llm.Options{}))
		require.NoError(t, e.Extend(t.Context(), e.NewSequence(), someTokens(20, m.vocab), nil, collect(t, e, &rows[i])))
	}
	require.Equal(t, rows[0], rows[1])
}

func TestBatchOfSequences(t *testing.T) {
	r := newRig(t)
	m := &tiny{dtype: tensor.Q8_0}
	model := r.load(t, m.file(t), llm.Options{MaxSequences: 3, ChunkSize: 64})
	prompts := [][]int32{someTokens(40, m.vocab), someTokens(5, 200), {7}}
	var alone [][]float32
	for _, p := range prompts {
		e := engine(t, model)
		require.NoError(t, e.Extend(t.Context(), e.NewSequence(), p, nil, collect(t, e, &alone)))
	}
	e := engine(t, model)
	var batch []llm.Chunk
	for _, p := range prompts {
		batch = append(batch, llm.Chunk{Seq: e.NewSequence(), Tokens: p})
	}
	var together [][]float32
	require.NoError(t, e.Forward(t.Context(), batch, collect(t, e, &together)))
	require.Len(t, together, 3)
	for i := range together {
		want := make([]float64, len(alone[i]))
		for j, v := range alone[i] {
			want[j] = float64(v)
		}
		require.Less(t, nmse(together[i], want), 1e-6)
	}
}

func TestCacheBlocksComeBack(t *testing.T) {
	r := newRig(t)
	m := &tiny{}
	e := engine(t, r.load(t, m.file(t), llm.Options{ContextLength: 64}))
	tokens := someTokens(60, m.vocab)
	var first, again [][]float32
	for range 3 {
		seq := e.NewSequence()
		require.NoError(t, e.Extend(t.Context(), seq, tokens, nil, collect(t, e, &first)))
		require.ErrorIs(t, e.Extend(t.Context(), seq, tokens, nil, nil), llm.ErrContextFull)
		require.Equal(t, 60, seq.Len())
		seq.Truncate(33)
		require.NoError(t, e.Extend(t.Context(), seq, tokens[33:], nil, collect(t, e, &again)))
		require.NoError(t, seq.Close())
		require.NoError(t, seq.Close())
	}
	require.Equal(t, first, again)
}

func TestGenerateIsSeededAndCancelled(t *testing.T) {
	r := newRig(t)
	m := &tiny{}
	e := engine(t, r.load(t, m.file(t), llm.Options{ContextLength: 128}))
	req := llm.Request{Prompt: someTokens(9, m.vocab), MaxTokens: 20, IgnoreEnd: true, Sampling: llm.Sampling{Temperature: 1, TopP: 0.9, TopK: 50, MinP: 0.01, Repetition: 1.1, Seed: 5,
		Bias: map[int32]float32{9: 1}, Banned: []int32{11, 12}}}
	a, err := e.Generate(t.Context(), req)
	require.NoError(t, err)
	require.Len(t, a.Tokens, 20)
	require.Equal(t, llm.StopLength, a.Stop)
	require.NotContains(t, a.Tokens, int32(11))
	b, err := e.Generate(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, a.Tokens, b.Tokens)
	req.Sampling.Seed = 6
	c, err := e.Generate(t.Context(), req)
	require.NoError(t, err)
	require.NotEqual(t, a.Tokens, c.Tokens)

	greedy, err := e.Generate(t.Context(), llm.Request{Prompt: req.Prompt, MaxTokens: 10, IgnoreEnd: true})
	require.NoError(t, err)
	oneToken, err := e.Generate(t.Context(), llm.Request{Prompt: req.Prompt, MaxTokens: 10, IgnoreEnd: true, Sampling: llm.Sampling{Temperature: 1}})
	require.NoError(t, err)
	require.Equal(t, greedy.Tokens, oneToken.Tokens, "top-p 0 keeps one token")

	full, err := e.Generate(t.Context(), llm.Request{Prompt: req.Prompt, IgnoreEnd: true})
	require.NoError(t, err)
	require.Equal(t, llm.StopContext, full.Stop)
	require.Len(t, full.Tokens, 128-9+1) // the last one needs no place in the cache

	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	n := 0
	req.Token = func(int32) error {
		if n++; n == 3 {
			cancel()
		}
		return nil
	}
	part, err := e.Generate(ctx, req)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, part.Tokens, 3)
}

func TestStopTexts(t *testing.T) {
	r := newRig(t)
	m := &tiny{}
	e := engine(t, r.load(t, m.file(t), llm.Options{}))
	base := llm.Request{Prompt: someTokens(9, m.vocab), MaxTokens: 40, IgnoreEnd: true, Sampling: llm.Sampling{Temperature: 1, TopP: 1, Seed: 3}}
	all, err := e.Generate(t.Context(), base)
	require.NoError(t, err)
	require.Greater(t, len(all.Text), 12)
	stop := all.Text[8:12]
	var said strings.Builder
	req := base
	req.Stop = []string{"never said", stop}
	req.Text = func(s string) error { said.WriteString(s); return nil }
	got, err := e.Generate(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, llm.StopText, got.Stop)
	require.Equal(t, all.Text[:strings.Index(all.Text, stop)], got.Text)
	require.Equal(t, got.Text, said.String())

	boom := errors.New("boom")
	req.Text = func(string) error { return boom }
	_, err = e.Generate(t.Context(), req)
	require.ErrorIs(t, err, boom)
}

func TestBadInput(t *testing.T) {
	r := newRig(t)
	m := &tiny{}
	data := m.file(t)
	e := engine(t, r.load(t, data, llm.Options{ContextLength: 32, MaxSequences: 2, ChunkSize: 16}))
	ctx, none := t.Context(), func(llm.Row) error { return nil }
	seq, other := e.NewSequence(), engine(t, r.load(t, data, llm.Options{})).NewSequence()
	gen := func(req llm.Request) error { _, err := e.Generate(ctx, req); return err }
	ok := llm.Sampling{Temperature: 1, TopP: 1}
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"id too large":     {e.Forward(ctx, []llm.Chunk{{Seq: seq, Tokens: []int32{1, 300}}}, none), llm.ErrToken},
		"id negative":      {e.Forward(ctx, []llm.Chunk{{Seq: seq, Tokens: []int32{-1}}}, none), llm.ErrToken},
		"chunk too large":  {e.Forward(ctx, []llm.Chunk{{Seq: seq, Tokens: make([]int32, 17)}}, none), llm.ErrOption},
		"twice":            {e.Forward(ctx, []llm.Chunk{{Seq: seq, Tokens: []int32{1}}, {Seq: seq, Tokens: []int32{1}}}, none), llm.ErrOption},
		"no sequence":      {e.Forward(ctx, []llm.Chunk{{Tokens: []int32{1}}}, none), llm.ErrOption},
		"foreign sequence": {e.Forward(ctx, []llm.Chunk{{Seq: other, Tokens: []int32{1}}}, none), llm.ErrOption},
		"context":          {gen(llm.Request{Prompt: make([]int32, 33)}), llm.ErrContextFull},
		"no prompt":        {gen(llm.Request{}), llm.ErrOption},
		"temperature":      {gen(llm.Request{Prompt: []int32{1}, Sampling: llm.Sampling{Temperature: nan}}), llm.ErrOption},
		"top-p":            {gen(llm.Request{Prompt: []int32{1}, Sampling: llm.Sampling{Temperature: 1, TopP: 1.5}}), llm.ErrOption},
		"banned id":        {gen(llm.Request{Prompt: []int32{1}, Sampling: llm.Sampling{Banned: []int32{300}}}), llm.ErrToken},
		"bias is NaN":      {gen(llm.Request{Prompt: []int32{1}, Sampling: llm.Sampling{Temperature: 1, TopP: 1, Bias: map[int32]float32{4: nan}}}), llm.ErrOption},
		"empty stop":       {gen(llm.Request{Prompt: []int32{1}, Stop: []string{""}, Sampling: ok}), llm.ErrOption},
	} {
		require.ErrorIs(t, c.err, c.want, name)
	}
	require.Zero(t, seq.Len())
	require.NoError(t, e.Forward(ctx, nil, none))
	require.NoError(t, e.Forward(ctx, []llm.Chunk{{Seq: seq}}, none))
}

func TestNaNLogits(t *testing.T) {
	r := newRig(t)
	m := &tiny{dtypeOf: map[string]tensor.DType{}}
	data := m.file(t)
	f, err := gguf.Parse(data)
	require.NoError(t, err)
	w, err := f.Bytes("output.weight")
	require.NoError(t, err)
	copy(w[4*64*10:], []byte{0, 0, 0xc0, 0x7f}) // one NaN in the row of token 10
	e := engine(t, r.load(t, data, llm.Options{}))
	_, err = e.Generate(t.Context(), llm.Request{Prompt: []int32{1}})
	require.ErrorIs(t, err, llm.ErrValue)
	require.ErrorContains(t, err, "token 10")
}

func TestLoadRefuses(t *testing.T) {
	r := newRig(t)
	load := func(m *tiny, o llm.Options) error {
		f, err := gguf.Parse(m.file(t))
		require.NoError(t, err)
		o.Registry = r.reg
		model, err := llm.Load(t.Context(), f, r.dev, o)
		if err == nil {
			require.NoError(t, model.Close())
		}
		return err
	}
	kv := func(k string, v any) []gguf.KV { return []gguf.KV{{Key: k, Value: v}} }
	require.ErrorIs(t, load(&tiny{}, llm.Options{MemoryLimit: 1000}), llm.ErrMemory)
	require.ErrorIs(t, load(&tiny{}, llm.Options{KVType: tensor.Q4_0}), llm.ErrOption)
	require.ErrorIs(t, load(&tiny{}, llm.Options{ContextLength: -1}), llm.ErrOption)
	require.ErrorIs(t, load(&tiny{kvHeads: 3}, llm.Options{}), llm.ErrModel)
	require.ErrorIs(t, load(&tiny{meta: kv("llama.expert_count", uint32(8))}, llm.Options{}), llm.ErrUnsupported)
	require.ErrorIs(t, load(&tiny{meta: kv("llama.rope.scaling.type", "magic")}, llm.Options{}), llm.ErrUnsupported)
	require.ErrorIs(t, load(&tiny{meta: kv("split.count", uint16(2))}, llm.Options{}), llm.ErrUnsupported)
	require.ErrorIs(t, load(&tiny{ropeDim: 7}, llm.Options{}), llm.ErrModel)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := gguf.Parse((&tiny{}).file(t))
	require.NoError(t, err)
	_, err = llm.Load(ctx, f, r.dev, llm.Options{Registry: r.reg})
	require.ErrorIs(t, err, context.Canceled)
	planned := false
	_, err = llm.Load(t.Context(), f, r.dev, llm.Options{Registry: r.reg, MemoryLimit: 1, Planned: func(p llm.Plan) { planned = p.Total > 0 }})
	require.ErrorIs(t, err, llm.ErrMemory)
	require.True(t, planned)
}

func TestCloseInAnyOrder(t *testing.T) {
	r := newRig(t)
	m := &tiny{dtype: tensor.F16}
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	require.NoError(t, os.WriteFile(path, m.file(t), 0o644))
	f, err := gguf.Open(path)
	require.NoError(t, err)
	model, err := llm.Load(t.Context(), f, r.dev, llm.Options{Registry: r.reg})
	require.NoError(t, err)
	e, err := model.NewEngine()
	require.NoError(t, err)
	require.NoError(t, f.Close()) // the embedding is still read from the file's memory
	require.ErrorIs(t, model.Close(), llm.ErrBusy)
	res, err := e.Generate(t.Context(), llm.Request{Prompt: []int32{1}, MaxTokens: 3, IgnoreEnd: true})
	require.NoError(t, err)
	require.Len(t, res.Tokens, 3)

	seq := e.NewSequence()
	require.NoError(t, seq.Close())
	require.ErrorIs(t, e.Forward(t.Context(), []llm.Chunk{{Seq: seq, Tokens: []int32{1}}}, nil), llm.ErrClosed)
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.ErrorIs(t, e.Forward(t.Context(), nil, nil), llm.ErrClosed)
	_, err = e.NewSampler(llm.Sampling{}, nil)
	require.ErrorIs(t, err, llm.ErrClosed)
	_, err = e.Generate(t.Context(), llm.Request{Prompt: []int32{1}})
	require.ErrorIs(t, err, llm.ErrClosed)
	require.NoError(t, model.Close())
	require.NoError(t, model.Close())
	_, err = model.NewEngine()
	require.ErrorIs(t, err, llm.ErrClosed)
	_, err = llm.Load(t.Context(), f, r.dev, llm.Options{Registry: r.reg})
	require.ErrorIs(t, err, fs.ErrClosed)
}
