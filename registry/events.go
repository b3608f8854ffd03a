package registry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/opmux/opmux/tensor"
)

// EventKind says what happened.
type EventKind uint8

// Kinds of events.
const (
	EventSelected    EventKind = iota // a chain's head was looked up for the first time
	EventChanged                      // ... and it is another one than before
	EventNoProvider                   // a lookup found no usable provider
	EventReference                    // an op ran on a borrowed CPU kernel (policy warn)
	EventFallback                     // a kernel left a call to the next one: From, To, Reason
	EventCaps                         // a device's capability record was published
	EventRefused                      // a registration was refused
	EventQuarantined                  // a self-test failed
	EventUnknownName                  // an option names nothing registered
)

// String returns the words that logs use.
func (k EventKind) String() string {
	return [...]string{"selected", "selection changed", "no provider", "reference used", "fallback", "caps published",
		"registration refused", "quarantined", "unknown name"}[min(k, EventUnknownName)]
}

// Event is something that an operator may want to see. Fields that do not apply are zero.
type Event struct {
	Kind     EventKind
	Op       Op
	OpName   string
	Device   tensor.Device
	Kernel   string
	Provider string
	Priority int32
	From, To string // kernels of a fallback; To is empty at the end of a chain
	Reason   Reason
	Detail   string
	Gen      uint64 // of the snapshot
}

// Observer hears of events, each once per (event, slot, kernels, reason) until ResetOpProviderStats. It may be called on any
// goroutine and must not launch ops or change the registry.
type Observer interface{ Observe(Event) }

// LogObserver logs events to l: warnings for borrowed kernels, refused registrations, quarantines and unknown names,
// information for the rest.
func LogObserver(l *slog.Logger) Observer { return logObserver{l} }

type logObserver struct{ l *slog.Logger }

func (o logObserver) Observe(e Event) {
	level := slog.LevelInfo
	switch e.Kind {
	case EventReference, EventRefused, EventQuarantined, EventUnknownName, EventNoProvider:
		level = slog.LevelWarn
	}
	var attrs []slog.Attr
	add := func(k, v string) {
		if v != "" {
			attrs = append(attrs, slog.String(k, v))
		}
	}
	add("op", e.OpName)
	if e.Kind != EventUnknownName {
		add("device", e.Device.String())
	}
	add("kernel", e.Kernel)
	add("provider", e.Provider)
	if e.Kind == EventSelected || e.Kind == EventChanged {
		attrs = append(attrs, slog.Int("priority", int(e.Priority)))
	}
	add("from", e.From)
	add("to", e.To)
	if e.Kind == EventFallback {
		add("reason", e.Reason.String())
	}
	add("detail", e.Detail)
	o.l.LogAttrs(context.Background(), level, "opmux: "+e.Kind.String(), attrs...)
}

// setObserver chooses who hears of events: the given observer, else the logger, else standard error if statistics are
// on, else nobody.
func (r *Registry) setObserver(o Options) {
	if o.Stats {
		r.callStats.Store(true)
	}
	obs := o.Observer
	switch {
	case obs != nil:
	case o.Logger != nil:
		obs = LogObserver(o.Logger)
	case o.Stats:
		obs = LogObserver(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	default:
		r.observer.Store(nil)
		return
	}
	r.observer.Store(&obs)
}

// emit delivers an event unless it was delivered before.
func (r *Registry) emit(e Event) {
	obs := r.observer.Load()
	if obs == nil {
		return
	}
	key := eventKey{e.Kind, e.Op, e.Device, fmt.Sprint(e.Kernel, "|", e.From, "|", e.To, "|", e.Reason, "|", e.Detail)}
	if _, dup := r.seen.LoadOrStore(key, true); dup {
		return
	}
	e.Gen = r.cur.Load().gen
	(*obs).Observe(e)
}

type eventKey struct {
	kind EventKind
	op   Op
	dev  tensor.Device
	rest string
}

// announce notes the first use of a freshly compiled chain: what it selects, and its chain where OPMUX_EXPLAIN asks.
func (c *chain) announce() {
	sl := c.slot
	r := sl.r
	if r.callStats.Load() && c.err == nil {
		sl.selections.Add(1)
	}
	if c.announced.Load() || !c.announced.CompareAndSwap(false, true) {
		return
	}
	e := Event{Op: sl.op, OpName: c.desc.Name, Device: sl.dev}
	if c.err != nil {
		e.Kind, e.Detail = EventNoProvider, c.err.Error()
	} else {
		k := c.steps[0].k
		name := k.provider()
		old := sl.last.Swap(&name)
		e.Kind, e.Kernel, e.Provider, e.Priority = EventSelected, k.g.p.Kernel, name, k.priority()
		if old != nil && *old != name {
			e.Kind, e.Detail = EventChanged, "was "+*old
		}
	}
	r.emit(e)
	if !r.callStats.Load() {
		c.hot.Store(true)
	}
	r.explainOnce(c)
}

// explainOnce prints the chain of an op that the options list.
func (r *Registry) explainOnce(c *chain) {
	o := &r.cur.Load().opts
	for _, n := range o.Explain {
		if (n == "all" || n == c.desc.Name || strings.EqualFold(n, c.desc.Name)) && c.slot.explained.CompareAndSwap(false, true) {
			w := o.ExplainTo
			if w == nil {
				w = os.Stderr
			}
			fmt.Fprint(w, r.Explain(c.slot.op, c.slot.dev).String())
			return
		}
	}
}

// fellBack tells once that step i left a call to the next one.
func (c *chain) fellBack(i int, reason Reason) {
	s := &c.steps[i]
	s.seen.Or(1 << (reason & 31))
	e := Event{Kind: EventFallback, Op: c.slot.op, OpName: c.desc.Name, Device: c.slot.dev, From: s.g.p.Kernel, Reason: reason}
	if i+1 < len(c.steps) {
		e.To = c.steps[i+1].g.p.Kernel
	}
	c.slot.r.emit(e)
}
