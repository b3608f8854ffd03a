package llm

import (
	"fmt"
	"math"

	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/ops"
)

// Config holds the hyper-parameters of a Llama-architecture model, as its GGUF metadata gives them.
type Config struct {
	Name          string  `json:"name"`
	Architecture  string  `json:"architecture"`
	VocabSize     int     `json:"vocab_size"`
	Layers        int     `json:"layers"`
	Width         int     `json:"width"`          // embedding length
	FeedForward   int     `json:"feed_forward"`   // inner width of the gated MLP
	Heads         int     `json:"heads"`          // query heads
	KVHeads       int     `json:"kv_heads"`       // key/value heads
	HeadSize      int     `json:"head_size"`      // elements of one head
	ContextLength int     `json:"context_length"` // positions that the model was trained for
	NormEps       float32 `json:"norm_eps"`
	Rope          Rope    `json:"rope"`
}

// Rope holds the rotary embedding's parameters.
type Rope struct {
	Dim         int     `json:"dim"` // rotated elements of each head
	Base        float32 `json:"base"`
	Scaling     string  `json:"scaling"` // none, linear, yarn
	Factor      float32 `json:"factor,omitempty"`
	OrigContext int     `json:"orig_context,omitempty"`
	AttnFactor  float32 `json:"attn_factor,omitempty"`
	FreqFactors bool    `json:"freq_factors,omitempty"` // the file has rope_freqs.weight
}

// params returns the attributes of the rope ops. The rules are llama.cpp's for these metadata keys: yarn with its default
// ramp, and cosine and sine scaled by 1 + 0.1·ln(factor).
func (r Rope) params() ops.RopeParams {
	p := ops.RopeParams{Base: r.Base, RotaryDim: int32(r.Dim), AttnScale: r.AttnFactor}
	switch r.Scaling {
	case "linear":
		p.Scaling, p.Factor = ops.RopeLinear, r.Factor
	case "yarn":
		p.Scaling, p.Factor, p.OrigContext = ops.RopeYarn, r.Factor, int32(r.OrigContext)
		p.AttnScale *= float32(1 + 0.1*math.Log(float64(max(r.Factor, 1))))
	}
	return p
}

// limits that no real model reaches; they keep products of two or three of them inside int64 and hostile files small.
const (
	maxLayers  = 1 << 10
	maxWidth   = 1 << 20
	maxHeads   = 1 << 12
	maxVocab   = 1 << 24
	maxContext = 1 << 24
)

// readConfig reads and checks the metadata. Errors wrap ErrUnsupported or ErrModel.
func readConfig(f *gguf.File) (Config, error) {
	arch, _ := f.String("general.architecture")
	if arch != "llama" {
		return Config{}, fmt.Errorf("llm: architecture %q, this package runs \"llama\": %w", arch, ErrUnsupported)
	}
	if n, ok := f.Uint("split.count"); ok && n > 1 {
		return Config{}, fmt.Errorf("llm: part of a model split into %d files; join them first: %w", n, ErrUnsupported)
	}
	r := metaReader{f: f, prefix: arch + "."}
	c := Config{Architecture: arch}
	c.Name, _ = f.String("general.name")
	c.Layers = r.int("block_count", -1, 1, maxLayers)
	c.Width = r.int("embedding_length", -1, 1, maxWidth)
	c.FeedForward = r.int("feed_forward_length", -1, 1, maxWidth)
	c.Heads = r.int("attention.head_count", -1, 1, maxHeads)
	c.KVHeads = r.int("attention.head_count_kv", c.Heads, 1, maxHeads)
	c.ContextLength = r.int("context_length", -1, 1, maxContext)
	c.NormEps = r.float("attention.layer_norm_rms_epsilon", -1, 0, 1)
	if n := r.int("expert_count", 0, 0, maxHeads); n > 0 {
		return Config{}, fmt.Errorf("llm: %d experts: mixture-of-experts layers: %w", n, ErrUnsupported)
	}
	if r.err != nil {
		return Config{}, r.err
	}
	if c.Heads%c.KVHeads != 0 {
		return Config{}, fmt.Errorf("llm: %d query heads over %d key/value heads: %w", c.Heads, c.KVHeads, ErrModel)
	}
	c.HeadSize = r.int("attention.key_length", c.Width/c.Heads, 1, maxWidth)
	if v := r.int("attention.value_length", c.HeadSize, 1, maxWidth); v != c.HeadSize {
		return Config{}, fmt.Errorf("llm: value heads of %d and key heads of %d elements: %w", v, c.HeadSize, ErrUnsupported)
	}
	c.Rope.Dim = r.int("rope.dimension_count", c.HeadSize, 2, c.HeadSize)
	c.Rope.Base = r.float("rope.freq_base", 10000, 1e-3, math.MaxFloat32)
	c.Rope.Scaling, _ = f.String(arch + ".rope.scaling.type")
	c.Rope.Factor = r.float("rope.scaling.factor", r.float("rope.scale_linear", 1, 1e-6, 1e6), 0, 1e6)
	c.Rope.OrigContext = r.int("rope.scaling.original_context_length", c.ContextLength, 1, maxContext)
	c.Rope.AttnFactor = r.float("rope.scaling.attn_factor", 1, 0, 1e6)
	switch {
	case c.Rope.Factor == 0:
		c.Rope.Factor = 1
	case c.Rope.Scaling == "" && c.Rope.Factor != 1:
		c.Rope.Scaling = "linear"
	}
	switch c.Rope.Scaling {
	case "":
		c.Rope.Scaling = "none"
	case "none", "linear", "yarn":
	default:
		return Config{}, fmt.Errorf("llm: rope scaling %q: %w", c.Rope.Scaling, ErrUnsupported)
	}
	if c.Rope.Dim%2 != 0 {
		return Config{}, fmt.Errorf("llm: odd rotary width %d: %w", c.Rope.Dim, ErrModel)
	}
	return c, r.err
}

// metaReader reads bounded numbers and keeps the first error.
type metaReader struct {
	f      *gguf.File
	prefix string
	err    error
}

// int returns the value of key, or def if it is absent; def < 0 makes the key mandatory.
func (r *metaReader) int(key string, def, lo, hi int) int {
	v, ok := r.f.Uint(r.prefix + key)
	switch {
	case !ok && def < 0:
		r.fail("%s is missing", key)
	case !ok:
		return def
	case v < uint64(lo) || v > uint64(hi):
		r.fail("%s = %d is outside %d..%d", key, v, lo, hi)
	default:
		return int(v)
	}
	return lo
}

func (r *metaReader) float(key string, def, lo, hi float32) float32 {
	v, ok := r.f.Float(r.prefix + key)
	switch {
	case !ok && def < 0:
		r.fail("%s is missing", key)
	case !ok:
		return def
	case !(v >= float64(lo) && v <= float64(hi)):
		r.fail("%s = %v is outside %v..%v", key, v, lo, hi)
	default:
		return float32(v)
	}
	return lo
}

func (r *metaReader) fail(format string, a ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("llm: "+r.prefix+format+": %w", append(a, ErrModel)...)
	}
}
