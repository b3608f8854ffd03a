package sample

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Level says how many cases a corpus has.
type Level uint8

// Levels.
const (
	Quick Level = iota // every mechanism once: seconds over all kernels
	Full               // every combination of dtypes, sweeps of every extent: a minute or two
)

// String returns "quick" or "full".
func (l Level) String() string { return [...]string{"quick", "full"}[min(l, Full)] }

// Corpus returns the cases of an op of the catalogue: combinations of dtypes and optional operands, sweeps of every
// extent over empty, small and odd ones and those about powers of two, alternatives of shapes, layouts, strides and
// alignments, adversarial values, and the op's own named cases; by name, which is unique. Unknown ops have none.
func Corpus(op registry.Op, level Level) []Case {
	d, ok := describe(op)
	if !ok {
		return nil
	}
	return CorpusOf(d, level)
}

// CorpusOf is Corpus for any descriptor.
func CorpusOf(d registry.Descriptor, level Level) []Case {
	b := &builder{d: d, rc: recipeOf(d.Name), level: level}
	b.types()
	b.sweeps()
	b.views()
	b.fills()
	if b.rc.cases != nil {
		b.rc.cases(b)
	}
	for i := range b.list {
		b.list[i].Op = d.Op
	}
	sort.SliceStable(b.list, func(i, j int) bool { return b.list[i].Name < b.list[j].Name })
	return b.list
}

// mostExtent bounds the extents of cases that are made from a kernel's description.
const mostExtent = 1 << 16

// CasesFor returns calls around the extents at which a kernel changes its ways, as registry.KernelSpec.Boundaries gives them:
// for each trait that is an extent and each value T of it the plain call with T-1, T and T+1, in each of the given
// combinations of dtypes (none: the default one), once more with weights in the Lane16 layout where they may have it.
// Other traits are passed over, and values above 65536.
func CasesFor(d registry.Descriptor, thresholds map[string][]int64, types ...map[string]tensor.DType) (list []Case) {
	if len(types) == 0 {
		types = []map[string]tensor.DType{nil}
	}
	b := &builder{d: d, rc: recipeOf(d.Name)}
	for _, t := range types {
		for _, trait := range slices.Sorted(maps.Keys(thresholds)) {
			symbol, flat := b.symbol(trait)
			if symbol == "" {
				continue
			}
			step, done := b.step(symbol, t), map[int64]bool{}
			for _, at := range thresholds[trait] {
				for n := at - 1; n <= at+1; n++ {
					if done[n] {
						continue
					}
					done[n] = true
					c := Case{Op: d.Op, Name: fmt.Sprintf("threshold/%s=%d", trait, n), Shape: Shape{symbol: n}, Types: t}
					if flat {
						c.Shape["T"] = 1
					}
					if n%step != 0 || n < b.least(symbol) || n > mostExtent || b.rc.fit != nil && !b.rc.fit(&c) {
						continue
					}
					list = append(list, c)
					if c.Layouts = b.packed(t); c.Layouts != nil {
						c.Name += "/lane16"
						list = append(list, c)
					}
				}
			}
		}
	}
	return list
}

// symbol returns the shape symbol that a trait counts, "" if it is none that a case can give; flat says that it counts
// the elements of an operand of any shape.
func (b *builder) symbol(trait string) (symbol string, flat bool) {
	names := []string{trait}
	for _, t := range b.d.Traits {
		if t.Name == trait || slices.Contains(t.Aliases, trait) {
			names = append(names, t.Name)
		}
	}
	if flat = slices.Contains(names, "elements"); flat {
		names = append(names, "H")
	}
	for _, s := range FreeSymbols(b.d) {
		if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, s) }) {
			return s, flat
		}
	}
	return "", false
}

// builder collects the cases of one op.
type builder struct {
	d     registry.Descriptor
	rc    *recipe
	level Level
	list  []Case
}

// add is not inlined: hundreds of calls would each hold the code that grows the list.
//
//go:noinline
func (b *builder) add(name string, c Case) {
	c.Name = name
	b.list = append(b.list, c)
}

// choices returns, for each operand that has a choice, the dtypes that may stand there; None is absence.
func (b *builder) choices() (names []string, lists [][]tensor.DType) {
	for i := range b.d.Operands {
		o := &b.d.Operands[i]
		list, err := DTypes(o)
		if err != nil {
			continue
		}
		if list == nil && o.Optional {
			list = []tensor.DType{follows}
		}
		if o.Optional {
			list = append([]tensor.DType{tensor.None}, list...)
		}
		if len(list) > 1 {
			names, lists = append(names, o.Name), append(lists, list)
		}
	}
	return names, lists
}

// follows stands for the dtype of another operand.
const follows = tensor.DType(255)

// mostTypes bounds the combinations of dtypes of one op.
const mostTypes = 400

// types adds combinations of dtypes: each choice alone on the quick level, all together on the full one.
func (b *builder) types() {
	b.add("plain", Case{})
	names, lists := b.choices()
	combos := [][]int{}
	for i := range lists {
		for j := 1; j < len(lists[i]); j++ {
			c := make([]int, len(lists))
			c[i] = j
			combos = append(combos, c)
		}
	}
	all := 1
	for _, l := range lists {
		all *= len(l)
	}
	if b.level == Full {
		combos = combos[:0]
		step := (all + mostTypes - 1) / mostTypes
		for gcd(step, all) > 1 { // or some dtype of an operand would never come
			step++
		}
		for n := 0; n < all; n += step {
			c, rest := make([]int, len(lists)), n
			for i, l := range lists {
				c[i], rest = rest%len(l), rest/len(l)
			}
			combos = append(combos, c)
		}
	} else if len(lists) > 1 { // and the last of all choices together
		c := make([]int, len(lists))
		for i := range lists {
			c[i] = len(lists[i]) - 1
		}
		combos = append(combos, c)
	}
	for _, combo := range combos {
		c, text := Case{Types: map[string]tensor.DType{}}, []string{}
		for i, j := range combo {
			switch t := lists[i][j]; t {
			case tensor.None:
			case follows:
				c.With = append(c.With, names[i])
				text = append(text, names[i])
			default:
				c.Types[names[i]] = t
				text = append(text, fmt.Sprintf("%s=%v", names[i], t))
			}
		}
		name := "types/" + strings.Join(text, ",")
		b.typed(name, c)
		if b.level == Quick {
			continue
		}
		c.Shape, c.Strided, c.Offset = maps.Clone(b.rc.big), true, 1
		b.typed(name+"/big", c)
		if c.Layouts = b.packed(c.Types); c.Layouts != nil {
			b.typed(name+"/big lane16", c)
		}
	}
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// packed returns the layouts that put the weights of a call into Lane16, nil if there are none to put there.
func (b *builder) packed(types map[string]tensor.DType) map[string]tensor.Layout {
	for i := range b.d.Operands {
		o := &b.d.Operands[i]
		t := types[o.Name]
		if list := b.admitted(o); t == tensor.None && len(list) > 0 {
			t = list[0]
		}
		if strings.HasSuffix(o.Layout, " lane16") && slices.Contains(lane16Types, t) {
			return map[string]tensor.Layout{o.Name: tensor.Lane16}
		}
	}
	return nil
}

// Fit completes a case of given dtypes and extents by what goes with them. It reports false if there is no such call.
func Fit(d registry.Descriptor, c *Case) bool {
	rc := recipeOf(d.Name)
	return rc.fit == nil || rc.fit(c)
}

// typed adds a case whose optional operands may need attributes that go with them.
func (b *builder) typed(name string, c Case) {
	if b.rc.fit != nil && !b.rc.fit(&c) {
		return
	}
	b.add(name, c)
}

// step is the number that every extent of a symbol must be a multiple of: the block length where it is the last of an
// operand of blocks.
func (b *builder) step(symbol string, types map[string]tensor.DType) int64 {
	step := max(b.rc.step[symbol], 1)
	for i := range b.d.Operands {
		o := &b.d.Operands[i]
		g := &generator{Args: &Args{desc: b.d, c: Case{Types: types}}, recipe: b.rc}
		t, err := g.dtype(o)
		if err != nil || !t.IsBlock() {
			continue
		}
		forms, err := parseShape(b.rc.shapeText(o))
		if err != nil {
			continue
		}
		if form := forms[0]; form[len(form)-1].symbol == symbol {
			e, _ := t.Block()
			step = max(step, int64(e))
		}
	}
	return step
}

// least is the smallest legal extent of a symbol.
func (b *builder) least(symbol string) int64 {
	if n, ok := b.rc.least[symbol]; ok {
		return n
	}
	return 0
}

// quickSweep and fullSweep are the extents that sweeps try, in steps of the symbol.
var (
	quickSweep = []int64{0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 65}
	fullSweep  = func() (list []int64) {
		for n := range int64(34) {
			list = append(list, n)
		}
		for p := int64(64); p <= 1024; p *= 2 {
			list = append(list, p-1, p, p+1)
		}
		return list
	}()
)

// sweeps varies one extent at a time, the others at their defaults.
func (b *builder) sweeps() {
	values := quickSweep
	if b.level == Full {
		values = fullSweep
	}
	for _, s := range Symbols(b.d) {
		if slices.Contains(b.rc.derived, s) || slices.Contains(b.rc.still, s) {
			continue
		}
		step := b.step(s, nil)
		for _, n := range values {
			n *= step
			if n < b.least(s) || n > 4096 {
				continue
			}
			b.typed(fmt.Sprintf("extent/%s=%d", s, n), Case{Shape: Shape{s: n}})
		}
	}
}

// views adds alternatives of shapes, layouts, strides and alignments.
func (b *builder) views() {
	for i := range b.d.Operands {
		o := &b.d.Operands[i]
		forms := strings.Count(b.rc.shapeText(o), "|")
		for f := 1; f <= forms; f++ {
			c := Case{Forms: map[string]int{o.Name: f}}
			if o.Optional {
				c.With = []string{o.Name}
			}
			b.typed(fmt.Sprintf("form/%s=%d", o.Name, f), c)
		}
		if strings.HasSuffix(o.Layout, " lane16") {
			for _, t := range b.admitted(o) {
				if slices.Contains(lane16Types, t) {
					b.add(fmt.Sprintf("lane16/%s=%v", o.Name, t), Case{Types: map[string]tensor.DType{o.Name: t}, Layouts: map[string]tensor.Layout{o.Name: tensor.Lane16}})
				}
			}
		}
	}
	if slices.ContainsFunc(b.d.Operands, func(o registry.Operand) bool { return !strings.HasPrefix(o.Layout, "contig") }) {
		b.add("strided", Case{Strided: true})
	}
	for n := 1; n <= 3; n++ {
		b.add(fmt.Sprintf("offset/%d", n), Case{Offset: n, Strided: n == 3})
	}
	if len(b.rc.alias) > 0 {
		b.add("in place", Case{InPlace: true})
	}
}

func (b *builder) admitted(o *registry.Operand) []tensor.DType {
	list, _ := DTypes(o)
	return list
}

// fills adds the adversarial values that the op gives a meaning to.
func (b *builder) fills() {
	for _, f := range b.rc.fills {
		b.typed("fill/"+f.String(), Case{Fill: f})
		if b.level == Full {
			for i := range b.d.Operands {
				o := &b.d.Operands[i]
				for _, t := range b.admitted(o) {
					if t.IsFloat() && !o.Optional && o.Role != registry.Out {
						b.typed(fmt.Sprintf("fill/%v/%s=%v", f, o.Name, t), Case{Fill: f, Types: map[string]tensor.DType{o.Name: t}})
					}
				}
			}
		}
	}
}
