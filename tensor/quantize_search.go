package tensor

import "math"

// Packers of formats whose scales are worth a search: among scales around the one that spans the block, the one that leaves
// the smallest sum of squared errors, each refined by least squares. Sums are float64, with conversions that keep products
// from fusing, so that every machine packs the same bytes. Elements that share a scale with NaN or infinity become zeros.

// A rounder returns the code whose level, a value before the scale, is nearest to v. Of NaN it returns any.
type rounder func(v float64) (code uint8, level float64)

// tries is how many scales are looked at, from loosest to tightest of the one that spans the block.
const (
	tries    = 17
	loosest  = 0.8
	tightest = 1.2
)

func try(i int) float64 { return loosest + float64(float64(i)*((tightest-loosest)/(tries-1))) }

// fitScale returns the scale d of x ≈ d·level. The scales that it starts from take the element of largest magnitude to one
// of the two ends of the levels, and near it. Rows of zeros and rows that are not finite get 0.
func fitScale(x []float32, round rounder, ends [2]float64) (d float64) {
	top := float64(extreme(x))
	if top == 0 {
		return 0
	}
	best := 0.0
	refine := func(id float64) bool {
		var xl, ll float64
		for _, v := range x {
			_, l := round(float64(v) * id)
			xl += float64(float64(v) * l)
			ll += float64(l * l)
		}
		gain := float64(xl*xl) / ll // what the error is below the sum of squares
		if !(gain > best) || math.IsInf(gain, 0) {
			return false
		}
		d, best = xl/ll, gain
		return true
	}
	for _, end := range ends {
		for i := range tries {
			refine(end * try(i) / top)
		}
	}
	for d != 0 && refine(1/d) {
	}
	return d
}

// roundTo is the error of x at scale d. With qs it writes the codes, too.
func roundTo(qs []uint8, x []float32, d float64, round rounder) (e float64) {
	id := 0.0
	if d != 0 {
		id = 1 / d
	}
	for j, v := range x {
		c, l := round(float64(v) * id)
		if qs != nil {
			qs[j] = c
		}
		r := float64(v) - float64(d*l)
		e += float64(r * r)
	}
	return e
}

// finite16 rounds d to binary16, overflow to the largest finite value.
func finite16(d float64) float64 {
	return float64(DecodeF16(EncodeF16(float32(max(-65504, min(d, 65504))))))
}

// unit16 rounds d to a binary16 of at least its magnitude: of a unit for six- or eight-bit scales, the largest of which must
// not be out of reach, and that must not vanish.
func unit16(d float64) float64 {
	code := EncodeF16(float32(max(-65504, min(d, 65504))))
	if math.Abs(float64(DecodeF16(code))) < math.Abs(d) && code&0x7fff < 0x7bff {
		code++
	}
	return float64(DecodeF16(code))
}

// codesIQ4 holds the nearest code of each half step from -128 to 127.5: levels are whole numbers.
var codesIQ4 = func() (t [512]uint8) {
	c := 0
	for i := range t {
		if low := float32(i-256) / 2; c < 15 && low >= (bookIQ4[c]+bookIQ4[c+1])/2 {
			c++
		}
		t[i] = uint8(c)
	}
	return t
}()

func roundIQ4(v float64) (uint8, float64) {
	i := 0
	if v > 127 {
		i = 511
	} else if v > -128 {
		i = int(2*v + 256)
	}
	c := codesIQ4[i]
	return c, float64(bookIQ4[c])
}

func encodeIQ4NL(b []byte, x []float32) {
	var qs [32]uint8
	d := finite16(fitScale(x, roundIQ4, [2]float64{-127, 113}))
	putHalf(b, float32(d))
	roundTo(qs[:], x, d, roundIQ4)
	putNibbles(b[2:18], qs[:])
}

// putNibbles writes the first half of the codes as low nibbles, the second as high ones.
func putNibbles(b []byte, qs []uint8) {
	for j := range b {
		b[j] = qs[j]&15 | qs[j+len(b)]<<4
	}
}

func roundFP4(v float64) (uint8, float64) {
	c := EncodeE2M1(float32(v / 2))
	return c, float64(bookFP4[c&15])
}

// encodeMXFP4 tries the exponent that the OCP standard takes, which lets the top of a block clip, and its neighbours.
func encodeMXFP4(b []byte, x []float32) {
	b[0] = 0
	_, exp := math.Frexp(math.Abs(float64(extreme(x))))
	standard := exp - 3 + 127
	var qs [32]uint8
	best := math.Inf(1)
	for _, e := range [3]int{standard, standard + 1, standard - 1} {
		e = max(0, min(e, 252)) // more would make infinity of the upper levels
		d := math.Ldexp(1, e-128)
		if err := roundTo(nil, x, d, roundFP4); err < best {
			best, b[0] = err, uint8(e)
			roundTo(qs[:], x, d, roundFP4)
		}
	}
	putNibbles(b[1:17], qs[:])
}

func roundQ6(v float64) (uint8, float64) {
	q := math.RoundToEven(v)
	if !(q > -32) {
		return 0, -32
	}
	q = min(q, 31)
	return uint8(int(q) + 32), q
}

func encodeQ6K(b []byte, x []float32) {
	clear(b)
	var scales [16]float64
	top := 0.0 // the scale of largest magnitude
	for i := range scales {
		scales[i] = fitScale(x[16*i:][:16], roundQ6, [2]float64{-32, 31})
		if math.Abs(scales[i]) > math.Abs(top) {
			top = scales[i]
		}
	}
	d := unit16(top / -128)
	putHalf(b[208:], float32(d))
	for i, want := range scales {
		part := x[16*i:][:16]
		code, best := 0, math.Inf(1)
		for near := range 3 {
			c := wholeOf(want, d, -128, 127, near-1)
			if e := roundTo(nil, part, d*float64(c), roundQ6); e < best {
				code, best = c, e
			}
		}
		b[192+i] = uint8(int8(code))
		var qs [16]uint8
		roundTo(qs[:], part, d*float64(code), roundQ6)
		h, t, at := i/8, i/2%4, 16*(i%2)
		for l, q := range qs {
			b[64*h+32*(t%2)+at+l] |= q & 15 << (t / 2 * 4)
			b[128+32*h+at+l] |= q >> 4 << (2 * t)
		}
	}
}

// wholeOf returns v/unit rounded, plus near, within lo..hi; 0 stays for a unit of 0.
func wholeOf(v, unit float64, lo, hi, near int) int {
	if unit == 0 {
		return 0
	}
	return max(lo, min(int(max(-1e9, min(math.RoundToEven(v/unit), 1e9)))+near, hi))
}

// affine is the line x ≈ scale·code − low.
type affine struct{ scale, low float64 }

// code returns the nearest of the codes 0..top, as a whole number.
func (a affine) code(v, top float64) float64 {
	q := math.RoundToEven((v + a.low) / a.scale)
	if !(q > 0) || a.scale == 0 {
		return 0
	}
	if q > top {
		return top
	}
	return q
}

// error returns the sum of squared errors of x.
func (a affine) error(x []float32, top float64) (e float64) {
	for _, v := range x {
		r := float64(v) + a.low - float64(a.scale*a.code(float64(v), top))
		e += float64(r * r)
	}
	return e
}

// lineSums are the sums of a least-squares fit of x over codes.
type lineSums struct{ n, q, qq, x, xq, xx float64 }

func (s *lineSums) add(v, q float64) {
	s.n++
	s.q += q
	s.qq += float64(q * q)
	s.x += v
	s.xq += float64(v * q)
	s.xx += float64(v * v)
}

// fit returns the line of least error with low ≥ 0.
func (s *lineSums) fit() affine {
	det := float64(s.n*s.qq) - float64(s.q*s.q)
	if det > 0 {
		a := affine{(float64(s.n*s.xq) - float64(s.q*s.x)) / det, (float64(s.q*s.xq) - float64(s.qq*s.x)) / det}
		if a.low >= 0 {
			return a
		}
	}
	if s.qq == 0 {
		return affine{}
	}
	return affine{s.xq / s.qq, 0}
}

// error returns the sum of squared errors of a line.
func (s *lineSums) error(a affine) float64 {
	return s.xx + float64(a.scale*(float64(a.scale*s.qq)-2*s.xq)) + float64(a.low*(2*s.x-float64(2*a.scale*s.q)+float64(a.low*s.n)))
}

// fitAffine returns the line of least error with codes 0..top and low ≥ 0.
func fitAffine(x []float32, top float64) (line affine) {
	l, h := bounds(x)
	lo, hi := min(float64(l), 0), float64(h)
	switch {
	case math.IsInf(lo, 0):
		return affine{}
	case !(hi > lo):
		return affine{0, -lo}
	}
	best := math.Inf(1)
	refine := func(a affine) bool {
		var s lineSums
		for _, v := range x {
			s.add(float64(v), a.code(float64(v), top))
		}
		a = s.fit()
		e := s.error(a)
		if !(e < best) || !(a.scale > 0) {
			return false
		}
		line, best = a, e
		return true
	}
	for i := range tries {
		refine(affine{(hi - lo) / (top * try(i)), -lo})
	}
	for refine(line) {
	}
	return line
}

// affineK are the eight lines of a block of Q4_K or Q5_K, whose scales and lows are six-bit multiples of two units.
type affineK struct {
	d, dmin float64
	sc, mn  [8]uint8
}

func (k *affineK) line(j int) affine {
	return affine{k.d * float64(k.sc[j]), k.dmin * float64(k.mn[j])}
}

// choose sets the multiples to the best ones near the lines that are wanted, and returns the error.
func (k *affineK) choose(x []float32, lines *[8]affine, top float64) (sum float64) {
	for j, want := range lines {
		part := x[32*j:][:32]
		best, sc, mn := math.Inf(1), uint8(0), uint8(0)
		for near := range 9 {
			k.sc[j] = uint8(wholeOf(want.scale, k.d, 0, 63, near/3-1))
			k.mn[j] = uint8(wholeOf(want.low, k.dmin, 0, 63, near%3-1))
			if e := k.line(j).error(part, top); e < best {
				best, sc, mn = e, k.sc[j], k.mn[j]
			}
		}
		k.sc[j], k.mn[j] = sc, mn
		sum += best
	}
	return sum
}

// refit sets the units to those of least error for the codes as they are.
func (k *affineK) refit(x []float32, top float64) {
	var ss, sm, mm, xs, xm float64
	for j := range 8 {
		a, sc, mn := k.line(j), float64(k.sc[j]), float64(k.mn[j])
		for _, v := range x[32*j:][:32] {
			s, x := sc*a.code(float64(v), top), float64(v)
			ss, sm, mm = ss+float64(s*s), sm+float64(s*mn), mm+float64(mn*mn)
			xs, xm = xs+float64(x*s), xm+float64(x*mn)
		}
	}
	det := float64(ss*mm) - float64(sm*sm)
	switch {
	case det > 0:
		k.d, k.dmin = (float64(xs*mm)-float64(xm*sm))/det, (float64(xs*sm)-float64(xm*ss))/det
	case mm > 0 && ss == 0:
		k.dmin = -xm / mm
	case ss > 0 && mm == 0:
		k.d = xs / ss
	}
	k.d, k.dmin = finite16(max(k.d, 0)), finite16(max(k.dmin, 0))
}

// encodeAffineK writes the head of a block of Q4_K or Q5_K and returns the codes.
func encodeAffineK(b []byte, x []float32, top float64) (qs [256]uint8) {
	clear(b)
	var lines [8]affine
	var most affine
	for j := range lines {
		lines[j] = fitAffine(x[32*j:][:32], top)
		most.scale, most.low = max(most.scale, lines[j].scale), max(most.low, lines[j].low)
	}
	k := affineK{d: unit16(most.scale / 63), dmin: unit16(most.low / 63)}
	for best, next := k.choose(x, &lines, top), k; ; k = next {
		next.sc, next.mn = k.sc, k.mn
		next.refit(x, top)
		e := next.choose(x, &lines, top)
		if !(e < best) {
			break
		}
		best = e
	}
	for j := range 8 {
		a := k.line(j)
		for l, v := range x[32*j:][:32] {
			qs[32*j+l] = uint8(a.code(float64(v), top))
		}
	}
	putHalf(b, float32(k.d))
	putHalf(b[2:], float32(k.dmin))
	for j := range 4 {
		b[4+j] = k.sc[j] | k.sc[j+4]>>4<<6
		b[8+j] = k.mn[j] | k.mn[j+4]>>4<<6
		b[12+j] = k.sc[j+4]&15 | k.mn[j+4]<<4
	}
	return qs
}

func encodeQ4K(b []byte, x []float32) {
	qs := encodeAffineK(b, x, 15)
	for i := range 4 {
		putNibbles(b[16+32*i:][:32], qs[64*i:][:64])
	}
}

func encodeQ5K(b []byte, x []float32) {
	qs := encodeAffineK(b, x, 31)
	for i := range 4 {
		putNibbles(b[48+32*i:][:32], qs[64*i:][:64])
	}
	for i, q := range qs {
		b[16+i%32] |= q >> 4 << (i / 32)
	}
}
