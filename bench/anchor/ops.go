package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/opmux/opmux/bench"
	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/internal/build"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// options are the arguments of "anchor ops".
type options struct {
	formats  []tensor.DType
	ms       []int
	n, k     int
	threads  []int
	rounds   int
	turn     time.Duration
	cold     int64 // bytes of weights that the calls go through; negative: chosen
	engines  []job // Engine, Variant and Path are set
	seed     uint64
	json     bool
	cache    string
	ggmlPath string
}

const opsUsage = `anchor ops multiplies activations by weights, out[M,N] = a[M,K] * b[N,K] transposed, on opmux and on other engines
in interleaved rounds, checks every result and prints the rates and the ratios. An engine is written NAME or NAME:VARIANT:

  opmux     the registry's choice, or the kernel or provider VARIANT
  ggml      the prebuilt CPU library of llama.cpp (npm package node-llama-cpp, installed into -cache), with weights in
            the layout that it chooses, or in its buffer type VARIANT (AMX, CPU_REPACK, CPU)
  openblas  f32 only; its core type is set to what the processor can do, or to VARIANT
  onednn    f32; and under q8_0 a product of bytes with one scale a row

The libraries of the last two are looked up by the system's dynamic loader unless a path is given.
An engine that is not here is named with the attempts. The exit status is 1 if a result is wrong or opmux fails.

`

// parseOps reads the arguments of "anchor ops". What is wrong with them is in the error; help is flag.ErrHelp.
func parseOps(args []string, stderr io.Writer) (o options, err error) {
	cache, _ := os.UserCacheDir()
	f := flag.NewFlagSet("ops", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { fmt.Fprint(stderr, opsUsage); f.PrintDefaults() }
	formats := f.String("formats", "f32,f16,bf16,q4_0,q8_0", `formats of the weights, or "all" that ggml has too (those without a fast kernel take minutes)`)
	ms := f.String("m", "1,512", "numbers of rows of activations")
	f.IntVar(&o.n, "n", 4096, "rows of weights")
	f.IntVar(&o.k, "k", 4096, "elements of a row")
	threads := f.String("threads", "1,2", "numbers of threads")
	f.IntVar(&o.rounds, "rounds", 5, "interleaved rounds; the median counts")
	f.DurationVar(&o.turn, "turn", 50*time.Millisecond, "time of an engine's turn in a round; one call at least")
	cold := f.Int64("cold", -1, "MiB of copies of the weights that calls go through; 0 is one copy, warm in the cache if it fits; -1: beyond the last cache")
	engines := f.String("engines", "opmux,ggml,openblas,onednn", "engines to compare with the first, NAME or NAME:VARIANT")
	kernel := f.String("kernel", "", "one more row: opmux with this kernel or provider")
	f.Uint64Var(&o.seed, "seed", 1, "of the random operands")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.StringVar(&o.cache, "cache", filepath.Join(cache, "opmux-anchor"), "folder for node-llama-cpp")
	f.StringVar(&o.ggmlPath, "ggml", "", "folder with libggml-base and libggml-cpu (default: of node-llama-cpp)")
	openblas := f.String("openblas", "", "path of the OpenBLAS library")
	onednn := f.String("onednn", "", "path of the oneDNN library")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	fail := func(format string, a ...any) (options, error) { return o, fmt.Errorf("ops: "+format, a...) }
	if f.NArg() > 0 {
		return fail("%q is no option", f.Arg(0))
	}
	if o.formats, err = parseFormats(*formats); err != nil {
		return fail("-formats: %w", err)
	}
	if o.ms, err = parseInts(*ms); err != nil {
		return fail("-m: %w", err)
	}
	if o.threads, err = parseInts(*threads); err != nil {
		return fail("-threads: %w", err)
	}
	if n, why := cpu.Threads(0); slices.Max(o.threads) > n {
		return fail("-threads: %d are too many (%s)", slices.Max(o.threads), strings.Join(why, "; "))
	}
	const most = 1 << 20 // keeps every size far below an overflow
	if o.n < 1 || o.n > most || o.k < 1 || o.k > most || slices.Max(o.ms) > most {
		return fail("-n, -k and -m are 1 to %d", most)
	}
	for _, t := range o.formats {
		if _, err := t.RowBytes(int64(o.k)); err != nil {
			return fail("-k: %w", err)
		}
	}
	if o.rounds < 1 || o.rounds > 1000 {
		return fail("-rounds is 1 to 1000")
	}
	if *cold > 1<<20 {
		return fail("-cold: %d MiB are too many", *cold)
	}
	if o.cold = *cold << 20; *cold < 0 {
		o.cold = -1
	}
	paths := map[string]string{"openblas": *openblas, "onednn": *onednn}
	list := strings.Split(*engines, ",")
	if *kernel != "" {
		list = append(list, "opmux:"+*kernel)
	}
	for _, text := range list {
		name, variant, _ := strings.Cut(strings.TrimSpace(text), ":")
		if _, ok := kinds[name]; !ok || name == yardstick {
			return fail("-engines: no engine is called %q", name)
		}
		o.engines = append(o.engines, job{Engine: name, Variant: variant, Path: paths[name]})
	}
	if o.engines[0].Engine != "opmux" {
		return fail("-engines: the first is what the others are compared with, opmux or opmux:KERNEL")
	}
	return o, nil
}

func parseInts(text string) (list []int, err error) {
	for s := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no positive number", s)
		}
		list = append(list, n)
	}
	return list, nil
}

func parseFormats(text string) (list []tensor.DType, err error) {
	if text == "all" {
		for id := range uint32(64) {
			if t, ok := gguf.DType(id); ok && tensor.CanDecode(t) && (t.IsFloat() || t.IsBlock()) && t != tensor.Q8_1 && t != tensor.Q8_K {
				list = append(list, t)
			}
		}
		return list, nil
	}
	for s := range strings.SplitSeq(text, ",") {
		t, err := tensor.ParseDType(strings.TrimSpace(s))
		if err != nil {
			return nil, err
		}
		if !t.IsFloat() && !t.IsBlock() {
			return nil, fmt.Errorf("%v is no format of weights", t)
		}
		list = append(list, t)
	}
	return list, nil
}

// report is what "anchor ops -json" prints: a bench.Report with more in each record.
type report struct {
	Version    int              `json:"version"` // of bench.Report
	Provenance bench.Provenance `json:"provenance"`
	Rounds     int              `json:"rounds"`
	Records    []row            `json:"records"`           // by format, threads, M, engine
	Missing    []missing        `json:"missing,omitempty"` // engines that are not here
	Skipped    []bench.Skip     `json:"skipped,omitempty"` // engines that are here and do not multiply such weights
}

type missing struct {
	Engine   string `json:"engine"`
	Attempts string `json:"attempts"`
}

// row is one engine on one shape. Bytes and operations are those that no engine can avoid (ops.CostOf), weights counted
// in the size of their format, whatever the engine made of them; Verified is against the exact product, on some rows.
type row struct {
	bench.Record
	Engine      string      `json:"engine"`
	Detail      string      `json:"detail,omitempty"`
	WeightBytes int64       `json:"weight_bytes"`          // of all copies
	Ratio       *float64    `json:"ratio,omitempty"`       // speed of the first engine over this one's, median of the rounds
	Range       *[2]float64 `json:"ratio_range,omitempty"` // smallest and largest
	Agreement   float64     `json:"agreement"`             // nmse of the whole result to the first engine's
}

// wrong reports whether the result is beyond what the format allows.
func (x *row) wrong() bool { return x.Verified != nil && !x.Verified.OK }

// bandwidth returns the rate of reading memory in the rows' rounds in 1e9 bytes a second, and which share of it x reached.
func (x *row) bandwidth() (rate, share float64) {
	if x.Roofline == nil {
		return 0, 0
	}
	rate = x.Roofline.Bandwidth / 1e9
	return rate, x.GBs / rate
}

// runOps is "anchor ops".
func runOps(args []string) error {
	o, err := parseOps(args, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	r := newReport(o)
	r.findGGML(&o)
	if err := r.measure(o); err != nil {
		return err
	}
	if o.json {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return r.err()
}

func newReport(o options) *report {
	p := bench.Provenance{Time: time.Now().UTC().Format(time.RFC3339), Revision: build.Revision(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPU: cpuModel(), Device: "cpu:0", Digest: registry.Default().Digest(), Threads: slices.Max(o.threads), Cache: "cold", Seed: o.seed}
	if d, err := cpu.Open(cpu.Options{Threads: p.Threads}); err == nil {
		p.DeviceName, p.DeviceArch = d.Name(), d.Caps().Arch
		d.Close()
	}
	return &report{Version: bench.Version, Provenance: p, Rounds: o.rounds}
}

// err returns what makes the run fail: a wrong result, or an error of the first engine.
func (r *report) err() error {
	var all []error
	for i := range r.Records {
		x := &r.Records[i]
		first := i == 0 || r.Records[i-1].Case != x.Case || r.Records[i-1].Threads != x.Threads
		switch {
		case x.wrong():
			all = append(all, fmt.Errorf("%s, %d threads: %s is wrong, nmse %.2g to the exact product, %.2g to opmux", x.Case, x.Threads, x.Engine, x.Verified.NMSE, x.Agreement))
		case x.Error != "" && first:
			all = append(all, fmt.Errorf("%s, %d threads: %s: %s", x.Case, x.Threads, x.Engine, x.Error))
		}
	}
	return errors.Join(all...)
}

// findGGML sets where ggml's libraries are, installing them if they are not there.
func (r *report) findGGML(o *options) {
	wanted := slices.ContainsFunc(o.engines, func(j job) bool { return j.Engine == "ggml" })
	if !wanted {
		return
	}
	dir := o.ggmlPath
	if dir == "" {
		var err error
		if dir, err = ggmlDir(o.cache); err != nil {
			if _, failed := install(o.cache); failed != nil {
				err = fmt.Errorf("%w; installing it: %w", err, failed)
			} else {
				dir, err = ggmlDir(o.cache)
			}
		}
		if err != nil {
			r.miss("ggml", err)
			o.engines = slices.DeleteFunc(o.engines, func(j job) bool { return j.Engine == "ggml" })
			return
		}
	}
	for i := range o.engines {
		if o.engines[i].Engine == "ggml" {
			o.engines[i].Path = dir
		}
	}
}

// ggmlDir returns the folder of the prebuilt libraries for this machine under an installed node-llama-cpp.
func ggmlDir(cache string) (string, error) {
	arch := cmp.Or(map[string]string{"amd64": "x64"}[runtime.GOARCH], runtime.GOARCH)
	system := cmp.Or(map[string]string{"darwin": "mac", "windows": "win"}[runtime.GOOS], runtime.GOOS)
	pattern := filepath.Join(cache, "node_modules", "@node-llama-cpp", system+"-"+arch+"*", "bins", system+"-"+arch+"*", "libggml-base.*")
	found, _ := filepath.Glob(pattern)
	if len(found) == 0 {
		return "", fmt.Errorf("%w: %s", errMissing, pattern)
	}
	return filepath.Dir(found[0]), nil // the plain one sorts first: its name is the shortest
}

func (r *report) miss(engine string, err error) {
	for _, m := range r.Missing {
		if m.Engine == engine {
			return
		}
	}
	r.Missing = append(r.Missing, missing{engine, err.Error()})
}

// measure measures everything that the options ask for, and prints it as it comes unless that is to be JSON.
func (r *report) measure(o options) error {
	yardsticks := meters{}
	defer yardsticks.stop()
	for _, t := range o.formats {
		if err := r.format(o, t, yardsticks); err != nil {
			return err
		}
	}
	return nil
}

// format measures all shapes and numbers of threads with one format.
func (r *report) format(o options, t tensor.DType, yardsticks meters) error {
	dir, err := os.MkdirTemp("", "opmux-anchor")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	weights, err := randomWeights(t, o.n, o.k, o.seed)
	if err != nil {
		return err
	}
	maxM := slices.Max(o.ms)
	inputs := randomInputs(maxM, o.k, o.seed)
	base := job{Format: t, N: o.n, K: o.k, MaxM: maxM, Weights: filepath.Join(dir, "weights"), Inputs: filepath.Join(dir, "inputs")}
	if err := errors.Join(os.WriteFile(base.Weights, weights, 0o600), os.WriteFile(base.Inputs, bytesOf(inputs), 0o600)); err != nil {
		return err
	}
	exact, err := newTruth(t, weights, o.n, o.k, inputs, o.ms)
	if err != nil {
		return err
	}
	for _, threads := range o.threads {
		base.Threads = threads
		from := len(r.Records)
		limits, err := yardsticks.of(threads)
		if err != nil {
			return err
		}
		if err := r.rounds(o, base, int64(len(weights)), exact, limits); err != nil {
			return err
		}
		if !o.json {
			r.print(os.Stdout, r.Records[from:])
		}
	}
	return nil
}

// copiesOf returns how many copies of the weights each engine gets: more than a cache of that size holds unless the
// options say otherwise, and no more than fit in half of the free memory.
func copiesOf(o options, size, cache int64) int {
	want := o.cold
	if want < 0 {
		want = max(cache+cache/4, 256<<20)
	}
	if free := freeMemory(); free > 0 {
		want = min(want, free/2/int64(len(o.engines)+1))
	}
	return int(max((want+size-1)/size, 1))
}

// rounds runs the interleaved rounds of one format and number of threads.
func (r *report) rounds(o options, base job, size int64, exact *truth, limits *meter) error {
	f := &field{options: o, limits: limits, format: base.Format, threads: base.Threads, exact: exact, cache: "warm"}
	base.Copies = copiesOf(o, size, limits.ran.Cache)
	f.copies, f.bytes = base.Copies, int64(base.Copies)*size
	if f.bytes > limits.ran.Cache {
		f.cache = "cold"
	} else {
		r.Provenance.Cache = "warm"
	}
	for i, e := range o.engines {
		j := withEngine(base, e)
		if formats := kinds[e.Engine].formats; formats != nil && !slices.Contains(formats, j.Format) {
			continue
		}
		w, err := start(j)
		switch {
		case err == nil:
			defer w.stop()
			f.workers = append(f.workers, w)
		case i == 0:
			return fmt.Errorf("%s: %w", j.String(), err)
		case errors.Is(err, errMissing):
			r.miss(e.Engine, err)
		default:
			r.Skipped = append(r.Skipped, bench.Skip{Op: j.String(), Case: groupOf(j.Format.String(), j.Threads), Why: err.Error()})
		}
	}
	for _, m := range o.ms {
		rows, err := f.race(m)
		if err != nil {
			return err
		}
		r.Records = append(r.Records, rows...)
	}
	return nil
}

// groupOf names what one table shows.
func groupOf(format string, threads int) string {
	return fmt.Sprintf("%s, threads: %d", format, threads)
}

func withEngine(base, e job) job {
	base.Engine, base.Variant, base.Path = e.Engine, e.Variant, e.Path
	return base
}

// field is what takes part in the rounds of one format and number of threads.
type field struct {
	options
	limits  *meter
	workers []*worker
	format  tensor.DType
	threads int
	copies  int
	bytes   int64 // of all copies of the weights
	cache   string
	exact   *truth
}

// arm is one engine on one shape.
type arm struct {
	*worker
	row
	out []float32
}

// race measures the engines on m rows of activations, in turns.
func (f *field) race(m int) ([]row, error) {
	op, cost := costOf(f.format, m, f.n, f.k)
	var arms []*arm
	for _, w := range f.workers {
		a := &arm{worker: w, row: row{Engine: w.job.String(), WeightBytes: f.bytes}}
		a.Record = bench.Record{Op: op, Case: fmt.Sprintf("%v/M=%d/N=%d/K=%d", f.format, m, f.n, f.k), Format: f.format.String(),
			Shape:   map[string]int64{"M": int64(m), "N": int64(f.n), "K": int64(f.k)},
			Threads: f.threads, Cache: f.cache, Copies: f.copies, FLOPs: cost.FLOPs, Read: cost.Read, Written: cost.Written}
		if err := f.first(a, m, arms); err != nil {
			a.Error = err.Error()
		}
		arms = append(arms, a)
	}
	rates := map[string][]float64{}
	for range f.options.rounds {
		for _, unit := range []string{unitRead, cost.Unit} {
			v, err := f.limits.rate(unit, f.turn)
			if err != nil {
				return nil, err
			}
			rates[unit] = append(rates[unit], v)
		}
		for _, a := range arms {
			if a.Error != "" {
				continue
			}
			rest(f.threads)
			p, err := a.exchange(&request{Calls: a.Inner})
			if err != nil {
				a.Error = err.Error()
				continue
			}
			a.Samples = append(a.Samples, float64(p.Took.Nanoseconds())/float64(a.Inner))
			a.Executed = p.Ran.Executed
			if p.Disturbed {
				a.Disturbed++
			}
		}
		rest(f.threads)
	}
	var rows []row
	for _, a := range arms {
		if a.Error != "" {
			a.Samples, a.Disturbed = nil, 0
		}
		a.Summarize()
		a.Roofline = bench.NewRoofline(&a.Record, middle(rates[unitRead]), cost.Unit, middle(rates[cost.Unit]))
		if first := arms[0]; a != first && a.OK() && first.OK() {
			var ratios []float64
			for i, t := range a.Samples {
				ratios = append(ratios, t/first.Samples[i])
			}
			mid := middle(ratios)
			a.Ratio, a.Range = &mid, &[2]float64{slices.Min(ratios), slices.Max(ratios)}
		}
		rows = append(rows, a.row)
	}
	return rows, nil
}

// first makes an engine's first call with m rows, checks its result and counts how many calls make a turn.
func (f *field) first(a *arm, m int, before []*arm) error {
	p, err := a.exchange(&request{Shape: m, Calls: 1, Output: true})
	if err != nil {
		return err
	}
	if a.out = p.Output; len(a.out) != m*f.n {
		return fmt.Errorf("the result has %d elements, not %d", len(a.out), m*f.n)
	}
	off := f.exact.nmse(a.out, m)
	if len(before) > 0 && before[0].out != nil {
		a.Agreement = nmse(a.out, before[0].out)
	}
	// two results that are within the limit of the truth differ by at most four times as much
	right := off <= limit(f.format) && a.Agreement <= 4*limit(f.format)
	a.Verified = &bench.Verification{OK: right, Against: "exact product of the decoded weights", Shape: a.Shape, NMSE: finite(off)}
	a.Agreement = finite(a.Agreement)
	if p, err = a.exchange(&request{Calls: 1}); err != nil { // the first call also touched new memory
		return err
	}
	a.Inner = calls(f.turn, p.Took.Seconds())
	a.Kernel, a.Provider, a.Tier = p.Ran.Kernel, cmp.Or(p.Ran.Provider, a.job.Engine), cmp.Or(p.Ran.Tier, "foreign")
	a.Detail = cmp.Or(a.worker.ran.Detail, p.Ran.Detail)
	a.Types = map[string]string{"out": "f32", "a": "f32", "b": strings.TrimSpace(f.format.String() + " " + p.Ran.Layout)}
	return nil
}

// finite makes a number that JSON can hold.
func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return math.MaxFloat64
	}
	return v
}

// calls returns how many calls of t seconds make a turn.
func calls(turn time.Duration, t float64) int {
	return int(min(max(turn.Seconds()/max(t, 1e-9), 1), 1e5))
}

// rest waits until the threads of the last engine have stopped spinning.
func rest(threads int) {
	if threads > 1 {
		time.Sleep(30 * time.Millisecond)
	}
}

func middle(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// costOf returns the name of the op, and what a call costs at least.
func costOf(t tensor.DType, m, n, k int) (string, ops.Cost) {
	args := ops.MatmulBTArgs{Out: tensor.Must(tensor.New(nil, tensor.F32, int64(m), int64(n))),
		A: tensor.Must(tensor.New(nil, tensor.F32, int64(m), int64(k))), B: tensor.Must(tensor.New(nil, t, int64(n), int64(k)))}
	op := ops.OpMatmulBT
	if t.IsBlock() {
		op = ops.OpMatmulBTQuant
	}
	c, _ := ops.CostOf(op, unsafe.Pointer(&args))
	return registry.Default().OpName(op), c
}
