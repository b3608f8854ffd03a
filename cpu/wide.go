package cpu

import (
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/tensor"
)

// wide is the rows of a [m,k] matrix of activations as f32, stride elements apart.
type wide struct {
	data   []float32
	stride int
}

func (w wide) row(i, k int) []float32 { return w.data[i*w.stride:][:k] }

// rowStride returns the distance of x's rows.
func rowStride(x *tensor.Tensor) int {
	if x.Shape[0] <= 1 {
		return int(x.Shape[1])
	}
	return int(x.Stride[0])
}

// manyRows is from how many rows of activations on a product is bound by multiplications rather than by memory.
const manyRows = 32

// copyStride returns how far apart the rows of x are copied, or 0 if they are read where they are: rows of f32, unless
// they lie so that many of them compete for the same sets of the cache.
func copyStride(x *tensor.Tensor) int {
	const set = 1024 // elements
	m, k := int(x.Shape[0]), int(x.Shape[1])
	switch {
	case x.DType == tensor.F32 && (m < manyRows || rowStride(x)%set != 0):
		return 0
	case k%set == 0:
		return k + 16
	}
	return k
}

// wideBytes is the shared scratch that widen needs for x.
func wideBytes(x *tensor.Tensor) int { return 4 * int(x.Shape[0]) * copyStride(x) }

// widen copies the activations of the launch to the shared scratch if they have to be. The launch's record is one of
// the dense products', which have one layout.
func (j *job) widen(x *tensor.Tensor) {
	if copyStride(x) == 0 {
		return
	}
	j.each(int(x.Shape[0]), float64(x.Shape[1])/4, func(j *job, lo, hi, _ int) {
		x := &(*ops.MatmulBTArgs)(j.args).A
		k, stride := int(x.Shape[1]), copyStride(x)
		for i := lo; i < hi; i++ {
			row := common[float32](j)[i*stride:][:k]
			if v := j.tier.load(row, x, i*rowStride(x), k); x.DType == tensor.F32 {
				copy(row, v)
			}
		}
	})
}

// wideOf returns x's rows after widen.
func (j *job) wideOf(x *tensor.Tensor) wide {
	m, k := int(x.Shape[0]), int(x.Shape[1])
	if m*k == 0 {
		return wide{}
	}
	if stride := copyStride(x); stride != 0 {
		return wide{common[float32](j)[:(m-1)*stride+k], stride}
	}
	return wide{elems[float32](x, 0, (m-1)*rowStride(x)+k), rowStride(x)}
}
