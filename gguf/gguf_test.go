package gguf_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/tensor"
)

func write(t testing.TB, metadata []gguf.KV, tensors []gguf.TensorData) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, gguf.Write(&b, metadata, tensors))
	return b.Bytes()
}

// everything is a file that holds every value type and tensors of several.
func everything() ([]gguf.KV, []gguf.TensorData) {
	return []gguf.KV{
			{"general.architecture", "llama"},
			{"u8", uint8(200)}, {"i8", int8(-100)}, {"u16", uint16(65535)}, {"i16", int16(-32768)},
			{"u32", uint32(1 << 31)}, {"i32", int32(-1 << 31)}, {"u64", uint64(1 << 63)}, {"i64", int64(-1 << 63)},
			{"f32", float32(0.1)}, {"f64", 0.1}, {"true", true}, {"false", false}, {"empty", ""}, {"schlüssel ▁", "naïve ▁ 🦙"},
			{"strings", []string{"a", "", "日本"}}, {"no strings", []string{}},
			{"u8s", []uint8{1, 255}}, {"i8s", []int8{-1, 1}}, {"u16s", []uint16{1, 65535}}, {"i16s", []int16{-1, 1}},
			{"u32s", []uint32{1, 1 << 31}}, {"i32s", []int32{-1, 1}}, {"u64s", []uint64{1, 1 << 63}}, {"i64s", []int64{-1, 1}},
			{"f32s", []float32{0.5, -2}}, {"f64s", []float64{0.1, math.Inf(1)}}, {"bools", []bool{true, false, true}},
		}, []gguf.TensorData{
			{"f32", tensor.F32, []int64{2, 3}, sequence(24)},
			{"f16", tensor.F16, []int64{3}, sequence(6)},
			{"scalar", tensor.I64, nil, sequence(8)},
			{"q8_0", tensor.Q8_0, []int64{3, 64}, sequence(3 * 68)},
			{"q4_K", tensor.Q4_K, []int64{2, 1, 2, 256}, sequence(4 * 144)},
		}
}

func sequence(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(7*i + 1)
	}
	return b
}

func TestGetters(t *testing.T) {
	f, err := gguf.Parse(everyFile(t))
	require.NoError(t, err)
	require.Equal(t, 3, f.Version())
	require.EqualValues(t, 32, f.Alignment())
	require.Equal(t, "general.architecture", f.Keys()[0])
	require.Len(t, f.Keys(), 28)

	text := func(key string) string { s, ok := f.String(key); require.True(t, ok, key); return s }
	require.Equal(t, "llama", text("general.architecture"))
	require.Equal(t, "", text("empty"))
	require.Equal(t, "naïve ▁ 🦙", text("schlüssel ▁"))

	// Every integer key read both ways: what fits is given, what does not is refused.
	for key, want := range map[string]struct {
		i     int64
		u     uint64
		iOK   bool
		uOK   bool
		print string
	}{
		"u8":  {200, 200, true, true, "200"},
		"i8":  {-100, 0, true, false, "-100"},
		"u16": {65535, 65535, true, true, "65535"},
		"i16": {-32768, 0, true, false, "-32768"},
		"u32": {1 << 31, 1 << 31, true, true, "2147483648"},
		"i32": {-1 << 31, 0, true, false, "-2147483648"},
		"u64": {0, 1 << 63, false, true, "9223372036854775808"},
		"i64": {math.MinInt64, 0, true, false, "-9223372036854775808"},
	} {
		i, ok := f.Int(key)
		require.Equal(t, want.iOK, ok, key)
		if ok {
			require.Equal(t, want.i, i, key)
		}
		u, ok := f.Uint(key)
		require.Equal(t, want.uOK, ok, key)
		if ok {
			require.Equal(t, want.u, u, key)
		}
		v, ok := f.Value(key)
		require.True(t, ok)
		require.Equal(t, want.print, v.String())
		require.Equal(t, key, v.Type().String())
		require.Equal(t, 1, v.Len())
	}
	x, ok := f.Float("f32")
	require.True(t, ok)
	require.Equal(t, float64(float32(0.1)), x)
	x, ok = f.Float("f64")
	require.True(t, ok)
	require.Equal(t, 0.1, x)
	for key, want := range map[string]bool{"true": true, "false": false} {
		b, ok := f.Bool(key)
		require.True(t, ok)
		require.Equal(t, want, b)
	}

	for key, want := range map[string][]int64{
		"u8s": {1, 255}, "i8s": {-1, 1}, "u16s": {1, 65535}, "i16s": {-1, 1}, "u32s": {1, 1 << 31}, "i32s": {-1, 1}, "i64s": {-1, 1},
	} {
		got, ok := f.Ints(key)
		require.True(t, ok, key)
		require.Equal(t, want, got, key)
	}
	_, ok = f.Ints("u64s")
	require.False(t, ok, "2^63 does not fit")
	v, _ := f.Value("u64s")
	var us []uint64
	for e := range v.All() {
		u, ok := e.Uint()
		require.True(t, ok)
		us = append(us, u)
	}
	require.Equal(t, []uint64{1, 1 << 63}, us)
	fs32, ok := f.Floats("f32s")
	require.True(t, ok)
	require.Equal(t, []float64{0.5, -2}, fs32)
	fs64, ok := f.Floats("f64s")
	require.True(t, ok)
	require.Equal(t, []float64{0.1, math.Inf(1)}, fs64)
	ss, ok := f.Strings("strings")
	require.True(t, ok)
	require.Equal(t, []string{"a", "", "日本"}, ss)
	ss, ok = f.Strings("no strings")
	require.True(t, ok)
	require.Empty(t, ss)
	v, _ = f.Value("bools")
	bs, ok := v.Bools()
	require.True(t, ok)
	require.Equal(t, []bool{true, false, true}, bs)
	require.Equal(t, gguf.Array, v.Type())
	require.Equal(t, gguf.Bool, v.Elem())
	require.Equal(t, 3, v.Len())
	require.Equal(t, "3 bool [true false true]", v.String())
	n := 0
	for range v.All() {
		n++
		break
	}
	require.Equal(t, 1, n, "a walk may stop early")
}

func everyFile(t testing.TB) []byte {
	kv, ts := everything()
	return write(t, kv, ts)
}

// A getter of another type, or of an absent key, gives false and a zero value.
func TestGettersRefuseOtherTypes(t *testing.T) {
	kv, ts := everything()
	f, err := gguf.Parse(write(t, kv, ts))
	require.NoError(t, err)
	takes := map[string]func(string) (any, bool){
		"string":  func(k string) (any, bool) { return wrap(f.String(k)) },
		"float":   func(k string) (any, bool) { return wrap(f.Float(k)) },
		"bool":    func(k string) (any, bool) { return wrap(f.Bool(k)) },
		"int":     func(k string) (any, bool) { return wrap(f.Int(k)) },
		"strings": func(k string) (any, bool) { return wrap(f.Strings(k)) },
		"floats":  func(k string) (any, bool) { return wrap(f.Floats(k)) },
		"ints":    func(k string) (any, bool) { return wrap(f.Ints(k)) },
	}
	kind := func(v any) string {
		switch v.(type) {
		case string:
			return "string"
		case float32, float64:
			return "float"
		case bool:
			return "bool"
		case []string:
			return "strings"
		case []float32, []float64:
			return "floats"
		case []bool:
			return "bools"
		}
		if reflect.TypeOf(v).Kind() == reflect.Slice {
			return "ints"
		}
		return "int"
	}
	for name, get := range takes {
		_, ok := get("absent")
		require.False(t, ok)
		for _, e := range kv {
			if e.Key == "u64" || e.Key == "u64s" {
				continue // too large for Int
			}
			got, ok := get(e.Key)
			require.Equal(t, kind(e.Value) == name, ok, "%s of %s", name, e.Key)
			if !ok {
				require.True(t, reflect.ValueOf(got).IsZero(), "%s of %s: %v", name, e.Key, got)
			}
		}
	}
	var zero gguf.Value
	for _, ok := range []bool{second(zero.Int()), second(zero.Uint()), second(zero.Float()), second(zero.Bool()), second(zero.Str()),
		second(zero.Strings()), second(zero.Ints()), second(zero.Floats()), second(zero.Bools())} {
		require.False(t, ok)
	}
	require.Empty(t, zero.String())
}

func wrap[T any](v T, ok bool) (any, bool) { return v, ok }
func second[T any](_ T, ok bool) bool      { return ok }

func TestValueText(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	f, err := gguf.Parse(write(t, []gguf.KV{{"s", long}, {"a", make([]uint8, 1000)}, {"f", float32(0.1)}, {"ss", []string{long}}, {"e", []int32{}}}, nil))
	require.NoError(t, err)
	for key, most := range map[string]int{"s": 100, "a": 40, "f": 3, "ss": 120, "e": 8} {
		v, ok := f.Value(key)
		require.True(t, ok)
		require.LessOrEqual(t, len(v.String()), most, "%s: %v", key, v)
		require.NotEmpty(t, v.String())
	}
	v, _ := f.Value("a")
	require.Equal(t, "1000 u8 [0 0 0 0 …]", v.String())
}

func TestOpen(t *testing.T) {
	kv, ts := everything()
	data := write(t, kv, ts)
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	f, err := gguf.Open(path)
	require.NoError(t, err)
	checkTensors(t, f, ts)
	f.Discard("q4_K")
	f.Discard("absent")
	checkTensors(t, f, ts) // read again after Discard
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())

	require.Empty(t, f.Keys())
	require.Empty(t, f.Tensors())
	_, ok := f.String("general.architecture")
	require.False(t, ok)
	_, err = f.Tensor("f32")
	require.ErrorIs(t, err, fs.ErrClosed)
	f.Discard("f32")
}

func checkTensors(t *testing.T, f *gguf.File, want []gguf.TensorData) {
	t.Helper()
	require.Len(t, f.Tensors(), len(want))
	for i, w := range want {
		info := f.Tensors()[i]
		require.Equal(t, w.Name, info.Name)
		require.Equal(t, w.DType, info.DType)
		require.Equal(t, append([]int64{}, w.Shape...), info.Shape)
		require.EqualValues(t, len(w.Data), info.Size)
		byName, ok := f.Info(w.Name)
		require.True(t, ok)
		require.Equal(t, info, byName)
		require.Zero(t, info.Offset%f.Alignment())

		b, err := f.Bytes(w.Name)
		require.NoError(t, err)
		require.Equal(t, w.Data, b)
		require.Len(t, b, cap(b), "an append must not write behind the tensor")
		x, err := f.Tensor(w.Name)
		require.NoError(t, err)
		require.True(t, x.Contiguous())
		require.Equal(t, w.DType, x.DType)
		require.Equal(t, append([]int64{}, w.Shape...), append([]int64{}, x.Dims()...))
		require.Equal(t, w.Data, tensor.Slice[byte](&x))
	}
	_, err := f.Tensor("absent")
	require.ErrorIs(t, err, gguf.ErrNotFound)
	_, ok := f.Info("absent")
	require.False(t, ok)
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := gguf.Open(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = gguf.Open(dir)
	require.ErrorIs(t, err, gguf.ErrUnsupported)

	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	_, err = gguf.Open(empty)
	require.ErrorIs(t, err, gguf.ErrTruncated)

	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("not a model"), 0o600))
	_, err = gguf.Open(text)
	require.ErrorIs(t, err, gguf.ErrMagic)
	var e *gguf.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, text, e.Path)
	require.ErrorContains(t, err, text)
	if os.Geteuid() != 0 {
		require.NoError(t, os.Chmod(text, 0))
		_, err = gguf.Open(text)
		require.ErrorIs(t, err, fs.ErrPermission)
	}
}

// Data in memory may lie at any address: the same values come out, and tensors of elements are aligned.
func TestParseAtAnyAddress(t *testing.T) {
	kv, ts := everything()
	data := write(t, kv, ts)
	words := make([]uint64, len(data)/8+3)
	space := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
	for shift := range 9 {
		moved := space[shift:][:len(data)]
		copy(moved, data)
		f, err := gguf.Parse(moved)
		require.NoError(t, err)
		checkTensors(t, f, ts)
		for _, info := range f.Tensors() {
			x, err := f.Tensor(info.Name)
			require.NoError(t, err)
			if size := info.DType.Size(); size > 0 {
				require.Zero(t, uintptr(x.Host)%uintptr(size), "%s at shift %d", info.Name, shift)
			}
			b, err := f.Bytes(info.Name)
			require.NoError(t, err)
			inPlace := x.Host == unsafe.Pointer(unsafe.SliceData(b))
			require.True(t, inPlace || shift%8 != 0 && !info.DType.IsBlock(), "%s at shift %d: no needless copy", info.Name, shift)
		}
		require.NoError(t, f.Close())
	}
}

func TestAlignment(t *testing.T) {
	for _, a := range []uint32{1, 2, 8, 64, 4096} {
		ts := []gguf.TensorData{{"a", tensor.I8, []int64{3}, sequence(3)}, {"b", tensor.F32, []int64{2}, sequence(8)}}
		f, err := gguf.Parse(write(t, []gguf.KV{{"general.alignment", a}}, ts))
		require.NoError(t, err)
		require.EqualValues(t, a, f.Alignment())
		checkTensors(t, f, ts)
	}
}

func TestVersion2(t *testing.T) {
	data := everyFile(t)
	data[4] = 2
	f, err := gguf.Parse(data)
	require.NoError(t, err)
	require.Equal(t, 2, f.Version())
}

// Whatever Write accepts, Parse must give back.
func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		kv, ts := randomFile(rng)
		data := write(t, kv, ts)
		f, err := gguf.Parse(data)
		require.NoError(t, err)
		keys := f.Keys()
		require.Len(t, keys, len(kv))
		for i, e := range kv {
			require.Equal(t, e.Key, keys[i])
			v, ok := f.Value(e.Key)
			require.True(t, ok)
			requireValue(t, e.Value, v)
		}
		checkTensors(t, f, ts)
	}
}

var scalars = []func(*rand.Rand) any{
	func(r *rand.Rand) any { return uint8(r.Uint32()) }, func(r *rand.Rand) any { return int8(r.Uint32()) },
	func(r *rand.Rand) any { return uint16(r.Uint32()) }, func(r *rand.Rand) any { return int16(r.Uint32()) },
	func(r *rand.Rand) any { return r.Uint32() }, func(r *rand.Rand) any { return int32(r.Uint32()) },
	func(r *rand.Rand) any { return r.Uint64() }, func(r *rand.Rand) any { return int64(r.Uint64()) },
	func(r *rand.Rand) any { return r.Float32() }, func(r *rand.Rand) any { return r.NormFloat64() },
	func(r *rand.Rand) any { return r.IntN(2) == 0 }, func(r *rand.Rand) any { return randomText(r, r.IntN(40)) },
}

func randomText(r *rand.Rand, n int) string {
	runes := make([]rune, n)
	for i := range runes {
		runes[i] = []rune("aZ0._ ▁é🦙\x00\n")[r.IntN(11)]
	}
	return string(runes)
}

func randomFile(r *rand.Rand) (kv []gguf.KV, ts []gguf.TensorData) {
	for i := range r.IntN(20) {
		scalar := scalars[r.IntN(len(scalars))]
		v := scalar(r)
		if r.IntN(3) == 0 {
			list := reflect.MakeSlice(reflect.SliceOf(reflect.TypeOf(v)), 0, 8)
			for range r.IntN(9) {
				list = reflect.Append(list, reflect.ValueOf(scalar(r)))
			}
			v = list.Interface()
		}
		kv = append(kv, gguf.KV{Key: fmt.Sprintf("%s%d", randomText(r, r.IntN(20)), i), Value: v})
	}
	if r.IntN(2) == 0 {
		kv = append(kv, gguf.KV{Key: "general.alignment", Value: uint32(1) << r.IntN(9)})
	}
	types := []tensor.DType{tensor.F32, tensor.F16, tensor.BF16, tensor.F64, tensor.I8, tensor.I64, tensor.Q4_0, tensor.Q5_1, tensor.Q8_0, tensor.Q6_K, tensor.MXFP4}
	for i := range r.IntN(9) {
		d := types[r.IntN(len(types))]
		e, b := d.Block()
		shape, blocks := make([]int64, r.IntN(5)), 1
		for j := range shape {
			n := 1 + r.IntN(3)
			blocks *= n
			shape[j] = int64(n)
		}
		if len(shape) > 0 {
			shape[len(shape)-1] *= int64(e)
		} else if e > 1 {
			continue // a scalar is no block
		}
		ts = append(ts, gguf.TensorData{Name: fmt.Sprintf("blk.%d.%s", i, randomText(r, r.IntN(10))), DType: d, Shape: shape, Data: sequence(blocks * b)})
	}
	return kv, ts
}

func requireValue(t *testing.T, want any, v gguf.Value) {
	t.Helper()
	if rv := reflect.ValueOf(want); rv.Kind() == reflect.Slice {
		require.Equal(t, rv.Len(), v.Len())
		i := 0
		for e := range v.All() {
			requireValue(t, rv.Index(i).Interface(), e)
			i++
		}
		require.Equal(t, rv.Len(), i)
		return
	}
	var got any
	var ok bool
	switch w := want.(type) {
	case string:
		got, ok = v.Str()
	case bool:
		got, ok = v.Bool()
	case float32:
		got, ok = v.Float()
		want = float64(w)
	case float64:
		got, ok = v.Float()
	default:
		rv := reflect.ValueOf(want)
		if rv.CanInt() {
			got, ok = v.Int()
			want = rv.Int()
		} else {
			got, ok = v.Uint()
			want = rv.Uint()
		}
	}
	require.True(t, ok, "%T", want)
	require.Equal(t, want, got)
}

func TestWriteRefuses(t *testing.T) {
	f32 := func(name string) gguf.TensorData {
		return gguf.TensorData{Name: name, DType: tensor.F32, Shape: []int64{2}, Data: sequence(8)}
	}
	for name, c := range map[string]struct {
		kv   []gguf.KV
		ts   []gguf.TensorData
		want error
	}{
		"int":             {[]gguf.KV{{"k", 1}}, nil, gguf.ErrUnsupported},
		"nil":             {[]gguf.KV{{"k", nil}}, nil, gguf.ErrUnsupported},
		"nested":          {[]gguf.KV{{"k", [][]uint8{{1}}}}, nil, gguf.ErrUnsupported},
		"struct":          {[]gguf.KV{{"k", struct{}{}}}, nil, gguf.ErrUnsupported},
		"empty key":       {[]gguf.KV{{"", true}}, nil, gguf.ErrMalformed},
		"bad key":         {[]gguf.KV{{"\xff", true}}, nil, gguf.ErrMalformed},
		"key twice":       {[]gguf.KV{{"k", true}, {"k", false}}, nil, gguf.ErrMalformed},
		"alignment 0":     {[]gguf.KV{{"general.alignment", uint32(0)}}, nil, gguf.ErrMalformed},
		"alignment 24":    {[]gguf.KV{{"general.alignment", uint32(24)}}, []gguf.TensorData{f32("a"), f32("b")}, gguf.ErrMalformed},
		"alignment u64":   {[]gguf.KV{{"general.alignment", uint64(32)}}, nil, gguf.ErrMalformed},
		"tensor twice":    {nil, []gguf.TensorData{f32("a"), f32("a")}, gguf.ErrMalformed},
		"long name":       {nil, []gguf.TensorData{f32(strings.Repeat("x", 65))}, gguf.ErrMalformed},
		"no ggml type":    {nil, []gguf.TensorData{{"a", tensor.F8E4M3FN, []int64{2}, sequence(2)}}, gguf.ErrUnsupported},
		"short data":      {nil, []gguf.TensorData{{"a", tensor.F32, []int64{2}, sequence(7)}}, gguf.ErrMalformed},
		"rank":            {nil, []gguf.TensorData{{"a", tensor.F32, []int64{1, 1, 1, 1, 2}, sequence(8)}}, gguf.ErrMalformed},
		"negative extent": {nil, []gguf.TensorData{{"a", tensor.F32, []int64{-2}, sequence(8)}}, gguf.ErrMalformed},
		"zero extent":     {nil, []gguf.TensorData{{"a", tensor.F32, []int64{0}, nil}}, gguf.ErrMalformed},
		"partial block":   {nil, []gguf.TensorData{{"a", tensor.Q4_0, []int64{33}, sequence(20)}}, gguf.ErrMalformed},
	} {
		var b bytes.Buffer
		err := gguf.Write(&b, c.kv, c.ts)
		require.ErrorIs(t, err, c.want, name)
		var e *gguf.Error
		require.ErrorAs(t, err, &e, name)
		require.Zero(t, b.Len(), "%s: nothing may be written", name)
	}
	kv, ts := everything()
	size := len(write(t, kv, ts))
	for n := 0; n < size; n += 13 {
		require.ErrorIs(t, gguf.Write(&fullDisk{n}, kv, ts), fs.ErrInvalid)
	}
}

// fullDisk takes a number of bytes, then fails.
type fullDisk struct{ left int }

func (d *fullDisk) Write(b []byte) (int, error) {
	if len(b) > d.left {
		return d.left, fs.ErrInvalid
	}
	d.left -= len(b)
	return len(b), nil
}

func TestTypes(t *testing.T) {
	seen := map[tensor.DType]bool{}
	for id := range uint32(100) {
		d, ok := gguf.DType(id)
		if !ok {
			continue
		}
		require.False(t, seen[d], "%v has two numbers", d)
		seen[d] = true
		back, ok := gguf.TypeID(d)
		require.True(t, ok)
		require.Equal(t, id, back)
	}
	for d := range tensor.DType(255) {
		if d.IsBlock() {
			require.True(t, seen[d], "%v has no number", d)
		}
	}
	for _, d := range []tensor.DType{tensor.None, tensor.U8, tensor.F8E4M3FN, tensor.F4E2M1x2} {
		_, ok := gguf.TypeID(d)
		require.False(t, ok, d.String())
	}
	require.Equal(t, "type(99)", gguf.Type(99).String())
}

func conformanceFolder(t *testing.T) string {
	root := os.Getenv("OPMUX_CONFORMANCE")
	if root == "" {
		root = filepath.Join("..", "..", "shared", "conformance")
	}
	if _, err := os.Stat(root); err != nil {
		t.Skipf("no conformance data: set OPMUX_CONFORMANCE to its folder (%v)", err)
	}
	return root
}

func readJSON(t *testing.T, file string, v any) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	require.NoError(t, d.Decode(v))
}

func TestConformanceTypeNumbers(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(conformanceFolder(t), "ggml", "*.json"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 54)
	for _, file := range files {
		var g struct {
			Type string `json:"ggml_type"`
			ID   uint32 `json:"ggml_type_id"`
		}
		readJSON(t, file, &g)
		d, err := tensor.ParseDType(g.Type)
		require.NoError(t, err)
		id, ok := gguf.TypeID(d)
		require.True(t, ok, g.Type)
		require.Equal(t, g.ID, id, g.Type)
	}
}

func TestConformanceFile(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(conformanceFolder(t), "gguf", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { checkConformanceFile(t, file) })
	}
}

func checkConformanceFile(t *testing.T, file string) {
	var want struct {
		File       string
		Version    int
		Alignment  int64
		DataOffset int64 `json:"data_offset"`
		KV         []struct {
			Key, Type string
			Value     any
			Elem      string `json:"elem_type"`
			N         int
			First     []any
			Last      any
		}
		Tensors []struct {
			Name, Type string
			ID         uint32 `json:"type_id"`
			NE         []int64
			Offset     int64
			Bytes      int64
			FNV        string `json:"fnv1a64"`
		}
	}
	readJSON(t, file, &want)
	f, err := gguf.Open(filepath.Join(filepath.Dir(file), want.File))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.Equal(t, want.Version, f.Version())
	require.Equal(t, want.Alignment, f.Alignment())
	require.Len(t, f.Keys(), len(want.KV))
	for i, w := range want.KV {
		require.Equal(t, w.Key, f.Keys()[i])
		v, ok := f.Value(w.Key)
		require.True(t, ok)
		require.Equal(t, w.Type, v.Type().String(), w.Key)
		if w.Type != "arr" {
			requireJSON(t, w.Value, v)
			continue
		}
		require.Equal(t, w.Elem, v.Elem().String(), w.Key)
		require.Equal(t, w.N, v.Len(), w.Key)
		elems := slices.Collect(v.All())
		require.Len(t, elems, w.N)
		for j, first := range w.First {
			requireJSON(t, first, elems[j])
		}
		requireJSON(t, w.Last, elems[w.N-1])
	}
	require.Len(t, f.Tensors(), len(want.Tensors))
	for i, w := range want.Tensors {
		info := f.Tensors()[i]
		require.Equal(t, w.Name, info.Name)
		require.Equal(t, w.Type, info.DType.String())
		id, ok := gguf.TypeID(info.DType)
		require.True(t, ok)
		require.Equal(t, w.ID, id)
		require.Equal(t, want.DataOffset+w.Offset, info.Offset)
		require.Equal(t, w.Bytes, info.Size)
		slices.Reverse(w.NE)
		require.Equal(t, w.NE, info.Shape)
		b, err := f.Bytes(w.Name)
		require.NoError(t, err)
		h := fnv.New64a()
		h.Write(b)
		require.Equal(t, w.FNV, fmt.Sprintf("%016x", h.Sum64()), w.Name)
	}
}

func requireJSON(t *testing.T, want any, v gguf.Value) {
	t.Helper()
	switch w := want.(type) {
	case string:
		s, ok := v.Str()
		require.True(t, ok)
		require.Equal(t, w, s)
	case bool:
		b, ok := v.Bool()
		require.True(t, ok)
		require.Equal(t, w, b)
	case json.Number:
		if x, ok := v.Float(); ok {
			f, err := w.Float64()
			require.NoError(t, err)
			require.Equal(t, f, x)
			return
		}
		require.Equal(t, w.String(), v.String())
	default:
		require.Failf(t, "unexpected", "%T", want)
	}
}
