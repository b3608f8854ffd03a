package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Limits of a spec file, which may come from anywhere.
const (
	maxSpecFile  = 4 << 20
	maxSpecItems = 1 << 12 // operators, and kernels
)

// OperatorSpec describes an operator in a spec file: what its kernels are chosen by. It has no record, so nothing can be
// launched through it.
type OperatorSpec struct {
	Name   string     `json:"name"` // family.mode
	Doc    string     `json:"doc,omitempty"`
	Roles  []string   `json:"roles"`
	Traits []TraitDef `json:"traits,omitempty"`
}

// SpecFile holds descriptions of kernels, and of the operators that they need.
type SpecFile struct {
	Version   int            `json:"version"` // 1
	Operators []OperatorSpec `json:"operators,omitempty"`
	Kernels   []KernelSpec   `json:"kernels"`
	Origin    string         `json:"-"` // of the kernels: "file:NAME", "plugin:NAME", "test"
}

// SpecFileError refuses a spec file and says where. Err is a *SpecError where a kernel's description is at fault.
type SpecFileError struct {
	File      string
	Line, Col int // 0: the file as a whole
	Err       error
}

// Error is "file:line:col: cause".
func (e *SpecFileError) Error() string {
	at := e.File
	if e.Line > 0 {
		at = fmt.Sprintf("%s:%d:%d", at, e.Line, e.Col)
	}
	return at + ": " + strings.TrimPrefix(e.Err.Error(), "registry: ")
}

// Unwrap returns ErrSpec and the cause.
func (e *SpecFileError) Unwrap() []error { return []error{ErrSpec, e.Err} }

// specParser reads a spec file element by element, so that an error has its line.
type specParser struct {
	file string
	data []byte
	d    *json.Decoder
}

// ParseSpecs reads a spec file: an object with version 1, operators and kernels. Unknown keys are refused. Origin is
// where the kernels come from: "file:NAME", "plugin:NAME" or "test". Registration checks what the descriptions say.
// *SpecFileError.
func ParseSpecs(rd io.Reader, origin string) (*SpecFile, error) {
	p := &specParser{file: origin}
	if name, ok := strings.CutPrefix(origin, "file:"); ok {
		p.file = name
	}
	data, err := io.ReadAll(io.LimitReader(rd, maxSpecFile+1))
	if err == nil && len(data) > maxSpecFile {
		err = fmt.Errorf("more than %d bytes: %w", maxSpecFile, ErrArgument)
	}
	if err != nil {
		return nil, &SpecFileError{File: p.file, Err: err}
	}
	data = bytes.TrimPrefix(data, []byte(device.ByteOrderMark))
	p.data = data
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		at := int64(len(data))
		if s := (*json.SyntaxError)(nil); errors.As(err, &s) {
			at = max(s.Offset-1, 0)
		}
		return nil, p.fail(at, err)
	}
	p.d = json.NewDecoder(bytes.NewReader(data))
	p.d.DisallowUnknownFields()
	f := &SpecFile{Origin: origin}
	if err := p.object(f); err != nil {
		return nil, err
	}
	if f.Version != 1 {
		return nil, p.fail(0, fmt.Errorf("version %d, this program reads version 1: %w", f.Version, ErrArgument))
	}
	return f, nil
}

// fail places an error.
func (p *specParser) fail(at int64, err error) error {
	before := p.data[:min(at, int64(len(p.data)))]
	line := bytes.Count(before, []byte{'\n'})
	return &SpecFileError{File: p.file, Line: line + 1, Col: len(before) - bytes.LastIndexByte(before, '\n'), Err: err}
}

// at is where the next value starts.
func (p *specParser) at() int64 {
	n := p.d.InputOffset()
	for n < int64(len(p.data)) && strings.IndexByte(" \t\r\n,:", p.data[n]) >= 0 {
		n++
	}
	return n
}

func (p *specParser) delim(want json.Delim) error {
	at := p.at()
	if tok, err := p.d.Token(); err != nil || tok != want {
		return p.fail(at, fmt.Errorf("want %q: %w", want, ErrArgument))
	}
	return nil
}

func (p *specParser) object(f *SpecFile) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.d.More() {
		at := p.at()
		tok, _ := p.d.Token() // the syntax was checked
		key, _ := tok.(string)
		if seen[key] {
			return p.fail(at, fmt.Errorf("key %q comes twice: %w", clip(key), ErrArgument))
		}
		seen[key] = true
		var err error
		switch key {
		case "version":
			at = p.at()
			if e := p.d.Decode(&f.Version); e != nil {
				err = p.fail(at, e)
			}
		case "operators":
			err = p.list(key, func(string) error {
				var o OperatorSpec
				defer func() { f.Operators = append(f.Operators, o) }()
				return p.d.Decode(&o)
			})
		case "kernels":
			err = p.list(key, func(where string) error {
				var k KernelSpec
				err := p.d.Decode(&k)
				k.Origin, k.Source = f.Origin, where
				f.Kernels = append(f.Kernels, k)
				return err
			})
		default:
			err = p.fail(at, fmt.Errorf("key %q is none of version, operators, kernels: %w", clip(key), ErrArgument))
		}
		if err != nil {
			return err
		}
	}
	return p.delim('}')
}

// list calls decode for each element, with its place.
func (p *specParser) list(key string, decode func(where string) error) error {
	if err := p.delim('['); err != nil {
		return err
	}
	for n := 0; p.d.More(); n++ {
		at := p.at()
		if n == maxSpecItems {
			return p.fail(at, fmt.Errorf("more than %d %s: %w", maxSpecItems, key, ErrArgument))
		}
		line := 1 + bytes.Count(p.data[:at], []byte{'\n'})
		if err := decode(fmt.Sprintf("%s:%d", p.file, line)); err != nil {
			return p.fail(at, err)
		}
	}
	return p.delim(']')
}

// LoadSpecs is ParseSpecs and RegisterSpecs.
func (r *Registry) LoadSpecs(rd io.Reader, origin string) ([]*Kernel, error) {
	f, err := ParseSpecs(rd, origin)
	if err != nil {
		return nil, err
	}
	return r.RegisterSpecs(f)
}

// RegisterSpecs registers every kernel of f, or none. An operator of f becomes an op of that name, unless the registry has
// an op of that name with the same schema; an operator that is an alias of other ops is not asked for them any more. The
// kernels have no implementation, so each must say why (Unavailable): they are there to be explained and planned with.
// Errors: *SpecError (ErrSpec), *DuplicateError, ErrUnknownOp, ErrAmbiguous.
func (r *Registry) RegisterSpecs(f *SpecFile) (kernels []*Kernel, err error) {
	err = r.mutate(func(s *state) error {
		ops, regs, dirty, defined := s.ops, maps.Clone(s.regs), maps.Clone(s.dirty), s.defined
		events, tied := s.events, maps.Clone(s.tied)
		fresh, err := s.defineAll(f.Operators)
		if err == nil {
			kernels, err = s.registerAll(r, f)
		}
		if err != nil {
			s.ops, s.regs, s.dirty, s.defined, s.events, s.tied = ops, regs, dirty, defined, events, tied
			return err
		}
		s.setOps(s.ops)
		for _, op := range fresh {
			s.touch(op)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return kernels, nil
}

// defineAll adds the operators that are not there to s.ops, which readers do not see yet.
func (s *state) defineAll(list []OperatorSpec) (fresh []Op, err error) {
	ops := s.ops.clone()
	for _, o := range list {
		bad := func(field, format string, args ...any) error {
			return &SpecError{Field: "operators." + clip(o.Name) + "." + field, Text: fmt.Sprintf(format, args...)}
		}
		family, mode, ok := strings.Cut(o.Name, ".")
		if !ok || checkName("family", family) != nil || checkName("mode", mode) != nil {
			return nil, bad("name", "%q is not family.mode", clip(o.Name))
		}
		schema := Schema{Roles: slices.Sorted(slices.Values(o.Roles)), Traits: o.Traits}
		if schema.Roles == nil {
			schema.Roles = []string{}
		}
		if err := schema.validate(); err != nil {
			return nil, &SpecError{Field: "operators." + o.Name, Err: err}
		}
		if op, ok := ops.names[o.Name]; ok {
			if d := ops.desc(op); d.Name == o.Name {
				if have := d.schema(); !have.equal(&schema) {
					return nil, bad("traits", "the registry has an op of that name with other roles or traits")
				}
				continue
			}
		}
		d := &Descriptor{Op: s.defined, Name: o.Name, Family: family, Mode: mode, Doc: o.Doc, Roles: schema.Roles, Traits: schema.Traits}
		if err := ops.add(d); err != nil {
			return nil, err
		}
		fresh = append(fresh, s.defined)
		s.defined++
	}
	s.ops = ops
	return fresh, nil
}

func (s *state) registerAll(r *Registry, f *SpecFile) (kernels []*Kernel, err error) {
	for _, k := range f.Kernels {
		if k.Origin == "" {
			k.Origin = f.Origin
		}
		regs, err := s.prepareKernel(r, k, nil)
		if err == nil {
			err = s.commit(regs, "", func() { kernels = append(kernels, &Kernel{r: r, regs: regs}) })
		}
		if err != nil {
			return nil, placed(k.Source, err)
		}
	}
	return kernels, nil
}

// placed says where the description stands that an error is about.
func placed(source string, err error) error {
	if source == "" {
		return err
	}
	return fmt.Errorf("%s: %w", source, err)
}

// validate checks a schema: sorted roles, names that occur once, defaults of the trait's type. ErrArgument, ErrName.
func (s *Schema) validate() error {
	for i, role := range s.Roles {
		if i > 0 && s.Roles[i-1] >= role {
			return fmt.Errorf("registry: roles %v are not sorted, or one comes twice: %w", s.Roles, ErrArgument)
		}
		if _, err := tensor.NewSignature(tensor.RoleFormat{Role: role}); err != nil || checkName("role", role) != nil {
			return fmt.Errorf("registry: role %q: %w", clip(role), ErrName)
		}
	}
	seen := map[string]bool{}
	for i := range s.Traits {
		t := &s.Traits[i]
		for _, name := range append([]string{t.Name}, t.Aliases...) {
			if err := checkName("trait", name); err != nil {
				return err
			}
			if seen[name] {
				return fmt.Errorf("registry: trait %s: %w", name, ErrDuplicate)
			}
			seen[name] = true
		}
		switch {
		case t.Type < TraitBool || t.Type > TraitDType:
			return fmt.Errorf("registry: trait %s has no type: %w", t.Name, ErrArgument)
		case !t.Default.IsZero() && t.Default.typ != t.Type:
			return fmt.Errorf("registry: trait %s: default %v is %v, the trait is %v: %w", t.Name, t.Default, t.Default.typ, t.Type, ErrArgument)
		case !t.Default.IsZero() && t.Required:
			return fmt.Errorf("registry: trait %s is required and has a default: %w", t.Name, ErrArgument)
		}
	}
	return nil
}

// equal reports whether requests and kernels see the same roles and traits.
func (s *Schema) equal(o *Schema) bool {
	return slices.Equal(s.Roles, o.Roles) && slices.EqualFunc(s.Traits, o.Traits, func(a, b TraitDef) bool {
		return a.Name == b.Name && slices.Equal(a.Aliases, b.Aliases) && a.Type == b.Type && a.Required == b.Required &&
			a.Default == b.Default && a.Dynamic == b.Dynamic
	})
}
