package cpu

import (
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// groupedBlock is how many columns of an expert's weight are decoded at a time.
const groupedBlock = 16

// grouped is a product of token rows with the weights of their experts. The pairs of an expert go one after the other, so that
// what is decoded of its weight serves them all; no sum depends on it.
type grouped struct {
	op       string
	operands func(args unsafe.Pointer) groupedOperands
	// columns decodes n columns of an expert's weight from column c on, each as a row of k numbers.
	columns func(args unsafe.Pointer, rows []float32, expert, c, n int)

	widen, multiply part
}

type groupedOperands struct {
	out, act, ids, rowMap *tensor.Tensor
	experts               int64
	header                *registry.Header
}

// row returns the row of act for pair p.
func (o *groupedOperands) row(p int) int {
	if !o.rowMap.Present() {
		return p
	}
	return int(elems[int32](o.rowMap, p, 1)[0])
}

// newGrouped compiles the parts once, so that launches allocate nothing.
func newGrouped(g grouped) *grouped {
	g.widen = func(j *job, lo, hi, _ int) {
		o, k := g.operands(j.args), j.n[0]
		for i := lo; i < hi; i++ {
			row := common[float32](j)[i*k:][:k]
			copy(row, plainHalves.load(row, o.act, i*k, k))
		}
	}
	g.multiply = func(j *job, lo, hi, worker int) {
		o, k := g.operands(j.args), j.n[0]
		n := int(o.out.Shape[1])
		acts := common[float32](j)[:j.n[1]*k]
		order := cast[int32](j.scratch[4*j.n[1]*k : j.shared])
		ends := order[int(o.out.Shape[0]):][:o.experts] // behind the last pair of each expert
		rows := own[float32](j, worker)
		for b := lo; b < hi; b++ {
			c0 := b * groupedBlock
			cols := min(groupedBlock, n-c0)
			from := 0
			for e, end := range ends {
				if int(end) == from {
					continue
				}
				g.columns(j.args, rows, e, c0, cols)
				for _, p := range order[from:end] {
					x := acts[o.row(int(p))*k:][:k]
					for c := range cols {
						put(o.out, int(p)*n+c0+c, dot(x, rows[c*k:][:k]))
					}
				}
				from = int(end)
			}
		}
	}
	return &g
}

// dot returns a sequential sum of products.
func dot(x, w []float32) (s float32) {
	w = w[:len(x)]
	for i, v := range x {
		s += float32(v * w[i])
	}
	return s
}

func (g *grouped) run(t *tier, q *registry.Queue, args unsafe.Pointer) registry.Status {
	o := g.operands(args)
	pairs, rows, k := int(o.out.Shape[0]), int(o.act.Shape[0]), int(o.act.Shape[1])
	if err := checkExperts(g.op, "expert_ids", o.ids, o.experts); err != nil {
		return o.header.Fail(err)
	}
	if err := checkExperts(g.op, "row_map", o.rowMap, o.act.Shape[0]); err != nil {
		return o.header.Fail(err)
	}
	j := begin(q, t, args)
	defer j.end()
	if err := j.layout(4*(rows*k+pairs+int(o.experts)), 4*groupedBlock*max(k, 1)); err != nil {
		return o.header.Fail(err)
	}
	j.n[0], j.n[1] = k, rows
	order := cast[int32](j.scratch[4*rows*k : j.shared])
	ends := order[pairs:][:o.experts]
	clear(ends)
	ids := elems[int32](o.ids, 0, pairs)
	for _, e := range ids {
		ends[e]++
	}
	var at int32
	for e, n := range ends { // now the first place of each expert
		ends[e] = at
		at += n
	}
	for p, e := range ids {
		order[ends[e]] = int32(p)
		ends[e]++
	}
	j.each(rows, float64(k)/2, g.widen)
	blocks := (int(o.out.Shape[1]) + groupedBlock - 1) / groupedBlock
	j.each(blocks, float64(groupedBlock*k*(pairs+1)), g.multiply)
	return 0
}

var blockExperts = newGrouped(grouped{
	op: "moe_grouped_gemm",
	operands: func(args unsafe.Pointer) groupedOperands {
		a := (*ops.MoEGroupedGemmArgs)(args)
		return groupedOperands{&a.Out, &a.Act, &a.ExpertIDs, &a.RowMap, a.Weights.Shape[0], &a.Header}
	},
	columns: func(args unsafe.Pointer, rows []float32, expert, c, n int) {
		w := &(*ops.MoEGroupedGemmArgs)(args).Weights
		k := int(w.Shape[2])
		if size, err := w.DType.RowBytes(int64(k)); err == nil && k > 0 {
			at := (expert*int(w.Shape[1]) + c) * int(size)
			b := unsafe.Slice((*byte)(unsafe.Add(w.Host, at)), n*int(size))
			if err := tensor.Decode(rows[:n*k], w.DType, b); err != nil {
				panic(err) // sizes were checked by the validator
			}
		}
	},
})

func refMoEGroupedGemm(t *tier, q *registry.Queue, a *ops.MoEGroupedGemmArgs) registry.Status {
	return blockExperts.run(t, q, unsafe.Pointer(a))
}

// expertMemory returns the memory of one expert: its part of the one tensor, or what its address points to.
func expertMemory[T any](x *tensor.Tensor, expert, n int) []T {
	if n == 0 {
		return nil
	}
	if x.DType != tensor.I64 {
		return elems[T](x, expert*int(x.Stride[0]), n)
	}
	p := *(*unsafe.Pointer)(unsafe.Pointer(&elems[int64](x, expert, 1)[0])) // the caller keeps it alive
	return unsafe.Slice((*T)(p), n)
}

// checkAddresses wants an address for every expert that a pair selects.
func checkAddresses(op, operand string, x, ids *tensor.Tensor) error {
	if x.DType != tensor.I64 {
		return nil
	}
	for i, e := range elems[int32](ids, 0, int(ids.Numel())) {
		if e >= 0 && int64(e) < x.Shape[0] && elems[int64](x, int(e), 1)[0] == 0 {
			return badValue(op, operand, "expert %d, which pair %d selects, has no address", e, i)
		}
	}
	return nil
}

var bf16Experts = newGrouped(grouped{
	op: "moe_grouped_gemm_bf16",
	operands: func(args unsafe.Pointer) groupedOperands {
		a := (*ops.MoEGroupedGemmBF16Args)(args)
		return groupedOperands{&a.Out, &a.Act, &a.ExpertIDs, &a.RowMap, a.Weights.Shape[0], &a.Header}
	},
	columns: func(args unsafe.Pointer, rows []float32, expert, c, n int) {
		a := (*ops.MoEGroupedGemmBF16Args)(args)
		width, k := int(a.Out.Shape[1]), int(a.Act.Shape[1])
		w := expertMemory[uint16](&a.Weights, expert, width*k)
		for e := range k {
			for i, v := range w[e*width+c:][:n] {
				rows[i*k+e] = tensor.DecodeBF16(v)
			}
		}
	},
})

func refMoEGroupedGemmBF16(t *tier, q *registry.Queue, a *ops.MoEGroupedGemmBF16Args) registry.Status {
	if err := checkAddresses("moe_grouped_gemm_bf16", "weights", &a.Weights, &a.ExpertIDs); err != nil {
		return a.Fail(err)
	}
	return bf16Experts.run(t, q, unsafe.Pointer(a))
}

var nvfp4Experts = newGrouped(grouped{
	op: "moe_grouped_gemm_nvfp4",
	operands: func(args unsafe.Pointer) groupedOperands {
		a := (*ops.MoEGroupedGemmNVFP4Args)(args)
		return groupedOperands{&a.Out, &a.Act, &a.ExpertIDs, &a.RowMap, a.Packed.Shape[0], &a.Header}
	},
	columns: func(args unsafe.Pointer, rows []float32, expert, c, n int) {
		a := (*ops.MoEGroupedGemmNVFP4Args)(args)
		width, k := int(a.Out.Shape[1]), int(a.Act.Shape[1])
		scale2 := elems[float32](&a.Scale2s, expert, 1)[0]
		scales := expertMemory[byte](&a.Scales, expert, width*k/16)
		if a.WeightLayout == ops.WeightMarlin {
			marlinColumns(rows, expertMemory[int32](&a.Packed, expert, width*k/8), scales, scale2, width, k, c, n)
			return
		}
		packed := expertMemory[byte](&a.Packed, expert, width*k/2)
		for i := range n {
			nvfp4Row(rows[i*k:][:k], packed[(c+i)*k/2:], scales[(c+i)*k/16:], scale2)
		}
	},
})

// marlinColumns decodes n columns, at most groupedBlock, of a weight of width columns in Marlin's layout.
func marlinColumns(rows []float32, words []int32, scales []byte, global float32, width, k, c, n int) {
	var codes [16 * 64]byte
	tile := c / 64 * 64 // columns come in tiles of 64, and groupedBlock divides them
	factor := global * 0x1p-126
	for g := range k / 16 {
		ops.MarlinCodes(codes[:], words[(g*2*width)+tile*2:][:128], 64)
		for i := range n {
			s := ops.MarlinScaleValue(scales[ops.MarlinScale(g, c+i, width)])
			for r := range 16 {
				rows[i*k+16*g+r] = float32(tensor.DecodeE2M1(codes[r*64+c-tile+i])*s) * factor
			}
		}
	}
}

func refMoEGroupedGemmNVFP4(t *tier, q *registry.Queue, a *ops.MoEGroupedGemmNVFP4Args) registry.Status {
	for _, x := range [...]struct {
		operand string
		t       *tensor.Tensor
	}{{"packed", &a.Packed}, {"scales", &a.Scales}} {
		if err := checkAddresses("moe_grouped_gemm_nvfp4", x.operand, x.t, &a.ExpertIDs); err != nil {
			return a.Fail(err)
		}
	}
	return nvfp4Experts.run(t, q, unsafe.Pointer(a))
}
