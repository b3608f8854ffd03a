package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/bench"
	"github.com/opmux/opmux/tensor"
)

// TestMain also is the process of an engine: the tests start their own program for it.
func TestMain(m *testing.M) {
	kinds["liar"] = kind{open: openLiar}
	kinds["crash"] = kind{open: openCrash}
	kinds["sleeper"] = kind{open: openSleeper}
	if len(os.Args) > 1 && os.Args[1] == engineCommand {
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// liar is opmux with one wrong element, in a row that no truth is computed for.
type liar struct{ engine }

func openLiar(j *job) (engine, error) {
	o := *j
	o.Variant = ""
	e, err := openOpmux(&o)
	return liar{e}, err
}

func (l liar) output() ([]float32, error) {
	out, err := l.engine.output()
	out = slices.Clone(out)
	out[len(out)/8] = float32(math.NaN())
	return out, err
}

// crash ends its process in the first call.
type crash struct{ engine }

func openCrash(j *job) (engine, error) {
	e, err := openOpmux(j)
	return crash{e}, err
}

func (crash) run(int) error {
	fmt.Fprintln(os.Stderr, "last words of a library")
	os.Exit(3)
	return nil
}

// sleeper never answers a call.
type sleeper struct{ engine }

func openSleeper(j *job) (engine, error) {
	e, err := openOpmux(j)
	return sleeper{e}, err
}

func (sleeper) run(int) error {
	time.Sleep(time.Hour)
	return nil
}

func parse(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parseOps(args, &bytes.Buffer{})
	require.NoError(t, err)
	return o
}

func TestParseOps(t *testing.T) {
	o := parse(t, "-formats", "q4_0, Q4_K,f32", "-m", "1,32", "-n", "64", "-k", "512", "-threads", "1", "-rounds", "3", "-cold", "12",
		"-engines", "opmux,ggml:CPU,openblas", "-kernel", "avx2", "-openblas", "/x/libopenblas.so", "-turn", "7ms", "-json")
	require.Equal(t, []tensor.DType{tensor.Q4_0, tensor.Q4_K, tensor.F32}, o.formats)
	require.Equal(t, []int{1, 32}, o.ms)
	require.Equal(t, []int{1}, o.threads)
	require.Equal(t, []job{{Engine: "opmux"}, {Engine: "ggml", Variant: "CPU"}, {Engine: "openblas", Path: "/x/libopenblas.so"},
		{Engine: "opmux", Variant: "avx2"}}, o.engines)
	require.Equal(t, int64(12<<20), o.cold)
	require.Equal(t, 7*time.Millisecond, o.turn)
	require.True(t, o.json)

	all := parse(t, "-formats", "all", "-threads", "1").formats
	require.Contains(t, all, tensor.Q6_K)
	require.NotContains(t, all, tensor.Q8_K) // of activations
	require.NotContains(t, all, tensor.I8)

	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-formats", "q4_7"}, `-formats: tensor: unknown dtype "q4_7"`},
		{[]string{"-formats", "i8"}, "-formats: i8 is no format of weights"},
		{[]string{"-m", "1,x"}, `-m: "x" is no positive number`},
		{[]string{"-m", "0"}, `-m: "0" is no positive number`},
		{[]string{"-threads", ""}, `-threads: "" is no positive number`},
		{[]string{"-threads", "100000"}, "-threads: 100000 are too many"},
		{[]string{"-threads", "1", "-n", "0"}, "-n, -k and -m are 1 to"},
		{[]string{"-threads", "1", "-k", "99999999999"}, "-n, -k and -m are 1 to"},
		{[]string{"-threads", "1", "-formats", "q4_K", "-k", "32"}, "-k: tensor: row of 32 elements is not whole q4_K blocks"},
		{[]string{"-threads", "1", "-rounds", "0"}, "-rounds is 1 to 1000"},
		{[]string{"-threads", "1", "-cold", "99999999"}, "-cold: 99999999 MiB are too many"},
		{[]string{"-threads", "1", "-engines", "opmux,blis"}, `no engine is called "blis"`},
		{[]string{"-threads", "1", "-engines", "opmux,read"}, `no engine is called "read"`},
		{[]string{"-threads", "1", "-engines", "ggml,opmux"}, "the first is what the others are compared with"},
		{[]string{"q4_0"}, `"q4_0" is no option`},
		{[]string{"-fast"}, "flag provided but not defined: -fast"},
	} {
		_, err := parseOps(c.args, &bytes.Buffer{})
		require.ErrorContains(t, err, c.want, "%q", c.args)
	}
	var help bytes.Buffer
	_, err := parseOps([]string{"-help"}, &help)
	require.ErrorIs(t, err, flag.ErrHelp)
	require.Contains(t, help.String(), "openblas")
}

// small are options of a run that takes milliseconds.
func small(t *testing.T, args ...string) options {
	return parse(t, append([]string{"-threads", "1", "-n", "96", "-k", "512", "-m", "1,33", "-rounds", "2", "-turn", "100us", "-cold", "1"}, args...)...)
}

func measureSmall(t *testing.T, o options) *report {
	t.Helper()
	r := newReport(o)
	require.NoError(t, r.measure(o))
	return r
}

func TestMissingLibrary(t *testing.T) {
	none := filepath.Join(t.TempDir(), "libnone.so")
	_, err := load(none, "libnone-either.so.7")
	require.ErrorIs(t, err, errMissing)
	require.ErrorContains(t, err, none)
	require.ErrorContains(t, err, "libnone-either.so.7")

	o := small(t, "-formats", "f32", "-engines", "opmux,ggml,openblas,onednn", "-openblas", none, "-onednn", none)
	o.json = true
	r := measureSmall(t, o)
	require.NoError(t, r.err(), "a missing engine is no failure")
	require.Len(t, r.Missing, 3)
	for i, name := range []string{"ggml", "openblas", "onednn"} {
		require.Equal(t, name, r.Missing[i].Engine)
	}
	require.Contains(t, r.Missing[1].Attempts, none)
	require.Len(t, r.Records, 2, "opmux is measured all the same")
	require.Empty(t, r.Records[0].Error)

	var text bytes.Buffer
	r.print(&text, r.Records)
	require.Contains(t, text.String(), "openblas: not here: not found: "+none)
}

func TestLibraryOfAnotherKind(t *testing.T) {
	const other = "libc.so.6"
	if _, err := load(other); err != nil {
		t.Skip(other, "is not on this system:", err)
	}
	o := small(t, "-formats", "f32", "-engines", "opmux,openblas", "-openblas", other)
	o.json = true
	r := measureSmall(t, o)
	require.Empty(t, r.Missing)
	require.Len(t, r.Skipped, 1)
	require.Equal(t, "openblas", r.Skipped[0].Op)
	require.Equal(t, "libc.so.6 has no cblas_sgemm, cblas_sgemv, openblas_get_config, openblas_get_corename, openblas_set_num_threads", r.Skipped[0].Why)
}

// A wrong result is never timed against a right one.
func TestWrongResult(t *testing.T) {
	o := small(t, "-formats", "q4_0")
	o.json, o.engines = true, []job{{Engine: "opmux"}, {Engine: "liar"}, {Engine: "opmux", Variant: "reference"}}
	r := measureSmall(t, o)
	rows := r.Records
	require.Len(t, rows, 6)
	for i, x := range rows {
		require.Empty(t, x.Error)
		require.Equal(t, x.Engine == "liar", x.wrong(), x.Engine)
		require.Equal(t, i%3 == 2, x.Ratio != nil, "row %d", i)
	}
	require.Equal(t, "reference_matmul_bt_quant", rows[2].Kernel)
	require.Less(t, rows[4].Verified.NMSE, 1e-3, "the truth's rows are right, the agreement is not")
	require.ErrorContains(t, r.err(), "q4_0/M=33/N=96/K=512, 1 threads: liar is wrong")
	_, err := json.Marshal(r)
	require.NoError(t, err, "NaN is no JSON")
	var text bytes.Buffer
	r.print(&text, r.Records)
	require.Contains(t, text.String(), "WRONG")
}

// An engine whose process ends costs its own rows only.
func TestCrash(t *testing.T) {
	o := small(t, "-formats", "f32")
	o.json, o.engines = true, []job{{Engine: "opmux"}, {Engine: "crash"}}
	r := measureSmall(t, o)
	require.NoError(t, r.err())
	rows := r.Records
	require.Len(t, rows, 4)
	for i, x := range rows {
		if x.Engine == "crash" {
			require.Contains(t, x.Error, "crash ended: exit status 3: last words of a library", "row %d", i)
		} else {
			require.Empty(t, x.Error)
			require.Len(t, x.Samples, 2)
		}
	}
	o.engines = []job{{Engine: "opmux", Variant: "nobody"}}
	require.ErrorContains(t, measureSmall(t, o).err(), "opmux:nobody")
}

// A process that does not answer is ended.
func TestPatience(t *testing.T) {
	defer func(d time.Duration) { patience = d }(patience)
	w, err := start(job{Engine: "sleeper", Format: tensor.F32, N: 1, K: 1, MaxM: 1, Threads: 1, Copies: 1, Weights: one(t), Inputs: one(t)})
	require.NoError(t, err)
	defer w.stop()
	patience = 100 * time.Millisecond
	for range 2 {
		_, err = w.exchange(&request{Shape: 1, Calls: 1})
		require.EqualError(t, err, "sleeper: no answer in 100ms")
	}
}

// one is a file with one float.
func one(t *testing.T) string {
	name := filepath.Join(t.TempDir(), "one")
	require.NoError(t, os.WriteFile(name, bytesOf([]float32{1}), 0o600))
	return name
}

func TestReportJSON(t *testing.T) {
	o := small(t, "-formats", "q8_0", "-engines", "opmux,opmux:reference")
	o.json = true
	r := measureSmall(t, o)
	b, err := json.Marshal(r)
	require.NoError(t, err)
	var got report
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, r, &got)
	for _, x := range got.Records {
		m := float64(x.Shape["M"])
		require.Positive(t, x.Median)
		rate, share := x.bandwidth()
		require.Positive(t, rate)
		require.InDelta(t, x.GBs/rate, share, 1e-9)
		require.InDelta(t, m*96*512*2/x.Median, x.GFLOPS, 1e-9)
		require.InDelta(t, (m*512*4+96*512/32*34+m*96*4)/x.Median, x.GBs, 1e-9)
		require.GreaterOrEqual(t, x.Executed, uint64(2*x.Inner), "the kernel counted its calls")
	}
	again, err := bench.Read(bytes.NewReader(b))
	require.NoError(t, err, "opmux bench compare reads it")
	require.Len(t, again.Records, 4)
	require.Equal(t, "matmul_bt_quant", again.Records[0].Op)
}

func TestNMSE(t *testing.T) {
	require.Zero(t, nmse([]float32{1, 2}, []float64{1, 2}))
	require.InDelta(t, 0.2, nmse([]float32{1, 3}, []float64{1, 2}), 1e-12)
	require.True(t, math.IsInf(nmse([]float32{1}, []float64{1, 2}), 1))
	require.True(t, math.IsNaN(nmse([]float32{float32(math.NaN())}, []float64{1})))
	require.True(t, math.IsInf(nmse([]float32{1}, []float64{0}), 1))
	require.Zero(t, nmse([]float32{0}, []float64{0}))
}

func TestTruth(t *testing.T) {
	weights := []float32{1, 0, 0, 2, 3, 4} // [3,2]
	inputs := []float32{1, 10, 2, 20}      // [2,2]
	x, err := newTruth(tensor.F32, bytesOf(weights), 3, 2, inputs, []int{1, 2})
	require.NoError(t, err)
	require.Equal(t, map[int][]float64{0: {1, 20, 43}, 1: {2, 40, 86}}, x.rows)
	require.Zero(t, x.nmse([]float32{1, 20, 43, 2, 40, 86}, 2))
	require.Greater(t, x.nmse([]float32{1, 20, 43, 2, 40, 0}, 2), limit(tensor.Q4_0))
}

func TestRandomWeights(t *testing.T) {
	for _, f := range parse(t, "-formats", "all", "-threads", "1").formats {
		const n, k = 3, 512
		a, err := randomWeights(f, n, k, 7)
		require.NoError(t, err, f)
		b, err := randomWeights(f, n, k, 7)
		require.NoError(t, err)
		require.Equal(t, a, b, "the seed decides: %v", f)
		row := make([]float32, k)
		require.NoError(t, tensor.Decode(row, f, a[:len(a)/n]))
		top := 0.0
		for _, v := range row {
			top = max(top, math.Abs(float64(v)))
		}
		require.True(t, top > 0 && top <= 1, "%v: largest weight %g", f, top)
	}
	_, err := randomWeights(tensor.Q4_0, 1, 33, 1)
	require.True(t, errors.Is(err, tensor.ErrShape))
}

func TestTurns(t *testing.T) {
	require.Equal(t, 50, calls(50*time.Millisecond, 1e-3))
	require.Equal(t, 1, calls(50*time.Millisecond, 3))
	require.Equal(t, 100000, calls(50*time.Millisecond, 0))
	require.Equal(t, 2.0, middle([]float64{9, 1, 2}))
	require.Equal(t, 1.5, middle([]float64{1, 2}))

	require.Equal(t, 1, copiesOf(options{cold: 0}, 100, 50))
	require.Equal(t, 4, copiesOf(options{cold: 1000}, 300, 50))
	require.Equal(t, 256, copiesOf(options{cold: -1}, 1<<20, 100), "MiB at least")
	if free := freeMemory(); free > 0 {
		require.LessOrEqual(t, int64(copiesOf(options{cold: math.MaxInt64 / 2}, 1<<20, 0))<<20, free)
	}
}

func TestLastWords(t *testing.T) {
	var w words
	fmt.Fprintf(&w, "loading\nassertion failed\nSIGABRT: abort\nPC=0x1\ngoroutine 1 [running]:\nmain.main()\n")
	require.Equal(t, "loading assertion failed SIGABRT: abort", w.last())
	w.Reset()
	_, err := w.Write(bytes.Repeat([]byte("x"), 1<<20))
	require.NoError(t, err)
	require.Equal(t, 64<<10, w.Len())
}

// The engines that are on this machine, against the exact product. Nothing is installed here.
func TestEngines(t *testing.T) {
	for _, c := range []struct {
		engine  string
		formats string
	}{
		{"ggml", "f32,f16,bf16,q4_0,q4_1,q5_0,q5_1,q8_0,q2_K,q3_K,q4_K,q5_K,q6_K,iq4_nl,iq4_xs,mxfp4"},
		{"ggml:CPU", "f32,f16,bf16,q4_0,q8_0,q4_K"},
		{"openblas", "f32"},
		{"openblas:Haswell", "f32"},
		{"onednn", "f32,q8_0"},
	} {
		t.Run(c.engine, func(t *testing.T) {
			o := small(t, "-formats", c.formats, "-engines", "opmux,"+c.engine)
			o.json = true
			if o.engines[1].Engine == "ggml" {
				o.engines[1].Path, _ = ggmlDir(o.cache)
			}
			r := measureSmall(t, o)
			if len(r.Missing) > 0 {
				t.Skipf("%s is not here: %s", r.Missing[0].Engine, r.Missing[0].Attempts)
			}
			require.NoError(t, r.err())
			require.Empty(t, r.Skipped)
			require.Len(t, r.Records, 4*len(o.formats))
			for _, x := range r.Records {
				require.Empty(t, x.Error)
				require.True(t, x.Verified.OK)
				require.NotEmpty(t, x.Kernel)
				require.Equal(t, x.Engine == c.engine, x.Ratio != nil)
				require.Equal(t, x.Engine == c.engine, x.Detail != "")
			}
		})
	}
}
