package tensor

import (
	"encoding/json"
	"errors"
	"slices"
	"sort"
	"strings"
	"sync"
	"unique"
)

// maxRoles bounds the roles of a signature.
const maxRoles = 32

// RoleFormat is the format of one operand.
type RoleFormat struct {
	Role   string // "a", "k_cache": lower-case letters, digits and '_'
	Format Format
}

// FormatSignature gives every operand that counts for a kernel one format. It is a value: two with equal roles and
// formats are ==, whoever made them. The zero value is no signature at all; a signature without roles is legal and
// different from it.
type FormatSignature struct {
	head unique.Handle[sigNode] // list sorted by role, ended by the node without one
}

type sigNode struct {
	RoleFormat
	next FormatSignature
}

// NewSignature returns the signature of the given roles in any order. A role that occurs twice is a *FormatError that
// names it. Validate says whether the parts are right.
func NewSignature(roles ...RoleFormat) (FormatSignature, error) {
	sorted := slices.Clone(roles)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].Role < sorted[j].Role })
	s := FormatSignature{unique.Make(sigNode{})}
	for i := len(sorted) - 1; i >= 0; i-- {
		if i > 0 && sorted[i].Role == sorted[i-1].Role {
			return FormatSignature{}, badFormat("role "+clipText(sorted[i].Role), "it occurs twice")
		}
		s = FormatSignature{unique.Make(sigNode{sorted[i], s})}
	}
	return s, nil
}

// Sig is NewSignature for literals.
func Sig(roles map[string]Format) FormatSignature {
	list := make([]RoleFormat, 0, len(roles))
	for r, f := range roles {
		list = append(list, RoleFormat{r, f})
	}
	s, _ := NewSignature(list...) // keys of a map do not repeat
	return s
}

// ExpandSignatures returns one signature per dtype in which all roles have that dtype, the format name and the scale, if
// one is given.
func ExpandSignatures(roles []string, name FormatName, dtypes []DType, scale ...ScaleFormat) []FormatSignature {
	var out []FormatSignature
	for _, t := range dtypes {
		f := Format{DType: t, Name: name}
		if len(scale) > 0 {
			f.Scale = scale[0]
		}
		m := make(map[string]Format, len(roles))
		for _, r := range roles {
			m[r] = f
		}
		out = append(out, Sig(m))
	}
	return out
}

// IsZero reports whether s is no signature at all.
func (s FormatSignature) IsZero() bool { return s == FormatSignature{} }

// All calls yield for the roles in sorted order.
func (s FormatSignature) All(yield func(role string, f Format) bool) {
	for !s.IsZero() {
		n := s.head.Value()
		if n.next.IsZero() || !yield(n.Role, n.Format) {
			return
		}
		s = n.next
	}
}

// Format returns the format of a role.
func (s FormatSignature) Format(role string) (Format, bool) {
	for r, f := range s.All {
		if r == role {
			return f, true
		}
	}
	return Format{}, false
}

// DType returns the storage dtype of a role, None if s does not have the role.
func (s FormatSignature) DType(role string) DType {
	f, _ := s.Format(role)
	return f.DType
}

// Roles returns the roles in sorted order.
func (s FormatSignature) Roles() (roles []string) {
	for r := range s.All {
		roles = append(roles, r)
	}
	return roles
}

// Len returns the number of roles.
func (s FormatSignature) Len() (n int) {
	for range s.All {
		n++
	}
	return n
}

// Compare orders signatures by their texts.
func (s FormatSignature) Compare(o FormatSignature) int {
	return strings.Compare(s.String(), o.String())
}

// Validate checks roles and formats. *FormatError, whose Field starts with the role. The zero value passes.
func (s FormatSignature) Validate() error {
	if s.Len() > maxRoles {
		return badFormat("roles", "%d, at most %d are admitted", s.Len(), maxRoles)
	}
	for r, f := range s.All {
		if !isWord(r) || strings.ContainsAny(r, "-.") {
			return badFormat("role "+clipText(r), "no name of lower-case letters, digits and _")
		}
		if err := f.validate(); err != nil {
			return badFormat(r+"."+err.Field, "%s", err.Msg)
		}
	}
	return nil
}

// String returns "role=<format>, role=<format>" in the order of the roles, "none" without roles. Different signatures
// that Validate passes have different texts.
func (s FormatSignature) String() string {
	var b strings.Builder
	for r, f := range s.All {
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(quoteWord(r) + "=" + f.String())
	}
	if b.Len() == 0 {
		return "none"
	}
	return b.String()
}

// ParseSignature is the inverse of String; formats may be written as ParseFormat takes them, so "a=bf16, b=q4_0" is one.
// "none" is the signature without roles. *FormatError.
func ParseSignature(s string) (FormatSignature, error) {
	if s == "none" {
		return NewSignature()
	}
	var list []RoleFormat
	for rest := s; ; {
		role, tail, ok := strings.Cut(rest, "=")
		if !ok {
			return FormatSignature{}, badFormat("text", "no = in %q", clipText(rest))
		}
		end := strings.IndexAny(tail, ",[")
		if end >= 0 && tail[end] == '[' {
			if end = strings.IndexByte(tail, ']') + 1; end == 0 {
				return FormatSignature{}, badFormat("text", "[ without ] in %q", clipText(tail))
			}
		} else if end < 0 {
			end = len(tail)
		}
		f, err := ParseFormat(tail[:end])
		if err != nil {
			return FormatSignature{}, inRole(role, err)
		}
		list = append(list, RoleFormat{role, f})
		if rest = tail[end:]; rest == "" {
			break
		}
		if rest, ok = strings.CutPrefix(rest, ","); !ok || rest == "" || len(list) == maxRoles {
			return FormatSignature{}, badFormat("text", "what follows %q is no further role", clipText(role))
		}
		rest = strings.TrimPrefix(rest, " ")
	}
	return checked(list)
}

func checked(list []RoleFormat) (FormatSignature, error) {
	sig, err := NewSignature(list...)
	if err == nil {
		err = sig.Validate()
	}
	if err != nil {
		return FormatSignature{}, err
	}
	return sig, nil
}

// inRole puts the role in front of a format error's field.
func inRole(role string, err error) error {
	if e := (*FormatError)(nil); errors.As(err, &e) {
		return badFormat(clipText(role)+"."+e.Field, "%s", e.Msg)
	}
	return badFormat(clipText(role), "%v", err)
}

// MarshalJSON writes an object from role to format, null for no signature.
func (s FormatSignature) MarshalJSON() ([]byte, error) {
	if s.IsZero() {
		return []byte("null"), nil
	}
	m := map[string]Format{}
	for r, f := range s.All {
		m[r] = f
	}
	return json.Marshal(m)
}

// UnmarshalJSON reads what MarshalJSON writes, or a string that ParseSignature reads, and validates it. *FormatError.
func (s *FormatSignature) UnmarshalJSON(b []byte) error {
	*s = FormatSignature{}
	var text string
	if string(b) == "null" {
		return nil
	} else if json.Unmarshal(b, &text) == nil {
		sig, err := ParseSignature(text)
		*s = sig
		return err
	}
	d := json.NewDecoder(strings.NewReader(string(b)))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return badFormat("text", "a signature is an object from role to format, or a text")
	}
	var list []RoleFormat
	for d.More() { // a map would swallow a role that occurs twice
		key, err := d.Token()
		if err != nil {
			return badFormat("text", "%v", err)
		}
		role := key.(string)
		var f Format
		if err := d.Decode(&f); err != nil {
			return inRole(role, err)
		}
		list = append(list, RoleFormat{role, f})
	}
	sig, err := checked(list)
	*s = sig
	return err
}

// SignatureID is a small number for a signature, for tables and keys. 0 is the zero signature's, and that of signatures
// which found the table full: those are told apart by == only.
type SignatureID uint32

// maxSignatures bounds the table, which never shrinks.
const maxSignatures = 1 << 16

var signatures = struct {
	sync.RWMutex
	ids  map[FormatSignature]SignatureID
	list []FormatSignature
}{ids: map[FormatSignature]SignatureID{{}: 0}, list: []FormatSignature{{}}}

// InternSignature returns the number of s in this process, giving it one on first sight.
func InternSignature(s FormatSignature) SignatureID {
	t := &signatures
	t.RLock()
	id, ok := t.ids[s]
	t.RUnlock()
	if ok {
		return id
	}
	t.Lock()
	defer t.Unlock()
	if id, ok = t.ids[s]; !ok && len(t.list) < maxSignatures {
		id = SignatureID(len(t.list))
		t.ids[s] = id
		t.list = append(t.list, s)
	}
	return id
}

// Signature returns the signature of a number that InternSignature gave.
func (id SignatureID) Signature() FormatSignature {
	signatures.RLock()
	defer signatures.RUnlock()
	if int(id) < len(signatures.list) {
		return signatures.list[id]
	}
	return FormatSignature{}
}
