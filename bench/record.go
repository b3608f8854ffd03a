package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// Version is the version of the JSON form of Report.
const Version = 1

// Report is one run: what was measured, on what, and how.
type Report struct {
	Version    int        `json:"version"`
	Provenance Provenance `json:"provenance"`
	Limits     []Limit    `json:"limits,omitempty"`  // rates of the whole run, medians over all rounds
	Records    []Record   `json:"records"`           // by op, then case, then kernel as listed by the chain
	Skipped    []Skip     `json:"skipped,omitempty"` // what was asked for and is no call

	Interrupted string `json:"interrupted,omitempty"` // how far a run came that was ended before its last case
}

// Skip is an op with a format or a shape that it does not have.
type Skip struct {
	Op   string `json:"op"`
	Case string `json:"case"`
	Why  string `json:"why"`
}

// Provenance says where figures come from: enough to know whether two reports may be compared.
type Provenance struct {
	Time       string   `json:"time"`               // RFC 3339, UTC
	Revision   string   `json:"revision,omitempty"` // of the program's source, "+" appended if it had been changed
	Version    string   `json:"module_version,omitempty"`
	Go         string   `json:"go"`
	OS         string   `json:"os"`
	Arch       string   `json:"arch"`
	CPU        string   `json:"cpu"`
	Device     string   `json:"device"`      // cpu:0
	DeviceName string   `json:"device_name"` // what the backend calls it
	DeviceArch string   `json:"device_arch"`
	Driver     []string `json:"driver,omitempty"` // libraries of the backend with their versions
	Threads    int      `json:"threads"`
	Digest     string   `json:"digest"` // of the table of kernels
	Cache      string   `json:"cache"`  // "cold" or "warm"
	FlushBytes int64    `json:"flush_bytes,omitempty"`
	Seed       uint64   `json:"seed"`
}

// Limit is a rate that the device reached in a loop that does nothing else, interleaved with what it is compared with.
type Limit struct {
	Name string  `json:"name"` // "read" in bytes, or a unit of arithmetic ("f32", "int8") in operations
	Rate float64 `json:"rate"` // a second; the median of the rounds
	Best float64 `json:"best"` // of one round
}

// Record is one kernel on one case. Times are nanoseconds of one launch.
type Record struct {
	Op       string            `json:"op"`
	Kernel   string            `json:"kernel"`
	Provider string            `json:"provider"`
	Tier     string            `json:"tier"`
	Case     string            `json:"case"`             // shape and format as text, such as "q4_0/M=1/N=4096/K=4096"
	Format   string            `json:"format,omitempty"` // dtype of the operand whose format names the kernel: a weight, a cache
	Types    map[string]string `json:"types"`            // operand: dtype, with " lane16" behind it for that layout
	Shape    map[string]int64  `json:"shape"`            // by symbol
	Threads  int               `json:"threads"`
	Cache    string            `json:"cache"`

	Samples   []float64 `json:"samples_ns"` // in the order they were taken; disturbed ones left out where five others remain
	Inner     int       `json:"inner"`      // launches in a sample, whose mean it is
	Copies    int       `json:"copies"`     // sets of operands in turn
	Disturbed int       `json:"disturbed"`  // samples in which the system took the processor away
	Median    float64   `json:"median_ns"`
	P90       float64   `json:"p90_ns"`
	Min       float64   `json:"min_ns"`
	Low       float64   `json:"low_ns"` // 95 % bootstrap interval of the median
	High      float64   `json:"high_ns"`

	FLOPs    float64   `json:"flops"`
	Read     int64     `json:"bytes_read"`
	Written  int64     `json:"bytes_written"`
	Touched  int64     `json:"bytes_touched,omitempty"` // what is read and written in place counts once; 0: Read and Written
	GFLOPS   float64   `json:"gflops"`                  // 1e9 operations a second, by the median
	GBs      float64   `json:"gb_s"`                    // 1e9 bytes read and written a second, by the median
	Roofline *Roofline `json:"roofline,omitempty"`

	Executed uint64        `json:"executed"` // launches that the kernel's own counter saw in this run
	Verified *Verification `json:"verified,omitempty"`
	Notes    []string      `json:"notes,omitempty"`
	Declined string        `json:"declined,omitempty"` // the kernel does not take this call: the reason
	Error    string        `json:"error,omitempty"`    // the kernel failed, or another one ran: there are no figures
}

// Roofline places a kernel under the limits of the same rounds: more than the attainable rate is not possible for a call
// that reads its operands from memory.
type Roofline struct {
	Intensity  float64 `json:"intensity"`  // operations for each byte touched
	Bandwidth  float64 `json:"bandwidth"`  // bytes a second
	Unit       string  `json:"unit"`       // arithmetic of Peak: "f32", "int8"; "" if the device has none to show
	Peak       float64 `json:"peak"`       // operations a second
	Limit      string  `json:"limit"`      // what bounds the call: "bandwidth" or Unit
	Attainable float64 `json:"attainable"` // of Limit: bytes or operations a second
	Share      float64 `json:"share"`      // reached, of Attainable
}

// Verification is a comparison of a kernel's results with another's, on the case itself or a smaller one of it.
type Verification struct {
	OK      bool             `json:"ok"`
	Against string           `json:"against"` // kernel
	Shape   map[string]int64 `json:"shape"`
	Worst   string           `json:"worst,omitempty"` // output, element, values
	NMSE    float64          `json:"nmse"`            // the largest of the outputs
}

// OK reports whether the record has figures and nothing speaks against them.
func (r *Record) OK() bool {
	return r.Error == "" && r.Declined == "" && (r.Verified == nil || r.Verified.OK)
}

// Key names what was measured: records of two reports with equal keys may be compared.
func (r *Record) Key() string {
	var types []string
	for _, k := range slices.Sorted(maps.Keys(r.Types)) {
		types = append(types, k+"="+r.Types[k])
	}
	return fmt.Sprintf("%s/%s/%s/threads=%d/%s %s", r.Op, r.Kernel, r.Case, r.Threads, r.Cache, strings.Join(types, " "))
}

// Failed lists the records that make a run fail: errors and results that are not right. A kernel that declines a call
// is no failure.
func (r *Report) Failed() (list []*Record) {
	for i := range r.Records {
		if c := &r.Records[i]; c.Error != "" || c.Verified != nil && !c.Verified.OK {
			list = append(list, c)
		}
	}
	return list
}

// Write writes the report as indented JSON.
func (r *Report) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// WriteFile writes the report to a file; see Create.
func (r *Report) WriteFile(name string) error {
	f, err := Create(name)
	if err != nil {
		return err
	}
	return errors.Join(r.Write(f), f.Close())
}

// File is where a report will be written. Until then what the file held before stays.
type File struct {
	f       *os.File
	created bool
	begun   bool
}

// Create opens a file for a report, so that a path that cannot be written is known before anything is measured. It makes
// no folders, and takes no pipe or device. Errors: those of the file system, ErrReport for what is no regular file.
func Create(name string) (*File, error) {
	_, err := os.Stat(name)
	created := errors.Is(err, fs.ErrNotExist)
	if err := regular(name); err != nil && !created {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	return &File{f: f, created: created}, nil
}

// Write writes; the first call empties the file.
func (w *File) Write(b []byte) (int, error) {
	if !w.begun {
		if err := w.f.Truncate(0); err != nil {
			return 0, err
		}
		w.begun = true
	}
	return w.f.Write(b)
}

// Close closes the file. One that Create has made and nothing was written to is removed.
func (w *File) Close() error {
	err := w.f.Close()
	if w.created && !w.begun {
		err = errors.Join(err, os.Remove(w.f.Name()))
	}
	return err
}

// regular refuses pipes, whose opening waits, devices and folders.
func regular(name string) error {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s: no regular file: %w", name, ErrReport)
	}
	return err
}

// maxReport bounds the size of a report that is read.
const maxReport = 64 << 20

// Read reads what Write wrote. The error of anything else wraps ErrReport.
func Read(rd io.Reader) (*Report, error) {
	b, err := io.ReadAll(io.LimitReader(rd, maxReport+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxReport {
		return nil, fmt.Errorf("bench: over %d bytes: %w", maxReport, ErrReport)
	}
	r := &Report{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("bench: %w: %w", ErrReport, err)
	}
	if r.Version != Version {
		return nil, fmt.Errorf("bench: version %d, want %d: %w", r.Version, Version, ErrReport)
	}
	for i := range r.Records {
		if slices.ContainsFunc(r.Records[i].Samples, func(ns float64) bool { return !(ns > 0) }) {
			return nil, fmt.Errorf("bench: record %d has a sample that is no time: %w", i, ErrReport)
		}
	}
	return r, nil
}

// ReadFile reads a report from a regular file of at most 64 MiB; see Read.
func ReadFile(name string) (*Report, error) {
	if err := regular(name); err != nil { // before opening
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}
