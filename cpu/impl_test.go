package cpu

import (
	"context"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/pool"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
	"github.com/opmux/opmux/verify"
)

// TestImplementations runs every kernel of every op over the corpus: in its tolerance to the reference, with the same bits
// for any number of threads and on every run, and nothing written outside of operands or where it declines or fails. A
// kernel declines what lies outside of its declared domain and nothing else, but for rows that only their values tell. It is
// what opmuxtest.TestKernel does with a kernel from elsewhere.
func TestImplementations(t *testing.T) {
	r, d := open(t, 1)
	o := verify.Options{Registry: r, Device: d, Seed: 1, Level: sample.Full, NoAllocations: true, More: map[int]device.Device{}}
	if testing.Short() { // the race detector takes minutes over all of them
		o.Level = sample.Quick
	}
	for n := 2; n <= 4; n++ {
		o.More[n] = openThreads(t, r, n)
	}
	rep, err := verify.Run(context.Background(), o)
	require.NoError(t, err)
	var text strings.Builder
	require.NoError(t, rep.WriteText(&text))
	require.True(t, rep.OK, text.String())
	require.Empty(t, rep.Unserved)
	ran := map[string]bool{}
	for _, k := range rep.Kernels {
		if k.Verdict == verify.Unusable {
			continue
		}
		ran[k.Kernel] = true
		require.Equal(t, verify.Passed, k.Verdict, k.Kernel)
		require.Empty(t, k.Unverified, k.Kernel)
		require.Empty(t, k.Unexplained, "%s: %s", k.Kernel, k.FirstUnexplained)
	}
	for _, d := range registry.Descriptors() {
		for _, step := range r.Explain(d.Op, tensor.Device{}).Chain {
			require.True(t, ran[step.Kernel], step.Kernel)
		}
	}
}

// openThreads opens the first CPU once more, with exactly n threads whatever the machine has.
func openThreads(tb testing.TB, r *registry.Registry, n int) *Device {
	d, err := Open(Options{Threads: n, Registry: r})
	require.NoError(tb, err)
	if d.pool.Threads() != n {
		d.pool.Close()
		d.pool = pool.New(n)
	}
	tb.Cleanup(func() { require.NoError(tb, d.Close()) })
	return d
}

// TestPanelsAreThoseOfSamples: the packers of this package lay Lane16 weights out as ops/sample does.
func TestPanelsAreThoseOfSamples(t *testing.T) {
	for _, dt := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16, tensor.Q4_0, tensor.Q8_0} {
		c := sample.Case{Op: ops.OpMatmulBT, Shape: sample.Shape{"M": 1, "N": 37, "K": 96}, Types: map[string]tensor.DType{"b": dt}}
		if dt.IsBlock() {
			c.Op = ops.OpMatmulBTQuant
		}
		plain, err := sample.New(c)
		require.NoError(t, err)
		c.Layouts = map[string]tensor.Layout{"b": tensor.Lane16}
		packed, err := sample.New(c)
		require.NoError(t, err)
		want := newFixture(t).lane16(*plain.Tensor("b"))
		size, err := want.Bytes()
		require.NoError(t, err)
		require.Equal(t, unsafe.Slice((*byte)(want.Host), size), unsafe.Slice((*byte)(packed.Tensor("b").Host), size), dt)
	}
}
