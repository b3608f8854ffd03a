package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/opmux/opmux/gguf"
)

// ggml is the CPU backend of llama.cpp through its public interface (ggml.h, ggml-backend.h, ggml-cpu.h): one
// ggml_mul_mat a call, each a graph of one node, on a thread pool that lives as long as the process.
//
// The weights lie where llama.cpp would put them: in the first of the backend's extra buffer types that can multiply
// them (AMX tiles, repacked rows), else in plain memory. The variant names another buffer type ("CPU" is the plain one).
type ggml struct {
	ggmlAPI
	about    ran
	n, k     int
	backend  uintptr
	pool     uintptr
	plain    uintptr // buffer type
	weights  []uintptr
	inputs   []float32
	graphs   []uintptr
	out      uintptr // tensor of the first graph; all write to the same bytes
	m        int
	turn     rotation
	released []func() // what the last shape allocated
}

// ggmlAPI are the functions used, with pointers as numbers: none of them is followed here.
type ggmlAPI struct {
	init                  func(ggmlInit) uintptr
	free                  func(ctx uintptr)
	tensorOverhead        func() uint64
	graphOverhead         func(size uint64, grads bool) uint64
	typeName              func(t int32) string
	rowSize               func(t int32, k int64) uint64
	nbytes                func(t uintptr) uint64
	newTensor2D           func(ctx uintptr, t int32, ne0, ne1 int64) uintptr
	mulMat                func(ctx, a, b uintptr) uintptr
	newGraph              func(ctx uintptr, size uint64, grads bool) uintptr
	buildForward          func(graph, t uintptr)
	version, commit       func() string
	poolParams            func(p *ggmlPoolParams, threads int32)
	allocContext          func(ctx, buft uintptr) uintptr
	allocBuffer           func(buft uintptr, size uint64) uintptr
	bufferFree            func(buf uintptr)
	bufferBase            func(buf uintptr) uintptr
	bufferUsage           func(buf uintptr, usage int32)
	bufferTypeName        func(buft uintptr) string
	tensorAlloc           func(buf, t, addr uintptr) int32
	tensorSet             func(t uintptr, data unsafe.Pointer, offset, size uint64)
	tensorGet             func(t uintptr, data unsafe.Pointer, offset, size uint64)
	devBufferType         func(dev uintptr) uintptr
	devSupportsOp         func(dev, t uintptr) bool
	devInit               func(dev uintptr, params unsafe.Pointer) uintptr
	regDev                func(reg uintptr, index uint64) uintptr
	regProc               func(reg uintptr, name string) uintptr
	compute               func(backend, graph uintptr) int32
	backendInit           func() uintptr // from here on: of the CPU library
	setThreads            func(backend uintptr, n int32)
	setPool               func(backend, pool uintptr)
	poolNew               func(p *ggmlPoolParams) uintptr
	poolPause, poolResume func(pool uintptr)
}

// ggmlInit is struct ggml_init_params.
type ggmlInit struct {
	size    uint64
	_       uintptr // memory of the caller: none
	noAlloc bool
	_       [7]byte
}

// ggmlPoolParams is struct ggml_threadpool_params: a mask of 512 bytes, threads, priority, polling, two flags.
type ggmlPoolParams [544]byte

const ggmlWeights = 1 // GGML_BACKEND_BUFFER_USAGE_WEIGHTS

func (a *ggmlAPI) bindBase(l library) error {
	return l.bind(map[string]any{
		"ggml_init": &a.init, "ggml_free": &a.free, "ggml_tensor_overhead": &a.tensorOverhead, "ggml_graph_overhead_custom": &a.graphOverhead,
		"ggml_type_name": &a.typeName, "ggml_row_size": &a.rowSize, "ggml_nbytes": &a.nbytes, "ggml_new_tensor_2d": &a.newTensor2D,
		"ggml_mul_mat": &a.mulMat, "ggml_new_graph_custom": &a.newGraph, "ggml_build_forward_expand": &a.buildForward,
		"ggml_version": &a.version, "ggml_commit": &a.commit, "ggml_threadpool_params_init": &a.poolParams,
		"ggml_backend_alloc_ctx_tensors_from_buft": &a.allocContext, "ggml_backend_buft_alloc_buffer": &a.allocBuffer,
		"ggml_backend_buffer_free": &a.bufferFree, "ggml_backend_buffer_get_base": &a.bufferBase, "ggml_backend_buffer_set_usage": &a.bufferUsage,
		"ggml_backend_buft_name": &a.bufferTypeName, "ggml_backend_tensor_alloc": &a.tensorAlloc, "ggml_backend_tensor_set": &a.tensorSet,
		"ggml_backend_tensor_get": &a.tensorGet, "ggml_backend_dev_buffer_type": &a.devBufferType, "ggml_backend_dev_supports_op": &a.devSupportsOp,
		"ggml_backend_dev_init": &a.devInit, "ggml_backend_reg_dev_get": &a.regDev, "ggml_backend_reg_get_proc_address": &a.regProc,
		"ggml_backend_graph_compute": &a.compute,
	})
}

func (a *ggmlAPI) bindCPU(l library) error {
	return l.bind(map[string]any{
		"ggml_backend_init": &a.backendInit, "ggml_backend_cpu_set_n_threads": &a.setThreads,
		"ggml_backend_cpu_set_threadpool": &a.setPool, "ggml_threadpool_new": &a.poolNew,
		"ggml_threadpool_pause": &a.poolPause, "ggml_threadpool_resume": &a.poolResume,
	})
}

// libraryFile is a library's file name without the system's ending.
func libraryFile(path string) string {
	return strings.TrimPrefix(strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".so"), ".dylib"), "lib")
}

// loadVariant opens the CPU library in dir that gives itself the highest score on this machine, as ggml's own loader
// does; 0 means that it does not run here.
func loadVariant(dir string) (best library, err error) {
	files, _ := filepath.Glob(filepath.Join(dir, "libggml-cpu*"))
	top := int32(0)
	for _, f := range files {
		l, err := load(f)
		if err != nil {
			return best, err
		}
		score := int32(1) // a library for the one machine that it was built on has none
		if p, err := dlsym(l.handle, "ggml_backend_score"); err == nil {
			var ask func() int32
			purego.RegisterFunc(&ask, p)
			score = ask()
		}
		if score <= top {
			dlclose(l.handle)
			continue
		}
		if top > 0 {
			dlclose(best.handle)
		}
		best, top = l, score
	}
	if top == 0 {
		return best, fmt.Errorf("%w: no libggml-cpu* in %s runs on this machine", errMissing, dir)
	}
	return best, nil
}

func openGGML(j *job) (engine, error) {
	if j.Path == "" {
		return nil, fmt.Errorf("%w: no folder with ggml's libraries", errMissing)
	}
	bases, _ := filepath.Glob(filepath.Join(j.Path, "libggml-base.*"))
	if len(bases) == 0 {
		return nil, fmt.Errorf("%w: no libggml-base in %s", errMissing, j.Path)
	}
	base, err := load(bases[0])
	if err != nil {
		return nil, err
	}
	variant, err := loadVariant(j.Path)
	if err != nil {
		return nil, err
	}
	e := &ggml{n: j.N, k: j.K, turn: rotation{n: j.Copies}}
	if err := errors.Join(e.bindBase(base), e.bindCPU(variant)); err != nil {
		return nil, err
	}
	t, err := e.typeOf(j)
	if err != nil {
		return nil, err
	}
	reg := e.backendInit()
	if reg == 0 {
		return nil, fmt.Errorf("%s does not start", variant.name)
	}
	dev := e.regDev(reg, 0)
	if e.backend = e.devInit(dev, nil); e.backend == 0 {
		return nil, fmt.Errorf("%s opens no device", variant.name)
	}
	var params ggmlPoolParams
	e.poolParams(&params, int32(j.Threads))
	if e.pool = e.poolNew(&params); e.pool == 0 {
		return nil, fmt.Errorf("%s makes no thread pool", variant.name)
	}
	e.setThreads(e.backend, int32(j.Threads))
	e.setPool(e.backend, e.pool)

	data, err := os.ReadFile(j.Weights)
	if err != nil {
		return nil, err
	}
	inputs, err := os.ReadFile(j.Inputs)
	if err != nil {
		return nil, err
	}
	e.inputs = floatsOf(inputs)
	e.plain = e.devBufferType(dev)
	layout, err := e.place(j, t, reg, dev, data)
	if err != nil {
		return nil, err
	}
	e.about = ran{Kernel: "ggml_mul_mat", Layout: layout,
		Detail: fmt.Sprintf("ggml %s (%s), %s, weights in %s", e.version(), e.commit(), libraryFile(variant.name), layout)}
	return e, nil
}

// typeOf returns ggml's number of the job's format, checked against the library's own name and size for it.
func (e *ggml) typeOf(j *job) (int32, error) {
	id, ok := gguf.TypeID(j.Format)
	if !ok {
		return 0, fmt.Errorf("ggml has no %v", j.Format)
	}
	t := int32(id)
	size, err := j.Format.RowBytes(int64(j.K))
	if err != nil {
		return 0, err
	}
	if name := e.typeName(t); !strings.EqualFold(name, j.Format.String()) || int64(e.rowSize(t, int64(j.K))) != size {
		return 0, fmt.Errorf("type %d of this ggml is %s and not %v, or has rows of another size", t, name, j.Format)
	}
	return t, nil
}

// place puts the weights in the buffer type that the variant names, or in the first that can multiply them.
func (e *ggml) place(j *job, t int32, reg, dev uintptr, data []byte) (layout string, err error) {
	types := append(e.extraBufferTypes(reg, dev), e.plain)
	var seen []string
	for _, buft := range types {
		name := e.bufferTypeName(buft)
		seen = append(seen, name)
		if j.Variant != "" && !strings.EqualFold(name, j.Variant) || !e.multiplies(dev, buft, t) {
			continue
		}
		ctx := e.context(uint64(j.Copies)*e.tensorOverhead(), 0)
		for range j.Copies {
			e.weights = append(e.weights, e.newTensor2D(ctx, t, int64(e.k), int64(e.n)))
		}
		buf := e.allocContext(ctx, buft)
		if buf == 0 {
			return "", fmt.Errorf("no memory for %d copies of the weights in %s", j.Copies, name)
		}
		e.bufferUsage(buf, ggmlWeights)
		for _, w := range e.weights {
			e.tensorSet(w, unsafe.Pointer(unsafe.SliceData(data)), 0, uint64(len(data)))
		}
		return name, nil
	}
	return "", fmt.Errorf("no layout %s multiplies %v with N=%d K=%d; this ggml has %s", j.Variant, j.Format, e.n, e.k, strings.Join(seen, ", "))
}

// extraBufferTypes asks the backend for the layouts that it makes of weights.
func (e *ggml) extraBufferTypes(reg, dev uintptr) (types []uintptr) {
	p := e.regProc(reg, "ggml_backend_dev_get_extra_bufts")
	if p == 0 {
		return nil
	}
	var get func(dev uintptr) *[64]uintptr // ends with 0
	purego.RegisterFunc(&get, p)
	if list := get(dev); list != nil {
		for _, t := range list {
			if t == 0 {
				break
			}
			types = append(types, t)
		}
	}
	return types
}

// multiplies reports whether the device multiplies weights that lie in such a buffer.
func (e *ggml) multiplies(dev, buft uintptr, t int32) bool {
	wctx := e.context(e.tensorOverhead(), 0)
	defer e.free(wctx)
	w := e.newTensor2D(wctx, t, int64(e.k), int64(e.n))
	buf := e.allocContext(wctx, buft)
	if buf == 0 {
		return false
	}
	defer e.bufferFree(buf)
	ctx := e.context(2*e.tensorOverhead(), 0)
	defer e.free(ctx)
	x := e.newTensor2D(ctx, ggmlF32, int64(e.k), 1)
	xbuf := e.allocContext(ctx, e.plain)
	if xbuf == 0 {
		return false
	}
	defer e.bufferFree(xbuf)
	return e.devSupportsOp(dev, e.mulMat(ctx, w, x))
}

const (
	ggmlF32   = 0  // GGML_TYPE_F32
	graphSize = 16 // room for a node, its operands and ggml's table of them
)

// context makes a context for so many bytes of tensors and so many graphs.
func (e *ggml) context(tensors, graphs uint64) uintptr {
	return e.init(ggmlInit{size: tensors + graphs*e.graphOverhead(graphSize, false), noAlloc: true})
}

func (e *ggml) shape(m int) error {
	for _, f := range e.released {
		f()
	}
	copies := uint64(len(e.weights))
	xctx := e.context(e.tensorOverhead(), 0)
	x := e.newTensor2D(xctx, ggmlF32, int64(e.k), int64(m))
	xbuf := e.allocContext(xctx, e.plain)
	obuf := e.allocBuffer(e.plain, uint64(m*e.n*4))
	ctx := e.context(copies*e.tensorOverhead(), copies)
	e.released = []func(){func() { e.free(ctx); e.free(xctx); e.bufferFree(xbuf); e.bufferFree(obuf) }}
	if xbuf == 0 || obuf == 0 {
		return errors.New("no memory for the activations")
	}
	e.tensorSet(x, unsafe.Pointer(unsafe.SliceData(e.inputs)), 0, uint64(m*e.k*4))
	e.graphs, e.m = e.graphs[:0], m
	for _, w := range e.weights {
		e.out = e.mulMat(ctx, w, x)
		if status := e.tensorAlloc(obuf, e.out, e.bufferBase(obuf)); status != 0 {
			return fmt.Errorf("ggml_backend_tensor_alloc returns %d", status)
		}
		g := e.newGraph(ctx, graphSize, false)
		e.buildForward(g, e.out)
		e.graphs = append(e.graphs, g)
	}
	return nil
}

func (e *ggml) run(calls int) error {
	e.poolResume(e.pool)
	defer e.poolPause(e.pool) // its threads would spin through the other engines' turns
	for range calls {
		if status := e.compute(e.backend, e.graphs[e.turn.next()]); status != 0 {
			return fmt.Errorf("ggml_backend_graph_compute returns %d", status)
		}
	}
	return nil
}

func (e *ggml) output() ([]float32, error) {
	out := make([]float32, e.m*e.n)
	if size := e.nbytes(e.out); size != uint64(4*len(out)) {
		return nil, fmt.Errorf("the result has %d bytes, not %d", size, 4*len(out))
	}
	e.tensorGet(e.out, unsafe.Pointer(unsafe.SliceData(out)), 0, uint64(4*len(out)))
	return out, nil
}

func (e *ggml) ran() ran { return e.about }
