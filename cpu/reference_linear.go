package cpu

import (
	"math"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// linearReference registers the oracle's kernels of gated delta nets and their convolutions.
func (g *registrar) linearReference() {
	t, exact := reference, registry.Traits{BatchInvariant: true, BitExact: true}
	add(g, t, ops.CausalConv1DFwd, refCausalConv1DFwd, exact, nil)
	add(g, t, ops.CausalConv1DUpdate, refCausalConv1DUpdate, exact, nil)
	add(g, t, ops.GDNPrefill, refGDNPrefill, exact, nil)
	add(g, t, ops.GDNDecode, refGDNDecode, exact, nil)
	add(g, t, ops.GDNPackedDecode, refGDNPackedDecode, exact, nil)
	add(g, t, ops.GDNStateGather, refGDNStateGather, exact, nil)
	add(g, t, ops.GDNStateScatter, refGDNStateScatter, registry.Traits{BitExact: true}, nil)
	add(g, t, ops.GDNGBeta, refGDNGBeta, exact, nil)
	add(g, t, ops.GDNConvSplit, refGDNConvSplit, exact, nil)
	add(g, t, ops.GDNPostConv, refGDNPostConv, exact, nil)
}

// checkOffsets wants cumulative offsets from 0 to rows that never fall.
func checkOffsets(op, operand string, x *tensor.Tensor, rows int64) error {
	cu := elems[int32](x, 0, int(x.Shape[0]))
	for i, v := range cu {
		switch {
		case i == 0 && v != 0:
			return badValue(op, operand, "starts at %d, not 0", v)
		case i > 0 && v < cu[i-1]:
			return badValue(op, operand, "%d follows %d at %d", v, cu[i-1], i)
		}
	}
	if last := cu[len(cu)-1]; int64(last) != rows {
		return badValue(op, operand, "ends at %d, there are %d rows", last, rows)
	}
	return nil
}

// checkStates wants indices below n; negative ones are left out if padding says so, else refused.
func checkStates(op, operand string, x *tensor.Tensor, n int64, padding bool) error {
	if !x.Present() {
		return nil
	}
	for i, v := range elems[int32](x, 0, int(x.Shape[0])) {
		if int64(v) >= n || v < 0 && !padding {
			return badValue(op, operand, "state %d at %d is outside [0,%d)", v, i, n)
		}
	}
	return nil
}

// truth reads a boolean: anything but zero.
func truth(x *tensor.Tensor, i int) bool {
	if x.DType == tensor.I32 {
		return elems[int32](x, i, 1)[0] != 0
	}
	return elems[byte](x, i, 1)[0] != 0
}

// convBlock is how many channels of a convolution are worked on at a time.
const convBlock = 128

// convTaps are the taps of a block of channels, oldest first, and its bias, as f32.
type convTaps struct {
	taps []float32 // [K][channels]
	bias []float32
	n    int // channels
}

// loadTaps reads the taps of n channels from c on; buf has room for K+1 rows of n.
func loadTaps(buf []float32, weight, bias *tensor.Tensor, c, n int) convTaps {
	k := int(weight.Shape[1])
	w := convTaps{taps: buf[:k*n], bias: buf[k*n:][:n], n: n}
	for i := range n {
		for j := range k {
			w.taps[j*n+i] = one(weight, (c+i)*k+j)
		}
	}
	clear(w.bias)
	if bias.Present() {
		copy(w.bias, plainHalves.load(w.bias, bias, c, n))
	}
	return w
}

// add adds the products of tap j with a row of inputs.
func (w *convTaps) add(acc []float32, j int, row []float32) {
	taps := w.taps[j*w.n:][:w.n]
	for i, v := range row[:w.n] {
		acc[i] += float32(taps[i] * v)
	}
}

// finish stores sums, after silu if that is wanted.
func (w *convTaps) finish(acc []float32, out *tensor.Tensor, off int, activate bool) {
	if activate {
		for i, v := range acc {
			acc[i] = silu(v, 1)
		}
	}
	plainHalves.store(out, off, acc)
}

func refCausalConv1DFwd(t *tier, q *registry.Queue, a *ops.CausalConv1DFwdArgs) registry.Status {
	if err := checkOffsets("causal_conv1d_fwd", "query_start_loc", &a.QueryStartLoc, a.X.Shape[0]); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	c, k := int(a.X.Shape[1]), int(a.Weight.Shape[1])
	blocks := (c + convBlock - 1) / convBlock
	if err := j.layout(0, 4*convBlock*(2*k+3)); err != nil {
		return a.Fail(err)
	}
	j.n[0] = blocks
	rows := int(a.X.Shape[0]) / max(int(a.ConvState.Shape[0]), 1)
	j.each(int(a.ConvState.Shape[0])*blocks, float64(convBlock*(k+8)*(rows+1)), func(j *job, lo, hi, worker int) {
		a := (*ops.CausalConv1DFwdArgs)(j.args)
		for it := lo; it < hi; it++ {
			convSequence(a, it/j.n[0], it%j.n[0]*convBlock, own[float32](j, worker))
		}
	})
	return 0
}

// convSequence convolves the channels from c0 on of sequence s.
func convSequence(a *ops.CausalConv1DFwdArgs, s, c0 int, buf []float32) {
	c, k := int(a.X.Shape[1]), int(a.Weight.Shape[1])
	n := min(convBlock, c-c0)
	w := loadTaps(buf, &a.Weight, &a.Bias, c0, n)
	old := buf[(k+1)*n:][:(k-1)*n] // [K-1][channels]
	acc, row := buf[2*k*n:][:n], buf[(2*k+1)*n:][:n]
	for i := range n {
		for j := range k - 1 {
			if old[j*n+i] = 0; truth(&a.HasInitialState, s) {
				old[j*n+i] = one(&a.ConvState, (s*c+c0+i)*(k-1)+j)
			}
		}
	}
	cu := elems[int32](&a.QueryStartLoc, s, 2)
	from, rows := int(cu[0]), int(cu[1]-cu[0])
	input := func(i int) []float32 { // v(i)
		if i < 0 {
			return old[(k-1+i)*n:][:n]
		}
		return plainHalves.load(row, &a.X, (from+i)*int(a.X.Stride[0])+c0, n)
	}
	for t := range rows {
		copy(acc, w.bias)
		for j := range k {
			w.add(acc, j, input(t-(k-1-j)))
		}
		w.finish(acc, &a.Out, (from+t)*c+c0, a.SiluActivation)
	}
	for j := range k - 1 {
		for i, v := range input(rows - (k - 1) + j) {
			put(&a.ConvState, (s*c+c0+i)*(k-1)+j, v)
		}
	}
}

func refCausalConv1DUpdate(t *tier, q *registry.Queue, a *ops.CausalConv1DUpdateArgs) registry.Status {
	if err := checkStates("causal_conv1d_update", "conv_state_indices", &a.ConvStateIndices, a.ConvState.Shape[0], true); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	c, k, rows := int(a.X.Shape[1]), int(a.Weight.Shape[1]), int(a.X.Shape[0])
	if err := j.layout(0, 4*convBlock*(k+4)); err != nil {
		return a.Fail(err)
	}
	// All rows of a block of channels one after the other: two may share a window.
	j.each((c+convBlock-1)/convBlock, float64(convBlock*(k+8)*rows), func(j *job, lo, hi, worker int) {
		a := (*ops.CausalConv1DUpdateArgs)(j.args)
		c, k, buf := int(a.X.Shape[1]), int(a.Weight.Shape[1]), own[float32](j, worker)
		for b := lo; b < hi; b++ {
			c0 := b * convBlock
			n := min(convBlock, c-c0)
			w := loadTaps(buf, &a.Weight, &a.Bias, c0, n)
			acc, row := buf[(k+1)*n:][:n], buf[(k+2)*n:][:n]
			for t := range int(a.X.Shape[0]) {
				s := t
				if a.ConvStateIndices.Present() {
					if s = int(elems[int32](&a.ConvStateIndices, t, 1)[0]); s < 0 {
						continue
					}
				}
				x := plainHalves.load(row, &a.X, t*int(a.X.Stride[0])+c0, n)
				copy(acc, w.bias)
				for i := range n {
					at := (s*c + c0 + i) * (k - 1)
					for j := range k - 1 {
						acc[i] += float32(w.taps[j*n+i] * one(&a.ConvState, at+j))
					}
					for j := range k - 2 {
						put(&a.ConvState, at+j, one(&a.ConvState, at+j+1))
					}
					if k > 1 {
						put(&a.ConvState, at+k-2, x[i])
					}
				}
				w.add(acc, k-1, x)
				w.finish(acc, &a.Out, t*c+c0, a.SiluActivation)
			}
		}
	})
	return 0
}

// delta is one token of the gated delta rule for one head.
type delta struct {
	q, k, decay, v, out, row []float32
	beta                     float32
	additive                 bool
}

// newDelta cuts buf, which has room for 4·dk+2·dv numbers.
func newDelta(buf []float32, dk, dv int) *delta {
	return &delta{q: buf[:dk], k: buf[dk:][:dk], decay: buf[2*dk:][:dk], row: buf[3*dk:][:dk], v: buf[4*dk:][:dv], out: buf[4*dk+dv:][:dv]}
}

// step advances the state whose first element is at off, and leaves the token's output in d.out.
func (d *delta) step(state *tensor.Tensor, off int) {
	dk := len(d.k)
	for i, v := range d.v {
		s := plainHalves.load(d.row, state, off+i*dk, dk)
		var dot, o float32
		for j, x := range s {
			x *= d.decay[j]
			s[j] = x
			dot += float32(x * d.k[j])
		}
		if d.additive {
			dot = 0
		}
		u := float32(v-dot) * d.beta
		for j, x := range s {
			x += float32(u * d.k[j])
			s[j] = x
			o += float32(x * d.q[j])
		}
		plainHalves.store(state, off+i*dk, s)
		d.out[i] = o
	}
}

// fill sets all of v to x.
func fill(v []float32, x float32) {
	for i := range v {
		v[i] = x
	}
}

// token loads what gdn_prefill and gdn_decode have of token t for value head h.
func (d *delta) token(q, k, v, g, beta *tensor.Tensor, t, h int, scale float32, tiled bool) {
	hk, hv, dk, dv := int(q.Shape[1]), int(v.Shape[1]), len(d.k), len(d.v)
	head := h / (hv / hk)
	if tiled {
		head = h % hk
	}
	for j, x := range plainHalves.load(d.q, q, (t*hk+head)*dk, dk) {
		d.q[j] = x * scale
	}
	copy(d.k, plainHalves.load(d.k, k, (t*hk+head)*dk, dk))
	copy(d.v, plainHalves.load(d.v, v, (t*hv+h)*dv, dv))
	switch {
	case !g.Present():
		fill(d.decay, 1)
	case g.Rank == 2:
		fill(d.decay, exp32(one(g, t*hv+h)))
	default:
		for j, x := range elems[float32](g, (t*hv+h)*dk, dk) {
			d.decay[j] = exp32(x)
		}
	}
	if d.beta = 1; beta.Present() {
		d.beta = one(beta, t*hv+h)
	}
}

// deltaBytes is the scratch of a worker.
func deltaBytes(state *tensor.Tensor) int { return 4 * (4*int(state.Shape[3]) + 2*int(state.Shape[2])) }

func refGDNPrefill(t *tier, q *registry.Queue, a *ops.GDNPrefillArgs) registry.Status {
	if err := checkOffsets("gdn_prefill", "query_start_loc", &a.QueryStartLoc, a.Out.Shape[0]); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	if err := j.layout(0, deltaBytes(&a.State)); err != nil {
		return a.Fail(err)
	}
	n, hv := int(a.State.Shape[0]), int(a.State.Shape[1])
	work := float64(6*a.State.Shape[2]*a.State.Shape[3]) * float64(a.Out.Shape[0]+1) / float64(max(n, 1))
	j.each(n*hv, work, func(j *job, lo, hi, worker int) {
		a := (*ops.GDNPrefillArgs)(j.args)
		hv, dv, dk := int(a.State.Shape[1]), int(a.State.Shape[2]), int(a.State.Shape[3])
		d := newDelta(own[float32](j, worker), dk, dv)
		d.additive = a.Additive
		for it := lo; it < hi; it++ {
			s, h := it/hv, it%hv
			cu := elems[int32](&a.QueryStartLoc, s, 2)
			for t := int(cu[0]); t < int(cu[1]); t++ {
				d.token(&a.Q, &a.K, &a.V, &a.G, &a.Beta, t, h, a.Scale, a.TiledHeads)
				d.step(&a.State, it*dv*dk)
				plainHalves.store(&a.Out, (t*hv+h)*dv, d.out)
			}
		}
	})
	return 0
}

func refGDNDecode(t *tier, q *registry.Queue, a *ops.GDNDecodeArgs) registry.Status {
	if err := checkStates("gdn_decode", "state_idx", &a.StateIdx, a.State.Shape[0], true); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	if err := j.layout(0, deltaBytes(&a.State)); err != nil {
		return a.Fail(err)
	}
	// All rows of a head one after the other: two may share a state.
	j.each(int(a.State.Shape[1]), float64(6*a.State.Shape[2]*a.State.Shape[3]*a.Out.Shape[0]), func(j *job, lo, hi, worker int) {
		a := (*ops.GDNDecodeArgs)(j.args)
		hv, dv, dk := int(a.State.Shape[1]), int(a.State.Shape[2]), int(a.State.Shape[3])
		d := newDelta(own[float32](j, worker), dk, dv)
		d.additive = a.Additive
		for h := lo; h < hi; h++ {
			for t := range int(a.Out.Shape[0]) {
				s := t
				if a.StateIdx.Present() {
					s = int(elems[int32](&a.StateIdx, t, 1)[0])
				}
				if s < 0 {
					clear(d.out)
				} else {
					d.token(&a.Q, &a.K, &a.V, &a.G, &a.Beta, t, h, a.Scale, a.TiledHeads)
					d.step(&a.State, (s*hv+h)*dv*dk)
				}
				plainHalves.store(&a.Out, (t*hv+h)*dv, d.out)
			}
		}
	})
	return 0
}

// softplusThreshold is the input above which the gates of a delta net take softplus(x) as x.
const softplusThreshold = 20

// gates returns the logarithm of the decay, and the strength of the write.
func gates(a, b, aLog, dtBias float32) (g, beta float32) {
	return -exp32(aLog) * softplus(a+dtBias, softplusThreshold), sigmoid(b)
}

// l2Scale returns 1/sqrt(Σ v² + eps).
func l2Scale(v []float32, eps float32) float32 {
	var s float32
	for _, x := range v {
		s += float32(x * x)
	}
	return 1 / float32(math.Sqrt(float64(s+eps)))
}

func refGDNPackedDecode(t *tier, q *registry.Queue, a *ops.GDNPackedDecodeArgs) registry.Status {
	const op = "gdn_packed_decode"
	if err := checkStates(op, "state_idx", &a.StateIdx, a.State.Shape[0], true); err != nil {
		return a.Fail(err)
	}
	idx := elems[int32](&a.StateIdx, 0, int(a.StateIdx.Shape[0]))
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	if err := j.layout(int(a.State.Shape[0]), deltaBytes(&a.State)); err != nil {
		return a.Fail(err)
	}
	seen := common[byte](j)[:a.State.Shape[0]]
	clear(seen)
	for i, s := range idx {
		if s >= 0 && seen[s] != 0 {
			return a.Fail(badValue(op, "state_idx", "state %d at %d stands there twice", s, i))
		}
		if s >= 0 {
			seen[s] = 1
		}
	}
	hv := int(a.State.Shape[1])
	j.each(len(idx)*hv, float64(6*a.State.Shape[2]*a.State.Shape[3]), func(j *job, lo, hi, worker int) {
		a := (*ops.GDNPackedDecodeArgs)(j.args)
		hv, dv, dk := int(a.State.Shape[1]), int(a.State.Shape[2]), int(a.State.Shape[3])
		hk := (int(a.MixedQKV.Shape[1]) - hv*dv) / 2 / dk
		d := newDelta(own[float32](j, worker), dk, dv)
		for it := lo; it < hi; it++ {
			t, h := it/hv, it%hv
			if s := int(elems[int32](&a.StateIdx, t, 1)[0]); s < 0 {
				clear(d.out)
			} else {
				d.packed(a, t, h, h/(hv/hk), hk)
				d.step(&a.State, (s*hv+h)*dv*dk)
			}
			plainHalves.store(&a.Out, it*dv, d.out)
		}
	})
	return 0
}

// packed loads token t of gdn_packed_decode for value head h and its q/k head of hk.
func (d *delta) packed(a *ops.GDNPackedDecodeArgs, t, h, head, hk int) {
	dk, dv := len(d.k), len(d.v)
	row := t * int(a.MixedQKV.Stride[0])
	copy(d.q, plainHalves.load(d.q, &a.MixedQKV, row+head*dk, dk))
	copy(d.k, plainHalves.load(d.k, &a.MixedQKV, row+(hk+head)*dk, dk))
	copy(d.v, plainHalves.load(d.v, &a.MixedQKV, row+2*hk*dk+h*dv, dv))
	const eps = 1e-6
	qi, ki := l2Scale(d.q, eps)*a.Scale, l2Scale(d.k, eps)
	for j := range d.q {
		d.q[j] *= qi
		d.k[j] *= ki
	}
	g, beta := gates(one(&a.A, t*int(a.A.Stride[0])+h), one(&a.B, t*int(a.B.Stride[0])+h), one(&a.ALog, h), one(&a.DtBias, h))
	switch a.Out.DType {
	case tensor.F16:
		beta = tensor.DecodeF16(tensor.EncodeF16(beta))
	case tensor.BF16:
		beta = roundBF16(beta)
	}
	fill(d.decay, exp32(g))
	d.beta = beta
}

// stateBlock is how many elements of a state are moved at a time.
const stateBlock = 4096

func refGDNStateGather(t *tier, q *registry.Queue, a *ops.GDNStateGatherArgs) registry.Status {
	if err := checkStates("gdn_state_gather", "state_idx", &a.StateIdx, a.Cache.Shape[0], false); err != nil {
		return a.Fail(err)
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	n := int(a.StateIdx.Shape[0])
	j.each(n, float64(a.Working.Numel())/float64(2*max(n, 1)), func(j *job, lo, hi, _ int) {
		a := (*ops.GDNStateGatherArgs)(j.args)
		width := int(a.Working.Numel() / a.Working.Shape[0])
		for r := lo; r < hi; r++ {
			to := elems[float32](&a.Working, r*width, width)
			if a.HasInitialState.Present() && !truth(&a.HasInitialState, r) {
				clear(to)
				continue
			}
			copy(to, plainHalves.load(to, &a.Cache, int(elems[int32](&a.StateIdx, r, 1)[0])*width, width))
		}
	})
	return 0
}

func refGDNStateScatter(t *tier, q *registry.Queue, a *ops.GDNStateScatterArgs) registry.Status {
	if err := checkStates("gdn_state_scatter", "state_idx", &a.StateIdx, a.Cache.Shape[0], false); err != nil {
		return a.Fail(err)
	}
	if a.Working.Numel() == 0 {
		return 0
	}
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	n := int(a.Working.Shape[0])
	width := int(a.Working.Numel()) / n
	// All rows of a block one after the other: of equal indices the last one holds.
	j.each((width+stateBlock-1)/stateBlock, float64(stateBlock*n)/2, func(j *job, lo, hi, _ int) {
		a := (*ops.GDNStateScatterArgs)(j.args)
		width := int(a.Working.Numel() / a.Working.Shape[0])
		for b := lo; b < hi; b++ {
			at, size := b*stateBlock, min(stateBlock, width-b*stateBlock)
			for r, s := range elems[int32](&a.StateIdx, 0, int(a.StateIdx.Shape[0])) {
				plainHalves.store(&a.Cache, int(s)*width+at, elems[float32](&a.Working, r*width+at, size))
			}
		}
	})
	return 0
}

func refGDNGBeta(t *tier, q *registry.Queue, a *ops.GDNGBetaArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	j.each(int(a.A.Shape[0]), float64(60*a.A.Shape[1]), func(j *job, lo, hi, _ int) {
		a := (*ops.GDNGBetaArgs)(j.args)
		for t := lo; t < hi; t++ {
			deltaGates(&a.GOut, &a.BetaOut, &a.A, &a.B, &a.ALog, &a.DtBias, t)
		}
	})
	return 0
}

// deltaGates computes the gates of token t.
func deltaGates(g, beta, a, b, aLog, dtBias *tensor.Tensor, t int) {
	hv := int(g.Shape[1])
	gs, betas := elems[float32](g, t*hv, hv), elems[float32](beta, t*hv, hv)
	for h := range gs {
		gs[h], betas[h] = gates(one(a, t*int(a.Stride[0])+h), one(b, t*int(b.Stride[0])+h), one(aLog, h), one(dtBias, h))
	}
}

func refGDNConvSplit(t *tier, q *registry.Queue, a *ops.GDNConvSplitArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	if err := j.layout(0, 4*int(a.Conv.Shape[1])); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.Conv.Shape[0]), float64(a.Conv.Shape[1])/2, func(j *job, lo, hi, worker int) {
		a := (*ops.GDNConvSplitArgs)(j.args)
		rows, width := int(a.Conv.Shape[0]), int(a.Conv.Shape[1])
		outs := [...]*tensor.Tensor{&a.QOut, &a.KOut, &a.VOut}
		for t := lo; t < hi; t++ {
			v := plainHalves.load(own[float32](j, worker), &a.Conv, t*width, width)
			for _, o := range outs {
				n := int(o.Numel()) / rows
				plainHalves.store(o, t*n, v[:n])
				v = v[n:]
			}
		}
	})
	return 0
}

func refGDNPostConv(t *tier, q *registry.Queue, a *ops.GDNPostConvArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	width := int(a.Conv.Shape[1])
	if err := j.layout(0, 2*4*width); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.Conv.Shape[0]), float64(3*width+60*int(a.GOut.Shape[1])), func(j *job, lo, hi, worker int) {
		a := (*ops.GDNPostConvArgs)(j.args)
		width := int(a.Conv.Shape[1])
		heads, dk := int(a.QOut.Shape[1]), int(a.QOut.Shape[2])
		v := own[float32](j, worker)[:width]
		for t := lo; t < hi; t++ {
			copy(v, plainHalves.load(v, &a.Conv, t*width, width))
			for h := range 2 * heads {
				x := v[h*dk:][:dk]
				scale := l2Scale(x, a.Eps)
				for e := range x {
					x[e] *= scale
				}
			}
			n := heads * dk
			plainHalves.store(&a.QOut, t*n, v[:n])
			plainHalves.store(&a.KOut, t*n, v[n:2*n])
			plainHalves.store(&a.VOut, t*(width-2*n), v[2*n:])
			deltaGates(&a.GOut, &a.BetaOut, &a.A, &a.B, &a.ALog, &a.DtBias, t)
		}
	})
	return 0
}
