package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Config is a configuration file that was read and understood: rules that choose kernels, and the names of further
// files. It does not change. What its names mean is checked when a registry takes it; see Registry.SetConfig.
//
//	{ "version": 1,
//	  "defaults": { "objective": "default", "strategy": "heuristic", "strict": false },
//	  "rules": [
//	    { "match": { "op": "gemm.mm", "vendor": "nvidia", "arch": ">=9.0 <10.0",
//	                 "signature": { "a": "bf16" }, "traits": { "m": "<=16" } },
//	      "use": "kernel:NAME", "exclude": ["solution:NAME"], "objective": "latency", "on_error": "warn" } ],
//	  "quarantine": "FILE", "verdicts": "FILE", "tuning_db": "FILE" }
//
// A rule holds where everything in its match does; an empty match holds everywhere. A format is a dtype, a format's name
// ("mxfp4"), both ("dense[bf16]") or tensor.ParseFormat's full text. A trait's condition is a value, a list of values, or
// comparisons joined by blanks ("!=3", ">=9 <17"). Of all rules that hold, the first with a "use" decides it, and so for
// "exclude" and "objective". Rules that look at formats or traits are for requests (Select, Prepare): launches by op know
// neither beforehand. Names of files are relative to the file's own folder.
type Config struct {
	file                           string
	objective                      Objective
	strict                         bool
	rules                          []*rule
	tuningDB, quarantine, verdicts string
}

// rule is one rule, its names not yet looked up.
type rule struct {
	spot
	match      string // as ConfigStatus shows it
	op, vendor string
	opAt       spot
	arch       []archBound
	formats    []formatCond
	traits     []traitCond
	use        Target
	useAt      spot
	exclude    []Target
	excludeAt  []spot
	objective  Objective
	ranked     bool // objective is set
	warn       bool // names that do not exist are warnings
}

type archBound struct {
	cmp  string
	arch device.Arch
}

type formatCond struct {
	role  string
	is    tensor.Format // only name and perhaps dtype unless exact
	exact bool
	spot
}

// traitCond is a condition in words; the trait's type turns it into a Constraint.
type traitCond struct {
	name string
	any  []string
	spot
}

// LoadConfig reads a configuration, at most 1 MiB. name is its path, for messages and for the files that it names. What
// is wrong is told by *ConfigError, several joined.
func LoadConfig(r io.Reader, name string) (*Config, error) {
	f, top, err := readJSON(r, name)
	if err != nil {
		return nil, err
	}
	c := &Config{file: name}
	versioned := false
	path := func(to *string) func(jsonNode, string) {
		return f.text(func(s string) error {
			if s == "" {
				return errors.New("no file name")
			}
			if *to = s; !filepath.IsAbs(s) {
				*to = filepath.Join(filepath.Dir(name), s)
			}
			return nil
		})
	}
	f.object(top, "", map[string]func(jsonNode, string){
		"version":  f.version("1", &versioned),
		"defaults": func(n jsonNode, field string) { c.readDefaults(f, n, field) },
		"rules": func(n jsonNode, field string) {
			f.list(n, field, func(n jsonNode, field string) { c.readRule(f, n, field) })
		},
		"tuning_db":  path(&c.tuningDB),
		"quarantine": path(&c.quarantine),
		"verdicts":   path(&c.verdicts),
	})
	if !versioned {
		f.bad(top.at, "version", "missing")
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// ReadConfig is LoadConfig of a regular file.
func ReadConfig(path string) (*Config, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return LoadConfig(f, path)
}

// openRegular opens a file unless it is a folder, a pipe or a device, which might never end.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return os.Open(path)
}

func strategy(s string) error {
	switch s {
	case "heuristic":
		return nil
	case "autotune":
		return errors.New("autotune cannot be honoured: this version measures nothing by itself")
	}
	return fmt.Errorf("%q is not heuristic or autotune", clip(s))
}

func (c *Config) readDefaults(f *jsonFile, n jsonNode, field string) {
	f.object(n, field, map[string]func(jsonNode, string){
		"objective": f.text(func(s string) error { return c.objective.UnmarshalText([]byte(s)) }),
		"strategy":  f.text(strategy),
		"strict": func(n jsonNode, field string) {
			var ok bool
			if c.strict, ok = n.val.(bool); !ok {
				f.bad(n.at, field, "not true or false")
			}
		},
	})
}

func (c *Config) readRule(f *jsonFile, n jsonNode, field string) {
	r := &rule{spot: f.spot(n.at, field), match: "{}"}
	f.object(n, field, map[string]func(jsonNode, string){
		"match": func(n jsonNode, field string) { r.readMatch(f, n, field) },
		"use": func(n jsonNode, field string) {
			r.useAt = f.spot(n.at, field)
			f.text(func(s string) (err error) { r.use, err = ParseTarget(s); return err })(n, field)
		},
		"exclude": func(n jsonNode, field string) {
			f.list(n, field, func(n jsonNode, field string) {
				f.text(func(s string) error {
					t, err := ParseTarget(s)
					if err == nil && (t.Exclude || t.Force) {
						err = fmt.Errorf("%q in a list of exclusions", clip(s))
					}
					r.exclude, r.excludeAt = append(r.exclude, t), append(r.excludeAt, f.spot(n.at, field))
					return err
				})(n, field)
			})
		},
		"objective": f.text(func(s string) error { r.ranked = true; return r.objective.UnmarshalText([]byte(s)) }),
		"strategy":  f.text(strategy),
		"on_error": f.text(func(s string) error {
			r.warn = s == "warn"
			if !r.warn && s != "fail" {
				return fmt.Errorf("%q is not fail or warn", clip(s))
			}
			return nil
		}),
	})
	if r.op == "" && len(r.formats)+len(r.traits) > 0 {
		f.bad(n.at, field+".match", "formats and traits need an op")
	}
	c.rules = append(c.rules, r)
}

func (r *rule) readMatch(f *jsonFile, n jsonNode, field string) {
	var arch string
	archAt := n.at
	f.object(n, field, map[string]func(jsonNode, string){
		"op": func(n jsonNode, field string) {
			r.opAt = f.spot(n.at, field)
			f.text(func(s string) error { r.op = s; return checkName("op", s) })(n, field)
		},
		"vendor": f.text(func(s string) error { r.vendor = s; return knownVendor(s) }),
		"arch":   func(n jsonNode, field string) { archAt = n.at; f.word(&arch)(n, field) },
		"signature": func(n jsonNode, field string) {
			f.members(n, field, func(m jsonMember, field string) {
				f.text(func(s string) error {
					is, exact, err := formatPattern(s)
					r.formats = append(r.formats, formatCond{m.key, is, exact, f.spot(m.at, field)})
					return err
				})(m.jsonNode, field)
			})
		},
		"traits": func(n jsonNode, field string) {
			f.members(n, field, func(m jsonMember, field string) {
				r.traits = append(r.traits, traitCond{m.key, f.condition(m.jsonNode, field), f.spot(m.at, field)})
			})
		},
	})
	r.arch = f.archBounds(archAt, field+".arch", r.vendor, arch)
	var text bytes.Buffer
	if json.Compact(&text, f.data[n.at:n.end]) == nil {
		r.match = text.String()
	}
}

// archBounds reads comparisons with versions of a vendor's architectures.
func (f *jsonFile) archBounds(at int, field, vendor, text string) (out []archBound) {
	if text != "" && vendor == "" {
		f.bad(at, field, "needs a vendor: versions of different vendors have no order")
		return nil
	}
	for _, w := range strings.Fields(text) {
		cmp, v := comparison(w)
		a, err := device.ParseArch(vendor, v)
		if err != nil || a.IsZero() || a.Suffix != "" {
			f.bad(at, field, "%q is not a comparison with a version like 9.0", clip(w))
		}
		out = append(out, archBound{cmp, a})
	}
	return out
}

// members calls read for each member of an object with free keys.
func (f *jsonFile) members(n jsonNode, field string, read func(m jsonMember, field string)) {
	members, ok := n.val.([]jsonMember)
	if !ok {
		f.bad(n.at, field, "not an object")
	}
	for _, m := range members {
		read(m, field+"."+m.key)
	}
}

// condition reads a scalar or a list of scalars as words.
func (f *jsonFile) condition(n jsonNode, field string) (any []string) {
	switch v := n.val.(type) {
	case bool:
		return []string{fmt.Sprint(v)}
	case json.Number:
		return []string{v.String()}
	case string:
		if strings.TrimSpace(v) != "" {
			return []string{v}
		}
	case []jsonNode:
		for _, e := range v {
			if _, nested := e.val.([]jsonNode); nested {
				break
			}
			any = append(any, f.condition(e, field)...)
		}
		if len(any) == len(v) && len(v) > 0 {
			return any
		}
	}
	f.bad(n.at, field, "not a value, a comparison or a list of them")
	return nil
}

func knownVendor(s string) error { return (&device.Requirement{Vendors: []string{s}}).Validate() }

// comparison splits ">=9" into its parts; a word without one is an equality.
func comparison(w string) (cmp, v string) {
	for _, c := range []string{">=", "<=", "!=", "=", ">", "<"} {
		if v, ok := strings.CutPrefix(w, c); ok {
			return c, v
		}
	}
	return "=", w
}

// formatPattern reads a dtype, a format's name, name[dtype] or a whole format.
func formatPattern(s string) (f tensor.Format, exact bool, err error) {
	if f, err := tensor.ParseFormat(s); err == nil {
		return f, true, nil
	}
	name, rest, ok := strings.Cut(s, "[")
	if f.Name = tensor.FormatName(name); !slices.Contains(tensor.FormatNames(), f.Name) {
		return f, false, fmt.Errorf("%q is no dtype and no format", clip(s))
	}
	if ok {
		f.DType, err = tensor.ParseDType(strings.TrimSuffix(rest, "]"))
	}
	return f, false, err
}

func (c *formatCond) admits(f tensor.Format) bool {
	if c.exact {
		return f == c.is
	}
	return f.Name == c.is.Name && (c.is.DType == tensor.None || c.is.DType == f.DType)
}

// constraint turns the condition into a Constraint for values of type t.
func (c *traitCond) constraint(t TraitType) (Constraint, error) {
	var out Constraint
	for _, text := range c.any {
		words := strings.Fields(text)
		if t == TraitString {
			words = []string{text}
		}
		var all Constraint
		for _, w := range words {
			cmp, v := comparison(w)
			x, err := ParseTrait(t, v)
			if err != nil {
				return out, err
			}
			n, ordered := x.Int()
			switch {
			case cmp == "=":
				all.AllOf = append(all.AllOf, OneOf(x))
			case cmp == "!=":
				one := OneOf(x)
				all.AllOf = append(all.AllOf, Constraint{Not: &one})
			case !ordered || t != TraitInt:
				return out, fmt.Errorf("%q: a %v has no order", clip(w), t)
			case cmp == ">=":
				all.AllOf = append(all.AllOf, AtLeast(n))
			case cmp == "<=":
				all.AllOf = append(all.AllOf, AtMost(n))
			case cmp == ">":
				less := AtMost(n)
				all.AllOf = append(all.AllOf, Constraint{Not: &less})
			default:
				more := AtLeast(n)
				all.AllOf = append(all.AllOf, Constraint{Not: &more})
			}
		}
		out.AnyOf = append(out.AnyOf, all)
	}
	return out, nil
}
