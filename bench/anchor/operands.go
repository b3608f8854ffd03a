package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/opmux/opmux/tensor"
)

// randomWeights returns n rows of k weights of type t: normal values where the format has a packer, else blocks of random
// bits whose values are finite and of ordinary size.
func randomWeights(t tensor.DType, n, k int, seed uint64) ([]byte, error) {
	size, err := t.RowBytes(int64(k))
	if err != nil {
		return nil, err
	}
	out := make([]byte, int(size)*n)
	rng := rand.New(rand.NewPCG(seed, 1))
	if tensor.CanQuantize(t) {
		row := make([]float32, k)
		for i := range n {
			for c := range row {
				row[c] = float32(rng.NormFloat64() * weightScale)
			}
			if err := tensor.Quantize(out[i*int(size):][:size], t, row); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	blocks, err := randomBlocks(t, 256, rng)
	if err != nil {
		return nil, err
	}
	for at := 0; at < len(out); {
		at += copy(out[at:], blocks[rng.IntN(len(blocks))])
	}
	return out, nil
}

// randomBlocks tries random bits until so many blocks decode to values between 1/1024 and 1 at their largest.
func randomBlocks(t tensor.DType, count int, rng *rand.Rand) ([][]byte, error) {
	if !tensor.CanDecode(t) {
		return nil, fmt.Errorf("%v cannot be decoded: %w", t, tensor.ErrDType)
	}
	elems, size := t.Block()
	values := make([]float32, elems)
	var blocks [][]byte
	for tries := 0; len(blocks) < count; tries++ {
		if tries == 1_000_000 {
			return nil, fmt.Errorf("no block of %v with ordinary values was found", t)
		}
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		if err := tensor.Decode(values, t, b); err != nil {
			return nil, err
		}
		top := 0.0
		for _, v := range values {
			if a := math.Abs(float64(v)); a > top || a != a {
				top = a
			}
		}
		if top >= 1.0/1024 && top <= 1 {
			blocks = append(blocks, b)
		}
	}
	return blocks, nil
}

// randomInputs returns m rows of k normal activations.
func randomInputs(m, k int, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 2))
	x := make([]float32, m*k)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// truth holds rows of the exact product of the decoded weights, summed in float64.
type truth struct {
	n    int
	rows map[int][]float64
}

// sampled are the rows of m that are compared with the truth: every engine's whole result is compared with opmux's.
func sampled(m int) []int { return []int{0, m / 3, 2 * m / 3, m - 1} }

// newTruth computes the sampled rows of every m.
func newTruth(t tensor.DType, weights []byte, n, k int, inputs []float32, ms []int) (*truth, error) {
	r := &truth{n: n, rows: map[int][]float64{}}
	for _, m := range ms {
		for _, i := range sampled(m) {
			r.rows[i] = make([]float64, n)
		}
	}
	row := make([]float32, k)
	size := len(weights) / n
	for c := range n {
		if err := tensor.Decode(row, t, weights[c*size:][:size]); err != nil {
			return nil, err
		}
		for i, out := range r.rows {
			sum := 0.0
			for j, a := range inputs[i*k:][:k] {
				sum += float64(a) * float64(row[j])
			}
			out[c] = sum
		}
	}
	return r, nil
}

// nmse is the squared error of the result [m,n] on the sampled rows, over the squares of the true values.
func (r *truth) nmse(out []float32, m int) float64 {
	var got []float32
	var want []float64
	for _, i := range sampled(m) {
		got, want = append(got, out[i*r.n:][:r.n]...), append(want, r.rows[i]...)
	}
	return nmse(got, want)
}

// nmse returns the squared error over the squares of what is wanted: NaN or infinite if got holds such values, or if
// everything wanted is 0 and got is not.
func nmse[E float32 | float64](got []float32, want []E) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	e, s := 0.0, 0.0
	for i, g := range got {
		w := float64(want[i])
		d := float64(g) - w
		e, s = e+d*d, s+w*w
	}
	if e == 0 {
		return 0
	}
	return e / s
}

// freeMemory returns the bytes of memory that are free; 0 is unknown.
func freeMemory() int64 {
	b, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(b)) {
		var kb int64
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			_, _ = fmt.Sscan(rest, &kb)
			return kb << 10
		}
	}
	return 0
}

// limit is the largest nmse of a right result: for f32 the rounding of a sum in any order, for the others what an
// engine may lose by rounding the activations to 8 or 16 bits.
func limit(t tensor.DType) float64 {
	if t == tensor.F32 {
		return 1e-9
	}
	return 5e-4
}
