package prometheus_test

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	opmux "github.com/opmux/opmux/debug/prometheus"
	"github.com/opmux/opmux/registry"
)

// A server registers one collector beside its own metrics.
func ExampleNewCollector() {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(opmux.NewCollector(opmux.Options{Registry: registry.New(registry.Options{Strict: true})}))
	families, err := metrics.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range families {
		if f.GetName() == "opmux_strict" {
			fmt.Println(f.GetName(), f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	// Output: opmux_strict 1
}
