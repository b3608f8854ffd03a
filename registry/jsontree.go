package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/opmux/opmux/device"
)

// jsonNode is a JSON value that knows where it stands, so that a message about a file can say the line.
type jsonNode struct {
	at, end int // bytes
	val     any // nil, bool, string, json.Number, []jsonNode or []jsonMember
}

type jsonMember struct {
	key string
	at  int
	jsonNode
}

// maxJSONDepth bounds nesting; no file of this package needs more than half.
const maxJSONDepth = 16

// ErrConfig is what every ConfigError is.
var ErrConfig = errors.New("bad configuration")

// ConfigError says what is wrong in a configuration or quarantine file, and where. It is ErrConfig.
type ConfigError struct {
	File  string
	Line  int // from 1
	Col   int // in characters, from 1
	Field string
	Text  string
}

// Error returns "registry: FILE:LINE:COL: FIELD: TEXT".
func (e *ConfigError) Error() string {
	s := fmt.Sprintf("registry: %s:%d:%d: ", e.File, e.Line, e.Col)
	if e.Field != "" {
		s += e.Field + ": "
	}
	return s + e.Text
}

// Unwrap returns ErrConfig.
func (e *ConfigError) Unwrap() error { return ErrConfig }

// jsonFile is a file under inspection: what is wrong with it is collected.
type jsonFile struct {
	name  string
	data  []byte
	dec   *json.Decoder
	lines []int // where each starts
	last  place // asked for last
	errs  []error
}

// place is a byte's column.
type place struct{ line, at, col int }

// These bound what is read of one file, its rules or entries, and what is reported.
const (
	maxConfigBytes  = 1 << 20
	maxConfigRules  = 1000
	maxConfigErrors = 20
)

// readJSON reads one object from r, at most 1 MiB. Errors: *ConfigError, and r's own.
func readJSON(r io.Reader, name string) (*jsonFile, jsonNode, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxConfigBytes+1))
	if err != nil {
		return nil, jsonNode{}, fmt.Errorf("registry: %s: %w", name, err)
	}
	data = bytes.TrimPrefix(data, []byte(device.ByteOrderMark))
	f := &jsonFile{name: name, data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	f.dec.UseNumber()
	f.lines = []int{0}
	for i, b := range data {
		if b == '\n' {
			f.lines = append(f.lines, i+1)
		}
	}
	if len(data) > maxConfigBytes {
		return nil, jsonNode{}, f.wrong(maxConfigBytes, "", "more than %d bytes", maxConfigBytes)
	}
	n, err := f.value(0)
	if err == nil {
		if at := f.next(); at < len(f.data) {
			err = f.wrong(at, "", "text after the end")
		}
	}
	if _, ok := n.val.([]jsonMember); err == nil && !ok {
		err = f.wrong(n.at, "", "not an object")
	}
	return f, n, err
}

// next is where the next token starts.
func (f *jsonFile) next() int {
	at, separated := int(f.dec.InputOffset()), false
	for ; at < len(f.data) && strings.IndexByte(" \t\r\n,:", f.data[at]) >= 0; at++ {
		if f.data[at] == ',' || f.data[at] == ':' {
			if separated {
				break
			}
			separated = true
		}
	}
	return at
}

func (f *jsonFile) token() (at int, t json.Token, err error) {
	at = f.next()
	t, err = f.dec.Token()
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = f.wrong(len(f.data), "", "the text ends too early")
	case errors.As(err, &syntax):
		err = f.wrong(min(at, len(f.data)), "", "%v", err)
	case err != nil:
		err = f.wrong(at, "", "%v", err)
	}
	return at, t, err
}

func (f *jsonFile) value(depth int) (n jsonNode, err error) {
	var t json.Token
	if n.at, t, err = f.token(); err != nil {
		return n, err
	}
	d, ok := t.(json.Delim)
	if !ok {
		n.val, n.end = t, int(f.dec.InputOffset())
		return n, nil
	}
	if depth == maxJSONDepth {
		return n, f.wrong(n.at, "", "nested more than %d deep", maxJSONDepth)
	}
	list, members, seen := []jsonNode{}, []jsonMember{}, map[string]bool{}
	for f.dec.More() {
		var m jsonMember
		if d == '{' {
			var key json.Token
			if m.at, key, err = f.token(); err != nil {
				return n, err
			}
			m.key = key.(string)
			if seen[m.key] {
				return n, f.wrong(m.at, "", "%q stands here twice", clip(m.key))
			}
			seen[m.key] = true
		}
		if m.jsonNode, err = f.value(depth + 1); err != nil {
			return n, err
		}
		list, members = append(list, m.jsonNode), append(members, m)
	}
	if _, _, err = f.token(); err != nil { // the closing one
		return n, err
	}
	n.val, n.end = list, int(f.dec.InputOffset())
	if d == '{' {
		n.val = members
	}
	return n, nil
}

// spot is a place in a file, as an error names it.
type spot ConfigError

func (f *jsonFile) spot(at int, field string) spot {
	at = min(at, len(f.data))
	line, _ := slices.BinarySearch(f.lines, at+1)
	from := place{line, f.lines[line-1], 1}
	if f.last.line == line && f.last.at <= at { // else a file in one line would be counted again for each place
		from = f.last
	}
	f.last = place{line, at, from.col + utf8.RuneCount(f.data[from.at:at])}
	return spot{File: f.name, Line: line, Col: f.last.col, Field: field}
}

func (s spot) wrong(format string, args ...any) error {
	e := ConfigError(s)
	e.Text = fmt.Sprintf(format, args...)
	return &e
}

func (f *jsonFile) wrong(at int, field, format string, args ...any) error {
	return f.spot(at, field).wrong(format, args...)
}

// bad collects an error.
func (f *jsonFile) bad(at int, field, format string, args ...any) {
	if len(f.errs) < maxConfigErrors {
		f.errs = append(f.errs, f.wrong(at, field, format, args...))
	}
}

// object calls the key's function for each member of n and reports unknown keys with the nearest known ones.
func (f *jsonFile) object(n jsonNode, field string, keys map[string]func(n jsonNode, field string)) {
	members, ok := n.val.([]jsonMember)
	if !ok {
		f.bad(n.at, field, "not an object")
		return
	}
	for _, m := range members {
		at := m.key
		if field != "" {
			at = field + "." + m.key
		}
		if read := keys[m.key]; read != nil {
			read(m.jsonNode, at)
			continue
		}
		if len(f.errs) == maxConfigErrors {
			return
		}
		var known []string
		for k := range keys {
			known = append(known, k)
		}
		text := "unknown key"
		if near := near(m.key, known); len(near) > 0 {
			text += "; nearest: " + strings.Join(near, ", ")
		}
		f.bad(m.at, clip(at), "%s", text)
	}
}

// list calls read for each element of n.
func (f *jsonFile) list(n jsonNode, field string, read func(n jsonNode, field string)) {
	list, ok := n.val.([]jsonNode)
	switch {
	case !ok:
		f.bad(n.at, field, "not a list")
	case len(list) > maxConfigRules:
		f.bad(n.at, field, "%d entries, at most %d are read", len(list), maxConfigRules)
		return
	}
	for i, e := range list {
		read(e, fmt.Sprintf("%s[%d]", field, i))
	}
}

// text reads a string that parse accepts.
func (f *jsonFile) text(parse func(s string) error) func(n jsonNode, field string) {
	return func(n jsonNode, field string) {
		s, ok := n.val.(string)
		if !ok {
			f.bad(n.at, field, "not a string")
		} else if err := parse(s); err != nil {
			f.bad(n.at, field, "%s", strings.TrimPrefix(err.Error(), "registry: "))
		}
	}
}

// word is text for any string.
func (f *jsonFile) word(to *string) func(n jsonNode, field string) {
	return f.text(func(s string) error { *to = s; return nil })
}

// version checks the number that every file starts with.
func (f *jsonFile) version(want string, seen *bool) func(n jsonNode, field string) {
	return func(n jsonNode, field string) {
		*seen = true
		if v, _ := n.val.(json.Number); v.String() != want {
			f.bad(n.at, field, "this program reads version %s", want)
		}
	}
}

// err is what was collected, nil for nothing.
func (f *jsonFile) err() error { return errors.Join(f.errs...) }
