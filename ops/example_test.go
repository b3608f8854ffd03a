package ops_test

import (
	"errors"
	"fmt"

	_ "github.com/opmux/opmux/cpu" // registers the CPU kernels with the default registry
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// A call by value: the record lives in a pool of the op.
func Example() {
	x := tensor.Must(tensor.FromSlice([]float32{3, 4, -6, 8}, tensor.F32, 2, 2))
	out := make([]float32, 4)
	q := registry.Default().NewQueue(nil)
	defer q.Close()

	err := ops.RMSNorm.Call(q, ops.RMSNormArgs{Out: tensor.Must(tensor.FromSlice(out, tensor.F32, 2, 2)), X: x})
	fmt.Printf("%.4f %v\n", out, err)
	// Output: [0.8485 1.1314 -0.8485 1.1314] <nil>
}

// A record that the caller keeps is filled once and launched again and again; a bound op has looked its kernels up.
func ExampleOp_Bind() {
	a := []float32{1, 2, 3}
	sum := []float32{0, 0, 0}
	rec := &ops.AddArgs{
		Out: tensor.Must(tensor.FromSlice(sum, tensor.F32)),
		A:   tensor.Must(tensor.FromSlice(sum, tensor.F32)), // add may work in place
		B:   tensor.Must(tensor.FromSlice(a, tensor.F32)),
	}
	q := registry.Default().NewQueue(nil)
	defer q.Close()
	add, err := ops.Add.Bind(q)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		if err := add.Launch(rec); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(sum)
	// Output: [3 6 9]
}

// A rejected call names the op, the operand, what is wrong and the kind of mistake. Nothing was launched.
func ExampleOpError() {
	f := make([]float32, 8)
	q := registry.Default().NewQueue(nil)
	defer q.Close()
	err := ops.Matmul.Call(q, ops.MatmulArgs{
		Out: tensor.Must(tensor.FromSlice(f, tensor.F32, 2, 2)),
		A:   tensor.Must(tensor.FromSlice(f, tensor.F32, 2, 4)),
		B:   tensor.Must(tensor.FromSlice(f, tensor.F32, 3, 2)),
	})
	fmt.Println(err)
	var e *ops.OpError
	fmt.Println(errors.As(err, &e), errors.Is(err, ops.ErrShape), e.Operand)
	// Output:
	// matmul: b: extent 0 of [3 2] is not the 4 that [K,N] asks for (wrong shape)
	// true true b
}

// A kernel of one's own takes the op's record. It declines what it does not serve; the next kernel of the chain does.
func ExampleRegister() {
	r := registry.New(registry.Options{})
	kernel := func(what string, serves tensor.DType) func(*registry.Queue, *ops.ReluArgs) registry.Status {
		return func(_ *registry.Queue, a *ops.ReluArgs) registry.Status {
			if a.X.DType != serves {
				return registry.Decline(registry.ReasonDType)
			}
			fmt.Println(what, "runs", &a.X)
			return 0
		}
	}
	for _, p := range []ops.Provider[ops.ReluArgs]{
		{OpProvider: registry.OpProvider{Name: "fast", Priority: 10}, Fn: kernel("fast", tensor.F32)},
		{OpProvider: registry.OpProvider{Name: "plain"}, Fn: kernel("plain", tensor.BF16)},
	} {
		if _, err := ops.Register(r, ops.Relu, tensor.CPU, p); err != nil {
			fmt.Println(err)
		}
	}
	q := r.NewQueue(nil)
	defer q.Close()
	for _, t := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
		x := tensor.Must(tensor.FromSlice(make([]float32, 4), t, 4))
		out := tensor.Must(tensor.FromSlice(make([]float32, 4), tensor.F32))
		if err := ops.Relu.Call(q, ops.ReluArgs{Out: out, X: x}); err != nil {
			fmt.Println(errors.Is(err, registry.ErrDeclined))
		}
	}
	// Output:
	// fast runs f32[4]
	// plain runs bf16[4]
	// true
}

// The frequencies of a Llama 3.1 rope.
func ExampleRopeParams_InvFreq() {
	p := ops.RopeParams{Base: 500000, RotaryDim: 128, Scaling: ops.RopeLlama3, Factor: 8, LowFreq: 1, HighFreq: 4, OrigContext: 8192}
	freq := make([]float64, 64)
	p.InvFreq(freq, nil, nil)
	fmt.Printf("%.6f %.6f %.9f\n", freq[0], freq[16], freq[63])
	// Output: 1.000000 0.037606 0.000000307
}
