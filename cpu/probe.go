package cpu

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/opmux/opmux/cpu/internal/limits"
	"github.com/opmux/opmux/cpu/internal/offheap"
	"github.com/opmux/opmux/cpu/internal/simd"
	"github.com/opmux/opmux/device"
)

var _ device.Prober = (*Device)(nil)

// Bounds of a probe's memory, and what a cache of unknown size is taken for.
const (
	probePiece   = 1 << 20 // bytes that a worker reads at a time
	probeLeast   = 64 << 20
	probeMost    = 1 << 30
	unknownCache = 48 << 20
)

// Probe is a device.Probe: it reads and multiplies with the instructions of the best tier that this CPU runs.
type Probe struct {
	dev   *Device
	mem   offheap.Block
	cache int64
	at    int // piece that is read next

	read  readLoop
	units []multiplyLoop
}

// NewProbe returns a probe whose memory is a quarter larger than the last-level cache, but at most a quarter of what is
// available. It is filled here, which takes some tenths of a second.
func (d *Device) NewProbe() (device.Probe, error) {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("cpu: probe: %w", device.ErrClosed)
	}
	p := &Probe{dev: d, cache: limits.Cache()}
	size := p.cache
	if size == 0 {
		size = unknownCache
	}
	size = min(max(size+size/4, probeLeast), probeMost)
	if _, available := limits.Memory(); available > 0 {
		size = min(size, max(available/4, probePiece))
	}
	var err error
	if p.mem, err = offheap.Alloc((size + probePiece - 1) / probePiece * probePiece); err != nil {
		return nil, fmt.Errorf("cpu: probe: %w: %w", device.ErrOutOfMemory, err)
	}
	// Pages that were never written are one page of zeros, which stays in the cache.
	d.pool.Run(p.pieces(), (*fillLoop)(p))
	for _, s := range simd.All() {
		if s.Missing() != "" {
			continue
		}
		if p.read.set == nil {
			p.read.set = s
		}
		p.add("f32", s.PeakF32)
		p.add("int8", s.PeakTiles)
		if s.PeakTiles(1) > 0 {
			p.add("int8-vector", s.PeakInt8)
		}
		p.add("int8", s.PeakInt8)
	}
	return p, nil
}

// add takes a loop for a unit that has none yet.
func (p *Probe) add(unit string, run func(n int) int) {
	if ops := run(1); ops > 0 && !slices.Contains(p.Units(), unit) {
		p.units = append(p.units, multiplyLoop{unit: unit, run: run, each: float64(ops)})
	}
}

func (p *Probe) pieces() int { return int(p.mem.Size() / probePiece) }

func (p *Probe) piece(i int) []byte { return p.mem.Bytes()[i%p.pieces()*probePiece:][:probePiece] }

// Cache returns the size of the last-level cache, 0 if the system does not say.
func (p *Probe) Cache() int64 { return p.cache }

// Size returns the bytes of the probe's memory, 0 after Close.
func (p *Probe) Size() int64 { return p.mem.Size() }

// Read reads n bytes, rounded up to whole pieces of 1 MiB.
func (p *Probe) Read(n int64) int64 {
	if n <= 0 || p.mem.Size() == 0 {
		return 0
	}
	pieces := int(min((n-1)/probePiece+1, math.MaxInt32))
	p.read.probe = p
	p.dev.pool.Run(pieces, &p.read)
	p.at = (p.at + pieces) % p.pieces()
	return int64(pieces) * probePiece
}

// Units returns "f32" and "int8", or neither where the portable tier is the best, and "int8-vector" where "int8" is that
// of tiles.
func (p *Probe) Units() (units []string) {
	for i := range p.units {
		units = append(units, p.units[i].unit)
	}
	return units
}

// Multiply runs n operations, rounded to whole chunks of at most some 100 µs, one for each thread at least.
func (p *Probe) Multiply(unit string, n float64) float64 {
	for i := range p.units {
		u := &p.units[i]
		if u.unit != unit || !(n > 0) {
			continue
		}
		chunk := max(20e6, 256*u.each) // operations
		chunks := min(max(math.Round(n/chunk), float64(p.dev.pool.Threads())), math.MaxInt32)
		u.loops = int(min(max(n/chunks/u.each, 1), chunk/u.each+1))
		p.dev.pool.Run(int(chunks), u)
		return chunks * float64(u.loops) * u.each
	}
	return 0
}

// Close frees the memory.
func (p *Probe) Close() error { return p.mem.Free() }

// fillLoop writes the probe's memory.
type fillLoop Probe

// Do implements pool.Task.
func (f *fillLoop) Do(i, _ int) {
	for j, b := 0, (*Probe)(f).piece(i); j < len(b); j += 64 {
		b[j] = byte(i + j/64)
	}
}

// readLoop reads pieces from the probe's position on.
type readLoop struct {
	probe *Probe
	set   *simd.Set
	sink  atomic.Uint64
}

// Do implements pool.Task.
func (r *readLoop) Do(i, _ int) { r.sink.Store(r.set.ReadBytes(r.probe.piece(r.probe.at + i))) }

// multiplyLoop does nothing but multiply.
type multiplyLoop struct {
	unit  string
	run   func(n int) int
	each  float64 // operations of run(1)
	loops int
}

// Do implements pool.Task.
func (m *multiplyLoop) Do(int, int) { m.run(m.loops) }
