package registry

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// EnvVar is one row of the environment table.
type EnvVar struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Source  string `json:"source"` // "default", or the variable that was set: an alias counts as a source of its own
	Meaning string `json:"meaning"`
}

// variable is one row of the parser's table.
type variable struct {
	name, alias, meaning string
	set                  func(o *Options, v string) error
}

func flag(at func(*Options) *bool) func(*Options, string) error {
	return func(o *Options, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("%q is not a truth value (1, true, 0, false)", clip(v))
		}
		*at(o) = b
		return nil
	}
}

func text(at func(*Options) *string) func(*Options, string) error {
	return func(o *Options, v string) error { *at(o) = v; return nil }
}

var variables = []variable{
	{"OPMUX_DISABLE", "VT_OP_PROVIDER_DISABLE", "kernels or providers to leave out: name, name@op, name@device; comma list; unknown names are warnings", func(o *Options, v string) error {
		var bad, twice []string
		for _, e := range list(v, ",") {
			if _, err := parseEntry(e); err != nil {
				bad = append(bad, strconv.Quote(clip(e)))
				continue
			}
			if slices.Contains(o.Disable, e) {
				twice = append(twice, strconv.Quote(clip(e)))
				continue
			}
			o.Disable = append(o.Disable, e)
		}
		return complaint("not a name, name@op or name@device", bad, "stands there twice", twice)
	}},
	{"OPMUX_STATS", "VT_OP_PROVIDER_STATS", "count selections and log events to standard error", flag(func(o *Options) *bool { return &o.Stats })},
	{"OPMUX_STRICT", "", "fail at the first fallback: a decline, or a borrowed CPU kernel", flag(func(o *Options) *bool { return &o.Strict })},
	{"OPMUX_REFERENCE", "", "borrowed CPU kernels: off, warn, allow", func(o *Options, v string) error {
		for _, p := range []ReferencePolicy{ReferenceOff, ReferenceWarn, ReferenceAllow} {
			if strings.EqualFold(v, p.String()) {
				o.Reference = p
				return nil
			}
		}
		return fmt.Errorf("%q is not off, warn or allow", clip(v))
	}},
	{"OPMUX_OVERRIDE", "", "op=target;...: what heads the op's chain: kernel:NAME, solution:NAME, NAME, !NAME (all but it), force:NAME (unchecked); the op is not served where nothing is called NAME", func(o *Options, v string) error { return pairs(&o.Override, v) }},
	{"OPMUX_FORCE", "", "op=target;...: the op's only target; beats every other choice; the op is not served where nothing is called like it", func(o *Options, v string) error { return pairs(&o.Force, v) }},
	{"OPMUX_CONFIG", "", "JSON file of rules that choose kernels, read once; a file that is broken or names what does not exist is ignored and reported", text(func(o *Options) *string { return &o.Config })},
	{"OPMUX_EXPLAIN", "", "ops whose chain is printed at the first launch; comma list or all", func(o *Options, v string) error {
		o.Explain = list(v, ",")
		return nil
	}},
	{"OPMUX_THREADS", "", "CPU worker threads", func(o *Options, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 4096 {
			return fmt.Errorf("%q is not a number from 1 to 4096", clip(v))
		}
		o.Threads = n
		return nil
	}},
	{"OPMUX_PLUGIN_PATH", "", "folders of plugin libraries; read, but nothing in this version uses it", func(o *Options, v string) error {
		o.PluginPath = list(v, string(os.PathListSeparator))
		return nil
	}},
	{"OPMUX_DISABLE_PLUGINS", "", "load no plugins; read, but nothing in this version uses it", flag(func(o *Options) *bool { return &o.DisablePlugins })},
	{"OPMUX_CUBLASLT", "", "path of the cuBLASLt library; read, but nothing in this version uses it", text(func(o *Options) *string { return &o.CUBLASLt })},
	{"OPMUX_CUDA_SYNC", "", "synchronise after each CUDA launch; read, but nothing in this version uses it", flag(func(o *Options) *bool { return &o.CUDASync })},
	{"OPMUX_MLX", "", "path of the MLX library; read, but nothing in this version uses it", text(func(o *Options) *string { return &o.MLX })},
}

// testVariables are known to tests only; they set no option.
var testVariables = []variable{{name: "OPMUX_CONFORMANCE", meaning: "folder of the conformance files (tests)"},
	{name: "OPMUX_CHROMIUM", meaning: "browser that shows the debug page; \"required\": one that is installed, and it is an error if none is (tests)"}}

// OptionsFromEnv reads every variable of EnvTable through lookup (os.LookupEnv, or a test's). An empty value is as good
// as none; an alias is read where the own name is not set. What it does not understand is left at its default and reported; it never fails.
func OptionsFromEnv(lookup func(string) (string, bool)) (Options, []Warning) {
	var o Options
	var warnings []Warning
	for _, v := range variables {
		if name, val := v.find(lookup); val != "" {
			if err := v.set(&o, val); err != nil {
				warnings = append(warnings, Warning{name, err.Error()})
			}
		}
	}
	return o, warnings
}

// find returns the variable's value and the name that it stands under: its own, else its alias. Empty if neither is set.
func (v *variable) find(lookup func(string) (string, bool)) (name, val string) {
	for _, name := range []string{v.name, v.alias} {
		if name == "" {
			continue
		}
		if val, ok := lookup(name); ok && strings.TrimSpace(val) != "" {
			return name, strings.TrimSpace(val)
		}
	}
	return "", ""
}

// EnvTable lists every variable with its value, where that comes from, and its meaning.
func EnvTable(lookup func(string) (string, bool)) []EnvVar {
	var out []EnvVar
	for _, v := range slices.Concat(variables, testVariables) {
		e := EnvVar{Name: v.name, Source: "default", Meaning: v.meaning}
		if name, val := v.find(lookup); val != "" {
			e.Value, e.Source = val, name
		}
		out = append(out, e)
	}
	return out
}

// UnknownVariables reports the OPMUX_ variables of an environment ("NAME=value" each) that EnvTable does not list, with
// the nearest known names.
func UnknownVariables(environ []string) (out []Warning) {
	var known []string
	for _, v := range slices.Concat(variables, testVariables) {
		known = append(known, v.name)
	}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "OPMUX_") && !slices.Contains(known, name) {
			text := "unknown variable"
			if n := near(name, known); len(n) > 0 {
				text += "; nearest: " + strings.Join(n, ", ")
			}
			out = append(out, Warning{clip(name), text})
		}
	}
	return out
}

// environment is what Default reads at its first compile.
func environment() (Options, []Warning) {
	o, w := OptionsFromEnv(os.LookupEnv)
	return o, append(w, UnknownVariables(os.Environ())...)
}

func list(v, sep string) (out []string) {
	for _, s := range strings.Split(v, sep) {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// pairs reads "op=target" items, separated by ; or ,
func pairs(to *map[string]string, v string) error {
	var bad, twice []string
	for _, item := range list(strings.ReplaceAll(v, ";", ","), ",") {
		op, target, _ := strings.Cut(item, "=")
		op, target = strings.TrimSpace(op), strings.TrimSpace(target)
		if _, err := ParseTarget(target); err != nil || checkName("op", op) != nil {
			bad = append(bad, strconv.Quote(clip(item)))
			continue
		}
		if *to == nil {
			*to = map[string]string{}
		}
		if _, ok := (*to)[op]; ok {
			twice = append(twice, strconv.Quote(clip(op)))
		}
		(*to)[op] = target
	}
	return complaint("not op=target", bad, "an op stands there twice, the last target counts", twice)
}

// complaint joins what is wrong with a list and what of it is said again; nil for nothing.
func complaint(wrong string, bad []string, again string, twice []string) error {
	var parts []string
	if len(bad) > 0 {
		parts = append(parts, wrong+": "+strings.Join(bad, ", "))
	}
	if len(twice) > 0 {
		parts = append(parts, again+": "+strings.Join(twice, ", "))
	}
	if len(parts) == 0 {
		return nil
	}
	return errors.New(strings.Join(parts, "; "))
}

// clip shortens what a message quotes.
func clip(s string) string { return clipTo(s, 64) }

func clipTo(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for !utf8.RuneStart(s[n]) && n > 0 {
		n--
	}
	return s[:n] + "..."
}

// near returns up to three names within a third of their length of s, nearest first.
func near(s string, names []string) []string {
	type scored struct {
		name string
		d    int
	}
	var c []scored
	s = clip(s)
	for _, n := range names {
		if d := distance(s, n); d <= max(2, len(n)/3) || strings.Contains(n, s) || strings.Contains(s, n) {
			c = append(c, scored{n, d})
		}
	}
	sort.SliceStable(c, func(i, j int) bool {
		return cmp.Or(cmp.Compare(c[i].d, c[j].d), cmp.Compare(c[i].name, c[j].name)) < 0
	})
	var out []string
	for i := 0; i < len(c) && len(out) < 3; i++ {
		if i == 0 || c[i].name != c[i-1].name {
			out = append(out, c[i].name)
		}
	}
	return out
}

// distance is Levenshtein's, over bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag + b2i(a[i] != b[j])
			diag = row[j+1]
			row[j+1] = min(cost, row[j]+1, diag+1)
		}
	}
	return row[len(b)]
}
