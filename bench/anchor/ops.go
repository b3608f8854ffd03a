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
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/ops"
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

// yardstick is the engine that measures bandwidth.
const yardstick = "read"

// report is what "anchor ops -json" prints.
type report struct {
	Time     string         `json:"time"`
	CPU      string         `json:"cpu"`
	Go       string         `json:"go"`
	Revision string         `json:"revision,omitempty"` // of opmux, with "+" if the tree differs from it
	N        int            `json:"n"`
	K        int            `json:"k"`
	Rounds   int            `json:"rounds"`
	Seed     uint64         `json:"seed"`
	Missing  []missing      `json:"missing,omitempty"`
	Groups   []*measurement `json:"groups"`
}

// missing is an engine that is not here.
type missing struct {
	Engine   string `json:"engine"`
	Attempts string `json:"attempts"`
}

// measurement is all rows of one format and number of threads.
type measurement struct {
	Format  tensor.DType      `json:"format"`
	Threads int               `json:"threads"`
	Copies  int               `json:"copies"`       // of the weights, which the calls go through
	Bytes   int64             `json:"weight_bytes"` // of all copies
	Cold    bool              `json:"cold"`         // more than the last cache holds
	Skipped map[string]string `json:"skipped,omitempty"`
	Rows    []row             `json:"rows"`
}

// row is one engine on one shape. Bytes and operations are those that no engine can avoid (ops.CostOf), weights
// counted in the size of their format, whatever the engine made of them.
type row struct {
	M         int         `json:"m"`
	Engine    string      `json:"engine"`
	Detail    string      `json:"detail"`
	Calls     int         `json:"calls"`                 // in a turn
	Seconds   float64     `json:"seconds"`               // of a call, median of the rounds
	Samples   []float64   `json:"samples"`               // of each round
	GBs       float64     `json:"gb_s"`                  // 1e9 bytes a second
	GFLOPs    float64     `json:"gflop_s"`               // 1e9 operations a second
	Read      float64     `json:"read_gb_s"`             // what the same threads read from memory in the same rounds
	Bandwidth float64     `json:"bandwidth"`             // GBs over Read, median of the rounds
	Ratio     *float64    `json:"ratio,omitempty"`       // speed of the first engine over this one's, median of the rounds
	Range     *[2]float64 `json:"ratio_range,omitempty"` // smallest and largest
	NMSE      float64     `json:"nmse"`                  // to the exact product, sampled rows
	Agreement float64     `json:"agreement"`             // nmse of the whole result to the first engine's
	Wrong     bool        `json:"wrong,omitempty"`       // beyond what the format allows: no ratio
	Error     string      `json:"error,omitempty"`
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
	for _, t := range o.formats {
		if err := r.format(o, t); err != nil {
			return err
		}
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
	r := &report{Time: time.Now().UTC().Format(time.RFC3339), CPU: cpuModel(), Go: runtime.Version(), N: o.n, K: o.k, Rounds: o.rounds, Seed: o.seed}
	if b, ok := debug.ReadBuildInfo(); ok {
		dirty := ""
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				r.Revision = s.Value
			case "vcs.modified":
				if s.Value == "true" {
					dirty = "+"
				}
			}
		}
		r.Revision += dirty
	}
	return r
}

// err returns what makes the run fail: a wrong result, or an error of the first engine.
func (r *report) err() error {
	var all []error
	for _, g := range r.Groups {
		for i, x := range g.Rows {
			first := i == 0 || g.Rows[i-1].M != x.M
			switch {
			case x.Wrong:
				all = append(all, fmt.Errorf("%v M=%d, %d threads: %s is wrong, nmse %.2g to the exact product, %.2g to opmux", g.Format, x.M, g.Threads, x.Engine, x.NMSE, x.Agreement))
			case x.Error != "" && first:
				all = append(all, fmt.Errorf("%v M=%d, %d threads: %s: %s", g.Format, x.M, g.Threads, x.Engine, x.Error))
			}
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

// format measures all shapes and numbers of threads with one format.
func (r *report) format(o options, t tensor.DType) error {
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
		g := &measurement{Format: t, Threads: threads}
		base.Copies, g.Cold = copiesOf(o, int64(len(weights)))
		g.Copies, g.Bytes = base.Copies, int64(base.Copies)*int64(len(weights))
		r.Groups = append(r.Groups, g)
		if err := r.measure(o, g, base, exact); err != nil {
			return err
		}
		if !o.json {
			r.print(os.Stdout, g)
		}
	}
	return nil
}

// copiesOf returns how many copies of the weights each engine gets: more than the last cache holds unless the options
// say otherwise, and no more than fit in half of the free memory.
func copiesOf(o options, size int64) (n int, cold bool) {
	cache := lastCache()
	want := o.cold
	if want < 0 {
		want = max(cache+cache/4, 256<<20)
	}
	_, free := memoryInfo()
	if each := free / 2 / int64(len(o.engines)+1); free > 0 {
		want = min(want, each)
	}
	n = int(max((want+size-1)/size, 1))
	return n, int64(n)*size > cache
}

// arm is one engine in a group.
type arm struct {
	w    *worker
	row  row
	dead bool
	out  []float32
}

// measure runs the interleaved rounds of one group.
func (r *report) measure(o options, g *measurement, base job, exact *truth) error {
	read, err := start(withEngine(base, job{Engine: yardstick}))
	if err != nil {
		return err
	}
	defer read.stop()
	var workers []*worker
	for _, e := range o.engines {
		j := withEngine(base, e)
		if formats := kinds[e.Engine].formats; formats != nil && !slices.Contains(formats, g.Format) {
			continue
		}
		w, err := start(j)
		switch {
		case errors.Is(err, errMissing):
			r.miss(e.Engine, err)
		case err != nil:
			if g.Skipped == nil {
				g.Skipped = map[string]string{}
			}
			g.Skipped[j.String()] = err.Error()
		default:
			defer w.stop()
			workers = append(workers, w)
			continue
		}
		if e.Engine == "opmux" {
			return fmt.Errorf("%s: %w", j.String(), err)
		}
	}
	for _, m := range o.ms {
		rows, err := race(o, g, read, workers, m, exact)
		if err != nil {
			return err
		}
		g.Rows = append(g.Rows, rows...)
	}
	return nil
}

func withEngine(base, e job) job {
	base.Engine, base.Variant, base.Path = e.Engine, e.Variant, e.Path
	return base
}

// race measures the engines on m rows of activations, in turns.
func race(o options, g *measurement, read *worker, workers []*worker, m int, exact *truth) ([]row, error) {
	arms := make([]*arm, 0, len(workers))
	for _, w := range workers {
		a := &arm{w: w, row: row{M: m, Engine: w.job.String()}}
		a.first(o, m, g.Format, exact, arms)
		arms = append(arms, a)
	}
	cost := costOf(g.Format, m, o.n, o.k)
	readBytes := float64(g.Bytes) / float64(g.Copies)
	t, err := read.turn(1)
	if err != nil {
		return nil, err
	}
	readCalls := calls(o.turn, t)
	var reads []float64
	for range o.rounds {
		t, err := read.turn(readCalls)
		if err != nil {
			return nil, err
		}
		reads = append(reads, readBytes/t/1e9)
		for _, a := range arms {
			if a.dead {
				continue
			}
			rest(g.Threads)
			t, err := a.w.turn(a.row.Calls)
			if err != nil {
				a.fail(err)
				continue
			}
			a.row.Samples = append(a.row.Samples, t)
		}
		rest(g.Threads)
	}
	var rows []row
	for _, a := range arms {
		x := &a.row
		if !a.dead {
			x.Seconds = middle(x.Samples)
			x.GBs, x.GFLOPs = float64(cost.Bytes())/x.Seconds/1e9, cost.FLOPs/x.Seconds/1e9
			x.Read = middle(reads)
			x.Bandwidth = middle(each(x.Samples, func(i int, t float64) float64 { return float64(cost.Bytes()) / t / 1e9 / reads[i] }))
			if first := arms[0]; a != first && !first.dead && !first.row.Wrong && !x.Wrong {
				ratios := each(x.Samples, func(i int, t float64) float64 { return t / first.row.Samples[i] })
				mid := middle(ratios)
				x.Ratio, x.Range = &mid, &[2]float64{slices.Min(ratios), slices.Max(ratios)}
			}
		}
		rows = append(rows, *x)
	}
	return rows, nil
}

// first makes the engine's first call with m rows, checks its result and counts how many calls make a turn.
func (a *arm) first(o options, m int, t tensor.DType, exact *truth, before []*arm) {
	p, err := a.w.exchange(&request{Shape: m, Calls: 1, Output: true})
	if err != nil {
		a.fail(err)
		return
	}
	a.out = p.Output
	if len(a.out) != m*o.n {
		a.fail(fmt.Errorf("the result has %d elements, not %d", len(a.out), m*o.n))
		return
	}
	a.row.NMSE = exact.nmse(a.out, m)
	if len(before) > 0 && before[0].out != nil {
		a.row.Agreement = nmse(a.out, before[0].out)
	}
	// two results that are within the limit of the truth differ by at most four times as much
	if a.row.Wrong = !(a.row.NMSE <= limit(t)) || !(a.row.Agreement <= 4*limit(t)); a.row.Wrong {
		a.row.NMSE, a.row.Agreement = finite(a.row.NMSE), finite(a.row.Agreement)
	}
	if p, err = a.w.exchange(&request{Calls: 1}); err != nil { // the first call also touched new memory
		a.fail(err)
		return
	}
	a.row.Detail = cmp.Or(p.Detail, a.w.detail)
	a.row.Calls = calls(o.turn, p.Took.Seconds())
}

func (a *arm) fail(err error) { a.dead, a.row.Error = true, err.Error() }

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

func each(v []float64, f func(int, float64) float64) (out []float64) {
	for i, x := range v {
		out = append(out, f(i, x))
	}
	return out
}

// costOf returns what a call costs at least.
func costOf(t tensor.DType, m, n, k int) ops.Cost {
	args := ops.MatmulBTArgs{Out: tensor.Must(tensor.New(nil, tensor.F32, int64(m), int64(n))),
		A: tensor.Must(tensor.New(nil, tensor.F32, int64(m), int64(k))), B: tensor.Must(tensor.New(nil, t, int64(n), int64(k)))}
	op := ops.OpMatmulBT
	if t.IsBlock() {
		op = ops.OpMatmulBTQuant
	}
	c, _ := ops.CostOf(op, unsafe.Pointer(&args))
	return c
}
