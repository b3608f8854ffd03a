//go:build !noasm && !purego

package simd

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/opmux/opmux/cpu/internal/guard"
)

func needTiles(t testing.TB) {
	if m := amx.Missing(); m != "" {
		t.Skip("this CPU lacks " + m)
	}
}

// unpackQ4Ref is the reference of unpackQ4AMX.
func unpackQ4Ref(nb int, w, dst *byte) {
	for b := range nb {
		in := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(w), b*q4Block)), q4Block)
		out := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(dst), b*tileBlock)), tileBlock)
		for i := range 512 {
			out[i] = in[i/128*64+i%64]>>(i/64%2*4)&15 - 8
		}
		unpackScales(in[256:], out[512:])
	}
}

// unpackQ8Ref is the reference of unpackQ8AMX.
func unpackQ8Ref(nb int, w, dst *byte) {
	for b := range nb {
		in := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(w), b*q8Block)), q8Block)
		out := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(dst), b*tileBlock)), tileBlock)
		for i := range 512 {
			out[i] = in[i] - 128
		}
		unpackScales(in[512:], out[512:])
	}
}

func unpackScales(in, out []byte) {
	for l := range Lanes {
		*(*float32)(unsafe.Pointer(&out[4*l])) = scale(in, l)
	}
}

// packRowsRef is the reference of packRowsAMX.
func packRowsRef(nb int, x *byte, ldx, rows int, dst *byte) {
	for m := range rows {
		for b, in := range xblocks((*byte)(unsafe.Add(unsafe.Pointer(x), m*ldx)), nb) {
			out := unsafe.Add(unsafe.Pointer(dst), b*tileBlock)
			*(*[block]int8)(unsafe.Add(out, block*m)) = in.q
			*(*float32)(unsafe.Add(out, 512+4*m)) = in.d
		}
	}
}

func TestTileForms(t *testing.T) {
	needTiles(t)
	for _, edge := range guard.Edges {
		for nb := 1; nb <= 5; nb++ {
			r := rand.New(rand.NewPCG(uint64(nb), 9))
			got, want := guard.Slice[byte](t, nb*tileBlock, edge), make([]byte, nb*tileBlock)
			for f, kernels := range map[Format][2]func(nb int, w, dst *byte){Q4_0: {unpackQ4AMX, unpackQ4Ref}, Q8_0: {unpackQ8AMX, unpackQ8Ref}} {
				w := guard.Slice[byte](t, nb*f.blockSize(), edge)
				weights(r, f, w, false)
				kernels[0](nb, &w[0], &got[0])
				kernels[1](nb, &w[0], &want[0])
				require.Equal(t, want, got, "%s, %d blocks", f, nb)
			}
			for rows := 1; rows <= tileRows; rows++ {
				stride := nb*xBlock + rows%3
				x := guard.Slice[byte](t, (rows-1)*stride+nb*xBlock, edge)
				for m := range rows {
					xrow(r, x[m*stride:], Q4_0, nb, false)
				}
				packRowsAMX(nb, &x[0], stride, rows, &got[0])
				packRowsRef(nb, &x[0], stride, rows, &want[0])
				require.Equal(t, want, got, "%d rows, %d blocks", rows, nb)
			}
		}
	}
}

// Every number of rows around the sizes of tiles and chunks, every kind of last
// panel, runs of every kind along k: the bits of the vector kernels, which
// TestMulQ holds against the reference, and nothing touched outside.
func TestMulTiles(t *testing.T) {
	needTiles(t)
	rows := []int{127, 128, 129, 139, 140, 144, 161, 270}
	for m := 1; m <= 48; m++ {
		rows = append(rows, m)
	}
	for _, f := range []Format{Q4_0, Q8_0} {
		for _, m := range rows {
			for i, k := range []int{32, 64, 27 * 32, 28 * 32, 29 * 32, 57 * 32} {
				n := []int{1, 15, 16, 17, 40, 64}[(m+i)%6]
				r := rand.New(rand.NewPCG(uint64(m), uint64(k)))
				ldx, ldc := k+i%3, n+m%3
				x, w := make([]float32, m*ldx), guard.Slice[byte](t, Panels(n)*f.PanelSize(k), guard.End)
				oddFloats(r, x, m%7 == 0)
				weights(r, f, w, m%11 == 0)
				xq := guard.Slice[byte](t, QuantizedSize(m, k), guard.End)
				amx.QuantizeRows(f, xq, x, ldx, 0, m, k)
				want, c := make([]float32, (m-1)*ldc+n), guard.Slice[float32](t, (m-1)*ldc+n, guard.End)
				poisoned(want)
				avx512vnni.MulQ(f, want, ldc, xq, w, m, n, k, 0, Panels(n))
				poisoned(c)
				amx.MulQ(f, c, ldc, xq, w, m, n, k, 0, Panels(n))
				sameBits(t, want, c, fmt.Sprint(f, m, n, k))
				unpoisoned(t, c, ldc, n)
				poisoned(c)
				for p := range Panels(n) {
					amx.MulQ(f, c, ldc, xq, w, m, n, k, p, p+1)
				}
				sameBits(t, want, c, fmt.Sprint("panel by panel", f, m, n, k))
			}
		}
	}
}

// Signals are delivered in the middle of a product: the kernel of the operating
// system saves the tiles on the signal's stack, which Go made, and restores
// them. Goroutines move between threads, and threads between processors.
func TestTilesUnderSignals(t *testing.T) {
	needTiles(t)
	if testing.Short() {
		t.Skip("takes seconds of all processors")
	}
	var profile bytes.Buffer
	if pprof.StartCPUProfile(&profile) == nil { // SIGPROF; another profile will do as well
		defer pprof.StopCPUProfile()
	}
	const m, n, k, products = 48, 80, 32 * 60, 20000
	workers := 4 * runtime.GOMAXPROCS(0)
	var signals, wrong atomic.Int64
	done := make(chan struct{})
	var storm, work sync.WaitGroup
	storm.Go(func() {
		pid := os.Getpid()
		for round := 1; ; round++ {
			tasks, err := os.ReadDir("/proc/self/task")
			for _, task := range tasks {
				tid, _ := strconv.Atoi(task.Name())
				if err == nil && unix.Tgkill(pid, tid, unix.SIGURG) == nil {
					signals.Add(1)
				}
			}
			select {
			case <-done:
				return
			default:
			}
			if round%64 == 0 {
				runtime.GC()
			}
		}
	})
	for i := range workers {
		work.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 10))
			f := []Format{Q4_0, Q8_0}[i%2]
			x, w := make([]float32, m*k), make([]byte, Panels(n)*f.PanelSize(k))
			oddFloats(r, x, false)
			weights(r, f, w, false)
			xq := make([]byte, QuantizedSize(m, k))
			amx.QuantizeRows(f, xq, x, k, 0, m, k)
			want := make([]float32, m*n)
			avx512vnni.MulQ(f, want, n, xq, w, m, n, k, 0, Panels(n))
			bits := unsafe.Slice((*byte)(unsafe.Pointer(&want[0])), 4*m*n)
			for range products / workers {
				c := make([]float32, m*n)
				amx.MulQ(f, c, n, xq, w, m, n, k, 0, Panels(n))
				if !bytes.Equal(bits, unsafe.Slice((*byte)(unsafe.Pointer(&c[0])), 4*m*n)) {
					wrong.Add(1)
				}
			}
		})
	}
	work.Wait()
	close(done)
	storm.Wait()
	require.Zero(t, wrong.Load(), "products that differ")
	require.NotZero(t, signals.Load())
	t.Logf("%d signals", signals.Load())
}

// BenchmarkMulTiles sets products of many rows against those of the vector
// kernels, turn by turn: %bound is how fast the tiles are in percent of them.
func BenchmarkMulTiles(b *testing.B) {
	needTiles(b)
	const n, k = 4096, 4096
	r := rand.New(rand.NewPCG(1, 1))
	for _, f := range []Format{Q4_0, Q8_0} {
		w := make([]byte, Panels(n)*f.PanelSize(k))
		weights(r, f, w, false)
		for _, m := range []int{12, 16, 32, 64, 512} {
			for _, share := range []int{Panels(n), 8} { // panels at a time
				b.Run(fmt.Sprintf("%s/M=%d/%d", f, m, share), func(b *testing.B) {
					x, c := make([]float32, m*(k+16)), make([]float32, m*n)
					oddFloats(r, x, false)
					xq := make([]byte, QuantizedSize(m, k))
					amx.QuantizeRows(f, xq, x, k+16, 0, m, k)
					at := 0
					mul := func(s *Set, p0 int) float64 {
						s.MulQ(f, c, n, xq, w, m, n, k, p0, p0+8)
						return 2 * 8 * Lanes * float64(m) * k
					}
					if share > 8 {
						mul = func(s *Set, _ int) float64 {
							s.MulQ(f, c, n, xq, w, m, n, k, 0, share)
							return 2 * float64(m) * n * k
						}
					}
					versus(b, "GOP/s", func() float64 {
						at = (at + 8) % Panels(n)
						return mul(amx, at)
					}, func() float64 { return mul(avx512vnni, at) })
				})
			}
		}
	}
}
