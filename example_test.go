package opmux_test

import (
	"context"
	"fmt"
	"log"

	"github.com/opmux/opmux/cpu" // importing a backend registers its kernels
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
