package tensor_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

var (
	block32   = tensor.NewBlockShape(1, 32)
	block128  = tensor.NewBlockShape(128, 128)
	mx        = tensor.ScaleFormat{DType: tensor.F8E8M0, Granularity: tensor.PerBlock, Block: block32}
	f32Tensor = tensor.ScaleFormat{DType: tensor.F32, Granularity: tensor.PerTensor}
)

// goodFormats are legal and all different.
func goodFormats() []tensor.Format {
	fp8 := func(name tensor.FormatName, s tensor.ScaleFormat) tensor.Format {
		return tensor.Format{DType: tensor.F8E4M3FN, Name: name, Scale: s}
	}
	bytes := mx
	bytes.DType = tensor.U8
	block := func(t tensor.DType, dims ...int) tensor.ScaleFormat {
		return tensor.ScaleFormat{DType: t, Granularity: tensor.PerBlock, Block: tensor.NewBlockShape(dims...)}
	}
	swizzled := block(tensor.F8E4M3FN, 16)
	swizzled.Layout = tensor.ScaleSwizzled128x4
	packed := block(tensor.I32, 1, 128)
	packed.Layout = tensor.ScalePackedUE8M0
	return []tensor.Format{
		tensor.Dense(tensor.BF16), tensor.Dense(tensor.F8E4M3FN), tensor.Dense(tensor.Q4_0), tensor.Dense(tensor.Q6_K),
		{DType: tensor.Q4_0, Name: tensor.FormatGGML, Layout: tensor.Lane16},
		fp8(tensor.FormatScaledFP8, f32Tensor),
		fp8(tensor.FormatScaledFP8, tensor.ScaleFormat{DType: tensor.F32, Granularity: tensor.PerChannel}),
		fp8(tensor.FormatScaledFP8, tensor.ScaleFormat{DType: tensor.F32, Granularity: tensor.UnknownGranularity}),
		fp8(tensor.FormatMXFP8, mx), fp8(tensor.FormatMXFP8, bytes),
		fp8(tensor.FormatBlockFP8, block(tensor.F32, 128, 128)), fp8(tensor.FormatBlockFP8, block(tensor.F32, 1, 32)), fp8(tensor.FormatBlockFP8, packed),
		fp8(tensor.FormatBlockFP8, tensor.ScaleFormat{DType: tensor.F32, Granularity: tensor.PerBlock, DynamicBlock: true}),
		{DType: tensor.U8, Name: tensor.FormatNVFP4, Scale: swizzled, Global: f32Tensor},
		{DType: tensor.F4E2M1x2, Name: tensor.FormatNVFP4, Scale: block(tensor.F32, 16)},
		{DType: tensor.U8, Name: tensor.FormatMXFP4, Scale: block(tensor.U8, 32)},
		{DType: tensor.I8, Name: tensor.FormatInt8, Scale: tensor.ScaleFormat{DType: tensor.F32, Granularity: tensor.PerToken}},
		{DType: tensor.U8, Name: tensor.FormatMXInt4, Scale: block(tensor.BF16, 1, 32)},
	}
}

func TestFormatTexts(t *testing.T) {
	require.Equal(t, "dense[storage=bf16]", tensor.Dense(tensor.BF16).String())
	require.Equal(t, "ggml[storage=q4_0]", tensor.Dense(tensor.Q4_0).String())
	require.Equal(t, "scale(block, storage=f8_e8m0, block=1x32)", mx.String())
	require.Equal(t, "none", tensor.ScaleFormat{}.String())
	seen := map[string]tensor.Format{}
	for _, f := range goodFormats() {
		text := f.String()
		require.NoError(t, f.Validate(), text)
		require.NotContains(t, seen, text)
		seen[text] = f
		back, err := tensor.ParseFormat(text)
		require.NoError(t, err, text)
		require.Equal(t, f, back)
		data, err := json.Marshal(f)
		require.NoError(t, err)
		var again tensor.Format
		require.NoError(t, json.Unmarshal(data, &again), "%s", data)
		require.Equal(t, f, again, "%s", data)
		data, _ = json.Marshal(text)
		require.NoError(t, json.Unmarshal(data, &again))
		require.Equal(t, f, again, "the text form is read from JSON too")
	}
	require.Equal(t, "nvfp4[storage=u8, scale(block, storage=f8_e4m3fn, block=16, layout=swizzled-128x4), global(tensor, storage=f32)]", goodFormats()[14].String())
	data, err := json.Marshal(tensor.Dense(tensor.BF16))
	require.NoError(t, err)
	require.JSONEq(t, `"bf16"`, string(data))
	var f tensor.Format
	require.NoError(t, json.Unmarshal([]byte(`{"dtype":"q4_0","layout":"lane16"}`), &f))
	require.Equal(t, goodFormats()[4], f)
	require.NoError(t, json.Unmarshal([]byte(`{"name":"mxfp8","dtype":"f8_e4m3fn","scale":{"dtype":"f8_e8m0","granularity":"block","block":[1,32],"layout":"linear"}}`), &f))
	require.Equal(t, mx, f.Scale)
	require.Contains(t, tensor.FormatNames(), tensor.FormatBlockFP8)
}

// TestFormatValidate breaks one thing at a time; the error names the field.
func TestFormatValidate(t *testing.T) {
	scale := func(change func(s *tensor.ScaleFormat)) tensor.ScaleFormat {
		s := mx
		change(&s)
		return s
	}
	mxfp8 := tensor.Format{DType: tensor.F8E4M3FN, Name: tensor.FormatMXFP8, Scale: mx}
	with := func(change func(f *tensor.Format)) tensor.Format {
		f := mxfp8
		change(&f)
		return f
	}
	require.NoError(t, mxfp8.Validate())
	for _, c := range []struct {
		field string
		f     tensor.Format
		says  string
	}{
		{"name", with(func(f *tensor.Format) { f.Name = "fp8" }), "scaled-fp8"},
		{"name", tensor.Format{DType: tensor.F8E5M2, Name: "fp8"}, "dense"},
		{"name", with(func(f *tensor.Format) { f.Name = "mxfp9" }), "mxfp9"},
		{"name", tensor.Format{}, "not known"},
		{"dtype", tensor.Format{Name: tensor.FormatDense}, "none"},
		{"dtype", tensor.Format{DType: tensor.Q4_0, Name: tensor.FormatDense}, "q4_0"},
		{"dtype", tensor.Format{DType: tensor.F32, Name: tensor.FormatGGML}, "f32"},
		{"dtype", with(func(f *tensor.Format) { f.DType = tensor.BF16 }), "bf16"},
		{"dtype", tensor.Format{DType: 250, Name: tensor.FormatDense}, "dtype(250)"},
		{"scale", tensor.Format{DType: tensor.F8E4M3FN, Name: tensor.FormatScaledFP8}, "needs"},
		{"scale", with(func(f *tensor.Format) { f.Scale = tensor.ScaleFormat{} }), "needs"},
		{"scale", tensor.Format{DType: tensor.BF16, Name: tensor.FormatDense, Scale: f32Tensor}, "none"},
		{"layout", with(func(f *tensor.Format) { f.Layout = tensor.Lane16 }), "lane16"},
		{"layout", tensor.Format{DType: tensor.F32, Name: tensor.FormatDense, Layout: 9}, "layout(9)"},
		{"scale.block", with(func(f *tensor.Format) { f.Scale.Block = tensor.NewBlockShape() }), "positive"},
		{"scale.block", with(func(f *tensor.Format) { f.Scale.Block = tensor.NewBlockShape(1, 0) }), "1x0"},
		{"scale.block", with(func(f *tensor.Format) { f.Scale.Block = tensor.NewBlockShape(-5) }), "positive"},
		{"scale.block", with(func(f *tensor.Format) { f.Scale.Block = tensor.NewBlockShape(1, 2, 3, 4, 5) }), "positive"},
		{"scale.block", with(func(f *tensor.Format) { f.Scale.Block = tensor.NewBlockShape(1 << 40) }), "positive"},
		{"scale.block", with(func(f *tensor.Format) { f.Scale.Block = tensor.BlockShape{} }), "needs a block shape"},
		{"scale.block", with(func(f *tensor.Format) { f.Scale.Block = tensor.NewBlockShape(64) }), "64"},
		{"scale.block", with(func(f *tensor.Format) { f.Scale.Granularity = tensor.PerTensor }), "only a scale per block"},
		{"scale.dynamic_block", with(func(f *tensor.Format) { f.Scale.DynamicBlock = true }), "exclude"},
		{"scale.dynamic_block", with(func(f *tensor.Format) {
			f.Scale = tensor.ScaleFormat{DType: tensor.F8E8M0, Granularity: tensor.PerBlock, DynamicBlock: true}
		}), "fixed"},
		{"scale.dynamic_block", with(func(f *tensor.Format) {
			f.Scale = tensor.ScaleFormat{DType: tensor.F8E8M0, Granularity: tensor.PerToken, DynamicBlock: true}
		}), "only a scale per block"},
		{"scale.granularity", with(func(f *tensor.Format) { f.Scale = tensor.ScaleFormat{DType: tensor.F32, Granularity: "row"} }), "row"},
		{"scale.granularity", with(func(f *tensor.Format) { f.Scale = tensor.ScaleFormat{DType: tensor.U8, Granularity: tensor.PerToken} }), "token"},
		{"scale.dtype", with(func(f *tensor.Format) { f.Scale.DType = tensor.F32 }), "f32"},
		{"scale.dtype", with(func(f *tensor.Format) { f.Scale.DType = tensor.None }), "none"},
		{"scale.layout", with(func(f *tensor.Format) { f.Scale.Layout = "diagonal" }), "diagonal"},
		{"scale.layout", with(func(f *tensor.Format) { f.Scale.Layout = "linear" }), "linear"},
		{"scale.layout", tensor.Format{DType: tensor.F8E4M3FN, Name: tensor.FormatScaledFP8,
			Scale: tensor.ScaleFormat{DType: tensor.F32, Granularity: tensor.PerTensor, Layout: tensor.ScaleKMajor}}, "per block"},
		{"scale.dtype", tensor.Format{DType: tensor.F8E4M3FN, Name: tensor.FormatBlockFP8,
			Scale: tensor.ScaleFormat{DType: tensor.F32, Granularity: tensor.PerBlock, Block: block128, Layout: tensor.ScalePackedUE8M0}}, "exponents"},
		{"scale.dtype", tensor.Format{DType: tensor.F8E4M3FN, Name: tensor.FormatBlockFP8, Scale: scale(func(s *tensor.ScaleFormat) { s.DType = tensor.I32 })}, "packed"},
		{"scale.block", tensor.Format{DType: tensor.F8E4M3FN, Name: tensor.FormatBlockFP8,
			Scale: tensor.ScaleFormat{DType: tensor.F32, Granularity: tensor.PerBlock, Block: tensor.NewBlockShape(1, 1, 128)}}, "1x1x128"},
		{"name", tensor.Format{DType: tensor.F8E4M3FN, Name: tensor.FormatBlockFP8, Scale: mx}, "mxfp8"},
		{"scale.dtype", tensor.Format{DType: tensor.F8E4M3FN, Name: tensor.FormatMXFP8,
			Scale: tensor.ScaleFormat{DType: tensor.F32, Granularity: tensor.PerBlock, Block: block128}}, "f32"},
		{"global", with(func(f *tensor.Format) { f.Global = f32Tensor }), "second"},
		{"global.granularity", tensor.Format{DType: tensor.U8, Name: tensor.FormatNVFP4, Global: mx,
			Scale: tensor.ScaleFormat{DType: tensor.U8, Granularity: tensor.PerBlock, Block: tensor.NewBlockShape(16)}}, "tensor"},
		{"global.dtype", tensor.Format{DType: tensor.U8, Name: tensor.FormatNVFP4, Global: tensor.ScaleFormat{DType: tensor.F16, Granularity: tensor.PerTensor},
			Scale: tensor.ScaleFormat{DType: tensor.U8, Granularity: tensor.PerBlock, Block: tensor.NewBlockShape(16)}}, "f16"},
	} {
		err := c.f.Validate()
		require.ErrorIs(t, err, tensor.ErrFormat, "%v", c.f)
		var e *tensor.FormatError
		require.ErrorAs(t, err, &e)
		require.Equal(t, c.field, e.Field, "%v: %v", c.f, err)
		require.ErrorContains(t, err, c.says)
	}
	require.ErrorIs(t, (tensor.ScaleFormat{}).Validate(), tensor.ErrFormat)
	require.NoError(t, mx.Validate())
	require.NoError(t, f32Tensor.Validate())
}

func TestFormatBadText(t *testing.T) {
	for _, s := range []string{"", "bf17", "none", "dense", "dense[", "dense[]", "dense[storage=]", "dense[storage=bf16,]", "dense[storage=bf16, storage=bf16]",
		"dense[storage=bf16]]", "dense[storage=bf16, layout=strided]", "dense[storage=bf16, color=red]", "dense[storage=bf16, scale(]", "fp8[storage=f8_e4m3fn]",
		"mxfp8[storage=f8_e4m3fn, scale(block, storage=u8, block=1x032)]", "mxfp8[storage=f8_e4m3fn, scale(block, storage=u8, block=1x)]",
		"mxfp8[storage=f8_e4m3fn, scale(block, block, storage=u8, block=1x32)]", "mxfp8[storage=f8_e4m3fn, scale(block, tensor, storage=u8, block=1x32)]",
		"mxfp8[storage=f8_e4m3fn, scale(block, storage=u8, block=1x32, layout=linear)]", "mxfp8[storage=f8_e4m3fn, scale(block, storage=u8, block=99999999999)]",
		strings.Repeat("x", 1<<16)} {
		_, err := tensor.ParseFormat(s)
		var e *tensor.FormatError
		require.ErrorAs(t, err, &e, s)
		require.Less(t, len(err.Error()), 300)
	}
	var f tensor.Format
	for _, s := range []string{`7`, `{}`, `{"dtype":"bf16","color":1}`, `"nope"`, `{"dtype":"nope"}`, `{"name":"mxfp8","dtype":"f8_e4m3fn","scale":{"dtype":"u8","granularity":"block","block":[]}}`,
		`{"name":"mxfp8","dtype":"f8_e4m3fn","scale":{"dtype":"u8","granularity":"block","blocks":[32]}}`} {
		require.ErrorIs(t, json.Unmarshal([]byte(s), &f), tensor.ErrFormat, s)
	}
}

func TestRegisterFormat(t *testing.T) {
	rule := tensor.FormatRule{Payload: []tensor.DType{tensor.I16}, Scale: tensor.ScaleOptional, ScaleDTypes: []tensor.DType{tensor.F32}, Granularities: []tensor.Granularity{tensor.PerTensor, "row-test"}}
	require.NoError(t, tensor.RegisterGranularity("row-test"))
	require.ErrorIs(t, tensor.RegisterGranularity("row-test"), tensor.ErrFormat)
	require.ErrorIs(t, tensor.RegisterGranularity("Row"), tensor.ErrFormat)
	require.NoError(t, tensor.RegisterFormat("test-i16", rule))
	rule.Payload[0] = tensor.F64 // the table keeps its own copy
	f := tensor.Format{DType: tensor.I16, Name: "test-i16"}
	require.NoError(t, f.Validate())
	f.Scale = tensor.ScaleFormat{DType: tensor.F32, Granularity: "row-test"}
	require.NoError(t, f.Validate())
	back, err := tensor.ParseFormat(f.String())
	require.NoError(t, err)
	require.Equal(t, f, back)
	for name, r := range map[tensor.FormatName]tensor.FormatRule{
		"test-i16": rule, "dense": rule, "fp8": rule, "": rule, "a b": rule, "empty": {},
		"scaleless": {Payload: rule.Payload, Scale: tensor.ScaleRequired},
		"scaled":    {Payload: rule.Payload, ScaleDTypes: rule.ScaleDTypes, Granularities: rule.Granularities},
	} {
		require.ErrorIs(t, tensor.RegisterFormat(name, r), tensor.ErrFormat, name)
	}
}

func TestEnumTexts(t *testing.T) {
	type all struct {
		Kinds  []tensor.Kind
		DTypes []tensor.DType
		Layout tensor.Layout
		ByKind map[tensor.Kind]int
	}
	v := all{[]tensor.Kind{tensor.CPU, tensor.ROCm}, []tensor.DType{tensor.None, tensor.Q4_K}, tensor.Lane16, map[tensor.Kind]int{tensor.CUDA: 1}}
	data, err := json.Marshal(v)
	require.NoError(t, err)
	require.JSONEq(t, `{"Kinds":["cpu","rocm"],"DTypes":["none","q4_K"],"Layout":"lane16","ByKind":{"cuda":1}}`, string(data))
	var back all
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, v, back)
	require.ErrorIs(t, json.Unmarshal([]byte(`["tpu"]`), &back.Kinds), tensor.ErrParse)
	_, err = tensor.ParseLayout("lane17")
	require.ErrorIs(t, err, tensor.ErrParse)
	d, err := tensor.ParseDevice("rocm:1")
	require.NoError(t, err)
	require.Equal(t, tensor.Device{Kind: tensor.ROCm, Index: 1}, d)
}

func FuzzParseFormat(f *testing.F) {
	for _, x := range goodFormats() {
		f.Add(x.String())
	}
	f.Add("q4_0")
	f.Fuzz(func(t *testing.T, s string) {
		x, err := tensor.ParseFormat(s)
		if err != nil {
			require.ErrorIs(t, err, tensor.ErrFormat)
			return
		}
		require.NoError(t, x.Validate())
		back, err := tensor.ParseFormat(x.String())
		require.NoError(t, err)
		require.Equal(t, x, back)
	})
}
