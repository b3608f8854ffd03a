package bench

import (
	"cmp"
	"slices"
)

// Summarize computes the figures that follow from Samples, FLOPs, Read and Written: Median, P90, Min, Low, High, GFLOPS and
// GBs. Without samples they stay as they are.
func (r *Record) Summarize() {
	if len(r.Samples) == 0 {
		return
	}
	r.Median, r.P90, r.Min = median(r.Samples), quantile(r.Samples, 0.9), slices.Min(r.Samples)
	r.Low, r.High = interval(r.Samples)
	if r.Median > 0 {
		r.GFLOPS = r.FLOPs / r.Median
		r.GBs = float64(r.Read+r.Written) / r.Median
	}
}

// NewRoofline places a summarized record under a bandwidth in bytes a second and a peak of a unit of arithmetic in
// operations a second; without a peak, unit is "". It is nil if the record or the bandwidth has no figure.
func NewRoofline(r *Record, bandwidth float64, unit string, peak float64) *Roofline {
	bytes := float64(cmp.Or(r.Touched, r.Read+r.Written))
	if bandwidth == 0 || bytes == 0 || r.Median == 0 {
		return nil
	}
	f := &Roofline{Intensity: r.FLOPs / bytes, Bandwidth: bandwidth, Limit: "bandwidth"}
	least := bytes / bandwidth // seconds
	f.Attainable = f.Intensity * bandwidth
	if unit != "" && peak > 0 {
		f.Unit, f.Peak = unit, peak
		if t := r.FLOPs / peak; t > least {
			least, f.Limit, f.Attainable = t, unit, peak
		}
	}
	f.Share = least / (r.Median / 1e9)
	return f
}
