package opmuxtest_test

import (
	"testing"
	"unsafe"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/opmuxtest"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// relu is somebody's kernel: contiguous f32 in and out.
func relu(_ *registry.Queue, a *ops.ReluArgs) registry.Status {
	n := a.X.Numel()
	x, out := unsafe.Slice((*float32)(a.X.Host), n), unsafe.Slice((*float32)(a.Out.Host), n)
	for i, v := range x {
		if out[i] = 0; v > 0 {
			out[i] = v
		}
	}
	return 0
}

// registerRelu adds it to a registry. Its description says what it takes; calls outside go to the next kernel.
func registerRelu(r *registry.Registry, kind tensor.Kind) error {
	f32 := tensor.Sig(map[string]tensor.Format{"x": tensor.Dense(tensor.F32)})
	_, err := ops.Register(r, ops.Relu, kind, ops.Provider[ops.ReluArgs]{
		OpProvider: registry.OpProvider{Name: "mine", Priority: 60, Traits: registry.Traits{BatchInvariant: true, BitExact: true},
			Spec:   &registry.Spec{Signatures: []tensor.FormatSignature{f32}},
			Accept: &registry.Accept{Operands: map[string]registry.AcceptOperand{"out": {DTypes: []tensor.DType{tensor.F32}}}}},
		Fn: relu,
	})
	return err
}

// The test of a kernel: a registry with the reference and the kernel, and one call.
func ExampleTestKernel() {
	_ = func(t *testing.T) { // TestRelu in the author's package
		r := registry.New(registry.Options{})
		if err := cpu.Register(r); err != nil {
			t.Fatal(err)
		}
		if err := registerRelu(r, tensor.CPU); err != nil {
			t.Fatal(err)
		}
		opmuxtest.TestKernel(t, r, ops.OpRelu, "mine_relu")
	}
	// Output:
}
