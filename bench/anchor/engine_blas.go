package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	xcpu "golang.org/x/sys/cpu"

	"github.com/opmux/opmux/tensor"
)

// operands are plain row-major ones, as the BLAS interfaces take them.
type operands struct {
	weights [][]float32
	inputs  []float32
	out     []float32
	m, n, k int
	turn    rotation
	about   ran
}

func (o *operands) ran() ran { return o.about }

func newOperands(j *job) (*operands, error) {
	mem, err := newMemory(1)
	if err != nil {
		return nil, err
	}
	o := &operands{n: j.N, k: j.K, turn: rotation{n: j.Copies}}
	data, err := os.ReadFile(j.Weights)
	if err != nil {
		return nil, err
	}
	weights, err := mem.copies(data, j.Copies)
	if err != nil {
		return nil, err
	}
	for _, w := range weights {
		o.weights = append(o.weights, floatsOf(w))
	}
	in, err := mem.file(j.Inputs)
	if err != nil {
		return nil, err
	}
	o.inputs = floatsOf(in)
	o.out, err = mem.floats(j.MaxM * j.N)
	return o, err
}

func (o *operands) shape(m int) error {
	o.m = m
	return nil
}

func (o *operands) output() ([]float32, error) { return o.out[:o.m*o.n], nil }

// openBLAS calls cblas_sgemm, and cblas_sgemv for one row. It has no packed weights in its interface.
type openBLAS struct {
	*operands
	gemm func(order, transA, transB, m, n, k int32, alpha float32, a *float32, lda int32, b *float32, ldb int32, beta float32, c *float32, ldc int32)
	gemv func(order, trans, m, n int32, alpha float32, a *float32, lda int32, x *float32, incx int32, beta float32, y *float32, incy int32)
}

// values of enum CBLAS_ORDER and CBLAS_TRANSPOSE
const (
	cblasRowMajor = 101
	cblasNoTrans  = 111
	cblasTrans    = 112
)

// coreTypes lists the core types of OpenBLAS that this processor can run, best first, by what it can do: OpenBLAS goes by
// the model number, which hypervisors make up. The last, "", is its own choice.
func coreTypes() (types []string) {
	x := xcpu.X86
	switch {
	case runtime.GOARCH != "amd64":
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL:
		if x.HasAMXTile {
			types = append(types, "SapphireRapids")
		}
		if x.HasAVX512BF16 {
			types = append(types, "Cooperlake")
		}
		types = append(types, "SkylakeX", "Haswell")
	case x.HasAVX2 && x.HasFMA:
		types = append(types, "Haswell")
	}
	return append(types, "")
}

// openBLASNames are tried in order when no path is given.
func openBLASNames() []string {
	if runtime.GOOS == "darwin" {
		return []string{"libopenblas.0.dylib", "libopenblas.dylib", "/opt/homebrew/opt/openblas/lib/libopenblas.dylib", "/usr/local/opt/openblas/lib/libopenblas.dylib"}
	}
	return []string{"libopenblas.so.0", "libopenblas.so"}
}

func candidates(path string, names []string) []string {
	if path != "" {
		return []string{path}
	}
	return names
}

func openOpenBLAS(j *job) (engine, error) {
	l, err := load(candidates(j.Path, openBLASNames())...)
	if err != nil {
		return nil, err
	}
	e := &openBLAS{}
	var config, core func() string
	var threads func(int32)
	if err := l.bind(map[string]any{"cblas_sgemm": &e.gemm, "cblas_sgemv": &e.gemv, "openblas_get_config": &config,
		"openblas_get_corename": &core, "openblas_set_num_threads": &threads}); err != nil {
		return nil, err
	}
	if got := core(); j.Variant != "" && !strings.EqualFold(got, j.Variant) {
		return nil, fmt.Errorf("%s takes %s for %s", l.name, got, j.Variant)
	}
	threads(int32(j.Threads))
	chosen := "forced"
	if j.Variant == "" {
		chosen = "its own choice"
	}
	if e.operands, err = newOperands(j); err != nil {
		return nil, err
	}
	e.about.Detail = fmt.Sprintf("%s: %s; core %s, %s", l.name, strings.TrimSpace(config()), core(), chosen)
	return e, nil
}

func (e *openBLAS) shape(m int) error {
	e.about.Kernel = "cblas_sgemm"
	if m == 1 {
		e.about.Kernel = "cblas_sgemv"
	}
	return e.operands.shape(m)
}

func (e *openBLAS) run(calls int) error {
	a, c, m, n, k := &e.inputs[0], &e.out[0], int32(e.m), int32(e.n), int32(e.k)
	for range calls {
		w := &e.weights[e.turn.next()][0]
		if m == 1 {
			e.gemv(cblasRowMajor, cblasNoTrans, n, k, 1, w, k, a, 1, 0, c, 1)
		} else {
			e.gemm(cblasRowMajor, cblasNoTrans, cblasTrans, m, n, k, 1, a, k, w, k, 0, c, n)
		}
	}
	return nil
}

// oneDNN calls dnnl_sgemm. Under q8_0 it calls dnnl_gemm_u8s8s32 instead, on weights with one scale a row: close to
// that format in work and in size, but without its scale for every 32 elements, and neither the packing of the activations
// nor the scaling of the results is timed.
type oneDNN struct {
	*operands
	gemm func(transA, transB byte, m, n, k int64, alpha float32, a *float32, lda int64, b *float32, ldb int64, beta float32, c *float32, ldc int64) int32
	int8 *oneDNNInt8
}

// oneDNNInt8 are the operands of dnnl_gemm_u8s8s32.
type oneDNNInt8 struct {
	gemm       func(transA, transB, offsetC byte, m, n, k int64, alpha float32, a *byte, lda int64, ao uint8, b *byte, ldb int64, bo int8, beta float32, c *int32, ldc int64, co *int32) int32
	weights    [][]byte  // of int8
	scales     []float32 // of each row of weights
	inputs     []byte
	inputScale []float32
	out        []int32
	zero       int32
}

const zeroPoint = 128 // of the activations

func oneDNNNames() []string {
	if runtime.GOOS == "darwin" {
		return []string{"libdnnl.3.dylib", "libdnnl.dylib", "/opt/homebrew/opt/onednn/lib/libdnnl.dylib", "/usr/local/opt/onednn/lib/libdnnl.dylib"}
	}
	return []string{"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"}
}

func openOneDNN(j *job) (engine, error) {
	l, err := load(candidates(j.Path, oneDNNNames())...)
	if err != nil {
		return nil, err
	}
	e := &oneDNN{}
	var version func() *[3]int32 // the first fields of dnnl_version_t
	var isa func() uint32
	if err := l.bind(map[string]any{"dnnl_sgemm": &e.gemm, "dnnl_version": &version, "dnnl_get_effective_cpu_isa": &isa}); err != nil {
		return nil, err
	}
	v := version()
	about := ran{Kernel: "dnnl_sgemm", Detail: fmt.Sprintf("%s: oneDNN %d.%d.%d, instruction sets %#x", l.name, v[0], v[1], v[2], isa())}
	if j.Format == tensor.F32 {
		e.operands, err = newOperands(j)
	} else {
		about.Kernel, about.Layout = "dnnl_gemm_u8s8s32", "int8"
		about.Detail += ", one scale a row; packing the activations and scaling the results are not timed"
		e.operands, e.int8 = &operands{n: j.N, k: j.K, turn: rotation{n: j.Copies}}, &oneDNNInt8{}
		if err = l.bind(map[string]any{"dnnl_gemm_u8s8s32": &e.int8.gemm}); err == nil {
			err = e.int8.prepare(j)
		}
	}
	if err != nil {
		return nil, err
	}
	e.about = about
	return e, nil
}

func (q *oneDNNInt8) prepare(j *job) error {
	mem, err := newMemory(1)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(j.Weights)
	if err != nil {
		return err
	}
	in, err := mem.file(j.Inputs)
	if err != nil {
		return err
	}
	inputs := floatsOf(in)
	packed := make([]byte, j.N*j.K)
	row := make([]float32, j.K)
	size := len(data) / j.N
	for i := range j.N {
		if err := tensor.Decode(row, j.Format, data[i*size:][:size]); err != nil {
			return err
		}
		s := scaleOf(row)
		for c, v := range row {
			packed[i*j.K+c] = byte(nearest(v / s))
		}
		q.scales = append(q.scales, s)
	}
	if q.weights, err = mem.copies(packed, j.Copies); err != nil {
		return err
	}
	if q.inputs, err = mem.bytes(len(inputs)); err != nil {
		return err
	}
	for i := range j.MaxM {
		x := inputs[i*j.K:][:j.K]
		s := scaleOf(x)
		for c, v := range x {
			q.inputs[i*j.K+c] = byte(nearest(v/s) + zeroPoint)
		}
		q.inputScale = append(q.inputScale, s)
	}
	out, err := mem.bytes(4 * j.MaxM * j.N)
	q.out = int32sOf(out)
	return err
}

// scaleOf returns the step that spreads x over -127 to 127.
func scaleOf(x []float32) float32 {
	top := float32(0)
	for _, v := range x {
		top = max(top, v, -v)
	}
	if top == 0 {
		return 1
	}
	return top / 127
}

func nearest(v float32) int32 {
	if v < 0 {
		return int32(v - 0.5)
	}
	return int32(v + 0.5)
}

func (e *oneDNN) run(calls int) error {
	m, n, k := int64(e.m), int64(e.n), int64(e.k)
	for range calls {
		var status int32
		if q, at := e.int8, e.turn.next(); q != nil {
			status = q.gemm('N', 'T', 'F', m, n, k, 1, &q.inputs[0], k, zeroPoint, &q.weights[at][0], k, 0, 0, &q.out[0], n, &q.zero)
		} else {
			status = e.gemm('N', 'T', m, n, k, 1, &e.inputs[0], k, &e.weights[at][0], k, 0, &e.out[0], n)
		}
		if status != 0 {
			return fmt.Errorf("oneDNN returns %d", status)
		}
	}
	return nil
}

func (e *oneDNN) output() ([]float32, error) {
	q := e.int8
	if q == nil {
		return e.operands.output()
	}
	out := make([]float32, e.m*e.n)
	for i := range out {
		out[i] = float32(q.out[i]) * q.scales[i%e.n] * q.inputScale[i/e.n]
	}
	return out, nil
}
