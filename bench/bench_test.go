package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// bed is the CPU with a probe that only counts.
type bed struct {
	*cpu.Device
	size, read int64
	reads      int
	multiplied float64
	closed     bool
}

func (b *bed) NewProbe() (device.Probe, error) { return (*countingProbe)(b), nil }

type countingProbe bed

func (p *countingProbe) Cache() int64       { return p.size * 4 / 5 }
func (p *countingProbe) Size() int64        { return p.size }
func (p *countingProbe) Read(n int64) int64 { p.reads++; p.read += n; return n }
func (p *countingProbe) Units() []string    { return []string{ops.UnitF32} }
func (p *countingProbe) Multiply(_ string, n float64) float64 {
	p.multiplied += n
	return n
}
func (p *countingProbe) Close() error { p.closed = true; return nil }

// newBed opens a CPU whose caches hold size bytes, for a registry with the reference kernels and those of Go alone.
func newBed(t *testing.T, size int64) (*registry.Registry, *bed) {
	r := registry.New(registry.Options{})
	require.NoError(t, cpu.Register(r))
	d, err := cpu.Open(cpu.Options{Threads: 1, Registry: r})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return r, &bed{Device: d, size: size}
}

// kernel registers a kernel of relu, or of another op, that watches its calls.
func kernel[R any](t *testing.T, r *registry.Registry, o *ops.Op[R], name string, fn func(q *registry.Queue, a *R) registry.Status) {
	_, err := ops.Register(r, o, tensor.CPU, ops.Provider[R]{OpProvider: registry.OpProvider{Name: name, Priority: 70}, Fn: fn})
	require.NoError(t, err)
}

func relu(a *ops.ReluArgs) {
	out := tensor.Slice[float32](&a.Out)
	for i, x := range tensor.Slice[float32](&a.X) {
		out[i] = max(x, 0)
	}
}

// short are options of a run that takes no time.
func short(r *registry.Registry, d device.Device, op, kernel string) Options {
	return Options{Registry: r, Device: d, Op: op, Kernel: kernel, Count: 6, Seed: 7, Shape: map[string][]int64{"H": {256}}}
}

func TestW36Timing(t *testing.T) {
	const set = 2 * 256 * 4 // bytes of a call of relu on 256 elements
	for _, c := range []struct {
		name   string
		size   int64 // of the caches
		warm   bool
		copies int
	}{
		{"cold: sets of operands take turns", 100 * set, false, 100},
		{"warm: one set", 100 * set, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, d := newBed(t, c.size)
			places, last := map[unsafe.Pointer]int{}, unsafe.Pointer(nil)
			order := []string{}
			for _, name := range []string{"one", "two"} {
				kernel(t, r, ops.Relu, name, func(_ *registry.Queue, a *ops.ReluArgs) registry.Status {
					if a.X.Numel() == 256 && last != a.X.Host {
						require.False(t, c.warm && last != nil && places[a.X.Host] == 0 && len(places) > 3, "another set in a warm cache")
					}
					last = a.X.Host
					places[a.X.Host]++
					if len(order) == 0 || order[len(order)-1] != name {
						order = append(order, name)
					}
					relu(a)
					return registry.Status(registry.OK)
				})
			}
			o := short(r, d, "relu", "[ot][nw][eo]")
			o.Warm, o.NoVerify = c.warm, true
			rep, err := Run(t.Context(), o)
			require.NoError(t, err)
			require.Len(t, rep.Records, 2)
			require.Len(t, places, c.copies)
			for _, rec := range rep.Records {
				require.Empty(t, rec.Error)
				require.Equal(t, c.copies, rec.Copies)
				require.Contains(t, []int{6, 6 - rec.Disturbed}, len(rec.Samples))
				require.Positive(t, rec.Inner)
				require.GreaterOrEqual(t, rec.Executed, uint64(6*rec.Inner), "the kernel's own counter")
				require.Equal(t, int64(256*4), rec.Read)
				require.Equal(t, int64(256*4), rec.Written)
				require.Equal(t, 256.0, rec.FLOPs)
				require.LessOrEqual(t, rec.Min, rec.Median)
				require.LessOrEqual(t, rec.Median, rec.P90)
				require.LessOrEqual(t, rec.Low, rec.Median)
				require.GreaterOrEqual(t, rec.High, rec.Median)
				require.InDelta(t, 2048/rec.Median, rec.GBs, 1e-9)
				require.NotNil(t, rec.Roofline)
			}
			require.GreaterOrEqual(t, len(order), 7, "kernels take turns: %v", order)
			require.Positive(t, d.multiplied)
			require.True(t, d.closed)
		})
	}
}

// Operands that a call changes are as they were at each launch: a temperature applied again and again would end in zeros.
func TestW36StateIsRestored(t *testing.T) {
	for _, warm := range []bool{false, true} {
		r, d := newBed(t, 1<<20)
		var first []float32
		places := map[unsafe.Pointer]bool{}
		calls := 0
		kernel(t, r, ops.ApplyTemperature, "scale", func(_ *registry.Queue, a *ops.ApplyTemperatureArgs) registry.Status {
			x := tensor.Slice[float32](&a.Logits)
			if first == nil {
				first = slices.Clone(x)
			}
			if !slices.Equal(first, x) {
				return a.Fail(errors.New("logits were changed before"))
			}
			places[a.Logits.Host] = true
			calls++
			for i := range x {
				x[i] /= 1e3
			}
			return registry.Status(registry.OK)
		})
		o := short(r, d, "apply_temperature", "scale")
		o.Shape = map[string][]int64{"V": {1000}}
		o.Warm, o.NoVerify = warm, true
		rep, err := Run(t.Context(), o)
		require.NoError(t, err)
		require.Empty(t, rep.Records[0].Error)
		require.Greater(t, calls, len(places), "sets were used again")
		require.LessOrEqual(t, rep.Records[0].Inner, rep.Records[0].Copies, "no set twice in a sample")
	}
}

// Sets too small to push each other out: the caches are flushed in every round, and no set is used twice between.
func TestW36Flush(t *testing.T) {
	r, d := newBed(t, 1<<30)
	kernel(t, r, ops.Relu, "one", func(_ *registry.Queue, a *ops.ReluArgs) registry.Status {
		relu(a)
		return registry.Status(registry.OK)
	})
	o := short(r, d, "relu", "one")
	o.Shape["H"], o.NoVerify = []int64{4}, true
	rep, err := Run(t.Context(), o)
	require.NoError(t, err)
	rec := rep.Records[0]
	require.Equal(t, maxCopies, rec.Copies)
	require.LessOrEqual(t, rec.Inner, rec.Copies)
	require.GreaterOrEqual(t, d.read, 7*d.size, "once before the warm-up and once for each of six rounds")
	require.EqualValues(t, d.size, rep.Provenance.FlushBytes)
}

// One kernel that fails, panics, declines, gives wrong results, or hands its calls on does not end the run, and has no
// figures, or figures that say so.
func TestW38OneFailureEndsNothing(t *testing.T) {
	r, d := newBed(t, 1<<16)
	done := registry.Status(registry.OK)
	kernel(t, r, ops.Relu, "good", func(_ *registry.Queue, a *ops.ReluArgs) registry.Status { relu(a); return done })
	kernel(t, r, ops.Relu, "fails", func(_ *registry.Queue, a *ops.ReluArgs) registry.Status { return a.Fail(errors.New("out of luck")) })
	calls := 0
	kernel(t, r, ops.Relu, "fails-late", func(_ *registry.Queue, a *ops.ReluArgs) registry.Status {
		if calls++; calls > 30 {
			return a.Fail(errors.New("tired"))
		}
		relu(a)
		return done
	})
	kernel(t, r, ops.Relu, "panics", func(*registry.Queue, *ops.ReluArgs) registry.Status { panic("no such lane") })
	kernel(t, r, ops.Relu, "declines", func(*registry.Queue, *ops.ReluArgs) registry.Status {
		return registry.Decline(registry.ReasonAlignment)
	})
	kernel(t, r, ops.Relu, "wrong", func(_ *registry.Queue, a *ops.ReluArgs) registry.Status {
		relu(a)
		tensor.Slice[float32](&a.Out)[3] = 42
		return done
	})
	kernel(t, r, ops.Relu, "yields", func(q *registry.Queue, a *ops.ReluArgs) registry.Status {
		next, err := r.GetOpFallback(ops.OpRelu, q.Device(), "yields")
		if err != nil {
			return a.Fail(err)
		}
		return next(q.With(context.Background()), unsafe.Pointer(a))
	})
	o := short(r, d, "relu", "*")
	o.Formats = []string{"f32", "q4_0", "bf16"}
	rep, err := Run(t.Context(), o)
	require.NoError(t, err)
	by := map[string]Record{}
	for _, rec := range rep.Records {
		if rec.Format == "f32" {
			by[rec.Provider] = rec
		}
	}
	figures := func(name string) bool { return by[name].Median > 0 }
	require.True(t, figures("good"))
	require.True(t, by["good"].Verified.OK)
	require.Contains(t, by["fails"].Error, "out of luck")
	require.Contains(t, by["fails-late"].Error, "tired")
	require.Contains(t, by["panics"].Error, "no such lane")
	require.Equal(t, "alignment", by["declines"].Declined)
	require.Empty(t, by["declines"].Error)
	require.Contains(t, by["yields"].Error, "executed 0 of 1 launches")
	for _, name := range []string{"fails", "fails-late", "panics", "declines", "yields"} {
		require.False(t, figures(name), name)
	}
	require.False(t, by["wrong"].Verified.OK)
	require.Contains(t, by["wrong"].Verified.Worst, "42")
	require.True(t, figures("reference"))
	require.Nil(t, by["reference"].Verified, "nothing to hold it against")

	failed := map[string]bool{}
	for _, rec := range rep.Failed() {
		if rec.Format == "f32" { // these kernels read nothing else
			failed[rec.Provider] = true
		}
	}
	require.Equal(t, map[string]bool{"fails": true, "fails-late": true, "panics": true, "wrong": true, "yields": true}, failed)
	why := []string{}
	for _, s := range rep.Skipped {
		if s.Op == "relu" && strings.Contains(s.Case, "H=256") {
			why = append(why, s.Why)
		}
	}
	require.Len(t, why, 1, "formats that are none of the op's: %v", rep.Skipped)
	require.Contains(t, strings.Join(why, " "), "x is no q4_0: it takes float")
	require.True(t, slices.ContainsFunc(rep.Records, func(r Record) bool { return r.Format == "bf16" && r.Median > 0 }), "the run went on")
}

// Ops of equal extents have sections of their own; wrong results, errors and bandwidth stand in every form of a report.
func TestW39Report(t *testing.T) {
	rep := &Report{Version: Version, Provenance: Provenance{CPU: "A <CPU> | 9000", DeviceName: "CPU, 1 threads", Threads: 1, Cache: "cold", Go: "go1.26", OS: "linux", Arch: "amd64", Revision: "abc", Digest: "d1"},
		Limits: []Limit{{Name: "read", Rate: 15.5e9, Best: 16e9}, {Name: "int8", Rate: 770e9, Best: 780e9}},
		Records: []Record{
			record("relu", "a", 100, 110, 105), record("add", "a", 2e6), {Op: "relu", Kernel: "b", Case: "f32/H=4", Error: "it | broke\nhere"},
			{Op: "add", Kernel: "c", Case: "f32/H=4", Declined: "layout"},
		}, Skipped: []Skip{{"add", "q4_0/H=4", "a is no q4_0"}}}
	rep.Records[1].Verified = &Verification{Against: "reference", Worst: "out[0 3] is 42, want 0"}
	rep.Records[0].Verified = &Verification{OK: true, Against: "reference"}
	rep.Records[0].Roofline = NewRoofline(&rep.Records[0], 10e9, "f32", 1e9)

	var text bytes.Buffer
	require.NoError(t, rep.Text(&text))
	relu, add := strings.Index(text.String(), "\nrelu\n"), strings.Index(text.String(), "\nadd\n")
	require.True(t, 0 < relu && relu < add, text.String())
	require.NotContains(t, text.String()[relu:add], "declines: layout")
	for _, want := range []string{"15.5 GB/s (best 16.0)", "770 GFLOP/s", "105 ns", "2.00 ms", "ok", "WRONG", "differs from reference: out[0 3] is 42, want 0", "error: it | broke", "declines: layout", "GB/s", "381 %  1.00 GFLOP/s f32", "a is no q4_0", "d1", "abc"} {
		require.Contains(t, text.String(), want)
	}
	var md bytes.Buffer
	require.NoError(t, rep.Markdown(&md))
	require.Contains(t, md.String(), "\n## relu\n")
	require.Contains(t, md.String(), "\n## add\n")
	require.Contains(t, md.String(), `error: it \| broke here`)
	require.Contains(t, md.String(), `A &lt;CPU> \| 9000`)
	cells := regexp.MustCompile(`[^\\]\|`)
	for _, line := range strings.Split(md.String(), "\n") {
		if strings.HasPrefix(line, "| ") {
			require.Len(t, cells.FindAllString(line, -1), len(columns), line)
		}
	}
	var c bytes.Buffer
	require.NoError(t, rep.CSV(&c))
	rows, err := csv.NewReader(&c).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 5)
	require.Equal(t, "WRONG", rows[2][slices.Index(rows[0], "verified")])
	require.Equal(t, "105", rows[1][slices.Index(rows[0], "median_ns")])

	var lines bytes.Buffer
	require.NoError(t, rep.Go(&lines))
	line := regexp.MustCompile(`(?m)^Benchmark[A-Z]\w*/\w+/f32/H=4-1\t8\t[0-9.e+]+ ns/op\t[0-9.e+-]+ GB/s\t[0-9.e+-]+ GFLOP/s$`)
	require.Len(t, line.FindAllString(lines.String(), -1), 4, "one for each sample: %s", &lines)
	require.Contains(t, lines.String(), "\ncpu: A <CPU> | 9000\n")

	require.Len(t, rep.Failed(), 2, "an exit code that tells")
}

// record has samples and figures.
func record(op, kernel string, samples ...float64) Record {
	r := Record{Op: op, Kernel: kernel, Provider: kernel, Case: "f32/H=4", Format: "f32", Types: map[string]string{"x": "f32"}, Shape: map[string]int64{"H": 4}, Threads: 1,
		Cache: "cold", Samples: samples, Inner: 8, FLOPs: 400, Read: 16, Written: 16, Executed: 80}
	r.Summarize()
	return r
}

// A report says what it was measured on, and two reports can be told apart by that.
func TestW40Provenance(t *testing.T) {
	r, d := newBed(t, 1<<16)
	run := func() *Report {
		o := short(r, d, "relu", "portable")
		rep, err := Run(t.Context(), o)
		require.NoError(t, err)
		return rep
	}
	a := run()
	p := a.Provenance
	for name, v := range map[string]string{"time": p.Time, "go": p.Go, "os": p.OS, "arch": p.Arch, "cpu": p.CPU, "device": p.Device, "device name": p.DeviceName,
		"tier": p.DeviceArch, "digest": p.Digest, "cache": p.Cache} {
		require.NotEmpty(t, v, name)
	}
	when, err := time.Parse(time.RFC3339, p.Time)
	require.NoError(t, err)
	require.Equal(t, time.UTC, when.Location())
	require.Equal(t, 1, p.Threads)
	require.EqualValues(t, 7, p.Seed)

	var b bytes.Buffer
	require.NoError(t, a.Write(&b))
	again, err := Read(bytes.NewReader(b.Bytes()))
	require.NoError(t, err)
	require.Equal(t, a, again)
	dir := t.TempDir()
	require.ErrorIs(t, a.WriteFile(dir+"/not/there.json"), fs.ErrNotExist, "folders are not made")
	require.NoDirExists(t, dir+"/not")
	require.ErrorIs(t, a.WriteFile(dir), ErrReport)
	_, err = ReadFile(dir)
	require.ErrorIs(t, err, ErrReport)
	file := dir + "/report.json"
	w, err := Create(file)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoFileExists(t, file, "nothing was written")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("x"), 1<<20), 0o600))
	w, err = Create(file)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, info.Size(), "a run that ends early leaves the earlier report alone")
	require.NoError(t, a.WriteFile(file))
	again, err = ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, a, again)
	require.Empty(t, Compare(a, again, DefaultNoise).Differences)
	require.Empty(t, Compare(a, run(), 1e9).Differences, "same machine, same table")

	kernel(t, r, ops.Relu, "another", func(_ *registry.Queue, a *ops.ReluArgs) registry.Status { relu(a); return registry.Status(registry.OK) })
	changed := run()
	require.NotEqual(t, p.Digest, changed.Provenance.Digest, "another table of kernels")
	require.Contains(t, strings.Join(Compare(a, changed, DefaultNoise).Differences, " "), "kernels: "+p.Digest)

	for _, text := range []string{"", "{", "[]", `{"version":2}`, `{"version":1,"records":7}`, `{"version":1,"records":[{"samples_ns":[1,0]}]}`} {
		_, err := Read(strings.NewReader(text))
		require.ErrorIs(t, err, ErrReport, text)
	}
	_, err = ReadFile(t.TempDir() + "/none")
	require.Error(t, err)
}

func TestCompare(t *testing.T) {
	steady := func(v float64) []float64 { return []float64{v, v * 1.001, v * 0.999, v * 1.002, v, v * 0.998} }
	wild := []float64{50, 150, 100, 60, 140, 100}
	rep := func(records ...Record) *Report { return &Report{Version: Version, Records: records} }
	wrong := record("relu", "k", steady(100)...)
	wrong.Verified = &Verification{Worst: "out[0]"}
	for _, c := range []struct {
		name          string
		before, after Record
		want          string
	}{
		{"equal", record("relu", "k", steady(100)...), record("relu", "k", steady(100)...), Same},
		{"4 % is inside 5 %", record("relu", "k", steady(100)...), record("relu", "k", steady(104)...), Same},
		{"8 % slower", record("relu", "k", steady(100)...), record("relu", "k", steady(108)...), Slower},
		{"8 % faster", record("relu", "k", steady(108)...), record("relu", "k", steady(100)...), Faster},
		{"the samples scatter more than the difference", record("relu", "k", wild...), record("relu", "k", steady(110)...), Same},
		{"error now", record("relu", "k", steady(100)...), Record{Op: "relu", Kernel: "k", Case: "f32/H=4", Error: "gone", Types: map[string]string{"x": "f32"}, Threads: 1, Cache: "cold"}, Broken},
		{"wrong now", record("relu", "k", steady(100)...), wrong, Broken},
		{"right now", wrong, record("relu", "k", steady(200)...), Repaired},
		{"wrong then and now", wrong, wrong, Same},
	} {
		x := Compare(rep(c.before), rep(c.after), DefaultNoise)
		require.Len(t, x.Changes, 1, c.name)
		require.Equal(t, c.want, x.Changes[0].Verdict, c.name)
		require.Len(t, x.Regressions(), map[string]int{Slower: 1, Broken: 1}[c.want], c.name)
		var b bytes.Buffer
		require.NoError(t, x.Text(&b))
		require.Contains(t, b.String(), c.want)
	}
	x := Compare(rep(record("relu", "k", 1)), rep(record("add", "k", 1)), 0)
	require.Equal(t, []string{Missing, Additional}, []string{x.Changes[0].Verdict, x.Changes[1].Verdict})
	require.Empty(t, x.Regressions())
	warm := record("relu", "k", 1)
	warm.Cache = "warm"
	require.NotEqual(t, warm.Key(), new(record("relu", "k", 1)).Key(), "a warm and a cold run are two things")
}

func TestAB(t *testing.T) {
	r, d := newBed(t, 1<<18)
	done := registry.Status(registry.OK)
	order := ""
	add := func(name string, times int, spoil bool) {
		kernel(t, r, ops.Relu, name, func(_ *registry.Queue, a *ops.ReluArgs) registry.Status {
			if order == "" || order[len(order)-1] != name[0] {
				order += name[:1]
			}
			for range times {
				relu(a)
			}
			if spoil {
				tensor.Slice[float32](&a.Out)[2] = -1
			}
			return done
		})
	}
	add("fast", 1, false)
	add("slow", 40, false)
	add("wrong", 1, true)
	kernel(t, r, ops.Relu, "declines", func(*registry.Queue, *ops.ReluArgs) registry.Status { return registry.Decline(registry.ReasonShape) })
	kernel(t, r, ops.Relu, "yields", func(q *registry.Queue, a *ops.ReluArgs) registry.Status {
		next, err := r.GetOpFallback(ops.OpRelu, q.Device(), "yields")
		require.NoError(t, err)
		return next(q.With(context.Background()), unsafe.Pointer(a))
	})
	o := short(r, d, "relu", "")
	o.Count = 12
	rep, err := AB(t.Context(), o, "slow", "fast_relu")
	require.NoError(t, err)
	require.Len(t, rep.Cases, 1)
	c := rep.Cases[0]
	require.Equal(t, "b is faster", c.Verdict)
	require.Greater(t, c.Low, 1.0)
	require.True(t, c.Low <= c.Ratio && c.Ratio <= c.High)
	require.True(t, leastRounds <= c.Rounds && c.Rounds <= 12, "%d", c.Rounds)
	require.GreaterOrEqual(t, c.A.Executed, uint64(12*c.A.Inner))
	require.GreaterOrEqual(t, c.B.Executed, uint64(12*c.B.Inner))
	require.True(t, c.Compared.OK && c.Compared.Same)
	require.False(t, rep.Failed())
	require.Contains(t, order, "sfsf", "by turns first and second")
	require.Equal(t, "default/H=256/T=1", strings.Replace(c.Case, "f32", "default", 1))
	var b bytes.Buffer
	require.NoError(t, rep.Text(&b))
	require.Contains(t, b.String(), "bit for bit")
	require.Contains(t, b.String(), "in the same round, not that of the medians above")
	require.Contains(t, b.String(), fmt.Sprint(c.A.Executed))

	rep, err = AB(t.Context(), o, "fast", "fast")
	require.ErrorIs(t, err, ErrOption)
	require.Empty(t, rep.Cases)
	rep, err = AB(t.Context(), o, "fast", "wrong")
	require.NoError(t, err)
	require.True(t, rep.Failed())
	require.Contains(t, rep.Cases[0].Compared.Outputs[0].Worst, "is -1")
	_, err = AB(t.Context(), o, "fast", "declines")
	require.ErrorIs(t, err, registry.ErrDeclined)
	_, err = AB(t.Context(), o, "fast", "none")
	require.ErrorIs(t, err, registry.ErrUnknownName)
	require.ErrorContains(t, err, "slow_relu")
	_, err = AB(t.Context(), o, "fast", "yields")
	require.ErrorIs(t, err, ErrNotExecuted)
	var k *KernelError
	require.ErrorAs(t, err, &k)
	require.Equal(t, "yields_relu", k.Want)
	o.Formats = []string{"q8_0"}
	_, err = AB(t.Context(), o, "fast", "slow")
	require.ErrorIs(t, err, ErrOption)
	require.ErrorContains(t, err, `ops of "relu" take f32, f16, bf16`)
}

func TestOptions(t *testing.T) {
	r, d := newBed(t, 1<<16)
	for _, c := range []struct {
		name string
		o    Options
		want error
	}{
		{"no device", Options{}, ErrOption},
		{"negative count", Options{Device: d, Count: -1}, ErrOption},
		{"negative time", Options{Device: d, Time: -1}, ErrOption},
		{"no such op", Options{Device: d, Op: "relup"}, registry.ErrUnknownOp},
		{"broken pattern", Options{Device: d, Op: "[a"}, ErrOption},
		{"broken pattern of kernels", Options{Device: d, Op: "relu", Kernel: "[a"}, ErrOption},
		{"no such kernel", Options{Device: d, Op: "relu", Kernel: "cublas*"}, registry.ErrUnknownName},
		{"no such format", Options{Device: d, Op: "relu", Formats: []string{"f32", "f17"}}, registry.ErrUnknownName},
		{"formats of other ops", Options{Device: d, Op: "relu", Formats: []string{"q4_0", "q8_0"}}, ErrOption},
		{"no such symbol", Options{Device: d, Op: "relu", Shape: map[string][]int64{"Q": {1}}}, ErrOption},
		{"no such operand", Options{Device: d, Op: "relu", Types: map[string]tensor.DType{"weight": tensor.F32}}, ErrOption},
		{"negative extent", Options{Device: d, Op: "relu", M: []int64{-1}}, ErrOption},
	} {
		c.o.Registry = r
		_, err := Run(t.Context(), c.o)
		require.ErrorIs(t, err, c.want, c.name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o := short(r, d, "relu", "portable")
	o.Count, o.Progress = 0, func(string, string) { cancel() }
	rep, err := Run(ctx, o)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, rep.Records, "what was begun is not shown")
	require.Equal(t, "0 of 1 cases were finished", rep.Interrupted)
	var text bytes.Buffer
	require.NoError(t, rep.Text(&text))
	require.Contains(t, text.String(), "interrupted: 0 of 1 cases were finished")

	// The plan counts kernels and cases, and names the time of the samples if it is that which was given.
	o = short(r, d, "relu", "portable*")
	o.NoVerify, o.Count, o.Time = true, 0, time.Millisecond
	o.Shape["H"] = []int64{8, 16, 32}
	var p Plan
	o.Plan = func(q Plan) { p = q }
	rep, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, Plan{Cases: 3, Kernels: 3, Least: 3 * time.Millisecond}, p)
	require.Len(t, rep.Records, 3)

	// An extent that the op's validator or the generator refuses is an error of the record.
	o = short(r, d, "matmul_bt_quant", "reference")
	o.Shape, o.M, o.N, o.K, o.Formats = nil, []int64{1}, []int64{4}, []int64{100}, []string{"q4_0"}
	rep, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, rep.Failed(), 1)
	require.Contains(t, rep.Records[0].Error, "100")
	o.M, o.K = []int64{0}, []int64{32}
	rep, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Contains(t, rep.Records[0].Error, "nothing to do: all outputs are empty")
	require.Zero(t, rep.Records[0].Median)
	for _, op := range []string{"apply_logit_bias", "apply_token_mask"} { // the logits are there, what changes them is not
		o = short(r, d, op, "reference")
		o.Shape, o.M = map[string][]int64{"V": {100}}, []int64{0}
		rep, err = Run(t.Context(), o)
		require.NoError(t, err)
		require.Contains(t, rep.Records[0].Error, "nothing to do", op)
	}
}

// TestShareAboveItsLimit: the share is of the best round of a limit, and one that is above it all the same says so.
func TestShareAboveItsLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		warm  bool
		turns []timing // of reading a byte
		share float64
		note  string
	}{
		{"one round was quiet", false, []timing{{ns: 4}, {ns: 4}, {ns: 1}}, 0.32, ""},
		{"above a steady limit", false, []timing{{ns: 4}, {ns: 4}, {ns: 4}}, 1.28, "operands were in the cache, or"},
		{"above a disturbed limit", false, []timing{{ns: 8}, {ns: 8}, {ns: 4}}, 1.28, "its own rounds were disturbed"},
		{"in a warm cache", true, []timing{{ns: 4}, {ns: 4}, {ns: 4}}, 1.28, "the limit is that of memory"},
	} {
		r := record("relu", "a", 100) // 32 bytes
		r.Samples, r.FLOPs = []float64{100, 100, 100, 100, 100}, 0
		a := &arm{rec: r, inner: 1 << 20}
		for _, ns := range r.Samples {
			a.times = append(a.times, timing{ns: ns})
		}
		a.clean = len(a.times)
		x := &caseRun{rig: &rig{Options: Options{Warm: c.warm}}, turns: map[string][]timing{limitRead: c.turns}}
		x.probe = (*countingProbe)(&bed{size: 1})
		x.figures(a)
		require.InDelta(t, c.share, a.rec.Roofline.Share, 0.01, c.name)
		if notes := strings.Join(a.rec.Notes, "; "); c.note == "" {
			require.NotContains(t, notes, "more than the limit", c.name)
		} else {
			require.Contains(t, notes, c.note, c.name)
		}
	}
}

// TestEveryOp measures every kernel of every op on a small call of it: no op lacks a usual call, a cost, or figures.
func TestEveryOp(t *testing.T) {
	r, d := newBed(t, 1<<16)
	for _, desc := range registry.Descriptors() {
		o := Options{Registry: r, Device: d, Op: desc.Name, Kernel: "portable", Count: 1, Shape: map[string][]int64{}}
		if len(r.Explain(desc.Op, d.ID()).Chain) == 1 {
			o.Kernel = "reference"
		}
		for symbol, n := range map[string]int64{"H": 64, "N": 32, "K": 256, "V": 1000, "D": 128, "Tk": 20, "NB": 3, "P": 100} {
			if _, own := usualOf[desc.Name][symbol]; !own && slices.Contains(sample.FreeSymbols(desc), symbol) {
				o.Shape[symbol] = []int64{n}
			}
		}
		rep, err := Run(t.Context(), o)
		require.NoError(t, err, desc.Name)
		require.Len(t, rep.Records, 1, desc.Name)
		rec := rep.Records[0]
		require.True(t, rec.OK(), "%s: %+v", desc.Name, rec)
		require.Positive(t, rec.Median, desc.Name)
		require.Positive(t, rec.GBs, desc.Name)
		require.NotNil(t, rec.Roofline, desc.Name)
		require.NotContains(t, rec.Case, "default", desc.Name)
		if o.Kernel != "reference" {
			require.NotNil(t, rec.Verified, "%s: %v", desc.Name, rec.Notes)
		}
	}
}

func TestCases(t *testing.T) {
	r, d := newBed(t, 1<<16)
	o := Options{Registry: r, Device: d, Op: "gemm.*n[nt]", Formats: []string{"q4_0", "f16"}, M: []int64{1, 512}, N: []int64{64}, Seed: 3}
	list, skipped, err := o.jobs()
	require.NoError(t, err)
	var texts []string
	for _, j := range list {
		texts = append(texts, j.desc.Name+" "+j.text)
		require.EqualValues(t, 3, j.c.Seed)
	}
	require.Equal(t, []string{
		"matmul f16/M=1/N=64/K=4096", "matmul f16/M=512/N=64/K=4096",
		"matmul_bt f16/M=1/N=64/K=4096", "matmul_bt f16/M=512/N=64/K=4096",
		"batched_matmul f16/G=32/M=1/N=64/K=128", "batched_matmul f16/G=32/M=512/N=64/K=128",
		"matmul_bt_quant q4_0/M=1/N=64/K=4096", "matmul_bt_quant q4_0/M=512/N=64/K=4096",
	}, texts)
	require.Len(t, skipped, 8)
	require.Equal(t, tensor.F16, list[2].c.Types["b"])

	o = Options{Registry: r, Device: d, Op: "paged_attention", Formats: []string{"q8_0"}, M: []int64{4}, Shape: map[string][]int64{"R": {4}, "Tk": {100, 200}}, Attrs: map[string]any{"causal": false}}
	list, _, err = o.jobs()
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.EqualValues(t, 200, list[1].c.Shape["Tk"])
	require.EqualValues(t, 4, list[1].c.Shape["Tq"])
	require.Equal(t, tensor.Q8_0, list[0].c.Types["k_cache"])
	require.Equal(t, false, list[0].c.Attrs["causal"])
}

func TestStatistics(t *testing.T) {
	require.True(t, math.IsNaN(median(nil)))
	require.Equal(t, 3.0, median([]float64{3}))
	require.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
	v := []float64{5, 1, 4, 2, 3}
	for p, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 3, 0.9: 4.6, 1: 5} {
		require.InDelta(t, want, quantile(v, p), 1e-12, "%v", p)
	}
	require.Equal(t, []float64{5, 1, 4, 2, 3}, v, "the order of samples stays")
	low, high := interval(v)
	low2, high2 := interval(v)
	require.Equal(t, [2]float64{low, high}, [2]float64{low2, high2}, "equal samples give equal intervals")
	require.True(t, 1 <= low && low < 3 && 3 < high && high <= 5)
	many := make([]float64, 1e6)
	for i := range many {
		many[i] = float64(i)
	}
	low, high = interval(many)
	require.True(t, 4e5 < low && low < 5e5 && 5e5 < high && high < 6e5, "%v %v", low, high)
	low, high = interval([]float64{7, 7, 7})
	require.Equal(t, [2]float64{7, 7}, [2]float64{low, high})

	// The interval of the median of n draws from a known distribution covers its median about 95 times of 100.
	covered := 0
	x := uint64(1)
	for range 400 {
		draw := make([]float64, 25)
		for i := range draw {
			x = x*6364136223846793005 + 1442695040888963407
			draw[i] = float64(x >> 11)
		}
		if low, high := interval(draw); low <= 1<<52 && 1<<52 <= high {
			covered++
		}
	}
	require.InDelta(t, 380, covered, 16)
}

func TestRoofline(t *testing.T) {
	r := record("relu", "a", 100) // 400 operations, 32 bytes
	f := NewRoofline(&r, 1e9, "f32", 20e9)
	require.Equal(t, "bandwidth", f.Limit)
	require.InDelta(t, 12.5, f.Intensity, 1e-12)
	require.InDelta(t, 12.5e9, f.Attainable, 1)
	require.InDelta(t, 0.32, f.Share, 1e-12, "32 ns of 100")
	f = NewRoofline(&r, 1e9, "f32", 5e9)
	require.Equal(t, "f32", f.Limit)
	require.InDelta(t, 5e9, f.Attainable, 1)
	require.InDelta(t, 0.8, f.Share, 1e-12)
	require.Nil(t, NewRoofline(&r, 0, "f32", 5e9))
	inPlace := r
	inPlace.Touched = 16
	require.InDelta(t, 0.16, NewRoofline(&inPlace, 1e9, "f32", 200e9).Share, 1e-12, "16 ns of 100: the bytes written are those read")
	require.InDelta(t, 25, NewRoofline(&inPlace, 1e9, "f32", 200e9).Intensity, 1e-12)
	moves := record("relu", "a", 100)
	moves.FLOPs = 0
	f = NewRoofline(&moves, 1e9, "", 0)
	require.Equal(t, "bandwidth", f.Limit)
	require.InDelta(t, 0.32, f.Share, 1e-12)
}

func TestTurnsTakeEverySet(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 6, 12, 97, 100, 16384} {
		o := operands{copies: n, step: coprime(n)}
		seen := map[int]bool{}
		for i := range n {
			seen[o.set(i)] = true
		}
		require.Len(t, seen, n)
	}
}

func TestDisturbedSamples(t *testing.T) {
	clean, dirty, dark := timing{100, false, 90}, timing{500, true, 110}, timing{500, true, 0}
	repeat := func(x timing, n int) (v []timing) {
		for range n {
			v = append(v, x)
		}
		return v
	}
	for _, c := range []struct {
		times []timing
		want  []float64
		whole bool
	}{
		{repeat(clean, 2), []float64{100, 100}, true},
		{append(repeat(dirty, 9), repeat(clean, 5)...), []float64{100, 100, 100, 100, 100}, true},
		{append(repeat(dirty, 2), repeat(clean, 1)...), []float64{110, 110, 100}, false},
		{repeat(dark, 2), []float64{500, 500}, false},
		{[]timing{{500, true, 900}}, []float64{500}, false}, // other threads' time
	} {
		v, whole := pick(c.times)
		require.Equal(t, c.want, v)
		require.Equal(t, c.whole, whole)
	}
}
