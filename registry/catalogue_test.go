package registry

import (
	"testing"
	"unsafe"

	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// Ops given to Describe are known to every registry, also to one that has compiled before.
func TestDescribe(t *testing.T) {
	ops, count := catalogue.clone(), catalogue.count
	t.Cleanup(func() { catalogue.opSet, catalogue.count = *ops, count })
	r, asked, listed := New(Options{}), New(Options{}), New(Options{})
	for _, r := range []*Registry{r, asked, listed} {
		require.NoError(t, r.Seal())
	}
	const id Op = 1001
	_, err := r.GetOp(id, cpu0)
	require.ErrorIs(t, err, ErrUnknownOp)
	Describe(Descriptor{Op: id, Name: "catalogue_probe", Aliases: []string{"probe.described"}, Record: typeOf[probeArgs]()})
	require.Equal(t, "catalogue_probe", id.String())
	require.Equal(t, "op(1002)", Op(1002).String())
	op, ok := Lookup("probe.described")
	require.True(t, ok)
	require.Equal(t, id, op)
	_, err = r.GetOp(id, cpu0)
	require.ErrorIs(t, err, ErrNoKernel)
	covered, err := asked.Covered("probe.described")
	require.NoError(t, err)
	require.Equal(t, []Op{id}, covered)
	_, err = listed.GetForOperator("catalogue_probe", KernelFilter{})
	require.NoError(t, err)
	native(t, r, id, tensor.CPU)
	require.Equal(t, NativeProviderName, launched(t, r.NewQueue(nil), id))
	require.Equal(t, "catalogue_probe", r.OpName(id))

	found := false
	for _, d := range Descriptors() {
		found = found || d.Op == id
	}
	require.True(t, found)
	for name, d := range map[string]Descriptor{
		"id": {Op: id, Name: "x"}, "name": {Op: 1003, Name: "catalogue_probe"}, "alias": {Op: 1003, Name: "y", Aliases: []string{"probe.described"}},
		"range": {Op: FirstDefined, Name: "z"}, "record": {Op: 1003, Name: "w", Record: typeOf[int]()}, "empty": {Op: 1003},
	} {
		require.Panics(t, func() { Describe(d) }, name)
	}
	_, err = r.Define(Descriptor{Name: "mine", Aliases: []string{"catalogue_probe"}})
	require.ErrorIs(t, err, ErrDuplicate)
	mine, err := r.Define(Descriptor{Name: "mine"})
	require.NoError(t, err)
	require.Equal(t, FirstDefined, mine)
	got, ok := r.Lookup("mine")
	require.True(t, ok)
	require.Equal(t, mine, got)
	_, ok = New(Options{}).Lookup("mine")
	require.False(t, ok)
	_, ok = New(Options{}).Lookup("catalogue_probe")
	require.True(t, ok)
	_, ok = r.Describe(mine + 1)
	require.False(t, ok)
}

// The accept table never reads outside the record and agrees with a plain restatement of its rules.
func FuzzAccept(f *testing.F) {
	f.Add(uint8(1), uint8(0), int64(3), int64(8), int64(1), uint8(6), int64(2), int64(9))
	f.Add(uint8(34), uint8(1), int64(32), int64(1), int64(0), uint8(3), int64(0), int64(0))
	f.Fuzz(func(t *testing.T, dtype, layout uint8, rows, cols, offset int64, align uint8, mod, most int64) {
		x := tensor.Tensor{DType: tensor.DType(dtype), Layout: tensor.Layout(layout & 3), Offset: offset, Buffer: 1, Rank: 2}
		x.Shape[0], x.Shape[1], x.Stride[0], x.Stride[1] = rows, cols, cols, 1
		o := AcceptOperand{DTypes: []tensor.DType{tensor.F32, tensor.Q4_0}, Layouts: []tensor.Layout{tensor.Strided}, Contiguous: true,
			Align: 1 << (align & 15), LastMod: mod, MaxElements: most}
		d := &Descriptor{Name: "d", Operands: []Operand{{Name: "x", Offset: unsafe.Offsetof(probeArgs{}.X)}}}
		p, err := (&Accept{Operands: map[string]AcceptOperand{"x": o}}).compile(d)
		if mod < 0 || most < 0 {
			require.ErrorIs(t, err, ErrArgument)
			return
		}
		require.NoError(t, err)
		a := probeArgs{X: x}
		got := p.check(unsafe.Pointer(&a)) == ReasonNone
		want := !x.Present() || (x.DType == tensor.F32 || x.DType == tensor.Q4_0) && x.Layout == tensor.Strided && x.Contiguous() &&
			uint64(offset)%uint64(o.Align) == 0 && (mod < 2 || cols%mod == 0) && (most == 0 || x.Numel() >= 0 && x.Numel() <= most)
		require.Equal(t, want, got)
	})
}
