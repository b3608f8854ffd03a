package prometheus

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

type args struct{ registry.Header }

func answers(s registry.Status) registry.Launcher {
	return func(*registry.Queue, unsafe.Pointer) registry.Status { return s }
}

// define adds an op whose CPU kernels give these answers, best first.
func define(t testing.TB, r *registry.Registry, name string, status ...registry.Status) registry.Op {
	op, err := r.Define(registry.Descriptor{Name: name, Record: reflect.TypeFor[args]()})
	require.NoError(t, err)
	for i, s := range status {
		_, err := r.RegisterOpProvider(op, tensor.CPU, registry.OpProvider{Name: fmt.Sprintf("p%d", i), Priority: int32(-i), Fn: answers(s)})
		require.NoError(t, err)
	}
	return op
}

func launch(q *registry.Queue, op registry.Op, times int) (err error) {
	for range times {
		err = errors.Join(err, q.Launch(op, unsafe.Pointer(&args{})))
	}
	return err
}

func TestCollector(t *testing.T) {
	r := registry.New(registry.Options{})
	var tab device.Table
	dev := devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: tensor.XPU}, Unified: true})
	require.NoError(t, tab.Add(dev))
	require.NoError(t, r.SetDeviceProviderCaps(dev.ID(), dev.Caps()))
	dq, err := dev.NewQueue()
	require.NoError(t, err)
	q, lent := r.NewQueue(nil), r.NewQueue(dq)
	good := define(t, r, "good", registry.Decline(registry.ReasonShape), 0)
	require.NoError(t, launch(q, good, 3))
	require.NoError(t, launch(lent, good, 2))
	require.Error(t, launch(q, define(t, r, "bad", registry.Failure(1)), 1))
	require.Error(t, launch(q, define(t, r, "bare"), 4))
	wrong := define(t, r, "wrong", 0)
	_, err = r.RegisterOpProvider(wrong, tensor.CPU, registry.OpProvider{Name: "liar", Priority: 9, Fn: answers(0), SelfTest: func(*registry.Queue) error { return errors.New("no") }})
	require.NoError(t, err)
	require.NoError(t, launch(q, wrong, 1))
	dev.Lose(errors.New("gone"))

	c := NewCollector(Options{Registry: r, Devices: &tab})
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP opmux_device_healthy Whether a device that reports its health works.
# TYPE opmux_device_healthy gauge
opmux_device_healthy{device="xpu:0"} 0
# HELP opmux_dropped_series_total Label sets counted under "other" because there are too many.
# TYPE opmux_dropped_series_total counter
opmux_dropped_series_total 0
# HELP opmux_kernel_declined_total Calls that a kernel left to the next one, by reason.
# TYPE opmux_kernel_declined_total counter
opmux_kernel_declined_total{device="cpu:0",kernel="p0_good",op="good",provider="p0",reason="shape"} 3
opmux_kernel_declined_total{device="xpu:0",kernel="p0_good",op="good",provider="vt-cpu-ref",reason="shape"} 2
opmux_kernel_declined_total{device="cpu:0",kernel="liar_wrong",op="wrong",provider="liar",reason="device-state"} 1
# HELP opmux_kernel_executed_total Calls that a kernel answered.
# TYPE opmux_kernel_executed_total counter
opmux_kernel_executed_total{device="cpu:0",kernel="liar_wrong",op="wrong",provider="liar"} 0
opmux_kernel_executed_total{device="cpu:0",kernel="p0_bad",op="bad",provider="p0"} 0
opmux_kernel_executed_total{device="cpu:0",kernel="p0_good",op="good",provider="p0"} 0
opmux_kernel_executed_total{device="cpu:0",kernel="p0_wrong",op="wrong",provider="p0"} 1
opmux_kernel_executed_total{device="cpu:0",kernel="p1_good",op="good",provider="p1"} 3
opmux_kernel_executed_total{device="xpu:0",kernel="p0_bad",op="bad",provider="vt-cpu-ref"} 0
opmux_kernel_executed_total{device="xpu:0",kernel="p0_good",op="good",provider="vt-cpu-ref"} 0
opmux_kernel_executed_total{device="xpu:0",kernel="p0_wrong",op="wrong",provider="vt-cpu-ref"} 0
opmux_kernel_executed_total{device="xpu:0",kernel="p1_good",op="good",provider="vt-cpu-ref"} 2
# HELP opmux_kernels_quarantined Kernels that are not trusted at present.
# TYPE opmux_kernels_quarantined gauge
opmux_kernels_quarantined{device="cpu:0"} 1
opmux_kernels_quarantined{device="xpu:0"} 0
# HELP opmux_op_unserved_total Lookups and calls that found no usable kernel.
# TYPE opmux_op_unserved_total counter
opmux_op_unserved_total{device="cpu:0",op="bare"} 4
# HELP opmux_reference_launches_total Calls that ran on a CPU kernel lent to another device.
# TYPE opmux_reference_launches_total counter
opmux_reference_launches_total{device="xpu:0",op="good"} 2
# HELP opmux_strict Whether the first fallback is an error.
# TYPE opmux_strict gauge
opmux_strict 0
`), "opmux_device_healthy", "opmux_dropped_series_total", "opmux_kernel_declined_total", "opmux_kernel_executed_total", "opmux_kernels_quarantined",
		"opmux_op_unserved_total", "opmux_reference_launches_total", "opmux_strict"))
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// Label sets are bounded: those that come late share one series, totals stay right and no counter goes back.
func TestSeriesAreBounded(t *testing.T) {
	r := registry.New(registry.Options{})
	q := r.NewQueue(nil)
	c := NewCollector(Options{Registry: r, Devices: &device.Table{}, MaxSeries: 3})
	sum := func() (all, other, dropped float64) {
		reg := prometheus.NewPedanticRegistry()
		require.NoError(t, reg.Register(c))
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				switch f.GetName() {
				case "opmux_kernel_executed_total":
					all += m.GetCounter().GetValue()
					if m.GetLabel()[0].GetValue() == Other {
						other = m.GetCounter().GetValue()
					}
					require.LessOrEqual(t, len(f.GetMetric()), 4)
				case "opmux_dropped_series_total":
					dropped = m.GetCounter().GetValue()
				}
			}
		}
		return all, other, dropped
	}
	for i := range 3 {
		require.NoError(t, launch(q, define(t, r, fmt.Sprint("early", i), 0), 1))
	}
	all, other, dropped := sum()
	require.Equal(t, []float64{3, 0, 0}, []float64{all, other, dropped})
	for i := range 10 {
		require.NoError(t, launch(q, define(t, r, fmt.Sprint("a-late", i), 0), 2))
	}
	all, other, dropped = sum()
	require.Equal(t, []float64{23, 20, 20}, []float64{all, other, dropped}, "ten sets of executed and of failed have no series")
	all, other, dropped = sum()
	require.Equal(t, []float64{23, 20, 20}, []float64{all, other, dropped}, "a second scrape says the same")

	// A kernel without a series goes and comes again: what it did stays counted.
	op, err := r.Define(registry.Descriptor{Name: "b-late", Record: reflect.TypeFor[args]()})
	require.NoError(t, err)
	for n := range 2 {
		g, err := r.RegisterOpProvider(op, tensor.CPU, registry.OpProvider{Name: "p", Fn: answers(0)})
		require.NoError(t, err)
		require.NoError(t, launch(q, op, 5))
		for _, gone := range []bool{false, true} {
			if gone {
				require.NoError(t, g.Close())
			}
			all, other, dropped = sum()
			require.Equal(t, []float64{float64(28 + 5*n), float64(25 + 5*n), 22}, []float64{all, other, dropped})
		}
	}
}

// A table that changes all the time changes values and adds no series; equal tables have equal numbers.
func TestDigestIsNoLabel(t *testing.T) {
	r := registry.New(registry.Options{})
	require.NoError(t, launch(r.NewQueue(nil), define(t, r, "good", 0, 0), 1))
	metrics := prometheus.NewPedanticRegistry()
	metrics.MustRegister(NewCollector(Options{Registry: r, Devices: &device.Table{}}))
	scrape := func() (series int, digest float64) {
		families, err := metrics.Gather()
		require.NoError(t, err)
		for _, f := range families {
			series += len(f.GetMetric())
			if f.GetName() == "opmux_table_digest" {
				digest = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return series, digest
	}
	series, on := scrape()
	want, err := strconv.ParseUint(r.Digest()[:12], 16, 64)
	require.NoError(t, err)
	require.Equal(t, want, uint64(on), "exact")
	for range 3 {
		restore, err := r.Disable("p0")
		require.NoError(t, err)
		n, off := scrape()
		require.Equal(t, series, n)
		require.NotEqual(t, on, off)
		restore()
		n, again := scrape()
		require.Equal(t, series, n)
		require.Equal(t, on, again)
	}
}

// What was left without a kernel stays counted when a kernel is back.
func TestUnservedStays(t *testing.T) {
	r := registry.New(registry.Options{})
	op, q := define(t, r, "good", 0), r.NewQueue(nil)
	restore, err := r.Disable("p0")
	require.NoError(t, err)
	require.ErrorIs(t, launch(q, op, 3), registry.ErrNoKernel)
	restore()
	require.NoError(t, launch(q, op, 1))
	require.NoError(t, testutil.CollectAndCompare(NewCollector(Options{Registry: r, Devices: &device.Table{}}), strings.NewReader(`
# HELP opmux_op_unserved_total Lookups and calls that found no usable kernel.
# TYPE opmux_op_unserved_total counter
opmux_op_unserved_total{device="cpu:0",op="good"} 3
`), "opmux_op_unserved_total"))
}

// Scrapes over HTTP run beside launches and beside each other.
func TestScrape(t *testing.T) {
	r := registry.New(registry.Options{})
	op := define(t, r, "good", 0)
	reg := prometheus.NewRegistry()
	reg.MustRegister(NewCollector(Options{Registry: r}))
	h := promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 50 {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "opmux_kernel_executed_total") {
					t.Error(w.Code, w.Body)
				}
			}
		})
		wg.Go(func() {
			if err := launch(r.NewQueue(nil), op, 1000); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.InDelta(t, 2000, testutil.ToFloat64(only{NewCollector(Options{Registry: r})}), 0)
}

// only passes the executed series on, the way ToFloat64 wants it.
type only struct{ c *Collector }

func (o only) Describe(ch chan<- *prometheus.Desc) { ch <- executed.desc }

func (o only) Collect(ch chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric, 100)
	o.c.Collect(all)
	close(all)
	for m := range all {
		if m.Desc() == executed.desc {
			ch <- m
		}
	}
}
