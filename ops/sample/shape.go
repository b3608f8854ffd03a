package sample

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opmux/opmux/registry"
)

// term is one extent of a shape: add, or the value of a symbol plus add.
type term struct {
	symbol string
	add    int64
}

// parseShape reads the alternatives of a shape text: "T,H", "R+1", "T|3,T".
func parseShape(text string) (forms [][]term, err error) {
	for form := range strings.SplitSeq(text, "|") {
		var dims []term
		for t := range strings.SplitSeq(form, ",") {
			name, plus, _ := strings.Cut(t, "+")
			e := term{symbol: name}
			if n, err := strconv.ParseInt(name, 10, 64); err == nil {
				e = term{add: n}
			} else if name == "" {
				return nil, fmt.Errorf("shape %q", text)
			}
			if plus != "" {
				n, err := strconv.ParseInt(plus, 10, 64)
				if err != nil {
					return nil, fmt.Errorf("shape %q: %w", text, err)
				}
				e.add += n
			}
			dims = append(dims, e)
		}
		forms = append(forms, dims)
	}
	return forms, nil
}

// shapeText returns the shape of an operand by symbols: the descriptor's, or the recipe's where that leaves it open.
// "like x" stays.
func (rc *recipe) shapeText(o *registry.Operand) string {
	if text := rc.shapes[o.Name]; text != "" {
		return text
	}
	if o.Shape == "any" {
		return "T,H"
	}
	return o.Shape
}

// Symbols returns the names that a Case's Shape may give for an op, sorted: the symbols of its operands and the further
// ones of its recipe.
func Symbols(d registry.Descriptor) []string {
	rc := recipeOf(d.Name)
	set := map[string]bool{}
	for s := range rc.shape {
		set[s] = true
	}
	for i := range d.Operands {
		text := rc.shapeText(&d.Operands[i])
		if strings.HasPrefix(text, "like ") {
			continue
		}
		forms, _ := parseShape(text)
		for _, f := range forms {
			for _, t := range f {
				if t.symbol != "" {
					set[t.symbol] = true
				}
			}
		}
	}
	names := make([]string, 0, len(set))
	for s := range set {
		names = append(names, s)
	}
	slices.Sort(names)
	return names
}

// dims evaluates a form.
func (s Shape) dims(form []term) ([]int64, error) {
	var d []int64
	for _, t := range form {
		n := t.add
		if t.symbol != "" {
			v, ok := s[t.symbol]
			if !ok {
				return nil, fmt.Errorf("no extent for symbol %s", t.symbol)
			}
			n += v
		}
		if n < 0 {
			return nil, fmt.Errorf("extent %d", n)
		}
		d = append(d, n)
	}
	return d, nil
}

// strides returns the strides of a tensor of the given extents under a layout rule, with gaps in it where gaps is set
// and the rule admits them.
func strides(rule string, dims []int64, gaps bool) []int64 {
	r := len(dims)
	free := 0 // dimensions before free may have gaps behind them
	if gaps {
		switch strings.TrimSuffix(rule, " lane16") {
		case "rows", "inner-rows":
			free = min(1, r-1)
		case "inner1", "strided":
			free = r - 1
		case "pages":
			free = max(r-2, 0)
		}
	}
	out, step := make([]int64, r), int64(1)
	if gaps && rule == "strided" {
		step = 2
	}
	for d := r - 1; d >= 0; d-- {
		if d < free {
			step += 3
		}
		out[d] = step
		step *= max(dims[d], 1)
	}
	return out
}

// FreeSymbols is Symbols without those that follow from others.
func FreeSymbols(d registry.Descriptor) []string {
	rc := recipeOf(d.Name)
	return slices.DeleteFunc(Symbols(d), func(s string) bool { return slices.Contains(rc.derived, s) })
}
