package recipe

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/opmux/opmux/registry"
)

// text is a Recipe in JSON.
type text struct {
	Name     string `json:"name"`
	Operands []Slot `json:"operands"`
	Steps    []Step `json:"steps"`
	Fast     string `json:"fast,omitempty"` // name of the op
}

// maxText bounds the JSON of one recipe, in bytes; the longest legal one is far below.
const maxText = 1 << 14

// MarshalJSON writes name, operands, steps and the fast op's name:
//
//	{"name": "scale", "operands": [{"kind": "row", "name": "x"}, ...], "steps": [{"op": "mul", "in": [0, 1], "out": 3}]}
func (r Recipe) MarshalJSON() ([]byte, error) {
	t := text{r.Name, r.Operands, r.Steps, ""}
	if r.Fast != 0 {
		t.Fast = r.Fast.String()
	}
	return json.Marshal(t)
}

// UnmarshalJSON reads what MarshalJSON writes and validates it. Unknown fields, unknown names and more than 16 kB are refused;
// r is as before then. Errors wrap ErrRecipe, or are those of encoding/json.
func (r *Recipe) UnmarshalJSON(b []byte) error {
	if len(b) > maxText {
		return fmt.Errorf("recipe: %d bytes, at most %d: %w", len(b), maxText, ErrRecipe)
	}
	var t text
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return fmt.Errorf("recipe: %w: %w", ErrRecipe, err)
	}
	n := Recipe{Name: t.Name, Operands: t.Operands, Steps: t.Steps}
	if t.Fast != "" {
		op, ok := registry.Lookup(t.Fast)
		if !ok {
			return fmt.Errorf("recipe %.64s: fast op %.64q is not known: %w", t.Name, t.Fast, ErrRecipe)
		}
		n.Fast = op
	}
	if err := n.Validate(); err != nil {
		return err
	}
	*r = n
	return nil
}
