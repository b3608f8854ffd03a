package recipe_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/recipe"
	"github.com/opmux/opmux/tensor"
)

// TestRejects: what is no recipe, and why.
func TestRejects(t *testing.T) {
	base := func() recipe.Recipe { return get(t, "rms_norm_quant_fp8").Recipe() }
	plain := func(steps ...recipe.Step) func(r *recipe.Recipe) {
		return func(r *recipe.Recipe) { r.Operands, r.Steps, r.Fast = rows, steps, 0 }
	}
	aux := func(steps ...recipe.Step) func(r *recipe.Recipe) { // of eight slots: the fourth is a weight
		return func(r *recipe.Recipe) {
			r.Operands, r.Steps, r.Fast = nil, steps, 0
			for i, k := range []recipe.Kind{recipe.Row, recipe.Row, recipe.Row, recipe.Weight, recipe.Aux, recipe.Aux, recipe.Unused, recipe.Residual} {
				r.Operands = append(r.Operands, recipe.Slot{Kind: k, Name: string(rune('a' + i))})
			}
		}
	}
	for _, c := range []struct {
		why    string
		change func(r *recipe.Recipe)
	}{
		{"the name is not", func(r *recipe.Recipe) { r.Name = "" }},
		{"the name is not", func(r *recipe.Recipe) { r.Name = "a b" }},
		{"the name is not", func(r *recipe.Recipe) { r.Name = strings.Repeat("a", 65) }},
		{"0 steps", func(r *recipe.Recipe) { r.Steps = nil }},
		{"9 steps", func(r *recipe.Recipe) { r.Steps = make([]recipe.Step, 9) }},
		{"0 operands", func(r *recipe.Recipe) { r.Operands = nil }},
		{"9 operands", func(r *recipe.Recipe) { r.Operands = make([]recipe.Slot, 9) }},
		{"slot 0: kind 5", func(r *recipe.Recipe) { r.Operands = append([]recipe.Slot{{Kind: 5, Name: "x"}}, r.Operands[1:]...) }},
		{"slot 0: the name", func(r *recipe.Recipe) { r.Operands = append([]recipe.Slot{{Kind: recipe.Row}}, r.Operands[1:]...) }},
		{"2 residuals", func(r *recipe.Recipe) {
			r.Operands = append([]recipe.Slot{{Kind: recipe.Residual, Name: "x"}}, r.Operands[1:]...)
		}},
		{"the opcode is not known", plain(recipe.Step{})},
		{"the opcode is not known", plain(recipe.Step{Op: 200, Out: 3})},
		{"slot 4 is not there", plain(recipe.Step{Op: recipe.Silu, In: [3]uint8{4}, Out: 3})},
		{"slot 255 is not there", plain(recipe.Step{Op: recipe.Silu, Out: 255})},
		{"slot 6 is not there", aux(recipe.Step{Op: recipe.SiluMul, In: [3]uint8{0, 1}, Out: 6})},
		{"it has 1 inputs", plain(recipe.Step{Op: recipe.Silu, In: [3]uint8{0, 1}, Out: 3})},
		{"no second output", plain(recipe.Step{Op: recipe.Silu, Out: 3, Out2: 2})},
		{"slot 255 is not there", aux(recipe.Step{Op: recipe.QuantFP4, Out: 4, Out2: recipe.NoSlot})},
		{"both outputs are one slot", aux(recipe.Step{Op: recipe.QuantFP4, Out: 4, Out2: 4})},
		{"writes the weight", plain(recipe.Step{Op: recipe.Silu, Out: 1})},
		{"reads and writes a", aux(recipe.Step{Op: recipe.SiluMul, In: [3]uint8{0, 1}, Out: 0})},
		{"reads and writes a", aux(recipe.Step{Op: recipe.QuantFP4, In: [3]uint8{0}, Out: 4, Out2: 0})},
		{"is no weight", plain(recipe.Step{Op: recipe.RMSNorm, In: [3]uint8{0, 2}, Out: 3, Reduce: recipe.MeanSquare})},
		{"is no weight", aux(recipe.Step{Op: recipe.RMSNormGated, In: [3]uint8{0, 1, 4}, Out: 2})},
		{"not mean_square", plain(recipe.Step{Op: recipe.RMSNorm, In: [3]uint8{0, 1}, Out: 3})},
		{"has no reduction", plain(recipe.Step{Op: recipe.Silu, Out: 3, Reduce: recipe.MeanSquare})},
		{"gemma is for norms", plain(recipe.Step{Op: recipe.Silu, Out: 3, Gemma: true})},
		{"for gated norms", plain(recipe.Step{Op: recipe.RMSNorm, In: [3]uint8{0, 1}, Out: 3, Reduce: recipe.MeanSquare, SigmoidGate: true})},
		{"it works in place", aux(recipe.Step{Op: recipe.Rope, In: [3]uint8{0, 4, 5}, Out: 1, Out2: recipe.NoSlot})},
		{"it stands alone", aux(recipe.Step{Op: recipe.AttnQKNormRopeGate, Out: 4})},
		{"no rms_norm follows", plain(add)},
		{"no rms_norm follows", plain(norm(0, 3), add)},
		{"no rms_norm follows", plain(add, norm(2, 3), recipe.Step{Op: recipe.Add, In: [3]uint8{3, 2}, Out: 2})},
		{"matmul is no fast op", func(r *recipe.Recipe) { r.Fast = ops.OpMatmul }},
		{"does other steps", func(r *recipe.Recipe) { r.Fast = ops.OpSiluMulFP4Quant }},
		{"does other steps", func(r *recipe.Recipe) { r.Steps = r.Steps[1:] }},
		{"neither the composite (step 0: silu has no op of its own) nor the interpreter (step 1: quant_fp8 is not row-wise)",
			aux(recipe.Step{Op: recipe.Silu, Out: 1}, recipe.Step{Op: recipe.QuantFP8, In: [3]uint8{1}, Out: 4})},
		{"the last step writes slot 2", plain(recipe.Step{Op: recipe.Silu, Out: 2})},
		{"slot 1 is no weight", aux(recipe.Step{Op: recipe.Silu, Out: 1})},
		{"reads out, which no step has written", plain(recipe.Step{Op: recipe.Silu, In: [3]uint8{3}, Out: 3})},
		{"quant_fp8 is not the rms_norm of slot 7 that the add of step 0 waits for", aux(recipe.Step{Op: recipe.Add, In: [3]uint8{0, 7}, Out: 7},
			recipe.Step{Op: recipe.QuantFP8, In: [3]uint8{7}, Out: 4}, recipe.Step{Op: recipe.RMSNorm, In: [3]uint8{7, 3}, Out: 1, Reduce: recipe.MeanSquare})},
		{"is not the rms_norm of slot 7", aux(recipe.Step{Op: recipe.Add, In: [3]uint8{0, 7}, Out: 7},
			recipe.Step{Op: recipe.RMSNorm, In: [3]uint8{1, 3}, Out: 2, Reduce: recipe.MeanSquare})},
		{"step 1: add has no op of its own", aux(recipe.Step{Op: recipe.Add, In: [3]uint8{0, 7}, Out: 7}, recipe.Step{Op: recipe.Add, In: [3]uint8{1, 7}, Out: 7},
			recipe.Step{Op: recipe.RMSNorm, In: [3]uint8{7, 3}, Out: 2, Reduce: recipe.MeanSquare})},
	} {
		r := base()
		c.change(&r)
		err := r.Validate()
		require.ErrorIs(t, err, recipe.ErrRecipe, c.why)
		require.ErrorContains(t, err, c.why)
		_, err = recipe.Prepare(r)
		require.ErrorIs(t, err, recipe.ErrRecipe)
	}
	// Between a residual add and its norm other steps may stand that have nothing to do with it.
	r := base()
	aux(recipe.Step{Op: recipe.Add, In: [3]uint8{0, 7}, Out: 7}, recipe.Step{Op: recipe.QuantFP8, In: [3]uint8{1}, Out: 4},
		recipe.Step{Op: recipe.RMSNorm, In: [3]uint8{7, 3}, Out: 2, Reduce: recipe.MeanSquare})(&r)
	require.NoError(t, r.Validate())
}

// TestCatalogue: the nine recipes, as the catalogue's table has them.
func TestCatalogue(t *testing.T) {
	s := recipe.Catalogue()
	require.Equal(t, []string{"attn_qk_norm_rope", "attn_qk_norm_rope_gate", "fused_add_rms_norm", "fused_add_rms_norm_std", "rms_norm_gated_quant_fp8", "rms_norm_quant_fp8",
		"sigmoid_gate_fp4_quant", "silu_mul_fp4_quant", "silu_mul_quant_fp8"}, s.Names())
	for name, want := range map[string]string{
		"fused_add_rms_norm":       "x weight residual out: add(0,2)>2 rms_norm(2,1)>3 gemma",
		"fused_add_rms_norm_std":   "x weight residual out: add(0,2)>2 rms_norm(2,1)>3",
		"rms_norm_quant_fp8":       "x weight residual tmp out_fp8: add(0,2)>2 rms_norm(2,1)>3 gemma quant_fp8(3)>4 by rms_norm_quant_fp8",
		"rms_norm_gated_quant_fp8": "x gate weight tmp out_fp8: rms_norm_gated(0,1,2)>3 quant_fp8(3)>4 by rms_norm_gated_quant_fp8",
		"silu_mul_fp4_quant":       "gate up tmp packed scale: silu_mul(0,1)>2 quant_fp4(2)>3,4 by silu_mul_fp4_quant",
		"silu_mul_quant_fp8":       "gate up tmp out_fp8: silu_mul(0,1)>2 quant_fp8(2)>3",
		"sigmoid_gate_fp4_quant":   "attn gate tmp packed scale: sigmoid_gate(0,1)>2 quant_fp4(2)>3,4 by sigmoid_gate_fp4_quant",
		"attn_qk_norm_rope_gate":   "qgate kf q_norm k_norm cos_sin q_out k_out gate_out: attn_qk_norm_rope_gate()>5 gemma",
		"attn_qk_norm_rope":        "q_rows q_norm k_rows k_norm q k cos_sin positions: rms_norm(0,1)>0 rms_norm(2,3)>2 rope(4,6,7)>4,5",
	} {
		p, ok := s.Get(name)
		require.True(t, ok, name)
		r := p.Recipe()
		var b strings.Builder
		for i, o := range r.Operands {
			b.WriteString(strings.Repeat(" ", min(i, 1)) + o.Name)
		}
		b.WriteByte(':')
		for _, s := range r.Steps {
			b.WriteString(" " + s.Op.String() + "(")
			for i, in := range s.In[:s.Op.Inputs()] {
				b.WriteString(strings.Repeat(",", min(i, 1)) + string('0'+rune(in)))
			}
			b.WriteString(")>" + string('0'+rune(s.Out)))
			if s.Out2 != 0 {
				b.WriteString("," + string('0'+rune(s.Out2)))
			}
			if s.Gemma {
				b.WriteString(" gemma")
			}
		}
		if r.Fast != 0 {
			b.WriteString(" by " + r.Fast.String())
		}
		require.Equal(t, want, b.String())
		require.Equal(t, name, r.Name)
	}

	// Sets are independent of each other.
	r := recipe.Recipe{Name: "mine", Operands: rows, Steps: []recipe.Step{{Op: recipe.Silu, Out: 3}}}
	_, err := s.Add(r)
	require.NoError(t, err)
	_, err = s.Add(r)
	require.ErrorIs(t, err, recipe.ErrDuplicate)
	_, ok := recipe.Catalogue().Get("mine")
	require.False(t, ok)
	var empty recipe.Set
	require.Empty(t, empty.Names())
	_, err = empty.Add(recipe.Recipe{})
	require.ErrorIs(t, err, recipe.ErrRecipe)
	r.Steps[0].Out = 2
	p, ok := s.Get("mine")
	require.True(t, ok)
	require.EqualValues(t, 3, p.Recipe().Steps[0].Out, "a copy")
}

// TestJSON: a recipe that is written and read is the same recipe.
func TestJSON(t *testing.T) {
	for _, name := range recipe.Catalogue().Names() {
		want := get(t, name).Recipe()
		b, err := json.Marshal(want)
		require.NoError(t, err)
		var got recipe.Recipe
		require.NoError(t, json.Unmarshal(b, &got), string(b))
		require.Equal(t, want, got)
	}
	one := recipe.Recipe{Name: "q_alone", Operands: []recipe.Slot{{Kind: recipe.Aux, Name: "q"}, {Kind: recipe.Aux, Name: "cos_sin"}, {Kind: recipe.Aux, Name: "positions"}},
		Steps: []recipe.Step{{Op: recipe.Rope, In: [3]uint8{0, 1, 2}, Out: 0, Out2: recipe.NoSlot}}}
	b, err := json.Marshal(one)
	require.NoError(t, err)
	require.Equal(t, `{"name":"q_alone","operands":[{"kind":"aux","name":"q"},{"kind":"aux","name":"cos_sin"},{"kind":"aux","name":"positions"}],`+
		`"steps":[{"op":"rope","in":[0,1,2],"out":0}]}`, string(b))
	var got recipe.Recipe
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, one, got)

	valid := `{"name":"a","operands":[{"kind":"row","name":"x"},{"kind":"weight","name":"w"},{"kind":"unused","name":""},{"kind":"row","name":"out"}],"steps":[{"op":"silu","in":[0],"out":3}]}`
	require.NoError(t, json.Unmarshal([]byte(valid), &got))
	for name, change := range map[string][2]string{
		"unknown opcode": {`"silu"`, `"tanh"`}, "unknown field": {`"steps"`, `"stops"`}, "field of a recipe": {`"name":"a"`, `"name":"a","more":1`}, "unknown kind": {`"row"`, `"col"`},
		"slot below 0": {`[0]`, `[-1]`}, "slot 256, which is 0 in a byte": {`[0]`, `[256]`}, "output 259": {`"out":3`, `"out":259`}, "two inputs": {`[0]`, `[0,1]`},
		"no input": {`[0]`, `[]`}, "a fraction": {`[0]`, `[0.5]`}, "unknown op": {`"name":"a"`, `"name":"a","fast":"nobody"`}, "op that is no fast one": {`"name":"a"`, `"name":"a","fast":"add"`},
		"null step": {`{"op":"silu","in":[0],"out":3}`, `null`}, "second output": {`"out":3`, `"out":3,"out2":2`}, "reduction": {`"out":3`, `"out":3,"reduce":"max"`},
		"long": {`"name":"a"`, `"name":"` + strings.Repeat("a", 1<<15) + `"`}, "not an object": {valid, `[]`},
	} {
		text := strings.ReplaceAll(valid, change[0], change[1])
		require.NotEqual(t, valid, text, name)
		before := got
		require.Error(t, json.Unmarshal([]byte(text), &got), name)
		require.Equal(t, before, got, name)
	}
}

// FuzzRecipe: whatever text it is, it is refused or makes a recipe that can be prepared, that writes itself as it is, and whose
// runs on odd operands are errors or results, never a panic.
func FuzzRecipe(f *testing.F) {
	text, err := os.ReadFile("catalogue.json")
	require.NoError(f, err)
	var list []json.RawMessage
	require.NoError(f, json.Unmarshal(text, &list))
	for _, r := range list {
		f.Add([]byte(r), uint64(1))
	}
	best, _ := queue(f)
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		var r, again recipe.Recipe
		if json.Unmarshal(text, &r) != nil || r.Name == "" { // null leaves it as it is
			return
		}
		b, err := json.Marshal(r)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, &again))
		require.Equal(t, r, again)
		p, err := recipe.Prepare(r)
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(seed, 1))
		x := make([]tensor.Tensor, len(r.Operands))
		for i := range x {
			switch rng.IntN(5) {
			case 0:
			case 1:
				x[i] = random([]tensor.DType{f32, f16, bf16}[rng.IntN(3)], 32)
			default:
				x[i] = random([]tensor.DType{f32, f16, bf16, u8}[rng.IntN(4)], 2, 32)
			}
		}
		for tier := range recipe.Fast + 1 {
			_ = p.RunTier(best, tier, x, recipe.Params{})
		}
		_ = p.Run(best, x, recipe.Params{Interpreter: true})
		c, err := p.Plan(best, x, recipe.Params{Interpreter: true})
		require.NoError(t, err)
		require.NotEmpty(t, c.String())
	})
}
