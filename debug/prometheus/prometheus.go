// Package prometheus exports what opmux counts as Prometheus metrics. It is a module of its own, so that programs without
// Prometheus do not depend on its client:
//
//	prometheus.MustRegister(opmux.NewCollector(opmux.Options{}))
//
// The metrics, read from the registry's snapshot at each scrape:
//
//	opmux_kernel_executed_total{op,device,kernel,provider}        calls that a kernel answered
//	opmux_kernel_failed_total{op,device,kernel,provider}          calls that failed in a kernel
//	opmux_kernel_declined_total{op,device,kernel,provider,reason} calls that a kernel left to the next one
//	opmux_reference_launches_total{op,device}                     calls that ran on a borrowed CPU kernel
//	opmux_op_unserved_total{op,device}                            lookups and calls that found no usable kernel
//	opmux_kernels_quarantined{device}                             kernels that are not trusted at present
//	opmux_device_healthy{device}                                  1 or 0, for devices of Options.Devices that report their health
//	opmux_snapshot_generation                                     of the registry
//	opmux_strict                                                  1 while strict mode is on
//	opmux_table_digest                                            the first 48 bits of the registry's digest, as a number
//	opmux_info{go}                                                always 1
//	opmux_dropped_series_total                                    label sets that were counted under "other" instead
//
// Hosts that choose alike have equal opmux_table_digest, so count(count_values("digest", opmux_table_digest)) > 1 finds a
// host that differs. It is a value and no label: disabling a kernel changes it, and adds no series.
//
// A device that was opened by its own package (cpu.Open) is in no table, and has no opmux_device_healthy, until the program
// adds it: device.DefaultTable().Add(dev).
//
// Reasons "forwarded" and "domain" are attribution, not fallbacks (see registry.Counts). Every kernel of a chain has its
// executed and failed series from the start; a declined series comes with its first call.
package prometheus

import (
	"runtime"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
)

// Other is the value of every label of the series that stands for those above Options.MaxSeries.
const Other = "other"

// Options say what a Collector exports. The zero value exports the default registry and table of devices.
type Options struct {
	Registry *registry.Registry // nil: registry.Default
	Devices  *device.Table      // whose health is exported; nil: device.DefaultTable
	// MaxSeries bounds the label sets of each metric: ops and kernels may come from outside, and each set costs memory in
	// every server that scrapes. Those beyond it add up in one series whose labels are all Other. A set keeps its place, so
	// that counters never go back. 0: 4096.
	MaxSeries int
}

// Collector is a prometheus.Collector.
type Collector struct {
	o Options

	mu    sync.Mutex
	known map[*family]map[labelSet]bool // label sets that have a series of their own
	late  map[*family]*late             // those that have none
}

// labelSet are the values of a family's labels.
type labelSet [5]string

// late are the label sets of a family that came when there was no place left.
type late struct {
	last  map[labelSet]float64 // what each said last
	total float64              // of a counter's sets, also of those that are gone
}

// family is one metric.
type family struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	labels int
}

func newFamily(kind prometheus.ValueType, name, help string, labels ...string) *family {
	return &family{prometheus.NewDesc("opmux_"+name, help, labels, nil), kind, len(labels)}
}

var (
	executed    = newFamily(prometheus.CounterValue, "kernel_executed_total", "Calls that a kernel answered.", "op", "device", "kernel", "provider")
	failed      = newFamily(prometheus.CounterValue, "kernel_failed_total", "Calls that failed in a kernel.", "op", "device", "kernel", "provider")
	declined    = newFamily(prometheus.CounterValue, "kernel_declined_total", "Calls that a kernel left to the next one, by reason.", "op", "device", "kernel", "provider", "reason")
	borrowed    = newFamily(prometheus.CounterValue, "reference_launches_total", "Calls that ran on a CPU kernel lent to another device.", "op", "device")
	unserved    = newFamily(prometheus.CounterValue, "op_unserved_total", "Lookups and calls that found no usable kernel.", "op", "device")
	quarantined = newFamily(prometheus.GaugeValue, "kernels_quarantined", "Kernels that are not trusted at present.", "device")
	healthy     = newFamily(prometheus.GaugeValue, "device_healthy", "Whether a device that reports its health works.", "device")
	generation  = newFamily(prometheus.GaugeValue, "snapshot_generation", "Generation of the registry's snapshot.")
	strict      = newFamily(prometheus.GaugeValue, "strict", "Whether the first fallback is an error.")
	info        = newFamily(prometheus.GaugeValue, "info", "The process; always 1.", "go")
	digest      = newFamily(prometheus.GaugeValue, "table_digest", "The first 48 bits of the digest of the table of kernels; equal on hosts that choose alike.")
	drops       = newFamily(prometheus.CounterValue, "dropped_series_total", "Label sets counted under \"other\" because there are too many.")
)

// NewCollector returns a collector of what o says.
func NewCollector(o Options) *Collector {
	if o.Registry == nil {
		o.Registry = registry.Default()
	}
	if o.Devices == nil {
		o.Devices = device.DefaultTable()
	}
	if o.MaxSeries <= 0 {
		o.MaxSeries = 4096
	}
	return &Collector{o: o, known: map[*family]map[labelSet]bool{}, late: map[*family]*late{}}
}

// Describe sends every metric's description.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range []*family{executed, failed, declined, borrowed, unserved, quarantined, healthy, generation, strict, digest, info, drops} {
		ch <- f.desc
	}
}

// Collect reads the registry. Scrapes may run side by side.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := scrape{c: c, values: map[*family]map[labelSet]float64{}}
	snap := c.o.Registry.Snapshot()
	for i := range snap.Ops {
		s.chain(&snap.Ops[i])
	}
	for _, h := range c.o.Devices.Health() {
		if h.Known {
			s.add(healthy, truth(h.Err == nil), h.Device.String())
		}
	}
	s.add(generation, float64(snap.Generation))
	s.add(strict, truth(c.o.Registry.Strict()))
	if d, ok := short(c.o.Registry.Digest()); ok {
		s.add(digest, d)
	}
	s.add(info, 1, runtime.Version())
	n := 0
	for f, l := range c.late {
		n += len(l.last)
		if f.kind == prometheus.CounterValue {
			s.put(f, f.others(), l.total)
		}
	}
	s.add(drops, float64(n))
	for f, values := range s.values {
		for labels, v := range values {
			ch <- prometheus.MustNewConstMetric(f.desc, f.kind, v, labels[:f.labels]...)
		}
	}
}

// scrape adds up the series of one scrape.
type scrape struct {
	c      *Collector
	values map[*family]map[labelSet]float64
}

func (s *scrape) chain(e *registry.Explanation) {
	bad := 0.0
	for _, list := range [][]registry.Step{e.Chain, e.Dropped} {
		for _, k := range list {
			s.add(executed, float64(k.Counts.Executed), e.Op, e.Device, k.Kernel, k.Provider)
			s.add(failed, float64(k.Counts.Failed), e.Op, e.Device, k.Kernel, k.Provider)
			for reason, n := range k.Counts.Declined {
				s.add(declined, float64(n), e.Op, e.Device, k.Kernel, k.Provider, reason)
			}
			bad += truth(k.State == registry.DropQuarantined.String())
		}
	}
	s.add(quarantined, bad, e.Device)
	if e.Borrowed > 0 {
		s.add(borrowed, float64(e.Borrowed), e.Op, e.Device)
	}
	if e.Stats.Fallbacks > 0 {
		s.add(unserved, float64(e.Stats.Fallbacks), e.Op, e.Device)
	}
}

// add adds v to a series, or to the one of all others where there is no place for it.
func (s *scrape) add(f *family, v float64, labels ...string) {
	var key labelSet
	copy(key[:], labels)
	if s.c.admit(f, key) {
		s.put(f, key, v)
		return
	}
	l := s.c.late[f]
	if l == nil {
		l = &late{last: map[labelSet]float64{}}
		s.c.late[f] = l
	}
	last, seen := l.last[key]
	if !seen && len(l.last) == maxLate {
		s.put(f, f.others(), v)
		return
	}
	l.last[key] = v
	switch {
	case f.kind != prometheus.CounterValue:
		s.put(f, f.others(), v)
	case v >= last:
		l.total += v - last
	default: // it began anew
		l.total += v
	}
}

func (s *scrape) put(f *family, key labelSet, v float64) {
	if s.values[f] == nil {
		s.values[f] = map[labelSet]float64{}
	}
	s.values[f][key] += v
}

// others are the labels of the series that stands for the sets without one.
func (f *family) others() (key labelSet) {
	for i := range f.labels {
		key[i] = Other
	}
	return key
}

// admit reports whether a label set has a series of its own; a set that once got none never gets one.
func (c *Collector) admit(f *family, key labelSet) bool {
	if c.known[f][key] {
		return true
	}
	if len(c.known[f]) >= c.o.MaxSeries {
		return false
	}
	if c.known[f] == nil {
		c.known[f] = map[labelSet]bool{}
	}
	c.known[f][key] = true
	return true
}

// maxLate bounds what is remembered, for each metric, of sets without a series. Further ones are added up as they are.
const maxLate = 1 << 16

// short is the head of a digest as a number; float64 has 53 bits for it.
func short(digest string) (float64, bool) {
	n, err := strconv.ParseUint(digest[:min(len(digest), 12)], 16, 48)
	return float64(n), err == nil
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
