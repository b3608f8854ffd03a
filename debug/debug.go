// Package debug shows a running process what opmux does in it: which kernel ran how often on which device, which calls
// fell back and why, what is quarantined, disabled or lost. Importing it for its side effect,
//
//	import _ "github.com/opmux/opmux/debug"
//
// adds to http.DefaultServeMux
//
//	/debug/opmux                a page for people; ?refresh=5 loads it anew every 5 seconds (at most 3600)
//	/debug/opmux?format=json    the same as data (a State); so does the header Accept: application/json
//
// and to package expvar the variable "opmux" (Counters). The page changes nothing and answers requests of this machine
// only; expvar serves its variables, under /debug/vars, to everyone who reaches that mux. Programs that want another mux,
// other rights or another registry use Handler:
//
//	h := debug.Handler(debug.Options{Registry: r, AllowChanges: true})
//	mux.Handle("/debug/opmux", h)
//	mux.Handle("/debug/opmux/", h)
//
// The health of devices is read from a table. A device that was opened by its own package (cpu.Open) is in none: it is
// shown as unknown until the program adds it,
//
//	err := device.DefaultTable().Add(dev)
//
// or gives Handler a table that has it (Options.Devices). Remove it from the table before it is closed.
//
// A page reads the registry's snapshot and its counters; launches go on meanwhile.
package debug

import (
	"crypto/rand"
	"expvar"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
)

// Path is where Handler answers.
const Path = "/debug/opmux"

// Options say what a page shows and who may do what. The zero value shows the default registry to this machine, for
// reading.
type Options struct {
	Registry *registry.Registry // nil: registry.Default
	Devices  *device.Table      // whose health is shown, see the package's text; nil: device.DefaultTable
	// AllowRemote answers every address. Without it a request is refused (403) that comes from another machine, that a
	// proxy says to have passed on, or that names a host that is not this machine, as a rebound DNS name does. A proxy on
	// this machine that names neither itself nor the host that was asked for looks like this machine.
	AllowRemote bool
	// AllowChanges lets POST requests disable and enable kernels and switch strict mode. They need the page's token, and
	// from a browser its origin. With AllowRemote everyone who can read the page can do it: put a login in front.
	AllowChanges bool
}

func (o Options) withDefaults() Options {
	if o.Registry == nil {
		o.Registry = registry.Default()
	}
	if o.Devices == nil {
		o.Devices = device.DefaultTable()
	}
	return o
}

func init() {
	h := Handler(Options{})
	http.Handle(Path, h)
	http.Handle(Path+"/", h)
	expvar.Publish("opmux", expvar.Func(func() any { return ReadCounters(registry.Default()) }))
}

// handler answers one page's requests.
type handler struct {
	o     Options
	token string // "" unless changes are allowed
}

// Handler serves the page under Path. With Options.AllowChanges it also takes
//
//	POST /debug/opmux/disable   name=KERNEL-OR-PROVIDER[@op][@device]
//	POST /debug/opmux/enable    name=an entry that is disabled
//	POST /debug/opmux/strict    on=true or false
//
// each with token=the page's token (State.Token). A change is answered with the way back to the page (303), or with the
// new State where JSON was asked for. Wrong requests get a plain text, or {"error": text}: 400 a malformed or unknown
// value, 403 without the right; always a plain text: 404 another path, 405 another method.
func Handler(o Options) http.Handler {
	h := &handler{o: o}
	if o.AllowChanges {
		h.token = rand.Text()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, h.page)
	mux.HandleFunc("GET "+Path+"/{$}", h.page)
	for name, change := range changes {
		mux.HandleFunc("POST "+Path+"/"+name, h.changed(change))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Cache-Control", "no-store")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "same-origin")
		head.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		if !o.AllowRemote && !local(r) {
			refuse(w, r, "this page answers the machine that it runs on, and nobody else (debug.Options.AllowRemote)", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// proxyHeaders are what proxies add to a request that they pass on.
var proxyHeaders = []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip"}

// local reports whether a request comes from this machine and was meant for it.
func local(r *http.Request) bool {
	for _, name := range proxyHeaders {
		if r.Header.Get(name) != "" {
			return false
		}
	}
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr); ok && a != nil {
		return true
	}
	return loopback(r.RemoteAddr) && loopback(r.Host)
}

// loopback reports whether a host, with or without a port, is this machine by name or address.
func loopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a.Unmap().IsLoopback()
}

// page answers in HTML or JSON.
func (h *handler) page(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	refresh, err := seconds(query.Get("refresh"))
	if err != nil {
		refuse(w, r, err.Error(), http.StatusBadRequest)
		return
	}
	switch format := query.Get("format"); {
	case asksJSON(r):
		writeJSON(w, h.state(), http.StatusOK)
	case format == "" || format == "html":
		writePage(w, h.state(), refresh)
	default:
		refuse(w, r, "format is html or json", http.StatusBadRequest)
	}
}

// state is what the page shows now.
func (h *handler) state() *State {
	s := Collect(h.o)
	s.Token = h.token
	return &s
}
