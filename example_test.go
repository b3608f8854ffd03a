package opmux_test

import (
	"context"
	"fmt"
	"log"

	"github.com/opmux/opmux/cpu" // importing a backend registers its kernels
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/llm"
	"github.com/opmux/opmux/llm/tokenizer"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// One op on whatever kernel the registry chooses, and the proof of which one ran.
func Example_op() {
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	dq, err := dev.NewQueue()
	if err != nil {
		log.Fatal(err)
	}
	defer dq.Close()
	q := registry.Default().NewQueue(dq) // one for each goroutine that launches
	defer q.Close()

	x := []float32{1, 2, 3, 4}
	w := []float32{1, 0, 0, 0, 0, 1, 0, 1} // [2,4]
	y := make([]float32, 2)
	args := ops.MatmulBTArgs{ // a record can be kept and launched again
		Out: tensor.Must(tensor.FromSlice(y, tensor.F32, 1, 2)),
		A:   tensor.Must(tensor.FromSlice(x, tensor.F32, 1, 4)),
		B:   tensor.Must(tensor.FromSlice(w, tensor.F32, 2, 4)),
	}
	if err := ops.MatmulBT.Launch(q, &args); err != nil {
		log.Fatal(err)
	}
	fmt.Println(y)

	ran := uint64(0)
	for _, kernel := range registry.Default().Explain(ops.OpMatmulBT, dev.ID()).Chain { // best first, with reasons and counters
		ran += kernel.Counts.Executed
	}
	fmt.Println(ran > 0)
	// Output:
	// [1 6]
	// true
}

// A server's path: load a model once, give each worker an engine, generate with a context that can be cancelled.
func Example_server() {
	f, err := gguf.Open("cmd/opmux/model/default.gguf")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	model, err := llm.Load(context.Background(), f, dev, llm.Options{ContextLength: 256})
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	worker, err := model.NewEngine()
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()

	res, err := worker.Generate(context.Background(), llm.Request{
		Prompt:    model.Tokenizer.Encode("And God said", tokenizer.EncodeOptions{AddSpecial: true}),
		MaxTokens: 8,
		IgnoreEnd: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(res.Tokens), res.Stop)
	// Output: 8 length
}

// A kernel of your own beside the others: it takes short rows and declines the rest, and the chain goes on.
func Example_kernel() {
	r := registry.New(registry.Options{}) // or registry.Default()
	if err := cpu.Register(r); err != nil {
		log.Fatal(err)
	}
	_, err := ops.Register(r, ops.Relu, tensor.CPU, ops.Provider[ops.ReluArgs]{
		OpProvider: registry.OpProvider{Name: "mine", Priority: 50},
		Fn: func(q *registry.Queue, a *ops.ReluArgs) registry.Status {
			if a.X.Numel() > 4 || a.X.DType != tensor.F32 || a.Out.DType != tensor.F32 {
				return registry.Decline(registry.ReasonThreshold) // nothing was touched
			}
			x, y := tensor.Slice[float32](&a.X), tensor.Slice[float32](&a.Out)
			for i, v := range x {
				y[i] = max(v, 0)
			}
			return registry.Status(registry.OK)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	dev, err := cpu.Open(cpu.Options{Registry: r})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	dq, err := dev.NewQueue()
	if err != nil {
		log.Fatal(err)
	}
	defer dq.Close()
	q := r.NewQueue(dq)
	defer q.Close()
	for _, n := range []int{3, 5} {
		x := tensor.Must(tensor.FromSlice(make([]float32, n), tensor.F32))
		y := tensor.Must(tensor.FromSlice(make([]float32, n), tensor.F32))
		if err := ops.Relu.Call(q, ops.ReluArgs{Out: y, X: x}); err != nil {
			log.Fatal(err)
		}
	}
	mine := r.Explain(ops.OpRelu, dev.ID()).Chain[0]
	fmt.Println(mine.Kernel, mine.Counts.Executed, mine.Counts.Declined)
	// Output: mine_relu 1 map[size-threshold:1]
}

// Registers a kernel by its description, with a launcher that takes the op's own record.
func Example_typedKernel() {
	r := registry.New(registry.Options{}) // registry.Default() in a program
	if err := cpu.Register(r); err != nil {
		log.Fatal(err)
	}
	_, err := registry.RegisterTypedKernelIn(r, registry.KernelSpec{
		Family: "elementwise", Mode: "relu", Solution: "mine", Kinds: []tensor.Kind{tensor.CPU},
		Priority: registry.BandSpecialized.Plus(0),
		Spec:     registry.Spec{Signatures: []tensor.FormatSignature{tensor.Sig(map[string]tensor.Format{"x": tensor.Dense(tensor.F32)})}},
	}, func(q *registry.Queue, a *ops.ReluArgs) registry.Status {
		if a.Out.DType != tensor.F32 {
			return registry.Decline(registry.ReasonDType) // nothing was touched
		}
		x, y := tensor.Slice[float32](&a.X), tensor.Slice[float32](&a.Out)
		for i, v := range x {
			y[i] = max(v, 0)
		}
		return registry.Status(registry.OK)
	})
	if err != nil {
		log.Fatal(err)
	}
	q := r.NewQueue(nil)
	defer q.Close()
	x := tensor.Must(tensor.FromSlice([]float32{-1, 2}, tensor.F32))
	y := tensor.Must(tensor.FromSlice(make([]float32, 2), tensor.F32))
	if err := ops.Relu.Call(q, ops.ReluArgs{Out: y, X: x}); err != nil {
		log.Fatal(err)
	}
	mine := r.Explain(ops.OpRelu, q.Device()).Chain[0]
	fmt.Println(mine.Kernel, mine.Counts.Executed, tensor.Slice[float32](&y))
	// Output: mine_elementwise_relu 1 [0 2]
}

// A kernel for one format, one head size and one architecture, and who wins on two machines that are not here.
func Example_selection() {
	r := registry.New(registry.Options{}) // registry.Default() in a program
	if err := cpu.Register(r); err != nil {
		log.Fatal(err)
	}
	bf16 := tensor.Dense(tensor.BF16)
	formats := tensor.Sig(map[string]tensor.Format{"q": bf16, "k_cache": bf16, "v_cache": bf16})
	_, err := r.RegisterKernel(registry.KernelSpec{
		Family: "attention", Mode: "mha_decode_with_kvcache", Solution: "mine", Kinds: []tensor.Kind{tensor.CUDA},
		Priority: registry.BandSpecialized.Plus(0),
		Spec: registry.Spec{
			Requires:    device.Requirement{Vendors: []string{device.NVIDIA}, MinArch: "9.0", MaxArch: "9.0"},
			Signatures:  []tensor.FormatSignature{formats},
			Constraints: map[string]registry.Constraint{"head_dim": registry.OneOfInts(128)},
			Unavailable: "an example", // in place of the launcher that RegisterKernel takes
		}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range []struct {
		machine string
		headDim int64
	}{{"h100", 128}, {"h100", 64}, {"b200", 128}} {
		p, err := device.ReadPlatform("docs/platforms/" + c.machine + ".json")
		if err != nil {
			log.Fatal(err)
		}
		d := r.Decide(registry.Request{Operator: "attention.mha_decode_with_kvcache", Signature: formats, Platform: p,
			Traits: map[string]registry.TraitValue{"head_dim": registry.IntTrait(c.headDim)}})
		fmt.Printf("%s, %d: %q", c.machine, c.headDim, d.Winner)
		for _, k := range d.Choices {
			if k.Provider == "mine" && k.Verdict == "rejected" {
				fmt.Printf(" %v", k.Why)
			}
		}
		fmt.Println()
	}
	// Output:
	// h100, 128: "mine_attention_mha_decode_with_kvcache"
	// h100, 64: "" [trait d: wants 128, got 64]
	// b200, 128: "" [capability max-arch: wants 9.0, got 10.0]
}
