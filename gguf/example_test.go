package gguf_test

import (
	"bytes"
	"fmt"

	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/tensor"
)

func Example() {
	var model bytes.Buffer
	err := gguf.Write(&model,
		[]gguf.KV{{Key: "general.architecture", Value: "llama"}, {Key: "llama.block_count", Value: uint32(2)}},
		[]gguf.TensorData{{Name: "output_norm.weight", DType: tensor.F16, Shape: []int64{4}, Data: make([]byte, 8)}})
	if err != nil {
		fmt.Println(err)
		return
	}

	f, err := gguf.Parse(model.Bytes()) // or gguf.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	for _, key := range f.Keys() {
		v, _ := f.Value(key)
		fmt.Println(key, v.Type(), v)
	}
	for _, t := range f.Tensors() {
		fmt.Println(t.Name, t.DType, t.Shape, t.Size)
	}
	// Output:
	// general.architecture str "llama"
	// llama.block_count u32 2
	// output_norm.weight f16 [4] 8
}
