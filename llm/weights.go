package llm

import (
	"fmt"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/tensor"
)

// weights are the tensors of a loaded model, on its device. A zero tensor is one that the model does not have.
type weights struct {
	embed     tensor.Tensor // [V,D]
	output    tensor.Tensor // [V,D]; the same as embed where the file ties them
	norm      tensor.Tensor // [D]
	ropeFreqs tensor.Tensor // [rope dim/2]
	layers    []layerWeights
}

type layerWeights struct {
	attnNorm, ffnNorm tensor.Tensor // [D]
	qkv               tensor.Tensor // [Hq*d + 2*Hk*d, D]: the three projections where they share a dtype, else
	q, k, v           tensor.Tensor // one by one
	qb, kb, vb, ob    tensor.Tensor // biases, absent in most models
	o                 tensor.Tensor // [D, Hq*d]
	gateUp            tensor.Tensor // [2*F, D]: the two where they share a dtype, else
	gate, up          tensor.Tensor // one by one
	down              tensor.Tensor // [D, F]
}

// load is one weight still in the file: its parts (rows follow each other) and where it goes.
type load struct {
	dst    *tensor.Tensor
	names  []string // of the parts, in the file
	parts  []tensor.Tensor
	matrix bool // read by a matmul: packed into the layout that the device likes
	keep   bool // may stay where it is, if the device reads host memory
}

// resolver finds tensors by name, checks shape and dtype, and collects what must be loaded.
type resolver struct {
	f     *gguf.File
	loads []load
	err   error
}

func (r *resolver) fail(format string, a ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("llm: "+format+": %w", append(a, ErrModel)...)
	}
}

// find returns the named tensor if it is there and has the given extents.
func (r *resolver) find(name string, optional bool, dims ...int) (tensor.Tensor, bool) {
	t, err := r.f.Tensor(name)
	if err != nil {
		if !optional {
			r.fail("tensor %q: %v", name, err)
		}
		return tensor.Tensor{}, false
	}
	ok := int(t.Rank) == len(dims)
	for d := range dims {
		ok = ok && t.Shape[d] == int64(dims[d])
	}
	if !ok {
		r.fail("tensor %q is %v, the metadata ask for %v", name, &t, dims)
		return tensor.Tensor{}, false
	}
	if !tensor.CanDecode(t.DType) {
		r.err = fmt.Errorf("llm: tensor %q: no kernel reads %v: %w", name, t.DType, ErrUnsupported)
		return tensor.Tensor{}, false
	}
	return t, true
}

// vector schedules a rank-1 tensor, which must be of a float dtype.
func (r *resolver) vector(dst *tensor.Tensor, name string, optional bool, n int) {
	t, ok := r.find(name, optional, n)
	if ok && !t.DType.IsFloat() {
		r.fail("tensor %q is %v, a float vector is wanted", name, &t)
	}
	if ok {
		r.loads = append(r.loads, load{dst: dst, names: []string{name}, parts: []tensor.Tensor{t}})
	}
}

// matrix schedules a weight that a matmul reads.
func (r *resolver) matrix(dst *tensor.Tensor, k int, p part) {
	if t, ok := r.find(p.name, false, p.rows, k); ok {
		r.loads = append(r.loads, load{dst: dst, names: []string{p.name}, parts: []tensor.Tensor{t}, matrix: true})
	}
}

// merge schedules one weight made of the named tensors, whose rows follow each other, if they share a dtype.
func (r *resolver) merge(dst *tensor.Tensor, k int, parts ...part) bool {
	l := load{dst: dst, matrix: true}
	for _, p := range parts {
		t, ok := r.find(p.name, false, p.rows, k)
		if !ok || len(l.parts) > 0 && t.DType != l.parts[0].DType {
			return false
		}
		l.names, l.parts = append(l.names, p.name), append(l.parts, t)
	}
	r.loads = append(r.loads, l)
	return true
}

type part struct {
	name string
	rows int
}

// resolve checks every tensor that the architecture needs and returns where each goes, before anything is allocated.
func resolve(f *gguf.File, c Config, w *weights) ([]load, error) {
	r := &resolver{f: f}
	D, F, V := c.Width, c.FeedForward, c.VocabSize
	nq, nkv := c.Heads*c.HeadSize, c.KVHeads*c.HeadSize
	if _, tied := r.find("output.weight", true, V, D); tied {
		r.matrix(&w.output, D, part{"output.weight", V})
		if t, ok := r.find("token_embd.weight", false, V, D); ok {
			r.loads = append(r.loads, load{dst: &w.embed, names: []string{"token_embd.weight"}, parts: []tensor.Tensor{t}, keep: true})
		}
	} else {
		r.matrix(&w.embed, D, part{"token_embd.weight", V})
	}
	r.vector(&w.norm, "output_norm.weight", false, D)
	r.vector(&w.ropeFreqs, "rope_freqs.weight", true, c.Rope.Dim/2)
	w.layers = make([]layerWeights, c.Layers)
	for i := range w.layers {
		if r.err != nil {
			break // a hostile layer count must not cost a lookup each
		}
		l, p := &w.layers[i], fmt.Sprintf("blk.%d.", i)
		r.vector(&l.attnNorm, p+"attn_norm.weight", false, D)
		r.vector(&l.ffnNorm, p+"ffn_norm.weight", false, D)
		q, k, v := part{p + "attn_q.weight", nq}, part{p + "attn_k.weight", nkv}, part{p + "attn_v.weight", nkv}
		if !r.merge(&l.qkv, D, q, k, v) {
			r.matrix(&l.q, D, q)
			r.matrix(&l.k, D, k)
			r.matrix(&l.v, D, v)
		}
		r.vector(&l.qb, p+"attn_q.bias", true, nq)
		r.vector(&l.kb, p+"attn_k.bias", true, nkv)
		r.vector(&l.vb, p+"attn_v.bias", true, nkv)
		r.matrix(&l.o, nq, part{p + "attn_output.weight", D})
		r.vector(&l.ob, p+"attn_output.bias", true, D)
		gate, up := part{p + "ffn_gate.weight", F}, part{p + "ffn_up.weight", F}
		if !r.merge(&l.gateUp, D, gate, up) {
			r.matrix(&l.gate, D, gate)
			r.matrix(&l.up, D, up)
		}
		r.matrix(&l.down, F, part{p + "ffn_down.weight", D})
	}
	return r.loads, r.err
}

// bytes returns what the load will allocate on dev.
func (l *load) bytes(dev device.Device) (int64, error) {
	if l.staysInFile(dev) {
		return 0, nil
	}
	rows, k, t := int64(0), l.parts[0].Last(), l.parts[0].DType
	for _, p := range l.parts {
		rows += p.Numel() / max(k, 1)
	}
	if p, ok := dev.(device.WeightPacker); ok && l.matrix {
		return p.PackedBytes(t, rows, k)
	}
	n, err := t.RowBytes(k)
	return n * rows, err
}

// staysInFile reports whether the device can read the weight where the file is mapped.
func (l *load) staysInFile(dev device.Device) bool {
	t := &l.parts[0]
	aligned := uintptr(t.Host)%uintptr(max(t.DType.Size(), 1)) == 0
	return l.keep && aligned && dev.Caps().Memory.DeviceReadsHost
}

// run moves the weight to the device and returns the buffer that now owns it (nil if it stays in the file).
func (l *load) run(dev device.Device, q device.Queue, progress func(int64)) (device.Buffer, error) {
	if l.staysInFile(dev) {
		*l.dst = l.parts[0]
		return nil, nil
	}
	if p, ok := dev.(device.WeightPacker); ok && l.matrix {
		t, buf, err := p.PackWeight(l.parts, progress)
		*l.dst = t
		return buf, err
	}
	return l.copy(dev, q, progress)
}

// copy places the parts behind each other in a new buffer, in the plain layout.
func (l *load) copy(dev device.Device, q device.Queue, progress func(int64)) (device.Buffer, error) {
	parts, size, rows := l.parts, int64(0), int64(0)
	for i := range parts {
		n, err := parts[i].Bytes()
		if err != nil {
			return nil, err
		}
		size, rows = size+n, rows+parts[i].Shape[0]
	}
	buf, err := dev.Alloc(size)
	if err != nil {
		return nil, err
	}
	shape := append([]int64{rows}, parts[0].Dims()[1:]...)
	if *l.dst, err = buf.Tensor(0, parts[0].DType, shape...); err != nil {
		return buf, err
	}
	at := int64(0)
	for i := range parts {
		n, _ := parts[i].Bytes()
		// bytes, so that a source at an odd address is no obstacle
		src, err := tensor.New(parts[i].Host, tensor.U8, n)
		if err != nil {
			return buf, err
		}
		dst, err := buf.Tensor(at, tensor.U8, n)
		if err != nil {
			return buf, err
		}
		if err := q.Copy(&dst, &src); err != nil {
			return buf, err
		}
		at += n
		if progress != nil {
			progress(n)
		}
	}
	return buf, nil
}
