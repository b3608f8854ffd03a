package ops

import (
	"maps"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Cost is the work that no kernel can avoid on a call: each byte of an operand that the call depends on is read once,
// each byte of a result is written once, whatever a kernel keeps, reads again or computes twice. Rates made from it are
// comparable between kernels.
//
// FLOPs counts every multiplication, addition, comparison, division and elementary function of the formula as one. For
// products and attention it counts the products alone, as is usual: 2·M·N·K, and 2·(D+Dv) for each query head and key that
// it sees. Conversions between number formats count nothing.
type Cost struct {
	FLOPs    float64   `json:"flops"`
	Read     int64     `json:"read"`    // bytes in storage width: blocks with their scales, panels with their padding rows
	Written  int64     `json:"written"` // bytes
	Unit     string    `json:"unit"`    // the arithmetic that bounds the call: UnitF32, or UnitInt8 where weights are blocks of bytes
	Movement bool      `json:"movement,omitempty"`
	Operands []Traffic `json:"operands"` // Read and Written by operand, in record order
}

// Traffic is what a call reads and writes of one operand, in bytes.
type Traffic struct {
	Operand string `json:"operand"`
	Read    int64  `json:"read"`
	Written int64  `json:"written"`
}

// Kinds of arithmetic whose peak rates differ.
const (
	UnitF32  = "f32"
	UnitInt8 = "int8"
)

// Bytes is Read and Written together.
func (c *Cost) Bytes() int64 { return c.Read + c.Written }

// Touched counts what is read and written in place once: the bytes that have to pass between memory and a processor
// whose caches are cold.
func (c *Cost) Touched() (n int64) {
	for _, o := range c.Operands {
		n += max(o.Read, o.Written)
	}
	return n
}

// CostOf returns the cost of the valid call of an op of this package whose record lies at args. Where it depends on the
// values of indices, lengths or masks, they are read: false if the CPU cannot see them, and for ops that are not known.
// Values that the op would refuse count as nothing.
func CostOf(op registry.Op, args unsafe.Pointer) (Cost, bool) {
	f, ok := costs[op]
	if !ok || args == nil {
		return Cost{}, false
	}
	c := byID[op]
	cost := Cost{Unit: UnitF32}
	t := tally{Cost: &cost}
	for _, o := range c.spec().operands {
		x := o.at(args)
		if !x.Present() {
			continue
		}
		n := bytesOf(x)
		entry := Traffic{Operand: o.Name}
		if o.Role != registry.Out {
			entry.Read = n
		}
		if o.Role != registry.In {
			entry.Written = n
		}
		cost.Operands = append(cost.Operands, entry)
	}
	f(&t, args)
	if t.hidden {
		return Cost{}, false
	}
	for _, o := range cost.Operands {
		cost.Read += o.Read
		cost.Written += o.Written
	}
	return cost, true
}

// tally is a Cost that is being worked out. Operands come in as read or written whole; the op's function says what else.
type tally struct {
	*Cost
	hidden bool // values that the CPU cannot see are needed
}

// read and written replace what is counted for an operand, if it is present.
func (t *tally) read(operand string, bytes int64) {
	if o := t.operand(operand); o != nil {
		o.Read = bytes
	}
}

func (t *tally) written(operand string, bytes int64) {
	if o := t.operand(operand); o != nil {
		o.Written = bytes
	}
}

func (t *tally) operand(name string) *Traffic {
	for i := range t.Operands {
		if t.Operands[i].Operand == name {
			return &t.Operands[i]
		}
	}
	return nil
}

// costs has every op of the package.
var costs = union(basicCosts, gemmCosts, elementwiseCosts, mlaCosts, linearCosts, moeCosts, quantCosts, transformCosts, fusedCosts)

// union puts tables of distinct keys together.
func union[K comparable, V any](tables ...map[K]V) map[K]V {
	all := map[K]V{}
	for _, t := range tables {
		maps.Copy(all, t)
	}
	return all
}

// basicCosts are those of the ops that a dense model calls. A function may leave everything as it is: operands whole, no
// arithmetic.
var basicCosts = costTable{
	OpMatmul: cost(func(t *tally, a *MatmulArgs) { t.product(&a.A, a.Out.Last()) }),
	OpMatmulBT: cost(func(t *tally, a *MatmulBTArgs) {
		t.product(&a.A, a.B.Shape[0])
		if a.B.DType.IsBlock() {
			t.Unit = UnitInt8
		}
	}),
	OpMatmulBTQuant: cost(func(t *tally, a *MatmulBTQuantArgs) {
		t.product(&a.A, a.B.Shape[0])
		t.Unit = UnitInt8
	}),
	OpRMSNorm: cost(func(t *tally, a *RMSNormArgs) {
		// square, add, scale; the sum with the residual; the weight
		t.each(&a.X, 3+count(a.Residual.Present())+count(a.Weight.Present())+count(a.Gemma))
	}),
	OpSiluAndMul: cost(func(t *tally, a *SiluAndMulArgs) { t.each(&a.Out, 5) }), // negate, exp, add, divide, multiply
	OpRelu:       cost(func(t *tally, a *ReluArgs) { t.each(&a.X, 1) }),
	OpAdd:        cost(func(t *tally, a *AddArgs) { t.each(&a.A, 1) }),
	OpMulScalar:  cost(func(t *tally, a *MulScalarArgs) { t.each(&a.X, 1) }),
	OpQKVSplit:   moved,
	OpSoftmax: cost(func(t *tally, a *SoftmaxArgs) {
		t.each(&a.X, 1+softmaxWork+count(a.Mask.Present())+count(a.MaxBias > 0))
	}),
	OpEmbedding: movement(func(t *tally, a *EmbeddingArgs) {
		t.read("table", int64(len(distinct(t, &a.IDs, a.Table.Shape[0])))*rowBytes(&a.Table))
	}),
	OpRopeNeox: cost(func(t *tally, a *RopeNeoxArgs) {
		pairs := float64(a.Rope.RotaryDim) / 2 * float64(a.QStates.Shape[0])
		t.FLOPs = pairs * (angleWork + rotationWork*heads(&a.QStates, &a.KStates))
		t.rotated("q_states", &a.QStates, a.Rope.RotaryDim)
		t.rotated("k_states", &a.KStates, a.Rope.RotaryDim)
	}),
	OpRopeCosSinCache: cost(func(t *tally, a *RopeCosSinCacheArgs) { t.each(&a.CosSin, angleWork/2) }),
	OpRopeFromCache: cost(func(t *tally, a *RopeFromCacheArgs) {
		t.FLOPs = float64(a.RotaryDim) / 2 * float64(a.QStates.Shape[0]) * rotationWork * heads(&a.QStates, &a.KStates)
		t.rotated("q_states", &a.QStates, a.RotaryDim)
		t.rotated("k_states", &a.KStates, a.RotaryDim)
		// Three axes read parts of three rows, which are a row together.
		rows := int64(len(distinct(t, &a.Positions, a.CosSinCache.Shape[0])))
		t.read("cos_sin_cache", min(rows, a.QStates.Shape[0])*rowBytes(&a.CosSinCache))
	}),
	OpAttention:      cost(attentionCost),
	OpPagedAttention: cost(pagedCost),
	OpReshapeAndCache: movement(func(t *tally, a *ReshapeAndCacheArgs) {
		rows := int64(0)
		for _, s := range indices(t, &a.SlotMapping) {
			rows += int64(count(s >= 0))
		}
		t.read("k", rows*a.K.Shape[1]*rowBytes(&a.K))
		t.read("v", rows*a.V.Shape[1]*rowBytes(&a.V))
		for i, x := range [...]*tensor.Tensor{&a.KCache, &a.VCache} {
			name := [...]string{"k_cache", "v_cache"}[i]
			t.read(name, 0)
			t.written(name, rows*x.Shape[2]*rowBytes(x))
		}
	}),
	OpApplyAllowedTokenIDs: movement(func(t *tally, a *ApplyAllowedTokenIDsArgs) {
		t.read("logits", 0)
		excluded := int64(0)
		for _, m := range visible[uint8](t, &a.Mask) {
			excluded += int64(count(m != 0))
		}
		t.written("logits", excluded*4)
	}),
	OpApplyTokenMask: movement(func(t *tally, a *ApplyTokenMaskArgs) {
		t.read("logits", 0)
		t.written("logits", a.Rows.Numel()*4)
	}),
	OpApplyLogitBias: cost(func(t *tally, a *ApplyLogitBiasArgs) {
		t.each(&a.Biases, 1)
		t.read("logits", a.Rows.Numel()*4)
		t.written("logits", a.Rows.Numel()*4)
	}),
	// compare, multiply or divide; a multiplication and a subtraction for each of the other two
	OpApplyPenalties:   cost(func(t *tally, a *ApplyPenaltiesArgs) { t.each(&a.Logits, 6) }),
	OpGreedyArgmax:     cost(func(t *tally, a *GreedyArgmaxArgs) { t.each(&a.Logits, 1) }),
	OpApplyTemperature: cost(func(t *tally, a *ApplyTemperatureArgs) { t.each(&a.Logits, 1) }),
	OpApplyMinP:        cost(func(t *tally, a *ApplyMinPArgs) { t.each(&a.Logits, 4) }), // maximum, subtract, exp, compare
	OpApplyTopKTopP: cost(func(t *tally, a *ApplyTopKTopPArgs) {
		t.each(&a.Logits, count(a.K.Present())+count(a.P.Present())*(softmaxWork+1))
	}),
	OpComputeProbs:    cost(func(t *tally, a *ComputeProbsArgs) { t.each(&a.Logits, softmaxWork) }),
	OpComputeLogprobs: cost(func(t *tally, a *ComputeLogprobsArgs) { t.each(&a.Logits, softmaxWork) }),
	OpRandomSample:    cost(func(t *tally, a *RandomSampleArgs) { t.each(&a.Probs, 3) }), // logarithm, divide, compare
}

// Operations of parts that several ops have.
const (
	softmaxWork  = 5 // of an element: maximum, subtract, exp, sum, divide (or subtract the logarithm)
	angleWork    = 5 // of a pair: multiply, cos, sin, both scaled
	rotationWork = 6 // of a pair of a head: four multiplications, two additions
)

// cost erases the record's type; P points to it.
func cost[P any](f func(t *tally, a P)) func(t *tally, args unsafe.Pointer) {
	return func(t *tally, args unsafe.Pointer) { f(t, *(*P)(unsafe.Pointer(&args))) }
}

// movement is cost of an op that computes nothing but where its operands are read in part.
func movement[P any](f func(t *tally, a P)) func(t *tally, args unsafe.Pointer) {
	return func(t *tally, args unsafe.Pointer) {
		t.Movement = true
		f(t, *(*P)(unsafe.Pointer(&args)))
	}
}

// moved is the cost of an op that computes nothing.
func moved(t *tally, _ unsafe.Pointer) { t.Movement = true }

// product counts [M,K] times K by n.
func (t *tally) product(a *tensor.Tensor, n int64) { t.FLOPs = 2 * elements(a) * float64(n) }

// each counts work operations for each element of x.
func (t *tally) each(x *tensor.Tensor, work int) { t.FLOPs = elements(x) * float64(work) }

// rotated counts the rotated elements of x, [T,H,D], once read and once written.
func (t *tally) rotated(name string, x *tensor.Tensor, rotary int32) {
	n := x.Shape[0] * x.Shape[1] * int64(rotary) * int64(x.DType.Size())
	t.read(name, n)
	t.written(name, n)
}

// seen counts the keys that queries see: query i of n stands at position start+i. first and end bound the keys that at
// least one of them sees, rows counts the queries that see any.
func seen(n, keys, start int64, causal, windowed bool, left, right int32) (pairs, first, end, rows int64) {
	first = keys
	for i := range n {
		p := start + i
		lo, hi := int64(0), keys
		if causal {
			hi = min(hi, p+1)
		}
		if windowed {
			lo, hi = max(lo, p-int64(left)), min(hi, p+int64(right)+1)
		}
		if lo < hi {
			pairs += hi - lo
			rows++
			first, end = min(first, lo), max(end, hi)
		}
	}
	return pairs, min(first, end), end, rows
}

func attentionCost(t *tally, a *AttentionArgs) {
	tq, hq, d := a.Query.Shape[0], a.Query.Shape[1], a.Query.Shape[2]
	tk, hk, dv := a.Key.Shape[0], a.Key.Shape[1], a.Value.Shape[2]
	start := tk - tq
	if a.TopLeft {
		start = int64(a.QueryOffset)
	}
	pairs, first, end, rows := seen(tq, tk, start, a.Causal, a.Windowed, a.WindowLeft, a.WindowRight)
	t.FLOPs = 2 * float64(pairs) * float64(hq) * float64(d+dv)
	t.read("query", rows*hq*rowBytes(&a.Query))
	t.read("key", (end-first)*hk*rowBytes(&a.Key))
	t.read("value", (end-first)*hk*rowBytes(&a.Value))
	masks := int64(1)
	if a.Mask.Rank == 3 {
		masks = hq
	}
	t.read("mask", pairs*masks*int64(a.Mask.DType.Size()))
}

func pagedCost(t *tally, a *PagedAttentionArgs) {
	tq, hq, d := a.Query.Shape[0], a.Query.Shape[1], a.Query.Shape[2]
	page, hk := a.KCache.Shape[1], a.KCache.Shape[2]
	lens, starts := visible[int32](t, &a.SeqLens), visible[int32](t, &a.QueryStartLoc)
	var pairs, keys, rows, pages int64
	for r := range min(len(lens), len(starts)-1) {
		q0, q1 := int64(starts[r]), min(int64(starts[r+1]), tq)
		if q0 < 0 || q1 <= q0 || lens[r] < 0 || page == 0 {
			continue
		}
		p, first, end, n := seen(q1-q0, int64(lens[r]), int64(lens[r])-(q1-q0), a.Causal, a.Windowed, a.WindowLeft, a.WindowRight)
		pairs, keys, rows = pairs+p, keys+end-first, rows+n
		if n > 0 {
			pages += (end-1)/page - first/page + 1
		}
	}
	t.FLOPs = 4 * float64(pairs) * float64(hq) * float64(d)
	t.read("query", rows*hq*rowBytes(&a.Query))
	t.written("out", rows*hq*rowBytes(&a.Out))
	t.read("k_cache", keys*hk*rowBytes(&a.KCache))
	t.read("v_cache", keys*hk*rowBytes(&a.VCache))
	t.read("block_table", pages*int64(a.BlockTable.DType.Size()))
}

// bytesOf is what the elements of x occupy: of a view only those that it shows.
func bytesOf(x *tensor.Tensor) int64 {
	if x.Layout == tensor.Strided && !x.DType.IsBlock() {
		return x.Numel() * int64(x.DType.Size())
	}
	n, _ := x.Bytes()
	return n
}

// rowBytes is the size of the innermost dimension.
func rowBytes(x *tensor.Tensor) int64 {
	n, _ := x.DType.RowBytes(x.Last())
	return n
}

func elements(x *tensor.Tensor) float64 { return float64(x.Numel()) }

// heads counts the heads of q and, if it is present, k.
func heads(q, k *tensor.Tensor) float64 { return float64(q.Shape[1] + k.Shape[1]) }

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// visible returns the elements of a contiguous operand; t notes if the CPU cannot see them.
func visible[E tensor.Elem](t *tally, x *tensor.Tensor) []E {
	if x.Numel() == 0 {
		return nil
	}
	v := tensor.Slice[E](x)
	t.hidden = t.hidden || v == nil
	return v
}

// indices returns the elements of a contiguous i32 or i64 operand.
func indices(t *tally, x *tensor.Tensor) []int64 {
	if x.DType == tensor.I64 {
		return visible[int64](t, x)
	}
	v := visible[int32](t, x)
	wide := make([]int64, len(v))
	for i, n := range v {
		wide[i] = int64(n)
	}
	return wide
}

// distinct returns the different indices below n.
func distinct(t *tally, x *tensor.Tensor, n int64) map[int64]struct{} {
	set := map[int64]struct{}{}
	for _, i := range indices(t, x) {
		if i >= 0 && i < n {
			set[i] = struct{}{}
		}
	}
	return set
}

// costTable has what calls of an op cost, by op.
type costTable = map[registry.Op]func(t *tally, args unsafe.Pointer)
