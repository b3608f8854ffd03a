package cpu

import (
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// fusedReference registers the oracle's kernels of fused chains. They are made of the row functions of the ops that they
// stand for, so that bits agree.
func (g *registrar) fusedReference() {
	t, exact := reference, registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.FusedChain, refFusedChain, exact, nil)
	add(g, t, ops.AttnQKNormRopeGate, refAttnQKNormRopeGate, exact, nil)
	add(g, t, ops.ScaledFP4Quant, refScaledFP4Quant, exact, nil)
	add(g, t, ops.QuantFP8Static, refQuantFP8Static, exact, nil)
	add(g, t, ops.SwizzleBlockscale, refSwizzleBlockscale, exact, nil)
	add(g, t, ops.RMSNormQuantFP8, refRMSNormQuantFP8, exact, nil)
	add(g, t, ops.RMSNormGatedQuantFP8, refRMSNormGatedQuantFP8, exact, nil)
	add(g, t, ops.SiluMulFP4Quant, refSiluMulFP4Quant, exact, nil)
	add(g, t, ops.SiluAndMulFP4Quant, refSiluAndMulFP4Quant, exact, nil)
	add(g, t, ops.SigmoidGateFP4Quant, refSigmoidGateFP4Quant, exact, nil)
}

func refFusedChain(t *tier, q *registry.Queue, a *ops.FusedChainArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	rows, h := int(a.X.Shape[0]), int(a.X.Shape[1])
	if err := j.layout(4*h, 3*4*h); err != nil {
		return a.Fail(err)
	}
	normWeight(common[float32](j)[:h], &a.Weight, false)
	j.each(rows, float64(10*h*int(a.NumSteps)), func(j *job, lo, hi, worker int) {
		a := (*ops.FusedChainArgs)(j.args)
		w, buf := common[float32](j), own[float32](j, worker)
		for i := lo; i < hi; i++ {
			for k := range a.NumSteps {
				chainStep(a, &a.Steps[k], w, buf, i)
			}
		}
	})
	return 0
}

// chainStep runs one step on row i. w is the weight as f32; buf has room for three rows.
func chainStep(a *ops.FusedChainArgs, s *ops.FusedStep, w, buf []float32, i int) {
	h := int(a.X.Shape[1])
	read := func(buf []float32, slot uint8) []float32 {
		switch slot {
		case ops.ChainX:
			return plainHalves.load(buf, &a.X, i*h, h)
		case ops.ChainWeight:
			return w[:h]
		case ops.ChainResidual:
			return plainHalves.load(buf, &a.Residual, i*h, h)
		}
		return plainHalves.load(buf, &a.Out, i*h, h)
	}
	to := &a.Out
	if s.Out == ops.ChainResidual {
		to = &a.Residual
	}
	x, out := read(buf, s.In[0]), target(buf[2*h:], to, i*h, h)
	var y []float32
	if s.Op.Inputs() > 1 {
		y = read(buf[h:], s.In[1])
	}
	switch s.Op {
	case ops.FusedAdd:
		for e, v := range x {
			out[e] = v + y[e]
		}
	case ops.FusedMul:
		for e, v := range x {
			out[e] = v * y[e]
		}
	case ops.FusedSilu:
		for e, v := range x {
			out[e] = v * (1 / (1 + exp32(-v)))
		}
	case ops.FusedSigmoid:
		for e, v := range x {
			out[e] = 1 / (1 + exp32(-v))
		}
	case ops.FusedRMSNorm:
		if s.Gemma {
			plus := buf[h : 2*h]
			for e, v := range y {
				plus[e] = v + 1
			}
			y = plus
		}
		rmsRow(out, x, y, a.Eps)
	}
	plainHalves.store(to, i*h, out)
}

func refAttnQKNormRopeGate(t *tier, q *registry.Queue, a *ops.AttnQKNormRopeGateArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	d := int(a.QOut.Shape[2])
	if err := j.layout(2*4*d, 2*4*d); err != nil {
		return a.Fail(err)
	}
	w := common[float32](j)
	normWeight(w[:d], &a.QNorm, a.Gemma)
	normWeight(w[d:2*d], &a.KNorm, a.Gemma)
	heads := int(a.QOut.Shape[1] + a.KOut.Shape[1])
	j.each(int(a.QOut.Shape[0])*heads, float64(8*d), func(j *job, lo, hi, worker int) {
		a := (*ops.AttnQKNormRopeGateArgs)(j.args)
		hq, hk, d := int(a.QOut.Shape[1]), int(a.KOut.Shape[1]), int(a.QOut.Shape[2])
		w, buf := common[float32](j), own[float32](j, worker)
		for i := lo; i < hi; i++ {
			token, head := i/(hq+hk), i%(hq+hk)
			cs := elems[float32](&a.CosSin, token*int(a.RotaryDim), int(a.RotaryDim))
			if head >= hq {
				head -= hq
				v := plainHalves.load(buf, &a.KF, token*int(a.KF.Stride[0])+head*d, d)
				normAndRotate(&a.KOut, (token*hk+head)*d, v, w[d:2*d], cs, buf[d:], a.Eps)
				continue
			}
			from, to := token*int(a.Qgate.Stride[0])+head*2*d, (token*hq+head)*d
			normAndRotate(&a.QOut, to, plainHalves.load(buf, &a.Qgate, from, d), w[:d], cs, buf[d:], a.Eps)
			plainHalves.store(&a.GateOut, to, plainHalves.load(buf, &a.Qgate, from+d, d))
		}
	})
	return 0
}

// normAndRotate writes the head v, normalized and rotated by cs, [cos | sin], to the elements of x from off on. buf has
// room for a head.
func normAndRotate(x *tensor.Tensor, off int, v, w, cs, buf []float32, eps float32) {
	out := target(buf, x, off, len(v))
	rmsRow(out, v, w, eps)
	pairs := len(cs) / 2
	rotateHalves(out, cs[:pairs], cs[pairs:])
	plainHalves.store(x, off, out)
}

// roundRow rounds v to bf16, in place.
func roundRow(v []float32) {
	for e, x := range v {
		v[e] = roundBF16(x)
	}
}

func refRMSNormQuantFP8(t *tier, q *registry.Queue, a *ops.RMSNormQuantFP8Args) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	h := int(a.X.Shape[1])
	if err := j.layout(4*h, 2*4*h); err != nil {
		return a.Fail(err)
	}
	normWeight(common[float32](j)[:h], &a.Weight, a.Gemma)
	j.each(int(a.X.Shape[0]), float64(8*h), func(j *job, lo, hi, worker int) {
		a := (*ops.RMSNormQuantFP8Args)(j.args)
		h, inv := int(a.X.Shape[1]), 1/a.InputScale
		w, buf := common[float32](j)[:h], own[float32](j, worker)
		for i := lo; i < hi; i++ {
			v, y := plainHalves.load(buf, &a.X, i*h, h), buf[h:2*h]
			if a.Residual.Present() {
				v = addResidual(buf, v, &a.Residual, i*h)
			}
			rmsRow(y, v, w, a.Eps)
			roundRow(y)
			if a.OutBF16.Present() {
				plainHalves.store(&a.OutBF16, i*h, y)
			}
			quantFP8Row(elems[byte](&a.OutFP8, i*h, h), y, inv)
		}
	})
	return 0
}

func refRMSNormGatedQuantFP8(t *tier, q *registry.Queue, a *ops.RMSNormGatedQuantFP8Args) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	d := int(a.X.Last())
	if err := j.layout(4*d, 2*4*d); err != nil {
		return a.Fail(err)
	}
	normWeight(common[float32](j)[:d], &a.Weight, false)
	j.each(int(a.X.Numel())/d, float64(25*d), func(j *job, lo, hi, worker int) {
		a := (*ops.RMSNormGatedQuantFP8Args)(j.args)
		d, inv, heads := int(a.X.Last()), 1/a.InputScale, 1
		if a.X.Rank == 3 {
			heads = int(a.X.Shape[1])
		}
		w, buf := common[float32](j)[:d], own[float32](j, worker)
		for i := lo; i < hi; i++ {
			v, y := plainHalves.load(buf, &a.X, i*d, d), buf[d:2*d]
			gate := plainHalves.load(y, &a.Gate, i/heads*int(a.Gate.Stride[0])+i%heads*d, d)
			gatedRow(y, v, w, gate, a.Eps, a.SigmoidGate)
			roundRow(y)
			quantFP8Row(elems[byte](&a.OutFP8, i*d, d), y, inv)
		}
	})
	return 0
}

func refSiluMulFP4Quant(t *tier, q *registry.Queue, a *ops.SiluMulFP4QuantArgs) registry.Status {
	f := newFP4Quant(&a.OutPacked, &a.OutScale, a.InputGlobalScaleInv, a.ScaleLayout)
	return quantActivations(t, q, unsafe.Pointer(a), &a.Header, &f, func(j *job, lo, hi, worker int) {
		a := (*ops.SiluMulFP4QuantArgs)(j.args)
		k, buf := int(a.Gate.Shape[1]), own[float32](j, worker)
		f := newFP4Quant(&a.OutPacked, &a.OutScale, a.InputGlobalScaleInv, a.ScaleLayout)
		for i := lo; i < hi; i++ {
			siluMulRow(buf[:k], plainHalves.load(buf, &a.Gate, i*k, k), plainHalves.load(buf[k:], &a.Up, i*k, k), 1)
			roundRow(buf[:k])
			f.row(i, buf[:k])
		}
	})
}

func refSiluAndMulFP4Quant(t *tier, q *registry.Queue, a *ops.SiluAndMulFP4QuantArgs) registry.Status {
	f := newFP4Quant(&a.OutPacked, &a.OutScale, a.InputGlobalScaleInv, a.ScaleLayout)
	return quantActivations(t, q, unsafe.Pointer(a), &a.Header, &f, func(j *job, lo, hi, worker int) {
		a := (*ops.SiluAndMulFP4QuantArgs)(j.args)
		k, buf := int(a.GateUp.Shape[1])/2, own[float32](j, worker)
		f := newFP4Quant(&a.OutPacked, &a.OutScale, a.InputGlobalScaleInv, a.ScaleLayout)
		for i := lo; i < hi; i++ {
			siluMulRow(buf[:k], plainHalves.load(buf, &a.GateUp, 2*i*k, k), plainHalves.load(buf[k:], &a.GateUp, (2*i+1)*k, k), 1)
			roundRow(buf[:k])
			f.row(i, buf[:k])
		}
	})
}

func refSigmoidGateFP4Quant(t *tier, q *registry.Queue, a *ops.SigmoidGateFP4QuantArgs) registry.Status {
	f := newFP4Quant(&a.OutPacked, &a.OutScale, a.InputGlobalScaleInv, a.ScaleLayout)
	return quantActivations(t, q, unsafe.Pointer(a), &a.Header, &f, func(j *job, lo, hi, worker int) {
		a := (*ops.SigmoidGateFP4QuantArgs)(j.args)
		k, buf := int(a.Attn.Shape[1]), own[float32](j, worker)
		f := newFP4Quant(&a.OutPacked, &a.OutScale, a.InputGlobalScaleInv, a.ScaleLayout)
		for i := lo; i < hi; i++ {
			sigmoidGateRow(buf[:k], plainHalves.load(buf, &a.Attn, i*k, k), plainHalves.load(buf[k:], &a.Gate, i*k, k))
			roundRow(buf[:k])
			f.row(i, buf[:k])
		}
	})
}

// quantActivations runs f over the rows of an activation that is quantized on the way; each worker has scratch for two rows.
func quantActivations(t *tier, q *registry.Queue, args unsafe.Pointer, h *registry.Header, to *fp4Quant, f part) registry.Status {
	j := begin(q, t, args)
	defer j.end()
	k := to.groups * ops.FP4Group
	if err := j.layout(0, 2*4*k); err != nil {
		return h.Fail(err)
	}
	to.pad()
	j.each(int(to.packed.Shape[0]), float64(25*k), f)
	return 0
}
