package gguf_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/tensor"
)

// raw assembles files that Write refuses.
type raw struct{ bytes.Buffer }

func (r *raw) u32(v uint32) *raw { r.Write(binary.LittleEndian.AppendUint32(nil, v)); return r }
func (r *raw) u64(v uint64) *raw { r.Write(binary.LittleEndian.AppendUint64(nil, v)); return r }
func (r *raw) str(s string) *raw { r.u64(uint64(len(s))).WriteString(s); return r }
func (r *raw) pad(n int) *raw    { r.Write(make([]byte, n)); return r }

func header(tensors, keys uint64) *raw {
	r := &raw{}
	r.WriteString("GGUF")
	return r.u32(3).u64(tensors).u64(keys)
}

// one is a file of one tensor.
func one(name string, ne []uint64, typ uint32, offset uint64, data int) *raw {
	return header(1, 0).tensor(name, ne, typ, offset).pad(data)
}

func (r *raw) tensor(name string, ne []uint64, typ uint32, offset uint64) *raw {
	r.str(name).u32(uint32(len(ne)))
	for _, n := range ne {
		r.u64(n)
	}
	return r.u32(typ).u64(offset)
}

func (r *raw) align() *raw { return r.pad(-r.Len() & 31) }

func key(typ uint32) *raw { return header(0, 1).str("k").u32(typ) }

func hostileFiles() map[string]struct {
	file *raw
	want error
	text string // part of the message
} {
	type c = struct {
		file *raw
		want error
		text string
	}
	text := func(s string) *raw { r := &raw{}; r.WriteString(s); return r }
	ne := func(n ...uint64) []uint64 { return n }
	const f32, q4_0 = 0, 2
	return map[string]c{
		"nothing":              {text(""), gguf.ErrTruncated, "magic"},
		"other magic":          {text("GGML\x03\x00\x00\x00"), gguf.ErrMagic, "GGML"},
		"half a magic":         {text("GG"), gguf.ErrTruncated, "magic"},
		"short other magic":    {text("PK"), gguf.ErrMagic, "PK"},
		"version 0":            {text("GGUF\x00\x00\x00\x00"), gguf.ErrVersion, "version 0"},
		"version 1":            {text("GGUF\x01\x00\x00\x00"), gguf.ErrVersion, "version 1"},
		"version 4":            {text("GGUF\x04\x00\x00\x00"), gguf.ErrVersion, "version 4"},
		"big-endian":           {text("GGUF\x00\x00\x00\x03"), gguf.ErrUnsupported, "big-endian"},
		"2^60 tensors":         {header(1<<60, 0).pad(100), gguf.ErrTruncated, "1152921504606846976 tensors"},
		"2^60 keys":            {header(0, 1<<60).pad(100), gguf.ErrTruncated, "1152921504606846976 metadata entries"},
		"2^64-1 keys":          {header(0, math.MaxUint64).pad(100), gguf.ErrTruncated, "metadata entries"},
		"too many keys":        {header(0, 1<<13).pad(1 << 20), gguf.ErrLimit, "8192 metadata entries"},
		"too many tensors":     {header(1<<15, 0).pad(1 << 20), gguf.ErrLimit, "32768 tensors"},
		"keys and no room":     {header(0, 2).str("k").u32(7).pad(1), gguf.ErrTruncated, "2 metadata entries"},
		"2^62 long key":        {header(0, 1).u64(1 << 62).pad(100), gguf.ErrTruncated, "key of 4611686018427387904 bytes"},
		"2^64-1 long key":      {header(0, 1).u64(math.MaxUint64).pad(100), gguf.ErrTruncated, "key of"},
		"empty key":            {header(0, 1).str("").u32(7).pad(9), gguf.ErrMalformed, "key is empty"},
		"64 KiB key":           {header(0, 1).str(strings.Repeat("k", 1<<16)).u32(7).pad(9), gguf.ErrMalformed, "over 65535"},
		"key not UTF-8":        {header(0, 1).str("a\xc3").u32(7).pad(9), gguf.ErrMalformed, "not UTF-8"},
		"key twice":            {header(0, 2).str("k").u32(7).pad(1).str("k").u32(7).pad(1), gguf.ErrMalformed, "key occurs twice"},
		"value type 13":        {key(13).pad(8), gguf.ErrMalformed, "value type 13"},
		"value type 2^32-1":    {key(math.MaxUint32).pad(8), gguf.ErrMalformed, "value type 4294967295"},
		"bool 2":               {text(key(7).String() + "\x02"), gguf.ErrMalformed, "bool"},
		"u64 cut":              {key(10).pad(7), gguf.ErrTruncated, "u64 of 8 bytes"},
		"2^63 string":          {key(8).u64(1 << 63).pad(9), gguf.ErrTruncated, "string of"},
		"2^60 array":           {key(9).u32(0).u64(1 << 60).pad(9), gguf.ErrTruncated, "1152921504606846976 u8 elements"},
		"array times overflow": {key(9).u32(10).u64(1<<61 + 1).pad(64), gguf.ErrTruncated, "u64 elements"},
		"2^60 strings":         {key(9).u32(8).u64(1 << 60).pad(64), gguf.ErrTruncated, "str elements"},
		"strings cut":          {key(9).u32(8).u64(2).str("a").pad(7), gguf.ErrTruncated, "string length of 8 bytes"},
		"string in array cut":  {key(9).u32(8).u64(2).str("a").u64(9).pad(8), gguf.ErrTruncated, "string element of 9 bytes"},
		"element type 99":      {key(9).u32(99).u64(1).pad(64), gguf.ErrMalformed, "element type 99"},
		"bool array of 3":      {text(key(9).u32(7).u64(2).String() + "\x01\x03"), gguf.ErrMalformed, "bool"},
		"array of arrays":      {key(9).u32(9).u64(1).u32(9).u64(1).u32(9).u64(1).pad(64), gguf.ErrUnsupported, "array of arrays"},

		"alignment 0":       {header(0, 1).str("general.alignment").u32(4).u32(0), gguf.ErrMalformed, "u32 0"},
		"alignment 24":      {header(0, 1).str("general.alignment").u32(4).u32(24), gguf.ErrMalformed, "u32 24"},
		"alignment of str":  {header(0, 1).str("general.alignment").u32(8).str("32"), gguf.ErrMalformed, `str "32"`},
		"alignment of i32":  {header(0, 1).str("general.alignment").u32(5).u32(32), gguf.ErrMalformed, "i32 32"},
		"alignment of arr":  {header(0, 1).str("general.alignment").u32(9).u32(4).u64(1).u32(32), gguf.ErrMalformed, "arr"},
		"alignment of 2^31": {header(1, 1).str("general.alignment").u32(4).u32(1<<31).tensor("a", ne(1), f32, 0).pad(64), gguf.ErrTruncated, "begin at byte 2147483648"},

		"empty name":         {one("", ne(8), f32, 0, 64), gguf.ErrMalformed, "name is empty"},
		"long name":          {one(strings.Repeat("n", 65), ne(8), f32, 0, 64), gguf.ErrMalformed, "over 64"},
		"name not UTF-8":     {one("\xff", ne(8), f32, 0, 64), gguf.ErrMalformed, "not UTF-8"},
		"rank 5":             {one("a", ne(1, 1, 1, 1, 1), f32, 0, 64), gguf.ErrMalformed, "rank 5"},
		"rank 2^32-1":        {header(1, 0).str("a").u32(math.MaxUint32).pad(64), gguf.ErrMalformed, "rank 4294967295"},
		"extent 0":           {one("a", ne(8, 0), f32, 0, 64), gguf.ErrMalformed, "extent 1 is 0"},
		"extent negative":    {one("a", ne(math.MaxUint64), f32, 0, 64), gguf.ErrMalformed, "extent 0 is 18446744073709551615"},
		"extents overflow":   {one("a", ne(1<<32, 1<<32), f32, 0, 64), gguf.ErrMalformed, "overflow"},
		"extents wrap to 0":  {one("a", ne(1<<22, 1<<22, 1<<20), f32, 0, 64), gguf.ErrMalformed, "overflow"},
		"bytes overflow":     {one("a", ne(1<<62), f32, 0, 64), gguf.ErrMalformed, "overflow"},
		"partial block":      {one("a", ne(33), q4_0, 0, 64), gguf.ErrMalformed, "whole q4_0 blocks"},
		"scalar of a block":  {one("a", nil, q4_0, 0, 64), gguf.ErrMalformed, "whole q4_0 blocks"},
		"removed type 4":     {one("a", ne(32), 4, 0, 64), gguf.ErrUnsupported, "ggml type 4"},
		"type 2^32-1":        {one("a", ne(32), math.MaxUint32, 0, 64), gguf.ErrUnsupported, "ggml type 4294967295"},
		"offset misaligned":  {one("a", ne(1), f32, 4, 64), gguf.ErrMalformed, "offset 4"},
		"offset negative":    {one("a", ne(1), f32, 1<<63, 64), gguf.ErrMalformed, "offset"},
		"offset near 2^63":   {one("a", ne(1), f32, math.MaxInt64&^31, 64), gguf.ErrTruncated, "offset"},
		"data behind end":    {one("a", ne(1), f32, 1<<20, 64), gguf.ErrTruncated, "offset 1048576"},
		"data over end":      {one("a", ne(1<<20), f32, 0, 64), gguf.ErrTruncated, "4194304 bytes"},
		"no data part":       {one("a", ne(1), f32, 0, 0), gguf.ErrTruncated, "4 bytes"},
		"name twice":         {header(2, 0).tensor("a", ne(8), f32, 0).tensor("a", ne(8), f32, 32).align().pad(64), gguf.ErrMalformed, "name occurs twice"},
		"same bytes":         {header(2, 0).tensor("a", ne(8), f32, 0).tensor("b", ne(8), f32, 0).align().pad(64), gguf.ErrMalformed, `overlaps`},
		"overlap":            {header(2, 0).tensor("a", ne(8), f32, 32).tensor("b", ne(9), f32, 0).align().pad(96), gguf.ErrMalformed, `"a" overlaps tensor "b"`},
		"description is cut": {header(1, 0).str("a").u32(4).u64(1).u64(1), gguf.ErrTruncated, "extent"},
		"no offset":          {header(1, 0).str("a").u32(1).u64(1).u32(0), gguf.ErrTruncated, "offset"},
	}
}

func TestHostileFiles(t *testing.T) {
	dir := t.TempDir()
	for name, c := range hostileFiles() {
		t.Run(name, func(t *testing.T) {
			data := c.file.Bytes()
			var err error
			spent := allocated(func() { _, err = gguf.Parse(data) })
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.text)
			var e *gguf.Error
			require.ErrorAs(t, err, &e)
			require.GreaterOrEqual(t, e.Offset, int64(0))
			require.LessOrEqual(t, e.Offset, int64(len(data)))
			require.Less(t, len(err.Error()), 400)
			require.Less(t, spent, uint64(256<<10), "bytes allocated for a file of %d", len(data))

			path := filepath.Join(dir, "f")
			require.NoError(t, os.WriteFile(path, data, 0o600))
			_, err = gguf.Open(path)
			require.ErrorIs(t, err, c.want)
		})
	}
}

// allocated returns the bytes that f allocated, garbage included.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A cut anywhere before the end of the last tensor's data is seen, whatever it cuts.
func TestTruncatedAtEveryByte(t *testing.T) {
	data := everyFile(t)
	f, err := gguf.Parse(data)
	require.NoError(t, err)
	last := f.Tensors()[len(f.Tensors())-1]
	end := int(last.Offset + last.Size)
	require.Less(t, end, len(data)+1)
	for n := range end {
		_, err := gguf.Parse(data[:n])
		require.ErrorIs(t, err, gguf.ErrTruncated, "%d of %d bytes", n, len(data))
	}
	for n := end; n <= len(data); n++ {
		_, err := gguf.Parse(data[:n])
		require.NoError(t, err, "padding behind the last tensor may be missing")
	}
}

// Any single byte may be wrong: the file is refused or can be read to the end.
func TestEveryByteChanged(t *testing.T) {
	data := everyFile(t)
	refused, read := 0, 0
	for i := range data {
		for _, b := range []byte{0, 0xff, data[i] ^ 1, data[i] ^ 0x80} {
			old := data[i]
			data[i] = b
			if f, err := gguf.Parse(data); err != nil {
				var e *gguf.Error
				require.ErrorAs(t, err, &e)
				refused++
			} else {
				readAll(t, f)
				read++
			}
			data[i] = old
		}
	}
	require.Positive(t, refused)
	require.Positive(t, read)
}

// readAll reads every value in every way and the first block of every tensor.
func readAll(t testing.TB, f *gguf.File) {
	for _, k := range f.Keys() {
		v, ok := f.Value(k)
		require.True(t, ok)
		n := 0
		for e := range v.All() {
			if e.Type() != v.Elem() {
				require.Failf(t, "wrong type", "element of %s", k)
			}
			n++
		}
		if v.Type() == gguf.Array {
			require.Equal(t, v.Len(), n)
		}
		require.NotEmpty(t, v.String())
		f.String(k)
		f.Int(k)
		f.Uint(k)
		f.Float(k)
		f.Bool(k)
		f.Strings(k)
		f.Ints(k)
		f.Floats(k)
		v.Bools()
	}
	for _, info := range f.Tensors() {
		x, err := f.Tensor(info.Name)
		require.NoError(t, err)
		b := tensor.Slice[byte](&x)
		require.EqualValues(t, info.Size, len(b))
		elems, bytes := info.DType.Block()
		if tensor.CanDecode(info.DType) {
			require.NoError(t, tensor.Decode(make([]float32, elems), info.DType, b[:bytes]))
		}
	}
}

// The largest tables that the limits allow cost a few MB, however large the file.
func TestMemoryBound(t *testing.T) {
	const keys, tensors = 1 << 12, 1 << 14
	r := header(tensors, keys)
	name := func(i, n int) string {
		b := []byte(strings.Repeat("n", n))
		binary.LittleEndian.PutUint32(b, 0x61616161+uint32(i)%16+uint32(i)/16%16<<8+uint32(i)/256%16<<16+uint32(i)/4096%16<<24)
		return string(b)
	}
	for i := range keys {
		r.str(name(i, 250)).u32(9).u32(8).u64(1000)
		r.pad(8000) // a thousand empty strings
	}
	for i := range tensors {
		r.tensor(name(i, 64), []uint64{1, 1, 1, 1}, 24, uint64(i)*32)
	}
	r.align().pad(tensors * 32)
	data := r.Bytes()
	require.Greater(t, len(data), 32<<20)
	var f *gguf.File
	var err error
	spent := allocated(func() { f, err = gguf.Parse(data) })
	require.NoError(t, err)
	require.Len(t, f.Tensors(), tensors)
	require.Less(t, spent, uint64(8<<20))
	t.Logf("%d bytes allocated for a file of %d", spent, len(data))

	// Keys may be long, but not all of them.
	r = header(0, 32)
	for i := range 32 {
		r.str(name(i, 60000)).u32(7).pad(1)
	}
	spent = allocated(func() { _, err = gguf.Parse(r.Bytes()) })
	require.ErrorIs(t, err, gguf.ErrLimit)
	require.Less(t, spent, uint64(8<<20))
}

func FuzzParse(f *testing.F) {
	f.Add(everyFile(f))
	f.Add(write(f, nil, nil))
	for _, c := range hostileFiles() {
		if c.file.Len() < 1<<12 {
			f.Add(c.file.Bytes())
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse(data)
		if err != nil {
			var e *gguf.Error
			require.ErrorAs(t, err, &e)
			return
		}
		readAll(t, file)
		require.NoError(t, file.Close())
	})
}
