package sample_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// TestW30EveryOpHasCases: every op of the catalogue has a corpus, every case of it makes a record that the op's
// validator admits, and every optional operand and every dtype that has a decoder occurs.
func TestW30EveryOpHasCases(t *testing.T) {
	require.NotEmpty(t, registry.Descriptors())
	for _, d := range registry.Descriptors() {
		for _, level := range []sample.Level{sample.Quick, sample.Full} {
			if level == sample.Full && testing.Short() {
				continue
			}
			names, dtypes, elements := map[string]bool{}, map[string]map[tensor.DType]bool{}, 0
			for _, o := range d.Operands {
				dtypes[o.Name] = map[tensor.DType]bool{}
			}
			for _, c := range sample.Corpus(d.Op, level) {
				a, err := sample.New(c)
				require.NoError(t, err, "%s %s", d.Name, c.Name)
				require.False(t, names[c.Name], "%s has two cases %s", d.Name, c.Name)
				names[c.Name] = true
				for _, o := range d.Operands {
					if x := a.Tensor(o.Name); x.Present() {
						dtypes[o.Name][x.DType] = true
						elements += int(x.Numel())
					}
				}
				require.NoError(t, a.CheckGuards())
				require.NoError(t, a.Untouched())
			}
			require.Greater(t, len(names), 8, d.Name)
			require.NotZero(t, elements, d.Name)
			for _, o := range d.Operands {
				require.NotEmpty(t, dtypes[o.Name], "%s: no case has %s", d.Name, o.Name)
				list, err := sample.DTypes(&o)
				require.NoError(t, err)
				for _, dt := range list {
					require.True(t, dtypes[o.Name][dt], "%s: no case has %s of %v", d.Name, o.Name, dt)
				}
			}
		}
	}
}

func values(t *testing.T, a *sample.Args, operand string) []float64 {
	t.Helper()
	v, err := sample.Values(a.Tensor(operand))
	require.NoError(t, err)
	return v
}

func make_(t *testing.T, c sample.Case) *sample.Args {
	t.Helper()
	a, err := sample.New(c)
	require.NoError(t, err)
	return a
}

// TestValuesArePure: an element depends on op, operand, index and seed, and on nothing else.
func TestValuesArePure(t *testing.T) {
	plain := sample.Case{Op: ops.OpMatmulBT, Shape: sample.Shape{"M": 7, "N": 21, "K": 33}}
	want := values(t, make_(t, plain), "a")
	for _, change := range []func(c *sample.Case){
		func(c *sample.Case) {}, func(c *sample.Case) { c.Strided = true }, func(c *sample.Case) { c.Offset = 3 },
		func(c *sample.Case) { c.Types = map[string]tensor.DType{"b": tensor.F16, "out": tensor.BF16} },
		func(c *sample.Case) { c.Layouts = map[string]tensor.Layout{"b": tensor.Lane16} },
	} {
		c := plain
		change(&c)
		require.Equal(t, want, values(t, make_(t, c), "a"))
	}
	require.Equal(t, want[:6*33], values(t, make_(t, sample.Case{Op: ops.OpMatmulBT, Shape: sample.Shape{"M": 6, "N": 21, "K": 33}}), "a"))
	require.NotEqual(t, want, values(t, make_(t, sample.Case{Op: ops.OpMatmulBT, Shape: plain.Shape, Seed: 1}), "a"))
	require.NotEqual(t, want[:33], values(t, make_(t, plain), "b")[:33])
	for _, dt := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		c := plain
		c.Types = map[string]tensor.DType{"b": dt}
		rows := values(t, make_(t, c), "b")
		c.Layouts = map[string]tensor.Layout{"b": tensor.Lane16}
		require.Equal(t, rows, values(t, make_(t, c), "b"), "the panels of %v hold other rows", dt)
	}

	v := values(t, make_(t, sample.Case{Op: ops.OpRelu, Shape: sample.Shape{"T": 1, "H": 100_000}}), "x")
	var sum, squares float64
	for _, x := range v {
		sum, squares = sum+x, squares+x*x
	}
	require.InDelta(t, 0, sum/float64(len(v)), 0.02)
	require.InDelta(t, 1, squares/float64(len(v)), 0.02)
}

// TestFills: adversarial values are what they are called.
func TestFills(t *testing.T) {
	all := func(f sample.Fill, dt tensor.DType) []float64 {
		return values(t, make_(t, sample.Case{Op: ops.OpRelu, Shape: sample.Shape{"T": 4, "H": 500}, Fill: f, Types: map[string]tensor.DType{"x": dt}}), "x")
	}
	count := func(v []float64, is func(x float64) bool) (n int) {
		for _, x := range v {
			if is(x) {
				n++
			}
		}
		return n
	}
	for dt, edge := range map[tensor.DType][2]float64{tensor.F32: {0x1p-126, math.MaxFloat32}, tensor.F16: {0x1p-14, 65504}, tensor.BF16: {0x1p-126, 0x1.fep127}} {
		require.Equal(t, 2000, count(all(sample.Zero, dt), func(x float64) bool { return x == 0 }))
		require.NotZero(t, count(all(sample.Zero, dt), math.Signbit))
		small := all(sample.Denormal, dt)
		require.Zero(t, count(small, func(x float64) bool { return math.Abs(x) > edge[0] }))
		require.Greater(t, count(small, func(x float64) bool { return x != 0 && math.Abs(x) < edge[0] }), 1000)
		require.Greater(t, count(all(sample.Huge, dt), func(x float64) bool { return math.Abs(x) == edge[1] }), 300)
		hidden := all(sample.NegInf, dt)
		require.Equal(t, 500, count(hidden[500:1000], func(x float64) bool { return math.IsInf(x, -1) }))
		require.InDelta(t, 375, count(hidden[:1500:1500], func(x float64) bool { return math.IsInf(x, -1) })-500+125, 150)
		require.NotZero(t, count(all(sample.NaN, dt), math.IsNaN))
		require.Equal(t, 4, len(slices.Compact(all(sample.Equal, dt))))
		ties := all(sample.Ties, dt)
		slices.Sort(ties)
		require.Equal(t, []float64{-1, -0.5, 0, 0.5, 1}, slices.Compact(ties))
	}
}

// TestGuards: every byte that belongs to no element is watched, before, behind and between rows; so are inputs.
func TestGuards(t *testing.T) {
	a := make_(t, sample.Case{Op: ops.OpMatmulBT, Shape: sample.Shape{"M": 3, "N": 4, "K": 5}, Strided: true, Offset: 1})
	x, out := a.Tensor("a"), a.Tensor("out")
	require.False(t, x.Contiguous())
	write := func(p unsafe.Pointer, off int) { *(*byte)(unsafe.Add(p, off)) = 7 }
	for name, off := range map[string]int{"before": -1, "behind": int(2*x.Stride[0]+5) * 4, "far behind": int(2*x.Stride[0]+5)*4 + 63, "between rows": 5 * 4} {
		a.Reset()
		require.NoError(t, a.CheckGuards())
		write(x.Host, off)
		require.ErrorContains(t, a.CheckGuards(), "operand a", name)
		require.ErrorContains(t, a.InputsUntouched(), "operand a", name)
	}
	a.Reset()
	write(x.Host, int(x.Stride[0])*4)
	require.NoError(t, a.CheckGuards(), "an element is no guard")
	require.ErrorContains(t, a.InputsUntouched(), "operand a: byte")
	a.Reset()
	write(out.Host, 0)
	require.NoError(t, a.CheckGuards())
	require.NoError(t, a.InputsUntouched())
	require.ErrorContains(t, a.Untouched(), "operand out")

	b := a.Clone()
	require.True(t, a.SameBits(b))
	b.Reset()
	require.False(t, a.SameBits(b), "the copy has memory of its own")
	require.NoError(t, b.Untouched())
	read, written := a.Bytes()
	require.Equal(t, []int64{(15 + 20) * 4, 12 * 4}, []int64{read, written}, "gaps do not count")
}

// TestInPlace: an output shares its input's memory, in copies too.
func TestInPlace(t *testing.T) {
	a := make_(t, sample.Case{Op: ops.OpAdd, InPlace: true})
	require.Equal(t, a.Tensor("a").Host, a.Tensor("out").Host)
	b := a.Clone()
	require.Equal(t, b.Tensor("a").Host, b.Tensor("out").Host)
	require.NotEqual(t, a.Tensor("a").Host, b.Tensor("a").Host)
	*(*float32)(a.Tensor("out").Host) = 9
	require.NoError(t, a.InputsUntouched(), "it is an output, too")
	_, err := sample.New(sample.Case{Op: ops.OpMatmul, InPlace: true})
	require.ErrorIs(t, err, sample.ErrCase)
}

// TestRows: a row of a batch is a call of its own.
func TestRows(t *testing.T) {
	a := make_(t, sample.Case{Op: ops.OpMatmulBT, Shape: sample.Shape{"M": 4, "N": 3, "K": 5}, Strided: true})
	require.EqualValues(t, 4, a.Rows())
	r, err := a.Row(2)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 5}, r.Tensor("a").Dims())
	require.Equal(t, []int64{1, 3}, r.Tensor("out").Dims())
	require.Equal(t, []int64{3, 5}, r.Tensor("b").Dims())
	require.Equal(t, values(t, a, "a")[10:15], values(t, r, "a"))

	p := make_(t, sample.Case{Op: ops.OpPagedAttention, Values: map[string][]float64{"query_start_loc": {0, 2, 5}, "seq_lens": {9, 17}}})
	require.EqualValues(t, 2, p.Rows())
	r, err = p.Row(1)
	require.NoError(t, err)
	require.Equal(t, []float64{0, 3}, values(t, r, "query_start_loc"))
	require.Equal(t, []float64{17}, values(t, r, "seq_lens"))
	require.Equal(t, values(t, p, "query")[2*6*32:], values(t, r, "query"))
	require.Zero(t, make_(t, sample.Case{Op: ops.OpAttention, Attrs: map[string]any{"causal": true}}).Rows(), "a row's position counts")
}

// TestThresholds: the neighbours of each value, whole blocks only, by symbol or trait.
func TestThresholds(t *testing.T) {
	extents := func(op registry.Op, symbol string, thresholds map[string][]int64) (list []int64) {
		d, ok := registry.New(registry.Options{}).Describe(op)
		require.True(t, ok)
		for _, c := range sample.CasesFor(d, thresholds) {
			_, err := sample.New(c)
			require.NoError(t, err)
			list = append(list, c.Shape[symbol])
		}
		return slices.Compact(list) // both layouts of a weight
	}
	require.Equal(t, []int64{7, 8, 9, 10}, extents(ops.OpMatmulBT, "M", map[string][]int64{"m": {8, 9}}))
	require.Equal(t, []int64{64}, extents(ops.OpMatmulBTQuant, "K", map[string][]int64{"k": {64}}))
	require.Equal(t, []int64{63, 64, 65}, extents(ops.OpAttention, "D", map[string][]int64{"head_dim": {64}, "no_extent": {3}}))
	require.Equal(t, []int64{1023, 1024, 1025}, extents(ops.OpRelu, "H", map[string][]int64{"elements": {1024}}))
}

// TestBadCases: what does not fit is an error that says so, and nothing is allocated for it.
func TestBadCases(t *testing.T) {
	for name, c := range map[string]sample.Case{
		"op 4000 is not in the catalogue":               {Op: 4000},
		`no symbol "Z", it has K M N`:                   {Op: ops.OpMatmul, Shape: sample.Shape{"Z": 1}},
		`no operand "c"`:                                {Op: ops.OpMatmul, Types: map[string]tensor.DType{"c": tensor.F32}},
		`no operand "d"`:                                {Op: ops.OpMatmul, With: []string{"d"}},
		`no attribute "scale"`:                          {Op: ops.OpMatmul, Attrs: map[string]any{"scale": 1}},
		"attribute eps":                                 {Op: ops.OpRMSNorm, Attrs: map[string]any{"eps": "small"}},
		"attribute gemma":                               {Op: ops.OpRMSNorm, Attrs: map[string]any{"gemma": 1}},
		"attribute window_left: 4294967296 is no int32": {Op: ops.OpAttention, Attrs: map[string]any{"windowed": true, "window_left": 1 << 32}},
		"extent -1":                                     {Op: ops.OpMatmul, Shape: sample.Shape{"M": -1}},
		"larger than":                                   {Op: ops.OpMatmul, Shape: sample.Shape{"M": 1 << 40, "K": 1}},
		"size overflows":                                {Op: ops.OpMatmul, Shape: sample.Shape{"M": 1 << 40, "N": 1 << 40}},
		"lane16":                                        {Op: ops.OpMatmulBTQuant, Types: map[string]tensor.DType{"b": tensor.Q6_K}, Layouts: map[string]tensor.Layout{"b": tensor.Lane16}},
		"3 values for":                                  {Op: ops.OpMatmul, Values: map[string][]float64{"a": {1, 2, 3}}},
		"form 2":                                        {Op: ops.OpAttention, With: []string{"mask"}, Forms: map[string]int{"mask": 2}},
	} {
		_, err := sample.New(c)
		require.ErrorIs(t, err, sample.ErrCase, name)
		require.ErrorContains(t, err, name)
	}
	for _, h := range [][2]int64{{33, 2}, {3, 2}, {1, 0}} { // query heads that are no multiple of the key heads
		_, err := sample.New(sample.Case{Op: ops.OpAttention, Shape: sample.Shape{"Hq": h[0], "Hk": h[1]}})
		require.ErrorIs(t, err, ops.ErrShape, "%v", h)
	}
	for _, r := range []int{0, 5, 42} { // rotary_dim: none, odd, above the head size
		_, err := sample.New(sample.Case{Op: ops.OpRopeNeox, Shape: sample.Shape{"P": 20}, Attrs: map[string]any{"rotary_dim": r}})
		require.ErrorIs(t, err, ops.ErrAttr, "%v", r)
	}
}

// TestW31Tolerances: bounds are those of the arithmetic. They grow with the square root of the sum's length, tied to the
// operands' norms, do not depend on how coarsely operands are stored, and what is exact is exact.
func TestW31Tolerances(t *testing.T) {
	allowed := func(c sample.Case, output string) float64 {
		a := make_(t, c)
		b := a.Clone()
		for _, x := range []*sample.Args{a, b} {
			out := x.Tensor(output)
			for i := range out.Numel() {
				*(*float32)(unsafe.Add(out.Host, 4*i)) = 0 // so that the rounding of the output allows nothing
			}
		}
		res := sample.Compare(b, a, sample.ToleranceFor(a))
		require.Len(t, res, 1)
		require.True(t, res[0].OK)
		return float64(res[0].Worst.Allowed)
	}
	product := func(k int64, dt tensor.DType) float64 {
		return allowed(sample.Case{Op: ops.OpMatmulBT, Shape: sample.Shape{"M": 1, "N": 1, "K": k}, Types: map[string]tensor.DType{"a": dt, "b": dt}}, "out")
	}
	long := product(7168, tensor.F32)
	require.Less(t, long, 0.2, "sums of 7168 terms are about 85 across")
	require.InDelta(t, 1, product(7168, tensor.BF16)/long, 0.01, "a coarser dtype of the operands loosens nothing")
	require.InDelta(t, 8, long/product(1792, tensor.F32), 1, "norms of both operands and the root of K grow by two")

	for _, op := range []registry.Op{ops.OpGreedyArgmax, ops.OpRandomSample, ops.OpReshapeAndCache, ops.OpRelu, ops.OpEmbedding, ops.OpApplyTokenMask} {
		require.True(t, sample.ToleranceFor(make_(t, sample.Case{Op: op})).Exact, op)
	}
	quant := make_(t, sample.Case{Op: ops.OpMatmulBTQuant})
	require.True(t, sample.ToleranceFor(quant).Quantized)
	require.Equal(t, 5e-4, sample.ToleranceFor(quant).NMSE)
	for _, d := range registry.Descriptors() { // one op alone is widened
		if d.Op != ops.OpMatmulBTQuant {
			a := make_(t, sample.Case{Op: d.Op})
			require.False(t, sample.ToleranceFor(a).Quantized, d.Name)
		}
	}
}

// TestCompare: every output is compared, the worst element is named with its index, and numbers that are none match only
// their like.
func TestCompare(t *testing.T) {
	want := make_(t, sample.Case{Op: ops.OpRMSNorm, Shape: sample.Shape{"T": 2, "H": 3}, Types: map[string]tensor.DType{"residual": tensor.F32}})
	set := func(a *sample.Args, operand string, v ...float32) {
		copy(unsafe.Slice((*float32)(a.Tensor(operand).Host), len(v)), v)
	}
	set(want, "out", 1, 2, 3, 4, 5, 6)
	tol := sample.Tolerance{Ulps: 2}
	compare := func(v ...float32) sample.Result {
		got := want.Clone()
		set(got, "out", v...)
		res := sample.Compare(got, want, tol)
		require.Len(t, res, 2)
		require.Equal(t, "out", res[0].Output)
		require.True(t, res[1].OK, "the residual is the same")
		return res[0]
	}
	require.True(t, compare(1, 2, 3, 4, 5, math.Nextafter32(6, 9)).OK)
	r := compare(1, 2, 3, 4.5, 5, 6.1)
	require.False(t, r.OK)
	require.Equal(t, 2, r.Mismatches)
	require.Equal(t, []int64{1, 0}, r.Worst.Index)
	require.EqualValues(t, 4.5, r.Worst.Got)
	require.EqualValues(t, 4, r.Worst.Want)
	require.EqualValues(t, 0.5, r.MaxAbs)
	require.InDelta(t, 0.125, float64(r.MaxRel), 1e-9)
	require.EqualValues(t, 0.5/0x1p-21, r.MaxULP)
	require.InDelta(t, (0.25+0.01)/91, float64(r.NMSE), 1e-6)
	require.Contains(t, r.String(), "out[1,0] is 4.5, want 4, difference 0.5 of ")

	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, bad := range [][]float32{{nan}, {inf}, {-inf}} {
		require.False(t, compare(bad...).OK, "%v", bad)
	}
	set(want, "out", nan, inf, -inf)
	require.True(t, compare(nan, inf, -inf).OK)
	require.False(t, compare(nan, -inf, -inf).OK)
	require.False(t, compare(nan, math.MaxFloat32, -inf).OK)
	r = compare(math.Float32frombits(0xffffffff)) // poison is a NaN, too
	require.False(t, r.OK)
	require.True(t, r.Worst.Poison)
	_, err := json.Marshal(r)
	require.NoError(t, err)

	set(want, "out", 0, 1, 2)
	negative := float32(math.Copysign(0, -1))
	require.True(t, compare(negative, 1, 2).OK)
	got := want.Clone()
	set(got, "out", negative)
	require.False(t, sample.Compare(got, want, sample.Bits)[0].OK)

	other := make_(t, sample.Case{Op: ops.OpRMSNorm, Shape: sample.Shape{"T": 3, "H": 2}, Types: map[string]tensor.DType{"residual": tensor.F32}})
	r = sample.Compare(other, want, tol)[0]
	require.False(t, r.OK)
	require.Contains(t, r.String(), "f32[3,2], want f32[2,3]")

	c := sample.Case{Op: ops.OpRelu, Shape: sample.Shape{"T": 1, "H": 2}, Want: map[string][]float64{"out": {0.1, math.NaN()}}}
	relu := make_(t, c)
	set(relu, "out", 0.1, 77)
	require.True(t, sample.CheckWant(relu, sample.Bits)[0].OK)
	set(relu, "out", 0.2)
	require.False(t, sample.CheckWant(relu, sample.Bits)[0].OK)
}

// TestCaseJSON: a case survives its text.
func TestCaseJSON(t *testing.T) {
	for _, c := range sample.Corpus(ops.OpAttention, sample.Quick) {
		b, err := json.Marshal(c)
		require.NoError(t, err)
		var back sample.Case
		require.NoError(t, json.Unmarshal(b, &back))
		if c.Values != nil {
			continue // they are not written
		}
		want, got := make_(t, c), make_(t, back)
		require.True(t, want.SameBits(got), c.Name)
	}
}
