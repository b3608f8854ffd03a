package debug

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed page.html
var pageText string

// pageTemplate is parsed when the page is first asked for.
var pageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"count":    count,
		"clock":    func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
		"stamp":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"bytes":    size,
		"clip":     clip,
		"reasons":  reasons,
		"fallback": fallback,
		"share":    func(n, of uint64) int { return int(min(n*100/max(of, 1), 100)) },
		"path":     func() string { return Path },
		"next":     func(i int) int { return i + 1 },
	}).Parse(pageText))
})

// view is what the template gets.
type view struct {
	*State
	Uptime  time.Duration
	Refresh int // seconds, 0: none
	Busiest uint64
	Ill     []Device // lost or failing
	Calm    bool     // nothing needs a look
}

// maxRefresh is the most seconds after which a page can be asked to load anew.
const maxRefresh = 3600

// seconds reads ?refresh=; without it, or with 0, the page stays as it is.
func seconds(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxRefresh {
		return 0, fmt.Errorf("refresh is a whole number of seconds, at most %d", maxRefresh)
	}
	return n, nil
}

// writePage renders s. A browser loads it anew after refresh seconds, if that is not 0.
func writePage(w http.ResponseWriter, s *State, refresh int) {
	v := view{State: s, Uptime: s.Process.Time.Sub(s.Process.Started).Truncate(time.Second), Refresh: refresh}
	if refresh > 0 {
		w.Header().Set("Refresh", strconv.Itoa(refresh))
	}
	if len(s.Kernels) > 0 {
		v.Busiest = s.Kernels[0].Executed
	}
	for _, d := range s.Devices {
		if d.Error != "" {
			v.Ill = append(v.Ill, d)
		}
	}
	v.Calm = len(s.Fallbacks)+len(s.Failures)+len(s.Quarantine)+len(s.Unserved)+len(s.Borrowed)+len(s.Warnings)+len(s.Disabled)+len(v.Ill) == 0 && !s.Strict
	var page bytes.Buffer
	if err := pageTemplate().Execute(&page, v); err != nil {
		http.Error(w, "opmux: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = page.WriteTo(w) // the client has gone
}

// writeJSON writes v as data.
func writeJSON(w http.ResponseWriter, v any, code int) {
	var data bytes.Buffer
	e := json.NewEncoder(&data)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil { // a backend published a number that JSON does not have
		writeJSON(w, refusal{"opmux: " + err.Error()}, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = data.WriteTo(w) // the client has gone
}

// refusal is an error as data.
type refusal struct {
	Error string `json:"error"`
}

// asksJSON reports whether a request wants data: by its format, else by what it accepts. It reads no body.
func asksJSON(r *http.Request) bool {
	format := r.URL.Query().Get("format")
	if r.Form != nil {
		format = r.Form.Get("format")
	}
	accept := r.Header.Get("Accept")
	return format == "json" || format == "" && strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

// refuse answers with an error, as a text or as data.
func refuse(w http.ResponseWriter, r *http.Request, text string, code int) {
	if asksJSON(r) {
		writeJSON(w, refusal{"opmux: " + text}, code)
		return
	}
	http.Error(w, "opmux: "+text, code)
}

// reason is one reason of declined calls with their number.
type reason struct {
	Name  string
	Calls uint64
}

// reasons sorts counters by reason, the most frequent first.
func reasons(m map[string]uint64) (out []reason) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, reason{name, m[name]})
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Calls > out[j].Calls })
	return out
}

// count groups digits: 1 234 567, with narrow spaces.
func count(n any) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// size prints bytes.
func size(n int64) string {
	switch {
	case n <= 0:
		return "unknown"
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// maxText bounds a text that somebody else wrote.
const maxText = 2000

// clip shortens such a text.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + " …"
}
