package registry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

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
	EventTie                          // only their names order two kernels for some requests: From before To
	EventOracle                       // an oracle panicked or answered out of its range
	EventChosen                       // a request was answered anew: Kernel, Signature, Score, Source, Platform; only observers hear of it
)

// String returns the words that logs use.
func (k EventKind) String() string {
	return [...]string{"selected", "selection changed", "no provider", "reference used", "fallback", "caps published",
		"registration refused", "quarantined", "unknown name", "tie", "oracle failed", "chosen"}[min(k, EventChosen)]
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
	Time     time.Time

	// Of a request (EventChosen).
	Signature string
	Score     string
	Source    string // what decided: "heuristic", "override", or the oracle's name ("measured")
	Platform  string
}

// Observer hears of events. A selection is told once for each change, a fallback once for each (op, device, from, to,
// reason), a borrowed kernel once for each op and device; ResetOpProviderStats makes an op tell them again. It is called
// on any goroutine, without a lock, and must not launch ops or change the registry.
type Observer interface{ Observe(Event) }

// LogObserver logs events to l: warnings for fallbacks (but not those of a size threshold, where a kernel knows a faster
// one), borrowed kernels, refused registrations, quarantines and unknown names, information for the rest. Attributes, where
// they apply: op, device, kernel, provider, priority, from, to, reason, sig, score, source, platform, detail.
func LogObserver(l *slog.Logger) Observer { return logObserver{l} }

type logObserver struct{ l *slog.Logger }

func (o logObserver) Observe(e Event) {
	level := slog.LevelInfo
	switch e.Kind {
	case EventReference, EventRefused, EventQuarantined, EventUnknownName, EventNoProvider, EventTie, EventOracle:
		level = slog.LevelWarn
	case EventFallback:
		if e.Reason != ReasonThreshold {
			level = slog.LevelWarn
		}
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
	if e.Kind == EventSelected || e.Kind == EventChanged || e.Kind == EventChosen {
		attrs = append(attrs, slog.Int("priority", int(e.Priority)))
	}
	add("from", e.From)
	add("to", e.To)
	if e.Kind == EventFallback {
		add("reason", e.Reason.String())
	}
	add("sig", e.Signature)
	add("score", e.Score)
	add("source", e.Source)
	add("platform", e.Platform)
	add("detail", e.Detail)
	o.l.LogAttrs(context.Background(), level, "opmux: "+e.Kind.String(), attrs...)
}

// SetObserver makes o hear of events from now on, in place of what the options chose; nil: nobody.
func (r *Registry) SetObserver(o Observer) { r.observer.Store(&o) }

// observe chooses who hears of events unless SetObserver did: the options' observer, else their logger, else standard
// error if statistics are on, else nobody.
func (r *Registry) observe(o *Options) {
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
		return
	}
	r.observer.CompareAndSwap(nil, &obs)
}

// emit keeps an event and delivers it.
func (r *Registry) emit(e Event) {
	e.Gen, e.Time = r.cur.Load().gen, time.Now()
	if e.Kind != EventChosen { // many, and the record of each can be had
		r.recent.add(e)
	}
	if obs := r.observer.Load(); obs != nil && *obs != nil {
		(*obs).Observe(e)
	}
}

func (r *Registry) emitAll(list []Event) {
	for _, e := range list {
		r.emit(e)
	}
}

// Events returns the latest events, at most 256, oldest first. They are kept whether or not anybody observes.
func (r *Registry) Events() []Event { return r.recent.list() }

// ring holds the latest events.
type ring struct {
	mu   sync.Mutex
	n    uint64 // ever added
	last [256]Event
}

func (g *ring) add(e Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last[g.n%uint64(len(g.last))] = e
	g.n++
}

func (g *ring) list() []Event {
	g.mu.Lock()
	defer g.mu.Unlock()
	size := uint64(len(g.last))
	out := make([]Event, 0, min(g.n, size))
	for i := g.n - min(g.n, size); i < g.n; i++ {
		out = append(out, g.last[i%size])
	}
	return out
}

// fallback is what the event of a fallback is told once for.
type fallback struct {
	from, to string
	reason   Reason
}

// announce does what the first use of a freshly compiled chain brings with it: the event of what it selects, and its
// text where OPMUX_EXPLAIN asks for it. While call statistics are on it also counts every use.
func (c *chain) announce() {
	r := c.slot.r
	if !c.announced.Load() && c.announced.CompareAndSwap(false, true) {
		c.tell()
		r.explainOnce(c)
	}
	if c.err != nil {
		return
	}
	if r.callStats.Load() {
		c.slot.selections.Add(1)
		return
	}
	c.ready.Store(true)
	if r.callStats.Load() { // switched on meanwhile
		c.ready.Store(false)
	}
}

// tell sends the event of what a chain selects, where that is news.
func (c *chain) tell() {
	sl := c.slot
	e := Event{Kind: EventNoProvider, Op: sl.op, OpName: sl.desc.Name, Device: sl.dev}
	if c.err != nil {
		e.Detail = c.err.Error()
		sl.r.emit(e)
		return
	}
	head := &c.steps[0]
	e.Kind, e.Kernel, e.Provider, e.Priority = EventSelected, head.g.p.Kernel, head.provider(), head.priority()
	e.Detail = fmt.Sprintf("%d registered, %d usable", len(c.all), len(c.steps))
	if head.guard&guardDomain != 0 {
		e.Detail += ", the head takes only calls in its declared domain"
	}
	last := sl.last.Swap(&e.Provider)
	if last != nil {
		e.Kind, e.Detail = EventChanged, e.Detail+", was "+*last
	}
	if last == nil || *last != e.Provider {
		sl.r.emit(e)
	}
}

// explainOnce prints the chain of an op that the options list.
func (r *Registry) explainOnce(c *chain) {
	t := r.cur.Load()
	for _, n := range t.opts.Explain {
		if n != "all" && t.ops.means(n, c.slot.op) == 0 || !c.slot.explained.CompareAndSwap(false, true) {
			continue
		}
		w := t.opts.ExplainTo
		if w == nil {
			w = os.Stderr
		}
		fmt.Fprint(w, r.explain(c, t))
	}
}

// fellBack tells once that step i left a call to the next one, with the shapes of the call.
func (c *chain) fellBack(i int, reason Reason, h *Header) {
	s, sl := &c.steps[i], c.slot
	s.seen.Or(1 << (reason & 31))
	if reason == ReasonDomain {
		return
	}
	f := fallback{from: s.g.p.Kernel, reason: reason}
	if i+1 < len(c.steps) {
		f.to = c.steps[i+1].g.p.Kernel
	}
	sl.mu.Lock()
	told := sl.told[f]
	if sl.told == nil {
		sl.told = map[fallback]bool{}
	}
	sl.told[f] = true
	sl.mu.Unlock()
	if !told {
		sl.r.emit(Event{Kind: EventFallback, Op: sl.op, OpName: sl.desc.Name, Device: sl.dev, From: f.from, To: f.to, Reason: reason,
			Detail: shapes(sl.desc.operands(), h)})
	}
}
