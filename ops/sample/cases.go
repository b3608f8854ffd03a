package sample

import (
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// Named cases: inputs that broke other systems, and the values that they must give. NaN in a Want is any value.

var (
	anything = math.NaN()
	negInf   = math.Inf(-1)
)

// repeat returns n numbers, element i of which is f(i).
func repeat(n int, f func(i int) float64) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = f(i)
	}
	return v
}

func constant(v float64) func(int) float64 { return func(int) float64 { return v } }

// productCases adds the shapes of skinny and odd matrix products, and sums over nothing.
func productCases(b *builder) {
	block := b.step("K", nil)
	for _, k := range []int64{1, 31, 32, 33, 67, 77, 193, 255, 256, 257} {
		for _, mn := range [][2]int64{{1056, 1}, {16, 1}, {64, 77}} {
			if b.level == Quick && mn[0] != 64 {
				continue
			}
			if k%block == 0 {
				b.add(fmt.Sprintf("skinny/%dx%dx%d", mn[0], mn[1], k), Case{Shape: Shape{"M": mn[0], "N": mn[1], "K": k}})
			}
		}
	}
	b.add("nothing to sum", Case{Shape: Shape{"M": 2, "N": 3, "K": 0}, Want: map[string][]float64{"out": make([]float64, 6)}})
	for _, m := range []int64{2, 11, 25, 47, 130} {
		c := Case{Shape: Shape{"M": m, "N": 250, "K": 3 * block}}
		b.add(fmt.Sprintf("tall/%d", m), c)
		if c.Layouts = b.packed(nil); c.Layouts != nil {
			b.add(fmt.Sprintf("tall/%d/lane16", m), c)
		}
	}
}

// quantCases adds every format with room for tiles, and the rows of activations whose quantization has an edge.
func quantCases(b *builder) {
	productCases(b)
	for _, t := range b.admitted(&b.d.Operands[2]) {
		types := map[string]tensor.DType{"b": t}
		b.add(fmt.Sprintf("formats/%v", t), Case{Shape: Shape{"M": 32, "N": 67, "K": 512}, Types: types})
		for _, m := range []int64{1, 7, 25} {
			if t == tensor.Q4_0 || t == tensor.Q8_0 {
				b.add(fmt.Sprintf("lane16/%v/M=%d", t, m), Case{Shape: Shape{"M": m, "N": 85, "K": 96}, Types: types, Layouts: map[string]tensor.Layout{"b": tensor.Lane16}})
			}
		}
	}
	rows := map[string]func(i int) float64{
		"all 0": constant(0), "all -0": constant(math.Copysign(0, -1)), "all equal": constant(0.7),
		"one 1e-38":     func(i int) float64 { return map[bool]float64{true: 1e-38}[i%256 == 9] },
		"largest 1e-11": func(i int) float64 { return 1e-11 * float64(i%7-3) / 3 },
		"one outlier":   func(i int) float64 { return map[bool]float64{true: -100}[i%32 == 5] + float64(i%5-2)/8 },
	}
	for name, f := range rows {
		for _, t := range []tensor.DType{tensor.Q4_0, tensor.Q8_0, tensor.Q4_K} {
			for _, layout := range []tensor.Layout{tensor.Strided, tensor.Lane16} {
				if layout == tensor.Lane16 && t == tensor.Q4_K {
					continue
				}
				c := Case{Shape: Shape{"M": 3, "N": 33, "K": 256}, Types: map[string]tensor.DType{"b": t}, Layouts: map[string]tensor.Layout{"b": layout},
					Values: map[string][]float64{"a": repeat(3*256, f)}}
				if f(0) == 0 && name != "one 1e-38" && name[:3] == "all" {
					c.Want = map[string][]float64{"out": make([]float64, 3*33)}
				}
				b.add(fmt.Sprintf("activations/%s/%v/%v", name, t, layout), c)
			}
		}
	}
}

// normCases adds the long row that faulted elsewhere, at every alignment.
func normCases(b *builder) {
	for n := range 4 {
		b.add(fmt.Sprintf("f16 row of 3584/offset %d", n), Case{Shape: Shape{"T": 2, "H": 3584}, Offset: n,
			Types: map[string]tensor.DType{"x": tensor.F16, "weight": tensor.F16}})
	}
	b.add("gemma", Case{Types: map[string]tensor.DType{"weight": tensor.F32}, Attrs: map[string]any{"gemma": true}})
	b.add("gemma and residual", Case{Types: map[string]tensor.DType{"weight": tensor.BF16, "residual": tensor.F32}, Attrs: map[string]any{"gemma": true}})
	b.add("eps 0", Case{Attrs: map[string]any{"eps": 0.0}})
	b.add("row of zeros", Case{Shape: Shape{"T": 1, "H": 4}, Values: map[string][]float64{"x": {0, 0, 0, 0}}, Want: map[string][]float64{"out": {0, 0, 0, 0}}})
}

var oddValues = []float64{0, math.Copysign(0, -1), 1, -1, math.Inf(1), negInf, math.NaN(), 1e-40, -1e-40, 3e38, -3e38, 88, -88, -104, 200}

func siluCases(b *builder) {
	n := int64(len(oddValues))
	b.add("odd values", Case{Shape: Shape{"T": 1, "D": n}, Values: map[string][]float64{"x": append(append([]float64{}, oddValues...), oddValues...)}})
	b.add("alpha", Case{Attrs: map[string]any{"alpha": 1.702}})
	b.add("limit and one more", Case{Attrs: map[string]any{"alpha": 1.702, "limit": 0.75, "plus_one": true}})
	b.add("limit", Case{Types: map[string]tensor.DType{"up": tensor.F16}, Attrs: map[string]any{"limit": 0.75}})
	b.add("up and alpha", Case{Types: map[string]tensor.DType{"up": tensor.F32}, Attrs: map[string]any{"alpha": 0.5}})
}

func reluCases(b *builder) {
	n := int64(len(oddValues))
	b.add("odd values", Case{Shape: Shape{"T": 1, "H": n}, Values: map[string][]float64{"x": oddValues},
		Want: map[string][]float64{"out": repeat(len(oddValues), func(i int) float64 {
			if oddValues[i] > 0 {
				return oddValues[i]
			}
			return 0
		})}})
	b.add("long", Case{Shape: Shape{"T": 1, "H": 5003}})
}

func addCases(b *builder) {
	b.add("long", Case{Shape: Shape{"T": 3, "H": 5003}})
	b.add("row in place", Case{InPlace: true, Forms: map[string]int{"b": 1}})
}

// scalarCases adds the roundings to bf16 that hardware gets wrong.
func scalarCases(b *builder) {
	in := []uint32{0x3E89CCD5, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0xFF7FFFFF, 0x00008000, 0x00018000}
	out := []uint16{0x3E8A, 0x3F80, 0x3F82, 0x7F80, 0xFF80, 0x0000, 0x0002}
	b.add("ties of bf16", Case{Shape: Shape{"T": 1, "H": int64(len(in))}, Types: map[string]tensor.DType{"out": tensor.BF16}, Attrs: map[string]any{"scalar": 1.0},
		Values: map[string][]float64{"x": repeat(len(in), func(i int) float64 { return float64(math.Float32frombits(in[i])) })},
		Want:   map[string][]float64{"out": repeat(len(in), func(i int) float64 { return float64(tensor.DecodeBF16(out[i])) })}})
	for name, v := range map[string]float64{"NaN": math.NaN(), "infinity": math.Inf(1), "0": 0, "negative": -2, "beyond f32": 1e300} {
		b.add("times "+name, Case{Attrs: map[string]any{"scalar": v}})
	}
	b.add("long", Case{Shape: Shape{"T": 1, "H": 5003}})
}

func splitCases(b *builder) {
	b.add("no keys", Case{Shape: Shape{"KV": 0}})
}

func softmaxCases(b *builder) {
	b.add("alibi", Case{Shape: Shape{"H": 6}, Types: map[string]tensor.DType{"mask": tensor.F32}, Attrs: map[string]any{"max_bias": 8.0}})
	b.add("alibi and sinks", Case{Shape: Shape{"H": 4}, Types: map[string]tensor.DType{"mask": tensor.F16, "sinks": tensor.F32}, Attrs: map[string]any{"max_bias": 8.0}})
	b.add("17 wide", Case{Shape: Shape{"H": 1, "T": 1, "N": 17}})
	b.add("hidden row", Case{Shape: Shape{"H": 1, "T": 2, "N": 3}, Values: map[string][]float64{"x": {1, 2, negInf, negInf, negInf, negInf}}})
	b.add("huge logits", Case{Shape: Shape{"H": 1, "T": 1, "N": 4}, Attrs: map[string]any{"scale": 1.0}, Values: map[string][]float64{"x": {3e38, -3e38, 3e38, 0}},
		Want: map[string][]float64{"out": {0.5, 0, 0.5, 0}}})
}

func embeddingCases(b *builder) {
	b.add("first and last", Case{Shape: Shape{"T": 4, "V": 3, "H": 8}, Values: map[string][]float64{"ids": {0, 2, 0, 2}}})
	for _, ids := range [][]float64{{1, 3}, {-1, 0}, {0, 1 << 30}} {
		b.add(fmt.Sprintf("id out of range/%v", ids), Case{Shape: Shape{"T": 2, "V": 3, "H": 8}, Values: map[string][]float64{"ids": ids}, Invalid: true})
	}
}

// ropeScalings are attributes of each rule.
var ropeScalings = map[string]map[string]any{
	"linear":   {"scaling": ops.RopeLinear, "factor": 4},
	"llama3":   {"scaling": ops.RopeLlama3, "base": 500000, "factor": 8, "low_freq": 1, "high_freq": 4, "orig_context": 8192},
	"yarn":     {"scaling": ops.RopeYarn, "factor": 4, "orig_context": 512, "attn_scale": 1.2},
	"ntk":      {"scaling": ops.RopeDynamicNTK, "factor": 2, "orig_context": 128, "seq_len": 300},
	"alpha":    {"scaling": ops.RopeDynamicAlpha, "factor": 2},
	"longrope": {"scaling": ops.RopeLongRope, "orig_context": 128, "seq_len": 300},
}

func ropeScalingCases(b *builder) {
	for name, attrs := range ropeScalings {
		c := Case{Attrs: attrs}
		if name == "longrope" {
			c.Types = map[string]tensor.DType{"freq_factors": tensor.F32, "long_factors": tensor.F32}
		}
		b.add("scaling/"+name, c)
	}
}

// headSizes are sizes of a head and of its rotated part.
var headSizes = [][2]int64{{256, 64}, {128, 32}, {80, 32}, {80, 20}, {64, 16}, {128, 128}}

func ropeCases(b *builder) {
	ropeScalingCases(b)
	positions := []float64{0, 1, 3, 700, 2355, 131071}
	b.add("negative positions", Case{Values: map[string][]float64{"positions": {-1, -5, -131071}}})
	for _, h := range headSizes {
		for _, interleaved := range []bool{false, true} {
			t := int64(len(positions))
			q := repeat(int(t*h[0]), func(i int) float64 { return float64(i%13-6) / 4 })
			want := repeat(len(q), func(i int) float64 {
				if int64(i)%h[0] < h[1] {
					return anything
				}
				return q[i] // the tail keeps its values
			})
			b.add(fmt.Sprintf("head %d of %d/interleaved=%v", h[1], h[0], interleaved), Case{Shape: Shape{"T": t, "Hq": 1, "Hk": 1, "D": h[0]},
				Attrs:  map[string]any{"rotary_dim": h[1], "interleaved": interleaved},
				Values: map[string][]float64{"positions": positions, "q_states": q}, Want: map[string][]float64{"q_states": want}})
		}
	}
}

func ropeCacheCases(b *builder) {
	for _, h := range headSizes {
		for _, interleaved := range []bool{false, true} {
			b.add(fmt.Sprintf("head %d of %d/interleaved=%v", h[1], h[0], interleaved), Case{Shape: Shape{"D": h[0]}, Strided: interleaved,
				Types: map[string]tensor.DType{"k_states": tensor.F32}, Attrs: map[string]any{"rotary_dim": h[1], "interleaved": interleaved}})
		}
	}
	for _, interleaved := range []bool{false, true} {
		b.add(fmt.Sprintf("three axes/interleaved=%v", interleaved), Case{Shape: Shape{"T": 2, "D": 20, "P": 7}, Forms: map[string]int{"positions": 1},
			Attrs: map[string]any{"rotary_dim": 18, "mrope_section": []int{4, 3, 2}, "mrope_interleaved": interleaved}})
	}
	b.add("position out of range", Case{Shape: Shape{"T": 2, "P": 7}, Values: map[string][]float64{"positions": {0, 7}}, Invalid: true})
	b.add("position below range", Case{Shape: Shape{"T": 2, "P": 7}, Values: map[string][]float64{"positions": {0, -1}}, Invalid: true})
}

// groups are numbers of query and key heads.
var groups = [][2]int64{{12, 12}, {32, 8}, {28, 4}, {64, 8}, {48, 2}, {40, 2}, {80, 4}, {24, 1}}

func attentionCases(b *builder) {
	small := Shape{"Tq": 4, "Tk": 4, "Hq": 1, "Hk": 1, "D": 2, "Dv": 2}
	row := func(hidden func(i, j int) bool, at int) []float64 {
		return repeat(16, func(n int) float64 {
			if hidden(n/4, n%4) {
				return negInf
			}
			return 0
		})
	}
	zeroRows := func(hidden func(i int) bool) map[string][]float64 {
		return map[string][]float64{"out": repeat(8, func(i int) float64 {
			if hidden(i / 2) {
				return 0
			}
			return anything
		})}
	}
	b.add("one hidden row", Case{Shape: small, Values: map[string][]float64{"mask": row(func(i, _ int) bool { return i == 1 }, 0)}, Want: zeroRows(func(i int) bool { return i == 1 })})
	b.add("all rows hidden", Case{Shape: small, Values: map[string][]float64{"mask": row(func(int, int) bool { return true }, 0)}, Want: zeroRows(func(int) bool { return true })})
	b.add("hidden by mask and causality", Case{Shape: small, Attrs: map[string]any{"causal": true},
		Values: map[string][]float64{"mask": row(func(i, j int) bool { return j <= i }, 0)}, Want: zeroRows(func(int) bool { return true })})
	b.add("more queries than keys", Case{Shape: Shape{"Tq": 9, "Tk": 4}, Attrs: map[string]any{"causal": true}})
	b.add("hidden rows and sinks", Case{Types: map[string]tensor.DType{"mask": tensor.F32, "sinks": tensor.F32}, Fill: Normal, Attrs: map[string]any{"causal": true}})
	b.add("no keys", Case{Shape: Shape{"Tk": 0}})
	for stage := range 4 {
		b.add(fmt.Sprintf("scores at %d", stage), Case{Types: map[string]tensor.DType{"scores": tensor.F32, "mask": tensor.F32, "sinks": tensor.F32},
			Attrs: map[string]any{"scale": 0.3, "causal": true, "windowed": true, "window_left": 5, "window_right": 0, "logits_soft_cap": 2.0, "scores_at": stage}})
	}
	for _, h := range groups {
		if b.level == Quick && h[0] > 32 {
			continue
		}
		tq, tk, hq, hk := 2, 3, int(h[0]), int(h[1])
		b.add(fmt.Sprintf("head groups/%d of %d", h[0], h[1]), Case{Shape: Shape{"Tq": 2, "Tk": 3, "Hq": h[0], "Hk": h[1], "D": 2, "Dv": 1},
			Values: map[string][]float64{"query": make([]float64, tq*hq*2), "value": repeat(tk*hk, func(i int) float64 { return float64(i % hk) })},
			Want:   map[string][]float64{"out": repeat(tq*hq, func(i int) float64 { return float64(i % hq / (hq / hk)) })}})
	}
	logitCases(b)
	for name, attrs := range map[string]map[string]any{
		"causal": {"causal": true}, "window": {"causal": true, "windowed": true, "window_left": 4}, "later": {"causal": true, "query_offset": 9},
		"window beyond the keys": {"windowed": true, "window_left": 3, "query_offset": 25},
	} {
		attrs["top_left"] = true
		b.add("from the first key/"+name, Case{Shape: Shape{"Tq": 17, "Tk": 33}, Attrs: attrs})
	}
	b.add("first of its own", Case{Shape: Shape{"Tq": 2, "Tk": 3, "Hq": 1, "Hk": 1, "D": 1, "Dv": 1}, Attrs: map[string]any{"causal": true, "top_left": true, "scale": 1},
		Values: map[string][]float64{"query": {0, 0}, "value": {2, 4, 100}}, Want: map[string][]float64{"out": {2, 3}}})
	for _, tk := range []int64{255, 256, 257, 1300} {
		b.add(fmt.Sprintf("long/%d", tk), Case{Shape: Shape{"Tq": 37, "Tk": tk, "Hq": 6, "Hk": 3, "D": 20, "Dv": 20}, Attrs: map[string]any{"causal": true}})
	}
	b.add("other size of values", Case{Shape: Shape{"Tq": 19, "Tk": 23, "Hq": 4, "Hk": 2, "D": 9, "Dv": 5}})
}

// logitCases adds the attributes that both attention ops have.
func logitCases(b *builder) {
	for name, attrs := range map[string]map[string]any{
		"causal": {"causal": true}, "window": {"causal": true, "windowed": true, "window_left": 4},
		"window of both sides": {"windowed": true, "window_left": 3, "window_right": 5}, "soft cap": {"logits_soft_cap": 2.0},
		"window of itself": {"windowed": true},
	} {
		b.add(name, Case{Shape: Shape{"Tq": 17, "Tk": 33}, Attrs: attrs})
	}
}

// pagedCases adds ragged batches.
func pagedCases(b *builder) {
	type batch struct {
		starts, lens []float64
		shape        Shape
	}
	batches := []batch{
		{[]float64{0, 1}, []float64{1}, Shape{"Hq": 1, "Hk": 1, "D": 1, "BS": 1}},
		{[]float64{0, 1, 2, 3}, []float64{5, 70, 33}, Shape{"Hq": 8, "Hk": 2, "D": 64, "BS": 16}},
		{[]float64{0, 40}, []float64{40}, Shape{"Tq": 43, "Hq": 6, "Hk": 2, "D": 33, "BS": 16}},
		{[]float64{0, 3, 3, 24, 25}, []float64{17, 0, 50, 9}, Shape{"Tq": 27, "Hq": 4, "Hk": 4, "D": 24, "BS": 8}},
		{[]float64{0, 2, 3}, []float64{1100, 513}, Shape{"Hq": 4, "Hk": 1, "D": 16, "BS": 32}},
		{[]float64{0, 4}, []float64{2}, Shape{"Hq": 2, "Hk": 1, "D": 8, "BS": 4}},
	}
	attrs := map[string]map[string]any{"causal": {"causal": true}, "all": {}, "window": {"causal": true, "windowed": true, "window_left": 11},
		"both ways": {"windowed": true, "window_left": 3, "window_right": 5}, "soft cap": {"causal": true, "logits_soft_cap": 2.0}}
	for i, p := range batches {
		for name, a := range attrs {
			b.add(fmt.Sprintf("ragged/%d/%s", i, name), Case{Shape: p.shape, Attrs: a, Strided: i%2 == 1,
				Values: map[string][]float64{"query_start_loc": p.starts, "seq_lens": p.lens}})
		}
		b.add(fmt.Sprintf("ragged/%d/sinks", i), Case{Shape: p.shape, Attrs: attrs["causal"], Types: map[string]tensor.DType{"sinks": tensor.F32, "k_cache": tensor.F16},
			Values: map[string][]float64{"query_start_loc": p.starts, "seq_lens": p.lens}})
		if p.shape["D"]%32 == 0 {
			b.add(fmt.Sprintf("ragged/%d/q8_0", i), Case{Shape: p.shape, Attrs: attrs["causal"], Types: map[string]tensor.DType{"k_cache": tensor.Q8_0},
				Values: map[string][]float64{"query_start_loc": p.starts, "seq_lens": p.lens}})
		}
	}
	logitCases(b)
	bad := func(name string, values map[string][]float64) {
		all := map[string][]float64{"query_start_loc": {0, 2, 3}, "seq_lens": {9, 5}, "block_table": {0, 1, 2, -1}}
		for k, v := range values {
			all[k] = v
		}
		b.add("invalid/"+name, Case{Shape: Shape{"Tq": 3, "R": 2, "NB": 3, "MB": 2, "BS": 8}, Values: all, Invalid: true})
	}
	bad("page out of range", map[string][]float64{"block_table": {0, 1 << 30, 2, -1}})
	bad("page below range", map[string][]float64{"block_table": {0, -1, 2, -1}})
	bad("length over the table", map[string][]float64{"seq_lens": {9, 17}})
	bad("negative length", map[string][]float64{"seq_lens": {9, -1}})
	bad("falling starts", map[string][]float64{"query_start_loc": {0, 3, 2}})
	bad("starts over the rows", map[string][]float64{"query_start_loc": {0, 2, 4}})
	bad("starts not at 0", map[string][]float64{"query_start_loc": {1, 2, 3}})
}

func cacheCases(b *builder) {
	b.add("46 wide heads", Case{Shape: Shape{"D": 46, "BS": 16}, Types: map[string]tensor.DType{"k": tensor.BF16, "k_cache": tensor.BF16}, Strided: true})
	for _, to := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16, tensor.Q8_0} {
		types := map[string]tensor.DType{"k_cache": to}
		b.add(fmt.Sprintf("some/%v", to), Case{Types: types, Strided: true, Values: map[string][]float64{"slot_mapping": {11, -1, 0, 5}}})
		b.add(fmt.Sprintf("twice/%v", to), Case{Types: types, Values: map[string][]float64{"slot_mapping": {3, 3, 3}}})
		b.add(fmt.Sprintf("none/%v", to), Case{Types: types, Shape: Shape{"S": 0}})
		b.add(fmt.Sprintf("slot out of range/%v", to), Case{Types: types, Values: map[string][]float64{"slot_mapping": {0, 32}}, Invalid: true})
	}
}

// logitRows adds rows of every length that a vocabulary has.
func (b *builder) logitRows(with ...string) {
	sizes := []int64{1, 1023, 1024, 1025, 9001}
	if b.level == Full {
		sizes = append(sizes, 8000, 32000, 151936)
	}
	for _, v := range sizes {
		n := int64(3)
		if v > 10000 {
			n = 1
		}
		b.add(path.Join("vocabulary", strings.Join(with, ","), fmt.Sprint(v)), Case{Shape: Shape{"N": n, "V": v}, With: with})
	}
}

func rowCases(b *builder) { b.logitRows() }

func argmaxCases(b *builder) {
	b.logitRows()
	sizes := []int{1, 1023, 1024, 1025, 8000, 32000}
	if b.level == Full {
		sizes = append(sizes, 151936, 262272)
	}
	for _, n := range sizes {
		shape := Shape{"N": 1, "V": int64(n)}
		for name, f := range map[string]struct {
			at   func(i int) float64
			want float64
		}{
			"rising": {func(i int) float64 { return float64(i) }, float64(n - 1)}, "falling": {func(i int) float64 { return float64(-i) }, 0},
			"equal": {constant(0.5), 0}, "both zeros": {func(i int) float64 { return math.Copysign(0, float64(i%2)-0.5) }, 0},
		} {
			b.add(fmt.Sprintf("%s/%d", name, n), Case{Shape: shape, Values: map[string][]float64{"logits": repeat(n, f.at)}, Want: map[string][]float64{"token_ids": {f.want}}})
		}
	}
	nan := math.NaN()
	b.add("NaN and hidden rows", Case{Shape: Shape{"N": 3, "V": 3}, Values: map[string][]float64{"logits": {nan, 1, 2, 1, nan, 2, negInf, negInf, negInf}}})
	b.add("last of equals", Case{Shape: Shape{"N": 1, "V": 4}, Attrs: map[string]any{"last": true}, Values: map[string][]float64{"logits": {1, 3, 3, 2}}, Want: map[string][]float64{"token_ids": {2}}})
}

func topCases(b *builder) {
	b.logitRows("k")
	b.logitRows("p")
	b.logitRows("k", "p")
	log := func(p ...float64) []float64 { return repeat(len(p), func(i int) float64 { return math.Log(p[i]) }) }
	b.add("third of equals stays", Case{Shape: Shape{"N": 1, "V": 4}, Values: map[string][]float64{"logits": log(.4, .3, .3, 0), "k": {2}}, Want: map[string][]float64{"logits": log(.4, .3, .3, 0)}})
	b.add("one of all equal", Case{Shape: Shape{"N": 1, "V": 32000}, Values: map[string][]float64{"logits": make([]float64, 32000), "k": {1}}, Want: map[string][]float64{"logits": make([]float64, 32000)}})
	b.add("more than there are", Case{Shape: Shape{"N": 1, "V": 4}, Values: map[string][]float64{"logits": {0, 9, 1, 2}, "k": {1 << 30}, "p": {1}}, Want: map[string][]float64{"logits": {0, 9, 1, 2}}})
	b.add("p of 0 and near it", Case{Shape: Shape{"N": 3, "V": 4}, Values: map[string][]float64{"logits": {0, 9, 1, 2, 0, 9, 1, 2, 3, 3, 3, 3}, "p": {0, 1e-9, 0}}})
	b.add("hidden row", Case{Shape: Shape{"N": 1, "V": 3}, Values: map[string][]float64{"logits": {negInf, negInf, negInf}, "k": {2}, "p": {0.5}}})
}

func temperatureCases(b *builder) {
	b.logitRows()
	for _, all := range []bool{false, true} {
		b.add(fmt.Sprintf("edges/all random=%v", all), Case{Shape: Shape{"N": 5, "V": 9}, Attrs: map[string]any{"all_random": all},
			Values: map[string][]float64{"temp": {0, 1e-6, 1e-38, 3, -1}}})
	}
	b.add("all hidden", Case{Shape: Shape{"N": 1, "V": 3}, Values: map[string][]float64{"logits": {negInf, negInf, negInf}}})
}

func probCases(b *builder) {
	b.logitRows()
	b.add("hidden row", Case{Shape: Shape{"N": 2, "V": 2}, Values: map[string][]float64{"logits": {negInf, negInf, negInf, 1}}})
	b.add("one infinity", Case{Shape: Shape{"N": 1, "V": 3}, Values: map[string][]float64{"logits": {0, math.Inf(1), 1}}})
}

func sampleCases(b *builder) {
	b.logitRows()
	nan := math.NaN()
	b.add("no mass", Case{Shape: Shape{"N": 3, "V": 3}, Values: map[string][]float64{"probs": {0, 0, 0, nan, nan, nan, 0, 1e-30, 0}, "seeds": {1, 2, 3}}})
	b.add("all mass at one", Case{Shape: Shape{"N": 2, "V": 3}, Values: map[string][]float64{"probs": {0, 1, 0, 0, 0, 1}, "seeds": {7, -7}}, Want: map[string][]float64{"token_ids": {1, 2}}})
}

func listCases(b *builder) {
	b.logitRows()
	values := func(rows, cols []float64) map[string][]float64 {
		return map[string][]float64{"rows": rows, "cols": cols}
	}
	b.add("same place twice", Case{Shape: Shape{"M": 3}, Values: values([]float64{0, 2, 0}, []float64{0, 150, 0})})
	b.add("row out of range", Case{Shape: Shape{"M": 2}, Values: values([]float64{0, 3}, []float64{0, 0}), Invalid: true})
	b.add("column out of range", Case{Shape: Shape{"M": 2}, Values: values([]float64{0, 0}, []float64{0, 151}), Invalid: true})
	b.add("row below range", Case{Shape: Shape{"M": 2}, Values: values([]float64{0, -1}, []float64{0, 0}), Invalid: true})
}
