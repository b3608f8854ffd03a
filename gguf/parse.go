package gguf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/opmux/opmux/tensor"
)

const (
	magic            = "GGUF"
	alignmentKey     = "general.alignment"
	defaultAlignment = 32

	// The format's own limits.
	maxKey  = 1<<16 - 1 // bytes of a key
	maxName = 64        // bytes of a tensor's name
	maxDims = 4         // rank of a tensor

	// Ours, far above any model known. They bound what a file can make the reader allocate to about 6 MB.
	maxKeys     = 1 << 12
	maxKeyBytes = 1 << 20 // all keys together
	maxTensors  = 1 << 14

	minKeyEntry    = 8 + 4 + 1     // bytes of the smallest metadata entry
	minTensorEntry = 8 + 4 + 4 + 8 // and tensor description
)

// entry is one metadata value; its bytes stay in the file.
type entry struct {
	key   string
	value Value
}

// Parse checks a GGUF file held in memory. The data are used in place and must not change while the File lives; they may
// lie at any address.
func Parse(data []byte) (*File, error) {
	f := &File{data: data[:len(data):len(data)], alignment: defaultAlignment}
	c := &cursor{data: data}
	f.read(c, int64(len(data)))
	if c.err != nil {
		return nil, c.err
	}
	return f, nil
}

// read fills f from the header under c, that of a file of size bytes.
func (f *File) read(c *cursor, size int64) {
	tensors, keys := f.readHeader(c)
	f.readMetadata(c, keys)
	at := f.readTensors(c, tensors)
	f.placeTensors(c, at, size)
}

func (f *File) readHeader(c *cursor) (tensors, keys uint64) {
	if n := min(len(c.data), len(magic)); !bytes.Equal(c.data[:n], []byte(magic[:n])) {
		c.fail(0, ErrMagic, "magic %q", c.data[:n])
	}
	c.take(4, "magic")
	at := c.at
	f.version = c.u32("version")
	if c.err != nil {
		return 0, 0
	}
	switch v := f.version; {
	case v == 2 || v == 3:
	case v&0xffff == 0 && v != 0:
		c.fail(at, ErrUnsupported, "big-endian file")
	default:
		c.fail(at, ErrVersion, "version %d, known are 2 and 3", v)
	}
	tensors = c.count("tensors", minTensorEntry, maxTensors)
	keys = c.count("metadata entries", minKeyEntry, maxKeys)
	return tensors, keys
}

func (f *File) readMetadata(c *cursor, n uint64) {
	if c.err != nil {
		return
	}
	f.keys = make([]entry, 0, n)
	f.byKey = make(map[string]int, n)
	total := 0
	for i := range int(n) {
		at := c.at
		key := c.name("key", maxKey)
		switch _, twice := f.byKey[string(key)]; {
		case c.err != nil:
		case twice:
			c.fail(at, ErrMalformed, "key occurs twice")
		case total+len(key) > maxKeyBytes:
			c.fail(at, ErrLimit, "keys of more than %d bytes together", maxKeyBytes)
		}
		v := c.value()
		if c.err != nil {
			c.within("metadata entry", i, key)
			return
		}
		total += len(key)
		e := entry{string(key), v}
		f.byKey[e.key] = i
		f.keys = append(f.keys, e)
		if e.key == alignmentKey {
			a, _ := v.Uint()
			if v.Type() != Uint32 || a == 0 || a&(a-1) != 0 {
				c.fail(at, ErrMalformed, "%s is %v %v, not a power of two as u32", alignmentKey, v.Type(), v)
				return
			}
			f.alignment = int64(a)
		}
	}
}

// readTensors returns where in the file each description begins.
func (f *File) readTensors(c *cursor, n uint64) (at []int) {
	if c.err != nil {
		return nil
	}
	at = make([]int, n)
	f.tensors = make([]TensorInfo, 0, n)
	f.byName = make(map[string]int, n)
	for i := range at {
		at[i] = c.at
		name := c.name("name", maxName)
		if _, twice := f.byName[string(name)]; twice && c.err == nil {
			c.fail(at[i], ErrMalformed, "name occurs twice")
		}
		t := c.tensor(f.alignment)
		if c.err != nil {
			c.within("tensor", i, name)
			return nil
		}
		t.Name = string(name)
		f.byName[t.Name] = i
		f.tensors = append(f.tensors, t)
	}
	return at
}

// placeTensors turns offsets within the data part into offsets within the file and checks that all data lie inside the
// file and apart from each other.
func (f *File) placeTensors(c *cursor, at []int, size int64) {
	if c.err != nil || len(f.tensors) == 0 {
		return
	}
	start := int64(pad(uint64(c.at), uint64(f.alignment)))
	order := make([]int, len(f.tensors))
	for i := range f.tensors {
		t := &f.tensors[i]
		if start > size || t.Offset > size-start || t.Size > size-start-t.Offset {
			c.fail(at[i], ErrTruncated, "tensor %s: %d bytes at offset %d of data that begin at byte %d of %d",
				quote(t.Name), t.Size, t.Offset, start, size)
			return
		}
		t.Offset += start
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(f.tensors[a].Offset, f.tensors[b].Offset) })
	for i, o := range order[1:] {
		a, b := &f.tensors[order[i]], &f.tensors[o]
		if a.Offset+a.Size > b.Offset {
			c.fail(at[o], ErrMalformed, "tensor %s overlaps tensor %s", quote(b.Name), quote(a.Name))
			return
		}
	}
}

// A cursor reads data from front to back. After the first error all reads give zero.
type cursor struct {
	data []byte
	at   int
	err  error
}

func (c *cursor) fail(at int, err error, format string, args ...any) {
	if c.err == nil {
		c.err = &Error{Offset: int64(at), What: fmt.Sprintf(format, args...), Err: err}
	}
}

// within says in which item of a list the error is.
func (c *cursor) within(what string, i int, name []byte) {
	var e *Error
	if errors.As(c.err, &e) {
		e.What = fmt.Sprintf("%s %d %s: %s", what, i, quote(name), e.What)
	}
}

// quote shows a name from a file, cut to a bearable length.
func quote[S string | []byte](s S) string {
	if len(s) > maxName {
		return strconv.Quote(string(s[:maxName])) + "…"
	}
	return strconv.Quote(string(s))
}

func (c *cursor) left() uint64 { return uint64(len(c.data) - c.at) }

func (c *cursor) take(n uint64, what string) []byte {
	if c.err == nil && n > c.left() {
		c.fail(c.at, ErrTruncated, "%s of %d bytes, %d are left", what, n, c.left())
	}
	if c.err != nil {
		return nil
	}
	b := c.data[c.at:][:n:n]
	c.at += int(n)
	return b
}

func (c *cursor) u32(what string) uint32 {
	if b := c.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64(what string) uint64 {
	if b := c.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads how many entries of at least size bytes follow somewhere.
func (c *cursor) count(what string, size, limit uint64) uint64 {
	at := c.at
	n := c.u64("number of " + what)
	switch {
	case c.err != nil:
	case n > c.left()/size:
		c.fail(at, ErrTruncated, "%d %s, the file has room for %d", n, what, c.left()/size)
	case n > limit:
		c.fail(at, ErrLimit, "%d %s, at most %d are read", n, what, limit)
	}
	if c.err != nil {
		return 0
	}
	return n
}

func (c *cursor) str(what string) []byte { return c.take(c.u64("string length"), what) }

// name reads a key or a name: 1 to limit bytes of UTF-8.
func (c *cursor) name(what string, limit int) []byte {
	at := c.at
	s := c.str(what)
	switch {
	case c.err != nil:
	case len(s) == 0:
		c.fail(at, ErrMalformed, "%s is empty", what)
	case len(s) > limit:
		c.fail(at, ErrMalformed, "%s of %d bytes is over %d", what, len(s), limit)
	case !utf8.Valid(s):
		c.fail(at, ErrMalformed, "%s is not UTF-8", what)
	}
	return s
}

func (c *cursor) valueType(what string) Type {
	at := c.at
	t := Type(c.u32(what))
	if t >= numTypes {
		c.fail(at, ErrMalformed, "%s %d", what, uint32(t))
		return 0
	}
	return t
}

func (c *cursor) value() Value {
	v := Value{typ: c.valueType("value type"), n: 1}
	at := c.at
	switch v.typ {
	case Array:
		v.elem = c.valueType("element type")
		v.n, v.raw = c.array(v.elem)
	case String:
		v.raw = c.str("string")
	default:
		v.raw = c.take(uint64(typeSizes[v.typ]), v.typ.String())
	}
	if (v.typ == Bool || v.elem == Bool) && slices.ContainsFunc(v.raw, func(b byte) bool { return b > 1 }) {
		c.fail(at, ErrMalformed, "bool that is neither 0 nor 1")
	}
	return v
}

// array reads the number of elements and skips them, which is as much as their bounds need.
func (c *cursor) array(elem Type) (int, []byte) {
	if elem == Array {
		c.fail(c.at, ErrUnsupported, "array of arrays")
		return 0, nil
	}
	size := uint64(typeSizes[elem])
	if elem == String {
		size = 8 // its length at least
	}
	n := c.count(elem.String()+" elements", size, math.MaxInt64)
	from := c.at
	if elem != String {
		return int(n), c.take(n*size, "elements")
	}
	for i := uint64(0); i < n && c.err == nil; i++ {
		c.str("string element")
	}
	if c.err != nil {
		return 0, nil
	}
	return int(n), c.data[from:c.at:c.at]
}

// tensor reads a description but its name. Offset is within the data part.
func (c *cursor) tensor(alignment int64) (t TensorInfo) {
	at := c.at
	rank := c.u32("rank")
	if rank > maxDims {
		c.fail(at, ErrMalformed, "rank %d is over %d", rank, maxDims)
		return t
	}
	t.Shape = make([]int64, rank)
	for i := range t.Shape {
		dimAt := c.at
		n := c.u64("extent")
		if c.err == nil && (n == 0 || n > math.MaxInt64) {
			c.fail(dimAt, ErrMalformed, "extent %d is %d", i, n)
		}
		t.Shape[len(t.Shape)-1-i] = int64(n)
	}
	typeAt := c.at
	id := c.u32("type")
	offAt := c.at
	off := c.u64("offset")
	if c.err != nil {
		return t
	}
	var ok bool
	if t.DType, ok = DType(id); !ok {
		c.fail(typeAt, ErrUnsupported, "ggml type %d", id)
		return t
	}
	if off > math.MaxInt64 || off%uint64(alignment) != 0 {
		c.fail(offAt, ErrMalformed, "offset %d is not a multiple of the alignment %d", off, alignment)
		return t
	}
	t.Offset = int64(off)
	size, err := tensorSize(t.DType, t.Shape)
	if err != nil {
		c.fail(at, ErrMalformed, "%v", err)
	}
	t.Size = size
	return t
}

func tensorSize(d tensor.DType, shape []int64) (int64, error) {
	x, err := tensor.New(nil, d, shape...)
	if err != nil {
		return 0, err
	}
	return x.Bytes()
}
