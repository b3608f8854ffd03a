package ops

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// The tags of a record's tensor fields, from which descriptor and validator are made:
//
//	op      role (in, out, inout), then ",opt" for an operand that may be absent; the operand's name is the field's in snake case
//	shape   extents, outermost first, each a number, a symbol, or symbol+number ("R+1"); a symbol has one value in a call.
//	        "A|B": forms of different rank. "any": every rank from 1 on. "like x": the shape of operand x.
//	dtype   names and classes (below), or "like x": the dtype of operand x
//	layout  a stride rule (below; contig if the tag is missing), then " lane16" if that layout may stand there too

// dtypeClasses are the words of a dtype tag besides the dtypes' own names.
var dtypeClasses = map[string][]tensor.DType{
	"float":    {tensor.F32, tensor.F16, tensor.BF16},
	"outfloat": {tensor.F32, tensor.BF16},
	"index":    {tensor.I32, tensor.I64},
	"mask":     {tensor.I8, tensor.U8},
	"int":      {tensor.I8, tensor.U8, tensor.I16, tensor.I32, tensor.I64},
	"element":  elementDTypes(),                         // every dtype of single elements
	"byte":     {tensor.I8, tensor.U8, tensor.F8E4M3FN}, // codes of fp8 e4m3fn, whatever the type says
	"fp4":      {tensor.I8, tensor.U8, tensor.F4E2M1x2}, // pairs of fp4 codes, the even element in the low nibble
	"block":    blockDTypes(),                           // every block dtype that weights come in
}

// blockDTypes lists the block types but Q8_1, which only activations have.
func blockDTypes() (b []tensor.DType) {
	for t := tensor.DType(0); t < 64; t++ {
		if t.IsBlock() && t != tensor.Q8_1 {
			b = append(b, t)
		}
	}
	return b
}

// elementDTypes lists the dtypes that are no blocks.
func elementDTypes() (list []tensor.DType) {
	for t := tensor.DType(0); t < 64; t++ {
		if t.Size() > 0 {
			list = append(list, t)
		}
	}
	return list
}

// layoutRule is a stride rule. A stride is never negative, and that of an extent 0 or 1 does not matter.
type layoutRule uint8

const (
	contig    layoutRule = iota // packed row-major
	rows                        // rank 2, inner stride 1, outer stride >= inner extent
	inner1                      // innermost stride 1, the others free
	innerRows                   // dimensions 1.. packed, outer stride >= their product
	pages                       // the last two dimensions packed, the others free
	strided                     // any strides
)

var layoutNames = map[string]layoutRule{
	"contig": contig, "rows": rows, "inner1": inner1, "inner-rows": innerRows, "pages": pages, "strided": strided,
}

// maxSymbols bounds the shape symbols of one op.
const maxSymbols = 12

// extent is one term of a shape: add, or the value of a symbol plus add.
type extent struct {
	sym int8 // index into symbols, -1 for none
	add int64
}

// operand is one tensor field of a record, ready to be checked.
type operand struct {
	registry.Operand // the tags' texts
	rule             layoutRule
	lane16           bool
	anyShape         bool
	forms            [][]extent // by "|"; nil for any and like
	likeShape        *operand
	likeDType        *operand
	dtypes           uint64 // bit t is set if dtype t may stand here
}

// spec is the compiled form of a record's tags.
type spec struct {
	operands []*operand // in record order
	outs     []*operand
	symbols  []string
	list     []registry.Operand // the descriptor's form of operands
}

var tensorType = reflect.TypeFor[tensor.Tensor]()

// compile reads the tags of record. A malformed tag is a programming error and panics.
func compile(record reflect.Type) *spec {
	s := &spec{}
	var tags []reflect.StructTag
	for f := range record.Fields() {
		if f.Type == tensorType {
			s.operands = append(s.operands, &operand{Operand: registry.Operand{Name: FieldName(f.Name), Offset: f.Offset}})
			tags = append(tags, f.Tag)
		}
	}
	for i, o := range s.operands {
		if err := s.parse(o, tags[i]); err != nil {
			panic(fmt.Sprintf("ops: %v: %s: %v", record, o.Name, err))
		}
	}
	for _, o := range s.operands {
		s.list = append(s.list, o.Operand)
		if o.Role != registry.In {
			s.outs = append(s.outs, o)
		}
	}
	return s
}

// parse fills o from the tags of its field.
func (s *spec) parse(o *operand, tag reflect.StructTag) error {
	role, opt, _ := strings.Cut(tag.Get("op"), ",")
	switch role {
	case "in":
	case "out":
		o.Role = registry.Out
	case "inout":
		o.Role = registry.InOut
	default:
		return fmt.Errorf("role %q", role)
	}
	switch opt {
	case "":
	case "opt":
		o.Optional = true
	default:
		return fmt.Errorf("option %q", opt)
	}

	o.Shape = tag.Get("shape")
	if name, ok := strings.CutPrefix(o.Shape, "like "); ok {
		if o.likeShape = s.operand(name); o.likeShape == nil || o.likeShape == o {
			return fmt.Errorf("shape %q", o.Shape)
		}
	} else if o.anyShape = o.Shape == "any"; !o.anyShape {
		for form := range strings.SplitSeq(o.Shape, "|") {
			var dims []extent
			for term := range strings.SplitSeq(form, ",") {
				e, err := s.extent(term)
				if err != nil {
					return err
				}
				dims = append(dims, e)
			}
			o.forms = append(o.forms, dims)
		}
	}

	o.DType = tag.Get("dtype")
	if name, ok := strings.CutPrefix(o.DType, "like "); ok {
		if o.likeDType = s.operand(name); o.likeDType == nil || o.likeDType == o {
			return fmt.Errorf("dtype %q", o.DType)
		}
	} else {
		list, err := ParseDTypes(o.DType)
		if err != nil {
			return err
		}
		for _, t := range list {
			o.dtypes |= 1 << t
		}
	}

	o.Layout = cmp.Or(tag.Get("layout"), "contig")
	rule, lane16 := strings.CutSuffix(o.Layout, " lane16")
	r, ok := layoutNames[rule]
	if !ok {
		return fmt.Errorf("layout %q", o.Layout)
	}
	o.rule, o.lane16 = r, lane16
	return nil
}

// ParseDTypes returns the dtypes that the words of a dtype tag stand for, classes in their order; not for "like x". The error
// wraps tensor.ErrDType.
func ParseDTypes(tag string) (list []tensor.DType, err error) {
	for word := range strings.FieldsSeq(tag) {
		class, ok := dtypeClasses[word]
		if !ok {
			t, err := tensor.ParseDType(word)
			if err != nil {
				return nil, err
			}
			class = []tensor.DType{t}
		}
		list = append(list, class...)
	}
	return list, nil
}

// extent parses "3", "T" or "R+1".
func (s *spec) extent(term string) (extent, error) {
	name, plus, _ := strings.Cut(term, "+")
	e := extent{sym: -1}
	if n, err := strconv.ParseInt(name, 10, 64); err == nil {
		e.add = n
		return e, nil
	}
	if plus != "" {
		n, err := strconv.ParseInt(plus, 10, 64)
		if err != nil {
			return e, err
		}
		e.add = n
	}
	if name == "" {
		return e, fmt.Errorf("empty extent in a shape")
	}
	i := slices.Index(s.symbols, name)
	if i < 0 {
		if len(s.symbols) == maxSymbols {
			return e, fmt.Errorf("more than %d symbols", maxSymbols)
		}
		i = len(s.symbols)
		s.symbols = append(s.symbols, name)
	}
	e.sym = int8(i)
	return e, nil
}

func (s *spec) operand(name string) *operand {
	for _, o := range s.operands {
		if o.Name == name {
			return o
		}
	}
	return nil
}

// FieldName turns the Go name of a record's field into the name that the catalogue, the C header and files use:
// QueryStartLoc into query_start_loc, TokenIDs into token_ids, QKV into qkv.
func FieldName(s string) string {
	upper := func(i int) bool { return s[i] >= 'A' && s[i] <= 'Z' }
	lower := func(i int) bool { return i < len(s) && s[i] >= 'a' && s[i] <= 'z' }
	var b strings.Builder
	for i := range len(s) {
		// A word starts at an upper-case letter after another kind of character, and at the last of several upper-case
		// letters when a lower-case one other than a plural s at the end follows.
		if upper(i) && i > 0 && (!upper(i-1) || lower(i+1) && s[i+1:] != "s") {
			b.WriteByte('_')
		}
		b.WriteByte(s[i])
	}
	return strings.ToLower(b.String())
}

// formString is the text of a shape form.
func (s *spec) formString(form []extent) string {
	var b strings.Builder
	for i, e := range form {
		if i > 0 {
			b.WriteByte(',')
		}
		switch {
		case e.sym < 0:
			fmt.Fprint(&b, e.add)
		case e.add != 0:
			fmt.Fprintf(&b, "%s+%d", s.symbols[e.sym], e.add)
		default:
			b.WriteString(s.symbols[e.sym])
		}
	}
	return b.String()
}
