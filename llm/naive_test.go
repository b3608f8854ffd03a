package llm_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/tensor"
)

// tiny describes a small random model, written as a GGUF file and evaluated by a float64 formula that shares no code with
// the engine.
type tiny struct {
	layers, width, ff, heads, kvHeads, vocab, context int

	headSize  int // 0: width/heads
	ropeDim   int // 0: head size
	base      float64
	tied      bool
	bias      bool
	freqs     bool                    // rope_freqs.weight
	dtype     tensor.DType            // of the matrices
	dtypeOf   map[string]tensor.DType // exceptions, by the end of the name
	meta      []gguf.KV
	seed      uint64
	weights   map[string][]float64 // as the file holds them, decoded
	freqScale func(i int) float64  // naive rule for scaled ropes: multiplies the angle
	ropeScale float64              // naive rule: multiplies cosine and sine
}

func (m *tiny) defaults() {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&m.layers, 2)
	set(&m.width, 64)
	set(&m.ff, 96)
	set(&m.heads, 4)
	set(&m.kvHeads, 2)
	set(&m.vocab, 300)
	set(&m.context, 256)
	set(&m.headSize, m.width/m.heads)
	set(&m.ropeDim, m.headSize)
	if m.base == 0 {
		m.base = 10000
	}
	if m.dtype == tensor.None {
		m.dtype = tensor.F32
	}
	if m.ropeScale == 0 {
		m.ropeScale = 1
	}
}

// randomBlocks fills data with blocks of random bits whose values are at most 1/4 and not all next to nothing.
func randomBlocks(t testing.TB, rng *rand.Rand, dt tensor.DType, data []byte) {
	elems, size := dt.Block()
	y := make([]float32, elems)
	var blocks [16][]byte
	for i := range blocks {
		blocks[i] = make([]byte, size)
		for top := 0.0; !(top > 1.0/1024 && top <= 1.0/4); {
			for j := range size {
				blocks[i][j] = byte(rng.Uint32())
			}
			require.NoError(t, tensor.Decode(y, dt, blocks[i]))
			top = 0
			for _, v := range y {
				if a := math.Abs(float64(v)); a > top || a != a {
					top = a
				}
			}
		}
	}
	for ; len(data) > 0; data = data[size:] {
		copy(data, blocks[rng.IntN(len(blocks))])
	}
}

// file builds the GGUF bytes and remembers the decoded weights.
func (m *tiny) file(t testing.TB) []byte {
	m.defaults()
	rng := rand.New(rand.NewPCG(m.seed, 7))
	m.weights = map[string][]float64{}
	var tensors []gguf.TensorData
	add := func(name string, dt tensor.DType, scale, shift float64, shape ...int64) {
		for end, d := range m.dtypeOf {
			if len(name) >= len(end) && name[len(name)-len(end):] == end {
				dt = d
			}
		}
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64()*scale + shift)
		}
		size, err := dt.RowBytes(n)
		require.NoError(t, err)
		data := make([]byte, size)
		if tensor.CanQuantize(dt) {
			require.NoError(t, tensor.Quantize(data, dt, v))
		} else {
			randomBlocks(t, rng, dt, data)
		}
		require.NoError(t, tensor.Decode(v, dt, data))
		w := make([]float64, n)
		for i := range v {
			w[i] = float64(v[i])
		}
		m.weights[name] = w
		tensors = append(tensors, gguf.TensorData{Name: name, DType: dt, Shape: shape, Data: data})
	}
	D, F, V := int64(m.width), int64(m.ff), int64(m.vocab)
	nq, nkv := int64(m.heads*m.headSize), int64(m.kvHeads*m.headSize)
	add("token_embd.weight", m.dtype, 1, 0, V, D)
	if !m.tied {
		add("output.weight", m.dtype, 0.3, 0, V, D)
	}
	add("output_norm.weight", tensor.F32, 0.1, 1, D)
	if m.freqs {
		add("rope_freqs.weight", tensor.F32, 0.3, 2, int64(m.ropeDim/2))
	}
	for i := range m.layers {
		p := fmt.Sprintf("blk.%d.", i)
		add(p+"attn_norm.weight", tensor.F32, 0.1, 1, D)
		add(p+"ffn_norm.weight", tensor.F32, 0.1, 1, D)
		s := 1 / math.Sqrt(float64(D))
		add(p+"attn_q.weight", m.dtype, 2*s, 0, nq, D)
		add(p+"attn_k.weight", m.dtype, 2*s, 0, nkv, D)
		add(p+"attn_v.weight", m.dtype, s, 0, nkv, D)
		if m.bias {
			add(p+"attn_q.bias", tensor.F32, 0.1, 0, nq)
			add(p+"attn_k.bias", tensor.F32, 0.1, 0, nkv)
			add(p+"attn_v.bias", tensor.F32, 0.1, 0, nkv)
			add(p+"attn_output.bias", tensor.F32, 0.1, 0, D)
		}
		add(p+"attn_output.weight", m.dtype, 1/math.Sqrt(float64(nq)), 0, D, nq)
		add(p+"ffn_gate.weight", m.dtype, s, 0, F, D)
		add(p+"ffn_up.weight", m.dtype, s, 0, F, D)
		add(p+"ffn_down.weight", m.dtype, 1/math.Sqrt(float64(F)), 0, D, F)
	}
	var b bytes.Buffer
	require.NoError(t, gguf.Write(&b, append(m.metadata(), m.meta...), tensors))
	return b.Bytes()
}

func (m *tiny) metadata() []gguf.KV {
	tokens := []string{"<unk>", "<s>", "</s>"}
	types := []int32{2, 3, 3}
	for i := range 256 {
		tokens, types = append(tokens, fmt.Sprintf("<0x%02X>", i)), append(types, 6)
	}
	for i := len(tokens); i < m.vocab; i++ {
		tokens, types = append(tokens, fmt.Sprintf("\u2581t%d", i)), append(types, 1)
	}
	scores := make([]float32, len(tokens))
	for i := range scores {
		scores[i] = -float32(i)
	}
	u := func(k string, v int) gguf.KV { return gguf.KV{Key: "llama." + k, Value: uint32(v)} }
	kv := []gguf.KV{{Key: "general.architecture", Value: "llama"}, {Key: "general.name", Value: "tiny"},
		u("block_count", m.layers), u("context_length", m.context), u("embedding_length", m.width), u("feed_forward_length", m.ff),
		u("attention.head_count", m.heads), u("attention.head_count_kv", m.kvHeads), u("rope.dimension_count", m.ropeDim),
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(1e-5)}, {Key: "llama.rope.freq_base", Value: float32(m.base)},
		{Key: "tokenizer.ggml.model", Value: "llama"}, {Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.scores", Value: scores}, {Key: "tokenizer.ggml.token_type", Value: types},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)}, {Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)}}
	if m.headSize != m.width/m.heads {
		kv = append(kv, u("attention.key_length", m.headSize), u("attention.value_length", m.headSize))
	}
	return kv
}

// naive returns the logits after each token.
func (m *tiny) naive(tokens []int32) [][]float64 {
	D, d := m.width, m.headSize
	x := make([][]float64, len(tokens))
	for t, id := range tokens {
		x[t] = append([]float64{}, m.weights["token_embd.weight"][int(id)*D:][:D]...)
	}
	for l := range m.layers {
		p := fmt.Sprintf("blk.%d.", l)
		q, k, v := make([][]float64, len(x)), make([][]float64, len(x)), make([][]float64, len(x))
		for t := range x {
			h := m.rms(x[t], p+"attn_norm.weight")
			q[t] = m.rope(m.mul(h, p+"attn_q"), t)
			k[t] = m.rope(m.mul(h, p+"attn_k"), t)
			v[t] = m.mul(h, p+"attn_v")
		}
		for t := range x {
			out := make([]float64, m.heads*d)
			for h := range m.heads {
				g := h / (m.heads / m.kvHeads)
				var s []float64
				top := math.Inf(-1)
				for j := range t + 1 {
					dot := 0.0
					for e := range d {
						dot += q[t][h*d+e] * k[j][g*d+e]
					}
					s = append(s, dot/math.Sqrt(float64(d)))
					top = max(top, s[j])
				}
				sum := 0.0
				for j := range s {
					s[j] = math.Exp(s[j] - top)
					sum += s[j]
				}
				for j := range s {
					for e := range d {
						out[h*d+e] += s[j] / sum * v[j][g*d+e]
					}
				}
			}
			for i, y := range m.mul(out, p+"attn_output") {
				x[t][i] += y
			}
			h := m.rms(x[t], p+"ffn_norm.weight")
			gate, up := m.mul(h, p+"ffn_gate"), m.mul(h, p+"ffn_up")
			for i := range gate {
				gate[i] = gate[i] / (1 + math.Exp(-gate[i])) * up[i]
			}
			for i, y := range m.mul(gate, p+"ffn_down") {
				x[t][i] += y
			}
		}
	}
	logits := make([][]float64, len(x))
	for t := range x {
		h := m.rms(x[t], "output_norm.weight")
		name := "output"
		if m.tied {
			name = "token_embd"
		}
		logits[t] = m.mul(h, name)
	}
	return logits
}

func (m *tiny) rms(x []float64, weight string) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	inv := 1 / math.Sqrt(sum/float64(len(x))+1e-5)
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * inv * m.weights[weight][i]
	}
	return out
}

// mul is W·x plus the bias, if there is one.
func (m *tiny) mul(x []float64, name string) []float64 {
	w, b := m.weights[name+".weight"], m.weights[name+".bias"]
	out := make([]float64, len(w)/len(x))
	for i := range out {
		for j, v := range x {
			out[i] += w[i*len(x)+j] * v
		}
		if b != nil {
			out[i] += b[i]
		}
	}
	return out
}

// rope rotates interleaved pairs of every head.
func (m *tiny) rope(x []float64, pos int) []float64 {
	for h := 0; h < len(x); h += m.headSize {
		for i := range m.ropeDim / 2 {
			a := float64(pos) * math.Pow(m.base, -2*float64(i)/float64(m.ropeDim))
			if m.freqs {
				a /= m.weights["rope_freqs.weight"][i]
			}
			if m.freqScale != nil {
				a *= m.freqScale(i)
			}
			c, s := math.Cos(a)*m.ropeScale, math.Sin(a)*m.ropeScale
			u, v := x[h+2*i], x[h+2*i+1]
			x[h+2*i], x[h+2*i+1] = u*c-v*s, u*s+v*c
		}
	}
	return x
}

// nmse is the squared error over the squared reference.
func nmse(got []float32, want []float64) float64 {
	num, den := 0.0, 0.0
	for i := range want {
		e := float64(got[i]) - want[i]
		num, den = num+e*e, den+want[i]*want[i]
	}
	return num / den
}

// unaligned returns the same bytes at an odd address, as an embedded file may lie.
func unaligned(b []byte) []byte {
	c := make([]byte, len(b)+2)
	at := 1 - int(uintptr(unsafe.Pointer(&c[0]))&1)
	copy(c[at:], b)
	return c[at:][:len(b):len(b)]
}
