package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/bench"
)

// report is a small run: two ops, two kernels, one record that moves data, one that failed.
func report() *bench.Report {
	r := &bench.Report{Version: bench.Version, Provenance: bench.Provenance{CPU: "A processor", Threads: 2, Cache: "cold"}}
	add := func(op, kernel, unit, text string, flops float64, bytes int64, ns, peak float64) {
		c := bench.Record{Op: op, Kernel: kernel + "_" + op, Provider: kernel, Case: text, Threads: 2, Samples: []float64{ns}, FLOPs: flops, Read: bytes}
		c.Summarize()
		c.Roofline = bench.NewRoofline(&c, 15e9, unit, peak)
		r.Records = append(r.Records, c)
	}
	for i, kernel := range []string{"avx2", "portable"} {
		slow := float64(1 + 20*i)
		add("matmul_bt_quant", kernel, "int8", "q4_0/M=1/N=4096/K=4096", 33.5e6, 9.5e6, 640e3*slow, 800e9)
		add("matmul_bt_quant", kernel, "int8", "q4_0/M=512/N=4096/K=4096", 17.2e9, 26e6, 40e6*slow, 800e9)
		add("rms_norm", kernel, "f32", "f32/T=1/H=4096", 16e3, 49152, 4e3*slow, 180e9)
	}
	add("embedding", "portable", "", "f32/T=1", 0, 1<<14, 1e3, 0)
	r.Records = append(r.Records, bench.Record{Op: "relu", Kernel: "broken", Case: "f32", Error: "no"})
	return r
}

func TestPicture(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "report.json")
	require.NoError(t, report().WriteFile(file))
	require.NoError(t, run(file, filepath.Join(dir, "roof"), options{}))

	b, err := os.ReadFile(filepath.Join(dir, "roof.png"))
	require.NoError(t, err)
	img, err := png.Decode(bytes.NewReader(b))
	require.NoError(t, err)
	require.Equal(t, 1500, img.Bounds().Dx())
	seen := map[[3]uint32]int{}
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, b, _ := img.At(x, y).RGBA()
			seen[[3]uint32{r >> 8, g >> 8, b >> 8}]++
		}
	}
	for _, c := range colors[:2] {
		require.Greater(t, seen[[3]uint32{uint32(c.R), uint32(c.G), uint32(c.B)}], 3*50, "points of a kernel")
	}
	require.Greater(t, seen[[3]uint32{uint32(roofColor.R), uint32(roofColor.G), uint32(roofColor.B)}], 2000, "the roof")

	svg, err := os.ReadFile(filepath.Join(dir, "roof.svg"))
	require.NoError(t, err)
	d := xml.NewDecoder(bytes.NewReader(svg))
	texts := map[string]bool{}
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if c, ok := tok.(xml.CharData); ok {
			texts[string(bytes.TrimSpace(c))] = true
		}
	}
	for _, want := range []string{"avx2", "portable", "reads 15 GB/s", "multiplies int8: 800 GFLOP/s", "multiplies f32: 180 GFLOP/s",
		"matmul_bt_quant q4_0 M=512 N=4096 K=4096", "rms_norm f32 T=1 H=4096", "A processor, threads: 2, cold caches"} {
		require.True(t, texts[want], "%q is not among %v", want, texts)
	}
}

func TestWhatIsNotDrawn(t *testing.T) {
	p, left, err := roofline(report(), options{op: "matmul*", title: "Products"})
	require.NoError(t, err)
	require.Empty(t, left)
	require.Equal(t, "Products\nmatmul_bt_quant  q4_0  N=4096  K=4096", p.Title.Text)
	_, left, err = roofline(report(), options{})
	require.NoError(t, err)
	require.Equal(t, []string{"portable_embedding f32/T=1: it only moves data"}, left)
	_, _, err = roofline(report(), options{op: "relu"})
	require.ErrorIs(t, err, errEmpty)
	_, _, err = roofline(report(), options{op: "["})
	require.ErrorContains(t, err, "pattern")
	for _, spoil := range []func(c *bench.Record){
		func(c *bench.Record) { c.GFLOPS = -1 }, func(c *bench.Record) { c.Roofline.Intensity = 0 }, func(c *bench.Record) { c.Roofline.Bandwidth = 1e300 },
		func(c *bench.Record) { c.Roofline.Peak = -5 },
	} {
		r := report()
		spoil(&r.Records[0])
		p, left, err := roofline(r, options{op: "matmul*"})
		require.NoError(t, err)
		require.Len(t, left, 1)
		require.NoError(t, save(p, filepath.Join(t.TempDir(), "roof")))
	}
	require.ErrorIs(t, run(filepath.Join(t.TempDir(), "none"), "x", options{}), os.ErrNotExist)
}
