package debug_test

import (
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/debug"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// args is the record of the tests' own op.
type args struct{ registry.Header }

// small is a registry with one op, "probe", served by "first", which declines (shape), then "second".
func small(t testing.TB, o registry.Options) (*registry.Registry, registry.Op) {
	r := registry.New(o)
	op, err := r.Define(registry.Descriptor{Name: "probe", Record: reflect.TypeFor[args]()})
	require.NoError(t, err)
	for _, p := range []registry.OpProvider{
		{Name: "first", Priority: 2, Fn: func(*registry.Queue, unsafe.Pointer) registry.Status { return registry.Decline(registry.ReasonShape) }},
		{Name: "second", Priority: 1, Fn: func(*registry.Queue, unsafe.Pointer) registry.Status { return 0 }},
	} {
		_, err := r.RegisterOpProvider(op, tensor.CPU, p)
		require.NoError(t, err)
	}
	return r, op
}

func launch(t testing.TB, q *registry.Queue, op registry.Op, times int) {
	for range times {
		require.NoError(t, q.Launch(op, unsafe.Pointer(&args{})))
	}
}

// request asks a handler as a program on this machine would.
func request(h http.Handler, method, path string, form url.Values, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://localhost:6060"+path, strings.NewReader(form.Encode()))
	r.RemoteAddr = "127.0.0.1:50000"
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// answer is the part of a State's JSON that tests read back.
type answer struct {
	Token    string
	Strict   bool
	Totals   debug.Totals
	Disabled []string
	Dropped  []debug.Absence
}

func state(t *testing.T, h http.Handler) (s answer) {
	w := request(h, http.MethodGet, debug.Path+"?format=json", nil)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s))
	return s
}

// The state counts what ran, names each fallback with its reason, and orders by traffic.
func TestState(t *testing.T) {
	r, op := small(t, registry.Options{Strict: false, Disable: []string{"nothing-like-it"}})
	q := r.NewQueue(nil)
	launch(t, q, op, 3)
	var tab device.Table
	dev := devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: tensor.XPU}, Unified: true})
	require.NoError(t, tab.Add(dev))
	lost := dev.Lose(errors.New("gone"))
	s := debug.Collect(debug.Options{Registry: r, Devices: &tab})

	require.Equal(t, debug.Totals{Executed: 3, Fallbacks: 3, Ops: 1, Kernels: 2}, s.Totals)
	require.Len(t, s.Fallbacks, 1)
	f := s.Fallbacks[0]
	require.False(t, f.First.IsZero())
	f.First = s.Process.Started
	require.Equal(t, debug.Fallback{Op: "probe", Device: "cpu:0", From: "first_probe", To: "second_probe", Reason: "shape", Calls: 3, First: s.Process.Started}, f)
	require.Equal(t, []debug.Use{
		{Op: "probe", Device: "cpu:0", Kernel: "second_probe", Provider: "second", Tier: "native", Executed: 3},
		{Op: "probe", Device: "cpu:0", Kernel: "first_probe", Provider: "first", Tier: "native", Declined: map[string]uint64{"shape": 3}},
	}, s.Kernels)
	require.Len(t, s.Chains, 1)
	require.EqualValues(t, 3, s.Chains[0].Executed)
	require.Len(t, s.Warnings, 1)
	require.Contains(t, s.Warnings[0].Text, "nothing-like-it")
	require.Equal(t, []string{"nothing-like-it"}, s.Disabled)
	require.Equal(t, "fallback", s.Events[0].Kind, "the newest event comes first")
	require.Equal(t, "shape", s.Events[0].Reason)
	require.NotZero(t, s.Generation)
	require.Len(t, s.Devices, 2)
	require.Equal(t, []string{"cpu:0 unknown", "xpu:0 lost"}, []string{s.Devices[0].ID + " " + s.Devices[0].Health, s.Devices[1].ID + " " + s.Devices[1].Health})
	require.Contains(t, s.Devices[0].Note, "opened outside the table")
	require.Empty(t, s.Devices[0].Error)
	require.Equal(t, lost.Error(), s.Devices[1].Error)
	require.Empty(t, s.Devices[1].Note)
	require.Empty(t, s.Token)
	require.Empty(t, s.Environment, "instances read no environment")
}

// An op that nothing serves, failed calls and borrowed kernels are reported as such.
func TestStateOfTrouble(t *testing.T) {
	r := registry.New(registry.Options{})
	dev := devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: tensor.XPU}, Unified: true})
	require.NoError(t, r.SetDeviceProviderCaps(dev.ID(), dev.Caps()))
	dq, err := dev.NewQueue()
	require.NoError(t, err)
	q := r.NewQueue(dq)
	define := func(name string, fn registry.Launcher) registry.Op {
		op, err := r.Define(registry.Descriptor{Name: name, Record: reflect.TypeFor[args]()})
		require.NoError(t, err)
		if fn != nil {
			_, err = r.RegisterOp(op, tensor.CPU, fn)
			require.NoError(t, err)
		}
		return op
	}
	launch(t, q, define("lent", func(*registry.Queue, unsafe.Pointer) registry.Status { return 0 }), 2)
	bad := define("bad", func(*registry.Queue, unsafe.Pointer) registry.Status { return registry.Failure(7) })
	require.Error(t, q.Launch(bad, unsafe.Pointer(&args{})))
	require.Error(t, q.Launch(define("bare", nil), unsafe.Pointer(&args{})))
	s := debug.Collect(debug.Options{Registry: r})
	require.EqualValues(t, 2, s.Totals.Borrowed)
	require.Len(t, s.Borrowed, 1)
	require.Equal(t, []any{"lent", "xpu:0", registry.ReferenceProviderName, uint64(2)}, []any{s.Borrowed[0].Op, s.Borrowed[0].Device, s.Borrowed[0].Provider, s.Borrowed[0].Executed})
	require.Len(t, s.Failures, 1)
	require.Equal(t, []any{"bad", uint64(1)}, []any{s.Failures[0].Op, s.Failures[0].Failed})
	require.Len(t, s.Unserved, 1)
	require.Equal(t, []any{"bare", "xpu:0", uint64(1)}, []any{s.Unserved[0].Op, s.Unserved[0].Device, s.Unserved[0].Calls})
	require.Contains(t, s.Unserved[0].Error, "bare")
	require.EqualValues(t, 1, s.Totals.Unserved)
	page := request(debug.Handler(debug.Options{Registry: r}), http.MethodGet, debug.Path, nil).Body.String()
	for _, id := range []string{"failures", "unserved", "borrowed"} {
		require.Contains(t, page, `id="`+id+`"`)
	}
}

// Calls outside a kernel's declared domain are no fallbacks: the chain shows them, the list of called kernels does not.
func TestDomainIsNoFallback(t *testing.T) {
	r := registry.New(registry.Options{})
	op, err := r.Define(registry.Descriptor{Name: "probe", Record: reflect.TypeFor[args]()})
	require.NoError(t, err)
	for i, status := range []registry.Status{registry.Decline(registry.ReasonDomain), 0} {
		_, err := r.RegisterOpProvider(op, tensor.CPU, registry.OpProvider{Name: fmt.Sprint("p", i), Priority: int32(-i),
			Fn: func(*registry.Queue, unsafe.Pointer) registry.Status { return status }})
		require.NoError(t, err)
	}
	launch(t, r.NewQueue(nil), op, 2)
	s := debug.Collect(debug.Options{Registry: r})
	require.Empty(t, s.Fallbacks)
	require.Zero(t, s.Totals.Fallbacks)
	require.Len(t, s.Kernels, 1)
	require.Equal(t, map[string]uint64{"domain": 2}, s.Chains[0].Steps[0].Counts.Declined)
}

// A configuration's file, its state and its rules are shown.
func TestStateOfConfig(t *testing.T) {
	r, _ := small(t, registry.Options{})
	c, err := registry.LoadConfig(strings.NewReader(`{"version": 1, "rules": [{"match": {"op": "probe"}, "use": "kernel:second_probe"}]}`), "opmux.json")
	require.NoError(t, err)
	require.NoError(t, r.SetConfig(c))
	s := debug.Collect(debug.Options{Registry: r})
	require.Equal(t, "active", s.Config.State)
	page := request(debug.Handler(debug.Options{Registry: r}), http.MethodGet, debug.Path, nil).Body.String()
	require.Contains(t, page, "opmux.json")
	require.Contains(t, page, "second_probe")
}

// What JSON cannot say is an error and not half an answer.
func TestStateWithoutJSON(t *testing.T) {
	r, _ := small(t, registry.Options{})
	p := device.Platform{Vendor: "test", Kind: tensor.XPU, Name: "broken", Bandwidth: math.NaN()}
	require.NoError(t, r.SetDeviceProviderCaps(tensor.Device{Kind: tensor.XPU}, device.ProviderCaps{State: device.Probed, Platform: &p}))
	h := debug.Handler(debug.Options{Registry: r})
	w := request(h, http.MethodGet, debug.Path+"?format=json", nil)
	require.Equal(t, http.StatusInternalServerError, w.Code)
	require.Contains(t, w.Body.String(), "NaN")
	require.Contains(t, request(h, http.MethodGet, debug.Path, nil).Body.String(), "broken")
}

// Reasons stand by their calls, and by name where those are equal.
func TestReasonsAreSorted(t *testing.T) {
	r := registry.New(registry.Options{})
	op, err := r.Define(registry.Descriptor{Name: "probe", Record: reflect.TypeFor[args]()})
	require.NoError(t, err)
	reasons := []registry.Reason{registry.ReasonShape, registry.ReasonDType, registry.ReasonAlignment, registry.ReasonStride, registry.ReasonStride}
	_, err = r.RegisterOpProvider(op, tensor.CPU, registry.OpProvider{Name: "picky", Fn: func(*registry.Queue, unsafe.Pointer) registry.Status {
		next := reasons[0]
		reasons = reasons[1:]
		return registry.Decline(next)
	}})
	require.NoError(t, err)
	for q := r.NewQueue(nil); len(reasons) > 0; {
		require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&args{})), registry.ErrDeclined)
	}
	page := request(debug.Handler(debug.Options{Registry: r}), http.MethodGet, debug.Path, nil).Body.String()
	_, table, _ := strings.Cut(page, `id="kernels"`)
	require.Regexp(t, `stride 2</span><span[^>]*>alignment 1</span><span[^>]*>dtype 1</span><span[^>]*>shape 1<`, table)
}

func TestHandlerFormats(t *testing.T) {
	r, _ := small(t, registry.Options{})
	h := debug.Handler(debug.Options{Registry: r})
	accept := func(v string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("Accept", v) } }
	for _, c := range []struct {
		path, accept string
		code         int
		is           string
	}{
		{"", "", 200, "text/html; charset=utf-8"},
		{"/", "text/html,application/xhtml+xml,*/*;q=0.8", 200, "text/html; charset=utf-8"},
		{"?format=html", "application/json", 200, "text/html; charset=utf-8"},
		{"", "application/json", 200, "application/json"},
		{"?format=json", "text/html", 200, "application/json"},
		{"?format=xml", "", 400, "text/plain; charset=utf-8"},
		{"/else", "", 404, "text/plain; charset=utf-8"},
	} {
		w := request(h, http.MethodGet, debug.Path+c.path, nil, accept(c.accept))
		require.Equal(t, c.code, w.Code, "%+v", c)
		require.Equal(t, c.is, w.Header().Get("Content-Type"), "%+v", c)
		require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	}
	page := request(h, http.MethodGet, debug.Path, nil).Body.String()
	require.Contains(t, page, `id="calm"`)
	require.NotContains(t, page, "<form", "nothing can be changed")
	require.NotContains(t, page, "<script")
}

// Only this machine is answered, unless the options say otherwise.
func TestHandlerLocalOnly(t *testing.T) {
	r, _ := small(t, registry.Options{})
	for _, c := range []struct {
		name, remote, host, header string
		code                       int
	}{
		{"loopback", "127.0.0.1:1", "localhost:6060", "", 200},
		{"loopback 6", "[::1]:1", "[::1]:6060", "", 200},
		{"mapped", "[::ffff:127.0.0.1]:1", "127.0.0.1", "", 200},
		{"another machine", "192.0.2.7:1", "localhost", "", 403},
		{"a rebound name", "127.0.0.1:1", "evil.example:6060", "", 403},
		{"a name that looks local", "127.0.0.1:1", "localhost.evil.example", "", 403},
		{"behind a proxy", "127.0.0.1:1", "localhost", "X-Forwarded-For", 403},
		{"behind a new proxy", "127.0.0.1:1", "localhost", "Forwarded", 403},
		{"behind a gateway", "127.0.0.1:1", "localhost", "Via", 403},
		{"behind a proxy that tells the host", "127.0.0.1:1", "localhost", "X-Forwarded-Host", 403},
		{"behind a proxy that tells the address", "127.0.0.1:1", "localhost", "X-Real-IP", 403},
		{"no address", "", "localhost", "", 403},
	} {
		ask := func(r *http.Request) {
			r.RemoteAddr, r.Host = c.remote, c.host
			if c.header != "" {
				r.Header.Set(c.header, "for=192.0.2.7")
			}
		}
		require.Equal(t, c.code, request(debug.Handler(debug.Options{Registry: r}), http.MethodGet, debug.Path, nil, ask).Code, c.name)
		require.Equal(t, 200, request(debug.Handler(debug.Options{Registry: r, AllowRemote: true}), http.MethodGet, debug.Path, nil, ask).Code, c.name)
	}
}

// Changes need the right, the method, the origin and the token; then the next call runs on another kernel.
func TestHandlerChanges(t *testing.T) {
	r, op := small(t, registry.Options{})
	h := debug.Handler(debug.Options{Registry: r, AllowChanges: true})
	token := state(t, h).Token
	require.NotEmpty(t, token)
	other := state(t, debug.Handler(debug.Options{Registry: r, AllowChanges: true})).Token
	require.NotEqual(t, token, other)
	form := func(kv ...string) url.Values {
		v := url.Values{}
		for i := 0; i < len(kv); i += 2 {
			v.Set(kv[i], kv[i+1])
		}
		return v
	}
	header := func(k, v string) func(*http.Request) { return func(r *http.Request) { r.Header.Set(k, v) } }
	for _, what := range []string{"disable", "enable", "strict"} {
		path, want := debug.Path+"/"+what, form("token", token, "name", "first", "on", "true")
		for name, w := range map[string]*httptest.ResponseRecorder{
			"GET":             request(h, http.MethodGet, path+"?"+want.Encode(), nil),
			"DELETE":          request(h, http.MethodDelete, path, want),
			"no right":        request(debug.Handler(debug.Options{Registry: r}), http.MethodPost, path, want),
			"no token":        request(h, http.MethodPost, path, form("name", "first", "on", "true")),
			"another's token": request(h, http.MethodPost, path, form("token", other, "name", "first", "on", "true")),
			"token in query":  request(h, http.MethodPost, path+"?token="+token, form("name", "first", "on", "true")),
			"cross-site":      request(h, http.MethodPost, path, want, header("Sec-Fetch-Site", "cross-site")),
			"another origin":  request(h, http.MethodPost, path, want, header("Origin", "http://evil.example")),
			"remote":          request(h, http.MethodPost, path, want, func(r *http.Request) { r.RemoteAddr = "192.0.2.7:1" }),
		} {
			code := http.StatusForbidden
			if name == "GET" || name == "DELETE" {
				code = http.StatusMethodNotAllowed
				require.Equal(t, "POST", w.Header().Get("Allow"))
			}
			require.Equal(t, code, w.Code, "%s %s: %s", what, name, w.Body)
		}
	}
	require.Empty(t, r.Disabled(), "nothing has changed so far")
	require.False(t, r.Strict())

	post := func(what string, kv ...string) *httptest.ResponseRecorder {
		return request(h, http.MethodPost, debug.Path+"/"+what, form(append(kv, "token", token)...), header("Origin", "http://localhost:6060"))
	}
	for _, c := range []struct{ what, key, value, says string }{
		{"disable", "name", "frist", `nearest: first`},
		{"disable", "name", "<b>", "malformed"},
		{"disable", "name", "", "malformed"},
		{"enable", "name", "first", "no such entry"},
		{"strict", "on", "perhaps", "not true or false"},
		{"strict", "on", strings.Repeat("x", 1<<20), "too large"},
	} {
		w := post(c.what, c.key, c.value)
		require.Equal(t, http.StatusBadRequest, w.Code, "%+.60v", c)
		require.Contains(t, w.Body.String(), c.says)
		require.Contains(t, w.Header().Get("Content-Type"), "text/plain")
	}

	require.Equal(t, http.StatusSeeOther, post("disable", "name", "first@probe").Code)
	require.Equal(t, http.StatusSeeOther, post("disable", "name", "first@probe").Code, "twice")
	q := r.NewQueue(nil)
	launch(t, q, op, 1)
	s := state(t, h)
	require.Equal(t, []string{"first@probe"}, s.Disabled)
	require.Zero(t, s.Totals.Fallbacks)
	require.Equal(t, []debug.Absence{{Op: "probe", Device: "cpu:0", Kernel: "first_probe", Provider: "first", State: "disabled", Detail: "by first@probe"}}, s.Dropped)
	require.Equal(t, http.StatusSeeOther, post("enable", "name", "first@probe").Code)
	launch(t, q, op, 1)
	require.EqualValues(t, 1, state(t, h).Totals.Fallbacks)

	require.Equal(t, http.StatusSeeOther, post("strict", "on", "true").Code)
	require.True(t, state(t, h).Strict)
	require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&args{})), registry.ErrStrict)
	require.Equal(t, http.StatusSeeOther, post("strict", "on", "false").Code)
	launch(t, q, op, 1)

	// asked for by format or by header, the answer is data, also to a change and to a wrong one
	for name, ask := range map[string]func(what string, kv ...string) *httptest.ResponseRecorder{
		"header": func(what string, kv ...string) *httptest.ResponseRecorder {
			return request(h, http.MethodPost, debug.Path+"/"+what, form(kv...), header("Accept", "application/json"))
		},
		"query": func(what string, kv ...string) *httptest.ResponseRecorder {
			return request(h, http.MethodPost, debug.Path+"/"+what+"?format=json", form(kv...))
		},
		"field": func(what string, kv ...string) *httptest.ResponseRecorder {
			return request(h, http.MethodPost, debug.Path+"/"+what, form(append(kv, "format", "json")...))
		},
	} {
		for i, w := range []*httptest.ResponseRecorder{ask("disable", "name", "first", "token", token), ask("disable", "name", "frist", "token", token),
			ask("disable", "name", "first"), ask("enable", "name", "first", "token", token)} {
			require.Equal(t, []int{http.StatusOK, http.StatusBadRequest, http.StatusForbidden, http.StatusOK}[i], w.Code, name)
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			var got struct {
				Error    string
				Disabled *[]string
			}
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got), w.Body)
			if w.Code == http.StatusOK {
				require.Equal(t, [][]string{0: {"first"}, 3: {}}[i], *got.Disabled)
			} else {
				require.Contains(t, got.Error, []string{1: "nearest: first", 2: "token"}[i])
			}
		}
	}

	restore, err := r.Disable("second")
	require.NoError(t, err)
	defer restore()
	w := post("enable", "name", "second")
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), "by the program itself")
}

// What programs outside wrote into errors and descriptions comes out as text.
func TestPageEscapes(t *testing.T) {
	r, op := small(t, registry.Options{Disable: []string{"x"}, Override: map[string]string{"a" + hostile: "b"}})
	for i, p := range []registry.OpProvider{
		{Name: "refused", Doc: hostile, Supports: func(device.ProviderCaps) registry.Verdict { return registry.No(hostile) }},
		{Name: "wrong", Priority: 9, Doc: hostile, SelfTest: func(*registry.Queue) error { return errors.New(hostile + strings.Repeat("long ", 10_000)) }},
	} {
		p.Fn = func(*registry.Queue, unsafe.Pointer) registry.Status { return registry.Status(i) }
		_, err := r.RegisterOpProvider(op, tensor.CPU, p)
		require.NoError(t, err)
	}
	require.NoError(t, r.SetDeviceProviderCaps(tensor.Device{Kind: tensor.CUDA}, device.ProviderCaps{State: device.Failed, Err: errors.New(hostile), Arch: hostile,
		Libraries: []device.Library{{Name: hostile, Path: hostile, Version: hostile, Err: hostile}}}))
	launch(t, r.NewQueue(nil), op, 1)
	for _, refresh := range []string{"", "?refresh=0", "?refresh=5"} {
		page := request(debug.Handler(debug.Options{Registry: r, AllowChanges: true}), http.MethodGet, debug.Path+refresh, nil).Body.String()
		require.NotContains(t, page, "<script")
		require.NotContains(t, page, "<img")
		require.Greater(t, strings.Count(page, "&lt;script&gt;"), 8)
		require.NotContains(t, page, strings.Repeat("long ", 1000), "long texts are cut")
	}
}

// What the page cannot do with a query is an error, in the form that was asked for, and never repeated.
func TestQueries(t *testing.T) {
	r, _ := small(t, registry.Options{})
	h := debug.Handler(debug.Options{Registry: r})
	require.Equal(t, "5", request(h, http.MethodGet, debug.Path+"?refresh=5", nil).Header().Get("Refresh"))
	for _, stays := range []string{"", "?refresh=", "?refresh=0"} {
		w := request(h, http.MethodGet, debug.Path+stays, nil)
		require.Equal(t, http.StatusOK, w.Code)
		require.Empty(t, w.Header().Get("Refresh"))
	}
	for _, query := range []string{"refresh=-1", "refresh=x", "refresh=99999", "refresh=5s", "refresh=1.5", "refresh=3601", "refresh=99999999999999999999", "refresh=" + url.QueryEscape(hostile), "format=xml",
		"format=" + url.QueryEscape(hostile)} {
		w := request(h, http.MethodGet, debug.Path+"?"+query, nil)
		require.Equal(t, http.StatusBadRequest, w.Code, query)
		require.Contains(t, w.Header().Get("Content-Type"), "text/plain")
		require.NotContains(t, w.Body.String(), "script")
	}
	w := request(h, http.MethodGet, debug.Path+"?refresh=nonsense&format=json", nil)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.JSONEq(t, `{"error": "opmux: refresh is a whole number of seconds, at most 3600"}`, w.Body.String())
}

// Calls that found no kernel stay counted when a kernel is back: everywhere, and as the op's statistics have them.
func TestCallsWithoutAKernel(t *testing.T) {
	r, op := small(t, registry.Options{})
	q := r.NewQueue(nil)
	b, err := q.Bind(op)
	require.NoError(t, err)
	launch(t, q, op, 1)
	restore, err := r.Disable("first", "second")
	require.NoError(t, err)
	for range 3 {
		require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&args{})), registry.ErrNoKernel)
		require.ErrorIs(t, b.Launch(unsafe.Pointer(&args{})), registry.ErrNoKernel)
	}
	_, err = r.GetOp(op, tensor.Device{})
	require.ErrorIs(t, err, registry.ErrNoKernel)
	o := debug.Options{Registry: r, Devices: &device.Table{}}
	check := func(now, word string) {
		s := debug.Collect(o)
		require.Len(t, s.Unserved, 1)
		u := s.Unserved[0]
		require.Equal(t, []any{"probe", "cpu:0", uint64(7)}, []any{u.Op, u.Device, u.Calls})
		require.False(t, u.Last.IsZero())
		require.Contains(t, u.Error, now)
		require.Equal(t, now == "", u.Error == "")
		require.EqualValues(t, 7, s.Totals.Unserved)
		require.Equal(t, s.Totals.Unserved, r.GetOpProviderStats(op, tensor.Device{}).Fallbacks)
		require.EqualValues(t, 7, debug.ReadCounters(r).Unserved)
		require.Zero(t, s.Totals.Failed, "no kernel failed")
		page := request(debug.Handler(o), http.MethodGet, debug.Path, nil).Body.String()
		require.NotContains(t, page, `id="calm"`)
		require.Contains(t, page, "<b>7</b><span>calls without a kernel</span>")
		row := rowWith(t, section(t, page, "unserved"), "probe")
		require.Contains(t, row, ">7</td>")
		require.Contains(t, row, word)
	}
	check("disabled", "no kernel</span>")
	restore()
	launch(t, q, op, 1)
	check("", "served again")
}

// Strict mode and disabled entries need a look.
func TestSwitchedByHand(t *testing.T) {
	r := registry.New(registry.Options{})
	h := debug.Handler(debug.Options{Registry: r, Devices: &device.Table{}})
	page := func() string { return request(h, http.MethodGet, debug.Path, nil).Body.String() }
	require.Contains(t, page(), `id="calm"`)
	require.NoError(t, r.SetStrict(true))
	require.NotContains(t, page(), `id="calm"`)
	require.Contains(t, section(t, page(), "switched"), "strict mode")
	require.NoError(t, r.SetStrict(false))
	_, err := r.DisableOpProvider("some-kernel", true)
	require.NoError(t, err)
	require.NotContains(t, page(), `id="calm"`)
	row := rowWith(t, section(t, page(), "switched"), "some-kernel")
	require.Contains(t, row, "disabled")
	require.NotContains(t, section(t, page(), "switched"), "strict mode")
}

// An entry of a quarantine file is named with its place; reading it waits for no writer.
func TestQuarantineFileAndLine(t *testing.T) {
	r, _ := small(t, registry.Options{})
	dir := t.TempDir()
	file := filepath.Join(dir, "mine.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"version": 1, "entries": [
		{"kernel": "first_probe", "evidence": "NaN", "source": "seen here"}]}`), 0o600))
	c, err := registry.LoadConfig(strings.NewReader(`{"version": 1, "quarantine": "mine.json"}`), filepath.Join(dir, "c.json"))
	require.NoError(t, err)
	require.NoError(t, r.SetConfig(c))
	o := debug.Options{Registry: r}
	s := debug.Collect(o)
	require.Equal(t, []debug.Absence{{Op: "probe", Device: "cpu:0", Kernel: "first_probe", Provider: "first", State: "quarantined", Detail: "NaN (seen here)", File: file + ":2"}}, s.Quarantine)
	require.Equal(t, r.Quarantined()[0].File, s.Quarantine[0].File)
	page := request(debug.Handler(o), http.MethodGet, debug.Path, nil).Body.String()
	require.Contains(t, section(t, page, "quarantine"), "mine.json:2")
}

// Readers of the page and launches go on side by side; each launch is counted, and every page is whole. Under the race
// detector this also shows that a scrape writes nothing that a launch reads.
func TestScrapeBesideLaunches(t *testing.T) {
	r, op := small(t, registry.Options{})
	srv := httptest.NewServer(debug.Handler(debug.Options{Registry: r}))
	defer srv.Close()
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for _, format := range []string{"html", "json"} {
		readers.Go(func() {
			for ctx.Err() == nil {
				res, err := http.Get(srv.URL + debug.Path + "?format=" + format)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), "second_probe") {
					t.Errorf("%v %v %.200s", res.Status, err, body)
					return
				}
			}
		})
	}
	const queues, calls = 4, 5000
	var launchers sync.WaitGroup
	for range queues {
		launchers.Go(func() {
			q := r.NewQueue(nil)
			defer q.Close()
			for range calls {
				if err := q.Launch(op, unsafe.Pointer(&args{})); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	launchers.Wait()
	stop()
	readers.Wait()
	require.EqualValues(t, queues*calls, debug.Collect(debug.Options{Registry: r}).Totals.Executed)
}

// A scrape that holds every lock that it ever takes does not stop a launch: with the registry's writers busy (a predicate
// that does not return) both go on.
func TestScrapeNeedsNoWriter(t *testing.T) {
	r, op := small(t, registry.Options{})
	q := r.NewQueue(nil)
	launch(t, q, op, 1)
	inside, release := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		_, err := r.RegisterOpProvider(op, tensor.CPU, registry.OpProvider{Name: "slow", Fn: func(*registry.Queue, unsafe.Pointer) registry.Status { return 0 },
			Supports: func(device.ProviderCaps) registry.Verdict {
				close(inside)
				<-release
				return registry.No("no")
			}})
		done <- err
	}()
	<-inside
	launch(t, q, op, 1)
	s := state(t, debug.Handler(debug.Options{Registry: r}))
	require.EqualValues(t, 2, s.Totals.Executed)
	require.Empty(t, s.Dropped, "the snapshot before the change")
	close(release)
	require.NoError(t, <-done)
}

// Importing the package serves the default registry on http.DefaultServeMux and as an expvar variable.
func TestImported(t *testing.T) {
	w := request(http.DefaultServeMux, http.MethodGet, debug.Path+"?format=json", nil)
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, http.StatusForbidden, request(http.DefaultServeMux, http.MethodPost, debug.Path+"/strict", url.Values{"on": {"true"}}).Code)
	var c debug.Counters
	require.NoError(t, json.Unmarshal([]byte(expvar.Get("opmux").String()), &c))

	r, op := small(t, registry.Options{})
	launch(t, r.NewQueue(nil), op, 2)
	c = debug.ReadCounters(r)
	require.Equal(t, map[string]map[string]map[string]registry.Counts{"probe": {"cpu:0": {
		"second_probe": {Executed: 2}, "first_probe": {Declined: map[string]uint64{"shape": 2}}}}}, c.Kernels)
}
