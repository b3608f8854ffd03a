package sample

import (
	"fmt"
	"maps"
	"math"

	"github.com/opmux/opmux/tensor"
)

// recipe is what a descriptor cannot say about an op's calls. An op without one gets the zero recipe: extents of
// defaultExtent, zero attributes, whole numbers 0 and 1.
type recipe struct {
	shape   Shape                             // extents of symbols where the case gives none
	shapes  map[string]string                 // shapes of operands that the descriptor leaves open
	derived []string                          // symbols that derive sets if the case does not
	derive  func(g *generator) error          // sets symbols that follow from others
	attrs   func(g *generator) map[string]any // attributes without a legal zero value
	fill    fillers                           // operands with a meaning of their own
	spread  float64                           // standard deviation of data, 0 is 1
	alias   map[string]string                 // output: input whose memory it may have

	// For the corpus.
	big   Shape              // extents beyond one vector, tile or page, with tails
	least Shape              // smallest legal extents, 0 where missing
	step  Shape              // what extents must be multiples of, blocks apart
	still []string           // symbols that cannot be swept alone
	fills []Fill             // ways to fill, beyond Normal, that have a defined result
	fit   func(c *Case) bool // completes a case of given types and extents; false: there is no such call
	cases func(b *builder)   // the op's own cases

	// For checks of kernels.
	batch string                         // symbol of the rows that do not depend on each other
	alone func(a *Args, row int64) error // narrows a call to one of them where slicing operands does not
}

var none = &recipe{}

func recipeOf(op string) *recipe {
	if rc := recipes[op]; rc != nil {
		return rc
	}
	return none
}

type fillers = map[string]func(g *generator, x *tensor.Tensor, s stream) value

// between returns whole numbers in [0, extent of a symbol).
func between(symbol string) func(g *generator, x *tensor.Tensor, s stream) value {
	return func(g *generator, _ *tensor.Tensor, s stream) value {
		n := max(g.shape[symbol], 1)
		return func(i int) float64 { return float64(s.below(i, n)) }
	}
}

// span returns numbers in [lo, hi).
func span(lo, hi float64) func(g *generator, x *tensor.Tensor, s stream) value {
	return func(_ *generator, _ *tensor.Tensor, s stream) value {
		return func(i int) float64 { return lo + (hi-lo)*s.uniform(i) }
	}
}

// wholes returns whole numbers in [lo, hi).
func wholes(lo, hi int64) func(g *generator, x *tensor.Tensor, s stream) value {
	return func(_ *generator, _ *tensor.Tensor, s stream) value {
		return func(i int) float64 { return float64(lo + s.below(i, hi-lo)) }
	}
}

// additiveMask returns logits to be added, of which an eighth are -inf.
func additiveMask(_ *generator, _ *tensor.Tensor, s stream) value {
	return func(i int) float64 {
		if s.bits(i)>>8%8 == 0 {
			return math.Inf(-1)
		}
		return s.normal(i)
	}
}

// set gives a symbol its value unless the case did.
func (g *generator) set(symbol string, n int64) {
	if _, ok := g.c.Shape[symbol]; !ok {
		g.shape[symbol] = n
	}
}

// attr returns a numeric attribute of the case, or def.
func (g *generator) attr(name string, def int64) int64 {
	switch v := g.c.Attrs[name].(type) {
	case int:
		return int64(v)
	case int32:
		return int64(v)
	case int64:
		return v
	case float64:
		return int64(v)
	}
	return def
}

var recipes = union(basicRecipes, gemmRecipes, elementwiseRecipes, mlaRecipes, linearRecipes, moeRecipes, quantRecipes, transformRecipes, fusedRecipes)

// recipeTable has recipes by op.
type recipeTable = map[string]*recipe

// union puts tables of distinct keys together.
func union[V any](tables ...map[string]V) map[string]V {
	all := map[string]V{}
	for _, t := range tables {
		maps.Copy(all, t)
	}
	return all
}

var basicRecipes = recipeTable{
	"matmul":          {shape: Shape{"M": 5, "N": 37, "K": 64}, big: Shape{"M": 13, "N": 130, "K": 100}, batch: "M", fills: sums, cases: productCases},
	"matmul_bt":       {shape: Shape{"M": 5, "N": 37, "K": 64}, big: Shape{"M": 13, "N": 130, "K": 100}, batch: "M", fills: sums, cases: productCases},
	"matmul_bt_quant": {shape: Shape{"M": 5, "N": 37, "K": 256}, big: Shape{"M": 13, "N": 130, "K": 512}, batch: "M", fills: []Fill{Zero, Equal, Ties, Denormal}, cases: quantCases},

	"rms_norm": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 333}, batch: "T", attrs: eps, alias: map[string]string{"out": "x"}, fills: sums, cases: normCases},
	"silu_and_mul": {shape: Shape{"T": 3, "D": 51}, big: Shape{"T": 5, "D": 333}, batch: "T", derived: []string{"W"}, derive: func(g *generator) error {
		if g.set("W", 2*g.shape["D"]); g.has("up") {
			g.set("W", g.shape["D"])
		}
		return nil
	}, fills: anyFill, cases: siluCases},
	"relu": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", shapes: anyRank("x"), alias: map[string]string{"out": "x"}, fills: anyFill, cases: reluCases},
	"add": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", shapes: repeats, alias: map[string]string{"out": "a"},
		fill: fillers{"a": anyDType, "b": anyDType}, fit: fitWhole("out", "a", "b"), fills: anyFill, cases: sumCases},
	"mul_scalar": {shape: Shape{"T": 3, "H": 51}, big: Shape{"T": 5, "H": 1003}, batch: "T", shapes: anyRank("x"), attrs: func(*generator) map[string]any { return map[string]any{"scalar": 1.0 / 3} },
		alias: map[string]string{"out": "x"}, fills: anyFill, cases: scalarCases},
	"qkv_split": {shape: Shape{"T": 3, "Q": 40, "KV": 8}, big: Shape{"T": 5, "Q": 96, "KV": 33}, batch: "T", shapes: map[string]string{"q_out": "T,Q", "k_out": "T,KV", "v_out": "T,KV"},
		derived: []string{"W"}, derive: func(g *generator) error {
			g.set("W", g.shape["Q"]+2*g.shape["KV"])
			return nil
		}, least: Shape{"T": 1}, fills: anyFill, cases: splitCases},
	"softmax": {shape: Shape{"H": 2, "T": 3, "N": 51}, big: Shape{"H": 3, "T": 5, "N": 333}, attrs: func(*generator) map[string]any { return map[string]any{"scale": 0.5} },
		fill: fillers{"mask": additiveMask}, fills: append([]Fill{NegInf}, sums...), cases: softmaxCases},
	"embedding": {shape: Shape{"T": 5, "V": 19, "H": 256}, big: Shape{"T": 9, "V": 300, "H": 512}, batch: "T", fill: fillers{"ids": between("V")}, least: Shape{"V": 1}, fills: anyFill, cases: embeddingCases},

	"rope_neox": {shape: Shape{"T": 3, "Hq": 4, "Hk": 2, "D": 40}, big: Shape{"T": 9, "Hq": 5, "Hk": 3, "D": 66}, batch: "T", derived: []string{"P"}, derive: pairs, attrs: rotaryDim, fill: ropeFill,
		least: Shape{"D": 2}, fit: fitFactors, fills: sums, cases: ropeCases},
	"rope_cos_sin_cache": {shape: Shape{"T": 3, "R": 38}, big: Shape{"T": 33, "R": 66}, batch: "T", derived: []string{"P"}, derive: pairs, attrs: rotaryDim, fill: ropeFill,
		least: Shape{"R": 2}, step: Shape{"R": 2}, fit: fitFactors, cases: ropeScalingCases},
	"rope_from_cache": {shape: Shape{"T": 3, "Hq": 4, "Hk": 2, "D": 40, "P": 64}, big: Shape{"T": 9, "Hq": 5, "Hk": 3, "D": 66, "P": 100}, batch: "T", derived: []string{"R"}, derive: pairs, attrs: rotaryDim,
		fill: fillers{"positions": between("P"), "cos_sin_cache": span(-1, 1)}, least: Shape{"D": 2, "P": 1}, fit: fitSections, fills: sums, cases: ropeCacheCases},

	"attention": {shape: Shape{"Tq": 7, "Tk": 19, "Hq": 6, "Hk": 2, "D": 19, "Dv": 19}, big: Shape{"Tq": 37, "Tk": 70, "Hq": 6, "Hk": 3, "D": 40, "Dv": 33}, batch: "Tq", attrs: headScale, fill: fillers{"mask": additiveMask},
		fit: fitHeads, fills: sums, cases: attentionCases},
	"paged_attention": {shape: Shape{"Tq": 3, "Tk": 21, "R": 1, "Hq": 6, "Hk": 2, "D": 32, "BS": 8}, big: Shape{"Tq": 37, "Tk": 70, "R": 3, "Hq": 6, "Hk": 3, "D": 64, "BS": 16}, batch: "R", alone: oneRequest,
		derived: []string{"NB", "MB"}, derive: requests, attrs: headScale, fill: pagedFill, least: Shape{"R": 1, "BS": 1}, fit: fitHeads, fills: sums, cases: pagedCases},
	"reshape_and_cache": {shape: Shape{"Tk": 5, "Hk": 2, "D": 32, "NB": 4, "BS": 8}, big: Shape{"Tk": 33, "Hk": 3, "D": 64, "NB": 9, "BS": 16}, derived: []string{"S"}, derive: slots,
		fill: fillers{"slot_mapping": slotFill}, least: Shape{"NB": 1, "BS": 1}, fit: fitBlocks, fills: anyFill, cases: cacheCases},

	"apply_temperature": {shape: rowsOfLogits, big: bigLogits, batch: "N", spread: 3, fill: fillers{"temp": span(0.2, 2)}, fills: anyFill, cases: temperatureCases},
	"greedy_argmax":     {shape: rowsOfLogits, big: bigLogits, batch: "N", spread: 3, least: Shape{"V": 1}, fills: anyFill, cases: argmaxCases},
	"apply_top_k_top_p": {shape: rowsOfLogits, big: bigLogits, batch: "N", spread: 3, fill: fillers{"k": wholes(1, 41), "p": span(0.5, 1)}, fills: ranks, cases: topCases},
	"compute_probs":     {shape: rowsOfLogits, big: bigLogits, batch: "N", spread: 3, fills: append([]Fill{NegInf}, sums...), cases: probCases},
	"compute_logprobs":  {shape: rowsOfLogits, big: bigLogits, batch: "N", spread: 3, fills: append([]Fill{NegInf}, sums...), cases: probCases},
	"random_sample":     {shape: rowsOfLogits, big: bigLogits, fill: fillers{"probs": span(0, 1), "seeds": wholes(-1<<52, 1<<52)}, least: Shape{"V": 1}, cases: sampleCases},
	"apply_penalties": {shape: rowsOfLogits, big: bigLogits, batch: "N", spread: 3, fill: fillers{"output_bin_counts": wholes(0, 4), "frequency_penalties": span(-0.5, 1),
		"presence_penalties": span(-0.5, 1), "repetition_penalties": span(0.8, 1.5)}, fills: anyFill, cases: rowCases},
	"apply_min_p":             {shape: rowsOfLogits, big: bigLogits, batch: "N", spread: 3, fill: fillers{"min_p": span(0, 0.3)}, fills: ranks, cases: rowCases},
	"apply_logit_bias":        {shape: listOfLogits, big: bigLogits, spread: 3, fill: fillers{"rows": between("N"), "cols": between("V")}, least: Shape{"N": 1, "V": 1}, fills: anyFill, cases: listCases},
	"apply_token_mask":        {shape: listOfLogits, big: bigLogits, spread: 3, fill: fillers{"rows": between("N"), "cols": between("V")}, least: Shape{"N": 1, "V": 1}, fills: anyFill, cases: listCases},
	"apply_allowed_token_ids": {shape: rowsOfLogits, big: bigLogits, batch: "N", spread: 3, fills: anyFill, cases: rowCases},
}

// Ways to fill with a defined result: for ops that work on each element, for sums of products (whose overflow depends on
// the order), and for ops that rank elements.
var (
	anyFill = []Fill{Zero, Equal, Ties, Denormal, Huge, NegInf, NaN}
	sums    = []Fill{Zero, Equal, Ties, Denormal, NaN}
	ranks   = []Fill{Zero, Equal, Ties, NegInf}
)

// anyRank gives an operand of any shape one of rank 2, 1 or 4.
func anyRank(operand string) map[string]string { return map[string]string{operand: "T,H|H|2,T,1,H"} }

// fitFactors adds the scaling that a table of long factors is for.
func fitFactors(c *Case) bool {
	if c.Types["long_factors"] == tensor.None {
		return true
	}
	if c.Types["freq_factors"] == tensor.None {
		return false
	}
	c.Attrs = ropeScalings["longrope"]
	return true
}

// fitSections gives positions of three axes their sections.
func fitSections(c *Case) bool {
	if c.Forms["positions"] == 1 {
		c.Attrs = map[string]any{"rotary_dim": 38, "mrope_section": []int{8, 6, 5}}
	}
	return true
}

// fitHeads makes the query heads a multiple of the key heads, and heads whole blocks.
func fitHeads(c *Case) bool {
	hq, q := c.Shape["Hq"]
	hk, k := c.Shape["Hk"]
	switch {
	case q && hq == 0, k && hk == 0:
		return false
	case q && !k:
		c.Shape["Hk"] = 1
	case k && !q:
		c.Shape["Hq"] = 2 * hk
	}
	return true
}

// fitBlocks leaves out heads that are no whole blocks.
func fitBlocks(c *Case) bool {
	d, ok := c.Shape["D"]
	return !ok || !c.Types["k_cache"].IsBlock() || d%32 == 0
}

// oneRequest narrows a paged call to one request.
func oneRequest(a *Args, r int64) error {
	starts := a.Tensor("query_start_loc")
	from, to := int64(*at[int32](starts, r)), int64(*at[int32](starts, r+1))
	for _, name := range []string{"query", "out"} {
		if err := a.narrow(name, 0, from, to); err != nil {
			return err
		}
	}
	for _, name := range []string{"block_table", "seq_lens"} {
		if err := a.narrow(name, 0, r, r+1); err != nil {
			return err
		}
	}
	if err := a.narrow("query_start_loc", 0, r, r+2); err != nil {
		return err
	}
	*at[int32](a.Tensor("query_start_loc"), 0) = 0
	*at[int32](a.Tensor("query_start_loc"), 1) = int32(to - from)
	return nil
}

var (
	rowsOfLogits = Shape{"N": 3, "V": 151}
	listOfLogits = Shape{"N": 3, "V": 151, "M": 7}
	bigLogits    = Shape{"N": 5, "V": 1003}
)

func eps(*generator) map[string]any { return map[string]any{"eps": 1e-5} }

// headScale is the usual scale of logits.
func headScale(g *generator) map[string]any {
	return map[string]any{"scale": 1 / math.Sqrt(float64(max(g.shape["D"], 1)))}
}

// pairs derives the number of rotated pairs, or the width of a table of them.
func pairs(g *generator) error {
	r := g.attr("rotary_dim", 0)
	if r == 0 {
		if r = g.shape["D"] / 2 * 2; g.desc.Name != "rope_neox" {
			r = max(r-2, 2) // leaves a tail that is not rotated
		}
		if n, ok := g.shape["R"]; ok {
			r = n
		}
	}
	if g.desc.Name == "rope_from_cache" {
		g.set("R", r)
	} else {
		g.set("P", r/2)
	}
	return nil
}

// rotaryDim gives the attribute that pairs worked with.
func rotaryDim(g *generator) map[string]any {
	if g.desc.Name == "rope_from_cache" {
		return map[string]any{"rotary_dim": g.shape["R"]}
	}
	return map[string]any{"rotary_dim": 2 * g.shape["P"]}
}

var ropeFill = fillers{"positions": wholes(0, 1<<17), "freq_factors": span(1, 4), "long_factors": span(2, 9)}

// requests derives pages of a paged batch: R requests of Tk keys each, whose query rows, Tq in all, are spread evenly,
// unless the case gives seq_lens and query_start_loc.
func requests(g *generator) error {
	bs := g.shape["BS"]
	if bs <= 0 {
		g.set("NB", 1)
		g.set("MB", 1)
		return nil
	}
	lens, starts := g.c.Values["seq_lens"], g.c.Values["query_start_loc"]
	if lens == nil {
		for range min(g.shape["R"], 1<<20) {
			lens = append(lens, float64(g.shape["Tk"]))
		}
	}
	g.set("R", int64(len(lens)))
	if len(starts) > 0 {
		g.set("Tq", int64(starts[len(starts)-1]))
	}
	most, total := int64(1), int64(0)
	for _, n := range lens {
		blocks := (int64(max(n, 0)) + bs - 1) / bs
		most, total = max(most, blocks), total+blocks
	}
	if total > 1<<31 {
		return fmt.Errorf("%d pages", total)
	}
	g.set("MB", most)
	g.set("NB", total+1)
	return nil
}

var pagedFill = fillers{
	"seq_lens": func(g *generator, _ *tensor.Tensor, _ stream) value {
		return func(int) float64 { return float64(g.shape["Tk"]) }
	},
	"query_start_loc": func(g *generator, _ *tensor.Tensor, _ stream) value {
		return func(i int) float64 { return float64(int64(i) * g.shape["Tq"] / max(g.shape["R"], 1)) }
	},
	// Pages in a random order, each used once; entries behind a request's last page are not to be read.
	"block_table": func(g *generator, x *tensor.Tensor, s stream) value {
		lens, most, bs := g.c.Values["seq_lens"], x.Shape[1], max(g.shape["BS"], 1)
		order, next := s.permutation(int(g.shape["NB"])), 0
		table := make([]float64, x.Numel())
		for i := range table {
			r, b := i/int(most), int64(i)%most
			n := g.shape["Tk"]
			if lens != nil {
				n = int64(lens[r])
			}
			table[i] = -1
			if b < (n+bs-1)/bs && next < len(order) {
				table[i] = float64(order[next])
				next++
			}
		}
		return func(i int) float64 { return table[i] }
	},
}

// slots derives the number of slots: one for each token.
func slots(g *generator) error {
	g.set("S", g.shape["Tk"])
	if v, ok := g.c.Values["slot_mapping"]; ok {
		g.set("S", int64(len(v)))
	}
	return nil
}

// slotFill names slots in a random order, none twice as long as there are enough.
func slotFill(g *generator, _ *tensor.Tensor, s stream) value {
	n := max(g.shape["NB"]*g.shape["BS"], 1)
	order := s.permutation(int(min(n, 1<<24)))
	return func(i int) float64 { return float64(order[i%len(order)]) }
}

// permutation returns 0..n-1 in a random order.
func (s stream) permutation(n int) []int {
	p := make([]int, n)
	for i := range p {
		j := int(s.below(i, int64(i)+1))
		p[i], p[j] = p[j], i
	}
	return p
}
