package sample

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unsafe"

	"github.com/opmux/opmux/tensor"
)

// Share returns how far got lies from want as a share of what is allowed there: up to 1 is a match. Two NaN are equal,
// infinities only of one sign, and a finite number never equals one that is not.
func Share(got, want, allowed float64) float64 {
	d := math.Abs(got - want)
	switch {
	case got == want || math.IsNaN(got) && math.IsNaN(want):
		return 0
	case math.IsNaN(d) || math.IsInf(d, 0) || allowed == 0:
		return math.Inf(1)
	}
	return d / allowed
}

// Number is a float64 that JSON can hold: NaN and infinities are strings there.
type Number float64

// String prints the shortest text that reads back the same.
func (n Number) String() string { return strconv.FormatFloat(float64(n), 'g', -1, 64) }

// MarshalJSON writes a number, or a string for what is none.
func (n Number) MarshalJSON() ([]byte, error) {
	if v := float64(n); math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.AppendQuote(nil, n.String()), nil
	}
	return []byte(n.String()), nil
}

// Element is one element of an output beside what it should be.
type Element struct {
	Index   []int64 `json:"index"`
	Got     Number  `json:"got"`
	Want    Number  `json:"want"`
	Allowed Number  `json:"allowed"`          // for |Got-Want|
	Share   Number  `json:"share"`            // |Got-Want|/Allowed, as Share says
	Poison  bool    `json:"poison,omitempty"` // one of the two was never written
}

// Result is the comparison of one output.
type Result struct {
	Output     string  `json:"output"`
	OK         bool    `json:"ok"`
	Elements   int     `json:"elements"`
	Mismatches int     `json:"mismatches"`
	NMSE       Number  `json:"nmse"`    // sum of squared differences over that of the reference, finite elements only
	MaxULP     Number  `json:"max_ulp"` // of the output's dtype at the wanted value
	MaxAbs     Number  `json:"max_abs"`
	MaxRel     Number  `json:"max_rel"`
	Worst      Element `json:"worst"` // largest Share
	Reason     string  `json:"reason,omitempty"`
}

// String names the output and its worst element.
func (r Result) String() string {
	if r.Reason != "" {
		return r.Output + ": " + r.Reason
	}
	w := r.Worst
	s := fmt.Sprintf("%s is %v, want %v, difference %.3g of %.3g allowed, %d of %d elements differ", r.place(), w.Got, w.Want,
		math.Abs(float64(w.Got-w.Want)), float64(w.Allowed), r.Mismatches, r.Elements)
	if w.Poison {
		s += ", one of the two was never written"
	}
	return s
}

// place is the worst element as "out[2,4]".
func (r *Result) place() string {
	var b strings.Builder
	for i, n := range r.Worst.Index {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(n, 10))
	}
	return r.Output + "[" + b.String() + "]"
}

// Compare holds the outputs of got against those of want, which the reference has written from the same case. An element
// that one of the two left poisoned and the other did not is a mismatch.
func Compare(got, want *Args, tol Tolerance) []Result {
	var list []Result
	for _, w := range want.outputs() {
		g := got.Tensor(w.op.Name)
		r := Result{Output: w.op.Name}
		if g == nil || g.DType != w.x.DType || g.Shape != w.x.Shape {
			r.Reason = fmt.Sprintf("is %v, want %v", g, w.x)
			list = append(list, r)
			continue
		}
		wv, err1 := Values(w.x)
		gv, err2 := Values(g)
		allowed, err3 := tol.bound(want, &w.op, w.x, wv)
		for _, err := range []error{err1, err2, err3} {
			if err != nil && r.Reason == "" {
				r.Reason = err.Error()
			}
		}
		if r.Reason == "" {
			r.judge(g, w.x, gv, wv, allowed, tol)
		}
		list = append(list, r)
	}
	return list
}

// CheckWant holds the outputs of got against the values that its case gives for them, rounded to their dtype; a NaN there
// is any value. Without such values the list is empty.
func CheckWant(got *Args, tol Tolerance) []Result {
	var list []Result
	for _, g := range got.outputs() {
		want, ok := got.c.Want[g.op.Name]
		if !ok {
			continue
		}
		r := Result{Output: g.op.Name}
		gv, err := Values(g.x)
		if err == nil && len(gv) != len(want) {
			err = fmt.Errorf("%d expected values for %d elements", len(want), len(gv))
		}
		if err != nil {
			r.Reason = err.Error()
			list = append(list, r)
			continue
		}
		wv := make([]float64, len(want))
		for i, v := range want {
			if wv[i] = rounded(g.x.DType, v); math.IsNaN(v) {
				wv[i] = gv[i]
			}
		}
		tol := tol
		tol.Exact = false // the sign of a zero is not in question
		allowed, err := tol.bound(got, &g.op, g.x, wv)
		if err != nil {
			r.Reason = err.Error()
		} else {
			r.judge(g.x, g.x, gv, wv, allowed, tol)
		}
		list = append(list, r)
	}
	return list
}

// judge fills r from the values of an output.
func (r *Result) judge(g, w *tensor.Tensor, gv, wv []float64, allowed func(i int) float64, tol Tolerance) {
	r.Elements = len(wv)
	gw, ww := newWalk(g), newWalk(w)
	var diff, sum float64
	worst := -1
	for i, want := range wv {
		got := gv[i]
		e := Element{Got: Number(got), Want: Number(want), Allowed: Number(allowed(i))}
		e.Share = Number(Share(got, want, float64(e.Allowed)))
		if tol.Exact && got == want && math.Signbit(got) != math.Signbit(want) {
			e.Share = Number(math.Inf(1))
		}
		if math.IsNaN(got) && math.IsNaN(want) && w.DType.Size() > 0 && poisoned(g, gw.offset(i)) != poisoned(w, ww.offset(i)) {
			e.Share, e.Poison = Number(math.Inf(1)), true
		}
		if d := math.Abs(got - want); !math.IsNaN(d) && !math.IsInf(d, 0) {
			diff, sum = diff+d*d, sum+want*want
			r.MaxAbs = max(r.MaxAbs, Number(d))
			if want != 0 {
				r.MaxRel = max(r.MaxRel, Number(d/math.Abs(want)))
			}
			if u := ulp(w.DType, want); u > 0 {
				r.MaxULP = max(r.MaxULP, Number(d/u))
			}
		}
		if e.Share > 1 {
			r.Mismatches++
		}
		if worst < 0 || e.Share > r.Worst.Share {
			worst, r.Worst = i, e
		}
	}
	if worst >= 0 {
		r.Worst.Index = coordinates(w, worst)
	}
	if sum > 0 {
		r.NMSE = Number(diff / sum)
	}
	r.OK = r.Mismatches == 0
	if r.OK && tol.NMSE > 0 && float64(r.NMSE) > tol.NMSE && math.Sqrt(sum/float64(len(wv))) > 0x1p-16 {
		r.OK, r.Reason = false, fmt.Sprintf("squared error is %.3g of the whole, %.3g allowed; worst is %s: %v, want %v",
			float64(r.NMSE), tol.NMSE, r.place(), r.Worst.Got, r.Worst.Want)
	}
}

// rounded returns v as an element of dtype t holds it.
func rounded(t tensor.DType, v float64) float64 {
	var buf [8]byte
	x := tensor.Tensor{Host: unsafe.Pointer(&buf), DType: t}
	if store(&x, 0, v) != nil {
		return v
	}
	return load(&x, 0)
}

// poisoned reports whether an element holds nothing but poison.
func poisoned(x *tensor.Tensor, off int64) bool {
	size := int64(x.DType.Size())
	for _, b := range unsafe.Slice((*byte)(unsafe.Add(x.Host, off*size)), size) {
		if b != poison {
			return false
		}
	}
	return true
}

// pointer returns the address of byte i of b.
func pointer(b []byte, i int) unsafe.Pointer { return unsafe.Pointer(&b[i]) }
