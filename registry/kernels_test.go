package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

func kernelNames(list []KernelSpec) (out []string) {
	for _, k := range list {
		out = append(out, k.Name)
	}
	return out
}

func TestGetForOperator(t *testing.T) {
	r, _ := mm(t, Options{})
	describe(t, r, planned(t, "hopper", func(s *KernelSpec) {
		s.Solution = "lib"
		s.Requires = device.Requirement{Vendors: []string{device.NVIDIA}, MinArch: "9.0"}
		s.Priority = BandSpecialized.Plus(0)
		s.Features = []string{"paged", "fused"}
	}))
	describe(t, r, planned(t, "everywhere", func(s *KernelSpec) {
		s.Tags = []Tag{TagPortability}
		s.Signatures = append(s.Signatures, sig(t, "a=f16, b=f16"))
	}))
	register(t, r, kernel(t, "cpu_b", nil))
	register(t, r, kernel(t, "cpu_a", nil))
	for _, c := range []struct {
		filter KernelFilter
		want   []string
	}{
		{KernelFilter{}, []string{"hopper", "cpu_a", "cpu_b", "everywhere"}},
		{KernelFilter{Features: []string{"paged"}}, []string{"hopper"}},
		{KernelFilter{Features: []string{"paged", "other"}}, nil},
		{KernelFilter{Platform: gpu(device.NVIDIA, 9, 0)}, []string{"hopper", "everywhere"}},
		{KernelFilter{Platform: gpu(device.NVIDIA, 8, 0)}, []string{"everywhere"}},
		{KernelFilter{Signature: sig(t, "a=f16, b=f16")}, []string{"everywhere"}},
		{KernelFilter{Signature: sig(t, "a=f16")}, nil},
		{KernelFilter{Tags: []Tag{TagPortability}}, []string{"everywhere"}},
		{KernelFilter{Solution: "lib"}, []string{"hopper"}},
	} {
		for _, operator := range []string{"mm", "gemm.mm"} {
			list, err := r.GetForOperator(operator, c.filter)
			require.NoError(t, err)
			require.Equal(t, c.want, kernelNames(list))
		}
	}
	list, err := r.GetForOperator("mm", KernelFilter{Solution: "lib"})
	require.NoError(t, err)
	require.Equal(t, []tensor.Kind{tensor.CUDA, tensor.ROCm}, list[0].Kinds, "one kernel, both kinds")
	_, err = r.GetForOperator("gemm.mn", KernelFilter{})
	require.ErrorIs(t, err, ErrUnknownOp)
	_, err = r.ListSolutions("nothing")
	require.ErrorIs(t, err, ErrUnknownOp)
	_, ok := r.GetByName("cpu_c")
	require.False(t, ok)
	_, err = r.DescribeKernel("cpu_c")
	require.ErrorIs(t, err, ErrUnknownName)
	require.ErrorContains(t, err, "cpu_a")
	k, ok := r.GetByName("hopper")
	require.True(t, ok)
	require.Equal(t, "lib", k.Solution)
	require.ErrorIs(t, r.Unregister("cpu_c"), ErrUnknownName)
}

// What DescribeKernel gives as JSON registers the same kernel elsewhere.
func TestDescriptionRoundTrip(t *testing.T) {
	r, _ := mm(t, Options{})
	describe(t, r, planned(t, "k", func(s *KernelSpec) {
		s.Priority, s.Tier, s.Promises = BandSpecialized.Plus(2), Vendor, Traits{CaptureSafe: true}
		s.Requires = device.Requirement{AnyOf: []device.Requirement{{Vendors: []string{device.NVIDIA}, MinArch: "9.0"}, {Vendors: []string{device.AMD}}}}
		s.Constraints = map[string]Constraint{"m": {AnyOf: []Constraint{Range(1, 4), {Not: &Constraint{MultipleOf: 3}}}}, "layout": OneOf(StringTrait("nk"))}
		s.Thresholds, s.Props, s.Tags = map[string][]int64{"m": {4, 8}}, map[string]string{"p": "q"}, []Tag{TagThroughput, TagLatency}
	}))
	k, err := r.DescribeKernel("k")
	require.NoError(t, err)
	j, err := json.Marshal(k)
	require.NoError(t, err)
	var back KernelSpec
	require.NoError(t, json.Unmarshal(j, &back))
	other, _ := mm(t, Options{})
	describe(t, other, back)
	again, err := other.DescribeKernel("k")
	require.NoError(t, err)
	require.Equal(t, k, again)
	require.Equal(t, r.Digest(), other.Digest())
	require.Equal(t, k.String(), again.String())
}

func TestStorageDTypes(t *testing.T) {
	k := KernelSpec{Name: "k", Spec: Spec{Signatures: []tensor.FormatSignature{sig(t, "a=f32, b=q4_0"), sig(t, "a=bf16, b=q4_0"), sig(t, "a=bf16, b=f32")}}}
	list, err := k.FormatSignaturesForStorageDType(tensor.F32, "a", "b")
	require.NoError(t, err)
	require.Equal(t, []tensor.FormatSignature{sig(t, "a=bf16, b=f32"), sig(t, "a=f32, b=q4_0")}, list)
	one, err := k.FormatSignatureForStorageDType(tensor.F32, "a")
	require.NoError(t, err)
	require.Equal(t, sig(t, "a=f32, b=q4_0"), one)
	one, err = k.FormatSignatureForStorageDType(tensor.Q8_0, "a", "b")
	require.NoError(t, err)
	require.True(t, one.IsZero())
	_, err = k.FormatSignatureForStorageDType(tensor.Q4_0, "b")
	require.ErrorIs(t, err, ErrAmbiguous)
	require.ErrorContains(t, err, "k: 2 signatures have q4_0 in b")
	for _, f := range []func() error{
		func() error { _, err := k.FormatSignaturesForStorageDType(tensor.F32); return err },
		func() error { _, err := k.FormatSignatureForStorageDType(tensor.F32); return err },
		func() error { _, err := k.StorageDTypesForRole(); return err },
	} {
		require.ErrorIs(t, f(), ErrArgument)
	}
	types, err := k.StorageDTypesForRole("b")
	require.NoError(t, err)
	require.Equal(t, []tensor.DType{tensor.F32, tensor.Q4_0}, types)
	types, err = k.StorageDTypesForRole("c")
	require.NoError(t, err)
	require.Empty(t, types)
}

func TestBoundaries(t *testing.T) {
	k := KernelSpec{Spec: Spec{Thresholds: map[string][]int64{"m": {64, 32}}, Constraints: map[string]Constraint{
		"m": {AllOf: []Constraint{AtLeast(32), {Not: &Constraint{Range: &Interval{100, 200}}}}}, "k": MultipleOf(64), "layout": OneOf(StringTrait("nk"))}}}
	require.Equal(t, map[string][]int64{"m": {32, 64, 100, 201}, "k": {64}}, k.Boundaries())
	require.Equal(t, []int64{64, 32}, k.Thresholds["m"])
}

// An op may serve an operator beside others only for formats or roles that they do not serve.
func TestOperatorsAreUnambiguous(t *testing.T) {
	r, _ := mm(t, Options{})
	alias := func(name string, formats ...string) Descriptor {
		d := Descriptor{Name: name, Roles: []string{"a", "b"}, Operators: []OperatorAlias{{Name: "gemm.any", Roles: map[string]string{"x": "a", "y": "b"}}}}
		if formats != nil {
			d.Operators[0].Formats = map[string][]string{"y": formats}
		}
		return d
	}
	dense, err := r.Define(alias("dense_any", "dense"))
	require.NoError(t, err)
	blocks, err := r.Define(alias("block_any", "ggml", "mxfp8"))
	require.NoError(t, err)
	for _, bad := range []Descriptor{alias("other", "mxfp4", "mxfp8"), alias("other"), {Name: "other", Family: "gemm", Mode: "mm", Roles: []string{"a", "b"}}, {Name: "other", Family: "gemm", Mode: "mm"}} {
		_, err := r.Define(bad)
		require.ErrorIs(t, err, ErrAmbiguous)
		_, known := r.Lookup("other")
		require.False(t, known)
	}
	_, err = r.Define(Descriptor{Name: "three", Family: "gemm", Mode: "mm", Roles: []string{"a", "b", "c"}})
	require.NoError(t, err)
	covered, err := r.Covered("gemm.any")
	require.NoError(t, err)
	require.Equal(t, []Op{dense, blocks}, covered)
	for text, want := range map[string]string{"x=f32, y=f32": "dense_any", "x=f32, y=q4_0": "block_any", "x=f32, y=f8_e8m0": "dense_any"} {
		require.Equal(t, want, r.Decide(Request{Operator: "gemm.any", Signature: sig(t, text)}).Op)
	}
	for text, want := range map[string]error{"x=f32": ErrNoKernel, "a=f32, b=f32": ErrNoKernel} {
		_, err := r.Select(Request{Operator: "gemm.any", Signature: sig(t, text)})
		require.ErrorIs(t, err, want, text)
	}
	_, err = r.RegisterKernel(kernel(t, "k", func(s *KernelSpec) {
		s.Mode = "any"
		s.Signatures = []tensor.FormatSignature{sig(t, "x=f32, y=f32"), sig(t, "x=f32, y=q4_0")}
	}), ranMM("k"))
	require.ErrorContains(t, err, "signatures[1]: is block_any, the first one dense_any")
	k := register(t, r, kernel(t, "k", func(s *KernelSpec) {
		s.Mode = "any"
		s.Signatures = []tensor.FormatSignature{sig(t, "x=f32, y=q4_0")}
	}))
	require.Equal(t, sig(t, "a=f32, b=q4_0"), k.Spec().Signatures[0], "in the roles of the op")
	require.Equal(t, "k", winner(t, r, Request{Operator: "gemm.any", Signature: sig(t, "x=f32, y=q4_0")}))
	require.Equal(t, "k", winner(t, r, Request{Operator: "block_any", Signature: sig(t, "a=f32, b=q4_0")}))
	require.Equal(t, []string{"gemm.any"}, r.ListOperators())
}

// What a request brings along is bounded before it is kept.
func TestRequestLimits(t *testing.T) {
	r, _ := mm(t, Options{})
	long := strings.Repeat("x", 1<<20)
	for field, change := range map[string]func(*Request){
		"traits.layout": func(q *Request) { q.Traits["layout"] = StringTrait(long) },
		"traits.xx":     func(q *Request) { q.Traits[long] = IntTrait(1) },
		"each.layout":   func(q *Request) { q.Each = map[string][]TraitValue{"layout": make([]TraitValue, 100)} },
		"features":      func(q *Request) { q.Features = make([]string, 100) },
		"features:":     func(q *Request) { q.Features = []string{"A"} },
		"solution":      func(q *Request) { q.Solution = long },
		"override":      func(q *Request) { q.Override = long },
		"objective":     func(q *Request) { q.Objective = 99 },
		"platform":      func(q *Request) { q.Platform = &device.Platform{} },
		"signature":     func(q *Request) { q.Signature = tensor.Sig(map[string]tensor.Format{"a": {}, "b": {}}) },
	} {
		req := Request{Operator: "mm", Traits: ints(1, 1)}
		change(&req)
		_, err := r.Select(req)
		require.ErrorIs(t, err, ErrRequest, field)
		var e *RequestError
		require.ErrorAs(t, err, &e)
		require.True(t, strings.HasPrefix(e.Field, strings.TrimSuffix(field, ":")), "%s: %s", field, e.Field)
		require.Less(t, len(err.Error()), 500)
		require.False(t, r.Decide(req).Error == "")
	}
	_, err := r.Select(Request{Operator: long})
	require.ErrorIs(t, err, ErrUnknownOp)
	require.Less(t, len(err.Error()), 500)
	_, err = r.Select(Request{Operator: "mm", Device: tensor.Device{Kind: tensor.CUDA, Index: 7}})
	require.ErrorIs(t, err, ErrUnknownDevice)
	require.Zero(t, r.CacheStats().Size)
}

func TestGetImpl(t *testing.T) {
	r, op := mm(t, Options{Override: map[string]string{"mm": "best"}})
	register(t, r, kernel(t, "best", func(s *KernelSpec) { s.Priority = BandSpecialized.Plus(0) }))
	register(t, r, kernel(t, "second", func(s *KernelSpec) { s.NotAuto = true }))
	describe(t, r, kernel(t, "absent", func(s *KernelSpec) { s.Unavailable = "needs a part" }))
	_, err := r.GetImpl("absent")
	require.ErrorIs(t, err, ErrNoKernel)
	require.ErrorContains(t, err, "needs a part")
	_, err = r.GetImpl("third")
	require.ErrorIs(t, err, ErrUnknownName)
	fn, err := r.GetImpl("second")
	require.NoError(t, err)
	q := r.NewQueue(nil)
	f32 := tensor.Must(tensor.New(nil, tensor.F32, 32))
	a := &mmArgs{A: f32, B: f32}
	require.Equal(t, OK, fn(q, unsafe.Pointer(a)).Code())
	require.Equal(t, "second", a.Ran)
	require.EqualValues(t, 1, counts(t, r, op, cpu0, "second").Executed)
	a.A = tensor.Must(tensor.New(nil, tensor.F16, 32))
	st := fn(q, unsafe.Pointer(a))
	require.Equal(t, [2]any{Declined, ReasonDomain}, [2]any{st.Code(), st.Reason()}, "nobody else gets the call")
	a.A = f32
	require.NoError(t, r.Unregister("second"))
	require.Equal(t, Failed, fn(q, unsafe.Pointer(a)).Code())
	require.ErrorIs(t, a.Err, ErrNoKernel)
	require.EqualValues(t, 1, r.GetOpProviderStats(op, cpu0).Fallbacks)
	require.Equal(t, Failed, fn(nil, unsafe.Pointer(a)).Code())
	require.Equal(t, Failed, fn(q, nil).Code())
	other := New(Options{}).NewQueue(nil)
	require.Equal(t, Failed, fn(other, unsafe.Pointer(a)).Code())
	require.ErrorIs(t, a.Err, ErrArgument)
}

// Replacing is one change: nobody sees neither or both. Undo is one, too, and a library that was replaced is held until
// nobody can bring its kernel back.
func TestReplaceAndUndo(t *testing.T) {
	r, op := mm(t, Options{})
	lib := &library{released: make(chan struct{})}
	_, err := r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: "old", Kernel: "k", Priority: 5, Fn: ranMM("old"), Library: lib, Spec: &Spec{Origin: "test"}})
	require.NoError(t, err)
	before := r.Snapshot()
	_, err = r.RegisterKernel(kernel(t, "k", nil), ranMM("new"))
	require.ErrorIs(t, err, ErrDuplicate)
	_, err = r.RegisterKernel(kernel(t, "new", nil), ranMM("new"), Replace("kk"))
	require.ErrorIs(t, err, ErrUnknownName)
	req := Request{Operator: "mm", Signature: sig(t, "a=f32, b=f32"), Traits: ints(1, 1)}
	k, err := r.RegisterKernel(kernel(t, "k", func(s *KernelSpec) { s.Solution = "new" }), ranMM("new"), Replace("k"))
	require.NoError(t, err)
	require.Equal(t, "old", k.Replaced()[0].Solution)
	s, err := r.Select(req)
	require.NoError(t, err)
	require.Equal(t, "new", s.Provider())
	changes := Diff(before, r.Snapshot())
	require.Len(t, changes, 1)
	require.Equal(t, [2]string{"k", "changed"}, [2]string{changes[0].Kernel, changes[0].What})
	require.Contains(t, changes[0].String(), "mm on cpu:0: k changed (provider: new, was old; priority: 20, was 5")
	require.EqualValues(t, 1, lib.refs.Load())

	k2, err := r.RegisterKernel(kernel(t, "other", nil), ranMM("other"), Replace("k"))
	require.NoError(t, err)
	require.Equal(t, []string{"other"}, r.ListKernels("", ""))
	require.ErrorIs(t, k.Undo(), ErrArgument, "it is not there itself")
	third := register(t, r, kernel(t, "k", nil))
	require.ErrorIs(t, k2.Undo(), ErrDuplicate, "the name was taken")
	require.NoError(t, third.Close())
	require.NoError(t, k2.Undo())
	require.Equal(t, []string{"k"}, r.ListKernels("", ""))
	require.NoError(t, k.Undo())
	s, err = r.Select(req)
	require.NoError(t, err)
	require.Equal(t, "old", s.Provider())
	require.Empty(t, Diff(before, r.Snapshot()))
	require.ErrorIs(t, k.Undo(), ErrArgument)
	require.EqualValues(t, 1, lib.refs.Load(), "still in use")

	k, err = r.RegisterKernel(kernel(t, "last", nil), ranMM("last"), Replace("k"))
	require.NoError(t, err)
	require.EqualValues(t, 1, lib.refs.Load(), "it could come back")
	require.NoError(t, k.Close())
	require.Zero(t, lib.refs.Load())
	removed := Diff(before, r.Snapshot())
	require.Equal(t, []Change{{Op: "mm", Device: "cpu:0", Kernel: "k", What: "removed"}}, removed)
	require.Equal(t, []Change{{Op: "mm", Device: "cpu:0", Kernel: "k", What: "added"}}, Diff(r.Snapshot(), before))
}

// LoadBuiltinKernels gives a registry of one's own what the program is linked with, once.
func TestBuiltins(t *testing.T) {
	var loads int
	name := fmt.Sprint("test", t.Name())
	op := Op(0)
	Builtin(name, func(r *Registry) error {
		loads++
		o, err := r.Define(Descriptor{Name: "builtin_probe", Record: typeOf[probeArgs]()})
		if err == nil {
			op = o
			_, err = r.RegisterOp(o, tensor.CPU, ran("builtin"))
		}
		return err
	})
	defer func() {
		builtins.Lock()
		delete(builtins.load, name)
		builtins.Unlock()
	}()
	require.Equal(t, 1, loads, "Default has it")
	require.Panics(t, func() { Builtin(name, nil) })
	r := New(Options{})
	for range 2 {
		names, err := r.LoadBuiltinKernels()
		require.NoError(t, err)
		require.Contains(t, names, name)
		require.Equal(t, 2, loads)
	}
	require.Equal(t, "builtin", launched(t, r.NewQueue(nil), op))
	builtins.Lock()
	broken := errors.New("broken")
	builtins.load[name] = func(*Registry) error { return broken }
	builtins.Unlock()
	_, err := New(Options{}).LoadBuiltinKernels()
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, name)
}

// An operator that covers an op twice, by family.mode and by an alias, lists its kernels once, and those of several ops
// in one order.
func TestGetForOperatorOfSeveralOps(t *testing.T) {
	r := New(Options{})
	for i, name := range []string{"one", "two"} {
		op, err := r.Define(Descriptor{Name: name, Family: []string{"gemm", ""}[i], Mode: []string{"any", ""}[i], Record: typeOf[mmArgs](), Roles: []string{"a", "b"},
			Operators: []OperatorAlias{{Name: "gemm.any", Roles: map[string]string{"x": "a", "y": "b"}, Formats: map[string][]string{"y": {[]string{"dense", "ggml"}[i]}}}}})
		require.NoError(t, err)
		for j, p := range []int32{0, 20} {
			_, err = r.RegisterOpProvider(op, tensor.CPU, OpProvider{Name: fmt.Sprint("p", p), Kernel: fmt.Sprint(name, j), Priority: p + int32(i), Fn: ranMM("k"), Spec: &Spec{}})
			require.NoError(t, err)
		}
	}
	list := func(f KernelFilter) (names []string) {
		kernels, err := r.GetForOperator("gemm.any", f)
		require.NoError(t, err)
		for _, k := range kernels {
			names = append(names, k.Name)
		}
		return names
	}
	require.Equal(t, []string{"one1", "two1", "one0", "two0"}, list(KernelFilter{}))
	require.Equal(t, []string{"one1", "one0"}, list(KernelFilter{Signature: sig(t, "x=f32, y=f32")}))
	require.Equal(t, []string{"two1", "two0"}, list(KernelFilter{Signature: sig(t, "x=f32, y=q4_0")}))
}
