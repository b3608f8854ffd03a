package main

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/opmux/opmux/bench"
)

// options of a picture.
type options struct{ op, title string }

// errEmpty is a report without anything to draw.
var errEmpty = errors.New("no record with a roofline position")

// Size of a picture, and dots to the inch of the PNG.
const (
	width  = 10 * vg.Inch
	height = 6.4 * vg.Inch
	dots   = 150
)

// colors can be told apart by colour-blind readers (after Okabe and Ito).
var colors = []color.RGBA{{0x00, 0x72, 0xb2, 255}, {0xd5, 0x5e, 0x00, 255}, {0x00, 0x9e, 0x73, 255}, {0x40, 0x40, 0x40, 255}, {0xe6, 0x9f, 0x00, 255}, {0xcc, 0x79, 0xa7, 255}, {0x56, 0xb4, 0xe9, 255}}

// glyphs differ, too, so that a picture survives a printer.
var glyphs = []draw.GlyphDrawer{draw.CircleGlyph{}, polygon{4, 0.25}, polygon{3, 0}, polygon{4, 0}, polygon{3, 1}, polygon{6, 0}, polygon{5, 0}}

// polygon is a filled regular polygon; without a turn (in half turns) a corner is on top.
type polygon struct {
	corners int
	turn    float64
}

// DrawGlyph implements draw.GlyphDrawer.
func (g polygon) DrawGlyph(c *draw.Canvas, s draw.GlyphStyle, at vg.Point) {
	var path vg.Path
	for i := range g.corners {
		angle := 2*math.Pi*float64(i)/float64(g.corners) + math.Pi*g.turn + math.Pi/2
		p := vg.Point{X: at.X + 1.2*s.Radius*vg.Length(math.Cos(angle)), Y: at.Y + 1.2*s.Radius*vg.Length(math.Sin(angle))}
		if i == 0 {
			path.Move(p)
		} else {
			path.Line(p)
		}
	}
	path.Close()
	c.SetColor(s.Color)
	c.Fill(path)
}

var roofColor = color.RGBA{0x20, 0x20, 0x20, 255}

// roofline makes the picture, and says of records that have figures why they are not in it.
func roofline(r *bench.Report, o options) (p *plot.Plot, left []string, err error) {
	var list []*bench.Record
	for i := range r.Records {
		c := &r.Records[i]
		if ok, err := path.Match(cmp.Or(o.op, "*"), c.Op); err != nil {
			return nil, nil, fmt.Errorf("pattern %q: %w", o.op, err)
		} else if !ok || c.Median <= 0 {
			continue
		}
		switch {
		case c.Roofline == nil:
			left = append(left, c.Kernel+" "+c.Case+": the device showed no limits")
		case c.FLOPs == 0:
			left = append(left, c.Kernel+" "+c.Case+": it only moves data")
		case !positive(c.GFLOPS, c.Roofline.Intensity, c.Roofline.Bandwidth), c.Roofline.Unit != "" && !positive(c.Roofline.Peak):
			left = append(left, c.Kernel+" "+c.Case+": figures that cannot be")
		default:
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return nil, left, errEmpty
	}
	bandwidth, peaks := limits(list)
	lowX, highX, lowY, highY := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, c := range list {
		lowX, highX = min(lowX, c.Roofline.Intensity), max(highX, c.Roofline.Intensity)
		lowY, highY = min(lowY, c.GFLOPS), max(highY, c.GFLOPS)
	}
	for _, u := range peaks {
		highX, highY = max(highX, u.rate/bandwidth), max(highY, u.rate/1e9)
	}
	lowX, highX, lowY, highY = lowX/4, highX*4, lowY/6, highY*2

	p = plot.New()
	p.Title.Text = cmp.Or(o.title, fmt.Sprintf("%s, threads: %d, %s caches", r.Provenance.CPU, r.Provenance.Threads, r.Provenance.Cache)) + "\n" + common(list)
	p.Title.Padding = vg.Points(8)
	p.X.Label.Text = "operations for each byte touched"
	p.Y.Label.Text = "GFLOP/s"
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Scale, a.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		a.Label.TextStyle.Font.Size, a.Tick.Label.Font.Size = vg.Points(12), vg.Points(11)
	}
	p.Title.TextStyle.Font.Size = vg.Points(13)
	p.Add(grid())

	// The slope ends at the highest of the flats; each flat begins at the slope.
	top := 0.0
	for _, u := range peaks {
		top = max(top, u.rate)
	}
	end := highX
	if top > 0 {
		end = min(end, top/bandwidth)
	}
	roof := func(x0, y0, x1, y1 float64, dashes ...vg.Length) error {
		l, err := plotter.NewLine(plotter.XYs{{X: x0, Y: y0}, {X: x1, Y: y1}})
		if err != nil {
			return err
		}
		l.LineStyle = draw.LineStyle{Color: roofColor, Width: vg.Points(1.8), Dashes: dashes}
		p.Add(l)
		return nil
	}
	start := max(lowX, lowY*1e9/bandwidth)
	if err := roof(start, start*bandwidth/1e9, end, end*bandwidth/1e9); err != nil {
		return nil, nil, err
	}
	half := math.Sqrt(start * end)
	labels := plotter.XYLabels{XYs: plotter.XYs{{X: half, Y: half * bandwidth / 1e9}}, Labels: []string{fmt.Sprintf("reads %s GB/s", digits(bandwidth/1e9))}}
	above := []vg.Point{{X: vg.Points(-8), Y: vg.Points(3)}}
	for _, u := range peaks {
		var dashes []vg.Length
		if u.rate < top {
			dashes = []vg.Length{vg.Points(6), vg.Points(3)}
		}
		if err := roof(u.rate/bandwidth, u.rate/1e9, highX, u.rate/1e9, dashes...); err != nil {
			return nil, nil, err
		}
		labels.XYs = append(labels.XYs, plotter.XY{X: highX, Y: u.rate / 1e9})
		labels.Labels = append(labels.Labels, fmt.Sprintf("multiplies %s: %s GFLOP/s", u.name, digits(u.rate/1e9)))
		above = append(above, vg.Point{X: vg.Points(-6), Y: vg.Points(5)})
	}
	if err := write(p, labels, above, draw.XRight, roofColor); err != nil {
		return nil, nil, err
	}
	if err := points(p, list); err != nil {
		return nil, nil, err
	}
	if err := cases(p, list, math.Log(highX/lowX)); err != nil {
		return nil, nil, err
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = lowX, highX, lowY, highY
	return p, left, nil
}

// positive reports whether all of v have a place on a logarithmic scale.
func positive(v ...float64) bool {
	return !slices.ContainsFunc(v, func(x float64) bool { return !(x > 1e-30 && x < 1e30) })
}

// digits prints three digits, or all of those before the point.
func digits(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	for _, s := range []*draw.LineStyle{&g.Vertical, &g.Horizontal} {
		s.Color, s.Width = color.RGBA{0xe4, 0xe4, 0xe4, 255}, vg.Points(0.7)
	}
	return g
}

// peak is the rate of one kind of arithmetic.
type peak struct {
	name string
	rate float64 // operations a second
}

// limits returns the medians of the limits that records were set against, peaks by name.
func limits(list []*bench.Record) (bandwidth float64, peaks []peak) {
	var reads []float64
	rates := map[string][]float64{}
	for _, c := range list {
		reads = append(reads, c.Roofline.Bandwidth)
		if f := c.Roofline; f.Unit != "" {
			rates[f.Unit] = append(rates[f.Unit], f.Peak)
		}
	}
	middle := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	for name, v := range rates {
		peaks = append(peaks, peak{name, middle(v)})
	}
	slices.SortFunc(peaks, func(a, b peak) int { return cmp.Compare(a.name, b.name) })
	return middle(reads), peaks
}

// points draws the records, a colour and a shape for each kernel's provider.
func points(p *plot.Plot, list []*bench.Record) error {
	var order []string
	by := map[string]plotter.XYs{}
	for _, c := range list {
		if by[c.Provider] == nil {
			order = append(order, c.Provider)
		}
		by[c.Provider] = append(by[c.Provider], plotter.XY{X: c.Roofline.Intensity, Y: c.GFLOPS})
	}
	for i, name := range order {
		s, err := plotter.NewScatter(by[name])
		if err != nil {
			return err
		}
		s.GlyphStyle = draw.GlyphStyle{Color: colors[i%len(colors)], Radius: vg.Points(4.5), Shape: glyphs[i%len(glyphs)]}
		p.Add(s)
		p.Legend.Add(name, s)
	}
	p.Legend.TextStyle.Font.Size = vg.Points(11)
	p.Legend.Padding = vg.Points(3)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(-10), vg.Points(10)
	return nil
}

// cases writes the name of each case under the lowest of its points. Names whose points stand side by side go below each
// other; span is the logarithm of the width of the picture.
func cases(p *plot.Plot, list []*bench.Record, span float64) error {
	type place struct {
		x, y float64
		text string
	}
	oneOp := !slices.ContainsFunc(list, func(c *bench.Record) bool { return c.Op != list[0].Op })
	var all []place
	at := map[string]int{}
	for _, c := range list {
		name := short(c, list)
		if !oneOp {
			name = strings.TrimSpace(c.Op + " " + name)
		}
		i, ok := at[name]
		if !ok {
			i, at[name] = len(all), len(all)
			all = append(all, place{c.Roofline.Intensity, c.GFLOPS, name})
		}
		all[i].y = min(all[i].y, c.GFLOPS)
	}
	slices.SortStableFunc(all, func(a, b place) int { return cmp.Compare(a.x, b.x) })
	labels := plotter.XYLabels{}
	var below []vg.Point
	row, last, floor := 0, math.Inf(-1), 0.0
	for _, c := range all {
		if math.Log(c.x)-last < 0.18*span {
			row++
		} else {
			row, last, floor = 0, math.Log(c.x), c.y
		}
		floor = min(floor, c.y)
		labels.XYs = append(labels.XYs, plotter.XY{X: c.x, Y: floor})
		labels.Labels = append(labels.Labels, c.text)
		below = append(below, vg.Point{Y: vg.Points(-18 - 13*float64(row))})
	}
	return write(p, labels, below, draw.XCenter, color.RGBA{0x30, 0x30, 0x30, 255})
}

// short leaves out of a case what all cases of the picture have in common.
func short(c *bench.Record, list []*bench.Record) string {
	var parts []string
	for part := range strings.SplitSeq(c.Case, "/") {
		if slices.ContainsFunc(list, func(o *bench.Record) bool { return !slices.Contains(strings.Split(o.Case, "/"), part) }) {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, " ")
}

// common is what all cases of the picture have in common: an op, extents.
func common(list []*bench.Record) string {
	var parts []string
	if !slices.ContainsFunc(list, func(c *bench.Record) bool { return c.Op != list[0].Op }) {
		parts = append(parts, list[0].Op)
	}
	rest := strings.Fields(short(list[0], list))
	for part := range strings.SplitSeq(list[0].Case, "/") {
		if !slices.Contains(rest, part) {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "  ")
}

// write adds texts, aligned at their places and then moved by their offsets.
func write(p *plot.Plot, labels plotter.XYLabels, offsets []vg.Point, align text.XAlignment, c color.Color) error {
	for i := range labels.Labels {
		l, err := plotter.NewLabels(plotter.XYLabels{XYs: labels.XYs[i : i+1], Labels: labels.Labels[i : i+1]})
		if err != nil {
			return err
		}
		l.TextStyle[0] = text.Style{Color: c, Font: font.From(plot.DefaultFont, vg.Points(11)), Handler: plot.DefaultTextHandler, XAlign: align}
		l.Offset = offsets[i]
		p.Add(l)
	}
	return nil
}

// save writes name.png and name.svg.
func save(p *plot.Plot, name string) error {
	img := vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(dots))
	svg := vgsvg.New(width, height)
	for _, c := range []vg.CanvasSizer{img, svg} {
		const margin = 8
		p.Draw(draw.Crop(draw.New(c), margin, -margin, margin, -margin))
	}
	for ext, w := range map[string]io.WriterTo{".png": vgimg.PngCanvas{Canvas: img}, ".svg": svg} {
		f, err := os.Create(name + ext)
		if err != nil {
			return err
		}
		_, err = w.WriteTo(f)
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
	}
	return nil
}
