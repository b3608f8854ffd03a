package registry

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// TestModel replays random changes against a naive single-threaded model that recomputes everything from a flat list,
// and compares chains, drops, names, presence, what runs, and the counters.
func TestModel(t *testing.T) {
	for seed := range uint64(30) {
		m := newModel(t, seed)
		for range 250 {
			m.step()
			m.compare()
		}
	}
}

type modelProvider struct {
	op    int
	kind  tensor.Kind
	name  string
	prio  int32
	major int32 // predicate: at least
	takes bool
	g     *Registration
}

type modelEntry struct {
	name string
	op   int // -1: all
	dev  *tensor.Device
	kind bool // dev stands for its kind
}

func (e modelEntry) String() string {
	s := e.name
	if e.op >= 0 {
		s += fmt.Sprintf("@op%d", e.op)
	}
	if e.dev != nil && e.kind {
		s += "@" + e.dev.Kind.String()
	} else if e.dev != nil {
		s += "@" + e.dev.String()
	}
	return s
}

func (e modelEntry) hits(p *modelProvider, dev tensor.Device) bool {
	if e.name != p.name && e.name != p.kernel() || e.op >= 0 && e.op != p.op {
		return false
	}
	return e.dev == nil || e.dev.Kind == dev.Kind && (e.kind || e.dev.Index == dev.Index)
}

func (p *modelProvider) kernel() string { return fmt.Sprintf("%s_op%d", p.name, p.op) }

type modelSet struct {
	entries []modelEntry
	restore func()
}

type modelKey struct {
	op      int
	dev     tensor.Device
	kernel  string
	borrows bool
}

type modelCount struct{ executed, declined uint64 }

type model struct {
	t      *testing.T
	rnd    *rand.Rand
	r      *Registry
	ops    []Op
	devs   []tensor.Device
	queues []*Queue
	scoped map[int]*Queue // by device: a view that disables the provider "p0"
	provs  []*modelProvider
	caps   map[tensor.Device]device.ProviderCaps
	manual map[string]modelEntry
	sets   []*modelSet
	policy map[tensor.Device]ReferencePolicy
	count  map[modelKey]*modelCount
	failed map[string]uint64 // by op and device: launches that found nothing
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), r: New(Options{}), devs: []tensor.Device{cpu0, xpu0, xpu1, cuda0},
		scoped: map[int]*Queue{}, caps: map[tensor.Device]device.ProviderCaps{}, manual: map[string]modelEntry{},
		policy: map[tensor.Device]ReferencePolicy{}, count: map[modelKey]*modelCount{}, failed: map[string]uint64{}}
	for i := range 3 {
		m.ops = append(m.ops, define(t, m.r, fmt.Sprint("op", i)))
	}
	for i, d := range m.devs {
		m.queues = append(m.queues, m.r.NewQueue(&fakeQueue{dev: d}))
		m.scoped[i] = m.queues[i].With(WithDisabled(context.Background(), "p0"))
	}
	return m
}

func pick[T any](r *rand.Rand, s []T) T { return s[r.IntN(len(s))] }

func (m *model) entry() modelEntry {
	e := modelEntry{name: fmt.Sprint("p", m.rnd.IntN(5)), op: -1}
	if m.rnd.IntN(4) == 0 {
		e.name += fmt.Sprint("_op", m.rnd.IntN(3))
	}
	if m.rnd.IntN(2) == 0 {
		e.op = m.rnd.IntN(3)
	}
	if m.rnd.IntN(2) == 0 {
		d := pick(m.rnd, m.devs)
		e.dev, e.kind = &d, m.rnd.IntN(2) == 0
	}
	return e
}

func (m *model) step() {
	switch m.rnd.IntN(8) {
	case 0, 1: // register
		p := &modelProvider{op: m.rnd.IntN(3), kind: pick(m.rnd, m.devs).Kind, name: fmt.Sprint("p", m.rnd.IntN(5)),
			prio: int32(m.rnd.IntN(3)), major: int32(m.rnd.IntN(3)), takes: m.rnd.IntN(3) > 0}
		dup := slices.ContainsFunc(m.provs, func(o *modelProvider) bool { return o.op == p.op && o.kind == p.kind && o.name == p.name })
		fn := ran(p.name)
		if !p.takes {
			fn = declines(ReasonShape)
		}
		o := OpProvider{Name: p.name, Priority: p.prio, Fn: fn}
		if p.major > 0 {
			o.Supports = func(c device.ProviderCaps) Verdict {
				return Verdict{OK: c.Valid && c.ComputeMajor >= p.major, Reason: fmt.Sprint("major ", p.major)}
			}
		}
		g, err := m.r.RegisterOpProvider(m.ops[p.op], p.kind, o)
		if dup {
			require.ErrorIs(m.t, err, ErrDuplicate)
			return
		}
		require.NoError(m.t, err)
		p.g = g
		m.provs = append(m.provs, p)
	case 2: // withdraw
		if len(m.provs) > 0 && m.rnd.IntN(2) == 0 {
			i := m.rnd.IntN(len(m.provs))
			require.NoError(m.t, m.provs[i].g.Close())
			m.provs = slices.Delete(m.provs, i, i+1)
		}
	case 3: // caps
		d := pick(m.rnd, m.devs)
		c := device.ProviderCaps{}
		if m.rnd.IntN(3) > 0 {
			c = probed(int32(m.rnd.IntN(3)))
			c.Memory.HostReadsDeviceAlloc = m.rnd.IntN(2) == 0
		}
		require.NoError(m.t, m.r.SetDeviceProviderCaps(d, c))
		c.Valid = c.State == device.Probed
		m.caps[d] = c
	case 4: // the manual list
		e := m.entry()
		off := m.rnd.IntN(2) == 0
		matched, err := m.r.DisableOpProvider(e.String(), off)
		require.NoError(m.t, err)
		require.Equal(m.t, m.known(e), matched)
		if off {
			m.manual[e.String()] = e
		} else {
			delete(m.manual, e.String())
		}
	case 5: // a scoped set
		s := &modelSet{entries: []modelEntry{m.entry()}}
		var err error
		s.restore, err = m.r.Disable(s.entries[0].String())
		if !m.known(s.entries[0]) {
			require.ErrorIs(m.t, err, ErrUnknownName)
			return
		}
		require.NoError(m.t, err)
		m.sets = append(m.sets, s)
	case 6: // its end
		if len(m.sets) > 0 {
			i := m.rnd.IntN(len(m.sets))
			m.sets[i].restore()
			m.sets = slices.Delete(m.sets, i, i+1)
		}
	case 7:
		d, p := pick(m.rnd, m.devs), ReferencePolicy(m.rnd.IntN(4))
		require.NoError(m.t, m.r.SetReferencePolicy(d, p))
		m.policy[d] = p
	}
}

// known: some registration on some device of its kind is meant.
func (m *model) known(e modelEntry) bool {
	return slices.ContainsFunc(m.provs, func(p *modelProvider) bool {
		return (e.name == p.name || e.name == p.kernel()) && (e.op < 0 || e.op == p.op) && (e.dev == nil || e.dev.Kind == p.kind)
	})
}

func (m *model) disabled(p *modelProvider, dev tensor.Device) bool {
	for _, e := range m.manual {
		if e.hits(p, dev) {
			return true
		}
	}
	return slices.ContainsFunc(m.sets, func(s *modelSet) bool { return s.entries[0].hits(p, dev) })
}

// all lists an op's providers of a kind in chain order.
func (m *model) all(op int, kind tensor.Kind) (out []*modelProvider) {
	for _, p := range m.provs {
		if p.op == op && p.kind == kind {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *modelProvider) int {
		return cmp.Or(cmp.Compare(b.prio, a.prio), strings.Compare(a.kernel(), b.kernel()))
	})
	return out
}

// chain lists the usable providers, own and borrowed, and how many of them are own.
func (m *model) chain(op int, dev tensor.Device) (out []*modelProvider, own int) {
	usable := func(dev tensor.Device) {
		c := m.caps[dev]
		for _, p := range m.all(op, dev.Kind) {
			if !m.disabled(p, dev) && (p.major == 0 || c.Valid && c.ComputeMajor >= p.major) {
				out = append(out, p)
			}
		}
	}
	usable(dev)
	own = len(out)
	if dev.Kind != tensor.CPU && m.caps[dev].Memory.HostReadsDeviceAlloc && m.policy[dev] != ReferenceOff {
		usable(cpu0)
	}
	return out, own
}

func (m *model) compare() {
	oi, di := m.rnd.IntN(3), m.rnd.IntN(len(m.devs))
	op, dev := m.ops[oi], m.devs[di]
	chain, own := m.chain(oi, dev)
	var want, got, wantNames []string
	for _, p := range chain {
		want = append(want, p.kernel())
	}
	e := m.r.Explain(op, dev)
	for _, s := range e.Chain {
		got = append(got, s.Kernel)
	}
	require.Equal(m.t, want, got)
	require.Equal(m.t, own > 0, m.r.OpRegistered(op, dev))
	if own == 0 && len(chain) > 0 {
		wantNames = append(wantNames, ReferenceProviderName)
	}
	all := m.all(oi, dev.Kind)
	for _, p := range all {
		wantNames = append(wantNames, p.name)
	}
	require.Equal(m.t, wantNames, names(m.r, op, dev))
	require.Len(m.t, e.Dropped, len(all)-own)

	m.run(oi, di, m.queues[di], chain, own)
	var kept []*modelProvider
	keptOwn := own
	for i, p := range chain {
		if p.name != "p0" {
			kept = append(kept, p)
		} else if i < own {
			keptOwn--
		}
	}
	m.run(oi, di, m.scoped[di], kept, keptOwn)

	e = m.r.Explain(op, dev)
	for i, s := range e.Chain {
		c := m.counts(oi, dev, s.Kernel, i >= own)
		require.Equal(m.t, c.executed, s.Counts.Executed, "%v", e)
		require.Equal(m.t, c.declined, s.Counts.Declined["shape"], "%v", e)
	}
	var declines uint64
	for k, c := range m.count {
		if k.op == oi && k.dev == dev {
			declines += c.declined
		}
	}
	require.Equal(m.t, declines, e.Stats.Declines)
	require.Equal(m.t, m.failed[fmt.Sprint(oi, dev)], e.Stats.Fallbacks)
}

func (m *model) counts(op int, dev tensor.Device, kernel string, borrowed bool) *modelCount {
	k := modelKey{op, dev, kernel, borrowed}
	if m.count[k] == nil {
		m.count[k] = &modelCount{}
	}
	return m.count[k]
}

// run launches once and does the same on the model.
func (m *model) run(oi, di int, q *Queue, chain []*modelProvider, own int) {
	dev := m.devs[di]
	var a probeArgs
	err := q.Launch(m.ops[oi], unsafe.Pointer(&a))
	if len(chain) == 0 {
		m.failed[fmt.Sprint(oi, dev)]++
		require.ErrorIs(m.t, err, ErrNoKernel)
		return
	}
	for i, p := range chain {
		c := m.counts(oi, dev, p.kernel(), i >= own)
		if p.takes {
			c.executed++
			require.NoError(m.t, err)
			require.Equal(m.t, p.name, a.Ran)
			return
		}
		c.declined++
	}
	require.ErrorIs(m.t, err, ErrDeclined)
}
