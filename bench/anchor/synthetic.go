package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/tensor"
)

// The synthetic file's shape: a Llama of 1.1 billion weights.
const (
	width, layers, inner, heads, kvHeads, vocab = 2048, 16, 8192, 32, 8, 32000
	weightScale                                 = 0.02
)

// writeSynthetic writes a Llama-shape file with random Q4_0 weights, unless it is there. Its vocabulary is made of
// dummy words.
func writeSynthetic(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	var tensors []gguf.TensorData
	rng := rand.NewPCG(1, 2)
	matrix := func(name string, n, k int64) {
		blocks := make([]byte, n*k/32*18)
		for b := 0; b < len(blocks); b += 18 {
			binary.LittleEndian.PutUint16(blocks[b:], tensor.EncodeF16(weightScale/4.6)) // nibbles spread by about 4.6
			binary.LittleEndian.PutUint64(blocks[b+2:], rng.Uint64())
			binary.LittleEndian.PutUint64(blocks[b+10:], rng.Uint64())
		}
		tensors = append(tensors, gguf.TensorData{Name: name, DType: tensor.Q4_0, Shape: []int64{n, k}, Data: blocks})
	}
	ones := make([]byte, width*4)
	for i := 0; i < len(ones); i += 4 {
		binary.LittleEndian.PutUint32(ones[i:], 0x3f800000)
	}
	norm := func(name string) {
		tensors = append(tensors, gguf.TensorData{Name: name, DType: tensor.F32, Shape: []int64{width}, Data: ones})
	}
	const headSize = width / heads
	matrix("token_embd.weight", vocab, width)
	norm("output_norm.weight")
	matrix("output.weight", vocab, width)
	for l := range layers {
		p := fmt.Sprintf("blk.%d.", l)
		norm(p + "attn_norm.weight")
		matrix(p+"attn_q.weight", width, width)
		matrix(p+"attn_k.weight", kvHeads*headSize, width)
		matrix(p+"attn_v.weight", kvHeads*headSize, width)
		matrix(p+"attn_output.weight", width, width)
		norm(p + "ffn_norm.weight")
		matrix(p+"ffn_gate.weight", inner, width)
		matrix(p+"ffn_up.weight", inner, width)
		matrix(p+"ffn_down.weight", width, inner)
	}
	f, err := os.Create(path + ".part")
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := gguf.Write(w, metadata(headSize), tensors); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

func metadata(headSize int) []gguf.KV {
	tokens, types := []string{"<unk>", "<s>", "</s>"}, []int32{2, 3, 3}
	for i := range 256 {
		tokens, types = append(tokens, fmt.Sprintf("<0x%02X>", i)), append(types, 6)
	}
	for i := 0; len(tokens) < vocab; i++ {
		tokens, types = append(tokens, fmt.Sprintf("\u2581t%d", i)), append(types, 1)
	}
	scores := make([]float32, vocab)
	for i := range scores {
		scores[i] = -float32(i)
	}
	u := func(k string, v int) gguf.KV { return gguf.KV{Key: k, Value: uint32(v)} }
	return []gguf.KV{{Key: "general.architecture", Value: "llama"}, {Key: "general.name", Value: "synthetic-1.1b"}, u("general.file_type", 2),
		u("llama.block_count", layers), u("llama.context_length", 4096), u("llama.embedding_length", width),
		u("llama.feed_forward_length", inner), u("llama.attention.head_count", heads), u("llama.attention.head_count_kv", kvHeads),
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(1e-5)}, {Key: "llama.rope.freq_base", Value: float32(500000)},
		u("llama.rope.dimension_count", headSize), u("llama.vocab_size", vocab),
		{Key: "tokenizer.ggml.model", Value: "llama"}, {Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.scores", Value: scores}, {Key: "tokenizer.ggml.token_type", Value: types},
		u("tokenizer.ggml.bos_token_id", 1), u("tokenizer.ggml.eos_token_id", 2), u("tokenizer.ggml.unknown_token_id", 0)}
}
