package debug

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
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

// writePage renders s. refresh is the seconds after which a browser loads the page anew, as the request has them.
func writePage(w http.ResponseWriter, s *State, refresh string) {
	v := view{State: s, Uptime: s.Process.Time.Sub(s.Process.Started).Truncate(time.Second)}
	if n, err := strconv.Atoi(refresh); err == nil && n > 0 {
		v.Refresh = min(n, 3600)
		w.Header().Set("Refresh", strconv.Itoa(v.Refresh))
	}
	if len(s.Kernels) > 0 {
		v.Busiest = s.Kernels[0].Executed
	}
	for _, d := range s.Devices {
		if d.Error != "" {
			v.Ill = append(v.Ill, d)
		}
	}
	v.Calm = len(s.Fallbacks)+len(s.Failures)+len(s.Quarantine)+len(s.Unserved)+len(s.Borrowed)+len(s.Warnings)+len(v.Ill) == 0
	var page bytes.Buffer
	if err := pageTemplate().Execute(&page, v); err != nil {
		http.Error(w, "opmux: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = page.WriteTo(w) // the client has gone
}

// writeJSON writes s as data.
func writeJSON(w http.ResponseWriter, s *State) {
	var data bytes.Buffer
	e := json.NewEncoder(&data)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil { // a backend published a number that JSON does not have
		http.Error(w, "opmux: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = data.WriteTo(w) // the client has gone
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
	slices.SortStableFunc(out, func(a, b reason) int { return cmp.Compare(b.Calls, a.Calls) })
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
