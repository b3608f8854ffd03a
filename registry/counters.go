package registry

import (
	"sync"
	"sync/atomic"
)

// cell counts the launches of one kernel on one queue (or, as a base, those that belong to no queue). It fills whole
// pairs of cache lines, so that two queues never write to one.
type cell struct {
	executed  atomic.Uint64
	failed    atomic.Uint64
	forwarded atomic.Uint64 // launches through the kernel's fallback entry that the kernel has not yet answered for
	declined  [NumReasons]atomic.Uint64
	_         [256 - (3+NumReasons)*8]byte
}

// cellTable holds the cells of one queue by kernel number.
type cellTable struct {
	mu   sync.Mutex // writers
	list atomic.Pointer[[]*cell]
}

// at returns the cell of kernel id, nil if it was never used.
func (t *cellTable) at(id int) *cell {
	if l := *t.list.Load(); id < len(l) {
		return l[id]
	}
	return nil
}

//go:noinline
func (t *cellTable) add(id int) *cell {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.list.Load()
	if id < len(old) && old[id] != nil {
		return old[id]
	}
	list := make([]*cell, max(id+1, len(old)))
	copy(list, old)
	list[id] = new(cell)
	t.list.Store(&list)
	return list[id]
}

func newCellTable() *cellTable {
	t := &cellTable{}
	t.list.Store(new([]*cell))
	return t
}

// counterSet knows every kernel's base and every open queue's cells.
type counterSet struct {
	r       *Registry
	mu      sync.Mutex
	kernels []*kernelState // by id
	open    map[*cellTable]bool
}

func (c *counterSet) add(k *kernelState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.id = len(c.kernels)
	c.kernels = append(c.kernels, k)
}

// all returns every kernel known so far, by id.
func (c *counterSet) all() []*kernelState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kernels[:len(c.kernels):len(c.kernels)]
}

func (c *counterSet) attach(t *cellTable) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[*cellTable]bool{}
	}
	c.open[t] = true
}

// fold moves a queue's counts into the bases.
func (c *counterSet) fold(t *cellTable) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open[t] {
		return
	}
	delete(c.open, t)
	for id, from := range *t.list.Load() {
		if from != nil {
			c.kernels[id].base.take(from)
		}
	}
}

func (b *cell) take(from *cell) {
	b.executed.Add(from.executed.Load())
	b.failed.Add(from.failed.Load())
	for r := range from.declined {
		b.declined[r].Add(from.declined[r].Load())
	}
}

// Counts are a kernel's totals on one device since the registry was made.
type Counts struct {
	Executed uint64            `json:"executed"`
	Failed   uint64            `json:"failed"`
	Declined map[string]uint64 `json:"declined,omitempty"` // by reason; "forwarded" is attribution, "domain" a call that the kernel was not asked for
}

type kernelTotals struct {
	executed, failed uint64
	declined         [NumReasons]uint64
}

func (t *kernelTotals) add(c *cell) {
	t.executed += c.executed.Load()
	t.failed += c.failed.Load()
	for r := range c.declined {
		t.declined[r] += c.declined[r].Load()
	}
}

// declines counts what OpProviderStats.Declines sums: everything but attribution and calls outside a kernel's domain.
func (t *kernelTotals) declines() (n uint64) {
	for r, v := range t.declined {
		if Reason(r) != ReasonForwarded && Reason(r) != ReasonDomain {
			n += v
		}
	}
	return n
}

// served counts the calls that the kernel answered, by itself or by forwarding.
func (t *kernelTotals) served() uint64 { return t.executed + t.declined[ReasonForwarded] }

func (t *kernelTotals) counts() Counts {
	c := Counts{Executed: t.executed, Failed: t.failed}
	for r, v := range t.declined {
		if v > 0 {
			if c.Declined == nil {
				c.Declined = map[string]uint64{}
			}
			c.Declined[Reason(r).String()] = v
		}
	}
	return c
}

// totals sums every kernel's counters, by id.
func (c *counterSet) totals() []kernelTotals {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]kernelTotals, len(c.kernels))
	for id, k := range c.kernels {
		out[id].add(&k.base)
	}
	for t := range c.open {
		for id, from := range *t.list.Load() {
			if from != nil {
				out[id].add(from)
			}
		}
	}
	return out
}

// slotTotals are the totals of one op on one device since the registry was made.
type slotTotals struct{ selections, declines, noKernel uint64 }

// totals sums a slot's counters, given every kernel's.
func (sl *slot) totals(all []kernelTotals) slotTotals {
	t := slotTotals{sl.selections.Load(), sl.fallbacks.Load() + sl.notes.Load(), sl.noKernel.Load()}
	for id, k := range sl.r.cells.all()[:len(all)] {
		if k.slot == sl {
			t.declines += all[id].declines()
		}
	}
	return t
}
