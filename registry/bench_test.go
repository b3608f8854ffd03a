package registry

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// The bars: GetOp at most 3x Bare; BoundLaunch at most 25 ns; Declines/n at most 15 ns a step; TwoQueues (two
// goroutines, GOMAXPROCS >= 2) at least 1.7x the launches a second of one; Select/handle at most 40 ns and no allocation,
// Select/cold at most 100 us, Select/explain at most 1 ms, each over 200 kernels.

var (
	sinkLauncher Launcher
	sinkErr      error
)

// BenchmarkBare is the floor of a lookup: one atomic load and two indexes.
func BenchmarkBare(b *testing.B) {
	type row struct{ ops []Launcher }
	type bare struct{ devs []row }
	var cur atomic.Pointer[bare]
	t := &bare{devs: make([]row, 8)}
	for i := range t.devs {
		t.devs[i].ops = make([]Launcher, 1100)
	}
	cur.Store(t)
	dev, op := 3, Op(1024)
	for b.Loop() {
		sinkLauncher = cur.Load().devs[dev].ops[op]
	}
}

func BenchmarkGetOp(b *testing.B) {
	r, op := probe(b, Options{})
	native(b, r, op, tensor.CUDA)
	_, err := r.GetOp(op, cuda0)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		sinkLauncher, sinkErr = r.GetOp(op, cuda0)
	}
	require.NoError(b, sinkErr)
}

func BenchmarkLaunch(b *testing.B) {
	r, op := probe(b, Options{})
	add(b, r, op, tensor.CPU, OpProvider{Name: "k", Fn: nop})
	q := r.NewQueue(nil)
	a := &probeArgs{}
	b.ReportAllocs()
	for b.Loop() {
		sinkErr = q.Launch(op, unsafe.Pointer(a))
	}
	require.NoError(b, sinkErr)
}

func nop(*Queue, unsafe.Pointer) Status { return 0 }

func BenchmarkBoundLaunch(b *testing.B) {
	r, op := probe(b, Options{})
	add(b, r, op, tensor.CPU, OpProvider{Name: "k", Fn: nop})
	bound, err := r.NewQueue(nil).Bind(op)
	require.NoError(b, err)
	a := &probeArgs{}
	b.ReportAllocs()
	for b.Loop() {
		sinkErr = bound.Launch(unsafe.Pointer(a))
	}
	require.NoError(b, sinkErr)
}

func BenchmarkDeclines(b *testing.B) {
	for _, n := range []int{0, 1, 2, 4, 8} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, op := probe(b, Options{})
			for i := range n {
				add(b, r, op, tensor.CPU, OpProvider{Name: fmt.Sprint("d", i), Priority: int32(n - i), Fn: declines(ReasonShape)})
			}
			add(b, r, op, tensor.CPU, OpProvider{Name: "k", Fn: nop})
			bound, err := r.NewQueue(nil).Bind(op)
			require.NoError(b, err)
			a := &probeArgs{}
			b.ReportAllocs()
			for b.Loop() {
				sinkErr = bound.Launch(unsafe.Pointer(a))
			}
			require.NoError(b, sinkErr)
		})
	}
}

// BenchmarkTwoQueues launches from GOMAXPROCS goroutines with a queue each; BenchmarkTwoCounters is the same with a
// counter of its own each instead of a launch: what the machine gives. Compare -cpu 1,2.
func BenchmarkTwoQueues(b *testing.B) {
	r, op := probe(b, Options{})
	add(b, r, op, tensor.CPU, OpProvider{Name: "k", Fn: nop})
	b.RunParallel(func(pb *testing.PB) {
		q := r.NewQueue(nil)
		bound, _ := q.Bind(op)
		a := &probeArgs{}
		for pb.Next() {
			for range 16 {
				if bound.Launch(unsafe.Pointer(a)) != nil {
					b.Fail()
				}
			}
		}
	})
}

func BenchmarkTwoCounters(b *testing.B) {
	b.RunParallel(func(pb *testing.PB) {
		c := new(cell)
		for pb.Next() {
			for range 16 {
				c.executed.Add(1)
				c.failed.Add(1)
			}
		}
	})
}

func BenchmarkCompile(b *testing.B) {
	r := New(Options{})
	for i := range 79 {
		op := define(b, r, fmt.Sprint("op", i))
		for k := range tensor.NumKinds {
			for p := range 4 {
				add(b, r, op, tensor.Kind(k), OpProvider{Name: fmt.Sprint("p", p), Priority: int32(p)})
			}
		}
	}
	require.NoError(b, r.Seal())
	b.Run("toggle", func(b *testing.B) {
		for b.Loop() {
			restore, err := r.Disable("p3")
			require.NoError(b, err)
			restore()
		}
	})
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			restore, err := r.Disable("p3@op7@cuda")
			require.NoError(b, err)
			restore()
		}
	})
}

// BenchmarkLaunchTraced is BenchmarkLaunch with a tracer that does nothing.
func BenchmarkLaunchTraced(b *testing.B) {
	r, op := probe(b, Options{})
	add(b, r, op, tensor.CPU, OpProvider{Name: "k", Fn: nop})
	require.NoError(b, r.SetTracer(noTrace{}))
	q := r.NewQueue(nil)
	a := &probeArgs{}
	b.ReportAllocs()
	for b.Loop() {
		sinkErr = q.Launch(op, unsafe.Pointer(a))
	}
	require.NoError(b, sinkErr)
}

type noTrace struct{}

func (noTrace) Begin(Call) func(Status) { return nil }

// BenchmarkSelect asks for a kernel among 200: through a prepared handle, through the cache, without it, and for the record.
func BenchmarkSelect(b *testing.B) {
	r, _ := mm(b, Options{})
	for i := range 200 {
		register(b, r, kernel(b, fmt.Sprintf("k%03d", i), func(s *KernelSpec) {
			s.Priority = BandPerformant.Plus(uint8(i % 4))
			s.Constraints = map[string]Constraint{"k": MultipleOf(int64(8 << (i % 3))), "m": AtLeast(int64(i))}
			s.Requires = device.Requirement{Vendors: []string{"cpu"}}
		}))
	}
	req := Request{Operator: "mm", Signature: sig(b, "a=f32, b=f32"), Traits: map[string]TraitValue{"m": IntTrait(100), "k": IntTrait(64)}}
	h, err := r.Prepare(req, "m")
	require.NoError(b, err)
	b.Run("handle", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			if _, err := h.Select(int64(i & 127)); err != nil && i&127 != 0 {
				b.Fatal(err)
			}
		}
	})
	b.Run("handle-miss", func(b *testing.B) {
		none := req
		none.Solution = "nobody"
		h, err := r.Prepare(none, "m")
		require.NoError(b, err)
		b.ReportAllocs()
		for i := range b.N {
			if _, err := h.Select(int64(i & 127)); err == nil {
				b.Fatal("found")
			}
		}
	})
	b.Run("request", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if _, err := r.Select(req); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cold", func(b *testing.B) {
		for range b.N {
			r.ClearCache()
			if _, err := r.Select(req); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("explain", func(b *testing.B) {
		for range b.N {
			if d := r.Decide(req); d.Winner == "" || strings.Contains(d.Error, "x") {
				b.Fatal(d)
			}
		}
	})
}

// BenchmarkDomain launches a kernel that declares nothing, signatures, and signatures and constraints: what the check of a
// declared domain costs a call.
func BenchmarkDomain(b *testing.B) {
	f32 := tensor.Must(tensor.New(nil, tensor.F32, 32))
	for _, c := range []struct {
		name string
		spec *Spec
	}{{"nothing", nil}, {"signatures", &Spec{}}, {"constraints", &Spec{Constraints: map[string]Constraint{"m": AtLeast(1), "k": MultipleOf(8)}}}} {
		b.Run(c.name, func(b *testing.B) {
			r, op := mm(b, Options{})
			if c.spec != nil {
				c.spec.Signatures = []tensor.FormatSignature{sig(b, "a=f32, b=f32"), sig(b, "a=bf16, b=f32")}
			}
			_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "k", Fn: nop, Spec: c.spec})
			require.NoError(b, err)
			bound, err := r.NewQueue(nil).Bind(op)
			require.NoError(b, err)
			a := &mmArgs{A: f32, B: f32, M: 4, K: 64}
			b.ReportAllocs()
			for b.Loop() {
				sinkErr = bound.Launch(unsafe.Pointer(a))
			}
			require.NoError(b, sinkErr)
		})
	}
}
