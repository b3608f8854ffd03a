// Anchor measures opmux side by side with llama.cpp (npm package node-llama-cpp and its prebuilt CPU library) on the same
// file, in interleaved rounds of one run, and prints the table of ratios.
//
//	go run .                     speed and memory: 512 tokens of prefill, 48 of decode, 1 and 2 threads
//	go run . -logprobs F.gguf    largest difference of the top-10 log-probabilities, teacher-forced over 64 steps
//	go run . ops                 products of single matrices on opmux, ggml, OpenBLAS and oneDNN; -help says more
//
// It needs npm and node. The default file is a synthetic 1.1B Q4_0 Llama shape, written to the cache folder.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

//go:embed llamacpp.mjs
var script []byte

const (
	npmPackage  = "node-llama-cpp@3.22.1"
	npmBinaries = "@node-llama-cpp/linux-x64@3.22.1"
	prefillLen  = 512
	decodeLen   = 48
)

// bars of the table: opmux over llama.cpp
const (
	prefillBar = 2.0
	decodeBar  = 1.5
)

// speed is one measurement of one engine.
type speed struct {
	Prefill float64 `json:"prefill"` // tokens/s
	Decode  float64 `json:"decode"`
	HWM     int64   `json:"hwm"` // bytes, peak resident memory of the process
	Limit   int64   `json:"limit,omitempty"`
	System  string  `json:"system,omitempty"`
}

func main() {
	run := run
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "ops":
			run = func() error { return runOps(os.Args[2:]) }
		case engineCommand:
			run = func() error { return serve(os.Stdin, os.Stdout) }
		}
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "anchor:", err)
		os.Exit(1)
	}
}

func run() error {
	cache, _ := os.UserCacheDir()
	dir := flag.String("cache", filepath.Join(cache, "opmux-anchor"), "folder for node-llama-cpp and the synthetic file")
	file := flag.String("m", "", "GGUF file (default: the synthetic one)")
	rounds := flag.Int("rounds", 3, "interleaved rounds; the median counts")
	threads := flag.String("threads", "1,2", "numbers of threads")
	logprobs := flag.String("logprobs", "", "compare log-probabilities on this GGUF file instead")
	child := flag.Int("child", 0, "measure opmux alone with this many threads, as JSON (used by the program itself)")
	flag.Parse()
	ctx := context.Background()
	if *child > 0 {
		s, err := measure(ctx, *file, *child)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(s)
	}
	node, err := install(*dir)
	if err != nil {
		return err
	}
	if *logprobs != "" {
		return compareLogprobs(ctx, node, *logprobs)
	}
	if *file == "" {
		*file = filepath.Join(*dir, "synthetic-1.1b-q4_0.gguf")
		if err := writeSynthetic(*file); err != nil {
			return err
		}
	}
	return compareSpeed(node, *file, *threads, *rounds)
}

// llamaCpp runs the script of this folder beside an installed node-llama-cpp.
type llamaCpp struct{ dir string }

func install(dir string) (llamaCpp, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return llamaCpp{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, "llamacpp.mjs"), script, 0o644); err != nil {
		return llamaCpp{}, err
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "node-llama-cpp")); err != nil {
		cmd := exec.Command("npm", "i", "--ignore-scripts", "--no-audit", "--no-fund", npmPackage, npmBinaries)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return llamaCpp{}, fmt.Errorf("npm i %s: %w", npmPackage, err)
		}
	}
	return llamaCpp{dir}, nil
}

func (l llamaCpp) run(out any, args ...string) error {
	cmd := exec.Command("node", append([]string{"llamacpp.mjs"}, args...)...)
	cmd.Dir = l.dir
	return runJSON(cmd, out)
}

func runJSON(cmd *exec.Cmd, out any) error {
	b, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return json.Unmarshal(b, out)
}

func compareSpeed(node llamaCpp, file, threadList string, rounds int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 2, 0, 2, ' ', 0)
	missed := false
	system := ""
	fmt.Fprintf(w, "threads\t\topmux\tllama.cpp\tratio\tbar\t\n")
	for _, text := range strings.Split(threadList, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		var ours, theirs []speed
		for range rounds {
			var a, b speed
			if err := runJSON(exec.Command(self, "-child", text, "-m", file), &a); err != nil {
				return err
			}
			if err := node.run(&b, "speed", file, text, strconv.Itoa(prefillLen), strconv.Itoa(decodeLen)); err != nil {
				return err
			}
			ours, theirs, system = append(ours, a), append(theirs, b), b.System
		}
		line := func(what string, bar float64, get func(speed) float64) {
			a, b := median(ours, get), median(theirs, get)
			var ratios []float64
			for i := range ours {
				ratios = append(ratios, get(ours[i])/get(theirs[i]))
			}
			slices.Sort(ratios)
			r := ratios[len(ratios)/2]
			mark := ""
			if r < bar {
				mark, missed = "MISSED", true
			}
			fmt.Fprintf(w, "%d\t%s\t%.1f t/s\t%.1f t/s\t%.2fx\t%.1fx\t%s\n", n, what, a, b, r, bar, mark)
		}
		line("prefill "+strconv.Itoa(prefillLen), prefillBar, func(s speed) float64 { return s.Prefill })
		line("decode "+strconv.Itoa(decodeLen), decodeBar, func(s speed) float64 { return s.Decode })
		hwm, limit := median(ours, func(s speed) float64 { return float64(s.HWM) }), float64(ours[0].Limit)
		mark := ""
		if hwm > limit {
			mark, missed = "MISSED", true
		}
		fmt.Fprintf(w, "%d\tVmHWM\t%.0f MiB\t%.0f MiB\t\t%.0f MiB\t%s\n", n, hwm/(1<<20),
			median(theirs, func(s speed) float64 { return float64(s.HWM) })/(1<<20), limit/(1<<20), mark)
	}
	w.Flush()
	fmt.Printf("%s, %s; median of %d rounds; llama.cpp: %s\n", time.Now().Format(time.DateOnly), cpuModel(), rounds, system)
	if missed {
		fmt.Println("a line marked MISSED is under its bar")
	}
	return nil
}

func median(s []speed, get func(speed) float64) float64 {
	var v []float64
	for _, x := range s {
		v = append(v, get(x))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown CPU"
}

type candidate struct {
	ID      int32   `json:"id"`
	Logprob float64 `json:"logprob"`
}

// compareLogprobs feeds 64 tokens to both engines and compares what each expects next.
func compareLogprobs(ctx context.Context, node llamaCpp, file string) error {
	const steps = 64
	tokens, ours, err := logprobs(ctx, file, steps)
	if err != nil {
		return err
	}
	var ids []string
	for _, t := range tokens {
		ids = append(ids, strconv.Itoa(int(t)))
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	var theirs [][]candidate
	if err := node.run(&theirs, "logprobs", abs, "2", strings.Join(ids, ",")); err != nil {
		return err
	}
	worst, sum, n := 0.0, 0.0, 0
	for i, row := range theirs {
		for _, c := range row[:min(10, len(row))] {
			d := math.Abs(ours[i][c.ID] - c.Logprob)
			worst, sum, n = max(worst, d), sum+d, n+1
		}
	}
	same, clear := 0, 0
	for i, row := range theirs {
		if row[0].Logprob-row[1].Logprob > 5*worst {
			clear++
			if int32(argmax(ours[i])) == row[0].ID {
				same++
			}
		}
	}
	mark := ""
	if worst > 0.05 || same < clear {
		mark = " MISSED"
	}
	fmt.Printf("%s: %d steps, top-10 log-probabilities differ by at most %.4f (mean %.5f), bar 0.05; same token in %d of %d clear steps%s\n",
		filepath.Base(file), len(theirs), worst, sum/float64(n), same, clear, mark)
	return nil
}

func argmax(v []float64) int {
	best := 0
	for i := range v {
		if v[i] > v[best] {
			best = i
		}
	}
	return best
}
