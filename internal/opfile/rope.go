package opfile

import (
	"math"
	"slices"
	"strings"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// rope is a rotation with everything that gives its frequencies.
type rope struct {
	ops.RopeParams
	short, long tensor.Tensor // factors, absent if there are none
	interleaved bool
}

// table returns [cos | sin] of positions, one row each, as dtype t.
func (r *run) table(p *rope, positions tensor.Tensor, t tensor.DType) tensor.Tensor {
	out := r.alloc(t, positions.Shape[0], int64(p.RotaryDim))
	r.check(ops.RopeCosSinCache.Call(r.Queue, ops.RopeCosSinCacheArgs{CosSin: out, Positions: positions, FreqFactors: p.short,
		LongFactors: p.long, Rope: p.RopeParams}))
	return out
}

// inline rotates q and k [T,H,D] in place, angles computed on the way. k may be absent.
func inline(r *run, p *rope, q, k, positions tensor.Tensor) {
	r.check(ops.RopeNeox.Call(r.Queue, ops.RopeNeoxArgs{QStates: q, KStates: k, Positions: positions, FreqFactors: p.short,
		LongFactors: p.long, Rope: p.RopeParams, Interleaved: p.interleaved}))
}

// tabled is inline by way of a table that holds a row for each token.
func tabled(r *run, p *rope, q, k, positions tensor.Tensor) {
	r.check(ops.RopeFromCache.Call(r.Queue, ops.RopeFromCacheArgs{QStates: q, KStates: k, Positions: r.counting(positions.Shape[0]),
		CosSinCache: r.table(p, positions, q.DType), RotaryDim: p.RotaryDim, Interleaved: p.interleaved}))
}

// ropeFile runs a rope of ggml's words, with x, or of vLLM's, with q and k.
func ropeFile(rotate func(r *run, p *rope, q, k, positions tensor.Tensor)) func(*run) {
	return func(r *run) {
		if r.has("x") {
			p := ggmlRopeParams(r)
			x := r.float("x")
			r.rank("x", x, 3)
			q := r.copyOf(r.cast(x, outFloat(x.DType)))
			rotate(r, p, q, tensor.Tensor{}, r.index("positions"))
			r.put("y", q, x.DType)
			r.out[0].slack = ggmlSlack(p, x, r.index("positions"))
			return
		}
		p := vllmRopeParams(r)
		q, k := r.states("q_in", "num_q_heads"), r.states("k_in", "num_kv_heads")
		rotate(r, p, q, k, r.index("positions"))
		r.putStates("q_out", "q_in", q)
		r.putStates("k_out", "k_in", k)
	}
}

// states returns a copy of an input [T, heads·dim] as [T, heads, dim].
func (r *run) states(key, heads string) tensor.Tensor {
	x, h, d := r.float(key), r.attrs.int(heads, 1), r.attrs.int("head_size", 0)
	r.rank(key, x, 2)
	return r.view(r.copyOf(r.cast(x, outFloat(x.DType))), x.Shape[0], h, d)
}

func (r *run) putStates(out, in string, x tensor.Tensor) {
	from := r.float(in)
	r.put(out, r.view(x, from.Dims()...), from.DType)
}

// ggmlRopeParams reads ggml's attributes: freq_scale is the inverse of a factor, and ext_factor says how much of yarn there is.
func ggmlRopeParams(r *run) *rope {
	a := r.attrs
	p := &rope{RopeParams: ops.RopeParams{Base: float32(a.float("freq_base", 10000)), RotaryDim: a.int32("rotary_dim", 0),
		OrigContext: a.int32("n_ctx_orig", 0), BetaFast: float32(a.float("beta_fast", 32)), BetaSlow: float32(a.float("beta_slow", 1))}}
	switch style, _, _ := strings.Cut(a.text("style", "neox"), " "); style {
	case "gptj":
		p.interleaved = true
	case "neox", "mrope", "imrope":
	default:
		r.fail(ErrFormat, "style", "%q", style)
	}
	scale, ext, attn := a.float("freq_scale", 1), a.float("ext_factor", 0), a.float("attn_factor", 1)
	p.Factor = float32(1 / scale)
	switch {
	case ext != 0:
		p.Scaling, p.ExtFactor = ops.RopeYarn, float32(ext)
		attn *= 1 + 0.1*math.Log(1/scale)
	case scale != 1:
		p.Scaling = ops.RopeLinear
	}
	p.AttnScale = notZero(attn)
	if r.has("freq_factors") {
		p.short = r.f32("freq_factors")
	}
	return p
}

// multiRope is ggml's rope over sections of pairs, each with positions of its own: positions holds four runs of one entry
// a token (time, height, width, another). rotate gets a table of all of them: row a·T+t is axis a of token t.
func multiRope(rotate func(r *run, a ops.RopeFromCacheArgs, sections []int32, interleaved bool)) func(*run) {
	return func(r *run) {
		p := ggmlRopeParams(r)
		x, positions := r.float("x"), r.index("positions")
		r.rank("x", x, 3)
		r.rank("positions", positions, 1)
		var sections []int32
		for _, s := range r.attrs.floats("sections") {
			sections = append(sections, int32(s))
		}
		if len(sections) != 4 || slices.Min(sections) < 0 || slices.Max(sections) > p.RotaryDim || positions.Shape[0] != 4*x.Shape[0] {
			r.fail(ErrFormat, "sections", "%v with %v for %v", sections, &positions, &x)
		}
		q := r.copyOf(r.cast(x, outFloat(x.DType)))
		rotate(r, ops.RopeFromCacheArgs{QStates: q, CosSinCache: r.table(p, positions, q.DType), RotaryDim: p.RotaryDim},
			sections, strings.HasPrefix(r.attrs.text("style", ""), "imrope"))
		r.put("y", q, x.DType)
	}
}

// rowOfEach picks each pair's cosine and sine here and leaves the op a plain table of one row a token.
func rowOfEach(r *run, a ops.RopeFromCacheArgs, sections []int32, interleaved bool) {
	tokens, half := int(a.QStates.Shape[0]), int(a.RotaryDim)/2
	table := r.alloc(a.CosSinCache.DType, int64(tokens), int64(a.RotaryDim))
	for i := range half {
		axis := sectionOf(int32(i), sections, interleaved)
		for t := range tokens {
			for _, e := range [...]int{i, half + i} {
				set(&table, 2*half*t+e, at(&a.CosSinCache, 2*half*(axis*tokens+t)+e))
			}
		}
	}
	a.CosSinCache, a.Positions = table, r.counting(int64(tokens))
	r.check(ops.RopeFromCache.Call(r.Queue, a))
}

// sectionOf returns the axis of a pair by ggml's rule.
func sectionOf(pair int32, sections []int32, interleaved bool) int {
	if interleaved {
		if axis := pair % 3; pair < 3*sections[axis] {
			return int(axis)
		}
		return 3
	}
	pair %= max(sections[0]+sections[1]+sections[2]+sections[3], 1)
	for axis, n := range sections[:3] {
		if pair < n {
			return axis
		}
		pair -= n
	}
	return 3
}

// ownSections lets the op tell the sections apart. It knows three.
func ownSections(r *run, a ops.RopeFromCacheArgs, sections []int32, interleaved bool) {
	for i := range a.RotaryDim / 2 {
		if sectionOf(i, sections, interleaved) == 3 {
			r.fail(ErrRoute, "sections", "a fourth section")
		}
	}
	tokens := a.QStates.Shape[0]
	a.Positions, a.MropeSection, a.MropeInterleaved = r.view(r.counting(3*tokens), 3, tokens), [3]int32(sections), interleaved
	r.check(ops.RopeFromCache.Call(r.Queue, a))
}

// ggmlSlack is how far off ggml's rotation of x may be. It works angles out in f32, each pair's from the one before: that
// costs an angle up to 2^-22 of its position. The ops' angles are f64.
func ggmlSlack(p *rope, x, positions tensor.Tensor) []float64 {
	slack := make([]float64, x.Numel())
	heads, dim, half := int(x.Shape[1]), int(x.Shape[2]), int(p.RotaryDim)/2
	for row := range int(x.Shape[0]) * heads {
		angle := math.Abs(at(&positions, row/heads)) / (1 << 22)
		for i := range half {
			a, b := row*dim+i, row*dim+i+half
			if p.interleaved {
				a, b = row*dim+2*i, row*dim+2*i+1
			}
			slack[a] = angle * math.Hypot(at(&x, a), at(&x, b)) * p.Scale()
			slack[b] = slack[a]
		}
	}
	return slack
}

// vllmRopeParams reads the plain rope of vLLM; the call that made it says how elements pair.
func vllmRopeParams(r *run) *rope {
	call := r.attrs.text("get_rope_call", "")
	return &rope{RopeParams: ops.RopeParams{Base: float32(r.attrs.float("base", 10000)), RotaryDim: r.attrs.int32("rotary_dim", 0)},
		interleaved: strings.Contains(call, "is_neox_style=False")}
}

// configRope reads the rope parameters of a Transformers or vLLM model configuration. context is the length that the model
// serves; the trained length is original_max_position_embeddings if the configuration has it. dim is the number of rotated
// elements unless the configuration says otherwise.
func (r *run) configRope(a *attrs, dim int32, base float64, context int32) *rope {
	dim = a.int32("rope_dim", int64(float64(dim)*a.float("partial_rotary_factor", 1)))
	p := &rope{RopeParams: ops.RopeParams{Base: float32(a.float("rope_theta", base)), RotaryDim: dim}}
	original := a.int32("original_max_position_embeddings", int64(context))
	p.OrigContext = original
	factor := a.float("factor", 1)
	p.Factor = float32(factor)
	attn := 1.0
	switch kind := a.text("rope_type", "default"); kind {
	case "default":
	case "linear":
		p.Scaling = ops.RopeLinear
	case "llama3":
		p.Scaling = ops.RopeLlama3
		p.LowFreq, p.HighFreq = float32(a.float("low_freq_factor", 1)), float32(a.float("high_freq_factor", 4))
	case "dynamic":
		if alpha := a.float("alpha", 0); alpha != 0 {
			p.Scaling, p.Factor = ops.RopeDynamicAlpha, float32(alpha)
			break
		}
		p.Scaling = ops.RopeDynamicNTK
		p.SeqLen = a.int32("seq_len", int64(context))
	case "yarn":
		p.Scaling = ops.RopeYarn
		p.ExtFactor = notZero(a.float("extrapolation_factor", 1))
		p.BetaFast, p.BetaSlow = float32(a.float("beta_fast", 32)), float32(a.float("beta_slow", 1))
		p.NoTruncate = !a.bool("truncate", true)
		given := a.float("attn_factor", 1)
		if all := a.float("mscale_all_dim", 0); all != 0 {
			attn = ops.YarnAttnScale(factor, given, a.float("mscale", 1), all)
		} else {
			attn = ops.YarnAttnScale(factor, given, 1, 0)
		}
		if !a.bool("apply_yarn_scaling", true) {
			attn = given
		}
	case "longrope":
		p.Scaling = ops.RopeLongRope
		if a.m["factor"] == nil {
			factor = float64(context) / float64(original)
		}
		attn = ops.LongRopeAttnScale(factor, float64(original))
		p.short, p.long = r.factors(a, "short_factor", p.RotaryDim), r.factors(a, "long_factor", p.RotaryDim)
	default:
		r.fail(ErrFormat, a.where, "rope_type %q", kind)
	}
	p.AttnScale = notZero(a.float("attention_factor", attn))
	return p
}

// factors reads frequency factors, ones if there are none.
func (r *run) factors(a *attrs, key string, dim int32) tensor.Tensor {
	list := a.floats(key)
	if list == nil {
		list = slices.Repeat([]float64{1}, int(min(max(dim, 0), math.MaxUint16))/2)
	}
	x := r.alloc(tensor.F32, int64(len(list)))
	for i, v := range list {
		set(&x, i, v)
	}
	return x
}

// longContextRope is a rotation class of vLLM: a table for every position that the class provides, and q and k rotated
// by it.
func longContextRope(r *run) {
	a := r.attrs
	a.note("dtype", "seed", "oracle_loader")
	q, k := r.states("q_in", "num_q_heads"), r.states("k_in", "num_kv_heads")
	params := a.object("rope_parameters")
	length := a.int32("max_position", 0)
	p := r.configRope(params, int32(min(q.Shape[2], math.MaxInt32)), 10000, length)
	p.interleaved = !a.bool("is_neox_style", true)
	positions := r.index("positions")

	rows := int64(length)
	sections := params.floats("mrope_section")
	multi := a.text("class_name", "") == "MRotaryEmbedding"
	if multi { // this class counts on four times the length
		rows, p.OrigContext = 4*rows, 4*p.OrigContext
	}
	switch p.Scaling {
	case ops.RopeYarn:
		rows = int64(float64(p.OrigContext) * float64(p.Factor))
	case ops.RopeLinear, ops.RopeDynamicNTK:
		rows = int64(float64(rows) * float64(p.Factor))
	}
	if p.Scaling == ops.RopeDynamicNTK {
		p.SeqLen = int32(min(rows, math.MaxInt32))
	}

	args := ops.RopeFromCacheArgs{QStates: q, KStates: k, Positions: positions, RotaryDim: p.RotaryDim, Interleaved: p.interleaved,
		MropeInterleaved: params.bool("mrope_interleaved", false)}
	if p.Scaling == ops.RopeLongRope {
		args.CosSinCache, args.Positions = r.longTable(p, params, rows, positions, q.DType)
	} else {
		args.CosSinCache = r.table(p, r.counting(rows), q.DType)
	}
	if positions.Rank == 2 {
		if len(sections) != 3 {
			r.fail(ErrFormat, "mrope_section", "%v for positions %v", sections, positions.Dims())
		}
		for i, s := range sections {
			args.MropeSection[i] = int32(s)
		}
	}
	r.check(ops.RopeFromCache.Call(r.Queue, args))
	r.put("cos_sin_cache", args.CosSinCache, r.float("q_in").DType)
	r.putStates("q_out", "q_in", q)
	r.putStates("k_out", "k_in", k)
}

// longTable is the table of longrope: the trained length with the short factors, then the whole length with the long ones.
// A model that serves more than it was trained on reads the second part only.
func (r *run) longTable(p *rope, a *attrs, rows int64, positions tensor.Tensor, t tensor.DType) (table, moved tensor.Tensor) {
	served := r.attrs.int("max_model_len", rows)
	trained := int64(p.OrigContext)
	short, long := *p, *p
	short.SeqLen, long.SeqLen = p.OrigContext, p.OrigContext+1 // the lengths that pick either
	short.AttnScale = notZero(a.float("short_mscale", float64(p.AttnScale)))
	long.AttnScale = notZero(a.float("long_mscale", float64(p.AttnScale)))
	table = r.alloc(t, trained+rows, int64(p.RotaryDim))
	first, second := r.table(&short, r.counting(trained), t), r.table(&long, r.counting(rows), t)
	to := tensor.Slice[uint8](&table)
	copy(to[copy(to, tensor.Slice[uint8](&first)):], tensor.Slice[uint8](&second))
	if served <= trained {
		return table, positions
	}
	moved = r.copyOf(positions)
	for i := range int(moved.Numel()) {
		setInt(&moved, i, atInt(&moved, i)+trained)
	}
	return table, moved
}

// ruleRope looks at a rotation of position 1: the angle is the frequency, the length what cosine and sine are scaled by.
func ruleRope(r *run) {
	context := r.facts.int32("max_position_embeddings", 2048)
	p := r.configRope(r.attrs, r.facts.int32("head_dim", 0), r.facts.float("rope_theta", 10000), context)
	positions := r.alloc(tensor.I64, 1)
	setInt(&positions, 0, 1)
	table := r.table(p, positions, tensor.F32)
	half := int(p.RotaryDim) / 2
	freq := r.alloc(tensor.F64, int64(half))
	for i := range half {
		set(&freq, i, math.Atan2(at(&table, half+i), at(&table, i)))
	}
	scale := r.alloc(tensor.F64)
	set(&scale, 0, math.Hypot(at(&table, 0), at(&table, half)))
	r.put("inv_freq", freq, tensor.F64)
	r.put("attention_scale", scale, tensor.F64)
}
