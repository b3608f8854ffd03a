package tensor

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// FormatName names a way in which the values of one tensor are represented. The names are a closed set: those below and
// what RegisterFormat adds. Each has a FormatRule.
type FormatName string

// Formats. The MX names are OCP MX: a power-of-two scale (E8M0, or its byte) for every 32 elements of a row. Scales of
// other types or blocks, as DeepSeek's f32 per 128x128, are BlockFP8.
const (
	FormatDense     FormatName = "dense"      // plain elements, no scales
	FormatScaledFP8 FormatName = "scaled-fp8" // fp8 with a float scale for the tensor, a channel or a token
	FormatMXFP8     FormatName = "mxfp8"
	FormatMXFP4     FormatName = "mxfp4"
	FormatNVFP4     FormatName = "nvfp4"     // fp4 with a scale for 16 elements, and one for the tensor
	FormatBlockFP8  FormatName = "block-fp8" // fp8 with a scale for each block
	FormatInt8      FormatName = "int8"
	FormatMXInt4    FormatName = "mxint4"
	FormatGGML      FormatName = "ggml" // a ggml block dtype, scales inside the blocks
)

// Granularity says what one scale value covers. The set is closed but for RegisterGranularity.
type Granularity string

// Granularities.
const (
	PerTensor          Granularity = "tensor"
	PerChannel         Granularity = "channel"
	PerToken           Granularity = "token"
	PerBlock           Granularity = "block"   // has a block shape, or DynamicBlock
	UnknownGranularity Granularity = "unknown" // a caller left the scale out
)

// ScaleLayout says how the scale values lie in memory.
type ScaleLayout string

// Layouts of scales. All but the first are for blocks.
const (
	ScaleLinear          ScaleLayout = "" // row-major; the text form is "linear"
	ScaleSwizzled128x4   ScaleLayout = "swizzled-128x4"
	ScaleSwizzled8x4     ScaleLayout = "swizzled-8x4"
	ScaleMNMajor         ScaleLayout = "mn-major"
	ScaleKMajor          ScaleLayout = "k-major"
	ScalePackedUE8M0     ScaleLayout = "packed-ue8m0" // bytes of exponents, four to an i32
	scaleLinearText                  = "linear"
	maxBlockRank                     = 4
	blockEmpty, blockBig             = maxBlockRank + 1, maxBlockRank + 2 // ranks that no BlockShape may have
)

// BlockShape is the block of elements that one scale value covers; the zero value is none. BlockShapes can be compared.
type BlockShape struct {
	rank uint8
	dims [maxBlockRank]int32
}

// NewBlockShape returns a block of the given extents. What is no block (no extent, one below 1, more than four) is
// refused by Validate of the format that has it.
func NewBlockShape(dims ...int) BlockShape {
	switch {
	case len(dims) == 0:
		return BlockShape{rank: blockEmpty}
	case len(dims) > maxBlockRank:
		return BlockShape{rank: blockBig}
	}
	b := BlockShape{rank: uint8(len(dims))}
	for i, d := range dims {
		if d > math.MaxInt32 {
			return BlockShape{rank: blockBig}
		}
		b.dims[i] = int32(max(d, -1))
	}
	return b
}

// Dims returns the extents, nil for none.
func (b BlockShape) Dims() (dims []int) {
	if b.rank <= maxBlockRank {
		for _, d := range b.dims[:b.rank] {
			dims = append(dims, int(d))
		}
	}
	return dims
}

// IsZero reports whether b is no block shape.
func (b BlockShape) IsZero() bool { return b.rank == 0 }

// String returns "1x32", "none", or "invalid".
func (b BlockShape) String() string {
	if b.rank == 0 {
		return "none"
	} else if b.rank > maxBlockRank {
		return "invalid"
	}
	words := make([]string, b.rank)
	for i := range words {
		words[i] = strconv.Itoa(int(b.dims[i]))
	}
	return strings.Join(words, "x")
}

func (b BlockShape) valid() bool {
	return b.rank > 0 && b.rank <= maxBlockRank && !slices.ContainsFunc(b.dims[:b.rank], func(d int32) bool { return d < 1 })
}

// ScaleFormat says how the scale values of one tensor are stored. The zero value is no scale. ScaleFormats can be compared.
type ScaleFormat struct {
	DType        DType       // of the scale tensor
	Granularity  Granularity // what one value covers
	Block        BlockShape  // PerBlock: the block of one value
	DynamicBlock bool        // PerBlock: the block is chosen at run time
	Layout       ScaleLayout
}

// Format says how one tensor is represented. Formats can be compared.
type Format struct {
	DType  DType       // of the payload; fp4 may come as U8, two codes a byte
	Name   FormatName  // which rule the rest follows
	Scale  ScaleFormat // zero: none
	Global ScaleFormat // second-level scale; zero: none
	Layout Layout      // of the payload
}

// FormatRule says what a format of one name may consist of.
type FormatRule struct {
	Payload       []DType       // dtypes of the payload
	Scale         ScaleRule     // whether Format.Scale must, may or must not be there
	ScaleDTypes   []DType       // of Format.Scale
	Granularities []Granularity // of Format.Scale
	Blocks        []BlockShape  // of a PerBlock scale without DynamicBlock; nil: any of rank 1 or 2
	NoDynamic     bool          // DynamicBlock is refused
	GlobalDTypes  []DType       // of Format.Global, which is per tensor; nil: it must be absent
	Layouts       []Layout      // of the payload; nil: Strided only
}

// ScaleRule says whether a format has a scale.
type ScaleRule uint8

// Rules for scales.
const (
	ScaleForbidden ScaleRule = iota
	ScaleOptional
	ScaleRequired
)

// FormatError is a refused Format, ScaleFormat or FormatSignature. It wraps ErrFormat.
type FormatError struct {
	Field string // what is wrong: "name", "dtype", "scale.block", "global.dtype", "layout", "role x", "text"; in a signature with "x." of the role in front
	Msg   string // why, with the value
}

// Error returns both fields.
func (e *FormatError) Error() string { return "tensor: format: " + e.Field + ": " + e.Msg }

// Unwrap returns ErrFormat.
func (e *FormatError) Unwrap() error { return ErrFormat }

func badFormat(field, format string, args ...any) *FormatError {
	return &FormatError{field, fmt.Sprintf(format, args...)}
}

// formatTable is what RegisterFormat and RegisterGranularity extend; a published table does not change.
type formatTable struct {
	rules         map[FormatName]*FormatRule
	granularities []Granularity
}

var (
	formats    atomic.Pointer[formatTable]
	formatsMu  sync.Mutex // for writers
	fp8Payload = []DType{F8E4M3FN, F8E5M2}
	fp4Payload = []DType{U8, F4E2M1x2}
	e8m0       = []DType{F8E8M0, U8}
	per32      = []BlockShape{NewBlockShape(32), NewBlockShape(1, 32)}
	perBlock   = []Granularity{PerBlock}
)

func init() {
	dense := FormatRule{Layouts: []Layout{Strided, Lane16}}
	ggml := dense
	for t := F32; int(t) < numDTypes; t++ {
		if t.IsBlock() {
			ggml.Payload = append(ggml.Payload, t)
		} else if t.Valid() {
			dense.Payload = append(dense.Payload, t)
		}
	}
	formats.Store(&formatTable{
		granularities: []Granularity{PerTensor, PerChannel, PerToken, PerBlock, UnknownGranularity},
		rules: map[FormatName]*FormatRule{
			FormatDense: &dense,
			FormatGGML:  &ggml,
			FormatScaledFP8: {Payload: fp8Payload, Scale: ScaleRequired, ScaleDTypes: []DType{F32, F16, BF16},
				Granularities: []Granularity{PerTensor, PerChannel, PerToken, UnknownGranularity}},
			FormatMXFP8: {Payload: fp8Payload, Scale: ScaleRequired, ScaleDTypes: e8m0, Granularities: perBlock, Blocks: per32, NoDynamic: true},
			FormatMXFP4: {Payload: fp4Payload, Scale: ScaleRequired, ScaleDTypes: e8m0, Granularities: perBlock, Blocks: per32, NoDynamic: true},
			FormatNVFP4: {Payload: fp4Payload, Scale: ScaleRequired, ScaleDTypes: []DType{F8E4M3FN, U8, F32}, Granularities: perBlock,
				Blocks: []BlockShape{NewBlockShape(16), NewBlockShape(1, 16)}, NoDynamic: true, GlobalDTypes: []DType{F32}},
			FormatBlockFP8: {Payload: fp8Payload, Scale: ScaleRequired, ScaleDTypes: []DType{F32, BF16, F8E8M0, U8, I32}, Granularities: perBlock},
			FormatInt8: {Payload: []DType{I8}, Scale: ScaleRequired, ScaleDTypes: []DType{F32, F16, BF16},
				Granularities: []Granularity{PerTensor, PerChannel, PerToken, PerBlock, UnknownGranularity}},
			FormatMXInt4: {Payload: []DType{U8, I8}, Scale: ScaleRequired, ScaleDTypes: []DType{F8E8M0, U8, BF16}, Granularities: perBlock, Blocks: per32, NoDynamic: true},
		},
	})
}

// RegisterFormat adds a format name with its rule, for package inits. The name is lower-case letters, digits, '-' and
// '.', and new; the rule has a payload, and scale dtypes and granularities if it has a scale. *FormatError.
func RegisterFormat(name FormatName, rule FormatRule) error {
	switch {
	case !isWord(string(name)) || name == "fp8":
		return badFormat("name", "%q is no name", clipText(string(name)))
	case len(rule.Payload) == 0:
		return badFormat("dtype", "the rule of %s admits no payload", name)
	case (rule.Scale != ScaleForbidden) != (len(rule.ScaleDTypes) > 0 && len(rule.Granularities) > 0) || rule.Scale > ScaleRequired:
		return badFormat("scale", "the rule of %s needs scale dtypes and granularities exactly if it has a scale", name)
	}
	rule.Payload, rule.ScaleDTypes, rule.Granularities = slices.Clone(rule.Payload), slices.Clone(rule.ScaleDTypes), slices.Clone(rule.Granularities)
	rule.Blocks, rule.GlobalDTypes, rule.Layouts = slices.Clone(rule.Blocks), slices.Clone(rule.GlobalDTypes), slices.Clone(rule.Layouts)
	return extendFormats(func(t *formatTable) error {
		if t.rules[name] != nil {
			return badFormat("name", "%s is registered already", name)
		}
		t.rules[name] = &rule
		return nil
	})
}

// RegisterGranularity adds a granularity, for package inits. It is a word as for RegisterFormat, and new. *FormatError.
func RegisterGranularity(g Granularity) error {
	return extendFormats(func(t *formatTable) error {
		if !isWord(string(g)) || slices.Contains(t.granularities, g) {
			return badFormat("granularity", "%q is no new name", clipText(string(g)))
		}
		t.granularities = append(slices.Clone(t.granularities), g)
		return nil
	})
}

func extendFormats(f func(t *formatTable) error) error {
	formatsMu.Lock()
	defer formatsMu.Unlock()
	old := formats.Load()
	t := &formatTable{rules: maps.Clone(old.rules), granularities: old.granularities}
	if err := f(t); err != nil {
		return err
	}
	formats.Store(t)
	return nil
}

// FormatNames lists the known format names, sorted.
func FormatNames() []FormatName { return slices.Sorted(maps.Keys(formats.Load().rules)) }

// Dense returns the format of plain elements of t, or of ggml blocks if t is a block dtype.
func Dense(t DType) Format {
	if t.IsBlock() {
		return Format{DType: t, Name: FormatGGML}
	}
	return Format{DType: t, Name: FormatDense}
}

// IsZero reports whether s is no scale.
func (s ScaleFormat) IsZero() bool { return s == ScaleFormat{} }

// Validate checks what holds for scales of every format: the block shape and the flag belong to PerBlock, which has
// exactly one of them. *FormatError.
func (s ScaleFormat) Validate() error { return orNil(s.validate("")) }

func (s ScaleFormat) validate(at string) *FormatError {
	block := s.Granularity == PerBlock
	switch {
	case !s.Block.IsZero() && !s.Block.valid():
		return badFormat(at+"block", "%v: a block shape has one to %d positive extents", s.Block, maxBlockRank)
	case block && !s.Block.IsZero() && s.DynamicBlock:
		return badFormat(at+"dynamic_block", "set beside the block shape %v: they exclude each other", s.Block)
	case block && s.Block.IsZero() && !s.DynamicBlock:
		return badFormat(at+"block", "a scale per block needs a block shape or the dynamic flag")
	case !block && !s.Block.IsZero():
		return badFormat(at+"block", "%v: only a scale per block has a block shape", s.Block)
	case !block && s.DynamicBlock:
		return badFormat(at+"dynamic_block", "only a scale per block can have it")
	case !slices.Contains(formats.Load().granularities, s.Granularity):
		return badFormat(at+"granularity", "%q is not known", clipText(string(s.Granularity)))
	case !s.DType.Valid() || s.DType == None || s.DType.IsBlock():
		return badFormat(at+"dtype", "%v is no element type", s.DType)
	}
	switch s.Layout {
	case ScaleLinear:
	case ScaleSwizzled128x4, ScaleSwizzled8x4, ScaleMNMajor, ScaleKMajor, ScalePackedUE8M0:
		if !block {
			return badFormat(at+"layout", "%s: only scales per block are laid out like that", s.Layout)
		}
	default:
		return badFormat(at+"layout", "%q is not known", clipText(string(s.Layout)))
	}
	if packed := s.Layout == ScalePackedUE8M0; packed && s.DType != I32 && s.DType != U8 && s.DType != F8E8M0 {
		return badFormat(at+"dtype", "%v cannot hold packed exponents", s.DType)
	}
	return nil
}

// Validate checks f against the rule of its name. *FormatError.
func (f Format) Validate() error { return orNil(f.validate()) }

func (f Format) validate() *FormatError {
	if f.Name == "fp8" {
		return badFormat("name", "fp8 is ambiguous: dense is fp8 without scales, scaled-fp8 has scales (block-fp8 and mxfp8 have them per block)")
	}
	rule := formats.Load().rules[f.Name]
	switch {
	case rule == nil:
		return badFormat("name", "%q is not known", clipText(string(f.Name)))
	case !slices.Contains(rule.Payload, f.DType):
		return badFormat("dtype", "%v is not one of %s's %v", f.DType, f.Name, rule.Payload)
	case rule.Scale == ScaleRequired && f.Scale.IsZero():
		return badFormat("scale", "%s needs one", f.Name)
	case rule.Scale == ScaleForbidden && !f.Scale.IsZero():
		return badFormat("scale", "%s has none", f.Name)
	case f.Layout != Strided && !slices.Contains(rule.Layouts, f.Layout):
		return badFormat("layout", "%v is not a layout of %s", f.Layout, f.Name)
	}
	if s := f.Scale; !s.IsZero() {
		if err := s.validate("scale."); err != nil {
			return err
		}
		switch {
		case !slices.Contains(rule.ScaleDTypes, s.DType):
			return badFormat("scale.dtype", "%v is not one of %s's %v", s.DType, f.Name, rule.ScaleDTypes)
		case !slices.Contains(rule.Granularities, s.Granularity):
			return badFormat("scale.granularity", "%s is not one of %s's %v", s.Granularity, f.Name, rule.Granularities)
		case rule.NoDynamic && s.DynamicBlock:
			return badFormat("scale.dynamic_block", "%s has a fixed block", f.Name)
		case rule.Blocks == nil && s.Block.rank > 2, rule.Blocks != nil && !s.DynamicBlock && s.Granularity == PerBlock && !slices.Contains(rule.Blocks, s.Block):
			return badFormat("scale.block", "%v is not a block of %s", s.Block, f.Name)
		case f.Name == FormatBlockFP8 && slices.Contains(e8m0, s.DType) && slices.Contains(per32, s.Block):
			return badFormat("name", "fp8 with a power-of-two scale per 32 is mxfp8")
		case f.Name == FormatBlockFP8 && s.DType == I32 && s.Layout != ScalePackedUE8M0:
			return badFormat("scale.dtype", "i32 holds packed exponents only (layout %s)", ScalePackedUE8M0)
		}
	}
	if g := f.Global; !g.IsZero() {
		if err := g.validate("global."); err != nil {
			return err
		}
		switch {
		case rule.GlobalDTypes == nil:
			return badFormat("global", "%s has no second-level scale", f.Name)
		case g.Granularity != PerTensor:
			return badFormat("global.granularity", "%s: a second-level scale covers the tensor", g.Granularity)
		case !slices.Contains(rule.GlobalDTypes, g.DType):
			return badFormat("global.dtype", "%v is not one of %s's %v", g.DType, f.Name, rule.GlobalDTypes)
		}
	}
	return nil
}

// orNil keeps a nil *FormatError from becoming an error that is not nil.
func orNil(e *FormatError) error {
	if e == nil {
		return nil
	}
	return e
}

// String returns "scale(block, storage=f32, block=128x128, layout=k-major)", without what is absent; "none" for no scale.
func (s ScaleFormat) String() string {
	if s.IsZero() {
		return "none"
	}
	return "scale" + s.args()
}

func (s ScaleFormat) args() string {
	t := "(" + quoteWord(string(s.Granularity)) + ", storage=" + s.DType.String()
	if !s.Block.IsZero() {
		t += ", block=" + s.Block.String()
	}
	if s.DynamicBlock {
		t += ", block=dynamic"
	}
	if s.Layout != ScaleLinear {
		t += ", layout=" + quoteWord(string(s.Layout))
	}
	return t + ")"
}

// String returns "dense[storage=bf16]" or "mxfp8[storage=f8_e4m3fn, scale(block, storage=f8_e8m0, block=1x32)]", with
// "global(..)" and "layout=lane16" where there is one. Different formats that Validate passes have different texts;
// ParseFormat reads them.
func (f Format) String() string {
	t := quoteWord(string(f.Name)) + "[storage=" + f.DType.String()
	if !f.Scale.IsZero() {
		t += ", scale" + f.Scale.args()
	}
	if !f.Global.IsZero() {
		t += ", global" + f.Global.args()
	}
	if f.Layout != Strided {
		t += ", layout=" + f.Layout.String()
	}
	return t + "]"
}

// ParseFormat is the inverse of String, blanks after commas aside. A dtype alone is short for Dense of it. The format is
// validated. *FormatError.
func ParseFormat(s string) (Format, error) {
	if t, err := ParseDType(s); err == nil {
		return Dense(t), nil
	}
	var f Format
	name, rest, ok := strings.Cut(s, "[")
	args, end := strings.CutSuffix(rest, "]")
	if !ok || !end {
		return f, badFormat("text", "%q is neither a dtype nor name[storage=..]", clipText(s))
	}
	f.Name = FormatName(name)
	err := eachArg(args, func(key, value, inner string) (err error) {
		switch key {
		case "storage=":
			f.DType, err = ParseDType(value)
		case "layout=":
			if f.Layout, err = ParseLayout(value); err == nil && f.Layout == Strided {
				err = badFormat("layout", "strided is not written")
			}
		case "scale":
			f.Scale, err = parseScale("scale.", inner)
		case "global":
			f.Global, err = parseScale("global.", inner)
		default:
			err = badFormat("text", "%q is not known", clipText(key))
		}
		return asFormat(key, err)
	})
	if err == nil {
		err = f.Validate()
	}
	if err != nil {
		return Format{}, err
	}
	return f, nil
}

func parseScale(at, args string) (s ScaleFormat, err error) {
	err = eachArg(args, func(key, value, _ string) (err error) {
		switch key {
		case "storage=":
			s.DType, err = ParseDType(value)
		case "block=":
			if value == "dynamic" {
				s.DynamicBlock = true
			} else {
				s.Block, err = parseBlock(value)
			}
		case "layout=":
			s.Layout = ScaleLayout(value)
			if value == "" || value == scaleLinearText {
				err = badFormat(at+"layout", "linear is not written")
			}
		default:
			if s.Granularity != "" || strings.HasSuffix(key, "=") {
				return badFormat("text", "%q is not known", clipText(key))
			}
			s.Granularity = Granularity(key)
		}
		return asFormat(at+key, err)
	})
	return s, err
}

func parseBlock(s string) (BlockShape, error) {
	var dims []int
	for w := range strings.SplitSeq(s, "x") {
		n, err := strconv.ParseUint(w, 10, 30)
		if err != nil || len(dims) == maxBlockRank || strconv.FormatUint(n, 10) != w {
			return BlockShape{}, fmt.Errorf("%q is not extents joined by x", clipText(s))
		}
		dims = append(dims, int(n))
	}
	return NewBlockShape(dims...), nil
}

// eachArg calls f for each argument of a text: key=value (the key with its =), key(inner), or a word. A key comes once.
func eachArg(args string, f func(key, value, inner string) error) error {
	seen := map[string]bool{}
	for args != "" {
		i := strings.IndexAny(args, ",(")
		var arg, inner string
		if i >= 0 && args[i] == '(' {
			end := strings.IndexByte(args, ')')
			if end < i {
				return badFormat("text", "( without ) in %q", clipText(args))
			}
			arg, inner, args = args[:i], args[i+1:end], args[end+1:]
		} else if i >= 0 {
			arg, args = args[:i], args[i:]
		} else {
			arg, args = args, ""
		}
		if args != "" {
			if args = strings.TrimPrefix(args, ","); args == "" {
				return badFormat("text", "it ends with a comma")
			}
			args = strings.TrimPrefix(args, " ")
		}
		key, value, ok := strings.Cut(arg, "=")
		if ok {
			key += "="
		}
		if seen[key] {
			return badFormat("text", "%q comes twice", clipText(key))
		}
		seen[key] = true
		if err := f(key, value, inner); err != nil {
			return err
		}
	}
	return nil
}

// asFormat turns the error of a part's parser into one that names the part.
func asFormat(field string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*FormatError); ok {
		return e
	}
	return badFormat(clipText(strings.TrimSuffix(field, "=")), "%v", err)
}

// isWord reports whether s is 1 to 64 of a-z 0-9 - . _ and starts with a letter.
func isWord(s string) bool {
	if s == "" || len(s) > 64 || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-._") == ""
}

// quoteWord makes texts of values that no Validate passes unlike those of values that one does.
func quoteWord(s string) string {
	if isWord(s) {
		return s
	}
	return strconv.Quote(s)
}

// clipText bounds a text that an error quotes.
func clipText(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

// The JSON forms. Fields that are absent are left out.
type (
	scaleJSON struct {
		DType       DType       `json:"dtype"`
		Granularity Granularity `json:"granularity"`
		Block       []int       `json:"block,omitempty"`
		Dynamic     bool        `json:"dynamic_block,omitempty"`
		Layout      ScaleLayout `json:"layout,omitempty"`
	}
	formatJSON struct {
		Name   FormatName   `json:"name"`
		DType  DType        `json:"dtype"`
		Scale  *ScaleFormat `json:"scale,omitempty"`
		Global *ScaleFormat `json:"global,omitempty"`
		Layout Layout       `json:"layout,omitempty"`
	}
)

// MarshalJSON writes an object, null for no scale.
func (s ScaleFormat) MarshalJSON() ([]byte, error) {
	if s.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(scaleJSON{s.DType, s.Granularity, s.Block.Dims(), s.DynamicBlock, s.Layout})
}

// UnmarshalJSON reads what MarshalJSON writes. Unknown keys are refused. What it reads is not validated.
func (s *ScaleFormat) UnmarshalJSON(b []byte) error {
	var j *scaleJSON
	if err := strictJSON(b, &j); err != nil {
		return asFormat("scale", err)
	}
	*s = ScaleFormat{}
	if j == nil {
		return nil
	}
	*s = ScaleFormat{DType: j.DType, Granularity: j.Granularity, DynamicBlock: j.Dynamic, Layout: j.Layout}
	if j.Layout == scaleLinearText {
		s.Layout = ScaleLinear
	}
	if j.Block != nil {
		s.Block = NewBlockShape(j.Block...)
	}
	return nil
}

// MarshalJSON writes the dtype's name for what Dense returns, else an object.
func (f Format) MarshalJSON() ([]byte, error) {
	if f == Dense(f.DType) {
		return json.Marshal(f.DType)
	}
	j := formatJSON{Name: f.Name, DType: f.DType, Layout: f.Layout}
	if !f.Scale.IsZero() {
		j.Scale = &f.Scale
	}
	if !f.Global.IsZero() {
		j.Global = &f.Global
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON writes, or a string that ParseFormat reads; the object's name may be left out for
// dense and ggml. Unknown keys are refused, and the format is validated. *FormatError.
func (f *Format) UnmarshalJSON(b []byte) (err error) {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*f, err = ParseFormat(s)
		return err
	}
	var j formatJSON
	if err := strictJSON(b, &j); err != nil {
		return asFormat("text", err)
	}
	*f = Format{DType: j.DType, Name: j.Name, Layout: j.Layout}
	if f.Name == "" {
		f.Name = Dense(f.DType).Name
	}
	if j.Scale != nil {
		f.Scale = *j.Scale
	}
	if j.Global != nil {
		f.Global = *j.Global
	}
	return f.Validate()
}

// strictJSON decodes one value; unknown keys are errors.
func strictJSON(b []byte, v any) error {
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
