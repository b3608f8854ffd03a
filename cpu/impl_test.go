package cpu

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/pool"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// fixture makes the operands of one call: the same ones each time, in fresh memory, poisoned where a kernel must write.
type fixture struct {
	tb   testing.TB
	rng  *rand.Rand
	mems map[unsafe.Pointer][]byte // whole memory of an operand, by its first byte
}

const (
	fence  = 64   // bytes around every operand
	poison = 0xff // NaN in every float type
)

func newFixture(tb testing.TB) *fixture {
	return &fixture{tb: tb, rng: rand.New(rand.NewPCG(1, 2)), mems: map[unsafe.Pointer][]byte{}}
}

// memory returns n poisoned bytes between fences.
func (f *fixture) memory(n int64) unsafe.Pointer {
	b := make([]byte, n+3*fence)
	for i := range b {
		b[i] = poison
	}
	skip := fence + int(-uintptr(unsafe.Pointer(&b[0]))%fence)
	p := unsafe.Pointer(&b[skip])
	f.mems[p] = b
	return p
}

// raw returns a poisoned contiguous tensor.
func (f *fixture) raw(t tensor.DType, shape ...int64) tensor.Tensor {
	x := tensor.Must(tensor.New(nil, t, shape...))
	n, err := x.Bytes()
	require.NoError(f.tb, err)
	x.Host = f.memory(n)
	return x
}

// fill writes random normal values of the given size to a float or block tensor.
func (f *fixture) fill(x *tensor.Tensor, size float64) {
	k := int(x.Last())
	row, err := x.DType.RowBytes(int64(k))
	require.NoError(f.tb, err)
	if k == 0 {
		return
	}
	v := make([]float32, k)
	for r := range int(x.Numel()) / k {
		for i := range v {
			v[i] = float32(f.rng.NormFloat64() * size)
		}
		b := unsafe.Slice((*byte)(unsafe.Add(x.Host, r*int(row))), row)
		if tensor.CanQuantize(x.DType) {
			require.NoError(f.tb, tensor.Quantize(b, x.DType, v))
			continue
		}
		for i := range b { // any bytes are legal blocks; the scales, wherever they are, stay small
			b[i] = byte(f.rng.Uint32())
		}
		scaleBlocks(x.DType, b)
	}
}

// scaleBlocks puts sane scales into blocks of random bytes.
func scaleBlocks(t tensor.DType, b []byte) {
	_, size := t.Block()
	at := map[tensor.DType][]int{tensor.Q2_K: {80, 82}, tensor.Q3_K: {108}, tensor.Q4_K: {0, 2}, tensor.Q5_K: {0, 2}, tensor.Q6_K: {208}, tensor.IQ4_NL: {0}}[t]
	for i := 0; i < len(b); i += size {
		for _, o := range at {
			b[i+o], b[i+o+1] = byte(i), 0x1c // about 2^-8
		}
	}
}

// in returns a contiguous tensor of random values.
func (f *fixture) in(t tensor.DType, shape ...int64) tensor.Tensor {
	x := f.raw(t, shape...)
	f.fill(&x, 1)
	return x
}

// ints returns a contiguous integer tensor.
func (f *fixture) ints(t tensor.DType, v ...int64) tensor.Tensor {
	x := f.raw(t, int64(len(v)))
	for i, n := range v {
		switch t {
		case tensor.I32:
			elems[int32](&x, i, 1)[0] = int32(n)
		case tensor.I64:
			elems[int64](&x, i, 1)[0] = n
		default:
			elems[int8](&x, i, 1)[0] = int8(n)
		}
	}
	return x
}

func (f *fixture) f32(v ...float32) tensor.Tensor {
	x := f.raw(tensor.F32, int64(len(v)))
	copy(elems[float32](&x, 0, len(v)), v)
	return x
}

// columns returns columns c0.. of a wider random matrix [m, c0+k+3].
func (f *fixture) columns(t tensor.DType, m, c0, k int64) tensor.Tensor {
	x := f.in(t, m, c0+k+3)
	v, err := x.Slice(1, c0, c0+k)
	require.NoError(f.tb, err)
	f.mems[v.Host] = f.mems[x.Host]
	return v
}

// lane16 returns x in the Lane16 layout.
func (f *fixture) lane16(x tensor.Tensor) tensor.Tensor {
	format, ok := lanes(x.DType)
	require.True(f.tb, ok)
	n, k := int(x.Shape[0]), int(x.Shape[1])
	y := x
	y.Layout = tensor.Lane16
	size, err := y.Bytes()
	require.NoError(f.tb, err)
	y.Host = f.memory(size)
	packPanels(format, unsafe.Slice((*byte)(y.Host), size), unsafe.Slice((*byte)(x.Host), n*format.RowSize(k)), n, k)
	return y
}

// implCase is one call of an op, made anew for each kernel.
type implCase struct {
	name string
	// run makes the call through q and returns its error and, by operand name, the memory of what it may write.
	run func(tb testing.TB, q *registry.Queue) (map[string]written, error)
	// record makes the call's record and returns what launches it.
	record func(tb testing.TB) func(q *registry.Queue) error
	op     registry.Op
	tol    tolerance
	may    []string // kernels (by provider) that may decline
}

// written is the memory of an operand after a call.
type written struct {
	t   tensor.DType
	mem []byte
}

// tolerance is how far a kernel may be from the reference: sum of squared differences over that of the reference.
type tolerance float64

const (
	bits    tolerance = 0
	f32Sums tolerance = 1e-10
	bf16Out tolerance = 1e-5 // one rounding to bf16 that goes the other way
	quants  tolerance = 5e-4 // activations are quantised by another rule
)

// implOf makes a case of op o whose record build fills.
func implOf[R any](o *ops.Op[R], name string, tol tolerance, build func(f *fixture) *R) implCase {
	record := func(tb testing.TB) func(q *registry.Queue) error {
		f := newFixture(tb)
		a := build(f)
		return func(q *registry.Queue) error {
			runtime.KeepAlive(f)
			return o.Launch(q, a)
		}
	}
	return implCase{name: o.Name() + "/" + name, op: o.ID(), tol: tol, record: record, run: func(tb testing.TB, q *registry.Queue) (map[string]written, error) {
		f := newFixture(tb)
		a := build(f)
		err := o.Launch(q, a)
		out := map[string]written{}
		for _, d := range o.Descriptor().Operands {
			x := (*tensor.Tensor)(unsafe.Add(unsafe.Pointer(a), d.Offset))
			if !x.Present() {
				continue
			}
			mem, ok := f.mems[x.Host]
			require.True(tb, ok || x.Numel() == 0, "operand %s has no memory", d.Name)
			out[d.Name] = written{x.DType, mem}
		}
		return out, err
	}}
}

// compare wants the same bits where the reference left poison and in integers, and floats within tol elsewhere.
func compare(t *testing.T, want, got written, tol tolerance) {
	t.Helper()
	require.Equal(t, len(want.mem), len(got.mem))
	if tol == bits || !want.t.IsFloat() {
		if !slices.Equal(want.mem, got.mem) {
			for i := range want.mem {
				if want.mem[i] != got.mem[i] {
					require.Failf(t, "bits differ", "%v byte %d of %d: want %#x, got %#x", want.t, i, len(want.mem), want.mem[i], got.mem[i])
				}
			}
		}
		return
	}
	size := want.t.Size()
	read := func(b []byte, i int) float64 {
		x := tensor.Tensor{Host: unsafe.Pointer(&b[0]), DType: want.t}
		return float64(one(&x, i))
	}
	first := int(-uintptr(unsafe.Pointer(&want.mem[0]))%fence) % size // both memories are aligned alike up to the element
	var diff, sum float64
	for i := first / size; i < len(want.mem)/size; i++ {
		w, g := want.mem[i*size:(i+1)*size], got.mem[i*size:(i+1)*size]
		if slices.Equal(w, g) {
			v := read(want.mem, i)
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				sum += v * v
			}
			continue
		}
		a, b := read(want.mem, i), read(got.mem, i)
		if math.IsNaN(a) && math.IsNaN(b) {
			require.False(t, allPoison(w) != allPoison(g), "element %d: want %x, got %x", i, w, g)
			continue
		}
		require.False(t, math.IsNaN(a) || math.IsNaN(b) || math.IsInf(a, 0) || math.IsInf(b, 0), "element %d: want %v, got %v", i, a, b)
		diff += (a - b) * (a - b)
		sum += a * a
	}
	if sum > 0 {
		diff /= sum
	}
	require.LessOrEqual(t, diff, float64(tol), "normalised squared error")
}

func allPoison(b []byte) bool {
	return !slices.ContainsFunc(b, func(v byte) bool { return v != poison })
}

// sameStart makes the fences of two memories comparable: the poison around an operand starts at another byte in each.
func sameStart(w written) written {
	skip := int(-uintptr(unsafe.Pointer(&w.mem[0])) % fence)
	return written{w.t, slices.Clone(w.mem[skip : len(w.mem)-fence+skip])}
}

// TestImplementations runs every kernel of every op over the same calls: in its tolerance to the reference, with the same
// bits for any number of threads and on every run, and nothing written where it declines or fails.
func TestImplementations(t *testing.T) {
	executed, ran := map[string]int{}, 0
	cases := implCases()
	if testing.Short() { // the race detector takes minutes over all of them
		some := cases[:0]
		for i := 0; i < len(cases); i += 7 {
			some = append(some, cases[i])
		}
		cases = some
	}
	r, _ := open(t, 1)
	queues := map[int]*registry.Queue{}
	for n := 1; n <= 4; n++ {
		queues[n] = newQueue(t, r, openThreads(t, r, n))
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ran++
			ctx := context.Background()
			want, wantErr := c.run(t, queues[1].With(registry.WithKernel(ctx, c.op, "reference")))
			for name := range want {
				want[name] = sameStart(want[name])
			}
			for _, step := range r.Explain(c.op, tensor.Device{}).Chain {
				t.Run(step.Provider, func(t *testing.T) {
					tol := c.tol
					if step.Traits.BitExact {
						tol = bits
					}
					var first map[string]written
					for n := 1; n <= 4; n++ {
						for range 2 {
							got, err := c.run(t, queues[n].With(registry.WithKernel(ctx, c.op, step.Kernel)))
							for name := range got {
								got[name] = sameStart(got[name])
							}
							if err != nil && wantErr == nil {
								require.ErrorIs(t, err, registry.ErrDeclined, "%d threads", n)
								require.NotEqual(t, "reference", step.Provider)
								for name, w := range untouched(t, c, queues[n]) {
									compare(t, w, got[name], bits)
								}
								if step.Provider != "amx" || !outsideDomain(err) { // few rows
									require.Contains(t, c.may, step.Provider, "declined: %v", err)
								}
								return
							}
							if wantErr != nil { // and nothing has been written
								require.ErrorIs(t, err, ops.ErrValue)
								require.ErrorIs(t, wantErr, ops.ErrValue)
								for name, w := range untouched(t, c, queues[n]) {
									compare(t, w, got[name], bits)
								}
								continue
							}
							for name := range want {
								compare(t, want[name], got[name], tol)
							}
							if first == nil {
								first = got
							}
							for name := range first {
								compare(t, first[name], got[name], bits)
							}
						}
					}
					if wantErr == nil {
						executed[step.Kernel]++
					}
				})
			}
		})
	}
	for _, d := range registry.Descriptors() {
		if ran < len(implCases()) {
			break // some were left out by -short or -run
		}
		for _, step := range r.Explain(d.Op, tensor.Device{}).Chain {
			require.NotZero(t, executed[step.Kernel], "no case ran on kernel %s", step.Kernel)
		}
	}
}

// untouched returns the operands of a call that no kernel took.
func untouched(t *testing.T, c implCase, q *registry.Queue) map[string]written {
	w, err := c.run(t, q.With(registry.WithKernel(context.Background(), c.op, "nobody")))
	require.ErrorIs(t, err, registry.ErrNoKernel)
	for name := range w {
		w[name] = sameStart(w[name])
	}
	return w
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

// outsideDomain reports whether a call is none of those that a kernel declared.
func outsideDomain(err error) bool {
	var d *registry.DeclinedError
	return errors.As(err, &d) && len(d.Refusals) == 1 && d.Refusals[0].Reason == registry.ReasonDomain
}
