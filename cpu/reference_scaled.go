package cpu

import (
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// quantFP8Row stores v·inv as fp8 codes.
func quantFP8Row(to []byte, v []float32, inv float32) {
	for i, x := range v {
		to[i] = tensor.EncodeE4M3FN(x*inv, true)
	}
}

// fp4Quant is where the rows of one nvfp4 quantization go.
type fp4Quant struct {
	packed, scale *tensor.Tensor
	gs, inv       float32 // the global scale and its reciprocal, 0 for 0
	swizzled      bool
	groups        int // in a row
}

func newFP4Quant(packed, scale *tensor.Tensor, gs float32, layout ops.ScaleLayout) fp4Quant {
	f := fp4Quant{packed: packed, scale: scale, gs: gs, swizzled: layout == ops.ScaleSwizzled, groups: int(packed.Shape[1]) * 2 / ops.FP4Group}
	if gs != 0 {
		f.inv = 1 / gs
	}
	return f
}

// pad clears swizzled scales, so that what lies between rows and groups is 0.
func (f *fp4Quant) pad() {
	if f.swizzled {
		clear(elems[byte](f.scale, 0, int(f.scale.Numel())))
	}
}

// row quantizes v to row i.
func (f *fp4Quant) row(i int, v []float32) {
	const g = ops.FP4Group
	packed := elems[byte](f.packed, i*len(v)/2, len(v)/2)
	scales := elems[byte](f.scale, 0, int(f.scale.Numel()))
	for k := range f.groups {
		x := v[k*g:][:g]
		code := tensor.EncodeE4M3FN(f.gs*float32(magnitude(x)*(1.0/6)), true)
		at := i*f.groups + k
		if f.swizzled {
			at = tensor.SwizzleOffset(i, k, int(f.scale.Shape[1]))
		}
		scales[at] = code
		r := float32(0)
		if s := tensor.DecodeE4M3FN(code) * f.inv; s != 0 {
			r = 1 / s
		}
		for e := range g / 2 {
			packed[k*g/2+e] = tensor.EncodeE2M1Quant(x[2*e]*r) | tensor.EncodeE2M1Quant(x[2*e+1]*r)<<4
		}
	}
}

func refScaledFP4Quant(t *tier, q *registry.Queue, a *ops.ScaledFP4QuantArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	k := int(a.X.Shape[1])
	if err := j.layout(0, 4*k); err != nil {
		return a.Fail(err)
	}
	f := newFP4Quant(&a.OutPacked, &a.OutScale, a.InputGlobalScaleInv, a.ScaleLayout)
	f.pad()
	j.each(int(a.X.Shape[0]), float64(6*k), func(j *job, lo, hi, worker int) {
		a := (*ops.ScaledFP4QuantArgs)(j.args)
		k, buf := int(a.X.Shape[1]), own[float32](j, worker)
		f := newFP4Quant(&a.OutPacked, &a.OutScale, a.InputGlobalScaleInv, a.ScaleLayout)
		for i := lo; i < hi; i++ {
			f.row(i, plainHalves.load(buf, &a.X, i*k, k))
		}
	})
	return 0
}

func refQuantFP8Static(t *tier, q *registry.Queue, a *ops.QuantFP8StaticArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	k := int(a.X.Shape[1])
	if err := j.layout(0, 4*k); err != nil {
		return a.Fail(err)
	}
	j.each(int(a.X.Shape[0]), float64(4*k), func(j *job, lo, hi, worker int) {
		a := (*ops.QuantFP8StaticArgs)(j.args)
		k, buf, inv := int(a.X.Shape[1]), own[float32](j, worker), 1/a.InputScale
		for i := lo; i < hi; i++ {
			quantFP8Row(elems[byte](&a.Out, i*k, k), plainHalves.load(buf, &a.X, i*k, k), inv)
		}
	})
	return 0
}

func refSwizzleBlockscale(t *tier, q *registry.Queue, a *ops.SwizzleBlockscaleArgs) registry.Status {
	j := begin(q, t, unsafe.Pointer(a))
	defer j.end()
	clear(elems[byte](&a.Out, 0, int(a.Out.Numel())))
	j.each(int(a.In.Shape[0]), float64(2*a.In.Shape[1]), func(j *job, lo, hi, _ int) {
		a := (*ops.SwizzleBlockscaleArgs)(j.args)
		c, cols, out := int(a.In.Shape[1]), int(a.Out.Shape[1]), elems[byte](&a.Out, 0, int(a.Out.Numel()))
		for i := lo; i < hi; i++ {
			for k, b := range elems[byte](&a.In, i*c, c) {
				out[tensor.SwizzleOffset(i, k, cols)] = b
			}
		}
	})
	return 0
}
