package device

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/opmux/opmux/tensor"
)

// Table knows the backends and holds the devices that were opened through it, one of each identity. The zero value is
// ready. Methods are safe for concurrent use.
type Table struct {
	mu       sync.Mutex
	backends map[tensor.Kind]Backend
	open     map[tensor.Device]Device
}

var defaultTable Table

// DefaultTable is the process-wide table, to which imported backends add themselves.
func DefaultTable() *Table { return &defaultTable }

// Register adds the backend of a kind. A kind outside the list is ErrUnavailable, a second backend ErrRegistered.
func (t *Table) Register(b Backend) error {
	k := b.Kind()
	if !k.Valid() {
		return fmt.Errorf("device: backend of %v: %w", k, ErrUnavailable)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.backends[k] != nil {
		return fmt.Errorf("device: backend of %v: %w", k, ErrRegistered)
	}
	if t.backends == nil {
		t.backends = map[tensor.Kind]Backend{}
	}
	t.backends[k] = b
	return nil
}

// Backend returns the backend of a kind, nil if none is registered.
func (t *Table) Backend(k tensor.Kind) Backend {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.backends[k]
}

// Backends lists the registered backends by kind.
func (t *Table) Backends() (out []Backend) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range tensor.NumKinds {
		if b := t.backends[tensor.Kind(k)]; b != nil {
			out = append(out, b)
		}
	}
	return out
}

// Open returns the open device of that identity, opening it on first use. ErrUnavailable where no backend is
// registered; otherwise the backend's error.
func (t *Table) Open(id tensor.Device) (Device, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := t.open[id]; d != nil {
		return d, nil
	}
	b := t.backends[id.Kind]
	if b == nil {
		return nil, fmt.Errorf("device: %v: no backend of this kind is linked in: %w", id, ErrUnavailable)
	}
	d, err := b.Open(id.Index)
	if err != nil {
		return nil, err
	}
	t.put(id, d)
	return d, nil
}

// Add puts a device that was opened elsewhere into the table; ErrRegistered if its identity is taken.
func (t *Table) Add(d Device) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := d.ID()
	if t.open[id] != nil {
		return fmt.Errorf("device: %v: %w", id, ErrRegistered)
	}
	t.put(id, d)
	return nil
}

func (t *Table) put(id tensor.Device, d Device) {
	if t.open == nil {
		t.open = map[tensor.Device]Device{}
	}
	t.open[id] = d
}

// Lookup returns the open device of that identity.
func (t *Table) Lookup(id tensor.Device) (Device, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d, ok := t.open[id]
	return d, ok
}

// Devices lists the open devices by kind and index.
func (t *Table) Devices() []Device {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := make([]tensor.Device, 0, len(t.open))
	for id := range t.open {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b tensor.Device) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
	})
	out := make([]Device, len(ids))
	for i, id := range ids {
		out[i] = t.open[id]
	}
	return out
}

// Remove takes a device out of the table without closing it; it reports whether it was there.
func (t *Table) Remove(id tensor.Device) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.open[id]
	delete(t.open, id)
	return ok
}

// Close closes every open device and empties the table; the backends stay. Errors are joined.
func (t *Table) Close() error {
	t.mu.Lock()
	open := t.open
	t.open = nil
	t.mu.Unlock()
	var errs []error
	for _, d := range open {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
