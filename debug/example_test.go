package debug_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/debug"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
)

// A server with a mux, a registry and a device of its own: the page shows the health of what its table has.
func ExampleHandler() {
	r := registry.New(registry.Options{})
	if err := cpu.Register(r); err != nil {
		log.Fatal(err)
	}
	dev, err := cpu.Open(cpu.Options{Registry: r})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	var devices device.Table
	if err := devices.Add(dev); err != nil {
		log.Fatal(err)
	}
	o := debug.Options{Registry: r, Devices: &devices}
	mux := http.NewServeMux()
	page := debug.Handler(o)
	mux.Handle(debug.Path, page)
	mux.Handle(debug.Path+"/", page)

	for _, d := range debug.Collect(o).Devices { // the page's data
		fmt.Println(d.ID, d.Health)
	}
	// Output: cpu:0 ok
}
