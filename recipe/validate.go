package recipe

import (
	"fmt"

	"github.com/opmux/opmux/ops"
)

// Validate reports why r is no recipe: a limit that is exceeded, an opcode or a slot that does not exist, steps that no tier
// can run, a fast op that does something else. The error wraps ErrRecipe.
func (r Recipe) Validate() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("recipe %.64s: %s: %w", r.Name, fmt.Sprintf(format, args...), ErrRecipe)
	}
	if !isName(r.Name) {
		return fail("the name is not 1 to 64 letters, digits and . _ -")
	}
	if n := len(r.Operands); n < 1 || n > MaxOperands {
		return fail("%d operands, not 1 to %d", n, MaxOperands)
	}
	if n := len(r.Steps); n < 1 || n > MaxSteps {
		return fail("%d steps, not 1 to %d", n, MaxSteps)
	}
	residuals := 0
	for i, s := range r.Operands {
		switch {
		case s.Kind >= numKinds:
			return fail("slot %d: kind %d is not known", i, s.Kind)
		case s.Kind != Unused && !isName(s.Name):
			return fail("slot %d: the name is not 1 to 64 letters, digits and . _ -", i)
		case s.Kind == Residual:
			residuals++
		}
	}
	if residuals > 1 {
		return fail("%d residuals, at most one may be", residuals)
	}
	normed := -1 // the last step that is an RMSNorm
	for i, s := range r.Steps {
		if s.Op == RMSNorm {
			normed = i
		}
	}
	for i, s := range r.Steps {
		if why := r.badStep(s); why != "" {
			return fail("step %d (%v): %s", i, s.Op, why)
		}
		if r.isResidualAdd(s) && i > normed {
			return fail("step %d (%v): no rms_norm follows that would take up the residual", i, s.Op)
		}
	}
	if r.Fast != 0 {
		f, ok := fasts[r.Fast]
		if !ok {
			return fail("%v is no fast op of a recipe", r.Fast)
		}
		if !f.stands(&r) {
			return fail("%v does other steps, or has other operands", r.Fast)
		}
	}
	_, composite := r.parts(r.Steps)
	if interpreter := r.chain(r.Steps); composite != "" && interpreter != "" {
		return fail("neither the composite (%s) nor the interpreter (%s) can run it", composite, interpreter)
	}
	return nil
}

func isName(s string) bool {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 64
}

// badStep says what is wrong with a step by itself, "" if nothing is.
func (r *Recipe) badStep(s Step) string {
	if !s.Op.Valid() {
		return "the opcode is not known"
	}
	slots, in := r.Operands, s.In[:s.Op.Inputs()]
	out := []uint8{s.Out}
	switch {
	case s.Op == QuantFP4, s.Op == Rope && s.Out2 != NoSlot:
		out = append(out, s.Out2)
	case s.Op != Rope && s.Out2 != 0:
		return "it has no second output"
	}
	for _, list := range [][]uint8{in, out} {
		for _, slot := range list {
			if int(slot) >= len(slots) || slots[slot].Kind == Unused {
				return fmt.Sprintf("slot %d is not there", slot)
			}
		}
	}
	for _, spare := range s.In[len(in):] {
		if spare != 0 {
			return fmt.Sprintf("it has %d inputs", len(in))
		}
	}
	if len(out) == 2 && out[0] == out[1] {
		return "both outputs are one slot"
	}
	for _, o := range out {
		if slots[o].Kind == Weight {
			return fmt.Sprintf("it writes the weight %s", slots[o].Name)
		}
		for i, slot := range in {
			if inPlace := s.Op.RowWise() || s.Op == Rope && i == 0 && o == s.Out; slot == o && !inPlace {
				return fmt.Sprintf("it reads and writes %s", slots[o].Name)
			}
		}
	}
	if weight, ok := map[Op]int{RMSNorm: 1, RMSNormGated: 2}[s.Op]; ok && slots[in[weight]].Kind != Weight {
		return fmt.Sprintf("%s is no weight", slots[in[weight]].Name)
	}
	switch {
	case s.Op == RMSNorm && s.Reduce != MeanSquare:
		return "its reduction is not mean_square"
	case s.Op != RMSNorm && s.Reduce != None:
		return "it has no reduction"
	case s.Gemma && s.Op != RMSNorm && s.Op != AttnQKNormRopeGate:
		return "gemma is for norms"
	case s.SigmoidGate && s.Op != RMSNormGated:
		return "sigmoid_gate is for gated norms"
	case s.Op == Rope && in[0] != s.Out:
		return "it works in place, but its first input is not its output"
	case s.Op == AttnQKNormRopeGate && (len(slots) != 8 || s.Out != 5 || len(r.Steps) != 1):
		return "it stands alone, on eight slots, and writes slot 5"
	}
	return ""
}

// isResidualAdd reports whether s adds into the residual.
func (r *Recipe) isResidualAdd(s Step) bool {
	return s.Op == Add && s.In[1] == s.Out && r.Operands[s.Out].Kind == Residual
}

// part is one op of a composite: a step with the residual add that was folded into it.
type part struct {
	Step
	at       int // index of the step
	residual int // slot that an RMSNorm adds and updates, -1 for none
}

// parts turns steps into ops, or says why they have none.
func (r *Recipe) parts(steps []Step) (list []part, why string) {
	pending := -1 // the add that waits for its norm
	for i, s := range steps {
		if pending < 0 && r.isResidualAdd(s) {
			pending = i
			continue
		}
		if s.Op < RMSNorm {
			return nil, fmt.Sprintf("step %d: %v has no op of its own", i, s.Op)
		}
		p := part{Step: s, at: i, residual: -1}
		if pending >= 0 {
			add := steps[pending]
			switch {
			case s.Op == RMSNorm && s.In[0] == add.Out && !writes(s, add.Out) && !writes(s, add.In[0]):
				p.In[0], p.residual, pending = add.In[0], int(add.Out), -1
			case s.Op == RMSNorm || reads(s, add.Out) || writes(s, add.Out) || writes(s, add.In[0]):
				return nil, fmt.Sprintf("step %d: %v is not the rms_norm of slot %d that the add of step %d waits for", i, s.Op, add.Out, pending)
			}
		}
		list = append(list, p)
	}
	if pending >= 0 {
		return nil, fmt.Sprintf("step %d: no rms_norm follows the add", pending)
	}
	return list, ""
}

// chain says why the interpreter does not run steps, "" if it does. Slots 0 to 3 are then its x, weight, residual and out.
func (r *Recipe) chain(steps []Step) string {
	for i, s := range steps {
		if !s.Op.RowWise() {
			return fmt.Sprintf("step %d: %v is not row-wise", i, s.Op)
		}
	}
	kinds := [...]Kind{ops.ChainX: Row, ops.ChainWeight: Weight, ops.ChainOut: Row}
	for slot, kind := range kinds {
		if slot != ops.ChainResidual && (slot >= len(r.Operands) || r.Operands[slot].Kind != kind) {
			return fmt.Sprintf("slot %d is no %v", slot, kind)
		}
	}
	if last := steps[len(steps)-1]; last.Out != ops.ChainOut {
		return fmt.Sprintf("the last step writes slot %d, not %d", last.Out, ops.ChainOut)
	}
	if err := ops.CheckChain(steps, r.Operands[ops.ChainResidual].Kind == Residual); err != nil {
		return err.Error()
	}
	return ""
}

// bare returns the steps of a call without a residual: adds into it are gone, and what they would have filled is read
// where their first input is. from has their numbers in the recipe. why says why there are none.
func (r *Recipe) bare() (steps []Step, from []int, why string) {
	const lost = NoSlot
	var at [MaxOperands]uint8 // where the value of a slot is
	for i := range at {
		at[i] = uint8(i)
	}
	for i, s := range r.Steps {
		for k, in := range s.In[:s.Op.Inputs()] {
			if s.In[k] = at[in]; s.In[k] == lost {
				return nil, nil, fmt.Sprintf("step %d: %v reads the residual, and what stands for it was overwritten", i, s.Op)
			}
		}
		if r.isResidualAdd(r.Steps[i]) {
			at[s.Out] = s.In[0]
			continue
		}
		for slot := range at {
			if at[slot] != uint8(slot) && writes(s, at[slot]) {
				at[slot] = lost
			}
		}
		steps, from = append(steps, s), append(from, i)
	}
	return steps, from, ""
}

func reads(s Step, slot uint8) bool {
	for _, in := range s.In[:s.Op.Inputs()] {
		if in == slot {
			return true
		}
	}
	return false
}

func writes(s Step, slot uint8) bool {
	return s.Out == slot || s.Op == QuantFP4 && s.Out2 == slot || s.Op == Rope && s.Out2 != NoSlot && s.Out2 == slot
}
