package registry

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/opmux/opmux/device"
)

// The quarantine is a list of kernels that are known to be wrong on some devices, as data:
//
//	{ "version": 1,
//	  "entries": [
//	    { "kernel": "NAME", "op": "matmul", "device": { "vendor": "nvidia", "name": "*RTX 40*", "arch": ">=8.9 <9.0", "driver": "=565.90" },
//	      "evidence": "what was seen", "source": "where it is told" } ],
//	  "lift": [ { "solution": "NAME", "evidence": "why it is right again", "source": "..." } ] }
//
// An entry names a kernel or a solution; what it leaves out holds for all. quarantine.json is shipped; the file that a
// configuration names adds entries and lifts those of either file. Failed self-tests are not lifted: they were just seen.

//go:embed quarantine.json
var shippedQuarantine []byte

// shipped is the list of quarantine.json, read when it is first needed.
var shipped = sync.OnceValue(func() *quarantine {
	q, err := loadQuarantine(bytes.NewReader(shippedQuarantine), "quarantine.json")
	if err != nil {
		return &quarantine{} // a test reads it
	}
	return q
})

// quarantine is one list with the shipped one under it. It does not change.
type quarantine struct {
	entries, lifts []quarantineEntry
	note           string // why there are none
}

type quarantineEntry struct {
	target           Target
	op               string // "": every op
	vendor, name     string
	arch             []archBound
	driver           string
	evidence, source string
	spot             spot
}

// readQuarantine reads the file that c names; nil where c names none. One that is not there is a list with a note.
func (c *Config) readQuarantine() (*quarantine, error) {
	if c == nil || c.quarantine == "" {
		return nil, nil
	}
	f, err := openRegular(c.quarantine)
	if errors.Is(err, os.ErrNotExist) {
		return &quarantine{note: c.quarantine + ": there is no such file; nothing is quarantined or lifted by it"}, nil
	}
	if err != nil {
		return nil, &roleError{"quarantine", err}
	}
	defer f.Close()
	q, err := loadQuarantine(f, c.quarantine)
	if err != nil {
		return nil, &roleError{"quarantine", err}
	}
	return q, nil
}

// roleError says what a file that a configuration names is for; err names the file.
type roleError struct {
	role string
	err  error
}

// Error is "registry: quarantine file: FILE:LINE:COL: cause".
func (e *roleError) Error() string {
	return fmt.Sprintf("registry: %s file: %s", e.role, strings.ReplaceAll(strings.TrimPrefix(e.err.Error(), "registry: "), "\nregistry: ", "\n"))
}

// Unwrap returns the cause.
func (e *roleError) Unwrap() error { return e.err }

// notes says what of q can have no effect: names that nothing registered has, and vendors that no device has which the
// kernels are for.
func (q *quarantine) notes(s *state) (out []string) {
	if q == nil {
		return nil
	}
	if q.note != "" {
		return []string{"quarantine file: " + q.note}
	}
	for _, e := range slices.Concat(q.entries, q.lifts) {
		if len(out) == maxConfigErrors {
			return append(out, "quarantine file: "+e.spot.File+": more entries have no effect")
		}
		if why := e.idle(s); why != "" {
			out = append(out, "quarantine file: "+strings.TrimPrefix(e.spot.wrong("%s: the entry has no effect", why).Error(), "registry: "))
		}
	}
	return out
}

// idle says why e can be about no kernel of this process, "" if it can.
func (e *quarantineEntry) idle(s *state) string {
	if err := s.unknown(entry{text: e.target.Name, name: e.target.Name, op: e.op}, e.target.By); err != nil {
		return strings.TrimPrefix(err.Error(), "registry: ")
	}
	var theirs []string
	for k, list := range s.regs {
		if e.op != "" && s.ops.means(e.op, k.op) == 0 || !slices.ContainsFunc(list, func(g *Registration) bool { return e.target.Matches(g.p.Kernel, g.p.Name) }) {
			continue
		}
		for dev, at := range s.caps {
			if p, _ := at.platform(); dev.Kind == k.kind {
				if p.Vendor == e.vendor || e.vendor == "" || p.Vendor == "vulkan" { // which vendor a Vulkan device is of, its record may leave open
					return ""
				}
				theirs = append(theirs, p.Vendor)
			}
		}
	}
	slices.Sort(theirs)
	return fmt.Sprintf("no device that %s is for is of vendor %q; theirs: %s", e.target.Name, e.vendor, strings.Join(slices.Compact(theirs), ", "))
}

func loadQuarantine(r io.Reader, name string) (*quarantine, error) {
	f, top, err := readJSON(r, name)
	if err != nil {
		return nil, err
	}
	q := &quarantine{}
	versioned := false
	into := func(list *[]quarantineEntry) func(jsonNode, string) {
		return func(n jsonNode, field string) {
			f.list(n, field, func(n jsonNode, field string) { *list = append(*list, f.quarantineEntry(n, field)) })
		}
	}
	f.object(top, "", map[string]func(jsonNode, string){
		"version": f.version("1", &versioned), "entries": into(&q.entries), "lift": into(&q.lifts)})
	if !versioned {
		f.bad(top.at, "version", "missing")
	}
	return q, f.err()
}

func (f *jsonFile) quarantineEntry(n jsonNode, field string) (e quarantineEntry) {
	e.spot = f.spot(n.at, field)
	target := func(by string) func(jsonNode, string) {
		return f.text(func(s string) error {
			if !e.target.IsZero() {
				return errors.New("an entry names one kernel or one solution")
			}
			e.target = Target{Name: s, By: by}
			return checkName(by, s)
		})
	}
	var arch string
	at := n.at
	f.object(n, field, map[string]func(jsonNode, string){
		"kernel": target("kernel"), "solution": target("solution"),
		"op":       f.text(func(s string) error { e.op = s; return checkName("op", s) }),
		"evidence": f.word(&e.evidence), "source": f.word(&e.source),
		"device": func(n jsonNode, field string) {
			f.object(n, field, map[string]func(jsonNode, string){
				"vendor": f.text(func(s string) error { e.vendor = s; return knownVendor(s) }),
				"name":   f.text(func(s string) error { e.name = s; _, err := path.Match(s, ""); return err }),
				"arch":   func(n jsonNode, field string) { at = n.at; f.word(&arch)(n, field) },
				"driver": f.text(func(s string) error { e.driver = s; return driverRange(s) }),
			})
		},
	})
	e.arch = f.archBounds(at, field+".device.arch", e.vendor, arch)
	for name, v := range map[string]string{"kernel": e.target.Name, "evidence": e.evidence, "source": e.source} {
		if v == "" {
			f.bad(n.at, field+"."+name, "missing")
		}
	}
	return e
}

func driverRange(s string) error {
	for _, w := range strings.Fields(s) {
		_, v := comparison(w)
		if err := (&device.Requirement{MinDriver: v}).Validate(); err != nil || v == "" {
			return fmt.Errorf("%q is not a comparison with a version like 565.90", clip(w))
		}
	}
	return nil
}

// driverIn reports whether version have meets comparisons joined by blanks. An unknown version meets none.
func driverIn(have, want string) bool {
	for _, w := range strings.Fields(want) {
		cmp, v := comparison(w)
		atLeast := (&device.Requirement{MinDriver: v}).SatisfiedBy(&device.Platform{Driver: have})
		equal := atLeast && (&device.Requirement{MinDriver: have}).SatisfiedBy(&device.Platform{Driver: v})
		ok := map[string]bool{">=": atLeast, "<": !atLeast, "=": equal, "!=": !equal, ">": atLeast && !equal, "<=": !atLeast || equal}[cmp]
		if have == "" || !ok {
			return false
		}
	}
	return true
}

// covers reports whether e is about g on a device described by p.
func (e *quarantineEntry) covers(ops *opSet, g *Registration, p *device.Platform) bool {
	if !e.target.Matches(g.p.Kernel, g.p.Name) || e.op != "" && ops.means(e.op, g.op) == 0 || e.vendor != "" && e.vendor != p.Vendor {
		return false
	}
	if ok, _ := path.Match(flat(e.name), flat(p.Name)); e.name != "" && !ok {
		return false
	}
	return driverIn(p.Driver, e.driver) && !slices.ContainsFunc(e.arch, func(a archBound) bool { return !a.holds(p) })
}

// flat makes a device's name one element of a path, so that * and ? stand for slashes, too.
func flat(name string) string { return strings.ReplaceAll(name, "/", "\x00") }

// find returns the entry that quarantines g on p, nil if none does. A nil list is the shipped one alone.
func (q *quarantine) find(ops *opSet, g *Registration, p *device.Platform) *quarantineEntry {
	about := func(list []quarantineEntry) int {
		return slices.IndexFunc(list, func(e quarantineEntry) bool { return e.covers(ops, g, p) })
	}
	for _, list := range []*quarantine{q, shipped()} {
		if list == nil {
			continue
		}
		if i := about(list.entries); i >= 0 && (q == nil || about(q.lifts) < 0) {
			return &list.entries[i]
		}
	}
	return nil
}

// String returns the evidence with its source.
func (e *quarantineEntry) String() string { return e.evidence + " (" + e.source + ")" }

// file is where e is written, as FILE:LINE.
func (e *quarantineEntry) file() string { return fmt.Sprintf("%s:%d", e.spot.File, e.spot.Line) }

// of returns why g is quarantined on a device, "" if it is not.
func (q *quarantine) of(ops *opSet, g *Registration, at capsAt) string {
	if q.empty() {
		return ""
	}
	p, _ := at.platform()
	if e := q.find(ops, g, p); e != nil {
		return e.String()
	}
	return ""
}

func (q *quarantine) empty() bool {
	return (q == nil || len(q.entries) == 0) && len(shipped().entries) == 0
}

// quarantined returns why g is quarantined on a machine elsewhere, "" if it is not.
func (t *table) quarantined(g *Registration, p *device.Platform) string {
	if t.quarantine.empty() {
		return ""
	}
	if e := t.quarantine.find(t.ops, g, p); e != nil {
		return e.String()
	}
	return ""
}

// Quarantined is a kernel that a device does not use because it is known to be wrong there.
type Quarantined struct {
	Op       string `json:"op"`
	Kernel   string `json:"kernel"`
	Provider string `json:"provider"`
	Device   string `json:"device"`
	Evidence string `json:"evidence"`
	Source   string `json:"source"`         // who told: the entry's own source, or "self-test"
	File     string `json:"file,omitempty"` // FILE:LINE of the entry
}

// Quarantined lists what is quarantined at present on the devices of this process, by device, op and kernel: by the
// shipped list, by the configuration's, and by failed self-tests.
func (r *Registry) Quarantined() (out []Quarantined) {
	if _, err := r.snapshot(); err != nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	for _, dev := range slices.SortedFunc(maps.Keys(s.caps), compareDevices) {
		p, _ := s.caps[dev].platform()
		for op := range s.ops.byID {
			for _, g := range s.regs[slotKey{Op(op), dev.Kind}] {
				k := Quarantined{Op: s.ops.byID[op].Name, Kernel: g.p.Kernel, Provider: g.p.Name, Device: dev.String()}
				if e := s.quarantine.find(s.ops, g, p); e != nil {
					k.Evidence, k.Source, k.File = e.evidence, e.source, e.file()
				} else if t := g.tests[dev]; t != nil && t.state.Load() == testFailed {
					k.Evidence, k.Source = t.err.Error(), "self-test"
				} else {
					continue
				}
				out = append(out, k)
			}
		}
	}
	return out
}
