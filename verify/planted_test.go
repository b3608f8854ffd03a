package verify_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"reflect"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
	"github.com/opmux/opmux/verify"
)

// floats returns n elements from the first of an f32 tensor on.
func floats(x *tensor.Tensor, n int) []float32 { return unsafe.Slice((*float32)(x.Host), n) }

// reference returns the oracle's launcher of an op.
func reference(t *testing.T, r *registry.Registry, op string) registry.Launcher {
	t.Helper()
	fn, err := r.GetImpl("reference_" + op)
	require.NoError(t, err)
	return fn
}

// defect is a kernel that is right but for one thing, and what verify says of it.
type defect struct {
	name   string
	traits registry.Traits
	spec   *registry.Spec
	spoil  func(q *registry.Queue, a *ops.RMSNormArgs, right func() registry.Status) registry.Status
	want   verify.Verdict
	check  string // of the first failure
	detail string // part of its text
}

func defects() []defect {
	var calls atomic.Uint32
	after := func(change func(a *ops.RMSNormArgs)) func(*registry.Queue, *ops.RMSNormArgs, func() registry.Status) registry.Status {
		return func(_ *registry.Queue, a *ops.RMSNormArgs, right func() registry.Status) registry.Status {
			s := right()
			change(a)
			return s
		}
	}
	f32 := func(a *ops.RMSNormArgs) bool {
		return a.Out.DType == tensor.F32 && a.X.DType == tensor.F32 && a.X.Shape[0] > 0 && a.X.Shape[1] > 0
	}
	return []defect{
		{name: "right", want: verify.Passed, traits: registry.Traits{BatchInvariant: true, BitExact: true}, spoil: after(func(*ops.RMSNormArgs) {})},
		{name: "wrong element", want: verify.Failed, check: "numbers", detail: "out[2,4] is ", spoil: after(func(a *ops.RMSNormArgs) {
			if f32(a) && a.X.Shape[0] >= 3 && a.X.Shape[1] >= 5 {
				floats(&a.Out, int(a.Out.Numel()))[2*a.X.Shape[1]+4] += 0.01
			}
		})},
		{name: "one bit", traits: registry.Traits{BitExact: true}, want: verify.Failed, check: "bit exact", detail: "out[0,0]", spoil: after(func(a *ops.RMSNormArgs) {
			if f32(a) {
				v := floats(&a.Out, 1)
				v[0] = math.Nextafter32(v[0], 100)
			}
		})},
		{name: "unwritten element", want: verify.Failed, check: "numbers", spoil: after(func(a *ops.RMSNormArgs) {
			if f32(a) {
				floats(&a.Out, 1)[0] = math.Float32frombits(0xffffffff)
			}
		})},
		{name: "tail overrun", want: verify.Failed, check: "guards", detail: "operand out", spoil: after(func(a *ops.RMSNormArgs) {
			if f32(a) {
				floats(&a.Out, int(a.Out.Numel())+1)[a.Out.Numel()] = 0
			}
		})},
		{name: "input written", want: verify.Failed, check: "inputs", detail: "operand x", spoil: after(func(a *ops.RMSNormArgs) {
			if f32(a) && a.X.Host != a.Out.Host {
				floats(&a.X, 1)[0] = 0
			}
		})},
		{name: "writes before it declines", want: verify.Failed, check: "decline", detail: "operand out", spoil: func(_ *registry.Queue, a *ops.RMSNormArgs, right func() registry.Status) registry.Status {
			if f32(a) && a.X.Shape[1] > 3 {
				floats(&a.Out, 1)[0] = 1
				return registry.Decline(registry.ReasonShape)
			}
			return right()
		}},
		{name: "fails", want: verify.Failed, check: "error", detail: "out of luck", spoil: func(_ *registry.Queue, a *ops.RMSNormArgs, right func() registry.Status) registry.Status {
			return a.Fail(errLuck)
		}},
		{name: "panics", want: verify.Failed, check: "error", detail: "panic: out of range", spoil: func(_ *registry.Queue, a *ops.RMSNormArgs, right func() registry.Status) registry.Status {
			if a.X.Shape[1] == 17 {
				panic("out of range")
			}
			return right()
		}},
		{name: "other bits each time", want: verify.Failed, check: "same bits again", spoil: after(func(a *ops.RMSNormArgs) {
			if f32(a) && a.Residual.Present() == false {
				v := floats(&a.Out, 1)
				for range calls.Add(1) % 2 {
					v[0] = math.Nextafter32(v[0], 100)
				}
			}
		})},
		{name: "says that bits vary", want: verify.Passed, traits: registry.Traits{Nondeterministic: true}, spoil: after(func(a *ops.RMSNormArgs) {
			if f32(a) {
				v := floats(&a.Out, 1)
				for range calls.Add(1) % 2 {
					v[0] = math.Nextafter32(v[0], 100)
				}
			}
		})},
		{name: "depends on the batch", traits: registry.Traits{BatchInvariant: true}, want: verify.Failed, check: "same bits alone and in a batch", detail: "row ", spoil: after(func(a *ops.RMSNormArgs) {
			if f32(a) && a.X.Shape[0] > 1 {
				v := floats(&a.Out, 1)
				v[0] = math.Nextafter32(v[0], 100)
			}
		})},
		{name: "declines everything", want: verify.NeverRan, spoil: func(*registry.Queue, *ops.RMSNormArgs, func() registry.Status) registry.Status {
			return registry.Decline(registry.ReasonShape)
		}},
		{name: "narrow domain", want: verify.Outside, spoil: after(func(*ops.RMSNormArgs) {}),
			spec: &registry.Spec{Constraints: map[string]registry.Constraint{"h": {OneOf: []registry.TraitValue{registry.IntTrait(999_983)}}}}},
	}
}

// luck is an error of a kernel.
type luck struct{}

var errLuck = luck{}

func (luck) Error() string { return "out of luck" }

// plant registers a spoilt copy of the reference's kernel of rms_norm above all others.
func plant(t *testing.T, r *registry.Registry, d defect, test func(*registry.Queue) error) {
	t.Helper()
	fn := reference(t, r, "rms_norm")
	_, err := ops.Register(r, ops.RMSNorm, tensor.CPU, ops.Provider[ops.RMSNormArgs]{
		OpProvider: registry.OpProvider{Name: "planted", Priority: 60, Traits: d.traits, Spec: d.spec, SelfTest: test},
		Fn: func(q *registry.Queue, a *ops.RMSNormArgs) registry.Status {
			return d.spoil(q, a, func() registry.Status { return fn(q, unsafe.Pointer(a)) })
		},
	})
	require.NoError(t, err)
}

// TestW32PlantedKernels: each way to be wrong is found, by its own check; what is right or says so passes. One kernel
// writes two outputs (rms_norm with a residual), and all of them are compared.
func TestW32PlantedKernels(t *testing.T) {
	for _, d := range defects() {
		t.Run(d.name, func(t *testing.T) {
			o := open(t)
			plant(t, o.Registry, d, nil)
			o.Op, o.Solution, o.Shrink = "rms_norm", "planted", true
			rep, err := verify.Run(context.Background(), o)
			require.NoError(t, err)
			require.Len(t, rep.Kernels, 1)
			k := rep.Kernels[0]
			require.Equal(t, d.want, k.Verdict, "%+v", k.Failures)
			require.Equal(t, d.want == verify.Passed || d.want == verify.Outside, rep.OK)
			if d.want != verify.Failed {
				require.Empty(t, k.Failures)
				return
			}
			require.Equal(t, d.check, k.Failures[0].Check)
			require.Contains(t, k.Failures[0].Detail, d.detail)
			var text bytes.Buffer
			require.NoError(t, rep.WriteText(&text))
			require.Contains(t, text.String(), "planted_rms_norm: "+d.check)
			if d.name == "wrong element" {
				require.NotNil(t, k.Failures[0].Shrunk)
				require.Equal(t, sample.Shape{"T": 3, "H": 5}, k.Failures[0].Shrunk.Shape)
			}
		})
	}
}

// TestPlantedKernelIsQuarantined: a wrong kernel that heads the chain fails its self-test at the first launch, is
// quarantined with its evidence, and the call is served by the next kernel.
func TestPlantedKernelIsQuarantined(t *testing.T) {
	o := open(t)
	r := o.Registry
	wrong := defects()[1]
	cases := sample.Corpus(ops.OpRMSNorm, sample.Quick)[:3]
	cases = append(cases, sample.Case{Name: "plain"})
	plant(t, r, wrong, sample.SelfTest(ops.RMSNorm.Descriptor(), reference(t, r, "rms_norm"), false, cases...))
	require.Equal(t, "planted_rms_norm", r.Explain(ops.OpRMSNorm, o.Device.ID()).Chain[0].Kernel)

	dq, err := o.Device.NewQueue()
	require.NoError(t, err)
	q := r.NewQueue(dq)
	defer q.Close()
	a, err := sample.New(sample.Case{Op: ops.OpRMSNorm, Shape: sample.Shape{"T": 3, "H": 5}})
	require.NoError(t, err)
	want := a.Clone()
	require.NoError(t, ops.Launch(q, ops.OpRMSNorm, a.Record()))
	require.Equal(t, registry.OK, reference(t, r, "rms_norm")(q, want.Record()).Code())
	for _, res := range sample.Compare(a, want, sample.ToleranceFor(a)) {
		require.True(t, res.OK, res)
	}

	e := r.Explain(ops.OpRMSNorm, o.Device.ID())
	require.NotEqual(t, "planted_rms_norm", e.Chain[0].Kernel)
	require.NotZero(t, e.Chain[0].Counts.Executed)
	require.Len(t, e.Dropped, 1)
	require.Equal(t, "planted_rms_norm", e.Dropped[0].Kernel)
	require.Contains(t, e.Dropped[0].Detail, "out[2,4] is ", "the evidence names the element")

	o.Op = "rms_norm"
	rep, err := verify.Run(context.Background(), o)
	require.NoError(t, err)
	require.True(t, rep.OK, "what is not in a chain is no failure")
	require.Equal(t, verify.Unusable, rep.Kernels[0].Verdict)
	o.Strict = true
	rep, err = verify.Run(context.Background(), o)
	require.NoError(t, err)
	require.False(t, rep.OK, "unless asked for strictly")
}

// TestW17OracleNeverSelected: on a machine with other kernels no op is served by the reference.
func TestW17OracleNeverSelected(t *testing.T) {
	o := open(t)
	real := 0
	for _, d := range registry.Descriptors() {
		chain := o.Registry.Explain(d.Op, o.Device.ID()).Chain
		require.NotEmpty(t, chain, d.Name)
		require.Equal(t, "reference", chain[len(chain)-1].Tier, d.Name)
		for _, s := range chain[:len(chain)-1] {
			require.NotEqual(t, "reference", s.Tier, d.Name)
		}
		if len(chain) > 1 {
			real++
			d := o.Registry.Decide(registry.Request{Operator: d.Name, Device: o.Device.ID()})
			require.Empty(t, d.Error)
			require.NotEqual(t, "reference", d.Choices[0].Provider, "%s", d.Operator)
		}
	}
	require.Greater(t, real, 10)
}

// TestW33NothingIsSilent: what matches no kernel is an error, and every kernel of a matching op stands in the report,
// those left out with the reason.
func TestW33NothingIsSilent(t *testing.T) {
	o := open(t)
	for _, change := range []func(*verify.Options){
		func(o *verify.Options) { o.Op = "no_such_op" }, func(o *verify.Options) { o.Kernel = "no*kernel" }, func(o *verify.Options) { o.Solution = "nobody" },
		func(o *verify.Options) { o.Op, o.Types = "relu", map[string]tensor.DType{"x": tensor.I64} },
		func(o *verify.Options) { o.Op, o.Shapes = "relu", []sample.Shape{{"Z": 1}} },
	} {
		n := o
		change(&n)
		_, err := verify.Run(context.Background(), n)
		require.ErrorIs(t, err, verify.ErrNothing)
	}
	o.Op = "["
	_, err := verify.Run(context.Background(), o)
	require.ErrorIs(t, err, verify.ErrOption)

	o.Op, o.Types = "gemm.ggml_block_nt", map[string]tensor.DType{"b": tensor.Q8_0, "out": tensor.BF16} // by family.mode
	rep, err := verify.Run(context.Background(), o)
	require.NoError(t, err)
	e := o.Registry.Explain(ops.OpMatmulBTQuant, o.Device.ID())
	require.Len(t, rep.Kernels, len(e.Chain)+len(e.Dropped))
	for _, k := range rep.Kernels {
		if k.Verdict == verify.Unusable {
			require.NotEmpty(t, k.Detail, k.Kernel)
		} else {
			require.NotZero(t, k.Cases, k.Kernel)
		}
	}
	o.Types, o.Shapes = nil, []sample.Shape{{"M": 3, "N": 5, "K": 512}}
	rep, err = verify.Run(context.Background(), o)
	require.NoError(t, err)
	require.True(t, rep.OK)
	require.NotZero(t, rep.Total.Executed)
}

// TestW34ShapesShrink: the search for a smaller failing call ends at the extents from which on a kernel is wrong, and it
// is the guard words that find a read or write outside (TestW32PlantedKernels).
func TestW34ShapesShrink(t *testing.T) {
	o := open(t)
	fn := reference(t, o.Registry, "matmul")
	_, err := ops.Register(o.Registry, ops.Matmul, tensor.CPU, ops.Provider[ops.MatmulArgs]{
		OpProvider: registry.OpProvider{Name: "planted", Priority: 60},
		Fn: func(q *registry.Queue, a *ops.MatmulArgs) registry.Status {
			s := fn(q, unsafe.Pointer(a))
			if a.Out.DType == tensor.F32 && a.A.Shape[1] >= 17 && a.B.Shape[1] >= 3 && a.Out.Shape[0] > 0 { // a tail of K that is forgotten
				floats(&a.Out, 3)[2] += 1
			}
			return s
		},
	})
	require.NoError(t, err)
	o.Op, o.Solution, o.Shrink = "matmul", "planted", true
	rep, err := verify.Run(context.Background(), o)
	require.NoError(t, err)
	require.False(t, rep.OK)
	f := rep.Kernels[0].Failures[0]
	require.Contains(t, f.Detail, "out[0,2]")
	require.NotNil(t, f.Shrunk)
	require.Equal(t, sample.Shape{"M": 1, "N": 3, "K": 17}, f.Shrunk.Shape)
}

// TestReportIsTheSameEachTime: two runs give the same JSON.
func TestReportIsTheSameEachTime(t *testing.T) {
	o := open(t)
	o.Op = "rms_norm"
	var texts [2]string
	for i := range texts {
		rep, err := verify.Run(context.Background(), o)
		require.NoError(t, err)
		b, err := json.Marshal(rep)
		require.NoError(t, err)
		texts[i] = string(b)
	}
	require.Equal(t, texts[0], texts[1])
	o.Seed = 2
	rep, err := verify.Run(context.Background(), o)
	require.NoError(t, err)
	require.True(t, rep.OK)
	require.False(t, reflect.DeepEqual(texts[0], rep))

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = verify.Run(ctx, o)
	require.ErrorIs(t, err, context.Canceled)
}

// TestW35EverySignatureIsVerified: of every signature that a kernel's description lists some call is executed (of the CPU's
// kernels TestCPUKernels says so); one that no case reaches is named, and counts when asked for strictly.
func TestW35EverySignatureIsVerified(t *testing.T) {
	o := open(t)
	narrow := defect{spec: &registry.Spec{Signatures: []tensor.FormatSignature{
		tensor.Sig(map[string]tensor.Format{"x": tensor.Dense(tensor.F32)}), tensor.Sig(map[string]tensor.Format{"x": tensor.Dense(tensor.F16)})}},
		spoil: func(_ *registry.Queue, a *ops.RMSNormArgs, right func() registry.Status) registry.Status {
			if a.X.DType == tensor.F16 {
				return registry.Decline(registry.ReasonDType)
			}
			return right()
		}}
	plant(t, o.Registry, narrow, nil)
	o.Op, o.Solution = "rms_norm", "planted"
	rep, err := verify.Run(context.Background(), o)
	require.NoError(t, err)
	require.True(t, rep.OK)
	require.Equal(t, []string{"x=dense[storage=f16]"}, rep.Kernels[0].Unverified)
	o.Strict = true
	rep, err = verify.Run(context.Background(), o)
	require.NoError(t, err)
	require.False(t, rep.OK)
}

// TestW35ReferenceSweeps holds the reference's products, over every case of the corpus, against sums of float64 made here
// from the operands as they are stored.
func TestW35ReferenceSweeps(t *testing.T) {
	o := open(t)
	dq, err := o.Device.NewQueue()
	require.NoError(t, err)
	all := o.Registry.NewQueue(dq)
	defer all.Close()
	for _, d := range []registry.Descriptor{ops.Matmul.Descriptor(), ops.MatmulBT.Descriptor(), ops.MatmulBTQuant.Descriptor()} {
		q := all.With(registry.WithKernel(context.Background(), d.Op, "reference"))
		ran := 0
		for _, c := range sample.CorpusOf(d, sample.Quick) {
			if c.Fill == sample.NaN || c.Fill == sample.Denormal {
				continue // sums of float64 overflow and vanish elsewhere
			}
			got, err := sample.Of(d, c)
			require.NoError(t, err)
			require.NoError(t, ops.Launch(q, d.Op, got.Record()), c.Name)
			a, err := sample.Values(got.Tensor("a"))
			require.NoError(t, err)
			b, err := sample.Values(got.Tensor("b"))
			require.NoError(t, err)
			m, n, k := int(got.Shape()["M"]), int(got.Shape()["N"]), int(got.Shape()["K"])
			c.Want = map[string][]float64{"out": make([]float64, m*n)}
			for i := range c.Want["out"] {
				for e := range k {
					w := i%n*k + e
					if d.Op == ops.OpMatmul { // stored as [K,N]
						w = e*n + i%n
					}
					c.Want["out"][i] += a[i/n*k+e] * b[w]
				}
			}
			again, err := sample.Of(d, c)
			require.NoError(t, err)
			require.NoError(t, ops.Launch(q, d.Op, again.Record()), c.Name)
			for _, r := range sample.CheckWant(again, sample.ToleranceFor(again)) {
				require.True(t, r.OK, "%s %s: %v", d.Name, c.Name, r)
				ran++
			}
		}
		require.Greater(t, ran, 50, d.Name)
	}
}
