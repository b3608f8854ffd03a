package registry

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// mmArgs is the record of an op with formats and traits.
type mmArgs struct {
	Header
	A, B tensor.Tensor
	M, K int64
	Ran  string
}

// mm defines an op of that record: roles a and b, traits m (dynamic), k and layout.
func mm(t testing.TB, o Options) (*Registry, Op) {
	r := New(o)
	op, err := r.Define(Descriptor{Name: "mm", Family: "gemm", Mode: "mm", Record: typeOf[mmArgs](),
		Operands: []Operand{{Name: "a", Offset: unsafe.Offsetof(mmArgs{}.A)}, {Name: "b", Offset: unsafe.Offsetof(mmArgs{}.B)}},
		Roles:    []string{"a", "b"},
		Traits: []TraitDef{
			{Name: "m", Type: TraitInt, Dynamic: true, Required: true, Derive: func(p unsafe.Pointer) (TraitValue, bool) { return IntTrait((*mmArgs)(p).M), true }},
			{Name: "k", Type: TraitInt, Derive: func(p unsafe.Pointer) (TraitValue, bool) { return IntTrait((*mmArgs)(p).K), true }},
			{Name: "layout", Type: TraitString, Default: StringTrait("nk")},
		}})
	require.NoError(t, err)
	return r, op
}

func ranMM(name string) Launcher {
	return func(_ *Queue, a unsafe.Pointer) Status {
		(*mmArgs)(a).Ran = name
		return 0
	}
}

func sig(t testing.TB, text string) tensor.FormatSignature {
	s, err := tensor.ParseSignature(text)
	require.NoError(t, err)
	return s
}

// kernel is a description with defaults for tests.
func kernel(t testing.TB, name string, change func(*KernelSpec)) KernelSpec {
	s := KernelSpec{Name: name, Family: "gemm", Mode: "mm", Solution: name, Kinds: []tensor.Kind{tensor.CPU},
		Spec: Spec{Signatures: []tensor.FormatSignature{sig(t, "a=f32, b=f32")}, Origin: "test"}}
	if change != nil {
		change(&s)
	}
	return s
}

func register(t testing.TB, r *Registry, s KernelSpec) *Kernel {
	k, err := r.RegisterKernel(s, ranMM(s.Name))
	require.NoError(t, err)
	return k
}

// A kernel registered for one format and one range of a trait serves those requests and no others, through Select and
// through the seam alike, and what it does not serve goes to the next kernel without counting as a decline.
func TestSelectFormatAndTrait(t *testing.T) {
	r, op := mm(t, Options{})
	register(t, r, kernel(t, "wide", func(s *KernelSpec) {
		s.Priority = BandSpecialized.Plus(0)
		s.Constraints = map[string]Constraint{"m": AtLeast(32), "k": MultipleOf(64)}
	}))
	register(t, r, kernel(t, "any", func(s *KernelSpec) { s.Signatures = append(s.Signatures, sig(t, "a=bf16, b=q4_0")) }))
	q := r.NewQueue(nil)
	f32, q4 := sig(t, "a=f32, b=f32"), sig(t, "a=bf16, b=q4_0")
	for _, c := range []struct {
		sig  tensor.FormatSignature
		m, k int64
		want string
	}{{f32, 32, 128, "wide"}, {f32, 31, 128, "any"}, {f32, 32, 96, "any"}, {q4, 32, 128, "any"}, {f32, 1 << 40, 0, "wide"}} {
		s, err := r.Select(Request{Operator: "gemm.mm", Signature: c.sig, Traits: map[string]TraitValue{"m": IntTrait(c.m), "k": IntTrait(c.k)}})
		require.NoError(t, err)
		require.Equal(t, c.want, s.Kernel())
		a := &mmArgs{M: c.m, K: c.k}
		for role, x := range map[string]*tensor.Tensor{"a": &a.A, "b": &a.B} {
			f, _ := c.sig.Format(role)
			*x = tensor.Must(tensor.New(nil, f.DType, 32))
		}
		require.NoError(t, s.Launch(q, unsafe.Pointer(a)))
		require.Equal(t, c.want, a.Ran)
		a.Ran = ""
		require.NoError(t, q.Launch(op, unsafe.Pointer(a)))
		require.Equal(t, c.want, a.Ran, "the seam answers from the same table")
	}
	require.Zero(t, r.GetOpProviderStats(op, cpu0).Declines)
	require.EqualValues(t, 3, counts(t, r, op, cpu0, "wide").Declined["domain"])
	_, err := r.Select(Request{Operator: "mm", Signature: sig(t, "a=f16, b=f16"), Traits: map[string]TraitValue{"m": IntTrait(1), "k": IntTrait(1)}})
	require.ErrorIs(t, err, ErrNoKernel)
	require.ErrorContains(t, err, "wide: format: wants")
	d := r.Decide(Request{Operator: "mm", Signature: f32, Traits: map[string]TraitValue{"m": IntTrait(5), "k": IntTrait(65)}})
	require.Equal(t, "any", d.Winner)
	require.Equal(t, []Why{{Kind: WhyTrait, Name: "k", Want: "a multiple of 64", Have: "65"}, {Kind: WhyTrait, Name: "m", Want: "at least 32", Have: "5"}}, d.Choices[1].Why)
}

// A handle answers like Select for every value of its dynamic trait, from few answers, without allocating.
func TestHandle(t *testing.T) {
	r, _ := mm(t, Options{})
	register(t, r, kernel(t, "wide", func(s *KernelSpec) {
		s.Priority = BandSpecialized.Plus(0)
		s.Constraints = map[string]Constraint{"m": {AllOf: []Constraint{AtLeast(32), MultipleOf(8)}}}
	}))
	register(t, r, kernel(t, "any", nil))
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: map[string]TraitValue{"k": IntTrait(64)}}
	h, err := r.Prepare(req, "m")
	require.NoError(t, err)
	for round := range 2 {
		for m := range int64(200) {
			s, err := h.Select(m)
			require.NoError(t, err)
			want := "any"
			if m >= 32 && m%8 == 0 && round == 0 {
				want = "wide"
			}
			require.Equal(t, want, s.Kernel(), "m=%d", m)
		}
		require.LessOrEqual(t, r.CacheStats().Size, 3*8, "answers are kept by region, not by value")
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = h.Select(33) }))
		_, err = r.DisableOpProvider("wide", true)
		require.NoError(t, err)
	}
}

// A plan for another machine picks by what that machine has, cannot be launched, and shows what is not in this build.
func TestSelectForPlatform(t *testing.T) {
	r, _ := mm(t, Options{})
	for _, vendor := range []string{"nvidia", "amd"} {
		s := kernel(t, vendor+"_mm", func(s *KernelSpec) {
			s.Kinds = []tensor.Kind{tensor.CUDA, tensor.ROCm}
			s.Requires = device.Requirement{Vendors: []string{vendor}}
			s.Unavailable = "needs a build tag"
		})
		_, err := r.RegisterKernel(s, nil)
		require.NoError(t, err)
	}
	req := Request{Operator: "gemm.mm", Signature: sig(t, "a=f32, b=f32"), Traits: map[string]TraitValue{"m": IntTrait(1), "k": IntTrait(1)}}
	req.Platform = &device.Platform{Vendor: "nvidia", Kind: tensor.CUDA, Name: "H100"}
	d := r.Decide(req)
	require.Equal(t, "nvidia_mm", d.Winner, d)
	require.Equal(t, "not in this build: needs a build tag", d.Choices[0].Note)
	s, err := r.Select(req)
	require.NoError(t, err)
	require.ErrorIs(t, s.Launch(r.NewQueue(nil), unsafe.Pointer(&mmArgs{})), ErrPlan)
	req.Platform, req.Device = nil, cuda0
	_, err = r.Select(req)
	require.ErrorIs(t, err, ErrNoKernel, "here nothing is available")
	require.ErrorContains(t, err, "needs a build tag")
}

// A kernel gets the combinations of dtypes that it declared, not every mixture of them, and no type of another layout of
// arguments; absent operands are the validator's business.
func TestDomainCombinations(t *testing.T) {
	r, op := mm(t, Options{})
	register(t, r, kernel(t, "pairs", func(s *KernelSpec) {
		s.Signatures = []tensor.FormatSignature{sig(t, "a=f32, b=f32"), sig(t, "a=bf16, b=q4_0"), sig(t, "a=bf16, b=q8_0")}
	}))
	register(t, r, kernel(t, "product", func(s *KernelSpec) {
		s.Priority = BandPortable.Plus(0)
		s.Signatures = []tensor.FormatSignature{sig(t, "a=f16, b=f32"), sig(t, "a=f16, b=q4_0"), sig(t, "a=f32, b=f32"), sig(t, "a=f32, b=q4_0")}
	}))
	q := r.NewQueue(nil)
	for _, a := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		for _, b := range []tensor.DType{tensor.F32, tensor.Q4_0, tensor.Q8_0} {
			want := ""
			if pair := sig(t, fmt.Sprintf("a=%v, b=%v", a, b)); slices.Contains([]string{"f32 f32", "bf16 q4_0", "bf16 q8_0"}, fmt.Sprint(a, " ", b)) {
				want = "pairs"
			} else if a != tensor.BF16 && b != tensor.Q8_0 {
				want = "product"
			} else {
				_, err := r.Select(Request{Operator: "mm", Signature: pair, Traits: map[string]TraitValue{"m": IntTrait(1)}})
				require.ErrorIs(t, err, ErrNoKernel)
			}
			args := &mmArgs{A: tensor.Must(tensor.New(nil, a, 32)), B: tensor.Must(tensor.New(nil, b, 32))}
			err := q.Launch(op, unsafe.Pointer(args))
			require.Equal(t, want, args.Ran, "%v %v", a, b)
			require.Equal(t, want == "", errors.Is(err, ErrDeclined))
			require.Zero(t, testing.AllocsPerRun(10, func() { _ = r.state.regs[slotKey{op, tensor.CPU}][0].domain.covers(unsafe.Pointer(args)) }))
		}
	}
	args := &mmArgs{A: tensor.Must(tensor.New(nil, tensor.BF16, 32))}
	require.NoError(t, q.Launch(op, unsafe.Pointer(args)))
	require.Equal(t, "pairs", args.Ran)
}

// Every priority of the seam's scale has a band, and none above the plugins' passes for a lower one.
func TestPriorityOf(t *testing.T) {
	for n, want := range map[int32]Priority{math.MinInt32: ReferencePriority, -1000: ReferencePriority, -999: BandPortable.Plus(0), -40: BandPortable.Plus(0),
		-1: BandPortable.Plus(3), 0: BandPerformant.Plus(0), 25: BandPerformant.Plus(2), 79: BandSpecialized.Plus(3), 80: BandPlugin.Plus(0), math.MaxInt32: BandPlugin.Plus(3)} {
		require.Equal(t, want, PriorityOf(n), n)
	}
	r, op := mm(t, Options{})
	_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "p", Priority: math.MaxInt32, Fn: ranMM("p"), Spec: &Spec{}})
	require.ErrorContains(t, err, "belongs to plugins")
}

// A feature that is listed twice does not make a kernel more specific.
func TestRepeatedFeatures(t *testing.T) {
	r, _ := mm(t, Options{})
	register(t, r, kernel(t, "a", func(s *KernelSpec) { s.Features = []string{"f"} }))
	b := register(t, r, kernel(t, "b", func(s *KernelSpec) { s.Features, s.Tags = []string{"f", "f"}, []Tag{TagLatency, TagLatency} }))
	require.Equal(t, []string{"f"}, b.Spec().Features)
	require.Equal(t, []Tag{TagLatency}, b.Spec().Tags)
	require.Equal(t, "a", winner(t, r, Request{Operator: "mm", Traits: ints(1, 1)}))
}

// A request without a signature has no winner: which kernel runs is decided by each call's formats and traits, so the
// record lists what may serve with what it takes and wants. With a signature and traits the same kernels get verdicts.
func TestNothingIsSelectedWithoutASignature(t *testing.T) {
	r, _ := mm(t, Options{})
	register(t, r, kernel(t, "wide", func(s *KernelSpec) {
		s.Priority, s.Constraints = BandSpecialized.Plus(3), map[string]Constraint{"m": AtLeast(32)}
	}))
	register(t, r, kernel(t, "any", nil))
	open := r.Decide(Request{Operator: "mm"})
	require.Empty(t, open.Winner)
	require.Empty(t, open.Error)
	require.Equal(t, []string{"wide", "any"}, []string{open.Choices[0].Kernel, open.Choices[1].Kernel})
	for _, c := range open.Choices {
		require.Equal(t, "possible", c.Verdict, c.Kernel)
		require.NotEmpty(t, c.Signatures, c.Kernel)
	}
	require.Equal(t, []string{"m: at least 32"}, open.Choices[0].Restricts)
	require.Contains(t, open.String(), "may serve")
	require.Contains(t, open.String(), "wants m: at least 32")
	require.NotContains(t, open.String(), "selected")

	half := r.Decide(Request{Operator: "mm", Traits: ints(64, 1)}) // the formats are still open
	require.Empty(t, half.Winner)

	few := mmRequest(t, 1, 1)
	require.Equal(t, "any", r.Decide(few).Winner)
}
