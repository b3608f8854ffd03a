package cpu

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// overwrite stores v, as far as the dtype holds it, in every third element of x from the given one on.
func overwrite(x *tensor.Tensor, first int, v float64, whole int64) {
	n := int(x.Numel())
	for i := first; i < n; i += 3 {
		off, rest := 0, i
		for d := int(x.Rank) - 1; d >= 0; d-- {
			off += rest % int(x.Shape[d]) * int(x.Stride[d])
			rest /= int(x.Shape[d])
		}
		if x.DType == tensor.F4E2M1x2 {
			off *= 2 // values, not pairs
		}
		if isWhole(x.DType) {
			storeWhole(x, off, []int64{whole})
		} else {
			storeWide(x, off, []float64{v}, false, 0)
		}
	}
}

// Whatever stands in an operand, ends of integers, NaN and infinities among it: a kernel answers, with a value error or
// not, writes nothing outside of its outputs, and nothing at all with that error.
func TestHostileValues(t *testing.T) {
	r, d := open(t, 2)
	q := newQueue(t, r, d)
	for _, d := range registry.Descriptors() {
		cases := sample.Corpus(d.Op, sample.Quick)
		for i := 0; i < len(cases); i += 1 + len(cases)/12 {
			a, err := sample.New(cases[i])
			require.NoError(t, err)
			for _, o := range d.Operands {
				x := a.Tensor(o.Name)
				if o.Role == registry.Out || !x.Present() || x.DType.IsBlock() || x.Layout != tensor.Strided || x.Numel() == 0 {
					continue
				}
				for k, whole := range []int64{-1, math.MinInt32, math.MaxInt32, math.MinInt64, math.MaxInt64, 1 << 20} {
					if isWhole(x.DType) && x.DType != tensor.I64 && (whole == math.MinInt64 || whole == math.MaxInt64) {
						continue
					}
					v := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -math.MaxFloat32, math.SmallestNonzeroFloat32}[k]
					for _, step := range r.Explain(d.Op, tensor.Device{}).Chain {
						b := a.Clone()
						overwrite(b.Tensor(o.Name), k%3, v, whole)
						before := b.Clone()
						err := ops.Launch(q.With(registry.WithKernel(context.Background(), d.Op, step.Kernel)), d.Op, b.Record())
						where := []any{"%s %s: %s of %v or %v on %s", d.Name, cases[i].Name, o.Name, v, whole, step.Kernel}
						require.NoError(t, b.CheckGuards(), where...)
						if err != nil {
							require.True(t, errors.Is(err, ops.ErrValue) || errors.Is(err, registry.ErrDeclined) || errors.Is(err, registry.ErrNoKernel), append([]any{err.Error() + ": " + where[0].(string)}, where[1:]...)...)
							for _, p := range d.Operands { // a bad value is found before anything is written
								w, was := b.Tensor(p.Name), before.Tensor(p.Name)
								if w.Present() && w.Layout == tensor.Strided && !w.DType.IsBlock() && w.Contiguous() {
									n := int(w.Numel()) * w.DType.Size()
									require.Equal(t, unsafe.Slice((*byte)(was.Host), n), unsafe.Slice((*byte)(w.Host), n), append([]any{p.Name + " was written: " + where[0].(string)}, where[1:]...)...)
								}
							}
						}
					}
				}
			}
		}
	}
}

// Eight queues of one device work at once, each on calls of its own, and get what one alone gets.
func TestManyQueuesAtOnce(t *testing.T) {
	r, d := open(t, 2)
	var wg sync.WaitGroup
	for g := range 8 {
		q := newQueue(t, r, d)
		wg.Go(func() {
			for i, d := range registry.Descriptors() {
				cases := sample.Corpus(d.Op, sample.Quick)
				for c := (g + i) % 11; c < len(cases); c += 11 {
					if cases[c].Invalid {
						continue
					}
					a, err := sample.New(cases[c])
					if !errors.Is(err, nil) {
						t.Error(err)
						return
					}
					b := a.Clone()
					for _, x := range []*sample.Args{a, b} {
						if err := ops.Launch(q, d.Op, x.Record()); err != nil {
							t.Error(d.Name, cases[c].Name, err)
							return
						}
					}
					if !a.SameBits(b) {
						t.Error(d.Name, cases[c].Name, "twice the same call, other bits")
					}
				}
			}
		})
	}
	wg.Wait()
}
