// Package gguf reads model files in the GGUF format, versions 2 and 3, little-endian, and writes version 3.
//
// A file is mapped into memory and checked from end to end of its header before anything is used: every count, length,
// offset, alignment, type and name. Nothing is allocated because a file claims it; the tables that are built are
// bounded to a few MB whatever the file holds. Metadata values and tensor data stay in the mapping and are decoded when
// asked for.
//
// A mapped file must not be truncated by others while it is open: touching a page that is gone kills the process.
package gguf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// File is an open model file. All methods but Close may be called from several goroutines at once. What Bytes and Tensor
// return is read-only memory that ends with Close.
type File struct {
	data      []byte
	mapped    bool
	version   uint32
	alignment int64
	keys      []entry
	byKey     map[string]int
	tensors   []TensorInfo
	byName    map[string]int

	mu    sync.Mutex
	holds int
	unmap []byte // a closed file's mapping that is still held
}

// TensorInfo describes one tensor of a file.
type TensorInfo struct {
	Name   string
	DType  tensor.DType
	Shape  []int64 // outermost first: the reverse of the file's order
	Offset int64   // bytes from the start of the file
	Size   int64   // bytes
}

// Open maps and checks the file at path, which must be a regular file. Errors about its contents are *Error; others come
// from the operating system and name the path. On systems without mapping the whole file is read into memory.
func Open(path string) (*File, error) {
	info, err := os.Stat(path) // before opening: a pipe would block
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	size := info.Size()
	switch {
	case !info.Mode().IsRegular():
		return nil, &Error{path, 0, "not a regular file", ErrUnsupported}
	case size == 0:
		return nil, &Error{path, 0, "empty file", ErrTruncated}
	case size != int64(int(size)):
		return nil, &Error{path, 0, fmt.Sprintf("%d bytes do not fit in the address space", size), ErrLimit}
	}
	data, err := mapFile(path, int(size))
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	f, err := Parse(data)
	if err != nil {
		var e *Error
		if errors.As(err, &e) {
			e.Path = path
		}
		return nil, errors.Join(err, unmapFile(data))
	}
	f.mapped = true
	return f, nil
}

// Hold keeps the file's memory valid beyond Close, until release is called, for tensors that stay in use. A second call
// of release does nothing. On a closed file the error is fs.ErrClosed.
func (f *File) Hold() (release func() error, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.data == nil {
		return nil, fmt.Errorf("gguf: %w", fs.ErrClosed)
	}
	f.holds++
	return sync.OnceValue(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.holds--
		return f.drop()
	}), nil
}

// drop unmaps a closed file that nobody holds.
func (f *File) drop() error {
	data := f.unmap
	if data == nil || f.holds > 0 {
		return nil
	}
	f.unmap = nil
	if err := unmapFile(data); err != nil {
		return fmt.Errorf("gguf: close: %w", err)
	}
	return nil
}

// Close ends the file: lookups find nothing. It is unmapped, so tensors and slices that came from it must not be touched
// any more, at once or when the last Hold is released. A second Close does nothing.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, mapped := f.data, f.mapped
	f.data, f.mapped = nil, false
	f.keys, f.byKey, f.tensors, f.byName = nil, nil, nil, nil
	if mapped {
		f.unmap = data
	}
	return f.drop()
}

// Version returns the format version, 2 or 3.
func (f *File) Version() int { return int(f.version) }

// Alignment returns the alignment of tensor data within the file, a power of two.
func (f *File) Alignment() int64 { return f.alignment }

// Tensors returns the descriptions of all tensors in file order. The slice belongs to the file: do not write to it.
func (f *File) Tensors() []TensorInfo { return f.tensors }

// Info returns the description of the named tensor.
func (f *File) Info(name string) (TensorInfo, bool) {
	i, ok := f.byName[name]
	if !ok {
		return TensorInfo{}, false
	}
	return f.tensors[i], true
}

// Bytes returns the data of the named tensor as they lie in the file, without a copy. The error wraps ErrNotFound, or
// fs.ErrClosed after Close.
func (f *File) Bytes(name string) ([]byte, error) {
	if f.data == nil {
		return nil, fmt.Errorf("gguf: tensor %q: %w", name, fs.ErrClosed)
	}
	t, ok := f.Info(name)
	if !ok {
		return nil, fmt.Errorf("gguf: tensor %q: %w", name, ErrNotFound)
	}
	return f.data[t.Offset : t.Offset+t.Size : t.Offset+t.Size], nil
}

// Tensor returns the named tensor as a CPU tensor over the file's own memory. If an element type lies at an address that
// is no multiple of its size (in data given to Parse, or under a small alignment), it is a copy in Go memory instead.
// Errors are those of Bytes.
func (f *File) Tensor(name string) (tensor.Tensor, error) {
	b, err := f.Bytes(name)
	if err != nil {
		return tensor.Tensor{}, err
	}
	t, _ := f.Info(name)
	if size := uintptr(t.DType.Size()); size > 1 && uintptr(unsafe.Pointer(unsafe.SliceData(b)))%size != 0 {
		words := make([]uint64, (len(b)+7)/8)
		aligned := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(b))
		copy(aligned, b)
		b = aligned
	}
	return tensor.New(unsafe.Pointer(unsafe.SliceData(b)), t.DType, t.Shape...)
}

// Discard tells the operating system that the pages of the named tensor are not needed for now, for example after its
// data were copied elsewhere: they stop counting as memory of the process and are read again if touched. It does nothing
// for files that are not mapped.
func (f *File) Discard(name string) {
	if t, ok := f.Info(name); ok && f.mapped {
		discard(f.data, t.Offset, t.Size)
	}
}
