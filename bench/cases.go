package bench

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// usual are the calls of one decoding step of a model with 8 billion parameters: hidden size 4096, 32 query heads on 8 of
// 128 elements, feed-forward size 14336, 128256 tokens. An extent counts for the ops that have its symbol.
var usual = sample.Shape{"M": 1, "T": 1, "Tq": 1, "N": 4096, "K": 4096, "H": 4096, "D": 128, "Dv": 128, "Hq": 32, "Hk": 8, "Tk": 4096,
	"R": 1, "BS": 16, "V": 128256, "P": 8192}

// usualOf are the exceptions.
var usualOf = map[string]sample.Shape{
	"silu_and_mul":            {"D": 14336},
	"qkv_split":               {"Q": 4096, "KV": 1024},
	"softmax":                 {"H": 32},
	"embedding":               {"V": 8192},
	"rope_cos_sin_cache":      {"R": 128},
	"reshape_and_cache":       {"Tk": 1, "NB": 64},
	"apply_temperature":       {"N": 1},
	"greedy_argmax":           {"N": 1},
	"apply_top_k_top_p":       {"N": 1},
	"compute_probs":           {"N": 1},
	"compute_logprobs":        {"N": 1},
	"random_sample":           {"N": 1},
	"apply_penalties":         {"N": 1},
	"apply_min_p":             {"N": 1},
	"apply_logit_bias":        {"N": 1, "M": 16},
	"apply_token_mask":        {"N": 1, "M": 16},
	"apply_allowed_token_ids": {"N": 1},

	// The layers of other kinds of model: gated delta nets with 16 key heads and 32 value heads of 128, of which a prompt has 64
	// tokens; experts of 768 of a hidden size of 2048, 8 of them for each token.
	"causal_conv1d_fwd":      {"T": 64, "C": 8192, "N": 1, "K": 4},
	"causal_conv1d_update":   {"B": 1, "C": 8192, "K": 4},
	"gdn_prefill":            {"T": 64, "N": 1, "Hk": 16, "Hv": 32, "Dk": 128, "Dv": 128},
	"gdn_decode":             {"B": 1, "Hk": 16, "Hv": 32, "Dk": 128, "Dv": 128},
	"gdn_packed_decode":      {"B": 1, "Hk": 16, "Hv": 32, "Dk": 128, "Dv": 128},
	"gdn_post_conv":          {"Hk": 16, "Hv": 32, "Dk": 128, "Dv": 128},
	"gdn_state_gather":       {"N": 1, "S": 8, "H": 524288},
	"gdn_state_scatter":      {"N": 1, "S": 8, "H": 524288},
	"gdn_g_beta":             {"Hv": 32},
	"gdn_conv_split":         {"Q": 2048, "V": 4096},
	"moe_router_topk":        {"E": 128, "K": 8},
	"moe_softmax_topk":       {"E": 128, "K": 8},
	"moe_sigmoid_topk":       {"E": 128, "K": 8},
	"moe_combine":            {"H": 2048, "K": 8},
	"moe_combine_gate":       {"H": 2048, "K": 8},
	"moe_add_bias":           {"H": 2048, "K": 8, "E": 128},
	"moe_grouped_gemm":       {"P": 8, "R": 8, "N": 768, "K": 2048, "E": 16},
	"moe_grouped_gemm_bf16":  {"P": 8, "R": 8, "N": 768, "K": 2048, "E": 16},
	"moe_grouped_gemm_nvfp4": {"P": 8, "R": 8, "N": 768, "K": 2048, "E": 16},
	"mla_decode_attention":   {"B": 1, "Hq": 16, "D": 576, "Dv": 512},
	"mla_prefill_attention":  {"Tq": 64, "Tk": 64, "H": 16, "D": 192, "Dv": 128},
	"merge_attn_states":      {"H": 32},
	"concat_and_cache_mla":   {"Tk": 1, "L": 512, "Dr": 64, "NB": 64},
	"gather_mla_cache":       {"T": 64, "N": 64, "B": 1, "E": 576},
	"concat_mla_nope_rope":   {"H": 16, "Dn": 128, "Dr": 64},
	"silu_mul_fp4_quant":     {"V": 14336},
	"silu_and_mul_fp4_quant": {"V": 28672},
	"swizzle_blockscale":     {"R": 4096, "C": 256},
	"gelu_and_mul":           {"D": 14336},
	"layer_norm":             {"D": 4096},
	"top_k":                  {"K": 64, "N": 128256},
	"batched_matmul":         {"G": 32, "M": 1, "N": 512, "K": 128},
}

// usualAttrs are attributes that belong to these calls, and usualTypes operands that stand in them though they may be
// absent.
var (
	usualAttrs = map[string]map[string]any{
		"attention":       {"causal": true},
		"paged_attention": {"causal": true},
		"rope_from_cache": {"rotary_dim": 128},
	}
	usualTypes = map[string]map[string]tensor.DType{
		"rms_norm":          {"weight": tensor.F32},
		"rope_neox":         {"k_states": tensor.F32},
		"rope_from_cache":   {"k_states": tensor.F32},
		"apply_top_k_top_p": {"k": tensor.I32, "p": tensor.F32},
	}
)

// Symbols that M, N and K of the options stand for: the first that an op has.
var (
	rowSymbols    = []string{"M", "T", "Tq"}
	columnSymbols = []string{"N"}
	innerSymbols  = []string{"K"}
)

// job is one case of one op.
type job struct {
	desc   registry.Descriptor
	c      sample.Case
	format string
	text   string
}

// match reports whether one of names fits the glob; "" fits all.
func match(glob string, names ...string) (bool, error) {
	for _, n := range names {
		ok, err := path.Match(cmp.Or(glob, "*"), n)
		if err != nil {
			return false, fmt.Errorf("bench: pattern %q: %w: %w", glob, ErrOption, err)
		}
		if ok {
			return true, nil
		}
	}
	return false, nil
}

// jobs lists the cases that the options ask for, and what they ask for in vain.
func (o *Options) jobs() (list []job, skipped []Skip, err error) {
	formats := o.Formats
	if len(formats) == 0 {
		formats = []string{""}
	}
	known := false
	takes := map[tensor.DType]bool{} // formats of the ops that match
	used := map[string]bool{}        // symbols and operands
	for _, d := range o.Registry.Descriptors() {
		ok, err := match(o.Op, append([]string{d.Name, d.Family + "." + d.Mode}, d.Aliases...)...)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			continue
		}
		known = true
		if p := formatOperand(d); p != nil {
			types, err := sample.DTypes(p)
			if err != nil {
				return nil, nil, err
			}
			for _, t := range types {
				takes[t] = true
			}
		}
		for i := range d.Operands {
			used[d.Operands[i].Name] = true
		}
		shapes, err := o.shapes(d, used)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range formats {
			for _, s := range shapes {
				j, err := o.job(d, f, s)
				if err != nil {
					skipped = append(skipped, Skip{Op: d.Name, Case: j.text, Why: err.Error()})
					continue
				}
				list = append(list, j)
			}
		}
	}
	if !known {
		return nil, nil, fmt.Errorf("bench: %q: %w", o.Op, registry.ErrUnknownOp)
	}
	for _, f := range o.Formats {
		if _, err := tensor.ParseDType(f); err != nil {
			return nil, nil, fmt.Errorf("bench: format %q: %w; ops of %q take %s", f, registry.ErrUnknownName, cmp.Or(o.Op, "*"), names(takes))
		}
	}
	for name := range o.Types {
		if !used[name] {
			return nil, nil, fmt.Errorf("bench: no op of %q has an operand %q: %w", cmp.Or(o.Op, "*"), name, ErrOption)
		}
	}
	for s := range o.Shape {
		if !used[s] {
			return nil, nil, fmt.Errorf("bench: no op of %q has a symbol %q: %w", cmp.Or(o.Op, "*"), s, ErrOption)
		}
	}
	if len(list) == 0 && len(o.Formats) > 0 {
		return nil, nil, fmt.Errorf("bench: formats %s: ops of %q take %s: %w", strings.Join(o.Formats, ", "), cmp.Or(o.Op, "*"), names(takes), ErrOption)
	}
	return list, skipped, nil
}

// names lists dtypes in their order.
func names(set map[tensor.DType]bool) string {
	if len(set) == 0 {
		return "none"
	}
	var list []string
	for _, t := range slices.Sorted(maps.Keys(set)) {
		list = append(list, t.String())
	}
	return strings.Join(list, ", ")
}

// shapes lists the combinations of the extents that are given for d. used collects those of their symbols that it has.
func (o *Options) shapes(d registry.Descriptor, used map[string]bool) ([]sample.Shape, error) {
	symbols := sample.FreeSymbols(d)
	base := sample.Shape{}
	for _, from := range []sample.Shape{usual, usualOf[d.Name]} {
		for s, n := range from {
			if slices.Contains(symbols, s) {
				base[s] = n
			}
		}
	}
	list := []sample.Shape{base}
	vary := func(symbol string, extents []int64) error {
		if len(extents) == 0 || !slices.Contains(symbols, symbol) {
			return nil
		}
		used[symbol] = true
		var more []sample.Shape
		for _, s := range list {
			for _, n := range extents {
				if n < 0 {
					return fmt.Errorf("bench: extent %s=%d: %w", symbol, n, ErrOption)
				}
				c := maps.Clone(s)
				c[symbol] = n
				more = append(more, c)
			}
		}
		list = more
		return nil
	}
	for _, f := range []struct {
		symbols []string
		extents []int64
	}{{columnSymbols, o.N}, {innerSymbols, o.K}, {rowSymbols, o.M}} {
		for _, s := range f.symbols {
			if slices.Contains(symbols, s) {
				if err := vary(s, f.extents); err != nil {
					return nil, err
				}
				break
			}
		}
	}
	for _, s := range slices.Sorted(maps.Keys(o.Shape)) {
		if err := vary(s, o.Shape[s]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// job makes a case. The error says why the op has none such.
func (o *Options) job(d registry.Descriptor, format string, s sample.Shape) (job, error) {
	j := job{desc: d, format: format}
	j.c = sample.Case{Op: d.Op, Shape: s, Types: map[string]tensor.DType{}, Attrs: map[string]any{}, Seed: o.Seed, Device: o.Device.ID()}
	maps.Copy(j.c.Attrs, usualAttrs[d.Name])
	maps.Copy(j.c.Types, usualTypes[d.Name])
	named := formatOperand(d)
	j.text = caseText(d, format, s)
	if format != "" {
		t, err := tensor.ParseDType(format)
		if err != nil {
			return j, err
		}
		if named == nil {
			return j, fmt.Errorf("no operand has a format")
		}
		types, err := sample.DTypes(named)
		if err != nil {
			return j, err
		}
		if !slices.Contains(types, t) {
			return j, fmt.Errorf("%s is no %v: it takes %s", named.Name, t, named.DType)
		}
		j.c.Types[named.Name] = t
	}
	for name, t := range o.Types {
		if slices.ContainsFunc(d.Operands, func(p registry.Operand) bool { return p.Name == name }) {
			j.c.Types[name] = t
		}
	}
	for name, v := range o.Attrs {
		j.c.Attrs[name] = v
	}
	if named != nil {
		t := j.c.Types[named.Name]
		if types, err := sample.DTypes(named); err == nil && t == tensor.None && len(types) > 0 {
			t = types[0]
		}
		if t != tensor.None {
			j.format = t.String()
		}
	}
	j.text = caseText(d, j.format, s)
	j.c.Name = j.text
	return j, nil
}

// formatOperand returns the operand whose dtype is the format of a call: a weight, else a cache, else the first input
// whose dtype is free, else the first output.
func formatOperand(d registry.Descriptor) (found *registry.Operand) {
	best := 0
	for i := range d.Operands {
		p := &d.Operands[i]
		if p.Optional || strings.HasPrefix(p.DType, "like ") {
			continue
		}
		rank := 2
		switch {
		case p.Role == registry.Out:
			rank = 1
		case strings.HasSuffix(p.Layout, " lane16"):
			rank = 4
		case strings.Contains(p.DType, "q8_0"):
			rank = 3
		case !takesF32(p):
			continue
		}
		if rank > best {
			best, found = rank, p
		}
	}
	return found
}

// takesF32 reports whether numbers may stand in an operand.
func takesF32(p *registry.Operand) bool {
	list, err := sample.DTypes(p)
	return err == nil && slices.Contains(list, tensor.F32)
}

// caseText is a format and extents in the order of the op's operands: "q4_0/M=1/N=4096/K=4096".
func caseText(d registry.Descriptor, format string, s sample.Shape) string {
	parts := []string{cmp.Or(format, "default")}
	seen := map[string]bool{}
	add := func(symbol string) {
		if n, ok := s[symbol]; ok && !seen[symbol] {
			seen[symbol] = true
			parts = append(parts, fmt.Sprintf("%s=%d", symbol, n))
		}
	}
	for i := range d.Operands {
		for _, term := range strings.FieldsFunc(d.Operands[i].Shape, func(c rune) bool { return c == ',' || c == '|' || c == '+' }) {
			add(term)
		}
	}
	for _, symbol := range slices.Sorted(maps.Keys(s)) {
		add(symbol)
	}
	return strings.Join(parts, "/")
}
