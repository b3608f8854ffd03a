package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu/internal/guard"
)

// eachTier runs f on every tier that this machine can run.
func eachTier(t *testing.T, f func(t *testing.T, s *Set)) {
	for _, s := range All() {
		t.Run(s.Name, func(t *testing.T) {
			if m := s.Missing(); m != "" {
				t.Skip("this CPU lacks " + m)
			}
			f(t, s)
		})
	}
}

// A tier that the CPU could run must not be missing: a slow fallback would pass
// every other test.
func TestTiersOfThisCPU(t *testing.T) {
	names := []string{}
	for _, s := range All() {
		if s.Missing() == "" {
			names = append(names, s.Name)
		}
	}
	require.Equal(t, "portable", names[len(names)-1])
	if len(archSets()) == 0 {
		require.Equal(t, []string{"portable"}, names)
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("only linux tells the CPU's features in a second way")
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	require.NoError(t, err)
	_, line, _ := strings.Cut(string(info), "\nflags")
	line, _, _ = strings.Cut(line, "\n")
	flags := map[string]bool{}
	for f := range strings.FieldsSeq(line) {
		flags[f] = true
	}
	for name, needs := range map[string]string{
		"avx2":       "avx2 fma f16c bmi2",
		"avxvnni":    "avx2 fma f16c bmi2 avx_vnni",
		"avx512vnni": "avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl avx512_vnni",
		"amx":        "avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl avx512_vnni amx_tile amx_int8",
	} {
		all := true
		for f := range strings.FieldsSeq(needs) {
			all = all && flags[f]
		}
		require.Equal(t, all, contains(names, name), "%s: flags are %s", name, line)
	}
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// sameBits compares floats by their bits, taking all NaN as one.
func sameBits(t *testing.T, want, got []float32, msg string) {
	t.Helper()
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) && !(want[i] != want[i] && got[i] != got[i]) {
			require.Failf(t, "bits differ", "%s: element %d: want %v (%08x), got %v (%08x)", msg, i,
				want[i], math.Float32bits(want[i]), got[i], math.Float32bits(got[i]))
		}
	}
}

// oddFloats fills x with numbers of all magnitudes; wild ones also hold zeros,
// subnormals, infinities and NaN.
func oddFloats(r *rand.Rand, x []float32, wild bool) {
	for i := range x {
		x[i] = float32(r.NormFloat64())
		if !wild {
			continue
		}
		switch r.IntN(24) {
		case 0:
			x[i] = math.Float32frombits(r.Uint32()) // anything
		case 1:
			x[i] = float32(math.Inf(1 - 2*r.IntN(2)))
		case 2:
			x[i] = float32(math.Copysign(0, -1))
		case 3:
			x[i] = math.Float32frombits(r.Uint32() & 0x807fffff)
		}
	}
}

// weights fills panels with random quants and scales.
func weights(r *rand.Rand, f Format, w []byte, wild bool) {
	for i := range w {
		w[i] = byte(r.Uint32())
	}
	half := func(p []byte) { // a scale or element of moderate size
		if !wild || r.IntN(8) > 0 {
			p[1] = p[1]&0x80 | 0x2c + p[1]&15
		}
	}
	switch f {
	case F32:
		x := make([]float32, len(w)/4)
		oddFloats(r, x, wild)
		for i, v := range x {
			putWord(w, i, math.Float32bits(v))
		}
	case F16:
		for i := 0; i+1 < len(w); i += 2 {
			half(w[i:])
		}
	case BF16:
		for i := 0; i+1 < len(w) && !wild; i += 2 {
			w[i+1] = w[i+1]&0x80 | 0x3f
		}
	default:
		bs := f.blockSize()
		for b := 0; b < len(w); b += bs {
			for i := bs - 32; i < bs; i += 2 {
				half(w[b+i:])
			}
		}
	}
}

// xrow fills a quantised row as quantize could have left it.
func xrow(r *rand.Rand, row []byte, f Format, nb int, wild bool) {
	for b := range nb {
		x := xblock{d: float32(r.ExpFloat64())}
		if wild {
			x.d = math.Float32frombits(r.Uint32())
		}
		extreme := r.IntN(4) == 0
		for i := range x.q {
			x.q[i] = int8(r.IntN(255) - 127)
			if extreme {
				x.q[i] = int8(127 - 254*r.IntN(2))
			}
			x.sum -= f.bias() * int32(x.q[i])
		}
		copy(row[b*xBlock:], (*[xBlock]byte)(unsafe.Pointer(&x))[:])
	}
}

const poison = 0x7fc0beef

func poisoned(c []float32) {
	for i := range c {
		c[i] = math.Float32frombits(poison)
	}
}

// unpoisoned says that nothing outside the columns was written.
func unpoisoned(t *testing.T, c []float32, ldc, cols int) {
	t.Helper()
	for i, v := range c {
		if i%ldc >= cols {
			require.EqualValues(t, poison, math.Float32bits(v), "element %d of C is outside and was written", i)
		}
	}
}

func TestTiles(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, f := range allFormats {
			for _, tile := range s.tiles[f] {
				for _, edge := range guard.Edges {
					t.Run(fmt.Sprintf("%s/%dx%d/%s", f, tile.rows, tile.panels*Lanes, edge), func(t *testing.T) {
						for seed := range uint64(150) {
							checkTile(t, f, &tile, edge, seed)
						}
					})
				}
			}
		}
	})
}

// checkTile holds a tile against the reference of single rows and panels. The
// strides are such that nothing is aligned, and C has poison between its rows.
func checkTile(t *testing.T, f Format, tile *tile, edge guard.Edge, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	wild := seed%3 == 0
	n, cols, pad := 1+r.IntN(7), tile.panels*Lanes, r.IntN(4)
	if tile.panels == 1 {
		cols = 1 + int(seed)%Lanes
	}
	k, step := n, 4
	if f.Quantized() {
		k, step = n*block, xBlock
	} else if seed%2 == 0 {
		n *= 5
		k = n
	}
	size, ldx, ldc := f.PanelSize(k)+pad, n*step+pad, tile.panels*Lanes+pad
	w := guard.Slice[byte](t, (tile.panels-1)*size+f.PanelSize(k), edge)
	x := guard.Slice[byte](t, (tile.rows-1)*ldx+n*step, edge)
	c := guard.Slice[float32](t, (tile.rows-1)*ldc+cols, edge)
	poisoned(c)
	for p := range tile.panels {
		weights(r, f, w[p*size:][:f.PanelSize(k)], wild)
	}
	for m := range tile.rows {
		if row := x[m*ldx:][:n*step]; f.Quantized() {
			xrow(r, row, f, n, wild)
		} else {
			v := make([]float32, n)
			oddFloats(r, v, wild)
			for i, v := range v {
				putWord(row, i, math.Float32bits(v))
			}
		}
		oddFloats(r, c[m*ldc:][:cols], wild)
	}
	want := append([]float32(nil), c...)
	for m := range tile.rows {
		for p := range tile.panels {
			portable.tiles[f][0].run(n, &w[p*size], 0, &x[m*ldx], 0, &want[m*ldc+p*Lanes], 0, min(Lanes, cols), 0)
		}
	}
	tile.run(n, &w[0], size, &x[0], ldx, &c[0], ldc, cols, 2048)
	sameBits(t, want, c, fmt.Sprintf("n=%d cols=%d seed=%d", n, cols, seed))
	unpoisoned(t, c, ldc, cols)
}

func TestQuantizeRow(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, edge := range guard.Edges {
			for seed := range 300 {
				r := rand.New(rand.NewPCG(uint64(seed), 3))
				nb := 1 + seed%7
				x := guard.Slice[float32](t, nb*block, edge)
				oddFloats(r, x, seed%2 == 1)
				if seed%5 == 0 { // one magnitude per block, down to the subnormals
					for i := range x {
						x[i] = float32(math.Ldexp(float64(x[i]), -seed*i/block/4))
					}
				}
				got, want := guard.Slice[byte](t, nb*xBlock, edge), make([]byte, nb*xBlock)
				s.quantize(nb, &x[0], &got[0], 128)
				quantizeRef(nb, &x[0], &want[0], 128)
				for b, x := range xblocks(&want[0], nb) {
					y := xblocks(&got[0], nb)[b]
					require.Equal(t, x.q, y.q)
					require.Equal(t, x.sum, y.sum)
					sameBits(t, []float32{x.d}, []float32{y.d}, fmt.Sprint("seed ", seed))
				}
			}
		}
	})
}

func TestReadBytes(t *testing.T) {
	eachTier(t, func(t *testing.T, s *Set) {
		for _, n := range []int{0, 1, 511, 512, 4096, 1<<20 + 512, 3<<20 + 1000} {
			p := guard.Slice[byte](t, n, guard.End)
			var want uint64
			for i := range p {
				p[i] = byte(i * i >> 3)
				if i < n&^511 {
					want ^= uint64(p[i]) << (i % 8 * 8)
				}
			}
			require.Equal(t, want, s.ReadBytes(p))
		}
	})
}
