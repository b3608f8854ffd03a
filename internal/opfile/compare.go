package opfile

import (
	"fmt"
	"math"
	"strconv"

	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/tensor"
)

// Difference is the element of an output that lies furthest from what is expected, as a share of what is allowed there.
type Difference struct {
	Output    string
	Index     int // in memory order
	Got, Want float64
	Allowed   float64 // for |Got - Want|
	Share     float64 // |Got - Want| / Allowed; up to 1 is a match
}

// OK reports whether d is inside the tolerance.
func (d Difference) OK() bool { return d.Share <= 1 }

// String names the element, both values and the allowed difference.
func (d Difference) String() string {
	if d.Output == "" {
		return "nothing to compare"
	}
	return fmt.Sprintf("%s[%d] is %v, expected %v, difference %.3g of %.3g allowed", d.Output, d.Index,
		number(d.Got), number(d.Want), math.Abs(d.Got-d.Want), d.Allowed)
}

// number prints a value as files write it.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// Compare holds got against the expected outputs of the same name and returns the worst element. Outputs that are in one
// of the two only are passed over. Tolerances: the file's; without one, whole numbers are equal and floats lie within
// rounding of their dtype. Two NaN are equal, infinities only of one sign. The error wraps ErrMismatch.
func (f *File) Compare(got []Tensor) (worst Difference, err error) {
	for i := range got {
		want := f.expected(got[i].key)
		if want == nil || want.Data.Host == nil {
			continue
		}
		d, err := f.compare(&got[i], want)
		if err != nil {
			return worst, err
		}
		if worst.Output == "" || d.Share > worst.Share {
			worst = d
		}
	}
	if !worst.OK() {
		return worst, errorf(ErrMismatch, f.Name, "%v", worst)
	}
	return worst, nil
}

// expected returns the output that adapters call key, or nil.
func (f *File) expected(key string) *Tensor {
	for i := range f.Outputs {
		if f.Outputs[i].key == key {
			return &f.Outputs[i]
		}
	}
	return nil
}

func (f *File) compare(out, want *Tensor) (worst Difference, err error) {
	got := &out.Data
	if got.Rank != want.Data.Rank || got.Shape != want.Data.Shape {
		return worst, errorf(ErrMismatch, want.Name, "shape is %v, expected %v", got.Dims(), want.Data.Dims())
	}
	worst.Output = want.Name
	for i := range int(got.Numel()) {
		d := Difference{Output: want.Name, Index: i, Got: at(got, i), Want: at(&want.Data, i), Allowed: f.allowed(want, i)}
		if out.slack != nil {
			d.Allowed += out.slack[i]
		}
		if !want.bits || got.DType != tensor.F32 {
			d.Share = sample.Share(d.Got, d.Want, d.Allowed)
		} else if tensor.Slice[int32](got)[i] != tensor.Slice[int32](&want.Data)[i] {
			d.Share = math.Inf(1)
		}
		if i == 0 || d.Share > worst.Share {
			worst = d
		}
	}
	return worst, nil
}

// rounding is what floats are allowed when a file has no tolerance: a few units of their last bit, as sums in another
// order and other exponential functions differ by that.
var rounding = map[tensor.DType]Tolerance{
	tensor.F32: {1e-6, 1e-5}, tensor.F16: {1e-3, 2e-3}, tensor.BF16: {1e-2, 1.6e-2},
}

func (f *File) allowed(want *Tensor, i int) float64 {
	t := rounding[want.Data.DType]
	switch {
	case want.allow != nil:
		return want.allow[i]
	case want.bits, isWhole(want.Data.DType):
		return 0
	case f.tolerance != nil:
		t = *f.tolerance
	}
	return t.Atol + t.Rtol*math.Abs(at(&want.Data, i))
}
