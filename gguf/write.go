package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"reflect"
	"slices"

	"github.com/opmux/opmux/tensor"
)

// KV is one metadata entry to write. Value is a string, a bool, an integer or float type of fixed size, or a slice of
// one of these.
type KV struct {
	Key   string
	Value any
}

// TensorData is one tensor to write: its extents outermost first, and its bytes, packed row-major.
type TensorData struct {
	Name  string
	DType tensor.DType
	Shape []int64
	Data  []byte
}

var kindTypes = map[reflect.Kind]Type{
	reflect.Uint8: Uint8, reflect.Int8: Int8, reflect.Uint16: Uint16, reflect.Int16: Int16,
	reflect.Uint32: Uint32, reflect.Int32: Int32, reflect.Float32: Float32, reflect.Bool: Bool, reflect.String: String,
	reflect.Uint64: Uint64, reflect.Int64: Int64, reflect.Float64: Float64,
}

// Write writes a GGUF version 3 file: entries and tensors in the order given, data aligned to the entry
// "general.alignment" (a uint32) or to 32. What Parse would refuse it refuses with the same *Error before anything is
// written; other errors come from w.
func Write(w io.Writer, metadata []KV, tensors []TensorData) error {
	header, alignment, err := appendHeader(nil, metadata, tensors)
	if err != nil {
		return err
	}
	at := pad(uint64(len(header)), alignment)
	end := at
	for _, t := range tensors {
		end += pad(uint64(len(t.Data)), alignment)
	}
	f, c := &File{alignment: defaultAlignment}, &cursor{data: header}
	f.read(c, int64(end))
	if c.err != nil {
		return c.err
	}

	if _, err := w.Write(header); err != nil {
		return err
	}
	if err := writeZeros(w, at-uint64(len(header))); err != nil {
		return err
	}
	for _, t := range tensors {
		if _, err := w.Write(t.Data); err != nil {
			return err
		}
		n := uint64(len(t.Data))
		if err := writeZeros(w, pad(n, alignment)-n); err != nil { // after the last one too: ggml reads it
			return err
		}
	}
	return nil
}

func refuse(err error, format string, args ...any) error {
	return &Error{What: fmt.Sprintf(format, args...), Err: err}
}

func appendHeader(b []byte, metadata []KV, tensors []TensorData) (header []byte, alignment uint64, err error) {
	alignment = defaultAlignment
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, 3)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(metadata)))
	for _, kv := range metadata {
		b = appendString(b, kv.Key)
		var ok bool
		if b, ok = appendValue(b, reflect.ValueOf(kv.Value)); !ok {
			return nil, 0, refuse(ErrUnsupported, "metadata entry %s of Go type %T", quote(kv.Key), kv.Value)
		}
		if a, ok := kv.Value.(uint32); ok && kv.Key == alignmentKey && a != 0 {
			alignment = uint64(a)
		}
	}
	offset := uint64(0)
	for _, t := range tensors {
		id, ok := TypeID(t.DType)
		if !ok {
			return nil, 0, refuse(ErrUnsupported, "tensor %s of type %v", quote(t.Name), t.DType)
		}
		if size, err := tensorSize(t.DType, t.Shape); err == nil && size != int64(len(t.Data)) { // Parse will judge an error
			return nil, 0, refuse(ErrMalformed, "tensor %s: %v%v has %d bytes, not %d", quote(t.Name), t.DType, t.Shape, size, len(t.Data))
		}
		b = appendString(b, t.Name)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(t.Shape)))
		for _, n := range slices.Backward(t.Shape) {
			b = binary.LittleEndian.AppendUint64(b, uint64(n))
		}
		b = binary.LittleEndian.AppendUint32(b, id)
		b = binary.LittleEndian.AppendUint64(b, offset)
		offset += pad(uint64(len(t.Data)), alignment)
	}
	return b, alignment, nil
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

func appendValue(b []byte, v reflect.Value) ([]byte, bool) {
	if t, ok := kindTypes[v.Kind()]; ok {
		return appendScalar(binary.LittleEndian.AppendUint32(b, uint32(t)), v), true
	}
	if v.Kind() != reflect.Slice {
		return b, false
	}
	elem, ok := kindTypes[v.Type().Elem().Kind()]
	if !ok {
		return b, false
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(Array))
	b = binary.LittleEndian.AppendUint32(b, uint32(elem))
	b = binary.LittleEndian.AppendUint64(b, uint64(v.Len()))
	for i := range v.Len() {
		b = appendScalar(b, v.Index(i))
	}
	return b, true
}

func appendScalar(b []byte, v reflect.Value) []byte {
	if v.Kind() == reflect.String {
		return appendString(b, v.String())
	}
	b, _ = binary.Append(b, binary.LittleEndian, v.Interface()) // it fails for types of varying size, which are not in kindTypes
	return b
}

// pad rounds n up to a multiple of a power of two.
func pad(n, a uint64) uint64 { return (n + a - 1) &^ (a - 1) }

func writeZeros(w io.Writer, n uint64) error {
	var zeros [4096]byte
	for n > 0 {
		k := min(n, uint64(len(zeros)))
		if _, err := w.Write(zeros[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}
