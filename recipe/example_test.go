package recipe_test

import (
	"encoding/json"
	"fmt"
	"log"

	_ "github.com/opmux/opmux/cpu" // registers the CPU kernels with the default registry
	"github.com/opmux/opmux/recipe"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// A recipe of the catalogue: add to the residual, then normalize. The residual is updated in place.
func Example() {
	p, _ := recipe.Catalogue().Get("fused_add_rms_norm_std")
	view := func(v []float32, shape ...int64) tensor.Tensor {
		return tensor.Must(tensor.FromSlice(v, tensor.F32, shape...))
	}
	x, weight, residual, out := []float32{1, 1, 2, 2}, []float32{1, 2}, []float32{2, 3, -5, 2}, make([]float32, 4)
	operands := []tensor.Tensor{view(x, 2, 2), view(weight), view(residual, 2, 2), view(out, 2, 2)}

	q := registry.Default().NewQueue(nil)
	defer q.Close()
	for _, interpreter := range []bool{false, true} {
		copy(residual, []float32{2, 3, -5, 2})
		params := recipe.Params{Eps: 1e-6, Interpreter: interpreter}
		choice, err := p.Plan(q, operands, params)
		if err != nil {
			log.Fatal(err)
		}
		if err := p.Run(q, operands, params); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v: %.3f residual %v\n", choice.Tier, out, residual)
	}
	// Output:
	// composite: [0.849 2.263 -0.849 2.263] residual [3 4 -3 4]
	// interpreter: [0.849 2.263 -0.849 2.263] residual [3 4 -3 4]
}

// A recipe of one's own, as data: out = silu(x)·weight. No ops do that step by step, so it needs the interpreter.
func ExampleRecipe_UnmarshalJSON() {
	var r recipe.Recipe
	err := json.Unmarshal([]byte(`{
		"name": "silu_scaled",
		"operands": [{"kind": "row", "name": "x"}, {"kind": "weight", "name": "scale"}, {"kind": "unused", "name": ""}, {"kind": "row", "name": "out"}],
		"steps": [{"op": "silu", "in": [0], "out": 3}, {"op": "mul", "in": [3, 1], "out": 3}]
	}`), &r)
	if err != nil {
		log.Fatal(err)
	}
	p, err := recipe.Prepare(r)
	if err != nil {
		log.Fatal(err)
	}
	out := make([]float32, 2)
	q := registry.Default().NewQueue(nil)
	defer q.Close()
	err = p.Run(q, []tensor.Tensor{
		tensor.Must(tensor.FromSlice([]float32{1, -2}, tensor.F32, 1, 2)),
		tensor.Must(tensor.FromSlice([]float32{10, 100}, tensor.F32)),
		{}, // slot 2, the residual, is not used
		tensor.Must(tensor.FromSlice(out, tensor.F32, 1, 2)),
	}, recipe.Params{Interpreter: true})
	fmt.Printf("%.3f %v\n", out, err)
	// Output: [7.311 -23.841] <nil>
}

// A trailing residual add has no norm to go into: a mistake that is found before anything runs.
func ExamplePrepare() {
	_, err := recipe.Prepare(recipe.Recipe{
		Name:     "add_only",
		Operands: []recipe.Slot{{Kind: recipe.Row, Name: "x"}, {Kind: recipe.Residual, Name: "residual"}},
		Steps:    []recipe.Step{{Op: recipe.Add, In: [3]uint8{0, 1}, Out: 1}},
	})
	fmt.Println(err)
	// Output: recipe add_only: step 0 (add): no rms_norm follows that would take up the residual: bad recipe
}
