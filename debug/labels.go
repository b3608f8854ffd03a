package debug

import (
	"context"
	"runtime/pprof"
	"sync"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Labels returns a tracer (Registry.SetTracer) that marks the launching goroutine with the pprof labels op, device,
// kernel and provider while a kernel runs, so that a CPU profile can be split by kernel:
//
//	go tool pprof -tagfocus kernel=avx2_matmul_bt_quant ...
//
// After each call the goroutine has the labels of ctx. Work that a kernel hands to other goroutines is not marked.
func Labels(ctx context.Context) registry.Tracer {
	return &labels{ctx: ctx, end: func(registry.Status) { pprof.SetGoroutineLabels(ctx) }}
}

type labels struct {
	ctx   context.Context
	end   func(registry.Status)
	known sync.Map // labelKey: context.Context
}

type labelKey struct {
	op     registry.Op
	dev    tensor.Device
	kernel string
}

// Begin puts the labels on.
func (l *labels) Begin(c registry.Call) func(registry.Status) {
	key := labelKey{c.Op, c.Device, c.Kernel}
	ctx, ok := l.known.Load(key)
	if !ok {
		ctx = pprof.WithLabels(l.ctx, pprof.Labels("op", c.OpName, "device", c.Device.String(), "kernel", c.Kernel, "provider", c.Provider))
		l.known.Store(key, ctx)
	}
	pprof.SetGoroutineLabels(ctx.(context.Context))
	return l.end
}
