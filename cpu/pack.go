package cpu

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// PackedBytes is the size of the buffer that PackWeight allocates for n rows of k elements: with the rows that fill up
// the last panel for a dtype that is packed, and the plain size for others.
func (d *Device) PackedBytes(t tensor.DType, n, k int64) (int64, error) {
	x, err := packed(t, n, k)
	if err != nil {
		return 0, err
	}
	return x.Bytes()
}

// packed returns the metadata of a packed weight.
func packed(t tensor.DType, n, k int64) (tensor.Tensor, error) {
	x, err := tensor.New(nil, t, n, k)
	if err != nil {
		return tensor.Tensor{}, err
	}
	if _, ok := lanes(t); ok {
		x.Layout = tensor.Lane16
	}
	return x, nil
}

// PackWeight copies a weight into huge-page memory. Q4_0, Q8_0, F32, F16 and BF16 become Lane16, other dtypes stay
// Strided. The parts are read once, from start to end, so that pages of a mapped file can be dropped behind it. Errors:
// tensor.ErrShape, ErrDType, ErrRank and ErrLayout for parts that do not fit, device.ErrOutOfMemory, device.ErrClosed.
func (d *Device) PackWeight(parts []tensor.Tensor, progress func(bytes int64)) (tensor.Tensor, device.Buffer, error) {
	fail := func(i int, kind error) (tensor.Tensor, device.Buffer, error) {
		return tensor.Tensor{}, nil, fmt.Errorf("cpu: packing: part %d is %v, the first %v: %w", i, &parts[i], &parts[0], kind)
	}
	if len(parts) == 0 {
		return tensor.Tensor{}, nil, fmt.Errorf("cpu: packing: no parts: %w", tensor.ErrShape)
	}
	n, k, t := int64(0), parts[0].Last(), parts[0].DType
	for i := range parts {
		p := &parts[i]
		switch {
		case p.Rank != 2:
			return fail(i, tensor.ErrRank)
		case p.DType != t:
			return fail(i, tensor.ErrDType)
		case p.Shape[1] != k:
			return fail(i, tensor.ErrShape)
		case !p.Contiguous() || p.Host == nil && p.Numel() != 0:
			return fail(i, tensor.ErrLayout)
		}
		if n += p.Shape[0]; n < 0 {
			return fail(i, tensor.ErrOverflow)
		}
	}
	x, err := packed(t, n, k)
	if err != nil {
		return tensor.Tensor{}, nil, err
	}
	size, err := x.Bytes()
	if err != nil {
		return tensor.Tensor{}, nil, err
	}
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return tensor.Tensor{}, nil, fmt.Errorf("cpu: packing: %w", device.ErrClosed)
	}
	buf, err := newBuffer(d.id, size)
	if err != nil {
		return tensor.Tensor{}, nil, err
	}
	x.Host, x.Device = buf.Host(), d.id
	row, _ := t.RowBytes(k)
	job := &packing{parts: parts, dst: buf.mem.Bytes(), row: int(row), k: int(k), progress: progress}
	job.format, job.lane16 = lanes(t)
	d.pool.Run(simd.Panels(int(n)), job)
	return x, buf, nil
}

// packing fills one panel of 16 rows a chunk.
type packing struct {
	parts  []tensor.Tensor
	dst    []byte
	row, k int // bytes and elements of a row
	format simd.Format
	lane16 bool

	mu       sync.Mutex
	progress func(int64)
}

// Do implements pool.Task.
func (p *packing) Do(panel, _ int) {
	size := simd.Lanes * p.row
	first, rows := panel*simd.Lanes, 0
	dst := p.dst[panel*size:]
	dst = dst[:min(size, len(dst))]
	var gathered []byte // rows of a panel that lies across parts
	for i := range p.parts {
		x := &p.parts[i]
		n := int(x.Shape[0])
		if rows == simd.Lanes {
			break
		}
		if first >= n {
			first -= n
			continue
		}
		take := min(n-first, simd.Lanes-rows)
		src := unsafe.Slice((*byte)(unsafe.Add(x.Host, first*p.row)), take*p.row)
		switch {
		case !p.lane16:
			copy(dst[rows*p.row:], src)
		case rows == 0 && (take == simd.Lanes || i == len(p.parts)-1):
			p.format.PackPanel(dst, src, take, p.k)
		default:
			gathered = append(gathered, src...)
		}
		rows += take
		first = 0
	}
	if gathered != nil {
		p.format.PackPanel(dst, gathered, rows, p.k)
	}
	if p.progress != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.progress(int64(rows * p.row))
	}
}
