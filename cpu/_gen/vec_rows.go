package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// vecKernels fills a file with all kernels on rows of floats.
func vecKernels(k *kit) {
	v := newVec(k)
	v.reductions()
	v.powers()
	v.arithmetic()
	v.conversions()
	v.rotations()
	v.attention()
}

func (v *vec) reductions() {
	v.begin("dot", "func(n int, a, b *float32) float32", "returns Σ a[i]·b[i].")
	n, a, b := v.arg("n"), v.row("a", 4), v.row("b", 4)
	sums := v.zeroed(4)
	v.sweep(n, v.lanes, 4, func(u int, m *mask) {
		x, y := v.reg(), v.reg()
		v.load(a.at(u, v.lanes), x, m)
		v.load(b.at(u, v.lanes), y, m)
		v.VFMADD231PS(x, y, sums[u])
	}, a, b)
	v.result(v.fold(v.VADDPS, sums))

	v.begin("sumSquares", "func(n int, x *float32) float32", "returns Σ x[i]².")
	n, xs := v.arg("n"), v.row("x", 4)
	sums = v.zeroed(4)
	v.sweep(n, v.lanes, 4, func(u int, m *mask) {
		x := v.reg()
		v.load(xs.at(u, v.lanes), x, m)
		v.VFMADD231PS(x, x, sums[u])
	}, xs)
	v.result(v.fold(v.VADDPS, sums))

	v.begin("maxOf", "func(n int, x *float32) float32", "returns the largest x[i] that is no NaN, or -Inf.")
	n, xs = v.arg("n"), v.row("x", 4)
	least := v.splat("leastInf", 0xff800000)
	tops := v.regs(4)
	for _, t := range tops {
		v.VMOVAPS(least, t)
	}
	v.sweep(n, v.lanes, 4, func(u int, m *mask) {
		x := v.reg()
		v.load(xs.at(u, v.lanes), x, m)
		v.fill(x, least, m)
		v.VMAXPS(tops[u], x, tops[u]) // the second source, here the first written, wins against a NaN
	}, xs)
	v.result(v.fold(v.VMAXPS, tops))

	v.begin("indexOf", "func(n int, x *float32, value float32) int", "returns the first i with x[i] == value, or n.")
	n, xs = v.arg("n"), v.row("x", 4)
	value, i, hits := v.splatArg("value"), v.GP64(), v.GP32()
	v.XORQ(i, i)
	found := v.label("found")
	v.sweep(n, v.lanes, 1, func(u int, m *mask) {
		x := v.reg()
		v.load(xs.at(u, v.lanes), x, m)
		v.equal(x, value, hits)
		if m != nil {
			v.BZHIL(m.n.As32(), hits, hits)
		}
		v.TESTL(hits, hits)
		v.JNZ(to(found))
		if m == nil {
			v.ADDQ(imm(v.lanes), i)
		}
	}, xs)
	none := v.label("none")
	v.ADDQ(n, i)
	v.JMP(to(none))
	v.Label(found)
	v.TZCNTL(hits, hits)
	v.ADDQ(hits.As64(), i)
	v.Label(none)
	v.VZEROUPPER()
	v.Store(i, v.ReturnIndex(0))
	v.RET()
}

// equal sets one bit of hits for each lane in which x and y are equal.
func (v *vec) equal(x, y reg.VecVirtual, hits reg.GPVirtual) {
	if v.wide() {
		k := v.K()
		v.VCMPPS(operand.U8(0), y, x, k)
		v.KMOVW(k, hits)
	} else {
		t := v.reg()
		v.VCMPPS(operand.U8(0), y, x, t)
		v.VMOVMSKPS(t, hits)
	}
}

// power computes e^x. With n the integer nearest to x/ln 2 and r = x - n·ln 2,
// ln 2 in two parts of which the first has so few bits that its product with n
// is exact, e^x = 2^n·p(r); p is the polynomial of degree 6 with the least
// relative error on |r| <= ln 2/2, 3.3e-9, among those that begin 1 + r.
type power struct {
	*vec
	lo, hi             reg.VecVirtual
	log2e, magic       operand.Op
	ln2hi, ln2lo, one  operand.Op
	c2, c3, c4, c5, c6 operand.Op
}

func (v *vec) power() *power {
	c := func(name string, f float32) operand.Op { return v.constant(name, bits(f)) }
	return &power{
		vec: v,
		lo:  v.splat("least", bits(-104)), hi: v.splat("most", bits(89)), // e^-104 rounds to 0, e^89 to +Inf
		log2e: c("log2e", 1.44269504), magic: c("magic", 3<<22),
		ln2hi: c("ln2hi", 0.693145751953125), ln2lo: c("ln2lo", 1.42860677e-06), one: c("oneF32", 1),
		c2: v.constant("c2", 0x3efffffe), c3: v.constant("c3", 0x3e2aaa46), c4: v.constant("c4", 0x3d2aac2c),
		c5: v.constant("c5", 0x3c091ed3), c6: v.constant("c6", 0x3ab561b6),
	}
}

// exp returns a register with e^x; it overwrites x. A NaN passes the limits
// because min and max return their second source, the first one here, and then
// every step.
func (v *power) exp(x reg.VecVirtual) reg.VecVirtual {
	t, n, p := v.reg(), v.reg(), v.reg()
	v.VMINPS(x, v.hi, x)
	v.VMAXPS(x, v.lo, x)
	// Adding 1.5·2^23 leaves no bits for a fraction: the sum's low bits are n.
	v.VMOVAPS(v.magic, t)
	v.VFMADD231PS(v.log2e, x, t)
	v.VSUBPS(v.magic, t, n)
	v.VFNMADD231PS(v.ln2hi, n, x)
	v.VFNMADD231PS(v.ln2lo, n, x)
	v.VMOVAPS(v.c6, p)
	for _, c := range []operand.Op{v.c5, v.c4, v.c3, v.c2, v.one, v.one} {
		v.VFMADD213PS(c, x, p)
	}
	if v.wide() {
		v.VSCALEFPS(n, p, p)
		return p
	}
	// 2^n in two factors, so that only the last product can leave the range of
	// normal numbers: there it rounds once, as VSCALEFPS does.
	half := v.reg()
	v.VPSUBD(v.magic, t, t)
	v.VPSRAD(operand.U8(1), t, half)
	v.VPSUBD(half, t, t)
	for _, e := range []reg.VecVirtual{half, t} {
		v.VPSLLD(operand.U8(23), e, e)
		v.VPADDD(v.one, e, e)
		v.VMULPS(e, p, p)
	}
	return p
}

func (v *vec) powers() {
	v.begin("exp", "func(n int, dst, x *float32)", "sets dst[i] = e^x[i].")
	n, dst, xs := v.arg("n"), v.row("dst", 4), v.row("x", 4)
	pw := v.power()
	v.sweep(n, v.lanes, 2, func(u int, m *mask) {
		x := v.reg()
		v.load(xs.at(u, v.lanes), x, m)
		v.store(pw.exp(x), dst.at(u, v.lanes), m)
	}, dst, xs)
	v.ret()

	v.begin("expSum", "func(n int, dst, x *float32, shift float32) float32",
		"sets dst[i] = e^(x[i]-shift) and returns Σ dst[i].")
	n, dst, xs = v.arg("n"), v.row("dst", 4), v.row("x", 4)
	v.sumOfPowers(n, xs, func(e reg.VecVirtual, u int, m *mask) { v.store(e, dst.at(u, v.lanes), m) }, dst)

	v.begin("sumExp", "func(n int, x *float32, shift float32) float32", "returns Σ e^(x[i]-shift).")
	n, xs = v.arg("n"), v.row("x", 4)
	v.sumOfPowers(n, xs, func(reg.VecVirtual, int, *mask) {})

	v.begin("siluMul", "func(n int, dst, gate, up *float32)", "sets dst[i] = gate[i]/(1+e^-gate[i])·up[i].")
	n, dst = v.arg("n"), v.row("dst", 4)
	gates, ups := v.row("gate", 4), v.row("up", 4)
	pw = v.power()
	zero, one := v.zeroed(1)[0], pw.one
	v.sweep(n, v.lanes, 2, func(u int, m *mask) {
		gate, minus, up := v.reg(), v.reg(), v.reg()
		v.load(gates.at(u, v.lanes), gate, m)
		v.VSUBPS(gate, zero, minus)
		e := pw.exp(minus)
		v.VADDPS(one, e, e)
		v.VDIVPS(e, gate, gate)
		v.load(ups.at(u, v.lanes), up, m)
		v.VMULPS(up, gate, gate)
		v.store(gate, dst.at(u, v.lanes), m)
	}, dst, gates, ups)
	v.ret()
}

func (v *vec) sumOfPowers(n reg.GPVirtual, xs row, keep func(e reg.VecVirtual, u int, m *mask), more ...row) {
	shift, sums := v.splatArg("shift"), v.zeroed(2)
	pw := v.power()
	v.sweep(n, v.lanes, 2, func(u int, m *mask) {
		x := v.reg()
		v.load(xs.at(u, v.lanes), x, m)
		v.VSUBPS(shift, x, x)
		e := pw.exp(x)
		keep(e, u, m)
		v.clear(e, m)
		v.VADDPS(e, sums[u], sums[u])
	}, append(more, xs)...)
	v.result(v.fold(v.VADDPS, sums))
}

func (v *vec) arithmetic() {
	for _, f := range []struct {
		name, doc string
		op        func(...operand.Op)
	}{
		{"add", "sets dst[i] = a[i] + b[i].", v.VADDPS},
		{"mul", "sets dst[i] = a[i]·b[i].", v.VMULPS},
	} {
		v.begin(f.name, "func(n int, dst, a, b *float32)", f.doc)
		n, dst, as, bs := v.arg("n"), v.row("dst", 4), v.row("a", 4), v.row("b", 4)
		v.sweep(n, v.lanes, 4, func(u int, m *mask) {
			a, b := v.reg(), v.reg()
			v.load(as.at(u, v.lanes), a, m)
			v.load(bs.at(u, v.lanes), b, m)
			f.op(b, a, a)
			v.store(a, dst.at(u, v.lanes), m)
		}, dst, as, bs)
		v.ret()
	}

	for _, f := range []struct {
		name, doc string
		op        func(...operand.Op)
	}{
		{"addScalar", "sets dst[i] = x[i] + s.", v.VADDPS},
		{"mulScalar", "sets dst[i] = x[i]·s.", v.VMULPS},
		{"divScalar", "sets dst[i] = x[i]/s.", v.VDIVPS},
	} {
		v.begin(f.name, "func(n int, dst, x *float32, s float32)", f.doc)
		n, dst, xs := v.arg("n"), v.row("dst", 4), v.row("x", 4)
		s := v.splatArg("s")
		v.sweep(n, v.lanes, 4, func(u int, m *mask) {
			x := v.reg()
			v.load(xs.at(u, v.lanes), x, m)
			f.op(s, x, x)
			v.store(x, dst.at(u, v.lanes), m)
		}, dst, xs)
		v.ret()
	}

	v.begin("relu", "func(n int, dst, x *float32)", "sets dst[i] to x[i] if x[i] > 0 and to +0 otherwise.")
	n, dst, xs := v.arg("n"), v.row("dst", 4), v.row("x", 4)
	zero := v.zeroed(1)[0]
	v.sweep(n, v.lanes, 4, func(u int, m *mask) {
		x := v.reg()
		v.load(xs.at(u, v.lanes), x, m)
		v.VMAXPS(zero, x, x) // zero, the second source, wins against -0 and NaN
		v.store(x, dst.at(u, v.lanes), m)
	}, dst, xs)
	v.ret()

	v.begin("normalize", "func(n int, dst, x, w *float32, inv, bias float32)", "sets dst[i] = (x[i]·inv)·(w[i]+bias).")
	n, dst, xs = v.arg("n"), v.row("dst", 4), v.row("x", 4)
	ws := v.row("w", 4)
	inv, bias := v.splatArg("inv"), v.splatArg("bias")
	v.sweep(n, v.lanes, 4, func(u int, m *mask) {
		x, w := v.reg(), v.reg()
		v.load(xs.at(u, v.lanes), x, m)
		v.load(ws.at(u, v.lanes), w, m)
		v.VMULPS(inv, x, x)
		v.VADDPS(bias, w, w)
		v.VMULPS(w, x, x)
		v.store(x, dst.at(u, v.lanes), m)
	}, dst, xs, ws)
	v.ret()
}

func (v *vec) conversions() {
	for _, e := range []element{f16, bf16} {
		v.begin("widen"+e.name, "func(n int, dst *float32, src *uint16)", "converts "+e.name+" to float32.")
		n, dst, src := v.arg("n"), v.row("dst", 4), v.row("src", e.size)
		v.sweep(n, v.lanes, 4, func(u int, m *mask) {
			x := v.reg()
			v.widen(e, src.at(u, v.lanes), x, m)
			v.store(x, dst.at(u, v.lanes), m)
		}, dst, src)
		v.ret()

		v.begin("narrow"+e.name, "func(n int, dst *uint16, src *float32)", "rounds float32 to "+e.name+".")
		n, dst, src = v.arg("n"), v.row("dst", e.size), v.row("src", 4)
		narrow := v.narrowing(e)
		v.sweep(n, v.lanes, 4, func(u int, m *mask) {
			x := v.reg()
			v.load(src.at(u, v.lanes), x, m)
			narrow.store(x, dst.at(u, v.lanes), m)
		}, dst, src)
		v.ret()
	}
}

func (v *vec) rotations() {
	v.begin("rotateHalves", "func(n int, x, y, cos, sin *float32)",
		"sets x[i], y[i] = x[i]·cos[i] - y[i]·sin[i], x[i]·sin[i] + y[i]·cos[i].")
	n, xs, ys, cs, ss := v.arg("n"), v.row("x", 4), v.row("y", 4), v.row("cos", 4), v.row("sin", 4)
	v.sweep(n, v.lanes, 1, func(u int, m *mask) {
		x, y, c, s, xc := v.reg(), v.reg(), v.reg(), v.reg(), v.reg()
		v.load(xs.at(u, v.lanes), x, m)
		v.load(ys.at(u, v.lanes), y, m)
		v.load(cs.at(u, v.lanes), c, m)
		v.load(ss.at(u, v.lanes), s, m)
		v.VMULPS(c, x, xc)
		v.VMULPS(s, x, x)
		v.VMULPS(s, y, s)
		v.VMULPS(c, y, y)
		v.VSUBPS(s, xc, xc)
		v.VADDPS(y, x, x)
		v.store(xc, xs.at(u, v.lanes), m)
		v.store(x, ys.at(u, v.lanes), m)
	}, xs, ys, cs, ss)
	v.ret()

	v.begin("rotatePairs", "func(n int, x, cos, sin *float32)",
		"is rotateHalves for the pairs x[2i], x[2i+1].")
	n, xs, cs, ss = v.arg("n"), v.row("x", 8), v.row("cos", 4), v.row("sin", 4)
	odd := v.oddLanes()
	step := v.lanes / 2
	v.sweep(n, step, 1, func(u int, m *mask) {
		x, y, c, s := v.reg(), v.reg(), v.reg(), v.reg()
		v.load(xs.at(u, step), x, m)
		v.twice(cs.at(u, step), c, m)
		v.twice(ss.at(u, step), s, m)
		v.VPERMILPS(operand.U8(0xb1), x, y) // partners
		v.VMULPS(c, x, x)
		v.VMULPS(s, y, y)
		if v.wide() {
			v.VSUBPS(y, x, c)
			v.VADDPS(y, x, odd, c)
		} else {
			v.VADDSUBPS(y, x, c)
		}
		v.store(c, xs.at(u, step), m)
	}, xs, cs, ss)
	v.ret()
}

func (v *vec) oddLanes() reg.OpmaskVirtual {
	if !v.wide() {
		return nil
	}
	b, k := v.GP32(), v.K()
	v.MOVL(imm(0xaaaa), b)
	v.KMOVW(b, k)
	return k
}

// twice loads half as many float32s as r has lanes, each into two lanes. The
// mask is that of the pairs.
func (v *vec) twice(src operand.Mem, r reg.VecVirtual, m *mask) {
	var from operand.Op = src
	if m != nil {
		if v.wide() {
			half := v.mask(m.n, 1)
			v.VMOVUPS_Z(src, half.k, r.AsY())
		} else {
			half := v.mask(m.n, 1)
			v.VMASKMOVPS(src, half.y.AsX(), r.AsX())
		}
		from = r.AsX()
		if v.wide() {
			from = r.AsY()
		}
	}
	v.VPMOVZXDQ(from, r)
	v.VMOVSLDUP(r, r)
}
