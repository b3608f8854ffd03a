package sample

import (
	"math"
	"slices"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Tolerance bounds how far an element of an output may lie from what the reference computed from the same operands, as
// they are stored. The rounding of inputs is therefore in both and loosens nothing; what is left is
//
//	Ulps·ulp(want)  +  Sum·√K·2⁻²⁴·magnitude  +  the share of quantized activations
//
// The first term is the rounding of the output to its dtype, ulp in that dtype. The second is what sums of K terms in f32
// lose in another order: magnitude is ‖a row‖·‖b row‖ for products, max|v|·(1+scale·max‖q‖·max‖k‖) for attention, the
// row's largest |want| times 1+max|logit| for a softmax, and the row's largest |want| else.
//
// The third is a widening that the catalogue allows and nothing else has: kernels of a product with block weights may
// round the activations to 8 bits a block of the weight's length, each by its own rule, and so does the reference. A
// rounding is off by at most half of max|a|/127 in the block, as often up as down, so that both together make an error of
// deviation √(Σ max|a|²·‖b block‖²/6)/127; eight of these are allowed, and what the rounding of the scales to binary16
// may do to all elements of a block alike. The sum of squared differences must moreover stay below NMSE times that of
// the reference.
type Tolerance struct {
	Exact     bool    `json:"exact,omitempty"` // same bits, any NaN for NaN
	Ulps      float64 `json:"ulps,omitempty"`
	Sum       float64 `json:"sum,omitempty"`
	K         int64   `json:"k,omitempty"`
	Quantized bool    `json:"quantized,omitempty"`
	NMSE      float64 `json:"nmse,omitempty"` // 0: no bound
}

// Bits is the tolerance of kernels that promise the reference's bits.
var Bits = Tolerance{Exact: true}

// tolerances holds the ops whose results are not exact. What only moves, selects, compares, or rounds once is: copies,
// table look-ups, relu, sums of two numbers, token ids, masks.
var tolerances = union(basicTolerances, gemmTolerances, elementwiseTolerances, mlaTolerances, linearTolerances, moeTolerances, quantTolerances, transformTolerances, fusedTolerances)

// toleranceTable has bounds by op.
type toleranceTable = map[string]bounds

// bounds is the bound of an op's results, see Tolerance.
type bounds struct {
	ulps, sum float64
	terms     func(s Shape) int64 // of the longest sum
	// size returns the size of what was added up for each element of an output; nil: the largest of its row.
	size func(want *Args, output string) (func(i int) float64, error)
}

var basicTolerances = toleranceTable{
	"matmul":             {ulps: 1, sum: 4, terms: extentOf("K")},
	"matmul_bt":          {ulps: 1, sum: 4, terms: extentOf("K")},
	"matmul_bt_quant":    {ulps: 1, sum: 4, terms: extentOf("K")},
	"rms_norm":           {ulps: 1, sum: 4, terms: extentOf("H")},
	"silu_and_mul":       {ulps: 2, sum: 8, terms: extentOf("")},
	"softmax":            {ulps: 1, sum: 4, terms: extentOf("N")},
	"rope_neox":          {ulps: 1, sum: 8, terms: extentOf("")},
	"rope_cos_sin_cache": {ulps: 1, sum: 8, terms: extentOf("")},
	"rope_from_cache":    {ulps: 1, sum: 4, terms: extentOf("")},
	"attention":          {ulps: 1, sum: 4, terms: func(s Shape) int64 { return s["Tk"] + s["D"] }},
	"paged_attention":    {ulps: 1, sum: 4, terms: func(s Shape) int64 { return s["MB"]*s["BS"] + s["D"] }},
	"apply_temperature":  {ulps: 1, sum: 0, terms: extentOf("")},
	"apply_penalties":    {ulps: 1, sum: 4, terms: extentOf("")},
	"compute_probs":      {ulps: 1, sum: 4, terms: extentOf("V")},
	"compute_logprobs":   {ulps: 1, sum: 4, terms: extentOf("V")},
}

func extentOf(symbol string) func(Shape) int64 {
	return func(s Shape) int64 { return max(s[symbol], 1) }
}

// ToleranceFor returns the bound for a call. An op that the table does not know is exact.
func ToleranceFor(a *Args) Tolerance {
	t, ok := tolerances[a.desc.Name]
	if !ok {
		return Bits
	}
	tol := Tolerance{Ulps: t.ulps, Sum: t.sum, K: max(t.terms(a.shape), 1)}
	if b := a.Tensor("b"); b != nil && b.DType.IsBlock() {
		tol.Quantized, tol.NMSE = true, 5e-4
	}
	return tol
}

// ulp returns the distance between v and the next number of a float dtype; 0 for other dtypes.
func ulp(t tensor.DType, v float64) float64 {
	v = math.Abs(v)
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	_, e := math.Frexp(v) // v = f·2^e, f in [1/2,1)
	switch t {
	case tensor.F32:
		return math.Ldexp(1, max(e-24, -149))
	case tensor.F16:
		return math.Ldexp(1, max(e-11, -24))
	case tensor.BF16:
		return math.Ldexp(1, max(e-8, -133))
	}
	return 0
}

// bound returns what the elements of an output may be off, values being want's.
func (tol Tolerance) bound(want *Args, o *registry.Operand, x *tensor.Tensor, values []float64) (func(i int) float64, error) {
	if tol.Exact || !x.DType.IsFloat() {
		return func(int) float64 { return 0 }, nil
	}
	size, lost, err := magnitudes(want, o, x, values, tol.Quantized)
	if err != nil {
		return nil, err
	}
	eps := tol.Sum * math.Sqrt(float64(tol.K)) * 0x1p-24
	floor := float64(tol.K) * 0x1p-149 // terms may vanish below the subnormals
	return func(i int) float64 {
		return tol.Ulps*ulp(x.DType, values[i]) + eps*size(i) + floor + lost(i)
	}, nil
}

// magnitudes returns, for each element of an output, the size of what was added up for it, and what the rounding of
// activations may have cost.
func magnitudes(want *Args, o *registry.Operand, x *tensor.Tensor, values []float64, quantized bool) (size, lost func(i int) float64, err error) {
	cols := int(max(x.Last(), 1))
	lost = func(int) float64 { return 0 }
	switch want.desc.Name {
	case "matmul", "matmul_bt", "matmul_bt_quant":
		a, b, err := factors(want)
		if err != nil {
			return nil, nil, err
		}
		na, nb := norms(a, want.shape["M"]), norms(b, want.shape["N"])
		if quantized {
			lost = quantizationLoss(want, a, b)
		}
		return func(i int) float64 { return na[i/cols] * nb[i%cols] }, lost, nil
	case "attention", "paged_attention":
		size, err := attentionSize(want)
		return func(int) float64 { return size }, lost, err
	}
	if f := tolerances[want.desc.Name].size; f != nil {
		size, err = f(want, o.Name)
		return size, lost, err
	}
	logit := 0.0
	if in := want.original("logits"); in != nil && o.Name != "logits" {
		logit = largestOf(in)
	} else if want.desc.Name == "softmax" {
		logit = largestOf(want.original("x"))
	}
	rows := make([]float64, (len(values)+cols-1)/cols)
	for i, v := range values {
		if v = math.Abs(v); !math.IsInf(v, 0) && v > rows[i/cols] {
			rows[i/cols] = v
		}
	}
	return func(i int) float64 { return rows[i/cols] * (1 + logit) }, lost, nil
}

// original returns the values that an operand was made with, nil if it is absent.
func (a *Args) original(name string) []float64 {
	for i := range a.areas {
		r := &a.areas[i]
		if r.op.Name != name || r.mem == nil {
			continue
		}
		x := *r.x
		if len(r.mem.orig) > 0 {
			x.Host = pointer(r.mem.orig, r.start())
		}
		v, err := Values(&x)
		if err != nil {
			return nil
		}
		return v
	}
	return nil
}

// factors returns the rows of a product's operands, [M,K] and [N,K].
func factors(want *Args) (a, b []float64, err error) {
	if a, err = Values(want.Tensor("a")); err != nil {
		return nil, nil, err
	}
	if b, err = Values(want.Tensor("b")); err != nil {
		return nil, nil, err
	}
	if want.desc.Name == "matmul" { // stored as [K,N]
		n := int(want.shape["N"])
		k := int(want.shape["K"])
		t := make([]float64, len(b))
		for i := range n {
			for j := range k {
				t[i*k+j] = b[j*n+i]
			}
		}
		b = t
	}
	return a, b, nil
}

// norms returns the norm of the finite elements of each of n rows.
func norms(v []float64, n int64) []float64 {
	out := make([]float64, n)
	if len(v) == 0 {
		return out // sums of nothing
	}
	k := len(v) / int(n)
	for i := range out {
		sum := 0.0
		for _, x := range v[i*k : (i+1)*k] {
			if s := x * x; s <= math.MaxFloat64 { // neither infinite nor NaN
				sum += s
			}
		}
		out[i] = math.Sqrt(sum)
	}
	return out
}

func largestOf(v []float64) (top float64) {
	for _, x := range v {
		if x = math.Abs(x); !math.IsInf(x, 0) && x > top {
			top = x
		}
	}
	return top
}

func attentionSize(want *Args) (float64, error) {
	key, val := "key", "value"
	if want.desc.Name == "paged_attention" {
		key, val = "k_cache", "v_cache"
	}
	q, err := Values(want.Tensor("query"))
	if err != nil {
		return 0, err
	}
	k, err := Values(want.Tensor(key))
	if err != nil {
		return 0, err
	}
	v, err := Values(want.Tensor(val))
	if err != nil {
		return 0, err
	}
	rows := func(v []float64) int64 { return int64(len(v)) / max(want.shape["D"], 1) }
	scale := want.rec.Elem().FieldByName("Scale").Float()
	return largestOf(v) * (1 + scale*largestOf(norms(q, rows(q)))*largestOf(norms(k, rows(k)))), nil
}

// quantizationLoss bounds what rounding activations to 8 bits a block costs, in kernel and reference together.
func quantizationLoss(want *Args, a, b []float64) func(i int) float64 {
	k, n := int(want.shape["K"]), int(want.shape["N"])
	if k == 0 {
		return func(int) float64 { return 0 }
	}
	e, _ := want.Tensor("b").DType.Block()
	const scaleStep = 0x1p-24 // of a binary16 scale below its normal numbers
	top := make([]float64, len(a)/e)
	for i := range top {
		top[i] = largestOf(a[i*e : (i+1)*e])
	}
	sums, squares := make([]float64, len(b)/e), make([]float64, len(b)/e)
	for i := range sums {
		for _, v := range b[i*e : (i+1)*e] {
			sums[i] += math.Abs(v)
			squares[i] += v * v
		}
	}
	blocks := k / e
	return func(i int) float64 {
		t, from := top[i/n*blocks:][:blocks], i%n*blocks
		variance, scales := 0.0, 0.0
		for j, t := range t {
			variance += t * t * squares[from+j] / 6
			scales += sums[from+j] * (t*0x1p-10 + 127*scaleStep)
		}
		return 8*math.Sqrt(variance)/127 + scales
	}
}

// outputs lists the operands that a kernel writes.
func (a *Args) outputs() []*area {
	var list []*area
	for i := range a.areas {
		if r := &a.areas[i]; r.op.Role != registry.In && r.x.Present() {
			list = append(list, r)
		}
	}
	return slices.Clip(list)
}
