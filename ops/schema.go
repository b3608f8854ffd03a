package ops

import (
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// The schema of an op's calls (registry.Schema) follows from its record:
//
//	roles        the required inputs that carry values and have a choice of dtype; the first such operand if none has
//	<symbol>     one int for each shape symbol, in small letters, with the names of symbolMeanings
//	elements     the elements of the operand whose shape is free, where there are no symbols
//	<attribute>  one bool, int or word for each attribute that is one, and a bool for those of floatInUse
//	has_<name>   whether an optional operand is there
//	<name>_dtype of operands that are no roles and have a choice of dtype
//	<name>_contiguous, <name>_layout  of operands that need not be packed row-major, or may be Lane16

// symbolMeaning says what a shape symbol counts.
type symbolMeaning struct {
	unit    string
	dynamic bool     // changes from call to call
	aliases []string // names in other vocabularies
}

// symbolMeanings is by "op symbol", or by symbol for all ops that say nothing else. Symbols that are missing are static
// extents without a further name.
var symbolMeanings = union(basicSymbols, gemmSymbols, elementwiseSymbols, mlaSymbols, linearSymbols, moeSymbols, quantSymbols, transformSymbols, fusedSymbols)

var basicSymbols = symbolTable{
	"T":  {"tokens", true, []string{"num_tokens"}},
	"Tq": {"tokens", true, []string{"q_len"}},
	"Tk": {"tokens", true, []string{"kv_len"}},
	"Hq": {"heads", false, []string{"num_q_heads"}},
	"Hk": {"heads", false, []string{"num_kv_heads"}},
	"D":  {"elements", false, []string{"head_dim"}},
	"Dv": {"elements", false, []string{"value_head_dim"}},
	"NB": {"pages", false, []string{"num_pages"}},
	"BS": {"rows", false, []string{"page_size"}},
	"MB": {"pages", true, nil},
	"S":  {"tokens", true, nil},
	"H":  {"elements", false, []string{"hidden_size"}},
	"V":  {"tokens", false, []string{"vocab_size"}},
	"M":  {"rows", true, nil},
	"N":  {"rows", true, []string{"batch_size"}},

	"paged_attention Tq":   {"tokens", true, []string{"num_tokens"}},
	"paged_attention R":    {"requests", true, []string{"batch_size"}},
	"reshape_and_cache Tk": {"tokens", true, []string{"num_tokens"}},
	"matmul N":             {"elements", false, nil},
	"matmul_bt N":          {"elements", false, nil},
	"matmul_bt_quant N":    {"elements", false, nil},
	"silu_and_mul D":       {"elements", false, []string{"intermediate_size"}},
	"softmax H":            {"heads", false, []string{"num_q_heads"}},
	"softmax T":            {"tokens", true, []string{"q_len"}},
	"softmax N":            {"tokens", true, []string{"kv_len"}},
	"apply_logit_bias M":   {"entries", true, nil},
	"apply_token_mask M":   {"entries", true, nil},
}

// floatInUse are float attributes that zero, or the neutral value, switches off: the trait says whether they are on.
var floatInUse = map[string]struct {
	neutral float32
	aliases []string
}{"LogitsSoftCap": {0, []string{"logit_cap"}}, "MaxBias": {0, []string{"alibi"}}, "Alpha": {1, nil}, "Limit": {0, nil}}

// traitAliases are further names of traits.
var traitAliases = map[string][]string{"causal": {"is_causal"}, "windowed": {"sliding_window"}, "has_sinks": {"sinks"}}

// dynamicAttributes change from call to call; an int attribute without a default must be known to mean anything.
var (
	dynamicAttributes   = []string{"max_seq_len", "max_query_len", "max_seqlen_q", "max_seqlen_k", "seq_len", "num_tokens", "prefill_tokens_with_context"}
	undefaultAttributes = []string{"rotary_dim"}
)

// roleOverrides name the roles of ops where the rule does not give those of the operator that they serve.
var roleOverrides = map[string][]string{"gdn_packed_decode": {"mixed_qkv", "state"}, "matmul_int8": {"a", "b"}, "rope_from_cache": {"k_states", "q_states"}}

// wholeAlone are ops whose operands are floats of any width or whole numbers of one.
var wholeAlone = []string{"add", "mul"}

// mixed reports whether a signature has whole numbers beside another dtype.
func mixed(sig tensor.FormatSignature) bool {
	first := tensor.None
	for _, r := range sig.Roles() {
		t := sig.DType(r)
		if first != tensor.None && t != first && !(t.IsFloat() && first.IsFloat()) {
			return true
		}
		first = t
	}
	return false
}

// operators are the names under which a wider vocabulary knows an op, where it is exactly that operation.
var operators = map[string][]registry.OperatorAlias{
	"matmul_bt":       {{Name: "gemm.mm", Roles: map[string]string{"a": "a", "b": "b"}, Formats: map[string][]string{"a": {"dense"}, "b": {"dense"}}}},
	"matmul_bt_quant": {{Name: "gemm.mm", Roles: map[string]string{"a": "a", "b": "b"}, Formats: map[string][]string{"a": {"dense"}, "b": {"ggml"}}}},
	"attention": {{Name: "attention.mha_prefill", Roles: map[string]string{"q": "query", "k": "key", "v": "value"},
		Formats: map[string][]string{"q": {"dense"}, "k": {"dense"}, "v": {"dense"}}}},
	"paged_attention": {pagedAlias("attention.mha_extend_with_kvcache"), pagedAlias("attention.mha_decode_with_kvcache")},
	"rope_from_cache": {{Name: "embedding.rope", Roles: map[string]string{"q": "q_states", "k": "k_states"},
		Formats: map[string][]string{"q": {"dense"}, "k": {"dense"}}}},
}

func pagedAlias(name string) registry.OperatorAlias {
	return registry.OperatorAlias{Name: name, Roles: map[string]string{"q": "query", "k_cache": "k_cache", "v_cache": "v_cache"},
		Formats: map[string][]string{"q": {"dense"}, "k_cache": {"dense", "ggml"}, "v_cache": {"dense", "ggml"}}}
}

// schema returns the schema of the op's calls, made at the first call.
func (c *core) schema() *registry.Schema {
	c.schemaOnce.Do(func() {
		s := c.spec()
		b := &schemaBuilder{name: c.name, schema: &registry.Schema{Roles: s.roles(c.name), Operators: operators[c.name]}}
		b.schema.Signatures = sync.OnceValue(func() []tensor.FormatSignature {
			return slices.DeleteFunc(s.signatures(b.schema.Roles), func(sig tensor.FormatSignature) bool {
				return slices.Contains(wholeAlone, c.name) && mixed(sig)
			})
		})
		b.symbols(s)
		b.attributes(c.desc.Record, 0)
		b.operands(s)
		c.traits = b.schema
	})
	return c.traits
}

// Signatures lists the format signatures that calls of the op can have, in its roles (Descriptor.Roles).
func (c *core) Signatures() []tensor.FormatSignature { return slices.Clone(c.schema().Signatures()) }

// carriesValues reports whether o is an operand whose elements are numbers to compute with, and not indices or a mask.
func (o *operand) carriesValues() bool {
	const indices = 1<<tensor.I8 | 1<<tensor.U8 | 1<<tensor.I16 | 1<<tensor.I32 | 1<<tensor.I64
	return o.model().dtypes&^indices != 0
}

// hasChoice reports whether o's dtype is not fixed.
func (o *operand) hasChoice() bool {
	return bits.OnesCount64(o.model().dtypes) > 1
}

// roles lists the operands that a signature of the op names, sorted.
func (s *spec) roles(op string) []string {
	if r := roleOverrides[op]; r != nil {
		return r
	}
	var choice, fixed, outs, indices []string
	for _, o := range s.operands {
		switch {
		case o.Optional:
		case !o.carriesValues():
			if o.Role == registry.In {
				indices = append(indices, o.Name)
			}
		case o.Role == registry.Out:
			outs = append(outs, o.Name)
		case o.hasChoice():
			choice = append(choice, o.Name)
		default:
			fixed = append(fixed, o.Name)
		}
	}
	if choice == nil {
		if choice = slices.Concat(fixed, outs, indices); len(choice) > 1 {
			choice = choice[:1]
		}
	}
	slices.Sort(choice)
	return choice
}

// signatures lists the formats that calls can have in the given roles: every choice of dtypes, an operand that is like
// another one following it.
func (s *spec) signatures(roles []string) (list []tensor.FormatSignature) {
	chosen := map[*operand]tensor.DType{}
	var free []*operand // roles, or what they are like
	for _, r := range roles {
		if o := s.operand(r).model(); !slices.Contains(free, o) {
			free = append(free, o)
		}
	}
	var choose func(i int)
	choose = func(i int) {
		if i == len(free) {
			sig := map[string]tensor.Format{}
			for _, r := range roles {
				sig[r] = tensor.Dense(chosen[s.operand(r).model()])
			}
			list = append(list, tensor.Sig(sig))
			return
		}
		for t := range tensor.DType(64) {
			if free[i].dtypes>>t&1 != 0 {
				chosen[free[i]] = t
				choose(i + 1)
			}
		}
	}
	choose(0)
	return list
}

// model returns the operand whose dtype is o's: o itself, or the one that it is like.
func (o *operand) model() *operand {
	for o.likeDType != nil {
		o = o.likeDType
	}
	return o
}

// schemaBuilder collects traits.
type schemaBuilder struct {
	name   string
	schema *registry.Schema
}

// add appends a trait. Two of one name are a programming error and panic.
func (b *schemaBuilder) add(d registry.TraitDef) {
	d.Aliases = slices.Concat(d.Aliases, traitAliases[d.Name])
	for _, o := range b.schema.Traits {
		for _, n := range slices.Concat([]string{d.Name}, d.Aliases) {
			if o.Name == n || slices.Contains(o.Aliases, n) {
				panic(fmt.Sprintf("ops: %s: two traits are called %s", b.name, n))
			}
		}
	}
	b.schema.Traits = append(b.schema.Traits, d)
}

// place is where a record shows the value of a symbol: an extent less add of an operand with the given rank.
type place struct {
	off       uintptr
	rank, dim uint8
	add       int64
}

// symbols adds the traits of shapes.
func (b *schemaBuilder) symbols(s *spec) {
	for i, symbol := range s.symbols {
		var places []place
		var where []string
		for _, o := range s.operands {
			for _, form := range o.forms {
				for dim, e := range form {
					if int(e.sym) == i {
						places = append(places, place{o.Offset, uint8(len(form)), uint8(dim), e.add})
						where = append(where, fmt.Sprintf("%s[%s]", o.Name, s.formString(form)))
					}
				}
			}
		}
		m, ok := symbolMeanings[b.name+" "+symbol]
		if !ok {
			m = symbolMeanings[symbol]
		}
		b.add(registry.TraitDef{Name: strings.ToLower(symbol), Aliases: m.aliases, Type: registry.TraitInt, Unit: m.unit, Dynamic: m.dynamic,
			Doc: symbol + " of " + where[0],
			Derive: func(args unsafe.Pointer) (registry.TraitValue, bool) {
				for i := range places {
					p := &places[i]
					if x := (*tensor.Tensor)(unsafe.Add(args, p.off)); x.Rank == p.rank && x.DType != tensor.None {
						return registry.IntTrait(x.Shape[p.dim] - p.add), true
					}
				}
				return registry.TraitValue{}, false
			}})
	}
	if len(s.symbols) > 0 {
		return
	}
	for _, o := range s.operands {
		if o.anyShape && !o.Optional {
			off := o.Offset
			b.add(registry.TraitDef{Name: "elements", Type: registry.TraitInt, Unit: "elements", Dynamic: true, Doc: "elements of " + o.Name,
				Derive: func(args unsafe.Pointer) (registry.TraitValue, bool) {
					x := (*tensor.Tensor)(unsafe.Add(args, off))
					return registry.IntTrait(x.Numel()), x.Present()
				}})
			return
		}
	}
}

// attributes adds the traits of the fields that are no tensors.
func (b *schemaBuilder) attributes(record reflect.Type, base uintptr) {
	for f := range record.Fields() {
		name, off := FieldName(f.Name), base+f.Offset
		d := registry.TraitDef{Name: name, Doc: "attribute " + name, Dynamic: slices.Contains(dynamicAttributes, name)}
		number := func(read func(p unsafe.Pointer) int64) {
			d.Type = registry.TraitInt
			if !slices.Contains(undefaultAttributes, name) {
				d.Default = registry.IntTrait(0)
			}
			d.Derive = func(args unsafe.Pointer) (registry.TraitValue, bool) {
				return registry.IntTrait(read(unsafe.Add(args, off))), true
			}
		}
		switch {
		case f.Name == "_" || f.Type == tensorType || f.Type == reflect.TypeFor[registry.Header]():
			continue
		case f.Type == reflect.TypeFor[RopeParams]():
			b.attributes(f.Type, off)
			continue
		case f.Type == reflect.TypeFor[RopeScaling]():
			d.Type, d.Default = registry.TraitString, registry.StringTrait(RopeNone.String())
			d.Derive = func(args unsafe.Pointer) (registry.TraitValue, bool) {
				s := *(*RopeScaling)(unsafe.Add(args, off))
				if !s.Valid() {
					return registry.TraitValue{}, false
				}
				return registry.StringTrait(s.String()), true
			}
		case f.Type.Kind() == reflect.Bool:
			d.Type, d.Default = registry.TraitBool, registry.BoolTrait(false)
			d.Derive = func(args unsafe.Pointer) (registry.TraitValue, bool) {
				return registry.BoolTrait(*(*bool)(unsafe.Add(args, off))), true
			}
		case f.Type.Kind() == reflect.Int32:
			number(func(p unsafe.Pointer) int64 { return int64(*(*int32)(p)) })
		case f.Type.Kind() == reflect.Int64:
			number(func(p unsafe.Pointer) int64 { return *(*int64)(p) })
		case f.Type.Kind() == reflect.Float32:
			use, ok := floatInUse[f.Name]
			if !ok {
				continue
			}
			d.Type, d.Default, d.Aliases = registry.TraitBool, registry.BoolTrait(false), use.aliases
			if d.Doc = "attribute " + name + " is not 0"; use.neutral != 0 {
				d.Doc = fmt.Sprintf("attribute %s is neither 0 nor %v", name, use.neutral)
			}
			d.Derive = func(args unsafe.Pointer) (registry.TraitValue, bool) {
				v := *(*float32)(unsafe.Add(args, off))
				return registry.BoolTrait(v != 0 && v != use.neutral), true
			}
		default:
			continue
		}
		b.add(d)
	}
}

// operands adds what the operands themselves show: presence, dtypes, packing.
func (b *schemaBuilder) operands(s *spec) {
	for _, o := range s.operands {
		at := func(args unsafe.Pointer) *tensor.Tensor { return (*tensor.Tensor)(unsafe.Add(args, o.Offset)) }
		if o.Optional {
			b.add(registry.TraitDef{Name: "has_" + o.Name, Type: registry.TraitBool, Default: registry.BoolTrait(false), Doc: o.Name + " is there",
				Derive: func(args unsafe.Pointer) (registry.TraitValue, bool) {
					return registry.BoolTrait(at(args).Present()), true
				}})
		}
		if o.likeDType == nil && o.hasChoice() && !slices.Contains(b.schema.Roles, o.Name) {
			b.add(registry.TraitDef{Name: o.Name + "_dtype", Type: registry.TraitDType, Doc: "dtype of " + o.Name,
				Derive: func(args unsafe.Pointer) (registry.TraitValue, bool) {
					x := at(args)
					return registry.DTypeTrait(x.DType), x.Present()
				}})
		}
		if o.rule != contig {
			b.add(registry.TraitDef{Name: o.Name + "_contiguous", Type: registry.TraitBool, Default: registry.BoolTrait(true), Doc: o.Name + " is packed row-major",
				Derive: func(args unsafe.Pointer) (registry.TraitValue, bool) {
					x := at(args)
					return registry.BoolTrait(x.Contiguous()), x.Present()
				}})
		}
		if o.lane16 {
			b.add(registry.TraitDef{Name: o.Name + "_layout", Type: registry.TraitString, Default: registry.StringTrait(tensor.Strided.String()), Doc: "layout of " + o.Name,
				Derive: func(args unsafe.Pointer) (registry.TraitValue, bool) {
					x := at(args)
					return registry.StringTrait(x.Layout.String()), x.Present()
				}})
		}
	}
}

// symbolTable says what shape symbols count, by "op symbol" or by symbol.
type symbolTable = map[string]symbolMeaning
