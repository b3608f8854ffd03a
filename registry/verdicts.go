package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// verdicts remembers what self-tests of kernels with a version found, so that devices of one fingerprint, later
// registrations and, with a file, later processes need not test again. The version is Spec.Version, or for this module's own
// kernels that of the module as it was built.
type verdicts struct {
	mu    sync.Mutex
	path  string // "": in memory only
	known map[verdictKey]verdict
	stale bool   // known has what the file lacks
	note  string // why the file is not used, or was not written
}

// verdictKey says what was tested where. The device is a fingerprint, which covers the driver.
type verdictKey struct{ Device, Op, Kernel, Version string }

type verdict struct {
	ok       bool
	evidence string
	at       time.Time
	file     string // that it was read from
}

// verdictLine is one verdict in the file.
type verdictLine struct {
	Device   string    `json:"device"`
	Op       string    `json:"op"`
	Kernel   string    `json:"kernel"`
	Version  string    `json:"version"`
	OK       bool      `json:"ok"`
	Evidence string    `json:"evidence,omitempty"`
	Time     time.Time `json:"time"`
}

const modulePath = "github.com/opmux/opmux"

// moduleVersion is what this module's code was built from and with; "" for a build from files that are in no commit.
var moduleVersion = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return versionIn(info)
})

func versionIn(info *debug.BuildInfo) string {
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path != modulePath {
			continue
		}
		if m.Replace != nil || m.Version == "" || m.Version == "(devel)" || strings.Contains(m.Version, "+dirty") {
			return ""
		}
		return m.Version + " " + info.GoVersion
	}
	return ""
}

// maxVerdictText bounds the texts of a verdict, so that a full file of usual texts stays under what is read.
const maxVerdictText = 200

// open reads the file at path, "" for none, and uses it from now on. A file that is not what save writes is told of,
// left as it is and not used. It returns a note, "" if all is well.
func (v *verdicts) open(path string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.path, v.note = path, ""; path == "" {
		return ""
	}
	read, err := readVerdicts(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		v.path, v.note = "", strings.TrimPrefix((&roleError{"verdicts", err}).Error(), "registry: ")+"; the file of verdicts is ignored"
	}
	v.take(read)
	return v.note
}

// take adds verdicts of a file to those of this process, which are newer.
func (v *verdicts) take(read map[verdictKey]verdict) {
	if v.known == nil {
		v.known = map[verdictKey]verdict{}
	}
	for k, x := range read {
		if _, ok := v.known[k]; !ok {
			v.known[k] = x
		}
	}
}

func readVerdicts(path string) (map[verdictKey]verdict, error) {
	r, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	f, top, err := readJSON(r, path)
	if err != nil {
		return nil, err
	}
	out, versioned := map[verdictKey]verdict{}, false
	f.object(top, "", map[string]func(jsonNode, string){
		"version": f.version("1", &versioned),
		"verdicts": func(n jsonNode, field string) {
			f.list(n, field, func(n jsonNode, field string) {
				var k verdictKey
				x := verdict{file: path}
				f.object(n, field, map[string]func(jsonNode, string){
					"device": f.word(&k.Device), "op": f.word(&k.Op), "kernel": f.word(&k.Kernel), "version": f.word(&k.Version), "evidence": f.word(&x.evidence),
					"ok": func(n jsonNode, field string) {
						var is bool
						if x.ok, is = n.val.(bool); !is {
							f.bad(n.at, field, "not true or false")
						}
					},
					"time": f.text(func(s string) (err error) { x.at, err = time.Parse(time.RFC3339, s); return err }),
				})
				if k.Device == "" || k.Op == "" || k.Kernel == "" || k.Version == "" || x.at.IsZero() || x.ok != (x.evidence == "") {
					f.bad(n.at, field, "not a verdict: it lacks device, op, kernel, version or time, or the evidence of a failure")
				}
				out[k] = x
			})
		},
	})
	if !versioned {
		f.bad(top.at, "version", "missing")
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// find returns what is known of a test.
func (v *verdicts) find(k verdictKey) (verdict, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	x, ok := v.known[k]
	return x, ok
}

// add remembers a verdict; save writes it.
func (v *verdicts) add(k verdictKey, x verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.take(nil)
	v.known[k], v.stale = x, true
}

// save writes what is new to the file, beside what other processes have put there meanwhile, in one step. The newest
// 1000 verdicts stay, fewer where they would be more than is read. A file that cannot be written is told of once.
func (v *verdicts) save() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.path == "" || !v.stale {
		return
	}
	err := v.write()
	if v.stale = err != nil; err != nil {
		v.path, v.note = "", fmt.Sprintf("verdicts: %v; the file is not written any more", err)
	}
}

func (v *verdicts) write() error {
	read, err := readVerdicts(v.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	v.take(read)
	keys := slices.Collect(maps.Keys(v.known))
	sort.SliceStable(keys, func(i, j int) bool {
		if c := v.known[keys[j]].at.Compare(v.known[keys[i]].at); c != 0 {
			return c < 0
		}
		return fmt.Sprint(keys[i]) < fmt.Sprint(keys[j])
	})
	file := struct {
		Version  int           `json:"version"`
		Verdicts []verdictLine `json:"verdicts"`
	}{Version: 1}
	for _, k := range keys[:min(len(keys), maxConfigRules)] {
		x := v.known[k]
		file.Verdicts = append(file.Verdicts, verdictLine{k.Device, k.Op, k.Kernel, k.Version, x.ok, x.evidence, x.at.UTC()})
	}
	for {
		b, err := json.MarshalIndent(file, "", " ")
		if err != nil {
			return err
		}
		if len(b) < maxConfigBytes {
			return replaceFile(v.path, append(b, '\n'))
		}
		file.Verdicts = file.Verdicts[:len(file.Verdicts)/2] // texts full of signs that JSON writes as six
	}
}

// replaceFile writes a file in one step: a reader sees the old one or the new one.
func replaceFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func (v *verdicts) told() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.note
}
